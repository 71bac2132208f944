//! Settings: flags before `MESHLOCK_*` before `ETCDCTL_*` before defaults; what cannot be right is refused
//! in one line before anything is run. Precedence and values in all their combinations are tables beside
//! the code; here is what reaches the binary.

use crate::harness::etcd::free_port;
use crate::harness::{Etcd, Meshlock, directory, unique};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

#[test]
fn a_flag_wins_over_our_variable_and_that_over_etcdctls() {
    let etcd = Etcd::shared();
    let away = format!("127.0.0.1:{}", free_port());
    Meshlock::run(etcd, unique("layers"))
        .env("MESHLOCK_ENDPOINTS", &away)
        .env("ETCDCTL_ENDPOINTS", &away)
        .finish()
        .success();
    Meshlock::run(etcd, unique("layers"))
        .without_endpoints()
        .env("MESHLOCK_ENDPOINTS", etcd.address())
        .env("ETCDCTL_ENDPOINTS", &away)
        .finish()
        .success();
    Meshlock::run(etcd, unique("layers"))
        .without_endpoints()
        .env("ETCDCTL_ENDPOINTS", etcd.address())
        .finish()
        .success();
    Meshlock::run(etcd, unique("layers"))
        .without_endpoints()
        .env("MESHLOCK_ENDPOINTS", &away)
        .env("ETCDCTL_ENDPOINTS", etcd.address())
        .finish()
        .stderr_line([away.as_str()])
        .status(69);
}

#[test]
fn each_way_to_write_an_endpoint_is_understood() {
    let etcd = Etcd::shared();
    let port = etcd.address().rsplit(':').next().expect("a port").to_owned();
    for endpoint in [
        etcd.address(),
        etcd.endpoint(),
        format!("localhost:{port}"),
        format!("127.0.0.1:{},{}", free_port(), etcd.address()),
    ] {
        Meshlock::run_at(endpoint, unique("endpoint")).finish().success();
    }
}

#[test]
fn wrong_usage_is_told_in_one_line() {
    let ran = directory().join("ran");
    let long = "x".repeat(256);
    let names: [&OsStr; 5] = [
        OsStr::new(""),
        OsStr::new("a,b"),
        OsStr::new("a\nb"),
        OsStr::new(&long),
        OsStr::from_bytes(b"\xff"),
    ];
    for name in names {
        Meshlock::run(Etcd::shared(), name)
            .command(["touch".into(), ran.clone().into_os_string()])
            .finish()
            .stderr_line(["name"])
            .status(64);
    }
    for options in [
        ["--no-such-option"].as_slice(),
        &["--no-wait", "--wait", "3"],
        &["--stragglers", "dance"],
    ] {
        Meshlock::run(Etcd::shared(), unique("usage"))
            .args(options)
            .command(["touch".into(), ran.clone().into_os_string()])
            .finish()
            .stderr_line(Vec::<String>::new())
            .status(64);
    }
    Meshlock::run(Etcd::shared(), unique("usage"))
        .command(Vec::<String>::new())
        .finish()
        .stderr_line(["COMMAND"])
        .status(64);
    assert!(!ran.exists());
}

#[test]
fn absurd_values_are_refused_before_anything_runs() {
    let ran = directory().join("ran");
    let endless = "p".repeat(100_000);
    for (option, value) in [
        ("--prefix", endless.as_str()),
        ("--ttl", "3"),
        ("--ttl", "301"),
        ("--ttl", "-5"),
        ("--ttl", "99999999999999999999"),
        ("--ttl", "soon"),
        ("--ttl", "nan"),
        ("--wait", "1e400"),
        ("--grace", "25s"),
        ("--lost-grace", "10"),
        ("--max-runtime", "0"),
        ("--dial-timeout", "0"),
        ("--stop-signal", "DANCE"),
        ("--stop-signal", "0"),
        ("--keep", "-1"),
        ("--keep", "many"),
        ("-E", "256"),
        ("-E", "-1"),
        ("--endpoints", ""),
        ("--endpoints", "unix:///run/etcd.sock"),
        ("--endpoints", "ftp://127.0.0.1:1"),
    ] {
        let run = Meshlock::run(Etcd::shared(), unique("absurd"))
            .args([format!("{option}={value}")])
            .command(["touch".into(), ran.clone().into_os_string()])
            .start();
        let line = run.finish().any_stderr();
        let code = line.code();
        assert!(matches!(code, Some(64 | 78)), "{option}={value}: {code:?}");
        let said = line.status(code.expect("a status"));
        assert!(
            said.stderr.starts_with("meshlock: ") && said.stderr.lines().count() == 1,
            "{option}={value}: {}",
            said.stderr
        );
    }
    assert!(!ran.exists());
}

#[test]
fn a_combination_that_cannot_keep_the_promise_is_refused_with_the_numbers() {
    Meshlock::run(Etcd::shared(), unique("grace"))
        .args(["--ttl", "10", "--grace", "8"])
        .finish()
        .stderr_line(["8 s", "10 s"])
        .status(64);
}

#[test]
fn a_granted_ttl_above_the_asked_one_is_what_counts() {
    // etcd grants no less than one and a half election time-outs: here 8 s.
    let etcd = Etcd::start_with(&[
        "--heartbeat-interval=500",
        "--election-timeout=5000",
        "--initial-election-tick-advance=true",
    ]);
    let said = Meshlock::run(&etcd, "granted")
        .args(["--ttl", "4"])
        .sh(r#"etcdctl --endpoints="$MESHLOCK_HELD_ENDPOINTS" lease timetolive "${MESHLOCK_HELD_LEASES##*:}""#)
        .env("ETCDCTL_API", "3")
        .finish()
        .any_stdout()
        .success();
    assert!(said.stdout.contains("granted with TTL(8s)"), "{}", said.stdout);
}

#[test]
fn an_etcdctl_setting_that_is_not_supported_is_refused_and_never_ignored() {
    for variable in ["ETCDCTL_AUTH_JWT_TOKEN", "ETCDCTL_INSECURE_SKIP_TLS_VERIFY"] {
        Meshlock::run(Etcd::shared(), unique("etcdctl"))
            .env(variable, "true")
            .finish()
            .stderr_line([variable])
            .status(78);
    }
}

#[test]
fn a_misspelt_variable_is_warned_of_and_the_command_runs() {
    Meshlock::run(Etcd::shared(), unique("misspelt"))
        .args(["-q"])
        .env("MESHLOCK_MAX_RUNTME", "1h")
        .finish()
        .stderr_line(["MESHLOCK_MAX_RUNTME", "is MESHLOCK_MAX_RUNTIME meant?"])
        .success();
}

#[test]
fn help_and_version_go_to_stdout() {
    let help = |words: &[&str]| {
        crate::harness::clean(crate::harness::meshlock::binary())
            .args(words)
            .output()
            .expect("meshlock")
    };
    for words in [
        ["--help"].as_slice(),
        &["run", "--help"],
        &["run", "-h"],
        &["--version"],
    ] {
        let output = help(words);
        assert!(
            output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty(),
            "{words:?}"
        );
    }
    let none = help(&[]);
    assert_eq!(none.status.code(), Some(64));
    assert!(none.stdout.is_empty());
}
