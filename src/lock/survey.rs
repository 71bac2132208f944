//! Reads what a [`Board`] is made of: one lock in two round trips, all locks under a prefix page by page. Writes
//! nothing, needs no more than the right to read, and judges nothing.

use super::board::pieces::{Life, Ran};
use super::board::{Board, Lock, Namesake, Read as Contents, Unread};
use super::keys::{self, Kind, Place};
use crate::store::etcd::Etcd;
use crate::store::pages::Keys;
use crate::store::{Fault, Found, Item, Order, Read, What, abreast};
use std::collections::{BTreeMap, HashSet};

/// Entries, open records and asks of one lock that are read. How many there are is told all the same.
const QUEUE: u32 = 100;
const OPENS: u32 = 1000;
const MARKS: u32 = 100;
/// Locks whose values are asked for together.
const TOGETHER: usize = 400;
/// Leases that are asked about at a time: after the loss of a site there is one for each of its runs, and the way to
/// etcd may be long.
const AT_A_TIME: usize = 128;
/// How often one lock is looked at again where it changes under our eyes.
const LOOKS: usize = 3;

/// Whose leases are asked about, at a call each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lives {
    /// Those of open records without an entry alone, without which a living run is not told from a vanished one.
    Doubtful,
    /// Those of all holders too.
    Holders,
    /// The same, if there are no more than so many locks.
    HoldersOfUpTo(usize),
}

/// One lock, and its last `runs` runs.
pub async fn one(etcd: &Etcd, place: &Place, runs: u32, lives: Lives) -> Result<Board, Fault> {
    let mut looks = 0;
    loop {
        let (mut board, limit) = (whole(etcd, place, runs).await?, lives != Lives::Doubtful);
        ask_about_leases(etcd, &mut board.locks, limit).await?;
        ask_about_turns(etcd, &mut board.locks).await?;
        ask_about_freezes(etcd, &mut board.locks).await;
        looks += 1;
        // Its lease ended after we read the entry: by now somebody else may hold.
        let gone = |lock: &Lock| lock.queue.first().is_some_and(|first| first.life == Life::Gone);
        if looks == LOOKS || !board.locks.iter().any(gone) {
            return Ok(board);
        }
    }
}

async fn whole(etcd: &Etcd, place: &Place, runs: u32) -> Result<Board, Fault> {
    let namesake: Vec<String> = place
        .namesake()
        .iter()
        .flat_map(|other| [other.opens(), other.log()])
        .collect();
    let parts: Parts<(String, Order, u32)> = [
        (place.queue().to_owned(), Order::Oldest, QUEUE),
        (place.opens(), Order::Oldest, OPENS),
        (place.log(), Order::LastKey, runs),
        (place.marks(), Order::LastKey, MARKS),
        (place.asks(), Order::Oldest, QUEUE),
    ];
    let read = |what, keys_only| Read {
        what,
        created_before: None,
        keys_only,
    };
    let first = |prefix: &str, order, limit| What::First {
        prefix: prefix.to_owned(),
        order,
        limit,
    };
    let each = parts
        .iter()
        .map(|(prefix, order, limit)| read(first(prefix, *order, *limit), false));
    let freeze = read(What::Key(place.freeze()), false);
    let is_there = namesake
        .iter()
        .map(|prefix| read(first(prefix, Order::LastKey, 1), true));
    let reads = each.chain([freeze]).chain(is_there).collect();
    let seen = match etcd.read(reads).await? {
        Some(answer) => {
            let (cluster, revision) = (answer.cluster, answer.revision);
            let mut reads = answer.reads.into_iter();
            Seen {
                cluster,
                revision,
                parts: std::array::from_fn(|_| reads.next().unwrap_or_default()),
                freeze: reads.next().and_then(|found| found.items.into_iter().next()),
                namesake: reads.map(|found| !found.items.is_empty()).collect(),
            }
        }
        None => piecewise(etcd, &place.freeze(), parts, &namesake).await?,
    };
    board(etcd, place, seen).await
}

/// Of one lock: queue, open records, runs, marks and asks.
type Parts<T> = [T; 5];

