//! The keeper's decisions from the first look to the claimed offer: nobody ahead, no fresh unclean
//! departure, a deadline far enough.

use super::state::{Phase, Then};
use super::{Action, Request, Step, Watched};
use crate::link::{FromKeeper, Hold, Waiting};
use crate::lock::queue::{Ahead, Granted, Vanished, View};
use crate::lock::record::Ask;
use crate::moment::Moment;
use crate::outcome::{Failure, FailureKind};
use crate::rules::{Rules, handover_delay};
use std::time::Duration;

/// Servers have kept departures from watches (etcd-io/etcd#18089, #20655), so that a waiter asks now and then.
const POLL: Duration = Duration::from_secs(10);
/// Where somebody is looking at our place: who is before us changes without a word to us.
const GLANCE: Duration = Duration::from_secs(1);
/// From this place on it asks for no more than it waits by: the answer to the whole queue takes etcd as long as the
/// queue is, and who holds the lock meanwhile is of little interest there.
const FAR_BACK: i64 = 100;
/// From the claim of a hold to its watch.
const WATCH_AFTER: Duration = Duration::from_millis(50);

impl Step<'_> {
    pub(super) fn looked(&mut self, view: &View) {
        if let Some(failure) = self.held_by_ourselves(view) {
            self.end_with(FromKeeper::Failed(failure));
        } else if let Some(why) = blocker(view) {
            self.state.blocker = Some(why);
            self.contended();
        } else {
            self.send(Request::Grant);
        }
    }

    pub(super) fn granted(&mut self, granted: Granted, rules: Result<Rules, Failure>) {
        match rules {
            Ok(rules) => self.state.rules = rules,
            Err(failure) => return self.leave(Request::Abandon, Then::Tell(FromKeeper::Failed(failure))),
        }
        self.set_deadline(granted.sent, granted.ttl);
        self.schedule_renewal(granted.sent);
        let enter = if self.policy.wait == Some(Duration::ZERO) {
            Request::Seize
        } else {
            Request::Enqueue
        };
        self.send(enter);
    }

    /// The queue as it is now, our own entry in it.
    pub(super) fn seen(&mut self, view: &View) {
        if self.state.phase == Phase::Held {
            return self.seen_while_held(view);
        }
        if !matches!(
            self.state.phase,
            Phase::Entering | Phase::Waiting | Phase::Delaying { .. } | Phase::Renewing
        ) {
            return;
        }
        self.state.cluster = view.cluster;
        self.state.seen_at = Some(view.revision);
        self.state.looked_at = self.state.asked_at;
        self.state.heir = view.ahead.as_ref().and_then(|ahead| ahead.heir.clone());
        self.state.far_back = view.ahead.as_ref().is_some_and(|ahead| ahead.count >= FAR_BACK);
        self.poll_later();
        let Some(token) = view.mine else {
            // The lock was not taken, unlike a place that is gone.
            if self.policy.wait == Some(Duration::ZERO) && self.state.token.is_none() {
                if let Some(failure) = self.held_by_ourselves(view) {
                    return self.leave(Request::Abandon, Then::Tell(FromKeeper::Failed(failure)));
                }
                self.state.blocker = blocker(view).or_else(|| Some("is taken".into()));
                return self.contended();
            }
            return self.entry_gone("its lease had ended".into());
        };
        self.state.token = Some(token);
        self.state.outdated.clone_from(&view.outdated);
        self.read_ask(view.ask.as_deref());
        if let Some(failure) = self.held_by_ourselves(view) {
            return self.leave(Request::Abandon, Then::Tell(FromKeeper::Failed(failure)));
        }
        if let Some(why) = blocker(view) {
            return self.wait_behind(view, &why);
        }
        self.state.blocker = None;
        if !view.stale.is_empty() && self.state.rules.checks.handover_delay {
            return self.delay(view);
        }
        self.first();
    }

    /// The watch began after the entry: what happened between the two is seen only here.
    fn seen_while_held(&mut self, view: &View) {
        if view.mine.is_none() {
            self.entry_gone("its entry in etcd was deleted, or its lease revoked".into());
        } else {
            self.read_ask(view.ask.as_deref());
        }
    }

    pub(super) fn read_ask(&mut self, ask: Option<&[u8]>) {
        if let Some(ask) = ask.and_then(Ask::parse) {
            self.asked(&ask);
        }
    }

    pub(super) fn wait_behind(&mut self, view: &View, why: &str) {
        self.state.blocker = Some(why.to_owned());
        if self.policy.wait == Some(Duration::ZERO) {
            // Frozen between our look and our entry.
            return self.contended();
        }
        match &view.ahead {
            Some(Ahead { count, holder, .. }) => self.tell_place(
                holder.key.clone(),
                Waiting::Behind {
                    ahead: *count,
                    holder: holder.who.clone(),
                },
            ),
            None => self.tell_place(
                why.to_owned(),
                Waiting::Frozen {
                    words: view.frozen.clone().unwrap_or_default(),
                },
            ),
        }
        let wanted = Watched {
            predecessor: view.ahead.as_ref().map(|ahead| ahead.predecessor.clone()),
            freeze: true,
            from: None,
        };
        self.state.phase = Phase::Waiting;
        if self.watches(&wanted) {
            // It may have gone while this was on its way.
            self.inherit();
        } else {
            self.watch(wanted);
        }
    }

    /// Spread, since those that came at one instant would all ask at one instant for ever.
    pub(super) fn poll_later(&mut self) {
        let shown = self.policy.shows_place && !self.state.far_back;
        let each = if shown { GLANCE } else { POLL.min(self.state.rules.ttl) };
        self.state.next_poll = self.now + each.mul_f64(1.0 + 0.15 * self.policy.jitter);
    }

    /// `named` is what is new about it; all else counts only where it is shown all the while.
    fn tell_place(&mut self, named: String, waiting: Waiting) {
        let told = self.state.told.as_ref();
        let same =
            told.is_some_and(|(before, place)| *before == named && (*place == waiting || !self.policy.shows_place));
        if !same {
            self.state.told = Some((named, waiting.clone()));
            self.tell(FromKeeper::Waiting(waiting));
        }
    }

    /// Nobody is ahead, but whoever was there last left uncleanly: its tree has the hand-over delay to die.
    pub(super) fn delay(&mut self, view: &View) {
        let mut until = self.now;
        for record in &view.stale {
            let seen = *self.state.first_seen.entry(record.key.clone()).or_insert(self.now);
            until = until.max(seen + handover_delay(record.ttl));
        }
        let keys: Vec<String> = view.stale.iter().map(|record| record.key.clone()).collect();
        // Where that one has come back to let go itself, the oldest that is left had waited behind it.
        let vanished = view.vanished.as_ref().filter(|vanished| {
            let token = vanished.run.token;
            *self.state.oldest_stale.get_or_insert(token) == token
        });
        let vanished = vanished.cloned();
        if until > self.now {
            let left = until.since(self.now);
            self.tell_place("delay".into(), Waiting::Delayed { left });
            self.state.phase = Phase::Delaying {
                until,
                stale: keys,
                vanished,
            };
            if self.state.watched.is_none() {
                self.watch(Watched {
                    predecessor: None,
                    freeze: true,
                    from: None,
                });
            }
        } else {
            self.state.phase = Phase::Delaying {
                until,
                stale: keys.clone(),
                vanished: vanished.clone(),
            };
            self.clear(keys, vanished);
        }
    }

    pub(super) fn clear(&mut self, stale: Vec<String>, vanished: Option<Box<Vanished>>) {
        self.send(Request::Clear {
            stale,
            vanished,
            outdated: self.state.outdated.clone(),
        });
    }

    /// The lock is ours in etcd.
    pub(super) fn first(&mut self) {
        if self.now >= self.state.stop_point() {
            self.state.phase = Phase::Renewing;
            self.state.next_renewal = Some(self.now);
            return;
        }
        let Some(token) = self.state.token else { return };
        self.state.phase = Phase::Offered {
            until: self.now + self.state.rules.claim_within,
        };
        self.act(Action::Offer(Hold {
            token,
            key: self.state.key.clone(),
            lease: self.state.lease,
            cluster: self.state.cluster,
            ttl: self.state.rules.ttl,
        }));
    }

    /// Waiting for a lock that our own process tree holds would last for ever.
    pub(super) fn held_by_ourselves(&self, view: &View) -> Option<Failure> {
        let holder = &view.ahead.as_ref()?.holder;
        self.policy.outer_leases.contains(&holder.lease).then(|| {
            let why = format!(
                "\"{}\" is already held by this process tree: waiting for it here would never end",
                self.policy.name
            );
            Failure::new(FailureKind::Usage, why)
        })
    }

    pub(super) fn contended(&mut self) {
        let blocker = self.state.blocker.clone().unwrap_or_else(|| "is taken".into());
        let waited = self.now.since(self.policy.began);
        let words = if self.policy.wait == Some(Duration::ZERO) {
            String::new()
        } else {
            format!("; waited {} s", (waited.as_secs_f64() * 10.0).round() / 10.0)
        };
        let why = format!("\"{}\" {blocker}{words}; nothing was run", self.policy.name);
        self.end_with(FromKeeper::Contended { why });
    }

    /// From the start again, with a fresh lease and so a new place.
    pub(super) fn requeue(&mut self) {
        self.state.phase = Phase::Entering;
        self.state.token = None;
        self.state.next_renewal = None;
        self.state.watched = None;
        self.state.heir = None;
        self.state.watch_at = None;
        self.state.told = None;
        self.state.deadline = Moment::NEVER_BEGUN;
        self.state.renewal_under_way = false;
        self.state.why_lost = None;
        self.state.oldest_stale = None;
        self.state.lost_at = None;
        self.state.read_again = false;
        self.state.read_at = None;
        self.state.fresh_lease = true;
        self.send(Request::Grant);
    }

    /// Due at once, and then once only: an offer that is withdrawn already would pass for a claimed one.
    pub(super) fn withdraw_now(&mut self) {
        self.state.phase = Phase::Offered { until: self.now };
    }

    pub(super) fn withdrawn(&mut self, back: bool) {
        if !matches!(self.state.phase, Phase::Offered { .. }) {
            return;
        }
        if !back {
            // Claimed at the same moment: its word is on the way.
            self.claimed();
            if !self.state.guardian_lives {
                self.duty();
            }
            return;
        }
        let then = if !self.state.guardian_lives {
            Then::End
        } else if self.state.why_lost.take().is_some() {
            Then::Requeue
        } else {
            Then::Park
        };
        self.leave(Request::Abandon, then);
    }

    pub(super) fn claimed(&mut self) {
        if matches!(self.state.phase, Phase::Offered { .. }) {
            self.state.phase = Phase::Held;
            // From our last look on, so nothing that is done to our entry before the watch stands is missed; not
            // from the entry itself, since etcd reads all that was written to any key since; and not at once,
            // since most commands that end so soon need no watch, and all need the processor now. Where the lock came
            // without a look, there is one as soon as the watch stands.
            self.state.watched = Some(Watched {
                predecessor: None,
                freeze: false,
                from: self.state.seen_at.map(|revision| revision + 1),
            });
            self.state.watch_at = Some(self.now + WATCH_AFTER);
            if let Some(why) = self.state.why_lost.take() {
                self.entry_gone(why);
            }
        }
    }

    pub(super) fn read(&mut self) {
        self.state.read_at = None;
        if self.state.under_way.is_some() || self.state.again.is_some() {
            self.state.read_again = true;
        } else {
            self.state.read_again = false;
            self.send(Request::Read);
        }
    }

    pub(super) fn judge_waiting(&mut self) {
        if !self.state.waits() {
            return;
        }
        let waited = self.now.since(self.policy.began);
        let contact_within = self.policy.contact_within();
        if !self.state.contacted && waited >= contact_within {
            let why = self
                .state
                .outage
                .clone()
                .unwrap_or_else(|| format!("no answer from {}", self.policy.endpoints));
            let why = format!(
                "etcd could not be reached within {} s: {why}; nothing was run",
                contact_within.as_secs_f64()
            );
            self.tell(FromKeeper::Failed(Failure::new(FailureKind::Unavailable, why)));
            return self.end();
        }
        let over = self.policy.wait.is_some_and(|wait| waited >= wait);
        if over && let Some(why) = self.state.outage.clone() {
            if self.policy.wait != Some(Duration::ZERO) || waited >= self.policy.dial_timeout {
                let why = format!("etcd was away as the wait ended: {why}; nothing was run");
                self.end_with(FromKeeper::Failed(Failure::new(FailureKind::Unavailable, why)));
            }
        // With nobody ahead this is no longer waiting for anybody: a hand-over delay is sat out, or who never
        // waits long enough would find the lock shut for ever.
        } else if over && self.state.phase == Phase::Waiting {
            self.contended();
        }
        let waiting = self.state.phase == Phase::Waiting;
        if waiting && self.state.read_at.is_some_and(|at| self.now >= at) {
            self.read();
        }
        if waiting && self.now >= self.state.next_poll {
            self.poll_later();
            if self.state.far_back {
                self.stand();
            } else {
                self.read();
            }
        }
    }
}

/// Why nobody behind may start, as the end of a sentence that begins with the name.
fn blocker(view: &View) -> Option<String> {
    if let Some(ahead) = &view.ahead {
        return Some(format!("is held by {}", ahead.holder.who));
    }
    view.frozen.as_ref().map(|frozen| format!("is frozen{frozen}"))
}
