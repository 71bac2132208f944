//! The keeper's decisions on letting go: only on the guardian's word or after the last duty, and always with
//! an answer to whoever waits for it.

use super::state::{Phase, Then};
use super::{Action, Request, Step};
use crate::link::{Ended, FromKeeper};
use crate::lock::queue::Outdated;
use crate::outcome::{Failure, FailureKind, Outcome};
use crate::store::Fault;
use std::fmt::Write as _;
use std::time::Duration;

pub(super) const ABANDON_WITHIN: Duration = Duration::from_secs(1);
const TAKEN: &str = "its entry in etcd was deleted, or its lease revoked, before the release";
const NOTHING_LEFT: FromKeeper = FromKeeper::Left {
    problem: None,
    taken: None,
};

impl Step<'_> {
    pub(super) fn release(&mut self, run: Option<Ended>) {
        self.state.started = false;
        let left = Then::Tell(NOTHING_LEFT);
        match self.state.phase {
            Phase::Over => {}
            Phase::Held | Phase::Lost | Phase::Duty | Phase::Offered { .. } => {
                let outdated = self.state.outdated.clone();
                self.leave(Request::Leave { run, outdated }, left);
            }
            Phase::Parked => {
                self.tell(NOTHING_LEFT);
                self.end();
            }
            // Already on the way out, for another reason: the guardian's word is the last.
            Phase::Leaving { .. } => self.state.phase = Phase::Leaving { then: left },
            Phase::Entering | Phase::Waiting | Phase::Delaying { .. } | Phase::Renewing => {
                // Where etcd has never answered there is no entry to remove.
                if self.state.lease == 0 || !self.state.contacted {
                    self.tell(NOTHING_LEFT);
                    self.end();
                } else {
                    self.leave(Request::Abandon, left);
                }
            }
        }
    }

    pub(super) fn guardian_gone(&mut self, record: Ended) {
        self.state.guardian_lives = false;
        self.state.orphaned_run = Some(record);
        self.state.next_wake = None;
        match self.state.phase {
            Phase::Entering | Phase::Waiting | Phase::Delaying { .. } | Phase::Renewing => {
                if self.state.lease == 0 {
                    self.end();
                } else {
                    self.leave(Request::Abandon, Then::End);
                }
            }
            // It may have claimed and forked in its last moment.
            Phase::Offered { .. } => self.withdraw_now(),
            Phase::Held | Phase::Lost if self.state.command_over => self.leave_orphaned(),
            Phase::Held | Phase::Lost => self.duty(),
            Phase::Parked => self.end(),
            Phase::Leaving { .. } => self.state.phase = Phase::Leaving { then: Then::End },
            Phase::Duty | Phase::Over => {}
        }
    }

    /// Lets go on our own authority: the tree is dead, and the guardian gone or silent.
    pub(super) fn leave_orphaned(&mut self) {
        let run = self.state.orphaned_run.clone();
        let outdated = self.state.outdated.clone();
        let then = if self.state.guardian_lives {
            Then::Tell(NOTHING_LEFT)
        } else {
            Then::End
        };
        self.leave(Request::Leave { run, outdated }, then);
    }

    /// Says the last word once nothing of ours is left in etcd.
    pub(super) fn end_with(&mut self, words: FromKeeper) {
        if self.state.lease == 0 {
            self.tell(words);
            self.end();
        } else {
            self.leave(Request::Abandon, Then::Tell(words));
        }
    }

    pub(super) fn end(&mut self) {
        self.state.phase = Phase::Over;
        self.act(Action::End);
    }

    pub(super) fn leave(&mut self, request: Request, then: Then) {
        if self.state.guardian_lives {
            // A little before the guardian's own limit, so that it hears the reason. Where nothing ran, who
            // waits for us wants to go, and the revocation is tried once more after that.
            let limit = self.state.rules.release_timeout.mul_f64(0.9);
            let limit = if request == Request::Abandon {
                limit.min(ABANDON_WITHIN)
            } else {
                limit
            };
            self.state.leave_by = Some(self.now + limit);
        }
        self.state.phase = Phase::Leaving { then };
        self.state.watch_at = None;
        self.state.next_wake = None;
        if matches!(
            self.state.under_way,
            Some(Request::Grant | Request::Enqueue | Request::Seize | Request::Clear { .. })
        ) {
            // etcd keeps no order between requests: one that writes must have been answered, or it could
            // be carried out after we left.
            self.state.deferred = Some(request);
        } else {
            self.send(request);
        }
    }

    pub(super) fn failed(&mut self, request: Request, fault: Fault) {
        if let Some(deferred) = self.state.deferred.take() {
            return self.send(deferred);
        }
        let leaving = request.leaves();
        if leaving && !self.state.guardian_lives && self.now >= self.state.deadline + self.state.rules.margin {
            // Nobody waits for it any more, and the lease has ended by itself.
            return self.end();
        }
        match fault {
            // An endpoint that proved to be another cluster's is not asked again.
            Fault::Config { why } | Fault::Foreign { why } | Fault::Replaced { why } if leaving => {
                self.state.outage = Some(why);
                self.state.again = Some((self.now + self.state.rules.retry, request));
            }
            Fault::Replaced { why } if !matches!(request, Request::Look | Request::Grant) => self.entry_gone(why),
            // Nothing is given up over it while a tree may be alive: whether the lock is still ours is for
            // the renewals to tell.
            _ if matches!(self.state.phase, Phase::Held | Phase::Lost | Phase::Duty) => {
                if self.state.phase == Phase::Held {
                    self.state.again = Some((self.now + self.state.rules.retry, request));
                }
            }
            Fault::Unreachable { why } => {
                self.away(why);
                self.state.again = Some((self.now + self.state.rules.retry, request));
            }
            Fault::LeaseGone => match request {
                // Nothing was written.
                Request::Enqueue | Request::Seize => self.entry_gone("its lease had ended".into()),
                Request::Leave { .. } | Request::Settle { .. } | Request::Abandon => self.left(None),
                Request::Look | Request::Grant | Request::Read | Request::Stand { .. } | Request::Clear { .. } => {
                    self.state.again = Some((self.now + self.state.rules.retry, request));
                }
            },
            Fault::NoSpace { .. }
            | Fault::Denied { .. }
            | Fault::Config { .. }
            | Fault::Foreign { .. }
            | Fault::Replaced { .. }
            | Fault::Internal { .. } => {
                self.refused(&request, fault.failure());
            }
        }
    }

    /// etcd said no, and would again.
    fn refused(&mut self, request: &Request, mut failure: Failure) {
        if request.leaves() {
            return self.left(Some(failure.why));
        }
        if failure.kind == FailureKind::Denied {
            let user = self
                .policy
                .user
                .as_ref()
                .map_or(String::new(), |user| format!("user \"{user}\", "));
            write!(failure.why, " ({user}{})", self.policy.keys).ok();
        }
        failure.why.push_str("; nothing was run");
        match request {
            Request::Look | Request::Grant => {
                self.tell(FromKeeper::Failed(failure));
                self.end();
            }
            _ => {
                self.end_with(FromKeeper::Failed(failure));
            }
        }
    }

    /// Our entry was gone before we let go, and nobody had noticed. Until the deadline it was taken away, and nobody
    /// can say whether the command still ran then; after that it may have gone with its lease, in an outage that
    /// began with the command's end, and until that end we could rely on it.
    pub(super) fn taken(&mut self, run: Ended, outdated: Vec<Outdated>) {
        let ran = run.status.is_some();
        let run = if ran && run.result != Outcome::LOST && self.now < self.state.deadline {
            self.state.taken = Some(TAKEN.to_owned());
            run.lost(TAKEN)
        } else {
            run
        };
        self.send(Request::Settle { run, outdated });
    }

    /// The queue has been left, or will be when the lease ends.
    pub(super) fn left(&mut self, problem: Option<String>) {
        let Phase::Leaving { then } = self.state.phase.clone() else {
            return;
        };
        self.state.token = None;
        self.state.next_renewal = None;
        self.state.leave_by = None;
        // Given up for lack of an answer, it is not to follow the next one.
        self.state.deferred = None;
        match then {
            Then::Requeue => self.requeue(),
            Then::Park => {
                self.state.phase = Phase::Parked;
                self.tell(FromKeeper::Withdrawn);
            }
            Then::Tell(FromKeeper::Left { .. }) => {
                let taken = self.state.taken.take();
                self.tell(FromKeeper::Left { problem, taken });
                self.end();
            }
            Then::Tell(words) => {
                // Nothing but etcd's answer to our departure tells contention from an outage nobody noticed.
                self.tell(match (words, problem) {
                    (FromKeeper::Contended { .. }, Some(problem)) => {
                        let why = format!("etcd was away as the wait ended: {problem}; nothing was run");
                        FromKeeper::Failed(Failure::new(FailureKind::Unavailable, why))
                    }
                    (words, _) => words,
                });
                self.end();
            }
            Then::End => self.end(),
        }
    }

    /// The guardian waits no longer; what cannot be released ends with the lease.
    pub(super) fn judge_leaving(&mut self) {
        if self.state.leave_by.is_some_and(|by| self.now >= by) {
            self.state.leave_by = None;
            let why = self
                .state
                .outage
                .clone()
                .unwrap_or_else(|| "no answer from etcd".into());
            self.left(Some(why));
        }
    }
}
