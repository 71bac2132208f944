//! The queue's protocol as data: each step as one transaction, and what its answer says. Pure, so that a model
//! checker can run the very transactions that are sent; knows neither how they travel nor what follows from an answer.

use super::keys::{Kind, Place};
use super::record::{Holder, Open, Run};
use super::view::{
    Ahead, Heir, Outdated, Predecessor, Renewal, Stale, Standing, Vanished, View, entry, frozen, stale, vanished,
};
use crate::moment::Moment;
use crate::store::{Alive, Answer, Fault, Found, If, Item, Op, Order, Read, Txn, What};
use std::time::Duration;

/// Open records in one answer. Nearly always there are none; a crashed host may have left hundreds, which
/// are then read in a second call.
const FEW: u32 = 16;
const MANY: u32 = 1000;
/// Where they stand among the reads, and the last run record.
const OPENS: usize = 2;
const LAST_RUN: usize = 5;
/// Entries before ours that a re-read counts.
const COUNTED: u32 = 100;
/// Two keys each; etcd refuses transactions of more than 128 operations (`--max-txn-ops`).
pub const CLEARED_AT_ONCE: usize = 50;

/// The queue of one lock, and who we are in it.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub place: Place,
    pub holder: Holder,
    /// How many run records are kept.
    pub keep: u32,
}

/// A run that vanished, as it is to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct Gone<'a> {
    /// Its open record's key.
    pub open: &'a str,
    pub left: Left<'a>,
}

/// What came of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Departure {
    /// By this call, or an earlier one whose answer was lost.
    Done,
    /// Nothing was done: our entry was gone already, and not by our hand.
    Taken,
}

/// How entry and open record go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// At one revision, at which the name is not frozen: whoever is next needs no more to start.
    AtOnce,
    /// The open record first, and the entry by [`Protocol::vacate`]: whoever is next looks at the queue.
    Apart,
}

/// What is left behind by a departure.
#[derive(Clone, Copy, Debug)]
pub struct Left<'a> {
    pub run: &'a Run,
    pub outdated: &'a [Outdated],
}

impl Protocol {
    /// The queue as it stands, without an entry of ours and without writing.
    pub fn look(&self) -> Txn {
        read_only(self.reads(None, None))
    }

    /// Takes a place at the queue's end, if we have none. Where nobody is before us the answer is all that a
    /// start needs: it was given at the one revision at which we came.
    ///
    /// # Errors
    /// Where a record cannot be written as JSON, which none can be that was made from text.
    pub fn enqueue(&self, lease: i64, ttl: Duration) -> Result<Txn, Fault> {
        let key = self.place.entry(lease);
        Ok(Txn {
            when: vec![If::Created {
                key: key.clone(),
                at: 0,
            }],
            then: [self.arrival(lease, ttl)?, self.reads(Some(lease), None)].concat(),
            otherwise: vec![Op::Read(one(key))],
        })
    }

    /// Takes the lock if the queue is empty and the name not frozen, else writes nothing. An entry of ours
    /// that is there already, by a try whose answer was lost, is in [`View::mine`] too.
    ///
    /// # Errors
    /// As [`Protocol::enqueue`].
    pub fn seize(&self, lease: i64, ttl: Duration) -> Result<Txn, Fault> {
        Ok(Txn {
            when: vec![
                If::Empty {
                    prefix: self.place.queue().to_owned(),
                },
                If::Created {
                    key: self.place.freeze(),
                    at: 0,
                },
            ],
            then: [self.arrival(lease, ttl)?, self.reads(Some(lease), None)].concat(),
            otherwise: self.reads(Some(lease), None),
        })
    }

    /// Our entry and those before it, now.
    pub fn read(&self, lease: i64, token: i64) -> Txn {
        read_only(self.reads(Some(lease), Some(token)))
    }

