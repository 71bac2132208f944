//! Configuration files: any text gives settings or one line of refusal with its place, no password in it, and long ones
//! take no time.

use crate::{MEGABYTE, holds, is_one_line, keeps_pace, text};
use meshlock::outcome::{Failure, FailureKind};
use meshlock::settings::file::keys::KEYS;
use meshlock::settings::file::{Files, parse::parse};
use meshlock::settings::{Run, with_files};
use proptest::prelude::*;
use proptest::sample::select;
use std::path::Path;

fn settings(text: &str) -> Result<Run, Failure> {
    let file = parse(Path::new("/etc/meshlock/config.toml"), text)?;
    with_files(
        crate::typed([""; 0], "x".as_ref()),
        &crate::NOTHING.into_iter().collect(),
        &Files::of([file]),
    )
}

/// The number of the line that the refusal names.
fn line_of(failure: &Failure) -> Option<usize> {
    let rest = failure.why.strip_prefix("/etc/meshlock/config.toml:")?;
    rest.split(':').next()?.parse().ok()
}

/// Lines as people write them, with something wrong in some.
fn lines() -> impl Strategy<Value = String> {
    // A report would be written to whatever name comes out.
    let names: Vec<String> = KEYS
        .iter()
        .map(|key| key.name.to_owned())
        .filter(|name| name != "report")
        .collect();
    let key = prop_oneof![
        6 => select(names),
        1 => "[a-z_-]{1,12}",
        1 => select(vec!["password", "lock", "lock.x", "lock.x.ttl", "\"\"", "''"]).prop_map(str::to_owned),
    ];
    let value = prop_oneof![
        2 => "[0-9]{1,4}",
        2 => select(vec!["true", "false", "\"5s\"", "'TERM'", "\"kill\"", "[\"a:1\", \"b:2\"]", "[0, 3]", "[]", "{}", "1.5",
            "inf", "nan", "-1", "0x1f", "1e9", "1979-05-27", "99999999999999999999", "{ ttl = 5 }", "[[1]]", "\"\\u0000\"",
            "\"\"\"\na\n\"\"\""]).prop_map(str::to_owned),
        1 => text().prop_map(|text| format!("{text:?}")),
        1 => text(),
    ];
    let head = prop_oneof![
        select(vec![
            "[lock.x]",
            "[lock.\"a/b\"]",
            "[lock]",
            "[[lock]]",
            "[x]",
            "[lock.\"a,b\"]",
            "[",
            "[lock.x",
            "# x",
            ""
        ])
        .prop_map(str::to_owned),
        text().prop_map(|name| format!("[lock.{name:?}]")),
    ];
    let line = prop_oneof![5 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")), 1 => head];
    let end = select(vec!["\n", "\r\n", ""]);
    (prop::collection::vec(line, 0..6), end)
        .prop_map(|(lines, end)| lines.join(if end.is_empty() { "\n" } else { end }) + end)
}

#[test]
fn any_text_gives_settings_or_one_line_of_refusal() {
    let texts = prop_oneof![3 => lines(), 1 => text()];
    holds(2000, texts, |text| {
        if let Err(failure) = settings(&text) {
            prop_assert_eq!(failure.kind, FailureKind::Config, "{}", failure);
            is_one_line(&failure.why)?;
            if let Some(line) = line_of(&failure) {
                prop_assert!(
                    (1..=text.lines().count().max(1)).contains(&line),
                    "{} of {:?}",
                    failure,
                    text
                );
            }
        }
        Ok(())
    });
}

#[test]
fn a_password_that_has_no_place_there_is_never_told() {
    let line = select(vec![
        "password = 'hunter2'",
        "user = 'me:hunter2'",
        "password = hunter2",
        "password = \"hunter2",
        "endpoints = ['http://me:hunter2@a:1']",
        "endpoints = 'me:hunter2@a'",
        "password-file = \"\"\"hunter2",
        "[lock.x]\npassword = 'hunter2'",
        "[lock.x]\nuser = 'me:hunter2'",
    ]);
    holds(500, (lines(), line, lines()), |(before, line, after)| {
        if let Err(failure) = settings(&format!("{before}\n{line}\n{after}")) {
            prop_assert!(!failure.why.contains("hunter2"), "{}", failure);
        }
        Ok(())
    });
}

#[test]
fn the_line_that_is_told_is_the_one_that_is_wrong() {
    let right = select(vec!["# x", "", "  ", "\t# y"]);
    holds(200, prop::collection::vec(right, 0..30), |before| {
        for (wrong, what) in [
            ("tll = 5", "tll"),
            ("ttl = true", "ttl"),
            ("ttl = = 5", ""),
            ("ttl = '5x'", "5x"),
        ] {
            let text = format!(
                "{}{wrong}\n# z\n",
                before
                    .iter()
                    .map(|line| format!("{line}\n"))
                    .collect::<Vec<_>>()
                    .concat()
            );
            let failure = settings(&text).err().expect("a failure");
            prop_assert_eq!(line_of(&failure), Some(before.len() + 1), "{}", failure);
            prop_assert!(failure.why.contains(what), "{}", failure);
        }
        Ok(())
    });
}

#[test]
fn long_files_take_no_time() {
    for unit in [
        "# x\n",
        "[[",
        "[lock.x]\n",
        "a.",
        "\"",
        "x = [",
        "\n",
        "owner = \"\"\"",
        "{ a = ",
    ] {
        let input = |size| unit.bytes().cycle().take(size).collect();
        keeps_pace(MEGABYTE, input, |text| settings(&String::from_utf8_lossy(text)).is_ok());
    }
    // As many tables as fit.
    let tables = |size: usize| -> Vec<u8> {
        (0..size / 20)
            .flat_map(|number| format!("[lock.x{number}]\nttl=9\n").into_bytes())
            .collect()
    };
    keeps_pace(MEGABYTE, tables, |text| {
        settings(&String::from_utf8_lossy(text)).is_ok()
    });
}
