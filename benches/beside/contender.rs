//! Those who are measured, each as its users call it.

use crate::harness::etcd::program;
use crate::harness::{clean, meshlock};
use crate::site::Site;
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    Meshlock,
    Etcdctl,
    Flock,
    /// The command without a lock.
    Bare,
}

impl Contender {
    /// Those that need no etcd are measured only where that makes a difference.
    pub(crate) const ON_ETCD: [Self; 2] = [Self::Meshlock, Self::Etcdctl];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Meshlock => "meshlock",
            Self::Etcdctl => "etcdctl lock",
            Self::Flock => "flock",
            Self::Bare => "the command alone",
        }
    }

    /// The call that runs the command `words` under `lock`.
    pub(crate) fn call<S: AsRef<OsStr>>(self, site: &Site, lock: &str, words: &[S]) -> Command {
        let mut call = match self {
            Self::Meshlock => silent(meshlock::binary()),
            Self::Etcdctl => silent(&etcdctl()),
            Self::Flock => silent(&found(Path::new("flock"))),
            Self::Bare => silent(Path::new(&words[0])),
        };
        let endpoints = || format!("--endpoints={}", site.endpoints());
        match self {
            Self::Meshlock => call.arg("run").arg(endpoints()).args(site.access()).args([lock, "--"]),
            Self::Etcdctl => call
                .env("ETCDCTL_API", "3")
                .arg(endpoints())
                .args(site.access())
                .args(["lock", lock]),
            Self::Flock => call.arg(site.file(lock)),
            Self::Bare => return with(call, &words[1..]),
        };
        with(call, words)
    }

    /// Under which all keys of those that have the lock or wait for it lie in etcd.
    pub(crate) fn queue(self, lock: &str) -> String {
        match self {
            Self::Meshlock => format!("meshlock/lock/{lock}/"),
            Self::Etcdctl | Self::Flock | Self::Bare => format!("{lock}/"),
        }
    }

    /// The keys that one run puts and one deletes: for a run record that is a later one.
    pub(crate) fn passing(self, lock: &str) -> Vec<String> {
        let lease = fastrand::i64(1..);
        let entry = format!("{}{lease:x}", self.queue(lock));
        match self {
            Self::Meshlock => vec![
                entry,
                format!("meshlock/open/{lock}/{lease:x}"),
                format!("meshlock/log/{lock}/{lease:016x}"),
            ],
            Self::Etcdctl => vec![entry],
            Self::Flock | Self::Bare => Vec::new(),
        }
    }
}

fn with<S: AsRef<OsStr>>(mut call: Command, words: &[S]) -> Command {
    call.args(words);
    call
}

pub(crate) fn etcdctl() -> PathBuf {
    found(&program("MESHLOCK_TEST_ETCDCTL", "etcdctl"))
}

/// A call that neither reads nor is read.
pub(crate) fn silent(program: &Path) -> Command {
    let mut command = clean(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The file of a program, so that nobody needs to search along PATH while the clock is running.
pub(crate) fn found(program: &Path) -> PathBuf {
    if program.components().count() > 1 {
        return program.to_owned();
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.exists())
        .unwrap_or_else(|| panic!("{} is not installed", program.display()))
}
