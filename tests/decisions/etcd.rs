//! A small etcd for the model: entries, open records, leases, and rivals that follow the protocol.

use meshlock::link::Ended;
use meshlock::lock::queue::{Ahead, Entry, Heir, Predecessor, Stale, Standing, Vanished, View};
use meshlock::lock::record::{Holder, Run, VANISHED};
use meshlock::rules::handover_delay;
use std::collections::BTreeMap;
use std::time::Duration;

/// Milliseconds of virtual time.
pub(crate) type Ms = u64;

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) lease: i64,
    pub(crate) created: i64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Etcd {
    pub(crate) revision: i64,
    pub(crate) entries: Vec<Slot>,
    pub(crate) opens: Vec<(Slot, Duration)>,
    /// Lease to the instant of its end; the server may be late, but never early.
    pub(crate) leases: BTreeMap<i64, Ms>,
    pub(crate) frozen: bool,
    pub(crate) frozen_since: Ms,
    /// An ask's lease and value.
    pub(crate) ask: Option<(i64, Vec<u8>)>,
    /// Leases whose entries went since the last look, and whose open records, and when, for the watches.
    pub(crate) departed: BTreeMap<i64, i64>,
    pub(crate) closed: BTreeMap<i64, i64>,
    pub(crate) freeze_changed: bool,
    pub(crate) asked: bool,
    /// A lease has run out under an entry.
    pub(crate) expired: bool,
}

impl Etcd {
    pub(crate) fn arrive(&mut self, lease: i64, ttl: Duration) -> i64 {
        self.revision += 1;
        let slot = Slot {
            lease,
            created: self.revision,
        };
        self.entries.push(slot.clone());
        self.opens.push((slot, ttl));
        self.revision
    }

    pub(crate) fn entry(&self, lease: i64) -> Option<&Slot> {
        self.entries.iter().find(|slot| slot.lease == lease)
    }

    pub(crate) fn delete_entry(&mut self, lease: i64) {
        if self.entry(lease).is_some() {
            self.revision += 1;
            self.entries.retain(|slot| slot.lease != lease);
            self.departed.insert(lease, self.revision);
        }
    }

    pub(crate) fn delete_open(&mut self, lease: i64) {
        let before = self.opens.len();
        self.opens.retain(|(slot, _)| slot.lease != lease);
        if self.opens.len() < before {
            self.revision += 1;
            self.closed.insert(lease, self.revision);
        }
    }

    /// As `Queue::leave` leaves: at one revision, but while the name is frozen the open record first.
    pub(crate) fn depart(&mut self, lease: i64) {
        self.delete_open(lease);
        if !self.frozen && self.closed.get(&lease) == Some(&self.revision) {
            self.revision -= 1;
        }
        self.delete_entry(lease);
    }

    pub(crate) fn revoke(&mut self, lease: i64) {
        self.leases.remove(&lease);
        self.delete_entry(lease);
    }

    pub(crate) fn expire(&mut self, now: Ms) {
        let ended: Vec<i64> = self
            .leases
            .iter()
            .filter(|(_, end)| **end <= now)
            .map(|(lease, _)| *lease)
            .collect();
        for lease in ended {
            self.expired |= self.entry(lease).is_some();
            self.revoke(lease);
        }
    }

    pub(crate) fn open_stands(&self, token: i64) -> bool {
        self.opens.iter().any(|(slot, _)| slot.created == token)
    }

    /// As `Queue::leave`; false where the entry was taken before.
    pub(crate) fn leave(&mut self, lease: i64, token: Option<i64>, run: bool) -> bool {
        if let (Some(token), true) = (token, run) {
            if self.entry(lease).is_some_and(|slot| slot.created == token) {
                self.depart(lease);
                return true;
            }
            return !self.open_stands(token);
        }
        if token.is_none() {
            self.revoke(lease);
        }
        self.depart(lease);
        true
    }

    /// As `Queue::stand`.
    pub(crate) fn standing(&self, lease: i64, token: Option<i64>, predecessor: Option<&str>) -> Standing {
        Standing {
            revision: self.revision,
            mine: self
                .entry(lease)
                .map(|slot| slot.created)
                .filter(|at| Some(*at) == token),
            predecessor: predecessor.is_some_and(|key| self.entry(key.parse().unwrap_or(0)).is_some()),
            frozen: self.frozen,
            ask: self.asked_of(Some(lease)),
        }
    }

    fn asked_of(&self, lease: Option<i64>) -> Option<Vec<u8>> {
        let ask = self.ask.as_ref().filter(|(asked, _)| Some(*asked) == lease);
        ask.map(|(_, value)| value.clone())
    }

