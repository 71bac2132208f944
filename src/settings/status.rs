//! The settings of `meshlock status` and `meshlock history`: which locks, from where, and how they are shown.

use super::source::Sources;
use super::{connection, duration, place, read};
use crate::cli;
use crate::lock::keys::Place;
use crate::outcome::{Failure, FailureKind};
use crate::report::Looks;
use crate::settings::Environment;
use crate::store::Connection;
use std::ffi::OsString;
use std::time::Duration;

/// What `meshlock status` needs to know.
pub struct Status {
    pub connection: Connection,
    /// The key prefix of everything, with its closing slash.
    pub prefix: String,
    /// None: all of them.
    pub places: Vec<Place>,
    pub output: Output,
    /// Ask for the TTLs of however many locks.
    pub ttl_left: bool,
    pub looks: Looks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Text,
    Json,
    Prometheus,
    Watch,
    /// Nothing but the exit status where all is well. With a time, a lock may be held for no longer.
    Check {
        warn_after: Option<Duration>,
    },
}

/// What `meshlock history` needs to know.
pub struct History {
    pub connection: Connection,
    pub prefix: String,
    /// `None`: all locks.
    pub place: Option<Place>,
    pub failed: bool,
    pub count: usize,
    pub json: bool,
    pub looks: Looks,
}

const DEFAULT_COUNT: u32 = 20;
/// Runs that are held in memory.
const COUNT_LIMIT: u32 = 100_000;

/// The settings of `meshlock status`.
///
/// # Errors
/// As [`super::run`].
pub fn status(typed: &cli::Status, environment: &Environment) -> Result<Status, Failure> {
    let sources = Sources(environment);
    let prefix = place::prefix(&typed.place, &sources)?;
    let warn_after = read(
        &sources,
        "warn-after",
        typed.showing.warn_after.as_deref(),
        duration::parse,
    )?;
    let output = match typed.showing {
        cli::Showing { json: true, .. } => Output::Json,
        cli::Showing { prometheus: true, .. } => Output::Prometheus,
        cli::Showing { watch: true, .. } => Output::Watch,
        cli::Showing { check: true, .. } => Output::Check { warn_after },
        _ => Output::Text,
    };
    Ok(Status {
        connection: connection::resolve(&typed.connection, &sources)?,
        places: places(&prefix, &typed.names, &typed.place, &sources)?,
        prefix,
        output,
        ttl_left: typed.showing.ttl_left,
        looks: looks(environment),
    })
}

/// The settings of `meshlock history`.
///
/// # Errors
/// As [`super::run`].
pub fn history(typed: &cli::History, environment: &Environment) -> Result<History, Failure> {
    let sources = Sources(environment);
    let prefix = place::prefix(&typed.place, &sources)?;
    let names: Vec<OsString> = typed.name.iter().cloned().collect();
    let count = |text: &str| super::whole_number(text, COUNT_LIMIT);
    let count = read(&sources, "number", typed.number.as_deref(), count)?.unwrap_or(DEFAULT_COUNT);
    Ok(History {
        connection: connection::resolve(&typed.connection, &sources)?,
        place: places(&prefix, &names, &typed.place, &sources)?.pop(),
        prefix,
        failed: typed.failed,
        count: usize::try_from(count).unwrap_or(usize::MAX),
        json: typed.json,
        looks: looks(environment),
    })
}

/// The named ones; `--lock-key` alone is called by its key.
fn places(prefix: &str, names: &[OsString], typed: &cli::Place, sources: &Sources) -> Result<Vec<Place>, Failure> {
    let shared = sources.find("lock-key", typed.lock_key.as_deref());
    match (shared, names) {
        (Some(shared), []) => shared
            .read(|key| Place::verbatim(prefix, key, key).map_err(|why| format!("cannot be a lock's key: {why}")))
            .map(|place| vec![place]),
        (Some(shared), [_, _, ..]) => Err(Failure::new(
            FailureKind::Usage,
            format!("{} is one lock, and several names are given", shared.source),
        )),
        (_, names) => names
            .iter()
            .map(|name| place::named(prefix, name, typed, sources))
            .collect(),
    }
}

/// As <https://no-color.org> has it.
fn looks(environment: &Environment) -> Looks {
    let dumb = environment.get("TERM").is_none_or(|term| term == "dumb");
    Looks {
        colour: !dumb && environment.get("NO_COLOR").is_none(),
        cursor: !dumb,
    }
}
