//! `meshlock verify` tells a command whether its lock is still held by this very hold: 0 only where etcd proves it,
//! and else why not. It knows before meshlock itself does, whose keeper is stopped here where that matters.

use crate::harness::etcd::{Cut, ServerTls, lease_of};
use crate::harness::tls::Authority;
use crate::harness::{Cluster, Etcd, Meshlock, Running, directory, eventually, meshlock, proc, secret, so, unique};
use nix::sys::signal::Signal;
use std::process::Stdio;

/// A command that verifies when it is told to, in each way that `checks` names, and says what came of it.
fn holder(run: Meshlock, checks: &[&str]) -> Running {
    let binary = meshlock::binary().display();
    let checks: Vec<String> = checks
        .iter()
        .map(|check| format!("{binary} verify {check}; echo \"verified: $?\"\n"))
        .collect();
    let mut holder = run
        .args(["--release-timeout=1"])
        .stdin(Stdio::piped())
        .sh(&format!("echo held; read -r _\n{}", checks.concat()))
        .start();
    holder.wait_for_stdout("held");
    holder
}

/// Lets the command go on; the statuses in order, and all that was said on stderr.
#[track_caller]
fn verified(holder: Running) -> (Vec<i32>, String) {
    // The end of its standard input is the command's word to go on.
    let finished = holder.finish().any_stdout().any_stderr();
    let said = finished.status(0);
    let statuses = said.stdout.lines().filter_map(|line| line.strip_prefix("verified: "));
    (
        statuses.map(|status| status.parse().expect("a status")).collect(),
        said.stderr,
    )
}

/// Verifies with the keeper stopped, after `change` was done to the entry.
#[track_caller]
fn after(change: impl FnOnce(&Etcd, &str)) -> (Vec<i32>, String) {
    let etcd = Etcd::shared();
    let name = unique("verify");
    let holder = holder(Meshlock::run(etcd, &name).args(["--ttl=60"]), &[""]);
    proc::signal(holder.keeper(), Signal::SIGSTOP);
    let entry = etcd.queue(&name).remove(0);
    change(etcd, &entry);
    verified(holder)
}

#[test]
fn a_hold_is_verified_silently() {
    let run = Meshlock::run(Etcd::shared(), unique("verify"));
    let checks = ["", "--at-least=20", "--quiet"];
    assert_eq!(verified(holder(run, &checks)), (vec![0, 0, 0], String::new()));
}

#[test]
fn verbose_says_how_much_time_is_left() {
    let run = Meshlock::run(Etcd::shared(), unique("verify"));
    let (statuses, said) = verified(holder(run, &["-v"]));
    assert_eq!(statuses, [0]);
    assert!(said.contains("is held: token ") && said.contains(" s left"), "{said}");
}

#[test]
fn more_time_than_is_left_is_not_had() {
    let etcd = Etcd::shared();
    let name = unique("verify");
    let holder = holder(Meshlock::run(etcd, &name).args(["--ttl=60"]), &["--at-least=54s"]);
    // The margin of 60 s is 6 s; a second later less than that is left, and nobody renews.
    proc::signal(holder.keeper(), Signal::SIGSTOP);
    let lease = etcd.queue(&name).remove(0);
    eventually("time goes by", || {
        let told = etcd.etcdctl(&["lease", "timetolive", lease_of(&lease)]);
        so(!told.contains("remaining(60s)") && !told.contains("remaining(59s)"))
    });
    let (statuses, said) = verified(holder);
    assert_eq!(statuses, [79]);
    assert!(said.contains("54 s were asked for"), "{said}");
}

#[test]
fn more_time_than_there_ever_is_is_a_wrong_question() {
    let run = Meshlock::run(Etcd::shared(), unique("verify"));
    // The TTL is 30 s, of which 3 s are the margin.
    let (statuses, said) = verified(holder(run, &["--at-least=28s"]));
    assert_eq!(statuses, [64]);
    assert!(
        said.contains("--at-least=28 s can never be left") && said.contains("27.0 s at the most"),
        "{said}"
    );
}

