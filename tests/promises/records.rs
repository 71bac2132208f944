//! What is written to etcd: the records' format, which later versions have to live with, and their bound.

use crate::harness::etcd::lease_of;
use crate::harness::{Etcd, Meshlock, Running, eventually, proc, schema, so, unique};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::Stdio;

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn records(etcd: &Etcd, name: &str) -> Vec<(String, Value)> {
    etcd.keys(&format!("meshlock/log/{name}/"))
        .into_iter()
        .map(|key| {
            let value = parse(&etcd.get(&key).expect("a record"));
            (key, value)
        })
        .collect()
}

/// RFC 3339 in UTC; fractions may be there.
fn is_time(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| text.len() >= 20 && text.as_bytes()[10] == b'T' && text.ends_with('Z'))
}

#[test]
fn the_queue_entry_says_who_holds() {
    let etcd = Etcd::shared();
    let name = unique("entry");
    let mut running = Meshlock::run(etcd, &name)
        .args(["--owner", "team-invoices", "--reason", "month \"end\""])
        .stdin(Stdio::piped())
        .sh("echo held; read -r secret; exit 0")
        .start();
    running.wait_for_stdout("held");
    let key = etcd.wait_for_queue(&name, 1).remove(0);
    let text = etcd.get(&key).expect("an entry");
    let entry = parse(&text);
    assert_eq!(entry["format"], 1);
    assert_eq!(
        entry["host"].as_str(),
        nix::unistd::gethostname().expect("a name").to_str()
    );
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).expect("users");
    let user = user.map_or_else(|| nix::unistd::getuid().to_string(), |user| user.name);
    assert_eq!(entry["user"], user);
    assert_eq!(entry["pid"], running.pid());
    assert_eq!(entry["program"], "sh");
    assert_eq!(entry["owner"], "team-invoices");
    assert_eq!(entry["reason"], "month \"end\"");
    assert!(is_time(&entry["started"]), "{entry}");
    assert!(!text.contains("secret"), "arguments can hold secrets: {text}");
    // The open record lies beside it, outlives its lease and says for how long to be careful.
    let open = parse(
        &etcd
            .get(&format!("meshlock/open/{name}/{}", lease_of(&key)))
            .expect("an open record"),
    );
    assert_eq!(open["format"], 1);
    assert_eq!(open["ttl_ms"], 30_000);
    let lease = etcd.json(&["lease", "timetolive", "--keys", lease_of(&key)]);
    assert_eq!(lease["granted-ttl"], 30);
    assert_eq!(
        lease["keys"].as_array().map(Vec::len),
        Some(1),
        "the entry alone is bound to the lease"
    );
    running.finish().stdout("held\n").success();
}

#[test]
fn the_run_record_says_how_it_ended() {
    let etcd = Etcd::shared();
    let name = unique("record");
    for (script, result, status) in [
        ("exit 0", "command", 0),
        ("exit 37", "command", 37),
        ("kill -9 $$", "signal", 137),
    ] {
        let before = records(etcd, &name).len();
        let finished = Meshlock::run(etcd, &name).args(["--reason", "why"]).sh(script).finish();
        if result == "signal" {
            finished.signaled(Signal::SIGKILL);
        } else {
            finished.status(status);
        }
        let records = records(etcd, &name);
        assert_eq!(records.len(), before + 1);
        let (key, record) = records.last().expect("a record");
        assert_eq!(record["format"], 1);
        assert_eq!(record["result"], result, "{record}");
        assert_eq!(record["status"], status);
        assert_eq!(record["program"], "sh");
        assert_eq!(record["reason"], "why");
        assert!(
            ["started", "acquired", "ended"]
                .iter()
                .all(|time| is_time(&record[time])),
            "{record}"
        );
        let token = record["token"].as_i64().expect("a token");
        assert!(
            key.ends_with(&format!("{token:016x}")),
            "records sort by their tokens: {key}"
        );
        assert!(
            !record.to_string().contains("exit") && !record.to_string().contains("kill"),
            "no arguments"
        );
    }
}

