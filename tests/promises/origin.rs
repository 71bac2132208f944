//! What a run's record says of where it comes from: what set it off, which system it belongs to, who to go to,
//! and whether it ended as was expected; and that it says no more than was asked for.

use crate::harness::meshlock::read;
use crate::harness::{Etcd, Meshlock, Terminal, directory, proc, unique};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The one run record of that name.
fn record(etcd: &Etcd, name: &str) -> Value {
    let keys = etcd.keys(&format!("meshlock/log/{name}/"));
    assert_eq!(keys.len(), 1, "{keys:?}");
    parse(&etcd.get(&keys[0]).expect("a record"))
}

/// What the record of a run says that was set up so.
fn recorded(set_up: impl FnOnce(Meshlock) -> Meshlock) -> (String, String) {
    let etcd = Etcd::shared();
    let name = unique("origin");
    set_up(Meshlock::run(etcd, &name)).finish().success();
    let record = record(etcd, &name);
    let text = |field: &str| record[field].as_str().unwrap_or_else(|| panic!("{record}")).to_owned();
    (text("trigger"), text("system"))
}

fn host() -> String {
    nix::unistd::gethostname().expect("a name").into_string().expect("text")
}

fn user() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).expect("users");
    user.map_or_else(|| nix::unistd::getuid().to_string(), |user| user.name)
}

/// A copy of the shell under another name, and a script by which it becomes meshlock's parent.
fn shell_named(name: &str) -> [OsString; 4] {
    let copy = directory().join(name);
    fs::copy("/bin/sh", &copy).expect("a copy of the shell");
    [copy.into(), "-c".into(), "\"$@\"; exit $?".into(), name.into()]
}

#[test]
fn a_run_in_ci_is_recorded_with_the_link_to_it() {
    for (variables, trigger, project) in [
        (
            &[
                ("GITHUB_ACTIONS", "true"),
                ("GITHUB_SERVER_URL", "https://github.com"),
                ("GITHUB_REPOSITORY", "acme/billing"),
                ("GITHUB_RUN_ID", "77"),
            ][..],
            "GitHub Actions: https://github.com/acme/billing/actions/runs/77",
            Some("acme/billing"),
        ),
        (
            &[
                ("GITLAB_CI", "true"),
                ("CI_JOB_URL", "https://gitlab.example/-/jobs/5"),
                ("CI_PROJECT_PATH", "acme/billing"),
            ],
            "GitLab CI: https://gitlab.example/-/jobs/5",
            Some("acme/billing"),
        ),
        (
            &[
                ("JENKINS_URL", "https://ci.example/"),
                ("BUILD_URL", "https://ci.example/job/billing/12/"),
                ("JOB_NAME", "billing"),
            ],
            "Jenkins: https://ci.example/job/billing/12/",
            Some("billing"),
        ),
        (
            &[
                ("BUILDKITE", "true"),
                ("BUILDKITE_BUILD_URL", "https://buildkite.com/acme/billing/builds/3"),
                ("BUILDKITE_PIPELINE_SLUG", "billing"),
            ],
            "Buildkite: https://buildkite.com/acme/billing/builds/3",
            Some("billing"),
        ),
        (
            &[
                ("CIRCLECI", "true"),
                ("CIRCLE_BUILD_URL", "https://circleci.com/gh/acme/billing/9"),
                ("CIRCLE_JOB", "deploy"),
            ],
            "CircleCI: https://circleci.com/gh/acme/billing/9",
            Some("deploy"),
        ),
        (
            &[
                ("TF_BUILD", "True"),
                ("SYSTEM_COLLECTIONURI", "https://dev.azure.com/acme/"),
                ("SYSTEM_TEAMPROJECTID", "6f1c"),
                ("SYSTEM_TEAMPROJECT", "Billing"),
                ("BUILD_BUILDID", "4"),
            ],
            "Azure Pipelines: https://dev.azure.com/acme/6f1c/_build/results?buildId=4",
            Some("Billing"),
        ),
        (
            &[
                ("CI", "woodpecker"),
                ("CI_PIPELINE_URL", "https://ci.example/repos/1/pipeline/2"),
                ("CI_REPO", "acme/billing"),
            ],
            "Woodpecker CI: https://ci.example/repos/1/pipeline/2",
            Some("acme/billing"),
        ),
        (
            &[
                ("DRONE", "true"),
                ("DRONE_BUILD_LINK", "https://drone.example/acme/billing/42"),
                ("DRONE_REPO", "acme/billing"),
            ],
            "Drone: https://drone.example/acme/billing/42",
            Some("acme/billing"),
        ),
        (
            &[
                ("TEAMCITY_VERSION", "2025.11"),
                ("BUILD_URL", "https://tc.example/build/8"),
                ("TEAMCITY_PROJECT_NAME", "Billing"),
            ],
            "TeamCity: https://tc.example/build/8",
            Some("Billing"),
        ),
        (
            &[
                ("BITBUCKET_BUILD_NUMBER", "6"),
                ("BITBUCKET_GIT_HTTP_ORIGIN", "https://bitbucket.org/acme/billing"),
                ("BITBUCKET_REPO_FULL_NAME", "acme/billing"),
            ],
            "Bitbucket Pipelines: https://bitbucket.org/acme/billing/pipelines/results/6",
            Some("acme/billing"),
        ),
        (&[("CI", "true")], "CI", None),
    ] {
        let found = recorded(|run| variables.iter().fold(run, |run, (name, value)| run.env(name, value)));
        let system = project.map_or_else(host, |project| format!("{project} on {}", host()));
        assert_eq!(found, (trigger.to_owned(), system));
    }
}

