//! The process tree, read from /proc: who descends from whom, and how one of them is killed without ever
//! hitting another process that came by its number. Knows nothing of deadlines.
//!
//! What cannot be read (no descriptor left, no /proc mounted) is an error and never an empty tree: who takes
//! the one for the other lets the lock go beside a living command.

use super::sys;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};

/// A process, told apart from a later one with the same number by its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: i32,
    /// In clock ticks since boot: field 22 of /proc/PID/stat.
    start: u64,
}

impl Process {
    /// The process that `pid` means now; `None` if there is none, or only its zombie.
    ///
    /// # Errors
    /// Where it cannot be told.
    pub fn living(pid: i32) -> io::Result<Option<Self>> {
        let found = gone_is_none(stat(pid))?;
        Ok(found
            .filter(|(state, ..)| !matches!(state, 'Z' | 'X'))
            .map(|(_, _, start)| Self { pid, start }))
    }

    /// Known to be alive.
    pub fn is_alive(self) -> bool {
        Self::living(self.pid).is_ok_and(|now| now == Some(self))
    }

    /// Known to be dead.
    pub fn is_dead(self) -> bool {
        Self::living(self.pid).is_ok_and(|now| now != Some(self))
    }

    /// Kills exactly this process.
    pub fn kill(self) -> Result<(), Errno> {
        sys::signal_exactly(self.pid, Signal::SIGKILL, || self.is_alive())
    }

    /// For a person: the program's name and the number.
    pub fn describe(self) -> String {
        let name = fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        format!("{} (pid {})", String::from_utf8_lossy(&name).trim_end(), self.pid)
    }
}

/// Whether we have no children, zombies included, as wait(2) knows without a look at /proc.
pub fn is_childless() -> bool {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT | WaitPidFlag::__WALL;
    waitid(Id::All, look) == Err(Errno::ECHILD)
}

/// The children of `pid`, zombies included. An empty answer is exact; while children end, a full one can
/// miss some (proc(5) on `children`), so who wants none left asks again until it is empty.
///
/// # Errors
/// Where it cannot be told, and where there is no `pid`.
pub fn children(pid: i32) -> io::Result<Vec<i32>> {
    // Closed before anything else is opened: descriptors may be scarce.
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?.collect::<io::Result<Vec<_>>>()?;
    let mut found = Vec::new();
    for thread in threads {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => found.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok())),
            Err(error) if !is_gone(&error) => return Err(error),
            // A thread that just ended, or a kernel without CONFIG_PROC_CHILDREN.
            Err(_) if thread.path().try_exists()? => return children_by_parent(pid),
            Err(_) => {}
        }
    }
    Ok(found)
}

fn children_by_parent(parent: i32) -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for pid in all()? {
        if gone_is_none(stat(pid))?.is_some_and(|(_, of, _)| of == parent) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Adds all living descendants of `pid` to `found`, those below `except` left out; none where there is no `pid`.
///
/// # Errors
/// Where there may be more than could be found.
pub fn descendants(pid: i32, except: &BTreeSet<i32>, found: &mut BTreeSet<Process>) -> io::Result<()> {
    let mut outcome = Ok(());
    let mut seen: BTreeSet<i32> = except.clone();
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        let children = gone_is_none(children(parent)).unwrap_or_else(|error| {
            outcome = Err(error);
            None
        });
        for child in children.unwrap_or_default() {
            if seen.insert(child) {
                match Process::living(child) {
                    Ok(living) => found.extend(living),
                    Err(error) => outcome = Err(error),
                }
                open.push(child);
            }
        }
    }
    outcome
}

/// A process as its descendants see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    pub pid: i32,
    /// The program's name, at most 15 bytes of it: field 2 of /proc/PID/stat.
    pub name: String,
    /// It has a controlling terminal.
    pub terminal: bool,
}

/// `pid` itself and its ancestors, the nearest first, as far as /proc shows them. Asked at every start, so a file
/// of three system calls each.
pub fn ancestry(pid: i32) -> impl Iterator<Item = Ancestor> {
    let mut next = Some(pid).filter(|pid| *pid > 0);
    std::iter::from_fn(move || {
        let pid = next?;
        let (ancestor, parent) = parse_ancestor(pid, &stat_line(pid).ok()?)?;
        next = Some(parent).filter(|parent| *parent > 0);
        Some(ancestor)
    })
}

/// Every process number of the machine.
///
/// # Errors
/// Where it cannot be told, and where no /proc is mounted.
pub fn all() -> io::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    if found.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(found)
}

