//! etcd's users: passwords and where they come from, certificates that name a user, tokens that do not outlive a hold,
//! rights that are enough and rights that are taken away.

use crate::harness::etcd::{ServerTls, free_port};
use crate::harness::pty::{CTRL_C, CTRL_D};
use crate::harness::tls::{self, Authority};
use crate::harness::{
    Etcd, Meshlock, Running, Terminal, bounded, directory, eventually, option, proc, refused, secret, so, unique,
};
use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;

/// A user `job`, with the password `secret`, who has this right below the prefix and no other.
fn with_job(etcd: &mut Etcd, right: &str) {
    etcd.etcdctl(&["role", "add", "locks"]);
    etcd.etcdctl(&["role", "grant-permission", "--prefix=true", "locks", right, "meshlock/"]);
    etcd.etcdctl(&["user", "add", "job:secret"]);
    etcd.etcdctl(&["user", "grant-role", "job", "locks"]);
    etcd.enable_auth();
}

const AS_JOB: [&str; 2] = ["--user", "job:secret"];

/// A hold that lasts until its standard input ends, renewed each second.
fn holder(etcd: &Etcd, name: &str, options: &[String]) -> Running {
    let mut holder = Meshlock::run(etcd, name)
        .args(options)
        .args(["--ttl=14"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    holder
}

/// That the server goes on permitting so many transactions, one of which belongs to each renewal.
#[track_caller]
fn goes_on(etcd: &Etcd, times: f64) {
    let permitted = || etcd.metric("grpc_server_handled_total", "grpc_code=\"OK\",grpc_method=\"Txn\"");
    let before = permitted();
    eventually("renewals that are permitted", || so(permitted() >= before + times));
}

#[test]
fn a_password_is_sent_to_nobody_who_does_not_speak_etcds_protocol() {
    // As to a port that wants TLS, where it would be out on the network for nothing.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let heard = thread::spawn(move || {
        let mut heard = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let mut words = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut words) {
                heard.extend_from_slice(&words[..count]);
                if heard.ends_with(b"that is all") {
                    return heard;
                }
            }
        }
        heard
    });
    Meshlock::run_at(format!("http://{address}"), "auth")
        .args(["--user", "job:canary", "--dial-timeout=1"])
        .finish()
        .any_stderr()
        .status(69);
    let mut last = TcpStream::connect(address).expect("the listener");
    last.write_all(b"that is all").expect("written");
    let heard = heard.join().expect("what was heard");
    assert!(heard.starts_with(b"PRI * HTTP/2.0"), "it was asked how it speaks");
    assert!(!heard.windows(6).any(|bytes| bytes == b"canary"));
}

