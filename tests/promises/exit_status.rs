//! Each row of the one table of exit statuses is what a user meets: the table and these tests are compared.

use crate::harness::etcd::{free_port, lease_of};
use crate::harness::{Etcd, Finished, Meshlock, Running, bounded, directory, proc, unique};
use meshlock::outcome::EXIT_STATUSES;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;

#[track_caller]
fn hold(etcd: &Etcd, name: &str) -> Running {
    let mut running = Meshlock::run(etcd, name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    running.wait_for_stdout("held");
    running
}

/// Runs a command that is there while something happens to its lock.
fn while_held(harm: impl FnOnce(&Etcd, &str)) -> Finished {
    let etcd = Etcd::shared();
    let name = unique("status");
    let mut running = Meshlock::run(etcd, &name).sh("echo held; exec sleep 1000").start();
    running.wait_for_stdout("held");
    harm(etcd, &etcd.wait_for_queue(&name, 1)[0]);
    running.finish().any_stdout()
}

/// How each row comes about, under its name in the table.
fn provocations() -> BTreeMap<&'static str, fn() -> Finished> {
    let mut rows: BTreeMap<&'static str, fn() -> Finished> = BTreeMap::new();
    rows.insert("command", || {
        Meshlock::run(Etcd::shared(), unique("status"))
            .sh("echo mine >&2; exit 255")
            .finish()
    });
    rows.insert("signal", || {
        Meshlock::run(Etcd::shared(), unique("status"))
            .sh("echo mine >&2; kill -HUP $$")
            .finish()
    });
    rows.insert("usage", || Meshlock::run(Etcd::shared(), "a,b").finish());
    rows.insert("unavailable", || {
        Meshlock::run_at(format!("127.0.0.1:{}", free_port()), unique("status")).finish()
    });
    rows.insert("internal", || {
        let etcd = Etcd::shared();
        let name = unique("status");
        let holder = hold(etcd, &name);
        let waiter = Meshlock::run(etcd, &name).args(["-q"]).start();
        etcd.wait_for_queue(&name, 2);
        proc::signal(waiter.keeper(), Signal::SIGKILL);
        let finished = waiter.finish();
        holder.finish().any_stdout().success();
        finished
    });
    rows.insert("check", || {
        let (etcd, name) = (Etcd::shared(), unique("status"));
        etcd.put(&format!("meshlock/lock/{name}/1f"), "");
        let check = Meshlock::ask(etcd, "status").args(["--check", "--warn-after", "1h", &name]);
        let finished = check.finish();
        etcd.del(&format!("meshlock/lock/{name}/1f"));
        finished
    });
    rows.insert("contended", || {
        let etcd = Etcd::shared();
        let name = unique("status");
        let holder = hold(etcd, &name);
        let finished = Meshlock::run(etcd, &name).args(["-n"]).finish();
        holder.finish().any_stdout().success();
        finished
    });
    rows.insert("denied", || {
        let mut etcd = Etcd::start();
        etcd.enable_auth();
        Meshlock::run(&etcd, unique("status"))
            .args(["--user", "root:wrong"])
            .finish()
    });
    rows.insert("config", || {
        Meshlock::run_at("https://127.0.0.1:1", unique("status"))
            .args(["--cacert", "/nonexistent"])
            .finish()
    });
    rows.insert("lost", || while_held(|etcd, entry| etcd.revoke(entry)));
    rows.insert("superseded", || {
        while_held(|etcd, entry| {
            let ask = format!("meshlock/ask/{}", entry.trim_start_matches("meshlock/lock/"));
            assert!(ask.ends_with(lease_of(entry)));
            let token = etcd.created(entry);
            etcd.put(
                &ask,
                &format!(r#"{{"format":1,"kind":"break","token":{token},"by":"anna"}}"#),
            );
        })
    });
    rows.insert("overrun", || {
        Meshlock::run(Etcd::shared(), unique("status"))
            .args(["--max-runtime", "0.1"])
            .command(["sleep", "1000"])
            .finish()
    });
    rows.insert("not-executable", || {
        Meshlock::run(Etcd::shared(), unique("status"))
            .command(["/etc"])
            .finish()
    });
    rows.insert("not-found", || {
        Meshlock::run(Etcd::shared(), unique("status"))
            .command(["/nonexistent"])
            .finish()
    });
    rows
}

#[test]
fn every_row_of_the_table_is_provoked_and_says_so_on_stderr() {
    let mut provocations = provocations();
    for row in EXIT_STATUSES {
        let provoke = provocations
            .remove(row.name)
            .unwrap_or_else(|| panic!("no test provokes {}", row.name));
        let finished = provoke().any_stderr();
        let said = match row.name {
            "command" => finished.status(255),
            "signal" => finished.signaled(Signal::SIGHUP),
            _ => finished.status(row.status.parse().expect("a number")),
        };
        // What was looked for and found is the answer, and no complaint.
        if row.name == "check" {
            continue;
        }
        // The command's own words are all there is where it ended by itself.
        let ours = !matches!(row.name, "command" | "signal");
        assert_eq!(
            said.stderr.contains("meshlock: "),
            ours,
            "{}: {}",
            row.name,
            said.stderr
        );
    }
    assert_eq!(
        provocations.keys().collect::<Vec<_>>(),
        Vec::<&&str>::new(),
        "rows that are not in the table"
    );
}

#[test]
fn a_command_that_cannot_be_started_is_told_apart_from_one_that_is_not_there() {
    let etcd = Etcd::shared();
    let files = directory();
    let script = |name: &str, text: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = files.join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        path.into_os_string().into_string().expect("text")
    };
    let long = "x".repeat(300);
    for (command, status) in [
        ("no-such-command".to_owned(), 127),
        ("/nonexistent/command".to_owned(), 127),
        (String::new(), 127),
        (files.display().to_string(), 126),
        (script("plain", "echo\n", 0o644), 126),
        (script("bad-interpreter", "#!/nonexistent/sh\n", 0o755), 127),
        (script("directory-interpreter", "#!/tmp\n", 0o755), 126),
        (format!("{}/x", script("file", "", 0o644)), 126),
        (long, 126),
    ] {
        let name = unique("exec");
        Meshlock::run(etcd, &name)
            .command([&command])
            .finish()
            .stderr_line([command.as_str()])
            .status(status);
        etcd.assert_clean(&name);
    }
}

