//! `meshlock doctor`: settings → facts → findings → stdout. A plain sequence; decides nothing.

use super::asking::{on_one_thread, unwritable};
use crate::health::examine::examine;
use crate::health::judge::judge;
use crate::health::{Endpoint, Level, worst};
use crate::outcome::{CHECK, Failure, FailureKind};
use crate::report::{Out, health};
use crate::settings::doctor::Doctor;

/// Says how well everything is suited to locks.
///
/// # Errors
/// Where no endpoint answers, after the findings are shown, or stdout cannot be written.
pub fn doctor(settings: &Doctor) -> Result<u8, Failure> {
    let facts = on_one_thread(examine(&settings.connection, &settings.prefixes))?;
    let findings = judge(&facts);
    let out = Out::new(settings.looks);
    if settings.json {
        out.text(&health::json(&facts, &findings))
    } else {
        out.show(|_| health::text(&findings, settings.quiet, settings.everything))
    }
    .map_err(|error| unwritable(&error))?;
    if !facts.endpoints.iter().any(Endpoint::answered) {
        return Err(Failure::new(FailureKind::Unavailable, "no endpoint answers"));
    }
    Ok(if worst(&findings) < Level::Red { 0 } else { CHECK })
}
