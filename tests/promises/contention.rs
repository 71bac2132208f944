//! Who does not get the lock is told so, by a status of its own and a line that names the holder, and has
//! changed nothing in etcd.

use crate::harness::{Etcd, Meshlock, Observer, Running, directory, eventually, pass, so, unique};
use std::cell::Cell;
use std::process::Stdio;
use std::time::Duration;

/// A holder of the lock, until its standard input ends.
#[track_caller]
fn hold(etcd: &Etcd, name: &str) -> Running {
    let mut running = Meshlock::run(etcd, name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    running.wait_for_stdout("held");
    running
}

fn let_go(running: Running) {
    running.finish().stdout("held\n").success();
}

#[test]
fn no_wait_gives_way_at_once_and_names_the_holder() {
    // https://github.com/hashicorp/consul/issues/780 (to try once and go away),
    // https://github.com/basecamp/kamal/pull/656 ("lock found" and nothing more) and
    // https://github.com/viafintech/cronlocker/pull/10 (not a success).
    let etcd = Etcd::start();
    let holder = hold(&etcd, "billing");
    let host = nix::unistd::gethostname().expect("a name").into_string().expect("text");
    let before = etcd.revision();
    for option in [["--no-wait"].as_slice(), &["-n"], &["--wait", "0"], &["-w0"]] {
        let ran = directory().join("ran");
        Meshlock::run(&etcd, "billing")
            .args(option)
            .command(["touch".into(), ran.clone().into_os_string()])
            .finish()
            .stderr_line([
                "\"billing\" is held by ",
                &host,
                &format!("pid {}", holder.pid()),
                "since ",
            ])
            .status(75);
        assert!(!ran.exists());
    }
    assert_eq!(etcd.revision(), before, "contention writes nothing");
    assert_eq!(etcd.leases().len(), 1, "and leaves no lease but the holder's");
    let_go(holder);
}

#[test]
fn the_record_says_who_holds_and_why() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    let mut holder = Meshlock::run(etcd, &name)
        .args(["--owner", "team-invoices", "--reason", "month end"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    Meshlock::run(etcd, &name)
        .args(["-n"])
        .finish()
        .stderr_line([name.as_str(), "month end"])
        .status(75);
    let_go(holder);
}

#[test]
fn waiting_ends_after_the_time_that_was_given() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    let holder = hold(etcd, &name);
    Meshlock::run(etcd, &name)
        .args(["-q", "--wait", "0.5"])
        .finish()
        .status(75);
    assert_eq!(etcd.queue(&name).len(), 1, "the waiter has left the queue");
    let_go(holder);
    etcd.assert_clean(&name);
}

#[test]
fn a_waiter_says_for_whom_it_waits() {
    // https://github.com/ben-z/gh-action-mutex/issues/26.
    let etcd = Etcd::shared();
    let name = unique("billing");
    let first = hold(etcd, &name);
    let mut second = Meshlock::run(etcd, &name).sh("echo mine").start();
    second.wait_for_stderr(&format!("pid {}", first.pid()));
    let_go(first);
    let said = second.finish().stdout("mine\n").any_stderr().success();
    assert!(
        said.stderr
            .lines()
            .all(|line| line.starts_with("meshlock: ") && line.contains(&name)),
        "{}",
        said.stderr
    );
}

#[test]
fn a_change_of_the_holder_is_told() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    let first = hold(etcd, &name);
    let mut second = Meshlock::run(etcd, &name)
        .args(["-q"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    etcd.wait_for_queue(&name, 2);
    let mut third = Meshlock::run(etcd, &name).start();
    third.wait_for_stderr(&format!("pid {}", first.pid()));
    let_go(first);
    second.wait_for_stdout("held");
    third.wait_for_stderr(&format!("pid {}", second.pid()));
    let_go(second);
    third.finish().any_stderr().success();
}

#[test]
fn the_status_of_contention_can_be_chosen() {
    // https://github.com/hashicorp/terraform/issues/16147 and https://github.com/viafintech/cronlocker/pull/10.
    let etcd = Etcd::shared();
    let name = unique("billing");
    let holder = hold(etcd, &name);
    for (option, status) in [("-E0", 0), ("-E=255", 255), ("--conflict-exit-code=1", 1)] {
        let option = option.replace("-E=", "-E");
        Meshlock::run(etcd, &name)
            .args(["-n", &option])
            .finish()
            .stderr_line([name.as_str(), "held"])
            .status(status);
    }
    let_go(holder);
}

#[test]
fn quiet_contention_is_silent() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    let holder = hold(etcd, &name);
    Meshlock::run(etcd, &name).args(["-q", "-n"]).finish().status(75);
    let_go(holder);
}

#[test]
fn of_a_hundred_that_do_not_wait_exactly_one_runs() {
    // https://github.com/etcd-io/etcd/issues/10493.
    let etcd = Etcd::start();
    let observer = Observer::new();
    let calls: Vec<Running> = (0..100)
        .map(|_| {
            Meshlock::run(&etcd, "rush")
                .args(["-q", "-n"])
                .command(observer.forever())
                .start()
        })
        .collect();
    // The one that runs does so until it is told to end, when all others have given way.
    let mut winner = None;
    let holder = observer.wait_for_holds(1).remove(0).processes[0];
    for call in calls {
        if call.processes().contains(&holder) {
            winner = Some(call);
        } else {
            call.finish().status(75);
        }
    }
    assert_eq!(observer.assert_no_overlap().len(), 1);
    assert_eq!(etcd.queue("rush").len(), 1);
    let winner = winner.expect("one that runs");
    winner.signal(nix::sys::signal::Signal::SIGTERM);
    winner.finish().signaled(nix::sys::signal::Signal::SIGTERM);
    etcd.assert_clean("rush");
    etcd.assert_no_leases();
}

#[test]
fn while_a_name_is_frozen_nobody_starts() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    let freeze = format!("meshlock/freeze/{name}");
    etcd.put(&freeze, r#"{"format":1,"by":"anna@ops","reason":"migration"}"#);
    Meshlock::run(etcd, &name)
        .args(["-n"])
        .finish()
        .stderr_line([name.as_str(), "is frozen by anna@ops: migration"])
        .status(75);
    Meshlock::run(etcd, &name).args(["-q", "-w", "0.3"]).finish().status(75);
    etcd.assert_clean(&name);
    let mut waiter = Meshlock::run(etcd, &name).sh("echo mine").start();
    waiter.wait_for_stderr("frozen");
    assert_eq!(waiter.stdout(), "");
    etcd.del(&freeze);
    waiter.finish().stdout("mine\n").any_stderr().success();
}

#[test]
fn a_freeze_of_an_unknown_kind_is_a_freeze() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    etcd.put(&format!("meshlock/freeze/{name}"), "by hand");
    Meshlock::run(etcd, &name)
        .args(["-n"])
        .finish()
        .stderr_line([name.as_str(), "frozen"])
        .status(75);
}

