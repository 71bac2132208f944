//! What is made of etcd's answers: keys and values of anybody's, under prefixes that are ours only by agreement.

use crate::records::{LONG, holder, hostile, run};
use crate::{MEGABYTE, holds, keeps_pace, text};
use meshlock::lock::keys::{Kind, Place};
use meshlock::lock::protocol::Protocol;
use meshlock::lock::record::{FORMAT, Freeze, Holder, Open, Purpose};
use meshlock::lock::view::{entry, frozen, is_cut, shown, stale};
use meshlock::rules::TTL_RANGE;
use meshlock::store::{Answer, Found, Item};
use proptest::prelude::*;
use std::time::Duration;

const LEASE: i64 = 0x2a;

fn item(key: String, value: Vec<u8>) -> Item {
    Item {
        key,
        value,
        created: 7,
        lease: LEASE,
    }
}

fn json(record: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("JSON")
}

#[test]
fn a_holder_is_named_and_a_foreign_one_called_unknown() {
    holds(150, (holder(), hostile()), |(holder, hostile)| {
        let named = entry(&item("k".into(), json(&holder)), None);
        let whole = format!("{}@{} (pid {})", holder.user, holder.host, holder.pid);
        prop_assert!(whole.starts_with(&named.who.who), "{}", named.who);
        prop_assert!(named.who.since.is_some_and(|since| holder.started.starts_with(&since)));
        prop_assert_eq!(
            named.who.purpose.starts_with(", owner "),
            holder.purpose.owner.is_some()
        );
        prop_assert_eq!((named.key.as_str(), named.token, named.lease), ("k", 7, LEASE));
        if Holder::parse(&hostile).is_none() {
            let unknown = entry(&item("k".into(), hostile), None);
            prop_assert_eq!(unknown.who.to_string(), "unknown (not meshlock)");
        }
        Ok(())
    });
}

#[test]
fn only_an_earlier_run_that_ended_later_tells_since_when_it_holds() {
    holds(
        400,
        (holder(), run(), 0..14i64, hostile()),
        |(holder, mut run, token, hostile)| {
            run.token = token;
            let mine = item("k".into(), json(&holder));
            let told = entry(&mine, Some(&item("log".into(), json(&run)))).who;
            let over = run.over();
            let since = if token < 7 && over > holder.started.as_str() {
                over
            } else {
                &holder.started
            };
            prop_assert!(told.since.is_some_and(|told| since.starts_with(&told)));
            if serde_json::from_slice::<meshlock::lock::record::Run>(&hostile).is_err() {
                let told = entry(&mine, Some(&item("log".into(), hostile)));
                prop_assert_eq!(told, entry(&mine, None));
            }
            Ok(())
        },
    );
}

#[test]
fn what_is_shown_is_the_text_or_its_first_thousand_characters_and_an_ellipsis() {
    holds(150, (text(), 0..120usize), |(text, times)| {
        let text = text.repeat(times);
        let shown = shown(&text);
        let cut = text.chars().count() > 1000;
        prop_assert_eq!(is_cut(&shown), cut);
        let begin = if cut { shown.strip_suffix('…') } else { Some(&*shown) };
        let begin = begin.expect("an ellipsis");
        prop_assert!(text.starts_with(begin));
        prop_assert_eq!(begin.chars().count(), text.chars().count().min(1000));
        Ok(())
    });
}

#[test]
fn a_freeze_holds_whatever_it_says() {
    holds(150, (text(), text(), hostile()), |(by, reason, hostile)| {
        let record = Freeze {
            format: FORMAT,
            by: by.clone(),
            reason: reason.clone(),
        };
        let told = frozen(&item("k".into(), json(&record)));
        let by = if by.is_empty() { "somebody unknown" } else { &by };
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        prop_assert_eq!(told, format!(" by {}{}", by, reason));
        prop_assert!(frozen(&item("k".into(), hostile)).starts_with(" by "));
        Ok(())
    });
}

