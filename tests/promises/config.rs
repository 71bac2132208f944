//! Configuration files: what they say counts after flags and variables, and from a file that could be somebody else's
//! nothing is run. What goes before what, and what each setting means, are tables beside the code; here is what reaches
//! the binary.

use crate::harness::etcd::free_port;
use crate::harness::meshlock;
use crate::harness::{Etcd, Meshlock, directory, schema, unique};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A file that says where etcd is, and more.
fn file(etcd: &Etcd, more: &str) -> PathBuf {
    let path = directory().join("config.toml");
    fs::write(&path, format!("endpoints = [\"{}\"]\n{more}", etcd.address())).expect("a file");
    path
}

/// The same, as the user's own: the directory for users' configurations.
fn users(etcd: &Etcd, more: &str) -> PathBuf {
    let directory = directory();
    fs::create_dir(directory.join("meshlock")).expect("a directory");
    fs::rename(file(etcd, more), directory.join("meshlock/config.toml")).expect("moved");
    directory
}

/// `meshlock run`, which knows where etcd is by its files alone.
fn run(name: &str) -> Meshlock {
    Meshlock::run_at("", name)
        .without_endpoints()
        .env("MESHLOCK_CONFIG", "")
}

fn config() -> Meshlock {
    Meshlock::ask_at("", "config")
        .without_endpoints()
        .env("MESHLOCK_CONFIG", "")
}

/// Nothing is run, and one line says what is wrong with the file.
#[track_caller]
fn refused(path: impl AsRef<Path>, parts: &[&str]) {
    let ran = directory().join("ran");
    run("refused")
        .env("MESHLOCK_CONFIG", path.as_ref())
        .command(["touch".into(), ran.clone().into_os_string()])
        .finish()
        .stderr_line(parts)
        .status(78);
    assert!(!ran.exists());
}

fn read_json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn a_locks_own_table_says_what_its_call_leaves_unsaid() {
    let etcd = Etcd::shared();
    let name = unique("a/b");
    let report = directory().join("report");
    let more = format!(
        "owner = \"ops\"\nttl = 20\nreason = \"all\"\n[lock.\"{name}\"]\nreason = \"month end\"\nexpect = [0, 3]\n\
         max-runtime = \"1h\"\nreport = \"{}\"\n[lock.other]\nowner = \"nobody\"\n",
        report.display()
    );
    run(&name)
        .env("XDG_CONFIG_HOME", users(etcd, &more))
        .sh("exit 3")
        .finish()
        .status(3);
    let report = read_json(&meshlock::read(&report));
    assert_eq!(report["owner"], "ops");
    assert_eq!(report["reason"], "month end");
    assert_eq!((&report["expect"], &report["met"]), (&"0,3".into(), &true.into()));
    etcd.assert_clean(&name);
}

#[test]
fn waiting_and_stopping_are_as_the_file_says() {
    let etcd = Etcd::shared();
    let name = unique("stop");
    let more =
        format!("[lock.{name}]\nmax-runtime = \"2\"\nstop-signal = \"USR1\"\nno-wait = true\nconflict-exit-code = 9\n");
    let home = users(etcd, &more);
    let mut holder = run(&name)
        .env("XDG_CONFIG_HOME", &home)
        .args(["--max-runtime=1h"])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _")
        .start();
    holder.wait_for_stdout("held");
    run(&name)
        .env("XDG_CONFIG_HOME", &home)
        .finish()
        .stderr_line([name.as_str()])
        .status(9);
    holder.finish().any_stdout().status(1);
    run(&name)
        .env("XDG_CONFIG_HOME", &home)
        .sh("trap 'echo asked; exit 0' USR1; while :; do sleep 0.05; done")
        .finish()
        .stdout("asked\n")
        .any_stderr()
        .status(124);
}

#[test]
fn flags_and_variables_go_before_the_users_file_and_that_before_nothing() {
    let etcd = Etcd::shared();
    let nowhere = directory();
    let away = format!("127.0.0.1:{}", free_port());
    fs::create_dir(nowhere.join("meshlock")).expect("a directory");
    fs::write(nowhere.join("meshlock/config.toml"), format!("endpoints = \"{away}\"")).expect("a file");
    let here = |run: Meshlock| run.env("XDG_CONFIG_HOME", &nowhere).finish().success();
    here(run(&unique("layers")).args([format!("--endpoints={}", etcd.address())]));
    here(run(&unique("layers")).env("MESHLOCK_ENDPOINTS", etcd.address()));
    here(run(&unique("layers")).env("ETCDCTL_ENDPOINTS", etcd.address()));
    run("x")
        .env("XDG_CONFIG_HOME", &nowhere)
        .finish()
        .stderr_line([away.as_str()])
        .status(69);
    // Where HOME alone says whose.
    let home = directory();
    fs::rename(users(etcd, ""), home.join(".config")).expect("moved");
    run(&unique("layers")).env("HOME", &home).finish().success();
}

