//! Locks in Prometheus' text exposition format, for `node_exporter`'s textfile collector: samples of one metric
//! together, under its HELP and TYPE. Knows nothing of how they were read.
//! See <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use super::super::text::printable;
use crate::lock::board::{Board, Lock};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

struct Metric {
    name: &'static str,
    help: &'static str,
    /// `None`: there is no such sample of this lock.
    value: fn(&Lock, SystemTime) -> Option<f64>,
}

const METRICS: &[Metric] = &[
    Metric {
        name: "meshlock_held",
        help: "1 if somebody holds the lock.",
        value: |lock, _| Some(truth(lock.is_held())),
    },
    Metric {
        name: "meshlock_waiters",
        help: "How many wait in the queue.",
        value: |lock, _| Some(count(lock.waiters())),
    },
    Metric {
        name: "meshlock_held_seconds",
        help: "For how long the holder has held the lock, where that is known.",
        value: |lock, now| Some(seconds(now.duration_since(lock.since()?).unwrap_or_default())),
    },
    Metric {
        name: "meshlock_frozen",
        help: "1 if nobody starts, since the lock is frozen.",
        value: |lock, _| Some(truth(lock.frozen.is_some())),
    },
    Metric {
        name: "meshlock_vanished_runs",
        help: "1 if the last run's lease ended without a release, until the next run starts.",
        value: |lock, _| Some(truth(lock.vanished().is_some())),
    },
    Metric {
        name: "meshlock_last_run_failed",
        help: "1 if the last recorded run did not end as was expected of it.",
        value: |lock, _| Some(truth(lock.runs.first()?.failed())),
    },
    Metric {
        name: "meshlock_last_run_status",
        help: "The last recorded run's exit status, where its command ran to an end.",
        value: |lock, _| lock.runs.first()?.run.as_ref()?.ended.status.map(f64::from),
    },
    Metric {
        name: "meshlock_last_run_duration_seconds",
        help: "For how long the last recorded run held the lock.",
        value: |lock, _| lock.runs.first()?.run.as_ref()?.duration().map(seconds),
    },
    Metric {
        name: "meshlock_last_run_end_timestamp_seconds",
        help: "When the last recorded run ended.",
        value: |lock, _| {
            let ended = lock.runs.first()?.run.as_ref()?.ended()?;
            ended.duration_since(SystemTime::UNIX_EPOCH).ok().map(seconds)
        },
    },
];

pub fn prometheus(board: &Board, now: SystemTime) -> String {
    let mut text = String::new();
    for Metric { name, help, value } in METRICS {
        // Writing to a String cannot fail.
        write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n").ok();
        for lock in &board.locks {
            if let Some(value) = value(lock, now) {
                writeln!(text, "{name}{{{}}} {value}", labels(lock)).ok();
            }
        }
    }
    text
}

/// Which lock: those at a key have another label still, so that no two series are the same.
fn labels(lock: &Lock) -> String {
    let name = format!("lock=\"{}\"", label(&lock.name));
    match &lock.lock_key {
        Some(key) => format!("{name},lock_key=\"{}\"", label(key)),
        None => name,
    }
}

/// A label's value: backslash, quote and newline have to be escaped; the last is so already.
fn label(text: &str) -> String {
    printable(text).replace('\\', "\\\\").replace('"', "\\\"")
}

fn truth(truth: bool) -> f64 {
    f64::from(u8::from(truth))
}

/// Exact for what can be counted here.
fn count(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}
