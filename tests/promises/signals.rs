//! Signals to meshlock reach the command as if it had got them itself, where no terminal is involved;
//! meshlock stays until the command has ended.
//!
//! Some scripts close their stderr: dash tells there of children that a forwarded signal hit as well.

use crate::harness::observer::helper;
use crate::harness::{Etcd, Meshlock, Observer, Running, eventually, pass, proc, so, unique};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::io::Write as _;
use std::time::Duration;

/// A command that prints what it gets until USR2.
#[track_caller]
fn printing(name: &str) -> (Running, i32) {
    let mut running = Meshlock::run(Etcd::shared(), name)
        .command([helper(), OsString::from("signals")])
        .start();
    let said = running.wait_for_stdout("ready ");
    let said = if said.ends_with('\n') {
        said
    } else {
        running.wait_for_stdout("\n")
    };
    let pid = said.trim().rsplit(' ').next().expect("a pid").parse().expect("a pid");
    (running, pid)
}

#[test]
fn each_signal_reaches_the_command_once_under_its_own_name() {
    // https://github.com/hashicorp/consul/issues/2489 and https://github.com/hashicorp/consul/issues/1210: HUP or
    // QUIT ended the wrapper alone and orphaned the program.
    let name = unique("signals");
    let (mut running, pid) = printing(&name);
    let mut expected = format!("ready {pid}\n");
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTERM,
        Signal::SIGUSR1,
        Signal::SIGWINCH,
        Signal::SIGCONT,
        Signal::SIGTSTP,
        Signal::SIGUSR2,
    ] {
        running.signal(signal);
        running.wait_for_stdout(signal.as_str());
        expected.push_str(signal.as_str());
        expected.push('\n');
    }
    running.finish().stdout(expected).success();
    Etcd::shared().assert_clean(&name);
}

#[test]
fn the_commands_group_gets_what_is_forwarded() {
    let name = unique("group");
    let mut running = Meshlock::run(Etcd::shared(), &name)
        .sh("exec 2>&-; trap 'wait $!; echo parent; exit 3' TERM; (trap 'echo child; exit' TERM; echo up; while :; do sleep 0.02; done) & while :; do sleep 0.02; done")
        .start();
    running.wait_for_stdout("up");
    running.signal(Signal::SIGTERM);
    running.finish().stdout("up\nchild\nparent\n").status(3);
}

#[test]
fn the_command_has_a_group_of_its_own_and_leads_it() {
    let mut running = Meshlock::run(Etcd::shared(), unique("group"))
        .sh("echo $$; read -r _")
        .stdin(std::process::Stdio::piped())
        .start();
    let command: i32 = running.wait_for_stdout("\n").trim().parse().expect("a pid");
    let (ours, its) = (proc::stat(running.pid()).expect("us"), proc::stat(command).expect("it"));
    assert_eq!(its.group, command);
    assert_eq!(its.session, ours.session);
    running.finish().any_stdout().status(1);
}

#[test]
fn a_trap_runs_once_and_its_status_counts() {
    // https://github.com/hashicorp/consul/issues/797.
    let etcd = Etcd::shared();
    let name = unique("trap");
    let mut running = Meshlock::run(etcd, &name)
        .sh("exec 2>&-; trap 'echo term; exit 9' TERM; echo up; while :; do sleep 0.02; done")
        .start();
    running.wait_for_stdout("up");
    running.signal(Signal::SIGTERM);
    running.finish().stdout("up\nterm\n").status(9);
    etcd.assert_clean(&name);
}

#[test]
fn a_forwarded_signal_starts_no_clock() {
    let mut running = Meshlock::run(Etcd::shared(), unique("patience"))
        .args(["--ttl", "4", "--grace", "0.1"])
        .stdin(std::process::Stdio::piped())
        .sh("trap 'echo term' TERM; echo up; until read -r _; do :; done; exit 4")
        .start();
    running.wait_for_stdout("up");
    running.signal(Signal::SIGTERM);
    running.wait_for_stdout("term");
    pass(Duration::from_secs(1));
    assert!(proc::alive(running.pid()));
    running.stdin().write_all(b"\n").expect("it reads");
    running.finish().stdout("up\nterm\n").status(4);
}

#[test]
fn a_second_signal_kills_what_does_not_listen() {
    // https://github.com/hashicorp/consul-template/issues/1666: a forced kill hit the pid, not the group.
    let etcd = Etcd::shared();
    let observer = Observer::new();
    let name = unique("second");
    let running = Meshlock::run(etcd, &name)
        .args(["--grace", "0.2"])
        .sh(&format!("trap '' TERM INT; {0} & exec {0}", observer.script()))
        .start();
    let pids = observer.wait_for_processes(2);
    running.signal(Signal::SIGTERM);
    pass(Duration::from_millis(1200));
    assert!(
        pids.iter().all(|pid| proc::alive(*pid)),
        "the first is the command's affair"
    );
    running.signal(Signal::SIGTERM);
    running.finish().any_stderr().signaled(Signal::SIGKILL);
    assert!(pids.iter().all(|pid| !proc::alive(*pid)));
    etcd.assert_clean(&name);
}

#[test]
fn a_repeated_signal_at_once_is_one_signal() {
    // GNU timeout, service managers and CI agents send the same signal to a group and to its leader.
    let mut running = Meshlock::run(Etcd::shared(), unique("repeated"))
        .args(["--grace", "0.1"])
        .sh("exec 2>&-; trap 'echo term' TERM; echo up; n=0; while [ $n -lt 40 ]; do sleep 0.02; n=$((n + 1)); done; exit 6")
        .start();
    running.wait_for_stdout("up");
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGTERM);
    running.finish().any_stdout().status(6);
}

