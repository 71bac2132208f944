//! Where the keeper stands, and when time alone demands its next decision. Knows no events.

use super::{Policy, Request, Watched};
use crate::link::{Ended, FromKeeper, Waiting};
use crate::lock::queue::{Heir, Outdated, Vanished};
use crate::moment::Moment;
use crate::rules::Rules;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Before the queue: the first look, the grant, the entry.
    Entering,
    /// In the queue, behind somebody or something.
    Waiting,
    /// Nobody is ahead, but an unclean departure is fresh.
    Delaying {
        until: Moment,
        stale: Vec<String>,
        vanished: Option<Box<Vanished>>,
    },
    /// Ours, but the deadline is too near to offer it.
    Renewing,
    Offered {
        until: Moment,
    },
    /// The offer is claimed: there may be a tree.
    Held,
    /// Taken from us; the guardian is to kill.
    Lost,
    /// The guardian failed us; the tree is being killed from here.
    Duty,
    /// Out of the queue until the guardian runs again.
    Parked,
    Leaving {
        then: Then,
    },
    Over,
}

/// What follows the departure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Then {
    Requeue,
    Park,
    /// Say this, and end.
    Tell(FromKeeper),
    /// The guardian is gone: end in silence.
    End,
}

/// The revisions at which the predecessor's two keys were deleted, as far as the watch has told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Departed {
    pub(super) entry: Option<i64>,
    pub(super) open: Option<i64>,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each named by what it says"
)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) phase: Phase,
    /// As granted; as asked until then.
    pub(super) rules: Rules,
    pub(super) contacted: bool,
    /// The create revision of our entry, once there is one.
    pub(super) token: Option<i64>,
    pub(super) lease: i64,
    pub(super) fresh_lease: bool,
    pub(super) cluster: u64,
    /// The revision of the last look at our entry; `None` where the lock came to us without one.
    pub(super) seen_at: Option<i64>,
    pub(super) key: String,
    pub(super) outdated: Vec<Outdated>,
    pub(super) deadline: Moment,
    /// The request to be sent again, and when.
    pub(super) again: Option<(Moment, Request)>,
    pub(super) under_way: Option<Request>,
    /// A departure was seen while a read was under way: read once more.
    pub(super) read_again: bool,
    /// When the queue is read, should the rest of what began to be told not come.
    pub(super) read_at: Option<Moment>,
    pub(super) renewal_under_way: bool,
    pub(super) next_renewal: Option<Moment>,
    pub(super) next_poll: Moment,
    /// So many are ahead that the whole queue is not looked at any more without need.
    pub(super) far_back: bool,
    pub(super) watch_at: Option<Moment>,
    pub(super) watched: Option<Watched>,
    /// When the request under way was sent, and the one that the last look was the answer to.
    pub(super) asked_at: Moment,
    pub(super) looked_at: Moment,
    /// What the last look at the queue says of the next departure.
    pub(super) heir: Option<Heir>,
    /// When the watch saw the predecessor's entry go, and its open record.
    pub(super) departed: Departed,
    /// When each unclean departure was first seen.
    pub(super) first_seen: BTreeMap<String, Moment>,
    /// The token of the oldest of them: no other can have had its turn.
    pub(super) oldest_stale: Option<i64>,
    /// What was last told of our place, under the key of the entry (or the word for the reason) that it names.
    pub(super) told: Option<(String, Waiting)>,
    /// The kind of ask that was last passed over.
    pub(super) passed_over: Option<String>,
    /// The words for a contention.
    pub(super) blocker: Option<String>,
    /// The last fault, while an outage lasts.
    pub(super) outage: Option<String>,
    /// Between fork and the tree's end, as far as we were told.
    pub(super) started: bool,
    /// The command ended by itself: no last duty any more.
    pub(super) command_over: bool,
    pub(super) guardian_lives: bool,
    /// What is recorded of a run whose guardian is gone, or silent.
    pub(super) orphaned_run: Option<Ended>,
    pub(super) next_wake: Option<Moment>,
    pub(super) why_lost: Option<String>,
    /// That the entry turned out to be gone when it was to be released.
    pub(super) taken: Option<String>,
    pub(super) lost_at: Option<Moment>,
    /// Sent when the request under way has been answered.
    pub(super) deferred: Option<Request>,
    /// When the guardian must hear how the release went.
    pub(super) leave_by: Option<Moment>,
}

