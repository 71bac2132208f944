//! What `meshlock doctor` needs to know: whom to ask, below which prefixes we must have rights, and how to say it.

use super::source::{Environment, Sources};
use super::{connection, looks, place, switch};
use crate::cli;
use crate::outcome::Failure;
use crate::report::Looks;
use crate::store::Connection;

#[derive(Clone)]
pub struct Doctor {
    pub connection: Connection,
    /// `--prefix`, and `--lock-key` where it is given; each with its closing slash.
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
    let sources = Sources(environment);
    let prefix = place::prefix(&typed.place, &sources)?;
    let shared = place::shared(&prefix, None, &typed.place, &sources)?;
    let queue = shared.map(|place| place.queue().to_owned());
    Ok(Doctor {
        connection: connection::resolve(&typed.connection, &sources)?,
        prefixes: [prefix].into_iter().chain(queue).collect(),
        json: typed.json,
        quiet: typed.quiet || switch(&sources, "quiet")?,
        everything: typed.verbose || switch(&sources, "verbose")?,
        looks: looks::of(environment),
    })
}