#[test]
fn what_systemd_executed_is_recorded_as_its_unit() {
    // systemd tells the process that it executes its own number; the test takes its part.
    let itself = "SYSTEMD_EXEC_PID=$$ INVOCATION_ID=0a1b exec \"$@\"";
    let its_parent = "export SYSTEMD_EXEC_PID=$$ INVOCATION_ID=0a1b; \"$@\"; exit $?";
    let cgroup = read("/proc/self/cgroup".as_ref());
    for script in [itself, its_parent] {
        let (trigger, system) = recorded(|run| run.by(["sh", "-c", script, "sh"]));
        if cgroup.contains(".scope") {
            // The tests run in somebody's session, which systemd did not start as a unit.
            continue;
        }
        assert!(
            trigger.starts_with("systemd") && trigger.ends_with(", invocation 0a1b"),
            "{trigger}"
        );
        let unit = trigger
            .strip_prefix("systemd: ")
            .and_then(|rest| rest.split(',').next());
        assert_eq!(system, unit.map_or_else(host, |unit| format!("{unit} on {}", host())));
    }
    // Handed down to a process that systemd did not execute.
    let (trigger, _) = recorded(|run| run.env("SYSTEMD_EXEC_PID", "1999999999").env("INVOCATION_ID", "0a1b"));
    assert!(!trigger.contains("systemd"), "{trigger}");
}

#[test]
fn what_cron_started_is_recorded_as_a_crontabs() {
    for (process, trigger, jobs) in [
        ("cron", "cron", "crontab"),
        ("crond", "cron", "crontab"),
        ("atd", "at", "at queue"),
        ("anacron", "anacron", "anacrontab"),
    ] {
        let found = recorded(|run| run.by(shell_named(process)));
        let system = format!("{jobs} of {} on {}", user(), host());
        assert_eq!(found, (trigger.to_owned(), system));
    }
    // CI goes before.
    let (trigger, _) = recorded(|run| run.by(shell_named("cron")).env("CI", "true"));
    assert_eq!(trigger, "CI");
}

