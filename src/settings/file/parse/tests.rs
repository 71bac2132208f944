//! What cannot be in a configuration file, and what is said of it.

use super::*;

#[track_caller]
fn refused(table: &[(&str, &str)]) {
    for (text, line) in table {
        let failure = parse(Path::new("/f"), text).expect_err(text);
        assert_eq!(
            (failure.kind, failure.why.as_str()),
            (FailureKind::Config, *line),
            "{text:?}"
        );
    }
}

#[test]
fn a_setting_that_is_none_or_is_not_in_its_place_is_told_with_its_line() {
    refused(&[
        (
            "\nowner = \"x\"\ntll = 3\n",
            "/f:3: there is no setting \"tll\": is ttl meant?",
        ),
        (
            "max_runtime = 3",
            "/f:1: there is no setting \"max_runtime\": is max-runtime meant?",
        ),
        (
            "Endpoint = 'a:1'",
            "/f:1: there is no setting \"Endpoint\": is endpoints meant?",
        ),
        (
            "colour = 1",
            "/f:1: there is no setting \"colour\": meshlock-config(1) has them all",
        ),
        ("[locks.a]", "/f:1: there is no setting \"locks\": is lock meant?"),
        (
            "[lock.a]\nlock-kay = 'x'",
            "/f:2: there is no setting \"lock-kay\": is lock-key meant?",
        ),
        // Not of what could not stand there.
        (
            "[lock.a]\nendpoint = 'a:1'",
            "/f:2: there is no setting \"endpoint\": meshlock-config(1) has them all",
        ),
        ("lock = 1", "/f:1: lock holds a table for each lock: write [lock.NAME]"),
        (
            "[lock]\nttl = 1",
            "/f:2: lock holds a table for each lock: write [lock.NAME]",
        ),
        (
            "[[lock.a]]",
            "/f:1: lock holds a table for each lock: write [lock.NAME]",
        ),
        (
            "[lock.\"a,b\"]",
            "/f:1: \"a,b\" cannot be a lock's name: it has a comma",
        ),
        ("\n[lock.\"\"]", "/f:2: \"\" cannot be a lock's name: it is empty"),
        (
            "[lock.team.db]\nttl = 9",
            "/f:1: there is no setting \"db\": meshlock-config(1) has them all (a lock's name with a dot in it stands in \
             quotes: [lock.\"a.b\"])",
        ),
        (
            "lock-key = 'x'",
            "/f:1: lock-key belongs to a single lock: write it below [lock.NAME]",
        ),
        (
            "[lock.a]\nttl = 9\nendpoints = 'a:1'",
            "/f:3: endpoints is the same for all locks: write it before the first [lock.NAME]",
        ),
        (
            "password = 'hunter2'",
            "/f:1: password is not for configuration files: write it into a file that only its users can read, and name \
             that by password-file",
        ),
        (
            "user = 'me:hunter2'",
            "/f:1: user has a password in it: write it into a file that only its users can read, and name that by \
             password-file",
        ),
    ]);
}

#[test]
fn a_value_of_the_wrong_kind_is_told_with_its_line() {
    refused(&[
        ("no-wait = 1", "/f:1: no-wait is a whole number: write true or false"),
        ("quiet = 'yes'", "/f:1: quiet is a text: write true or false"),
        (
            "\n\nttl = true",
            "/f:3: ttl is true: write a duration, as \"30s\", or a number of seconds",
        ),
        (
            "ttl = 2026-12-01",
            "/f:1: ttl is a date or time: write a duration, as \"30s\", or a number of seconds",
        ),
        (
            "keep = 1.5",
            "/f:1: keep is a number with a fraction: write a whole number",
        ),
        ("owner = 1", "/f:1: owner is a whole number: write a text, as in \"…\""),
        ("owner = ['a']", "/f:1: owner is a list: write a text, as in \"…\""),
        (
            "ttl.x = 1",
            "/f:1: ttl is a table: write a duration, as \"30s\", or a number of seconds",
        ),
        (
            "expect = [[0]]",
            "/f:1: expect is a list of something else: write a list, as [0, 3]",
        ),
    ]);
}

#[test]
fn what_is_no_toml_is_told_with_its_line() {
    refused(&[
        ("ttl = 9\r\nttl = 9\r\n", "/f:2: duplicate key"),
        ("[lock.a]\n[lock.b]\n[lock.a]\n", "/f:3: duplicate key"),
        ("a = ", "/f:1: string values must be quoted, expected literal string"),
        ("ttl = 9\nowner = \"x\n", "/f:2: invalid basic string, expected `\"`"),
        (
            "ttl = 9 # \u{1}\n",
            "/f:1: invalid comment character, expected printable characters",
        ),
    ]);
}

#[test]
fn what_editors_leave_behind_is_no_matter() {
    for text in [
        "\u{feff}ttl = 9\r\n\r\n[lock.a]\r\nowner = 'x'\r\n",
        "ttl = 9\n[lock.a]\nowner = 'x'",
        "# nothing\n",
        "",
    ] {
        let file = parse(Path::new("/f"), text).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(file.locks.len(), file.top.len());
    }
}
