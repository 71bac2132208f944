//! Reaching etcd, and failing to: each way is told from the others, in one line that names the endpoint and
//! the cause, within `--dial-timeout`; nothing is run.

use crate::harness::etcd::{ServerTls, free_port};
use crate::harness::proxy::black_hole;
use crate::harness::tls::{self, Authority};
use crate::harness::{Etcd, Finished, Meshlock, Observer, Proxy, directory, pass, unique};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// A server with TLS that asks its clients for certificates of the same authority, or does not.
fn secure(authority: &Authority, clients: bool) -> Etcd {
    let server = authority.issue("server");
    let ca = authority.cert();
    let mut etcd = Etcd::start_tls(&ServerTls {
        cert: &server.cert,
        key: &server.key,
        clients: clients.then_some(ca.as_path()),
    });
    let mut access = vec![option("--cacert", &ca)];
    if clients {
        let client = authority.issue("etcdctl");
        access.extend([option("--cert", &client.cert), option("--key", &client.key)]);
    }
    etcd.access(&access);
    etcd
}

/// A call that must not get as far as running anything.
#[track_caller]
fn refused(run: Meshlock, status: i32, parts: &[&str]) {
    let ran = directory().join("ran");
    run.command(["touch".into(), ran.clone().into_os_string()])
        .finish()
        .stderr_line(parts)
        .status(status);
    assert!(!ran.exists());
}

#[test]
fn tls_works_with_the_servers_ca_and_a_clients_certificate() {
    let authority = Authority::new();
    let etcd = secure(&authority, true);
    let client = authority.issue("client");
    let files = [
        option("--cacert", &authority.cert()),
        option("--cert", &client.cert),
        option("--key", &client.key),
    ];
    Meshlock::run(&etcd, "tls").args(&files).finish().success();
    // Without a scheme TLS files mean TLS.
    Meshlock::run_at(etcd.address(), "tls").args(&files).finish().success();
    // And etcdctl's variables are understood as etcdctl does.
    Meshlock::run_at(etcd.endpoint(), "tls")
        .env("ETCDCTL_CACERT", authority.cert())
        .env("ETCDCTL_CERT", &client.cert)
        .env("ETCDCTL_KEY", &client.key)
        .finish()
        .success();
    etcd.assert_clean("tls");
    assert_eq!(etcd.keys("meshlock/log/tls/").len(), 3);
}

#[test]
fn a_relative_file_is_found_from_where_the_user_is() {
    let authority = Authority::new();
    let etcd = secure(&authority, false);
    let ca = authority.cert();
    Meshlock::run(&etcd, "tls")
        .current_dir(ca.parent().expect("a directory"))
        .args(["--cacert", "ca.pem"])
        .finish()
        .success();
}

#[test]
fn a_server_that_cannot_be_trusted_is_not_talked_to() {
    let authority = Authority::new();
    let etcd = secure(&authority, false);
    let other = Authority::new().cert();
    refused(
        Meshlock::run(&etcd, "tls").args([option("--cacert", &other)]),
        78,
        &[&etcd.address(), "certificate"],
    );
    // The system's authorities do not know it either.
    refused(Meshlock::run(&etcd, "tls"), 78, &[&etcd.address(), "certificate"]);
}

#[test]
fn a_certificate_for_another_host_is_not_accepted() {
    let authority = Authority::new();
    let server = authority.issue_for("elsewhere", "DNS:elsewhere.example");
    let etcd = Etcd::start_tls(&ServerTls {
        cert: &server.cert,
        key: &server.key,
        clients: None,
    });
    refused(
        Meshlock::run(&etcd, "tls").args([option("--cacert", &authority.cert())]),
        78,
        &[&etcd.address(), "certificate"],
    );
}

#[test]
fn a_missing_client_certificate_is_a_denial() {
    let authority = Authority::new();
    let etcd = secure(&authority, true);
    refused(
        Meshlock::run(&etcd, "tls").args([option("--cacert", &authority.cert())]),
        77,
        &[&etcd.address(), "certificate"],
    );
    let stranger = Authority::new().issue("stranger");
    refused(
        Meshlock::run(&etcd, "tls").args([
            option("--cacert", &authority.cert()),
            option("--cert", &stranger.cert),
            option("--key", &stranger.key),
        ]),
        77,
        &[&etcd.address(), "certificate"],
    );
}

