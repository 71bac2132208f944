//! Precedence, validation and what the command is given, each as one table.

use super::*;
use crate::cli::{Cli, Command};
use crate::lock::record::Purpose;
use clap::Parser;
use std::fs;
use std::os::unix::ffi::OsStringExt;

fn typed<A: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = A>) -> cli::Run {
    let parsed = Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{error}"));
    match parsed.command {
        Command::Run(run) => run,
        _ => panic!("another command"),
    }
}

fn with(flags: &[&str], variables: &[(&str, &str)]) -> Result<Run, Failure> {
    let arguments = [&["meshlock", "run"], flags, &["billing", "true"]].concat();
    run(typed(arguments), &variables.iter().copied().collect())
}

fn refused(flags: &[&str], variables: &[(&str, &str)]) -> (FailureKind, String) {
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
fn endpoints_get_the_scheme_that_the_tls_files_imply() {
    let directory = tempfile::tempdir().expect("a directory");
    let ca = directory.path().join("ca.pem");
    fs::write(&ca, CERTIFICATE).expect("written");
    let ca = ca.to_str().expect("UTF-8");
    let endpoints = |flags: &[&str]| with(flags, &[]).map(|settings| settings.connection.endpoints);
    assert_eq!(
        endpoints(&["--endpoints", " a:1 ,https://[::1]:2/,HTTP://c:3,a:1"]).expect("endpoints"),
        ["http://a:1", "https://[::1]:2", "http://c:3"]
    );
    assert_eq!(
        endpoints(&["--cacert", ca]).expect("endpoints"),
        ["https://127.0.0.1:2379"]
    );
    assert_eq!(
        endpoints(&["--cacert", ca, "--endpoints=a:1"]).expect("endpoints"),
        ["https://a:1"]
    );
    let (_, line) = refused(&["--cacert", ca, "--endpoints=http://a:1"], &[]);
    assert!(
        line.contains("no TLS, but --cacert is given: write https://a:1"),
        "{line}"
    );
    assert!(
        with(&["--endpoints=https://a:1"], &[])
            .expect("settings")
            .connection
            .tls
            .is_some()
    );
    assert!(with(&[], &[]).expect("settings").connection.tls.is_none());
}

#[test]
fn endpoints_that_cannot_be_are_refused() {
    for list in [
        "",
        ",",
        "a:1,",
        "a",
        "http://a",
        ":1",
        "a:",
        "a:0",
        "a:65536",
        "a:+1",
        "a:1x",
        "::1:2",
        "a b:1",
        "a:1/path",
        "u@a:1",
        "ftp://a:1",
        "unix:///run/etcd.sock",
        "unixs://x:1",
        "http://",
        "[::1]",
    ] {
        let (kind, line) = refused(&["--endpoints", list], &[]);
        assert_eq!(kind, FailureKind::Usage, "{line}");
    }
}

/// Well-formed, and nobody's.
/// Made by openssl, and nobody's.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBLjCB4aADAgECAhQDIuSSnVPjKMoKSvuA77IBna3jxzAFBgMrZXAwDDEKMAgG
A1UEAwwBeDAgFw0yNjEyMDEwMzEzMjFaGA8yMTI2MTEwNzAzMTMyMVowDDEKMAgG
A1UEAwwBeDAqMAUGAytlcAMhACdpZHdY5YgmODP8gi0JpVAgM2jFE2yd+EItIMpS
IWODo1MwUTAdBgNVHQ4EFgQU27ul8w6/ay5j+TIBCiQemI9VxxwwHwYDVR0jBBgw
FoAU27ul8w6/ay5j+TIBCiQemI9VxxwwDwYDVR0TAQH/BAUwAwEB/zAFBgMrZXAD
QQAsTfZVGxekHIiKR4ND4wesZDbKoWuAWAKkFqKG5Mpd32h46Y+GQslCdOyjhW69
3Nui5/e+YyT4zsXKlEfYyWoI
-----END CERTIFICATE-----
";
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIOv2BCwYkAFVBrCn4coIVJfuuKW8INOB/bpidy9XZx+q
-----END PRIVATE KEY-----
";
const ENCRYPTED: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n";

#[test]
fn tls_files_are_read_and_checked_before_anything_connects() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("written");
        path.into_os_string().into_string().expect("UTF-8")
    };
    let (cert, key, encrypted) = (file("c", CERTIFICATE), file("k", KEY), file("e", ENCRYPTED));
    let (empty, der) = (file("empty", ""), file("der", "0\u{1}\u{2}"));
    let missing = directory.path().join("none").to_str().expect("UTF-8").to_owned();

    let settings = with(&["--cacert", &cert, "--cert", &cert, "--key", &key], &[]).expect("settings");
    let tls = settings.connection.tls.expect("TLS");
    assert_eq!(
        tls.cacert.map(|file| file.contents),
        Some(CERTIFICATE.as_bytes().to_vec())
    );
    let identity = tls.identity.map(|(cert, key)| (cert.contents, key.contents));
    assert_eq!(identity, Some((CERTIFICATE.into(), KEY.into())));

    for (flags, why) in [
        (vec!["--cacert", &missing], "No such file or directory"),
        (
            vec!["--cacert", directory.path().to_str().expect("UTF-8")],
            "Is a directory",
        ),
        (vec!["--cacert", &empty], "no certificate"),
        (vec!["--cacert", &der], "no certificate"),
        (
            vec!["--cacert", &key],
            "no certificate in PEM format, but a private key",
        ),
        (vec!["--cert", &cert], "--cert needs --key"),
        (vec!["--key", &key], "--key needs --cert"),
        (
            vec!["--cert", &cert, "--key", &cert],
            "no private key in PEM format, but a certificate",
        ),
        (vec!["--cert", &cert, "--key", &encrypted], "encrypted"),
        (vec!["--cacert", "/dev/zero"], "larger than 1 MiB"),
    ] {
        let (kind, line) = refused(&flags, &[]);
        assert_eq!(kind, FailureKind::Config, "{line}");
        assert!(line.starts_with(flags[flags.len() - 2]) && line.contains(why), "{line}");
    }
}

