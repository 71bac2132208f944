//! At a terminal everything is as without meshlock: Ctrl-C, Ctrl-Z, `fg`, `&`, pipelines, loops, reading
//! from it. A person's shell with job control is what judges.

use crate::harness::observer::helper;
use crate::harness::pty::{CTRL_C, CTRL_D, CTRL_Z};
use crate::harness::{Etcd, Meshlock, Observer, Terminal, eventually, pass, proc, so, unique};
use std::ffi::OsString;
use std::time::Duration;

/// A call of meshlock as one types it.
fn typed(words: Vec<OsString>) -> String {
    words
        .into_iter()
        .map(|word| format!("'{}'", word.into_string().expect("text").replace('\'', r"'\''")))
        .collect::<Vec<_>>()
        .join(" ")
}

fn call(name: &str, command: &[&str]) -> String {
    typed(Meshlock::run(Etcd::shared(), name).command(command).words())
}

#[test]
fn the_command_reads_from_the_terminal() {
    // https://github.com/agentic-dev3o/sandbox-shell/pull/42 and https://github.com/anomalyco/sst/pull/6497: a
    // process group of its own froze every program that read.
    for shell in ["bash", "dash"] {
        let mut terminal = Terminal::open(shell);
        terminal.line(&call(
            &unique("tty"),
            &["sh", "-c", "echo name?; read -r a; echo hello $a"],
        ));
        terminal.expect("name?");
        terminal.line("anna");
        terminal.expect("hello anna");
        terminal.expect_prompt();
        assert!(terminal.run("echo still $((40 + 2))").contains("still 42"));
    }
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let mut terminal = Terminal::open("bash");
    terminal.line(&typed(
        Meshlock::run(Etcd::shared(), unique("tty"))
            .command([helper(), OsString::from("signals")])
            .words(),
    ));
    terminal.expect("ready ");
    let pid = terminal.expect("\n");
    terminal.keys(CTRL_C);
    terminal.expect("SIGINT");
    // Whatever else would come has come when this is through.
    proc::signal(pid.trim().parse().expect("a pid"), nix::sys::signal::Signal::SIGUSR2);
    let rest = terminal.expect("SIGUSR2");
    assert!(!rest.contains("SIGINT"), "{rest}");
    terminal.expect_prompt();
}

#[test]
fn ctrl_c_kills_the_command_and_the_shell_sees_a_death_by_int() {
    let etcd = Etcd::shared();
    let name = unique("tty");
    let mut terminal = Terminal::open("bash");
    terminal.line(&call(&name, &["sh", "-c", "echo up; exec sleep 1000"]));
    terminal.expect("up");
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
    assert!(terminal.run("echo status $?").contains("status 130"));
    etcd.assert_clean(&name);
}

#[test]
fn ctrl_c_ends_a_shells_loop() {
    let mut terminal = Terminal::open("bash");
    let call = call(&unique("tty"), &["sh", "-c", "echo up; exec sleep 1000"]);
    terminal.line(&format!("for i in 1 2 3; do {call}; echo round $i; done"));
    terminal.expect("up");
    terminal.keys(CTRL_C);
    let rest = terminal.expect_prompt();
    assert!(!rest.contains("round") && !rest.contains("up"), "{rest}");
}

#[test]
fn a_command_that_handles_ctrl_c_does_not_end_the_loop() {
    let mut terminal = Terminal::open("bash");
    let script = "trap 'echo caught; exit 0' INT; echo up; while :; do sleep 0.02; done";
    let call = call(&unique("tty"), &["sh", "-c", script]);
    terminal.line(&format!("for i in 1 2; do {call}; echo round $i $?; done"));
    for round in ["round 1 0", "round 2 0"] {
        terminal.expect("up");
        terminal.keys(CTRL_C);
        terminal.expect("caught");
        terminal.expect(round);
    }
    terminal.expect_prompt();
}

