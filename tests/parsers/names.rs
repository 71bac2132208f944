//! Lock names, `--lock-key` and `--prefix`, and the keys that they make in etcd.

use crate::{ARGUMENT, NOTHING, bytes, holds, is_one_line, keeps_pace, run_with, text, text_of};
use meshlock::lock::keys::{BadName, Kind, NAME_LIMIT, Place};
use meshlock::outcome::FailureKind;
use proptest::prelude::*;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

const ROOT: &str = "meshlock/";

fn name() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        text_of(1..30),
        "[a-c/%.]{1,4}",
        "(team|lock|open|%2F|=|/|db){1,3}",
        // As long as may be, and a little longer.
        "[a%é請]{240,258}",
    ];
    name.prop_filter("a name", |name| Place::new(ROOT, name).is_ok())
}

/// A name's place or a shared key's.
fn place() -> impl Strategy<Value = Place> {
    (name(), any::<bool>()).prop_filter_map("a place", |(name, shared)| {
        if shared {
            Place::verbatim(ROOT, "x", &name).ok()
        } else {
            Place::new(ROOT, &name).ok()
        }
    })
}

/// Everything that a lock reads or deletes as a whole.
fn prefixes(place: &Place) -> [String; 3] {
    [place.queue().to_owned(), place.opens(), place.log()]
}

fn keys(place: &Place, lease: i64) -> [String; 5] {
    [
        place.entry(lease),
        place.open(lease),
        place.run_record(lease),
        place.ask(lease),
        place.freeze(),
    ]
}

fn decoded(encoded: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = encoded.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(match byte {
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            byte => *byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[test]
fn a_name_can_be_read_back_from_its_keys() {
    holds(400, (name(), 1..i64::MAX), |(name, lease)| {
        let place = Place::new(ROOT, &name).expect("a name");
        let key = place.entry(lease);
        prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic()), "{}", key);
        let mut parts = key.split('/');
        prop_assert_eq!(parts.next(), Some("meshlock"));
        prop_assert_eq!(parts.next(), Some("lock"));
        prop_assert_eq!(parts.next().and_then(decoded), Some(name));
        prop_assert_eq!(
            parts.next().and_then(|hex| i64::from_str_radix(hex, 16).ok()),
            Some(lease)
        );
        prop_assert_eq!(parts.next(), None);
        Ok(())
    });
}

#[test]
fn no_lock_reads_or_deletes_what_is_another_ones() {
    holds(400, (place(), place(), 1..i64::MAX), |(one, other, lease)| {
        if keys(&one, 1) == keys(&other, 1) {
            prop_assert_eq!(one.queue(), other.queue());
            return Ok(());
        }
        // A key's queue is verbatim: where one key is the beginning of another, `etcdctl lock` mixes them too.
        let nested = other.entry(1).starts_with(one.queue()) && !one.queue().starts_with(ROOT);
        for prefix in prefixes(&one).into_iter().skip(usize::from(nested)) {
            for key in keys(&other, lease) {
                prop_assert!(!key.starts_with(&prefix), "{} is in {}", key, prefix);
            }
        }
        let mine = keys(&one, lease);
        prop_assert!(keys(&other, lease).iter().all(|key| !mine.contains(key)), "{:?}", mine);
        Ok(())
    });
}

#[test]
fn each_kind_of_key_lies_in_its_own_place() {
    holds(400, (place(), 1..i64::MAX), |(place, lease)| {
        let [queue, opens, log] = prefixes(&place);
        let within = |prefix: &String| keys(&place, lease).iter().filter(|key| key.starts_with(prefix)).count();
        prop_assert_eq!([within(&queue), within(&opens), within(&log)], [1, 1, 1]);
        prop_assert_eq!(place.lease(Kind::Open, &place.open(lease)), Some(lease));
        Ok(())
    });
}

#[test]
fn run_records_sort_by_their_tokens() {
    holds(400, (place(), 1..i64::MAX, 1..i64::MAX), |(place, one, other)| {
        prop_assert_eq!(place.run_record(one).cmp(&place.run_record(other)), one.cmp(&other));
        Ok(())
    });
}

#[test]
fn only_an_open_records_own_key_names_its_lease() {
    let rest = prop_oneof!["[0-9a-fA-F+x-]{0,18}", text()];
    holds(400, (place(), rest), |(place, rest)| {
        let key = format!("{}{rest}", place.opens());
        let lease = place.lease(Kind::Open, &key);
        prop_assert!(
            lease.is_none_or(|lease| place.open(lease) == key),
            "{}: {:?}",
            key,
            lease
        );
        Ok(())
    });
}

/// What the manual says of a name.
fn verdict(name: &OsStr) -> Result<(), BadName> {
    let text = name.to_str().ok_or(BadName::NotUtf8)?;
    if text.is_empty() {
        Err(BadName::Empty)
    } else if text.len() > NAME_LIMIT {
        Err(BadName::TooLong)
    } else if text.contains(char::is_control) {
        Err(BadName::ControlCharacter)
    } else if text.contains(',') {
        Err(BadName::Comma)
    } else {
        Ok(())
    }
}

#[test]
fn a_name_is_taken_as_it_is_or_refused_with_the_reason() {
    let names = prop_oneof![bytes(), text_of(50..300).prop_map(String::into_bytes)];
    holds(400, names, |bytes| {
        let name = OsString::from_vec(bytes);
        match (run_with(["-q"], &name, NOTHING), verdict(&name)) {
            (Ok(run), Ok(())) => prop_assert_eq!(OsStr::new(&run.place.name), name),
            (Err(failure), Err(why)) => {
                prop_assert_eq!(failure.kind, FailureKind::Usage);
                prop_assert!(
                    failure.why.ends_with(&format!(" cannot be a lock's name: {why}")),
                    "{}",
                    failure
                );
                is_one_line(&failure.why)?;
            }
            (taken, right) => prop_assert!(false, "{:?}: {:?}, and not {:?}", name, taken.map(|_| ()), right),
        }
        Ok(())
    });
}

#[test]
fn a_prefix_ends_with_one_slash_more_or_is_refused() {
    let prefixes = prop_oneof![text_of(0..30), "[a/]{0,3}", "a{998,1002}"];
    holds(400, prefixes, |prefix| {
        let control = prefix.contains(char::is_control);
        let valid = !prefix.is_empty() && prefix != "/" && !control && prefix.len() <= 1000;
        match run_with([format!("--prefix={prefix}")], "x".as_ref(), NOTHING) {
            Ok(run) => {
                prop_assert!(valid);
                prop_assert!(
                    run.prefix.ends_with('/') && run.prefix.trim_end_matches('/') == prefix.trim_end_matches('/')
                );
                prop_assert_eq!(run.place.queue(), format!("{}lock/x/", run.prefix));
            }
            Err(failure) => {
                prop_assert!(!valid, "{}", failure);
                is_one_line(&failure.why)?;
            }
        }
        Ok(())
    });
}

#[test]
fn absurd_lengths_take_no_time() {
    for unit in ["a", "%", "請", "\n", "\u{ff}"] {
        keeps_pace(
            ARGUMENT,
            |size| unit.bytes().cycle().take(size).collect(),
            |name| run_with(["-q"], OsStr::from_bytes(name), NOTHING).is_ok(),
        );
    }
}
