//! How the lock goes from one to the next: in the order of arrival, at once after a clean end, after the
//! TTL where the holder vanished, after the hand-over delay where its lease was taken away.

use crate::harness::{Etcd, Meshlock, Observer, Running, directory, eventually, meshlock, pass, proc, so, unique};
use nix::sys::signal::Signal;
use std::fmt::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A holder that stamps, ignores every polite signal and does not end by itself.
#[track_caller]
fn stubborn(etcd: &Etcd, name: &str, observer: &Observer, ttl: &str) -> Running {
    let running = Meshlock::run(etcd, name)
        .args(["--ttl", ttl])
        .sh(&format!("trap '' TERM INT HUP QUIT; exec {}", observer.script()))
        .start();
    observer.wait_for_holds(1);
    running
}

/// A holder that goes when its standard input ends.
#[track_caller]
fn hold(etcd: &Etcd, name: &str) -> Running {
    let mut running = Meshlock::run(etcd, name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    running.wait_for_stdout("held");
    running
}

fn waiter(etcd: &Etcd, name: &str, observer: &Observer) -> Running {
    Meshlock::run(etcd, name)
        .args(["-q", "--ttl", "4"])
        .command(observer.briefly())
        .start()
}

#[test]
fn eight_waiters_run_one_after_another_in_the_order_of_arrival() {
    // https://github.com/hashicorp/consul/issues/1006 (short jobs were handed on every five seconds) and
    // https://dev.to/kanta13jp1/github-actions-concurrency-trap-cancel-in-progress-false-still-drops-queued-runs-5hg3
    // (six of eight were dropped).
    let etcd = Etcd::shared();
    let name = unique("queue");
    let log = directory().join("log");
    let holder = hold(etcd, &name);
    let mut expected = String::new();
    let mut waiters = Vec::new();
    for place in 1..=8 {
        waiters.push(
            Meshlock::run(etcd, &name)
                .args(["-q"])
                .sh(&format!(
                    "echo start {place} >>{0}; echo end {place} >>{0}",
                    log.display()
                ))
                .start(),
        );
        write!(expected, "start {place}\nend {place}\n").expect("a String");
        etcd.wait_for_queue(&name, place + 1);
    }
    holder.finish().any_stdout().success();
    for waiter in waiters {
        waiter.finish().success();
    }
    assert_eq!(meshlock::read(&log), expected);
    etcd.assert_clean(&name);
}

#[test]
fn a_vanished_holder_is_followed_after_its_ttl() {
    // https://github.com/etcd-io/etcd/issues/8365 (a whole minute after a container was killed) and
    // https://github.com/microsoft/azure-pipelines-terraform/issues/312 (the agent kills without grace).
    let etcd = Etcd::shared();
    let name = unique("vanished");
    let observer = Observer::new();
    let holder = stubborn(etcd, &name, &observer, "4");
    let next = waiter(etcd, &name, &observer);
    etcd.wait_for_queue(&name, 2);
    for pid in holder.processes() {
        proc::signal(pid, Signal::SIGKILL);
    }
    next.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 2);
    etcd.assert_clean(&name);
}

#[test]
fn a_waiter_whose_lease_is_taken_queues_again() {
    // https://github.com/etcd-io/etcd/issues/11456 (it was told "locked" with a dead lease) and
    // https://github.com/etcd-io/etcd/issues/15247 (a stalled leader revoked every lease).
    let etcd = Etcd::shared();
    let name = unique("requeue");
    let log = directory().join("log");
    let holder = hold(etcd, &name);
    let write = |word: &str| {
        Meshlock::run(etcd, &name)
            .args(["-q"])
            .sh(&format!("echo {word} >>{}", log.display()))
            .start()
    };
    let first = write("first");
    let old = etcd.wait_for_queue(&name, 2).remove(1);
    let second = write("second");
    etcd.wait_for_queue(&name, 3);
    etcd.revoke(&old);
    eventually("a new entry, behind the other's", || {
        let queue = etcd.queue(&name);
        so(queue.len() == 3 && !queue.contains(&old))
    });
    holder.finish().any_stdout().success();
    first.finish().success();
    second.finish().success();
    assert_eq!(meshlock::read(&log), "second\nfirst\n");
    etcd.assert_clean(&name);
}

#[test]
fn a_waiter_outlives_its_own_ttl() {
    // https://github.com/etcd-io/etcd/issues/9921: a lease shorter than the wait was long dead at its end.
    let etcd = Etcd::shared();
    let name = unique("patient");
    let holder = hold(etcd, &name);
    let observer = Observer::new();
    let patient = waiter(etcd, &name, &observer);
    let entry = etcd.wait_for_queue(&name, 2).remove(1);
    pass(Duration::from_secs(6));
    assert_eq!(etcd.queue(&name)[1], entry);
    holder.finish().any_stdout().success();
    patient.finish().success();
}

