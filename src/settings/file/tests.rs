//! What goes before what, what each setting means in a file, and what cannot be in one: each as one table.

use super::keys::{KEYS, Kind, Scope};
use super::parse::{File, parse};
use super::*;
use crate::cli::{self, Cli};
use crate::settings::{Run, with_files};
use clap::CommandFactory as _;
use std::fs;
use std::time::Duration;

fn file(path: &str, text: &str) -> File {
    parse(Path::new(path), text).unwrap_or_else(|failure| panic!("{failure}: {text}"))
}

fn typed(flags: &[&str]) -> cli::Run {
    crate::settings::tests::typed([&["meshlock", "run"], flags, &["billing", "true"]].concat())
}

/// Under the user's and the machine's file.
fn with(flags: &[&str], variables: &[(&str, &str)], users: &str, machines: &str) -> Result<Run, Failure> {
    let files = Files::of([file("/user", users), file("/machine", machines)]);
    with_files(typed(flags), &variables.iter().copied().collect(), &files)
}

fn refused(users: &str, machines: &str) -> String {
    match with(&[], &[], users, machines) {
        Ok(_) => panic!("{users:?} {machines:?} was accepted"),
        Err(failure) => {
            assert_eq!(failure.kind, FailureKind::Config, "{failure}");
            failure.why
        }
    }
}

/// Of every choice of the layers the first counts, whatever the others say.
#[test]
fn each_layer_goes_before_those_below_it() {
    const LAYERS: u64 = 6;
    for present in 0..1_u32 << LAYERS {
        // The value says which layer it is from: 10 s is the first.
        let value = |layer: u64| (present >> layer & 1 == 1).then(|| format!("{}", 10 + layer));
        let line = |layer, head: &str| value(layer).map_or(String::new(), |value| format!("{head}ttl = {value}\n"));
        let lock = "[lock.billing]\n";
        let flag = value(0).map(|value| format!("--ttl={value}"));
        let variable = value(1);
        let settings = with(
            &flag.iter().map(String::as_str).collect::<Vec<_>>(),
            &variable
                .iter()
                .map(|value| ("MESHLOCK_TTL", value.as_str()))
                .collect::<Vec<_>>(),
            &(line(3, "") + &line(2, lock)),
            &(line(5, "") + &line(4, lock)),
        );
        let first = (0..LAYERS).find(|layer| present >> layer & 1 == 1);
        let expected = first.map_or(30, |layer| 10 + layer);
        let ttl = settings.unwrap_or_else(|failure| panic!("{failure}")).asked.ttl;
        assert_eq!(ttl, Duration::from_secs(expected), "{present:b}");
    }
}

#[test]
fn etcdctls_variables_go_between_ours_and_the_files() {
    let ours = ("MESHLOCK_ENDPOINTS", "b:1");
    let etcdctl = ("ETCDCTL_ENDPOINTS", "c:1");
    for (flags, variables, users, machines, endpoint) in [
        (&["--endpoints=a:1"][..], &[ours, etcdctl][..], "d:1", "e:1", "a:1"),
        (&[], &[ours, etcdctl], "d:1", "e:1", "b:1"),
        (&[], &[etcdctl], "d:1", "e:1", "c:1"),
        (&[], &[], "d:1", "e:1", "d:1"),
        (&[], &[], "", "e:1", "e:1"),
        (&[], &[], "", "", "127.0.0.1:2379"),
        // An empty variable is unset.
        (
            &[],
            &[("MESHLOCK_ENDPOINTS", ""), ("ETCDCTL_ENDPOINTS", "")],
            "d:1",
            "",
            "d:1",
        ),
    ] {
        let line = |value: &str| match value {
            "" => String::new(),
            value => format!("endpoints = [\"{value}\"]"),
        };
        let settings = with(flags, variables, &line(users), &line(machines));
        let endpoints = settings
            .unwrap_or_else(|failure| panic!("{failure}"))
            .connection
            .endpoints;
        assert_eq!(endpoints, [format!("http://{endpoint}")]);
    }
}

