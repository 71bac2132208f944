//! Everything the user decided, resolved and validated: flags before `MESHLOCK_*` before `ETCDCTL_*` before
//! configuration files before defaults. The only reader of the environment; nothing past it sees clap.

pub mod config;
mod connection;
mod discovery;
pub mod doctor;
mod duration;
pub mod file;
pub mod held;
mod looks;
mod misspelt;
mod origin;
mod place;
mod records;
mod source;
pub mod status;
pub mod verify;

pub use self::records::{Draft, Surroundings};
pub use self::source::{Environment, arguments};
pub use crate::report::Verbosity;
use crate::store::Connection;

use self::file::{Files, Part};
use self::source::{Found, Layer, Source, Sources, quoted};
use crate::cli;
use crate::lock::keys::Place;
use crate::outcome::{CONTENDED, Failure, FailureKind};
use crate::report::Target;
use crate::rules::{Asked, Rules, Stragglers};
use clap::ValueEnum;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

/// What `meshlock run` needs to know.
#[derive(Clone)]
pub struct Run {
    pub connection: Connection,
    /// The same, for a `meshlock verify` inside.
    pub reach: held::Reach,
    pub place: Place,
    /// The key prefix of everything, with its closing slash.
    pub prefix: String,
    /// How long to wait for the lock, counted from the start; `None` waits without limit, zero is `--no-wait`.
    pub wait: Option<Duration>,
    pub asked: Asked,
    pub stop_signal: Signal,
    pub stragglers: Stragglers,
    /// The exit status for contention.
    pub conflict_status: u8,
    /// Where the outcome is written as JSON.
    pub report: Option<Target>,
    /// How many run records are kept in etcd.
    pub keep: u32,
    /// Who we are, for the records in etcd.
    pub holder: Draft,
    /// Never empty.
    pub command: Vec<OsString>,
    /// The command's environment, our secrets taken out; the hold's variables are added at its start.
    pub environment: Vec<(OsString, OsString)>,
    /// Leases that this process tree already holds, outermost first: waiting for one would wait for ourselves.
    pub outer_leases: Vec<i64>,
    /// The holds around us, outermost first.
    pub outer_holds: Vec<held::Held>,
    pub verbosity: Verbosity,
    /// What the user should know of the settings, a line each.
    pub warnings: Vec<String>,
    /// Where those are from that were neither typed nor left as they are, a line each.
    pub origins: Vec<String>,
    /// It cannot bring a line up to date in place.
    pub dumb_terminal: bool,
}

const DEFAULT_TTL: Duration = Duration::from_secs(30);
const DEFAULT_RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_KEEP: u32 = 20;

/// More run records than this would weigh on every release.
const KEEP_LIMIT: u32 = 1000;

/// The settings of `meshlock run`.
///
/// # Errors
/// With the usage kind for what was typed, with the config kind for variables and configuration files, and for files
/// wherever their names come from.
pub fn run(typed: cli::Run, environment: &Environment) -> Result<Run, Failure> {
    let files = Files::read(typed.configuration.config.as_deref(), environment)?;
    with_files(typed, environment, &files)
}

/// The same, where these are the configuration files.
///
/// # Errors
/// As [`run`].
pub fn with_files(typed: cli::Run, environment: &Environment, files: &Files) -> Result<Run, Failure> {
    let typed = named(typed, &Sources::new(environment, files, None))?;
    let sources = Sources::new(environment, files, typed.name.as_deref());
    let resolved = resolve(&typed, &sources)?;
    Ok(Run {
        // Last, since a FIFO's reader is told by it that we are there.
        report: report(typed.records.report.as_deref(), &sources)?,
        origins: sources.told(),
        command: typed.command,
        ..resolved
    })
}