#[test]
fn a_waiter_that_is_told_to_end_leaves_the_queue_and_dies_of_the_signal() {
    // https://github.com/hashicorp/consul/issues/4439 (Ctrl-C did nothing to a waiter) and
    // https://github.com/abatilo/github-action-locks/issues/10 (a cancelled waiter freed the holder's lock).
    let etcd = Etcd::shared();
    let name = unique("cancelled");
    let holder = hold(etcd, &name);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        // Under nohup(1) the tests would hand an ignored SIGHUP on.
        let by = ["env", "--default-signal=HUP"];
        let waiter = Meshlock::run(etcd, &name).args(["-q"]).by(by).start();
        etcd.wait_for_queue(&name, 2);
        waiter.signal(signal);
        waiter.finish().signaled(signal);
        assert_eq!(etcd.queue(&name).len(), 1, "{signal}: only the holder is left");
    }
    holder.finish().any_stdout().success();
    etcd.assert_clean(&name);
}

#[test]
fn a_killed_waiter_holds_up_nobody_beyond_its_ttl() {
    let etcd = Etcd::shared();
    let name = unique("killed");
    let observer = Observer::new();
    let holder = hold(etcd, &name);
    let killed = waiter(etcd, &name, &observer);
    etcd.wait_for_queue(&name, 2);
    let last = waiter(etcd, &name, &observer);
    etcd.wait_for_queue(&name, 3);
    for pid in killed.processes() {
        proc::signal(pid, Signal::SIGKILL);
    }
    holder.finish().any_stdout().success();
    last.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 1);
    etcd.assert_clean(&name);
}

#[test]
fn a_killed_waiter_in_the_middle_does_not_let_the_next_pass_the_holder() {
    // The predecessor's departure makes nobody a holder: somebody older may be there still.
    let etcd = Etcd::shared();
    let name = unique("middle");
    let observer = Observer::new();
    let holder = stubborn(etcd, &name, &observer, "10");
    let middle = waiter(etcd, &name, &observer);
    let entry = etcd.wait_for_queue(&name, 2).remove(1);
    let last = waiter(etcd, &name, &observer);
    etcd.wait_for_queue(&name, 3);
    for pid in middle.processes() {
        proc::signal(pid, Signal::SIGKILL);
    }
    etcd.revoke(&entry);
    etcd.wait_for_queue(&name, 2);
    assert_eq!(observer.holds().len(), 1);
    holder.signal(Signal::SIGKILL);
    last.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 2);
}

#[test]
fn after_an_early_revocation_the_waiter_meets_no_living_tree() {
    // https://github.com/hashicorp/consul/issues/9788 and https://github.com/etcd-io/etcd/issues/10811.
    let etcd = Etcd::shared();
    let name = unique("revoked");
    let observer = Observer::new();
    let holder = stubborn(etcd, &name, &observer, "10");
    let next = waiter(etcd, &name, &observer);
    let entry = etcd.wait_for_queue(&name, 2).remove(0);
    etcd.revoke(&entry);
    holder.finish().stderr_line([name.as_str(), "lost"]).status(79);
    next.finish().success();
    let holds = observer.assert_no_overlap();
    assert_eq!(holds.len(), 2);
    let tokens: Vec<i64> = holds.iter().map(|hold| hold.id.parse().expect("a token")).collect();
    assert!(tokens[0] < tokens[1], "the fencing token rises");
    etcd.assert_clean(&name);
}

#[test]
fn after_an_early_revocation_a_newcomer_to_the_empty_queue_meets_no_living_tree() {
    let etcd = Etcd::shared();
    for option in ["--no-wait", "--wait=30"] {
        let name = unique("newcomer");
        let observer = Observer::new();
        let holder = stubborn(etcd, &name, &observer, "10");
        let entry = etcd.wait_for_queue(&name, 1).remove(0);
        etcd.revoke(&entry);
        eventually("a newcomer gets the lock", || {
            let newcomer = Meshlock::run(etcd, &name)
                .args(["-q", option])
                .command(observer.briefly())
                .start();
            let code = newcomer.code();
            assert!(matches!(code, Some(0 | 75)), "{option}: {code:?}");
            so(code == Some(0))
        });
        holder.finish().stderr_line([name.as_str(), "lost"]).status(79);
        assert_eq!(observer.assert_no_overlap().len(), 2, "{option}");
        etcd.assert_clean(&name);
    }
}

