//! A lock that is shared at a key (`--lock-key`) is another one than that of a name of the same text, and nobody who
//! looks for either is left to take one for the other.

use crate::harness::{Etcd, Meshlock, Running, eventually, schema, so};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Stdio;

fn hold(etcd: &Etcd, options: &[&str], words: &[&str]) -> Running {
    let script = "echo held; read -r _; exit 0";
    let mut running = Meshlock::ask(etcd, "run")
        .args(options)
        .args(words)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .start();
    running.wait_for_stdout("held");
    running
}

fn ask(etcd: &Etcd, subcommand: &'static str, arguments: &[&str]) -> String {
    let asked = Meshlock::ask(etcd, subcommand).args(arguments).finish();
    asked.any_stdout().any_stderr().success().stdout
}

fn json(etcd: &Etcd, subcommand: &'static str, arguments: &[&str]) -> Value {
    let text = ask(etcd, subcommand, &[arguments, &["--json"]].concat());
    let json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    schema::assert_valid(&format!("{subcommand}.schema.json"), &json);
    json
}

#[test]
fn who_asks_for_the_name_is_told_that_the_key_is_in_use() {
    let etcd = Etcd::start();
    let holder = hold(&etcd, &["--lock-key", "k k"], &[]);
    let command = "meshlock status --lock-key 'k k'";
    let text = ask(&etcd, "status", &["k k"]);
    assert!(text.starts_with("k k: free; no run is recorded\n"), "{text}");
    assert!(text.contains("is in use") && text.contains(command), "{text}");
    for arguments in [&["--check", "k k"][..], &["--json", "k k"], &["--prometheus", "k k"]] {
        Meshlock::ask(&etcd, "status")
            .args(arguments)
            .finish()
            .any_stdout()
            .stderr_line(["k k", "is in use", command])
            .success();
    }
    assert_eq!(json(&etcd, "status", &["k k"])["locks"][0]["lock_key_in_use"], true);
    assert!(
        ask(&etcd, "status", &["--lock-key", "k k"]).starts_with("k k (--lock-key): held by "),
        "and the command finds it"
    );
    let rows = ask(&etcd, "status", &[]);
    assert!(rows.contains("\nk k (--lock-key)  held  "), "{rows}");
    Meshlock::ask(&etcd, "status")
        .args(["--check"])
        .finish()
        .stderr_line(["k k (--lock-key): held by "])
        .status(75);
    holder.finish().stdout("held\n").success();

    let text = ask(&etcd, "status", &["k k"]);
    assert!(text.contains("has runs recorded") && text.contains(command), "{text}");
    assert_eq!(json(&etcd, "status", &["k k"])["locks"][0]["lock_key_in_use"], false);
    Meshlock::ask(&etcd, "history")
        .args(["k k"])
        .finish()
        .stderr_line(["no run of \"k k\" is recorded", "meshlock history --lock-key 'k k'"])
        .success();
    Meshlock::run(&etcd, "k k").finish().success();
    let text = ask(&etcd, "status", &["k k"]);
    assert!(!text.contains(command), "the name has a life of its own: {text}");
}

#[test]
fn the_lists_and_the_metrics_tell_a_key_from_a_name() {
    let etcd = Etcd::start();
    Meshlock::run(&etcd, "kk").sh("exit 3").finish().status(3);
    Meshlock::run(&etcd, "deploy")
        .args(["--lock-key", "kk"])
        .finish()
        .success();
    let firsts = |text: &str| -> Vec<String> {
        let cells = text.lines().skip(1).map(|line| line.split("  ").next());
        cells.flatten().map(ToOwned::to_owned).collect()
    };
    let rows = ask(&etcd, "status", &[]);
    assert_eq!(firsts(&rows), ["kk", "kk (--lock-key)"], "{rows}");
    let runs = ask(&etcd, "history", &[]);
    for (line, cell) in [(1, "  kk (--lock-key)  ok  "), (2, "  kk               exit(3)  ")] {
        assert!(runs.lines().nth(line).is_some_and(|row| row.contains(cell)), "{runs}");
    }

    let told = |json: &Value, list: &str| -> Vec<(Value, Value)> {
        let all = json[list].as_array().expect("a list").iter();
        all.map(|one| (one["name"].clone(), one["lock_key"].clone())).collect()
    };
    let (name, key) = (("kk".into(), Value::Null), ("kk".into(), "kk".into()));
    assert_eq!(told(&json(&etcd, "status", &[]), "locks"), [name.clone(), key.clone()]);
    assert_eq!(told(&json(&etcd, "history", &[]), "runs"), [key, name]);

    let metrics = ask(&etcd, "status", &["--prometheus"]);
    let series = metrics.lines().filter(|line| !line.starts_with('#'));
    let series: Vec<&str> = series.map(|line| line.rsplit_once(' ').expect("a value").0).collect();
    assert_eq!(series.len(), series.iter().collect::<BTreeSet<_>>().len(), "{metrics}");
    for one in [
        "meshlock_held{lock=\"kk\"}",
        "meshlock_held{lock=\"kk\",lock_key=\"kk\"}",
    ] {
        assert!(series.contains(&one), "{one} in\n{metrics}");
    }
}

