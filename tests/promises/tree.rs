//! Whatever part of meshlock is killed or stopped, at whatever moment: the command's tree is dead before the
//! next holder starts. What a command leaves running when it ends is the user's choice.

use crate::harness::{Etcd, Meshlock, Observer, Running, directory, eventually, meshlock, pass, proc, so, unique};
use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::Duration;

/// Ignores polite signals, and has a child that has left the session and its parents.
fn stubborn_tree(observer: &Observer) -> String {
    let beat = observer.script();
    format!("trap '' TERM INT HUP QUIT; (setsid {beat} &); exec {beat}")
}

fn hold(etcd: &Etcd, name: &str, observer: &Observer) -> Running {
    let running = Meshlock::run(etcd, name)
        .args(["--ttl", "4", "--release-timeout", "1"])
        .sh(&stubborn_tree(observer))
        .start();
    observer.wait_for_processes(2);
    running
}

/// One holds, one waits; something is done to the holder's halves; the waiter follows, and no process of
/// the first is alive by then.
#[track_caller]
fn followed(harm: impl FnOnce(&Running)) -> (Running, String) {
    let etcd = Etcd::shared();
    let name = unique("harmed");
    let observer = Observer::new();
    let holder = hold(etcd, &name, &observer);
    let next = Meshlock::run(etcd, &name)
        .args(["-q", "--ttl", "4"])
        .command(observer.briefly())
        .start();
    etcd.wait_for_queue(&name, 2);
    harm(&holder);
    next.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 2);
    eventually("no process of the first hold is left", || {
        so(observer.holds()[0].processes.iter().all(|pid| !proc::alive(*pid)))
    });
    etcd.assert_clean(&name);
    (holder, name)
}

#[test]
fn a_killed_guardian_takes_its_tree_with_it() {
    // https://github.com/box/etcdb/issues/28: the helper went on renewing for a dead parent.
    let (holder, _) = followed(|holder| holder.signal(Signal::SIGKILL));
    holder.finish().signaled(Signal::SIGKILL);
}

#[test]
fn what_is_started_in_an_outage_is_found_when_the_guardian_is_killed() {
    let etcd = Etcd::shared();
    let name = unique("outage");
    let observer = Observer::new();
    let beat = observer.script();
    let line = etcd.proxy();
    // Neither its session, nor its parents, nor its environment tell whose it is: only that it was seen in the tree.
    let stray = format!("env -i OBSERVED_AS=$MESHLOCK_HELD_TOKEN \"$(command -v setsid)\" -f {beat}");
    let mut holder = Meshlock::run_at(line.endpoint(), &name)
        .args(["--ttl", "10"])
        .stdin(Stdio::piped())
        .sh(&format!("{beat} & read -r _; {stray}; exec {beat}"))
        .start();
    observer.wait_for_processes(1);
    let next = Meshlock::run(etcd, &name)
        .args(["-q", "--ttl", "4"])
        .command(observer.briefly())
        .start();
    etcd.wait_for_queue(&name, 2);
    line.hold();
    {
        use std::io::Write as _;
        holder.stdin().write_all(b"\n").expect("it reads");
    }
    observer.wait_for_processes(3);
    // A renewal or two that come to nothing.
    pass(Duration::from_secs(3));
    holder.signal(Signal::SIGKILL);
    next.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 2);
    holder.finish().any_stderr().signaled(Signal::SIGKILL);
}

