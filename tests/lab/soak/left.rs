//! What is left when all have gone: by etcd's word and by `/proc`'s.

use crate::harness::{Etcd, RUN, eventually, id, proc, so};

/// No process of the lab's own is left but its servers.
#[track_caller]
pub(super) fn assert_no_processes() {
    eventually("no process is left", || {
        let left = proc::with_environment(RUN, id());
        so(left.iter().all(|pid| proc::name(*pid) == "etcd"))
    });
}

/// On a server of the part's own: every lease that was granted has ended, and there is no key in all of etcd but the
/// last `kept` run records of each of these.
#[track_caller]
pub(super) fn assert_records_only(etcd: &Etcd, names: &[String], kept: usize) {
    etcd.assert_no_leases();
    let ended = etcd.metric("etcd_debugging_lease_revoked_total", "");
    let granted = etcd.metric("etcd_debugging_lease_granted_total", "");
    assert!((granted - ended).abs() < 0.5, "{granted} leases granted, {ended} ended");
    let keys = etcd.keys("");
    for name in names {
        let records = format!("meshlock/log/{name}/");
        let count = keys.iter().filter(|key| key.starts_with(&records)).count();
        assert_eq!(count, kept, "records of {name}");
    }
    assert_eq!(
        keys.len(),
        kept * names.len(),
        "keys that nobody should have left: {keys:?}"
    );
}

/// Each lease was taken back by its owner; none was left to run out.
#[track_caller]
pub(super) fn assert_no_lease_ran_out(etcd: &Etcd) {
    let expired = etcd.metric("etcd_debugging_server_lease_expired_total", "");
    assert!(expired < 0.5, "{expired} leases ran out");
}