    /// The start beside unclean departures once their hand-over delay is over: deletes their open records if
    /// our entry is there and the name not frozen. At most [`CLEARED_AT_ONCE`] of them. With `vanished`, one of
    /// them, it records that run as well, if it has not come back meanwhile to say itself how it ended. That lies
    /// where the run's own record would, which is put over it if the run is alive after all.
    ///
    /// # Errors
    /// As [`Protocol::enqueue`].
    pub fn clear(&self, lease: i64, token: i64, stale: &[String], vanished: Option<Gone<'_>>) -> Result<Txn, Fault> {
        let reads = self.reads(Some(lease), Some(token));
        let created = |key, at| If::Created { key, at };
        let mut when = vec![created(self.place.entry(lease), token), created(self.place.freeze(), 0)];
        let mut then: Vec<Op> = stale.iter().flat_map(|key| self.remains(key)).collect();
        if let Some(Gone { open, left }) = vanished {
            when.push(created(open.to_owned(), left.run.token));
            then.extend(self.recorded(left)?);
        }
        then.extend(reads.clone());
        Ok(Txn {
            when,
            then,
            otherwise: reads,
        })
    }

    /// The linearizable half of a renewal.
    pub fn own_entry(&self, lease: i64) -> Txn {
        read_only(vec![Op::Read(one(self.place.entry(lease)))])
    }

    /// What has become of our entry, and of what holds us up.
    pub fn stand(&self, lease: i64, predecessor: Option<&str>) -> Txn {
        let place = &self.place;
        let keys = [place.entry(lease), place.ask(lease), place.freeze()];
        let keys = keys.into_iter().chain(predecessor.map(str::to_owned));
        read_only(keys.map(|key| Op::Read(one(key))).collect())
    }

    /// What the answer to [`Protocol::stand`] says.
    pub fn standing(answer: Answer, lease: i64, token: i64) -> Standing {
        let revision = answer.revision;
        let mut keys = answer.reads.into_iter().map(|found| found.items.into_iter().next());
        let [mine, ask, freeze, predecessor] = std::array::from_fn(|_| keys.next().flatten());
        Standing {
            revision,
            mine: mine
                .filter(|entry| entry.lease == lease && entry.created == token)
                .map(|entry| entry.created),
            predecessor: predecessor.is_some(),
            frozen: freeze.is_some(),
            ask: ask.map(|item| item.value),
        }
    }

    /// Leaves a place under which nothing ever ran. While the name is frozen, `AtOnce` does nothing.
    pub fn abandon(&self, lease: i64, how: How) -> Txn {
        Txn {
            when: self.may_go(how),
            then: self.departure(lease, how),
            ..Txn::default()
        }
    }

    /// Takes away the entry whose open record is gone.
    pub fn vacate(&self, lease: i64) -> Txn {
        Txn {
            then: [self.place.entry(lease), self.place.ask(lease)].map(delete).to_vec(),
            ..Txn::default()
        }
    }

    /// Lets go of the hold of `left.run`, which is dead, so that nobody has a reason left to hold back. If the entry
    /// is not there any more, or the name is frozen and this is to be `AtOnce`, nothing is done, and
    /// [`Protocol::departed`] says why.
    ///
    /// # Errors
    /// As [`Protocol::enqueue`].
    pub fn release(&self, lease: i64, left: Left<'_>, how: How) -> Result<Txn, Fault> {
        Ok(self.letting_go(lease, left.run.token, self.recorded(left)?, how))
    }

    /// As [`Protocol::release`] to a server that takes no more records, and so needs no room for one.
    pub fn release_unrecorded(&self, lease: i64, token: i64, how: How) -> Txn {
        self.letting_go(lease, token, Vec::new(), how)
    }

    fn letting_go(&self, lease: i64, token: i64, recorded: Vec<Op>, how: How) -> Txn {
        let entry = self.place.entry(lease);
        let traces = [entry.clone(), self.place.open(lease), self.place.run_record(token)];
        let ours = If::Created { key: entry, at: token };
        Txn {
            when: [vec![ours], self.may_go(how)].concat(),
            then: [self.departure(lease, how), recorded].concat(),
            otherwise: traces.map(|key| Op::Read(one(key))).to_vec(),
        }
    }

