//! Endpoints, TLS files and passwords: what is taken and what is refused, each as one table.

use super::super::tests::{refused, with};
use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

#[test]
fn endpoints_get_the_scheme_that_the_tls_files_imply() {
    let directory = tempfile::tempdir().expect("a directory");
    let ca = directory.path().join("ca.pem");
    fs::write(&ca, CERTIFICATE).expect("written");
    let ca = ca.to_str().expect("UTF-8");
    let endpoints = |flags: &[&str]| with(flags, &[]).map(|settings| settings.connection.endpoints);
    assert_eq!(
        endpoints(&["--endpoints", " a:1 ,https://[::1]:2/,HTTP://c:3,a:1"]).expect("endpoints"),
        ["http://a:1", "https://[::1]:2", "http://c:3"]
    );
    assert_eq!(
        endpoints(&["--cacert", ca]).expect("endpoints"),
        ["https://127.0.0.1:2379"]
    );
    assert_eq!(
        endpoints(&["--cacert", ca, "--endpoints=a:1"]).expect("endpoints"),
        ["https://a:1"]
    );
    let (_, line) = refused(&["--cacert", ca, "--endpoints=http://a:1"], &[]);
    assert!(
        line.contains("no TLS, but --cacert is given: write https://a:1"),
        "{line}"
    );
    assert!(
        with(&["--endpoints=https://a:1"], &[])
            .expect("settings")
            .connection
            .tls
            .is_some()
    );
    assert!(with(&[], &[]).expect("settings").connection.tls.is_none());
}

#[test]
fn endpoints_that_cannot_be_are_refused() {
    for list in [
        "",
        ",",
        "a:1,",
        "a",
        "http://a",
        ":1",
        "a:",
        "a:0",
        "a:65536",
        "a:+1",
        "a:1x",
        "::1:2",
        "a b:1",
        "a:1/path",
        "u@a:1",
        "ftp://a:1",
        "unix:///run/etcd.sock",
        "unixs://x:1",
        "http://",
        "[::1]",
    ] {
        let (kind, line) = refused(&["--endpoints", list], &[]);
        assert_eq!(kind, FailureKind::Usage, "{line}");
    }
}

/// Made by openssl, and nobody's.
const CERTIFICATE: &str = include_str!("../../../tests/helpers/nobody.pem");
const KEY: &str = include_str!("../../../tests/helpers/nobody.key");
const ENCRYPTED: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n";

#[test]
fn tls_files_are_read_and_checked_before_anything_connects() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).expect("written");
        path.into_os_string().into_string().expect("UTF-8")
    };
    let (cert, key, encrypted) = (file("c", CERTIFICATE), file("k", KEY), file("e", ENCRYPTED));
    let (empty, der) = (file("empty", ""), file("der", "0\u{1}\u{2}"));
    let missing = directory.path().join("none").to_str().expect("UTF-8").to_owned();

    let settings = with(&["--cacert", &cert, "--cert", &cert, "--key", &key], &[]).expect("settings");
    let tls = settings.connection.tls.expect("TLS");
    assert_eq!(
        tls.cacert.map(|file| file.contents),
        Some(CERTIFICATE.as_bytes().to_vec())
    );
    let identity = tls.identity.map(|(cert, key)| (cert.contents, key.contents));
    assert_eq!(identity, Some((CERTIFICATE.into(), KEY.into())));

    for (flags, why) in [
        (vec!["--cacert", &missing], "No such file or directory"),
        (
            vec!["--cacert", directory.path().to_str().expect("UTF-8")],
            "Is a directory",
        ),
        (vec!["--cacert", &empty], "no certificate"),
        (vec!["--cacert", &der], "no certificate"),
        (
            vec!["--cacert", &key],
            "no certificate in PEM format, but a private key",
        ),
        (vec!["--cert", &cert], "--cert needs --key"),
        (vec!["--key", &key], "--key needs --cert"),
        (
            vec!["--cert", &cert, "--key", &cert],
            "no private key in PEM format, but a certificate",
        ),
        (vec!["--cert", &cert, "--key", &encrypted], "encrypted"),
        (vec!["--cacert", "/dev/zero"], "larger than 1 MiB"),
    ] {
        let (kind, line) = refused(&flags, &[]);
        assert_eq!(kind, FailureKind::Config, "{line}");
        assert!(line.starts_with(flags[flags.len() - 2]) && line.contains(why), "{line}");
    }
}

