//! How the guardian's state follows from each event and from the time; see [`super`] for what it holds to.

use super::{Action, Cause, Event, Phase, Policy, Reading, State, waiting};
use crate::link::{FromGuardian, FromKeeper};
use crate::moment::Moment;
use crate::outcome::{CommandEnd, Failure, FailureKind, Outcome};
use crate::rules::{Rules, Stragglers};
use nix::sys::signal::Signal;
use std::time::Duration;

pub(super) struct Step<'a> {
    pub(super) rules: &'a Rules,
    pub(super) policy: &'a Policy,
    pub(super) state: &'a mut State,
    pub(super) reading: Reading,
    pub(super) actions: &'a mut Vec<Action>,
}

impl Step<'_> {
    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn happened(&mut self, event: Event) {
        match event {
            Event::Keeper(words) => self.heard(words),
            Event::KeeperGone => self.keeper_gone(),
            Event::Claimed(taken) => self.claimed(taken),
            Event::Signal { signal, from_kernel } => self.signalled(signal, from_kernel),
            Event::NotStarted { found, why } => {
                let why = format!(
                    "cannot run {}: {why}; the lock \"{}\" was released",
                    self.policy.command, self.policy.name
                );
                self.state.unrun = Some(Outcome::NotStarted { found, why });
                self.release();
            }
            Event::CommandEnded(end) => self.command_ended(end),
            Event::StopRefused => self.state.stopped_by = None,
            Event::TreeDead => match self.state.phase {
                Phase::Killing => self.release(),
                Phase::Straggling => {
                    if self.overslept() {
                        self.raise_cause(Cause::Outage);
                    }
                    self.release();
                }
                _ => {}
            },
            Event::Tick => {}
        }
    }

    fn heard(&mut self, words: FromKeeper) {
        match words {
            FromKeeper::Progress(line) => self.act(Action::Progress(line)),
            FromKeeper::Notice(line) => self.act(Action::Notice(line)),
            FromKeeper::Waiting(waiting) => {
                if self.policy.waiting_line.is_some() {
                    self.state.waiting = Some(waiting);
                    self.show_again();
                } else {
                    self.act(Action::Progress(waiting::said(&self.policy.name, &waiting)));
                }
            }
            FromKeeper::Held(hold) => {
                if self.state.phase == Phase::Waiting {
                    self.act(Action::Claim { token: hold.token });
                    self.state.hold = Some(hold);
                }
            }
            FromKeeper::Withdrawn => {
                if self.state.phase == Phase::Waiting {
                    self.act(Action::Tell(FromGuardian::Requeue));
                }
            }
            FromKeeper::Lost { why } => self.lost(why),
            FromKeeper::Renewals { trouble } => self.state.trouble = trouble,
            FromKeeper::AskedToStop { why, asked } => match self.state.phase {
                Phase::Waiting | Phase::Claiming { .. } => {
                    self.state.unrun = Some(Outcome::Superseded { why, command: None });
                    self.release();
                }
                Phase::Running { .. } | Phase::Stopping { .. } | Phase::Straggling => {
                    self.state.asked = Some(asked);
                    self.stop(
                        Cause::Superseded(why),
                        self.policy.stop_signal,
                        self.reading.now + self.rules.grace,
                    );
                }
                Phase::Killing | Phase::Releasing { .. } | Phase::Over => {}
            },
            FromKeeper::Contended { why } => self.end_unrun(Outcome::Contended { why }),
            FromKeeper::Failed(failure) => self.end_unrun(Outcome::Failed(failure)),
            FromKeeper::Left { problem, taken } => {
                if matches!(self.state.phase, Phase::Releasing { .. }) {
                    if let Some(why) = taken {
                        self.raise_cause(Cause::Taken(why));
                    }
                    match problem {
                        Some(problem) => self.finish_unreleased(&problem),
                        None => self.finish(),
                    }
                } else {
                    self.state.left = true;
                    // Said when the run ends, whatever else there is to say.
                    self.state.problem = problem
                        .map(|problem| format!("the lock \"{}\" could not be released: {problem}", self.policy.name));
                    // Unasked it is let go only by the last duty: the command did not end by itself, and what was
                    // not found there has no lock any more.
                    if matches!(
                        self.state.phase,
                        Phase::Running { .. } | Phase::Stopping { .. } | Phase::Straggling
                    ) {
                        self.raise_cause(Cause::Outage);
                        self.kill();
                    }
                }
            }
        }
    }

    /// The keeper gave up before anything ran.
    fn end_unrun(&mut self, outcome: Outcome) {
        match self.state.phase {
            Phase::Waiting | Phase::Claiming { .. } => {
                self.state.unrun = Some(outcome);
                self.finish();
            }
            // It had already been told to let go: that call's outcome stands.
            Phase::Releasing { .. } => self.finish(),
            Phase::Running { .. } | Phase::Stopping { .. } | Phase::Killing | Phase::Straggling | Phase::Over => {}
        }
    }

    fn keeper_gone(&mut self) {
        self.state.keeper_lives = false;
        if self.state.left {
            return;
        }
        match self.state.phase {
            Phase::Waiting | Phase::Claiming { .. } => {
                let why = "the keeper process ended unexpectedly: nothing was run";
                self.end_unrun(Outcome::Failed(Failure::new(FailureKind::Internal, why)));
            }
            Phase::Running { .. } | Phase::Stopping { .. } | Phase::Straggling => {
                let Reading { now, deadline } = self.reading;
                let stopped_in = (deadline - self.rules.grace).since(now).as_secs();
                let free_in = (deadline + self.rules.margin).since(now).as_secs();
                self.act(Action::Notice(format!(
                    "the keeper process ended: the lock \"{}\" can be neither renewed nor released any more; \
                     the command will be stopped in {stopped_in} s, others can start in {free_in} s",
                    self.policy.name
                )));
                self.state.keepers_death_told = true;
            }
            Phase::Releasing { .. } => self.finish_unreleased("the keeper process has ended"),
            Phase::Killing | Phase::Over => {}
        }
    }

    fn claimed(&mut self, taken: bool) {
        if self.state.phase != Phase::Waiting {
            return;
        }
        match self.state.hold.clone() {
            Some(hold) if taken => {
                self.act(Action::Tell(FromGuardian::Claimed));
                self.state.phase = Phase::Claiming { hold };
            }
            _ => self.state.hold = None,
        }
    }

    fn signalled(&mut self, signal: Signal, from_kernel: bool) {
        match signal {
            Signal::SIGCONT => {
                self.state.stopped_by = None;
                self.pass_on(signal);
            }
            // The terminal stops its whole foreground group, so the command has it already, and the shell
            // waits for us to stop as well.
            Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => {
                if !from_kernel {
                    self.pass_on(signal);
                }
                if self.policy.terminal {
                    self.state.stopped_by = Some(signal);
                }
            }
            Signal::SIGWINCH => {
                self.show_again();
                if !from_kernel {
                    self.pass_on(signal);
                }
            }
            _ => match self.state.phase {
                Phase::Waiting | Phase::Claiming { .. } => {
                    self.state.unrun = Some(Outcome::Interrupted(signal));
                    self.release();
                }
                // Told once more while we try to leave the queue: go, the lease will end by itself.
                Phase::Releasing { .. } if self.state.unrun.is_some() => self.finish_unreleased("interrupted"),
                // There is no command any more to pass it on to, and we wait for nothing else.
                Phase::Straggling if !from_kernel && ends(signal) => self.kill(),
                _ => {
                    if !from_kernel {
                        self.pass_on(signal);
                        self.hurry(signal);
                    }
                }
            },
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        if matches!(self.state.phase, Phase::Running { .. } | Phase::Stopping { .. }) {
            self.act(Action::Signal(signal));
        }
    }

    /// A command may take its time to clean up after a signal that was passed on; a second one, later, is
    /// an order to hurry.
    fn hurry(&mut self, signal: Signal) {
        if !matches!(signal, Signal::SIGINT | Signal::SIGTERM) || !matches!(self.state.phase, Phase::Running { .. }) {
            return;
        }
        match self.state.first_signal {
            None => self.state.first_signal = Some(self.reading.now),
            Some(first) if self.reading.now.since(first) >= self.rules.second_signal_after => {
                // The signal itself has just been passed on.
                self.raise_cause(Cause::Hurry);
                self.state.phase = Phase::Stopping {
                    kill_at: self.reading.now + self.rules.grace,
                };
            }
            Some(_) => {}
        }
    }

    fn command_ended(&mut self, end: CommandEnd) {
        self.state.command = Some(end);
        match self.state.phase {
            Phase::Running { .. } | Phase::Stopping { .. } if self.overslept() => {
                self.raise_cause(Cause::Outage);
                self.kill();
            }
            Phase::Running { .. } => self.ended_by_itself(),
            Phase::Stopping { .. } if self.state.cause == Some(Cause::Hurry) => self.ended_by_itself(),
            // Our own stop means the whole tree.
            Phase::Stopping { .. } => self.kill(),
            Phase::Waiting
            | Phase::Claiming { .. }
            | Phase::Killing
            | Phase::Straggling
            | Phase::Releasing { .. }
            | Phase::Over => {}
        }
    }

    /// We slept through the deadline: an end that is seen only now proves nothing about when it came.
    fn overslept(&self) -> bool {
        self.reading.now >= self.reading.deadline && self.rules.checks.own_timer
    }

    fn ended_by_itself(&mut self) {
        match self.policy.stragglers {
            Stragglers::Leave => {
                self.act(Action::Tell(FromGuardian::CommandEnded));
                self.release();
            }
            Stragglers::Wait => {
                self.state.phase = Phase::Straggling;
                self.act(Action::AwaitTree);
            }
            Stragglers::Kill => self.kill(),
        }
    }

    fn lost(&mut self, why: String) {
        self.act(Action::Tell(FromGuardian::LossSeen));
        match self.state.phase {
            Phase::Running { .. } | Phase::Stopping { .. } | Phase::Straggling => {
                if self.rules.lost_grace.is_zero() || self.state.phase == Phase::Straggling {
                    self.raise_cause(Cause::Lost(why));
                    self.kill();
                } else {
                    self.stop(
                        Cause::Lost(why),
                        self.policy.stop_signal,
                        self.reading.now + self.rules.lost_grace,
                    );
                }
            }
            // Already being killed, but until now the lock was ours.
            Phase::Killing => self.raise_cause(Cause::Lost(why)),
            Phase::Claiming { .. } => {
                self.state.phase = Phase::Waiting;
                self.state.hold = None;
                self.act(Action::Tell(FromGuardian::Requeue));
            }
            Phase::Waiting | Phase::Releasing { .. } | Phase::Over => {}
        }
    }

    /// Sends the stop signal, unless one is already on its way; the earlier kill counts.
    fn stop(&mut self, cause: Cause, signal: Signal, kill_at: Moment) {
        self.raise_cause(cause);
        match self.state.phase {
            Phase::Running { .. } => {
                self.act(Action::Signal(signal));
                // A stopped process acts on no signal but this one and SIGKILL.
                self.act(Action::Signal(Signal::SIGCONT));
                self.state.phase = Phase::Stopping { kill_at };
            }
            Phase::Stopping { kill_at: before } => {
                self.state.phase = Phase::Stopping {
                    kill_at: kill_at.min(before),
                }
            }
            // Only what the command left is alive; it gets no other warning.
            Phase::Straggling => self.kill(),
            Phase::Waiting | Phase::Claiming { .. } | Phase::Killing | Phase::Releasing { .. } | Phase::Over => {}
        }
    }

    fn raise_cause(&mut self, cause: Cause) {
        if self.state.cause.as_ref().is_none_or(|present| *present < cause) {
            self.state.cause = Some(cause);
        }
    }

    fn kill(&mut self) {
        self.state.phase = Phase::Killing;
        self.act(Action::Kill);
        if !self.rules.checks.tree_check {
            self.release();
        }
    }

    fn release(&mut self) {
        if self.state.left {
            if let Some(problem) = self.state.problem.take() {
                self.problem(problem);
            }
            self.finish();
            return;
        }
        if !self.state.keeper_lives {
            self.finish_unreleased("the keeper process has ended");
            return;
        }
        self.state.phase = Phase::Releasing {
            by: self.reading.now + self.rules.release_timeout,
        };
        self.act(Action::Release);
    }

    fn finish_unreleased(&mut self, reason: &str) {
        if self.state.hold.is_some() {
            let lease_ends = self.reading.deadline + self.rules.margin;
            let left = (lease_ends + Duration::from_millis(999))
                .since(self.reading.now)
                .as_secs();
            let blocks = match left {
                0 => "its lease has ended by now".to_owned(),
                left => format!("it may block others for up to {left} s more"),
            };
            self.problem(format!(
                "the lock \"{}\" could not be released ({reason}): {blocks}",
                self.policy.name
            ));
        }
        self.finish();
    }

    fn problem(&mut self, problem: String) {
        // The keeper's death has been told already, with what follows from it.
        if !self.state.keepers_death_told {
            self.act(Action::Notice(problem.clone()));
        }
        self.state.problem = Some(problem);
    }

    fn finish(&mut self) {
        self.state.phase = Phase::Over;
        self.act(Action::Finish);
    }

    /// What the time alone demands.
    pub(super) fn judge(&mut self) {
        let Reading { now, deadline } = self.reading;
        let stop_point = deadline - self.rules.grace;
        let own_timer = self.rules.checks.own_timer;
        match self.state.phase.clone() {
            Phase::Claiming { hold } if now < stop_point => {
                self.state.phase = Phase::Running { since: now };
                self.act(Action::Start(hold));
            }
            Phase::Claiming { .. } if now >= deadline => {
                self.state.phase = Phase::Waiting;
                self.state.hold = None;
                self.act(Action::Tell(FromGuardian::Requeue));
            }
            Phase::Running { .. } | Phase::Stopping { .. } | Phase::Straggling if now >= deadline && own_timer => {
                self.raise_cause(Cause::Outage);
                self.kill();
            }
            Phase::Running { .. } if now >= stop_point && own_timer => {
                self.act(Action::Notice(format!(
                    "the lock \"{}\" could not be renewed in time{}: stopping the command",
                    self.policy.name,
                    self.state.because()
                )));
                // Fixed here: a renewal that still comes through no longer moves the kill.
                self.stop(Cause::Outage, self.policy.stop_signal, deadline);
            }
            Phase::Running { since } if self.rules.max_runtime.is_some_and(|limit| now >= since + limit) => {
                self.stop(Cause::Overrun, self.policy.stop_signal, now + self.rules.grace);
            }
            Phase::Stopping { kill_at } if now >= kill_at => {
                if self.state.cause == Some(Cause::Hurry) {
                    self.act(Action::Notice(format!(
                        "\"{}\" did not end within the grace of {} s after the second signal: killing it",
                        self.policy.name,
                        self.rules.grace.as_secs_f64()
                    )));
                }
                self.kill();
            }
            // It outlived the lock, whatever it was killed for.
            Phase::Killing if now >= deadline && own_timer => self.raise_cause(Cause::Outage),
            Phase::Releasing { by } if now >= by => {
                self.finish_unreleased("no answer from etcd within --release-timeout");
            }
            _ => {}
        }
        self.stop_again();
    }

    /// The line that is there is no longer right.
    fn show_again(&mut self) {
        if self.state.show_at.is_some() {
            self.state.show_at = Some(self.reading.now);
        }
    }

    /// The line that is kept current: there while we wait and run, brought up to date at each change and each full
    /// second, and taken away before anything else happens.
    pub(super) fn show_waiting(&mut self) {
        let Some(began) = self.policy.waiting_line else {
            return;
        };
        if self.state.phase != Phase::Waiting {
            self.state.waiting = None;
        }
        let now = self.reading.now;
        match self.state.waiting.clone().filter(|_| self.state.stopped_by.is_none()) {
            Some(waiting) if self.state.show_at.is_none_or(|at| now >= at) => {
                let waited = now.since(began);
                self.act(Action::ShowWaiting { waiting, waited });
                self.state.show_at = Some(began + Duration::from_secs(waited.as_secs() + 1));
            }
            Some(_) => {}
            None => {
                if self.state.show_at.take().is_some() {
                    self.actions.insert(0, Action::HideWaiting);
                }
            }
        }
    }

    /// Back into the terminal's stop, if all that woke us was our own watchfulness.
    fn stop_again(&mut self) {
        if !matches!(
            self.state.phase,
            Phase::Waiting | Phase::Claiming { .. } | Phase::Running { .. }
        ) {
            self.state.stopped_by = None;
        }
        if let Some(signal) = self.state.stopped_by {
            self.act(Action::StopSelf(signal));
        }
    }
}

/// Whoever sends it wants the run to be over.
const fn ends(signal: Signal) -> bool {
    matches!(
        signal,
        Signal::SIGHUP | Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTERM
    )
}
