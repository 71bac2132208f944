//! The settings of `meshlock config`, which are what it shows: all that `meshlock run` would go by, with where each is
//! from, and what `meshlock run` would refuse in them.

use super::file::Files;
use super::file::keys::{KEYS, Kind};
use super::source::{Environment, Layer, Sources, shown};
use super::{Part, looks, misspelt, resolve};
use crate::cli::{self, Cli};
use crate::outcome::Failure;
use crate::report::Looks;
use crate::report::settings::{Setting, Shown};
use clap::CommandFactory as _;
use std::ffi::OsStr;
use std::path::Path;

pub struct Config {
    pub shown: Shown,
    /// The first thing that is wrong.
    pub wrong: Option<Failure>,
    /// What the user should know of the settings, a line each.
    pub warnings: Vec<String>,
    pub json: bool,
    pub looks: Looks,
}

/// What `meshlock config` shows.
///
/// # Errors
/// Where a configuration file cannot be read or understood.
pub fn config(typed: &cli::Config, environment: &Environment) -> Result<Config, Failure> {
    let environment = &environment.unattended();
    let files = Files::read(typed.configuration.config.as_deref(), environment)?;
    let sources = Sources::new(environment, &files, typed.name.as_deref());
    let mut settings = all(&sources);
    let mut wrong = refusal(typed.name.as_deref().unwrap_or(ANY.as_ref()), &sources);
    if typed.name.is_none() {
        for lock in files.locks() {
            let sources = sources.about(lock.as_ref());
            settings.extend(of_a_lock(lock, &sources));
            wrong = wrong.or_else(|| refusal(lock.as_ref(), &sources));
        }
    }
    Ok(Config {
        shown: Shown {
            lock: typed.name.as_ref().map(|name| name.to_string_lossy().into_owned()),
            files: files.paths().map(Path::to_owned).collect(),
            settings,
        },
        wrong,
        warnings: misspelt::warnings(environment),
        json: typed.json,
        looks: looks::of(environment),
    })
}

/// A lock's name, where any will do.
const ANY: &str = "any";

/// Why `meshlock run` would not run under these settings.
fn refusal(name: &OsStr, sources: &Sources) -> Option<Failure> {
    let typed = cli::Run {
        name: Some(name.to_owned()),
        command: vec!["true".into()],
        ..cli::Run::default()
    };
    resolve(&typed, sources).err()
}

/// Each setting as it applies.
fn all(sources: &Sources) -> Vec<Setting> {
    let command = Cli::command();
    let run = command.find_subcommand("run");
    // What the help says in words.
    let default = |key: &str| {
        let option = run?.get_arguments().find(|option| option.get_long() == Some(key))?;
        let help = option.get_help()?.to_string();
        let (_, words) = help.split_once("[default: ")?;
        Some(words.split(']').next()?.to_owned())
    };
    let set = |key: &str| {
        let found = sources.set(key)?;
        Some(Setting {
            lock: None,
            key: key.to_owned(),
            value: Some(shown(key, found.value)),
            source: Some(found.source.place),
        })
    };
    let known = KEYS.iter().map(|key| {
        set(key.name).unwrap_or_else(|| Setting {
            lock: None,
            key: key.name.to_owned(),
            value: match key.kind {
                Kind::Switch => Some(false.to_string()),
                // DNS says it.
                _ if key.name == "endpoints" && sources.set("discovery-srv").is_some() => None,
                _ => default(key.name),
            },
            source: None,
        })
    });
    known.chain(set("password")).collect()
}

/// What applies to one lock alone.
fn of_a_lock(lock: &str, sources: &Sources) -> Vec<Setting> {
    let own = |key: &str| {
        let found = sources.set(key)?;
        matches!(found.source.layer, Layer::File(_, Part::Lock)).then(|| Setting {
            lock: Some(lock.to_owned()),
            key: key.to_owned(),
            value: Some(shown(key, found.value)),
            source: Some(found.source.place),
        })
    };
    KEYS.iter().filter_map(|key| own(key.name)).collect()
}