#[test]
fn a_wrong_password_and_a_missing_one_are_denials() {
    let mut etcd = Etcd::start();
    etcd.enable_auth();
    let before = etcd.revision();
    refused(
        Meshlock::run(&etcd, "auth").args(["--user", "root:wrong"]),
        77,
        &["root"],
    );
    refused(
        Meshlock::run(&etcd, "auth").args(["--user", "nobody:root"]),
        77,
        &["nobody"],
    );
    refused(Meshlock::run(&etcd, "auth"), 77, &["user"]);
    assert_eq!(etcd.revision(), before);
    let file = secret("root\n");
    Meshlock::run(&etcd, "auth")
        .args(["--user=root".to_owned(), option("--password-file", &file)])
        .finish()
        .success();
    Meshlock::run(&etcd, "auth")
        .env("MESHLOCK_USER", "root:root")
        .sh(r#"echo "${MESHLOCK_USER-none}" "${MESHLOCK_PASSWORD-none}""#)
        .finish()
        .stdout("root none\n")
        .success();
    Meshlock::run(&etcd, "auth")
        .env("MESHLOCK_USER", "root")
        .env("MESHLOCK_PASSWORD", "root")
        .sh(r#"echo "$MESHLOCK_USER" "${MESHLOCK_PASSWORD-none}""#)
        .finish()
        .stdout("root none\n")
        .success();
    etcd.assert_clean("auth");
}

#[test]
fn a_user_where_etcd_knows_no_users_is_told() {
    refused(
        Meshlock::run(Etcd::shared(), unique("auth")).args(["--user", "root:root"]),
        78,
        &["auth"],
    );
}

#[test]
fn a_right_to_the_prefix_alone_is_enough() {
    // https://github.com/etcd-io/etcd/issues/10544: nobody could say which rights a role needs.
    let mut etcd = Etcd::start();
    with_job(&mut etcd, "readwrite");
    let user = AS_JOB;
    let mut holder = Meshlock::run(&etcd, "rights")
        .args(user)
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    Meshlock::run(&etcd, "rights")
        .args(user)
        .args(["-q", "-n"])
        .finish()
        .status(75);
    let waiter = Meshlock::run(&etcd, "rights").args(user).args(["-q"]).start();
    etcd.wait_for_queue("rights", 2);
    holder.finish().stdout("held\n").success();
    waiter.finish().success();
    etcd.assert_clean("rights");
    refused(
        Meshlock::run(&etcd, "rights").args(user).args(["--prefix", "other/"]),
        77,
        &["job", "other/"],
    );
}

/// How servers are to make their tokens: such as end soon, and one that only a change of roles makes old.
fn tokens() -> [String; 3] {
    let files = directory();
    let (private, public) = (files.join("jwt.key"), files.join("jwt.pub"));
    tls::key_pair(&private, &public);
    let (private, public) = (private.display(), public.display());
    let jwt = |ttl| format!("--auth-token=jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl={ttl}");
    ["--auth-token-ttl=3".to_owned(), jwt("3s"), jwt("1h")]
}

#[test]
fn a_hold_outlives_its_token() {
    // https://github.com/kragniz/python-etcd3/issues/2301 and https://github.com/apibara/dna/pull/399: the release
    // of a long hold failed.
    for tokens in tokens() {
        let mut etcd = Etcd::start_with(&[&tokens]);
        with_job(&mut etcd, "readwrite");
        let hold = holder(&etcd, "token", &AS_JOB.map(ToOwned::to_owned));
        goes_on(&etcd, 6.0);
        // Whatever becomes of any role, all tokens are old.
        etcd.etcdctl(&["role", "add", "another"]);
        goes_on(&etcd, 2.0);
        etcd.etcdctl(&["user", "grant-role", "job", "another"]);
        goes_on(&etcd, 2.0);
        // Simple tokens are in a member's memory alone.
        etcd.restart();
        goes_on(&etcd, 2.0);
        hold.finish().stdout("held\n").success();
        etcd.assert_clean("token");
        etcd.assert_no_leases();
    }
}

#[test]
fn a_waiter_outlives_its_token() {
    for tokens in tokens() {
        let mut etcd = Etcd::start_with(&[&tokens]);
        with_job(&mut etcd, "readwrite");
        let hold = holder(&etcd, "token", &AS_JOB.map(ToOwned::to_owned));
        let waiter = Meshlock::run(&etcd, "token")
            .args(AS_JOB)
            .args(["-q", "--ttl=14"])
            .start();
        etcd.wait_for_queue("token", 2);
        goes_on(&etcd, 10.0);
        etcd.etcdctl(&["user", "grant-role", "root", "locks"]);
        etcd.restart();
        goes_on(&etcd, 4.0);
        hold.finish().stdout("held\n").success();
        waiter.finish().success();
        etcd.assert_clean("token");
    }
}

#[test]
fn rights_that_are_taken_away_during_a_hold_end_it() {
    // https://github.com/kubernetes/kubernetes/issues/23731: authentication refused is one of the ways.
    let cases: [(&[&str], &str); 3] = [
        (&["user", "revoke-role", "job", "locks"], "permission denied"),
        (
            &["role", "revoke-permission", "--prefix=true", "locks", "meshlock/"],
            "permission denied",
        ),
        (&["user", "delete", "job"], "wrong user or password"),
    ];
    for (taken, cause) in cases {
        let mut etcd = Etcd::start();
        with_job(&mut etcd, "readwrite");
        let report = directory().join("report");
        let mut holder = Meshlock::run(&etcd, "rights")
            .args(AS_JOB)
            .args(["--ttl", "5"])
            .args([OsString::from("--report"), report.clone().into()])
            .sh("echo held; exec sleep 1000")
            .start();
        holder.wait_for_stdout("held");
        etcd.etcdctl(taken);
        let said = holder.finish().stdout("held\n").any_stderr().status(79);
        let stopping = said.stderr.lines().find(|line| line.contains(": stopping the command"));
        assert!(
            stopping.is_some_and(|line| line.contains(cause)),
            "the cause is named: {}",
            said.stderr
        );
        let report: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&report).expect("a report")).expect("JSON");
        assert!(
            report["why"].as_str().is_some_and(|why| why.contains(cause)),
            "{report}"
        );
        assert!(!said.stderr.contains("secret"), "{}", said.stderr);
    }
}