#[test]
fn what_a_script_had_running_before_it_became_meshlock_outlives_a_killed_guardian() {
    let etcd = Etcd::shared();
    let name = unique("stranger");
    let mut guardian = Meshlock::run(etcd, &name)
        .by(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!; exec \"$@\"", "sh"])
        .sh("echo $$; exec sleep 600")
        .start();
    guardian.wait_for_stdout("\n");
    eventually("the command runs", || so(guardian.stdout().lines().count() == 2));
    let pids = guardian.stdout();
    let mut pids = pids.lines().map(|pid| pid.parse::<i32>().expect("a pid"));
    let (stranger, command) = (pids.next().expect("a line"), pids.next().expect("a line"));
    guardian.signal(Signal::SIGKILL);
    eventually("the command is dead and the lock let go", || {
        so(!proc::alive(command) && etcd.queue(&name).is_empty())
    });
    assert!(proc::alive(stranger));
    proc::signal(stranger, Signal::SIGKILL);
    guardian.finish().any_stdout().signaled(Signal::SIGKILL);
    etcd.assert_clean(&name);
}

#[test]
fn a_killed_keeper_is_noticed_by_the_deadline() {
    let (holder, name) = followed(|holder| proc::signal(holder.keeper(), Signal::SIGKILL));
    let said = holder.finish().any_stderr().status(79);
    assert!(
        said.stderr.contains("keeper") && said.stderr.contains(&name),
        "{}",
        said.stderr
    );
}

#[test]
fn a_stopped_keeper_is_noticed_by_the_deadline_and_reaped() {
    let (holder, _) = followed(|holder| proc::signal(holder.keeper(), Signal::SIGSTOP));
    holder.finish().any_stderr().status(79);
}

#[test]
fn a_stopped_guardian_wakes_by_itself() {
    let etcd = Etcd::shared();
    let name = unique("asleep");
    let mut holder = Meshlock::run(etcd, &name)
        .args(["--ttl", "4"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 5")
        .start();
    holder.wait_for_stdout("held");
    holder.signal(Signal::SIGSTOP);
    eventually("it is awake again", || so(proc::stat(holder.pid())?.state != 'T'));
    holder.finish().stdout("held\n").status(5);
    etcd.assert_clean(&name);
}

#[test]
fn both_halves_stopped_wake_by_themselves() {
    let (holder, _) = followed(|holder| {
        proc::signal(holder.keeper(), Signal::SIGSTOP);
        holder.signal(Signal::SIGSTOP);
    });
    holder.finish().any_stderr().status(79);
}

#[test]
fn a_guardian_killed_while_its_keeper_is_stopped_leaves_no_command() {
    let etcd = Etcd::shared();
    let name = unique("harmed");
    let observer = Observer::new();
    let holder = Meshlock::run(etcd, &name)
        .args(["--ttl", "4"])
        .command(observer.forever())
        .start();
    observer.wait_for_holds(1);
    let next = Meshlock::run(etcd, &name)
        .args(["-q"])
        .command(observer.briefly())
        .start();
    etcd.wait_for_queue(&name, 2);
    proc::signal(holder.keeper(), Signal::SIGSTOP);
    holder.signal(Signal::SIGKILL);
    next.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 2);
    drop(holder);
}

#[test]
fn both_halves_killed_at_once_leave_no_command() {
    let etcd = Etcd::shared();
    let name = unique("harmed");
    let observer = Observer::new();
    let holder = Meshlock::run(etcd, &name)
        .args(["--ttl", "4"])
        .command(observer.forever())
        .start();
    observer.wait_for_holds(1);
    let next = Meshlock::run(etcd, &name)
        .args(["-q"])
        .command(observer.briefly())
        .start();
    etcd.wait_for_queue(&name, 2);
    proc::signal(holder.keeper(), Signal::SIGKILL);
    holder.signal(Signal::SIGKILL);
    next.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 2);
}

