//! What each single key of a lock says (an entry, an open record, a freeze, the record of a run, an ask, a mark), with what
//! others wrote there at a length that can be shown. Pure; what one means beside the others is the board's affair.

use crate::link::{Asked, Ended};
use crate::lock::keys::{Place, called};
use crate::lock::record::{Ask, Freeze, Holder, Noticed, Open, Run};
use crate::lock::view::{self, shown};
use crate::rules::handover_delay;
use crate::store::Item;
use crate::store::inquiry::Left;
use std::time::Duration;

/// An entry of the queue.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    /// The fencing token: the create revision.
    pub token: i64,
    /// 0 where the entry is bound to none.
    pub lease: i64,
    /// `None`: not meshlock's, or of a later format.
    pub holder: Option<Holder>,
    /// What else is in the value of an entry that is not ours.
    pub value: String,
    pub life: Life,
    /// What a person has asked of it.
    pub asked: Option<Ask>,
}

/// How long an entry's lease lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Bound to no lease: it stays until somebody deletes it.
    Unbound,
    /// Not asked, or not answered.
    Unknown,
    Left {
        left: Duration,
        granted: Duration,
    },
    /// Run out, but etcd has not ended it yet.
    Overdue {
        granted: Duration,
    },
    /// Ended.
    Gone,
}

/// An open record without its entry.
#[derive(Clone, Debug)]
pub struct Opened {
    pub key: String,
    pub lease: i64,
    pub token: i64,
    pub ttl: Duration,
    pub holder: Option<Holder>,
    pub life: Life,
    pub turn: Turn,
}

/// Whether what left an open record was ever the first in the queue, and may have run: a waiter that dies leaves the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Came,
    /// It was there before the last recorded run ended, and may have gone before that.
    MayHaveCome,
    NeverCame,
}

#[derive(Clone, Debug)]
pub struct Frozen {
    pub key: String,
    /// Empty where it is not said.
    pub by: String,
    pub reason: String,
    pub(super) created: i64,
    /// When it came another than the first of now was the first.
    pub(super) before_turn: bool,
}

/// The record of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The lock's.
    pub name: String,
    /// As in [`Lock::lock_key`].
    pub lock_key: Option<String>,
    pub key: String,
    /// The revision at which it was written: in this order the runs ended.
    pub created: i64,
    /// `None`: not meshlock's, or of a later format.
    pub run: Option<Run>,
}

/// An ask that nobody will ever act on: of another hold, of a lease that has no entry, or unreadable.
#[derive(Clone, Debug)]
pub struct StrayAsk {
    pub key: String,
    pub ask: Option<Ask>,
}

/// A mark, whatever it means.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Behind the lock's name.
    pub name: String,
    pub value: String,
}

impl Entry {
    pub(super) fn new(item: Item, asked: Option<Ask>) -> Self {
        let holder = Holder::parse(&item.value).map(cut);
        Self {
            value: match holder {
                Some(_) => String::new(),
                None => shown(&String::from_utf8_lossy(&item.value)),
            },
            asked,
            holder,
            key: item.key,
            token: item.created,
            lease: item.lease,
            life: Life::at_first(item.lease),
        }
    }
}

impl Life {
    /// Before it was asked.
    pub fn at_first(lease: i64) -> Self {
        if lease == 0 { Self::Unbound } else { Self::Unknown }
    }

    /// What etcd's answer says.
    pub fn of(left: Left) -> Self {
        match (left.left, left.granted) {
            (Some(left), Some(granted)) => Self::Left { left, granted },
            (None, Some(granted)) => Self::Overdue { granted },
            (_, None) => Self::Gone,
        }
    }
}

impl Opened {
    pub(super) fn new(lease: i64, item: Item) -> Self {
        let ttl = view::stale(&item).ttl;
        Self {
            lease,
            token: item.created,
            ttl,
            holder: Open::holder(&item.value).map(cut),
            life: Life::Unknown,
            turn: Turn::Came,
            key: item.key,
        }
    }

    /// How long nobody starts after it.
    pub fn handover_delay(&self) -> Duration {
        handover_delay(self.ttl)
    }

    pub(super) fn lives(&self) -> bool {
        matches!(self.life, Life::Left { .. })
    }
}

impl Frozen {
    pub(super) fn new(item: &Item) -> Self {
        let freeze = Freeze::parse(&item.value);
        Self {
            key: item.key.clone(),
            by: shown(&freeze.by),
            reason: shown(&freeze.reason),
            created: item.created,
            before_turn: false,
        }
    }
}

impl StrayAsk {
    pub(super) fn new(item: &Item) -> Self {
        Self {
            key: item.key.clone(),
            ask: Ask::parse(&item.value),
        }
    }

    pub(super) fn is_of(&self, token: i64) -> bool {
        self.ask.as_ref().is_some_and(|ask| ask.token == token)
    }
}

impl Ran {
    pub fn new(place: &Place, item: Item) -> Self {
        Self {
            name: place.name.clone(),
            lock_key: place.lock_key().map(ToOwned::to_owned),
            run: Run::parse(&item.value).map(|run| Run {
                holder: cut(run.holder),
                ended: Ended {
                    result: shown(&run.ended.result),
                    acquired: shown(&run.ended.acquired),
                    ended: shown(&run.ended.ended),
                    status: run.ended.status,
                    why: run.ended.why.as_deref().map(shown),
                    asked: run.ended.asked.map(|asked| Asked {
                        kind: shown(&asked.kind),
                        by: shown(&asked.by),
                        reason: shown(&asked.reason),
                    }),
                },
                token: run.token,
                noticed: run.noticed.map(|noticed| Noticed {
                    at: shown(&noticed.at),
                    by: shown(&noticed.by),
                }),
            }),
            created: item.created,
            key: item.key,
        }
    }

    /// What its lock is told of as; see [`called`].
    pub fn called(&self) -> String {
        called(&self.name, self.lock_key.as_deref())
    }

    /// Whether the run did not end as was expected of it, as far as we can tell.
    pub fn failed(&self) -> bool {
        self.run.as_ref().and_then(Run::met) != Some(true)
    }
}

impl Mark {
    pub(super) fn new(prefix: &str, item: &Item) -> Self {
        Self {
            name: shown(item.key.strip_prefix(prefix).unwrap_or(&item.key)),
            value: shown(&String::from_utf8_lossy(&item.value)),
        }
    }
}

/// What anybody may have written, at a length that can be shown.
fn cut(mut holder: Holder) -> Holder {
    for text in holder.texts_mut() {
        *text = shown(text);
    }
    holder
}