#[test]
fn a_table_of_another_lock_says_nothing_of_this_one() {
    let owner = |text: &str| {
        let settings = with(&[], &[], text, "").unwrap_or_else(|failure| panic!("{failure}"));
        settings.holder.purpose.owner
    };
    assert_eq!(
        owner("[lock.bill]\nowner = \"x\"\n[lock.\"billing/a\"]\nowner = \"y\"\n"),
        None
    );
    assert_eq!(owner("[lock.'billing']\nowner = \"z\""), Some("z".to_owned()));
    assert_eq!(owner("lock.billing.owner = \"w\""), Some("w".to_owned()));
    assert_eq!(owner("lock = { billing = { owner = 'v' } }"), Some("v".to_owned()));
}

/// Where a thing can be said in two ways, the nearer one holds; at one distance they must not contradict each other.
#[test]
fn of_two_settings_that_exclude_each_other_the_nearer_holds() {
    let wait = ("MESHLOCK_WAIT", "5");
    let no_wait = ("MESHLOCK_NO_WAIT", "true");
    for (flags, variables, users, machines, expected) in [
        (&[][..], &[][..], "no-wait = true", "", Some(0)),
        (&[], &[], "wait = 7", "no-wait = true", Some(7)),
        (&[], &[], "no-wait = true", "wait = 7", Some(0)),
        (&[], &[], "no-wait = false", "no-wait = true", None),
        (&[], &[], "no-wait = true\n[lock.billing]\nwait = 7", "", Some(7)),
        (&[], &[], "wait = 7\n[lock.billing]\nno-wait = true", "", Some(0)),
        (&[], &[wait], "no-wait = true", "", Some(5)),
        (&[], &[no_wait], "wait = 7", "", Some(0)),
        (&["-w9"], &[no_wait], "no-wait = true", "", Some(9)),
        (&["-n"], &[wait], "wait = 7", "", Some(0)),
    ] {
        let settings = with(flags, variables, users, machines).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(
            settings.wait,
            expected.map(Duration::from_secs),
            "{flags:?} {variables:?} {users} {machines}"
        );
    }
    for (flags, users, machines, expected) in [
        (
            &[][..],
            "quiet = true",
            "verbose = true",
            crate::report::Verbosity::Quiet,
        ),
        (&[], "verbose = true", "quiet = true", crate::report::Verbosity::Verbose),
        (&["-v"], "quiet = true", "", crate::report::Verbosity::Verbose),
        (&["-q"], "verbose = true", "", crate::report::Verbosity::Quiet),
        (&[], "quiet = false", "quiet = true", crate::report::Verbosity::Normal),
    ] {
        let settings = with(flags, &[], users, machines).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(settings.verbosity, expected, "{flags:?} {users} {machines}");
    }
    assert_eq!(
        refused("wait = 1\nno-wait = true", ""),
        "/user:1: wait and /user:2: no-wait cannot both be set"
    );
    assert_eq!(
        refused("[lock.billing]\nverbose = true\nquiet = true", ""),
        "/user:3: quiet and /user:2: verbose cannot both be set"
    );
}

