//! Variables and flags together: any bytes in any of them give settings or one line of refusal, and no secret in it.

use crate::{ARGUMENT, NOTHING, holds, is_one_line, keeps_pace, long_text, os_text, settings_of};
use clap::CommandFactory as _;
use meshlock::cli::Cli;
use meshlock::outcome::FailureKind;
use proptest::prelude::*;
use proptest::sample::select;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::process::{Command, Stdio};

const ETCDCTL: [&str; 16] = [
    "ENDPOINTS",
    "DIAL_TIMEOUT",
    "CACERT",
    "CERT",
    "KEY",
    "USER",
    "PASSWORD",
    "API",
    "INSECURE_SKIP_TLS_VERIFY",
    "INSECURE_TRANSPORT",
    "DISCOVERY_SRV",
    "AUTH_JWT_TOKEN",
    "WRITE_OUT",
    "",
    "\u{e9}",
    "_",
];

/// Flags by their long names, with and without a value; `--report` apart, which would write files of any name.
fn flags(with_value: bool) -> Vec<String> {
    let run = Cli::command().find_subcommand("run").expect("run").clone();
    let options = run
        .get_arguments()
        .filter(|option| option.get_action().takes_values() == with_value);
    let long = options
        .filter_map(|option| option.get_long())
        .filter(|name| !["help", "report"].contains(name));
    long.map(str::to_owned).collect()
}

fn variable(flag: &str) -> String {
    format!("MESHLOCK_{}", flag.replace('-', "_").to_ascii_uppercase())
}

fn variables() -> impl Strategy<Value = Vec<(String, OsString)>> {
    let ours = [
        flags(true),
        flags(false),
        vec![
            "password".into(),
            "held-leases".into(),
            "held-name".into(),
            String::new(),
        ],
    ];
    let mut names: Vec<String> = ours.concat().iter().map(|flag| variable(flag)).collect();
    names.extend(ETCDCTL.map(|name| format!("ETCDCTL_{name}")));
    let value = prop_oneof![
        2 => os_text(),
        3 => select(vec!["", "0", "1", "true", "5s", "10s", "TERM", "kill", "a:1", "me:secret", "a/b", "1h"]).prop_map(OsString::from),
    ];
    prop::collection::vec((select(names), value), 0..6)
}

