//! What the storm came to: the table for everybody, and for a failure the trace. Prints, and decides nothing.
#![expect(clippy::print_stdout, reason = "the results are what the lab is for")]

use super::judge::{Overlap, Wrong};
use super::observer::Life;
use super::plan::Kind;
use super::record::{Call, Locker, MS, Record, WITNESSED};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// All that is known at the end.
pub(super) struct Results {
    pub(super) seed: u64,
    pub(super) version: String,
    pub(super) network: String,
    pub(super) took: Duration,
    pub(super) clients: [usize; 2],
    /// Of meshlock, and of the control.
    pub(super) holds: [usize; 2],
    pub(super) calls: Vec<Call>,
    pub(super) lives: Vec<Life>,
    pub(super) overlaps: Vec<Overlap>,
    pub(super) statuses: Vec<Wrong>,
    pub(super) tokens: (usize, Vec<Wrong>),
    pub(super) orphans: Vec<String>,
    pub(super) leftovers: Vec<String>,
    /// Calls that did not end.
    pub(super) stuck: Vec<String>,
    /// The control has to show that the lab sees overlaps.
    pub(super) control_counts: bool,
}

impl Results {
    fn overlaps_of(&self, locker: Locker, apart: bool) -> Vec<&Overlap> {
        let of = |overlap: &&Overlap| overlap.locker == locker && overlap.apart.is_some() == apart;
        self.overlaps.iter().filter(of).collect()
    }

    /// What is wrong, and when it came about, where that is known.
    pub(super) fn failures(&self) -> Vec<(Option<u64>, String)> {
        let mut failures = Vec::new();
        for overlap in self.overlaps_of(Locker::Meshlock, false) {
            let Overlap {
                at,
                ms,
                name,
                first,
                second,
                ..
            } = overlap;
            failures.push((
                Some(*at),
                format!("overlap of {ms} ms on {name}: {first} lived when {second} began"),
            ));
        }
        let named = |kind: &str, wrong: &Wrong| (Some(wrong.at), format!("{kind} of {}: {}", wrong.hold, wrong.what));
        failures.extend(self.statuses.iter().map(|wrong| named("status", wrong)));
        failures.extend(self.tokens.1.iter().map(|wrong| named("token", wrong)));
        let at_the_end = |kind: &str, what: &String| (None, format!("{kind}: {what}"));
        failures.extend(self.orphans.iter().map(|orphan| at_the_end("orphan", orphan)));
        failures.extend(self.leftovers.iter().map(|left| at_the_end("left behind", left)));
        failures.extend(self.stuck.iter().map(|call| at_the_end("does not end", call)));
        if self.control_counts && self.overlaps_of(Locker::Etcdctl, false).is_empty() {
            let blind = "the control never overlapped: the lab is blind, or the storm too mild";
            failures.push((None, blind.to_owned()));
        }
        failures
    }

    pub(super) fn print(&self, record: &Record) {
        let mut out = String::new();
        let mut row = |what: &str, value: &str| writeln!(out, "{what:<34} {value}").ok();
        row("seed", &self.seed.to_string());
        row("etcd", &format!("{}, three members", self.version));
        row("network", &self.network);
        row("duration", &format!("{:.1} min", self.took.as_secs_f64() / 60.0));
        row("", &format!("{:>10} {:>14}", "meshlock", "etcdctl lock"));
        let two = |values: [String; 2]| format!("{:>10} {:>14}", values[0], values[1]);
        row("clients", &two(self.clients.map(|count| count.to_string())));
        let calls = |locker| {
            self.calls
                .iter()
                .filter(|call| call.locker == locker)
                .count()
                .to_string()
        };
        row("calls", &two([Locker::Meshlock, Locker::Etcdctl].map(calls)));
        row("holds", &two(self.holds.map(|count| count.to_string())));
        let overlaps = [Locker::Meshlock, Locker::Etcdctl].map(|locker| self.overlaps_of(locker, false));
        row("overlaps", &two(overlaps.each_ref().map(|all| all.len().to_string())));
        let longest = |all: &Vec<&Overlap>| all.iter().map(|overlap| overlap.ms).max();
        let longest = |all| longest(all).map_or("-".to_owned(), |ms| format!("{ms} ms"));
        row("  the longest", &two(overlaps.each_ref().map(longest)));
        if !self.control_counts {
            row(
                "",
                "(under five minutes, or of another etcd than 3.4, the control need not overlap)",
            );
        }
        let apart = self.overlaps_of(Locker::Meshlock, true);
        row(
            "  outside of the promise (below)",
            &two([apart.len().to_string(), String::new()]),
        );
        row("orphans", &two([self.orphans.len().to_string(), String::new()]));
        row(
            "keys and leases left behind",
            &two([self.leftovers.len().to_string(), String::new()]),
        );
        row(
            "wrong exit statuses",
            &two([self.statuses.len().to_string(), String::new()]),
        );
        let (seen, wrong) = &self.tokens;
        row(
            "tokens, of these not growing",
            &two([format!("{seen}, {}", wrong.len()), String::new()]),
        );
        row("exit statuses", &self.histogram());
        row("faults", "");
        let mut faults = 0;
        for kind in Kind::all() {
            let count = record.counted(kind);
            faults += count.done;
            let not = if count.not_done > 0 {
                format!("  ({} found nobody)", count.not_done)
            } else {
                String::new()
            };
            row(&format!("  {}", kind.name()), &format!("{:>10}{not}", count.done));
        }
        let gluttons = self.calls.iter().filter(|call| call.role == "glutton").count();
        row("  out of memory", &format!("{gluttons:>10}"));
        row("  all", &format!("{:>10}", faults as usize + gluttons));
        for (first, why, times, ms) in grouped(&apart) {
            row(
                "outside of the promise",
                &format!("{first} lived when {times} others ran, up to {ms} ms each; {why}"),
            );
        }
        print!("{out}");
    }

