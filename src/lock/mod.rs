//! The lock: names and keys, the queue in etcd, records, and the keeper's decisions. Knows no process.

pub mod board;
pub mod expect;
pub mod history;
pub mod keeper;
pub mod keys;
pub mod proof;
pub mod protocol;
pub mod queue;
pub mod record;
pub mod survey;
pub mod view;