#[test]
fn a_hold_at_a_key_is_verified_by_the_name_that_it_was_given() {
    let etcd = Etcd::shared();
    for name in [Some("a name of its own"), None] {
        let key = unique("jobs/verified");
        let run = Meshlock::run(etcd, name.unwrap_or(&key)).args(["--lock-key", &key]);
        let named = format!("'{}'", name.unwrap_or(&key));
        assert_eq!(verified(holder(run, &["", &named])), (vec![0, 0], String::new()));
    }
}

#[test]
fn a_list_of_holds_that_meshlock_did_not_write_proves_nothing() {
    let etcd = Etcd::shared();
    let name = unique("verify");
    let binary = meshlock::binary().display();
    let forged = |change: &str| {
        format!(
            "MESHLOCK_HELD_ALL=$(printf %s \"$MESHLOCK_HELD_ALL\" | sed '{change}') {binary} verify; echo \"verified: $?\"\n"
        )
    };
    let script = [
        forged("s/^/x/"),
        forged("s/\"key\":\"[^\"]*\"/\"key\":\"\"/"),
        forged("s/\"lease\":\"[^\"]*\"/\"lease\":\"1f\"/"),
        forged("s/x/x/"),
    ];
    let (statuses, said) = verified(Meshlock::run(etcd, &name).sh(&script.concat()).start());
    assert_eq!(statuses, [64, 64, 64, 0], "{said}");
    assert_eq!(
        said.matches("MESHLOCK_HELD_ALL is not what meshlock run has set")
            .count(),
        3,
        "{said}"
    );
}

#[test]
fn a_revoked_lease_is_seen_before_meshlock_itself_has_noticed() {
    let (statuses, said) = after(|etcd, entry| etcd.revoke(entry));
    assert_eq!(statuses, [79]);
    assert!(said.contains("its entry in etcd is gone"), "{said}");
}

#[test]
fn a_deleted_entry_is_seen_though_the_lease_lives() {
    let (statuses, said) = after(|etcd, entry| etcd.del(entry));
    assert_eq!(statuses, [79]);
    assert!(said.contains("its entry in etcd is gone"), "{said}");
}

#[test]
fn a_replaced_entry_is_not_ours() {
    let (statuses, said) = after(|etcd, entry| {
        etcd.del(entry);
        etcd.etcdctl(&["put", "--lease", lease_of(entry), "--", entry, "{}"]);
    });
    assert_eq!(statuses, [79]);
    assert!(said.contains("replaced"), "{said}");
}

#[test]
fn an_entry_that_outlives_its_lease_is_not_relied_on() {
    let (statuses, said) = after(|etcd, entry| etcd.put(entry, "{}"));
    assert_eq!(statuses, [79]);
    assert!(said.contains("no longer bound to our lease"), "{said}");
}

#[test]
fn quiet_leaves_it_to_the_status() {
    let etcd = Etcd::shared();
    let name = unique("verify");
    let holder = holder(Meshlock::run(etcd, &name).args(["--ttl=60"]), &["-q"]);
    proc::signal(holder.keeper(), Signal::SIGSTOP);
    etcd.del(&etcd.queue(&name).remove(0));
    let (statuses, said) = verified(holder);
    assert_eq!(statuses, [79]);
    assert!(!said.contains("is not held"), "{said}");
}