#[test]
fn a_named_file_is_read_in_the_place_of_all_others() {
    let etcd = Etcd::shared();
    let broken = directory();
    fs::create_dir(broken.join("meshlock")).expect("a directory");
    fs::write(broken.join("meshlock/config.toml"), "no TOML").expect("a file");
    let path = file(etcd, "");
    let run = || run(&unique("named")).env("XDG_CONFIG_HOME", &broken);
    run().env("MESHLOCK_CONFIG", &path).finish().success();
    run()
        .env("MESHLOCK_CONFIG", "/none")
        .args(["--config".into(), path.clone().into_os_string()])
        .finish()
        .success();
    // A relative name is of the working directory.
    run()
        .env("MESHLOCK_CONFIG", "config.toml")
        .current_dir(path.parent().expect("a directory"))
        .finish()
        .success();
    run()
        .env("MESHLOCK_CONFIG", "/dev/null")
        .env("MESHLOCK_ENDPOINTS", etcd.address())
        .finish()
        .success();
    run().finish().stderr_line(["config.toml:1: "]).status(78);
}

/// In a mount namespace of their own, where /etc has nothing but what this test puts there.
#[test]
fn the_machines_file_is_read_after_the_users() {
    let etcd = Etcd::shared();
    let machines = file(etcd, "owner = \"machine\"\nroute = \"machine\"\n");
    let report = directory().join("report");
    let script = format!(
        "mount -t tmpfs none /etc && mkdir /etc/meshlock && cat {} >/etc/meshlock/config.toml && exec \"$@\"",
        machines.display()
    );
    let namespace = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        &script,
        "sh",
    ]
    .map(OsString::from);
    let probe = meshlock::plain(&[&namespace[..], &["true".into()]].concat()).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        // Without user namespaces the machine's own file is the only one.
        return;
    }
    run(&unique("machine"))
        .by(&namespace)
        .env("XDG_CONFIG_HOME", users(etcd, "owner = \"user\"\n"))
        .args([format!("--report={}", report.display())])
        .finish()
        .success();
    let report = read_json(&meshlock::read(&report));
    assert_eq!(
        (&report["owner"], &report["route"]),
        (&"user".into(), &"machine".into())
    );
    // With neither a home nor a variable, as under some schedulers.
    let mut words = [&namespace[..], &["env".into(), "-i".into()]].concat();
    words.extend(run(&unique("machine")).command(["echo", "ran"]).words());
    let output = meshlock::plain(&words).output().expect("unshare");
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"ran\n"[..], &b""[..])
    );
}

#[test]
fn a_lock_that_lies_elsewhere_is_found_by_those_who_ask() {
    let etcd = Etcd::shared();
    let name = unique("shared");
    let path = file(
        etcd,
        &format!("prefix = \"mine\"\n[lock.{name}]\nlock-key = \"jobs/{name}\"\n"),
    );
    let mut holder = run(&name)
        .env("MESHLOCK_CONFIG", &path)
        .stdin(Stdio::piped())
        .sh("echo held $MESHLOCK_HELD_KEY; read -r _; exit 4")
        .start();
    let key = holder.wait_for_stdout("held");
    assert!(key.contains(&format!("jobs/{name}/")), "{key}");
    let ask = |subcommand| {
        Meshlock::ask_at("", subcommand)
            .without_endpoints()
            .env("MESHLOCK_CONFIG", &path)
    };
    let status = ask("status").args(["--json", &name]).finish().any_stdout().success();
    assert_eq!(
        read_json(&status.stdout)["locks"][0]["state"],
        "held",
        "{}",
        status.stdout
    );
    holder.finish().any_stdout().status(4);
    let history = ask("history").args(["--json", &name]).finish().any_stdout().success();
    assert_eq!(read_json(&history.stdout)["runs"][0]["status"], 4, "{}", history.stdout);
    let doctor = ask("doctor").args(["--json"]).finish().any_stdout().any_code([0, 1]);
    let prefixes = &read_json(&doctor.stdout)["prefixes"];
    assert_eq!(*prefixes, serde_json::json!(["mine/", format!("jobs/{name}/")]));
}