#[test]
fn an_ignored_signal_of_the_caller_stays_ignored() {
    // nohup: HUP must neither end meshlock nor reach the command.
    let mut running = Meshlock::run(Etcd::shared(), unique("nohup"))
        .by(["env", "--ignore-signal=HUP"])
        .stdin(std::process::Stdio::piped())
        .sh("echo up; read -r _; exit 8")
        .start();
    running.wait_for_stdout("up");
    running.signal(Signal::SIGHUP);
    running.finish().stdout("up\n").status(8);
}

#[test]
fn a_callers_blocked_term_does_not_protect_the_command_from_a_loss() {
    let etcd = Etcd::shared();
    let name = unique("blocked");
    let observer = Observer::new();
    let running = Meshlock::run(etcd, &name)
        .by(["env", "--block-signal=TERM"])
        .command(observer.forever())
        .start();
    observer.wait_for_holds(1);
    etcd.revoke(&etcd.wait_for_queue(&name, 1)[0]);
    running.finish().stderr_line([name.as_str(), "lost"]).status(79);
}

#[test]
fn a_signal_at_any_moment_of_the_start_leaves_nothing() {
    let etcd = Etcd::start();
    for step in 0..40 {
        let running = Meshlock::run(&etcd, "start")
            .args(["-q"])
            .command(["sleep", "1000"])
            .start();
        // Not in order to wait for something: each round is to hit another moment. Earlier than main
        // nothing catches it, and nothing has begun.
        std::thread::sleep(Duration::from_micros(700 * step));
        running.signal(Signal::SIGTERM);
        running.finish().signaled(Signal::SIGTERM);
        assert_eq!(etcd.keys("meshlock/lock/"), Vec::<String>::new(), "step {step}");
    }
    etcd.assert_clean("start");
    etcd.assert_no_leases();
}

#[test]
fn the_keeper_has_a_name_of_its_own_and_ignores_what_is_not_for_it() {
    // killall and pkill by name are meant for meshlock, and must hit one process.
    let mut running = Meshlock::run(Etcd::shared(), unique("killall"))
        .stdin(std::process::Stdio::piped())
        .sh("echo up; read -r _; exit 8")
        .start();
    running.wait_for_stdout("up");
    let keeper = running.keeper();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGPIPE,
        Signal::SIGALRM,
    ] {
        proc::signal(keeper, signal);
    }
    eventually("the keeper lives", || so(proc::alive(keeper)));
    assert_eq!(proc::name(running.pid()), "meshlock");
    running.finish().stdout("up\n").status(8);
}

#[test]
fn no_signal_ends_the_keeper_or_stays_with_it() {
    let name = unique("keeper-signals");
    let mut running = Meshlock::run(Etcd::shared(), &name)
        .args(["--ttl=300"])
        .stdin(std::process::Stdio::piped())
        .sh("echo up; read -r _; exit 0")
        .start();
    running.wait_for_stdout("up");
    let keeper = running.keeper();
    // By number: those that the C library keeps for itself have no name. STOP is acted on, and CONT ends it.
    let sent = std::process::Command::new("bash")
        .args([
            "-c",
            "for n in {1..8} {10..18} {20..64}; do kill -$n $1 && kill -$n $1 || exit; done",
            "bash",
        ])
        .arg(keeper.to_string())
        .status();
    assert!(sent.expect("bash").success());
    let pending = || {
        let status = std::fs::read_to_string(format!("/proc/{keeper}/status")).expect("it lives");
        let pending = status.lines().filter_map(|line| line.strip_prefix("ShdPnd:"));
        pending
            .map(|set| u64::from_str_radix(set.trim(), 16))
            .collect::<Vec<_>>()
    };
    // Delivered by its next turn, if it is awake to take any.
    eventually("nothing is pending", || so(pending() == [Ok(0)]));
    running.finish().stdout("up\n").success();
    Etcd::shared().assert_clean(&name);
}

/// A PATH that takes a child long to search: each of its entries is the working directory.
fn long_path() -> String {
    format!("{}/usr/bin:/bin", ":".repeat(120_000))
}

/// A run whose child was stopped before it became the command, and the child.
#[track_caller]
fn stopped_before_its_exec(name: &str, limit: &str) -> (Running, i32) {
    loop {
        let run = Meshlock::run(Etcd::shared(), name).args(["--max-runtime", limit]);
        let running = run.env("PATH", long_path()).command(["sleep", "100"]).start();
        let keeper = running.keeper();
        let child = eventually("a child", || {
            let children = proc::children(running.pid());
            children.into_iter().find(|child| *child != keeper)
        });
        proc::signal(child, Signal::SIGSTOP);
        eventually("it is stopped", || so(proc::stat(child)?.state == 'T'));
        if proc::name(child) == "meshlock" {
            return (running, child);
        }
        // It was too fast for us.
        proc::signal(child, Signal::SIGKILL);
        running.finish().signaled(Signal::SIGKILL);
    }
}

#[test]
fn a_command_that_is_stopped_before_its_exec_gets_its_signals_and_is_stopped_in_time() {
    let name = unique("unborn");
    let (running, child) = stopped_before_its_exec(&name, "100");
    running.signal(Signal::SIGTERM);
    // It waits for the child to run, and the guardian waits for nothing.
    eventually("the signal is passed on", || so(is_pending(child, Signal::SIGTERM)));
    running.signal(Signal::SIGCONT);
    running.finish().signaled(Signal::SIGTERM);
    let (running, _) = stopped_before_its_exec(&name, "2");
    running.finish().stderr_line(["--max-runtime 2 s"]).status(124);
    Etcd::shared().assert_clean(&name);
}

/// For the whole process.
fn is_pending(pid: i32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set & 1 << (signal as i32 - 1) != 0)
}
