//! Many locks held, and one waited for, while the members of the cluster are restarted in turn, the leader's office
//! is moved and the history is compacted.

use crate::cluster::{compact, move_leader};
use crate::harness::{Cluster, Meshlock, eventually, pass, so};
use crate::hold::{Hold, TTL};
use std::time::{Duration, Instant};

/// Between two rounds of restarts.
const REST: Duration = Duration::from_secs(5);

pub(super) fn run(count: usize, span: Duration) -> String {
    let mut cluster = Cluster::start();
    let endpoints = cluster.endpoints();
    let mut holds: Vec<Hold> = (1..=count)
        .map(|number| Hold::take(&endpoints, &[], &format!("held-{number}")))
        .collect();
    let waiter = Meshlock::run_at(&endpoints, "held-1")
        .args(["-q", "--ttl=10"])
        .sh("echo $MESHLOCK_HELD_TOKEN")
        .start();
    let entry = cluster.members[0].wait_for_queue("held-1", 2).remove(1);
    let token = cluster.members[0].created(&entry);
    let began = Instant::now();
    let mut rounds = 0;
    while rounds == 0 || began.elapsed() < span {
        if rounds > 0 {
            pass(REST);
        }
        move_leader(&cluster, (cluster.leader() + 1) % 3);
        for member in &mut cluster.members {
            member.restart();
            compact(member);
        }
        rounds += 1;
    }
    pass(TTL + Duration::from_secs(1));
    let span = began.elapsed();
    let reader = cluster.members[0].client();
    let first = holds.remove(0);
    first.end(&reader);
    waiter.finish().stdout(format!("{token}\n")).success();
    for hold in holds {
        hold.end(&reader);
    }
    eventually("no lease is left", || so(reader.leases().is_empty()));
    format!(
        "{count} holds for {span:.0?}, in which each of three members was restarted, the leader moved and the history \
         compacted ({rounds} times): none lost; a waiter kept its place and got its lock"
    )
}
