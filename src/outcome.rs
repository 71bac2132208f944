//! How a call of meshlock can end, and the one table of exit statuses that the code, `--help`, the man
//! pages, the README and the tests all read. Knows nothing of how an ending comes about.

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the wrapped command itself ended, as `waitpid(2)` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommandEnd {
    Exited(u8),
    /// The number of the signal; a real-time signal has no name.
    Signaled(i32),
}

/// How the whole call ended. The `why` of each is one line for the user: who, what, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The command ran to its end under the lock.
    Command(CommandEnd),
    /// A signal ended meshlock before the command began.
    Interrupted(Signal),
    /// Nothing was run.
    Failed(Failure),
    /// Somebody else has the lock, and waiting was over; nothing was run.
    Contended { why: String },
    /// The lock was lost while the command ran, or was found gone at its end. `command` is `None` where the tree
    /// could not be seen to end.
    Lost { why: String, command: Option<CommandEnd> },
    /// A person broke the lock, or a newer waiter took this one's place.
    Superseded { why: String, command: Option<CommandEnd> },
    /// `--max-runtime` was over.
    Overrun { why: String, command: Option<CommandEnd> },
    /// The command could not be started; the lock was released.
    NotStarted { found: bool, why: String },
}

/// Why nothing was run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    Usage,
    Unavailable,
    Internal,
    Denied,
    Config,
}

/// One row of the table of exit statuses.
#[derive(Debug)]
pub struct Row {
    /// As printed: a number, or a range where the status is the command's.
    pub status: &'static str,
    pub name: &'static str,
    pub meaning: &'static str,
    /// Its meaning for the commands that only ask, where they can end so: of them nothing was to be run.
    pub asking: Option<&'static str>,
}

pub const CHECK: u8 = 1;
pub const USAGE: u8 = 64;
pub const UNAVAILABLE: u8 = 69;
pub const INTERNAL: u8 = 70;
pub const CONTENDED: u8 = 75;
pub const DENIED: u8 = 77;
pub const CONFIG: u8 = 78;
pub const LOST: u8 = 79;
pub const SUPERSEDED: u8 = 80;
pub const OVERRUN: u8 = 124;
pub const NOT_EXECUTABLE: u8 = 126;
pub const NOT_FOUND: u8 = 127;

/// Removing or renumbering a row is a breaking change. 64–78 are sysexits.h's, 124–127 those of
/// timeout(1) and the shells; 79 and 80 are the first that sysexits.h leaves free.
pub const EXIT_STATUSES: &[Row] = &[
    Row {
        status: "0–255",
        name: "command",
        meaning: "the command ran to its end under the lock: its own status",
        asking: None,
    },
    Row {
        status: "128+n",
        name: "signal",
        meaning: "the command died of signal n, or meshlock did while waiting; meshlock then dies of it too (as PID 1 it exits with 128+n)",
        asking: None,
    },
    Row {
        status: "1",
        name: "check",
        meaning: "what was to be checked is not well: a lock held for longer than status --warn-after, or something that doctor finds red",
        asking: None,
    },
    Row {
        status: "64",
        name: "usage",
        meaning: "wrong command line, a lock that this process tree already holds, or verify outside of a hold; nothing was run",
        asking: Some("wrong command line"),
    },
    Row {
        status: "69",
        name: "unavailable",
        meaning: "etcd could not be reached in time, or was away as the wait ended; nothing was run",
        asking: Some("etcd could not be reached in time"),
    },
    Row {
        status: "70",
        name: "internal",
        meaning: "a bug in meshlock, or its keeper was killed before the command began",
        asking: Some("a bug in meshlock"),
    },
    Row {
        status: "75",
        name: "contended",
        meaning: "held by another and the wait was over, or frozen; nothing was run (-E N changes this status)",
        asking: None,
    },
    Row {
        status: "77",
        name: "denied",
        meaning: "etcd refused the user, the password, the certificate or the right; nothing was run",
        asking: Some("etcd refused the user, the password, the certificate or the right"),
    },
    Row {
        status: "78",
        name: "config",
        meaning: "bad settings, unreadable configuration, TLS, password or report files, or standard output that cannot be written; nothing was run",
        asking: Some(
            "bad settings, unreadable configuration, TLS or password files, or standard output that cannot be written",
        ),
    },
    Row {
        status: "79",
        name: "lost",
        meaning: "the lock was lost, or could no longer be relied on, while the command ran; the command was stopped, unless it ended by itself just then (from verify: it is not held)",
        asking: None,
    },
    Row {
        status: "80",
        name: "superseded",
        meaning: "the lock was broken by a person; the command was stopped",
        asking: None,
    },
    Row {
        status: "124",
        name: "overrun",
        meaning: "--max-runtime was over; the command was stopped and the lock released",
        asking: None,
    },
    Row {
        status: "126",
        name: "not-executable",
        meaning: "the command was found but could not be started; the lock was released",
        asking: None,
    },
    Row {
        status: "127",
        name: "not-found",
        meaning: "the command, or its interpreter, was not found; the lock was released",
        asking: None,
    },
];