/// Whatever has become of the file, or of who asks, by then.
#[test]
fn verify_inside_asks_where_the_hold_is_and_needs_no_file() {
    let etcd = Etcd::shared();
    let path = file(etcd, "dial-timeout = \"9s\"\n");
    let script = format!(
        "echo 'no TOML' >{0}; {1} verify && MESHLOCK_CONFIG=/none {1} verify && echo \"$MESHLOCK_HELD_ALL\"",
        path.display(),
        meshlock::binary().display()
    );
    let said = run(&unique("verify"))
        .args(["--config".into(), path.into_os_string()])
        .sh(&script)
        .finish()
        .any_stdout()
        .success();
    assert_eq!(read_json(&said.stdout)[0]["dial_timeout_ms"], 9000, "{}", said.stdout);
}

#[test]
fn a_meshlock_inside_goes_by_the_same_variable() {
    let etcd = Etcd::shared();
    let (outer, inner) = (unique("outer"), unique("inner"));
    let path = file(etcd, &format!("[lock.{inner}]\nowner = \"inside\"\n"));
    let script = format!(
        "{0} run {inner} -- {0} status --json {inner}",
        meshlock::binary().display()
    );
    let said = run(&outer)
        .env("MESHLOCK_CONFIG", &path)
        .sh(&script)
        .finish()
        .any_stdout()
        .success();
    let status = read_json(&said.stdout);
    assert_eq!(
        status["locks"][0]["holder"]["who"]["owner"], "inside",
        "{}",
        said.stdout
    );
}

#[test]
fn a_file_that_others_could_have_written_is_refused() {
    let etcd = Etcd::shared();
    for (mode, right) in [
        (0o600, true),
        (0o644, true),
        (0o664, false),
        (0o646, false),
        (0o622, false),
    ] {
        let path = file(etcd, "");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("a mode");
        if right {
            run(&unique("mode")).env("MESHLOCK_CONFIG", &path).finish().success();
        } else {
            refused(&path, &[path.to_str().expect("UTF-8"), "chmod go-w"]);
        }
    }
    // What a link leads to is what counts.
    let (link, path) = (directory().join("link"), file(etcd, ""));
    symlink(&path, &link).expect("a link");
    run(&unique("link")).env("MESHLOCK_CONFIG", &link).finish().success();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("a mode");
    refused(&link, &["chmod go-w"]);
    if nix::unistd::geteuid().is_root() {
        let path = file(etcd, "");
        chown(&path, Some(65534), None).expect("another's");
        refused(&path, &["belongs to", "chown"]);
    }
}

#[test]
fn what_is_no_file_or_no_text_is_refused_at_once() {
    let place = directory();
    let fifo = place.join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).expect("a FIFO");
    refused(&fifo, &["no regular file"]);
    refused("/dev/zero", &["no regular file"]);
    refused(&place, &["directory"]);
    refused(place.join("none"), &["MESHLOCK_CONFIG", "No such file"]);
    refused(place.join("none/config.toml"), &["No such file"]);
    for (text, parts) in [
        (&b"# one\n\xff"[..], &["text:2: ", "not UTF-8"][..]),
        (b"ttl = 9\nowner = \"a\0b\"", &["text:2: "]),
        (b"t\0t\0l\0", &["text:1: "]),
        (b"ttl = 9\n[lock.a]\nowner = x", &["text:3: "]),
        (
            b"owner = 'x'\ngrase = 2\n",
            &["text:2: ", "\"grase\"", "is grace meant?"],
        ),
        (&vec![b'#'; (1 << 20) + 1], &["larger than 1 MiB"]),
    ] {
        let path = place.join("text");
        fs::write(&path, text).expect("a file");
        refused(&path, parts);
    }
    fs::write(place.join("text"), vec![b'#'; 1 << 20]).expect("a file");
    config()
        .env("MESHLOCK_CONFIG", place.join("text"))
        .finish()
        .any_stdout()
        .success();
}

