//! The queue in etcd: each step of the protocol as one transaction and its answer as plain data. Decides
//! nothing: what follows from an answer is [`super::keeper`]'s affair.

use crate::moment::Moment;
use std::time::Duration;

/// What one read, or the answer of a transaction, says of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub cluster: u64,
    /// The create revision of our own entry; `None` where it is not there (any more).
    pub mine: Option<i64>,
    /// Who is before us (or, without an entry of ours, there at all).
    pub ahead: Option<Ahead>,
    /// Open records older than our own entry whose entries are gone: unclean departures. Meaningful only
    /// where nobody is ahead.
    pub stale: Vec<Stale>,
    /// While it is there nobody starts; the value's words, for the user.
    pub frozen: Option<String>,
    /// Run records up to and with this key are to go when the next one is written.
    pub oldest_kept: Option<String>,
}

/// The entries before ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// How many.
    pub count: i64,
    /// The oldest: it holds the lock.
    pub holder: Entry,
    /// The key of the youngest: its departure is what we wait for.
    pub predecessor: String,
}

/// An entry of the queue, as a person is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub token: i64,
    pub lease: i64,
    /// `ci@runner-7 (pid 4121) since 14:02:11Z`, or `unknown (not meshlock)` where we cannot read the record.
    pub who: String,
}

/// An open record without its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    pub key: String,
    /// The TTL of the lease that ended uncleanly.
    pub ttl: Duration,
}

/// The answer of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// When its first try was sent.
    pub sent: Moment,
    pub ttl: Duration,
}

/// What came of a renewal that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Answered in time, and confirmed by a linearizable read of our entry in the same raft term.
    Accepted { sent: Moment, ttl: Duration },
    /// A linearizable read from a member of our cluster lacks our entry: proof of loss.
    Gone { why: String },
    /// Neither: try again.
    Unproven { why: String },
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// All watched keys are watched from now on: what happened before must be read.
    Ready,
    Deleted {
        key: String,
    },
    Put {
        key: String,
        value: Vec<u8>,
    },
}
