//! `meshlock doctor` finds what is wrong with etcd, with our rights in it and with the settings, says in a line each
//! what to do, and writes nothing: shown against servers that are hurt in the way that it has to find.

use crate::harness::etcd::{ServerTls, free_port};
use crate::harness::tls::Authority;
use crate::harness::{Cluster, Etcd, Finished, Meshlock, clean, eventually, option, schema, secret, so};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

/// Of one call, as text: the exit status and what it said.
#[track_caller]
fn doctor(endpoints: &str, options: &[&str]) -> (i32, String) {
    let finished = call(endpoints, options).any_stdout().any_stderr();
    let code = finished.code().expect("an exit status");
    (code, finished.status(code).stdout)
}

#[track_caller]
fn call(endpoints: &str, options: &[&str]) -> Finished {
    Meshlock::ask_at(endpoints, "doctor").args(options).finish()
}

/// The diagnosis as programs get it.
#[track_caller]
fn diagnosis(endpoints: &str, options: &[&str]) -> (i32, Value) {
    let (code, said) = doctor(endpoints, &[&["--json"], options].concat());
    assert!(said.ends_with('\n'), "{said}");
    let json = serde_json::from_str(&said).expect("JSON");
    schema::assert_valid("doctor.schema.json", &json);
    (code, json)
}

/// The one finding with this code, whose line people get too.
#[track_caller]
fn finding<'a>(diagnosis: &'a Value, code: &str) -> &'a Value {
    let findings = diagnosis["findings"].as_array().expect("findings");
    let mut of_the_code = findings.iter().filter(|finding| finding["code"] == code);
    let one = of_the_code.next().unwrap_or_else(|| panic!("no {code}: {diagnosis:#}"));
    assert!(of_the_code.next().is_none(), "more than one {code}: {diagnosis:#}");
    one
}

/// The line that concerns the endpoint and has the part.
#[track_caller]
fn line(said: &str, level: &str, about: &str, part: &str) {
    let found = said
        .lines()
        .any(|line| line.starts_with(level) && line.contains(about) && line.contains(part));
    assert!(found, "no {level} line on {about} with {part:?}:\n{said}");
}

/// A user `job` with a role `locks` that has no right yet.
fn poor_user(etcd: &mut Etcd) {
    etcd.etcdctl(&["role", "add", "locks"]);
    etcd.etcdctl(&["user", "add", "job:secret"]);
    etcd.etcdctl(&["user", "grant-role", "job", "locks"]);
    etcd.enable_auth();
}

#[test]
fn a_server_that_is_well_is_green_and_is_left_as_it_was() {
    let etcd = Etcd::start();
    let revision = etcd.revision();
    let (code, said) = doctor(&etcd.endpoint(), &[]);
    assert_eq!(code, 0, "{said}");
    line(&said, "green", &etcd.endpoint(), "leader");
    line(&said, "green", "this machine", "clock");
    assert!(!said.contains("red"), "{said}");
    assert_eq!(etcd.revision(), revision, "nothing was written");
    assert_eq!(etcd.keys(""), Vec::<String>::new());
}

#[test]
fn quiet_leaves_out_what_is_well() {
    let (code, said) = doctor(&Etcd::shared().endpoint(), &["-q"]);
    assert_eq!(code, 0);
    assert!(said.lines().all(|line| line.starts_with("yellow")), "{said}");
}

