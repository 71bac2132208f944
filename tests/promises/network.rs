//! Whatever the network does, a member that can be reached is reached, at the start and all through a hold, and
//! `--dial-timeout` bounds the start.

use crate::harness::etcd::free_port;
use crate::harness::names::Names;
use crate::harness::proxy::black_hole;
use crate::harness::{Etcd, Meshlock, Proxy, pass};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

/// The resolver puts this one first, whatever the order in the file (RFC 6724, 5, rule 9).
const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));

/// A name with two addresses; `None` where names are not ours to give.
fn two_addresses() -> Option<Names> {
    Names::new(&[(FIRST, "etcd.test"), (SECOND, "etcd.test")], "")
}

fn to(etcd: &Etcd) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], etcd.port()))
}

#[test]
fn a_name_whose_first_address_is_dead_is_reached_by_the_second() {
    let Some(names) = two_addresses() else { return };
    let etcd = Etcd::start();
    let (hole, _full) = black_hole();
    let hole: SocketAddr = hole.parse().expect("an address");
    // The kernel takes its connections, and nobody ever answers.
    let silent = TcpListener::bind((FIRST, 0)).expect("a port");
    let silent = silent.local_addr().map(|address| (silent, address));
    let (_silent, hung) = silent.expect("an address");
    for first in [hole, hung, SocketAddr::new(FIRST, free_port())] {
        let _second = Proxy::at(SocketAddr::new(SECOND, first.port()), to(&etcd));
        Meshlock::run_at(format!("etcd.test:{}", first.port()), "several")
            .by(names.words())
            .finish()
            .success();
        // Those that ask go the same way.
        Meshlock::ask_at(format!("etcd.test:{}", first.port()), "history")
            .by(names.words())
            .args(["--json"])
            .finish()
            .any_stdout()
            .success();
    }
    etcd.assert_clean("several");
}

#[test]
fn a_hold_goes_to_the_name_s_other_address_when_one_dies() {
    let Some(names) = two_addresses() else { return };
    let etcd = Etcd::start();
    let first = Proxy::between(FIRST, to(&etcd));
    let port = first.port();
    let second = Proxy::at(SocketAddr::new(SECOND, port), to(&etcd));
    // At the shortest TTL, where the least time is left to find the other one.
    let mut holder = Meshlock::run_at(format!("etcd.test:{port}"), "wanders")
        .by(names.words())
        .args(["--ttl", "4"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; echo done")
        .start();
    holder.wait_for_stdout("held");
    for dead in [&first, &second, &first] {
        dead.hold();
        pass(Duration::from_secs(6));
        dead.heal();
        dead.refuse();
        pass(Duration::from_secs(2));
        dead.heal();
    }
    holder.finish().stdout("held\ndone\n").success();
    etcd.assert_clean("wanders");
}