#[test]
fn a_run_at_a_terminal_is_recorded_as_such() {
    let etcd = Etcd::shared();
    let name = unique("origin");
    let words = Meshlock::run(etcd, &name).words();
    let line: Vec<String> = words.into_iter().map(|word| format!("'{}'", word.display())).collect();
    let mut terminal = Terminal::open("bash");
    // Where its streams lead does not matter.
    terminal.run(&format!("{} </dev/null 2>&1 | cat", line.join(" ")));
    let record = record(etcd, &name);
    assert_eq!(record["trigger"], "terminal");
    assert_eq!(record["system"].as_str(), Some(host().as_str()));
}

#[test]
fn a_run_of_which_nothing_is_known_says_so() {
    let mut above = std::process::id().cast_signed();
    let mut names = Vec::new();
    while let Some(stat) = proc::stat(above) {
        names.push(proc::name(above));
        above = stat.parent;
    }
    let (trigger, system) = recorded(|run| run);
    // The tests may themselves be cron's.
    if !names
        .iter()
        .any(|name| ["cron", "crond", "atd", "anacron"].contains(&name.as_str()))
    {
        assert_eq!((trigger, system), ("unknown".to_owned(), host()));
    }
}

#[test]
fn what_was_said_goes_before_what_was_found() {
    let found = recorded(|run| {
        run.args(["--trigger", "webhook 7", "--system", "billing, production"])
            .env("CI", "true")
    });
    assert_eq!(found, ("webhook 7".to_owned(), "billing, production".to_owned()));
    let found = recorded(|run| run.env("MESHLOCK_SYSTEM", "billing").env("CI", "true"));
    assert_eq!(found, ("CI".to_owned(), "billing".to_owned()));
}

#[test]
fn a_run_is_judged_by_what_was_expected_of_it() {
    let etcd = Etcd::shared();
    for (expect, script, kept, met) in [
        (None, "exit 0", None, true),
        (None, "exit 3", None, false),
        (Some("3, 0,3"), "exit 3", Some("0,3"), true),
        (Some("3"), "exit 0", Some("3"), false),
        (Some("0,143"), "kill -TERM $$", Some("0,143"), true),
    ] {
        let name = unique("expect");
        let report = directory().join("report");
        let finished = Meshlock::run(etcd, &name)
            .args(expect.map(|list| format!("--expect={list}")))
            .args(["--report".as_ref(), report.as_os_str()])
            .args(["--owner=ann", "--route=#on-call"])
            .sh(script)
            .finish();
        // The command's own end is passed on, met or not, and nothing is said of it.
        if script.starts_with("kill") {
            finished.signaled(nix::sys::signal::Signal::SIGTERM);
        } else {
            finished.status(script.trim_start_matches("exit ").parse().expect("a status"));
        }
        let record = record(etcd, &name);
        assert_eq!(record.get("expect").and_then(Value::as_str), kept, "{record}");
        assert_eq!(record["route"], "#on-call");
        let report = parse(&read(&report));
        assert_eq!(report["expect"], kept.unwrap_or("0"), "{report}");
        assert_eq!(report["met"], met, "{expect:?} {script}");
        assert_eq!(report["owner"], "ann");
        for field in ["route", "trigger", "system"] {
            assert_eq!(report[field], record[field], "{field}");
        }
    }
}

#[test]
fn a_run_that_was_stopped_or_never_began_did_not_end_as_expected() {
    let etcd = Etcd::shared();
    let expect = ["--expect=0,127,143", "--report"];
    let report = directory().join("report");
    let met = || parse(&read(&report))["met"].clone();
    Meshlock::run(etcd, unique("expect"))
        .args(expect)
        .args([&report])
        .args(["--max-runtime=0.1"])
        .command(["sleep", "1000"])
        .finish()
        .any_stderr()
        .status(124);
    assert_eq!(met(), false);
    Meshlock::run(etcd, unique("expect"))
        .args(expect)
        .args([&report])
        .command(["/none/such"])
        .finish()
        .any_stderr()
        .status(127);
    assert_eq!(met(), false);
    // Where nothing was to be run there is nothing to judge.
    let name = unique("expect");
    etcd.put(&format!("meshlock/lock/{name}/1f"), "");
    Meshlock::run(etcd, &name)
        .args(expect)
        .args([&report])
        .args(["-n", "-q"])
        .finish()
        .status(75);
    assert_eq!(met(), Value::Null);
}