/// An option of `run`, what may be typed for it, and the same in TOML.
const SAMPLES: &[(&str, &str, &[&str])] = &[
    ("no-wait", "", &["true"]),
    ("wait", "90", &["90", "\"90\"", "\"1m30s\"", "90.0"]),
    ("conflict-exit-code", "3", &["3", "\"3\"", "0x3"]),
    ("ttl", "60s", &["60", "\"1m\"", "6_0", "60.0"]),
    ("grace", "2.5", &["2.5", "\"2.5s\""]),
    ("tls-server-name", "etcd.internal", &["\"etcd.internal\""]),
    ("stop-signal", "2", &["2", "\"INT\"", "\"sigint\""]),
    ("lost-grace", "500ms", &["0.5", "\"500ms\""]),
    ("max-runtime", "1h", &["3600", "\"60m\""]),
    ("stragglers", "kill", &["\"kill\"", "'KILL'"]),
    ("release-timeout", "7", &["7"]),
    ("report", "/dev/null", &["\"/dev/null\"", "\"../dev/null\""]),
    ("keep", "7", &["7", "\"7\""]),
    ("owner", "o", &["\"o\"", "'o'", "\"\"\"o\"\"\""]),
    ("reason", "a \"b\"\tc", &["\"a \\\"b\\\"\\tc\"", "'a \"b\"\tc'"]),
    ("route", "#on-call", &["\"#on-call\""]),
    ("expect", "0,3", &["[0, 3]", "\"0,3\"", "[\"0\", 3]"]),
    ("trigger", "t", &["\"t\""]),
    ("system", "s", &["\"s\""]),
    ("record-args", "", &["true"]),
    ("prefix", "p/", &["\"p\""]),
    ("lock-key", "jobs/x", &["\"jobs/x\""]),
    ("endpoints", "a:1,b:2", &["[\"a:1\", \"b:2\"]", "\"a:1,b:2\""]),
    ("discovery-srv", "example.org", &["\"example.org\""]),
    ("dial-timeout", "3", &["3", "\"3s\""]),
    ("quiet", "", &["true"]),
    ("verbose", "", &["true"]),
];

/// Samples of these are files that have to be there: `the_files_of_tls_and_of_the_password_are_found`.
const FILES: &[&str] = &["cacert", "cert", "key", "user", "password-file"];

/// Means nothing by itself: `where_dns_is_asked_may_stand_in_a_file`.
const NOT_ALONE: &[&str] = &["discovery-srv-name"];

fn seen(run: &Run) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {} {} {:?} {:?} {:?} {:?} {} {:?} {:?}",
        run.place,
        run.prefix,
        run.wait,
        run.asked,
        run.stop_signal,
        run.conflict_status,
        run.keep,
        run.connection.endpoints,
        run.connection.dial_timeout,
        run.holder.purpose,
        run.stragglers,
        run.report.is_some(),
        run.verbosity,
        run.reach,
    )
}

#[test]
fn each_setting_means_in_a_file_what_its_flag_means() {
    let left = with(&[], &[], "", "").map(|run| seen(&run)).expect("settings");
    for (key, flag, in_toml) in SAMPLES {
        let flag = if flag.is_empty() {
            format!("--{key}")
        } else {
            format!("--{key}={flag}")
        };
        let by_flag = seen(&with(&[&flag], &[], "", "").unwrap_or_else(|failure| panic!("{failure}")));
        assert_ne!(by_flag, left, "{flag} changes something");
        let scope = KEYS.iter().find(|known| known.name == *key).expect("a key").scope;
        for value in *in_toml {
            for (may, head) in [(scope.at_the_top(), ""), (scope.in_a_lock(), "[lock.billing]\n")] {
                let text = format!("{head}{key} = {value}");
                match parse(Path::new("/user"), &text) {
                    Ok(file) => {
                        assert!(may, "{text}");
                        let run = with_files(typed(&[]), &[("", ""); 0].into_iter().collect(), &Files::of([file]));
                        assert_eq!(
                            seen(&run.unwrap_or_else(|failure| panic!("{failure}"))),
                            by_flag,
                            "{text}"
                        );
                    }
                    Err(failure) => assert!(!may, "{failure}"),
                }
            }
        }
    }
}

