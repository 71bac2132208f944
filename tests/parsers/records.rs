//! The records in etcd, format 1: whoever has the right writes what he likes.

use crate::{MEGABYTE, bytes, holds, keeps_pace, long_text, text};
use meshlock::link::{Asked, Ended};
use meshlock::lock::record::{Ask, FORMAT, Freeze, Holder, Noticed, Open, Purpose, Run};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

pub(crate) fn holder() -> impl Strategy<Value = Holder> {
    let purpose = (
        prop::option::of(text()),
        prop::option::of(text()),
        prop::option::of(text()),
        prop::option::of(any::<u32>()),
    );
    let who = (text(), text(), any::<u32>(), text(), text());
    (who, purpose).prop_map(
        |((host, user, pid, program, started), (owner, reason, route, tries))| Holder {
            format: FORMAT,
            host,
            user,
            pid,
            program,
            started,
            purpose: Purpose {
                owner,
                reason,
                route,
                tries,
                ..Purpose::default()
            },
        },
    )
}

pub(crate) fn run() -> impl Strategy<Value = Run> {
    let ended = (text(), prop::option::of(any::<u8>()), text(), text());
    let asked = (text(), text(), text()).prop_map(|(kind, by, reason)| Asked { kind, by, reason });
    let noticed = (text(), text()).prop_map(|(at, by)| Noticed { at, by });
    let more = (
        prop::option::of(text()),
        prop::option::of(asked),
        prop::option::of(noticed),
    );
    (holder(), any::<i64>(), ended, more).prop_map(
        |(holder, token, (result, status, acquired, ended), (why, asked, noticed))| Run {
            holder,
            token,
            ended: Ended {
                result,
                status,
                acquired,
                ended,
                why,
                asked,
            },
            noticed,
        },
    )
}

/// Any JSON, somewhat nested.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..4).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// What does not parse as any of our records, or parses as something that nobody meant.
pub(crate) fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let fields = [
        "format", "ttl_ms", "kind", "token", "by", "reason", "pid", "owner", "user", "host", "started",
    ];
    let number = select(vec![
        "0",
        "-1",
        "1e999",
        "18446744073709551616",
        "1.0",
        "-0",
        "0.1e-999",
        "1e3",
        "\"1\"",
        "null",
        "[1]",
    ]);
    let odd =
        (select(fields.to_vec()), number).prop_map(|(field, number)| format!("{{\"{field}\":{number}}}").into_bytes());
    prop_oneof![
        2 => bytes(),
        2 => json().prop_map(|value| value.to_string().into_bytes()),
        2 => odd,
        1 => (select(vec!["[", "{\"a\":", "[{\"format\":"]), 1..300usize).prop_map(|(open, depth)| open.repeat(depth).into_bytes()),
        // Ours, damaged.
        2 => (run(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(run, at, byte)| {
            let mut value = serde_json::to_vec(&run).expect("JSON");
            let at = at.index(value.len());
            value[at] = byte;
            value
        }),
        1 => (run(), any::<prop::sample::Index>()).prop_map(|(run, at)| {
            let mut value = serde_json::to_vec(&run).expect("JSON");
            value.truncate(at.index(value.len()));
            value
        }),
    ]
}

fn shown(text: &str) -> String {
    let cut: String = text.chars().take(1000).collect();
    if cut == text { cut } else { cut + "…" }
}

#[test]
fn what_is_written_is_read_back_as_it_was() {
    holds(150, (run(), any::<u64>()), |(run, ttl_ms)| {
        let value = serde_json::to_vec(&run.holder).expect("JSON");
        prop_assert_eq!(Holder::parse(&value), Some(run.holder.clone()));
        let open = Open {
            ttl_ms,
            holder: run.holder.clone(),
        };
        let value = serde_json::to_vec(&open).expect("JSON");
        prop_assert_eq!(serde_json::from_slice::<Open>(&value).ok(), Some(open));
        let value = serde_json::to_vec(&run).expect("JSON");
        prop_assert_eq!(serde_json::from_slice::<Run>(&value).ok(), Some(run));
        Ok(())
    });
}