#[test]
fn each_of_nested_holds_is_known_by_its_name() {
    let etcd = Etcd::shared();
    let (outer, inner) = (unique("outer"), unique("inner"));
    let binary = meshlock::binary().display();
    let inside = format!(
        "{binary} run --endpoints={} --prefix=other/ {inner} -- sh -c '\n\
         for name in {outer} {inner}; do {binary} verify $name; echo \"verified: $?\"; done\n\
         {binary} verify; echo \"verified: $?\"\n\
         {binary} verify stranger; echo \"verified: $?\"'",
        etcd.endpoint()
    );
    let run = Meshlock::run(etcd, &outer).sh(&format!("echo held; read -r _\n{inside}"));
    let mut holder = run.stdin(Stdio::piped()).start();
    holder.wait_for_stdout("held");
    let (statuses, said) = verified(holder);
    assert_eq!(statuses, [0, 0, 0, 64]);
    assert!(
        said.contains("\"stranger\" is not held") && said.contains(&outer) && said.contains(&inner),
        "{said}"
    );
}

#[test]
fn a_loss_of_the_outer_hold_leaves_the_inner_one() {
    let (first, second) = (Etcd::start(), Etcd::shared());
    let (outer, inner) = (unique("outer"), unique("inner"));
    let binary = meshlock::binary().display();
    let inside = format!(
        "{binary} run --endpoints={} {inner} -- sh -c 'echo both; read -r _\n\
         for name in {outer} {inner}; do {binary} verify $name; echo \"verified: $?\"; done'",
        second.endpoint()
    );
    let run = Meshlock::run(&first, &outer).args(["--ttl=60", "--release-timeout=1"]);
    let mut holder = run.stdin(Stdio::piped()).sh(&inside).start();
    holder.wait_for_stdout("both");
    proc::signal(holder.keeper(), Signal::SIGSTOP);
    first.del(&first.queue(&outer).remove(0));
    let (statuses, _) = verified(holder);
    assert_eq!(statuses, [79, 0], "each is asked after where it is held");
}

#[test]
fn outside_of_a_hold_there_is_nothing_to_verify() {
    let etcd = Etcd::shared();
    Meshlock::ask(etcd, "verify")
        .without_endpoints()
        .finish()
        .stderr_line(["no lock is held around this process", "meshlock run"])
        .status(64);
    Meshlock::ask(etcd, "verify")
        .args(["billing"])
        .finish()
        .stderr_line(["no lock is held around this process"])
        .status(64);
}

#[test]
fn an_etcd_that_is_away_proves_nothing() {
    let mut etcd = Etcd::start();
    let holder = holder(
        Meshlock::run(&etcd, "away").args(["--ttl=60"]),
        &["--dial-timeout=1", "-q --dial-timeout=1"],
    );
    etcd.kill();
    let (statuses, said) = verified(holder);
    assert_eq!(statuses, [69, 69]);
    let lines = said.lines().filter(|line| line.contains("cannot be proven to be held"));
    assert_eq!(lines.count(), 2, "also with -q: {said}");
}

#[test]
fn an_etcd_that_hangs_proves_nothing() {
    let etcd = Etcd::start();
    let holder = holder(Meshlock::run(&etcd, "hung").args(["--ttl=60"]), &["--dial-timeout=1"]);
    etcd.pause();
    let (statuses, said) = verified(holder);
    assert_eq!(statuses, [69], "{said}");
}

#[test]
fn another_cluster_is_no_witness() {
    let (ours, other) = (Etcd::start(), Etcd::shared());
    let alone = format!("--endpoints={}", other.endpoint());
    let both = format!("--endpoints={},{}", other.endpoint(), ours.endpoint());
    let (statuses, said) = verified(holder(Meshlock::run(&ours, "cluster"), &[&alone, &both]));
    assert_eq!(statuses, [79, 0]);
    assert!(said.contains("another cluster"), "{said}");
}

#[test]
fn another_cluster_beside_ours_that_is_away_proves_no_loss() {
    let (mut ours, other) = (Etcd::start(), Etcd::shared());
    let both = format!("--dial-timeout=2 --endpoints={},{}", other.endpoint(), ours.endpoint());
    let holder = holder(Meshlock::run(&ours, "cluster").args(["--ttl=60"]), &[&both]);
    ours.kill();
    let (statuses, said) = verified(holder);
    assert_eq!(statuses, [69], "{said}");
}

