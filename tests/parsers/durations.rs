//! Durations, as `--wait` takes them: any.

use crate::{ARGUMENT, holds, is_one_line, keeps_pace, os_text, with_option};
use meshlock::outcome::FailureKind;
use proptest::prelude::*;
use proptest::sample::select;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

fn parse(text: &str) -> Result<Duration, String> {
    match with_option("wait", text) {
        Ok(run) => Ok(run.wait.expect("a duration")),
        Err(failure) => Err(failure.why),
    }
}

#[test]
fn whatever_is_printed_in_parts_is_understood_to_the_nanosecond() {
    let spans = (0..=LONGEST.as_secs(), 0..1_000_000_000u32);
    holds(200, spans, |(seconds, nanos)| {
        let span = Duration::new(seconds, nanos).min(LONGEST);
        let (minutes, seconds) = (span.as_secs() / 60, span.as_secs() % 60);
        let (micros, nanos) = (span.subsec_micros(), span.subsec_nanos() % 1000);
        for text in [
            format!("{}s{}ns", span.as_secs(), span.subsec_nanos()),
            format!("{minutes}m{seconds}s{micros}us{nanos}ns"),
            format!(
                "{}d{}h{}m{seconds}.{:09}s",
                minutes / 1440,
                minutes / 60 % 24,
                minutes % 60,
                span.subsec_nanos()
            ),
        ] {
            prop_assert_eq!(parse(&text), Ok(span), "{}", text);
        }
        Ok(())
    });
}

#[test]
fn a_plain_number_is_seconds_and_a_longer_one_is_no_shorter_time() {
    holds(
        200,
        (0..1_000_000u32, 0..1_000_000u32, "[0-9]{0,12}"),
        |(one, other, fraction)| {
            let (less, more) = (one.min(other), one.max(other));
            let plain = format!("{less}.{fraction}0");
            prop_assert_eq!(parse(&plain), parse(&format!("{plain}s")));
            prop_assert_eq!(parse(&less.to_string()), Ok(Duration::from_secs(less.into())));
            let longer = parse(&(more + 1).to_string());
            prop_assert!(parse(&plain) <= longer);
            Ok(())
        },
    );
}

#[test]
fn units_are_what_they_say() {
    holds(200, (select(&UNITS[..]), 0..1_000_000u64), |((unit, nanos), number)| {
        let expected = Duration::from_nanos(nanos.saturating_mul(number));
        let text = format!("{number}{unit}");
        if u128::from(nanos) * u128::from(number) <= LONGEST.as_nanos() {
            prop_assert_eq!(parse(&text), Ok(expected), "{}", text);
        } else {
            prop_assert!(parse(&text).is_err_and(|why| why.contains("is too long")), "{}", text);
        }
        Ok(())
    });
}

#[test]
fn what_go_prints_is_understood() {
    for (text, nanos) in [
        ("0s", 0),
        ("1h0m0s", 3_600_000_000_000),
        ("2562h47m16.854775807s", 9_226_036_854_775_807),
        ("1.5µs", 1_500),
        ("1.5μs", 1_500),
        ("100ms", 100_000_000),
    ] {
        assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
    }
}

/// The grammar, written another way: units only after numbers, numbers of ASCII digits with one point at most.
fn is_one(text: &str) -> bool {
    let number = |text: &str| {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        digits && text.matches('.').count() <= 1 && text.bytes().any(|byte| byte.is_ascii_digit())
    };
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| c != '.' && !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let after = &rest[end..];
        let end_of_unit = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let unit = &after[..end_of_unit];
        let known = unit == "\u{3bc}s" || UNITS.iter().any(|(name, _)| *name == unit);
        if !number(&rest[..end]) || !known {
            return number(text);
        }
        rest = &after[end_of_unit..];
    }
    !text.is_empty()
}

#[test]
fn a_duration_is_accepted_and_nothing_else_is() {
    let piece = prop_oneof![
        4 => "[0-9]{1,3}",
        2 => select(vec![".", ".5", "1.25", "0"]).prop_map(str::to_owned),
        6 => select(UNITS.map(|(name, _)| name).to_vec()).prop_map(str::to_owned),
        1 => select(vec![" ", "-", "+", "e3", "_", "٣", "M", "S", "min", "inf", "NaN", "0x1", ","]).prop_map(str::to_owned),
    ];
    let texts = prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat());
    holds(200, texts, |text| {
        match parse(&text) {
            Ok(span) => prop_assert!(is_one(&text) && span <= LONGEST, "{text:?} was taken for {span:?}"),
            // Told first, whatever may be wrong behind it.
            Err(why) if why.contains("is too long") => {}
            Err(why) => {
                prop_assert!(!is_one(&text), "{text:?}: {why}");
                prop_assert!(why.contains("is not a duration"));
            }
        }
        Ok(())
    });
}

#[test]
fn whatever_is_typed_is_a_duration_or_refused_in_one_line() {
    let options = [
        "wait",
        "ttl",
        "grace",
        "lost-grace",
        "max-runtime",
        "release-timeout",
        "dial-timeout",
    ];
    holds(200, (select(options.to_vec()), os_text()), |(option, text)| {
        if let Err(failure) = with_option(option, text) {
            prop_assert_eq!(failure.kind, FailureKind::Usage);
            is_one_line(&failure.why)?;
        }
        Ok(())
    });
}

#[test]
fn absurd_lengths_take_no_time() {
    for unit in ["9", "0.", "1s", "1d", ".", "s", "ns1", "٣", "1h30"] {
        let input = |size| unit.bytes().cycle().take(size).collect();
        keeps_pace(ARGUMENT, input, |text| {
            with_option("wait", OsString::from_vec(text.to_owned())).is_ok()
        });
    }
}