impl State {
    pub fn new(rules: Rules) -> Self {
        Self {
            phase: Phase::Entering,
            rules,
            contacted: false,
            token: None,
            lease: 0,
            fresh_lease: true,
            cluster: 0,
            seen_at: None,
            key: String::new(),
            outdated: Vec::new(),
            deadline: Moment::NEVER_BEGUN,
            again: None,
            under_way: None,
            read_again: false,
            read_at: None,
            renewal_under_way: false,
            next_renewal: None,
            next_poll: Moment::NEVER_BEGUN,
            far_back: false,
            watch_at: None,
            watched: None,
            asked_at: Moment::NEVER_BEGUN,
            looked_at: Moment::NEVER_BEGUN,
            heir: None,
            departed: Departed::default(),
            first_seen: BTreeMap::new(),
            oldest_stale: None,
            told: None,
            passed_over: None,
            blocker: None,
            outage: None,
            started: false,
            command_over: false,
            guardian_lives: true,
            orphaned_run: None,
            next_wake: None,
            why_lost: None,
            taken: None,
            lost_at: None,
            deferred: None,
            leave_by: None,
        }
    }

    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    pub const fn token(&self) -> Option<i64> {
        self.token
    }

    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// The last place in the queue is given up: a repeated grant otherwise repeats its lease.
    pub const fn wants_fresh_lease(&self) -> bool {
        self.fresh_lease
    }

    /// The lease under which we enter; drawn by the loop before each grant.
    pub fn set_lease(&mut self, lease: i64, key: String) {
        self.fresh_lease = false;
        self.lease = lease;
        self.key = key;
    }

    /// When the next decision is due though nothing else happens.
    pub fn wake_at(&self, policy: &Policy) -> Option<Moment> {
        let mut due: Vec<Moment> = Vec::new();
        due.extend(self.again.as_ref().map(|(at, _)| *at));
        due.extend(self.next_renewal.filter(|_| self.renews() && !self.renewal_under_way));
        due.extend(self.watch_at);
        due.extend(self.next_wake);
        due.extend(self.leave_by);
        if !self.contacted && self.waits() {
            due.push(policy.began + policy.contact_within());
        }
        if matches!(self.phase, Phase::Waiting) || (self.waits() && self.outage.is_some()) {
            let limit = policy.wait.filter(|wait| !wait.is_zero());
            due.extend(limit.map(|wait| policy.began + wait));
        }
        match &self.phase {
            Phase::Waiting => due.extend([Some(self.next_poll), self.read_at].into_iter().flatten()),
            Phase::Delaying { until, .. } if self.under_way.is_none() && self.again.is_none() => due.push(*until),
            Phase::Offered { until } => due.push(*until),
            Phase::Held | Phase::Lost => {
                if self.phase == Phase::Held && self.next_wake.is_none() {
                    due.push(self.stop_point());
                }
                if self.started {
                    due.push(self.deadline);
                    due.extend(self.lost_at.map(|at| at + self.rules.handover_delay / 2));
                }
            }
            _ => {}
        }
        due.into_iter().min()
    }

    pub(super) fn stop_point(&self) -> Moment {
        self.deadline - self.rules.grace
    }

    /// There is an entry to be kept: from the queueing until the tree is dead, or the lock is lost.
    pub(super) const fn renews(&self) -> bool {
        self.token.is_some()
            && !matches!(
                self.phase,
                Phase::Lost | Phase::Parked | Phase::Leaving { .. } | Phase::Over
            )
    }

    /// Nothing was offered yet.
    pub(super) const fn waits(&self) -> bool {
        matches!(
            self.phase,
            Phase::Entering | Phase::Waiting | Phase::Delaying { .. } | Phase::Renewing
        )
    }
}
