//! What stands below the options in the long help of each subcommand: durations, the environment, the exit statuses.

use crate::outcome::{EXIT_STATUSES, Row};
use clap::builder::StyledStr;
use std::fmt::Write as _;

pub(super) fn of_run() -> StyledStr {
    after_long_help(
        "each option can be set by a variable, --some-option by MESHLOCK_SOME_OPTION; \
         MESHLOCK_PASSWORD is the password. Then etcdctl's variables count: ETCDCTL_ENDPOINTS, _DISCOVERY_SRV, \
         _DISCOVERY_SRV_NAME, _DIAL_TIMEOUT, _CACERT, _CERT, _KEY, _USER, _PASSWORD. An empty variable is unset. \
         Then come the configuration files: meshlock-config(1).",
        "Exit status",
        |row| Some(row.meaning),
    )
}

pub(super) fn of_askers() -> StyledStr {
    after_long_help(
        "where etcd is, the prefix and the lock's key can be set by the variables of meshlock run, and by its \
         configuration files; NO_COLOR turns colours off.",
        "Exit status, besides 0 and what is said above",
        |row| row.asking,
    )
}

pub(super) fn of_config() -> StyledStr {
    after_long_help(
        "the variables of meshlock run count here as they do there; NO_COLOR turns colours off.",
        "Exit status, besides 0",
        |row| row.asking.filter(|_| ["usage", "config"].contains(&row.name)),
    )
}

pub(super) fn of_verify() -> StyledStr {
    after_long_help(
        "MESHLOCK_HELD_ALL, which meshlock run sets for its command, tells what is held and where etcd is. An option \
         goes before that, and that before the variables of meshlock run. Configuration files are not read.",
        "Exit status, besides 0 and what is said above",
        |row| row.asking,
    )
}

fn after_long_help(environment: &str, heading: &str, meaning: impl Fn(&Row) -> Option<&'static str>) -> StyledStr {
    let mut help = format!(
        "Durations: 30s, 5m, 1h30m, 250ms; a plain number is seconds; fractions are allowed.\n\n\
         Environment: {environment}\n\n\
         {heading}:\n"
    );
    for (row, meaning) in EXIT_STATUSES.iter().filter_map(|row| Some((row, meaning(row)?))) {
        // Writing to a String cannot fail.
        write!(help, "  {}  {}\n          {meaning}\n", row.status, row.name).ok();
    }
    help.into()
}
