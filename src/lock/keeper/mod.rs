//! The keeper's decisions: a pure function from what etcd and the guardian said to what is to be sent. No
//! I/O, no clock, no randomness, so that tests and a model checker can walk it through every history;
//! `commands::keep` names the events and carries out the actions.
//!
//! What it holds to: a hold is offered only when nobody is ahead, no unclean departure is fresh and the
//! deadline is far enough, which a look at the queue shows, or a clean departure to whoever had just looked; only
//! an accepted renewal moves the deadline, and from its sending; the queue is left only on the guardian's word or
//! after the last duty.

mod holding;
mod leaving;
mod state;
mod waiting;
mod watching;

pub use self::state::State;
use self::state::{Phase, Then};
use super::queue::{Granted, Outdated, Predecessor, Renewal, Standing, Vanished, View};
use super::record::Ask;
use crate::link::{Ended, FromGuardian, FromKeeper, Hold};
use crate::moment::Moment;
use crate::outcome::Failure;
use crate::rules::Rules;
use crate::store::Fault;
use std::time::Duration;

/// What does not change during a run.
#[derive(Clone, Debug)]
pub struct Policy {
    /// For words.
    pub name: String,
    /// For words too.
    pub endpoints: String,
    /// What rights are needed on.
    pub keys: String,
    pub user: Option<String>,
    /// When this call of meshlock began: the wait counts from here.
    pub began: Moment,
    /// `None` waits without limit; zero asks once.
    pub wait: Option<Duration>,
    /// Bounds the first contact.
    pub dial_timeout: Duration,
    /// Leases that our own process tree holds: waiting for one of them would wait for ourselves.
    pub outer_leases: Vec<i64>,
    /// The guardian shows our place all the while: it hears of each change, and not only of the holder's.
    pub shows_place: bool,
    /// 0.0 to 1.0: by which renewals of many keepers are spread.
    pub jitter: f64,
}

impl Policy {
    /// How long the first contact may take: an etcd that is silent does not stretch the wait, but by what is left to a
    /// departure too.
    fn contact_within(&self) -> Duration {
        let wait = self.wait.filter(|wait| !wait.is_zero());
        wait.map_or(self.dial_timeout, |wait| {
            self.dial_timeout.min(wait + leaving::ABANDON_WITHIN)
        })
    }
}

/// A request to etcd. One is under way at a time, renewals and watches apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    Look,
    Grant,
    Enqueue,
    /// Take the lock only if nobody is there.
    Seize,
    Read,
    /// Whether all is still as the watch was set on.
    Stand {
        predecessor: Option<String>,
    },
    /// The start after a hand-over delay: removes these open records, and records whose run vanished.
    Clear {
        stale: Vec<String>,
        vanished: Option<Box<Vanished>>,
        outdated: Vec<Outdated>,
    },
    /// Let go of a hold, its tree dead.
    Leave {
        run: Option<Ended>,
        outdated: Vec<Outdated>,
    },
    /// Do the rest, and record the run, where our entry had been taken before we let go.
    Settle {
        run: Ended,
        outdated: Vec<Outdated>,
    },
    /// Let go of a place under which nothing was ever run.
    Abandon,
}

impl Request {
    /// Whether it is a part of the way out.
    const fn leaves(&self) -> bool {
        matches!(self, Self::Leave { .. } | Self::Settle { .. } | Self::Abandon)
    }
}

/// What etcd said to a [`Request`].
#[derive(Clone, Debug)]
pub enum Answer {
    Granted(Granted, Result<Rules, Failure>),
    View(View),
    Standing(Standing),
    Gone,
    /// To a [`Request::Leave`]: our entry was gone before, and not by our hand.
    Taken,
}

#[derive(Clone, Debug)]
pub enum Event {
    Answer(Answer),
    /// The request came to nothing.
    Fault(Fault),
    Renewal {
        /// That was renewed: an answer may come when it has long been given up.
        lease: i64,
        sent: Moment,
        result: Result<Renewal, Fault>,
    },
    /// All that the watch has told since the last look: what goes at one revision comes in two words.
    Seen(Vec<Seen>),
    WatchBroken(Fault),
    /// Everything that it has said since the last look: none of it is judged by an hour that its next word
    /// would explain.
    Guardian(Vec<FromGuardian>),
    /// The link is closed: the guardian has ended, and this is what may be recorded of its run.
    GuardianGone(Ended),
    /// The answer to [`Action::Withdraw`].
    Withdrawn(bool),
    /// The last duty has found nothing more alive (or something that will not die), and this is what may be
    /// recorded of the run.
    DutyDone {
        dead: bool,
        run: Ended,
    },
    Tick,
}

/// What the watch tells. Of one key in order, of several in any: etcd has a watcher for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Seen {
    /// Everything asked for is watched from now on.
    Ready,
    /// Our own entry was deleted.
    OursGone,
    /// The entry before ours was deleted, at this revision.
    PredecessorGone {
        at: i64,
    },
    /// Its open record was.
    OpenGone {
        at: i64,
    },
    /// The entry before that one was deleted.
    EarlierGone,
    /// The freeze is lifted or begun.
    FreezeChanged,
    Asked(Ask),
}

