//! The queue in etcd: each step of the protocol as one transaction and its answer as plain data. Decides
//! nothing: what follows from an answer is [`super::keeper`]'s affair.

use super::keys::Place;
use super::record::{Holder, Open, Run};
pub use super::view::{Ahead, Entry, Granted, Renewal, Stale, View};
use super::view::{entry, frozen, stale};
use crate::moment::Moment;
use crate::rules::Rules;
pub use crate::store::Change;
use crate::store::etcd::Etcd;
use crate::store::{Answer, Fault, Found, If, Item, Op, Order, Read, Txn, What};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// Open records in one answer. Nearly always there are none; a crashed host may have left hundreds, which
/// are then read in a second call.
const FEW: u32 = 16;
const MANY: u32 = 1000;
/// Entries before ours that a re-read counts.
const COUNTED: u32 = 100;
/// Two keys each; etcd refuses transactions of more than 128 operations (`--max-txn-ops`).
const CLEARED_AT_ONCE: usize = 50;

/// The queue of one lock, and us in it. Cheap to clone.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

struct Inner {
    store: Etcd,
    place: Place,
    holder: Holder,
    /// How many run records are kept.
    keep: u32,
    /// The lease last asked for, and when its first try was sent.
    asked: Mutex<Option<(i64, Moment)>>,
}

impl Queue {
    pub fn new(store: Etcd, place: Place, holder: Holder, keep: u32) -> Self {
        Self(Arc::new(Inner {
            store,
            place,
            holder,
            keep,
            asked: Mutex::new(None),
        }))
    }

    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// The queue as it stands, without an entry of ours and without writing.
    pub async fn look(&self) -> Result<View, Fault> {
        let answer = self.0.store.txn(read_only(self.reads(None, None))).await?;
        self.view(answer, None, None).await
    }

    /// The lease `lease`; may be called again with it after an unknown outcome, and then still tells the
    /// instant before the very first try.
    pub async fn grant(&self, lease: i64, ttl: Duration) -> Result<Granted, Fault> {
        let sent = {
            let mut asked = self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
            match *asked {
                Some((id, sent)) if id == lease => sent,
                _ => asked.insert((lease, Moment::now())).1,
            }
        };
        let ttl = self.0.store.grant(lease, ttl).await?;
        Ok(Granted { sent, ttl })
    }

    /// Takes a place at the queue's end, if we have none. Where nobody is before us the answer is all that a
    /// start needs: it was given at the one revision at which we came.
    pub async fn enqueue(&self, lease: i64, ttl: Duration) -> Result<View, Fault> {
        let key = self.0.place.entry(lease);
        let txn = Txn {
            when: vec![If::Created {
                key: key.clone(),
                at: 0,
            }],
            then: [self.arrival(lease, ttl)?, self.reads(Some(lease), None)].concat(),
            otherwise: vec![Op::Read(one(key))],
        };
        let answer = self.0.store.txn(txn).await?;
        if answer.succeeded {
            return self.view(answer, Some(lease), None).await;
        }
        // An earlier try was done though its answer was lost; others may have come behind us since.
        let token = only(answer.reads).map_or(0, |entry| entry.created);
        self.read(lease, token).await
    }

    /// Takes the lock if the queue is empty and the name not frozen, else writes nothing. An entry of ours
    /// that is there already, by a try whose answer was lost, is in [`View::mine`] too.
    pub async fn seize(&self, lease: i64, ttl: Duration) -> Result<View, Fault> {
        let txn = Txn {
            when: vec![
                If::Empty {
                    prefix: self.0.place.queue().to_owned(),
                },
                If::Created {
                    key: self.0.place.freeze(),
                    at: 0,
                },
            ],
            then: [self.arrival(lease, ttl)?, self.reads(Some(lease), None)].concat(),
            otherwise: self.reads(Some(lease), None),
        };
        let answer = self.0.store.txn(txn).await?;
        self.view(answer, Some(lease), None).await
    }

    /// Our entry and those before it, now.
    pub async fn read(&self, lease: i64, token: i64) -> Result<View, Fault> {
        let reads = self.reads(Some(lease), Some(token));
        let answer = self.0.store.txn(read_only(reads)).await?;
        self.view(answer, Some(lease), Some(token)).await
    }

    /// The start beside unclean departures once their hand-over delay is over: deletes their open records if
    /// our entry is there and the name not frozen. [`View::stale`] is empty if that was done.
    pub async fn clear(&self, lease: i64, token: i64, stale: &[String]) -> Result<View, Fault> {
        let mut rest = stale;
        loop {
            let (now, later) = rest.split_at(rest.len().min(CLEARED_AT_ONCE));
            let reads = self.reads(Some(lease), Some(token));
            let txn = Txn {
                when: vec![
                    If::Created {
                        key: self.0.place.entry(lease),
                        at: token,
                    },
                    If::Created {
                        key: self.0.place.freeze(),
                        at: 0,
                    },
                ],
                then: now
                    .iter()
                    .flat_map(|key| self.remains(key))
                    .chain(reads.clone())
                    .collect(),
                otherwise: reads,
            };
            let answer = self.0.store.txn(txn).await?;
            if later.is_empty() || !answer.succeeded {
                return self.view(answer, Some(lease), Some(token)).await;
            }
            rest = later;
        }
    }

