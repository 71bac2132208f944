//! Where a lock lies in etcd: the prefix of all keys, and a name or a verbatim key under it. What the keys
//! look like is `lock::keys`' affair.

use super::read;
use super::source::{Sources, quoted};
use crate::cli;
use crate::lock::keys::{self, BadName, Place};
use crate::outcome::{Failure, FailureKind};
use std::ffi::OsStr;

const DEFAULT_PREFIX: &str = "meshlock/";

/// Keys travel in messages and in the command's environment, which hold only so much.
const PREFIX_LIMIT: usize = 1000;

/// The key prefix of everything, with its closing slash.
pub(super) fn prefix(typed: &cli::Place, sources: &Sources) -> Result<String, Failure> {
    let prefix = read(sources, "prefix", typed.prefix.as_deref(), key_prefix)?;
    Ok(prefix.unwrap_or_else(|| DEFAULT_PREFIX.to_owned()))
}

/// The lock `name`, at `--lock-key` where that is given.
pub(super) fn named(prefix: &str, name: &OsStr, typed: &cli::Place, sources: &Sources) -> Result<Place, Failure> {
    if let Some(Ok(place)) = at_key(prefix, name) {
        let why = format!(
            "{} is what the lock at a key is called: it is named by --lock-key {}",
            quoted(name),
            quoted(&place.name)
        );
        return Err(Failure::new(FailureKind::Usage, why));
    }
    let place = name.to_str().ok_or(BadName::NotUtf8);
    let place = place.and_then(|name| Place::new(prefix, name)).map_err(|why| {
        let why = format!("{} cannot be a lock's name: {why}", quoted(name));
        Failure::new(FailureKind::Usage, why)
    })?;
    Ok(shared(prefix, Some(&place.name), typed, sources)?.unwrap_or(place))
}

/// The lock that people are told of by this text, where it is one at a key: what they read they will type.
pub(super) fn at_key(prefix: &str, called: &OsStr) -> Option<Result<Place, Failure>> {
    let key = keys::called_key(called.to_str()?)?;
    Some(Place::verbatim(prefix, key, key).map_err(|why| {
        let why = format!("{} cannot be a lock's key: {why}", quoted(key));
        Failure::new(FailureKind::Usage, why)
    }))
}

/// The lock at `--lock-key`, called by that.
pub(super) fn keyed(prefix: &str, typed: &cli::Place, sources: &Sources) -> Result<Place, Failure> {
    let missing = || Failure::new(FailureKind::Usage, "neither a lock's name nor --lock-key is given");
    shared(prefix, None, typed, sources)?.ok_or_else(missing)
}

/// The lock at `--lock-key`, where that is given; without a name it is called by its key.
pub(super) fn shared(
    prefix: &str,
    name: Option<&str>,
    typed: &cli::Place,
    sources: &Sources,
) -> Result<Option<Place>, Failure> {
    read(sources, "lock-key", typed.lock_key.as_deref(), |key| {
        Place::verbatim(prefix, name.unwrap_or(key), key).map_err(|why| format!("cannot be a lock's key: {why}"))
    })
}

fn key_prefix(text: &str) -> Result<String, String> {
    if text.is_empty() || text == "/" || text.chars().any(char::is_control) {
        return Err(
            "cannot be a key prefix: it must have a character, and none that is a control character".to_owned(),
        );
    }
    if text.len() > PREFIX_LIMIT {
        return Err(format!(
            "cannot be a key prefix: it is longer than {PREFIX_LIMIT} bytes"
        ));
    }
    Ok(format!("{}/", text.strip_suffix('/').unwrap_or(text)))
}
