//! `meshlock status` says who holds, who waits and what is in the way, to people, programs and monitors; it only
//! reads, and whatever lies in etcd cannot break it or steer a terminal.

use crate::harness::etcd::lease_of;
use crate::harness::{Etcd, Meshlock, Proxy, Running, Terminal, eventually, meshlock, proc, schema, so, unique};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn status<const N: usize>(etcd: &Etcd, arguments: [&str; N]) -> String {
    Meshlock::ask(etcd, "status")
        .args(arguments)
        .finish()
        .any_stdout()
        .success()
        .stdout
}

/// One lock as JSON, held against the schema.
fn lock(etcd: &Etcd, name: &str) -> Value {
    let text = status(etcd, ["--json", name]);
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    schema::assert_valid("status.schema.json", &json);
    json["locks"][0].clone()
}

/// A lock's line in the overview, as columns.
fn row(etcd: &Etcd, name: &str) -> Vec<String> {
    let text = status(etcd, []);
    let rows = text
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()));
    rows.map(|cells| cells.map(ToOwned::to_owned).collect::<Vec<_>>())
        .find(|cells| cells[0] == name)
        .unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

fn hold(etcd: &Etcd, name: &str, options: &[&str]) -> Running {
    let mut running = Meshlock::run(etcd, name)
        .args(options)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    running.wait_for_stdout("held");
    running
}

fn wait_behind(etcd: &Etcd, name: &str, length: usize, options: &[&str]) -> Running {
    let waiter = Meshlock::run(etcd, name).args(["-q"]).args(options).start();
    etcd.wait_for_queue(name, length);
    waiter
}

/// What a host that died leaves: both halves are gone, and etcd has ended the lease.
fn vanish(etcd: &Etcd, name: &str, options: &[&str]) -> String {
    let mut running = Meshlock::run(etcd, name)
        .args(options)
        .sh("echo held; exec sleep 1000")
        .start();
    running.wait_for_stdout("held");
    let entry = etcd.wait_for_queue(name, 1).remove(0);
    proc::signal(running.keeper(), Signal::SIGKILL);
    running.signal(Signal::SIGKILL);
    running
        .finish()
        .any_stdout()
        .any_stderr()
        .with_stragglers()
        .signaled(Signal::SIGKILL);
    entry
}

fn etcdctl_lock(etcd: &Etcd, key: &str) -> Child {
    let child = etcd
        .etcdctl_command()
        .args(["lock", key, "--", "sleep", "1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcdctl");
    eventually("etcdctl's entry", || so(!etcd.keys(&format!("{key}/")).is_empty()));
    child
}

#[test]
fn one_command_answers_what_is_asked_at_night() {
    let etcd = Etcd::shared();
    let name = unique("night");
    let purpose = [
        ("--owner", "team-invoices"),
        ("--reason", "month end"),
        ("--trigger", "cron"),
        ("--system", "erp-7"),
        ("--route", "#billing-oncall"),
        ("--expect", "0,3"),
    ];
    let options: Vec<&str> = purpose.iter().flat_map(|(option, value)| [*option, *value]).collect();
    Meshlock::run(etcd, &name)
        .args(&options)
        .sh("exit 4")
        .finish()
        .status(4);
    let holder = hold(etcd, &name, &options);
    let waiters = [
        wait_behind(etcd, &name, 2, &["--owner", "first"]),
        wait_behind(etcd, &name, 3, &["--owner", "second"]),
    ];

    let text = status(etcd, [&name]);
    let said = |label: &str, value: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(label))
            .unwrap_or_default();
        assert!(line.contains(value), "{label} {value} in\n{text}");
    };
    let entry = &etcd.queue(&name)[0];
    let host = nix::unistd::gethostname()
        .expect("a name")
        .into_string()
        .expect("UTF-8");
    said(&name, "held by ");
    said("who", &format!("@{host}, pid {}", holder.pid()));
    for (label, value) in [
        ("owner", "team-invoices"),
        ("reason", "month end"),
        ("trigger", "cron"),
        ("system", "erp-7"),
        ("route", "#billing-oncall"),
        ("expected", "exit status 0,3"),
        ("program", "sh"),
        ("token", &etcd.created(entry).to_string()),
        ("lease", "left of a TTL of 30s"),
        ("key", entry),
    ] {
        said(label, value);
    }
    let (first, second) = (
        text.find("first").expect("a waiter"),
        text.find("second").expect("a waiter"),
    );
    assert!(first < second && text.contains("exit(4)"), "{text}");

    let json = lock(etcd, &name);
    assert_eq!(
        (&json["state"], &json["waiters"], &json["taken"]),
        (&"held".into(), &2.into(), &true.into())
    );
    assert_eq!(json["holder"]["who"]["pid"], holder.pid());
    assert_eq!(json["queue"].as_array().map(Vec::len), Some(3));
    assert_eq!(json["queue"][2]["who"]["owner"], "second");
    assert_eq!(
        (&json["last_run"]["status"], &json["last_run"]["failed"]),
        (&4.into(), &true.into())
    );

    let cells = row(etcd, &name);
    assert_eq!(
        (cells[1].as_str(), cells[5].as_str(), cells[7].as_str()),
        ("held", "2", "exit(4)"),
        "{cells:?}"
    );
    assert_eq!(cells[10..], ["team-invoices", "#billing-oncall"]);
    holder.finish().stdout("held\n").success();
    for waiter in waiters {
        waiter.finish().success();
    }
    assert_eq!(lock(etcd, &name)["state"], "free");
    assert!(status(etcd, [&name]).starts_with(&format!("{name}: free\n")));
}