#[test]
fn programs_get_the_facts_in_json() {
    let etcd = Etcd::shared();
    let (code, diagnosis) = diagnosis(&etcd.endpoint(), &["--prefix=elsewhere"]);
    assert_eq!(code, 0);
    assert_eq!(diagnosis["format"], 1);
    assert_eq!(diagnosis["prefixes"], serde_json::json!(["elsewhere/"]));
    let one = &diagnosis["endpoints"][0];
    let status = etcd.json(&["endpoint", "status"]);
    let of = |path: &str| status.pointer(&format!("/0/Status/{path}")).expect(path).clone();
    let id = |path: &str| Value::from(format!("{:x}", of(path).as_u64().expect(path)));
    assert_eq!(one["endpoint"], Value::from(etcd.endpoint()));
    assert_eq!(one["version"], of("version"));
    assert_eq!(one["cluster"], id("header/cluster_id"));
    assert_eq!(one["member"], id("header/member_id"));
    assert_eq!(one["leader"], id("leader"));
    assert_eq!(one["members"][0]["member"], id("header/member_id"));
    for (field, value) in [
        ("answered", true),
        ("tls", false),
        ("may_read", true),
        ("may_write", true),
    ] {
        assert_eq!(one[field], value, "{field}");
    }
    assert!(one["latency_ms"].as_f64().is_some_and(|latency| latency > 0.0), "{one}");
    assert_eq!(finding(&diagnosis, "answers")["level"], "green");
    assert_eq!(finding(&diagnosis, "open")["level"], "green", "on this machine alone");
}

#[test]
fn what_is_known_of_the_version_is_told_with_its_reference() {
    let etcd = Etcd::shared();
    let (_, diagnosis) = diagnosis(&etcd.endpoint(), &[]);
    let version = diagnosis["endpoints"][0]["version"].as_str().expect("a version");
    let about = format!("etcd {version}");
    let of_the_version = |finding: &&Value| finding["about"].as_str() == Some(&about);
    let findings = diagnosis["findings"].as_array().expect("findings");
    let known: Vec<&Value> = findings.iter().filter(of_the_version).collect();
    for finding in &known {
        let text = |field: &str| finding[field].as_str().unwrap_or_default();
        assert!(text("advice").starts_with("upgrade to "), "{finding}");
        assert!(text("reference").starts_with("https://"), "{finding}");
    }
    // The numbers themselves are a table's affair; these two are the ends of it.
    if version == "3.4.23" {
        assert!(
            known
                .iter()
                .any(|finding| finding["code"] == "etcd-deposed-leader-renews")
        );
    }
    if version == "3.5.30" {
        assert_eq!(known, Vec::<&Value>::new());
    }
}

#[test]
fn what_is_wrong_comes_first_and_what_is_known_of_a_version_in_one_line() {
    let etcd = Etcd::shared();
    let dead = "http://127.0.0.1:1";
    let both = format!("{},{dead}", etcd.endpoint());
    let (code, said) = doctor(&both, &[]);
    assert_eq!(code, 0, "{said}");
    let levels: Vec<&str> = said.lines().filter_map(|line| line.split(' ').next()).collect();
    let worst_first = |level: &&str| ["red", "yellow", "green"].iter().position(|known| known == level);
    assert!(levels.iter().map(worst_first).is_sorted(), "{said}");
    assert!(said.lines().next().is_some_and(|line| line.contains(dead)), "{said}");
    let (_, diagnosis) = diagnosis(&both, &[]);
    let findings = diagnosis["findings"].as_array().expect("findings");
    let known = findings.iter().filter(|finding| {
        let code = finding["code"].as_str().unwrap_or_default();
        code.starts_with("etcd-") && finding["level"] == "yellow"
    });
    let known = known.count();
    let lines = |said: &str| said.lines().filter(|line| line.starts_with("yellow  etcd ")).count();
    assert_eq!(lines(&said), known.min(1), "{said}");
    assert_eq!(lines(&doctor(&both, &["-v"]).1), known);
    if known > 1 {
        line(
            &said,
            "yellow",
            "etcd ",
            &format!(": {known} defects are known that concern locks; upgrade to "),
        );
    }
}