    /// As `Queue::view`.
    pub(crate) fn view(&self, lease: Option<i64>, token: Option<i64>) -> View {
        let before = |slot: &Slot| token.is_none_or(|token| slot.created < token);
        let mine = lease
            .and_then(|lease| self.entry(lease))
            .filter(|slot| token.is_none_or(|token| slot.created == token))
            .map(|slot| slot.created);
        let others: Vec<&Slot> = self
            .entries
            .iter()
            .filter(|slot| Some(slot.lease) != lease && before(slot))
            .collect();
        let opens = self
            .opens
            .iter()
            .filter(|(slot, _)| Some(slot.lease) != lease && before(slot));
        let open_before: Vec<&Slot> = opens.clone().map(|(slot, _)| slot).collect();
        let ahead = others.first().zip(others.last()).map(|(holder, predecessor)| Ahead {
            count: i64::try_from(others.len()).unwrap_or(0),
            holder: Entry {
                key: format!("lock/{}", holder.lease),
                token: holder.created,
                lease: holder.lease,
                who: "a rival".into(),
            },
            predecessor: Predecessor {
                entry: predecessor.lease.to_string(),
                open: Some(predecessor.lease.to_string()),
                earlier: others.iter().rev().nth(1).map(|slot| slot.lease.to_string()),
            },
            heir: matches!(open_before[..], [open] if others.len() == 1 && open.created == predecessor.created)
                .then_some(Heir { outdated: Vec::new() })
                .filter(|_| !self.frozen && mine.is_some()),
        });
        let opens = opens.filter(|_| ahead.is_none());
        let vanished = opens.clone().next().map(|(slot, _)| Box::new(vanished(slot)));
        let stale = opens
            .map(|(slot, ttl)| Stale {
                key: slot.lease.to_string(),
                ttl: *ttl,
            })
            .collect();
        View {
            cluster: 1,
            revision: self.revision,
            mine,
            ahead,
            stale,
            vanished,
            frozen: self.frozen.then(|| " by somebody".into()),
            ask: self.asked_of(lease),
            outdated: Vec::new(),
        }
    }
}

fn vanished(slot: &Slot) -> Vanished {
    Vanished {
        open: slot.lease.to_string(),
        run: Run {
            holder: Holder::unknown(),
            token: slot.created,
            ended: Ended {
                result: VANISHED.to_owned(),
                status: None,
                acquired: String::new(),
                ended: String::new(),
                why: None,
                asked: None,
            },
            noticed: None,
        },
        waited_until: None,
    }
}

/// What another host's meshlock is to do.
#[derive(Clone, Debug)]
pub(crate) struct RivalPlan {
    pub(crate) comes: Ms,
    /// Waits at most so long.
    pub(crate) waits: Ms,
    pub(crate) holds: Ms,
    /// Releases after its command; else its lease is revoked under it, and its tree dies in good time.
    pub(crate) clean: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Rival {
    plan: RivalPlan,
    lease: i64,
    stage: Stage,
    first_seen: BTreeMap<i64, Ms>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Away,
    Queued,
    Running { until: Ms },
    Dying { until: Ms },
    Gone,
}

impl Rival {
    pub(crate) fn new(lease: i64, plan: RivalPlan) -> Self {
        Self {
            plan,
            lease,
            stage: Stage::Away,
            first_seen: BTreeMap::new(),
        }
    }

    /// Its command's tree is alive.
    pub(crate) fn runs(&self) -> bool {
        matches!(self.stage, Stage::Running { .. } | Stage::Dying { .. })
    }

    pub(crate) fn go(&mut self, etcd: &mut Etcd) {
        etcd.depart(self.lease);
        self.stage = Stage::Gone;
    }

    /// One look at etcd; true when it starts its command now. It sees everything at once: the worst case.
    pub(crate) fn tick(&mut self, etcd: &mut Etcd, ttl: Duration, now: Ms) -> bool {
        match self.stage {
            Stage::Away if now >= self.plan.comes => {
                etcd.arrive(self.lease, ttl);
                self.stage = Stage::Queued;
            }
            Stage::Queued if now >= self.plan.comes + self.plan.waits => self.go(etcd),
            Stage::Queued => {
                let token = etcd.entry(self.lease).map(|slot| slot.created);
                let view = etcd.view(Some(self.lease), token);
                if view.ahead.is_some() || view.frozen.is_some() || view.mine.is_none() {
                    return false;
                }
                let mut may = true;
                for record in &view.stale {
                    let key: i64 = record.key.parse().unwrap_or(0);
                    let seen = *self.first_seen.entry(key).or_insert(now);
                    may &= now >= seen + ms(handover_delay(record.ttl));
                }
                if may {
                    for record in &view.stale {
                        etcd.delete_open(record.key.parse().unwrap_or(0));
                    }
                    self.stage = Stage::Running {
                        until: now + self.plan.holds,
                    };
                }
                return may;
            }
            Stage::Running { until } if now >= until => {
                if self.plan.clean {
                    self.go(etcd);
                } else {
                    etcd.delete_entry(self.lease);
                    self.stage = Stage::Dying {
                        until: now + ms(handover_delay(ttl)) - 50,
                    };
                }
            }
            Stage::Dying { until } if now >= until => self.stage = Stage::Gone,
            _ => {}
        }
        false
    }
}

pub(crate) fn ms(span: Duration) -> Ms {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
