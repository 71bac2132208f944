//! What cannot be provoked at will in a real etcd: clocks that differ, revisions that go back, orders of events.

use super::*;

fn item(key: &str, created: i64, value: &str) -> Item {
    Item {
        key: format!("meshlock/{key}"),
        value: value.as_bytes().to_vec(),
        created,
        lease: 0x7f,
    }
}

fn holder(started: &str) -> String {
    format!(r#"{{"format":1,"host":"web1","user":"ops","pid":1,"program":"p","started":"{started}"}}"#)
}

fn run(token: i64, ended: &str) -> String {
    holder("2026-11-30T10:00:00Z").replace(
        '}',
        &format!(
            r#","token":{token},"result":"command","status":0,"acquired":"2026-11-30T10:00:00Z","ended":"{ended}"}}"#
        ),
    )
}

fn lock(read: Read) -> Lock {
    Lock::new(&Place::new("meshlock/", "a").expect("a name"), read)
}

fn held(started: &str) -> Lock {
    lock(Read {
        queue: vec![item("lock/a/7f", 10, &holder(started))],
        length: 1,
        ..Read::default()
    })
}

fn now() -> SystemTime {
    humantime::parse_rfc3339("2026-11-30T12:00:00Z").expect("a time")
}

#[test]
fn a_hold_begins_with_the_end_of_the_run_before_it() {
    let hour = Duration::from_secs(3600);
    for (started, token, ended, since) in [
        ("2026-11-30T10:00:00Z", 5, "2026-11-30T11:00:00Z", now() - hour),
        // It came when nobody was there any more.
        ("2026-11-30T11:00:00Z", 5, "2026-11-30T10:30:00Z", now() - hour),
        // A restored snapshot: a record of a run that is yet to come.
        ("2026-11-30T11:00:00Z", 15, "2026-11-30T11:30:00Z", now() - hour),
        // No times at all.
        ("2026-11-30T11:00:00Z", 5, "yesterday", now() - hour),
    ] {
        let lock = lock(Read {
            queue: vec![item("lock/a/7f", 10, &holder(started))],
            length: 1,
            runs: vec![item("log/a/1", 9, &run(token, ended))],
            ..Read::default()
        });
        assert_eq!(lock.since(), Some(since), "{started} {ended}");
    }
    let unknown = held("soon");
    assert_eq!(unknown.since(), None);
    assert!(
        unknown.is_held_for_longer(hour, now()),
        "nobody would hear of it otherwise"
    );
    let ahead = held("2026-11-30T13:00:00Z");
    assert!(!ahead.is_held_for_longer(hour, now()));
    let far_ahead = held("9999-01-01T00:00:00Z");
    assert!(
        far_ahead.is_held_for_longer(hour, now()),
        "a clock that is wrong silences nobody"
    );
}

#[test]
fn a_queue_that_is_too_long_to_be_read_hides_no_vanished_run_and_invents_none() {
    let opens = vec![
        item("open/a/1", 3, "{}"),
        item("open/a/7f", 10, "{}"),
        item("open/a/80", 11, "{}"),
    ];
    let lock = lock(Read {
        queue: vec![item("lock/a/7f", 10, &holder("2026-11-30T11:00:00Z"))],
        length: 2,
        opens,
        ..Read::default()
    });
    assert_eq!(lock.vanished().map(|open| open.token), Some(3));
    assert_eq!(lock.died_waiting().count(), 0);
    assert_eq!((lock.state(), lock.waiters()), (State::Handover, 2));
}

#[test]
fn only_the_oldest_without_an_entry_can_have_had_its_turn() {
    let judged = |queue: &[i64], ended: i64| {
        let lock = lock(Read {
            queue: queue.iter().map(|token| item("lock/a/7f", *token, "{}")).collect(),
            length: queue.len(),
            opens: vec![item("open/a/1", 5, "{}"), item("open/a/2", 6, "{}")],
            runs: vec![item("log/a/1", ended, &run(1, "2026-11-30T11:00:00Z"))],
            ..Read::default()
        });
        let turns: Vec<Turn> = lock.open.iter().map(|open| open.turn).collect();
        (turns[0], turns[1], lock.in_doubt())
    };
    assert_eq!(judged(&[], 4), (Turn::Came, Turn::NeverCame, None));
    assert_eq!(judged(&[7], 4), (Turn::Came, Turn::NeverCame, None));
    assert_eq!(
        judged(&[3], 2),
        (Turn::NeverCame, Turn::NeverCame, None),
        "still behind it"
    );
    assert_eq!(
        judged(&[], 8),
        (
            Turn::MayHaveCome,
            Turn::NeverCame,
            Some(("meshlock/lock/a/1".to_owned(), 8))
        )
    );
}

#[test]
fn a_freeze_stops_who_came_first_after_it_and_nobody_else() {
    let frozen = |freeze, last| {
        lock(Read {
            queue: vec![item("lock/a/7f", 10, &holder("2026-11-30T11:00:00Z"))],
            length: 1,
            freeze: Some(item("freeze/a", freeze, "{}")),
            runs: vec![item("log/a/1", last, &run(5, "2026-11-30T11:00:00Z"))],
            ..Read::default()
        })
        .state()
    };
    assert_eq!(frozen(9, 4), State::Frozen, "came after the freeze");
    assert_eq!(frozen(11, 4), State::Held, "held before the freeze");
    assert_eq!(frozen(11, 12), State::Frozen, "waited while it was frozen");
}
