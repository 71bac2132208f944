//! `meshlock history`: settings → the runs recorded in etcd → stdout. A plain sequence; decides nothing.

use super::asking::{asking, unwritable};
use crate::lock::board::pieces::Ran;
use crate::lock::history;
use crate::lock::keys::Place;
use crate::outcome::Failure;
use crate::report::{Out, Reporter, Verbosity, locks};
use crate::settings::status::History;
use std::time::SystemTime;

/// Shows the last runs.
///
/// # Errors
/// Where etcd or stdout cannot be reached.
pub fn history(settings: &History) -> Result<u8, Failure> {
    let History {
        prefix, place, count, ..
    } = settings;
    let wanted = |ran: &Ran| !settings.failed || ran.failed();
    let (runs, other) = asking(&settings.connection, async |etcd| {
        let runs = history::last(&etcd, prefix, place.as_ref(), *count, &wanted).await?;
        // Easily taken for it: the key of the same text.
        let namesake = place.as_ref().filter(|_| runs.is_empty()).and_then(Place::namesake);
        let other = match &namesake {
            Some(_) => history::last(&etcd, prefix, namesake.as_ref(), 1, &wanted).await?,
            None => Vec::new(),
        };
        Ok((runs, other.into_iter().next()))
    })?;
    if runs.is_empty() && !settings.json {
        nothing(settings, other.as_ref());
        return Ok(0);
    }
    let out = Out::new(settings.looks);
    let now = SystemTime::now();
    if settings.json {
        out.text(&locks::history_json(&runs, now))
    } else {
        out.show(|width| locks::history(&runs, settings.place.is_none(), now, width))
    }
    .map(|_| 0)
    .map_err(|error| unwritable(&error))
}

/// A wrong name or prefix must not look like a quiet night.
fn nothing(settings: &History, other: Option<&Ran>) {
    let what = if settings.failed { "no failed run" } else { "no run" };
    let whose = match &settings.place {
        Some(place) => format!(" of \"{}\"", place.called()),
        None => String::new(),
    };
    let other = other.map(|ran| format!("; {}", locks::recorded_of_the_key(&ran.name)));
    Reporter::new(Verbosity::Normal).notice(&format!(
        "{what}{whose} is recorded under \"{}\" in etcd at {}{}",
        settings.prefix,
        settings.connection.whom(),
        other.unwrap_or_default()
    ));
}