#[test]
fn the_password_comes_from_the_first_source_that_has_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("password");
    fs::write(&file, "file\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    for (flags, variables, user, password) in [
        (&["--user=a:b:c"][..], &[][..], "a", "b:c"),
        (&["--user=a", "--password-file", file], &[], "a", "file"),
        (&["--user=a:flag"], &[("MESHLOCK_PASSWORD", "ours")], "a", "flag"),
        (
            &["--user=a"],
            &[("MESHLOCK_PASSWORD", "ours"), ("ETCDCTL_PASSWORD", "theirs")],
            "a",
            "ours",
        ),
        (&["--user=a"], &[("MESHLOCK_PASSWORD_FILE", file)], "a", "file"),
        (
            &[],
            &[("MESHLOCK_USER", "a:inline"), ("ETCDCTL_PASSWORD", "theirs")],
            "a",
            "inline",
        ),
        (&[], &[("ETCDCTL_USER", "a:inline")], "a", "inline"),
        (
            &[],
            &[("ETCDCTL_USER", "a"), ("ETCDCTL_PASSWORD", "theirs")],
            "a",
            "theirs",
        ),
    ] {
        let settings = with(flags, variables).expect("settings");
        let expected = Some((user.to_owned(), password.to_owned()));
        assert!(settings.connection.user == expected, "{flags:?} {variables:?}");
    }
    for (flags, variables) in [
        (&["--user=a"][..], &[][..]),
        (&["--user=a:"], &[]),
        (&["--user=b"], &[("ETCDCTL_USER", "a:another's")]),
        (&[], &[("MESHLOCK_PASSWORD", "secret")]),
        (&["--password-file", file], &[]),
        (&["--user=a", "--password-file=/none"], &[]),
    ] {
        let (kind, line) = refused(flags, variables);
        assert_eq!(kind, FailureKind::Config, "{line}");
        assert!(!line.contains("secret") && !line.contains("another's"), "{line}");
    }
}

#[test]
fn one_newline_is_no_part_of_a_password() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("password");
    for (text, password) in [("x", "x"), ("x\n", "x"), ("x\r\n", "x"), (" x \n\n", " x \n")] {
        fs::write(&path, text).expect("written");
        let flags = ["--user=a", "--password-file", path.to_str().expect("UTF-8")];
        let user = with(&flags, &[]).expect("settings").connection.user;
        assert!(user.is_some_and(|(_, found)| found == password), "{text:?}");
    }
    for (text, why) in [
        ("", "empty"),
        ("\n", "empty"),
        ("a\0b", "NUL"),
        (&"x".repeat(5000), "longer than any password"),
    ] {
        fs::write(&path, text).expect("written");
        let (kind, line) = refused(&["--user=a", "--password-file", path.to_str().expect("UTF-8")], &[]);
        assert_eq!(kind, FailureKind::Config, "{line}");
        assert!(line.starts_with("--password-file ") && line.contains(why), "{line}");
    }
}

#[test]
fn a_service_has_its_password_from_systemd() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("meshlock.password"), "systemd's\n").expect("written");
    let credentials = ("CREDENTIALS_DIRECTORY", directory.path().to_str().expect("UTF-8"));
    for (variables, password) in [
        (vec![credentials], "systemd's"),
        (vec![credentials, ("MESHLOCK_PASSWORD", "ours")], "ours"),
    ] {
        let user = with(&["--user=a"], &variables).expect("settings").connection.user;
        assert!(user.is_some_and(|(_, found)| found == password), "{variables:?}");
    }
    assert!(with(&[], &[credentials]).expect("settings").connection.user.is_none());
    // Of the service, but not for us.
    let elsewhere = tempfile::tempdir().expect("a directory");
    let elsewhere = ("CREDENTIALS_DIRECTORY", elsewhere.path().to_str().expect("UTF-8"));
    assert_eq!(refused(&["--user=a"], &[elsewhere]).0, FailureKind::Config);
}