#[test]
fn the_table_has_the_options_of_run_and_each_as_it_is_typed() {
    let command = Cli::command();
    let run = command.find_subcommand("run").expect("run");
    let options: Vec<_> = run
        .get_arguments()
        .filter(|option| !option.is_positional() && option.get_long() != Some("config"))
        .collect();
    let flags: Vec<_> = options.iter().filter_map(|option| option.get_long()).collect();
    // clap adds the help when it builds.
    let flags: BTreeSet<_> = flags.into_iter().filter(|flag| *flag != "help").collect();
    assert_eq!(KEYS.iter().map(|key| key.name).collect::<BTreeSet<_>>(), flags);
    let sampled = SAMPLES.iter().map(|(key, ..)| *key);
    let sampled = sampled.chain(FILES.iter().chain(NOT_ALONE).copied());
    assert_eq!(sampled.collect::<BTreeSet<_>>(), flags);
    for option in options {
        let long = option.get_long().expect("a flag");
        let Some(key) = KEYS.iter().find(|key| key.name == long) else {
            continue;
        };
        let value = option
            .get_value_names()
            .and_then(|names| names.first())
            .map(clap::builder::Str::as_str);
        let kind = match value.filter(|_| option.get_action().takes_values()) {
            None => Kind::Switch,
            Some("DURATION") => Kind::Duration,
            Some("N") => Kind::Number,
            Some("FILE") => Kind::File,
            Some("LIST") if long == "expect" => Kind::Statuses,
            Some("LIST") => Kind::List,
            Some("leave|wait|kill") => Kind::Stragglers,
            Some("SIGNAL") => Kind::Signal,
            Some(_) => Kind::Text,
        };
        assert_eq!(key.kind, kind, "{long}");
        let connects = option.get_help_heading() == Some("Connection") || long == "prefix";
        assert_eq!(key.scope == Scope::Top, connects, "{long}");
    }
}

#[test]
fn where_dns_is_asked_may_stand_in_a_file() {
    const DNS: &str = "discovery-srv = 'd.test'\ndiscovery-srv-name = 'blue'";
    let ours = ("MESHLOCK_ENDPOINTS", "a:1");
    for (flags, variables, users, machines, by_dns) in [
        (&[][..], &[][..], DNS, "", true),
        (&[], &[], DNS, "endpoints = 'a:1'", true),
        (&[], &[], "endpoints = 'a:1'", DNS, false),
        (&["--endpoints=a:1"], &[], DNS, "", false),
        (&[], &[ours], DNS, "", false),
    ] {
        let run = with(flags, variables, users, machines).unwrap_or_else(|failure| panic!("{failure}"));
        let found = run.connection.discovery.map(|found| (found.domain, found.name));
        let expected = by_dns.then(|| ("d.test".to_owned(), Some("blue".to_owned())));
        assert_eq!(found, expected, "{flags:?} {variables:?} {users} {machines}");
        assert_eq!(run.connection.endpoints.is_empty(), by_dns);
    }
    assert_eq!(
        refused("endpoints = 'a:1'\ndiscovery-srv = 'd.test'", ""),
        "/user:2: discovery-srv and /user:1: endpoints cannot both be given"
    );
    assert_eq!(
        refused("discovery-srv-name = 'blue'", ""),
        "/user:1: discovery-srv-name needs --discovery-srv beside it"
    );
}

#[test]
fn relative_names_are_of_the_files_own_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config.toml");
    fs::write(directory.path().join("password"), "secret\n").expect("written");
    let text = "user = \"job\"\npassword-file = \"password\"\n[lock.billing]\nreport = 'report.json'\n";
    fs::write(&path, text).expect("written");
    let flags = ["--config", path.to_str().expect("UTF-8")];
    let environment = [("", ""); 0].into_iter().collect();
    let run = crate::settings::run(typed(&flags), &environment).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(run.connection.user == Some(("job".to_owned(), "secret".to_owned())));
    assert_eq!(run.reach.password_file, Some(directory.path().join("password")));
    assert!(run.report.is_some());
}

#[test]
fn a_wrong_value_is_told_with_its_line_where_it_counts() {
    let ttl = "[lock.billing]\n\nttl = \"5x\"\n";
    let line = "/machine:3: ttl \"5x\" is not a duration";
    assert!(refused("", ttl).starts_with(line), "{}", refused("", ttl));
    assert!(with(&[], &[], "ttl = 9", ttl).is_ok(), "what goes before it hides it");
    assert!(refused("endpoints = 'a:0'", "").starts_with("/user:1: endpoints \"a:0\" has \"a:0\", whose port"));
    assert!(refused("cert = '/c'", "").contains("/user:1: cert"));
    let line = refused("ttl = 10\n[lock.billing]\ngrace = 9", "");
    assert!(line.ends_with("(/user:1: ttl and /user:3: grace is set)"), "{line}");
}

