//! A run that never said how it ended is recorded by the next one, once, and by its own word if it comes back.

use crate::harness::{Etcd, Meshlock, Running, eventually, proc, schema, so, unique};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// The recorded runs, newest first, as `meshlock history` tells of them.
fn runs(etcd: &Etcd, options: &[&str]) -> Vec<Value> {
    let said = Meshlock::ask(etcd, "history")
        .args(["--json"])
        .args(options)
        .finish()
        .any_stdout()
        .success();
    let json: Value = serde_json::from_str(&said.stdout).expect("JSON");
    schema::assert_valid("history.schema.json", &json);
    json["runs"].as_array().expect("runs").clone()
}

fn results(runs: &[Value]) -> Vec<&str> {
    runs.iter()
        .map(|run| run["result"].as_str().expect("a result"))
        .collect()
}

fn lock(etcd: &Etcd, name: &str) -> Value {
    let said = Meshlock::ask(etcd, "status")
        .args(["--json", name])
        .finish()
        .any_stdout()
        .success();
    let mut json: Value = serde_json::from_str(&said.stdout).expect("JSON");
    schema::assert_valid("status.schema.json", &json);
    json["locks"][0].take()
}

/// A holder that goes when its standard input ends.
#[track_caller]
fn hold(etcd: &Etcd, name: &str) -> Running {
    let mut running = Meshlock::run(etcd, name)
        .args(["-q", "--ttl", "4", "--owner", "ann"])
        .stdin(Stdio::piped())
        .sh("echo held $MESHLOCK_HELD_TOKEN; read -r _; exit 0")
        .start();
    running.wait_for_stdout("held");
    running
}

/// Both halves, the command and all of it die at once, as with their host.
fn vanish(running: &Running) {
    let all = running.processes();
    assert!(all.len() >= 3, "{all:?}");
    for pid in all {
        proc::signal(pid, Signal::SIGKILL);
    }
}

/// That which is said where nothing else is known of the run.
fn open_record(etcd: &Etcd, name: &str, lease: u32, value: &str) -> String {
    let key = format!("meshlock/open/{name}/{lease:x}");
    etcd.put(&key, value);
    key
}

const GONE: &str =
    r#"{"format":1,"ttl_ms":4000,"host":"gone","user":"u","pid":1,"program":"p","started":"2026-01-01T00:00:00Z"}"#;

