//! The lock: names and keys, the queue in etcd, records, and the keeper's decisions. Knows no process.

pub mod keeper;
pub mod keys;
pub mod proof;
pub mod queue;
pub mod record;
mod view;