#[test]
fn what_was_neither_typed_nor_left_is_told_with_where_it_is_from() {
    let variables = [("MESHLOCK_OWNER", "ann"), ("MESHLOCK_GRACE", "3s")];
    let run = with(
        &["--grace=2"],
        &variables,
        "user = 'x'\nttl = 20\n",
        "ttl = 40\n[lock.billing]\nexpect = [0, 3]",
    );
    // A user without a password is refused.
    let failure = run.err().expect("a failure");
    assert!(failure.why.starts_with("no password"), "{failure}");
    let run = with(
        &["--grace=2"],
        &variables,
        "ttl = 20\n",
        "ttl = 40\n[lock.billing]\nexpect = [0, 3]",
    );
    assert_eq!(
        run.unwrap_or_else(|failure| panic!("{failure}")).origins,
        [
            "ttl is \"20\", from /user:1",
            "expect is \"0,3\", from /machine:3",
            "owner is \"ann\", from MESHLOCK_OWNER",
        ]
    );
    let variables = [("MESHLOCK_USER", "me:hunter2")];
    let origins = with(&[], &variables, "", "")
        .unwrap_or_else(|failure| panic!("{failure}"))
        .origins;
    assert_eq!(origins, ["user is \"me:********\", from MESHLOCK_USER"]);
}

/// Which file is the user's, by what is in the environment.
#[test]
fn the_users_file_is_found_by_the_environment() {
    for (variables, path) in [
        (&[("HOME", "/h")][..], Some("/h/.config/meshlock/config.toml")),
        (
            &[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")],
            Some("/x/meshlock/config.toml"),
        ),
        (&[("XDG_CONFIG_HOME", "/x")], Some("/x/meshlock/config.toml")),
        (
            &[("HOME", "/h"), ("XDG_CONFIG_HOME", "x")],
            Some("/h/.config/meshlock/config.toml"),
        ),
        (
            &[("HOME", "/h"), ("XDG_CONFIG_HOME", "")],
            Some("/h/.config/meshlock/config.toml"),
        ),
        (&[("HOME", "h")], None),
        (&[], None),
    ] {
        let environment = variables.iter().copied().collect();
        assert_eq!(users(&environment), path.map(PathBuf::from), "{variables:?}");
    }
    // As under cron and systemd, which may give none.
    let home = User::from_uid(geteuid())
        .ok()
        .flatten()
        .map(|user| user.dir.join(".config/meshlock/config.toml"));
    assert_eq!(users(&Environment::bare()), home);
}

#[test]
fn the_files_of_tls_and_of_the_password_are_found() {
    for (key, other) in [
        ("cacert", ""),
        ("cert", "key = '/none/k'"),
        ("key", "cert = '/none/c'"),
        ("password-file", "user = 'me'"),
    ] {
        let line = refused(&format!("{key} = '/none/{key}'\n{other}"), "");
        assert!(line.starts_with("/user:") && line.contains("/none/"), "{line}");
    }
}

#[test]
fn the_example_is_one() {
    let text = include_str!("../../../docs/config.toml");
    let example = file("/etc/meshlock/config.toml", text);
    let files = Files::of([example]);
    assert_eq!(files.locks(), BTreeSet::from(["billing", "team/db"]));
    let (.., entry) = files.find(Some("billing"), "cacert").expect("a setting");
    assert_eq!(entry.value, "/etc/meshlock/ca.pem");
    // All but the files, which are not there.
    let without: Vec<_> = text
        .lines()
        .filter(|line| !FILES.iter().any(|key| line.starts_with(key)))
        .collect();
    let run = with(&[], &[], &without.join("\n"), "").unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(run.holder.purpose.route.as_deref(), Some("#billing-oncall"));
    assert_eq!(run.wait, Some(Duration::ZERO));
}