/// What is watched besides our entry and what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watched {
    pub predecessor: Option<Predecessor>,
    pub freeze: bool,
    /// From this revision on; `None` is from now.
    pub from: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// In place of whatever is under way, which is of no use any more.
    Send(Request),
    Renew,
    /// Watch our entry and what may be asked of it; while waiting also the freeze and the entry before us.
    Watch(Watched),
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
        self.state.asked_at = self.now;
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
            Event::Renewal { lease, sent, result } => {
                if lease == self.state.lease {
                    self.renewed(sent, result);
                }
            }
            Event::Seen(all) => self.seen_by_the_watch(all),
            Event::WatchBroken(Fault::Replaced { why }) => self.entry_gone(why),
            // One that breaks after we left, or for a place given up, is of no use any more.
            Event::WatchBroken(fault) => {
                if let Fault::Unreachable { why } = fault {
                    self.away(why);
                }
                if self.state.renews()
                    && let Some(watched) = &mut self.state.watched
                {
                    // Its revision may be compacted by the next time.
                    watched.from = None;
                    // What went meanwhile is not told.
                    self.state.heir = None;
                    self.state.watch_at = Some(self.now + self.state.rules.retry);
                }
            }
            Event::Guardian(words) => words.into_iter().for_each(|words| self.heard(words)),
            Event::GuardianGone(record) => self.guardian_gone(record),
            Event::Withdrawn(back) => self.withdrawn(back),
            Event::DutyDone { dead, run } => self.duty_done(dead, run),
            Event::Tick => {}
        }
    }

    /// etcd does not answer, which a waiter sits out; who does not wait hears the end of it soon enough.
    fn away(&mut self, why: String) {
        let waits = self.state.waits() && self.policy.wait != Some(Duration::ZERO);
        if waits && self.state.contacted && self.state.outage.is_none() {
            self.tell(FromKeeper::Progress(format!(
                "etcd does not answer ({why}): trying again"
            )));
        }
        if self.state.phase == Phase::Held && self.state.outage.as_ref() != Some(&why) {
            self.tell(FromKeeper::Renewals {
                trouble: Some(why.clone()),
            });
        }
        self.state.outage = Some(why);
    }

    /// etcd answers (again). That it did not before the first contact was not told either.
    fn reached(&mut self) {
        let again = std::mem::replace(&mut self.state.contacted, true);
        let waits = self.state.waits() && self.policy.wait != Some(Duration::ZERO);
        if self.state.outage.take().is_none() {
            return;
        }
        if self.state.phase == Phase::Held {
            self.tell(FromKeeper::Renewals { trouble: None });
        }
        if again && waits {
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
            (Request::Enqueue | Request::Seize | Request::Read | Request::Clear { .. }, Answer::View(view)) => {
                self.seen(&view);
            }
            (Request::Stand { predecessor }, Answer::Standing(standing)) => {
                self.stands(predecessor.is_some(), &standing);
            }
            (
                Request::Leave {
                    run: Some(run),
                    outdated,
                },
                Answer::Taken,
            ) => self.taken(run, outdated),
            (Request::Leave { .. } | Request::Settle { .. } | Request::Abandon, _) => self.left(None),
            (
                Request::Look
                | Request::Grant
                | Request::Enqueue
                | Request::Seize
                | Request::Read
                | Request::Stand { .. }
                | Request::Clear { .. },
                _,
            ) => {}
        }
    }

    fn heard(&mut self, words: FromGuardian) {
        match words {
            FromGuardian::Claimed => self.claimed(),
            FromGuardian::Started { .. } => {
                self.claimed();
                self.state.started = true;
                self.state.command_over = false;
                // Else it comes with the watch: nothing but the command is there yet.
                if self.state.watch_at.is_none() {
                    self.act(Action::Note);
                }
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

    /// What the time alone demands.
    fn judge(&mut self) {
        if let Some((at, request)) = self.state.again.clone()
            && self.now >= at
        {
            self.send(request);
        }
        // First, since it may lead back to the queue, where the wait may be over.
        self.judge_leaving();
        self.judge_waiting();
        if self.state.read_again
            && self.state.under_way.is_none()
            && matches!(self.state.phase, Phase::Waiting | Phase::Delaying { .. } | Phase::Held)
        {
            self.read();
        }
        if let Some(at) = self.state.watch_at
            && self.now >= at
            && let Some(watched) = self.state.watched.clone()
        {
            self.watch(watched);
            if self.state.started {
                self.act(Action::Note);
            }
        }
        if let Phase::Delaying { until, stale, vanished } = self.state.phase.clone()
            && self.now >= until
            && self.state.under_way.is_none()
            && self.state.again.is_none()
        {
            self.clear(stale, vanished);
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
}
