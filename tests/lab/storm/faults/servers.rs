//! Faults of etcd itself: members that die, stand still, hang on their disks, change their leader or run full.

use super::{Deed, Faults, Undo, pick};
use crate::harness::{clean, proc};
use crate::storm::plan::Kind;
use fastrand::Rng;
use nix::sys::signal::Signal;
use std::process::{Child, Stdio};
use std::time::Duration;

impl Faults<'_> {
    pub(super) fn hurt_servers(&mut self, kind: Kind, lasts: Duration, dice: &mut Rng) -> Option<Deed> {
        let healthy = self.healthy();
        let leads = matches!(kind, Kind::StopLeader | Kind::StallLeader | Kind::MoveLeader);
        let member = if leads {
            self.members.leader().filter(|leader| healthy.contains(leader))?
        } else {
            pick(dice, healthy.iter().copied())?
        };
        let (whom, undo) = match kind {
            Kind::KillMember => {
                self.members.kill(member);
                (format!("m{member}"), Some(Undo::Launch(member)))
            }
            Kind::StopMember | Kind::StopLeader => {
                self.members.signal(member, Signal::SIGSTOP);
                (format!("m{member}"), Some(Undo::Resume(member)))
            }
            Kind::StallLeader => {
                let each = lasts.mul_f64(0.3 + dice.f64());
                let strace = stall(self.members.pid(member)?, each)?;
                (format!("m{member}, {each:?} each"), Some(Undo::Unstall(member, strace)))
            }
            Kind::MoveLeader => {
                let to = pick(dice, healthy.into_iter().filter(|other| *other != member))?;
                let id = format!("{:x}", self.members.id(to)?);
                self.members.etcdctl_at(&[member], &["move-leader", &id])?;
                (format!("m{member} to m{to}"), None)
            }
            Kind::Compact => {
                let text = self.members.etcdctl(&["get", "nothing", "--write-out=json"])?;
                let answer: serde_json::Value = serde_json::from_str(&text).ok()?;
                let revision = answer.pointer("/header/revision")?.to_string();
                self.members.etcdctl(&["compaction", &revision])?;
                (format!("at {revision}"), None)
            }
            // Raised, not waited for: a database that is really full would have to be emptied again.
            _ => {
                let id = self.members.id(member)?;
                let body = format!(r#"{{"action":"ACTIVATE","memberID":"{id}","alarm":"NOSPACE"}}"#);
                // Also where no answer comes it may have been heard: it is undone in any case.
                self.members.post(member, "/v3/maintenance/alarm", &body);
                let disarm = ["alarm", "disarm"].map(str::to_owned);
                (format!("of m{member}"), Some(Undo::Etcdctl(disarm.into())))
            }
        };
        Some(Deed { whom, undo })
    }
}

/// Each `fdatasync` of the process takes this long from now on: a disk that hangs.
fn stall(pid: i32, each: Duration) -> Option<Child> {
    let inject = format!("inject=fdatasync:delay_enter={}", each.as_micros());
    clean("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", &inject])
        .args(["-p", &pid.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()
}

pub(super) fn unstall(mut strace: Child) {
    // It lets go of its tracees when it is asked to end.
    proc::signal(strace.id().cast_signed(), Signal::SIGTERM);
    strace.wait().ok();
}
