//! With `--discovery-srv` DNS says who etcd's members are, as etcdctl asks for them.

use crate::harness::dns::{NameServer, Record};
use crate::harness::etcd::{ServerTls, free_port};
use crate::harness::names::Names;
use crate::harness::tls::Authority;
use crate::harness::{Etcd, Meshlock, pass};
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

const PLAIN: &str = "_etcd-client._tcp.locks.test";
const SECURE: &str = "_etcd-client-ssl._tcp.locks.test";
const LOCALHOST: (&str, Record) = ("one.locks.test", Record::Address(Ipv4Addr::LOCALHOST));

const fn service(priority: u16, port: u16) -> Record {
    Record::Service {
        priority,
        host: "one.locks.test",
        port,
    }
}

/// A name server and a world in which it is the only one; `None` where there can be none.
fn world() -> Option<(NameServer, Names)> {
    let server = NameServer::start()?;
    let names = Names::new(&[], &server.resolv_conf())?;
    Some((server, names))
}

fn run(names: &Names, name: &str) -> Meshlock {
    Meshlock::run_at("", name)
        .without_endpoints()
        .by(names.words())
        .args(["--discovery-srv", "locks.test"])
}

#[test]
fn the_members_are_those_of_the_srv_records() {
    let Some((server, names)) = world() else { return };
    let etcd = Etcd::start();
    server.says(&[
        LOCALHOST,
        (PLAIN, service(1, free_port())),
        (PLAIN, service(2, etcd.port())),
    ]);
    run(&names, "found").finish().success();
    // etcdctl's variable does the same.
    Meshlock::run_at("", "found")
        .without_endpoints()
        .by(names.words())
        .env("ETCDCTL_DISCOVERY_SRV", "locks.test")
        .finish()
        .success();
    // An answer too long for a datagram comes by TCP.
    server.be_long_winded();
    run(&names, "found").finish().success();
    assert_eq!(etcd.keys("meshlock/log/found/").len(), 3);
    etcd.assert_clean("found");
}

#[test]
fn a_cluster_is_found_by_its_name_and_in_the_search_list() {
    let Some(server) = NameServer::start() else { return };
    let conf = format!("nameserver 127.0.0.254\n{}search sub.test test\n", server.resolv_conf());
    let Some(names) = Names::new(&[], &conf) else { return };
    let etcd = Etcd::start();
    server.says(&[
        LOCALHOST,
        ("_etcd-client-blue._tcp.locks.test", service(1, etcd.port())),
    ]);
    let run = || {
        Meshlock::run_at("", "blue")
            .without_endpoints()
            .by(names.words())
            .args(["--discovery-srv", "locks"])
    };
    run().args(["--discovery-srv-name", "blue"]).finish().success();
    run()
        .finish()
        .stderr_line(["_etcd-client._tcp.locks", "DNS has none"])
        .status(69);
}

#[test]
fn with_a_tls_file_only_members_with_tls_count() {
    let Some((server, names)) = world() else { return };
    let authority = Authority::new();
    let certificate = authority.issue_for("one", "DNS:one.locks.test");
    let mut secure = Etcd::start_tls(&ServerTls {
        cert: &certificate.cert,
        key: &certificate.key,
        clients: None,
    });
    let ca = format!("--cacert={}", authority.cert().display());
    secure.access(&[ca.clone(), "--insecure-skip-tls-verify".to_owned()]);
    let plain = Etcd::start();
    server.says(&[LOCALHOST, (PLAIN, service(1, plain.port()))]);
    run(&names, "secure")
        .args([&ca])
        .finish()
        .stderr_line([SECURE])
        .status(69);
    server.says(&[
        LOCALHOST,
        (PLAIN, service(1, plain.port())),
        (SECURE, service(2, secure.port())),
    ]);
    run(&names, "secure").args([&ca]).finish().success();
    assert_eq!(secure.keys("meshlock/log/secure/").len(), 1);
    run(&names, "secure")
        .args([&ca, "--tls-server-name=two.locks.test"])
        .finish()
        .stderr_line(["for one.locks.test, not for two.locks.test"])
        .status(78);
    assert_eq!(plain.keys(""), Vec::<String>::new());
}

#[test]
fn a_name_server_that_is_silent_is_unavailable_in_time() {
    let Some((server, names)) = world() else { return };
    server.be_silent();
    for subcommand in ["status", "doctor"] {
        let asked = Meshlock::ask_at("", subcommand)
            .without_endpoints()
            .by(names.words())
            .args(["--dial-timeout=1", "--discovery-srv=locks.test"])
            .finish()
            .any_stdout()
            .any_stderr()
            .status(69);
        assert!(asked.stderr.lines().count() == 1, "{}", asked.stderr);
    }
    run(&names, "silent")
        .args(["--dial-timeout=1"])
        .finish()
        .stderr_line(["_etcd-client._tcp.locks.test"])
        .status(69);
}

#[test]
fn members_that_move_during_a_hold_are_found_again() {
    let Some((server, names)) = world() else { return };
    let etcd = Etcd::start();
    let (before, after) = (etcd.proxy(), etcd.proxy());
    server.says(&[LOCALHOST, (PLAIN, service(1, before.port()))]);
    let mut holder = run(&names, "moves")
        .args(["--ttl", "6"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; echo done")
        .start();
    holder.wait_for_stdout("held");
    server.says(&[LOCALHOST, (PLAIN, service(1, after.port()))]);
    before.refuse();
    pass(Duration::from_secs(7));
    // What is known serves on where DNS is silent, also for a connection anew.
    server.be_silent();
    after.cut();
    pass(Duration::from_secs(7));
    holder.finish().stdout("held\ndone\n").success();
    etcd.assert_clean("moves");
}

#[test]
fn verify_inside_and_the_doctor_find_them_too() {
    let Some((server, names)) = world() else { return };
    let etcd = Etcd::start();
    server.says(&[LOCALHOST, (PLAIN, service(1, etcd.port()))]);
    let inside = format!(
        r#"echo "endpoints: $MESHLOCK_HELD_ENDPOINTS"; {} verify"#,
        crate::harness::meshlock::binary().display()
    );
    run(&names, "inside")
        .sh(&inside)
        .finish()
        .stdout("endpoints: \n")
        .success();
    let said = Meshlock::ask_at("", "doctor")
        .without_endpoints()
        .by(names.words())
        .args(["--discovery-srv", "locks.test"])
        .finish()
        .any_stdout()
        .any_code([0, 1]);
    let member = format!("http://one.locks.test:{}", etcd.port());
    assert!(said.stdout.contains(&member), "{}", said.stdout);
}
