//! The configuration files: which there are, and what they say of a setting. The user's goes before the machine's, as a
//! whole; within one file what it says of a single lock goes before what it says of all.

pub mod keys;
mod open;
pub mod parse;

use self::open::Trouble;
use self::parse::{Entry, File, Table};
use super::source::{Environment, Sources, quoted};
use crate::outcome::{Failure, FailureKind};
use nix::unistd::{User, geteuid};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf, absolute};

const MACHINES: &str = "/etc/meshlock/config.toml";
/// Under the directory for users' configurations.
const USERS: &str = "meshlock/config.toml";

/// All that are there, the one that goes first first.
#[derive(Debug, Default)]
pub struct Files(Vec<File>);

/// The part of a file that a setting is from; the earlier goes before the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Lock,
    Top,
}

impl Files {
    /// As they would be if these were there.
    pub fn of(files: impl IntoIterator<Item = File>) -> Self {
        Self(files.into_iter().collect())
    }

    /// The one that is named, else the user's and the machine's, as far as they are there.
    ///
    /// # Errors
    /// With the config kind, where one cannot be read, cannot be trusted or cannot be understood: going on without it
    /// might take the lock elsewhere than where everybody looks.
    pub(super) fn read(typed: Option<&Path>, environment: &Environment) -> Result<Self, Failure> {
        let none = Self::default();
        if let Some(named) = Sources::new(environment, &none, None).path("config", typed) {
            let path = named.value;
            let about = format!("{} {}", named.source, quoted(&path));
            return match open::read(&path) {
                Ok(bytes) => Ok(Self(vec![understood(&path, bytes)?])),
                Err(Trouble::Missing(error) | Trouble::OutOfSight(error)) => Err(unread(&about, &error)),
                Err(Trouble::Unfit(why)) => Err(refused(format!("{about} {why}"))),
            };
        }
        let users = users(environment).map(|path| (path, true));
        let machines = environment.is_ours().then(|| (PathBuf::from(MACHINES), false));
        let mut files = Vec::new();
        for (path, is_users) in users.into_iter().chain(machines) {
            let about = path.display();
            match open::read(&path) {
                Ok(bytes) => files.push(understood(&path, bytes)?),
                Err(Trouble::Missing(_)) => {}
                // Another's home, left in the environment by what changed the user: nothing there is meant for us.
                Err(Trouble::OutOfSight(_)) if is_users => {}
                Err(Trouble::OutOfSight(error)) => return Err(unread(&about, &error)),
                Err(Trouble::Unfit(why)) => return Err(refused(format!("{about} {why}"))),
            }
        }
        Ok(Self(files))
    }

    /// What the files say of a setting, the nearest first.
    pub(super) fn find(&self, lock: Option<&str>, key: &str) -> Option<(usize, Part, &File, &Entry)> {
        self.0.iter().enumerate().find_map(|(number, file)| {
            let own = lock.and_then(|lock| file.locks.get(lock));
            [(Part::Lock, own), (Part::Top, Some(&file.top))]
                .into_iter()
                .find_map(|(part, table): (Part, Option<&Table>)| Some((number, part, file, table?.get(key)?)))
        })
    }

    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|file| file.path.as_path())
    }

    /// The names of the locks that have tables of their own.
    pub(super) fn locks(&self) -> BTreeSet<&str> {
        self.0
            .iter()
            .flat_map(|file| file.locks.keys())
            .map(String::as_str)
            .collect()
    }
}

fn understood(path: &Path, bytes: Vec<u8>) -> Result<File, Failure> {
    // Nobody has a working directory that is not there and a relative name that could be opened.
    let path = absolute(path).unwrap_or_else(|_| path.to_owned());
    let text = String::from_utf8(bytes).map_err(|error| {
        let right = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = right.split(|byte| *byte == b'\n').count();
        refused(format!("{}:{line}: it is not UTF-8", path.display()))
    })?;
    parse::parse(&path, &text)
}

fn unread(about: &impl Display, error: &io::Error) -> Failure {
    refused(format!("{about} cannot be read: {}", super::reason(error)))
}

fn refused(why: String) -> Failure {
    Failure::new(FailureKind::Config, why)
}

/// By the XDG Base Directory Specification, which has relative names passed over. cron and systemd may leave out HOME: a
/// user's settings must not depend on who starts meshlock.
fn users(environment: &Environment) -> Option<PathBuf> {
    let named = |name| environment.get(name).map(Path::new).filter(|path| path.is_absolute());
    let home = || match named("HOME") {
        Some(home) => Some(home.to_owned()),
        None if environment.is_ours() => User::from_uid(geteuid()).ok().flatten().map(|user| user.dir),
        None => None,
    };
    let directory = named("XDG_CONFIG_HOME").map(Path::to_owned);
    let directory = directory.or_else(|| {
        home()
            .filter(|home| home.is_absolute())
            .map(|home| home.join(".config"))
    });
    directory.map(|directory| directory.join(USERS))
}

#[cfg(test)]
mod tests;