#[test]
fn a_freeze_during_a_hold_does_not_touch_it() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    let holder = hold(etcd, &name);
    let mut waiter = Meshlock::run(etcd, &name).args(["-v"]).sh("echo mine").start();
    etcd.wait_for_queue(&name, 2);
    let freeze = format!("meshlock/freeze/{name}");
    etcd.put(&freeze, r#"{"format":1}"#);
    let_go(holder);
    waiter.wait_for_stderr("frozen");
    assert_eq!(waiter.stdout(), "", "the waiter is first, and does not start");
    etcd.del(&freeze);
    waiter.finish().stdout("mine\n").any_stderr().success();
}

#[test]
fn nobody_leaves_a_frozen_name_at_one_revision() {
    // Whoever is next takes such a departure for leave to start, and does not look whether the name is frozen.
    let etcd = Etcd::start();
    let revisions = |leaves: &dyn Fn()| {
        let before = etcd.revision();
        leaves();
        etcd.revision() - before
    };
    let comes_and_goes = || let_go(hold(&etcd, "billing"));
    let gives_up = || {
        drop(
            Meshlock::run(&etcd, "billing")
                .args(["-q", "-w", "0.3"])
                .finish()
                .status(75),
        );
    };
    let freeze = || etcd.put("meshlock/freeze/billing", r#"{"format":1}"#);
    // One to come, one to go.
    assert_eq!(revisions(&comes_and_goes), 2);
    let holder = hold(&etcd, "billing");
    assert_eq!(revisions(&gives_up), 2);
    // One to freeze, and two to go.
    let holder = Cell::new(Some(holder));
    let ends_frozen = || {
        freeze();
        holder.take().into_iter().for_each(let_go);
    };
    assert_eq!(revisions(&ends_frozen), 3);
    assert_eq!(revisions(&gives_up), 3);
    etcd.del("meshlock/freeze/billing");
    etcd.assert_clean("billing");
}

#[test]
fn the_lock_that_the_caller_holds_is_a_mistake_at_once() {
    // https://github.com/basecamp/kamal/issues/1517: a hook that called the tool again ran into its own lock.
    let etcd = Etcd::shared();
    let name = unique("billing");
    let again = Meshlock::run(etcd, &name).command(["echo", "twice"]).words();
    let mut command = vec!["env".into()];
    command.extend(again);
    Meshlock::run(etcd, &name)
        .command(command)
        .finish()
        .stderr_line([name.as_str(), "already"])
        .status(64);
    etcd.assert_clean(&name);
}

#[test]
fn the_callers_lock_is_seen_through_another_in_between() {
    let etcd = Etcd::shared();
    let (outer, inner) = (unique("outer"), unique("inner"));
    let again = Meshlock::run(etcd, &outer).command(["echo", "twice"]).words();
    let between = Meshlock::run(etcd, &inner).command(again).words();
    Meshlock::run(etcd, &outer)
        .command(between)
        .finish()
        .stderr_line([outer.as_str(), "already"])
        .status(64);
    etcd.assert_clean(&outer);
    etcd.assert_clean(&inner);
}

#[test]
fn another_lock_inside_a_lock_is_fine_and_its_variables_win() {
    let etcd = Etcd::shared();
    let (outer, inner) = (unique("outer"), unique("inner"));
    let within = Meshlock::run(etcd, &inner)
        .sh(r#"echo "$MESHLOCK_HELD_NAME"; echo "$MESHLOCK_HELD_LEASES" | tr : '\n' | wc -l"#)
        .words();
    Meshlock::run(etcd, &outer)
        .command(within)
        .finish()
        .stdout(format!("{inner}\n2\n"))
        .success();
}

#[test]
fn an_outage_is_not_contention() {
    // https://github.com/etcd-io/etcd/issues/4740 and https://github.com/BerriAI/litellm/pull/36636: jobs were
    // skipped in silence because an outage looked like a lost race.
    let mut etcd = Etcd::start();
    let endpoint = etcd.endpoint();
    etcd.kill();
    for option in ["--no-wait", "--wait=20"] {
        Meshlock::run(&etcd, "billing")
            .args([option, "-E0", "--dial-timeout=1"])
            .finish()
            .stderr_line([endpoint.trim_start_matches("http://"), "refused"])
            .status(69);
    }
}

#[test]
fn etcd_away_as_the_wait_ends_is_not_contention() {
    let mut etcd = Etcd::start();
    let holder = hold(&etcd, "billing");
    let mut waiter = Meshlock::run(&etcd, "billing").args(["--wait", "5"]).start();
    waiter.wait_for_stderr("held by");
    etcd.kill();
    waiter.finish().any_stderr().status(69);
    drop(holder);
}

#[test]
fn a_foreign_key_in_the_queue_is_named_and_never_passed() {
    // https://github.com/etcd-io/website/issues/710: it was waited for in silence.
    let etcd = Etcd::shared();
    let name = unique("billing");
    let foreign = format!("meshlock/lock/{name}/made-by-hand");
    etcd.put(&foreign, "what?");
    Meshlock::run(etcd, &name)
        .args(["-n"])
        .finish()
        .stderr_line([name.as_str(), "unknown (not meshlock)"])
        .status(75);
    let mut waiter = Meshlock::run(etcd, &name).start();
    waiter.wait_for_stderr("unknown (not meshlock)");
    etcd.wait_for_queue(&name, 2);
    etcd.del(&foreign);
    waiter.finish().any_stderr().success();
}

#[test]
fn a_queue_entry_of_a_later_format_is_exclusive() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    etcd.put(&format!("meshlock/lock/{name}/1f"), r#"{"format":2,"host":"future"}"#);
    Meshlock::run(etcd, &name)
        .args(["-n"])
        .finish()
        .stderr_line(["unknown (not meshlock)"])
        .status(75);
}

#[test]
fn control_characters_of_a_foreign_record_do_not_reach_the_terminal() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    etcd.put(
        &format!("meshlock/lock/{name}/1f"),
        r#"{"format":1,"host":"h\u001b[31m","user":"u\nmeshlock: fine","pid":1,"program":"p","started":"2026-01-01T00:00:00Z"}"#,
    );
    let said = Meshlock::run(etcd, &name)
        .args(["-n"])
        .finish()
        .stderr_line(["held by"])
        .status(75);
    assert!(!said.stderr.contains('\x1b'));
}

#[test]
fn a_waiter_holds_no_key_but_its_entry_and_goes_without_a_trace() {
    let etcd = Etcd::start();
    let holder = hold(&etcd, "billing");
    let mut waiter = Meshlock::run(&etcd, "billing").start();
    waiter.wait_for_stderr("held by");
    etcd.wait_for_queue("billing", 2);
    waiter.signal(nix::sys::signal::Signal::SIGTERM);
    waiter.finish().any_stderr().signaled(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(etcd.queue("billing").len(), 1);
    assert_eq!(etcd.keys("meshlock/open/").len(), 1, "the holder's");
    eventually("the waiter's lease is gone", || so(etcd.leases().len() == 1));
    let_go(holder);
}

#[test]
fn a_huge_foreign_record_is_contention_and_one_line() {
    let etcd = Etcd::shared();
    let name = unique("billing");
    let reason = "A".repeat(100_000);
    etcd.put(
        &format!("meshlock/lock/{name}/1"),
        &format!(
            r#"{{"format":1,"host":"web1","user":"ci","pid":1,"program":"p","started":"today","reason":"{reason}"}}"#
        ),
    );
    Meshlock::run(etcd, &name)
        .args(["-n"])
        .finish()
        .stderr_line([name.as_str(), "ci@web1", "AAAA"])
        .status(75);
}

#[test]
fn a_holder_that_waited_holds_since_its_predecessor_ended() {
    let etcd = Etcd::shared();
    let name = unique("since");
    let first = hold(etcd, &name);
    let mut second = Meshlock::run(etcd, &name)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    etcd.wait_for_queue(&name, 2);
    // Stamps are whole seconds.
    pass(Duration::from_secs(2));
    let_go(first);
    second.wait_for_stdout("held");
    let entry = etcd.wait_for_queue(&name, 1).remove(0);
    let record: serde_json::Value = serde_json::from_str(&etcd.get(&entry).expect("a value")).expect("a record");
    let said = Meshlock::run(etcd, &name).args(["-n"]).finish().any_stderr().status(75);
    let started = record["started"].as_str().expect("a time");
    let (_, since) = said.stderr.split_once(" since ").expect("since when");
    assert!(since > started, "{since} is not after {started}");
    second.finish().any_stderr().stdout("held\n").success();
}
