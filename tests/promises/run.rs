//! The command runs under the lock as it would without: arguments, environment, streams, signals and
//! descriptors reach it untouched, its status is the status, and nothing is said or left behind.

use crate::harness::{Etcd, Meshlock, directory, eventually, meshlock, proc, so, unique};
use nix::sys::signal::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

#[test]
fn a_run_is_silent_and_leaves_nothing_but_its_record() {
    let etcd = Etcd::start();
    Meshlock::run(&etcd, "billing").finish().success();
    etcd.assert_clean("billing");
    etcd.assert_no_leases();
    let left = etcd.keys("");
    assert!(
        left.len() == 1 && left[0].starts_with("meshlock/log/billing/"),
        "one run record and nothing else: {left:?}"
    );
}

#[test]
fn the_key_is_there_while_the_command_runs() {
    let etcd = Etcd::shared();
    let name = unique("held");
    let mut running = Meshlock::run(etcd, &name)
        .sh("echo held; read -r _")
        .stdin(Stdio::piped())
        .start();
    running.wait_for_stdout("held");
    assert_eq!(etcd.queue(&name).len(), 1);
    running.finish().stdout("held\n").status(1);
    etcd.assert_clean(&name);
}

#[test]
fn arguments_reach_the_command_byte_for_byte() {
    let arguments: [&[u8]; 7] = [b"printf", b"<%s>", b"", b"a b\n", b"--ttl", b"-n", b"\xff\xfe\x80"];
    Meshlock::run(Etcd::shared(), unique("argv"))
        .command(arguments.map(OsStr::from_bytes))
        .finish()
        .stdout(b"<><a b\n><--ttl><-n><\xff\xfe\x80>")
        .success();
}

#[test]
fn options_after_the_command_are_the_commands() {
    Meshlock::run(Etcd::shared(), unique("options"))
        .without_dashes()
        .command(["printf", "<%s>", "-n", "--wait", "--", "-x", "--help"])
        .finish()
        .stdout("<-n><--wait><--><-x><--help>")
        .success();
}

#[test]
fn the_environment_reaches_the_command_with_only_the_holds_variables_added() {
    let odd = OsStr::from_bytes(b"\xff \n=");
    let run = Meshlock::run(Etcd::shared(), unique("environment"))
        .env("ODD", odd)
        .env("ETCDCTL_DIAL_TIMEOUT", "5s")
        .command(["env", "-0"]);
    let said = run.finish().any_stdout().success();
    let variables: Vec<&str> = said.stdout.split_terminator('\0').collect();
    assert!(variables.iter().any(|variable| variable.starts_with("ODD=")));
    assert!(
        variables.contains(&"ETCDCTL_DIAL_TIMEOUT=5s"),
        "etcdctl inside needs it: {variables:?}"
    );
    let mut added: Vec<&str> = variables
        .iter()
        .filter_map(|variable| variable.split_once('='))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("MESHLOCK_") || name.starts_with("ETCD_"))
        // It was there before: each call here has it.
        .filter(|name| *name != "MESHLOCK_CONFIG")
        .collect();
    added.sort_unstable();
    assert_eq!(
        added,
        [
            "ETCD_LOCK_KEY",
            "ETCD_LOCK_REV",
            "MESHLOCK_HELD_ALL",
            "MESHLOCK_HELD_CLUSTER",
            "MESHLOCK_HELD_ENDPOINTS",
            "MESHLOCK_HELD_KEY",
            "MESHLOCK_HELD_LEASES",
            "MESHLOCK_HELD_NAME",
            "MESHLOCK_HELD_PREFIX",
            "MESHLOCK_HELD_TOKEN",
        ]
    );
}

