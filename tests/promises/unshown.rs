//! What `meshlock status` leaves out it says, and nothing that matters hides behind what does not.

use crate::harness::etcd::lease_of;
use crate::harness::{Etcd, Meshlock, schema};
use serde_json::Value;
use std::process::Stdio;

fn text(etcd: &Etcd, name: &str) -> String {
    let said = Meshlock::ask(etcd, "status").args([name]).finish();
    said.any_stdout().success().stdout
}

fn json(etcd: &Etcd, name: &str) -> Value {
    let said = Meshlock::ask(etcd, "status").args(["--json", name]).finish();
    let json: Value = serde_json::from_str(&said.any_stdout().success().stdout).expect("JSON");
    schema::assert_valid("status.schema.json", &json);
    json["locks"][0].clone()
}

/// Many keys, a hundred in a transaction each.
fn put(etcd: &Etcd, keys: impl IntoIterator<Item = String>) {
    let puts: Vec<String> = keys.into_iter().map(|key| format!("put {key} {{}}")).collect();
    for part in puts.chunks(100) {
        etcd.txn(&part.join("\n"));
    }
}

#[test]
fn what_is_asked_of_the_holder_is_shown_behind_any_number_of_older_asks() {
    let etcd = Etcd::start();
    put(
        &etcd,
        (1..=150).map(|number| format!("meshlock/ask/billing/{number:x}")),
    );
    let mut holder = Meshlock::run(&etcd, "billing")
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let entry = etcd.wait_for_queue("billing", 1).remove(0);
    let (lease, token) = (lease_of(&entry).to_owned(), etcd.created(&entry));
    let ask = |token: i64| format!(r#"{{"format":1,"kind":"tidy","token":{token},"by":"ann","reason":"please"}}"#);
    etcd.put(&format!("meshlock/ask/billing/{lease}"), &ask(token));
    holder.wait_for_stderr("tidy");
    let shown = text(&etcd, "billing");
    let asked = shown.lines().find(|line| line.trim_start().starts_with("asked "));
    assert!(
        asked.is_some_and(|line| line.ends_with("tidy by ann: please")),
        "{shown}"
    );
    assert!(
        shown.contains("asked of nobody") && shown.contains("and 50 more that were not looked at"),
        "{shown}"
    );
    let json = json(&etcd, "billing");
    assert_eq!(json["holder"]["asked"]["by"], "ann");
    assert_eq!(json["stray_asks"].as_array().map(Vec::len), Some(100));
    assert_eq!(json["unread"]["stray_asks"], 50);
    holder.finish().stdout("held\n").any_stderr().success();
}

#[test]
fn an_ask_that_concerns_nobody_is_shown_as_such() {
    let etcd = Etcd::start();
    etcd.put("meshlock/lock/billing/7f", "");
    let ask = |token: i64, by: &str| format!(r#"{{"format":1,"kind":"break","token":{token},"by":"{by}"}}"#);
    etcd.put("meshlock/ask/billing/7f", &ask(1, "late"));
    etcd.put("meshlock/ask/billing/80", &ask(1, "gone"));
    etcd.put("meshlock/ask/billing/zz", "{");
    let shown = text(&etcd, "billing");
    let (_, strays) = shown.split_once("asked of nobody").unwrap_or_else(|| panic!("{shown}"));
    for (by, key) in [("late", "7f"), ("gone", "80"), ("-", "zz")] {
        let key = format!("meshlock/ask/billing/{key}");
        assert!(
            strays
                .lines()
                .any(|line| line.contains(&format!("  {by} ")) && line.contains(&key)),
            "{shown}"
        );
    }
    let json = json(&etcd, "billing");
    assert_eq!(json["holder"]["asked"], Value::Null, "it is of another hold");
    assert_eq!(json["stray_asks"][0]["asked"]["by"], "late");
    assert_eq!(json["stray_asks"][2]["asked"], Value::Null);
    Meshlock::run(&etcd, "other").finish().success();
}

#[test]
fn every_cut_is_told() {
    let etcd = Etcd::start();
    put(&etcd, (0..103).map(|number| format!("meshlock/mark/many/{number:03}")));
    put(&etcd, (1..=8).map(|number| format!("meshlock/log/many/{number:016x}")));
    put(&etcd, (1..=1004).map(|number| format!("meshlock/open/many/{number:x}")));
    let shown = text(&etcd, "many");
    for (title, more) in [
        ("last runs", "and 3 more in meshlock history many"),
        ("marks", "and 3 more before them"),
        ("died waiting: ", "and 4 more that were not looked at"),
    ] {
        let section = shown
            .split_once(&format!("\n{title}"))
            .unwrap_or_else(|| panic!("{shown}"))
            .1;
        let told = section.lines().skip(1).find(|line| line.contains("and "));
        assert!(told.is_some_and(|line| line.trim() == more), "{title} {more}: {told:?}");
    }
    let whole = json(&etcd, "many");
    assert_eq!(
        (
            &whole["unread"]["runs"],
            &whole["unread"]["marks"],
            &whole["unread"]["vanished"]
        ),
        (&3.into(), &3.into(), &4.into())
    );
    let all = Meshlock::ask(&etcd, "status").args(["--json"]).finish();
    let all: Value = serde_json::from_str(&all.any_stdout().success().stdout).expect("JSON");
    schema::assert_valid("status.schema.json", &all);
    let glance = &all["locks"][0];
    let told = |what: &str| glance[what].as_array().map(Vec::len);
    assert_eq!((told("vanished"), told("died_waiting")), (Some(1), Some(999)));
    assert_eq!(
        (&glance["unread"]["vanished"], &glance["unread"]["marks"]),
        (&4.into(), &Value::Null)
    );
}

#[test]
fn a_text_that_is_too_long_ends_in_an_ellipsis_and_json_says_so() {
    let etcd = Etcd::start();
    let (long, fits) = ("é".repeat(1001), "é".repeat(1000));
    let record = |reason: &str| {
        format!(
            r#"{{"format":1,"host":"h","user":"u","pid":1,"program":"p","started":"2026-11-30T10:00:00Z","reason":"{reason}"}}"#
        )
    };
    etcd.put("meshlock/lock/long/7f", &record(&long));
    etcd.put("meshlock/lock/fits/7f", &record(&fits));
    etcd.put(
        "meshlock/freeze/long",
        &format!(r#"{{"format":1,"by":"ann","reason":"{long}"}}"#),
    );
    etcd.put("meshlock/mark/long/once", &long);
    etcd.put("meshlock/lock/raw/7f", &long);
    let (cut, whole, raw) = (json(&etcd, "long"), json(&etcd, "fits"), json(&etcd, "raw"));
    assert_eq!(cut["holder"]["who"]["reason"], format!("{fits}…"));
    for said in [&cut["holder"]["who"], &cut["frozen"], &cut["marks"][0]] {
        assert_eq!(said["cut"], true, "{said}");
    }
    assert_eq!(whole["holder"]["who"]["reason"], fits);
    assert_eq!(whole["holder"]["who"]["cut"], false);
    assert_eq!(
        (&raw["holder"]["value_cut"], &cut["holder"]["value_cut"]),
        (&true.into(), &false.into())
    );
    assert!(text(&etcd, "long").contains("é…\n"));
}

#[test]
fn a_huge_key_is_cut_for_people_and_whole_for_programs() {
    let etcd = Etcd::start();
    let name = "n".repeat(100_000);
    put(
        &etcd,
        [format!("meshlock/lock/{name}/7f"), format!("meshlock/lock/a/{name}")],
    );
    let shown = Meshlock::ask(&etcd, "status").finish().any_stdout().success().stdout;
    assert!(
        shown.contains("nnn…  held") && shown.len() < 5000,
        "{} bytes",
        shown.len()
    );
    let shown = text(&etcd, "a");
    assert!(
        shown.contains("nnn…\n") && shown.len() < 10_000,
        "{} bytes",
        shown.len()
    );
    assert_eq!(
        json(&etcd, "a")["holder"]["key"].as_str().map(str::len),
        Some("meshlock/lock/a/".len() + name.len())
    );
}