#[test]
fn tls_to_a_plain_port_and_plain_to_a_tls_port_are_told() {
    let etcd = Etcd::shared();
    refused(
        Meshlock::run_at(format!("https://{}", etcd.address()), unique("tls")),
        78,
        &[&etcd.address(), "TLS"],
    );
    let authority = Authority::new();
    let etcd = secure(&authority, false);
    // The server hangs up without a word: that TLS is the cause can only be guessed, and is.
    let said = bounded(Meshlock::run_at(format!("http://{}", etcd.address()), unique("tls")))
        .any_stderr()
        .any_code([69, 78]);
    assert!(
        said.stderr.contains(&etcd.address()) && said.stderr.contains("https"),
        "{}",
        said.stderr
    );
}

#[test]
fn a_waiter_sits_out_a_proxy_that_hangs_up_on_tls() {
    let authority = Authority::new();
    let etcd = secure(&authority, false);
    let cacert = option("--cacert", &authority.cert());
    let mut holder = Meshlock::run(&etcd, "proxied")
        .args([&cacert])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let port = etcd.address().rsplit(':').next().and_then(|port| port.parse().ok());
    let proxy = Proxy::to(port.expect("a port"));
    let endpoint = proxy.endpoint().replace("http:", "https:");
    let mut waiter = Meshlock::run_at(endpoint, "proxied").args([&cacert]).start();
    waiter.wait_for_stderr("held by");
    proxy.hang_up();
    waiter.wait_for_stderr("trying again");
    // A waiter looks at the queue each 10 s.
    pass(Duration::from_secs(11));
    proxy.heal();
    waiter.wait_for_stderr("answers again");
    holder.finish().stdout("held\n").success();
    waiter.finish().any_stderr().success();
}

#[test]
fn tls_files_are_checked_before_anything_connects() {
    let authority = Authority::new();
    let (client, another) = (authority.issue("client"), authority.issue("another"));
    let files = directory();
    let empty = files.join("empty");
    std::fs::write(&empty, "").expect("a file");
    let ca = authority.cert();
    let missing = files.join("missing");
    let (der, encrypted) = (tls::der(&ca), tls::encrypted(&client.key));
    // Found out later than the others, where the files' names are no longer known.
    let key_option = PathBuf::from("--key");
    let cases: Vec<(Vec<String>, &Path)> = vec![
        (vec![option("--cacert", &missing)], &missing),
        (vec![option("--cacert", &empty)], &empty),
        (vec![option("--cacert", &files)], &files),
        (vec![option("--cacert", &der)], &der),
        (vec![option("--cacert", &client.key)], &client.key),
        (
            vec![option("--cert", &client.cert), option("--key", &encrypted)],
            &encrypted,
        ),
        (
            vec![option("--cert", &client.cert), option("--key", &client.cert)],
            &client.cert,
        ),
        (
            vec![option("--cert", &client.cert), option("--key", &missing)],
            &missing,
        ),
        (
            vec![option("--cert", &client.cert), option("--key", &another.key)],
            &key_option,
        ),
    ];
    // Nobody is there to connect to.
    let nobody = format!("https://127.0.0.1:{}", free_port());
    for (options, named) in cases {
        refused(
            Meshlock::run_at(&nobody, "tls").args(&options),
            78,
            &[&named.display().to_string()],
        );
    }
    for (half, other) in [("--cert", "key"), ("--key", "cert")] {
        refused(
            Meshlock::run_at(&nobody, "tls")
                .args([option(half, if half == "--cert" { &client.cert } else { &client.key })]),
            78,
            &[other],
        );
    }
}