#[test]
fn non_utf8_values_in_the_environment_survive() {
    Meshlock::run(Etcd::shared(), unique("environment"))
        .env("ODD", OsStr::from_bytes(b"\xff\xfe"))
        .sh(r#"printf %s "$ODD""#)
        .finish()
        .stdout(b"\xff\xfe")
        .success();
}

#[test]
fn the_commands_variables_say_what_is_held() {
    let etcd = Etcd::shared();
    let name = unique("team billing");
    let said = Meshlock::run(etcd, &name)
        .sh(r#"
            for variable in NAME TOKEN KEY LEASES CLUSTER ENDPOINTS PREFIX; do
                eval "printf '%s\n' \"\$MESHLOCK_HELD_$variable\""
            done
            echo "$ETCD_LOCK_KEY"
            echo "$ETCD_LOCK_REV"
            etcdctl --endpoints="$MESHLOCK_HELD_ENDPOINTS" get "$MESHLOCK_HELD_KEY" --write-out=json
        "#)
        .env("ETCDCTL_API", "3")
        .finish()
        .any_stdout()
        .success();
    let lines: Vec<&str> = said.stdout.lines().collect();
    let [
        held_name,
        token,
        key,
        leases,
        cluster,
        endpoints,
        prefix,
        etcdctl_key,
        etcdctl_revision,
        entry,
    ] = lines[..]
    else {
        panic!("nine variables and the entry: {lines:?}")
    };
    let entry: serde_json::Value = serde_json::from_str(entry).expect("JSON");
    assert_eq!(held_name, name);
    assert_eq!(Some(token), number(&entry, "/kvs/0/create_revision").as_deref());
    let id = entry
        .pointer("/header/cluster_id")
        .and_then(serde_json::Value::as_u64)
        .expect("an id");
    assert_eq!(cluster, format!("{id:x}"), "as etcdctl prints it");
    assert_eq!(key, format!("meshlock/lock/{}/{leases}", name.replace(' ', "%20")));
    assert_eq!(endpoints, etcd.endpoint());
    assert_eq!(prefix, "meshlock/");
    assert_eq!((etcdctl_key, etcdctl_revision), (key, token));
}

fn number(json: &serde_json::Value, pointer: &str) -> Option<String> {
    json.pointer(pointer).map(ToString::to_string)
}

#[test]
fn secrets_do_not_reach_the_command() {
    let report = directory().join("report");
    Meshlock::run(Etcd::shared(), unique("secrets"))
        .env("MESHLOCK_REPORT", &report)
        .sh("env | grep -e ^MESHLOCK_REPORT -e ^MESHLOCK_PASSWORD -e ^MESHLOCK_USER")
        .finish()
        .status(1);
    assert!(report.exists(), "and yet the report is written");
}

#[test]
fn standard_input_reaches_the_command() {
    let text = "one\ntwo\0three".repeat(10_000);
    let mut running = Meshlock::run(Etcd::shared(), unique("stdin"))
        .command(["cat"])
        .stdin(Stdio::piped())
        .start();
    running.stdin().write_all(text.as_bytes()).expect("it reads");
    running.finish().stdout(text).success();
}

#[test]
fn both_output_streams_are_the_commands() {
    Meshlock::run(Etcd::shared(), unique("streams"))
        .sh("printf out; printf err >&2")
        .finish()
        .stdout("out")
        .stderr("err")
        .success();
}

#[test]
fn the_working_directory_is_the_callers() {
    let directory = directory();
    Meshlock::run(Etcd::shared(), unique("cwd"))
        .current_dir(&directory)
        .command(["pwd"])
        .finish()
        .stdout(format!("{}\n", directory.display()))
        .success();
}

/// What `/proc` tells of a process and its parents' gifts to it.
const SELF: &str = "
    grep -E '^(Umask|SigBlk|SigIgn|SigCgt|CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status
    cat /proc/self/limits /proc/self/oom_score_adj /proc/self/cgroup /proc/self/timerslack_ns
    nice
    umask
";

#[test]
fn the_command_is_started_as_it_would_be_without_us() {
    // nohup's ignored HUP, a service manager's ignored PIPE, a script's umask, limits and mask.
    let callers: [&[&str]; 6] = [
        &["env"],
        &["env", "--ignore-signal=HUP", "--ignore-signal=INT"],
        &["env", "--ignore-signal=PIPE"],
        &[
            "env",
            "--block-signal=TERM",
            "--block-signal=CHLD",
            "--block-signal=CONT",
        ],
        &["env", "--ignore-signal=CHLD"],
        &[
            "sh",
            "-c",
            "umask 027; ulimit -n 300; ulimit -c 0; exec nice -n 3 \"$@\"",
            "sh",
        ],
    ];
    for caller in callers {
        let run = Meshlock::run(Etcd::shared(), unique("self")).by(caller).sh(SELF);
        let mut bare: Vec<_> = caller.iter().map(Into::into).collect();
        bare.extend(["sh".into(), "-c".into(), SELF.into()]);
        let bare = meshlock::plain(&bare).output().expect("a shell");
        assert!(bare.status.success());
        run.finish().stdout(bare.stdout).success();
    }
}

#[test]
fn the_commands_status_is_the_status() {
    // https://github.com/hashicorp/consul/issues/947 and https://github.com/etcd-io/etcd/pull/12829: 37, and
    // any other, our own numbers among them.
    for status in [0, 1, 2, 37, 64, 69, 75, 79, 80, 124, 126, 127, 128, 137, 255] {
        Meshlock::run(Etcd::shared(), unique("status"))
            .sh(&format!("exit {status}"))
            .finish()
            .status(status);
    }
}

#[test]
fn a_commands_death_by_a_signal_is_ours() {
    for signal in [
        Signal::SIGKILL,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGSEGV,
        Signal::SIGPIPE,
        Signal::SIGHUP,
    ] {
        let etcd = Etcd::shared();
        let name = unique("death");
        Meshlock::run(etcd, &name)
            .sh(&format!("ulimit -c 0; kill -{} $$", signal as i32))
            .finish()
            .signaled(signal);
        etcd.assert_clean(&name);
    }
}

#[test]
fn a_shell_sees_137_for_a_killed_command() {
    // https://github.com/hashicorp/consul/issues/947.
    let run = Meshlock::run(Etcd::shared(), unique("death")).sh("kill -9 $$");
    let mut words: Vec<_> = ["sh", "-c", r#""$@"; echo $?"#, "sh"].map(Into::into).into();
    words.extend(run.words());
    let output = meshlock::plain(&words).output().expect("a shell");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "137\n");
}

#[test]
fn a_callers_ignored_sigchld_does_not_hide_the_status() {
    Meshlock::run(Etcd::shared(), unique("sigchld"))
        .by(["env", "--ignore-signal=CHLD"])
        .sh("exit 7")
        .finish()
        .status(7);
}

#[test]
fn a_blocked_sigchld_does_not_hide_the_end() {
    Meshlock::run(Etcd::shared(), unique("sigchld"))
        .by(["env", "--block-signal=CHLD"])
        .sh("exit 7")
        .finish()
        .status(7);
}

#[test]
fn the_caller_may_have_other_children() {
    // `exec meshlock` in a script that has a background job: its end is not the command's.
    Meshlock::run(Etcd::shared(), unique("children"))
        .by(["sh", "-c", "sh -c 'exit 9' & exec \"$@\"", "sh"])
        .sh("exit 7")
        .finish()
        .status(7);
}

#[test]
fn a_broken_pipe_ends_the_command_as_without_us() {
    let run = Meshlock::run(Etcd::shared(), unique("pipe")).command(["yes"]);
    let mut words: Vec<_> = ["bash", "-c", r#""$@" | head -n 1; echo "${PIPESTATUS[0]}""#, "bash"]
        .map(Into::into)
        .into();
    words.extend(run.words());
    let output = meshlock::plain(&words).output().expect("a shell");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "y\n141\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn inherited_descriptors_pass_and_none_of_ours_leaks() {
    let etcd = Etcd::shared();
    let file = directory().join("inherited");
    File::create(&file).expect("a file");
    let opener = [
        OsStr::new("sh"),
        OsStr::new("-c"),
        OsStr::new(r#"file=$1; shift; exec 7<"$file"; exec "$@""#),
        OsStr::new("sh"),
        file.as_os_str(),
    ];
    // What the tests themselves were started with passes as well: so compare with the same call without us.
    let mut bare = meshlock::plain(&[&opener.map(Into::into)[..], &["cat".into()]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a shell");
    let pid = bare.id().cast_signed();
    eventually("the shell has become cat", || so(proc::name(pid) == "cat"));
    let expected: Vec<i32> = proc::descriptors(pid).into_iter().map(|(number, _)| number).collect();
    drop(bare.stdin.take());
    bare.wait().expect("cat");
    assert!(expected.contains(&7));

    let mut running = Meshlock::run(etcd, unique("descriptors"))
        .by(opener)
        .stdin(Stdio::piped())
        .sh("echo $$; read -r _")
        .start();
    let command: i32 = running.wait_for_stdout("\n").trim().parse().expect("a pid");
    let numbers: Vec<i32> = proc::descriptors(command)
        .into_iter()
        .map(|(number, _)| number)
        .collect();
    assert_eq!(numbers, expected, "{:?}", proc::descriptors(command));
    // The keeper outlives commands and callers at times: what it holds open would keep their pipes open.
    for (number, target) in proc::descriptors(running.keeper()) {
        assert_ne!(target, file, "descriptor {number} of the keeper");
        assert!(
            number > 2 || target.as_os_str() == "/dev/null",
            "{number} of the keeper is {target:?}"
        );
    }
    running.finish().any_stdout().status(1);
}

#[test]
fn the_keeper_holds_no_directory_busy() {
    let directory = directory();
    let mut running = Meshlock::run(Etcd::shared(), unique("busy"))
        .current_dir(&directory)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _")
        .start();
    running.wait_for_stdout("held");
    let keeper = running.keeper();
    assert_eq!(
        fs::read_link(format!("/proc/{keeper}/cwd"))
            .expect("a directory")
            .as_os_str(),
        "/"
    );
    running.finish().any_stdout().status(1);
}

#[test]
fn closed_standard_streams_stay_closed() {
    // A descriptor of ours that landed there would be taken for the command's stream, and so would the
    // /dev/null that Rust's runtime puts in their place.
    for (closed, open) in [("<&-", "12"), (">&-", "02"), ("2>&-", "01"), ("<&- >&- 2>&-", "")] {
        let seen = directory().join("seen");
        // The shell looks at itself, before it redirects anything.
        let script = format!(
            "o=; for f in 0 1 2; do if [ -e /proc/$$/fd/$f ]; then o=$o$f; fi; done; echo $o >'{}'; exit 5",
            seen.display()
        );
        Meshlock::run(Etcd::shared(), unique("closed"))
            .by(["sh", "-c", &format!(r#"exec "$@" {closed}"#), "sh"])
            .sh(&script)
            .finish()
            .status(5);
        assert_eq!(meshlock::read(&seen).trim(), open, "{closed}");
    }
}

#[test]
fn a_full_stderr_does_not_stop_the_run() {
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    Meshlock::run(Etcd::shared(), unique("full"))
        .args(["-v"])
        .stderr_to(full)
        .sh("exit 5")
        .finish()
        .status(5);
}

#[test]
fn short_runs_in_a_row_leave_nothing() {
    // https://github.com/redisson/redisson/issues/7272: a renewal in flight must not outlive the release.
    let etcd = Etcd::start();
    for _ in 0..50 {
        Meshlock::run(&etcd, "fast").args(["--keep", "3"]).finish().success();
    }
    etcd.assert_clean("fast");
    etcd.assert_no_leases();
    let records = etcd.keys("meshlock/log/fast/").len();
    assert!(records <= 3, "{records} run records");
}

#[test]
fn locks_of_two_names_do_not_wait_for_each_other() {
    // https://github.com/etcd-io/website/issues/710: `path` hung because `path/1` existed.
    let etcd = Etcd::shared();
    let (team, part) = (unique("team"), unique("part"));
    let nested = format!("{team}/{part}");
    let mut running = Meshlock::run(etcd, &nested)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _")
        .start();
    running.wait_for_stdout("held");
    Meshlock::run(etcd, &team).args(["-n"]).finish().success();
    running.finish().any_stdout().status(1);
}

#[test]
fn a_long_hold_outlives_many_ttls() {
    // https://github.com/lukas-krecan/ShedLock/issues/1596: the lock's limit ended before the job did.
    let etcd = Etcd::start();
    let mut running = Meshlock::run(&etcd, "long")
        .args(["--ttl", "4"])
        .sh("echo $$; sleep 9")
        .start();
    let command: i32 = running.wait_for_stdout("\n").trim().parse().expect("a pid");
    let entry = etcd.wait_for_queue("long", 1);
    eventually("the command has ended", || so(!proc::alive(command)));
    running.finish().any_stdout().success();
    assert_eq!(entry.len(), 1);
}
