//! What `meshlock doctor` needs to know: whom to ask, below which prefixes we must have rights, and how to say it.

use super::file::Files;
use super::source::{Environment, Sources};
use super::{connection, looks, place, switch};
use crate::cli;
use crate::lock::keys::Place;
use crate::outcome::Failure;
use crate::report::Looks;
use crate::store::Connection;

#[derive(Clone)]
pub struct Doctor {
    pub connection: Connection,
    /// `--prefix`, and `--lock-key` where it is given, else those of the configuration files; each with its closing slash.
    pub prefixes: Vec<String>,
    pub json: bool,
    /// Only what is not as it should be.
    pub quiet: bool,
    /// Each known defect of a version by itself.
    pub everything: bool,
    pub looks: Looks,
}

/// The settings of `meshlock doctor`.
///
/// # Errors
/// As [`super::run`].
pub fn doctor(typed: &cli::Doctor, environment: &Environment) -> Result<Doctor, Failure> {
    let files = Files::read(typed.configuration.config.as_deref(), environment)?;
    let sources = Sources::new(environment, &files, None);
    let prefix = place::prefix(&typed.place, &sources)?;
    let shared = match place::shared(&prefix, None, &typed.place, &sources)? {
        Some(place) => vec![place],
        None => in_the_files(&prefix, &typed.place, &sources)?,
    };
    let queues = shared.iter().map(|place| place.queue().to_owned());
    Ok(Doctor {
        connection: connection::resolve(&typed.connection, &sources)?,
        prefixes: [prefix.clone()].into_iter().chain(queues).collect(),
        json: typed.json,
        quiet: typed.quiet || switch(&sources, "quiet")?,
        everything: typed.verbose || switch(&sources, "verbose")?,
        looks: looks::of(environment),
    })
}

/// The locks that lie elsewhere by what the configuration files say of them.
fn in_the_files(prefix: &str, typed: &cli::Place, sources: &Sources) -> Result<Vec<Place>, Failure> {
    let shared = |name: &str| place::shared(prefix, Some(name), typed, &sources.about(name.as_ref())).transpose();
    sources.files.locks().into_iter().filter_map(shared).collect()
}