    /// One renewal: sent, answered in time, and confirmed by a read of our entry begun after the answer, in
    /// the same raft term. Without that read a deposed leader's answer would be believed
    /// (etcd-io/etcd#15247: it goes on answering after a pause, while the new one lets the lease run out);
    /// a linearizable read in the answer's own term shows that there was no newer leader when it was given.
    pub async fn renew(&self, lease: i64, token: i64, rules: &Rules) -> Result<Renewal, Fault> {
        match self.renew_once(lease, token, rules.answer_within).await {
            Err(Fault::Replaced { why }) => Ok(Renewal::Gone { why }),
            outcome => outcome,
        }
    }

    async fn renew_once(&self, lease: i64, token: i64, within: Duration) -> Result<Renewal, Fault> {
        let store = &self.0.store;
        let alive = store.keep_alive(lease, within).await?;
        let late = Moment::now().since(alive.sent) > within;
        let entry = one(self.0.place.entry(lease));
        let answer = store.txn_once(read_only(vec![Op::Read(entry)]), within).await?;
        let term = answer.term;
        let Some(entry) = only(answer.reads).filter(|entry| entry.created == token) else {
            return Ok(Renewal::Gone {
                why: "its entry in the queue is gone: the lease was revoked or ran out, or somebody deleted the key"
                    .to_owned(),
            });
        };
        let unproven = |why: &str| Ok(Renewal::Unproven { why: why.to_owned() });
        let Some(ttl) = alive.ttl else {
            return unproven("the lease is said to be unknown, but our entry is there");
        };
        if entry.lease != lease {
            return unproven("our entry is no longer bound to our lease");
        }
        if late {
            return unproven("the answer came too late");
        }
        if term != alive.term {
            return unproven("the leader changed meanwhile");
        }
        Ok(Renewal::Accepted { sent: alive.sent, ttl })
    }

    /// Leaves the queue; may be called again after an unknown outcome. `run` is what ran under the entry and
    /// is dead, so that nobody has a reason left to hold back; `None`, where nothing ever ran. `token` is
    /// `None` where the outcome of the enqueueing is unknown. An entry that is not the one we held is left
    /// alone. Run records up to and with `drop_upto` make room for the new one.
    pub async fn leave(
        &self,
        lease: i64,
        token: Option<i64>,
        run: Option<&Run>,
        drop_upto: Option<&str>,
    ) -> Result<(), Fault> {
        let place = &self.0.place;
        let departure = [place.entry(lease), place.open(lease), place.ask(lease)].map(|key| Op::Delete { key });
        let (Some(token), Some(run)) = (token, run) else {
            if token.is_none() {
                // A lost enqueueing may still be under way; without its lease it can do nothing more.
                self.revoke(lease).await?;
            }
            let txn = Txn {
                then: departure.to_vec(),
                ..Txn::default()
            };
            return self.0.store.txn(txn).await.map(drop);
        };
        let record = place.run_record(token);
        let mut recorded = Vec::new();
        // Numbers go back when a snapshot is restored; etcd refuses to write and delete one key at once.
        if let Some(last) = drop_upto.filter(|&last| last < record.as_str()) {
            recorded.push(Op::DeleteUpTo {
                first: place.log(),
                last: last.to_owned(),
            });
        }
        let without_record = recorded.clone();
        if self.0.keep > 0 {
            recorded.push(put(record, run, 0)?);
        }
        let [entry, rest @ ..] = departure;
        let txn = |recorded: Vec<Op>| {
            let lost = [rest.to_vec(), recorded].concat();
            Txn {
                when: vec![If::Created {
                    key: place.entry(lease),
                    at: token,
                }],
                then: [vec![entry.clone()], lost.clone()].concat(),
                otherwise: lost,
            }
        };
        match self.0.store.txn(txn(recorded)).await {
            Err(Fault::NoSpace { .. }) => self.0.store.txn(txn(without_record)).await.map(drop),
            outcome => outcome.map(drop),
        }
    }

    /// Ends the lease, and with it whatever is still bound to it. That it is unknown is success, which is final
    /// only once the grant's outcome is known.
    pub async fn revoke(&self, lease: i64) -> Result<(), Fault> {
        self.0.store.revoke(lease).await
    }

    /// Watches the keys, [`Change::Ready`] first; ends with why the watch broke. `None` is from now on: what
    /// happened before must be read then. A revision in the past leaves no gap, but etcd serves such a watch
    /// about every 100 ms until it has caught up.
    pub async fn watch(&self, keys: Vec<String>, from: Option<i64>, changes: UnboundedSender<Change>) -> Fault {
        self.0.store.watch(&keys, from, &changes).await
    }