#[test]
fn a_script_without_an_interpreter_runs_as_under_env() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = directory().join("script");
    std::fs::write(&file, "echo $0 $1\nexit 5\n").expect("a file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    Meshlock::run(Etcd::shared(), unique("exec"))
        .command([file.as_os_str(), "word".as_ref()])
        .finish()
        .stdout(format!("{} word\n", file.display()))
        .status(5);
}

#[test]
fn the_path_is_searched_as_a_shell_does() {
    use std::os::unix::fs::PermissionsExt as _;
    // What may not be executed is passed over for a later one that may; if there is none, that is the reason.
    let (first, second) = (directory(), directory());
    for (directory, mode) in [(&first, 0o644), (&second, 0o755)] {
        let file = directory.join("tool");
        std::fs::write(&file, "#!/bin/sh\nexit 5\n").expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("a mode");
    }
    let both = format!("{}:{}:/usr/bin:/bin", first.display(), second.display());
    Meshlock::run(Etcd::shared(), unique("path"))
        .env("PATH", both)
        .command(["tool"])
        .finish()
        .status(5);
    Meshlock::run(Etcd::shared(), unique("path"))
        .env("PATH", format!("{}:/usr/bin:/bin", first.display()))
        .command(["tool"])
        .finish()
        .stderr_line(["tool"])
        .status(126);
}

#[test]
fn the_report_has_the_outcome_of_each_kind() {
    let etcd = Etcd::shared();
    for (command, outcome, status) in [
        ("exit 0", "command", 0),
        ("exit 37", "command", 37),
        ("kill -9 $$", "signal", 137),
    ] {
        let name = unique("report");
        let file = directory().join("report");
        let finished = Meshlock::run(etcd, &name)
            .args(["--report".as_ref(), file.as_os_str()])
            .sh(command)
            .finish();
        if outcome == "signal" {
            finished.signaled(Signal::SIGKILL);
        } else {
            finished.status(status);
        }
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("a report")).expect("JSON");
        assert_eq!(report["format"], 1);
        assert_eq!(report["name"], name);
        assert_eq!(report["outcome"], outcome, "{report}");
        assert_eq!(report["status"], status);
        assert!(report["token"].is_i64(), "{report}");
    }
    // Nothing was run, and that is in the report as well.
    let file = directory().join("report");
    Meshlock::run_at(format!("127.0.0.1:{}", free_port()), "x")
        .args(["--report".as_ref(), file.as_os_str()])
        .finish()
        .any_stderr()
        .status(69);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).expect("a report")).expect("JSON");
    assert_eq!(report["outcome"], "unavailable");
    assert_eq!(report["status"], 69);
}

