//! The judge of overlap, who does not trust meshlock: the commands themselves stamp a common file (see
//! `tests/helpers/observer.rs`), by the kernel's clock, and the stamps are compared.

use super::{directory, eventually, meshlock};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// One file of stamps: that of one lock's commands.
pub(crate) struct Observer {
    file: PathBuf,
}

/// The stamps of one hold: of all processes that ran under it.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) id: String,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) processes: Vec<i32>,
    pub(crate) ended: bool,
}

impl Observer {
    pub(crate) fn new() -> Self {
        Self {
            file: directory().join("stamps"),
        }
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// A command that stamps until it is killed.
    pub(crate) fn forever(&self) -> Vec<OsString> {
        vec![helper(), "beat".into(), self.file.clone().into()]
    }

    /// A command that stamps for some milliseconds: long enough for others to run into it.
    pub(crate) fn briefly(&self) -> Vec<OsString> {
        [self.forever(), vec!["30".into()]].concat()
    }

    /// The same for a shell's script; not between double quotes. The checkout's path may have blanks.
    pub(crate) fn script(&self) -> String {
        format!("\"{}\" beat {}", helper().display(), self.file.display())
    }

    /// The holds so far, in the order of their first stamps.
    pub(crate) fn holds(&self) -> Vec<Hold> {
        let mut holds: BTreeMap<String, Hold> = BTreeMap::new();
        for line in meshlock::read(&self.file).lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [time, id, pid, what] = fields[..] else {
                panic!("a strange stamp: {line}")
            };
            let time: u64 = time.parse().expect("a time");
            let pid: i32 = pid.parse().expect("a pid");
            let hold = holds.entry(id.to_owned()).or_insert_with(|| Hold {
                id: id.to_owned(),
                first: time,
                last: time,
                processes: Vec::new(),
                ended: false,
            });
            hold.first = hold.first.min(time);
            hold.last = hold.last.max(time);
            hold.ended |= what == "end";
            if !hold.processes.contains(&pid) {
                hold.processes.push(pid);
            }
        }
        let mut holds: Vec<Hold> = holds.into_values().collect();
        holds.sort_by_key(|hold| hold.first);
        holds
    }

    #[track_caller]
    pub(crate) fn wait_for_holds(&self, count: usize) -> Vec<Hold> {
        eventually(&format!("{count} holds"), || {
            Some(self.holds()).filter(|holds| holds.len() >= count)
        })
    }

    /// Waits until this many processes have stamped.
    #[track_caller]
    pub(crate) fn wait_for_processes(&self, count: usize) -> Vec<i32> {
        eventually(&format!("{count} processes"), || {
            Some(
                self.holds()
                    .into_iter()
                    .flat_map(|hold| hold.processes)
                    .collect::<Vec<_>>(),
            )
            .filter(|processes| processes.len() >= count)
        })
    }

    /// No process of one hold lived when another's began: neither by the stamps, nor by what each newcomer
    /// saw of its predecessors in /proc (a stopped process stamps nothing, and yet is alive).
    #[track_caller]
    pub(crate) fn assert_no_overlap(&self) -> Vec<Hold> {
        let text = meshlock::read(&self.file);
        assert!(
            !text.contains("alive="),
            "a newcomer met its predecessor alive:\n{}",
            edges(&text)
        );
        let holds = self.holds();
        for pair in holds.windows(2) {
            assert!(
                pair[0].last < pair[1].first,
                "two trees alive at once: {:?} and {:?}\n{}",
                pair[0],
                pair[1],
                edges(&text)
            );
        }
        holds
    }
}

/// The stamps without the beats between.
fn edges(text: &str) -> String {
    text.lines()
        .filter(|line| !line.ends_with(" beat"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The program in `tests/helpers/`, which cargo builds as an example.
pub(crate) fn helper() -> OsString {
    let helper = meshlock::beside("examples").join("observer");
    assert!(
        helper.exists(),
        "{} is not built: cargo build --examples",
        helper.display()
    );
    helper.into()
}