#[test]
fn a_wrong_password_and_a_missing_one_are_denials() {
    let mut etcd = Etcd::start();
    etcd.enable_auth();
    let before = etcd.revision();
    refused(
        Meshlock::run(&etcd, "auth").args(["--user", "root:wrong"]),
        77,
        &["root"],
    );
    refused(
        Meshlock::run(&etcd, "auth").args(["--user", "nobody:root"]),
        77,
        &["nobody"],
    );
    refused(Meshlock::run(&etcd, "auth"), 77, &["user"]);
    assert_eq!(etcd.revision(), before);
    let file = directory().join("password");
    std::fs::write(&file, "root\n").expect("a file");
    Meshlock::run(&etcd, "auth")
        .args(["--user=root".to_owned(), option("--password-file", &file)])
        .finish()
        .success();
    Meshlock::run(&etcd, "auth")
        .env("MESHLOCK_USER", "root:root")
        .sh(r#"echo "${MESHLOCK_USER-none}" "${MESHLOCK_PASSWORD-none}""#)
        .finish()
        .stdout("root none\n")
        .success();
    Meshlock::run(&etcd, "auth")
        .env("MESHLOCK_USER", "root")
        .env("MESHLOCK_PASSWORD", "root")
        .sh(r#"echo "$MESHLOCK_USER" "${MESHLOCK_PASSWORD-none}""#)
        .finish()
        .stdout("root none\n")
        .success();
    etcd.assert_clean("auth");
}

#[test]
fn a_user_where_etcd_knows_no_users_is_told() {
    refused(
        Meshlock::run(Etcd::shared(), unique("auth")).args(["--user", "root:root"]),
        78,
        &["auth"],
    );
}

#[test]
fn a_right_to_the_prefix_alone_is_enough() {
    // https://github.com/etcd-io/etcd/issues/10544: nobody could say which rights a role needs.
    let mut etcd = Etcd::start();
    etcd.etcdctl(&["role", "add", "locks"]);
    etcd.etcdctl(&[
        "role",
        "grant-permission",
        "--prefix=true",
        "locks",
        "readwrite",
        "meshlock/",
    ]);
    etcd.etcdctl(&["user", "add", "job:secret"]);
    etcd.etcdctl(&["user", "grant-role", "job", "locks"]);
    etcd.enable_auth();
    let user = ["--user", "job:secret"];
    let mut holder = Meshlock::run(&etcd, "rights")
        .args(user)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    Meshlock::run(&etcd, "rights")
        .args(user)
        .args(["-q", "-n"])
        .finish()
        .status(75);
    let waiter = Meshlock::run(&etcd, "rights").args(user).args(["-q"]).start();
    etcd.wait_for_queue("rights", 2);
    holder.finish().stdout("held\n").success();
    waiter.finish().success();
    etcd.assert_clean("rights");
    refused(
        Meshlock::run(&etcd, "rights").args(user).args(["--prefix", "other/"]),
        77,
        &["job", "other/"],
    );
}

#[test]
fn a_token_that_expires_during_the_hold_is_renewed() {
    // https://github.com/kragniz/python-etcd3/issues/2301 and https://github.com/apibara/dna/pull/399: the release
    // of a long hold failed.
    let mut etcd = Etcd::start_with(&["--auth-token-ttl=3"]);
    etcd.enable_auth();
    let observer = Observer::new();
    Meshlock::run(&etcd, "token")
        .args(["--user", "root:root", "--ttl", "30"])
        .sh(&format!("{} 8000", observer.script()))
        .finish()
        .success();
    etcd.assert_clean("token");
    etcd.assert_no_leases();
}

#[test]
fn rights_that_are_taken_away_during_a_hold_end_it() {
    // https://github.com/kubernetes/kubernetes/issues/23731: authentication refused is one of the ways.
    let mut etcd = Etcd::start();
    etcd.etcdctl(&["role", "add", "locks"]);
    etcd.etcdctl(&[
        "role",
        "grant-permission",
        "--prefix=true",
        "locks",
        "readwrite",
        "meshlock/",
    ]);
    etcd.etcdctl(&["user", "add", "job:secret"]);
    etcd.etcdctl(&["user", "grant-role", "job", "locks"]);
    etcd.enable_auth();
    let mut holder = Meshlock::run(&etcd, "rights")
        .args(["--user", "job:secret", "--ttl", "5"])
        .sh("echo held; exec sleep 1000")
        .start();
    holder.wait_for_stdout("held");
    etcd.etcdctl(&["user", "revoke-role", "job", "locks"]);
    let said = holder.finish().stdout("held\n").any_stderr().status(79);
    assert!(
        said.stderr.contains("permission"),
        "the cause is named: {}",
        said.stderr
    );
}

/// Ends within the time to connect that was given; told with much patience for a slow machine.
#[track_caller]
fn bounded(run: Meshlock) -> Finished {
    let start = Instant::now();
    let finished = run.args(["--dial-timeout", "1"]).finish();
    assert!(start.elapsed() < Duration::from_secs(20), "one second was asked for");
    finished
}

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