#[test]
fn nobody_has_to_wait_longer_than_for_the_longest_lease() {
    holds(
        400,
        (holder(), any::<u64>(), 0..400_000u64, hostile()),
        |(holder, any, ttl_ms, hostile)| {
            let of = |ttl_ms| {
                let open = Open {
                    ttl_ms,
                    holder: holder.clone(),
                };
                stale(&item("k".into(), json(&open))).ttl
            };
            prop_assert_eq!(of(ttl_ms), Duration::from_millis(ttl_ms).min(*TTL_RANGE.end()));
            prop_assert!(of(any) <= *TTL_RANGE.end());
            prop_assert!(stale(&item("k".into(), hostile)).ttl <= *TTL_RANGE.end());
            Ok(())
        },
    );
}

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
    let place = Place::new("meshlock/", "x").expect("a name");
    Protocol { place, holder, keep: 3 }
}

/// Keys as they may lie under a prefix of ours.
fn key() -> impl Strategy<Value = String> {
    let rest = prop_oneof![
        3 => "[0-9a-f]{1,16}",
        1 => Just("2a".to_owned()),
        1 => "[0-9A-F+\u{fffd}/.]{0,6}",
        1 => text(),
    ];
    let prefix = prop::sample::select(vec!["meshlock/lock/x/", "meshlock/open/x/", "meshlock/log/x/", ""]);
    (prefix, rest).prop_map(|(prefix, rest)| format!("{prefix}{rest}"))
}

fn answer() -> impl Strategy<Value = Answer> {
    let value = prop_oneof![
        Just(Vec::new()),
        hostile(),
        holder().prop_map(|holder| json(&holder)),
        run().prop_map(|run| json(&run))
    ];
    let lease = prop_oneof![Just(LEASE), any::<i64>()];
    let item = (key(), value, 0..9i64, lease).prop_map(|(key, value, created, lease)| Item {
        key,
        value,
        created,
        lease,
    });
    let found =
        (prop::collection::vec(item, 0..5), any::<i32>()).prop_map(|(items, all)| Found { items, all: all.into() });
    (any::<bool>(), prop::collection::vec(found, 0..10)).prop_map(|(succeeded, reads)| Answer {
        succeeded,
        cluster: 1,
        revision: 9,
        term: 1,
        reads,
    })
}

#[test]
fn no_answer_is_too_odd_for_a_view() {
    let protocol = protocol();
    let own = (prop::option::of(Just(LEASE)), prop::option::of(Just(7)));
    holds(150, (answer(), own), |(answer, (lease, token))| {
        let found = |at: usize| answer.reads.get(at).map_or(&[][..], |found| &found.items[..]);
        let view = protocol.view(answer.clone(), lease, token);
        // Ours is only what has our lease, and our token where that is known.
        let mine = found(6)
            .first()
            .filter(|item| lease == Some(item.lease) && token.is_none_or(|token| token == item.created));
        prop_assert_eq!(view.mine, mine.map(|item| item.created));
        let own = lease.map(|lease| protocol.place.entry(lease));
        if let Some(ahead) = &view.ahead {
            prop_assert!(Some(&ahead.holder.key) != own.as_ref() && Some(&ahead.predecessor.entry) != own.as_ref());
            prop_assert!(view.stale.is_empty());
        } else {
            // Whatever is in the queue and is not us is before us: foreign and unreadable ones exclude too.
            let foreign = |at: usize| found(at).iter().any(|item| Some(&item.key) != own.as_ref());
            prop_assert!(!foreign(0) || !foreign(1));
            // What is waited for is an open record whose key can be deleted.
            for stale in &view.stale {
                let of = protocol.place.lease(Kind::Open, &stale.key);
                prop_assert!(of.is_some() && of != lease);
            }
        }
        prop_assert_eq!(view.frozen.is_some(), !found(3).is_empty());
        prop_assert_eq!(view.ask.as_ref(), found(7).first().map(|item| &item.value));
        let outdated = found(4).get(2).map(|item| &item.key);
        prop_assert_eq!(view.outdated.first().map(|outdated| &outdated.last), outdated);
        Ok(())
    });
}

#[test]
fn a_megabyte_takes_no_time() {
    for (before, unit) in LONG {
        let input = |size| before.bytes().chain(unit.bytes().cycle().take(size)).collect();
        let words = |value: &[u8]| {
            let item = item("k".into(), value.to_owned());
            (entry(&item, Some(&item)), frozen(&item), stale(&item))
        };
        keeps_pace(MEGABYTE, input, words);
    }
}
