//! `meshlock doctor`: settings → facts → findings → outcome. A plain sequence; decides nothing.

use super::asking::on_one_thread;
use crate::health::examine::examine;
use crate::health::judge::judge;
use crate::health::{Endpoint, Level, worst};
use crate::outcome::{Failure, FailureKind, Outcome};
use crate::report::{self, Reporter, Verbosity};
use crate::settings::doctor::Doctor;

/// Says how well everything is suited to locks.
pub fn doctor(settings: &Doctor) -> Outcome {
    let outcome = match on_one_thread(examine(&settings.connection, &settings.prefixes)) {
        Ok(facts) => {
            let findings = judge(&facts);
            if settings.json {
                report::page(&report::health::json(&facts, &findings));
            } else {
                report::page(&report::health::text(&findings, settings.quiet));
            }
            if facts.endpoints.iter().any(Endpoint::answered) {
                let well = worst(&findings) < Level::Red;
                Outcome::Answered { well }
            } else {
                Outcome::Failed(Failure::new(FailureKind::Unavailable, "no endpoint answers"))
            }
        }
        Err(failure) => Outcome::Failed(failure),
    };
    Reporter::new(Verbosity::Normal).outcome(&outcome);
    outcome
}