/// What was read of one lock, at one revision.
struct Seen {
    cluster: u64,
    revision: i64,
    parts: Parts<Found>,
    freeze: Option<Item>,
    /// Whether its namesake has open records, and runs.
    namesake: Vec<bool>,
}

/// Read by parts, where one message does not hold it all: somebody has put large keys or values there.
async fn piecewise(
    etcd: &Etcd,
    freeze: &str,
    parts: Parts<(String, Order, u32)>,
    namesake: &[String],
) -> Result<Seen, Fault> {
    let mut frozen = Keys::new(etcd, freeze, false, None);
    // The first of all that begin so, if it is there.
    let mut freeze = frozen.next().await?.filter(|item| item.key == freeze);
    let revision = frozen.revision.unwrap_or(0);
    let keys = |prefix: &str| Keys::new(etcd, prefix, false, Some(revision));
    let mut seen: Parts<Found> = Parts::default();
    for ((prefix, order, limit), part) in parts.iter().zip(&mut seen) {
        let mut keys = keys(prefix);
        // By their place in the order, of which the last is dropped where there are more than the limit.
        let mut first = BTreeMap::new();
        while let Some(item) = keys.next().await? {
            part.all += 1;
            let rank = match order {
                Order::Oldest => item.created,
                Order::Youngest => -item.created,
                Order::LastKey => -part.all,
            };
            first.insert((rank, item.key.clone()), item);
            if first.len() > *limit as usize {
                first.pop_last();
            }
        }
        part.items = first.into_values().collect();
    }
    let items = seen.iter_mut().flat_map(|part| &mut part.items).chain(&mut freeze);
    etcd.fill(items, revision).await?;
    let mut is_there = Vec::new();
    for prefix in namesake {
        is_there.push(keys(prefix).next().await?.is_some());
    }
    Ok(Seen {
        cluster: frozen.cluster,
        revision,
        parts: seen,
        freeze,
        namesake: is_there,
    })
}

async fn board(etcd: &Etcd, place: &Place, seen: Seen) -> Result<Board, Fault> {
    let unread = seen.parts.each_ref().map(unread);
    let [queue, opens, runs, marks, mut asks] = seen.parts.map(|part| part.items);
    let [entries, unread_opens, unread_runs, unread_marks, mut unread_asks] = unread;
    if unread_asks > 0 {
        let more = asked(etcd, place, &queue, &asks, seen.revision).await?;
        unread_asks = unread_asks.saturating_sub(more.len());
        asks.extend(more);
    }
    // Of each entry there is one, oldest first as the entries are.
    let has_read = |entry: &&Item| opens.iter().any(|open| open.created == entry.created);
    let of_entries = entries + queue.len() - queue.iter().filter(has_read).count();
    let contents = Contents {
        length: queue.len() + entries,
        namesake: match seen.namesake[..] {
            [true, _] => Some(Namesake::InUse),
            [_, true] => Some(Namesake::Recorded),
            _ => None,
        },
        unread: Unread {
            opens: unread_opens.saturating_sub(of_entries),
            runs: unread_runs,
            marks: unread_marks,
            asks: unread_asks,
        },
        queue,
        hidden: false,
        opens,
        freeze: seen.freeze,
        runs,
        marks: Some(marks),
        asks,
    };
    Ok(Board {
        cluster: seen.cluster,
        revision: seen.revision,
        locks: vec![Lock::new(place, contents)],
    })
}

/// How many there are beside those that were read.
fn unread(part: &Found) -> usize {
    usize::try_from(part.all).unwrap_or(0).saturating_sub(part.items.len())
}

/// What is asked of those in the queue, where older asks than theirs were all that was read.
async fn asked(etcd: &Etcd, place: &Place, queue: &[Item], read: &[Item], revision: i64) -> Result<Vec<Item>, Fault> {
    let lease = |entry: &Item| place.lease(Kind::Lock, &entry.key);
    let keys = queue.iter().filter_map(lease).map(|lease| place.ask(lease));
    let keys: Vec<String> = keys.filter(|key| read.iter().all(|ask| ask.key != *key)).collect();
    let values = etcd.values(&keys, revision).await?;
    let item = |(key, value)| Item {
        key,
        value,
        created: 0,
        lease: 0,
    };
    let found = keys.into_iter().zip(values).filter(|(_, value)| !value.is_empty());
    Ok(found.map(item).collect())
}