/// Everything but the command and the report, which is opened at once.
fn resolve(typed: &cli::Run, sources: &Sources) -> Result<Run, Failure> {
    refuse_option_as_command(&typed.command)?;
    let environment = sources.environment;
    let records = &typed.records;
    let keep = |text: &str| whole_number(text, KEEP_LIMIT);
    let status = |text: &str| whole_number(text, u32::from(u8::MAX));
    let conflict_status = read(
        sources,
        "conflict-exit-code",
        typed.waiting.conflict_exit_code.as_deref(),
        status,
    )?;
    let prefix = place::prefix(&typed.place, sources)?;
    let place = match &typed.name {
        Some(name) => place::named(&prefix, name, &typed.place, sources)?,
        None => place::keyed(&prefix, &typed.place, sources)?,
    };
    let asked = asked(&typed.holding, sources)?;
    let connection = connection::resolve(&typed.connection, sources)?;
    let mut holder = Draft::new(&typed.command, records, sources)?;
    let whole_seconds = |limit: Duration| limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
    holder.purpose.max_runtime = asked.max_runtime.map(whole_seconds);
    Ok(Run {
        reach: held::reach(&typed.connection, sources, &connection),
        place,
        prefix,
        wait: wait(&typed.waiting, sources)?,
        asked,
        stop_signal: read(sources, "stop-signal", typed.holding.stop_signal.as_deref(), signal)?
            .unwrap_or(Signal::SIGTERM),
        stragglers: stragglers(&typed.holding, sources)?,
        conflict_status: conflict_status.map_or(CONTENDED, |status| u8::try_from(status).unwrap_or(CONTENDED)),
        keep: read(sources, "keep", records.keep.as_deref(), keep)?.unwrap_or(DEFAULT_KEEP),
        holder,
        environment: for_the_command(environment),
        outer_leases: outer_leases(environment),
        outer_holds: held::around(environment),
        verbosity: verbosity(&typed.output, sources)?,
        warnings: warnings(&connection, environment),
        connection,
        origins: Vec::new(),
        dumb_terminal: looks::is_dumb(environment),
        report: None,
        command: Vec::new(),
    })
}

/// Behind a `--` that stands before NAME there is a NAME all the same, unless the lock is one at a key: then all is the
/// command.
fn named(mut typed: cli::Run, sources: &Sources) -> Result<cli::Run, Failure> {
    if typed.name.is_none() && sources.find("lock-key", typed.place.lock_key.as_deref()).is_none() {
        if typed.command.len() < 2 {
            return Err(Failure::new(
                FailureKind::Usage,
                "the following required arguments were not provided: <NAME>; see meshlock run --help",
            ));
        }
        typed.name = Some(typed.command.remove(0));
    }
    Ok(typed)
}

/// Containers often have such files, and cannot help it: the run goes on.
fn warnings(connection: &Connection, environment: &Environment) -> Vec<String> {
    let exposed = connection.exposed.iter();
    let exposed = exposed.map(|file| format!("{file} can be read by every user of this machine: chmod o= it"));
    misspelt::warnings(environment).into_iter().chain(exposed).collect()
}

/// clap takes an unknown option between NAME and COMMAND for the command: a misspelt one would be found out only
/// with the lock in hand.
fn refuse_option_as_command(command: &[OsString]) -> Result<(), Failure> {
    match command.first() {
        Some(program) if program.as_bytes().starts_with(b"-") => {
            // Its value may be a password.
            let end = program.as_bytes().iter().position(|byte| *byte == b'=');
            let option = OsStr::from_bytes(&program.as_bytes()[..end.unwrap_or(program.len())]);
            Err(Failure::new(
                FailureKind::Usage,
                format!(
                    "unknown option {}; see meshlock run --help (for a command of that name, write its path)",
                    quoted(option)
                ),
            ))
        }
        _ => Ok(()),
    }
}

