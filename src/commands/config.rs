//! `meshlock config`: settings → stdout, and what is wrong with them. A plain sequence; decides nothing.

use super::asking::unwritable;
use crate::outcome::Failure;
use crate::report::{Out, Reporter, Verbosity, settings};
use crate::settings::config::Config;

/// Shows the settings.
///
/// # Errors
/// What is wrong with them, after they are shown, or that stdout cannot be written.
pub fn config(config: Config) -> Result<u8, Failure> {
    let out = Out::new(config.looks);
    if config.json {
        out.text(&settings::json(&config.shown))
    } else {
        out.show(|width| settings::text(&config.shown, width))
    }
    .map_err(|error| unwritable(&error))?;
    let reporter = Reporter::new(Verbosity::Normal);
    for warning in &config.warnings {
        reporter.notice(warning);
    }
    config.wrong.map_or(Ok(0), Err)
}
