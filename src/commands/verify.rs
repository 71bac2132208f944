//! `meshlock verify`: settings → etcd's word → outcome. A plain sequence; decides nothing.

use super::asking::on_one_thread;
use crate::lock::proof::{self, Verdict};
use crate::outcome::{Failure, FailureKind, Outcome};
use crate::report::Reporter;
use crate::settings::Verbosity;
use crate::settings::verify::Verify;
use crate::store::Fault;
use crate::store::etcd::Etcd;
use tokio::time::timeout;

/// Says whether the hold still stands.
pub fn verify(settings: &Verify) -> Outcome {
    let reporter = Reporter::new(settings.verbosity);
    let Verify {
        claim,
        connection,
        at_least,
        ..
    } = settings;
    let asked = on_one_thread(async {
        let etcd = Etcd::of_cluster(connection, claim.cluster);
        timeout(connection.dial_timeout, proof::prove(&etcd, claim, *at_least))
            .await
            .unwrap_or_else(|_| Err(connection.silent()))
    });
    let unproven = |kind, why: &str| {
        let why = format!("\"{}\" cannot be proven to be held: {why}", claim.name);
        Outcome::Failed(Failure::new(kind, why))
    };
    let outcome = match asked {
        Ok(Ok(Verdict::Held { left })) => {
            reporter.verbose(&format!(
                "\"{}\" is held: token {}, {:.1} s left",
                claim.name,
                claim.token,
                left.as_secs_f64()
            ));
            Outcome::Answered { well: true }
        }
        Ok(Ok(Verdict::NotHeld { why })) => Outcome::Lost {
            why: format!("\"{}\" {why}", claim.name),
            command: None,
        },
        Ok(Ok(Verdict::Unproven { why })) => unproven(FailureKind::Unavailable, &why),
        Ok(Err(Fault::Unreachable { why })) => {
            unproven(FailureKind::Unavailable, &format!("etcd could not be reached: {why}"))
        }
        Ok(Err(fault)) => unproven(fault.failure().kind, &fault.to_string()),
        Err(failure) => Outcome::Failed(failure),
    };
    let silenced = settings.verbosity == Verbosity::Quiet && matches!(outcome, Outcome::Lost { .. });
    if !silenced {
        reporter.outcome(&outcome);
    }
    outcome
}