#[test]
fn a_run_that_vanished_with_its_host_is_recorded_when_the_next_one_starts() {
    let etcd = Etcd::shared();
    let name = unique("vanished");
    Meshlock::run(etcd, &name).finish().success();
    let first = hold(etcd, &name);
    let entry = etcd.wait_for_queue(&name, 1).remove(0);
    let (pid, token) = (first.pid(), etcd.created(&entry));
    vanish(&first);
    etcd.revoke(&entry);

    // Nobody has come yet: all that is known is from when on it may have vanished.
    let seen = lock(etcd, &name);
    assert_eq!(seen["state"], "vanished");
    let since = seen["vanished"][0]["held_since"].as_str().expect("a time").to_owned();
    let overview = Meshlock::ask(etcd, "status")
        .args([&name])
        .finish()
        .any_stdout()
        .success();
    assert!(
        overview.stdout.contains(&format!("vanished  after {since}")),
        "{}",
        overview.stdout
    );
    let all = Meshlock::ask(etcd, "status").finish().any_stdout().success().stdout;
    let line = all.lines().find(|line| line.starts_with(&name)).expect("its line");
    assert!(line.contains(&format!("  {since}  ")) && line.contains("  <"), "{line}");
    assert_eq!(results(&runs(etcd, &["--failed", &name])), [""; 0]);

    let next = hold(etcd, &name);
    let failed = runs(etcd, &["--failed", &name]);
    assert_eq!(results(&failed), ["vanished"]);
    let run = &failed[0];
    assert_eq!((&run["token"], &run["who"]["pid"]), (&token.into(), &pid.into()));
    assert_eq!(
        (&run["who"]["owner"], &run["who"]["program"]),
        (&"ann".into(), &"sh".into())
    );
    assert_eq!(run["acquired"], since.as_str());
    assert!(
        run["status"].is_null() && run["ended"].is_null() && run["duration_seconds"].is_null(),
        "{run}"
    );
    let noticed = &run["noticed"];
    assert!(noticed["at"].as_str().is_some_and(|at| at >= since.as_str()), "{run}");
    let by = format!(" (pid {})", next.pid());
    assert!(noticed["by"].as_str().is_some_and(|who| who.ends_with(&by)), "{run}");

    // And everywhere else where the last run is told of.
    assert_eq!(lock(etcd, &name)["last_run"], *run);
    let metrics = Meshlock::ask(etcd, "status")
        .args(["--prometheus", &name])
        .finish()
        .any_stdout()
        .success()
        .stdout;
    let failed = format!("meshlock_last_run_failed{{lock=\"{name}\"}} 1\n");
    assert!(metrics.contains(&failed), "{metrics}");
    let table = Meshlock::ask(etcd, "history")
        .args([&name])
        .finish()
        .any_stdout()
        .success()
        .stdout;
    let line = table.lines().nth(1).expect("its line");
    assert!(
        line.contains("  vanished  ") && line.contains("  noticed by "),
        "{table}"
    );

    next.finish().any_stdout().success();
    assert_eq!(results(&runs(etcd, &[&name])), ["command", "vanished", "command"]);
    etcd.assert_clean(&name);
}

#[test]
fn a_waiter_that_vanished_before_its_turn_never_ran_and_one_after_it_did() {
    let etcd = Etcd::shared();
    let name = unique("turn");
    let holder = hold(etcd, &name);
    let wait = || {
        Meshlock::run(etcd, &name)
            .args(["-q", "--ttl", "4"])
            .sh("echo held; exec sleep 1000")
            .start()
    };
    let before = wait();
    let entry = etcd.wait_for_queue(&name, 2).remove(1);
    vanish_waiting(&before);
    etcd.revoke(&entry);
    let mut after = wait();
    let entry = etcd.wait_for_queue(&name, 2).remove(1);
    let token = etcd.created(&entry);
    holder.finish().any_stdout().success();
    // Beside the open record of the first it sits out a delay, and clears it.
    after.wait_for_stdout("held");
    assert_eq!(results(&runs(etcd, &[&name])), ["command"]);
    vanish(&after);
    etcd.revoke(&entry);
    Meshlock::run(etcd, &name).args(["-q"]).finish().success();
    let runs = runs(etcd, &[&name]);
    assert_eq!(results(&runs), ["command", "vanished", "command"]);
    assert_eq!(runs[1]["token"], token);
    // It waited until the first ended.
    assert_eq!(
        runs[1]["acquired"].as_str().max(runs[2]["ended"].as_str()),
        runs[1]["acquired"].as_str()
    );
    etcd.assert_clean(&name);
}

