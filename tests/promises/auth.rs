//! etcd's users: passwords and where they come from, certificates that name a user, tokens that do not outlive a hold,
//! rights that are enough and rights that are taken away.

use crate::harness::tls::Authority;
use crate::harness::{Etcd, Meshlock, Observer, directory, eventually, option, refused, secret, so, unique};
use std::process::Stdio;

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
    let file = secret("root\n");
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
