//! Everything the user decided, resolved and validated: flags before `MESHLOCK_*` before `ETCDCTL_*`
//! before defaults. The only reader of the environment; nothing past it sees clap.

use crate::lock::keys::Place;
use crate::lock::record::Holder;
use crate::rules::Asked;
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What `meshlock run` needs to know.
#[derive(Clone)]
pub struct Run {
    pub connection: Connection,
    pub place: Place,
    /// How long to wait for the lock, counted from the start; `None` waits without limit, zero is `--no-wait`.
    pub wait: Option<Duration>,
    pub asked: Asked,
    pub stop_signal: Signal,
    pub stragglers: Stragglers,
    /// The exit status for contention.
    pub conflict_status: u8,
    /// Where the outcome is written as JSON.
    pub report: Option<PathBuf>,
    /// How many run records are kept in etcd.
    pub keep: u32,
    /// Who we are, for the queue entry; its times and token are filled in later.
    pub holder: Holder,
    /// Never empty.
    pub command: Vec<OsString>,
    /// The command's environment, our secrets taken out; the hold's variables are added at its start.
    pub environment: Vec<(OsString, OsString)>,
    /// Leases that this process tree already holds, outermost first: waiting for one would wait for ourselves.
    pub outer_leases: Vec<i64>,
    pub verbosity: Verbosity,
}

/// How etcd is reached.
#[derive(Clone)]
pub struct Connection {
    /// At least one; each with its scheme.
    pub endpoints: Vec<String>,
    /// Bounds the first contact, all endpoints together.
    pub dial_timeout: Duration,
    pub tls: Option<Tls>,
    pub user: Option<(String, String)>,
}

/// The contents of the TLS files, read and checked before anything connects.
#[derive(Clone)]
pub struct Tls {
    /// `None`: the system's roots.
    pub cacert: Option<Vec<u8>>,
    /// The client's certificate and key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// What becomes of processes that the command leaves running when it ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stragglers {
    /// Leave them alone; the lock goes when the command itself ends.
    Leave,
    /// Keep the lock until the last of them has ended.
    Wait,
    /// Kill them, then release.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// No progress, no contention; what went wrong is still said.
    Quiet,
    Normal,
    Verbose,
}