#[test]
fn a_waiter_that_died_is_never_shown_as_the_run_that_vanished() {
    let etcd = Etcd::start();
    let mut holder = Meshlock::run(&etcd, "turn")
        .args(["-q", "--owner", "hb", "--route", "#hb"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 4")
        .start();
    holder.wait_for_stdout("held");
    let options = ["-q", "--ttl", "4", "--owner", "wb", "--route", "#wb"];
    let waiter = Meshlock::run(&etcd, "turn").args(options).start();
    let entry = etcd.wait_for_queue("turn", 2).remove(1);
    vanish_waiting(&waiter);
    etcd.revoke(&entry);
    let ask = |arguments: &[&str]| {
        let said = Meshlock::ask(&etcd, "status").args(arguments).finish();
        said.any_stdout().success().stdout
    };
    let waited_only = |state: &str| {
        let json = lock(&etcd, "turn");
        assert_eq!(
            (&json["state"], &json["vanished"]),
            (&state.into(), &serde_json::json!([]))
        );
        assert_eq!(json["died_waiting"][0]["who"]["owner"], "wb");
        let text = ask(&["turn"]);
        assert!(
            text.contains("\ndied waiting: ") && !text.contains("vanished"),
            "{text}"
        );
        let metrics = ask(&["--prometheus"]);
        assert!(
            metrics.contains("meshlock_vanished_runs{lock=\"turn\"} 0\n"),
            "{metrics}"
        );
    };
    waited_only("held");
    holder.finish().any_stdout().status(4);
    waited_only("free");
    let all = ask(&[]);
    let line = all.lines().find(|line| line.starts_with("turn")).expect("its line");
    assert!(
        line.contains("  free  ") && line.contains("  exit(4)  ") && line.ends_with("#hb"),
        "{line}"
    );
    assert!(ask(&["turn"]).starts_with("turn: free\n"));
}

/// The keeper first: it would leave the queue for a guardian that is gone.
fn vanish_waiting(running: &Running) {
    proc::signal(running.keeper(), Signal::SIGKILL);
    running.signal(Signal::SIGKILL);
}

#[test]
fn where_etcd_has_forgotten_when_it_died_it_counts_as_a_run() {
    let etcd = Etcd::start();
    let holder = hold(&etcd, "compacted");
    let waiter = Meshlock::run(&etcd, "compacted").args(["-q", "--ttl", "4"]).start();
    let entry = etcd.wait_for_queue("compacted", 2).remove(1);
    vanish_waiting(&waiter);
    etcd.revoke(&entry);
    holder.finish().any_stdout().success();
    etcd.put("something", "else");
    let vanished = || lock(&etcd, "compacted")["vanished"].as_array().map(Vec::len);
    assert_eq!(vanished(), Some(0), "etcd still knows");
    etcd.etcdctl(&["compact", &etcd.revision().to_string()]);
    let json = lock(&etcd, "compacted");
    assert_eq!(
        (&json["state"], &json["vanished"][0]["may_have_waited"]),
        (&"vanished".into(), &true.into())
    );
    let text = Meshlock::ask(&etcd, "status").args(["compacted"]).finish();
    let text = text.any_stdout().success().stdout;
    assert!(text.contains("it may have been waiting"), "{text}");
    Meshlock::run(&etcd, "compacted").args(["-q"]).finish().success();
    assert_eq!(results(&runs(&etcd, &[])), ["command", "vanished", "command"]);
}

#[test]
fn of_several_that_vanished_only_the_oldest_had_its_turn() {
    let etcd = Etcd::shared();
    let name = unique("several");
    // More than one transaction can clear.
    for lease in 1..=120 {
        open_record(etcd, &name, lease, GONE);
    }
    let json = lock(etcd, &name);
    let count = |what: &str| json[what].as_array().map(Vec::len);
    assert_eq!((count("vanished"), count("died_waiting")), (Some(1), Some(119)));
    assert_eq!(json["vanished"][0]["may_have_waited"], false);
    Meshlock::run(etcd, &name).args(["-q"]).finish().success();
    let runs = runs(etcd, &[&name]);
    assert_eq!(results(&runs), ["command", "vanished"]);
    etcd.assert_clean(&name);
}

#[test]
fn a_run_that_comes_back_says_itself_how_it_ended() {
    let etcd = Etcd::shared();
    let name = unique("back");
    let proxy = etcd.proxy();
    let mut first = Meshlock::run_at(proxy.endpoint(), &name)
        .args(["--ttl", "4", "--release-timeout", "50"])
        .sh("echo held; exec sleep 1000")
        .start();
    first.wait_for_stdout("held");
    let token = etcd.created(&etcd.wait_for_queue(&name, 1)[0]);
    // It kills its command, and cannot tell anybody.
    proxy.hold();
    let next = hold(etcd, &name);
    assert_eq!(results(&runs(etcd, &[&name])), ["vanished"]);
    proxy.cut();
    proxy.heal();
    first.finish().stdout("held\n").any_stderr().status(79);
    let told = runs(etcd, &[&name]);
    assert_eq!(results(&told), ["lost"]);
    assert_eq!(told[0]["token"], token);
    let why = told[0]["why"].as_str().unwrap_or_default();
    assert!(
        why.starts_with("it could not be renewed in time (") && why.contains("did not answer"),
        "{why}"
    );
    assert!(told[0]["noticed"].is_null() && !told[0]["ended"].is_null(), "{told:?}");
    next.finish().any_stdout().success();
    etcd.assert_clean(&name);
}

#[test]
fn a_run_that_comes_back_during_the_delay_is_not_said_to_have_vanished() {
    let etcd = Etcd::shared();
    let name = unique("word");
    let open = open_record(etcd, &name, 0x1f, &GONE.replace("4000", "100000"));
    let token = etcd.created(&open);
    let mut next = Meshlock::run(etcd, &name).start();
    next.wait_for_stderr("waiting 10.0 s");
    // What its release does where its entry is gone.
    let own = GONE.replace(
        r#""ttl_ms":4000"#,
        &format!(r#""token":{token},"result":"command","status":0,"acquired":"a","ended":"e""#),
    );
    etcd.put(&format!("meshlock/log/{name}/{token:016x}"), &own);
    etcd.del(&open);
    next.finish().any_stderr().success();
    assert_eq!(results(&runs(etcd, &[&name])), ["command", "command"]);
}

#[test]
fn a_lost_answer_to_the_start_does_not_record_it_twice() {
    let etcd = Etcd::shared();
    let name = unique("answer");
    let open = open_record(etcd, &name, 0x1f, GONE);
    let proxy = etcd.proxy();
    let mut next = Meshlock::run_at(proxy.endpoint(), &name).start();
    next.wait_for_stderr("was left without a release");
    // The answer is on its way for as long as it takes to cut it off.
    proxy.delay(Duration::from_millis(500));
    eventually("the open record is cleared", || so(etcd.get(&open).is_none()));
    proxy.hold_down();
    proxy.cut();
    proxy.heal();
    next.finish().any_stderr().success();
    assert_eq!(results(&runs(etcd, &[&name])), ["command", "vanished"]);
    etcd.assert_clean(&name);
}

#[test]
fn the_records_of_vanished_runs_are_kept_within_the_same_bound() {
    let etcd = Etcd::shared();
    let name = unique("bound");
    for _ in 0..3 {
        open_record(etcd, &name, 0x1f, GONE);
        let mut next = Meshlock::run(etcd, &name)
            .args(["-q", "--keep", "2"])
            .stdin(Stdio::piped())
            .sh("echo held; read -r _; exit 0")
            .start();
        next.wait_for_stdout("held");
        assert!(runs(etcd, &[&name]).len() <= 2);
        next.finish().any_stdout().success();
    }
    assert_eq!(results(&runs(etcd, &[&name])), ["command", "vanished"]);
    open_record(etcd, &name, 0x1f, GONE);
    Meshlock::run(etcd, &name)
        .args(["-q", "--keep", "0"])
        .finish()
        .success();
    assert_eq!(results(&runs(etcd, &[&name])), [""; 0]);
}

#[test]
fn whatever_lies_there_as_an_open_record_the_start_goes_on() {
    let etcd = Etcd::shared();
    let long = "x".repeat(100_000);
    let values = [
        // Of a later format, of other types, of nobody, and more than anybody writes.
        r#"{"format":2,"ttl_ms":4000,"host":{"name":"h"}}"#.to_owned(),
        r#"{"format":1,"ttl_ms":4000,"host":7,"user":[],"pid":-1}"#.to_owned(),
        r#"{"ttl_ms":4000}"#.to_owned(),
        GONE.replace("gone", &long),
    ];
    for value in values {
        let name = unique("hostile");
        open_record(etcd, &name, 0x1f, &value);
        Meshlock::run(etcd, &name).args(["-q"]).finish().success();
        let runs = runs(etcd, &[&name]);
        assert_eq!(results(&runs), ["command", "vanished"]);
        assert_eq!(
            (&runs[1]["who"]["host"], &runs[1]["acquired"]),
            (&"unknown".into(), &Value::Null)
        );
        let record = runs[1]["key"].as_str().expect("a key");
        assert!(etcd.get(record).expect("a record").len() < 1000);
        etcd.assert_clean(&name);
    }
    // Readable, but no times, and out to steer a terminal.
    let name = unique("hostile");
    let value = GONE
        .replace("gone", r"\u001b[2J\u0000")
        .replace("2026-01-01T00:00:00Z", r"9\u001b]0;x\u0007");
    open_record(etcd, &name, 0x1f, &value);
    Meshlock::run(etcd, &name).args(["-q"]).finish().success();
    assert_eq!(results(&runs(etcd, &[&name])), ["command", "vanished"]);
    let table = Meshlock::ask(etcd, "history")
        .args([&name])
        .finish()
        .any_stdout()
        .success()
        .stdout;
    assert!(!table.contains(['\u{1b}', '\0', '\u{7}']), "{table:?}");
}

#[test]
fn an_etcd_without_space_for_the_record_does_not_keep_the_next_from_starting() {
    let etcd = Etcd::start_with(&["--quota-backend-bytes=1000000"]);
    let open = open_record(&etcd, "full", 0x1f, &GONE.replace("4000", "100000"));
    let mut next = Meshlock::run(&etcd, "full").sh("echo mine; exit 7").start();
    next.wait_for_stderr("waiting 10.0 s");
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
    assert!(etcd.get(&open).is_some(), "the delay is not over yet");
    next.finish().stdout("mine\n").any_stderr().status(7);
    etcd.assert_clean("full");
}

#[test]
fn a_start_after_a_vanished_run_takes_no_round_trip_more() {
    let etcd = Etcd::start();
    open_record(&etcd, "billing", 0x1f, GONE);
    let all = || etcd.metric("grpc_server_started_total", "");
    let of = |method: &str| etcd.metric("grpc_server_started_total", &format!("grpc_method=\"{method}\""));
    let rest = || all() - of("LeaseRevoke") - of("Watch") - of("LeaseKeepAlive") - of("LeaseLeases");
    let before = rest();
    Meshlock::run(&etcd, "billing")
        .args(["-q", "--ttl", "60"])
        .finish()
        .success();
    // Grant, enqueue, a look once the watch stands, the start, the release.
    assert!(rest() - before <= 5.0, "{}", rest() - before);
}

#[test]
fn a_crash_of_many_waiters_does_not_close_the_lock() {
    // What they leave is more than one message holds: 4 MiB.
    let etcd = Etcd::start();
    let long = "x".repeat(30_000);
    for part in 0..10 {
        let put = |number| {
            let value = GONE.replace("\"gone\"", &format!("\"{long}\""));
            format!(
                "put meshlock/open/crash/{:x} {}",
                part * 20 + number + 0x1000,
                value.replace('"', "\\\"")
            )
        };
        etcd.txn(&(0..20).map(put).collect::<Vec<_>>().join("\n"));
    }
    assert_eq!(etcd.keys("meshlock/open/crash/").len(), 200);
    Meshlock::run(&etcd, "crash")
        .args(["-n"])
        .finish()
        .any_stderr()
        .success();
    assert_eq!(etcd.keys("meshlock/open/"), Vec::<String>::new());
}