#[test]
fn messages_name_the_key_and_not_what_a_run_calls_it() {
    let etcd = Etcd::start();
    let holder = hold(&etcd, &["--lock-key", "jobs/k"], &["deploy"]);
    Meshlock::run(&etcd, "ship")
        .args(["-n", "--lock-key", "jobs/k"])
        .finish()
        .stderr_line(["\"jobs/k (--lock-key)\" is held by "])
        .status(75);
    holder.finish().stdout("held\n").success();
}

#[test]
fn a_name_beside_a_key_is_refused_and_never_passed_over() {
    let etcd = Etcd::start();
    for subcommand in ["status", "history"] {
        for (arguments, variable) in [(&["--lock-key", "jobs/k", "nf"][..], None), (&["nf"], Some("jobs/k"))] {
            let mut ask = Meshlock::ask(&etcd, subcommand).args(arguments);
            if let Some(key) = variable {
                ask = ask.env("MESHLOCK_LOCK_KEY", key);
            }
            let said = ask.finish();
            said.stderr_line(["\"nf\"", "leave the name out"]).status(64);
        }
    }
}

#[test]
fn what_a_lock_at_a_key_is_called_finds_it() {
    let etcd = Etcd::start();
    let called = "jobs/two (--lock-key)";
    let holder = hold(&etcd, &["--lock-key", "jobs/two"], &[]);
    Meshlock::ask(&etcd, "status")
        .args(["--check", called])
        .finish()
        .stderr_line([called, "held by "])
        .status(75);
    holder.finish().stdout("held\n").success();
    assert_eq!(
        json(&etcd, "history", &[called])["runs"].as_array().map(Vec::len),
        Some(1)
    );
    Meshlock::run(&etcd, called)
        .finish()
        .stderr_line([called, "--lock-key \"jobs/two\""])
        .status(64);
}

#[test]
fn a_key_needs_no_name_before_the_command() {
    let etcd = Etcd::start();
    let run = |arguments: &[&str]| Meshlock::ask(&etcd, "run").args(arguments).finish();
    let named = ["sh", "-c", "echo $MESHLOCK_HELD_NAME"];
    run(&[&["-n", "--lock-key", "k", "--"], &named[..]].concat())
        .stdout("k\n")
        .success();
    run(&[&["--lock-key", "k", "x", "--"], &named[..]].concat())
        .stdout("x\n")
        .success();
    run(&["--lock-key", "k", "--", "true"]).success();
    Meshlock::ask(&etcd, "run")
        .env("MESHLOCK_LOCK_KEY", "k")
        .args(["--", "sh", "-c", "echo $MESHLOCK_HELD_NAME"])
        .finish()
        .stdout("k\n")
        .success();
    // Without a key the -- only ends the options.
    run(&[&["--"], &["x"][..], &named].concat()).stdout("x\n").success();
    run(&["--", "true"]).stderr_line(["<NAME>"]).status(64);
    run(&["--lock-key", "k", "--"]).stderr_line(["<COMMAND>"]).status(64);
    run(&["--lock-key", "k", "--", "--ttl"])
        .stderr_line(["unknown option"])
        .status(64);
}

#[test]
fn what_is_no_open_record_hides_no_run_from_the_overview() {
    let etcd = Etcd::start();
    // More than are kept of one lock.
    for part in 0..11 {
        let put = |number| format!("put meshlock/open/=crowded/junk{} {{}}", part * 100 + number);
        etcd.txn(&(0..100).map(put).collect::<Vec<_>>().join("\n"));
    }
    let holder = hold(&etcd, &["--lock-key", "crowded"], &[]);
    Meshlock::ask(&etcd, "status")
        .args(["--check"])
        .finish()
        .stderr_line(["crowded (--lock-key): held by "])
        .status(75);
    let seen = json(&etcd, "status", &[]);
    assert_eq!(seen["locks"][0]["unread"]["vanished"], 0, "nothing was crowded out");
    holder.finish().stdout("held\n").success();
}

#[test]
fn who_waits_behind_another_program_while_all_is_frozen_does_not_hold() {
    let etcd = Etcd::start();
    etcd.put("cold/1f", "");
    let mut waiter = Meshlock::ask(&etcd, "run")
        .args(["--lock-key", "cold", "--", "echo", "held"])
        .start();
    eventually("the waiter's entry", || so(etcd.keys("cold/").len() == 2));
    etcd.put("meshlock/freeze/=cold", r#"{"format":1,"by":"ann"}"#);
    etcd.del("cold/1f");
    waiter.wait_for_stderr("frozen by ann");
    for arguments in [&["--lock-key", "cold"][..], &[]] {
        let seen = json(&etcd, "status", arguments);
        assert_eq!(
            (&seen["locks"][0]["state"], &seen["locks"][0]["held"]),
            (&"frozen".into(), &false.into())
        );
    }
    etcd.del("meshlock/freeze/=cold");
    waiter.finish().stdout("held\n").any_stderr().success();
}