#[test]
fn any_variables_give_settings_or_one_line_of_refusal() {
    holds(200, variables(), |variables| {
        match settings_of(["-q"], variables.clone()) {
            Ok(run) => prop_assert!(
                run.connection
                    .endpoints
                    .iter()
                    .all(|endpoint| endpoint.starts_with("http"))
            ),
            Err(failure) => {
                prop_assert_eq!(failure.kind, FailureKind::Config, "{}", failure);
                is_one_line(&failure.why)?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_flag_and_its_variable_are_understood_alike() {
    holds(200, (select(flags(true)), os_text()), |(flag, value)| {
        // Two flags may not be given by a variable's means: empty is unset, and clap itself knows the stragglers.
        prop_assume!(!value.is_empty() && flag != "stragglers");
        let mut typed = OsString::from(format!("--{flag}="));
        typed.push(&value);
        let typed = settings_of([typed], NOTHING);
        let set = settings_of([""; 0], [(variable(&flag), value.clone())]);
        match (typed, set) {
            (Ok(typed), Ok(set)) => {
                let seen = |run: &meshlock::settings::Run| {
                    format!(
                        "{:?} {:?} {:?} {:?} {} {} {:?} {:?} {:?}",
                        run.place,
                        run.wait,
                        run.asked,
                        run.stop_signal,
                        run.conflict_status,
                        run.keep,
                        run.connection.endpoints,
                        run.connection.user,
                        run.holder.purpose,
                    )
                };
                prop_assert_eq!(seen(&typed), seen(&set));
            }
            (Err(typed), Err(set)) => {
                let rest = |why: &str| why.replace(&format!("--{flag}"), "").replace(&variable(&flag), "");
                // What is wrong with a combination ends by naming the variables of which it is made.
                let set_alone = rest(&set.why).replace(" ( is set)", "");
                prop_assert_eq!(rest(&typed.why), set_alone);
                prop_assert_eq!(set.kind, FailureKind::Config);
            }
            (typed, set) => prop_assert!(false, "{:?} and {:?}", typed.err(), set.err()),
        }
        Ok(())
    });
}

#[test]
fn a_password_is_never_told() {
    const SECRET: &str = "hunter2\u{1b}";
    let sources = select(vec![
        "MESHLOCK_PASSWORD",
        "ETCDCTL_PASSWORD",
        "MESHLOCK_USER",
        "ETCDCTL_USER",
        "ETCDCTL_AUTH_JWT_TOKEN",
    ]);
    holds(
        200,
        (variables(), sources, "[a-z]{0,3}:?", any::<bool>()),
        |(mut variables, source, user, by_flag)| {
            let password = if source.ends_with("USER") {
                format!("{user}:{SECRET}")
            } else {
                SECRET.into()
            };
            let flag = format!("--user={user}:{SECRET}");
            let flags = if by_flag { vec![flag.as_str()] } else { Vec::new() };
            variables.insert(0, (source.to_owned(), password.into()));
            match settings_of(flags, variables) {
                Err(failure) => prop_assert!(!failure.why.contains("hunter2"), "{}", failure),
                Ok(run) => {
                    let ours = run
                        .environment
                        .iter()
                        .filter(|(name, _)| name.as_bytes().starts_with(b"MESHLOCK_"));
                    for (name, value) in ours {
                        prop_assert!(
                            !value.as_bytes().windows(7).any(|part| part == b"hunter2"),
                            "{}",
                            name.display()
                        );
                    }
                }
            }
            Ok(())
        },
    );
}

#[test]
fn the_command_gets_every_other_variable_byte_by_byte() {
    let others = prop::collection::vec(("[A-Za-z_][A-Z0-9]{0,5}", os_text()), 0..6);
    holds(200, others, |others| {
        let others: Vec<(OsString, OsString)> = others.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let run = settings_of(["-q"], others.clone());
        prop_assert_eq!(run.ok().map(|run| run.environment), Some(others));
        Ok(())
    });
}

#[test]
fn a_list_of_held_leases_is_read_back_and_the_rest_passed_over() {
    let junk = prop_oneof![
        Just(String::new()),
        "[g-z]{1,3}",
        "-[0-9a-f]{1,3}",
        "0+",
        "[1-9a-f][0-9a-f]{16,29}",
        "[ é]"
    ];
    let list = prop::collection::vec(prop_oneof![(1..i64::MAX).prop_map(Ok), junk.prop_map(Err)], 0..8);
    let leases = |text: OsString| settings_of(["-q"], [("MESHLOCK_HELD_LEASES", text)]).map(|run| run.outer_leases);
    holds(200, (list, os_text()), |(list, bytes)| {
        let text: Vec<String> = list
            .iter()
            .map(|item| item.clone().map_or_else(|junk| junk, |lease| format!("{lease:x}")))
            .collect();
        let expected: Vec<i64> = list.into_iter().filter_map(Result::ok).collect();
        prop_assert_eq!(leases(text.join(":").into()).ok(), Some(expected));
        prop_assert!(leases(bytes).is_ok_and(|leases| leases.iter().all(|lease| *lease > 0)));
        Ok(())
    });
}

#[test]
fn a_complaint_about_a_long_value_still_says_what_is_wrong() {
    holds(200, (select(flags(true)), long_text(5000..5001)), |(flag, value)| {
        let value = value.replace('\0', "");
        if let Err(failure) = settings_of([""; 0], [(variable(&flag), value)]) {
            prop_assert!(failure.why.len() < 2000, "{}", failure.why.len());
            let told = failure.why.contains(&variable(&flag)) || flag == "user";
            prop_assert!(told, "{}", failure);
        }
        Ok(())
    });
}

#[test]
fn an_unknown_options_value_is_not_told() {
    use clap::Parser as _;
    for option in ["--usr=me:hunter2", "-x=hunter2"] {
        let parsed = Cli::try_parse_from(["meshlock", "run", "x", option, "true"]).expect("arguments");
        let meshlock::cli::Command::Run(typed) = parsed.command else {
            panic!("another command");
        };
        let failure = meshlock::settings::run(typed, &NOTHING.into_iter().collect())
            .err()
            .expect("a failure");
        let (name, _) = option.split_once('=').expect("a value");
        assert!(
            failure.why.contains(name) && !failure.why.contains("hunter2"),
            "{failure}"
        );
    }
}

#[test]
fn absurd_lengths_take_no_time() {
    for (name, unit) in [
        ("MESHLOCK_HELD_LEASES", "2a:"),
        ("MESHLOCK_USER", "a:"),
        ("MESHLOCK_OWNER", "é"),
        ("MESHLOCK_STOP_SIGNAL", "SIG"),
    ] {
        let input = |size| unit.bytes().cycle().take(size).collect();
        keeps_pace(ARGUMENT, input, |value| {
            settings_of(["-q"], [(name, OsStr::from_bytes(value).to_owned())]).is_ok()
        });
    }
    let names = |size: usize| vec![b'A'; size];
    keeps_pace(ARGUMENT, names, |names| {
        let variables = names
            .chunks(8)
            .enumerate()
            .map(|(number, _)| (format!("ETCDCTLX_{number}"), "x"));
        settings_of(["-q"], variables).is_ok()
    });
}

/// From the kernel's hands: nothing is listening, so that what is accepted ends by not reaching etcd.
#[test]
fn the_binary_refuses_bad_bytes_in_one_line_before_anything_runs() {
    for (name, value, statuses) in [
        ("MESHLOCK_ENDPOINTS", b"\xff:1".to_vec(), [78, 78]),
        ("MESHLOCK_TTL", b"\x1b[2J".to_vec(), [78, 78]),
        ("MESHLOCK_USER", b"me:\xff".to_vec(), [78, 78]),
        ("MESHLOCK_PASSWORD", b"hunter2\n\xff".to_vec(), [78, 78]),
        ("MESHLOCK_PREFIX", vec![b'p'; 100_000], [78, 78]),
        ("MESHLOCK_CACERT", vec![b'/'; 100_000], [78, 78]),
        ("MESHLOCK_HELD_LEASES", b"\xff:::zz".to_vec(), [69, 69]),
        ("MESHLOCK_", b"\n".to_vec(), [69, 69]),
        // So long that the reasons for each would not fit into a message between our two processes.
        ("MESHLOCK_ENDPOINTS", numbered(2000), [69, 69]),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_meshlock"))
            .args(["run", "--dial-timeout=0.3", "x", "--", "echo", "ran"])
            .env_clear()
            .env("MESHLOCK_ENDPOINTS", "127.0.0.1:1")
            .env("MESHLOCK_CONFIG", "/dev/null")
            .env(name, OsString::from_vec(value))
            .stdin(Stdio::null())
            .output()
            .expect("meshlock");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.stdout.is_empty(), "{name}");
        assert!(
            statuses.contains(&output.status.code().expect("a status")),
            "{name}: {said}"
        );
        let line = said.strip_suffix('\n').expect("a line");
        assert!(
            line.starts_with("meshlock: ") && !line.contains(char::is_control),
            "{name}: {said:?}"
        );
        assert!(!line.contains("hunter2"));
    }
}

fn numbered(count: u32) -> Vec<u8> {
    let list: Vec<String> = (1..=count).map(|port| format!("127.1.2.3:{port}")).collect();
    list.join(",").into_bytes()
}
