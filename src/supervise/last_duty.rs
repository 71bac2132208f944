//! The keeper's last duty: when the guardian is gone, or has not said by the deadline that the tree is
//! dead, whatever of the tree can still be found is killed. Knows neither lease nor store.

use super::tree::{self, Bare, Process};
use crate::moment::Moment;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::time::Duration;

/// So many looks in a row must find nothing: a process shows no environment in the midst of an execve(2), and
/// numbers that begin again at the lowest can pass a look by.
const EMPTY_LOOKS: u32 = 2;
/// How often one look turns to those that came while it looked: a relay of processes gets away from each with a chance
/// that is high where the machine is busy.
const NEWCOMERS: u32 = 64;
/// How often a process without an environment is looked at again: an execve(2) takes so long.
const GLANCES: u32 = 4;

/// The list of leases in the environment of every process of a hold, outermost first.
pub const MARK: &str = "MESHLOCK_HELD_LEASES";

/// By what the processes of one hold are known.
#[derive(Clone, Debug)]
pub struct Quarry {
    pub guardian: i32,
    /// Children that the guardian had before it became one (`exec meshlock` in a script): no part of the tree.
    pub strangers: BTreeSet<Process>,
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
    /// The command was started as this process, whom we know from now on without a look for it.
    pub fn started(&mut self, pid: i32, own_group: bool) {
        let process = Process::living(pid).ok().flatten();
        self.noted.extend(process);
        self.leader = own_group.then_some(Leader { pid, process });
    }

    /// Notes who descends from the guardian now; who was noted before and lives stays noted, for it may
    /// have been orphaned since.
    pub fn note(&mut self) {
        self.noted.retain(|process| !process.is_dead());
        if let Some(guardian) = self.living_guardian() {
            tree::descendants(guardian, &self.spared(), &mut self.noted).ok();
        }
    }

    /// Kills until nothing is found any more; false if something outlived `patience`, or could not be told
    /// from the dead. Blocks, and reading an environment can hang on a process in the midst of a page fault: to be
    /// called off the main thread.
    pub fn kill_all(&self, patience: Duration) -> bool {
        let until = Moment::now() + patience;
        let mut empty_looks = 0;
        loop {
            let (found, all) = self.find();
            empty_looks = if found.is_empty() && all.is_ok() {
                empty_looks + 1
            } else {
                0
            };
            if empty_looks == EMPTY_LOOKS {
                return true;
            }
            for process in &found {
                process.kill().ok();
            }
            // A look that found nothing is confirmed however long it takes: among very many processes one alone
            // outlasts the patience, and the lock would never go.
            if empty_looks == 0 && Moment::now() >= until {
                return false;
            }
            // Between two looks, for what was killed to be gone.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All that is alive of the hold, and whether it is all.
    fn find(&self) -> (BTreeSet<Process>, io::Result<()>) {
        let spared = self.spared();
        let guardian = self.living_guardian();
        let mut found: BTreeSet<Process> = self
            .noted
            .iter()
            .copied()
            .filter(|process| !process.is_dead())
            .collect();
        let mut all = guardian.map_or(Ok(()), |guardian| tree::descendants(guardian, &spared, &mut found));
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
        all = all.and(self.add_marked(spared, &mut found));
        found.retain(|process| Some(process.pid) != guardian);
        (found, all)
    }

    /// Its number, as long as that means it: we are its child until it ends.
    fn living_guardian(&self) -> Option<i32> {
        (Pid::parent().as_raw() == self.guardian).then_some(self.guardian)
    }

    /// Ourselves, and those who are not of the tree, unless their numbers have come to mean others.
    fn spared(&self) -> BTreeSet<i32> {
        let strangers = self.strangers.iter().filter(|stranger| !stranger.is_dead());
        strangers
            .map(|stranger| stranger.pid)
            .chain([Pid::this().as_raw()])
            .collect()
    }

    /// Adds the living that carry the mark. One that ended between the list and the look may have left a child
    /// that came after the list, so then the newcomers are looked at too: a tree whose every process forks and
    /// ends would otherwise be taken for dead. On a busy machine there always is such a one, and after
    /// [`NEWCOMERS`] looks without a mark it was another's.
    fn add_marked(&self, spared: BTreeSet<i32>, found: &mut BTreeSet<Process>) -> io::Result<()> {
        let mut seen = spared;
        let mut outcome = Ok(());
        for _ in 0..NEWCOMERS {
            let mut one_ended = false;
            for pid in tree::all()?.into_iter().filter(|pid| seen.insert(*pid)) {
                match self.glance(pid) {
                    Ok(Glance::Another) => {}
                    Ok(Glance::Ended) => one_ended = true,
                    Ok(Glance::Marked) => match Process::living(pid) {
                        Ok(Some(process)) => {
                            found.insert(process);
                        }
                        // Ours, and gone before it could be killed: the look did not find all.
                        Ok(None) => outcome = Err(io::ErrorKind::Interrupted.into()),
                        Err(error) => outcome = Err(error),
                    },
                    Err(error) => outcome = Err(error),
                }
            }
            if !one_ended || outcome.is_err() || !found.is_empty() {
                break;
            }
        }
        outcome
    }

    fn glance(&self, pid: i32) -> io::Result<Glance> {
        for _ in 0..GLANCES {
            // Another user's cannot be read.
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if !environment.is_empty() {
                let marked = carries(&environment, &self.mark);
                return Ok(if marked { Glance::Marked } else { Glance::Another });
            }
            match tree::bare(pid)? {
                Bare::Ended => return Ok(Glance::Ended),
                Bare::Kernel => break,
                Bare::Other => std::thread::yield_now(),
            }
        }
        Ok(Glance::Another)
    }
}

/// What is to be seen of one process.
enum Glance {
    Marked,
    /// Not of the hold, as far as can be told.
    Another,
    /// It has ended, and whose it was cannot be told any more.
    Ended,
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

/// Whether an environment, as /proc shows it, has `mark` in its list of leases.
pub fn carries(environment: &[u8], mark: &str) -> bool {
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

    #[test]
    fn where_nothing_is_left_the_duty_ends_though_a_look_outlasts_its_patience() {
        let quarry = Quarry {
            guardian: i32::MAX,
            strangers: BTreeSet::new(),
            leader: None,
            noted: BTreeSet::new(),
            mark: "no hold has this".into(),
        };
        assert!(quarry.kill_all(Duration::ZERO));
    }

    #[test]
    fn a_number_that_is_no_longer_the_guardians_leads_nowhere() {
        let mut somebody = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut up = [0];
        let output = somebody.stdout.as_mut().expect("a pipe");
        io::Read::read_exact(output, &mut up).expect("it has a child");
        let pid = somebody.id().cast_signed();
        let mut quarry = Quarry {
            guardian: pid,
            strangers: BTreeSet::new(),
            leader: None,
            noted: BTreeSet::new(),
            mark: "0".into(),
        };
        quarry.note();
        let (found, all) = quarry.find();
        for child in tree::children(pid).expect("/proc") {
            Process::living(child).expect("/proc").map(Process::kill);
        }
        somebody.wait().expect("it ends");
        assert!(quarry.noted.is_empty() && found.is_empty() && all.is_ok());
    }
}
