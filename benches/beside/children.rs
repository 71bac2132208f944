//! Our processes, and theirs: a call of meshlock is over when its keeper is, which revokes the lease after the exit.
//! Orphans are given to us, so that what they cost is counted, and the next call starts on a machine without them.

use crate::harness::proc;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

pub(crate) fn adopt_orphans() {
    set_child_subreaper(true).expect("a subreaper");
}

/// Those children that stay: etcd.
pub(crate) struct Household(Vec<i32>);

/// What one call took.
pub(crate) struct Took {
    /// From before its start until its exit.
    pub(crate) wall: Duration,
    /// User and system time of all its processes.
    pub(crate) cpu: Duration,
}

impl Household {
    /// All that there are now.
    pub(crate) fn now() -> Self {
        Self(children())
    }

    /// Waits for the end of all that have come since, the orphans included.
    pub(crate) fn alone(&self) {
        for pid in children() {
            if !self.0.contains(&pid) {
                waitpid(Pid::from_raw(pid), None).expect("a child of ours");
            }
        }
    }

    /// Reaps all that end until these have. Nobody may wait for them any more.
    pub(crate) fn reap_until_gone(&self, those: &[Child]) {
        let mut left: BTreeSet<i32> = those.iter().map(|child| child.id().cast_signed()).collect();
        while !left.is_empty() {
            let status = waitpid(None, None).expect("children");
            let pid = status.pid().expect("it has ended").as_raw();
            assert!(!self.0.contains(&pid), "etcd ended: {status:?}");
            if left.remove(&pid) {
                assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
            }
        }
        self.alone();
    }

    /// A whole call, with what it leaves to be done after its exit. std starts it by `posix_spawn(3)`, as it has neither
    /// a PATH to search nor anything to do before: what we are does not slow it down.
    pub(crate) fn time(&self, command: &mut Command, expected: i32) -> Took {
        let before = reaped();
        let start = Instant::now();
        let status = command.spawn().and_then(|mut child| child.wait());
        let wall = start.elapsed();
        let status = status.expect("a call");
        assert_eq!(status.code(), Some(expected), "{command:?}");
        self.alone();
        Took {
            wall,
            cpu: reaped().saturating_sub(before),
        }
    }
}

/// Of each call the process and those of its children that are the same program: meshlock is two, and the command is
/// its own affair.
pub(crate) fn programs(calls: &[Child]) -> Vec<Vec<i32>> {
    let program = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for pid in proc::all() {
        if let Some(stat) = proc::stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let of = |call: &Child| {
        let pid = call.id().cast_signed();
        let own = children.get(&pid).into_iter().flatten().copied();
        own.filter(|child| program(*child) == program(pid))
            .chain([pid])
            .collect()
    };
    calls.iter().map(of).collect()
}

fn children() -> Vec<i32> {
    proc::children(Pid::this().as_raw())
}

/// User and system time of all children that are over, and of theirs.
pub(crate) fn reaped() -> Duration {
    usage(UsageWho::RUSAGE_CHILDREN)
}

/// The same, and our own.
pub(crate) fn spent() -> Duration {
    reaped() + usage(UsageWho::RUSAGE_SELF)
}

fn usage(whose: UsageWho) -> Duration {
    let usage = getrusage(whose).expect("our usage");
    let micros = |time: TimeVal| Duration::from_micros(time.num_microseconds().unsigned_abs());
    micros(usage.user_time()) + micros(usage.system_time())
}

/// User and system time of a process that is running, of its threads that have ended as well. `/proc` tells it in
/// hundredths of a second, in which some of them would have done nothing at all.
pub(crate) fn running(pid: i32) -> Duration {
    let clock = clock_getcpuclockid(Pid::from_raw(pid)).expect("its clock");
    clock_gettime(clock).expect("its time").into()
}
