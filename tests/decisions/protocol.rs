//! The protocol's promises that no single fault would show: what a transaction insists on, and what an answer is
//! taken to mean.

use meshlock::link::Ended;
use meshlock::lock::keys::Place;
use meshlock::lock::protocol::{Departure, Gone, How, Left, Ours, Protocol};
use meshlock::lock::queue::{Heir, Outdated, Renewal};
use meshlock::lock::record::{FORMAT, Holder, Purpose, Run, VANISHED};
use meshlock::moment::Moment;
use meshlock::store::{Alive, Answer, Found, If, Item, Op, Txn};
use std::time::Duration;

const LEASE: i64 = 5;
const TOKEN: i64 = 7;

fn protocol() -> Protocol {
    let holder = Holder {
        format: FORMAT,
        host: String::new(),
        user: String::new(),
        pid: 1,
        program: String::new(),
        started: String::new(),
        purpose: Purpose::default(),
    };
    Protocol {
        place: Place::new("", "n").expect("a name"),
        holder,
        keep: 3,
    }
}

fn entry(lease: i64, created: i64) -> Item {
    Item {
        key: protocol().place.entry(lease),
        value: Vec::new(),
        created,
        lease,
    }
}

fn found(items: Vec<Item>) -> Found {
    let all = i64::try_from(items.len()).expect("a few");
    Found { items, all }
}

fn answer(term: u64, reads: Vec<Found>) -> Answer {
    Answer {
        succeeded: true,
        cluster: 1,
        revision: 9,
        term,
        reads,
    }
}

/// Sent at one second, answered after so many milliseconds in term 3; then the read.
fn renewal(took: u64, own_entry: Item, term: u64) -> Renewal {
    let sent = Moment::from_nanos(1_000_000_000);
    let alive = Alive {
        sent,
        ttl: Some(Duration::from_secs(10)),
        term: 3,
    };
    let ours = Ours {
        lease: LEASE,
        token: TOKEN,
        within: Duration::from_secs(1),
    };
    let answered = sent + Duration::from_millis(took);
    Protocol::judge_renewal(ours, alive, answered, answer(term, vec![found(vec![own_entry])]))
}

#[test]
fn a_renewal_counts_only_in_time_and_in_one_term_with_our_very_entry() {
    let accepted = |renewal| matches!(renewal, Renewal::Accepted { .. });
    assert!(accepted(renewal(1000, entry(LEASE, TOKEN), 3)));
    assert!(!accepted(renewal(1001, entry(LEASE, TOKEN), 3)));
    assert!(!accepted(renewal(10, entry(LEASE, TOKEN), 4)));
    let bound_to_another = Item {
        lease: LEASE + 1,
        ..entry(LEASE, TOKEN)
    };
    assert!(!accepted(renewal(10, bound_to_another, 3)));
    let replaced = renewal(10, entry(LEASE, TOKEN + 1), 3);
    assert!(matches!(replaced, Renewal::Gone { .. }), "{replaced:?}");
}

#[test]
fn a_start_beside_an_unclean_departure_insists_on_our_entry_and_on_no_freeze() {
    let place = protocol().place;
    let txn = protocol()
        .clear(LEASE, TOKEN, &[place.open(4)], None)
        .expect("a transaction");
    let insists = |wanted: &str, revision: i64| {
        let is = |condition: &If| matches!(condition, If::Created { key, at } if key == wanted && *at == revision);
        txn.when.iter().any(is)
    };
    assert!(insists(&place.entry(LEASE), TOKEN), "{txn:?}");
    assert!(insists(&place.freeze(), 0), "{txn:?}");
}

fn run(result: &str) -> Run {
    Run {
        holder: protocol().holder,
        token: TOKEN,
        ended: Ended {
            result: result.into(),
            status: None,
            acquired: String::new(),
            ended: String::new(),
            why: None,
            asked: None,
        },
        noticed: None,
    }
}

#[test]
fn a_vanished_run_is_recorded_where_its_own_word_would_be_and_only_while_its_open_record_stands() {
    let (place, run) = (protocol().place, run(VANISHED));
    let open = place.open(4);
    let gone = Gone {
        open: &open,
        left: Left {
            run: &run,
            outdated: &[],
        },
    };
    let txn = protocol()
        .clear(LEASE, TOKEN + 1, std::slice::from_ref(&open), Some(gone))
        .expect("a transaction");
    let stands = |condition: &If| matches!(condition, If::Created { key, at } if *key == open && *at == TOKEN);
    assert!(txn.when.iter().any(stands), "{txn:?}");
    let record = place.run_record(TOKEN);
    let puts = |op: &Op| matches!(op, Op::Put { key, lease: 0, .. } if *key == record);
    assert!(txn.then.iter().any(puts), "{txn:?}");
}

#[test]
fn a_release_that_finds_nothing_of_ours_asks_who_was_there_before() {
    let ours = run("command");
    let item = |run: &Run| Item {
        value: serde_json::to_vec(run).expect("JSON"),
        ..entry(0, TOKEN + 1)
    };
    let tried = |only_try, succeeded, open: Option<Item>, record: Option<Item>| {
        let reads = [None, open, record].map(|item| found(item.into_iter().collect()));
        let answer = Answer {
            succeeded,
            ..answer(3, reads.into())
        };
        Protocol::departed(answer, &ours, only_try)
    };
    let departed = |succeeded, open, record| tried(false, succeeded, open, record);
    let open = || Some(entry(0, TOKEN));
    assert_eq!(departed(true, None, None), Some(Departure::Done));
    // Of an earlier try, whose answer was lost: with its record, or without one.
    assert_eq!(departed(false, None, Some(item(&ours))), Some(Departure::Done));
    assert_eq!(departed(false, None, None), Some(Departure::Done));
    // Before the only try there was none of ours.
    assert_eq!(tried(true, true, None, None), Some(Departure::Done));
    assert_eq!(tried(true, false, None, None), Some(Departure::Taken));
    // We take both, never the one alone; and these are not our words.
    assert_eq!(departed(false, open(), None), Some(Departure::Taken));
    assert_eq!(
        departed(false, None, Some(item(&run(VANISHED)))),
        Some(Departure::Taken)
    );
    assert_eq!(departed(false, None, Some(entry(0, TOKEN + 1))), Some(Departure::Taken));
}

