//! The process tree, read from /proc: who descends from whom, and how one of them is killed without ever
//! hitting another process that came by its number. Knows nothing of deadlines.

use super::sys;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::fs;

/// A process, told apart from a later one with the same number by its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: i32,
    /// In clock ticks since boot: field 22 of /proc/PID/stat.
    start: u64,
}

impl Process {
    /// The process that `pid` means now; `None` if there is none, or only its zombie.
    pub fn living(pid: i32) -> Option<Self> {
        let (state, _, start) = stat(pid)?;
        (!matches!(state, 'Z' | 'X')).then_some(Self { pid, start })
    }

    pub fn is_alive(self) -> bool {
        Self::living(self.pid) == Some(self)
    }

    /// Kills exactly this process.
    pub fn kill(self) -> Result<(), Errno> {
        sys::signal_exactly(self.pid, Signal::SIGKILL, || self.is_alive())
    }

    /// For a person: the program's name and the number.
    pub fn describe(self) -> String {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        format!("{} (pid {})", name.trim_end(), self.pid)
    }
}

/// The children of `pid`, zombies included. An empty answer is exact; while children end, a full one can
/// miss some (proc(5) on `children`), so who wants none left asks again until it is empty.
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            // A thread that just ended, or a kernel without CONFIG_PROC_CHILDREN.
            Err(_) if thread.path().exists() => return children_by_parent(pid),
            Err(_) => {}
        }
    }
    found
}

fn children_by_parent(parent: i32) -> Vec<i32> {
    all()
        .filter(|pid| stat(*pid).is_some_and(|(_, of, _)| of == parent))
        .collect()
}

/// All living descendants of `pid`, those below `except` left out.
pub fn descendants(pid: i32, except: &BTreeSet<i32>) -> Vec<Process> {
    let mut found = Vec::new();
    let mut seen: BTreeSet<i32> = except.clone();
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        for child in children(parent) {
            if seen.insert(child) {
                found.extend(Process::living(child));
                open.push(child);
            }
        }
    }
    found
}

/// Every process number of the machine.
pub fn all() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The process group of `pid`.
pub fn group(pid: i32) -> Option<i32> {
    nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(pid)))
        .ok()
        .map(nix::unistd::Pid::as_raw)
}

/// State, parent and start time. The program's name, in parentheses, may itself hold parentheses and blanks.
fn stat(pid: i32) -> Option<(char, i32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&text)
}

fn parse_stat(text: &str) -> Option<(char, i32, u64)> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // Fields 3 and 4 are gone; the start time is field 22.
    let start = fields.nth(17)?.parse().ok()?;
    Some((state, parent, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_program_name_does_not_confuse_the_parser() {
        let line = "42 (a) Z 1 (b) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 0 0";
        assert_eq!(parse_stat(line), Some(('S', 7, 987_654)));
    }

    #[test]
    fn we_are_alive_and_among_all() {
        let me = nix::unistd::getpid().as_raw();
        assert!(Process::living(me).is_some_and(Process::is_alive));
        assert!(all().any(|pid| pid == me));
    }
}
