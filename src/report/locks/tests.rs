//! What cannot be provoked at will in a real etcd: leases that are over, or of which it says nothing.

use super::super::plain;
use super::*;
use crate::lock::board::Unread;
use crate::lock::board::pieces::{Entry, Life};
use std::time::Duration;

fn held(life: Life) -> Board {
    let entry = Entry {
        key: "meshlock/lock/a/7f".to_owned(),
        token: 10,
        lease: 0x7f,
        holder: None,
        value: String::new(),
        life,
        asked: None,
    };
    let lock = Lock {
        name: "a".to_owned(),
        key: "meshlock/lock/a/".to_owned(),
        lock_key: None,
        namesake: None,
        queue: vec![entry],
        length: 1,
        hidden: false,
        open: Vec::new(),
        frozen: None,
        runs: Vec::new(),
        marks: Some(Vec::new()),
        stray_asks: Vec::new(),
        unread: Unread::default(),
    };
    Board {
        cluster: 1,
        revision: 2,
        locks: vec![lock],
    }
}

#[test]
fn a_lease_that_is_over_while_its_key_is_there_is_said() {
    let granted = Duration::from_secs(30);
    let now = SystemTime::now();
    for (life, glance, whole, json) in [
        (
            Life::Overdue { granted },
            "overdue",
            "7f, overdue: its TTL of 30s is over",
            r#""lease_state": "overdue""#,
        ),
        (
            Life::Unbound,
            "none",
            "none: the key stays until somebody deletes it",
            r#""lease_state": "unbound""#,
        ),
        (Life::Unknown, "-", "lease     7f\n", r#""ttl_left_seconds": null"#),
    ] {
        let board = held(life);
        let table = plain(&status(&board, Detail::Glance, now, None));
        let columns = |line: &str| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .map(ToOwned::to_owned)
                .collect::<Vec<_>>()
        };
        let rows: Vec<Vec<String>> = table.lines().map(columns).collect();
        assert_eq!((rows[0][6].as_str(), rows[1][6].as_str()), ("TTL", glance), "{table}");
        let picture = plain(&status(&board, Detail::Whole, now, None));
        assert!(picture.contains(whole), "{picture}");
        assert!(status_json(&board, now).contains(json));
    }
}