#[test]
fn a_leader_that_is_cut_off_from_the_others_proves_nothing() {
    let cluster = Cluster::start();
    let leader = cluster.leader();
    let one = format!("--dial-timeout=2 --endpoints={}", cluster.members[leader].endpoint());
    let run = Meshlock::run_at(cluster.endpoints(), "deposed").args(["--ttl=60"]);
    let holder = holder(run, &[&one, ""]);
    cluster.isolate(leader, Cut::BOTH_WAYS);
    let (statuses, said) = verified(holder);
    // It goes on telling how long the lease lives; only a majority can confirm that.
    assert_eq!(statuses[0], 69, "{said}");
    assert_eq!(statuses[1], 0, "the others do: {said}");
}

#[test]
fn files_are_found_from_another_directory() {
    let authority = Authority::new();
    let (server, client) = (authority.issue("server"), authority.issue("client"));
    let ca = authority.cert();
    let mut etcd = Etcd::start_tls(&ServerTls {
        cert: &server.cert,
        key: &server.key,
        clients: Some(&ca),
    });
    etcd.access(&[
        format!("--cacert={}", ca.display()),
        format!("--cert={}", client.cert.display()),
        format!("--key={}", client.key.display()),
    ]);
    let here = ca.parent().expect("a directory");
    std::fs::rename(secret("root\n"), here.join("password")).expect("renamed");
    etcd.enable_auth();
    let run = Meshlock::run_at(etcd.address(), "files").current_dir(here).args([
        "--cacert=ca.pem",
        "--cert=client.pem",
        "--key=client.key",
        "--user=root",
        "--password-file=password",
    ]);
    let binary = meshlock::binary().display();
    let mut holder = run
        .stdin(Stdio::piped())
        .sh(&format!(
            "cd /; echo held; read -r _; {binary} verify; echo \"verified: $?\""
        ))
        .start();
    holder.wait_for_stdout("held");
    assert_eq!(verified(holder), (vec![0], String::new()));
}

#[test]
fn a_password_that_the_command_was_not_given_is_asked_for() {
    let mut etcd = Etcd::start();
    etcd.enable_auth();
    let run = Meshlock::run(&etcd, "auth").env("MESHLOCK_USER", "root:root");
    let file = directory().join("password");
    std::fs::write(&file, "root").expect("a file");
    let given = format!("--user=root --password-file={}", file.display());
    let (statuses, said) = verified(holder(run, &["", &given]));
    assert_eq!(statuses, [78, 0]);
    assert!(
        said.contains("no password") && said.contains("--password-file"),
        "{said}"
    );
}

#[test]
fn a_password_in_etcdctls_variable_is_found_again() {
    let mut etcd = Etcd::start();
    etcd.enable_auth();
    let run = || Meshlock::run(&etcd, "auth").env("ETCDCTL_USER", "root:root");
    assert_eq!(verified(holder(run(), &["", "-q"])), (vec![0, 0], String::new()));
    // Another's is not taken for it.
    let run = run().env("MESHLOCK_USER", "root:root");
    let binary = meshlock::binary().display();
    let mut holder = run
        .stdin(Stdio::piped())
        .sh(&format!(
            "echo held; read -r _; export ETCDCTL_USER=other:root; {binary} verify; echo \"verified: $?\""
        ))
        .start();
    holder.wait_for_stdout("held");
    let (statuses, said) = verified(holder);
    assert_eq!(statuses, [78]);
    assert!(said.contains("no password for the etcd user \"root\""), "{said}");
}

#[test]
fn a_password_file_is_for_the_user_of_the_hold() {
    let mut etcd = Etcd::start();
    etcd.enable_auth();
    let run = Meshlock::run(&etcd, "auth")
        .args(["--user=root"])
        .env("MESHLOCK_PASSWORD", "root");
    let given = format!("--password-file={}", secret("root\n").display());
    assert_eq!(verified(holder(run, &[&given])), (vec![0], String::new()));
}
