//! Whatever the network does, a member that can be reached is reached, at the start and all through a hold, and
//! `--dial-timeout` bounds the start.

use crate::harness::dns::{NameServer, Record};
use crate::harness::etcd::{ServerTls, free_port};
use crate::harness::names::Names;
use crate::harness::proxy::black_hole;
use crate::harness::tls::{self, Authority};
use crate::harness::{Cluster, Etcd, Meshlock, Proxy, option, pass};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::{Duration, Instant};

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
fn tls_is_with_the_name_at_whichever_address_answers() {
    let Some(names) = two_addresses() else { return };
    let authority = Authority::new();
    let server = authority.issue_for("server", "DNS:etcd.test");
    let mut etcd = Etcd::start_tls(&ServerTls {
        cert: &server.cert,
        key: &server.key,
        clients: None,
    });
    let ca = option("--cacert", &authority.cert());
    etcd.access(&[ca.clone(), "--insecure-skip-tls-verify".to_owned()]);
    let port = free_port();
    let _second = Proxy::at(SocketAddr::new(SECOND, port), to(&etcd));
    let run = || {
        Meshlock::run_at(format!("etcd.test:{port}"), "named")
            .by(names.words())
            .args([&ca])
    };
    run().finish().success();
    run()
        .args(["--tls-server-name=other.test"])
        .finish()
        .stderr_line(["etcd.test:", "for etcd.test, not for other.test"])
        .status(78);
    etcd.assert_clean("named");
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

/// A listener that hears what it is told and never says a word.
fn mute() -> (TcpListener, String) {
    let mute = TcpListener::bind((FIRST, 0)).expect("a port");
    let address = mute.local_addr().expect("an address").to_string();
    (mute, address)
}

#[test]
fn whatever_hangs_at_the_start_is_over_in_time() {
    let authority = Authority::new();
    let ca = format!("--cacert={}", authority.cert().display());
    let mut etcd = Etcd::start();
    etcd.enable_auth();
    let ((hole, _full), (_plain, plain), (_before_tls, before_tls)) = (black_hole(), mute(), mute());
    let after_tls = tls::Mute::start(&authority.issue("server"));
    let at_authenticate = etcd.proxy();
    at_authenticate.hold_up_from(b"root");
    let at_the_first_call = Etcd::start();
    at_the_first_call.pause();
    let cases = [
        (hole, ""),
        (plain, ""),
        (before_tls, &*ca),
        (after_tls.address(), &*ca),
        (at_authenticate.address(), "--user=root:root"),
        (at_the_first_call.address(), ""),
    ];
    for (address, option) in &cases {
        let options = [option, "--dial-timeout=2"]
            .into_iter()
            .filter(|option| !option.is_empty());
        let options: Vec<&str> = options.collect();
        for call in [Meshlock::run_at(address, "hung"), Meshlock::ask_at(address, "history")] {
            let start = Instant::now();
            call.args(&options).finish().stderr_line([address]).status(69);
            assert!(start.elapsed() < Duration::from_secs(20), "two seconds were asked for");
        }
    }
    at_the_first_call.resume();
}

#[test]
fn a_name_server_that_is_dead_is_over_in_time() {
    let Some(server) = NameServer::start() else { return };
    let Some(names) = Names::new(&[], &server.resolv_conf()) else {
        return;
    };
    server.be_silent();
    let start = Instant::now();
    Meshlock::run_at("etcd.test:2379", "nameless")
        .by(names.words())
        .args(["--dial-timeout=1"])
        .finish()
        .stderr_line(["etcd.test:2379"])
        .status(69);
    assert!(start.elapsed() < Duration::from_secs(20), "one second was asked for");
}

#[test]
fn a_hold_does_without_the_name_server() {
    let Some(server) = NameServer::start() else { return };
    let Some(names) = Names::new(&[], &server.resolv_conf()) else {
        return;
    };
    let etcd = Etcd::start();
    let proxy = etcd.proxy();
    server.says(&[("etcd.test", Record::Address(Ipv4Addr::LOCALHOST))]);
    let mut holder = Meshlock::run_at(format!("etcd.test:{}", proxy.port()), "nameless")
        .by(names.words())
        .args(["--ttl", "4"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; echo done")
        .start();
    holder.wait_for_stdout("held");
    server.be_silent();
    for _ in 0..3 {
        proxy.cut();
        pass(Duration::from_secs(3));
    }
    holder.finish().stdout("held\ndone\n").success();
    etcd.assert_clean("nameless");
}

#[test]
fn a_hold_outlives_the_good_member_among_bad_ones() {
    let etcd = Etcd::start();
    let (one, other) = (etcd.proxy(), etcd.proxy());
    let ((hole, _full), (_mute, mute)) = (black_hole(), mute());
    let refusing = format!("127.0.0.1:{}", free_port());
    let endpoints = [hole, mute, refusing, one.address(), other.address()].join(",");
    let mut holder = Meshlock::run_at(endpoints, "among")
        .args(["--ttl", "12"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; echo done")
        .start();
    holder.wait_for_stdout("held");
    one.refuse();
    pass(Duration::from_secs(14));
    one.heal();
    other.hold();
    pass(Duration::from_secs(14));
    holder.finish().stdout("held\ndone\n").success();
    etcd.assert_clean("among");
}

#[test]
fn a_black_hole_does_not_take_a_short_hold_s_time() {
    let etcd = Etcd::start();
    let (one, other, (hole, _full)) = (etcd.proxy(), etcd.proxy(), black_hole());
    let mut holder = Meshlock::run_at([one.address(), hole, other.address()].join(","), "short")
        .args(["--ttl", "6"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; echo done")
        .start();
    holder.wait_for_stdout("held");
    // 6 s less margin and grace are 4 s: a renewal's interval, two tries of 1 s in vain and two pauses fit into that.
    one.hold();
    pass(Duration::from_secs(7));
    holder.finish().stdout("held\ndone\n").success();
    etcd.assert_clean("short");
}

#[test]
fn a_hold_survives_a_member_that_is_slow() {
    let cluster = Cluster::start();
    let slow = cluster.members[0].proxy();
    slow.delay(Duration::from_millis(400));
    let endpoints = [
        slow.address(),
        cluster.members[1].address(),
        cluster.members[2].address(),
    ];
    let mut holder = Meshlock::run_at(endpoints.join(","), "slow")
        .args(["--ttl", "6"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; echo done")
        .start();
    holder.wait_for_stdout("held");
    pass(Duration::from_secs(8));
    slow.delay(Duration::from_secs(3));
    pass(Duration::from_secs(8));
    slow.delay(Duration::ZERO);
    holder.finish().stdout("held\ndone\n").success();
    cluster.members[1].assert_clean("slow");
}

#[test]
fn ipv6_is_as_good() {
    let etcd = Etcd::start();
    // Where there is no IPv6 there is nothing to show.
    let Ok(probe) = TcpListener::bind("[::1]:0") else {
        return;
    };
    let port = probe.local_addr().expect("an address").port();
    drop(probe);
    let _six = Proxy::at(SocketAddr::from((Ipv6Addr::LOCALHOST, port)), to(&etcd));
    Meshlock::run_at(format!("[::1]:{port}"), "six").finish().success();
    // A name whose first address is of IPv6, where nobody is.
    let six = IpAddr::from(Ipv6Addr::LOCALHOST);
    if let Some(names) = Names::new(&[(six, "etcd.test"), (FIRST, "etcd.test")], "") {
        Meshlock::run_at(format!("etcd.test:{}", etcd.port()), "six")
            .by(names.words())
            .finish()
            .success();
    }
    etcd.assert_clean("six");
}
