//! A small etcd: keys with revisions, guarded transactions, leases, and a leader that may have been deposed
//! without knowing it. Runs whatever transactions it is given; knows no lock.

use meshlock::store::{Alive, Answer, Fault, Found, If, Item, Op, Order, Read, Txn, What};
use std::collections::BTreeMap;
use std::time::Duration;

/// Milliseconds of true time.
pub(crate) type Ms = u64;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    value: Vec<u8>,
    pub(crate) created: i64,
    lease: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Etcd {
    revision: i64,
    term: u64,
    pub(crate) keys: BTreeMap<String, Kept>,
    /// Lease to its end. A real server is somewhat late, so that this is the worst case.
    pub(crate) leases: BTreeMap<i64, Ms>,
    /// What was deleted since it was last asked, and at which revision, for the watches.
    deleted: Vec<(String, i64)>,
}

impl Etcd {
    pub(crate) fn grant(&mut self, lease: i64, ends: Ms) {
        // A repeated grant finds the lease that is there.
        self.leases.entry(lease).or_insert(ends);
    }

    /// What the leader answers to a keep-alive; the sender's instant is filled in by the caller.
    pub(crate) fn keep_alive(&mut self, lease: i64, now: Ms, ttl: Duration, alive: &mut Alive) {
        alive.term = self.term;
        alive.ttl = self.leases.get_mut(&lease).map(|end| {
            *end = now + ms(ttl);
            ttl
        });
    }

    /// A new leader, which gives every lease its whole time again (etcd's `lessor.Promote`).
    pub(crate) fn depose(&mut self, now: Ms, ttl: Duration) {
        self.term += 1;
        for end in self.leases.values_mut() {
            *end = now + ms(ttl);
        }
    }

    /// The term of the leader before this one.
    pub(crate) const fn old_term(&self) -> u64 {
        self.term.saturating_sub(1)
    }

    pub(crate) fn expire(&mut self, now: Ms) {
        let ended: Vec<i64> = self
            .leases
            .iter()
            .filter(|(_, end)| **end <= now)
            .map(|(lease, _)| *lease)
            .collect();
        for lease in ended {
            self.revoke(lease);
        }
    }

    pub(crate) fn revoke(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let bound: Vec<String> = self
            .keys
            .iter()
            .filter(|(_, kept)| kept.lease == lease)
            .map(|(key, _)| key.clone())
            .collect();
        self.revision += i64::from(!bound.is_empty());
        for key in bound {
            self.remove(&key);
        }
    }

    pub(crate) fn holds_nothing(&self, lease: i64) -> bool {
        self.keys.values().all(|kept| kept.lease != lease)
    }

    pub(crate) fn delete(&mut self, key: &str) {
        self.revision += 1;
        self.remove(key);
    }

    fn remove(&mut self, key: &str) {
        if self.keys.remove(key).is_some() {
            self.deleted.push((key.to_owned(), self.revision));
        }
    }

    pub(crate) fn value(&self, key: &str) -> Option<&[u8]> {
        self.keys.get(key).map(|kept| kept.value.as_slice())
    }

    pub(crate) fn created(&self, key: &str) -> Option<i64> {
        self.keys.get(key).map(|kept| kept.created)
    }

    pub(crate) fn take_deleted(&mut self) -> Vec<(String, i64)> {
        std::mem::take(&mut self.deleted)
    }

    pub(crate) fn txn(&mut self, txn: Txn) -> Result<Answer, Fault> {
        let succeeded = txn.when.iter().all(|condition| self.holds(condition));
        let ops = if succeeded { txn.then } else { txn.otherwise };
        let unknown = |op: &Op| matches!(op, Op::Put { lease, .. } if *lease != 0 && !self.leases.contains_key(lease));
        if ops.iter().any(unknown) {
            return Err(Fault::LeaseGone);
        }
        let writes = |op: &Op| match op {
            Op::Put { .. } => true,
            Op::Delete { key } => self.keys.contains_key(key),
            Op::DeleteUpTo { first, last, once } => {
                self.is_there(once.as_ref()) && self.keys.range(first.clone()..=last.clone()).next().is_some()
            }
            Op::Read(_) => false,
        };
        self.revision += i64::from(ops.iter().any(writes));
        let mut reads = Vec::new();
        for op in ops {
            match op {
                Op::Put { key, value, lease } => {
                    let created = self.keys.get(&key).map_or(self.revision, |kept| kept.created);
                    self.keys.insert(key, Kept { value, created, lease });
                }
                Op::Delete { key } => self.remove(&key),
                Op::DeleteUpTo { once, .. } if !self.is_there(once.as_ref()) => {}
                Op::DeleteUpTo { first, last, .. } => {
                    let keys: Vec<String> = self.keys.range(first..=last).map(|(key, _)| key.clone()).collect();
                    for key in keys {
                        self.remove(&key);
                    }
                }
                Op::Read(read) => reads.push(self.read(&read)),
            }
        }
        Ok(Answer {
            succeeded,
            cluster: 1,
            revision: self.revision,
            term: self.term,
            reads,
        })
    }

    fn is_there(&self, key: Option<&String>) -> bool {
        key.is_none_or(|key| self.keys.contains_key(key))
    }

    fn holds(&self, condition: &If) -> bool {
        match condition {
            If::Created { key, at } => self.keys.get(key).map_or(0, |kept| kept.created) == *at,
            If::Empty { prefix } => self.under(prefix).next().is_none(),
        }
    }

    pub(crate) fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Kept)> {
        self.keys.iter().filter(move |(key, _)| key.starts_with(prefix))
    }

    fn read(&self, read: &Read) -> Found {
        let item = |(key, kept): (&String, &Kept)| Item {
            key: key.clone(),
            value: if read.keys_only { Vec::new() } else { kept.value.clone() },
            created: kept.created,
            lease: kept.lease,
        };
        let wanted = |item: &Item| read.created_before.is_none_or(|before| item.created < before);
        match &read.what {
            What::Key(key) => {
                let items: Vec<Item> = self.keys.get_key_value(key).map(item).into_iter().collect();
                let all = i64::try_from(items.len()).unwrap_or(0);
                Found { items, all }
            }
            What::First { prefix, order, limit } => {
                let mut items: Vec<Item> = self.under(prefix).map(item).collect();
                let all = i64::try_from(items.len()).unwrap_or(0);
                items.retain(wanted);
                match order {
                    Order::Oldest => items.sort_by_key(|item| item.created),
                    Order::Youngest => items.sort_by_key(|item| -item.created),
                    Order::LastKey => items.reverse(),
                }
                items.truncate(*limit as usize);
                Found { items, all }
            }
        }
    }

    /// An entry that is not meshlock's, as Go's `concurrency.Mutex` writes it.
    pub(crate) fn put_foreign(&mut self, key: String) {
        self.revision += 1;
        let kept = Kept {
            value: Vec::new(),
            created: self.revision,
            lease: 0,
        };
        self.keys.insert(key, kept);
    }
}

pub(crate) fn ms(span: Duration) -> Ms {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
