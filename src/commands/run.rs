//! `meshlock run`: settings → keeper and guardian → outcome. A plain sequence; decides nothing.

use super::keep;
use crate::link::Hold;
use crate::lock::keeper;
use crate::moment::Moment;
use crate::outcome::{Failure, FailureKind, Outcome};
use crate::report::{self, Reporter};
use crate::rules::Rules;
use crate::settings::held::{self, Held};
use crate::settings::{Run, Surroundings};
use crate::store::Connection;
use crate::supervise::guard::{self, Level, Ran};
use crate::supervise::guardian;
use crate::supervise::last_duty::MARK;
use crate::supervise::link::{Link, Shared};
use crate::supervise::signals::Signals;
use crate::supervise::sys::{self, Exec};
use crate::supervise::tree::{self, Process};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::SystemTime;

/// Runs the command under the lock and says how it ended.
pub fn run(settings: Run) -> Outcome {
    let reporter = Reporter::new(settings.verbosity);
    for warning in &settings.warnings {
        reporter.notice(warning);
    }
    for origin in &settings.origins {
        reporter.verbose(origin);
    }
    let conflict_status = settings.conflict_status;
    let target = settings.report.clone();
    let (name, draft) = (settings.place.name.clone(), settings.holder.clone());
    let found = LazyCell::new(|| draft.look_around());
    let ran = match start(settings, &reporter, &found) {
        Ok(ran) => ran,
        Err(failure) => Ran {
            outcome: Outcome::Failed(failure),
            hold: None,
            problem: None,
            acquired: None,
            ended: SystemTime::now(),
        },
    };
    let stamp = |time| humantime::format_rfc3339_seconds(time).to_string();
    let (acquired, ended) = (ran.acquired.map(stamp), stamp(ran.ended));
    reporter.outcome(&ran.outcome);
    if let Some(target) = target {
        let holder = draft.clone().complete(found.clone());
        let record = report::Report::new(&report::Run {
            name: &name,
            holder: &holder,
            outcome: &ran.outcome,
            conflict_status,
            hold: ran.hold.as_ref(),
            unreleased: ran.problem.as_deref(),
            acquired: acquired.as_deref(),
            ended: &ended,
        });
        if let Err(error) = target.write(&record) {
            reporter.notice(&format!("cannot write the report: {error}"));
        }
    }
    ran.outcome
}

/// From one process to two, and the guardian's work to its end. The keeper does not come back from here. What it does
/// not need to reach etcd is looked for after the fork, while it is under way.
fn start(mut settings: Run, reporter: &Reporter, found: &impl Deref<Target = Surroundings>) -> Result<Ran, Failure> {
    let me = Pid::this();
    let strangers: BTreeSet<i32> = if tree::is_childless() {
        BTreeSet::new()
    } else {
        tree::children(me.as_raw())
            .map_err(|error| unseen(&error))?
            .into_iter()
            .collect()
    };
    // Checked with the settings.
    let rules = Rules::as_asked(&settings.asked).map_err(|_| apart(Errno::EINVAL))?;
    let began = Moment::now();
    let shows_place = !settings.dumb_terminal && reporter.can_keep_current();
    let (signals, inherited) = Signals::take().map_err(apart)?;
    let shared = Shared::new().map_err(apart)?;
    let (link, keepers_link) = Link::pair().map_err(apart)?;
    sys::shed_stack();
    // Before any thread exists; the keeper starts its runtime on its own side.
    let Some(keeper) = sys::fork().map_err(apart)? else {
        drop(link);
        let policy = keepers_policy(&settings, began, shows_place);
        keep(settings, policy, rules, me, &strangers, keepers_link, shared);
    };
    drop(keepers_link);
    // Whoever cannot see the command's processes is not to have one. The keeper has not had our word yet.
    tree::children(me.as_raw()).map_err(|error| unseen(&error))?;
    if !link.send::<Surroundings>(found) {
        return Err(apart(Errno::ENOBUFS));
    }
    settings.connection.forget_secrets();
    sys::catch_continue(keeper);
    nix::sys::prctl::set_child_subreaper(true).map_err(apart)?;
    let terminal = has_terminal();
    Ok(guard::guard(guard::Task {
        keeper,
        link,
        shared,
        signals,
        inherited,
        policy: guardian::Policy {
            name: settings.place.called(),
            command: settings.command[0].to_string_lossy().into_owned(),
            max_runtime: settings.asked.max_runtime,
            stop_signal: settings.stop_signal,
            stragglers: settings.stragglers,
            terminal,
            waiting_line: shows_place.then_some(began),
        },
        asked: settings.asked,
        rules,
        strangers,
        exec: Box::leak(Box::new(exec(&mut settings, !terminal))),
        variables: &|hold| held(&settings, hold),
        say: &|level, line| match level {
            Level::Verbose => reporter.verbose(line),
            Level::Progress => reporter.progress(line),
            Level::Notice => reporter.notice(line),
        },
        keep_current: &|line| reporter.keep_current(line),
        verbose: settings.verbosity == crate::settings::Verbosity::Verbose,
    }))
}

fn unseen(error: &io::Error) -> Failure {
    let why = format!("the command's processes could not be found: cannot read /proc: {error}; nothing was run");
    Failure::new(FailureKind::Config, why)
}

fn apart(error: Errno) -> Failure {
    let why = format!(
        "cannot set up meshlock's two processes: {}; nothing was run",
        error.desc()
    );
    Failure::new(FailureKind::Internal, why)
}