#[test]
fn a_killed_guardian_of_a_waiter_leaves_no_entry() {
    let etcd = Etcd::shared();
    let name = unique("waiter");
    let mut holder = Meshlock::run(etcd, &name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let waiter = Meshlock::run(etcd, &name).args(["-q", "--ttl", "300"]).start();
    etcd.wait_for_queue(&name, 2);
    waiter.signal(Signal::SIGKILL);
    waiter.finish().signaled(Signal::SIGKILL);
    etcd.wait_for_queue(&name, 1);
    holder.finish().stdout("held\n").success();
    etcd.assert_clean(&name);
}

#[test]
fn a_killed_keeper_of_a_waiter_is_an_internal_error() {
    let etcd = Etcd::shared();
    let name = unique("waiter");
    let mut holder = Meshlock::run(etcd, &name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let ran = directory().join("ran");
    let waiter = Meshlock::run(etcd, &name)
        .args(["-q", "--ttl", "4"])
        .command(["touch".into(), ran.clone().into_os_string()])
        .start();
    etcd.wait_for_queue(&name, 2);
    proc::signal(waiter.keeper(), Signal::SIGKILL);
    waiter.finish().stderr_line(["keeper"]).status(70);
    assert!(!ran.exists());
    holder.finish().stdout("held\n").success();
}

#[test]
fn a_keeper_that_died_does_not_change_the_status_of_a_command_that_ends_in_time() {
    let etcd = Etcd::shared();
    let name = unique("keeperless");
    let mut running = Meshlock::run(etcd, &name)
        .args(["--ttl", "300"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 5")
        .start();
    running.wait_for_stdout("held");
    proc::signal(running.keeper(), Signal::SIGKILL);
    // Told at its death, since the command has not for ever to go, and at the end, since the lease stays.
    let said = running.finish().stdout("held\n").any_stderr().status(5);
    assert!(
        said.stderr.contains("keeper") && said.stderr.lines().all(|line| line.contains(&name)),
        "{}",
        said.stderr
    );
}

#[test]
fn a_stopped_waiter_does_not_become_a_holder_of_nothing() {
    let etcd = Etcd::shared();
    let name = unique("stopped");
    let log = directory().join("log");
    let mut holder = Meshlock::run(etcd, &name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let write = |word: &str| {
        Meshlock::run(etcd, &name)
            .args(["-q"])
            .sh(&format!("echo {word} >>{}", log.display()))
            .start()
    };
    let stopped = write("stopped");
    etcd.wait_for_queue(&name, 2);
    let next = write("next");
    etcd.wait_for_queue(&name, 3);
    stopped.signal(Signal::SIGSTOP);
    holder.finish().stdout("held\n").success();
    next.finish().success();
    assert_eq!(meshlock::read(&log), "next\n");
    stopped.signal(Signal::SIGCONT);
    stopped.finish().success();
    assert_eq!(meshlock::read(&log), "next\nstopped\n");
    etcd.assert_clean(&name);
}

#[test]
fn a_kill_at_any_moment_of_the_start_leaves_no_orphan() {
    // https://github.com/containers/bubblewrap/pull/730: between fork and prctl the parent may be gone.
    let etcd = Etcd::shared();
    for step in 0..60 {
        let name = unique("start");
        let observer = Observer::new();
        let running = Meshlock::run(etcd, &name)
            .args(["--ttl", "4"])
            .command(observer.forever())
            .start();
        // Not in order to wait for something: each round is to hit another moment.
        std::thread::sleep(Duration::from_micros(500 * step));
        running.signal(Signal::SIGKILL);
        let mark = running.mark().to_owned();
        eventually("no process is left", || {
            so(proc::with_environment(crate::harness::MARK, &mark).is_empty())
        });
        running.finish().any_stderr().signaled(Signal::SIGKILL);
    }
}

#[test]
fn an_ended_commands_stragglers_are_left_alone_by_default() {
    // https://github.com/MahoCommerce/maho/issues/1314: with flock a daemon's inherited descriptor kept the
    // lock, and the cron job starved.
    let etcd = Etcd::shared();
    let name = unique("stragglers");
    let running = Meshlock::run(etcd, &name)
        .args(["-v"])
        .sh("sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; echo $!; exit 4")
        .start();
    let finished = running.finish();
    let said = finished.any_stdout().any_stderr().with_stragglers().status(4);
    assert!(said.stderr.contains("sleep"), "-v names what was left: {}", said.stderr);
    etcd.assert_clean(&name);
    let straggler: i32 = said.stdout.trim().parse().expect("a pid");
    assert!(proc::name(straggler).is_empty() || proc::name(straggler) == "sleep");
}

#[test]
fn a_straggler_lives_on_after_the_release() {
    let etcd = Etcd::shared();
    let name = unique("stragglers");
    let alive = directory().join("alive");
    let script = format!(
        "(trap '' TERM; while [ ! -e {0}.stop ]; do sleep 0.01; done; echo yes >{0}) & exit 0",
        alive.display()
    );
    let finished = Meshlock::run(etcd, &name).sh(&script).finish();
    etcd.assert_clean(&name);
    std::fs::write(alive.with_extension("stop"), "").expect("a file");
    eventually("the straggler wrote", || so(meshlock::read(&alive) == "yes\n"));
    finished.with_stragglers().success();
}

#[test]
fn stragglers_can_be_waited_for() {
    // https://github.com/YelpArchive/puppet-cron/pull/9: the lock must last while any descendant works.
    let etcd = Etcd::shared();
    let name = unique("stragglers");
    let observer = Observer::new();
    let go = directory().join("go");
    let running = Meshlock::run(etcd, &name)
        .args(["--stragglers", "wait"])
        .sh(&format!(
            "setsid -f sh -c '{} & while [ ! -e {} ]; do sleep 0.01; done; kill -9 $!'; exit 6",
            observer.script(),
            go.display()
        ))
        .start();
    observer.wait_for_holds(1);
    let next = Meshlock::run(etcd, &name)
        .args(["-q"])
        .command(observer.briefly())
        .start();
    etcd.wait_for_queue(&name, 2);
    // Longer than from one look at the stragglers to the next.
    pass(Duration::from_millis(1500));
    assert_eq!(observer.holds().len(), 1);
    std::fs::write(go, "").expect("a file");
    running.finish().status(6);
    next.finish().success();
    assert_eq!(observer.assert_no_overlap().len(), 2);
}

#[test]
fn stragglers_can_be_killed() {
    let etcd = Etcd::shared();
    let name = unique("stragglers");
    let observer = Observer::new();
    Meshlock::run(etcd, &name)
        .args(["--stragglers", "kill"])
        .sh(&format!(
            "trap '' TERM HUP; setsid -f {0}; (setsid {0} &); while [ \"$(cat {1} 2>/dev/null | grep -c start)\" -lt 2 ]; do sleep 0.01; done; exit 6",
            observer.script(),
            observer.file().display()
        ))
        .finish()
        .status(6);
    for pid in observer.wait_for_processes(2) {
        assert!(!proc::alive(pid));
    }
    etcd.assert_clean(&name);
}

#[test]
fn a_loss_while_stragglers_are_waited_for_kills_them() {
    let etcd = Etcd::shared();
    let name = unique("stragglers");
    let observer = Observer::new();
    let running = Meshlock::run(etcd, &name)
        .args(["--stragglers", "wait"])
        .sh(&format!("trap '' TERM HUP; setsid -f {}; exit 6", observer.script()))
        .start();
    let pids = observer.wait_for_processes(1);
    etcd.revoke(&etcd.wait_for_queue(&name, 1)[0]);
    running.finish().stderr_line([name.as_str(), "lost"]).status(79);
    assert!(!proc::alive(pids[0]));
}

#[test]
fn a_stopped_command_alone_stops_nothing_else() {
    let etcd = Etcd::shared();
    let name = unique("stopped");
    let mut running = Meshlock::run(etcd, &name)
        .args(["--ttl", "4"])
        .stdin(Stdio::piped())
        .sh("echo $$; read -r _; exit 5")
        .start();
    let command: i32 = running.wait_for_stdout("\n").trim().parse().expect("a pid");
    proc::signal(command, Signal::SIGSTOP);
    eventually("the command is stopped", || so(proc::stat(command)?.state == 'T'));
    pass(Duration::from_secs(5));
    assert_ne!(proc::stat(running.pid()).expect("the guardian").state, 'T');
    assert_eq!(etcd.queue(&name).len(), 1, "and the lock is held");
    proc::signal(command, Signal::SIGCONT);
    running.finish().any_stdout().status(5);
}

#[test]
fn a_stopped_command_is_killed_when_the_lock_is_lost() {
    let etcd = Etcd::shared();
    let name = unique("stopped");
    let observer = Observer::new();
    let running = Meshlock::run(etcd, &name).command(observer.forever()).start();
    let command = observer.wait_for_holds(1)[0].processes[0];
    proc::signal(command, Signal::SIGSTOP);
    etcd.revoke(&etcd.wait_for_queue(&name, 1)[0]);
    running.finish().stderr_line([name.as_str(), "lost"]).status(79);
    assert!(!proc::alive(command));
}

#[test]
fn a_fork_storm_is_dead_after_a_loss() {
    let etcd = Etcd::shared();
    let name = unique("storm");
    let observer = Observer::new();
    // Each generation starts the next in a new session and goes: a moving target.
    let storm = directory().join("storm");
    std::fs::write(
        &storm,
        format!(
            "trap '' TERM HUP; timeout -s KILL 0.2 {} & setsid -f sh \"$0\"; exit 0\n",
            observer.script()
        ),
    )
    .expect("a script");
    let running = Meshlock::run(etcd, &name)
        .args(["--ttl", "10"])
        .sh(&format!("setsid -f sh {}; exec sleep 1000", storm.display()))
        .start();
    observer.wait_for_processes(5);
    etcd.revoke(&etcd.wait_for_queue(&name, 1)[0]);
    running.finish().any_stderr().status(79);
    let before = meshlock::read(observer.file());
    pass(Duration::from_millis(300));
    assert_eq!(before, meshlock::read(observer.file()), "and nothing stamps any more");
}

#[test]
fn a_relay_of_processes_is_dead_before_another_starts_when_its_guardian_is_killed() {
    // Where it gets away it does so one time in three.
    for _ in 0..4 {
        relay();
    }
}

fn relay() {
    let etcd = Etcd::shared();
    let name = unique("relay");
    let directory = directory();
    let [script, passed, started] = ["relay", "passed", "started"].map(|file| directory.join(file));
    // In a session of its own, one process at a time, and each gone before a list that it is in has been gone
    // through. So many that they outlast the hand-over, and so few that they do not fill the machine if they get away.
    let next_one = "next() { n=$((n + 1)); echo $n >>\"$1\"; [ $n -ge 5000 ] || next \"$1\" & }\n";
    std::fs::write(&script, format!("{next_one}n=0; next \"$1\"\n")).expect("a script");
    let line = format!(
        "setsid -f sh {} {}; exec sleep 1000",
        script.display(),
        passed.display()
    );
    let running = Meshlock::run(etcd, &name).args(["--ttl", "10"]).sh(&line).start();
    eventually("it is under way", || so(meshlock::read(&passed).lines().count() > 100));
    let next = Meshlock::run(etcd, &name)
        .args(["-q", "--ttl", "4"])
        .command(["cp".as_ref(), passed.as_os_str(), started.as_os_str()])
        .start();
    etcd.wait_for_queue(&name, 2);
    running.signal(Signal::SIGKILL);
    next.finish().success();
    let (before, now) = (meshlock::read(&started), meshlock::read(&passed));
    assert_eq!(before, now, "it went on when another had started");
    etcd.assert_clean(&name);
}

#[test]
fn a_process_whose_name_is_no_text_is_killed_like_any_other() {
    let etcd = Etcd::shared();
    let name = unique("nameless");
    let named = directory().join("named");
    let child = format!(
        r"printf '\377\376' >/proc/$$/comm; trap '' TERM; echo >{}; while :; do sleep 0.1; done",
        named.display()
    );
    Meshlock::run(etcd, &name)
        .args(["--stragglers", "kill"])
        .command([
            "sh".as_ref(),
            "-c".as_ref(),
            r#"mkfifo "$1"; setsid sh -c "$2" & read -r _ <"$1""#.as_ref(),
            "sh".as_ref(),
            named.as_os_str(),
            child.as_ref(),
        ])
        .finish()
        .success();
    etcd.assert_clean(&name);
}

#[test]
fn a_guardian_without_a_free_descriptor_kills_its_tree_all_the_same() {
    let etcd = Etcd::shared();
    let observer = Observer::new();
    let (reader, stderr) = std::io::pipe().expect("a pipe");
    let holder = Meshlock::run(etcd, unique("scarce"))
        .args(["--ttl", "4"])
        .stderr_to(stderr)
        .sh(&stubborn_tree(&observer))
        .start();
    observer.wait_for_processes(2);
    let keeper = holder.keeper();
    let open = proc::descriptors(holder.pid());
    let free = (0..1000).find(|fd| open.iter().all(|(taken, _)| taken != fd));
    let limit = format!("--nofile={0}:{0}", free.expect("a number"));
    let pid = format!("--pid={}", holder.pid());
    let limited = std::process::Command::new("prlimit").args([pid, limit]).status();
    assert!(limited.expect("prlimit").success());
    proc::signal(keeper, Signal::SIGSTOP);
    holder.finish().status(79);
    drop(reader);
}

#[test]
fn a_keeper_that_gets_no_thread_does_its_last_duty_all_the_same() {
    // Whoever starts meshlock as root has no limit of processes: then as somebody else, if that is possible.
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let before = if nix::unistd::geteuid().is_root() {
        &nobody[..]
    } else {
        &[]
    };
    let probe = Meshlock::run_at("unused", "probe").words();
    let probe: Vec<_> = before
        .iter()
        .map(Into::into)
        .chain([probe[0].clone(), "--version".into()])
        .collect();
    let output = meshlock::plain(&probe).output();
    if !output.is_ok_and(|output| output.status.success()) {
        return;
    }
    let etcd = Etcd::shared();
    let name = unique("crowded");
    let mut holder = Meshlock::run(etcd, &name)
        .by(before)
        .args(["--ttl", "4"])
        .sh("trap '' TERM; setsid sh -c 'trap \"\" TERM; echo held; while :; do sleep 0.1; done' & wait")
        .start();
    holder.wait_for_stdout("held");
    let pid = format!("--pid={}", holder.keeper());
    let limit: Vec<_> = before
        .iter()
        .copied()
        .chain(["prlimit", &pid, "--nproc=1:1"])
        .map(Into::into)
        .collect();
    assert!(meshlock::plain(&limit).status().expect("prlimit").success());
    holder.signal(Signal::SIGKILL);
    holder.finish().stdout("held\n").signaled(Signal::SIGKILL);
    etcd.assert_clean(&name);
}

#[test]
fn without_proc_nothing_is_run_and_nothing_asked_of_etcd() {
    let etcd = Etcd::start();
    let run = Meshlock::run(&etcd, "procless").command(["echo", "ran"]);
    let hidden = ["unshare", "--user", "--map-root-user", "--mount"];
    let shell = ["sh", "-c", r#"mount -t tmpfs none /proc && exec "$@""#, "sh"];
    let words =
        |rest: Vec<std::ffi::OsString>| -> Vec<_> { hidden.iter().chain(&shell).map(Into::into).chain(rest).collect() };
    let probe = meshlock::plain(&words(vec!["true".into()])).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        return;
    }
    let mark = unique("procless");
    let output = meshlock::plain(&words(run.words()))
        .env("MARK", &mark)
        .output()
        .expect("unshare");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(78), &b""[..]));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/proc"));
    // The keeper ends in its own time.
    eventually(
        "nobody is left",
        || so(proc::with_environment("MARK", &mark).is_empty()),
    );
    assert!(etcd.requests().is_empty(), "{:?}", etcd.requests());
}
