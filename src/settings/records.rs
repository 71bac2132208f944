//! What is recorded of a run: who we are, and the purpose that was given or found. Knows nothing of where
//! records go.

use super::origin::{Clues, Origin, TEXT_LIMIT, cut};
use super::source::Sources;
use super::{read, switch};
use crate::cli;
use crate::lock::expect::Expected;
use crate::lock::record::{FORMAT, Holder, Purpose};
use crate::outcome::Failure;
use crate::supervise::tree;
use nix::unistd::{User, gethostname, getuid};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process;
use std::time::SystemTime;

/// The recorded arguments, in bytes: every waiter reads the holder's record.
const ARGUMENTS_LIMIT: usize = 4096;
/// The longest program name, in characters: no file has a longer one (`NAME_MAX`).
const PROGRAM_LIMIT: usize = 255;

/// The record of who we are, as far as the settings have it. What has to be looked up is not waited for by anything
/// but the record.
#[derive(Clone, Debug)]
pub struct Draft {
    pid: u32,
    program: String,
    started: String,
    /// As it was said.
    pub purpose: Purpose,
    /// `None` where all was said.
    clues: Option<Clues>,
}

/// What this machine tells of us: host, user, trigger and system. Little enough for a message from one half to the other,
/// and without names, whose reading would take 4 KiB of code.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Surroundings(String, String, Option<String>, Option<String>);

impl Draft {
    pub(super) fn new(command: &[OsString], typed: &cli::Records, sources: &Sources) -> Result<Self, Failure> {
        let program = command.first().map(Path::new).and_then(Path::file_name);
        let purpose = purpose(command, typed, sources)?;
        Ok(Self {
            pid: process::id(),
            program: program
                .unwrap_or_default()
                .to_string_lossy()
                .chars()
                .take(PROGRAM_LIMIT)
                .collect(),
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            // A look at the processes above us that nobody asked for would only take time.
            clues: (purpose.trigger.is_none() || purpose.system.is_none()).then(|| Clues::read(sources.environment)),
            purpose,
        })
    }

    /// Looks up what is missing.
    pub fn look_around(&self) -> Surroundings {
        let uid = getuid();
        let host = gethostname().map_or_else(|_| "unknown".to_owned(), |host| host.to_string_lossy().into_owned());
        // Where nobody by that number is known, as in many containers, the number.
        let user = User::from_uid(uid)
            .ok()
            .flatten()
            .map_or_else(|| uid.to_string(), |user| cut(&user.name, TEXT_LIMIT));
        let origin = self.clues.clone().map(|clues| {
            let cgroup = || fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            Origin::find(clues, tree::ancestry(self.pid.cast_signed()), cgroup)
        });
        let trigger = origin.as_ref().map(Origin::trigger);
        let system = origin.map(|origin| origin.system(&host, &user));
        Surroundings(host, user, trigger, system)
    }

    pub fn complete(self, Surroundings(host, user, trigger, system): Surroundings) -> Holder {
        let mut purpose = self.purpose;
        purpose.trigger = purpose.trigger.or(trigger);
        purpose.system = purpose.system.or(system);
        Holder {
            format: FORMAT,
            host,
            user,
            pid: self.pid,
            program: self.program,
            started: self.started,
            purpose,
        }
    }
}

fn purpose(command: &[OsString], typed: &cli::Records, sources: &Sources) -> Result<Purpose, Failure> {
    let text = |flag: &str, typed: &Option<OsString>| read(sources, flag, typed.as_deref(), short_text);
    let expect = read(sources, "expect", typed.expect.as_deref(), str::parse::<Expected>)?;
    Ok(Purpose {
        owner: text("owner", &typed.owner)?,
        reason: text("reason", &typed.reason)?,
        route: text("route", &typed.route)?,
        expect: expect.map(|expected| expected.to_string()),
        trigger: text("trigger", &typed.trigger)?,
        system: text("system", &typed.system)?,
        arguments: (typed.record_args || switch(sources, "record-args")?).then(|| arguments(command)),
        ..Purpose::default()
    })
}

fn arguments(command: &[OsString]) -> Vec<String> {
    let mut room = ARGUMENTS_LIMIT;
    let mut kept = Vec::new();
    for argument in command.iter().skip(1) {
        if room == 0 {
            kept.push("…".to_owned());
            break;
        }
        let argument = cut(&argument.to_string_lossy(), room);
        // An empty one takes its place too.
        room = room.saturating_sub(argument.len().max(1));
        kept.push(argument);
    }
    kept
}

