//! Has the faults of the plan done, each by the file for its kind below, and undoes them when their time is
//! over. Judges nothing.

mod by_hand;
mod processes;
mod servers;
mod wires;

use super::calls::Calls;
use super::members::Members;
use super::network::{MEMBERS, Network};
use super::plan::{Fault, Kind};
use super::record::Record;
use crate::harness::{PATIENCE, pass, proc};
use fastrand::Rng;
use nix::sys::signal::Signal;
use std::process::Child;
use std::time::{Duration, Instant};

pub(super) struct Faults<'a> {
    pub(super) members: Members,
    network: &'a Network,
    calls: &'a Calls<'a>,
    record: &'a Record,
    active: Vec<Active>,
}

/// What was done, and to whom; `undo`, where it lasts.
struct Deed {
    whom: String,
    undo: Option<Undo>,
}

struct Active {
    until: Instant,
    what: String,
    undo: Undo,
}

enum Undo {
    Lower(Vec<u32>),
    Quicken(usize),
    Launch(usize),
    Resume(usize),
    Unstall(usize, Child),
    /// What etcdctl is to do, again and again until it succeeds.
    Etcdctl(Vec<String>),
    /// With their start times, since a pid may have been given to another.
    Continue(Vec<(i32, Option<u64>)>),
}

impl<'a> Faults<'a> {
    pub(super) fn new(members: Members, calls: &'a Calls<'a>) -> Self {
        Self {
            members,
            network: calls.network,
            calls,
            record: calls.record,
            active: Vec::new(),
        }
    }

    /// One fault. Where there is nobody to hurt just now, as no holder or no leader, somebody may come.
    pub(super) fn strike(&mut self, mut fault: Fault) {
        let start = Instant::now();
        let mut done = self.attempt(&mut fault);
        while done.is_none() && start.elapsed() < Duration::from_secs(1) {
            pass(Duration::from_millis(50));
            self.heal_due();
            done = self.attempt(&mut fault);
        }
        self.record.count(fault.kind, done.is_some());
    }

    fn attempt(&mut self, fault: &mut Fault) -> Option<()> {
        let Fault { kind, lasts, dice, .. } = fault;
        let (kind, lasts) = (*kind, *lasts);
        let alone = matches!(kind, Kind::Revoke | Kind::Delete);
        if alone && !self.active.is_empty() {
            // What a person does to a lease is covered for the time that it takes to notice it: no other fault
            // may stand between.
            self.heal_all();
            pass(Duration::from_secs(3));
        }
        let deed = match kind {
            Kind::CutMembers
            | Kind::IsolateMember
            | Kind::CutClient
            | Kind::CutClientOff
            | Kind::Lossy
            | Kind::Slow
            | Kind::Reset => self.hurt_wires(kind, dice),
            Kind::KillMember
            | Kind::StopMember
            | Kind::StopLeader
            | Kind::StallLeader
            | Kind::MoveLeader
            | Kind::Compact
            | Kind::NoSpace => self.hurt_servers(kind, lasts, dice),
            Kind::KillGuardian
            | Kind::KillKeeper
            | Kind::KillCommand
            | Kind::EndGuardian
            | Kind::StopGuardian
            | Kind::StopKeeper
            | Kind::StopCommand
            | Kind::StopGroup
            | Kind::KillControl
            | Kind::StopControl => self.hurt_processes(kind, dice),
            Kind::Freeze | Kind::Break | Kind::Revoke | Kind::Delete | Kind::RemoveAmid => self.by_hand(kind, dice),
        }?;
        let what = format!("{}: {}", kind.name(), deed.whom);
        let Some(undo) = deed.undo else {
            self.record.say(format!("FAULT {what}"));
            if alone {
                pass(Duration::from_secs(3));
            }
            return Some(());
        };
        self.record.say(format!("FAULT {what}, for {lasts:?}"));
        let until = Instant::now() + lasts;
        self.active.push(Active { until, what, undo });
        Some(())
    }

    /// Undoes what is over.
    pub(super) fn heal_due(&mut self) {
        let now = Instant::now();
        let due = self.active.extract_if(.., |active| active.until <= now).collect();
        self.undo(due);
    }

    /// Undoes everything, and waits until etcd is well.
    pub(super) fn heal_all(&mut self) {
        let start = Instant::now();
        while !self.active.is_empty() {
            let all = std::mem::take(&mut self.active);
            self.undo(all);
            assert!(start.elapsed() < PATIENCE, "etcd does not recover");
        }
        self.members.wait_for_calm(self.network, self.record);
    }

    fn undo(&mut self, over: Vec<Active>) {
        for active in over {
            self.record.say(format!("      over: {}", active.what));
            match active.undo {
                Undo::Lower(barriers) => barriers.into_iter().for_each(|barrier| self.network.lower(barrier)),
                Undo::Quicken(client) => self.network.slow_down(client, Duration::ZERO),
                Undo::Launch(member) => self.members.launch(self.network, member),
                Undo::Resume(member) => self.members.signal(member, Signal::SIGCONT),
                Undo::Unstall(_, strace) => servers::unstall(strace),
                Undo::Etcdctl(words) => {
                    let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
                    if self.members.etcdctl(&arguments).is_none() {
                        self.active.push(Active {
                            until: Instant::now() + Duration::from_secs(1),
                            what: active.what,
                            undo: Undo::Etcdctl(words),
                        });
                    }
                }
                Undo::Continue(pids) => {
                    let same = pids.into_iter().filter(|(pid, start)| proc::start_time(*pid) == *start);
                    same.for_each(|(pid, _)| proc::signal(pid, Signal::SIGCONT));
                }
            }
        }
    }

    /// Members that nothing has befallen which is done to them alone.
    fn healthy(&self) -> Vec<usize> {
        let hurt = |member: &usize| {
            self.active.iter().any(|active| {
                matches!(active.undo, Undo::Launch(hurt) | Undo::Resume(hurt) | Undo::Unstall(hurt, _) if hurt == *member)
            })
        };
        (0..MEMBERS).filter(|member| !hurt(member)).collect()
    }
}

impl Drop for Faults<'_> {
    fn drop(&mut self) {
        // Nobody stays in the debugger's hand, also where the lab fails.
        for active in self.active.drain(..) {
            if let Undo::Unstall(_, strace) = active.undo {
                servers::unstall(strace);
            }
        }
    }
}

/// Any one of these.
fn pick<T>(dice: &mut Rng, some: impl IntoIterator<Item = T>) -> Option<T> {
    let some: Vec<T> = some.into_iter().collect();
    dice.choice(some)
}