#[test]
fn what_goes_at_one_revision_went_while_the_name_was_not_frozen() {
    let (protocol, ours) = (protocol(), run("command"));
    let left = Left {
        run: &ours,
        outdated: &[],
    };
    let departures = [How::AtOnce, How::Apart].map(|how| {
        let release = protocol.release(LEASE, left, how).expect("a transaction");
        [
            release,
            protocol.release_unrecorded(LEASE, left.run.token, how),
            protocol.abandon(LEASE, how),
        ]
    });
    let place = &protocol.place;
    let deletes = |txn: &Txn, wanted: String| {
        let does = |op: &Op| matches!(op, Op::Delete { key } if *key == wanted);
        txn.then.iter().any(does)
    };
    let [at_once, apart] = departures;
    for txn in at_once {
        assert!(deletes(&txn, place.entry(LEASE)) && deletes(&txn, place.open(LEASE)));
        let no_freeze = |condition: &If| matches!(condition, If::Created { key, at: 0 } if *key == place.freeze());
        assert!(txn.when.iter().any(no_freeze), "{txn:?}");
    }
    for txn in apart {
        assert!(!deletes(&txn, place.entry(LEASE)) && deletes(&txn, place.open(LEASE)));
    }
    assert!(deletes(&protocol.vacate(LEASE), place.entry(LEASE)));
    // Our entry is there, and yet nothing was done.
    let reads = vec![found(vec![entry(LEASE, TOKEN)]), found(Vec::new()), found(Vec::new())];
    let refused = Answer {
        succeeded: false,
        ..answer(3, reads)
    };
    assert_eq!(Protocol::departed(refused, &ours, true), None);
}

#[test]
fn the_heir_is_who_has_nothing_but_the_holder_before_it() {
    let protocol = protocol();
    let place = &protocol.place;
    let open = |lease, created| Item {
        key: place.open(lease),
        ..entry(lease, created)
    };
    let none = || found(Vec::new());
    let log = || {
        found(
            [9, 8, 6]
                .map(|token| Item {
                    key: place.run_record(token),
                    ..entry(0, token)
                })
                .to_vec(),
        )
    };
    let heir = |others: &[Item], opens: Vec<Item>, frozen: bool| {
        let freeze = frozen.then(|| entry(0, 1)).into_iter().collect();
        let oldest = others.last().cloned().into_iter().collect();
        let reads = vec![
            found(oldest),
            found(others.to_vec()),
            found(opens),
            found(freeze),
            log(),
            none(),
            found(vec![entry(LEASE, TOKEN)]),
            none(),
        ];
        let view = protocol.view(answer(3, reads), Some(LEASE), Some(TOKEN));
        view.ahead.expect("somebody").heir
    };
    let holder = || entry(4, 4);
    let until = |last, once: Option<i64>| Outdated {
        last: place.run_record(last),
        once: once.map(|token| place.run_record(token)),
    };
    let expected = Heir {
        // With the holder's record, should it leave one, there will be four.
        outdated: vec![until(6, None), until(8, Some(4))],
    };
    assert_eq!(heir(&[holder()], vec![open(4, 4)], false), Some(expected));
    for (others, opens, frozen) in [
        // Frozen, and behind two.
        (vec![holder()], vec![open(4, 4)], true),
        (vec![entry(6, 6), holder()], vec![open(4, 4), open(6, 6)], false),
        // Somebody else's record, another's than its entry, and none: a foreign holder.
        (vec![holder()], vec![open(3, 3), open(4, 4)], false),
        (vec![holder()], vec![open(4, 3)], false),
        (vec![holder()], vec![open(3, 4)], false),
        (vec![holder()], vec![], false),
    ] {
        assert_eq!(heir(&others, opens.clone(), frozen), None, "{others:?} {opens:?}");
    }
}

#[test]
fn one_that_came_before_the_last_run_ended_may_have_died_waiting() {
    let last = Item {
        value: serde_json::to_vec(&run("command")).expect("JSON"),
        ..entry(0, 20)
    };
    let seen = |created| {
        let open = Item {
            key: protocol().place.open(4),
            ..entry(0, created)
        };
        let (_, vanished) = protocol().stale(&found(vec![open]), Some(&last), Some(LEASE));
        vanished.expect("one").waited_until
    };
    assert_eq!(seen(19), Some(20));
    assert_eq!(seen(21), None);
}

#[test]
fn a_waiter_waits_for_the_youngest_before_it() {
    let (oldest, youngest) = (entry(3, 3), entry(4, 4));
    let reads = vec![
        found(vec![oldest.clone()]),
        found(vec![youngest.clone(), oldest.clone()]),
    ];
    let view = protocol().view(answer(3, reads), Some(LEASE), Some(TOKEN));
    let ahead = view.ahead.expect("two");
    assert_eq!((ahead.holder.key, ahead.predecessor.entry), (oldest.key, youngest.key));
}
