//! Many keys, read in pieces that a message can hold: etcd-client takes none of more than 4 MiB, and anybody
//! with the right may have put keys and values of any size in our way. Linearizable; writes nothing. Knows
//! nothing of what the keys mean.

use super::etcd::Etcd;
use super::line::Line;
use super::wire::{self, cluster};
use super::{Answer, Fault, Found, Item, Op, Read, Txn, abreast, fault};
use etcd_client::{GetOptions, GetResponse, ResponseHeader, TxnOp, TxnOpResponse, TxnResponse};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Keys in one answer. Servers before 3.5 go through all that is left of a range for each page of it, so these are
/// large; where keys are so long that they do not fit, smaller ones are asked for.
const PAGE: u32 = 16_000;
/// The same with values.
const PAGE_OF_VALUES: u32 = 2000;
/// Values in one answer; etcd refuses transactions of more than 128 operations (`--max-txn-ops`).
const VALUES: usize = 100;
/// Bytes of keys in one question for values: etcd takes none of more than 1.5 MiB (`--max-request-bytes`).
const KEYS: usize = 512 * 1024;
/// What is kept of a value: no record of ours is longer, whatever its texts are escaped to. What is longer is
/// somebody else's, of which the beginning is shown.
const KEPT: usize = 128 * 1024;
/// Answers that may be under way at once: so many messages are held in memory at most.
const AT_A_TIME: usize = 8;

/// How tonic refuses a message that is over its limit; it has no code of its own.
const TOO_LARGE: &str = "message length too large";

/// The keys of a prefix in their order, at one revision: that of the first page unless another is given.
pub struct Keys {
    etcd: Etcd,
    next: Option<Vec<u8>>,
    end: Vec<u8>,
    limit: u32,
    values: bool,
    buffer: VecDeque<Item>,
    pub revision: Option<i64>,
    pub cluster: u64,
}

struct Page {
    cluster: u64,
    revision: i64,
    items: Vec<Item>,
    next: Option<Vec<u8>>,
}

impl Keys {
    /// All keys that begin with `prefix`; without `values` these are empty.
    pub fn new(etcd: &Etcd, prefix: &str, values: bool, revision: Option<i64>) -> Self {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1; // of UTF-8, where no byte is the highest
        }
        Self {
            etcd: etcd.clone(),
            next: Some(prefix.as_bytes().to_vec()),
            end,
            limit: if values { PAGE_OF_VALUES } else { PAGE },
            values,
            buffer: VecDeque::new(),
            revision,
            cluster: 0,
        }
    }

    pub async fn next(&mut self) -> Result<Option<Item>, Fault> {
        self.fill().await?;
        Ok(self.buffer.pop_front())
    }

    /// The next one, which stays the next one.
    pub async fn peek(&mut self) -> Result<Option<&Item>, Fault> {
        self.fill().await?;
        Ok(self.buffer.front())
    }

    async fn fill(&mut self) -> Result<(), Fault> {
        while self.buffer.is_empty()
            && let Some(first) = self.next.take()
        {
            let page = self.page(&first).await?;
            self.revision.get_or_insert(page.revision);
            self.cluster = page.cluster;
            self.next = page.next;
            self.buffer = page.items.into();
        }
        Ok(())
    }

    async fn page(&mut self, first: &[u8]) -> Result<Page, Fault> {
        loop {
            // A value that no message can hold is not one of ours: its key alone is told.
            let values = self.values && self.limit > 0;
            let options = GetOptions::new()
                .with_range(self.end.clone())
                .with_limit(self.limit.max(1).into());
            let options = if values { options } else { options.with_keys_only() };
            let options = match self.revision {
                Some(revision) => options.with_revision(revision),
                None => options,
            };
            match self.etcd.range(first, options).await? {
                Some(page) => {
                    // Large ones are rare: what comes after one is asked for in larger pieces again, by and by.
                    let most = if self.values { PAGE_OF_VALUES } else { PAGE };
                    self.limit = (self.limit + self.limit / 4 + 1).min(most);
                    return Ok(page);
                }
                None if self.limit == 0 => {
                    return Err(Fault::Internal {
                        why: "a key alone is larger than a message may be".to_owned(),
                    });
                }
                None => self.limit /= 2,
            }
        }
    }
}

impl Etcd {
    /// The reads at one revision. `None`: the answer is larger than a message may be.
    pub async fn read(&self, reads: Vec<Read>) -> Result<Option<Answer>, Fault> {
        let txn = wire::txn(Txn {
            then: reads.into_iter().map(Op::Read).collect(),
            ..Txn::default()
        });
        Box::pin(self.each(&|client| {
            let txn = txn.clone();
            async move { fits(wire::commit(client, txn).await) }
        }))
        .await
    }