#[test]
fn unknown_fields_are_passed_over_and_unknown_formats_are_foreign() {
    holds(
        400,
        (holder(), "x_[a-z]{1,8}", json(), any::<u32>()),
        |(holder, field, value, format)| {
            let mut record = serde_json::to_value(&holder).expect("JSON");
            record[&field] = value;
            prop_assert_eq!(Holder::parse(record.to_string().as_bytes()), Some(holder));
            record["format"] = format.into();
            prop_assert_eq!(Holder::parse(record.to_string().as_bytes()).is_some(), format == FORMAT);
            Ok(())
        },
    );
}

#[test]
fn a_record_with_a_field_missing_twice_or_of_a_wrong_type_is_foreign() {
    let fields = ["format", "host", "user", "pid", "program", "started"];
    holds(150, (holder(), select(fields.to_vec())), |(holder, field)| {
        let whole = serde_json::to_value(&holder).expect("JSON");
        let mut record = whole.clone();
        record.as_object_mut().expect("an object").remove(field);
        prop_assert_eq!(Holder::parse(record.to_string().as_bytes()), None);
        for wrong in [
            Value::Null,
            json!({"a": 1}),
            json!([1]),
            json!(-1),
            json!(1.5),
            json!(true),
        ] {
            record[field] = wrong;
            prop_assert_eq!(Holder::parse(record.to_string().as_bytes()), None, "{}", record);
        }
        let twice = format!("{{\"{field}\":{},{}", whole[field], &whole.to_string()[1..]);
        prop_assert_eq!(Holder::parse(twice.as_bytes()), None, "{}", twice);
        Ok(())
    });
}

#[test]
fn an_ask_is_read_back_as_far_as_it_is_shown() {
    let words = prop_oneof![3 => text(), 1 => long_text(990..1010)];
    holds(
        300,
        (any::<u32>(), any::<i64>(), text(), words.clone(), words),
        |(format, token, kind, by, reason)| {
            let ask = Ask {
                format,
                kind,
                token,
                by,
                reason,
            };
            let value = serde_json::to_vec(&ask).expect("JSON");
            let expected = Ask {
                by: shown(&ask.by),
                reason: shown(&ask.reason),
                ..ask
            };
            prop_assert_eq!(Ask::parse(&value), Some(expected));
            Ok(())
        },
    );
}

#[test]
fn a_freeze_needs_no_names() {
    holds(150, (text(), text()), |(by, reason)| {
        let freeze = Freeze {
            format: FORMAT,
            by,
            reason,
        };
        let value = serde_json::to_vec(&freeze).expect("JSON");
        prop_assert_eq!(serde_json::from_slice::<Freeze>(&value).ok(), Some(freeze));
        Ok(())
    });
    assert!(serde_json::from_slice::<Freeze>(br#"{"format":1}"#).is_ok());
}

#[test]
fn hostile_values_are_no_records_and_do_no_harm() {
    holds(150, hostile(), |value| {
        let holder = Holder::parse(&value);
        prop_assert!(holder.is_none_or(|holder| holder.format == FORMAT));
        let ask = Ask::parse(&value);
        prop_assert!(ask.is_none_or(|ask| ask.by.chars().count() <= 1000));
        serde_json::from_slice::<Run>(&value).ok();
        serde_json::from_slice::<Open>(&value).ok();
        serde_json::from_slice::<Freeze>(&value).ok();
        Ok(())
    });
}

/// Values of any size that are slow to read if anything is.
pub(crate) const LONG: [(&str, &str); 9] = [
    ("", "["),
    ("", "{\"a\":"),
    ("", "\u{e9}"),
    ("{\"format\":1,\"token\":", "9"),
    ("{\"format\":1,\"host\":\"", "\\u001b"),
    ("{\"format\":1,\"reason\":\"", "x"),
    ("{\"format\":1", ",\"a\":1"),
    ("{\"format\":1", ",\"owner\":\"a\""),
    ("{\"format\":1,\"x\":[0", ",[]"),
];

#[test]
fn a_megabyte_takes_no_time() {
    for (before, unit) in LONG {
        let input = |size| before.bytes().chain(unit.bytes().cycle().take(size)).collect();
        keeps_pace(MEGABYTE, input, Holder::parse);
        keeps_pace(MEGABYTE, input, Ask::parse);
    }
}
