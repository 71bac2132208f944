//! meshlock excludes, and is excluded by, `etcdctl lock` on the same key.

use crate::harness::{Etcd, Meshlock, Observer, directory, eventually, meshlock, proc, so, unique};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Stdio};

/// Has etcdctl run a script under the lock.
fn etcdctl(etcd: &Etcd, key: &str, script: &str) -> Child {
    etcd.etcdctl_command()
        .args(["lock", key, "--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcdctl")
}

fn until_there(file: &Path) -> String {
    format!("while [ ! -e {} ]; do sleep 0.01; done", file.display())
}

fn wait_for_entries(etcd: &Etcd, key: &str, count: usize) {
    eventually("the entries of the queue", || {
        so(etcd.keys(&format!("{key}/")).len() == count)
    });
}

#[test]
fn meshlock_waits_for_etcdctl() {
    let etcd = Etcd::shared();
    let key = unique("jobs/deploy");
    let go = directory().join("go");
    let mut other = etcdctl(etcd, &key, &until_there(&go));
    wait_for_entries(etcd, &key, 1);
    Meshlock::run(etcd, "deploy")
        .args(["--lock-key", &key, "-n"])
        .finish()
        .stderr_line(["unknown (not meshlock)"])
        .status(75);
    let mut waiter = Meshlock::run(etcd, "deploy")
        .args(["--lock-key", &key])
        .sh("echo mine")
        .start();
    waiter.wait_for_stderr("unknown (not meshlock)");
    wait_for_entries(etcd, &key, 2);
    assert_eq!(waiter.stdout(), "");
    std::fs::write(&go, "").expect("a file");
    assert!(other.wait().expect("etcdctl").success());
    waiter.finish().stdout("mine\n").any_stderr().success();
    assert_eq!(etcd.keys(&format!("{key}/")), Vec::<String>::new());
}

#[test]
fn etcdctl_waits_for_meshlock() {
    let etcd = Etcd::shared();
    let key = unique("jobs/deploy");
    let ran = directory().join("ran");
    let mut holder = Meshlock::run(etcd, "deploy")
        .args(["--lock-key", &key])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let mut other = etcdctl(etcd, &key, &format!("touch {}", ran.display()));
    wait_for_entries(etcd, &key, 2);
    assert!(!ran.exists());
    holder.finish().stdout("held\n").success();
    assert!(other.wait().expect("etcdctl").success());
    assert!(ran.exists());
}

#[test]
fn a_name_without_slashes_is_the_same_lock_for_both() {
    let etcd = Etcd::shared();
    let name = unique("shared");
    let mut holder = Meshlock::run(etcd, &name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let mut other = etcdctl(etcd, &format!("meshlock/lock/{name}"), "true");
    etcd.wait_for_queue(&name, 2);
    assert!(other.try_wait().expect("etcdctl").is_none());
    holder.finish().stdout("held\n").success();
    assert!(other.wait().expect("etcdctl").success());
}

#[test]
fn a_mixed_queue_keeps_the_order_of_arrival() {
    let etcd = Etcd::shared();
    let key = unique("jobs/mixed");
    let (go, log) = (directory().join("go"), directory().join("log"));
    let observer = Observer::new();
    let beat = format!("{} 30", observer.script());
    let mut first = etcdctl(etcd, &key, &until_there(&go));
    wait_for_entries(etcd, &key, 1);
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    let mut expected = String::new();
    for place in 1..=8 {
        let script = format!(
            "echo start {place} >>{0}; {beat}; echo end {place} >>{0}",
            log.display()
        );
        if place % 3 == 0 {
            theirs.push(etcdctl(etcd, &key, &script));
        } else {
            ours.push(
                Meshlock::run(etcd, "mixed")
                    .args(["-q", "--lock-key", &key])
                    .sh(&script)
                    .start(),
            );
        }
        write!(expected, "start {place}\nend {place}\n").expect("a String");
        wait_for_entries(etcd, &key, place + 1);
    }
    std::fs::write(&go, "").expect("a file");
    assert!(first.wait().expect("etcdctl").success());
    for ours in ours {
        ours.finish().success();
    }
    for mut theirs in theirs {
        assert!(theirs.wait().expect("etcdctl").success());
    }
    assert_eq!(meshlock::read(&log), expected);
    assert_eq!(observer.assert_no_overlap().len(), 8);
}

#[test]
fn a_killed_etcdctl_is_followed_after_its_lease() {
    let etcd = Etcd::shared();
    let key = unique("jobs/killed");
    let mut other = etcd
        .etcdctl_command()
        .args(["lock", "--ttl=2", &key])
        .stdout(Stdio::null())
        .spawn()
        .expect("etcdctl");
    wait_for_entries(etcd, &key, 1);
    let waiter = Meshlock::run(etcd, "killed").args(["-q", "--lock-key", &key]).start();
    wait_for_entries(etcd, &key, 2);
    proc::signal(other.id().cast_signed(), nix::sys::signal::Signal::SIGKILL);
    other.wait().expect("etcdctl");
    waiter.finish().success();
}
