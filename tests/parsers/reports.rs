//! `--report`: any path is refused before anything runs, or the report gets there.

use crate::{NOTHING, holds, is_one_line, records, settings_of, text};
use meshlock::lock::record::Holder;
use meshlock::outcome::{CONTENDED, FailureKind, Outcome};
use meshlock::report::{Report, Run, Target};
use proptest::prelude::*;
use proptest::sample::select;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

fn write(target: &Target, holder: &Holder, outcome: &Outcome) -> std::io::Result<()> {
    target.write(&Report::new(&Run {
        name: "x",
        holder,
        outcome,
        conflict_status: CONTENDED,
        hold: None,
        unreleased: None,
        acquired: None,
        ended: "",
    }))
}

fn any_holder() -> Holder {
    let draft = settings_of(["-q"], NOTHING).expect("settings").holder;
    let found = draft.look_around();
    draft.complete(found)
}

#[test]
fn a_path_that_is_accepted_can_be_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = directory.path().join("base");
    let holder = any_holder();
    let outcome = Outcome::Contended { why: String::new() };
    let part = prop_oneof![
        4 => prop::collection::vec(1..=u8::MAX, 1..12).prop_map(|name| name.into_iter().filter(|byte| *byte != b'/').collect()),
        2 => select(vec!["/", "//", "/.", "..", ".", "there", "link", "dangling", "sub/"]).prop_map(|part| part.as_bytes().to_vec()),
        1 => (240..258usize).prop_map(|length| vec![b'n'; length]),
    ];
    let path = prop::collection::vec(part, 0..4).prop_map(|parts| OsString::from_vec(parts.concat()));
    holds(200, path, |path| {
        fs::remove_dir_all(&base).ok();
        fs::create_dir_all(base.join("sub")).expect("a directory");
        fs::write(base.join("there"), "old").expect("written");
        std::os::unix::fs::symlink("there", base.join("link")).expect("a link");
        std::os::unix::fs::symlink("nowhere/x", base.join("dangling")).expect("a link");
        let path = base.join("sub/..").join(OsStr::from_bytes(
            path.as_bytes()
                .trim_ascii_start()
                .strip_prefix(b"/")
                .unwrap_or(path.as_bytes()),
        ));
        prop_assume!(path.starts_with(&base) && !path.as_os_str().as_bytes().windows(5).any(|part| part == b"../.."));
        let mut option = OsString::from("--report=");
        option.push(&path);
        match settings_of([option], NOTHING) {
            Ok(run) => {
                let target = run.report.expect("a target");
                prop_assert!(
                    write(&target, &holder, &outcome).is_ok(),
                    "{} was accepted",
                    path.display()
                );
                let text = fs::read_to_string(&path).unwrap_or_default();
                prop_assert!(
                    text.starts_with('{') && text.ends_with("}\n"),
                    "{}: {}",
                    path.display(),
                    text
                );
            }
            Err(failure) => {
                prop_assert_eq!(failure.kind, FailureKind::Config);
                is_one_line(&failure.why)?;
                // What a shell's redirection would write to, is not refused.
                prop_assert!(fs::write(&path, "").is_err(), "{}: {}", path.display(), failure);
            }
        }
        Ok(())
    });
}

#[test]
fn a_report_is_one_line_of_json_whatever_is_in_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("report");
    let target = Target::open(&path).expect("writable");
    holds(200, (records::holder(), text()), |(holder, why)| {
        let outcome = Outcome::Contended { why: why.clone() };
        prop_assert!(write(&target, &holder, &outcome).is_ok());
        let text = fs::read_to_string(&path).expect("a report");
        prop_assert_eq!(text.matches('\n').count(), 1);
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        prop_assert_eq!(json["why"].as_str(), Some(why.as_str()));
        prop_assert_eq!(json["owner"].as_str(), holder.purpose.owner.as_deref());
        prop_assert_eq!(json["host"].as_str(), Some(holder.host.as_str()));
        Ok(())
    });
}
