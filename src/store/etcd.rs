//! etcd (to come).