/// The process group of `pid`.
pub fn group(pid: i32) -> Option<i32> {
    nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(pid)))
        .ok()
        .map(nix::unistd::Pid::as_raw)
}

/// State, parent and start time. The program's name, in parentheses, may itself hold parentheses and blanks.
fn stat(pid: i32) -> io::Result<(char, i32, u64)> {
    parse_stat(&stat_line(pid)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// In one read: the kernel makes the whole line at once, and with all 52 numbers as long as they can be it is shorter.
fn stat_line(pid: i32) -> io::Result<String> {
    let mut line = [0; 2048];
    let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut line)?;
    // A program's name need not be UTF-8.
    Ok(String::from_utf8_lossy(&line[..length]).into_owned())
}

/// What a process without an environment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// It has ended, or is about to: it runs no more, and may have left a child.
    Ended,
    /// The kernel's own.
    Kernel,
    /// In the midst of an execve(2), or it has scrubbed its environment.
    Other,
}

/// What `pid`, which shows no environment, is.
///
/// # Errors
/// Where it cannot be told.
pub fn bare(pid: i32) -> io::Result<Bare> {
    let Some(line) = gone_is_none(stat_line(pid))? else {
        return Ok(Bare::Ended);
    };
    parse_bare(&line).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_bare(text: &str) -> Option<Bare> {
    /// Of field 9 of /proc/PID/stat, from linux/sched.h.
    const PF_EXITING: u64 = 0x4;
    const PF_KTHREAD: u64 = 0x0020_0000;
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    Some(match state {
        "Z" | "X" => Bare::Ended,
        // The memory goes before the process is a zombie.
        _ if flags & PF_EXITING != 0 => Bare::Ended,
        _ if flags & PF_KTHREAD != 0 => Bare::Kernel,
        _ => Bare::Other,
    })
}

/// There is no such process, or no longer.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

fn gone_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// State, parent and start time from the text of /proc/PID/stat.
pub fn parse_stat(text: &str) -> Option<(char, i32, u64)> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    // Fields 3 and 4 are gone; the start time is field 22.
    let start = fields.nth(17)?.parse().ok()?;
    Some((state, parent, start))
}

fn parse_ancestor(pid: i32, text: &str) -> Option<(Ancestor, i32)> {
    let (name, rest) = text.split_once('(')?.1.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    // Field 7: the terminal's device number, 0 for none.
    let terminal = fields.nth(2)? != "0";
    let name = name.to_owned();
    Some((Ancestor { pid, name, terminal }, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_program_name_does_not_confuse_the_parser() {
        let line = "42 (a) Z 1 (b) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 0 0";
        assert_eq!(parse_stat(line), Some(('S', 7, 987_654)));
        let (ancestor, parent) = parse_ancestor(42, line).expect("an ancestor");
        assert_eq!(
            (ancestor.name.as_str(), ancestor.terminal, parent),
            ("a) Z 1 (b", false, 7)
        );
        let at_terminal = line.replace("42 42 0 -1", "42 42 34816 -1");
        assert!(parse_ancestor(42, &at_terminal).expect("an ancestor").0.terminal);
    }

    #[test]
    fn a_process_that_is_about_to_end_has_ended() {
        let line = |state: &str, flags: u64| format!("42 (a) b) {state} 7 42 42 0 -1 {flags} 1 0 0 0 0");
        for (state, flags, what) in [
            ("S", 4_194_304, Bare::Other),
            ("R", 4_194_304 | 4, Bare::Ended),
            ("Z", 4_194_304, Bare::Ended),
            ("I", 0x0020_8040, Bare::Kernel),
        ] {
            assert_eq!(parse_bare(&line(state, flags)), Some(what), "{state} {flags:x}");
        }
        assert_eq!(bare(nix::unistd::getpid().as_raw()).expect("/proc"), Bare::Other);
    }

    #[test]
    fn our_ancestry_begins_with_us_and_leads_to_the_first_process_that_we_can_see() {
        let found: Vec<Ancestor> = ancestry(nix::unistd::getpid().as_raw()).collect();
        assert_eq!(found[0].pid, nix::unistd::getpid().as_raw());
        assert_eq!(found[1].pid, nix::unistd::getppid().as_raw());
        assert!(ancestry(0).next().is_none());
    }

    #[test]
    fn we_are_alive_and_among_all() {
        let me = nix::unistd::getpid().as_raw();
        let living = Process::living(me).expect("/proc").expect("ourselves");
        assert!(living.is_alive() && !living.is_dead());
        assert!(all().expect("/proc").contains(&me));
    }
}