    /// What the read finds, its values by parts where one message does not hold them. Of long values no more than the
    /// beginning.
    pub async fn found(&self, read: Read) -> Result<Found, Fault> {
        let first = |answer: Answer| answer.reads.into_iter().next().unwrap_or_default();
        if let Some(answer) = self.read(vec![read.clone()]).await? {
            return Ok(first(answer));
        }
        let keys = Read {
            keys_only: true,
            ..read
        };
        let Some(answer) = self.read(vec![keys]).await? else {
            return Err(Fault::Internal {
                why: "the keys alone are larger than a message may be".to_owned(),
            });
        };
        let revision = answer.revision;
        let mut found = first(answer);
        self.fill(found.items.iter_mut(), revision).await?;
        Ok(found)
    }

    /// The values of the keys as they were at the revision, in their order; empty for what is not there, and for
    /// what no message can hold. Of long ones no more than the beginning.
    pub async fn values(&self, keys: &[String], revision: i64) -> Result<Vec<Vec<u8>>, Fault> {
        let batches = batches(keys).map(|batch| {
            let (etcd, batch) = (self.clone(), batch.to_vec());
            async move { etcd.batch(&batch, revision).await }
        });
        let mut done = BTreeMap::new();
        abreast::ask(AT_A_TIME, batches, |number, values| {
            done.insert(number, values?);
            Ok(())
        })
        .await?;
        Ok(done.into_values().flatten().collect())
    }

    /// Puts the values that these had at the revision into them.
    pub async fn fill<'a>(&self, items: impl Iterator<Item = &'a mut Item>, revision: i64) -> Result<(), Fault> {
        let items: Vec<&mut Item> = items.collect();
        let keys: Vec<String> = items.iter().map(|item| item.key.clone()).collect();
        for (item, value) in items.into_iter().zip(self.values(&keys, revision).await?) {
            item.value = value;
        }
        Ok(())
    }

    async fn batch(&self, keys: &[String], revision: i64) -> Result<Vec<Vec<u8>>, Fault> {
        let mut values = Vec::with_capacity(keys.len());
        let mut rest = keys;
        let mut size = keys.len();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(size.min(rest.len()));
            match self.some_values(now, revision).await? {
                Some(some) => {
                    values.extend(some);
                    rest = later;
                    size *= 2;
                }
                None if now.len() == 1 => {
                    values.push(Vec::new());
                    rest = later;
                }
                None => size = now.len() / 2,
            }
        }
        Ok(values)
    }

    async fn some_values(&self, keys: &[String], revision: i64) -> Result<Option<Vec<Vec<u8>>>, Fault> {
        let get = |key: &String| TxnOp::get(key.clone(), Some(GetOptions::new().with_revision(revision)));
        let txn = etcd_client::Txn::new().and_then(keys.iter().map(get).collect::<Vec<_>>());
        Box::pin(self.each(&|client: Arc<Line>| {
            let txn = txn.clone();
            async move { fits(client.kv_client().txn(txn).await.map(|answer| values(&answer))) }
        }))
        .await
    }

    async fn range(&self, first: &[u8], options: GetOptions) -> Result<Option<Page>, Fault> {
        Box::pin(self.each(&|client: Arc<Line>| {
            let options = options.clone();
            async move { fits(client.kv_client().get(first, Some(options)).await.map(page)) }
        }))
        .await
    }
}

fn page(mut found: GetResponse) -> (Option<u64>, Page) {
    let header = found.take_header();
    let more = found.more();
    let items = found.take_kvs();
    let next = items.last().filter(|_| more).map(|last| [last.key(), &[0]].concat());
    let page = Page {
        cluster: header.as_ref().map_or(0, ResponseHeader::cluster_id),
        revision: header.as_ref().map_or(0, ResponseHeader::revision),
        items: items.into_iter().map(wire::item).collect(),
        next,
    };
    (cluster(header.as_ref()), page)
}

/// The keys in their order, as many at a time as one question and its answer may have.
fn batches(keys: &[String]) -> impl Iterator<Item = &[String]> {
    let mut rest = keys;
    std::iter::from_fn(move || {
        let mut room = KEYS;
        let fits = rest.iter().take(VALUES).take_while(|key| {
            let fits = room >= key.len();
            room = room.saturating_sub(key.len());
            fits
        });
        let (now, later) = rest.split_at(fits.count().max(1).min(rest.len()));
        rest = later;
        (!now.is_empty()).then_some(now)
    })
}

fn values(answer: &TxnResponse) -> (Option<u64>, Vec<Vec<u8>>) {
    let value = |done| match done {
        TxnOpResponse::Get(mut found) => found.take_kvs().pop().map(|item| {
            let mut value = item.into_key_value().1;
            if value.len() > KEPT {
                value.truncate(KEPT);
                value.shrink_to_fit();
            }
            value
        }),
        TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
    };
    let values = answer
        .op_responses()
        .into_iter()
        .map(|done| value(done).unwrap_or_default());
    (cluster(answer.header()), values.collect())
}

/// An answer over the limit is no error of the endpoint's: it will be the same at the next one.
fn fits<T>(answer: Result<(Option<u64>, T), etcd_client::Error>) -> wire::Answered<Option<T>> {
    match answer {
        Ok((cluster, answer)) => Ok((cluster, Some(answer))),
        Err(error) if fault::status_says(&error, TOO_LARGE) => Ok((None, None)),
        Err(error) => Err(error),
    }
}