fn read<T>(
    sources: &Sources,
    flag: &str,
    typed: Option<&OsStr>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, Failure> {
    sources.find(flag, typed).map(|found| found.read(parse)).transpose()
}

fn wait(typed: &cli::Waiting, sources: &Sources) -> Result<Option<Duration>, Failure> {
    if typed.no_wait {
        return Ok(Some(Duration::ZERO));
    }
    let wait = sources.find("wait", typed.wait.as_deref());
    let no_wait = switched_on(sources, "no-wait")?;
    match (wait, no_wait) {
        (Some(wait), no_wait) if nearer(&wait.source, no_wait.as_ref())? => wait.read(duration::parse).map(Some),
        (_, Some(_)) => Ok(Some(Duration::ZERO)),
        (_, None) => Ok(None),
    }
}

/// Of two settings of which only one can hold, the nearer does.
fn nearer(one: &Source, other: Option<&Source>) -> Result<bool, Failure> {
    match other {
        Some(other) if one.layer == other.layer => Err(Failure::new(
            one.failure_kind(),
            format!("{one} and {other} cannot both be set"),
        )),
        Some(other) => Ok(one.layer < other.layer),
        None => Ok(true),
    }
}

fn asked(typed: &cli::Holding, sources: &Sources) -> Result<Asked, Failure> {
    let spans = [
        ("ttl", typed.ttl.as_deref()),
        ("grace", typed.grace.as_deref()),
        ("lost-grace", typed.lost_grace.as_deref()),
    ];
    let [ttl, grace, lost_grace] = spans.map(|(flag, typed)| read(sources, flag, typed, duration::parse));
    let max_runtime = typed.max_runtime.as_deref();
    let release_timeout = typed.release_timeout.as_deref();
    let asked = Asked {
        ttl: ttl?.unwrap_or(DEFAULT_TTL),
        grace: grace?,
        lost_grace: lost_grace?.unwrap_or_default(),
        max_runtime: read(sources, "max-runtime", max_runtime, positive_duration)?,
        release_timeout: read(sources, "release-timeout", release_timeout, positive_duration)?
            .unwrap_or(DEFAULT_RELEASE_TIMEOUT),
    };
    // A combination is to blame on the command line where any part of it was typed.
    let was_typed = spans.iter().any(|(_, typed)| typed.is_some());
    let kind = if was_typed {
        FailureKind::Usage
    } else {
        FailureKind::Config
    };
    let variables: Vec<_> = spans
        .iter()
        .filter_map(|(flag, typed)| sources.find(flag, *typed))
        .filter(|found| found.source.layer != Layer::Flag)
        .map(|found| found.source.to_string())
        .collect();
    match Rules::as_asked(&asked) {
        Ok(_) => Ok(asked),
        Err(refusal) if variables.is_empty() => Err(Failure::new(kind, refusal.to_string())),
        Err(refusal) => {
            let set = variables.join(" and ");
            Err(Failure::new(kind, format!("{refusal} ({set} is set)")))
        }
    }
}

fn stragglers(typed: &cli::Holding, sources: &Sources) -> Result<Stragglers, Failure> {
    let by_name =
        |name: &str| Stragglers::from_str(name, true).map_err(|_| "is not one of leave, wait, kill".to_owned());
    Ok(match typed.stragglers {
        Some(typed) => typed,
        None => read(sources, "stragglers", None, by_name)?.unwrap_or(Stragglers::Leave),
    })
}

fn verbosity(typed: &cli::Output, sources: &Sources) -> Result<Verbosity, Failure> {
    match (typed.quiet, typed.verbose) {
        (true, _) => return Ok(Verbosity::Quiet),
        (_, true) => return Ok(Verbosity::Verbose),
        _ => {}
    }
    let (quiet, verbose) = (switched_on(sources, "quiet")?, switched_on(sources, "verbose")?);
    Ok(match (quiet, verbose) {
        (Some(quiet), verbose) if nearer(&quiet, verbose.as_ref())? => Verbosity::Quiet,
        (_, Some(_)) => Verbosity::Verbose,
        (_, None) => Verbosity::Normal,
    })
}

/// A flag without a value, set elsewhere than on the command line.
fn switch(sources: &Sources, flag: &str) -> Result<bool, Failure> {
    switched_on(sources, flag).map(|on| on.is_some())
}

/// Where it is switched on.
fn switched_on(sources: &Sources, flag: &str) -> Result<Option<Source>, Failure> {
    let on = |text: &str| match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("is neither true nor false".to_owned()),
    };
    let Some(found) = sources.find(flag, None) else {
        return Ok(None);
    };
    Ok(found.read(on)?.then_some(found.source))
}

fn report(typed: Option<&Path>, sources: &Sources) -> Result<Option<Target>, Failure> {
    let Some(Found { source, value }) = sources.path("report", typed) else {
        return Ok(None);
    };
    Target::open(&value).map(Some).map_err(|error| {
        let why = format!("{source} {} cannot be written: {}", quoted(&value), reason(&error));
        Failure::new(FailureKind::Config, why)
    })
}

/// All that we inherited, less what the command has no business with: our password, and our report, which a meshlock
/// inside would overwrite.
fn for_the_command(environment: &Environment) -> Vec<(OsString, OsString)> {
    environment
        .iter()
        .filter(|(name, _)| *name != "MESHLOCK_PASSWORD" && *name != "MESHLOCK_REPORT")
        .map(|(name, value)| match name {
            user if user == "MESHLOCK_USER" => (name.into(), connection::without_password(value).into()),
            _ => (name.into(), value.into()),
        })
        .collect()
}

/// What cannot be read was not written by us, and is no lease that we could wait for.
fn outer_leases(environment: &Environment) -> Vec<i64> {
    let list = environment.get("MESHLOCK_HELD_LEASES").and_then(OsStr::to_str);
    list.unwrap_or_default()
        .split(':')
        .filter_map(|lease| i64::from_str_radix(lease, 16).ok())
        .filter(|lease| *lease > 0)
        .collect()
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("is no time at all: it must be more than 0".to_owned()),
        span => Ok(span),
    }
}

fn whole_number(text: &str, limit: u32) -> Result<u32, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && *number <= limit);
    number.ok_or_else(|| format!("is not a whole number from 0 to {limit}"))
}

fn signal(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let name = format!("SIG{}", upper.strip_prefix("SIG").unwrap_or(&upper));
    let number = text.parse().ok().and_then(|number: i32| Signal::try_from(number).ok());
    number
        .or_else(|| name.parse().ok())
        .ok_or_else(|| "is not a signal: write TERM, SIGTERM or 15".to_owned())
}

/// In words alone: the number that `io::Error` adds helps nobody.
fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_owned(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
