//! What happened, as it happened: the lab's own account of faults and calls. Judges nothing.

use super::plan::Kind;
use nix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// ns of `CLOCK_BOOTTIME`: the clock of the commands' stamps.
pub(super) fn now() -> u64 {
    let time = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock"));
    u64::try_from(time.as_nanos()).expect("a time")
}

pub(super) const MS: u64 = 1_000_000;

/// How lines about what becomes of keys begin.
pub(super) const WITNESSED: &str = "      key ";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Locker {
    Meshlock,
    /// `etcdctl lock`, the control.
    Etcdctl,
}

/// One call of meshlock or of etcdctl.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Its number, by which its processes are known.
    pub(super) hold: String,
    pub(super) locker: Locker,
    pub(super) name: String,
    /// What the command is told to be.
    pub(super) role: &'static str,
    /// What the command ends with, if it ends by itself.
    pub(super) status: i32,
    pub(super) max_runtime: bool,
    /// From one renewal's end to the next one's, a slow answer included.
    pub(super) renews_each_ms: u64,
    pub(super) started: u64,
    /// The exit status, or the signal as a negative number; `None` while it runs.
    pub(super) ended: Option<(u64, i32)>,
    pub(super) said: String,
    /// The status in its `--report`.
    pub(super) reported: Option<i64>,
    pub(super) words: String,
}

/// What the lab did to a call, to its processes or its key.
#[derive(Clone, Debug)]
pub(super) struct Strike {
    pub(super) at: u64,
    pub(super) hold: String,
    pub(super) kind: Kind,
}

#[derive(Default)]
pub(super) struct Record {
    calls: Mutex<Vec<Call>>,
    strikes: Mutex<Vec<Strike>>,
    lines: Mutex<Vec<(u64, String)>>,
    counts: Mutex<BTreeMap<Kind, Count>>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Count {
    pub(super) done: u32,
    /// Found nobody to hurt, or the machine does not allow it.
    pub(super) not_done: u32,
}

impl Record {
    pub(super) fn say(&self, line: impl Into<String>) {
        self.lines.lock().expect("not poisoned").push((now(), line.into()));
    }

    pub(super) fn begin(&self, call: Call) {
        self.calls.lock().expect("not poisoned").push(call);
    }

    pub(super) fn end(&self, hold: &str, status: i32, said: String, reported: Option<i64>) {
        let mut calls = self.calls.lock().expect("not poisoned");
        if let Some(call) = calls.iter_mut().rev().find(|call| call.hold == hold) {
            call.ended = Some((now(), status));
            call.said = said;
            call.reported = reported;
        }
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("not poisoned").clone()
    }

    pub(super) fn strikes(&self) -> Vec<Strike> {
        self.strikes.lock().expect("not poisoned").clone()
    }

    pub(super) fn lines(&self) -> Vec<(u64, String)> {
        self.lines.lock().expect("not poisoned").clone()
    }

    pub(super) fn count(&self, kind: Kind, done: bool) {
        let mut counts = self.counts.lock().expect("not poisoned");
        let count = counts.entry(kind).or_default();
        if done {
            count.done += 1;
        } else {
            count.not_done += 1;
        }
    }

    pub(super) fn counted(&self, kind: Kind) -> Count {
        self.counts
            .lock()
            .expect("not poisoned")
            .get(&kind)
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn strike(&self, kind: Kind, hold: &str) {
        let strike = Strike {
            at: now(),
            hold: hold.to_owned(),
            kind,
        };
        self.strikes.lock().expect("not poisoned").push(strike);
    }
}