#[test]
fn a_wrong_expectation_is_found_before_anything_runs() {
    Meshlock::run(Etcd::shared(), unique("expect"))
        .args(["--expect", "0,no"])
        .sh("echo ran")
        .finish()
        .stderr_line(["--expect", "\"0,no\"", "exit statuses"])
        .status(64);
}

#[test]
fn no_argument_is_in_etcd_unless_that_was_asked_for() {
    let etcd = Etcd::start();
    let everything = || {
        let keys = etcd.keys("");
        let values: Vec<String> = keys.iter().filter_map(|key| etcd.get(key)).collect();
        [keys, values].concat().join("\n")
    };
    for (asked, variables) in [(&[][..], None), (&["--record-args"][..], None), (&[], Some("true"))] {
        let mut run = Meshlock::run(&etcd, "billing")
            .args(asked)
            .stdin(Stdio::piped())
            .command(["sh", "-c", "echo held; read -r _; exit 0", "canary-7f3a", "b c"]);
        if let Some(value) = variables {
            run = run.env("MESHLOCK_RECORD_ARGS", value);
        }
        let mut running = run.start();
        running.wait_for_stdout("held");
        let while_held = everything();
        // Not on others' screens either.
        let contended = Meshlock::run(&etcd, "billing")
            .args(["-n"])
            .finish()
            .any_stderr()
            .status(75);
        assert!(!contended.stderr.contains("canary"), "{}", contended.stderr);
        running.finish().stdout("held\n").success();
        let after = everything();
        assert!(while_held.contains("meshlock/open/billing/") && after.contains("meshlock/log/billing/"));
        let was_asked = !asked.is_empty() || variables.is_some();
        assert_eq!(while_held.contains("canary-7f3a"), was_asked, "{while_held}");
        assert_eq!(after.contains("canary-7f3a"), was_asked, "{after}");
        if was_asked {
            let keys = etcd.keys("meshlock/log/billing/");
            let record = parse(&etcd.get(keys.last().expect("a record")).expect("a record"));
            let arguments: Vec<&str> = record["arguments"]
                .as_array()
                .expect("a list")
                .iter()
                .filter_map(Value::as_str)
                .collect();
            assert_eq!(arguments, ["-c", "echo held; read -r _; exit 0", "canary-7f3a", "b c"]);
        }
    }
}

#[test]
fn hostile_surroundings_stay_within_bounds() {
    let long = "x".repeat(100_000);
    let not_text = OsStr::from_bytes(b"bill\xffing\n\x1b[2J\x07");
    let etcd = Etcd::shared();
    let name = unique("origin");
    // The kernel passes no single value of more than 128 KiB: a MiB in many.
    let run = (0..10).fold(Meshlock::run(etcd, &name), |run, number| {
        run.env(format!("CI_FILLING_{number}"), &long)
    });
    run.env("JENKINS_URL", &long)
        .env("BUILD_URL", format!("https://ci.example/{long}"))
        .env("JOB_NAME", not_text)
        .args(["--record-args"])
        .command(["true", &long])
        .finish()
        .success();
    let key = etcd.keys(&format!("meshlock/log/{name}/")).remove(0);
    let text = etcd.get(&key).expect("a record");
    assert!(text.len() < 8000, "{}", text.len());
    assert!(!text.contains('\u{1b}') && !text.trim_end().contains('\n'), "{text:?}");
    let record = parse(&text);
    assert_eq!(record["trigger"], "Jenkins", "half a link would lead elsewhere");
    let system = record["system"].as_str().expect("text");
    assert!(
        system.starts_with("bill\u{fffd}ing") && system.ends_with(&host()),
        "{system:?}"
    );
    let kept = record["arguments"][0].as_str().expect("text");
    assert!(kept.len() <= 4096 && kept.ends_with('…'), "{}", kept.len());
}