/// How the process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Status(u8),
    /// Die of this signal, so that shells, make and systemd see a signal's death.
    Raise(i32),
}

impl Outcome {
    /// [`Outcome::name`] of a loss.
    pub const LOST: &str = "lost";

    /// The name in the table of exit statuses, in run records and in `--report`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Command(CommandEnd::Exited(_)) => "command",
            Self::Command(CommandEnd::Signaled(_)) | Self::Interrupted(_) => "signal",
            Self::Failed(failure) => failure.kind.name(),
            Self::Contended { .. } => "contended",
            Self::Lost { .. } => Self::LOST,
            Self::Superseded { .. } => "superseded",
            Self::Overrun { .. } => "overrun",
            Self::NotStarted { found: true, .. } => "not-executable",
            Self::NotStarted { found: false, .. } => "not-found",
        }
    }

    /// How the process is to end; `conflict` is the status for contention (`-E`).
    pub fn exit(&self, conflict: u8) -> Exit {
        Exit::Status(match self {
            Self::Command(CommandEnd::Exited(status)) => *status,
            Self::Command(CommandEnd::Signaled(signal)) => return Exit::Raise(*signal),
            Self::Interrupted(signal) => return Exit::Raise(*signal as i32),
            Self::Failed(failure) => failure.kind.status(),
            Self::Contended { .. } => conflict,
            Self::Lost { .. } => LOST,
            Self::Superseded { .. } => SUPERSEDED,
            Self::Overrun { .. } => OVERRUN,
            Self::NotStarted { found: true, .. } => NOT_EXECUTABLE,
            Self::NotStarted { found: false, .. } => NOT_FOUND,
        })
    }

    /// The line for the user; `None` where the command has said all there is to say.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Command(_) | Self::Interrupted(_) => None,
            Self::Failed(failure) => Some(&failure.why),
            Self::Contended { why }
            | Self::Lost { why, .. }
            | Self::Superseded { why, .. }
            | Self::Overrun { why, .. }
            | Self::NotStarted { why, .. } => Some(why),
        }
    }

    /// How the command itself ended, where it ran and was seen to end.
    pub const fn command(&self) -> Option<CommandEnd> {
        match self {
            Self::Command(end) => Some(*end),
            Self::Lost { command, .. } | Self::Superseded { command, .. } | Self::Overrun { command, .. } => *command,
            Self::Interrupted(_) | Self::Failed(_) | Self::Contended { .. } | Self::NotStarted { .. } => None,
        }
    }
}

impl FailureKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
            Self::Denied => "denied",
            Self::Config => "config",
        }
    }

    pub const fn status(self) -> u8 {
        match self {
            Self::Usage => USAGE,
            Self::Unavailable => UNAVAILABLE,
            Self::Internal => INTERNAL,
            Self::Denied => DENIED,
            Self::Config => CONFIG,
        }
    }
}

impl Failure {
    pub fn new(kind: FailureKind, why: impl Into<String>) -> Self {
        Self { kind, why: why.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Failure {}

impl CommandEnd {
    /// The status a shell would show: 128+n for a signal.
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Signaled(signal) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
        }
    }
}

impl fmt::Display for CommandEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exited with {status}"),
            Self::Signaled(signal) => match Signal::try_from(*signal) {
                Ok(name) => write!(f, "died of {name}"),
                Err(_) => write!(f, "died of signal {signal}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_row_and_every_row_its_number() {
        let numbers = [
            CHECK,
            USAGE,
            UNAVAILABLE,
            INTERNAL,
            CONTENDED,
            DENIED,
            CONFIG,
            LOST,
            SUPERSEDED,
            OVERRUN,
            NOT_EXECUTABLE,
            NOT_FOUND,
        ];
        let rows: Vec<u8> = EXIT_STATUSES.iter().filter_map(|row| row.status.parse().ok()).collect();
        assert_eq!(rows, numbers);
    }
}
