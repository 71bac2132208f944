//! The keeper's decisions: a pure function from what etcd and the guardian said to what is to be sent. No
//! I/O, no clock, no randomness, so that tests and a model checker can walk it through every history;
//! `commands::keep` names the events and carries out the actions.
//!
//! What it holds to: a hold is offered only when nobody is ahead, no unclean departure is fresh and the
//! deadline is far enough; only an accepted renewal moves the deadline, and from its sending; the queue is
//! left only on the guardian's word or after the last duty.

use super::queue::{Granted, Renewal, Stale, View};
use super::record::Ask;
use crate::link::{Ended, FromGuardian, FromKeeper, Hold};
use crate::moment::Moment;
use crate::outcome::{Failure, FailureKind};
use crate::rules::{Rules, handover_delay};
use crate::store::Fault;
use std::collections::BTreeMap;
use std::time::Duration;

/// What does not change during a run.
#[derive(Clone, Debug)]
pub struct Policy {
    /// For words.
    pub name: String,
    /// When this call of meshlock began: the wait counts from here.
    pub began: Moment,
    /// `None` waits without limit; zero asks once.
    pub wait: Option<Duration>,
    /// Bounds the first contact.
    pub dial_timeout: Duration,
    /// Leases that our own process tree holds: waiting for one of them would wait for ourselves.
    pub outer_leases: Vec<i64>,
    /// 0.0 to 1.0: by which renewals of many keepers are spread.
    pub jitter: f64,
}

/// A request to etcd. One is under way at a time, renewals and watches apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Look,
    Grant,
    Enqueue,
    /// Take the lock only if nobody is there.
    Seize,
    Read,
    /// The start after a hand-over delay: removes these open records.
    Clear(Vec<String>),
    /// Let go of a hold, its tree dead.
    Leave {
        run: Option<Ended>,
        oldest_kept: Option<String>,
    },
    /// Let go of a place under which nothing was ever run.
    Abandon,
}

/// What etcd said to a [`Request`].
#[derive(Clone, Debug)]
pub enum Answer {
    Granted(Granted, Result<Rules, Failure>),
    View(View),
    Gone,
}

