//! How well etcd, our rights in it and this machine are suited to locks: facts, gathered without changing anything, and
//! what they mean. Knows nothing of single locks, and not how findings are shown.

pub mod defects;
pub mod examine;
pub mod judge;

use self::defects::Version;
pub use crate::store::Fault;
pub use crate::store::inquiry::{Alarm, Peer, Status};
use std::time::Duration;

/// All that could be found out.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Each with its closing slash; a role must be able to read and to write everything below.
    pub prefixes: Vec<String>,
    pub user: Option<String>,
    /// The files with a password or a key that every user of this machine can read.
    pub exposed: Vec<String>,
    /// Whether we show a certificate, which may name a user.
    pub certificate: bool,
    /// Whom it names.
    pub common_name: Option<String>,
    pub endpoints: Vec<Endpoint>,
    pub machine: Machine,
}

/// What one endpoint said within `--dial-timeout`.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// With its scheme.
    pub url: String,
    /// Who answers there, or why nobody did.
    pub member: Result<Member, Fault>,
    /// How long a read took that a majority has to confirm; `None` where it was not tried.
    pub read: Option<Result<Duration, Fault>>,
    /// A write of ours would be permitted; `None` where it was not tried.
    pub write: Option<Result<(), Fault>>,
    /// What is refused, below each prefix by itself.
    pub lacking: Vec<Lacking>,
    /// The roles of the user, where he could be asked after.
    pub roles: Option<Vec<String>>,
    /// Whether etcd said that it does not know him.
    pub unknown_user: bool,
}

/// Which rights below a prefix we have not; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    pub prefix: String,
    pub read: bool,
    pub write: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Member {
    pub cluster: u64,
    pub id: u64,
    /// `None`: it tells that to administrators alone.
    pub status: Option<Status>,
    /// All members of its cluster, itself among them; `None` where it does not tell.
    pub peers: Option<Vec<Peer>>,
    pub alarms: Vec<Alarm>,
    /// Why the user was not let in.
    pub denied: Option<Fault>,
}

/// This machine's clock.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// How long it slept since it was started.
    pub asleep: Duration,
    /// What the kernel counts time by.
    pub clock_source: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Green,
    /// Locks work, and something should be seen to.
    Yellow,
    /// Locks do not work, or cannot be relied on.
    Red,
}

/// One line of the diagnosis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub level: Level,
    /// For programs; never changes its meaning.
    pub code: &'static str,
    /// An endpoint, a version, a user: whom it concerns.
    pub about: String,
    pub what: String,
    /// What to do; empty where there is nothing to do.
    pub advice: String,
    /// Where it can be read about.
    pub reference: Option<&'static str>,
    /// What it is a known defect of.
    pub defect_of: Option<Version>,
}

impl Level {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Green => "green",
            Self::Yellow => "yellow",
            Self::Red => "red",
        }
    }
}

impl Facts {
    /// As whom etcd is asked, as far as it goes by that.
    pub fn named(&self) -> Option<&str> {
        self.user.as_deref().or(self.common_name.as_deref())
    }
}

impl Endpoint {
    /// Whether an etcd is there, be it one that does not let us in.
    pub const fn answered(&self) -> bool {
        matches!(self.member, Ok(_) | Err(Fault::Denied { .. }))
    }
}

/// The worst of all findings.
pub fn worst(findings: &[Finding]) -> Level {
    findings
        .iter()
        .map(|finding| finding.level)
        .max()
        .unwrap_or(Level::Green)
}
