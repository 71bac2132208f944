//! Faults of a client's processes: meshlock's halves, the command, all at once where that is promised to be
//! borne; and etcdctl's.

use super::{Deed, Faults, Undo, pick};
use crate::harness::proc;
use crate::storm::calls::{Half, Running};
use crate::storm::plan::Kind;
use crate::storm::record::Locker;
use fastrand::Rng;
use nix::sys::signal::Signal;

impl Faults<'_> {
    pub(super) fn hurt_processes(&self, kind: Kind, dice: &mut Rng) -> Option<Deed> {
        let call = match kind {
            Kind::KillControl | Kind::StopControl => self.holder(Locker::Etcdctl, dice)?,
            _ => self.victim(kind, dice)?,
        };
        let mut pids = vec![self.target(kind, &call)?];
        if kind == Kind::StopGroup {
            pids.extend(descendants(call.pid));
        }
        let (signal, lasts) = match kind {
            Kind::EndGuardian => (Signal::SIGTERM, false),
            Kind::KillGuardian | Kind::KillKeeper | Kind::KillCommand | Kind::KillControl => (Signal::SIGKILL, false),
            _ => (Signal::SIGSTOP, true),
        };
        let started = pids.iter().map(|pid| (*pid, proc::start_time(*pid))).collect();
        // First, so that its effect is never before it.
        self.record.strike(kind, &call.hold);
        for pid in &pids {
            proc::signal(*pid, signal);
        }
        Some(Deed {
            whom: format!("of {} on {}: pid {pids:?}", call.hold, call.name),
            undo: lasts.then_some(Undo::Continue(started)),
        })
    }

    /// A call whose command runs.
    pub(super) fn holder(&self, locker: Locker, dice: &mut Rng) -> Option<Running> {
        let holds = |call: &Running| call.locker == locker && self.calls.observer.command_of(&call.hold).is_some();
        pick(dice, self.calls.running().into_iter().filter(holds))
    }

    /// Mostly who holds, now and then who waits.
    fn victim(&self, kind: Kind, dice: &mut Rng) -> Option<Running> {
        let needs_command = matches!(kind, Kind::KillCommand | Kind::StopCommand);
        let call = if needs_command || dice.u32(..5) > 0 {
            self.holder(Locker::Meshlock, dice)?
        } else {
            let ours = |call: &Running| call.locker == Locker::Meshlock;
            pick(dice, self.calls.running().into_iter().filter(ours))?
        };
        let half = match kind {
            Kind::KillGuardian | Kind::StopGuardian | Kind::StopGroup => Some(Half::Guardian),
            Kind::KillKeeper | Kind::StopKeeper => Some(Half::Keeper),
            _ => None,
        };
        half.is_none_or(|half| self.calls.choose_half(&call.hold, half))
            .then_some(call)
    }

    fn target(&self, kind: Kind, call: &Running) -> Option<i32> {
        match kind {
            Kind::KillControl | Kind::StopControl => Some(call.pid),
            Kind::KillKeeper | Kind::StopKeeper => proc::children(call.pid)
                .into_iter()
                .find(|pid| proc::name(*pid) == "mlkeeper"),
            Kind::KillCommand | Kind::StopCommand => self.calls.observer.command_of(&call.hold),
            // Until it has been executed it is somebody else: the shell that enters the cgroup.
            _ => (proc::name(call.pid) == "meshlock").then_some(call.pid),
        }
    }
}

/// Of a guardian, without its keeper.
fn descendants(pid: i32) -> Vec<i32> {
    let children = proc::children(pid).into_iter();
    children
        .filter(|pid| proc::name(*pid) != "mlkeeper")
        .flat_map(|child| [vec![child], descendants(child)].concat())
        .collect()
}