    /// The next in the queue takes a departure at one revision for leave to start.
    fn may_go(&self, how: How) -> Vec<If> {
        match how {
            How::AtOnce => vec![If::Created {
                key: self.place.freeze(),
                at: 0,
            }],
            How::Apart => Vec::new(),
        }
    }

    /// What the answer to [`Protocol::release`] says; `None` where the name is frozen, and it is to be done
    /// [`How::Apart`]. Our own release takes the open record away, and puts the record there: where the entry alone is
    /// gone, or somebody else's words lie under our token, it was taken from us. So it was where nothing is left and
    /// this was `only_try`. Else nothing is held against the run: an earlier one may have been done, without its record
    /// or with one that has made room for others since.
    pub fn departed(answer: Answer, run: &Run, only_try: bool) -> Option<Departure> {
        let mut traces = answer.reads.into_iter().map(|found| found.items.into_iter().next());
        let [entry, open, record] = std::array::from_fn(|_| traces.next().flatten());
        let ours = |record: &Item| Run::parse(&record.value).is_some_and(|there| there.ended == run.ended);
        if answer.succeeded {
            return Some(Departure::Done);
        }
        if entry.is_some_and(|entry| entry.created == run.token) {
            return None;
        }
        Some(match (open, record) {
            (_, Some(record)) if ours(&record) => Departure::Done,
            (None, None) if !only_try => Departure::Done,
            (None, None) | (Some(_), _) | (_, Some(_)) => Departure::Taken,
        })
    }

    /// What is still to be done where the entry was taken: nobody has a reason left to hold back, and the run is
    /// recorded, be it over the words of one who had found that it had vanished.
    ///
    /// # Errors
    /// As [`Protocol::enqueue`].
    pub fn settle(&self, lease: i64, left: Left<'_>) -> Result<Txn, Fault> {
        Ok(self.settling(lease, self.recorded(left)?))
    }

    /// As [`Protocol::settle`] to a server that takes no more records.
    pub fn settle_unrecorded(&self, lease: i64) -> Txn {
        self.settling(lease, Vec::new())
    }

    fn settling(&self, lease: i64, recorded: Vec<Op>) -> Txn {
        let rest = [self.place.open(lease), self.place.ask(lease)].map(delete);
        Txn {
            then: [rest.to_vec(), recorded].concat(),
            ..Txn::default()
        }
    }

    /// The record, and room for it.
    fn recorded(&self, left: Left<'_>) -> Result<Vec<Op>, Fault> {
        let record = self.place.run_record(left.run.token);
        // Numbers go back when a snapshot is restored; etcd refuses to write and delete one key at once.
        let outdated = left.outdated.iter().filter(|outdated| outdated.last < record);
        let mut ops: Vec<Op> = outdated
            .map(|Outdated { last, once }| Op::DeleteUpTo {
                first: self.place.log(),
                last: last.clone(),
                once: once.clone(),
            })
            .collect();
        if self.keep > 0 {
            ops.push(put(record, left.run, 0)?);
        }
        Ok(ops)
    }

    /// What of these records, the newest first, is to go for ours.
    fn outdated(&self, log: &Found) -> Vec<Outdated> {
        let oldest = log.items.get(self.keep.saturating_sub(1) as usize);
        let outdated = oldest.map(|item| Outdated {
            last: item.key.clone(),
            once: None,
        });
        outdated.into_iter().collect()
    }

    /// As [`Protocol::outdated`], where this record may come before ours, or may not: it is then among those that are
    /// kept, or the last to go.
    fn outdated_after(&self, log: &Found, record: String) -> Vec<Outdated> {
        let last = match self.keep.checked_sub(2) {
            Some(others_kept) => log.items.get(others_kept as usize).map(|item| item.key.clone()),
            None => Some(record.clone()),
        };
        let once = last.map(|last| Outdated {
            last,
            once: Some(record),
        });
        self.outdated(log).into_iter().chain(once).collect()
    }

    fn departure(&self, lease: i64, how: How) -> Vec<Op> {
        let place = &self.place;
        match how {
            How::AtOnce => [place.entry(lease), place.open(lease), place.ask(lease)]
                .map(delete)
                .to_vec(),
            How::Apart => vec![delete(place.open(lease))],
        }
    }

