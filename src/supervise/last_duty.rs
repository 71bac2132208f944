//! The keeper's last duty: when the guardian is gone, or has not said by the deadline that the tree is
//! dead, whatever of the tree can still be found is killed. Knows neither lease nor store.

use super::tree::{self, Process};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::Duration;

/// The list of leases in the environment of every process of a hold, outermost first.
pub const MARK: &str = "MESHLOCK_HELD_LEASES";

/// By what the processes of one hold are known.
#[derive(Clone, Debug)]
pub struct Quarry {
    pub guardian: i32,
    /// The command, where it leads a process group of its own.
    pub leader: Option<Leader>,
    /// Descendants of the guardian as last noted.
    pub noted: BTreeSet<Process>,
    /// The hold's lease, as it stands in [`MARK`].
    pub mark: String,
}

/// The leader of the command's group: also once it is dead its number is the group's.
#[derive(Clone, Copy, Debug)]
pub struct Leader {
    pid: i32,
    /// `None` where it was dead already when we heard of it.
    process: Option<Process>,
}

impl Leader {
    /// The group, unless its number has come to mean another process. The kernel gives a number to nobody
    /// else while it is a living group's.
    fn group(self) -> Option<i32> {
        let now = Process::living(self.pid).unwrap_or(self.process);
        (now.is_none() || now == self.process).then_some(self.pid)
    }
}

impl Quarry {
    /// The command was started, as the leader of this group where it has one of its own.
    pub fn set_group(&mut self, group: Option<i32>) {
        self.leader = group.map(|pid| Leader {
            pid,
            process: Process::living(pid).ok().flatten(),
        });
    }

    /// Notes who descends from the guardian now; who was noted before and lives stays noted, for it may
    /// have been orphaned since.
    pub fn note(&mut self) {
        self.noted.retain(|process| !process.is_dead());
        tree::descendants(self.guardian, &spared(), &mut self.noted).ok();
    }

    /// Kills until nothing is found any more; false if something outlived `patience`, or could not be told
    /// from the dead. Blocks, and reading
    /// an environment can hang on a process in the midst of a page fault: to be called off the main thread.
    pub fn kill_all(&self, patience: Duration) -> bool {
        let until = crate::moment::Moment::now() + patience;
        loop {
            let (found, all) = self.find();
            if found.is_empty() && all.is_ok() {
                return true;
            }
            for process in &found {
                process.kill().ok();
            }
            if crate::moment::Moment::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All that is alive of the hold, and whether it is all.
    fn find(&self) -> (BTreeSet<Process>, io::Result<()>) {
        let spared = spared();
        let mut found: BTreeSet<Process> = self
            .noted
            .iter()
            .copied()
            .filter(|process| !process.is_dead())
            .collect();
        let mut all = tree::descendants(self.guardian, &spared, &mut found);
        if let Some(group) = self.leader.and_then(Leader::group) {
            // The whole group at one blow first, so that it cannot outrun the search by forking.
            let of_group = |pid: i32| tree::group(pid) == Some(group);
            let mut members = BTreeSet::new();
            all = all.and(add_living(of_group, &mut members));
            if !members.is_empty() {
                killpg(Pid::from_raw(group), Signal::SIGKILL).ok();
                all = all.and(add_living(of_group, &mut found));
            }
        }
        let ancestors: Vec<Process> = found.iter().copied().collect();
        for process in ancestors {
            all = all.and(tree::descendants(process.pid, &spared, &mut found));
        }
        // Last, since it is the slowest and only finds what escaped all else.
        all = all.and(add_living(|pid| !spared.contains(&pid) && self.marks(pid), &mut found));
        found.retain(|process| process.pid != self.guardian);
        (found, all)
    }

    fn marks(&self, pid: i32) -> bool {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| carries(&environment, &self.mark))
    }
}

/// Adds the living among the machine's processes that are `meant`.
fn add_living(meant: impl Fn(i32) -> bool, found: &mut BTreeSet<Process>) -> io::Result<()> {
    let mut outcome = Ok(());
    for pid in tree::all()?.into_iter().filter(|pid| meant(*pid)) {
        match Process::living(pid) {
            Ok(living) => found.extend(living),
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// Ourselves.
fn spared() -> BTreeSet<i32> {
    BTreeSet::from([Pid::this().as_raw()])
}

/// Whether an environment, as /proc shows it, has `mark` in its list of leases.
fn carries(environment: &[u8], mark: &str) -> bool {
    environment.split(|byte| *byte == 0).any(|variable| {
        variable
            .strip_prefix(MARK.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
            .is_some_and(|list| list.split(|byte| *byte == b':').any(|item| item == mark.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_belongs_to_every_hold_in_its_list() {
        let environment = b"PATH=/bin\0MESHLOCK_HELD_LEASES=a1:b2\0HOME=/";
        assert!(carries(environment, "a1"));
        assert!(carries(environment, "b2"));
        assert!(!carries(environment, "b"));
        assert!(!carries(b"X_MESHLOCK_HELD_LEASES=a1\0", "a1"));
    }
}