    fn histogram(&self) -> String {
        let mut counts = BTreeMap::<i32, usize>::new();
        for call in self.calls.iter().filter(|call| call.locker == Locker::Meshlock) {
            if let Some((_, status)) = call.ended {
                *counts.entry(status).or_default() += 1;
            }
        }
        let name = |status: i32| {
            if status < 0 {
                format!("signal {}", -status)
            } else {
                status.to_string()
            }
        };
        let words: Vec<String> = counts
            .iter()
            .map(|(status, count)| format!("{}: {count}", name(*status)))
            .collect();
        words.join(", ")
    }

    /// Everything in the order of time, in a directory that stays; and where it is.
    pub(super) fn keep_trace(&self, record: &Record, logs: &[PathBuf]) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("meshlock-storm-{}-{}", self.seed, std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        for log in logs {
            fs::copy(log, directory.join(log.file_name().expect("a name"))).ok();
        }
        let lines = self.trace(record);
        let zero = lines.first().map_or(0, |(at, _)| *at);
        let text = |(at, line): &(u64, String)| format!("{:>9} ms  {line}\n", at.saturating_sub(zero) / MS);
        fs::write(directory.join("trace"), lines.iter().map(text).collect::<String>()).expect("the trace");
        // For those who do not look into files: what came before the first failure, without etcd's own view.
        if let Some(failed) = self.failures().iter().filter_map(|(at, _)| *at).min() {
            println!("before the first failure:");
            let before = |(at, line): &&(u64, String)| {
                failed.saturating_sub(BEFORE_MS * MS) < *at && *at <= failed + 100 * MS && !line.starts_with(WITNESSED)
            };
            print!("{}", lines.iter().filter(before).map(text).collect::<String>());
        }
        directory
    }

    fn trace(&self, record: &Record) -> Vec<(u64, String)> {
        let mut lines = record.lines();
        for call in &self.calls {
            lines.push((call.started, format!("CALL  {}: {}", call.hold, call.words)));
            if let Some((at, status)) = call.ended {
                let said = call.said.trim_end().replace('\n', "\n              | ");
                lines.push((at, format!("ENDED {} with {status}: {said}", call.hold)));
            }
        }
        for life in &self.lives {
            let token = life.token.map_or_else(String::new, |token| format!(", token {token}"));
            let who = format!("{} {} pid {} on {}", life.hold, life.role, life.pid, life.name);
            lines.push((life.first, format!("BORN  {who}{token}")));
            for (pid, hold) in &life.met {
                lines.push((life.first, format!("MET   {who} met {pid} of {hold}")));
            }
            let how = match life.end {
                Some((_, status)) => format!("ended with {status}"),
                None => "was last seen alive".to_owned(),
            };
            lines.push((life.last, format!("LAST  {who} {how}")));
        }
        lines.sort_by_key(|(at, _)| *at);
        lines
    }
}

/// By who lived too long: how many it met, and for how long at most.
fn grouped<'a>(overlaps: &[&'a Overlap]) -> Vec<(&'a str, &'static str, usize, u64)> {
    let mut groups = BTreeMap::<&str, (&'static str, usize, u64)>::new();
    for overlap in overlaps {
        let group = groups
            .entry(&overlap.first)
            .or_insert((overlap.apart.unwrap_or_default(), 0, 0));
        group.1 += 1;
        group.2 = group.2.max(overlap.ms);
    }
    groups
        .into_iter()
        .map(|(first, (why, times, ms))| (first, why, times, ms))
        .collect()
}

/// How much of the trace is shown at once.
const BEFORE_MS: u64 = 15_000;

pub(super) fn say(line: &str) {
    println!("{line}");
}
