//! The words that guardian and keeper say to one another. Data only: how they travel is
//! `supervise::link`'s affair, what follows from them is decided in `supervise::guardian` and
//! `lock::keeper`.

use crate::outcome::{Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A hold as the command is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hold {
    /// The fencing token: the create revision of our entry in the queue.
    pub token: i64,
    /// The entry's key in etcd.
    pub key: String,
    pub lease: i64,
    /// etcd's cluster id: a token says something only within one cluster.
    pub cluster: u64,
    /// What etcd granted, which may be more than was asked.
    pub ttl: Duration,
}

/// Why a waiter waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Waiting {
    /// So many came before, and the first of them has the lock.
    Behind { ahead: i64, holder: HeldBy },
    /// Nobody starts under this name; the words say by whom it was frozen and why.
    Frozen { words: String },
    /// The last holder left without a release: what may still run there has so much time to be stopped.
    Delayed { left: Duration },
}

/// Who has the lock, as their record says: text of others', of bounded length, and made safe where it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HeldBy {
    pub who: String,
    /// RFC 3339, UTC.
    pub since: Option<String>,
    /// Owner and reason, as the end of a sentence.
    pub purpose: String,
}

/// Of whom nothing else is known.
impl From<&str> for HeldBy {
    fn from(who: &str) -> Self {
        Self {
            who: who.to_owned(),
            since: None,
            purpose: String::new(),
        }
    }
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, since, purpose } = self;
        match since {
            Some(since) => write!(f, "{who} since {since}{purpose}"),
            None => write!(f, "{who}{purpose}"),
        }
    }
}

/// What the keeper tells the guardian.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FromKeeper {
    /// A line of progress for the user, silenced by `-q`.
    Progress(String),
    /// Our place in the queue: told at each change of holder, or, where it is shown all the while, at each change.
    Waiting(Waiting),
    /// A line that the user must see whatever was asked.
    Notice(String),
    /// The lock is ours; the command may start once the offer is claimed in the shared page.
    Held(Hold),
    /// The offer was taken back: the guardian slept through it.
    Withdrawn,
    /// The lock has been taken from us: kill, the next holder may start soon.
    Lost {
        why: String,
    },
    /// While the lock is ours: why it can not be renewed just now, or that it can again.
    Renewals {
        trouble: Option<String>,
    },
    /// A person broke the lock, or a newer waiter wants the place: stop, then let go.
    AskedToStop {
        why: String,
        asked: Asked,
    },
    /// Waiting is over without the lock, and the queue is left.
    Contended {
        why: String,
    },
    Failed(Failure),
    /// The queue is left. `problem`: what could not be released, and for how long it blocks others. `taken`: that
    /// the lock was gone before, though nobody had noticed.
    Left {
        problem: Option<String>,
        taken: Option<String>,
    },
}

/// The longest text in a message, in characters. More than a line on the screen has, and little enough for
/// a socket's buffer even where JSON has six bytes for each.
const TEXT_LIMIT: usize = 2500;
/// Of one that comes with an [`Asked`], or in a record.
const SHORTER: usize = 1800;

impl FromKeeper {
    /// With texts that fit into a message: one that does not would be cut anywhere on its way, and mean nothing.
    #[must_use]
    pub fn shortened(self) -> Self {
        let short = |text: String| cut(text, TEXT_LIMIT);
        match self {
            Self::Progress(line) => Self::Progress(short(line)),
            Self::Notice(line) => Self::Notice(short(line)),
            Self::Lost { why } => Self::Lost { why: short(why) },
            // It ends up in a record.
            Self::Renewals { trouble } => Self::Renewals {
                trouble: trouble.map(|why| cut(why, SHORTER)),
            },
            Self::AskedToStop { why, asked } => Self::AskedToStop {
                why: cut(why, SHORTER),
                asked,
            },
            Self::Contended { why } => Self::Contended { why: short(why) },
            Self::Failed(Failure { kind, why }) => Self::Failed(Failure { kind, why: short(why) }),
            // The second is our own words.
            Self::Left { problem, taken } => Self::Left {
                problem: problem.map(short),
                taken,
            },
            // Where others wrote part of it, it was cut as it was read.
            Self::Waiting(_) | Self::Held(_) | Self::Withdrawn => self,
        }
    }
}

fn cut(text: String, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// What the guardian tells the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FromGuardian {
    Claimed,
    /// The command has a process, which may not have come to its exec yet.
    Started {
        pid: i32,
        /// It leads a process group of its own.
        own_group: bool,
    },
    /// The command ended by itself: what it left running is no longer this hold's business.
    CommandEnded,
    /// Let go of what was claimed too late, or withdrawn, and queue again.
    Requeue,
    /// Nothing of the tree lives (or ever lived): let go, and keep a record of the run, if it was one.
    Release {
        run: Option<Ended>,
    },
    /// The loss was seen; no need to wake us any more.
    LossSeen,
}

/// What a run record says of a run's end.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ended {
    /// [`crate::outcome::Outcome::name`], or `vanished`.
    pub result: String,
    /// The command's own status as a shell shows it; `None` where it never ran to an end.
    pub status: Option<u8>,
    /// RFC 3339, UTC.
    pub acquired: String,
    /// Empty where nobody knows.
    pub ended: String,
    /// Why the lock was lost, or the run ended in another unwanted way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What was asked of the run, and made it stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
}

/// Who asked a run to stop, and why: of bounded length, since others wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Asked {
    /// `break` or `make-way`.
    pub kind: String,
    #[serde(default)]
    pub by: String,
    #[serde(default)]
    pub reason: String,
}

impl Asked {
    /// With as much of the words as a message to the other half has room for, and a line in a table use.
    pub fn new(kind: &str, by: &str, reason: &str) -> Self {
        let first = |limit, text: &str| text.chars().take(limit).collect();
        Self {
            kind: first(20, kind),
            by: first(200, by),
            reason: first(400, reason),
        }
    }
}

impl Ended {
    /// With texts that fit into a message.
    #[must_use]
    pub fn shortened(self) -> Self {
        Self {
            why: self.why.map(|why| cut(why, SHORTER)),
            ..self
        }
    }

    /// The same run, of which has come out that it had lost the lock.
    #[must_use]
    pub fn lost(self, why: &str) -> Self {
        Self {
            result: Outcome::LOST.to_owned(),
            why: Some(why.to_owned()),
            ..self
        }
    }
}
