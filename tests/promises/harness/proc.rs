//! Processes as `/proc` shows them, not as meshlock believes them to be.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::PathBuf;

/// What `/proc/<pid>/stat` says, as far as it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    start: u64,
}

pub(crate) fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may have anything in it, parentheses too.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 2..)?.split(' ').collect();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

pub(crate) fn start_time(pid: i32) -> Option<u64> {
    stat(pid).map(|stat| stat.start)
}

/// There, and not only as a zombie: a stopped process is alive.
pub(crate) fn alive(pid: i32) -> bool {
    stat(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

pub(crate) fn name(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| String::new(), |name| name.trim_end().to_owned())
}

pub(crate) fn all() -> Vec<i32> {
    fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

pub(crate) fn children(parent: i32) -> Vec<i32> {
    all()
        .into_iter()
        .filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent))
        .collect()
}

/// The living processes that have this variable in the environment they were started with.
pub(crate) fn with_environment(variable: &str, value: &str) -> Vec<i32> {
    let wanted = format!("{variable}={value}").into_bytes();
    all()
        .into_iter()
        .filter(|pid| {
            alive(*pid)
                && fs::read(format!("/proc/{pid}/environ"))
                    .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|one| one == wanted))
        })
        .collect()
}

/// What each open descriptor of a process leads to.
pub(crate) fn descriptors(pid: i32) -> Vec<(i32, PathBuf)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                fs::read_link(entry.path()).ok()?,
            ))
        })
        .collect();
    found.sort();
    found
}

/// Sends a signal; that the process may just have gone is no error.
pub(crate) fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).ok();
}