    /// Our entry and its open record.
    fn arrival(&self, lease: i64, ttl: Duration) -> Result<Vec<Op>, Fault> {
        let Inner { place, holder, .. } = &*self.0;
        let open = Open {
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            holder: holder.clone(),
        };
        Ok(vec![
            put(place.entry(lease), holder, lease)?,
            put(place.open(lease), &open, 0)?,
        ])
    }

    /// What an unclean departure left: the open record, and what was asked of its entry.
    fn remains(&self, open: &str) -> Vec<Op> {
        let place = &self.0.place;
        let ask = place.lease_of_open(open).map(|lease| place.ask(lease));
        ask.into_iter()
            .chain([open.to_owned()])
            .map(|key| Op::Delete { key })
            .collect()
    }

    /// What a [`View`] is made of, in the order in which [`Queue::view`] takes it apart.
    fn reads(&self, lease: Option<i64>, token: Option<i64>) -> Vec<Op> {
        let place = &self.0.place;
        let first = |prefix: &str, order, limit| Read {
            what: What::First {
                prefix: prefix.to_owned(),
                order,
                limit,
            },
            created_before: token,
            keys_only: false,
        };
        // Before our token is known, our own entry is among the youngest.
        let youngest = if token.is_some() { COUNTED } else { 2 };
        let mut reads = vec![
            first(place.queue(), Order::Oldest, 1),
            Read {
                keys_only: true,
                ..first(place.queue(), Order::Youngest, youngest)
            },
            first(&place.opens(), Order::Oldest, FEW),
            one(place.freeze()),
            Read {
                keys_only: true,
                created_before: None,
                ..first(&place.log(), Order::LastKey, self.0.keep.max(1))
            },
            Read {
                created_before: None,
                ..first(&place.log(), Order::LastKey, 1)
            },
        ];
        if let Some(lease) = lease {
            reads.extend([one(place.entry(lease)), one(place.ask(lease))]);
        }
        reads.into_iter().map(Op::Read).collect()
    }

    /// What the answer to [`Queue::reads`] says to who has this lease, and this token if it is known already.
    pub async fn view(&self, answer: Answer, lease: Option<i64>, token: Option<i64>) -> Result<View, Fault> {
        let place = &self.0.place;
        let mut reads = answer.reads.into_iter();
        let mut next = || reads.next().unwrap_or_default();
        let [oldest, youngest, mut opens, freeze, log, last_run, mine, ask] = std::array::from_fn(|_| next());

        let own = lease.map(|lease| place.entry(lease));
        let mine = mine
            .items
            .first()
            .filter(|entry| Some(entry.lease) == lease && token.is_none_or(|token| entry.created == token))
            .map(|entry| entry.created);
        let not_ours = |item: &&Item| Some(&item.key) != own.as_ref();
        let ahead = match (oldest.items.iter().find(not_ours), youngest.items.iter().find(not_ours)) {
            (Some(holder), Some(predecessor)) => Some(Ahead {
                count: match token {
                    Some(_) => i64::try_from(youngest.items.len()).unwrap_or(i64::MAX),
                    None => oldest.all - i64::from(mine.is_some()),
                },
                holder: entry(holder, last_run.items.first()),
                predecessor: predecessor.key.clone(),
            }),
            _ => None,
        };
        // Those of the entries ahead lie here too: only when these are gone does an open record say anything.
        if ahead.is_some() {
            opens.items.clear();
        } else if opens.items.len() >= FEW as usize {
            opens = self.all_opens(token.or(mine)).await?;
        }
        Ok(View {
            cluster: answer.cluster,
            revision: answer.revision,
            mine,
            ahead,
            stale: opens
                .items
                .iter()
                // What else lies there says nothing of a departure, and a key that is not UTF-8 could not be deleted.
                .filter(|item| place.lease_of_open(&item.key).is_some_and(|of| Some(of) != lease))
                .map(stale)
                .collect(),
            frozen: freeze.items.first().map(frozen),
            ask: ask.items.into_iter().next().map(|item| item.value),
            oldest_kept: log
                .items
                .get(self.0.keep.saturating_sub(1) as usize)
                .map(|item| item.key.clone()),
        })
    }

    async fn all_opens(&self, token: Option<i64>) -> Result<Found, Fault> {
        let read = Read {
            what: What::First {
                prefix: self.0.place.opens(),
                order: Order::Oldest,
                limit: MANY,
            },
            created_before: token,
            keys_only: false,
        };
        let answer = self.0.store.txn(read_only(vec![Op::Read(read)])).await?;
        Ok(answer.reads.into_iter().next().unwrap_or_default())
    }
}

fn read_only(reads: Vec<Op>) -> Txn {
    Txn {
        then: reads,
        ..Txn::default()
    }
}

fn one(key: String) -> Read {
    Read {
        what: What::Key(key),
        created_before: None,
        keys_only: false,
    }
}

fn only(reads: Vec<Found>) -> Option<Item> {
    reads.into_iter().next()?.items.into_iter().next()
}

fn put(key: String, record: &impl serde::Serialize, lease: i64) -> Result<Op, Fault> {
    let value = serde_json::to_vec(record).map_err(|error| Fault::Internal { why: error.to_string() })?;
    Ok(Op::Put { key, value, lease })
}