#[derive(Clone, Debug)]
pub enum Event {
    Answer(Answer),
    /// The request came to nothing.
    Fault(Fault),
    Renewal {
        sent: Moment,
        result: Result<Renewal, Fault>,
    },
    /// Everything asked for is watched from now on.
    WatchReady,
    WatchBroken,
    /// The entry we wait for is gone, or the freeze is lifted or begun.
    QueueChanged,
    /// Our own entry was deleted.
    EntryDeleted,
    Asked(Ask),
    Guardian(FromGuardian),
    /// The link is closed: the guardian has ended, and this is what may be recorded of its run.
    GuardianGone(Ended),
    /// The answer to [`Action::Withdraw`].
    Withdrawn(bool),
    /// The last duty has found nothing more alive (or, false, something that will not die).
    DutyDone(bool),
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// In place of whatever is under way, which is of no use any more.
    Send(Request),
    Renew,
    /// Watch our entry and what may be asked of it; while waiting also the freeze and the entry before us.
    Watch {
        predecessor: Option<String>,
        freeze: bool,
    },
    Deadline(Moment),
    /// Publish the offer, then say so.
    Offer(Hold),
    Withdraw {
        token: i64,
    },
    Tell(FromKeeper),
    /// SIGCONT to the guardian.
    Wake,
    /// Note the guardian's descendants.
    Note,
    LastDuty,
    /// Revoke the lease, if one was asked for, and end.
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Before the queue: the first look, the grant, the entry.
    Entering,
    /// In the queue. `ready`: the departure of whoever is ahead cannot be missed.
    Waiting {
        ready: bool,
    },
    /// Nobody is ahead, but an unclean departure is fresh.
    Delaying {
        until: Moment,
        stale: Vec<String>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
enum Then {
    Requeue,
    Park,
    /// Say this, and end.
    Tell(FromKeeper),
    /// The guardian is gone: end in silence.
    End,
}

#[derive(Clone, Debug)]
pub struct State {
    phase: Phase,
    /// As granted; as asked until then.
    rules: Rules,
    contacted: bool,
    /// The create revision of our entry, once there is one.
    token: Option<i64>,
    lease: i64,
    fresh_lease: bool,
    cluster: u64,
    key: String,
    oldest_kept: Option<String>,
    deadline: Moment,
    /// The request to be sent again, and when.
    again: Option<(Moment, Request)>,
    under_way: Option<Request>,
    /// A departure was seen while a read was under way: read once more.
    read_again: bool,
    renewal_under_way: bool,
    next_renewal: Option<Moment>,
    next_poll: Moment,
    rewatch_at: Option<Moment>,
    watched: Option<(Option<String>, bool)>,
    /// When each unclean departure was first seen.
    first_seen: BTreeMap<String, Moment>,
    /// Who was last named to the user as being ahead, or why nobody starts.
    named: Option<String>,
    /// The words for a contention.
    blocker: Option<String>,
    /// The last fault, while an outage lasts.
    outage: Option<String>,
    /// Between fork and the tree's end, as far as we were told.
    started: bool,
    /// The command ended by itself: no last duty any more.
    command_over: bool,
    guardian_lives: bool,
    /// What is recorded of a run whose guardian is gone.
    orphaned_run: Option<Ended>,
    next_wake: Option<Moment>,
    why_lost: Option<String>,
    lost_at: Option<Moment>,
    /// Sent when the request under way has been answered.
    deferred: Option<Request>,
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
            key: String::new(),
            oldest_kept: None,
            deadline: Moment::NEVER_BEGUN,
            again: None,
            under_way: None,
            read_again: false,
            renewal_under_way: false,
            next_renewal: None,
            next_poll: Moment::NEVER_BEGUN,
            rewatch_at: None,
            watched: None,
            first_seen: BTreeMap::new(),
            named: None,
            blocker: None,
            outage: None,
            started: false,
            command_over: false,
            guardian_lives: true,
            orphaned_run: None,
            next_wake: None,
            why_lost: None,
            lost_at: None,
            deferred: None,
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
        due.extend(self.next_renewal.filter(|_| !self.renewal_under_way));
        due.extend(self.rewatch_at);
        due.extend(self.next_wake);
        if !self.contacted && self.waits() {
            due.push(policy.began + policy.dial_timeout);
        }
        match &self.phase {
            Phase::Waiting { .. } => {
                due.push(self.next_poll);
                due.extend(policy.wait.map(|wait| policy.began + wait));
            }
            Phase::Entering if self.contacted => due.extend(
                policy
                    .wait
                    .filter(|wait| !wait.is_zero())
                    .map(|wait| policy.began + wait),
            ),
            Phase::Delaying { until, .. } | Phase::Offered { until } if self.under_way.is_none() => due.push(*until),
            Phase::Offered { until } => due.push(*until),
            Phase::Held | Phase::Lost => {
                due.push(self.stop_point().max(self.next_wake.unwrap_or(Moment::NEVER_BEGUN)));
                due.push(self.deadline);
                due.extend(self.lost_at.map(|at| at + self.rules.handover_delay / 2));
            }
            _ => {}
        }
        due.into_iter().min()
    }

    fn stop_point(&self) -> Moment {
        self.deadline - self.rules.grace
    }

    /// Nothing was offered yet.
    const fn waits(&self) -> bool {
        matches!(
            self.phase,
            Phase::Entering | Phase::Waiting { .. } | Phase::Delaying { .. } | Phase::Renewing
        )
    }
}

/// What follows from `event`.
pub fn step(policy: &Policy, state: &mut State, now: Moment, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut step = Step {
        policy,
        state,
        now,
        actions: &mut actions,
    };
    step.happened(event);
    step.judge();
    actions
}

/// The first thing to do.
pub fn begin(policy: &Policy, state: &mut State) -> Vec<Action> {
    let request = if policy.wait == Some(Duration::ZERO) {
        Request::Look
    } else {
        Request::Grant
    };
    state.under_way = Some(request.clone());
    vec![Action::Send(request)]
}

struct Step<'a> {
    policy: &'a Policy,
    state: &'a mut State,
    now: Moment,
    actions: &'a mut Vec<Action>,
}

