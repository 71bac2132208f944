//! Names that are all but one of ours. A misspelt variable would go unnoticed, and the lock be
//! taken elsewhere. Others may have `MESHLOCK_*` variables of their own, so that none is refused.

use super::file::keys::KEYS;
use super::source::Environment;
use crate::cli::Cli;
use clap::CommandFactory as _;

/// What the command is told, and a meshlock inside it finds.
const OUT: &str = "HELD_";

/// One line for each.
pub(super) fn warnings(environment: &Environment) -> Vec<String> {
    let set = environment.iter().filter(|(_, value)| !value.is_empty());
    let set = set.filter_map(|(name, _)| name.to_str()?.strip_prefix("MESHLOCK_"));
    let set: Vec<&str> = set.filter(|name| !name.starts_with(OUT) && !is_of_run(name)).collect();
    // To build the whole definition takes longer than the rest of the start.
    if set.is_empty() {
        return Vec::new();
    }
    let ours = ours();
    set.into_iter()
        .filter(|name| !ours.iter().any(|our| our == name))
        .filter_map(|name| {
            let meant = nearest(name, ours.iter().map(String::as_str))?;
            Some(format!(
                "MESHLOCK_{name} is set, which meshlock does not know: is MESHLOCK_{meant} meant?"
            ))
        })
        .collect()
}

/// As nearly all are.
fn is_of_run(name: &str) -> bool {
    let mut keys = KEYS.iter().map(|key| key.name).chain(["config", "password"]);
    keys.any(|key| {
        key.len() == name.len()
            && key.bytes().zip(name.bytes()).all(|(key, byte)| match key {
                b'-' => byte == b'_',
                letter => byte == letter.to_ascii_uppercase(),
            })
    })
}

fn ours() -> Vec<String> {
    let command = Cli::command();
    let options = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let names = options.filter_map(|option| option.get_long());
    names
        .map(|name| name.replace('-', "_").to_ascii_uppercase())
        .chain(["PASSWORD".to_owned()])
        .collect()
}

/// The one that is all but `name`.
pub(super) fn nearest<'a>(name: &str, ours: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    ours.into_iter()
        .filter(|our| our.len().abs_diff(name.len()) <= 2)
        .map(|our| (strsim::osa_distance(name, our), our))
        // Of four letters two others are another word.
        .filter(|(distance, our)| *distance <= (our.len() / 3).min(2))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, our)| our)
}
