//! The JSON records kept in etcd, format 1: final, so that later versions can be mixed with this one.
//! Unknown fields are passed over, unknown formats treated as foreign. Knows nothing of where they lie.

use super::view::shown;
use crate::link::{Asked, Ended};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// The only format written.
pub const FORMAT: u32 = 1;

/// The result in the record of a run that never said how it ended: others found its open record without its entry.
pub const VANISHED: &str = "vanished";

/// Who is in the queue: the value of a queue entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    pub format: u32,
    pub host: String,
    /// The name, else the uid.
    pub user: String,
    pub pid: u32,
    /// The program's name; its arguments, which can hold secrets, are in [`Purpose`] if that was asked for.
    pub program: String,
    /// RFC 3339, UTC: when this call of meshlock began.
    pub started: String,
    #[serde(flatten)]
    pub purpose: Purpose,
}

/// Why the run is there and where it comes from, as people said or as we found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Purpose {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What set the run off: a CI job, a timer, a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// The source system: the host, and on it the project, the unit or the crontab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Who or what to go to when the run fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// The outcome that counts as success; see [`super::expect`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// After which the command is stopped, in seconds, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// The command's, its program apart; only where their being recorded was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Vec<String>>,
}

/// Left beside an entry, bound to no lease: where it stands without its entry, a departure was unclean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// In milliseconds, since the hand-over delay follows from it.
    pub ttl_ms: u64,
    #[serde(flatten)]
    pub holder: Holder,
}

/// How a run ended: one value under `log/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Run {
    #[serde(flatten)]
    pub holder: Holder,
    pub token: i64,
    #[serde(flatten)]
    pub ended: Ended,
    /// Of a run that vanished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noticed: Option<Noticed>,
}

/// Who found that a run had vanished: the next one, when it started.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Noticed {
    /// RFC 3339, UTC.
    pub at: String,
    pub by: String,
}

/// What somebody asks of the entry with one lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Hash)]
pub struct Ask {
    pub format: u32,
    pub kind: String,
    /// Acted on only if it is our create revision: an ask for another hold is not for us.
    pub token: i64,
    #[serde(default)]
    pub by: String,
    #[serde(default)]
    pub reason: String,
}

/// Why nobody starts at present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freeze {
    pub format: u32,
    #[serde(default)]
    pub by: String,
    #[serde(default)]
    pub reason: String,
}

impl Holder {
    /// Whom an open record that cannot be read leaves us to name.
    pub fn unknown() -> Self {
        let unknown = || "unknown".to_owned();
        Self {
            format: FORMAT,
            host: unknown(),
            user: unknown(),
            pid: 0,
            program: unknown(),
            started: String::new(),
            purpose: Purpose::default(),
        }
    }

    /// The record, if it is one of ours in the format that we know.
    pub fn parse(value: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Self>(value)
            .ok()
            .filter(|holder| holder.format == FORMAT)
    }

    pub fn started(&self) -> Option<SystemTime> {
        time(&self.started)
    }

    /// All of it that somebody has written as text.
    pub fn texts(&self) -> impl Iterator<Item = &String> {
        let Purpose {
            owner,
            reason,
            trigger,
            system,
            route,
            expect,
            arguments,
            max_runtime: _,
            tries: _,
        } = &self.purpose;
        let said = [owner, reason, trigger, system, route, expect];
        let always = [&self.host, &self.user, &self.program, &self.started];
        said.into_iter()
            .flatten()
            .chain(arguments.iter().flatten())
            .chain(always)
    }

    /// The same, to be changed.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let Purpose {
            owner,
            reason,
            trigger,
            system,
            route,
            expect,
            arguments,
            max_runtime: _,
            tries: _,
        } = &mut self.purpose;
        let said = [owner, reason, trigger, system, route, expect];
        let always = [&mut self.host, &mut self.user, &mut self.program, &mut self.started];
        said.into_iter()
            .flatten()
            .chain(arguments.iter_mut().flatten())
            .chain(always)
    }
}

impl Run {
    /// The record, if it is one of ours in the format that we know.
    pub fn parse(value: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Self>(value)
            .ok()
            .filter(|run| run.holder.format == FORMAT)
    }

    /// When the next could start, by the clock of whoever wrote it down: as text, empty where that is not known.
    pub fn over(&self) -> &str {
        self.noticed.as_ref().map_or(&self.ended.ended, |noticed| &noticed.at)
    }

    pub fn acquired(&self) -> Option<SystemTime> {
        time(&self.ended.acquired)
    }

    pub fn ended(&self) -> Option<SystemTime> {
        time(&self.ended.ended)
    }

    /// When that was found, of a run that vanished.
    pub fn noticed(&self) -> Option<SystemTime> {
        time(&self.noticed.as_ref()?.at)
    }

    /// How long it held the lock.
    pub fn duration(&self) -> Option<Duration> {
        self.ended()?.duration_since(self.acquired()?).ok()
    }
}

impl Open {
    /// Whose it is, if it is one of ours in the format that we know.
    pub fn holder(value: &[u8]) -> Option<Holder> {
        let open = serde_json::from_slice::<Self>(value).ok()?;
        Some(open.holder).filter(|holder| holder.format == FORMAT)
    }
}

impl Ask {
    /// What is asked. Its words end up on a screen, and may be of any length.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let ask = serde_json::from_slice::<Self>(value).ok()?;
        Some(Self {
            kind: shown(&ask.kind),
            by: shown(&ask.by),
            reason: shown(&ask.reason),
            ..ask
        })
    }

    /// The same for the record of the run.
    pub fn asked(&self) -> Asked {
        Asked::new(&self.kind, &self.by, &self.reason)
    }
}

impl Freeze {
    /// What is said of it; one that cannot be read freezes all the same, and says nothing.
    pub(super) fn parse(value: &[u8]) -> Self {
        serde_json::from_slice::<Self>(value)
            .ok()
            .filter(|freeze| freeze.format == FORMAT)
            .unwrap_or_default()
    }
}

/// A record's time; `None` for what is none.
pub(super) fn time(text: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(text).ok()
}