    /// Our entry and its open record.
    fn arrival(&self, lease: i64, ttl: Duration) -> Result<Vec<Op>, Fault> {
        let open = Open {
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            holder: self.holder.clone(),
        };
        Ok(vec![
            put(self.place.entry(lease), &self.holder, lease)?,
            put(self.place.open(lease), &open, 0)?,
        ])
    }

    /// What an unclean departure left: the open record, and what was asked of its entry.
    fn remains(&self, open: &str) -> Vec<Op> {
        let place = &self.place;
        let ask = place.lease(Kind::Open, open).map(|lease| place.ask(lease));
        ask.into_iter().chain([open.to_owned()]).map(delete).collect()
    }

    /// What a [`View`] is made of, in the order in which [`Queue::view`] takes it apart.
    fn reads(&self, lease: Option<i64>, token: Option<i64>) -> Vec<Op> {
        let place = &self.place;
        let first = |prefix: &str, order, limit| Read {
            what: What::First {
                prefix: prefix.to_owned(),
                order,
                limit,
            },
            created_before: token,
            keys_only: false,
        };
        // The predecessor and the one before it. Before our token is known, our own entry is among the youngest.
        let youngest = if token.is_some() { COUNTED } else { 3 };
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
                ..first(&place.log(), Order::LastKey, self.keep.max(1))
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

    /// What the answer to [`Protocol::enqueue`], `seize`, `look`, `read` or `clear` says of the queue.
    pub fn view(&self, answer: Answer, lease: Option<i64>, token: Option<i64>) -> View {
        let place = &self.place;
        let mut reads = answer.reads.into_iter();
        let mut next = || reads.next().unwrap_or_default();
        let [oldest, youngest, opens, freeze, log, last_run, mine, ask] = std::array::from_fn(|_| next());

        let own = lease.map(|lease| place.entry(lease));
        let mine = mine
            .items
            .first()
            .filter(|entry| Some(entry.lease) == lease && token.is_none_or(|token| entry.created == token))
            .map(|entry| entry.created);
        let not_ours = |item: &&Item| Some(&item.key) != own.as_ref();
        let mut before = youngest.items.iter().filter(not_ours);
        let ahead = match (oldest.items.iter().find(not_ours), before.next()) {
            (Some(holder), Some(predecessor)) => {
                let count = match token {
                    Some(_) => i64::try_from(youngest.items.len()).unwrap_or(i64::MAX),
                    None => oldest.all - i64::from(mine.is_some()),
                };
                let frozen = freeze.items.first();
                Some(Ahead {
                    count,
                    holder: entry(holder, last_run.items.first()),
                    heir: Some(predecessor)
                        .filter(|_| count == 1 && frozen.is_none() && mine.is_some())
                        .and_then(|only| self.heir(only, &opens, &log, lease)),
                    predecessor: Predecessor {
                        entry: predecessor.key.clone(),
                        open: place.lease(Kind::Lock, &predecessor.key).map(|of| place.open(of)),
                        earlier: before.next().map(|earlier| earlier.key.clone()),
                    },
                })
            }
            _ => None,
        };
        // Those of the entries ahead lie here too: only when these are gone does an open record say anything.
        let (stale, vanished) = match &ahead {
            Some(_) => (Vec::new(), None),
            None => self.stale(&opens, last_run.items.first(), lease),
        };
        View {
            cluster: answer.cluster,
            revision: answer.revision,
            mine,
            ahead,
            stale,
            vanished,
            frozen: freeze.items.first().map(frozen),
            ask: ask.items.into_iter().next().map(|item| item.value),
            outdated: self.outdated(&log),
        }
    }

    /// Whether a clean departure of `only`, the one entry before ours, would leave nothing to be read.
    fn heir(&self, only: &Item, opens: &Found, log: &Found, lease: Option<i64>) -> Option<Heir> {
        let place = &self.place;
        let mut others = self.opens_of_others(opens, lease);
        let its_own = |open: &Item| place.lease(Kind::Open, &open.key) == place.lease(Kind::Lock, &only.key);
        let sole = others
            .next()
            .filter(|open| its_own(open) && open.created == only.created)?;
        let all_told = opens.items.len() < FEW as usize;
        (all_told && others.next().is_none()).then(|| Heir {
            outdated: self.outdated_after(log, place.run_record(sole.created)),
        })
    }

    fn opens_of_others<'a>(&self, opens: &'a Found, lease: Option<i64>) -> impl Iterator<Item = &'a Item> {
        opens.items.iter().filter(move |item| {
            self.place
                .lease(Kind::Open, &item.key)
                .is_some_and(|of| Some(of) != lease)
        })
    }

    /// The open records of others among these. What else lies there says nothing of a departure, and a key that is
    /// not UTF-8 could not be deleted. And what is known of the oldest, by the last run that was recorded.
    pub fn stale(
        &self,
        opens: &Found,
        last_run: Option<&Item>,
        lease: Option<i64>,
    ) -> (Vec<Stale>, Option<Box<Vanished>>) {
        let others = || self.opens_of_others(opens, lease);
        let oldest = others().next().map(|item| Box::new(vanished(item, last_run)));
        (others().map(stale).collect(), oldest)
    }

    /// The last run that an answer tells of.
    pub fn last_run(answer: &Answer) -> Option<Item> {
        answer.reads.get(LAST_RUN)?.items.first().cloned()
    }

    /// How many keys of open records an answer holds, ours and odd ones included.
    pub fn opens_told(answer: &Answer) -> usize {
        answer.reads.get(OPENS).map_or(0, |opens| opens.items.len())
    }

    /// Where so many were told that there may be more, and it matters: the read of them all, for
    /// [`Protocol::stale`].
    pub fn more_opens(&self, told: usize, view: &View, token: Option<i64>) -> Option<Read> {
        let all = Read {
            what: What::First {
                prefix: self.place.opens(),
                order: Order::Oldest,
                limit: MANY,
            },
            created_before: token.or(view.mine),
            keys_only: false,
        };
        (view.ahead.is_none() && told >= FEW as usize).then_some(all)
    }

    /// What comes of a renewal: `alive` was answered at `answered`, `own_entry` was asked after that. Without that
    /// read a deposed leader's answer would be believed (etcd-io/etcd#15247: it goes on answering after a pause,
    /// while the new one lets the lease run out); a linearizable read in the answer's own term shows that there
    /// was no newer leader when it was given.
    pub fn judge_renewal(ours: Ours, alive: Alive, answered: Moment, own_entry: Answer) -> Renewal {
        let late = answered.since(alive.sent) > ours.within;
        let term = own_entry.term;
        let Some(entry) = only(own_entry.reads).filter(|entry| entry.created == ours.token) else {
            return Renewal::Gone {
                why: "its entry in the queue is gone: the lease was revoked or ran out, or somebody deleted the key"
                    .to_owned(),
            };
        };
        let unproven = |why: &str| Renewal::Unproven { why: why.to_owned() };
        let Some(ttl) = alive.ttl else {
            return unproven("the lease is said to be unknown, but our entry is there");
        };
        if entry.lease != ours.lease {
            return unproven("our entry is no longer bound to our lease");
        }
        if late {
            return unproven("the answer came too late");
        }
        if term != alive.term {
            return unproven("the leader changed meanwhile");
        }
        Renewal::Accepted { sent: alive.sent, ttl }
    }
}

/// What is renewed, and the rule for it.
#[derive(Clone, Copy, Debug)]
pub struct Ours {
    pub lease: i64,
    pub token: i64,
    /// [`crate::rules::Rules::answer_within`].
    pub within: Duration,
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

fn delete(key: String) -> Op {
    Op::Delete { key }
}

pub(super) fn only(reads: Vec<Found>) -> Option<Item> {
    reads.into_iter().next()?.items.into_iter().next()
}

fn put(key: String, record: &impl serde::Serialize, lease: i64) -> Result<Op, Fault> {
    let value = serde_json::to_vec(record).map_err(|error| Fault::Internal { why: error.to_string() })?;
    Ok(Op::Put { key, value, lease })
}
