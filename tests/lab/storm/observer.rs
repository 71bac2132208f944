//! The independent observer: whom it sees in `/proc` and what the commands have stamped, folded into one life
//! for each process. Asks neither meshlock nor etcd, and judges nothing.

use super::record::now;
use crate::harness::proc;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// One process of a hold.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) name: String,
    pub(super) hold: String,
    pub(super) role: String,
    pub(super) pid: i32,
    /// It has stamped: it is no child that was forked and has not become itself yet.
    pub(super) stamped: bool,
    pub(super) first: u64,
    /// The last time at which it is known to have been alive.
    pub(super) last: u64,
    /// When it ended by itself, and with which status.
    pub(super) end: Option<(u64, i32)>,
    pub(super) token: Option<i64>,
    /// Processes of other holds, alive at its start.
    pub(super) met: Vec<(i32, String)>,
}

/// Hold, role, pid.
type Key = (String, String, i32);

pub(super) struct Observer {
    program: String,
    directory: PathBuf,
    lives: Mutex<BTreeMap<Key, Life>>,
    over: AtomicBool,
}

impl Observer {
    pub(super) fn new(program: &Path, directory: PathBuf) -> Self {
        Self {
            program: program.display().to_string(),
            directory,
            lives: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }

    pub(super) fn program(&self) -> &str {
        &self.program
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Until [`Observer::stop`]; in a thread of its own.
    pub(super) fn watch(&self) {
        let mut round = 0;
        while !self.over.load(Ordering::SeqCst) {
            self.look();
            round += 1;
            if round % 20 == 0 {
                self.collect();
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// The living processes of all holds, and the time before the look: whoever is found was alive then, or
    /// was born since.
    pub(super) fn look(&self) -> Vec<Key> {
        let before = now();
        let mut seen = Vec::new();
        for pid in proc::all() {
            let Ok(line) = fs::read_to_string(format!("/proc/{pid}/cmdline")) else {
                continue;
            };
            let words: Vec<&str> = line.split('\0').collect();
            if let [program, directory, name, hold, role, ..] = words[..]
                && program == self.program
                && Path::new(directory) == self.directory
                && proc::alive(pid)
            {
                seen.push((name.to_owned(), (hold.to_owned(), role.to_owned(), pid)));
            }
        }
        let mut lives = self.lives.lock().expect("not poisoned");
        for (name, key) in &seen {
            // That it was there before the look is known from the second look on.
            let life = lives.entry(key.clone()).or_insert_with(|| Life {
                name: name.clone(),
                hold: key.0.clone(),
                role: key.1.clone(),
                pid: key.2,
                stamped: false,
                first: now(),
                last: 0,
                end: None,
                token: None,
                met: Vec::new(),
            });
            life.last = life.last.max(life.first).max(before);
        }
        seen.into_iter().map(|(_, key)| key).collect()
    }

    /// Takes in the files, and away those of the dead.
    pub(super) fn collect(&self) {
        let living = self.look();
        for name in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            for file in fs::read_dir(name.path()).into_iter().flatten().flatten() {
                let Some(key) = key_of(&file.file_name().to_string_lossy()) else {
                    continue;
                };
                let text = fs::read_to_string(file.path()).unwrap_or_default();
                let name = name.file_name().to_string_lossy().into_owned();
                if let Some(stamped) = stamped(&name, &key, &text) {
                    let mut lives = self.lives.lock().expect("not poisoned");
                    lives
                        .entry(key.clone())
                        .and_modify(|life| life.take(&stamped))
                        .or_insert(stamped);
                }
                if !living.contains(&key) && !proc::alive(key.2) {
                    fs::remove_file(file.path()).ok();
                }
            }
        }
    }

    /// The command of a hold, if it runs.
    pub(super) fn command_of(&self, hold: &str) -> Option<i32> {
        let lives = self.lives.lock().expect("not poisoned");
        let ours = |life: &&Life| life.hold == hold && life.is_command() && life.end.is_none();
        // A child of its own that is about to become something else is younger.
        let eldest = lives.values().filter(ours).min_by_key(|life| life.first)?;
        proc::alive(eldest.pid).then_some(eldest.pid)
    }

    pub(super) fn lives(&self) -> Vec<Life> {
        self.lives.lock().expect("not poisoned").values().cloned().collect()
    }
}

const CHILDREN: [&str; 6] = [
    "child",
    "grandchild",
    "stray",
    "scrubbed",
    "fork-stray",
    "fork-scrubbed",
];

impl Life {
    /// The process that meshlock itself started.
    pub(super) fn is_command(&self) -> bool {
        !CHILDREN.contains(&&*self.role)
    }

    fn take(&mut self, stamped: &Self) {
        self.stamped = true;
        // Its own word of its start is exact.
        self.first = stamped.first;
        self.last = self.last.max(stamped.last);
        self.end = stamped.end;
        self.token = stamped.token;
        self.met.clone_from(&stamped.met);
    }
}

fn key_of(file: &str) -> Option<Key> {
    let mut parts = file.split('.');
    let key = (
        parts.next()?.to_owned(),
        parts.next()?.to_owned(),
        parts.next()?.parse().ok()?,
    );
    Some(key)
}

fn stamped(name: &str, key: &Key, text: &str) -> Option<Life> {
    let mut life = Life {
        name: name.to_owned(),
        hold: key.0.clone(),
        role: key.1.clone(),
        pid: key.2,
        stamped: true,
        first: 0,
        last: 0,
        end: None,
        token: None,
        met: Vec::new(),
    };
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["start", time, token] => {
                life.first = time.parse().ok()?;
                life.token = token.parse().ok();
            }
            ["met", pid, hold] => life.met.push((pid.parse().ok()?, hold.to_owned())),
            ["beat", time] => life.last = time.parse().ok()?,
            ["end", time, status] => life.end = Some((time.parse().ok()?, status.parse().ok()?)),
            _ => return None,
        }
    }
    (life.first > 0).then_some(Life {
        last: life.last.max(life.first),
        ..life
    })
}
