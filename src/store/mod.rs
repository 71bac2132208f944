//! What the lock needs from a store: the etcd client is the first.

pub mod etcd;
