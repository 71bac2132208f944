//! `meshlock history` says how the last runs ended, and which of them were not meant to.

use crate::harness::{Etcd, Meshlock, Terminal, meshlock, schema, unique};
use serde_json::Value;

fn history(etcd: &Etcd, arguments: &[&str]) -> Vec<Value> {
    let said = Meshlock::ask(etcd, "history")
        .args(["--json"])
        .args(arguments)
        .finish()
        .any_stdout()
        .success();
    let json: Value = serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {}", said.stdout));
    schema::assert_valid("history.schema.json", &json);
    json["runs"].as_array().expect("runs").clone()
}

fn ran(etcd: &Etcd, name: &str, options: &[&str], status: i32) {
    Meshlock::run(etcd, name)
        .args(options)
        .sh(&format!("exit {status}"))
        .finish()
        .status(status);
}

#[test]
fn the_newest_run_comes_first_and_the_exceptions_can_be_had_alone() {
    let etcd = Etcd::start();
    let (name, other) = (unique("runs"), unique("other/runs"));
    ran(&etcd, &name, &["--owner", "ann", "--route", "#oncall"], 0);
    ran(&etcd, &other, &[], 1);
    ran(&etcd, &name, &["--expect", "0,3"], 3);
    ran(&etcd, &name, &["--expect", "3"], 0);
    Meshlock::run(&etcd, &name)
        .args(["--max-runtime", "0.1"])
        .command(["sleep", "1000"])
        .finish()
        .any_stderr()
        .status(124);

    let all = history(&etcd, &[]);
    let brief = |runs: &[Value]| -> Vec<(String, bool)> {
        runs.iter()
            .map(|run| {
                (
                    format!("{} {}", run["result"].as_str().expect("a result"), run["status"]),
                    run["failed"] == true,
                )
            })
            .collect()
    };
    assert_eq!(
        brief(&all)[1..],
        [
            ("command 0", true),
            ("command 3", false),
            ("command 1", true),
            ("command 0", false)
        ]
        .map(|(text, failed)| (text.to_owned(), failed))
    );
    assert_eq!(
        (&all[0]["result"], &all[0]["failed"]),
        (&"overrun".into(), &true.into())
    );
    assert_eq!(all[3]["name"], other.as_str());
    assert_eq!(all[4]["who"]["owner"], "ann");

    assert_eq!(history(&etcd, &["--failed"]).len(), 3);
    assert_eq!(history(&etcd, &["--failed", &other]).len(), 1);
    assert_eq!(history(&etcd, &["-n", "2"]), all[..2]);
    assert_eq!(history(&etcd, &["--failed", "-n", "1", &name])[0], all[0]);
    assert_eq!(history(&etcd, &[&name]).len(), 4);

    let table = Meshlock::ask(&etcd, "history")
        .args([&name])
        .finish()
        .any_stdout()
        .success()
        .stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("ENDED ") && lines[0].ends_with(" WHY"), "{table}");
    assert!(
        lines[1].contains("  overrun  ") && lines[3].contains("  ok  "),
        "{table}"
    );
    assert!(lines[2].contains("  exit(0)  "), "0 was not what was expected: {table}");
    assert!(
        lines[4].contains("  ann ") && lines[4].contains("  #oncall "),
        "{table}"
    );
}

#[test]
fn a_record_that_cannot_be_read_is_shown_and_counts_as_a_failure() {
    let etcd = Etcd::start();
    for (key, value) in [
        ("meshlock/log/a/0000000000000001", "{"),
        ("meshlock/log/a/zz", r#"{"format":2}"#),
        ("meshlock/log/b%2Fc/0000000000000001", "\u{1b}[2J"),
        ("meshlock/log/stray", ""),
    ] {
        etcd.put(key, value);
    }
    let runs = history(&etcd, &["--failed"]);
    let names: Vec<_> = runs.iter().map(|run| run["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["b/c", "a", "a"]);
    assert!(
        runs.iter().all(|run| run["result"].is_null() && run["failed"] == true),
        "{runs:?}"
    );
    let table = Meshlock::ask(&etcd, "history").finish().any_stdout().success().stdout;
    assert_eq!(table.matches("  unknown (not meshlock)  ").count(), 3, "{table}");
    assert!(!table.contains('\u{1b}'));
}

#[test]
fn more_runs_than_a_page_holds_are_all_looked_at() {
    let etcd = Etcd::start();
    let puts: Vec<String> = (1..=2500)
        .map(|number| format!("put meshlock/log/many/{number:016x} {{}}"))
        .collect();
    for part in puts.chunks(100) {
        let script = format!("\n{}\n\n\n", part.join("\n"));
        let mut txn = etcd
            .etcdctl_command()
            .arg("txn")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("etcdctl");
        std::io::Write::write_all(&mut txn.stdin.take().expect("a pipe"), script.as_bytes()).expect("written");
        assert!(txn.wait().expect("etcdctl").success());
    }
    assert_eq!(history(&etcd, &["-n", "3000"]).len(), 2500);
    let newest = history(&etcd, &["-n", "1"]);
    assert!(
        newest[0]["key"].as_str().expect("a key") > "meshlock/log/many/0000000000000960",
        "{newest:?}"
    );
}

#[test]
fn a_long_reason_is_cut_before_anybody_to_call_is_left_out() {
    let etcd = Etcd::start();
    let run = format!(
        r#"{{"format":1,"host":"web1","user":"ops","pid":1,"program":"sh","started":"2026-01-01T00:00:00Z","owner":"team","route":"{}",
        "token":1,"result":"lost","status":null,"acquired":"2026-01-01T00:00:00Z","ended":"2026-01-01T00:01:00Z","why":"{}"}}"#,
        "#billing-oncall-of-all-nights",
        "it could not be renewed in time ".repeat(9)
    );
    etcd.put("meshlock/log/billing/0000000000000001", &run);
    let mut terminal = Terminal::open("bash");
    terminal.run("stty cols 80 rows 24; export TERM=xterm");
    let binary = meshlock::binary().display();
    let shown = terminal.run(&format!("NO_COLOR=1 {binary} history --endpoints={}", etcd.address()));
    let (header, row) = shown.split_once('\n').expect("two lines");
    for column in ["OWNER", "ROUTE", "WHY"] {
        assert!(header.contains(column), "{column} in\n{shown}");
    }
    assert!(row.contains("  team ") && row.contains("#billin"), "{shown}");
}

#[test]
fn where_nothing_ran_nothing_is_shown() {
    let etcd = Etcd::shared();
    let none = unique("none");
    assert_eq!(history(etcd, &[&none]), [Value::Null; 0]);
    for (arguments, said) in [(&[&*none][..], "no run of"), (&["--failed", &none], "no failed run of")] {
        let asked = Meshlock::ask(etcd, "history").args(arguments).finish();
        asked.stderr_line([said, &none, "is recorded"]).success();
    }
    for wrong in [&["-n", "x"][..], &["-n", "0"], &["a", "b"], &["a,b"]] {
        Meshlock::ask(etcd, "history")
            .args(wrong)
            .finish()
            .any_stderr()
            .status(64);
    }
}
