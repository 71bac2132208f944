//! Precedence, validation and what the command is given, each as one table.

use super::*;
use crate::cli::{Cli, Command};
use clap::Parser;
use std::fs;
use std::os::unix::ffi::OsStringExt;

pub(super) fn typed<A: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = A>) -> cli::Run {
    let parsed = Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{error}"));
    match parsed.command {
        Command::Run(run) => run,
        _ => panic!("another command"),
    }
}

pub(super) fn with(flags: &[&str], variables: &[(&str, &str)]) -> Result<Run, Failure> {
    let arguments = [&["meshlock", "run"], flags, &["billing", "true"]].concat();
    run(typed(arguments), &variables.iter().copied().collect())
}

pub(super) fn refused(flags: &[&str], variables: &[(&str, &str)]) -> (FailureKind, String) {
    match with(flags, variables) {
        Ok(_) => panic!("{flags:?} {variables:?} was accepted"),
        Err(failure) => (failure.kind, failure.why),
    }
}

fn seconds(span: Option<Duration>) -> Option<f64> {
    span.map(|span| span.as_secs_f64())
}

#[test]
fn a_flag_goes_before_a_variable_of_ours_and_that_before_etcdctls() {
    let etcdctl = ("ETCDCTL_ENDPOINTS", "c:1");
    let ours = ("MESHLOCK_ENDPOINTS", "b:1");
    for (flags, variables, endpoint) in [
        (&[][..], &[][..], "http://127.0.0.1:2379"),
        (&[], &[etcdctl], "http://c:1"),
        (&[], &[etcdctl, ours], "http://b:1"),
        (&["--endpoints=a:1"], &[etcdctl, ours], "http://a:1"),
        (&[], &[etcdctl, ("MESHLOCK_ENDPOINTS", "")], "http://c:1"),
        (&[], &[("ETCDCTL_ENDPOINTS", "")], "http://127.0.0.1:2379"),
    ] {
        let settings = with(flags, variables).expect("settings");
        assert_eq!(settings.connection.endpoints, [endpoint], "{flags:?} {variables:?}");
    }
}

#[test]
fn what_is_not_etcdctls_is_not_read_from_its_variables() {
    let settings = with(&[], &[("ETCDCTL_API", "3"), ("MESHLOCK_HELD_TTL", "5s")]).expect("settings");
    assert_eq!(settings.asked.ttl, DEFAULT_TTL);
}

