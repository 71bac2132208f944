//! Release: only with the tree dead, bounded in time, and never at the cost of the command's own status.

use crate::harness::{Etcd, Meshlock, directory, eventually, meshlock, proc, so, unique};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn a_release_that_etcd_does_not_answer_is_bounded() {
    let etcd = Etcd::shared();
    let name = unique("bounded");
    let proxy = etcd.proxy();
    let mut holder = Meshlock::run_at(proxy.endpoint(), &name)
        .args(["--release-timeout", "0.5", "--ttl", "60"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 7")
        .start();
    holder.wait_for_stdout("held");
    proxy.hold();
    let start = Instant::now();
    holder
        .finish()
        .stdout("held\n")
        .stderr_line([name.as_str(), " s"])
        .status(7);
    assert!(start.elapsed() < Duration::from_secs(30), "half a second was asked for");
}

#[test]
fn a_lost_answer_to_the_release_leaves_no_doubt() {
    // Only the answers are held: the first try has let go, and the second finds that out.
    let etcd = Etcd::shared();
    let name = unique("answer");
    let proxy = etcd.proxy();
    let mut holder = Meshlock::run_at(proxy.endpoint(), &name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 7")
        .start();
    holder.wait_for_stdout("held");
    proxy.hold_down();
    drop(holder.stdin());
    etcd.wait_for_queue(&name, 0);
    proxy.cut();
    proxy.heal();
    holder.finish().stdout("held\n").status(7);
    etcd.assert_clean(&name);
}

/// The only record of a run under that name.
#[track_caller]
fn record(etcd: &Etcd, name: &str) -> Value {
    let keys = etcd.keys(&format!("meshlock/log/{name}/"));
    assert_eq!(keys.len(), 1, "{keys:?}");
    serde_json::from_str(&etcd.get(&keys[0]).expect("a record")).expect("JSON")
}

#[test]
fn an_entry_that_was_taken_in_the_commands_last_moment_is_a_loss() {
    // Nobody can tell whether the command still ran when another could have started: 0 would say that it did not.
    let etcd = Etcd::shared();
    for status in [0, 7] {
        let name = unique("taken");
        let report = directory().join("report");
        let mut holder = Meshlock::run(etcd, &name)
            .args([OsStr::new("--report"), report.as_os_str()])
            .stdin(Stdio::piped())
            .sh(&format!("echo held; read -r _; exit {status}"))
            .start();
        let entry = etcd.wait_for_queue(&name, 1).remove(0);
        holder.wait_for_stdout("held");
        // The release is the first that its keeper hears of.
        let (guardian, keeper) = (holder.pid(), holder.keeper());
        proc::signal(keeper, Signal::SIGSTOP);
        eventually("the keeper is stopped", || so(proc::stat(keeper)?.state == 'T'));
        etcd.del(&entry);
        drop(holder.stdin());
        eventually("the command has ended, and that was said", || {
            so(proc::children(guardian) == [keeper] && proc::stat(guardian)?.state == 'S')
        });
        proc::signal(keeper, Signal::SIGCONT);
        let ended = format!("it exited with {status}");
        holder
            .finish()
            .stdout("held\n")
            .stderr_line([name.as_str(), "lost", "may have gone on without it", &ended])
            .status(79);
        let record = record(etcd, &name);
        assert_eq!((&record["result"], &record["status"]), (&"lost".into(), &status.into()));
        assert!(
            record["why"]
                .as_str()
                .is_some_and(|why| why.contains("before the release")),
            "{record}"
        );
        let report: Value = serde_json::from_str(&meshlock::read(&report)).expect("JSON");
        assert_eq!((&report["outcome"], &report["status"]), (&"lost".into(), &79.into()));
        assert_eq!(report["command"]["exited"], status);
        etcd.assert_clean(&name);
    }
}

#[test]
fn an_entry_that_was_taken_with_all_its_traces_is_a_loss_and_recorded() {
    let etcd = Etcd::shared();
    for keep in ["20", "0"] {
        let name = unique("traceless");
        let mut holder = Meshlock::run(etcd, &name)
            .args(["--keep", keep])
            .stdin(Stdio::piped())
            .sh("echo held; read -r _; exit 0")
            .start();
        let entry = etcd.wait_for_queue(&name, 1).remove(0);
        holder.wait_for_stdout("held");
        let (guardian, keeper) = (holder.pid(), holder.keeper());
        proc::signal(keeper, Signal::SIGSTOP);
        eventually("the keeper is stopped", || so(proc::stat(keeper)?.state == 'T'));
        // In one transaction, as an eager `etcdctl del --prefix` does it.
        let open = entry.replace("/lock/", "/open/");
        etcd.txn(&format!("del {entry}\ndel {open}"));
        drop(holder.stdin());
        eventually("the command has ended, and that was said", || {
            so(proc::children(guardian) == [keeper] && proc::stat(guardian)?.state == 'S')
        });
        proc::signal(keeper, Signal::SIGCONT);
        holder
            .finish()
            .stdout("held\n")
            .stderr_line([name.as_str(), "lost"])
            .status(79);
        if keep == "20" {
            assert_eq!(record(etcd, &name)["result"], "lost");
        }
        etcd.assert_clean(&name);
    }
}

#[test]
fn a_lost_run_is_recorded_though_nothing_of_it_is_left() {
    let etcd = Etcd::start();
    let mut holder = Meshlock::run(&etcd, "swept").sh("echo held; exec sleep 100").start();
    holder.wait_for_stdout("held");
    etcd.etcdctl(&["del", "--prefix", "meshlock/"]);
    holder
        .finish()
        .stdout("held\n")
        .stderr_line(["swept", "lost"])
        .status(79);
    assert_eq!(record(&etcd, "swept")["result"], "lost");
}

#[test]
fn a_release_that_came_through_though_its_answer_was_lost_is_no_loss() {
    let etcd = Etcd::shared();
    for keep in ["20", "0"] {
        let name = unique("answer");
        let proxy = etcd.proxy();
        let mut holder = Meshlock::run_at(proxy.endpoint(), &name)
            .args(["--keep", keep])
            .stdin(Stdio::piped())
            .sh("echo held; read -r _; exit 7")
            .start();
        holder.wait_for_stdout("held");
        proxy.hold_down();
        drop(holder.stdin());
        etcd.wait_for_queue(&name, 0);
        proxy.cut();
        proxy.heal();
        holder.finish().stdout("held\n").status(7);
        if keep == "20" {
            let record = record(etcd, &name);
            assert_eq!((&record["result"], &record["why"]), (&"command".into(), &Value::Null));
        }
        etcd.assert_clean(&name);
    }
}

#[test]
fn a_lease_that_ran_out_after_the_commands_end_is_no_loss() {
    // The outage began with the release: as long as the command ran, the lock could be relied on.
    let etcd = Etcd::shared();
    let name = unique("late");
    let proxy = etcd.proxy();
    let mut holder = Meshlock::run_at(proxy.endpoint(), &name)
        .args(["--ttl", "4", "--release-timeout", "50"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 7")
        .start();
    holder.wait_for_stdout("held");
    proxy.hold();
    drop(holder.stdin());
    etcd.wait_for_queue(&name, 0);
    proxy.cut();
    proxy.heal();
    holder.finish().stdout("held\n").status(7);
    let record = record(etcd, &name);
    assert_eq!((&record["result"], &record["status"]), (&"command".into(), &7.into()));
    etcd.assert_clean(&name);
}

#[test]
fn an_entry_that_was_put_in_the_place_of_ours_is_left_alone() {
    let etcd = Etcd::shared();
    let name = unique("replaced");
    let mut holder = Meshlock::run(etcd, &name).sh("echo held; exec sleep 1000").start();
    let entry = etcd.wait_for_queue(&name, 1).remove(0);
    holder.wait_for_stdout("held");
    // It learns of the one only when the other is there.
    let keeper = holder.keeper();
    proc::signal(keeper, Signal::SIGSTOP);
    etcd.del(&entry);
    etcd.put(&entry, "{}");
    proc::signal(keeper, Signal::SIGCONT);
    holder
        .finish()
        .stdout("held\n")
        .stderr_line([name.as_str(), "lost"])
        .status(79);
    assert_eq!(
        etcd.get(&entry).as_deref(),
        Some("{}"),
        "it is not the one that we held"
    );
    etcd.del(&entry);
    etcd.assert_clean(&name);
}

#[test]
fn an_etcd_without_space_does_not_keep_the_lock() {
    let etcd = Etcd::start_with(&["--quota-backend-bytes=1000000"]);
    let mut holder = Meshlock::run(&etcd, "full")
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 7")
        .start();
    holder.wait_for_stdout("held");
    let filling = "x".repeat(100_000);
    for number in 0..30 {
        let put = etcd
            .etcdctl_command()
            .args(["put", &format!("filling/{number}"), &filling])
            .output()
            .expect("etcdctl");
        if !put.status.success() {
            break;
        }
    }
    assert!(etcd.etcdctl(&["alarm", "list"]).contains("NOSPACE"));
    holder.finish().stdout("held\n").any_stderr().status(7);
    assert_eq!(
        etcd.queue("full"),
        Vec::<String>::new(),
        "the record of the run is what is left out"
    );
    // And nobody is told that the lock is contended.
    Meshlock::run(&etcd, "full")
        .args(["-w", "3", "--dial-timeout", "2"])
        .finish()
        .stderr_line(["space"])
        .status(69);
}

#[test]
fn no_renewal_follows_a_release() {
    // https://github.com/etcd-io/etcd/issues/17470 and https://github.com/redisson/redisson/issues/7272.
    let etcd = Etcd::start();
    let mut holder = Meshlock::run(&etcd, "renewals")
        .args(["--ttl", "4"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let renewals = || etcd.metric("grpc_server_msg_received_total", "grpc_method=\"LeaseKeepAlive\"");
    eventually("a renewal", || so(renewals() > 0.0));
    holder.finish().stdout("held\n").success();
    etcd.assert_no_leases();
    let before = renewals();
    crate::harness::pass(Duration::from_secs(2));
    assert!((renewals() - before).abs() < 0.5);
}

#[test]
fn a_release_that_cannot_reach_etcd_keeps_the_commands_status_and_says_how_long_it_blocks() {
    let mut etcd = Etcd::start();
    let mut holder = Meshlock::run(&etcd, "away")
        .args(["--release-timeout", "0.5"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 7")
        .start();
    holder.wait_for_stdout("held");
    etcd.kill();
    holder.finish().stdout("held\n").stderr_line(["away", " s"]).status(7);
}
