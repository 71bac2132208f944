//! All locks under a prefix at a glance, read page by page: the holder, the number of entries and the last run of each.
//! Asks for nothing that is not in their keys.

use super::{AT_A_TIME, OPENS};
use crate::lock::board::{Board, Lock, Read as Contents, Unread};
use crate::lock::keys::{self, Kind, Place};
use crate::store::etcd::Etcd;
use crate::store::pages::Keys;
use crate::store::{Fault, Item, abreast};
use std::collections::{BTreeMap, HashSet};

/// Locks whose values are asked for together.
const TOGETHER: usize = 400;

/// Sorted by name.
pub(super) async fn read(etcd: &Etcd, root: &str) -> Result<Board, Fault> {
    let mut frozen = Keys::new(etcd, &keys::all(root, Kind::Freeze), true, None);
    let mut freezes = BTreeMap::new();
    while let Some(item) = frozen.next().await? {
        if let Some(name) = keys::encoded_name(root, Kind::Freeze, &item.key) {
            freezes.insert(name.to_owned(), item);
        }
    }
    let revision = frozen.revision.unwrap_or(0);
    // Of one revision, and in one order: they are gone through side by side, name by name.
    let mut streams = [Kind::Lock, Kind::Open, Kind::Log]
        .map(|kind| (kind, Keys::new(etcd, &keys::all(root, kind), false, Some(revision))));
    let mut locks = Vec::new();
    let mut batch = Vec::new();
    while let Some(name) = least(root, &mut streams).await? {
        let mut glance = Glance {
            freeze: freezes.remove(&name),
            ..Glance::default()
        };
        for (kind, stream) in &mut streams {
            let named = |item: &Item| keys::encoded_name(root, *kind, &item.key) == Some(&name);
            while stream.peek().await?.is_some_and(named) {
                glance.take(*kind, stream.next().await?);
            }
        }
        batch.push((name, glance));
        if batch.len() == TOGETHER {
            locks.extend(filled(etcd, root, std::mem::take(&mut batch), revision).await?);
        }
    }
    batch.extend(freezes.into_iter().map(|(name, freeze)| {
        let glance = Glance {
            freeze: Some(freeze),
            ..Glance::default()
        };
        (name, glance)
    }));
    locks.extend(filled(etcd, root, batch, revision).await?);
    locks.sort_by(|one, other| (&one.name, &one.lock_key).cmp(&(&other.name, &other.lock_key)));
    Ok(Board {
        cluster: frozen.cluster,
        revision,
        locks,
    })
}

/// What is kept of one lock's keys while they pass by.
#[derive(Default)]
struct Glance {
    oldest: Option<Item>,
    tokens: HashSet<i64>,
    opens: Vec<Item>,
    last_run: Option<Item>,
    freeze: Option<Item>,
    hidden: bool,
}

impl Glance {
    fn take(&mut self, kind: Kind, item: Option<Item>) {
        let Some(item) = item else { return };
        match kind {
            Kind::Lock => {
                self.tokens.insert(item.created);
                if self.oldest.as_ref().is_none_or(|oldest| item.created < oldest.created) {
                    self.oldest = Some(item);
                }
            }
            Kind::Open => self.opens.push(item),
            Kind::Log => {
                if self.last_run.as_ref().is_none_or(|last| item.created > last.created) {
                    self.last_run = Some(item);
                }
            }
            Kind::Mark | Kind::Freeze | Kind::Ask => {}
        }
    }

    fn found(mut self, place: &Place) -> Contents {
        self.opens
            .retain(|open| !self.tokens.contains(&open.created) && place.lease(Kind::Open, &open.key).is_some());
        self.opens.sort_by_key(|open| open.created);
        let unread = Unread {
            opens: self.opens.len().saturating_sub(OPENS as usize),
            ..Unread::default()
        };
        self.opens.truncate(OPENS as usize);
        Contents {
            length: self.tokens.len(),
            hidden: self.hidden,
            queue: self.oldest.into_iter().collect(),
            opens: self.opens,
            freeze: self.freeze,
            runs: self.last_run.into_iter().collect(),
            unread,
            ..Contents::default()
        }
    }
}

/// The first of the names that the streams have next. Keys sort by name and slash: `a-b/` comes before `a/`.
async fn least(root: &str, streams: &mut [(Kind, Keys)]) -> Result<Option<String>, Fault> {
    let mut least: Option<String> = None;
    for (kind, stream) in streams {
        while let Some(item) = stream.peek().await? {
            let Some(name) = keys::encoded_name(root, *kind, &item.key) else {
                // Of no lock: nobody looks at it.
                stream.next().await?;
                continue;
            };
            let key = format!("{name}/");
            if least.as_ref().is_none_or(|least| key < *least) {
                least = Some(key);
            }
            break;
        }
    }
    Ok(least.map(|mut name| {
        name.pop();
        name
    }))
}

/// With the values of the few keys whose values say something.
async fn filled(etcd: &Etcd, root: &str, mut batch: Vec<(String, Glance)>, revision: i64) -> Result<Vec<Lock>, Fault> {
    read_queues_at_keys(etcd, root, &mut batch, revision).await?;
    let mut batch: Vec<(Place, Contents)> = batch
        .into_iter()
        .map(|(name, glance)| {
            let place = Place::found(root, &name);
            let contents = glance.found(&place);
            (place, contents)
        })
        .collect();
    let items = batch
        .iter_mut()
        .flat_map(|(_, found)| found.queue.iter_mut().chain(&mut found.opens).chain(&mut found.runs));
    etcd.fill(items, revision).await?;
    Ok(batch
        .into_iter()
        .map(|(place, contents)| Lock::new(&place, contents))
        .collect())
}

/// They lie outside of the root, where not everybody may read who may read all that is under it.
async fn read_queues_at_keys(
    etcd: &Etcd,
    root: &str,
    batch: &mut [(String, Glance)],
    revision: i64,
) -> Result<(), Fault> {
    let glances = batch.iter_mut().filter_map(|(name, glance)| {
        let place = Place::found(root, name);
        place.lock_key().map(|_| (place.queue().to_owned(), glance))
    });
    let (queues, mut glances): (Vec<_>, Vec<_>) = glances.unzip();
    let questions = queues.into_iter().map(|queue| {
        let etcd = etcd.clone();
        async move {
            let mut keys = Keys::new(&etcd, &queue, false, Some(revision));
            let mut entries = Vec::new();
            while let Some(item) = keys.next().await? {
                entries.push(item);
            }
            Ok(entries)
        }
    });
    abreast::ask(AT_A_TIME, questions, |number, answer| {
        match answer {
            Ok(entries) => {
                for entry in entries {
                    glances[number].take(Kind::Lock, Some(entry));
                }
            }
            Err(Fault::Denied { .. }) => glances[number].hidden = true,
            Err(fault) => return Err(fault),
        }
        Ok(())
    })
    .await
}