#[test]
fn a_secret_that_everybody_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("password");
    fs::write(&file, "x").expect("written");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    for (outer, inner, warned) in [(0o755, 0o644, true), (0o755, 0o640, false), (0o700, 0o644, false)] {
        mode(directory.path(), outer);
        mode(&file, inner);
        let settings = with(&["--user=a", "--password-file", file.to_str().expect("UTF-8")], &[]).expect("settings");
        let said = settings.warnings.join("\n");
        assert_eq!(
            said.contains("every user of this machine"),
            warned,
            "{outer:o} {inner:o}: {said}"
        );
    }
}

#[test]
fn etcdctls_settings_are_refused_where_they_would_change_the_connection() {
    for (name, value) in [
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "true"),
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "1"),
        ("ETCDCTL_INSECURE_TRANSPORT", "false"),
        ("MESHLOCK_INSECURE_SKIP_TLS_VERIFY", "true"),
        ("ETCDCTL_AUTH_JWT_TOKEN", "secret"),
    ] {
        let (kind, line) = refused(&[], &[(name, value)]);
        assert_eq!(kind, FailureKind::Config, "{line}");
        assert!(line.starts_with(name) && !line.contains("secret"), "{line}");
    }
    for (name, value) in [
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "false"),
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", ""),
        ("ETCDCTL_INSECURE_TRANSPORT", "true"),
        ("ETCDCTL_DISCOVERY_SRV", ""),
        ("ETCDCTL_DISCOVERY_SRV", "example.org"),
        ("ETCDCTL_INSECURE_DISCOVERY", "false"),
        ("ETCDCTL_API", "3"),
        ("ETCDCTL_WRITE_OUT", "json"),
        ("ETCDCTL_COMMAND_TIMEOUT", "10s"),
    ] {
        assert!(with(&[], &[(name, value)]).is_ok(), "{name}={value}");
    }
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
fn the_record_names_the_program_and_never_its_arguments() {
    let arguments = ["meshlock", "run", "--owner=ops", "x", "/opt/bin/pay", "--token=secret"];
    let holder = run(typed(arguments), &Environment::from_iter([("", ""); 0]))
        .expect("settings")
        .holder;
    assert_eq!(holder.program, "pay");
    assert_eq!(holder.purpose.owner.as_deref(), Some("ops"));
    assert!(!serde_json::to_string(&holder).expect("JSON").contains("secret"));
}

#[test]
fn what_is_recorded_can_be_said_by_flags_and_by_variables() {
    let flags = [
        "--owner=o",
        "--reason=r",
        "--route=pager",
        "--expect=3,0",
        "--trigger=t",
        "--system=s",
        "--record-args",
    ];
    let variables = [
        ("MESHLOCK_OWNER", "o"),
        ("MESHLOCK_REASON", "r"),
        ("MESHLOCK_ROUTE", "pager"),
        ("MESHLOCK_EXPECT", " 0, 3"),
        ("MESHLOCK_TRIGGER", "t"),
        ("MESHLOCK_SYSTEM", "s"),
        ("MESHLOCK_RECORD_ARGS", "yes"),
    ];
    let expected = Purpose {
        owner: Some("o".into()),
        reason: Some("r".into()),
        route: Some("pager".into()),
        expect: Some("0,3".into()),
        trigger: Some("t".into()),
        system: Some("s".into()),
        arguments: Some(vec![]),
        ..Purpose::default()
    };
    for (flags, variables) in [(&flags[..], &[][..]), (&[], &variables[..])] {
        let settings = with(flags, variables).expect("settings");
        assert_eq!(settings.holder.purpose, expected);
    }
}

#[test]
fn what_is_recorded_has_its_limits() {
    let long = "x".repeat(1025);
    for flag in ["owner", "reason", "route", "trigger", "system"] {
        let (kind, line) = refused(&[&format!("--{flag}={long}")], &[]);
        assert_eq!(kind, FailureKind::Usage);
        assert!(line.ends_with("is longer than 1024 bytes"), "{line}");
    }
    for (flags, variables, kind) in [
        (&["--expect=1-3"][..], &[][..], FailureKind::Usage),
        (&[], &[("MESHLOCK_EXPECT", "256")], FailureKind::Config),
    ] {
        let (refusal, line) = refused(flags, variables);
        assert_eq!(refusal, kind);
        assert!(
            line.ends_with("is not a list of exit statuses from 0 to 255, such as 0,3"),
            "{line}"
        );
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
