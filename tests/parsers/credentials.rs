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

/// Made by openssl, and nobody's.
const CERTIFICATE: &[u8] = include_bytes!("../helpers/nobody.pem");
const KEY: &[u8] = include_bytes!("../helpers/nobody.key");

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
                let line = text.strip_suffix('\n').unwrap_or(&text);
                prop_assert_eq!(password.as_deref(), Some(line.strip_suffix('\r').unwrap_or(line)));
            }
            (Err(failure), text) => {
                prop_assert_eq!(failure.kind, FailureKind::Config);
                let no_password = |text: String| text.contains('\0') || ["", "\n", "\r", "\r\n"].contains(&&*text);
                prop_assert!(text.is_err() || text.is_ok_and(no_password), "{}", failure);
            }
            (Ok(_), Err(_)) => prop_assert!(false, "a password that is not UTF-8"),
        }
        Ok(())
    });
}

/// The same with other ends of lines, and with what openssl writes around it.
fn dressed(pem: &[u8], newline: &str, before: &str, after: &str) -> Vec<u8> {
    let text = String::from_utf8(pem.to_vec()).expect("text");
    let lines = text.lines().map(|line| format!("{line}{newline}"));
    format!("{before}{newline}{}{after}{newline}", lines.collect::<String>()).into_bytes()
}

#[test]
fn what_has_a_certificate_is_taken_as_it_is() {
    let files = Files::new();
    let around = || select(vec!["", "Bag Attributes", "subject=CN=a", "# made by hand"]);
    holds(
        200,
        (select(vec!["\n", "\r\n"]), around(), around()),
        |(newline, before, after)| {
            let certificate = dressed(CERTIFICATE, newline, before, after);
            let key = dressed(KEY, newline, before, after);
            let run = files.with(&[("cacert", &certificate), ("cert", &certificate), ("key", &key)]);
            let tls = run.map(|run| run.connection.tls.expect("TLS"));
            prop_assert!(tls.is_ok(), "{:?}", tls.err().map(|failure| failure.why));
            if let Ok(tls) = tls {
                let identity = tls.identity.map(|(cert, key)| (cert.contents, key.contents));
                prop_assert_eq!(tls.cacert.map(|file| file.contents), Some(certificate.clone()));
                prop_assert_eq!(identity, Some((certificate, key.clone())));
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
                    failure.why.starts_with(&format!("--{option} \""))
                        || failure.why.contains("do not belong together"),
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
