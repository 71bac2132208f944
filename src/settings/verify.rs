//! What `meshlock verify` needs to know: which hold, how etcd is reached, and how much time must be left.

use super::file::Files;
use super::held::{self, Held};
use super::source::{Environment, Sources, quoted};
use super::{Verbosity, connection, duration, read, verbosity};
use crate::cli;
use crate::lock::keys;
use crate::lock::proof::Claim;
use crate::outcome::{Failure, FailureKind};
use crate::store::Connection;
use std::ffi::OsStr;
use std::time::Duration;

#[derive(Clone)]
pub struct Verify {
    pub claim: Claim,
    pub connection: Connection,
    pub at_least: Duration,
    pub verbosity: Verbosity,
}

/// The settings of `meshlock verify`.
///
/// # Errors
/// With the usage kind outside of the hold that is asked for, else as [`super::run`].
pub fn verify(typed: cli::Verify, environment: &Environment) -> Result<Verify, Failure> {
    // The hold's environment tells all that a file could; a file might lead to another cluster, or not be readable here.
    let files = Files::default();
    let sources = Sources::new(environment, &files, None);
    let held = held::told(environment).ok_or_else(not_ours)?;
    let held = asked_for(&held, typed.name.as_deref())?;
    let mut reach = typed.connection;
    held::reach_again(&mut reach, held, &sources);
    Ok(Verify {
        claim: claim(held)?,
        connection: connection::resolve(&reach, &sources)?,
        at_least: read(&sources, "at-least", typed.at_least.as_deref(), duration::parse)?.unwrap_or_default(),
        verbosity: verbosity(
            &cli::Output {
                quiet: typed.quiet,
                verbose: typed.verbose,
            },
            &sources,
        )?,
    })
}

/// The innermost hold, or the innermost of that name.
fn asked_for<'a>(held: &'a [Held], name: Option<&OsStr>) -> Result<&'a Held, Failure> {
    let innermost_first = || held.iter().rev();
    let Some(innermost) = innermost_first().next() else {
        return Err(usage(format!(
            "no lock is held around this process: verify is for commands under meshlock run ({} is not set)",
            held::ALL
        )));
    };
    let Some(name) = name else { return Ok(innermost) };
    innermost_first()
        .find(|held| name == held.name.as_str())
        .ok_or_else(|| {
            let names: Vec<_> = held.iter().map(|held| quoted(&held.name)).collect();
            usage(format!(
                "{} is not held around this process, which is under {}",
                quoted(name),
                names.join(" and ")
            ))
        })
}

fn claim(held: &Held) -> Result<Claim, Failure> {
    let (lease, cluster) = (
        i64::from_str_radix(&held.lease, 16),
        u64::from_str_radix(&held.cluster, 16),
    );
    match (lease, cluster) {
        (Ok(lease), Ok(cluster)) if keys::is_entry(&held.key, lease) => Ok(Claim {
            name: held.name.clone(),
            key: held.key.clone(),
            token: held.token,
            lease,
            cluster,
        }),
        _ => Err(not_ours()),
    }
}

fn not_ours() -> Failure {
    usage(format!("{} is not what meshlock run has set", held::ALL))
}

fn usage(why: String) -> Failure {
    Failure::new(FailureKind::Usage, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    #[test]
    fn what_is_told_of_a_hold_leads_verify_back_to_it() {
        let held = |name: &str, endpoints: &str| Held {
            name: name.to_owned(),
            token: 7,
            key: format!("meshlock/lock/{name}/2a"),
            lease: "2a".to_owned(),
            cluster: "c".to_owned(),
            reach: held::Reach {
                endpoints: endpoints.to_owned(),
                dial_timeout_ms: Some(9000),
                ..held::Reach::default()
            },
        };
        let all = held::list(&[held("outer", "http://a:1")], &held("inner", "http://b:2"));
        let verified = |arguments: &[&str]| {
            let words = ["meshlock", "verify"].iter().chain(arguments);
            let Command::Verify(typed) = Cli::try_parse_from(words).expect("arguments").command else {
                panic!("another command");
            };
            let variables = [
                (held::ALL, all.as_str()),
                ("MESHLOCK_ENDPOINTS", "http://c:3"),
                ("MESHLOCK_DIAL_TIMEOUT", "3s"),
            ];
            verify(typed, &variables.into_iter().collect())
        };
        for (arguments, name, endpoint) in [
            (&[][..], "inner", "http://b:2"),
            (&["inner"], "inner", "http://b:2"),
            (&["outer"], "outer", "http://a:1"),
            (&["--endpoints=http://d:4", "outer"], "outer", "http://d:4"),
        ] {
            let settings = verified(arguments).unwrap_or_else(|failure| panic!("{failure}"));
            assert_eq!(settings.claim.name, name);
            assert_eq!((settings.claim.lease, settings.claim.cluster), (0x2a, 0xc));
            assert_eq!(settings.connection.endpoints, [endpoint], "{arguments:?}");
            assert_eq!(settings.connection.dial_timeout, Duration::from_secs(9));
        }
        let settings = verified(&["--dial-timeout=1"]).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(settings.connection.dial_timeout, Duration::from_secs(1));
        let failure = verified(&["other"]).err().expect("a failure");
        assert_eq!(failure.kind, FailureKind::Usage);
    }
}
