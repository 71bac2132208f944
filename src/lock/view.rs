//! What an answer says of the queue, as plain data, and the records of others in words for a person: written
//! by anybody with the right, shown on a terminal.

use super::record::{Freeze, Holder, Open, Run, VANISHED};
use crate::link::{Ended, HeldBy};
use crate::moment::Moment;
use crate::rules::TTL_RANGE;
use crate::store::Item;
use serde::Deserialize;
use std::time::Duration;

/// What one read, or the answer of a transaction, says of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    pub cluster: u64,
    /// etcd's, at which all of it was so.
    pub revision: i64,
    /// The create revision of our own entry; `None` where it is not there (any more).
    pub mine: Option<i64>,
    /// Who is before us (or, without an entry of ours, there at all).
    pub ahead: Option<Ahead>,
    /// Open records older than our own entry whose entries are gone: unclean departures. Told only where
    /// nobody is ahead.
    pub stale: Vec<Stale>,
    /// The oldest of them. Whoever starts clears all that are older, so no other has ever started: it died waiting.
    pub vanished: Option<Box<Vanished>>,
    /// While it is there nobody starts; the value's words, for the user.
    pub frozen: Option<String>,
    /// What is asked of our entry: written before the watch began, it is seen only here.
    pub ask: Option<Vec<u8>>,
    /// What is to go when our run is recorded.
    pub outdated: Vec<Outdated>,
}

/// The entries before ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ahead {
    /// How many; a re-read by a waiter stops counting at 100.
    pub count: i64,
    /// The oldest: it holds the lock.
    pub holder: Entry,
    /// The youngest: its departure is what we wait for.
    pub predecessor: Predecessor,
    /// Told where nothing but that departure is waited for.
    pub heir: Option<Heir>,
}

/// The entry just before ours, by its key, and what shows how it departs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Predecessor {
    pub entry: String,
    /// Its open record, which a clean departure takes along; `None` where it can have none.
    pub open: Option<String>,
    /// The entry before that one: once it is gone, the predecessor may be the only one left.
    pub earlier: Option<String>,
}

/// The predecessor is the only one ahead, its open record is there, nobody else's is, and the name is not frozen. Nobody
/// can come before us any more; so that a clean departure leaves nothing to be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Heir {
    /// [`View::outdated`], whether the predecessor's run will be recorded or not.
    pub outdated: Vec<Outdated>,
}

/// Run records that make room for the next one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outdated {
    /// Up to and with this key.
    pub last: String,
    /// Only if this one is there by then.
    pub once: Option<String>,
}

/// What has become of the keys that we wait by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// etcd's, at which all of it was so.
    pub revision: i64,
    /// As [`View::mine`].
    pub mine: Option<i64>,
    /// The predecessor's entry is there.
    pub predecessor: bool,
    pub frozen: bool,
    /// As [`View::ask`].
    pub ask: Option<Vec<u8>>,
}

/// An entry of the queue, as a person is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub key: String,
    pub token: i64,
    pub lease: i64,
    /// `unknown (not meshlock)` where we cannot read the record.
    pub who: HeldBy,
}

/// An open record without its entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stale {
    pub key: String,
    /// The TTL of the lease that ended uncleanly.
    pub ttl: Duration,
}

/// A run that never said how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vanished {
    /// The open record's key.
    pub open: String,
    /// The record to be, but for who noticed it and when.
    pub run: Run,
    /// It came before the last recorded run ended, at this revision: if its entry was gone by then, it died waiting,
    /// and no run has vanished.
    pub waited_until: Option<i64>,
}

/// The answer of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    /// When its first try was sent.
    pub sent: Moment,
    pub ttl: Duration,
}

/// What came of a renewal that was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    /// Answered in time, and confirmed by a linearizable read of our entry in the same raft term.
    Accepted { sent: Moment, ttl: Duration },
    /// A linearizable read from a member of our cluster lacks our entry: proof of loss.
    Gone { why: String },
    /// Neither: try again.
    Unproven { why: String },
}