#[test]
fn a_variable_that_is_nearly_ours_is_warned_of() {
    for (name, meant) in [
        ("MESHLOCK_ENDPOINT", Some("MESHLOCK_ENDPOINTS")),
        ("MESHLOCK_END_POINTS", Some("MESHLOCK_ENDPOINTS")),
        ("MESHLOCK_PASWORD", Some("MESHLOCK_PASSWORD")),
        ("MESHLOCK_CA_CERT", Some("MESHLOCK_CACERT")),
        ("MESHLOCK_TLT", Some("MESHLOCK_TTL")),
        ("MESHLOCK_TTL", None),
        ("MESHLOCK_HELD_TTL", None),
        ("MESHLOCK_SEED", None),
        ("MESHLOCK_", None),
        ("MESHLOCK_TEST_ETCD", None),
        ("MESHLOK_TTL", None),
    ] {
        let variables = [(name, "20s"), ("MESHLOCK_GRAC", "")];
        let settings = with(&["--user=a:b"], &variables).expect("settings");
        let line = meant.map(|meant| format!("{name} is set, which meshlock does not know: is {meant} meant?"));
        assert_eq!(settings.warnings, line.into_iter().collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn waiting_is_decided_by_the_flags_or_else_by_the_variables() {
    let wait = ("MESHLOCK_WAIT", "5m");
    let no_wait = ("MESHLOCK_NO_WAIT", "true");
    for (flags, variables, expected) in [
        (&[][..], &[][..], None),
        (&["-n"], &[], Some(0.0)),
        (&["-n"], &[wait], Some(0.0)),
        (&["-w0"], &[], Some(0.0)),
        (&["-w", "1.5"], &[no_wait], Some(1.5)),
        (&[], &[wait], Some(300.0)),
        (&[], &[no_wait], Some(0.0)),
        (&[], &[wait, ("MESHLOCK_NO_WAIT", "0")], Some(300.0)),
    ] {
        let settings = with(flags, variables).expect("settings");
        assert_eq!(seconds(settings.wait), expected, "{flags:?} {variables:?}");
    }
    assert_eq!(
        refused(&[], &[wait, no_wait]),
        (
            FailureKind::Config,
            "MESHLOCK_WAIT and MESHLOCK_NO_WAIT cannot both be set".to_owned()
        )
    );
}

#[test]
fn a_wrong_value_is_usage_if_typed_and_config_if_set_and_is_named_with_its_source() {
    for (flag, variable, value, why) in [
        ("--ttl", "MESHLOCK_TTL", "5x", "is not a duration"),
        ("--wait", "MESHLOCK_WAIT", "soon", "is not a duration"),
        ("--max-runtime", "MESHLOCK_MAX_RUNTIME", "0", "is no time at all"),
        ("--dial-timeout", "MESHLOCK_DIAL_TIMEOUT", "0s", "is no time at all"),
        ("--dial-timeout", "ETCDCTL_DIAL_TIMEOUT", "5x", "is not a duration"),
        ("--stop-signal", "MESHLOCK_STOP_SIGNAL", "STOPP", "is not a signal"),
        (
            "--conflict-exit-code",
            "MESHLOCK_CONFLICT_EXIT_CODE",
            "256",
            "is not a whole number from 0 to 255",
        ),
        ("--keep", "MESHLOCK_KEEP", "+5", "is not a whole number from 0 to 1000"),
        ("--prefix", "MESHLOCK_PREFIX", "/", "cannot be a key prefix"),
        (
            "--lock-key",
            "MESHLOCK_LOCK_KEY",
            "a\nb",
            "cannot be a lock's key: it has a control character",
        ),
        ("--endpoints", "MESHLOCK_ENDPOINTS", "a:0", "has \"a:0\", whose port"),
    ] {
        let (kind, line) = refused(&[&format!("{flag}={value}")], &[]);
        assert_eq!(kind, FailureKind::Usage, "{line}");
        assert!(line.starts_with(&format!("{flag} \"{value}\" {why}")), "{line}");

        let (kind, line) = refused(&[], &[(variable, value)]);
        assert_eq!(kind, FailureKind::Config, "{line}");
        assert!(line.starts_with(&format!("{variable} \"{value}\" {why}")), "{line}");
    }
    assert_eq!(refused(&[], &[("MESHLOCK_STRAGGLERS", "stay")]).0, FailureKind::Config);
    assert_eq!(refused(&[], &[("MESHLOCK_QUIET", "perhaps")]).0, FailureKind::Config);
}

#[test]
fn a_combination_that_cannot_keep_the_promise_is_refused_with_the_numbers() {
    let (kind, line) = refused(&["--ttl=10s", "--grace=8s"], &[]);
    assert_eq!(kind, FailureKind::Usage);
    assert!(line.contains("8 s") && line.contains("10 s"), "{line}");
    let (kind, line) = refused(&[], &[("MESHLOCK_TTL", "3s")]);
    assert_eq!(kind, FailureKind::Config);
    assert!(line.ends_with("(MESHLOCK_TTL is set)"), "{line}");
    assert_eq!(
        refused(&["--grace=8s"], &[("MESHLOCK_TTL", "10s")]).0,
        FailureKind::Usage
    );
}

#[test]
fn signals_have_names_and_numbers() {
    for (text, expected) in [
        ("TERM", Signal::SIGTERM),
        ("sigint", Signal::SIGINT),
        ("SigUsr1", Signal::SIGUSR1),
        ("1", Signal::SIGHUP),
        ("9", Signal::SIGKILL),
    ] {
        assert_eq!(signal(text), Ok(expected));
    }
    for text in ["", "SIG", "0", "-9", "65", "SIGSIGTERM", "TERM "] {
        assert!(signal(text).is_err(), "{text:?}");
    }
}

#[test]
fn names_that_cannot_be_locks_are_wrong_usage() {
    for name in [OsString::from("a,b"), OsString::new(), OsString::from_vec(vec![0xff])] {
        let arguments = ["meshlock".into(), "run".into(), name.clone(), "true".into()];
        let failure = run(typed(arguments), &Environment::from_iter([("", ""); 0]))
            .err()
            .expect("a failure");
        assert_eq!(failure.kind, FailureKind::Usage, "{}", name.display());
        assert!(failure.why.contains("cannot be a lock's name: it "), "{failure}");
    }
}

#[test]
fn the_commands_arguments_pass_untouched() {
    let raw = OsString::from_vec(b"\xff-n".to_vec());
    let words = ["ls", "--ttl", "5x", "--", "-n", "--help", "--"].map(OsString::from);
    for before in [&["x"][..], &["x", "--"], &["-n", "x"], &["--ttl=5s", "-q", "x", "--"]] {
        let before = before.iter().map(OsString::from);
        let arguments = ["meshlock", "run"].map(OsString::from).into_iter().chain(before);
        let arguments = arguments.chain(words.clone()).chain([raw.clone()]);
        assert_eq!(
            typed(arguments).command,
            [&words[..], std::slice::from_ref(&raw)].concat()
        );
    }
}

#[test]
fn an_unknown_option_is_not_taken_for_the_command() {
    let arguments = ["meshlock", "run", "x", "--max-runtme", "5m", "ls"];
    let failure = run(typed(arguments), &Environment::from_iter([("", ""); 0]))
        .err()
        .expect("a failure");
    assert_eq!(failure.kind, FailureKind::Usage);
    assert!(
        failure.why.starts_with("unknown option \"--max-runtme\"; "),
        "{failure}"
    );
}

#[test]
fn the_command_inherits_all_but_our_secrets_and_the_report() {
    let report = tempfile::NamedTempFile::new().expect("a file");
    let variables = [
        ("PATH", "/bin"),
        ("EMPTY", ""),
        ("MESHLOCK_TTL", "20s"),
        ("MESHLOCK_USER", "a:b:c"),
        ("MESHLOCK_PASSWORD", "secret"),
        ("MESHLOCK_REPORT", report.path().to_str().expect("UTF-8")),
        ("ETCDCTL_USER", "a:b"),
    ];
    let environment = with(&[], &variables).expect("settings").environment;
    let expected = [
        ("PATH", "/bin"),
        ("EMPTY", ""),
        ("MESHLOCK_TTL", "20s"),
        ("MESHLOCK_USER", "a"),
        ("ETCDCTL_USER", "a:b"),
    ];
    assert_eq!(environment, expected.map(|(name, value)| (name.into(), value.into())));
}

#[test]
fn leases_held_further_out_are_known_by_the_environment() {
    for (list, leases) in [
        ("2a", vec![42]),
        ("2a:ff", vec![42, 255]),
        ("", vec![]),
        ("x::2a:-1:0", vec![42]),
    ] {
        let settings = with(&[], &[("MESHLOCK_HELD_LEASES", list)]).expect("settings");
        assert_eq!(settings.outer_leases, leases, "{list:?}");
    }
}

#[test]
fn an_unwritable_report_is_found_before_anything_runs() {
    let (kind, line) = refused(&["--report=/none/report"], &[]);
    assert_eq!(kind, FailureKind::Config);
    assert_eq!(
        line,
        "--report \"/none/report\" cannot be written: No such file or directory"
    );
}

/// The help tells the defaults in words, since what is unset must stay distinguishable.
#[test]
fn the_defaults_are_those_that_the_help_tells() {
    let settings = with(&[], &[]).expect("settings");
    assert_eq!(settings.asked.ttl, Duration::from_secs(30));
    assert_eq!(settings.asked.release_timeout, Duration::from_secs(5));
    assert_eq!(settings.connection.dial_timeout, Duration::from_secs(5));
    assert_eq!(settings.conflict_status, 75);
    assert_eq!(settings.keep, 20);
    assert_eq!(settings.prefix, "meshlock/");
    assert_eq!(settings.stop_signal, Signal::SIGTERM);
    assert_eq!(settings.stragglers, Stragglers::Leave);
    assert_eq!(settings.verbosity, Verbosity::Normal);
    assert_eq!(settings.place.queue(), "meshlock/lock/billing/");
}

#[test]
fn files_are_told_by_absolute_names_and_passwords_not_at_all() {
    let files = tempfile::tempdir().expect("a directory");
    let password = files.path().join("password");
    fs::write(&password, "secret").expect("a file");
    let flags = ["--user=job", "--password-file", password.to_str().expect("UTF-8")];
    let told = with(&flags, &[]).expect("settings").reach;
    assert_eq!(
        (told.user.as_deref(), told.password_file.as_ref()),
        (Some("job"), Some(&password))
    );
    let told = with(&["--user=job:secret"], &[]).expect("settings").reach;
    assert!(!format!("{told:?}").contains("secret"), "{told:?}");
}