#[test]
fn ctrl_c_ends_a_waiter_and_leaves_no_entry() {
    let etcd = Etcd::shared();
    let name = unique("tty");
    let mut holder = Meshlock::run(etcd, &name)
        .stdin(std::process::Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let mut terminal = Terminal::open("bash");
    terminal.line(&call(&name, &["true"]));
    terminal.expect("held by");
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
    assert!(terminal.run("echo status $?").contains("status 130"));
    assert_eq!(etcd.queue(&name).len(), 1);
    holder.finish().stdout("held\n").success();
}

#[test]
fn ctrl_z_stops_and_fg_goes_on() {
    let etcd = Etcd::shared();
    let name = unique("tty");
    let mut terminal = Terminal::open("bash");
    terminal.line(&call(&name, &["sh", "-c", "echo up; read -r a; echo got $a"]));
    terminal.expect("up");
    terminal.keys(CTRL_Z);
    terminal.expect("Stopped");
    terminal.expect_prompt();
    assert_eq!(etcd.queue(&name).len(), 1, "the lock is held while the job is stopped");
    terminal.line("fg");
    terminal.line("it");
    terminal.expect("got it");
    terminal.expect_prompt();
    assert!(terminal.run("echo status $?").contains("status 0"));
    etcd.assert_clean(&name);
}

#[test]
fn one_fg_is_enough_for_a_waiter_that_missed_an_offer() {
    let etcd = Etcd::shared();
    let name = unique("tty");
    let mut holder = Meshlock::run(etcd, &name)
        .stdin(std::process::Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let mut terminal = Terminal::open("bash");
    terminal.line(&call(&name, &["echo", "at last"]));
    terminal.expect("held by");
    terminal.keys(CTRL_Z);
    terminal.expect("Stopped");
    terminal.expect_prompt();
    holder.finish().stdout("held\n").success();
    eventually("the offer is taken back", || so(etcd.queue(&name).is_empty()));
    let after = terminal.run("fg");
    assert!(after.contains("at last"), "{after}");
    etcd.assert_clean(&name);
}

#[test]
fn ctrl_z_where_the_kernel_stops_nobody_costs_nothing() {
    // Nobody in the session could continue us, as under `ssh -t HOST meshlock run …` and `docker run -it`.
    let etcd = Etcd::shared();
    let name = unique("tty");
    let mut terminal = Terminal::open("bash");
    let command = call(&name, &["sh", "-c", "echo up; read -r a; echo got $a"]);
    terminal.line(&format!("echo pid $$; exec {command}"));
    terminal.expect("pid ");
    let pid = terminal.expect("\n");
    terminal.expect("up");
    let used = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        // User and system time, in ticks of 10 ms.
        let fields = stat.split(' ').skip(13).take(2);
        fields.map(|ticks| ticks.parse::<u64>().expect("a number")).sum::<u64>()
    };
    terminal.keys(CTRL_Z);
    let before = used();
    pass(Duration::from_secs(2));
    assert!(used() - before < 50, "{before} and then {} ticks", used());
    terminal.line("it");
    terminal.expect("got it");
    eventually("it is over", || so(etcd.queue(&name).is_empty()));
    etcd.assert_clean(&name);
}

#[test]
fn a_job_that_is_stopped_for_longer_than_the_ttl_keeps_the_lock() {
    let etcd = Etcd::shared();
    let name = unique("tty");
    let observer = Observer::new();
    let mut terminal = Terminal::open("bash");
    terminal.line(&typed(
        Meshlock::run(etcd, &name)
            .args(["--ttl", "4"])
            .command(observer.forever())
            .words(),
    ));
    observer.wait_for_holds(1);
    terminal.keys(CTRL_Z);
    terminal.expect("Stopped");
    terminal.expect_prompt();
    let entry = etcd.wait_for_queue(&name, 1);
    pass(Duration::from_secs(6));
    assert_eq!(etcd.queue(&name), entry, "{}", terminal.screen());
    let jobs = terminal.run("jobs");
    assert!(jobs.contains("Stopped"), "or `fg` will not continue it: {jobs}");
    let before = observer.holds()[0].last;
    terminal.line("fg");
    eventually("the command stamps again", || so(observer.holds()[0].last > before));
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
    etcd.assert_clean(&name);
}

#[test]
fn a_stopped_jobs_lost_lock_kills_it_where_it_stands() {
    let etcd = Etcd::shared();
    let name = unique("tty");
    let observer = Observer::new();
    let mut terminal = Terminal::open("bash");
    terminal.line(&typed(Meshlock::run(etcd, &name).command(observer.forever()).words()));
    let command = observer.wait_for_holds(1)[0].processes[0];
    terminal.keys(CTRL_Z);
    terminal.expect("Stopped");
    terminal.expect_prompt();
    let before = observer.wait_for_holds(1)[0].last;
    etcd.revoke(&etcd.wait_for_queue(&name, 1)[0]);
    eventually("the command is dead", || so(!proc::alive(command)));
    assert_eq!(observer.holds()[0].last, before, "it did not run another moment");
    // Without `fg`: the shell tells of the job's end by itself.
    eventually("the shell has noticed", || {
        let said = terminal.run("jobs");
        so(!said.contains("Stopped") && !said.contains("Running"))
    });
    assert!(terminal.run("echo still $((40 + 2))").contains("still 42"));
}

#[test]
fn a_background_job_runs_and_is_told_of() {
    let mut terminal = Terminal::open("bash");
    let name = unique("tty");
    let call = call(&name, &["sh", "-c", "echo from the background; exit 3"]);
    terminal.line(&format!("{call} &"));
    terminal.expect("from the background");
    terminal.line("wait %1; echo status $?");
    terminal.expect("status 3");
    Etcd::shared().assert_clean(&name);
}

#[test]
fn a_background_job_that_reads_is_stopped_and_fg_lets_it_read() {
    let mut terminal = Terminal::open("bash");
    let call = call(&unique("tty"), &["sh", "-c", "read -r a; echo got $a"]);
    terminal.line(&format!("{call} &"));
    eventually("the job is stopped for input", || {
        so(terminal.run("jobs").contains("Stopped"))
    });
    terminal.line("fg");
    terminal.line("it");
    terminal.expect("got it");
    terminal.expect_prompt();
}

#[test]
fn a_pipeline_passes_through_and_ctrl_c_ends_all_of_it() {
    let mut terminal = Terminal::open("bash");
    let through = call(&unique("tty"), &["cat"]);
    assert!(
        terminal
            .run(&format!("echo through | {through} | tr a-z A-Z"))
            .contains("THROUGH")
    );
    let endless = call(&unique("tty"), &["sh", "-c", "echo up >&2; exec sleep 1000"]);
    terminal.line(&format!("sleep 1000 | {endless} | cat"));
    terminal.expect("up");
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
    assert!(terminal.run("echo still $((40 + 2))").contains("still 42"));
}

#[test]
fn a_substitution_takes_the_output_and_the_status() {
    let mut terminal = Terminal::open("bash");
    let call = call(&unique("tty"), &["sh", "-c", "echo inside; exit 5"]);
    let said = terminal.run(&format!("a=$({call}); echo status $? said $a"));
    assert!(said.contains("status 5 said inside"), "{said}");
}

#[test]
fn the_end_of_the_terminal_ends_the_command() {
    // An ssh connection that breaks: the shell gets HUP and passes it on.
    let etcd = Etcd::shared();
    let name = unique("tty");
    let observer = Observer::new();
    let mut terminal = Terminal::open("bash");
    terminal.line(&typed(Meshlock::run(etcd, &name).command(observer.forever()).words()));
    let command = observer.wait_for_holds(1)[0].processes[0];
    terminal.hang_up();
    eventually("the command is dead", || so(!proc::alive(command)));
    etcd.wait_for_queue(&name, 0);
    etcd.assert_clean(&name);
}

#[test]
fn the_end_of_input_reaches_the_command() {
    let mut terminal = Terminal::open("bash");
    terminal.line(&call(&unique("tty"), &["sh", "-c", "echo up; cat; echo over"]));
    terminal.expect("up");
    terminal.keys(CTRL_D);
    terminal.expect("over");
    terminal.expect_prompt();
}

#[test]
fn a_loss_at_the_terminal_is_said_there() {
    let etcd = Etcd::shared();
    let name = unique("tty");
    let mut terminal = Terminal::open("bash");
    terminal.line(&call(&name, &["sh", "-c", "echo up; exec sleep 1000"]));
    terminal.expect("up");
    etcd.revoke(&etcd.wait_for_queue(&name, 1)[0]);
    terminal.expect("meshlock: ");
    terminal.expect_prompt();
    assert!(terminal.run("echo status $?").contains("status 79"));
}

#[test]
fn an_interactive_shell_as_the_command_has_the_terminal() {
    let mut terminal = Terminal::open("bash");
    terminal.line(&call(
        &unique("tty"),
        &["bash", "--norc", "--noprofile", "--noediting", "-i"],
    ));
    terminal.expect_prompt();
    terminal.line("sh -c 'echo up; exec sleep 1000'");
    terminal.expect("up");
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
    terminal.line("exit 4");
    terminal.expect_prompt();
    assert!(terminal.run("echo status $?").contains("status 4"));
}