/// As somebody who may not read it: root may read everything.
fn as_nobody(call: Meshlock) -> Meshlock {
    if nix::unistd::geteuid().is_root() {
        call.by(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
    } else {
        call
    }
}

#[test]
fn a_link_that_leads_nowhere_is_no_missing_file() {
    // As where the file system that it leads to is not mounted: the lock would be taken elsewhere.
    let nowhere = directory().join("not-mounted");
    for path in ["meshlock", "meshlock/config.toml"] {
        let home = directory();
        let link = home.join(path);
        fs::create_dir_all(link.parent().expect("a directory")).expect("directories");
        symlink(&nowhere, &link).expect("a link");
        config()
            .env("XDG_CONFIG_HOME", &home)
            .finish()
            .stderr_line(["config.toml", "it is a link that leads nowhere"])
            .status(78);
    }
}

#[test]
fn a_file_that_is_there_and_cannot_be_read_is_refused_and_anothers_home_is_none() {
    if as_nobody(config()).start().code() != Some(0) {
        // Where nobody may run what was built here, nothing can be shown.
        return;
    }
    let home = users(Etcd::shared(), "");
    for place in [home.as_path(), home.parent().expect("the ground")] {
        fs::set_permissions(place, Permissions::from_mode(0o755)).expect("a mode");
    }
    let path = home.join("meshlock/config.toml");
    fs::set_permissions(&path, Permissions::from_mode(0o000)).expect("a mode");
    as_nobody(config().env("XDG_CONFIG_HOME", &home))
        .finish()
        .stderr_line([path.to_str().expect("UTF-8"), "cannot be read: Permission denied"])
        .status(78);
    fs::set_permissions(home.join("meshlock"), Permissions::from_mode(0o000)).expect("a mode");
    as_nobody(config().env("XDG_CONFIG_HOME", &home))
        .finish()
        .any_stdout()
        .success();
    as_nobody(config().env("MESHLOCK_CONFIG", &path))
        .finish()
        .stderr_line(["cannot be read: Permission denied"])
        .status(78);
    fs::set_permissions(home.join("meshlock"), Permissions::from_mode(0o755)).expect("a mode");
}

#[test]
fn verbose_says_where_what_was_not_typed_is_from() {
    let etcd = Etcd::shared();
    let name = unique("verbose");
    let path = file(etcd, &format!("ttl = 20\n[lock.{name}]\nttl = 25\n"));
    let said = run(&name)
        .env("MESHLOCK_CONFIG", &path)
        .env("MESHLOCK_OWNER", "ann")
        .args(["-v", "--reason=typed"])
        .finish()
        .any_stderr()
        .success();
    for line in [
        format!("meshlock: ttl is \"25\", from {}:4", path.display()),
        format!(
            "meshlock: endpoints is \"{}\", from {}:1",
            etcd.address(),
            path.display()
        ),
        "meshlock: owner is \"ann\", from MESHLOCK_OWNER".to_owned(),
    ] {
        assert!(said.stderr.lines().any(|said| said == line), "{line}\n{}", said.stderr);
    }
    assert!(!said.stderr.contains("typed"), "{}", said.stderr);
}

#[test]
fn the_password_of_a_file_reaches_etcd_and_nobody_else() {
    let mut etcd = Etcd::start();
    etcd.etcdctl(&["user", "add", "job:hunter2"]);
    etcd.etcdctl(&["user", "grant-role", "job", "root"]);
    etcd.enable_auth();
    let path = file(&etcd, "user = \"job\"\npassword-file = \"password\"\n");
    fs::write(path.with_file_name("password"), "hunter2\n").expect("a file");
    let verify = format!("env; echo held; read -r _; {} verify", meshlock::binary().display());
    let mut holder = run("auth")
        .env("MESHLOCK_CONFIG", &path)
        .args(["-v"])
        .stdin(Stdio::piped())
        .sh(&verify)
        .start();
    let mut given = holder.wait_for_stdout("held\n");
    for pid in [holder.pid(), holder.keeper()] {
        for of in ["cmdline", "environ"] {
            given += &meshlock::read(Path::new(&format!("/proc/{pid}/{of}")));
        }
    }
    assert!(
        given.contains("MESHLOCK_CONFIG") && !given.contains("hunter2"),
        "{given:?}"
    );
    let said = holder.finish().any_stdout().any_stderr().success();
    assert!(!said.stderr.contains("hunter2"), "{}", said.stderr);
}

#[test]
fn config_shows_what_applies_and_where_it_is_from_without_etcd() {
    let path = directory().join("config.toml");
    fs::write(
        &path,
        "endpoints = \"127.0.0.1:1\"\nttl = 20\n[lock.\"a b\"]\nttl = \"40s\"\nno-wait = true\n",
    )
    .expect("a file");
    let config = || config().env("MESHLOCK_CONFIG", &path).env("MESHLOCK_OWNER", "ann  b");
    let shown = |call: Meshlock| {
        let said = call.finish().any_stdout().success();
        let rows = said.stdout.lines().map(|line| {
            let cells: Vec<_> = line
                .split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect();
            cells.join("|")
        });
        rows.collect::<Vec<_>>()
    };
    let from = |line| format!("{}:{line}", path.display());
    let all = shown(config());
    for line in [
        "SETTING|VALUE|FROM".to_owned(),
        format!("ttl|20|{}", from(2)),
        "grace|a sixth of the TTL, at most 5s|default".to_owned(),
        "reason|-|default".to_owned(),
        "no-wait|false|default".to_owned(),
        "owner|ann \\u{20}b|MESHLOCK_OWNER".to_owned(),
        format!("lock.\"a b\".ttl|40s|{}", from(4)),
        format!("lock.\"a b\".no-wait|true|{}", from(5)),
    ] {
        assert!(all.contains(&line), "{line}\n{all:#?}");
    }
    let one = shown(config().args(["a b"]));
    for line in [
        format!("ttl|40s|{}", from(4)),
        format!("endpoints|127.0.0.1:1|{}", from(1)),
    ] {
        assert!(one.contains(&line), "{line}\n{one:#?}");
    }
    assert!(!one.iter().any(|line| line.starts_with("lock.")), "{one:#?}");
    let by_dns = shown(
        config()
            .env("MESHLOCK_CONFIG", "")
            .env("MESHLOCK_DISCOVERY_SRV", "example.org"),
    );
    for line in [
        "discovery-srv|example.org|MESHLOCK_DISCOVERY_SRV",
        "endpoints|-|default",
    ] {
        assert!(by_dns.iter().any(|shown| shown == line), "{line}\n{by_dns:#?}");
    }
}

#[test]
fn config_tells_programs_the_same_and_nobody_a_password() {
    let path = directory().join("config.toml");
    fs::write(&path, "[lock.a]\nttl = 40\n").expect("a file");
    let said = config()
        .env("MESHLOCK_CONFIG", &path)
        .env("MESHLOCK_USER", "me:hunter2")
        .env("MESHLOCK_PASSWORD", "hunter3")
        .args(["--json"])
        .finish()
        .any_stdout()
        .success();
    assert!(!said.stdout.contains("hunter"), "{}", said.stdout);
    let shown = read_json(&said.stdout);
    schema::assert_valid("config.schema.json", &shown);
    assert_eq!(shown["files"], serde_json::json!([path]));
    let setting = |key: &str, lock: Option<&str>| {
        let all = shown["settings"].as_array().expect("a list");
        let found = all
            .iter()
            .find(|setting| setting["key"] == key && setting["lock"].as_str() == lock);
        let found = found.unwrap_or_else(|| panic!("{key}"));
        (found["value"].clone(), found["source"].clone())
    };
    assert_eq!(setting("user", None), ("me:********".into(), "MESHLOCK_USER".into()));
    assert_eq!(
        setting("password", None),
        ("********".into(), "MESHLOCK_PASSWORD".into())
    );
    assert_eq!(setting("ttl", None), ("30s".into(), serde_json::Value::Null));
    assert_eq!(
        setting("owner", None),
        (serde_json::Value::Null, serde_json::Value::Null)
    );
    let source = format!("{}:2", path.display());
    assert_eq!(setting("ttl", Some("a")), ("40".into(), source.into()));
}

#[test]
fn config_checks_each_lock_and_shows_what_there_is_all_the_same() {
    let path = directory().join("config.toml");
    fs::write(&path, "ttl = 20\n[lock.a]\nttl = 30\n[lock.b]\nttl = \"1s\"\n").expect("a file");
    let checked = |words: &[&str]| config().env("MESHLOCK_CONFIG", &path).args(words).finish().any_stdout();
    let said = checked(&[]).stderr_line(["config.toml:5: ttl"]).status(78);
    assert!(said.stdout.contains("lock.b.ttl"), "{}", said.stdout);
    checked(&["a"]).success();
    config()
        .env("MESHLOCK_CONFIG", "/dev/null")
        .env("MESHLOCK_TLT", "9")
        .finish()
        .any_stdout()
        .stderr_line(["MESHLOCK_TLT", "is MESHLOCK_TTL meant?"])
        .success();
    checked(&["b"]).stderr_line(["config.toml:5: ttl"]).status(78);
    checked(&["a,b"]).stderr_line(["cannot be a lock's name"]).status(64);
}

#[test]
fn a_text_without_quotes_is_told_as_such() {
    let path = directory().join("config.toml");
    for text in [
        "owner = team\n",
        "owner = format\n",
        "quiet = yes\n",
        "owner = nina\n",
        "owner = inga\n",
        "ttl = 30s\n",
        "wait = 5m\n",
        "expect = [zero]\n",
        "[lock.a]\nowner = 'x'\nreason = month end\n",
    ] {
        fs::write(&path, text).expect("a file");
        refused(
            &path,
            &[&format!("config.toml:{}", text.lines().count()), "put a text in quotes"],
        );
    }
}