#[test]
fn the_line_for_missing_rights_mends_them() {
    let mut etcd = Etcd::start();
    poor_user(&mut etcd);
    let options = ["--user=job:secret", "--prefix=team locks/"];
    let (code, diagnosis) = diagnosis(&etcd.endpoint(), &options);
    assert_eq!(code, 1);
    let rights = finding(&diagnosis, "rights");
    assert_eq!(rights["level"], "red");
    assert_eq!(diagnosis["endpoints"][0]["may_write"], false);
    let advice = rights["advice"].as_str().expect("advice");
    let command = advice.strip_prefix("as root: ").expect("a command");
    // Word by word as it is printed, by a shell.
    let run = |command: &str| {
        let mut shell = clean("sh");
        shell.args(["-c", command]).env("ETCDCTL_API", "3");
        shell
            .env("ETCDCTL_ENDPOINTS", etcd.endpoint())
            .env("ETCDCTL_USER", "root:root");
        assert!(shell.output().expect("sh").status.success(), "{command}");
    };
    run(command);
    let (code, said) = doctor(&etcd.endpoint(), &options);
    assert_eq!(code, 0, "{said}");
    line(&said, "green", "\"job\"", "read and to write below team locks/");
    Meshlock::run(&etcd, "rights").args(options).finish().success();
}

#[test]
fn the_line_for_a_user_without_a_role_mends_that_too() {
    let mut etcd = Etcd::start();
    etcd.etcdctl(&["user", "add", "bare:secret"]);
    etcd.enable_auth();
    let options = ["--user=bare:secret"];
    let (_, diagnosis) = diagnosis(&etcd.endpoint(), &options);
    let advice = finding(&diagnosis, "rights")["advice"].as_str().expect("advice");
    for command in advice.strip_prefix("as root: ").expect("commands").split(" && ") {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        etcd.etcdctl(&words);
    }
    let (code, said) = doctor(&etcd.endpoint(), &options);
    assert_eq!(code, 0, "{said}");
    Meshlock::run(&etcd, "rights").args(options).finish().success();
}