#[test]
fn a_password_that_is_changed_during_a_hold_is_read_again() {
    let mut etcd = Etcd::start();
    with_job(&mut etcd, "readwrite");
    let file = secret("secret\n");
    let hold = holder(
        &etcd,
        "changed",
        &["--user=job".to_owned(), option("--password-file", &file)],
    );
    fs::write(&file, "another\n").expect("written");
    let mut changed = etcd.etcdctl_command();
    let mut changed = changed
        .args(["user", "passwd", "--interactive=false", "job"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("etcdctl");
    writeln!(changed.stdin.take().expect("a pipe"), "another").expect("typed");
    assert!(changed.wait().expect("its status").success());
    goes_on(&etcd, 3.0);
    hold.finish().stdout("held\n").success();
    etcd.assert_clean("changed");
}

#[test]
fn a_certificate_may_name_the_user() {
    let authority = Authority::new();
    let (server, ca) = (authority.issue("server"), authority.cert());
    let mut etcd = Etcd::start_tls(&ServerTls {
        cert: &server.cert,
        key: &server.key,
        clients: Some(&ca),
    });
    let shown = |name: &str| {
        let identity = authority.issue(name);
        [
            option("--cacert", &ca),
            option("--cert", &identity.cert),
            option("--key", &identity.key),
        ]
    };
    etcd.access(&shown("etcdctl"));
    with_job(&mut etcd, "readwrite");
    let job = shown("job");
    let hold = holder(&etcd, "named", &job);
    let waiter = Meshlock::run(&etcd, "named").args(&job).args(["-q"]).start();
    etcd.wait_for_queue("named", 2);
    // Whatever becomes of any role.
    etcd.etcdctl(&["role", "add", "another"]);
    goes_on(&etcd, 3.0);
    hold.finish().stdout("held\n").success();
    waiter.finish().success();
    etcd.assert_clean("named");
    refused(
        Meshlock::run(&etcd, "named").args(shown("stranger")),
        77,
        &[&etcd.address(), "permission denied"],
    );
}

#[test]
fn whoever_only_looks_needs_only_read() {
    let mut etcd = Etcd::start();
    with_job(&mut etcd, "readwrite");
    etcd.etcdctl(&["role", "add", "looks"]);
    etcd.etcdctl(&[
        "role",
        "grant-permission",
        "--prefix=true",
        "looks",
        "read",
        "meshlock/",
    ]);
    etcd.etcdctl(&["user", "add", "eve:reader"]);
    etcd.etcdctl(&["user", "grant-role", "eve", "looks"]);
    Meshlock::run(&etcd, "before").args(AS_JOB).finish().success();
    let verify = format!(
        "{} verify --user eve:reader",
        crate::harness::meshlock::binary().display()
    );
    let mut hold = Meshlock::run(&etcd, "looked-at")
        .args(AS_JOB)
        .stdin(Stdio::piped())
        .sh(&format!("{verify} && echo held; read -r _; exit 0"))
        .start();
    hold.wait_for_stdout("held");
    let before = etcd.revision();
    for (subcommand, arguments, part) in [
        ("status", &[][..], "looked-at"),
        ("status", &["looked-at"], "TTL of 30s"),
        ("status", &["--ttl-left"], "looked-at"),
        ("status", &["--json"], "looked-at"),
        ("history", &[], "before"),
    ] {
        let said = Meshlock::ask(&etcd, subcommand)
            .args(["--user", "eve:reader"])
            .args(arguments)
            .finish()
            .any_stdout()
            .success();
        assert!(
            said.stdout.contains(part),
            "{subcommand} {arguments:?}: {}",
            said.stdout
        );
    }
    refused(
        Meshlock::run(&etcd, "looked-at").args(["--user", "eve:reader"]),
        77,
        &["permission denied", "eve", "meshlock/", "meshlock doctor"],
    );
    assert_eq!(etcd.revision(), before);
    hold.finish().stdout("held\n").success();
}

fn fifo() -> PathBuf {
    let fifo = directory().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).expect("a FIFO");
    fifo
}

#[test]
fn a_password_may_come_through_a_fifo() {
    let mut etcd = Etcd::start();
    with_job(&mut etcd, "readwrite");
    let fifo = fifo();
    let writer = thread::spawn({
        let fifo = fifo.clone();
        // In two pieces, as a program may write it.
        move || {
            let mut writer = fs::OpenOptions::new().write(true).open(fifo).expect("a reader");
            writer.write_all(b"sec").expect("read");
            writer.flush().expect("read");
            writer.write_all(b"ret\n").expect("read");
        }
    });
    Meshlock::run(&etcd, "fifo")
        .args(["--user=job".to_owned(), option("--password-file", &fifo)])
        .finish()
        .success();
    writer.join().expect("written");
    // As a shell hands it over.
    let call = Meshlock::run(&etcd, "fifo").args(["--user=job"]).words();
    let mut words: Vec<String> = call.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words.insert(2, "--password-file <(echo secret)".to_owned());
    let shell = crate::harness::clean("bash").args(["-c", &words.join(" ")]).status();
    assert!(shell.expect("bash").success());
}

#[test]
fn a_password_is_not_read_again_for_a_missing_right_nor_ever_from_a_fifo() {
    let mut etcd = Etcd::start();
    with_job(&mut etcd, "readwrite");
    for (password, cause) in [("secret", "permission denied"), ("wrong", "wrong user or password")] {
        let call = Meshlock::run(&etcd, "fifo")
            .args(["--user=job", "--prefix=other/"])
            .words();
        let mut words: Vec<String> = call.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        words.insert(2, format!("--password-file <(echo {password})"));
        let shell = crate::harness::clean("bash")
            .args(["-c", &words.join(" ")])
            .output()
            .expect("bash");
        let said = String::from_utf8_lossy(&shell.stderr);
        assert_eq!(shell.status.code(), Some(77), "{said}");
        assert!(said.contains(cause) && said.lines().count() == 1, "{said}");
    }
    let file = secret("secret\n");
    let fifo_now = fifo();
    // It becomes one that nobody writes, as soon as it was read.
    let run = Meshlock::run(&etcd, "file").args(["--user=job".to_owned(), option("--password-file", &file)]);
    let mut hold = run.stdin(Stdio::piped()).sh("echo held; read -r _; exit 0").start();
    hold.wait_for_stdout("held");
    fs::rename(fifo_now, &file).expect("renamed");
    hold.finish().stdout("held\n").success();
}

#[test]
fn a_fifo_that_nobody_writes_is_told_in_time() {
    let fifo = fifo();
    let nobody = format!("127.0.0.1:{}", free_port());
    bounded(Meshlock::run_at(&nobody, "fifo").args(["--user=job".to_owned(), option("--password-file", &fifo)]))
        .stderr_line(["--password-file", &fifo.to_string_lossy(), "--dial-timeout"])
        .status(78);
    bounded(Meshlock::run_at(format!("https://{nobody}"), "fifo").args([option("--cacert", &fifo)]))
        .stderr_line(["--cacert", &fifo.to_string_lossy(), "--dial-timeout"])
        .status(78);
}

/// A call of the user `job` as one types it.
fn typed(etcd: &Etcd, command: &str) -> String {
    let words = Meshlock::run(etcd, "asked").args(["--user=job"]).sh(command).words();
    let quoted = |word: OsString| format!("'{}'", word.into_string().expect("text"));
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_password_is_asked_for_at_the_terminal_and_not_shown() {
    let mut etcd = Etcd::start();
    with_job(&mut etcd, "readwrite");
    for shell in ["bash", "dash"] {
        let mut terminal = Terminal::open(shell);
        terminal.run("stty echo");
        terminal.line(&typed(&etcd, "echo it runs"));
        terminal.expect("etcd password of \"job\": ");
        terminal.line("secret");
        let seen = terminal.expect("\nit runs");
        assert!(!seen.contains("secret"), "{seen}");
        terminal.expect_prompt();
        // The terminal shows again what is typed.
        terminal.line("echo a$((1 + 1))b");
        terminal.expect("echo a$((1 + 1))b");
        terminal.expect("a2b");

        terminal.line(&typed(&etcd, "echo it runs"));
        terminal.expect("etcd password of");
        terminal.keys(CTRL_C);
        let seen = terminal.expect_prompt();
        assert!(!seen.contains("it runs") && !seen.contains("meshlock:"), "{seen}");
        terminal.line("echo ended with $?; stty -a");
        terminal.expect("ended with 130");
        terminal.expect(" echo ");
        terminal.expect_prompt();

        terminal.line(&typed(&etcd, "echo it runs"));
        terminal.expect("etcd password of");
        terminal.keys(CTRL_D);
        terminal.expect("nothing was typed");
        terminal.expect_prompt();
        terminal.line("echo ended with $?");
        terminal.expect("ended with 78");
    }
}

#[test]
fn nobody_is_asked_where_nobody_can_answer() {
    let nobody = format!("127.0.0.1:{}", free_port());
    refused(
        Meshlock::run_at(nobody, "asked").args(["--user=job"]),
        78,
        &["job", "--password-file", "MESHLOCK_PASSWORD"],
    );
}

#[test]
fn what_has_the_password_leaves_no_core_dump_and_the_command_may() {
    let mut run = Meshlock::run(Etcd::shared(), unique("core"))
        .by(["prlimit", "--core=4096:8192"])
        .stdin(Stdio::piped())
        .sh("ulimit -c; echo held; read -r _; exit 0")
        .start();
    assert!(run.wait_for_stdout("held").starts_with("8\n"), "in blocks of 512 bytes");
    let limits = fs::read_to_string(format!("/proc/{}/limits", run.keeper())).expect("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    let core: Vec<_> = core.expect("a limit").split_whitespace().skip(4).collect();
    assert_eq!(core, ["0", "0", "bytes"]);
    run.finish().any_stdout().success();
}

/// What nobody may find anywhere but where it was put.
const CANARY: &str = "kanarienvogel-4711";

#[test]
fn a_password_is_nowhere_to_be_found() {
    let mut etcd = Etcd::start();
    with_job(&mut etcd, "readwrite");
    etcd.etcdctl(&["user", "add", &format!("bird:{CANARY}")]);
    etcd.etcdctl(&["user", "grant-role", "bird", "locks"]);
    let file = secret(CANARY);
    let run = || Meshlock::run(&etcd, "bird");
    let calls = [
        run().args(["--user=bird".to_owned(), option("--password-file", &file)]),
        run().args(["--user=bird"]).env("MESHLOCK_PASSWORD", CANARY),
        run().env("MESHLOCK_USER", format!("bird:{CANARY}")),
    ];
    for call in calls {
        let report = directory().join("report");
        let run = call
            .args(["-v", "--record-args", "--reason=canary"])
            .args([option("--report", &report)]);
        let mut run = run
            .stdin(Stdio::piped())
            .sh("env; echo held; read -r _; exit 3")
            .start();
        run.wait_for_stdout("held");
        let mut shown = String::new();
        for pid in run.processes() {
            let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            shown.push_str(&String::from_utf8_lossy(&read("cmdline")));
            // Ours have it where they were given it, and the command has not.
            if !["meshlock", "mlkeeper"].contains(&proc::name(pid).as_str()) {
                shown.push_str(&String::from_utf8_lossy(&read("environ")));
            }
        }
        assert!(
            shown.contains("--record-args") && shown.contains("MESHLOCK_HELD_NAME=bird"),
            "{shown}"
        );
        let held = etcd.etcdctl(&["get", "--prefix", ""]);
        let said = run.finish().any_stdout().any_stderr().status(3);
        let kept = etcd.etcdctl(&["get", "--prefix", ""]);
        let report = fs::read_to_string(report).expect("a report");
        for (what, text) in [
            ("processes", &shown),
            ("etcd, held", &held),
            ("etcd, kept", &kept),
            ("the command's environment", &said.stdout),
            ("stderr", &said.stderr),
            ("the report", &report),
        ] {
            assert!(!text.contains(CANARY), "{what}: {text}");
        }
        assert!(held.contains("bird") && report.contains("bird"));
    }
    // Nor where it is refused.
    let wrong = format!("{CANARY}-wrong");
    let call = |user: &str| {
        Meshlock::run(&etcd, unique("bird"))
            .args(["--user", user, "-v"])
            .finish()
    };
    let said = call(&format!("bird:{wrong}")).any_stderr().status(77);
    assert!(!said.stderr.contains(CANARY), "{}", said.stderr);
    let said = call(&format!(":{wrong}")).any_stderr().status(64);
    assert!(!said.stderr.contains(CANARY), "{}", said.stderr);
}
