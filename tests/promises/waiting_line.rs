//! At a terminal a waiter keeps one line current: who has the lock, for how long, how many are before us. It
//! leaves no trace of it, and where there is no such terminal there are plain lines.

use crate::harness::pty::{CTRL_C, CTRL_Z};
use crate::harness::{Etcd, Meshlock, Running, Terminal, directory, eventually, pass, proc, so, unique};
use std::process::Stdio;
use std::time::Duration;

const CTRL_S: &str = "\x13";
const CTRL_Q: &str = "\x11";

fn hold(etcd: &Etcd, name: &str) -> Running {
    let mut holder = Meshlock::run(etcd, name)
        .args(["--owner=ann", "--reason=month end"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    holder
}

/// A call as one types it.
fn typed(run: &Meshlock) -> String {
    let words = run.words().into_iter().map(|word| format!("'{}'", word.display()));
    words.collect::<Vec<_>>().join(" ")
}

/// The rows that speak of waiting.
fn lines(rows: &[String]) -> Vec<String> {
    rows.iter().filter(|row| row.contains("waiting")).cloned().collect()
}

/// The one line, once it has all these parts.
#[track_caller]
fn line(terminal: &Terminal, parts: &[&str]) -> String {
    let found = terminal.see(&format!("a line with {parts:?}"), |rows| {
        let found = lines(rows).into_iter().next_back()?;
        parts.iter().all(|part| found.contains(part)).then_some(found)
    });
    assert_eq!(lines(&terminal.rows()).len(), 1, "{:?}", terminal.rows());
    found
}

#[test]
fn the_line_is_kept_current_and_leaves_no_trace() {
    let etcd = Etcd::shared();
    let name = unique("line");
    let holder = hold(etcd, &name);
    let mut terminal = Terminal::open_as("bash", "xterm");
    terminal.line(&typed(&Meshlock::run(etcd, &name).sh("echo mine; echo too >&2")));
    let held_by = format!("(1 ahead): \"{name}\" held ");
    let (pid, purpose) = (format!("(pid {})", holder.pid()), ", owner ann: month end");
    let first = line(&terminal, &["meshlock: waiting ", &held_by, &pid, purpose]);
    // The time goes on, and in the same row.
    terminal.see("the next second", |rows| so(lines(rows) != [first.clone()]));
    line(&terminal, &[&held_by, &pid, purpose]);
    holder.finish().stdout("held\n").success();
    terminal.expect("too");
    let rows = terminal.see("the command's output", |rows| {
        rows.iter().any(|row| row == "too").then(|| rows.to_owned())
    });
    assert_eq!(lines(&rows), [""; 0], "{rows:?}");
    assert!(rows.contains(&"mine".to_owned()), "from the row's begin on: {rows:?}");
    terminal.expect_prompt();
    assert!(terminal.run("echo status $?").contains("status 0"));
}

#[test]
fn the_line_tells_of_a_new_holder_and_of_a_new_place() {
    let etcd = Etcd::shared();
    let name = unique("line");
    let first = hold(etcd, &name);
    let park = |length| {
        let running = Meshlock::run(etcd, &name)
            .args(["-q"])
            .stdin(Stdio::piped())
            .sh("echo held; read -r _; exit 0")
            .start();
        etcd.wait_for_queue(&name, length);
        running
    };
    let (mut second, third) = (park(2), park(3));
    let mut terminal = Terminal::open_as("bash", "xterm");
    terminal.line(&typed(&Meshlock::run(etcd, &name)));
    line(&terminal, &["(3 ahead)", &format!("(pid {})", first.pid())]);
    // Only the place is new.
    third.signal(nix::sys::signal::Signal::SIGTERM);
    line(&terminal, &["(2 ahead)", &format!("(pid {})", first.pid())]);
    third.finish().signaled(nix::sys::signal::Signal::SIGTERM);
    first.finish().stdout("held\n").success();
    second.wait_for_stdout("held");
    line(&terminal, &["(1 ahead)", &format!("(pid {})", second.pid())]);
    second.finish().stdout("held\n").success();
    terminal.expect_prompt();
    assert_eq!(lines(&terminal.rows()), [""; 0]);
}

#[test]
fn ctrl_c_and_ctrl_z_take_the_line_away_and_fg_brings_it_back() {
    let etcd = Etcd::shared();
    let name = unique("line");
    let holder = hold(etcd, &name);
    let mut terminal = Terminal::open_as("bash", "xterm");
    terminal.line(&typed(&Meshlock::run(etcd, &name)));
    line(&terminal, &["(1 ahead)"]);
    terminal.keys(CTRL_Z);
    terminal.expect("Stopped");
    terminal.expect_prompt();
    assert_eq!(lines(&terminal.rows()), [""; 0], "{:?}", terminal.rows());
    // A stopped job writes nothing, and one in the background nothing either.
    terminal.run("bg");
    let before = terminal.written();
    pass(Duration::from_millis(2500));
    assert_eq!(terminal.written(), before);
    terminal.line("fg");
    line(&terminal, &["(1 ahead)"]);
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
    assert!(terminal.run("echo status $?").contains("status 130"));
    assert_eq!(lines(&terminal.rows()), [""; 0], "{:?}", terminal.rows());
    holder.finish().stdout("held\n").success();
}

#[test]
fn the_line_is_cut_to_the_windows_width() {
    let etcd = Etcd::shared();
    let name = unique("漢字-line");
    let holder = hold(etcd, &name);
    let mut terminal = Terminal::open_as("bash", "xterm");
    terminal.line(&typed(&Meshlock::run(etcd, &name)));
    line(&terminal, &["month end"]);
    terminal.resize(40);
    let cut = terminal.see("a shorter line", |rows| {
        lines(rows).into_iter().find(|line| line.ends_with('…'))
    });
    // Two of its characters may take two columns each.
    assert!(cut.chars().count() < 40, "{cut}");
    terminal.resize(200);
    line(&terminal, &["month end"]);
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
    holder.finish().stdout("held\n").success();
}

#[test]
fn other_lines_stand_above_it_and_whole() {
    let etcd = Etcd::start();
    let holder = hold(&etcd, "billing");
    let mut terminal = Terminal::open_as("bash", "xterm");
    terminal.line(&typed(&Meshlock::run(&etcd, "billing").args(["--ttl=60"])));
    line(&terminal, &["(1 ahead)"]);
    etcd.pause();
    let above = |rows: &[String], begin: &str| {
        let at = rows.iter().position(|row| row.starts_with(begin))?;
        rows.get(at + 1)
            .filter(|row| row.starts_with("meshlock: waiting"))
            .map(|_| ())
    };
    terminal.see("the outage", |rows| above(rows, "meshlock: etcd does not answer"));
    etcd.resume();
    terminal.see("its end", |rows| above(rows, "meshlock: etcd answers again"));
    line(&terminal, &["(1 ahead)"]);
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
    drop(holder);
}

#[test]
fn a_stopped_terminal_holds_nobody_up() {
    let etcd = Etcd::shared();
    let name = unique("line");
    let holder = hold(etcd, &name);
    let mut terminal = Terminal::open_as("bash", "xterm");
    let witness = directory().join("witness");
    let script = format!("echo ran >{}", witness.display());
    terminal.line(&typed(&Meshlock::run(etcd, &name).sh(&script)));
    line(&terminal, &["(1 ahead)"]);
    terminal.keys(CTRL_S);
    pass(Duration::from_millis(1500));
    holder.finish().stdout("held\n").success();
    eventually("the command has run", || so(witness.exists()));
    etcd.wait_for_queue(&name, 0);
    terminal.keys(CTRL_Q);
    terminal.expect_prompt();
}

#[test]
fn where_no_line_can_be_kept_current_there_are_plain_ones() {
    let etcd = Etcd::shared();
    let name = unique("line");
    let holder = hold(etcd, &name);
    let call = typed(&Meshlock::run(etcd, &name).args(["-w", "2.5"]));
    let quiet = typed(&Meshlock::run(etcd, &name).args(["-q", "-w", "2.5"]));
    let file = directory().join("stderr");
    let file = file.display();
    for (kind, line, said) in [
        ("dumb", call.clone(), true),
        ("", call.clone(), true),
        ("xterm", format!("{call} & wait"), true),
        // Others may write to the same row: in a script's background and in a pipeline.
        ("xterm", format!("sh -c \"{call} & wait\""), true),
        ("xterm", format!("true | {call}"), true),
        ("xterm", format!("{call} 2>{file}; cat {file}"), true),
        ("xterm", quiet, false),
    ] {
        let mut terminal = Terminal::open_as("bash", kind);
        terminal.line(&line);
        if said {
            terminal.expect(&format!("meshlock: waiting (1 ahead of us): \"{name}\" is held by "));
            terminal.expect(&format!("meshlock: \"{name}\" is held by "));
            terminal.expect("; nothing was run");
        }
        terminal.expect_prompt();
        let written = terminal.written();
        assert!(!written.contains("\u{1b}[J"), "{line}: {written:?}");
        assert_eq!(written.matches("waiting").count(), usize::from(said), "{written:?}");
    }
    holder.finish().stdout("held\n").success();
}

#[test]
fn without_a_line_to_keep_current_nothing_wakes_the_guardian() {
    let etcd = Etcd::shared();
    let name = unique("line");
    let holder = hold(etcd, &name);
    let mut waiter = Meshlock::run(etcd, &name).start();
    waiter.wait_for_stderr("held by");
    let wake_ups = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", waiter.pid())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.expect("a count").to_owned()
    };
    // Asleep, having said it.
    eventually("it sleeps", || so(proc::stat(waiter.pid())?.state == 'S'));
    let before = wake_ups();
    pass(Duration::from_millis(2500));
    assert_eq!(wake_ups(), before);
    holder.finish().stdout("held\n").success();
    waiter.finish().any_stderr().success();
}

#[test]
fn what_others_wrote_cannot_steer_the_terminal() {
    let etcd = Etcd::shared();
    let name = unique("line");
    let long = "9".repeat(50_000);
    let entry = format!(
        r#"{{"format":1,"host":"h\r\u001b[2J","user":"u\n","pid":1,"program":"p","started":"{long}","owner":"\u202e\u0007{long}"}}"#
    );
    let key = format!("meshlock/lock/{name}/1f");
    etcd.put(&key, &entry);
    let mut terminal = Terminal::open_as("bash", "xterm");
    terminal.line(&typed(&Meshlock::run(etcd, &name)));
    let shown = line(
        &terminal,
        &["(1 ahead)", r"u\n@h\r\u{1b}[2J (pid 1)", r", owner \u{202e}\u{7}999"],
    );
    assert!(shown.chars().count() < 300, "{shown}");
    etcd.del(&key);
    terminal.expect_prompt();
    assert_eq!(lines(&terminal.rows()), [""; 0]);
}