#[test]
fn a_right_to_read_alone_is_not_enough() {
    let mut etcd = Etcd::start();
    poor_user(&mut etcd);
    etcd.etcdctl(&[
        "role",
        "grant-permission",
        "--prefix=true",
        "locks",
        "read",
        "meshlock/",
    ]);
    let (code, said) = doctor(&etcd.endpoint(), &["--user=job:secret"]);
    assert_eq!(code, 1);
    line(&said, "red", "\"job\"", "no right to write");
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn a_shared_key_needs_rights_of_its_own() {
    let mut etcd = Etcd::start();
    poor_user(&mut etcd);
    etcd.etcdctl(&[
        "role",
        "grant-permission",
        "--prefix=true",
        "locks",
        "readwrite",
        "meshlock/",
    ]);
    let (code, said) = doctor(&etcd.endpoint(), &["--user=job:secret"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = doctor(&etcd.endpoint(), &["--user=job:secret", "--lock-key=jobs/deploy"]);
    assert_eq!(code, 1);
    line(&said, "red", "\"job\"", "locks readwrite jobs/deploy/");
    line(&said, "red", "\"job\"", "below jobs/deploy/;");
    line(&said, "green", "\"job\"", "below meshlock/");
    assert!(!said.contains("readwrite meshlock/"), "it is there: {said}");
}

/// An etcd that takes the names in certificates for users, and what shows one of a name.
fn certified() -> (Etcd, impl Fn(&str) -> [String; 3]) {
    let authority = Authority::new();
    let (server, ca) = (authority.issue("server"), authority.cert());
    let mut etcd = Etcd::start_tls(&ServerTls {
        cert: &server.cert,
        key: &server.key,
        clients: Some(&ca),
    });
    let shown = move |name: &str| {
        let identity = authority.issue(name);
        [
            option("--cacert", &ca),
            option("--cert", &identity.cert),
            option("--key", &identity.key),
        ]
    };
    etcd.access(&shown("etcdctl"));
    etcd.enable_auth();
    (etcd, shown)
}

/// That what is printed for a user by certificate mends it: one whom etcd knows, or does not.
#[track_caller]
fn mended(known: bool, code: &str) {
    let (etcd, shown) = certified();
    if known {
        etcd.etcdctl(&["user", "add", "job", "--no-password"]);
    }
    let job = shown("job");
    let options: Vec<&str> = job.iter().map(String::as_str).collect();
    let (status, diagnosis) = diagnosis(&etcd.endpoint(), &options);
    assert_eq!(status, 1, "it answered: {diagnosis:#}");
    assert_eq!(diagnosis["user"], "job");
    let found = finding(&diagnosis, code);
    assert_eq!(found["level"], "red");
    assert_eq!(found["about"], "the user \"job\"");
    let advice = found["advice"].as_str().expect("advice");
    for command in advice.strip_prefix("as root: ").expect("commands").split(" && ") {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        etcd.etcdctl(&words);
    }
    let (status, said) = doctor(&etcd.endpoint(), &options);
    assert_eq!(status, 0, "{said}");
    line(&said, "green", "\"job\"", "read and to write below meshlock/");
    Meshlock::run(&etcd, "rights").args(&job).finish().success();
}

#[test]
fn the_line_for_a_user_by_certificate_without_a_role_mends_that() {
    mended(true, "rights");
}

#[test]
fn a_certificate_whose_user_etcd_does_not_know_is_told_with_the_name_and_mended() {
    mended(false, "user-unknown");
}

#[test]
fn who_is_not_let_in_is_told_why() {
    let mut etcd = Etcd::start();
    etcd.enable_auth();
    for (options, part) in [
        (&[][..], "etcd wants a user: give --user"),
        (&["--user=root:wrong"], "wrong user or password"),
    ] {
        let (code, said) = doctor(&etcd.endpoint(), options);
        assert_eq!(code, 1, "{said}");
        line(&said, "red", "", part);
        assert!(!said.contains("root:wrong"), "{said}");
    }
    let (code, said) = doctor(&Etcd::shared().endpoint(), &["--user=root:root"]);
    assert_eq!(code, 1);
    line(
        &said,
        "red",
        &Etcd::shared().endpoint(),
        "authentication is not enabled",
    );
}

#[test]
fn an_etcd_out_of_space_is_red() {
    let etcd = Etcd::start_with(&["--quota-backend-bytes=100000"]);
    let filler = "x".repeat(40_000);
    eventually("etcd is full", || {
        so(!etcd
            .etcdctl_command()
            .args(["put", "filler", &filler])
            .output()
            .expect("etcdctl")
            .status
            .success())
    });
    let (code, diagnosis) = diagnosis(&etcd.endpoint(), &[]);
    assert_eq!(code, 1);
    assert_eq!(diagnosis["endpoints"][0]["alarms"], serde_json::json!(["NOSPACE"]));
    let full = finding(&diagnosis, "no-space");
    assert_eq!(full["level"], "red");
    assert!(
        full["advice"]
            .as_str()
            .is_some_and(|advice| advice.contains("alarm disarm")),
        "{full}"
    );
}

#[test]
fn one_dead_and_one_hung_member_are_yellow_while_a_majority_answers() {
    let mut cluster = Cluster::start();
    cluster.members[0].kill();
    let said = eventually("the others have a leader", || {
        let (code, said) = doctor(&cluster.endpoints(), &["--dial-timeout=5"]);
        (code == 0).then_some(said)
    });
    line(&said, "yellow", &cluster.members[0].endpoint(), "refused");
    line(&said, "green", &cluster.members[1].endpoint(), "a read in");
    // Not a member of the cluster: it takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let hung = silent.local_addr().expect("an address").to_string();
    let endpoints = format!("{},{hung}", cluster.endpoints());
    let (code, said) = doctor(&endpoints, &["--dial-timeout=4"]);
    assert_eq!(code, 0, "{said}");
    line(&said, "yellow", &hung, "no answer within 4 s");
}

#[test]
fn a_lost_majority_is_red() {
    let mut cluster = Cluster::start();
    cluster.members[0].kill();
    cluster.members[1].kill();
    let last = cluster.members[2].endpoint();
    eventually("it knows no leader any more", || {
        let (code, said) = doctor(&cluster.endpoints(), &["--dial-timeout=2"]);
        line(&said, "red", &cluster.members[0].endpoint(), "refused");
        // In the midst of an election on a busy machine the last one may be silent, too.
        if code == 69 {
            return None;
        }
        assert_eq!(code, 1, "{said}");
        so(said
            .lines()
            .any(|line| line.starts_with("red") && line.contains(&last) && line.contains("knows no leader")))
    });
}

#[test]
fn a_member_that_is_not_listed_is_told() {
    let cluster = Cluster::start();
    let two = [0, 1].map(|member: usize| cluster.members[member].endpoint()).join(",");
    let (code, diagnosis) = diagnosis(&two, &[]);
    assert_eq!(code, 0);
    let missing = finding(&diagnosis, "not-listed");
    assert_eq!(missing["level"], "yellow");
    let what = missing["what"].as_str().expect("text");
    assert!(what.contains(&cluster.members[2].endpoint()), "{what}");
    assert_eq!(diagnosis["endpoints"][0]["members"].as_array().map(Vec::len), Some(3));
}

#[test]
fn endpoints_of_two_clusters_are_red() {
    let (one, other) = (Etcd::start(), Etcd::shared());
    let (code, said) = doctor(&format!("{},{}", one.endpoint(), other.endpoint()), &[]);
    assert_eq!(code, 1);
    line(&said, "red", &one.endpoint(), &other.endpoint());
    line(&said, "red", "2 clusters", "a lock in one is none in another");
}

#[test]
fn mistakes_with_tls_are_told_endpoint_by_endpoint() {
    let authority = Authority::new();
    let (server, client) = (authority.issue("server"), authority.issue("client"));
    let ca = authority.cert();
    let etcd = Etcd::start_tls(&ServerTls {
        cert: &server.cert,
        key: &server.key,
        clients: Some(&ca),
    });
    let cacert = format!("--cacert={}", ca.display());
    let files = [
        cacert.clone(),
        format!("--cert={}", client.cert.display()),
        format!("--key={}", client.key.display()),
    ];
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let plain = format!("https://{}", Etcd::shared().address());
    let (code, said) = doctor(&format!("{},{plain}", etcd.endpoint()), &files);
    assert_eq!(code, 1);
    line(&said, "green", &etcd.endpoint(), "leader");
    line(&said, "red", &plain, "it does not speak TLS: use http://");
    let (_, said) = doctor(&etcd.endpoint(), &[&cacert]);
    line(&said, "red", &etcd.endpoint(), "it wants a client's certificate");
    let (_, said) = doctor(&format!("http://{}", etcd.address()), &[]);
    line(&said, "red", &etcd.address(), "it speaks TLS: use https://");
    let (_, said) = doctor(&etcd.endpoint(), &[]);
    line(
        &said,
        "red",
        &etcd.address(),
        "certificate is not signed by a CA that this system trusts",
    );
}

#[test]
fn where_nobody_answers_the_status_says_so() {
    let (one, other) = (free_port(), free_port());
    let endpoints = format!("127.0.0.1:{one},127.0.0.1:{other}");
    let said = call(&endpoints, &["--dial-timeout=2"])
        .any_stdout()
        .stderr_line(["no endpoint answers"])
        .status(69);
    for port in [one, other] {
        line(&said.stdout, "red", &format!("127.0.0.1:{port}"), "refused");
    }
}

#[test]
fn a_password_that_everybody_can_read_is_seen_to() {
    let mut etcd = Etcd::start();
    etcd.enable_auth();
    let file = secret("root\n");
    let options = ["--user=root".to_owned(), option("--password-file", &file)];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let (_, said) = doctor(&etcd.endpoint(), &options);
    assert!(!said.contains("--password-file"), "{said}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("a mode");
    let (code, said) = doctor(&etcd.endpoint(), &options);
    assert_eq!(code, 0, "{said}");
    line(&said, "yellow", &file.to_string_lossy(), "every user of this machine");
    // A run goes on: containers often have such files.
    Meshlock::run(&etcd, "exposed")
        .args(options)
        .finish()
        .stderr_line([&file.to_string_lossy(), "every user of this machine"])
        .success();
}
