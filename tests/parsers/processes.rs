//! What /proc says of processes: their names and environments are of anybody's making.

use crate::{MEGABYTE, bytes, holds, keeps_pace};
use meshlock::supervise::last_duty::{MARK, carries};
use meshlock::supervise::tree::{Process, parse_stat};
use proptest::prelude::*;
use proptest::sample::select;
use std::fs;
use std::process::{Command, Stdio};

#[test]
fn a_stat_line_is_understood_whatever_the_programs_name() {
    let name = prop_oneof![
        "[ ()0-9A-Z]{0,15}",
        "[^\0/]{0,15}",
        select(vec!["a) b (c", ") Z 1 (", ")", "(", ") S 1 1 1"]).prop_map(str::to_owned)
    ];
    let states = select("RSDTtZXIPWK".chars().collect::<Vec<_>>());
    let numbers = (any::<i32>(), any::<u64>(), prop::collection::vec(any::<i64>(), 48));
    holds(
        400,
        (1..i32::MAX, name, states, numbers),
        |(pid, name, state, (parent, start, mut fields))| {
            fields.truncate(48);
            let mut fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
            fields[17] = start.to_string();
            let line = format!("{pid} ({name}) {state} {parent} {}\n", fields.join(" "));
            prop_assert_eq!(parse_stat(&line), Some((state, parent, start)), "{}", line);
            Ok(())
        },
    );
}

#[test]
fn what_is_no_stat_line_is_none() {
    holds(400, (bytes(), "[0-9 ]{0,60}"), |(bytes, numbers)| {
        let text = String::from_utf8_lossy(&bytes);
        parse_stat(&text);
        // Cut off before the start time.
        prop_assert_eq!(parse_stat(&format!("1 ({text}) S 1{}", " 2".repeat(17))), None);
        prop_assert_eq!(parse_stat(&numbers), None);
        Ok(())
    });
}

#[test]
fn living_processes_with_hostile_names_are_told_from_dead_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["a) b (c", ") Z 1 (", "x\n) X 1", "\u{202e}(", ") Z 1 1 1 1 1 1"] {
        let file = directory.path().join(name);
        fs::copy("/bin/sleep", &file).expect("a copy");
        let mut child = Command::new(&file)
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .expect("it starts");
        let found = Process::living(child.id().cast_signed());
        let alive = found.as_ref().is_ok_and(|found| found.is_some_and(Process::is_alive));
        let killed = found
            .as_ref()
            .is_ok_and(|found| found.is_some_and(|process| process.kill().is_ok()));
        // Also where the test fails nothing is left behind.
        child.kill().expect("killed");
        child.wait().expect("it ends");
        let dead = found.is_ok_and(|found| found.is_some_and(Process::is_dead));
        assert!(alive && killed && dead, "{name:?}");
    }
}

#[test]
fn a_mark_is_found_in_every_list_that_has_it_and_in_no_other() {
    let variables = || prop::collection::vec(bytes(), 0..6);
    let leases = prop::collection::vec(1..500u64, 0..5);
    holds(
        400,
        (variables(), leases, variables(), any::<bool>(), 1..500u64),
        |(before, leases, after, terminated, lease)| {
            let list: Vec<String> = leases.iter().map(|lease| format!("{lease:x}")).collect();
            let mut environment: Vec<u8> = Vec::new();
            for variable in &before {
                environment.extend([variable.as_slice(), b"\0"].concat());
            }
            environment.extend(format!("{MARK}={}", list.join(":")).bytes());
            for variable in &after {
                environment.extend([b"\0", variable.as_slice()].concat());
            }
            environment.extend(terminated.then_some(0));
            prop_assert_eq!(carries(&environment, &format!("{lease:x}")), leases.contains(&lease));
            Ok(())
        },
    );
}

#[test]
fn no_bytes_are_too_odd_for_an_environment() {
    holds(
        400,
        (prop::collection::vec(any::<u8>(), 0..200), "[0-9a-f]{1,16}"),
        |(environment, mark)| {
            prop_assert!(!carries(&environment, &mark));
            Ok(())
        },
    );
}

#[test]
fn absurd_lengths_take_no_time() {
    for unit in [
        "a",
        "\0",
        ":",
        ") ",
        "1 ",
        "MESHLOCK_HELD_LEASES=a:b:c\0",
        "MESHLOCK_HELD_LEASES=",
        "2a:",
    ] {
        let input = |size| unit.bytes().cycle().take(size).collect();
        keeps_pace(MEGABYTE, input, |environment| carries(environment, "2a"));
        keeps_pace(MEGABYTE, input, |line| parse_stat(&String::from_utf8_lossy(line)));
    }
}