/// All locks under `root`, by name: the holder, the number of entries and the last run of each.
pub async fn all(etcd: &Etcd, root: &str, lives: Lives) -> Result<Board, Fault> {
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
    let holders = match lives {
        Lives::Doubtful => false,
        Lives::Holders => true,
        Lives::HoldersOfUpTo(limit) => locks.len() <= limit,
    };
    ask_about_leases(etcd, &mut locks, holders).await?;
    ask_about_turns(etcd, &mut locks).await?;
    ask_about_freezes(etcd, &mut locks).await;
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

/// Where one that vanished may have been a waiter. Without an answer, as where etcd has forgotten the past, that stays open.
async fn ask_about_turns(etcd: &Etcd, locks: &mut [Lock]) -> Result<(), Fault> {
    let doubtful = locks.iter_mut().filter_map(|lock| Some((lock.in_doubt()?, lock)));
    let (questions, mut locks): (Vec<_>, Vec<_>) = doubtful.unzip();
    let questions = questions.into_iter().map(|(entry, revision)| {
        let etcd = etcd.clone();
        async move { etcd.values(&[entry], revision).await }
    });
    abreast::ask(AT_A_TIME, questions, |number, answer| {
        if let Ok(values) = answer {
            locks[number].settle(values.iter().any(|value| !value.is_empty()));
        }
        Ok(())
    })
    .await
}

/// Where one of ours came behind somebody who leaves no record: what has begun before a freeze goes on, what has not is
/// kept from it. Without an answer it counts as begun.
async fn ask_about_freezes(etcd: &Etcd, locks: &mut [Lock]) {
    for lock in locks {
        let Some((queue, revision)) = lock.frozen_in_doubt() else {
            continue;
        };
        let mut entries = Keys::new(etcd, queue, false, Some(revision));
        let mut first = None;
        while let Ok(Some(entry)) = entries.next().await {
            first = Some(first.map_or(entry.created, |first: i64| first.min(entry.created)));
        }
        if let Some(first) = first {
            lock.first_at_the_freeze(first);
        }
    }
}

/// Asks anew how long the leases of these locks' holders live: a renewal is no change of a key.
pub async fn renew(etcd: &Etcd, board: &mut Board) -> Result<(), Fault> {
    for first in board.locks.iter_mut().filter_map(|lock| lock.queue.first_mut()) {
        first.life = Life::at_first(first.lease);
    }
    ask_about_leases(etcd, &mut board.locks, true).await
}

/// What etcd does not say stays unknown: a member without a leader can answer all the rest.
async fn ask_about_leases(etcd: &Etcd, locks: &mut [Lock], holders: bool) -> Result<(), Fault> {
    let mut wanted = Vec::new();
    for lock in locks {
        if holders && let Some(first) = lock.queue.first_mut().filter(|first| first.lease != 0) {
            wanted.push((first.lease, (&mut first.life, false)));
        }
        // Whether a run has vanished is told by its lease alone: without an answer nothing may be said of the lock.
        wanted.extend(lock.open.iter_mut().map(|open| (open.lease, (&mut open.life, true))));
    }
    let (leases, mut lives): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
    let questions = leases.into_iter().map(|lease| {
        let etcd = etcd.clone();
        async move { etcd.lease_left(lease).await }
    });
    abreast::ask(AT_A_TIME, questions, |number, answer| {
        let (life, needed) = &mut lives[number];
        match answer {
            Ok(left) => **life = Life::of(left),
            Err(fault) if *needed => return Err(fault),
            Err(_) => {}
        }
        Ok(())
    })
    .await
}

/// The last `count` runs that `wanted` takes, newest first: of one lock, or of all under `root`.
pub async fn runs(
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
