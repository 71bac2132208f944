//! What the lock needs from a store: guarded transactions, leases and watches over ordered keys, and one
//! classified reason where a call did not succeed. Data only; must not know what the keys mean. The etcd
//! client is the first store.

pub(crate) mod abreast;
mod certificate;
pub mod credentials;
mod discovery;
mod dns;
pub mod etcd;
mod fault;
pub mod files;
mod gather;
mod host;
mod http2;
pub mod inquiry;
mod line;
pub mod pages;
mod pool;
mod secure;
pub mod tls;
mod wire;

pub use self::discovery::Discovery;

use self::files::Kept;
use self::tls::Tls;
use crate::moment::Moment;
use crate::outcome::{Failure, FailureKind};
use std::fmt;
use std::time::Duration;
use zeroize::Zeroize as _;

/// How etcd is reached.
#[derive(Clone)]
pub struct Connection {
    /// At least one, unless DNS is to be asked for them; each with its scheme.
    pub endpoints: Vec<String>,
    /// Where DNS is to be asked for the endpoints.
    pub discovery: Option<Discovery>,
    /// Bounds the first contact, all endpoints together.
    pub dial_timeout: Duration,
    pub tls: Option<Tls>,
    /// With the password.
    pub user: Option<(String, String)>,
    /// Where the password came from, to be read again when etcd does not take it any more.
    pub password_file: Option<Kept>,
    /// The files of ours that every user of this machine can read.
    pub exposed: Vec<String>,
}

impl Connection {
    /// For a process that connects to nobody, and so need not have them in its memory.
    pub fn forget_secrets(&mut self) {
        if let Some((_, password)) = &mut self.user {
            password.zeroize();
        }
        if let Some(file) = &mut self.password_file {
            file.contents.zeroize();
        }
        if let Some(tls) = &mut self.tls {
            tls.made = None;
            if let Some((_, key)) = &mut tls.identity {
                key.contents.zeroize();
            }
        }
    }

    /// That nobody answered within `dial_timeout`.
    pub fn silent(&self) -> Fault {
        fault::silent(&self.whom(), self.dial_timeout)
    }

    /// The endpoints, within `dial_timeout` from DNS where that is to be asked.
    ///
    /// # Errors
    /// Where DNS does not tell.
    pub async fn members(&self) -> Result<Vec<String>, Fault> {
        let Some(discovery) = &self.discovery else {
            return Ok(self.endpoints.clone());
        };
        let found = tokio::time::timeout(self.dial_timeout, discovery.members()).await;
        found.unwrap_or_else(|_| Err(self.silent()))
    }

    /// Who is to be asked, as far as the settings tell.
    pub fn whom(&self) -> String {
        match &self.discovery {
            Some(discovery) => discovery.to_string(),
            None => self.endpoints.join(", "),
        }
    }
}

/// Why a call did not succeed. Each `why` is one line that names the endpoint and the cause.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Nobody answered in time, or nobody could: what was asked may or may not have been done. Try again.
    Unreachable {
        why: String,
    },
    /// The server refuses the user, the password, the certificate or the right.
    Denied {
        why: String,
    },
    /// Trying again cannot help before somebody changes a setting.
    Config {
        why: String,
    },
    /// The server takes no more writes.
    NoSpace {
        why: String,
    },
    /// What was to be bound to the lease was not: the server does not know it (any more).
    LeaseGone,
    /// The endpoint serves another cluster than ours: it is no witness.
    Foreign {
        why: String,
    },
    /// An endpoint that served our cluster now serves another, a restored one for example: what we held
    /// there is gone.
    Replaced {
        why: String,
    },
    Internal {
        why: String,
    },
}

impl Fault {
    /// The failure of a call of meshlock that ends by this.
    pub fn failure(&self) -> Failure {
        let kind = match self {
            Self::Unreachable { .. } | Self::NoSpace { .. } | Self::LeaseGone => FailureKind::Unavailable,
            Self::Denied { .. } => FailureKind::Denied,
            Self::Config { .. } | Self::Foreign { .. } | Self::Replaced { .. } => FailureKind::Config,
            Self::Internal { .. } => FailureKind::Internal,
        };
        Failure::new(kind, self.to_string())
    }
}

impl Fault {
    /// Whether it is for a missing user or right.
    pub const fn is_denial(&self) -> bool {
        matches!(self, Self::Denied { .. })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { why }
            | Self::Denied { why }
            | Self::Config { why }
            | Self::NoSpace { why }
            | Self::Foreign { why }
            | Self::Replaced { why }
            | Self::Internal { why } => f.write_str(why),
            Self::LeaseGone => f.write_str("etcd does not know our lease any more"),
        }
    }
}

/// If all of `when` hold, then `then`, else `otherwise`: at one revision, or not at all.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    pub when: Vec<If>,
    pub then: Vec<Op>,
    pub otherwise: Vec<Op>,
}

#[derive(Clone, Debug)]
pub enum If {
    /// The key was created at this revision; 0 if it is not there.
    Created { key: String, at: i64 },
    /// No key has this prefix.
    Empty { prefix: String },
}

#[derive(Clone, Debug)]
pub enum Op {
    /// Bound to the lease, unless that is 0.
    Put {
        key: String,
        value: Vec<u8>,
        lease: i64,
    },
    Read(Read),
    Delete {
        key: String,
    },
    /// All keys from the first up to and with the last.
    DeleteUpTo {
        first: String,
        last: String,
        /// Only if this one is there.
        once: Option<String>,
    },
}

#[derive(Clone, Debug)]
pub struct Read {
    pub what: What,
    /// Only what was created before this revision.
    pub created_before: Option<i64>,
    pub keys_only: bool,
}

#[derive(Clone, Debug)]
pub enum What {
    Key(String),
    /// The first so many, in this order, of the keys with the prefix.
    First {
        prefix: String,
        order: Order,
        limit: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub enum Order {
    Oldest,
    Youngest,
    LastKey,
}

/// The answer to a [`Txn`].
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether `then` was done.
    pub succeeded: bool,
    pub cluster: u64,
    /// At which it was given.
    pub revision: i64,
    /// The raft term in which the answering member knew itself.
    pub term: u64,
    /// One for each [`Op::Read`] that was done, in order.
    pub reads: Vec<Found>,
}

#[derive(Clone, Debug, Default)]
pub struct Found {
    pub items: Vec<Item>,
    /// How many keys the prefix has, whatever the limit and `created_before`.
    pub all: i64,
}

#[derive(Clone, Debug)]
pub struct Item {
    /// A key that is not UTF-8 is not ours; shown with replacement characters.
    pub key: String,
    pub value: Vec<u8>,
    pub created: i64,
    pub lease: i64,
}

/// The answer to a keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alive {
    pub sent: Moment,
    /// `None`: the answering member knows no such lease, which a stalled old leader says of living ones too.
    pub ttl: Option<Duration>,
    pub term: u64,
}

/// What a watch is set on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    Key(String),
    /// All keys that begin so.
    Prefix(String),
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// All watched keys are watched from now on: what happened before must be read.
    Ready,
    Deleted {
        key: String,
        /// The revision.
        at: i64,
    },
    Put {
        key: String,
        value: Vec<u8>,
    },
}
