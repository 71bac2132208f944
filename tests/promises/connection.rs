//! Reaching etcd, and failing to: each way is told from the others, in one line that names the endpoint and
//! the cause, within `--dial-timeout`; nothing is run.

use crate::harness::etcd::free_port;
use crate::harness::proxy::black_hole;
use crate::harness::{Etcd, Meshlock, bounded, unique};
use std::net::TcpListener;

#[test]
fn an_endpoint_that_refuses_is_unavailable() {
    let endpoint = format!("127.0.0.1:{}", free_port());
    bounded(Meshlock::run_at(&endpoint, "x"))
        .stderr_line([endpoint.as_str(), "refused"])
        .status(69);
}

#[test]
fn a_name_that_does_not_resolve_is_unavailable() {
    bounded(Meshlock::run_at("nowhere.invalid:2379", "x"))
        .stderr_line(["nowhere.invalid:2379"])
        .status(69);
}

#[test]
fn an_endpoint_that_accepts_and_says_nothing_is_unavailable() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = silent.local_addr().expect("an address").to_string();
    bounded(Meshlock::run_at(&endpoint, "x"))
        .stderr_line([endpoint.as_str()])
        .status(69);
    let endpoint = format!("https://{endpoint}");
    bounded(Meshlock::run_at(&endpoint, "x"))
        .stderr_line([endpoint.as_str()])
        .status(69);
    drop(silent);
}

#[test]
fn a_silent_endpoint_does_not_stretch_the_wait() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = silent.local_addr().expect("an address").to_string();
    Meshlock::run_at(&endpoint, "x")
        .args(["--wait=0.25", "--dial-timeout=1h"])
        .finish()
        .stderr_line([endpoint.as_str(), "within 1.25 s"])
        .status(69);
    drop(silent);
}

#[test]
fn an_endpoint_that_drops_packets_is_unavailable() {
    let (hole, _full) = black_hole();
    bounded(Meshlock::run_at(&hole, "x"))
        .stderr_line([hole.as_str()])
        .status(69);
}

#[test]
fn a_listener_that_is_not_etcd_is_told() {
    use std::io::Write as _;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            write!(stream, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").ok();
        }
    });
    bounded(Meshlock::run_at(&endpoint, "x"))
        .stderr_line([endpoint.as_str()])
        .any_code([69, 78]);
}

#[test]
fn one_good_member_among_bad_ones_is_enough() {
    let etcd = Etcd::shared();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (hole, _full) = black_hole();
    let endpoints = [
        format!("127.0.0.1:{}", free_port()),
        silent.local_addr().expect("an address").to_string(),
        hole,
        etcd.address(),
    ];
    for first in 0..endpoints.len() {
        let mut endpoints = endpoints.clone();
        endpoints.rotate_left(first);
        Meshlock::run_at(endpoints.join(","), unique("one")).finish().success();
    }
}

#[test]
fn a_member_of_another_cluster_is_no_witness() {
    let (mut ours, other) = (Etcd::start(), Etcd::start());
    let mut holder = Meshlock::run_at(format!("{},{}", ours.endpoint(), other.endpoint()), "cluster")
        .args(["--ttl", "5"])
        .sh("echo held; exec sleep 1000")
        .start();
    holder.wait_for_stdout("held");
    assert_eq!(ours.queue("cluster").len(), 1);
    ours.kill();
    let said = holder.finish().stdout("held\n").any_stderr().status(79);
    assert!(
        !said.stderr.contains("deleted"),
        "the other cluster proves nothing: {}",
        said.stderr
    );
    assert_eq!(other.keys(""), Vec::<String>::new());
}

#[test]
fn a_waiter_sits_out_an_outage_and_says_so() {
    let mut etcd = Etcd::start();
    etcd.put("meshlock/lock/outage/1f", "");
    let mut waiter = Meshlock::run(&etcd, "outage")
        .args(["--ttl", "4"])
        .sh("echo mine")
        .start();
    waiter.wait_for_stderr("held by");
    let before = waiter.stderr().lines().count();
    etcd.kill();
    crate::harness::eventually("a line at the outage's start", || {
        crate::harness::so(waiter.stderr().lines().count() > before)
    });
    etcd.restart();
    etcd.del("meshlock/lock/outage/1f");
    waiter.finish().stdout("mine\n").any_stderr().success();
    etcd.assert_clean("outage");
}