#[test]
fn a_report_replaces_a_file_as_a_whole_and_leaves_no_other_behind() {
    let directory = directory();
    let file = directory.join("report");
    std::fs::write(&file, "x".repeat(10_000)).expect("a file");
    Meshlock::run(Etcd::shared(), unique("report"))
        .args(["--report".as_ref(), file.as_os_str()])
        .finish()
        .success();
    let report = std::fs::read_to_string(&file).expect("a report");
    assert!(!report.contains('x') || report.len() < 5_000);
    serde_json::from_str::<serde_json::Value>(&report).expect("JSON");
    let names: Vec<_> = std::fs::read_dir(&directory)
        .expect("a directory")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(names, ["report"]);
}

#[test]
fn a_report_can_go_to_a_pipe() {
    let file = directory().join("fifo");
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    // A writer that does not wait needs the reader to be there first, and that is how the test makes sure of
    // it; the reader then waits for one, which opening for both reading and writing gives it for a start.
    let mut reader = File::options().read(true).write(true).open(&file).expect("the FIFO");
    Meshlock::run(Etcd::shared(), unique("report"))
        .args(["--report".as_ref(), file.as_os_str()])
        .finish()
        .success();
    let mut buffer = [0; 4096];
    let length = reader.read(&mut buffer).expect("a report");
    let report: serde_json::Value = serde_json::from_slice(&buffer[..length]).expect("JSON");
    assert_eq!(report["outcome"], "command");
    drop(reader);
    // Nobody will ever read it: said at once, instead of waiting for somebody.
    Meshlock::run(Etcd::shared(), unique("report"))
        .args(["--report".as_ref(), file.as_os_str()])
        .finish()
        .stderr_line(["fifo"])
        .status(78);
    // And to a descriptor of the caller's.
    let said = Meshlock::run(Etcd::shared(), unique("report"))
        .args(["--report", "/dev/fd/1"])
        .finish()
        .any_stdout()
        .success();
    serde_json::from_str::<serde_json::Value>(&said.stdout).expect("JSON");
}

#[test]
fn a_report_that_cannot_be_written_is_said_before_anything_runs() {
    let ran = directory().join("ran");
    for target in ["/nonexistent/report", "/proc/report", "/etc"] {
        Meshlock::run(Etcd::shared(), unique("report"))
            .args(["--report", target])
            .command(["touch".into(), ran.clone().into_os_string()])
            .finish()
            .stderr_line([target])
            .status(78);
    }
    assert!(!ran.exists());
}

#[test]
fn as_the_first_process_of_a_container_a_signals_death_is_128_and_more() {
    // PID 1 cannot die of a signal that it does not catch.
    let run = Meshlock::run(Etcd::shared(), unique("pid1")).sh("kill -TERM $$");
    let mut words: Vec<_> = ["unshare", "--user", "--pid", "--fork", "--mount-proc"]
        .map(Into::into)
        .into();
    let probe = crate::harness::meshlock::plain(&[&words[..], &["true".into()]].concat())
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        // Without user namespaces there is no way to be PID 1 here.
        return;
    }
    words.extend(run.words());
    let status = crate::harness::meshlock::plain(&words).status().expect("unshare");
    assert_eq!(status.code(), Some(128 + 15));
}

#[test]
fn a_real_time_signals_death_is_a_death() {
    let etcd = Etcd::shared();
    let name = unique("real-time");
    Meshlock::run(etcd, &name)
        .by(["sh", "-c", r#""$@"; exit $?"#, "sh"])
        .sh("kill -34 $$")
        .finish()
        .any_stderr()
        .status(128 + 34);
    etcd.assert_clean(&name);
}

#[test]
fn a_descriptor_too_few_to_reach_etcd_is_told_as_that() {
    let limited = |limit: u32| {
        let shell = format!("ulimit -n {limit}; exec \"$@\"");
        bounded(Meshlock::run(Etcd::shared(), unique("scarce")).by(["sh", "-c", &shell, "sh"]))
    };
    // How many it takes is not promised.
    let enough = (4..64).find(|limit| limited(*limit).any_stderr().code() == Some(0));
    limited(enough.expect("so many do") - 1)
        .stderr_line(["etcd could not be reached within 1 s: "])
        .status(69);
}