#[test]
fn a_freeze_is_told_whether_somebody_holds_or_nobody_can() {
    let etcd = Etcd::shared();
    let name = unique("freeze");
    let freeze = format!("meshlock/freeze/{name}");
    let holder = hold(etcd, &name, &[]);
    etcd.put(&freeze, r#"{"format":1,"by":"ann","reason":"audit"}"#);
    assert_eq!(row(etcd, &name)[1], "held,frozen");
    let text = status(etcd, [&name]);
    let head = text.lines().next().unwrap_or_default();
    assert!(head.contains("held by ") && head.contains("frozen"), "{text}");
    assert!(text.contains("by ann: audit"), "{text}");
    let waiter = wait_behind(etcd, &name, 2, &[]);
    holder.finish().stdout("held\n").success();
    etcd.wait_for_queue(&name, 1);
    // First in the queue since after the freeze, and so not started.
    let json = lock(etcd, &name);
    assert_eq!(
        (&json["state"], &json["waiters"], &json["holder"]),
        (&"frozen".into(), &1.into(), &Value::Null)
    );
    assert_eq!(json["frozen"]["by"], "ann");
    Meshlock::ask(etcd, "status")
        .args(["--check", &name])
        .finish()
        .stderr_line([&name, "frozen: nobody holds it", "comes next, once it is thawed"])
        .status(75);
    etcd.del(&freeze);
    waiter.finish().success();
    etcd.put(&freeze, "not JSON");
    assert_eq!(
        row(etcd, &name)[1],
        "frozen",
        "with nobody there, and whatever is in it"
    );
    // As the manual's example for all that are held asks.
    let json = lock(etcd, &name);
    assert_eq!((&json["taken"], &json["held"]), (&true.into(), &false.into()));
    assert!(status(etcd, [&name]).starts_with(&format!("{name}: frozen")));
    etcd.del(&freeze);
}

#[test]
fn what_is_not_meshlocks_is_shown_as_such() {
    let etcd = Etcd::shared();
    let (key, name) = (unique("jobs/go"), unique("foreign"));
    let mut other = etcdctl_lock(etcd, &key);
    let text = status(etcd, ["--lock-key", &key]);
    assert!(
        text.starts_with(&format!("{key} (--lock-key): held by unknown (not meshlock)\n")),
        "{text}"
    );
    assert!(text.contains("left of a TTL of "), "{text}");
    let waiter = Meshlock::run(etcd, "deploy").args(["-q", "--lock-key", &key]).start();
    eventually("the waiter", || so(etcd.keys(&format!("{key}/")).len() == 2));
    let json = Meshlock::ask(etcd, "status")
        .args(["--json", "--lock-key", &key])
        .finish();
    let json: Value = serde_json::from_str(&json.any_stdout().success().stdout).expect("JSON");
    schema::assert_valid("status.schema.json", &json);
    let json = &json["locks"][0];
    assert_eq!(
        (&json["name"], &json["waiters"], &json["since"]),
        (&key.as_str().into(), &1.into(), &Value::Null)
    );
    assert_eq!(
        (&json["holder"]["who"], &json["holder"]["value"]),
        (&Value::Null, &"".into())
    );

    // etcdctl does not listen to TERM while its command runs.
    for pid in proc::children(other.id().cast_signed()) {
        proc::signal(pid, Signal::SIGKILL);
    }
    other.wait().expect("etcdctl");
    waiter.finish().success();

    etcd.put(&format!("meshlock/lock/{name}/zz"), "by hand");
    assert_eq!(row(etcd, &name)[1..3], ["held", "unknown (not meshlock)"]);
    let text = status(etcd, [&name]);
    assert!(
        text.contains("by hand") && text.contains("none: the key stays until somebody deletes it"),
        "{text}"
    );
    etcd.del(&format!("meshlock/lock/{name}/zz"));
}

#[test]
fn a_waiter_at_a_key_is_not_shown_as_its_holder() {
    let mut etcd = Etcd::start();
    let mut other = etcdctl_lock(&etcd, "jobs/vacuum");
    let waiter = Meshlock::ask(&etcd, "run")
        .args(["-q", "--owner", "ann", "--lock-key", "jobs/vacuum", "--", "true"])
        .start();
    eventually("the waiter", || so(etcd.keys("jobs/vacuum/").len() == 2));
    let cells = row(&etcd, "jobs/vacuum (--lock-key)");
    assert_eq!(
        (&*cells[1], &*cells[2], &*cells[3], &*cells[5]),
        ("held", "unknown (not meshlock)", "-", "1"),
        "{cells:?}"
    );
    let metrics = status(&etcd, ["--prometheus"]);
    let labels = r#"{lock="jobs/vacuum",lock_key="jobs/vacuum"}"#;
    for line in [
        format!("meshlock_held{labels} 1"),
        format!("meshlock_waiters{labels} 1"),
    ] {
        assert!(metrics.contains(&(line.clone() + "\n")), "{line} in\n{metrics}");
    }
    assert!(
        !metrics.contains(&format!("meshlock_held_seconds{labels}")),
        "{metrics}"
    );
    // Since when nobody knows.
    Meshlock::ask(&etcd, "status")
        .args(["--check", "--warn-after", "1h"])
        .finish()
        .stderr_line(["jobs/vacuum (--lock-key): held by unknown (not meshlock)"])
        .status(1);

    etcd.etcdctl(&["role", "add", "reader"]);
    let grant = [
        "role",
        "grant-permission",
        "reader",
        "read",
        "--prefix=true",
        "meshlock/",
    ];
    etcd.etcdctl(&grant);
    etcd.etcdctl(&["user", "add", "eve:secret"]);
    etcd.etcdctl(&["user", "grant-role", "eve", "reader"]);
    etcd.enable_auth();
    let unread = |arguments: &[&str]| {
        let ask = Meshlock::ask(&etcd, "status").args(["--user", "eve:secret"]);
        ask.args(arguments).finish().any_stdout().any_stderr().any_code([0, 1])
    };
    let text = unread(&[]).stdout;
    let line = text
        .lines()
        .find(|line| line.starts_with("jobs/vacuum"))
        .expect("its line");
    let cells: Vec<&str> = line
        .split("  ")
        .map(str::trim)
        .filter(|cell| !cell.is_empty())
        .collect();
    assert_eq!(cells[1..5], ["elsewhere", "unknown", "-", "-"], "{text}");
    let said = unread(&["--check", "--warn-after", "1h"]);
    assert!(said.stderr.contains("may not be read"), "{}", said.stderr);
    assert!(!unread(&["--prometheus"]).stdout.contains("meshlock_held_seconds{"));
    for pid in proc::children(other.id().cast_signed()) {
        proc::signal(pid, Signal::SIGKILL);
    }
    waiter.signal(Signal::SIGKILL);
    drop(waiter);
    other.kill().expect("etcdctl");
    other.wait().expect("etcdctl");
}

#[test]
fn a_run_that_vanished_is_told_apart_from_one_that_runs() {
    let etcd = Etcd::shared();
    let name = unique("vanish");
    let entry = vanish(etcd, &name, &["--ttl", "300", "--owner", "ann", "--route", "#oncall"]);
    // As long as its lease lives nobody can tell, and nobody else may run.
    assert_eq!(row(etcd, &name)[1], "held");
    etcd.revoke(&entry);
    let cells = row(etcd, &name);
    assert_eq!(
        (cells[1].as_str(), &cells[10..]),
        ("vanished", &["ann".to_owned(), "#oncall".to_owned()][..])
    );
    let text = status(etcd, [&name]);
    assert!(
        text.contains("the last run vanished") && text.contains("#oncall"),
        "{text}"
    );
    assert_eq!(text.matches("#oncall").count(), 1, "once is enough: {text}");
    let json = lock(etcd, &name);
    assert_eq!(
        (&json["state"], &json["taken"], &json["holder"]),
        (&"vanished".into(), &false.into(), &Value::Null)
    );
    assert_eq!(json["vanished"][0]["lease"], lease_of(&entry));
    assert_eq!(json["vanished"][0]["who"]["owner"], "ann");
    Meshlock::ask(etcd, "status")
        .args(["--check", &name])
        .finish()
        .success();

    // A tenth of its TTL.
    let next = wait_behind(etcd, &name, 1, &[]);
    let json = lock(etcd, &name);
    assert_eq!(
        (&json["state"], &json["waiters"], &json["since"]),
        (&"handover".into(), &1.into(), &Value::Null)
    );
    assert!(status(etcd, [&name]).contains("after the hand-over delay"));
    next.signal(Signal::SIGTERM);
    next.finish().any_stderr().signaled(Signal::SIGTERM);
}

#[test]
fn a_run_under_a_key_of_its_own_has_not_vanished() {
    let etcd = Etcd::shared();
    let key = unique("jobs/own");
    let holder = hold(etcd, "deploy", &["--lock-key", &key]);
    let row = || row(etcd, &format!("{key} (--lock-key)"));
    let cells = row();
    assert_eq!((cells[1].as_str(), cells[5].as_str()), ("held", "0"), "{cells:?}");
    let json: Value = serde_json::from_str(&status(etcd, ["--json"])).expect("JSON");
    let json = json["locks"]
        .as_array()
        .expect("locks")
        .iter()
        .find(|lock| lock["name"] == *key);
    let json = json.expect("the lock");
    assert_eq!((&json["state"], &json["taken"]), (&"held".into(), &true.into()));
    assert_eq!(json["holder"]["who"]["pid"], holder.pid());
    assert!(status(etcd, ["--lock-key", &key]).starts_with(&format!("{key} (--lock-key): held by ")));
    holder.finish().stdout("held\n").success();
    assert_eq!(row()[1], "free");
}

#[test]
fn all_states_at_once_are_one_line_each() {
    let etcd = Etcd::start();
    Meshlock::ask(&etcd, "status")
        .finish()
        .stderr_line(["there is no lock under \"meshlock/\"", &etcd.address()])
        .success();
    Meshlock::run(&etcd, "b").finish().success();
    let holder = hold(&etcd, "a/b c", &[]);
    etcd.put("meshlock/freeze/c-d", "{}");
    etcd.put("meshlock/freeze/c", "{}");
    etcd.put("meshlock/lock/b-1/7f", "");
    let text = status(&etcd, []);
    let names: Vec<&str> = text
        .lines()
        .map(|line| line.split("  ").next().expect("a name"))
        .collect();
    assert_eq!(names, ["NAME", "a/b c", "b", "b-1", "c", "c-d"]);
    let words: Vec<usize> = text.lines().map(|line| line.find("SINCE").unwrap_or(0)).collect();
    assert!(
        words[0] > 0 && !text.contains('\u{1b}') && !text.contains('…'),
        "{text}"
    );
    // Named ones come in the order in which they are named.
    let text = status(&etcd, ["--json", "c", "b"]);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&json["locks"][0]["name"], &json["locks"][1]["name"]),
        (&"c".into(), &"b".into())
    );
    let json: Value = serde_json::from_str(&status(&etcd, ["--json"])).expect("JSON");
    schema::assert_valid("status.schema.json", &json);
    assert_eq!(
        (json["locks"].as_array().map(Vec::len), &json["locks"][0]["queue"]),
        (Some(5), &Value::Null)
    );
    holder.finish().stdout("held\n").success();
}

