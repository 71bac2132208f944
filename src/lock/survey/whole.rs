//! One lock in full, read in two round trips: its queue, open records, runs, marks and asks, each to a limit. Asks for
//! nothing that is not in its keys.

use super::OPENS;
use crate::lock::board::{Board, Lock, Namesake, Read as Contents, Unread};
use crate::lock::keys::{Kind, Place};
use crate::store::etcd::Etcd;
use crate::store::pages::Keys;
use crate::store::{Fault, Found, Item, Order, Read, What};
use std::collections::BTreeMap;

/// Entries and asks that are read. How many there are is told all the same.
const QUEUE: u32 = 100;
const MARKS: u32 = 100;

/// With the last `runs` runs.
pub(super) async fn read(etcd: &Etcd, place: &Place, runs: u32) -> Result<Board, Fault> {
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
