//! What a lock costs etcd, counted by etcd itself: exact numbers of requests, since one more is a round trip for every
//! run of everybody.

use crate::harness::{Etcd, Meshlock, eventually, so};
use std::collections::BTreeMap;
use std::process::Stdio;

/// Requests by their method.
type Requests = BTreeMap<String, u32>;

/// What came since `before`.
fn since(before: &Requests, now: &Requests) -> Requests {
    let more = |(method, count): (&String, &u32)| {
        let more = count - before.get(method).unwrap_or(&0);
        (more > 0).then(|| (method.clone(), more))
    };
    now.iter().filter_map(more).collect()
}

/// The requests of a whole call: `work`, and what it leaves to be done after its exit, which is the revocation of
/// `leases` leases.
#[track_caller]
fn cost(etcd: &Etcd, leases: u32, work: impl FnOnce()) -> Requests {
    let before = etcd.requests();
    work();
    eventually("the leases are revoked", || {
        let now = since(&before, &etcd.requests());
        so(now.get("LeaseRevoke").copied().unwrap_or(0) >= leases)
    });
    let mut cost = since(&before, &etcd.requests());
    // It is opened beside the command, which may end before that.
    cost.remove("Watch");
    cost
}

#[track_caller]
fn assert_cost(cost: &Requests, expected: &[(&str, u32)]) {
    let expected: Requests = expected
        .iter()
        .map(|(method, count)| ((*method).to_owned(), *count))
        .collect();
    assert_eq!(*cost, expected);
}

#[test]
fn an_uncontended_run_costs_a_lease_and_two_transactions() {
    let etcd = Etcd::start();
    let cost = cost(&etcd, 1, || drop(Meshlock::run(&etcd, "billing").finish().success()));
    // The transaction that enters the queue and the one that leaves it.
    assert_cost(&cost, &[("LeaseGrant", 1), ("Txn", 2), ("LeaseRevoke", 1)]);
}

#[test]
fn one_that_will_not_wait_looks_first() {
    let etcd = Etcd::start();
    let run = || drop(Meshlock::run(&etcd, "billing").args(["-n"]).finish().success());
    assert_cost(
        &cost(&etcd, 1, run),
        &[("LeaseGrant", 1), ("Txn", 3), ("LeaseRevoke", 1)],
    );
}

#[test]
fn contention_without_waiting_costs_one_read_and_no_write() {
    let etcd = Etcd::start();
    // Another's, since a holder of ours would renew in between.
    etcd.put("meshlock/lock/billing/1f", "");
    let revision = etcd.revision();
    let contended = || drop(Meshlock::run(&etcd, "billing").args(["-q", "-n"]).finish().status(75));
    assert_cost(&cost(&etcd, 0, contended), &[("Txn", 1)]);
    assert_eq!(etcd.revision(), revision);
}

#[test]
fn a_handover_costs_the_waiter_nothing() {
    let etcd = Etcd::start();
    // Long enough that nobody renews meanwhile.
    let mut holder = Meshlock::run(&etcd, "billing")
        .args(["--ttl=300"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let mut waiter = Meshlock::run(&etcd, "billing")
        .args(["--ttl=300"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    // Each has entered the queue, and the waiter has looked again once its watch stood.
    eventually("the waiter is parked", || so(etcd.requests().get("Txn") == Some(&3)));
    let cost = cost(&etcd, 1, || {
        holder.finish().stdout("held\n").success();
        waiter.wait_for_stdout("held");
    });
    // The holder leaves and revokes; the waiter is told all by its watch.
    assert_cost(&cost, &[("Txn", 1), ("LeaseRevoke", 1)]);
    waiter.finish().any_stderr().stdout("held\n").success();
}

#[test]
fn a_departure_in_a_long_queue_costs_one_read() {
    let etcd = Etcd::start();
    let start = || {
        let command = Meshlock::run(&etcd, "billing").args(["--ttl=300"]);
        command.stdin(Stdio::piped()).sh("echo held; read -r _; exit 0").start()
    };
    let mut holder = start();
    holder.wait_for_stdout("held");
    let mut queue = Vec::new();
    for waiters in 1..=4 {
        queue.push(start());
        let parked = 1 + 2 * waiters;
        eventually("the waiter is parked", || {
            so(etcd.requests().get("Txn") == Some(&parked))
        });
    }
    let cost = cost(&etcd, 1, || {
        let before = etcd.requests();
        holder.finish().stdout("held\n").success();
        queue[0].wait_for_stdout("held");
        eventually("the second looks", || {
            so(since(&before, &etcd.requests()).get("Txn") == Some(&2))
        });
    });
    // The second in the queue finds that only the new holder is before it. The others hear nothing.
    assert_cost(&cost, &[("Txn", 2), ("LeaseRevoke", 1)]);
    for waiter in queue {
        waiter.finish().any_stderr().stdout("held\n").success();
    }
}

#[test]
fn a_renewal_costs_a_message_and_a_read() {
    let etcd = Etcd::start();
    let mut holder = Meshlock::run(&etcd, "billing")
        .args(["--ttl=4"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let of = |requests: &Requests, method: &str| requests.get(method).copied().unwrap_or(0);
    eventually("three renewals", || so(of(&etcd.messages(), "LeaseKeepAlive") >= 3));
    let all = etcd.messages();
    holder.finish().any_stderr().stdout("held\n").success();
    let (renewals, reads) = (of(&all, "LeaseKeepAlive"), of(&all, "Txn") - 1);
    assert!(reads <= renewals && reads + 1 >= renewals, "{all:?}");
    assert_eq!(of(&all, "LeaseGrant"), 1, "{all:?}");
    assert_eq!(of(&etcd.requests(), "Watch"), 1, "{all:?}");
}