#[test]
fn the_password_comes_from_the_first_source_that_has_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("password");
    fs::write(&file, "file\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    for (flags, variables, user, password) in [
        (&["--user=a:b:c"][..], &[][..], "a", "b:c"),
        (&["--user=a", "--password-file", file], &[], "a", "file"),
        (&["--user=a:flag"], &[("MESHLOCK_PASSWORD", "ours")], "a", "flag"),
        (
            &["--user=a"],
            &[("MESHLOCK_PASSWORD", "ours"), ("ETCDCTL_PASSWORD", "theirs")],
            "a",
            "ours",
        ),
        (&["--user=a"], &[("MESHLOCK_PASSWORD_FILE", file)], "a", "file"),
        (
            &[],
            &[("MESHLOCK_USER", "a:inline"), ("ETCDCTL_PASSWORD", "theirs")],
            "a",
            "inline",
        ),
        (&[], &[("ETCDCTL_USER", "a:inline")], "a", "inline"),
        (
            &[],
            &[("ETCDCTL_USER", "a"), ("ETCDCTL_PASSWORD", "theirs")],
            "a",
            "theirs",
        ),
    ] {
        let settings = with(flags, variables).expect("settings");
        let expected = Some((user.to_owned(), password.to_owned()));
        assert!(settings.connection.user == expected, "{flags:?} {variables:?}");
    }
    for (flags, variables) in [
        (&["--user=a"][..], &[][..]),
        (&["--user=a:"], &[]),
        (&["--user=b"], &[("ETCDCTL_USER", "a:another's")]),
        (&[], &[("MESHLOCK_PASSWORD", "secret")]),
        (&["--password-file", file], &[]),
        (&["--user=a", "--password-file=/none"], &[]),
    ] {
        let (kind, line) = refused(flags, variables);
        assert_eq!(kind, FailureKind::Config, "{line}");
        assert!(!line.contains("secret") && !line.contains("another's"), "{line}");
    }
}

#[test]
fn one_newline_is_no_part_of_a_password() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("password");
    for (text, password) in [("x", "x"), ("x\n", "x"), ("x\r\n", "x"), (" x \n\n", " x \n")] {
        fs::write(&path, text).expect("written");
        let flags = ["--user=a", "--password-file", path.to_str().expect("UTF-8")];
        let user = with(&flags, &[]).expect("settings").connection.user;
        assert!(user.is_some_and(|(_, found)| found == password), "{text:?}");
    }
    for (text, why) in [
        ("", "empty"),
        ("\n", "empty"),
        ("a\0b", "NUL"),
        (&"x".repeat(5000), "longer than any password"),
    ] {
        fs::write(&path, text).expect("written");
        let (kind, line) = refused(&["--user=a", "--password-file", path.to_str().expect("UTF-8")], &[]);
        assert_eq!(kind, FailureKind::Config, "{line}");
        assert!(line.starts_with("--password-file ") && line.contains(why), "{line}");
    }
}

#[test]
fn a_service_has_its_password_from_systemd() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("meshlock.password"), "systemd's\n").expect("written");
    let credentials = ("CREDENTIALS_DIRECTORY", directory.path().to_str().expect("UTF-8"));
    for (variables, password) in [
        (vec![credentials], "systemd's"),
        (vec![credentials, ("MESHLOCK_PASSWORD", "ours")], "ours"),
    ] {
        let user = with(&["--user=a"], &variables).expect("settings").connection.user;
        assert!(user.is_some_and(|(_, found)| found == password), "{variables:?}");
    }
    assert!(with(&[], &[credentials]).expect("settings").connection.user.is_none());
    // Of the service, but not for us.
    let elsewhere = tempfile::tempdir().expect("a directory");
    let elsewhere = ("CREDENTIALS_DIRECTORY", elsewhere.path().to_str().expect("UTF-8"));
    assert_eq!(refused(&["--user=a"], &[elsewhere]).0, FailureKind::Config);
}

#[test]
fn a_secret_that_everybody_can_read_is_warned_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("password");
    fs::write(&file, "x").expect("written");
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    for (outer, inner, warned) in [(0o755, 0o644, true), (0o755, 0o640, false), (0o700, 0o644, false)] {
        mode(directory.path(), outer);
        mode(&file, inner);
        let settings = with(&["--user=a", "--password-file", file.to_str().expect("UTF-8")], &[]).expect("settings");
        let said = settings.warnings.join("\n");
        assert_eq!(
            said.contains("every user of this machine"),
            warned,
            "{outer:o} {inner:o}: {said}"
        );
    }
}

#[test]
fn etcdctls_settings_are_refused_where_they_would_change_the_connection() {
    for (name, value) in [
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "true"),
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "1"),
        ("ETCDCTL_INSECURE_TRANSPORT", "false"),
        ("MESHLOCK_INSECURE_SKIP_TLS_VERIFY", "true"),
        ("ETCDCTL_AUTH_JWT_TOKEN", "secret"),
    ] {
        let (kind, line) = refused(&[], &[(name, value)]);
        assert_eq!(kind, FailureKind::Config, "{line}");
        assert!(line.starts_with(name) && !line.contains("secret"), "{line}");
    }
    for (name, value) in [
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "false"),
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", ""),
        ("ETCDCTL_INSECURE_TRANSPORT", "true"),
        ("ETCDCTL_DISCOVERY_SRV", ""),
        ("ETCDCTL_DISCOVERY_SRV", "example.org"),
        ("ETCDCTL_INSECURE_DISCOVERY", "false"),
        ("ETCDCTL_API", "3"),
        ("ETCDCTL_WRITE_OUT", "json"),
        ("ETCDCTL_COMMAND_TIMEOUT", "10s"),
    ] {
        assert!(with(&[], &[(name, value)]).is_ok(), "{name}={value}");
    }
}