#[test]
fn nothing_in_etcd_can_break_it_or_steer_a_terminal() {
    let etcd = Etcd::start();
    let evil = "a\\u001b[2J\\u202eb\\u200bc\\u009bd\\n";
    let holder = |format: u32, reason: &str| {
        format!(
            r#"{{"format":{format},"host":"h{evil}","user":"u","pid":1,"program":"p","started":"{evil}","reason":"{reason}","owner":{{}}"#
        )
    };
    for (key, value) in [
        ("lock/evil/1", holder(1, evil).replace(r#","owner":{}"#, "") + "}"),
        ("lock/types/1", holder(1, evil) + "}"),
        (
            "lock/future/1",
            holder(2, evil).replace(r#","owner":{}"#, "") + r#","more":[1]}"#,
        ),
        ("lock/broken/1", "{".to_owned()),
        ("lock/raw/1", "\u{1b}]0;title\u{7}\u{202e}".to_owned()),
        ("lock/we ird\u{202e}/x/y", String::new()),
        ("lock/stray", String::new()),
        ("lock//1", String::new()),
        ("open/evil/zz", "{".to_owned()),
        ("open/gone/1f", "{".to_owned()),
        ("log/evil/zz", evil.to_owned()),
        (
            "log/evil/0000000000000001",
            holder(1, evil).replace(r#","owner":{}"#, "")
                + &format!(r#","token":1,"result":"{evil}","status":null,"acquired":"{evil}","ended":"9999-99-99"}}"#),
        ),
        (
            "freeze/evil",
            format!(r#"{{"format":1,"by":"{evil}","reason":"{evil}"}}"#),
        ),
        ("mark/evil/once", evil.to_owned()),
        ("ask/evil/1", format!(r#"{{"format":1,"kind":"{evil}","token":0}}"#)),
    ] {
        etcd.put(&format!("meshlock/{key}"), &value);
    }
    for arguments in [
        &[][..],
        &["evil", "types", "future", "broken", "raw", "gone"],
        &["--prometheus"],
        &["--json"],
        &["--json", "evil", "raw"],
        &["--check"],
    ] {
        let said = Meshlock::ask(&etcd, "status")
            .args(arguments)
            .finish()
            .any_stdout()
            .any_stderr()
            .any_code([0, 75]);
        let all = said.stdout.clone() + &said.stderr;
        let bad = all
            .chars()
            .find(|char| *char != '\n' && (char.is_control() || "\u{202e}\u{200b}".contains(*char)));
        assert_eq!(bad, None, "{arguments:?}: {}", said.stdout);
        if arguments.first() == Some(&"--json") {
            schema::assert_valid("status.schema.json", &serde_json::from_str(&said.stdout).expect("JSON"));
        }
    }
    for name in ["types", "future", "broken", "raw"] {
        assert_eq!(row(&etcd, name)[1..3], ["held", "unknown (not meshlock)"], "{name}");
    }
    assert_eq!(row(&etcd, "gone")[1], "vanished");
    assert_eq!(
        lock(&etcd, "raw")["holder"]["value"],
        "\u{1b}]0;title\u{7}\u{202e}",
        "for programs as it is"
    );
}

#[test]
fn values_that_do_not_fit_into_one_message_are_no_obstacle() {
    let etcd = Etcd::start();
    let large = "x".repeat(1_400_000);
    for number in 1..=4 {
        for key in [
            format!("meshlock/lock/large/{number}"),
            format!("meshlock/log/large/{number:016x}"),
            format!("meshlock/lock/large-{number}/1"),
        ] {
            let mut put = etcd
                .etcdctl_command()
                .args(["put", &key])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("etcdctl");
            std::io::Write::write_all(&mut put.stdin.take().expect("a pipe"), large.as_bytes()).expect("written");
            assert!(put.wait().expect("etcdctl").success());
        }
    }
    let json = lock(&etcd, "large");
    assert_eq!(
        (&json["waiters"], json["runs"].as_array().map(Vec::len)),
        (&3.into(), Some(4))
    );
    let value = json["queue"][3]["value"].as_str().map(|value| value.chars().count());
    assert_eq!(value, Some(1001), "and an ellipsis");
    for number in 1..=4 {
        assert_eq!(row(&etcd, &format!("large-{number}"))[1], "held");
    }
    let said = Meshlock::ask(&etcd, "history").finish().any_stdout().success();
    assert_eq!(said.stdout.lines().count(), 5, "{}", said.stdout);
}

#[test]
fn keys_that_do_not_fit_into_one_message_are_no_obstacle() {
    let etcd = Etcd::start();
    let large = "k".repeat(120_000);
    for number in 10..46 {
        etcd.put(&format!("meshlock/mark/keys/{number}{large}"), "1");
        etcd.put(&format!("meshlock/open/{number}{large}/1"), "{}");
    }
    etcd.put("meshlock/lock/keys/1f", "");
    etcd.put("meshlock/freeze/keys", "{}");
    let json = lock(&etcd, "keys");
    assert_eq!((&json["state"], &json["waiters"]), (&"held".into(), &0.into()));
    assert_eq!(json["marks"].as_array().map(Vec::len), Some(36));
    assert!(!json["frozen"].is_null(), "{json}");
    assert_eq!(row(&etcd, "keys")[1], "held,frozen");
}

#[test]
fn the_right_to_read_is_enough() {
    let mut etcd = Etcd::start();
    let holder = hold(&etcd, "rights", &[]);
    etcd.etcdctl(&["role", "add", "reader"]);
    etcd.etcdctl(&[
        "role",
        "grant-permission",
        "reader",
        "read",
        "--prefix=true",
        "meshlock/",
    ]);
    etcd.etcdctl(&["user", "add", "eve:secret"]);
    etcd.etcdctl(&["user", "grant-role", "eve", "reader"]);
    etcd.enable_auth();
    let ask = |arguments: &[&str]| {
        Meshlock::ask(&etcd, "status")
            .args(["--user", "eve:secret"])
            .args(arguments)
            .finish()
    };
    let text = ask(&["rights"]).any_stdout().success().stdout;
    assert!(
        text.contains("rights: held by") && text.contains("left of a TTL of"),
        "{text}"
    );
    assert!(ask(&[]).any_stdout().success().stdout.contains("held"));
    Meshlock::ask(&etcd, "history")
        .args(["--user", "eve:secret"])
        .finish()
        .stderr_line(["no run is recorded"])
        .success();
    ask(&["--prefix", "other/"])
        .stderr_line(["permission denied"])
        .status(77);
    // Auth came after its start: it cannot know the password, and is lost.
    holder.signal(Signal::SIGKILL);
    drop(holder);
}

#[test]
fn an_etcd_that_is_away_is_told_in_time() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(
        etcd.address()
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .expect("a port"),
    );
    proxy.hold();
    for command in ["status", "history"] {
        let start = Instant::now();
        let ask = Meshlock::ask(&etcd, command).without_endpoints();
        let away = ask
            .args([&format!("--endpoints={}", proxy.endpoint()), "--dial-timeout=0.3"])
            .finish();
        away.stderr_line(["etcd could not be reached", &proxy.endpoint()])
            .status(69);
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "the default is 5 s, and it was asked for less"
        );
    }
}

#[test]
fn a_run_of_which_nothing_is_known_is_not_taken_for_a_free_lock() {
    let etcd = Etcd::start();
    let lease = 0x0123_4567_89ab_cdef_i64;
    etcd.put(
        &format!("meshlock/open/silent/{lease:x}"),
        r#"{"format":1,"ttl_ms":30000}"#,
    );
    let port = etcd.address().rsplit(':').next().and_then(|port| port.parse().ok());
    let proxy = Proxy::to(port.expect("a port"));
    let check = |arguments: &[&str]| {
        Meshlock::ask(&etcd, "status")
            .without_endpoints()
            .args([&format!("--endpoints={}", proxy.endpoint()), "--dial-timeout=0.3"])
            .args(arguments)
            .finish()
    };
    check(&["--check", "silent"]).success();
    // Whether that run has vanished its lease alone tells. In the keys it is written in hexadecimal, so only the
    // question for it has it as protobuf writes numbers: seven bits each.
    let mut question = Vec::new();
    let mut rest = lease;
    while rest > 0 {
        question.push(u8::try_from(rest & 0x7f).expect("seven bits") | if rest > 0x7f { 0x80 } else { 0 });
        rest >>= 7;
    }
    for arguments in [&["--check", "silent"][..], &["silent"], &[]] {
        proxy.heal();
        proxy.hold_up_from(&question);
        check(arguments).stderr_line(["etcd could not be reached"]).status(69);
    }
}

#[test]
fn monitors_are_answered_by_the_exit_status() {
    let etcd = Etcd::shared();
    let name = unique("check");
    let check = |arguments: &[&str]| {
        Meshlock::ask(etcd, "status")
            .args(["--check"])
            .args(arguments)
            .args([&name])
            .finish()
    };
    check(&[]).success();
    check(&["--warn-after", "1h"]).success();
    let holder = hold(etcd, &name, &[]);
    check(&[])
        .stderr_line([&format!("meshlock: {name}: held by ")])
        .status(75);
    check(&["--warn-after", "1h"]).success();
    // Times are kept in whole seconds.
    eventually("it is held for more than no time", || {
        so(check(&["--warn-after", "0"]).any_stderr().code() == Some(1))
    });
    check(&["--warn-after", "0"]).stderr_line([&name]).status(1);
    holder.finish().stdout("held\n").success();
    etcd.put(&format!("meshlock/lock/{name}/1f"), "");
    check(&["--warn-after", "1h"])
        .stderr_line(["unknown (not meshlock)"])
        .status(1);
    etcd.del(&format!("meshlock/lock/{name}/1f"));
    for wrong in [
        &["--warn-after", "1h"][..],
        &["--json", "--watch"],
        &["--lock-key", "k", "a", "b"],
        &["a,b"],
        &["--check", "--json"],
    ] {
        Meshlock::ask(etcd, "status")
            .args(wrong)
            .finish()
            .any_stderr()
            .status(64);
    }
}

#[test]
fn metrics_are_in_prometheus_format() {
    let etcd = Etcd::start();
    Meshlock::run(&etcd, "a\"b\\c").sh("exit 3").finish().status(3);
    let holder = hold(&etcd, "held", &[]);
    let text = status(&etcd, ["--prometheus"]);
    for line in [
        "# TYPE meshlock_held gauge",
        "meshlock_held{lock=\"held\"} 1",
        "meshlock_held{lock=\"a\\\"b\\\\c\"} 0",
        "meshlock_waiters{lock=\"held\"} 0",
        "meshlock_last_run_status{lock=\"a\\\"b\\\\c\"} 3",
        "meshlock_last_run_failed{lock=\"a\\\"b\\\\c\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    // Samples stand together under their metric's HELP and TYPE, in this order.
    let mut metric = "";
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            metric = help.split(' ').next().expect("a name");
        } else {
            assert!(
                line.starts_with(&format!("# TYPE {metric} ")) || line.starts_with(&format!("{metric}{{")),
                "{line}"
            );
        }
    }
    assert!(text.contains("meshlock_held_seconds{lock=\"held\"}") && text.contains("_end_timestamp_seconds{"));
    holder.finish().stdout("held\n").success();
}

#[test]
fn one_lock_takes_two_round_trips() {
    let etcd = Etcd::start();
    // A holder of ours would renew in between.
    let lease = etcd.etcdctl(&["lease", "grant", "600"]);
    let lease = lease.split(' ').nth(1).expect("an id");
    etcd.etcdctl(&["put", &format!("--lease={lease}"), "meshlock/lock/billing/1f", ""]);
    let calls = || etcd.metric("grpc_server_started_total", "");
    let before = calls();
    assert!(status(&etcd, ["billing"]).contains("left of a TTL of 10m"));
    assert!(calls() - before <= 2.0, "{}", calls() - before);
    let before = calls();
    let revision = etcd.revision();
    status(&etcd, ["free"]);
    assert!(calls() - before <= 2.0, "one, and etcdctl's own");
    assert_eq!(etcd.revision(), revision, "nothing is written");
}

#[test]
fn the_last_columns_to_give_way_are_those_that_a_called_person_needs() {
    let etcd = Etcd::start();
    let call = format!(
        "NO_COLOR=1 {} status --endpoints={}",
        meshlock::binary().display(),
        etcd.address()
    );
    let mut terminal = Terminal::open("bash");
    terminal.run("stty cols 80 rows 24; export TERM=xterm");
    let purpose = ["--owner", "team-of-invoices", "--route", "#billing-oncall"];
    Meshlock::run(&etcd, "billing-of-invoices")
        .args(purpose)
        .sh("exit 3")
        .finish()
        .status(3);
    let holder = hold(&etcd, "billing-of-invoices", &purpose);
    let shown = terminal.run(&call);
    let (header, row) = shown.split_once('\n').expect("two lines");
    for column in ["NAME", "STATE", "HOLDER", "FOR", "WAITERS", "LAST", "ROUTE"] {
        assert!(header.contains(column), "{column} in\n{shown}");
    }
    assert!(row.contains("exit(3)") && row.contains("#billin"), "{shown}");
    holder.finish().stdout("held\n").success();
    let shown = terminal.run(&call);
    assert!(
        shown.contains("OWNER") && shown.contains("AGO"),
        "nobody is to be called: {shown}"
    );
}

#[test]
fn what_vanished_is_shown_with_how_long_ago_and_when_it_started() {
    let etcd = Etcd::start();
    let entry = vanish(&etcd, "gone", &["--ttl", "60"]);
    etcd.revoke(&entry);
    let text = status(&etcd, ["gone"]);
    let said = |label: &str| {
        let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix(label));
        lines.map(str::trim).next().expect(label).to_owned()
    };
    assert!(
        said("started").ends_with('Z') && said("vanished").contains("Z, less than "),
        "{text}"
    );
    assert!(said("delay").starts_with("6s"), "a tenth of the TTL: {text}");
    assert!(!text.contains("\nvanished"), "that is all: {text}");

    // Once somebody has come it is one thing beside others.
    let waiter = wait_behind(&etcd, "gone", 1, &[]);
    let text = status(&etcd, ["gone"]);
    let (_, table) = text.split_once("\nvanished").expect("the table");
    let cells = |number: usize| -> Vec<String> {
        let line = table.lines().nth(number).expect("a line");
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(ToOwned::to_owned).collect()
    };
    let (titles, row) = (cells(1), cells(2));
    let cell = |title: &str| &row[titles.iter().position(|other| other == title).expect(title)];
    assert!(cell("STARTED").ends_with('Z') && cell("AGO").ends_with('s'), "{text}");
    assert_eq!(cell("DELAY"), "6s", "a tenth of the TTL: {text}");
    waiter.signal(Signal::SIGTERM);
    waiter.finish().any_stderr().signaled(Signal::SIGTERM);
}

#[test]
fn no_line_of_prose_breaks_within_a_word() {
    let etcd = Etcd::start();
    let name = "a-lock-with-a-name-of-some-length";
    let entry = vanish(&etcd, name, &["--reason", &"why not ".repeat(20)]);
    etcd.revoke(&entry);
    let mut terminal = Terminal::open("bash");
    terminal.run("stty cols 80 rows 40; export TERM=xterm");
    let binary = meshlock::binary().display();
    let shown = terminal.run(&format!(
        "NO_COLOR=1 {binary} status --endpoints={} {name}",
        etcd.address()
    ));
    let joined = |separator: &str| {
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        lines.join(separator)
    };
    for line in shown.lines() {
        assert!(line.trim_end().chars().count() <= 80, "{line}");
    }
    let text = joined(" ");
    assert!(text.contains("its lease ended without a release "), "{shown}");
    assert!(text.contains(&"why not ".repeat(20)), "{shown}");
}

#[test]
fn a_standard_output_that_is_closed_is_a_failure() {
    let etcd = Etcd::start();
    let endpoints = format!("--endpoints={}", etcd.address());
    etcd.put("meshlock/log/a/0000000000000001", "{}");
    for arguments in [
        "status --json",
        "status",
        "status a",
        "status --prometheus",
        "status --watch",
        "history",
        "history --json",
        "doctor",
        "doctor --json",
    ] {
        unwritable(&format!("{arguments} {endpoints}"), ">&-", "Bad file");
    }
    for arguments in ["--help", "--version", "run --help", "status -h"] {
        unwritable(arguments, ">&-", "Bad file");
        unwritable(arguments, ">/dev/full", "No space left");
    }
    let script = format!("{} status --check a {endpoints} >&-", meshlock::binary().display());
    let said = meshlock::plain(&["sh", "-c", &script].map(Into::into))
        .output()
        .expect("sh");
    assert_eq!(said.status.code(), Some(0), "it has nothing to write");
}

#[track_caller]
fn unwritable(arguments: &str, to: &str, why: &str) {
    let script = format!("{} {arguments} {to}", meshlock::binary().display());
    let output = meshlock::plain(&["sh", "-c", &script].map(Into::into))
        .output()
        .expect("sh");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = format!("meshlock: standard output cannot be written: {why}");
    assert!(said.starts_with(&line) && said.lines().count() == 1, "{script}: {said}");
    assert_eq!(output.status.code(), Some(78), "{script}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let etcd = Etcd::start();
    for number in 0..400 {
        etcd.put(&format!("meshlock/freeze/{number}"), "{}");
    }
    for arguments in ["", "--json", "--prometheus"] {
        let binary = meshlock::binary().display();
        let script = format!(
            "{binary} status --endpoints={} {arguments} | head -n 1 >/dev/null; exit ${{PIPESTATUS[0]}}",
            etcd.address()
        );
        let words = ["bash", "-c", &script].map(Into::into);
        let output = meshlock::plain(&words).output().expect("bash");
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()),
            (Some(0), "")
        );
    }
    unwritable(
        &format!("status --endpoints={}", etcd.address()),
        ">/dev/full",
        "No space left",
    );
}