fn keepers_policy(settings: &Run, began: Moment, shows_place: bool) -> keeper::Policy {
    let Run {
        connection,
        place,
        prefix,
        ..
    } = settings;
    keeper::Policy {
        name: place.called(),
        endpoints: connection.whom(),
        keys: if place.queue().starts_with(prefix) {
            format!("prefix \"{prefix}\"")
        } else {
            format!("prefix \"{prefix}\" and keys under \"{}\"", place.queue())
        },
        user: connection.user.as_ref().map(|(name, _)| name.clone()),
        began,
        wait: settings.wait,
        dial_timeout: connection.dial_timeout,
        outer_leases: settings.outer_leases.clone(),
        shows_place,
        jitter: jitter(),
    }
}

fn keep(
    settings: Run,
    policy: keeper::Policy,
    rules: Rules,
    guardian: Pid,
    strangers: &BTreeSet<i32>,
    link: Link,
    shared: Shared,
) -> ! {
    let Run {
        connection,
        place,
        asked,
        keep,
        holder,
        ..
    } = settings;
    keep::keep(keep::Task {
        guardian,
        strangers: strangers.iter().filter_map(|pid| Process::living(*pid).ok()?).collect(),
        link,
        shared,
        policy,
        asked,
        rules,
        holder,
        connection,
        place,
        keep,
    })
}

/// Spreads the renewals of a fleet whose jobs all start on the minute.
fn jitter() -> f64 {
    let mut byte = [0];
    getrandom::fill(&mut byte).ok();
    f64::from(byte[0]) / 255.0
}

/// Whether we have a controlling terminal, in whose job control the command must then take part.
fn has_terminal() -> bool {
    use nix::fcntl::{OFlag, open};
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    open(c"/dev/tty", flags, nix::sys::stat::Mode::empty()).is_ok()
}

/// The command, made while the keeper is under way to etcd. What it is to learn of its hold is not in its environment
/// yet, and what it would have learned of one around it no more.
fn exec(settings: &mut Run, own_group: bool) -> Exec {
    let mut environment = std::mem::take(&mut settings.environment);
    environment.retain(|(name, _)| HELD.iter().all(|held| name != held));
    let path = environment
        .iter()
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.as_os_str());
    let program = &settings.command[0];
    Exec {
        candidates: candidates(program, path),
        arguments: settings
            .command
            .iter()
            .filter_map(|argument| c_string(argument.clone()))
            .collect(),
        environment: environment.into_iter().filter_map(variable).collect(),
        own_group,
    }
}

/// The variables by which the command learns of its hold.
const HELD: [&str; 10] = [
    "MESHLOCK_HELD_NAME",
    "MESHLOCK_HELD_TOKEN",
    "MESHLOCK_HELD_KEY",
    MARK,
    "MESHLOCK_HELD_CLUSTER",
    "MESHLOCK_HELD_ENDPOINTS",
    held::ALL,
    "MESHLOCK_HELD_PREFIX",
    "ETCD_LOCK_KEY",
    "ETCD_LOCK_REV",
];

/// Their values, in their order. The innermost lock wins, but a process belongs to every hold
/// around it: the leases are a list.
fn held(settings: &Run, hold: &Hold) -> Vec<CString> {
    let leases: Vec<String> = settings
        .outer_leases
        .iter()
        .chain([&hold.lease])
        .map(|lease| format!("{lease:x}"))
        .collect();
    let Connection { endpoints, .. } = &settings.connection;
    let own = Held {
        name: settings.place.name.clone(),
        token: hold.token,
        key: hold.key.clone(),
        lease: format!("{:x}", hold.lease),
        cluster: format!("{:x}", hold.cluster),
        reach: settings.reach.clone(),
    };
    let values: [OsString; HELD.len()] = [
        settings.place.name.clone().into(),
        hold.token.to_string().into(),
        hold.key.clone().into(),
        leases.join(":").into(),
        format!("{:x}", hold.cluster).into(),
        endpoints.join(",").into(),
        held::list(&settings.outer_holds, &own).into(),
        settings.prefix.clone().into(),
        hold.key.clone().into(),
        hold.token.to_string().into(),
    ];
    let set = |(name, value): (&str, OsString)| variable((name.into(), value));
    HELD.into_iter().zip(values).filter_map(set).collect()
}

/// As it stands in an environment.
fn variable((mut name, value): (OsString, OsString)) -> Option<CString> {
    // Once for what is to come, and the final NUL.
    name.reserve_exact(value.len() + 2);
    name.push("=");
    name.push(value);
    c_string(name)
}

/// The files that execvp(3) would try.
fn candidates(program: &OsStr, path: Option<&OsStr>) -> Vec<CString> {
    if program.as_bytes().contains(&b'/') || program.is_empty() {
        return c_string(program.to_owned()).into_iter().collect();
    }
    let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    path.as_bytes()
        .split(|byte| *byte == b':')
        .filter_map(|directory| {
            let mut file = directory.to_owned();
            if !file.is_empty() {
                file.push(b'/');
            }
            file.extend_from_slice(program.as_bytes());
            CString::new(file).ok()
        })
        .collect()
}

/// `None` for what holds a NUL, which no argument and no variable can.
fn c_string(string: OsString) -> Option<CString> {
    CString::new(string.into_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_slash_is_not_searched_for() {
        assert_eq!(
            candidates(OsStr::new("./a"), Some(OsStr::new("/x"))),
            [c"./a".to_owned()]
        );
    }

    #[test]
    fn an_empty_entry_of_path_is_the_working_directory() {
        let found = candidates(OsStr::new("a"), Some(OsStr::new("/x::/y")));
        assert_eq!(found, [c"/x/a".to_owned(), c"a".to_owned(), c"/y/a".to_owned()]);
    }
}
