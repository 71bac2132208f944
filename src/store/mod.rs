//! What the lock needs from a store: the etcd client is the first.

pub mod etcd;

/// Why a call to the store did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    Unreachable { why: String },
    Denied { why: String },
    Config { why: String },
    Internal { why: String },
    NoSpace,
    LeaseGone,
}
