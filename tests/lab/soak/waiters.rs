//! Many waiters on one lock.

use super::left;
use crate::harness::{Etcd, Meshlock, directory, meshlock};
use crate::hold::Hold;

/// How many come at the same time: a busy machine starts no more within the time that anything may take.
const AT_ONCE: usize = 50;

pub(super) fn run(count: usize) -> String {
    let etcd = Etcd::start();
    let served = directory().join("served");
    let holder = Hold::take(&etcd.endpoint(), &[], "queue");
    let mut waiters = Vec::new();
    while waiters.len() < count {
        waiters.extend((waiters.len()..count).take(AT_ONCE).map(|_| {
            Meshlock::run(&etcd, "queue")
                .args(["-q", "--keep=0"])
                .sh(&format!("echo $MESHLOCK_HELD_KEY >>{}", served.display()))
                .start()
        }));
        etcd.wait_for_queue("queue", 1 + waiters.len());
    }
    let queue = etcd.queue("queue");
    holder.end(&etcd);
    for waiter in waiters {
        waiter.finish().success();
    }
    let served = meshlock::read(&served);
    assert!(
        served.lines().eq(&queue[1..]),
        "served: {served}\nof the queue: {queue:?}"
    );
    left::assert_records_only(&etcd, &["queue".to_owned()], 0);
    left::assert_no_lease_ran_out(&etcd);
    format!("{count} waiters on one lock: served in the order of arrival, nothing left")
}