/// The holder's entry.
pub fn entry(item: &Item, last_run: Option<&Item>) -> Entry {
    let last_run = last_run.and_then(|run| Run::parse(&run.value));
    Entry {
        key: item.key.clone(),
        token: item.created,
        lease: item.lease,
        who: Holder::parse(&item.value).map_or_else(
            || "unknown (not meshlock)".into(),
            |holder| held_by(&holder, held_since(&holder, item.created, last_run.as_ref())),
        ),
    }
}

/// Since when the holder with this token holds: its entry was written when its wait began, which the end of the
/// run before it ended.
pub(super) fn held_since<'a>(holder: &'a Holder, token: i64, last_run: Option<&'a Run>) -> &'a str {
    let handed_over = last_run.filter(|run| run.token < token).map(Run::over);
    // Of one format and zone, so that they sort as text.
    handed_over
        .filter(|handed_over| *handed_over > holder.started.as_str())
        .unwrap_or(&holder.started)
}

fn held_by(holder: &Holder, since: &str) -> HeldBy {
    let Holder {
        user,
        host,
        pid,
        purpose,
        ..
    } = holder;
    let part =
        |before: &str, text: &Option<String>| text.as_ref().map_or(String::new(), |text| format!("{before}{text}"));
    let (owner, reason) = (part(", owner ", &purpose.owner), part(": ", &purpose.reason));
    HeldBy {
        who: first(WHO_SHOWN, &format!("{user}@{host} (pid {pid})")),
        since: Some(first(TIME_SHOWN, since)),
        purpose: shown(&format!("{owner}{reason}")),
    }
}

/// By whom and why, as the end of a sentence.
pub fn frozen(item: &Item) -> String {
    let freeze = Freeze::parse(&item.value);
    let by = if freeze.by.is_empty() {
        "somebody unknown"
    } else {
        &freeze.by
    };
    let reason = if freeze.reason.is_empty() {
        String::new()
    } else {
        format!(": {}", freeze.reason)
    };
    shown(&format!(" by {by}{reason}"))
}

/// For how long an unclean departure is to be minded.
pub fn stale(item: &Item) -> Stale {
    /// The one field that counts, whatever the format.
    #[derive(Deserialize)]
    struct Ttl {
        ttl_ms: u64,
    }
    Stale {
        key: item.key.clone(),
        // One that we cannot read may be of the longest lease there is; a longer one is none.
        ttl: serde_json::from_slice::<Ttl>(&item.value)
            .map_or(Duration::MAX, |open| Duration::from_millis(open.ttl_ms))
            .min(*TTL_RANGE.end()),
    }
}

/// Of a longer open record nothing is taken over: what we write has to stay small, whatever lies there.
const TAKEN_OVER: usize = 64 * 1024;

/// What can be recorded of a run by the open record that it left, and by the last run that was recorded.
pub(super) fn vanished(item: &Item, last_run: Option<&Item>) -> Vanished {
    let holder = Some(&item.value).filter(|value| value.len() <= TAKEN_OVER);
    let holder = holder
        .and_then(|value| Open::holder(value))
        .unwrap_or_else(Holder::unknown);
    let last = last_run.and_then(|last| Run::parse(&last.value));
    Vanished {
        open: item.key.clone(),
        waited_until: last_run.map(|last| last.created).filter(|ended| *ended > item.created),
        run: Run {
            token: item.created,
            ended: Ended {
                result: VANISHED.to_owned(),
                status: None,
                acquired: held_since(&holder, item.created, last.as_ref()).to_owned(),
                ended: String::new(),
                why: None,
                asked: None,
            },
            noticed: None,
            holder,
        },
    }
}

/// More of another's text is cut off: a message to the guardian has its limit, and a line one screen.
const SHOWN: usize = 1000;
/// Of names and times less is enough: all together has to fit as well.
const WHO_SHOWN: usize = 300;
const TIME_SHOWN: usize = 40;

/// Of what others wrote, as much as is shown; made safe for a terminal where it is shown. What is cut off leaves an
/// ellipsis, and [`is_cut`] tells.
pub fn shown(text: &str) -> String {
    first(SHOWN, text)
}

/// Whether a text that was [`shown`] is longer: only with the ellipsis it can be longer than the limit.
pub fn is_cut(shown: &str) -> bool {
    shown.chars().nth(SHOWN).is_some()
}

fn first(limit: usize, text: &str) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