impl Step<'_> {
    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn tell(&mut self, words: FromKeeper) {
        self.act(Action::Tell(words));
    }

    fn send(&mut self, request: Request) {
        self.state.again = None;
        self.state.under_way = Some(request.clone());
        self.act(Action::Send(request));
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::Answer(answer) => {
                self.reached();
                let request = self.state.under_way.take();
                self.answered(request, answer);
            }
            Event::Fault(fault) => {
                if let Some(request) = self.state.under_way.take() {
                    self.failed(request, fault);
                }
            }
            Event::Renewal { sent, result } => self.renewed(sent, result),
            Event::WatchReady => {
                if let Phase::Waiting { ready } = &mut self.state.phase {
                    *ready = true;
                    // What happened before the watch was there must be read.
                    self.read();
                }
            }
            Event::WatchBroken => {
                if let Phase::Waiting { ready } = &mut self.state.phase {
                    *ready = false;
                }
                self.state.rewatch_at = Some(self.now + self.state.rules.retry);
            }
            Event::QueueChanged => {
                if matches!(self.state.phase, Phase::Waiting { .. } | Phase::Delaying { .. }) {
                    self.read();
                }
            }
            Event::EntryDeleted => self.entry_gone("its entry in etcd was deleted, or its lease revoked".into()),
            Event::Asked(ask) => self.asked(&ask),
            Event::Guardian(words) => self.heard(words),
            Event::GuardianGone(record) => self.guardian_gone(record),
            Event::Withdrawn(back) => self.withdrawn(back),
            Event::DutyDone(dead) => self.duty_done(dead),
            Event::Tick => {}
        }
    }

    /// etcd answers (again).
    fn reached(&mut self) {
        self.state.contacted = true;
        if self.state.outage.take().is_some() && self.state.waits() {
            self.tell(FromKeeper::Progress("etcd answers again".into()));
        }
    }

    fn answered(&mut self, request: Option<Request>, answer: Answer) {
        let Some(request) = request else { return };
        if let Some(deferred) = self.state.deferred.take() {
            return self.send(deferred);
        }
        match (request, answer) {
            (Request::Look, Answer::View(view)) => self.looked(&view),
            (Request::Grant, Answer::Granted(granted, rules)) => self.granted(granted, rules),
            (Request::Enqueue | Request::Seize | Request::Read | Request::Clear(_), Answer::View(view)) => {
                self.seen(view)
            }
            (Request::Leave { .. } | Request::Abandon, _) => self.left(None),
            (
                Request::Look | Request::Grant | Request::Enqueue | Request::Seize | Request::Read | Request::Clear(_),
                _,
            ) => {}
        }
    }

    fn looked(&mut self, view: &View) {
        if let Some(failure) = self.held_by_ourselves(view) {
            self.end_with(FromKeeper::Failed(failure));
        } else if let Some(why) = blocker(view) {
            self.state.blocker = Some(why);
            self.contended();
        } else {
            self.send(Request::Grant);
        }
    }

    fn granted(&mut self, granted: Granted, rules: Result<Rules, Failure>) {
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

    fn set_deadline(&mut self, sent: Moment, ttl: Duration) {
        let counted_from = if self.state.rules.checks.send_instant {
            sent
        } else {
            self.now
        };
        let deadline = counted_from + ttl - self.state.rules.margin;
        // An answer that was overtaken by a later renewal's must not pull the deadline back.
        self.state.deadline = self.state.deadline.max(deadline);
        self.act(Action::Deadline(self.state.deadline));
    }

    fn schedule_renewal(&mut self, from: Moment) {
        let interval = self.state.rules.interval.mul_f64(1.0 - 0.15 * self.policy.jitter);
        self.state.next_renewal = Some(from + interval);
    }

    /// The queue as it is now, our own entry in it.
    fn seen(&mut self, view: View) {
        if !matches!(
            self.state.phase,
            Phase::Entering | Phase::Waiting { .. } | Phase::Delaying { .. } | Phase::Renewing
        ) {
            return;
        }
        self.state.cluster = view.cluster;
        self.state.next_poll = self.now + Duration::from_secs(10).min(self.state.rules.ttl);
        let Some(token) = view.mine else {
            if self.policy.wait == Some(Duration::ZERO) {
                if let Some(failure) = self.held_by_ourselves(&view) {
                    return self.leave(Request::Abandon, Then::Tell(FromKeeper::Failed(failure)));
                }
                self.state.blocker = blocker(&view).or_else(|| Some("is taken".into()));
                return self.contended();
            }
            return self.entry_gone("its lease had ended".into());
        };
        self.state.token = Some(token);
        self.state.oldest_kept.clone_from(&view.oldest_kept);
        if let Some(ask) = view.ask.as_deref().and_then(|value| serde_json::from_slice(value).ok()) {
            self.asked(&ask);
        }
        if let Some(failure) = self.held_by_ourselves(&view) {
            return self.leave(Request::Abandon, Then::Tell(FromKeeper::Failed(failure)));
        }
        if let Some(why) = blocker(&view) {
            return self.wait_behind(&view, why);
        }
        self.state.blocker = None;
        if !view.stale.is_empty() && self.state.rules.checks.handover_delay {
            return self.delay(&view.stale);
        }
        self.first();
    }

    fn wait_behind(&mut self, view: &View, why: String) {
        self.state.blocker = Some(why.clone());
        if self.policy.wait == Some(Duration::ZERO) {
            // Frozen between our look and our entry.
            return self.contended();
        }
        let named = view
            .ahead
            .as_ref()
            .map_or_else(|| why.clone(), |ahead| ahead.holder.key.clone());
        if self.state.named.as_ref() != Some(&named) {
            self.state.named = Some(named);
            let place = view
                .ahead
                .as_ref()
                .map_or(String::new(), |ahead| format!(", {} ahead of us", ahead.count));
            self.tell(FromKeeper::Progress(format!(
                "waiting: \"{}\" {why}{place}",
                self.policy.name
            )));
        }
        let wanted = (view.ahead.as_ref().map(|ahead| ahead.predecessor.clone()), true);
        if self.state.watched.as_ref() == Some(&wanted) {
            if !matches!(self.state.phase, Phase::Waiting { .. }) {
                self.state.phase = Phase::Waiting { ready: true };
            }
        } else {
            self.state.phase = Phase::Waiting { ready: false };
            self.watch(wanted);
        }
    }

    fn watch(&mut self, wanted: (Option<String>, bool)) {
        self.state.rewatch_at = None;
        self.state.watched = Some(wanted.clone());
        self.act(Action::Watch {
            predecessor: wanted.0,
            freeze: wanted.1,
        });
    }

    /// Nobody is ahead, but whoever was there last left uncleanly: its tree has the hand-over delay to die.
    fn delay(&mut self, stale: &[Stale]) {
        let mut until = self.now;
        for record in stale {
            let seen = *self.state.first_seen.entry(record.key.clone()).or_insert(self.now);
            until = until.max(seen + handover_delay(record.ttl));
        }
        let keys: Vec<String> = stale.iter().map(|record| record.key.clone()).collect();
        if until > self.now {
            if self.state.named.as_deref() != Some("delay") {
                self.state.named = Some("delay".into());
                self.tell(FromKeeper::Progress(format!(
                    "\"{}\" was left without a release: waiting {:.1} s for what may still run there to be stopped",
                    self.policy.name,
                    until.since(self.now).as_secs_f64()
                )));
            }
            self.state.phase = Phase::Delaying { until, stale: keys };
        } else {
            self.state.phase = Phase::Delaying {
                until,
                stale: keys.clone(),
            };
            self.send(Request::Clear(keys));
        }
    }

    /// The lock is ours in etcd.
    fn first(&mut self) {
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
    fn held_by_ourselves(&self, view: &View) -> Option<Failure> {
        let holder = &view.ahead.as_ref()?.holder;
        self.policy.outer_leases.contains(&holder.lease).then(|| {
            let why = format!(
                "\"{}\" is already held by this process tree: waiting for it here would never end",
                self.policy.name
            );
            Failure::new(FailureKind::Usage, why)
        })
    }

    fn contended(&mut self) {
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

    /// Says the last word once nothing of ours is left in etcd.
    fn end_with(&mut self, words: FromKeeper) {
        if self.state.lease == 0 {
            self.tell(words);
            self.end();
        } else {
            self.leave(Request::Abandon, Then::Tell(words));
        }
    }

    fn end(&mut self) {
        self.state.phase = Phase::Over;
        self.act(Action::End);
    }

    fn leave(&mut self, request: Request, then: Then) {
        self.state.phase = Phase::Leaving { then };
        self.state.rewatch_at = None;
        self.state.next_wake = None;
        if matches!(
            self.state.under_way,
            Some(Request::Grant | Request::Enqueue | Request::Seize | Request::Clear(_))
        ) {
            // etcd keeps no order between requests: one that writes must have been answered, or it could
            // be carried out after we left.
            self.state.deferred = Some(request);
        } else {
            self.send(request);
        }
    }

    fn failed(&mut self, request: Request, fault: Fault) {
        if let Some(deferred) = self.state.deferred.take() {
            return self.send(deferred);
        }
        let leaving = matches!(request, Request::Leave { .. } | Request::Abandon);
        if leaving && !self.state.guardian_lives && self.now >= self.state.deadline + self.state.rules.margin {
            // Nobody waits for it any more, and the lease has ended by itself.
            return self.end();
        }
        match fault {
            Fault::Unreachable { why } => {
                if self.state.waits() && self.state.contacted && self.state.outage.is_none() {
                    self.tell(FromKeeper::Progress(format!(
                        "etcd does not answer ({why}): trying again"
                    )));
                }
                self.state.outage = Some(why);
                self.state.again = Some((self.now + self.state.rules.retry, request));
            }
            Fault::LeaseGone => match request {
                // Nothing was written.
                Request::Enqueue | Request::Seize => self.entry_gone("its lease had ended".into()),
                Request::Leave { .. } | Request::Abandon => self.left(None),
                Request::Look | Request::Grant | Request::Read | Request::Clear(_) => {
                    self.state.again = Some((self.now + self.state.rules.retry, request));
                }
            },
            Fault::NoSpace { .. }
            | Fault::Denied { .. }
            | Fault::Config { .. }
            | Fault::Replaced { .. }
            | Fault::Internal { .. } => {
                self.refused(&request, fault.failure());
            }
        }
    }

    /// etcd said no, and would again.
    fn refused(&mut self, request: &Request, failure: Failure) {
        match request {
            Request::Leave { .. } | Request::Abandon => {
                let ends = (self.state.deadline + self.state.rules.margin).since(self.now);
                let why = failure.why;
                let blocks = format!(
                    "{why}: the lease may block others for up to {} s more",
                    ends.as_secs_f64().ceil()
                );
                self.left(Some(blocks));
            }
            Request::Look | Request::Grant => {
                self.tell(FromKeeper::Failed(failure));
                self.end();
            }
            Request::Enqueue | Request::Seize | Request::Read | Request::Clear(_) => {
                self.end_with(FromKeeper::Failed(failure));
            }
        }
    }

    /// The queue has been left, or will be when the lease ends.
    fn left(&mut self, problem: Option<String>) {
        let Phase::Leaving { then } = self.state.phase.clone() else {
            return;
        };
        self.state.token = None;
        self.state.next_renewal = None;
        match then {
            Then::Requeue => self.requeue(),
            Then::Park => {
                self.state.phase = Phase::Parked;
                self.tell(FromKeeper::Withdrawn);
            }
            Then::Tell(FromKeeper::Left { .. }) => {
                self.tell(FromKeeper::Left { problem });
                self.end();
            }
            Then::Tell(words) => {
                self.tell(words);
                self.end();
            }
            Then::End => self.end(),
        }
    }

    /// From the start again, with a fresh lease and so a new place.
    fn requeue(&mut self) {
        self.state.phase = Phase::Entering;
        self.state.token = None;
        self.state.next_renewal = None;
        self.state.watched = None;
        self.state.rewatch_at = None;
        self.state.named = None;
        self.state.deadline = Moment::NEVER_BEGUN;
        self.state.fresh_lease = true;
        self.send(Request::Grant);
    }

    fn renewed(&mut self, sent: Moment, result: Result<Renewal, Fault>) {
        self.state.renewal_under_way = false;
        if self.state.token.is_none() {
            return;
        }
        match result {
            Ok(Renewal::Accepted { sent, ttl }) => {
                self.reached();
                self.set_deadline(sent, ttl);
                self.schedule_renewal(sent);
                if matches!(self.state.phase, Phase::Held) {
                    self.act(Action::Note);
                }
                if self.state.phase == Phase::Renewing {
                    // The queue may have changed meanwhile.
                    self.read();
                }
            }
            Ok(Renewal::Gone { why }) => self.entry_gone(why),
            Ok(Renewal::Unproven { .. }) if !self.state.rules.checks.own_key_read => {
                let ttl = self.state.rules.ttl;
                self.set_deadline(sent, ttl);
                self.schedule_renewal(sent);
            }
            Ok(Renewal::Unproven { why }) => self.retry_renewal(why),
            Err(fault) => self.retry_renewal(fault.to_string()),
        }
    }

    fn retry_renewal(&mut self, why: String) {
        if self.state.waits() && self.state.contacted && self.state.outage.is_none() {
            self.tell(FromKeeper::Progress(format!(
                "etcd does not answer ({why}): trying again"
            )));
        }
        self.state.outage = Some(why);
        self.state.next_renewal = Some(self.now + self.state.rules.retry);
    }

    /// Proof that our entry, or its lease, is no more.
    fn entry_gone(&mut self, why: String) {
        match self.state.phase {
            Phase::Entering | Phase::Waiting { .. } | Phase::Delaying { .. } | Phase::Renewing => {
                self.tell(FromKeeper::Progress(format!(
                    "lost the place in the queue ({why}): queueing again"
                )));
                self.leave(Request::Abandon, Then::Requeue);
            }
            Phase::Offered { .. } => {
                self.state.why_lost = Some(why);
                if let Some(token) = self.state.token {
                    self.act(Action::Withdraw { token });
                }
            }
            Phase::Held => {
                self.tell(FromKeeper::Lost { why });
                self.state.phase = Phase::Lost;
                self.state.lost_at = Some(self.now);
                self.state.next_renewal = None;
                self.state.next_wake = Some(self.now);
            }
            Phase::Lost | Phase::Duty | Phase::Parked | Phase::Leaving { .. } | Phase::Over => {}
        }
    }

    fn asked(&mut self, ask: &Ask) {
        if Some(ask.token) != self.state.token {
            return;
        }
        if !matches!(ask.kind.as_str(), "break" | "make-way") {
            return self.tell(FromKeeper::Notice(format!(
                "passing over an unknown request (\"{}\") by {}",
                ask.kind,
                or_unknown(&ask.by)
            )));
        }
        let reason = if ask.reason.is_empty() {
            String::new()
        } else {
            format!(" ({})", ask.reason)
        };
        let what = if ask.kind == "break" {
            "was broken"
        } else {
            "had to make way"
        };
        let why = format!("\"{}\" {what} by {}{reason}", self.policy.name, or_unknown(&ask.by));
        match self.state.phase {
            Phase::Held | Phase::Waiting { .. } | Phase::Delaying { .. } | Phase::Renewing | Phase::Entering => {
                self.tell(FromKeeper::AskedToStop { why });
            }
            // It will be asked again by whoever reads the record once the command runs.
            Phase::Offered { .. } => self.tell(FromKeeper::AskedToStop { why }),
            Phase::Lost | Phase::Duty | Phase::Parked | Phase::Leaving { .. } | Phase::Over => {}
        }
    }

    fn heard(&mut self, words: FromGuardian) {
        match words {
            FromGuardian::Claimed => self.claimed(),
            FromGuardian::Started { .. } => {
                self.claimed();
                self.state.started = true;
                self.act(Action::Note);
            }
            FromGuardian::CommandEnded => {
                self.state.started = false;
                self.state.command_over = true;
            }
            FromGuardian::Requeue => match self.state.phase {
                Phase::Parked => self.requeue(),
                Phase::Held | Phase::Lost if !self.state.started => self.leave(Request::Abandon, Then::Requeue),
                _ => {}
            },
            FromGuardian::Release { run } => self.release(run),
            FromGuardian::LossSeen => self.state.next_wake = None,
        }
    }

    fn claimed(&mut self) {
        if matches!(self.state.phase, Phase::Offered { .. }) {
            self.state.phase = Phase::Held;
            if self.state.watched != Some((None, false)) {
                self.watch((None, false));
            }
            if let Some(why) = self.state.why_lost.take() {
                self.entry_gone(why);
            }
        }
    }

    fn release(&mut self, run: Option<Ended>) {
        self.state.started = false;
        let left = Then::Tell(FromKeeper::Left { problem: None });
        match self.state.phase {
            Phase::Over => {}
            Phase::Held | Phase::Lost | Phase::Duty | Phase::Offered { .. } => {
                let oldest_kept = self.state.oldest_kept.clone();
                self.leave(Request::Leave { run, oldest_kept }, left);
            }
            Phase::Parked => {
                self.tell(FromKeeper::Left { problem: None });
                self.end();
            }
            // Already on the way out, for another reason: the guardian's word is the last.
            Phase::Leaving { .. } => self.state.phase = Phase::Leaving { then: left },
            Phase::Entering | Phase::Waiting { .. } | Phase::Delaying { .. } | Phase::Renewing => {
                if self.state.lease == 0 {
                    self.tell(FromKeeper::Left { problem: None });
                    self.end();
                } else {
                    self.leave(Request::Abandon, left);
                }
            }
        }
    }

    fn withdrawn(&mut self, back: bool) {
        if !matches!(self.state.phase, Phase::Offered { .. }) {
            return;
        }
        if !back {
            // Claimed at the same moment: its word is on the way.
            return self.claimed();
        }
        let then = if self.state.why_lost.take().is_some() {
            Then::Requeue
        } else {
            Then::Park
        };
        self.leave(Request::Abandon, then);
    }

    fn guardian_gone(&mut self, record: Ended) {
        self.state.guardian_lives = false;
        self.state.orphaned_run = Some(record);
        self.state.next_wake = None;
        match self.state.phase {
            Phase::Entering | Phase::Waiting { .. } | Phase::Delaying { .. } | Phase::Renewing => {
                if self.state.lease == 0 {
                    self.end()
                } else {
                    self.leave(Request::Abandon, Then::End)
                }
            }
            Phase::Offered { .. } => {
                // It may have claimed and forked in its last moment.
                self.duty();
            }
            Phase::Held | Phase::Lost if self.state.command_over => self.leave_orphaned(),
            Phase::Held | Phase::Lost => self.duty(),
            Phase::Parked => self.end(),
            Phase::Leaving { .. } => self.state.phase = Phase::Leaving { then: Then::End },
            Phase::Duty | Phase::Over => {}
        }
    }

    /// Whatever is left of the tree is killed from here, unless the command had ended by itself.
    fn duty(&mut self) {
        self.state.phase = Phase::Duty;
        if self.state.rules.checks.last_duty {
            self.act(Action::LastDuty);
        }
    }

    fn duty_done(&mut self, dead: bool) {
        if self.state.phase != Phase::Duty {
            return;
        }
        if dead || !self.state.rules.checks.tree_check {
            self.leave_orphaned();
        } else {
            self.act(Action::LastDuty);
        }
    }

    /// Lets go on our own authority: the tree is dead, and the guardian gone or silent.
    fn leave_orphaned(&mut self) {
        let run = self.state.orphaned_run.clone();
        let oldest_kept = self.state.oldest_kept.clone();
        let then = if self.state.guardian_lives {
            Then::Tell(FromKeeper::Left { problem: None })
        } else {
            Then::End
        };
        self.leave(Request::Leave { run, oldest_kept }, then);
    }

    fn read(&mut self) {
        if self.state.under_way.is_some() || self.state.again.is_some() {
            self.state.read_again = true;
        } else {
            self.state.read_again = false;
            self.send(Request::Read);
        }
    }

    /// What the time alone demands.
    fn judge(&mut self) {
        if let Some((at, request)) = self.state.again.clone()
            && self.now >= at
        {
            self.send(request);
        }
        self.judge_waiting();
        if self.state.read_again
            && self.state.under_way.is_none()
            && matches!(self.state.phase, Phase::Waiting { .. } | Phase::Delaying { .. })
        {
            self.read();
        }
        if let Some(at) = self.state.rewatch_at
            && self.now >= at
            && let Some(watched) = self.state.watched.clone()
        {
            self.watch(watched);
        }
        if let Phase::Delaying { until, stale } = self.state.phase.clone()
            && self.now >= until
            && self.state.under_way.is_none()
            && self.state.again.is_none()
        {
            self.send(Request::Clear(stale));
        }
        if let Phase::Offered { until } = self.state.phase
            && self.now >= until
            && let Some(token) = self.state.token
        {
            self.state.phase = Phase::Offered {
                until: self.now + self.state.rules.claim_within,
            };
            self.act(Action::Withdraw { token });
        }
        self.judge_renewal();
        self.judge_guardian();
    }

    fn judge_waiting(&mut self) {
        if !self.state.waits() {
            return;
        }
        let waited = self.now.since(self.policy.began);
        if !self.state.contacted && waited >= self.policy.dial_timeout {
            let why = self.state.outage.clone().unwrap_or_else(|| "no answer".into());
            let why = format!(
                "etcd could not be reached within {} s: {why}; nothing was run",
                self.policy.dial_timeout.as_secs_f64()
            );
            self.tell(FromKeeper::Failed(Failure::new(FailureKind::Unavailable, why)));
            return self.end();
        }
        let over = self.policy.wait.is_some_and(|wait| waited >= wait);
        // Nobody is ahead while delaying, so this is no longer waiting for anybody: it is sat out, or who
        // never waits long enough would find the lock shut for ever.
        if over && !matches!(self.state.phase, Phase::Delaying { .. } | Phase::Renewing) {
            if let Some(why) = self.state.outage.clone() {
                if self.policy.wait != Some(Duration::ZERO) || waited >= self.policy.dial_timeout {
                    let why = format!("etcd was away as the wait ended: {why}; nothing was run");
                    self.end_with(FromKeeper::Failed(Failure::new(FailureKind::Unavailable, why)));
                }
            } else if self.state.blocker.is_some() && matches!(self.state.phase, Phase::Waiting { .. }) {
                self.contended();
            }
        }
        if matches!(self.state.phase, Phase::Waiting { .. }) && self.now >= self.state.next_poll {
            self.state.next_poll = self.now + Duration::from_secs(10).min(self.state.rules.ttl);
            self.read();
        }
    }

    fn judge_renewal(&mut self) {
        if self.state.token.is_none() || self.state.renewal_under_way {
            return;
        }
        // Renewals end with the release.
        if matches!(
            self.state.phase,
            Phase::Leaving { .. } | Phase::Parked | Phase::Over | Phase::Lost
        ) {
            return;
        }
        if self.state.next_renewal.is_some_and(|at| self.now >= at) {
            self.state.renewal_under_way = true;
            self.act(Action::Renew);
        }
    }

    fn judge_guardian(&mut self) {
        if !matches!(self.state.phase, Phase::Held | Phase::Lost) {
            return;
        }
        let silent_for = |since: Option<Moment>| since.map_or(Duration::ZERO, |since| self.now.since(since));
        if self.state.started
            && (self.now >= self.state.deadline
                || silent_for(self.state.lost_at) >= self.state.rules.handover_delay / 2)
        {
            // The guardian should have said by now that the tree is dead.
            return self.duty();
        }
        if self.state.next_wake.is_none() && self.now >= self.state.stop_point() && self.state.phase == Phase::Held {
            self.state.next_wake = Some(self.now);
        }
        if self.state.next_wake.is_some_and(|at| self.now >= at) {
            self.state.next_wake = Some(self.now + Duration::from_millis(100));
            self.act(Action::Wake);
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

fn or_unknown(by: &str) -> &str {
    if by.is_empty() { "somebody" } else { by }
}
