//! `meshlock verify`: settings → etcd's word → exit status. A plain sequence; decides nothing.

use super::asking::{on_one_thread, unanswered};
use crate::lock::proof::{self, Verdict};
use crate::outcome::{Failure, FailureKind, LOST};
use crate::report::{Reporter, Verbosity};
use crate::settings::verify::Verify;
use crate::store::etcd::Etcd;
use tokio::time::timeout;

/// Says whether the hold still stands.
///
/// # Errors
/// Where that cannot be told.
pub fn verify(settings: &Verify) -> Result<u8, Failure> {
    let Verify {
        claim,
        connection,
        at_least,
        verbosity,
    } = settings;
    let reporter = Reporter::new(*verbosity);
    let unproven = |kind, why: &str| {
        let why = format!("\"{}\" cannot be proven to be held: {why}", claim.name);
        Failure::new(kind, why)
    };
    let verdict = on_one_thread(async {
        let etcd = Etcd::of_cluster(connection, claim.cluster);
        timeout(connection.dial_timeout, proof::prove(&etcd, claim, *at_least))
            .await
            .unwrap_or_else(|_| Err(connection.silent()))
    })?
    .map_err(|fault| {
        let failure = unanswered(&fault);
        unproven(failure.kind, &failure.why)
    })?;
    match verdict {
        Verdict::Held { left } => {
            reporter.verbose(&format!(
                "\"{}\" is held: token {}, {:.1} s left",
                claim.name,
                claim.token,
                left.as_secs_f64()
            ));
            Ok(0)
        }
        Verdict::NotHeld { why } => {
            if *verbosity > Verbosity::Quiet {
                reporter.last_word(&format!("\"{}\" {why}", claim.name));
            }
            Ok(LOST)
        }
        Verdict::NeverSo { most } => Err(Failure::new(
            FailureKind::Usage,
            format!(
                "--at-least={} s can never be left of the TTL of \"{}\": {:.1} s at the most",
                at_least.as_secs_f64(),
                claim.name,
                most.as_secs_f64()
            ),
        )),
        Verdict::Unproven { why } => Err(unproven(FailureKind::Unavailable, &why)),
    }
}
