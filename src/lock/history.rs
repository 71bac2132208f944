//! The records of the last runs, read from etcd: of one lock, or of all. Writes nothing, and judges nothing.

use super::board::pieces::Ran;
use super::keys::{self, Kind, Place};
use crate::store::Fault;
use crate::store::etcd::Etcd;
use crate::store::pages::Keys;
use std::collections::BTreeMap;

/// The last `count` runs that `wanted` takes, newest first: of one lock, or of all under `root`.
pub async fn last(
    etcd: &Etcd,
    root: &str,
    place: Option<&Place>,
    count: usize,
    wanted: impl Fn(&Ran) -> bool,
) -> Result<Vec<Ran>, Fault> {
    let prefix = place.map_or_else(|| keys::all(root, Kind::Log), Place::log);
    let mut records = Keys::new(etcd, &prefix, true, None);
    let mut newest: BTreeMap<(i64, String), Ran> = BTreeMap::new();
    while let Some(item) = records.next().await? {
        let found = || keys::encoded_name(root, Kind::Log, &item.key).map(|encoded| Place::found(root, encoded));
        let Some(place) = place.cloned().or_else(found) else {
            continue;
        };
        let ran = Ran::new(&place, item);
        if wanted(&ran) {
            newest.insert((ran.created, ran.key.clone()), ran);
        }
        if newest.len() > count {
            newest.pop_first();
        }
    }
    Ok(newest.into_values().rev().collect())
}
