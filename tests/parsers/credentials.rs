//! `--user NAME:PASSWORD`, password files and PEM files.

use crate::{MEGABYTE, NOTHING, bytes, holds, is_one_line, keeps_pace, settings_of, text};
use meshlock::outcome::{Failure, FailureKind};
use meshlock::settings::Run;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use tempfile::TempDir;

/// Well-formed, and nobody's.
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
const KEY: &[u8] = b"-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";

#[test]
fn a_user_is_what_is_before_the_first_colon() {
    let part = |except: &'static [char]| text().prop_map(move |text| text.replace(except, ""));
    holds(200, (part(&['\0', ':']), part(&['\0'])), |(name, password)| {
        let run = settings_of([format!("--user={name}:{password}")], NOTHING);
        match run.map(|run| run.connection.user) {
            Ok(user) => prop_assert_eq!(user, Some((name, password))),
            Err(failure) => {
                prop_assert!(name.is_empty() || password.is_empty(), "{}", failure);
                is_one_line(&failure.why)?;
            }
        }
        Ok(())
    });
}

struct Files {
    directory: TempDir,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory }
    }

    fn write(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, contents).expect("written");
        path
    }

    fn with(&self, options: &[(&str, &[u8])]) -> Result<Run, Failure> {
        let options = options.iter().map(|(option, contents)| {
            let mut argument = OsString::from(format!("--{option}="));
            argument.push(self.write(option, contents));
            argument
        });
        settings_of(options.chain(["--user=me".into()]), [("MESHLOCK_PASSWORD", "x")])
    }
}

#[test]
fn a_password_file_is_the_password_less_one_newline() {
    let files = Files::new();
    holds(200, bytes(), |contents| {
        let taken = files.with(&[("password-file", &contents)]);
        match (taken, String::from_utf8(contents)) {
            (Ok(run), Ok(text)) => {
                let password = run.connection.user.map(|(_, password)| password);
                prop_assert_eq!(password.as_deref(), Some(text.strip_suffix('\n').unwrap_or(&text)));
            }
            (Err(failure), text) => {
                prop_assert_eq!(failure.kind, FailureKind::Config);
                prop_assert!(
                    text.is_err() || text.is_ok_and(|text| text.is_empty() || text == "\n"),
                    "{}",
                    failure
                );
            }
            (Ok(_), Err(_)) => prop_assert!(false, "a password that is not UTF-8"),
        }
        Ok(())
    });
}

fn pem(label: &str, der: &[u8], newline: &str, before: &str) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut base64 = String::new();
    for line in der.chunks(48) {
        for chunk in line.chunks(3) {
            let bytes = chunk.iter().chain([&0, &0]).take(3);
            let bits = bytes.fold(0, |bits, byte| bits << 8 | usize::from(*byte));
            let digit = |at: usize| char::from(ALPHABET[bits >> (18 - 6 * at) & 63]);
            base64.extend((0..4).map(|at| if at > chunk.len() { '=' } else { digit(at) }));
        }
        base64.push_str(newline);
    }
    format!("{before}{newline}-----BEGIN {label}-----{newline}{base64}-----END {label}-----{newline}").into_bytes()
}

#[test]
fn what_has_a_certificate_is_taken_as_it_is() {
    let files = Files::new();
    let der = prop::collection::vec(any::<u8>(), 1..200);
    let shape = (
        select(vec!["\n", "\r\n"]),
        select(vec!["", "Bag Attributes", "subject=CN=a"]),
        select(vec!["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"]),
    );
    holds(
        200,
        (der.clone(), der, shape),
        |(one, other, (newline, before, kind))| {
            let certificate = pem("CERTIFICATE", &one, newline, before);
            let key = pem(kind, &other, newline, before);
            let run = files.with(&[("cacert", &certificate), ("cert", &certificate), ("key", &key)]);
            let tls = run.map(|run| run.connection.tls.expect("TLS"));
            prop_assert!(tls.is_ok(), "{:?}", tls.err().map(|failure| failure.why));
            if let Ok(tls) = tls {
                prop_assert_eq!(tls.cacert, Some(certificate.clone()));
                prop_assert_eq!(tls.identity, Some((certificate, key.clone())));
            }
            prop_assert!(files.with(&[("cacert", &key)]).is_err(), "a key is no certificate");
            Ok(())
        },
    );
}

#[test]
fn any_other_bytes_are_refused_in_one_line() {
    let files = Files::new();
    let damaged = (
        select(vec![CERTIFICATE, KEY]),
        any::<Index>(),
        any::<u8>(),
        any::<bool>(),
    )
        .prop_map(|(whole, at, byte, cut)| {
            let mut bytes = whole.to_owned();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            bytes
        });
    let der = prop::collection::vec(any::<u8>(), 0..200).prop_map(|rest| [b"\x30\x82".to_vec(), rest].concat());
    let option = select(vec!["cacert", "cert", "key", "password-file"]);
    holds(
        200,
        (option, prop_oneof![bytes(), damaged, der]),
        |(option, contents)| {
            let rest = match option {
                "cert" => vec![("key", KEY)],
                "key" => vec![("cert", CERTIFICATE)],
                _ => Vec::new(),
            };
            let options = [vec![(option, contents.as_slice())], rest].concat();
            if let Err(failure) = files.with(&options) {
                prop_assert_eq!(failure.kind, FailureKind::Config);
                prop_assert!(
                    failure.why.starts_with(&format!("--{option} \"")) || failure.why.starts_with("no password"),
                    "{}",
                    failure
                );
                is_one_line(&failure.why)?;
            } else if option != "password-file" {
                prop_assert!(
                    contents.starts_with(b"-----BEGIN "),
                    "taken: {:?}",
                    String::from_utf8_lossy(&contents)
                );
            }
            Ok(())
        },
    );
}

#[test]
fn any_path_is_read_or_named_in_one_line() {
    let path = prop::collection::vec(1..=u8::MAX, 0..60).prop_map(|bytes| [b"/nowhere/".to_vec(), bytes].concat());
    holds(
        200,
        (select(vec!["cacert", "password-file"]), path),
        |(option, path)| {
            let mut argument = OsString::from(format!("--{option}="));
            argument.push(OsString::from_vec(path));
            let failure = settings_of([argument, "--user=me".into()], NOTHING)
                .err()
                .expect("no such file");
            prop_assert_eq!(failure.kind, FailureKind::Config);
            is_one_line(&failure.why)
        },
    );
}

#[test]
fn a_megabyte_takes_no_time() {
    let files = Files::new();
    for unit in [
        "-",
        "\n",
        "-----BEGIN CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        "A",
        "ENCRYPTE",
        "é",
    ] {
        let input = |size| unit.bytes().cycle().take(size).collect();
        keeps_pace(MEGABYTE, input, |contents| files.with(&[("cacert", contents)]).is_ok());
        keeps_pace(MEGABYTE, input, |contents| {
            files.with(&[("cert", CERTIFICATE), ("key", contents)]).is_ok()
        });
        keeps_pace(MEGABYTE, input, |contents| {
            files.with(&[("password-file", contents)]).is_ok()
        });
    }
}
