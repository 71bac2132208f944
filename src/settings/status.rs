//! The settings of `meshlock status` and `meshlock history`: which locks, from where, and how they are shown.

use super::file::Files;
use super::source::{Sources, quoted};
use super::{connection, duration, looks, place, read};
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
    let files = Files::read(typed.configuration.config.as_deref(), environment)?;
    let sources = Sources::new(environment, &files, None);
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
        looks: looks::of(environment),
    })
}

/// The settings of `meshlock history`.
///
/// # Errors
/// As [`super::run`].
pub fn history(typed: &cli::History, environment: &Environment) -> Result<History, Failure> {
    let files = Files::read(typed.configuration.config.as_deref(), environment)?;
    let sources = Sources::new(environment, &files, None);
    let prefix = place::prefix(&typed.place, &sources)?;
    let names: Vec<OsString> = typed.name.iter().cloned().collect();
    let count = |text: &str| {
        let number = super::whole_number(text, COUNT_LIMIT).ok().filter(|number| *number > 0);
        number.ok_or_else(|| format!("is not a whole number from 1 to {COUNT_LIMIT}"))
    };
    let count = read(&sources, "number", typed.number.as_deref(), count)?.unwrap_or(DEFAULT_COUNT);
    Ok(History {
        connection: connection::resolve(&typed.connection, &sources)?,
        place: places(&prefix, &names, &typed.place, &sources)?.pop(),
        prefix,
        failed: typed.failed,
        count: usize::try_from(count).unwrap_or(usize::MAX),
        json: typed.json,
        looks: looks::of(environment),
    })
}

/// The named ones, or the one at `--lock-key`. A name beside a key would be passed over, and the answer be about another
/// lock: only a file's own table for that name can say at which key it lies.
fn places(prefix: &str, names: &[OsString], typed: &cli::Place, sources: &Sources) -> Result<Vec<Place>, Failure> {
    let Some(name) = names.first() else {
        return Ok(Vec::from_iter(place::shared(prefix, None, typed, sources)?));
    };
    if let Some(key) = sources.find("lock-key", typed.lock_key.as_deref()) {
        let why = format!(
            "{} is set, and so is the name {}: they are two locks; leave the name out, or the key",
            key.source,
            quoted(name)
        );
        return Err(Failure::new(FailureKind::Usage, why));
    }
    names
        .iter()
        .map(|name| match place::at_key(prefix, name) {
            Some(place) => place,
            None => place::named(prefix, name, typed, &sources.about(name)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    fn with(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Status, Failure> {
        let words = [&["meshlock", "status"], arguments].concat();
        match Cli::try_parse_from(words)
            .unwrap_or_else(|error| panic!("{error}"))
            .command
        {
            Command::Status(typed) => status(&typed, &variables.iter().copied().collect()),
            _ => panic!("another command"),
        }
    }

    fn named(arguments: &[&str], variables: &[(&str, &str)]) -> Vec<(String, String)> {
        let settings = with(arguments, variables).unwrap_or_else(|failure| panic!("{}", failure.why));
        let place = |place: &Place| (place.name.clone(), place.queue().to_owned());
        settings.places.iter().map(place).collect()
    }

    #[test]
    fn the_locks_are_those_named_or_the_one_at_the_key_or_all() {
        let pair = |name: &str, queue: &str| (name.to_owned(), queue.to_owned());
        let key = ("MESHLOCK_LOCK_KEY", "jobs/x");
        assert_eq!(named(&[], &[]), []);
        assert_eq!(
            named(&["b", "a/c", "--prefix=p"], &[]),
            [pair("b", "p/lock/b/"), pair("a/c", "p/lock/a%2Fc/")]
        );
        assert_eq!(named(&[], &[key]), [pair("jobs/x", "jobs/x/")]);
        assert_eq!(named(&["jobs/x (--lock-key)"], &[]), [pair("jobs/x", "jobs/x/")]);
        for names in [&["x"][..], &["x", "y"]] {
            let refused = with(names, &[key]).err().expect("a failure");
            assert_eq!(
                (refused.kind, refused.why.as_str()),
                (
                    FailureKind::Usage,
                    "MESHLOCK_LOCK_KEY is set, and so is the name \"x\": they are two locks; leave the name out, or the key"
                )
            );
        }
    }

    #[test]
    fn a_time_to_warn_after_is_a_duration() {
        let check = |span| with(&["--check", "--warn-after", span], &[]).map(|settings| settings.output);
        let warn_after = Some(Duration::from_secs(7200));
        assert_eq!(check("2h").ok(), Some(Output::Check { warn_after }));
        assert_eq!(check("2x").err().map(|failure| failure.kind), Some(FailureKind::Usage));
    }
}