#[test]
fn after_an_early_revocation_of_a_stopped_guardian_nobody_meets_a_living_tree() {
    let etcd = Etcd::shared();
    let name = unique("stopped");
    let observer = Observer::new();
    let holder = stubborn(etcd, &name, &observer, "10");
    let next = waiter(etcd, &name, &observer);
    let entry = etcd.wait_for_queue(&name, 2).remove(0);
    holder.signal(Signal::SIGSTOP);
    eventually("the guardian is stopped", || so(proc::stat(holder.pid())?.state == 'T'));
    etcd.revoke(&entry);
    next.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 2);
    holder.finish().stderr_line([name.as_str(), "lost"]).status(79);
}

#[test]
fn an_open_record_without_its_entry_delays_a_start_by_a_tenth_of_its_ttl() {
    let etcd = Etcd::shared();
    for (option, ttl, delay) in [("-w30", 20_000, 2_000), ("-w30", 4_000, 1_000)] {
        let name = unique("open");
        let record = format!(
            r#"{{"format":1,"ttl_ms":{ttl},"host":"gone","user":"u","pid":1,"program":"p","started":"2026-01-01T00:00:00Z"}}"#
        );
        etcd.put(&format!("meshlock/open/{name}/1f"), &record);
        // Without an upper bound: a machine that is busy with something else takes its time.
        let start = Instant::now();
        Meshlock::run(etcd, &name)
            .args(["-q", option])
            .sh("echo mine")
            .finish()
            .stdout("mine\n")
            .success();
        assert!(start.elapsed() >= Duration::from_millis(delay), "{:?}", start.elapsed());
        etcd.assert_clean(&name);
    }
}

/// Nobody is waited for beside an unclean departure, so no limit on waiting ends the delay: a job that is
/// started with `-n` alone would otherwise find its lock shut for ever.
#[test]
fn the_handover_delay_is_sat_out_however_short_the_wait() {
    let etcd = Etcd::shared();
    for wait in [["-n", "-q"], ["--wait=0.5", "-q"]] {
        let name = unique("open");
        let record = r#"{"format":1,"ttl_ms":20000,"host":"gone","user":"u","pid":1,"program":"p","started":"2026-01-01T00:00:00Z"}"#;
        etcd.put(&format!("meshlock/open/{name}/1f"), record);
        let start = Instant::now();
        Meshlock::run(etcd, &name).args(wait).finish().success();
        assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
        etcd.assert_clean(&name);
    }
}

#[test]
fn an_open_record_that_nobody_can_read_delays_as_the_longest_ttl_does() {
    // A later version's: what is not understood must not be passed over.
    let etcd = Etcd::shared();
    let name = unique("open");
    etcd.put(&format!("meshlock/open/{name}/1f"), "what?");
    let mut waiting = Meshlock::run(etcd, &name).start();
    waiting.wait_for_stderr("waiting 30.0 s");
    waiting.signal(Signal::SIGTERM);
    waiting.finish().any_stderr().signaled(Signal::SIGTERM);
}

#[test]
fn a_slow_command_is_not_followed_before_its_end() {
    // https://github.com/hashicorp/consul/issues/797: TERM let the wrapper go and the program stay.
    let etcd = Etcd::shared();
    let name = unique("slow");
    let observer = Observer::new();
    let mut holder = Meshlock::run(etcd, &name)
        .stdin(Stdio::piped())
        .sh(&format!(
            "(trap '' TERM; exec {}) & trap 'echo term' TERM; echo $$; while ! read -r _; do :; done; kill -9 $!; exit 3",
            observer.script()
        ))
        .start();
    observer.wait_for_holds(1);
    let next = waiter(etcd, &name, &observer);
    etcd.wait_for_queue(&name, 2);
    holder.wait_for_stdout("\n");
    holder.signal(Signal::SIGTERM);
    holder.wait_for_stdout("term");
    assert_eq!(
        etcd.queue(&name).len(),
        2,
        "the lock is held while the command cleans up"
    );
    {
        use std::io::Write as _;
        holder.stdin().write_all(b"\n").expect("it reads");
    }
    holder.finish().any_stdout().status(3);
    next.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 2);
}

#[test]
fn every_hold_has_a_higher_token_than_the_one_before() {
    let etcd = Etcd::shared();
    let name = unique("token");
    let log = directory().join("log");
    let calls: Vec<Running> = (0..12)
        .map(|_| {
            Meshlock::run(etcd, &name)
                .args(["-q"])
                .sh(&format!("echo $MESHLOCK_HELD_TOKEN >>{}", log.display()))
                .start()
        })
        .collect();
    for call in calls {
        call.finish().success();
    }
    let tokens: Vec<i64> = meshlock::read(&log)
        .lines()
        .map(|token| token.parse().expect("a number"))
        .collect();
    assert_eq!(tokens.len(), 12);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}
