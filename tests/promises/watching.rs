//! `meshlock status --watch` draws anew at each change, and leaves the terminal as it found it.

use crate::harness::pty::CTRL_C;
use crate::harness::{Etcd, Meshlock, Proxy, Terminal, eventually, meshlock, so, unique};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::process::Stdio;

fn at_a_terminal(size: &str) -> Terminal {
    let mut terminal = Terminal::open("bash");
    terminal.run(&format!("stty {size}; export TERM=xterm"));
    terminal
}

#[test]
fn a_change_is_drawn_in_the_place_of_what_was_there() {
    let etcd = Etcd::start();
    Meshlock::run(&etcd, "billing").finish().success();
    let mut terminal = at_a_terminal("cols 80 rows 24");
    let before = terminal.run("stty -a");
    terminal.line(&format!(
        "NO_COLOR=1 {} status --watch --endpoints={}",
        meshlock::binary().display(),
        etcd.address()
    ));
    terminal.expect("free");
    let mut holder = Meshlock::run(&etcd, "billing")
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 3")
        .start();
    holder.wait_for_stdout("held");
    let drawn = terminal.expect("held");
    assert!(
        drawn.contains("\u{1b}[2A\u{1b}[J"),
        "two lines up, and clear: {drawn:?}"
    );
    let waiter = Meshlock::run(&etcd, "billing").args(["-q"]).sh("exit 3").start();
    terminal.expect(" 1 ");
    holder.finish().stdout("held\n").status(3);
    waiter.finish().status(3);
    terminal.expect("exit(3)");
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
    assert_eq!(terminal.run("stty -a"), before);
    let screen = terminal.screen();
    for changes in ["\u{1b}[?", "\u{1b}7", "\u{1b}[s", "\u{1b}[0m", "\u{1b}[2m"] {
        assert!(
            !screen.contains(changes),
            "nothing that would have to be taken back: {screen:?}"
        );
    }
}

#[test]
fn what_does_not_fit_on_the_screen_is_cut_and_said() {
    let etcd = Etcd::start();
    for number in 0..30 {
        etcd.put(
            &format!("meshlock/freeze/a-rather-long-name-for-a-lock-{number:02}"),
            "{}",
        );
    }
    let mut terminal = at_a_terminal("cols 40 rows 10");
    terminal.line(&format!(
        "{} status --watch --endpoints={}",
        meshlock::binary().display(),
        etcd.address()
    ));
    let drawn = terminal.expect("… 23 more lines");
    assert!(drawn.contains("a-rather-long-name-for…"), "{drawn:?}");
    terminal.keys(CTRL_C);
    terminal.expect_prompt();
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let etcd = Etcd::start();
    etcd.put("meshlock/freeze/billing", "{}");
    let mut terminal = at_a_terminal("cols 80 rows 24");
    let call = format!("{} status --endpoints={}", meshlock::binary().display(), etcd.address());
    assert!(terminal.run(&call).contains("\u{1b}[33mfrozen"));
    for plain in [
        format!("NO_COLOR=1 {call}"),
        format!("TERM=dumb {call}"),
        format!("{call} | cat"),
    ] {
        let shown = terminal.run(&plain);
        assert!(shown.contains("frozen") && !shown.contains('\u{1b}'), "{shown:?}");
    }
    assert!(
        !terminal.run(&call).contains("SINCE"),
        "what says nothing only takes room"
    );
}

#[test]
fn on_a_pipe_one_picture_follows_the_other_until_the_reader_goes() {
    let etcd = Etcd::start();
    let name = unique("pipe");
    let mut watcher = Meshlock::ask(&etcd, "status").args(["--watch", &name]).start();
    watcher.wait_for_stdout("free; no run is recorded");
    Meshlock::run(&etcd, &name).sh("exit 3").finish().status(3);
    let text = watcher.wait_for_stdout("exit(3)");
    assert!(!text.contains('\u{1b}') && text.contains("\n\n"), "{text:?}");
    watcher.signal(Signal::SIGTERM);
    watcher.finish().any_stdout().signaled(Signal::SIGTERM);

    // Nothing changes, and yet the end of the reader is noticed.
    let call = format!(
        "timeout 60 {} status --watch --endpoints={} {name}",
        meshlock::binary().display(),
        etcd.address()
    );
    let script = format!("{call} | head -n 1 >/dev/null; exit ${{PIPESTATUS[0]}}");
    let status = meshlock::plain(&["bash", "-c", &script].map(Into::into))
        .status()
        .expect("bash");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_ttl_is_asked_for_again_while_nothing_else_changes() {
    let etcd = Etcd::start();
    // Nobody renews it, so that it can be seen to run down.
    let lease = etcd.etcdctl(&["lease", "grant", "600"]);
    let lease = lease.split(' ').nth(1).expect("an id");
    etcd.etcdctl(&["put", &format!("--lease={lease}"), "meshlock/lock/billing/1f", ""]);
    let call = format!(
        "NO_COLOR=1 {} status --watch --endpoints={}",
        meshlock::binary().display(),
        etcd.address()
    );
    for arguments in ["billing", "--ttl-left"] {
        let mut terminal = at_a_terminal("cols 100 rows 24");
        terminal.line(&format!("{call} {arguments}"));
        eventually("two different TTLs", || {
            let screen = terminal.screen();
            let left = screen.split_whitespace().filter(|word| word.starts_with("9m"));
            so(left.collect::<BTreeSet<_>>().len() > 1)
        });
        terminal.keys(CTRL_C);
        terminal.expect_prompt();
    }
}

#[test]
fn an_etcd_that_hangs_is_said() {
    let etcd = Etcd::start();
    let port = etcd.address().rsplit(':').next().and_then(|port| port.parse().ok());
    let proxy = Proxy::to(port.expect("a port"));
    Meshlock::run(&etcd, "billing").finish().success();
    let mut watcher = Meshlock::ask_at(proxy.endpoint(), "status")
        .args(["--watch", "billing"])
        .start();
    watcher.wait_for_stdout("billing: free");
    proxy.hold();
    // Our own word, and not that of the connection, which takes three times as long.
    watcher.wait_for_stdout("this may be old: no answer within 2 s");
    proxy.heal();
    etcd.put("meshlock/freeze/billing", r#"{"format":1,"by":"ann"}"#);
    watcher.wait_for_stdout("by ann");
    watcher.signal(Signal::SIGINT);
    watcher.finish().any_stdout().signaled(Signal::SIGINT);
}

#[test]
fn an_outage_is_said_and_sat_out() {
    let mut etcd = Etcd::start();
    Meshlock::run(&etcd, "billing").finish().success();
    let mut watcher = Meshlock::ask(&etcd, "status").args(["--watch", "billing"]).start();
    watcher.wait_for_stdout("billing: free");
    etcd.kill();
    watcher.wait_for_stdout("etcd does not answer, and this may be old");
    etcd.restart();
    eventually("etcd is back", || so(etcd.healthy()));
    etcd.put("meshlock/freeze/billing", r#"{"format":1,"by":"ann"}"#);
    watcher.wait_for_stdout("by ann");
    watcher.signal(Signal::SIGINT);
    watcher.finish().any_stdout().signaled(Signal::SIGINT);
}
