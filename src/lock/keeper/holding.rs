//! The keeper's decisions on the lease: which renewal counts, what proves a loss, and what is done when the
//! guardian fails.

use super::state::{Phase, Then};
use super::{Action, Request, Step};
use crate::link::{Ended, FromKeeper};
use crate::lock::queue::Renewal;
use crate::lock::record::{Ask, FORMAT};
use crate::moment::Moment;
use crate::store::Fault;
use std::time::Duration;

impl Step<'_> {
    pub(super) fn set_deadline(&mut self, sent: Moment, ttl: Duration) {
        let counted_from = if self.state.rules.checks.send_instant {
            sent
        } else {
            self.now
        };
        let deadline = counted_from + ttl - self.state.rules.margin;
        // An answer that was overtaken by a later renewal's must not pull the deadline back.
        self.state.deadline = self.state.deadline.max(deadline);
        // What it was to be woken for is not due any more.
        if self.state.phase == Phase::Held && self.now < self.state.stop_point() {
            self.state.next_wake = None;
        }
        self.act(Action::Deadline(self.state.deadline));
    }

    pub(super) fn schedule_renewal(&mut self, from: Moment) {
        let interval = self.state.rules.interval.mul_f64(1.0 - 0.15 * self.policy.jitter);
        self.state.next_renewal = Some(from + interval);
    }

    pub(super) fn renewed(&mut self, sent: Moment, result: Result<Renewal, Fault>) {
        self.state.renewal_under_way = false;
        if !self.state.renews() {
            return;
        }
        // In an outage too: the guardian may be killed in the midst of one.
        if matches!(self.state.phase, Phase::Held) {
            self.act(Action::Note);
        }
        match result {
            Ok(Renewal::Accepted { sent, ttl }) => {
                self.reached();
                self.set_deadline(sent, ttl);
                self.schedule_renewal(sent);
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

    pub(super) fn retry_renewal(&mut self, why: String) {
        self.away(why);
        self.state.next_renewal = Some(self.now + self.state.rules.retry);
    }

    /// Proof that our entry, or its lease, is no more.
    pub(super) fn entry_gone(&mut self, why: String) {
        match self.state.phase {
            Phase::Entering | Phase::Waiting | Phase::Delaying { .. } | Phase::Renewing => {
                self.tell(FromKeeper::Progress(format!(
                    "lost the place in the queue ({why}): queueing again"
                )));
                self.leave(Request::Abandon, Then::Requeue);
            }
            Phase::Offered { .. } => {
                self.state.why_lost = Some(why);
                self.withdraw_now();
            }
            Phase::Held => {
                self.tell(FromKeeper::Lost { why });
                self.state.phase = Phase::Lost;
                self.state.lost_at = Some(self.now);
                self.state.next_renewal = None;
                self.state.next_wake = Some(self.now);
            }
            // There is nothing left to renew.
            Phase::Duty => self.state.next_renewal = None,
            Phase::Lost | Phase::Parked | Phase::Leaving { .. } | Phase::Over => {}
        }
    }

    pub(super) fn asked(&mut self, ask: &Ask) {
        if Some(ask.token) != self.state.token {
            return;
        }
        if ask.format != FORMAT || !matches!(ask.kind.as_str(), "break" | "make-way") {
            // It is read again and again.
            if self.state.passed_over.replace(ask.kind.clone()).as_ref() == Some(&ask.kind) {
                return;
            }
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
            Phase::Entering
            | Phase::Waiting
            | Phase::Delaying { .. }
            | Phase::Renewing
            | Phase::Offered { .. }
            | Phase::Held => self.tell(FromKeeper::AskedToStop {
                why,
                asked: ask.asked(),
            }),
            Phase::Lost | Phase::Duty | Phase::Parked | Phase::Leaving { .. } | Phase::Over => {}
        }
    }

    /// Whatever is left of the tree is killed from here, unless the command had ended by itself.
    pub(super) fn duty(&mut self) {
        self.state.phase = Phase::Duty;
        self.state.next_wake = None;
        if self.state.rules.checks.last_duty {
            self.act(Action::LastDuty);
        } else {
            self.leave_orphaned();
        }
    }

    pub(super) fn duty_done(&mut self, dead: bool, run: Ended) {
        if self.state.phase != Phase::Duty {
            return;
        }
        if self.state.guardian_lives {
            // What it will say when it wakes.
            let run = Ended { status: None, ..run };
            self.state.orphaned_run = Some(run.lost("meshlock's guardian was silent as the lock had to be given up"));
        }
        if dead || !self.state.rules.checks.tree_check {
            self.leave_orphaned();
        } else {
            self.act(Action::LastDuty);
        }
    }

    pub(super) fn judge_renewal(&mut self) {
        if !self.state.renews() || self.state.renewal_under_way {
            return;
        }
        if self.state.next_renewal.is_some_and(|at| self.now >= at) {
            self.state.renewal_under_way = true;
            self.act(Action::Renew);
        }
    }

    pub(super) fn judge_guardian(&mut self) {
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

fn or_unknown(by: &str) -> &str {
    if by.is_empty() { "somebody" } else { by }
}