#[test]
fn runs_that_were_stopped_are_recorded_too() {
    let etcd = Etcd::shared();
    let name = unique("record");
    Meshlock::run(etcd, &name)
        .args(["--max-runtime", "0.1"])
        .command(["sleep", "1000"])
        .finish()
        .any_stderr()
        .status(124);
    assert_eq!(records(etcd, &name)[0].1["result"], "overrun");
}

#[test]
fn the_record_of_a_run_that_was_broken_says_by_whom_and_why() {
    let etcd = Etcd::shared();
    for kind in ["break", "make-way"] {
        let name = unique("broken");
        let mut running = Meshlock::run(etcd, &name)
            .args(["--reason", "month end"])
            .sh("echo held; exec sleep 1000")
            .start();
        running.wait_for_stdout("held");
        let entry = etcd.wait_for_queue(&name, 1).remove(0);
        let token = etcd.created(&entry);
        // However much somebody writes, the record says it in part.
        let reason = format!("wrong month {}", "x".repeat(5000));
        etcd.put(
            &format!("meshlock/ask/{name}/{}", lease_of(&entry)),
            &format!(r#"{{"format":1,"kind":"{kind}","token":{token},"by":"anna@ops","reason":"{reason}"}}"#),
        );
        running.finish().any_stdout().any_stderr().status(80);
        let record = &records(etcd, &name)[0].1;
        assert_eq!(
            (&record["result"], &record["reason"]),
            (&"superseded".into(), &"month end".into())
        );
        assert_eq!(record["why"], "it was asked to stop");
        let asked = &record["asked"];
        assert_eq!((&asked["kind"], &asked["by"]), (&kind.into(), &"anna@ops".into()));
        assert!(
            asked["reason"].as_str().is_some_and(|said| reason.starts_with(said)),
            "{record}"
        );
        let table = Meshlock::ask(etcd, "history")
            .args([&name])
            .finish()
            .any_stdout()
            .success()
            .stdout;
        assert!(table.contains(&format!("{kind} by anna@ops: wrong month")), "{table}");
        let said = Meshlock::ask(etcd, "status")
            .args([&name])
            .finish()
            .any_stdout()
            .success()
            .stdout;
        assert!(
            said.contains(&format!("  why       {kind} by anna@ops: wrong month")),
            "{said}"
        );
        let json = Meshlock::ask(etcd, "history")
            .args(["--json", &name])
            .finish()
            .any_stdout()
            .success()
            .stdout;
        let json = parse(&json);
        schema::assert_valid("history.schema.json", &json);
        assert_eq!(json["runs"][0]["asked"]["by"], "anna@ops");
    }
}

#[test]
fn the_record_of_a_lost_run_says_why() {
    let mut etcd = Etcd::start();
    let lost = |running: Running| running.finish().any_stdout().any_stderr().status(79);
    let hold = |etcd: &Etcd, name: &str| {
        let mut running = Meshlock::run(etcd, name)
            .args(["--ttl", "4", "--release-timeout", "50"])
            .sh("echo held; exec sleep 1000")
            .start();
        running.wait_for_stdout("held");
        running
    };
    let deleted = hold(&etcd, "deleted");
    etcd.del(&etcd.wait_for_queue("deleted", 1)[0]);
    lost(deleted);
    let silent = hold(&etcd, "silent");
    etcd.kill();
    // The command's end, by which the release has begun.
    eventually("the command is dead", || so(proc::children(silent.pid()).len() == 1));
    etcd.restart();
    lost(silent);
    for (name, why) in [("deleted", "deleted"), ("silent", "it could not be renewed in time")] {
        let record = &records(&etcd, name)[0].1;
        assert_eq!(record["result"], "lost");
        assert!(
            record["why"].as_str().is_some_and(|said| said.contains(why)),
            "{record}"
        );
    }
}

#[test]
fn only_so_many_records_are_kept() {
    let etcd = Etcd::shared();
    let name = unique("keep");
    for status in 0..6 {
        Meshlock::run(etcd, &name)
            .args(["--keep", "3"])
            .sh(&format!("exit {status}"))
            .finish()
            .status(status);
    }
    assert_eq!(statuses(etcd, &name), [3, 4, 5]);
    Meshlock::run(etcd, &name).args(["--keep", "0"]).finish().success();
    assert_eq!(records(etcd, &name).len(), 0);
}

fn statuses(etcd: &Etcd, name: &str) -> Vec<i64> {
    let status = |record: &Value| record["status"].as_i64().expect("a status");
    records(etcd, name).iter().map(|(_, record)| status(record)).collect()
}

/// Runs that ended with these statuses.
fn ran(etcd: &Etcd, name: &str, keep: usize, statuses: [i32; 3]) {
    for status in statuses {
        Meshlock::run(etcd, name)
            .args([format!("--keep={keep}")])
            .sh(&format!("exit {status}"))
            .finish()
            .status(status);
    }
}

/// The next in the queue, which ends with this status as soon as its standard input does.
fn queued(etcd: &Etcd, name: &str, keep: usize, status: i32) -> Running {
    let before = etcd.queue(name).len();
    let running = Meshlock::run(etcd, name)
        .args(["-q", "--ttl=300", &format!("--keep={keep}")])
        .stdin(Stdio::piped())
        .sh(&format!("echo held; read -r _; exit {status}"))
        .start();
    etcd.wait_for_queue(name, before + 1);
    running
}

/// Until etcd was asked for so many transactions since: a waiter's looks are among them.
fn asked(etcd: &Etcd, before: u32, transactions: u32) {
    eventually("so many transactions", || {
        so(etcd.requests()["Txn"] >= before + transactions)
    });
}

#[test]
fn a_queue_leaves_just_so_many_records() {
    let etcd = Etcd::shared();
    for keep in [0, 1, 2, 3] {
        let name = unique("keep");
        let queue = [1, 2, 3, 4, 5, 6].map(|status| queued(etcd, &name, keep, status));
        let mut ended: Vec<i64> = Vec::new();
        for (mut running, status) in queue.into_iter().zip(1..) {
            running.wait_for_stdout("held");
            running.finish().any_stdout().status(status);
            ended.push(status.into());
            let left = &ended[ended.len().saturating_sub(keep)..];
            assert_eq!(statuses(etcd, &name), left, "of {keep}");
        }
    }
}

#[test]
fn a_run_after_one_that_keeps_fewer_records_leaves_what_that_one_left_and_its_own() {
    let etcd = Etcd::shared();
    for (others, left) in [(0, vec![9]), (1, vec![7, 9]), (2, vec![6, 7, 9]), (5, vec![6, 7, 9])] {
        let name = unique("keep");
        ran(etcd, &name, 3, [3, 4, 5]);
        let queue = [(6, 3), (7, others), (9, 3)].map(|(status, keep)| queued(etcd, &name, keep, status));
        for (mut running, status) in queue.into_iter().zip([6, 7, 9]) {
            running.wait_for_stdout("held");
            running.finish().any_stdout().status(status);
        }
        assert_eq!(statuses(etcd, &name), left, "after --keep={others}");
    }
}

#[test]
fn one_that_left_without_a_run_makes_no_room_for_a_record() {
    let withdraws = |_: &Running| ();
    let is_killed = |running: &Running| running.signal(Signal::SIGKILL);
    for keep in [1, 2, 3] {
        for leaves in [withdraws as fn(&Running), is_killed] {
            let etcd = Etcd::start();
            let name = "keep";
            ran(&etcd, name, keep, [1, 2, 3]);
            let mut holder = queued(&etcd, name, keep, 4);
            holder.wait_for_stdout("held");
            let before = etcd.requests()["Txn"];
            let [stopped, mut next] = [5, 6].map(|status| queued(&etcd, name, keep, status));
            // Each has entered the queue, and has looked again once its watch stood.
            asked(&etcd, before, 4);
            stopped.signal(Signal::SIGSTOP);
            holder.finish().any_stdout().status(4);
            // The next one has looked who is before it: the stopped one alone, which has the lock and runs nothing.
            asked(&etcd, before, 6);
            leaves(&stopped);
            next.wait_for_stdout("held");
            next.finish().any_stdout().status(6);
            let expected = &[1, 2, 3, 4, 6][5 - keep..];
            assert_eq!(statuses(&etcd, name), expected, "of {keep}");
            stopped.signal(Signal::SIGKILL);
        }
    }
}

#[test]
fn an_interrupted_waiter_makes_no_room_for_a_record() {
    let etcd = Etcd::shared();
    let name = unique("keep");
    ran(etcd, &name, 3, [1, 2, 3]);
    let mut holder = queued(etcd, &name, 3, 4);
    holder.wait_for_stdout("held");
    let [interrupted, next] = [5, 6].map(|status| queued(etcd, &name, 3, status));
    interrupted.signal(Signal::SIGINT);
    interrupted.finish().signaled(Signal::SIGINT);
    holder.finish().any_stdout().status(4);
    assert_eq!(statuses(etcd, &name), [2, 3, 4]);
    next.finish().any_stdout().status(6);
    assert_eq!(statuses(etcd, &name), [3, 4, 6]);
}

#[test]
fn a_run_that_etcd_had_no_space_for_made_no_room_for_a_record() {
    let etcd = Etcd::start_with(&["--quota-backend-bytes=1000000"]);
    let name = "full";
    ran(&etcd, name, 3, [1, 2, 3]);
    let mut holder = queued(&etcd, name, 3, 4);
    holder.wait_for_stdout("held");
    let before = etcd.requests()["Txn"];
    let mut next = queued(&etcd, name, 3, 5);
    asked(&etcd, before, 2);
    let filling = "x".repeat(100_000);
    let put = |number| {
        let put = etcd
            .etcdctl_command()
            .args(["put", &format!("filling/{number}"), &filling])
            .output();
        put.expect("etcdctl").status.success()
    };
    assert!((0..30).any(|number| !put(number)), "it never was full");
    holder.finish().any_stdout().status(4);
    assert_eq!(statuses(&etcd, name), [1, 2, 3]);
    next.wait_for_stdout("held");
    etcd.etcdctl(&["del", "--prefix", "filling/"]);
    etcd.etcdctl(&["compact", &etcd.revision().to_string()]);
    etcd.etcdctl(&["defrag"]);
    etcd.etcdctl(&["alarm", "disarm"]);
    next.finish().any_stdout().status(5);
    assert_eq!(statuses(&etcd, name), [2, 3, 5]);
}

#[test]
fn a_lost_run_leaves_the_other_records_alone() {
    let etcd = Etcd::shared();
    let name = unique("lost");
    Meshlock::run(etcd, &name).finish().success();
    let mut running = Meshlock::run(etcd, &name).sh("echo held; exec sleep 1000").start();
    running.wait_for_stdout("held");
    etcd.revoke(&etcd.wait_for_queue(&name, 1)[0]);
    running.finish().any_stdout().any_stderr().status(79);
    let records = records(etcd, &name);
    assert_eq!(records[0].1["status"], 0);
    // Its own is no part of a release any more, and must not look like one.
    assert!(
        records[1..].iter().all(|(_, record)| record["result"] == "lost"),
        "{records:?}"
    );
}

#[test]
fn waiting_and_contention_leave_no_record() {
    let etcd = Etcd::shared();
    let name = unique("none");
    let mut holder = Meshlock::run(etcd, &name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    Meshlock::run(etcd, &name).args(["-q", "-n"]).finish().status(75);
    Meshlock::run(etcd, &name).args(["-q", "-w", "0.2"]).finish().status(75);
    assert_eq!(records(etcd, &name).len(), 0);
    holder.finish().stdout("held\n").success();
    assert_eq!(records(etcd, &name).len(), 1);
}

#[test]
fn everything_lies_under_the_prefix() {
    let etcd = Etcd::start();
    let mut running = Meshlock::run(&etcd, "billing")
        .args(["--prefix", "teams/a/"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    running.wait_for_stdout("held");
    let keys = etcd.keys("");
    assert!(
        keys.len() == 2 && keys.iter().all(|key| key.starts_with("teams/a/")),
        "{keys:?}"
    );
    // Another prefix is another lock.
    Meshlock::run(&etcd, "billing").args(["-n"]).finish().success();
    running.finish().stdout("held\n").success();
}

#[test]
fn the_record_of_whatever_did_not_exit_by_itself_says_why() {
    let etcd = Etcd::shared();
    let why = |run: Meshlock, name: &str, result: &str| {
        let finished = run.finish().any_stderr();
        let code = finished.code();
        let (_, record) = records(etcd, name).pop().expect("a record");
        assert_eq!(record["result"], result, "{code:?}");
        record["why"].as_str().map(ToOwned::to_owned)
    };
    let of = |options: &[&str], command: &[&str], result: &str| {
        let name = unique("why");
        let run = Meshlock::run(etcd, &name)
            .args(options)
            .command(command.iter().copied());
        why(run, &name, result)
    };
    let limit = of(&["--max-runtime=500ms"], &["sleep", "1000"], "overrun");
    assert_eq!(limit.as_deref(), Some("it ran longer than --max-runtime 0.5 s"));
    let died = of(&[], &["sh", "-c", "kill -9 $$"], "signal");
    assert_eq!(died.as_deref(), Some("the command died of SIGKILL"));
    let missing = of(&[], &["/no/such", "hidden"], "not-found").expect("a reason");
    assert!(missing.contains("/no/such") && !missing.contains("hidden"), "{missing}");
    let missing = of(&[], &["/dev/null"], "not-executable").expect("a reason");
    assert!(missing.contains("/dev/null"), "{missing}");
    assert_eq!(of(&[], &["false"], "command"), None);
    let long = format!("/{}", "x".repeat(3000));
    let missing = of(&[], &[&long], "not-executable");
    let bound = missing.map_or(0, |why| why.chars().count());
    assert!((1..2000).contains(&bound), "{bound}");
}

#[test]
fn the_queue_entry_says_how_long_it_may_run() {
    let etcd = Etcd::shared();
    let name = unique("limit");
    let mut running = Meshlock::run(etcd, &name)
        .args(["--max-runtime=1h0.5s"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    running.wait_for_stdout("held");
    let entry = etcd.wait_for_queue(&name, 1).remove(0);
    assert_eq!(parse(&etcd.get(&entry).expect("an entry"))["max_runtime"], 3601);
    let said = Meshlock::ask(etcd, "status")
        .args([name.as_str()])
        .finish()
        .any_stdout()
        .success();
    let json = Meshlock::ask(etcd, "status")
        .args(["--json", &name])
        .finish()
        .any_stdout()
        .success();
    let json = parse(&json.stdout);
    schema::assert_valid("status.schema.json", &json);
    let holder = &json["locks"][0];
    assert_eq!(holder["holder"]["who"]["max_runtime_seconds"], 3601);
    let time = |text: &str| humantime::parse_rfc3339(text).expect("a time");
    let since = time(holder["since"].as_str().expect("since when"));
    let until = said.stdout.lines().find_map(|line| line.trim().strip_prefix("until "));
    let until = until
        .and_then(|line| line.split_whitespace().next())
        .expect("until when");
    assert_eq!(time(until).duration_since(since).expect("later").as_secs(), 3601);
    running.finish().stdout("held\n").success();
}