fn short_text(text: &str) -> Result<String, String> {
    if text.len() <= TEXT_LIMIT {
        Ok(text.to_owned())
    } else {
        Err(format!("is longer than {TEXT_LIMIT} bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{refused, typed, with};
    use super::super::{Environment, run};
    use super::*;
    use crate::outcome::FailureKind;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn arguments_are_kept_as_far_as_there_is_room() {
        let command =
            |arguments: &[&str]| -> Vec<OsString> { ["program"].iter().chain(arguments).map(OsString::from).collect() };
        assert_eq!(arguments(&command(&[])), [""; 0]);
        assert_eq!(arguments(&command(&["-a", "", "b c"])), ["-a", "", "b c"]);
        let long = "é".repeat(5000);
        let kept = arguments(&command(&["-x", &long, "last"]));
        assert_eq!(kept[0], "-x");
        assert!(
            kept[1].ends_with("é…") && kept[1].len() <= ARGUMENTS_LIMIT,
            "{}",
            kept[1].len()
        );
        assert!(kept.len() <= 3 && !kept.contains(&"last".to_owned()));
        let many = arguments(&command(&vec![""; 10_000]));
        assert!(many.len() <= ARGUMENTS_LIMIT + 1, "{}", many.len());
        assert_eq!(many.last().map(String::as_str), Some("…"));
    }

    #[test]
    fn arguments_need_not_be_text() {
        let command = vec![OsString::from("program"), OsString::from_vec(b"a\xff".to_vec())];
        assert_eq!(arguments(&command), ["a\u{fffd}"]);
    }

    #[test]
    fn the_record_names_the_program_and_never_its_arguments() {
        let arguments = ["meshlock", "run", "--owner=ops", "x", "/opt/bin/pay", "--token=secret"];
        let holder = run(typed(arguments), &Environment::from_iter([("", ""); 0]))
            .expect("settings")
            .holder;
        let found = holder.look_around();
        let holder = holder.complete(found);
        assert_eq!(holder.program, "pay");
        assert_eq!(holder.purpose.owner.as_deref(), Some("ops"));
        assert!(!serde_json::to_string(&holder).expect("JSON").contains("secret"));
    }

    #[test]
    fn what_is_recorded_can_be_said_by_flags_and_by_variables() {
        let flags = [
            "--owner=o",
            "--reason=r",
            "--route=pager",
            "--expect=3,0",
            "--trigger=t",
            "--system=s",
            "--record-args",
        ];
        let variables = [
            ("MESHLOCK_OWNER", "o"),
            ("MESHLOCK_REASON", "r"),
            ("MESHLOCK_ROUTE", "pager"),
            ("MESHLOCK_EXPECT", " 0, 3"),
            ("MESHLOCK_TRIGGER", "t"),
            ("MESHLOCK_SYSTEM", "s"),
            ("MESHLOCK_RECORD_ARGS", "yes"),
        ];
        let expected = Purpose {
            owner: Some("o".into()),
            reason: Some("r".into()),
            route: Some("pager".into()),
            expect: Some("0,3".into()),
            trigger: Some("t".into()),
            system: Some("s".into()),
            arguments: Some(vec![]),
            ..Purpose::default()
        };
        for (flags, variables) in [(&flags[..], &[][..]), (&[], &variables[..])] {
            let settings = with(flags, variables).expect("settings");
            assert_eq!(settings.holder.purpose, expected);
        }
    }

    #[test]
    fn what_is_recorded_has_its_limits() {
        let long = "x".repeat(1025);
        for flag in ["owner", "reason", "route", "trigger", "system"] {
            let (kind, line) = refused(&[&format!("--{flag}={long}")], &[]);
            assert_eq!(kind, FailureKind::Usage);
            assert!(line.ends_with("is longer than 1024 bytes"), "{line}");
        }
        for (flags, variables, kind) in [
            (&["--expect=1-3"][..], &[][..], FailureKind::Usage),
            (&[], &[("MESHLOCK_EXPECT", "256")], FailureKind::Config),
        ] {
            let (refusal, line) = refused(flags, variables);
            assert_eq!(refusal, kind);
            assert!(
                line.ends_with("is not a list of exit statuses from 0 to 255, such as 0,3"),
                "{line}"
            );
        }
    }
}
