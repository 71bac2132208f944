//! The guardian's decisions: a pure function from what happened to what is to be done. No I/O, no clock, no
//! randomness, so that tests and a model checker can walk it through every history; [`super::guard`] names
//! the events and carries out the actions.
//!
//! What it holds to: the command starts only before the stop point of a claimed hold; from the deadline on
//! nothing of the tree may live; the lock is let go only when nothing of the tree lives, or the command
//! ended by itself and its stragglers are to be left.

use crate::link::{FromGuardian, FromKeeper, Hold};
use crate::moment::Moment;
use crate::outcome::{CommandEnd, Failure, FailureKind, Outcome};
use crate::rules::Rules;
use crate::settings::Stragglers;
use nix::sys::signal::Signal;
use std::time::Duration;

/// What does not change during a run.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The lock's, for words.
    pub name: String,
    /// The program's, for words.
    pub command: String,
    pub max_runtime: Option<Duration>,
    pub stop_signal: Signal,
    pub stragglers: Stragglers,
    /// We have a controlling terminal: the command stays in our process group.
    pub terminal: bool,
}

/// What the clock and the shared page said at this wake-up.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub now: Moment,
    pub deadline: Moment,
}

#[derive(Clone, Debug)]
pub enum Event {
    Keeper(FromKeeper),
    /// The link is closed: the keeper has ended.
    KeeperGone,
    /// The answer to [`Action::Claim`].
    Claimed(bool),
    Signal {
        signal: Signal,
        from_kernel: bool,
    },
    /// The forked child could not become the command, and is gone.
    NotStarted {
        found: bool,
        why: String,
    },
    CommandEnded(CommandEnd),
    /// A look at the tree found nothing alive.
    TreeDead,
    /// Nothing but time passed.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take the offered hold in the shared page; answered by [`Event::Claimed`].
    Claim {
        token: i64,
    },
    /// Fork the command.
    Start(Hold),
    /// To the command's group, or to the command alone where it shares ours.
    Signal(Signal),
    /// SIGKILL to all of the tree, again and again, until [`Event::TreeDead`].
    Kill,
    /// Look whether anything of the tree is left, until [`Event::TreeDead`].
    AwaitTree,
    Tell(FromGuardian),
    /// Tell the keeper to let go, with a record of the run if [`State::hold`] was claimed.
    Release,
    /// Stop this process as the terminal asked for.
    StopSelf(Signal),
    Progress(String),
    Notice(String),
    /// The run is over; the outcome is in [`State::outcome`].
    Finish,
}

/// How far the run is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing runs, nothing is held.
    Waiting,
    /// The hold is ours, but the command may not start yet.
    Claiming {
        hold: Hold,
    },
    Running {
        since: Moment,
    },
    /// A stop signal was sent; SIGKILL follows at `kill_at` or the deadline.
    Stopping {
        kill_at: Moment,
    },
    Killing,
    /// The command has ended, what it left running is waited for.
    Straggling,
    /// The keeper was told to let go.
    Releasing {
        by: Moment,
    },
    Over,
}

/// Why we stop the command; a later row outranks an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// A second INT or TERM: the user is in a hurry.
    Hurry,
    Overrun,
    Superseded(String),
    /// No proof of loss, but the deadline came near.
    Outage,
    Lost(String),
}

#[derive(Clone, Debug)]
pub struct State {
    phase: Phase,
    keeper_lives: bool,
    /// The keeper let go on its own authority, the tree dead by its last duty.
    left: bool,
    cause: Option<Cause>,
    command: Option<CommandEnd>,
    /// What ends the call where no command ran.
    unrun: Option<Outcome>,
    /// When the first INT or TERM that did not come from the terminal was passed on.
    first_signal: Option<Moment>,
    /// We stopped ourselves for the terminal, and only our own timer or keeper has continued us since.
    stopped_by: Option<Signal>,
    hold: Option<Hold>,
    /// What could not be released, and for how long it blocks others.
    problem: Option<String>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            phase: Phase::Waiting,
            keeper_lives: true,
            left: false,
            cause: None,
            command: None,
            unrun: None,
            first_signal: None,
            stopped_by: None,
            hold: None,
            problem: None,
        }
    }
}

/// What follows from `event`. Every call judges the time too, so a late wake-up is never a late decision.
pub fn step(rules: &Rules, policy: &Policy, state: &mut State, reading: Reading, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut step = Step {
        rules,
        policy,
        state,
        reading,
        actions: &mut actions,
    };
    step.happened(event);
    step.judge();
    actions
}

impl State {
    /// Something of the command's tree may be alive.
    pub const fn tree_may_live(&self) -> bool {
        matches!(
            self.phase,
            Phase::Running { .. } | Phase::Stopping { .. } | Phase::Killing | Phase::Straggling
        )
    }

    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// When the next decision is due though nothing else happens.
    pub fn wake_at(&self, rules: &Rules, deadline: Moment) -> Option<Moment> {
        match &self.phase {
            Phase::Waiting | Phase::Killing | Phase::Over => None,
            Phase::Claiming { .. } => Some(deadline),
            Phase::Running { since } => {
                let stop = deadline - rules.grace;
                Some(rules.max_runtime.map_or(stop, |limit| stop.min(*since + limit)))
            }
            Phase::Stopping { kill_at } => Some((*kill_at).min(deadline)),
            Phase::Straggling => Some(deadline),
            Phase::Releasing { by } => Some(*by),
        }
    }

    /// From when on our own timer has to wake us, whoever stopped us.
    pub fn vigil_from(&self, rules: &Rules, deadline: Moment) -> Option<Moment> {
        if !self.tree_may_live() {
            return None;
        }
        // While killing: at once.
        self.wake_at(rules, deadline).or(Some(Moment::NEVER_BEGUN))
    }

    /// The hold that was claimed, if one was.
    pub const fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// How the call ends, once it is over or the tree is dead.
    pub fn outcome(&self, policy: &Policy) -> Outcome {
        let command = self.command;
        if let Some(outcome) = &self.unrun {
            return outcome.clone();
        }
        let name = &policy.name;
        let stopped = || command.map_or(String::new(), |end| format!("; it {end}"));
        match (&self.cause, command) {
            (Some(Cause::Lost(why)), _) => Outcome::Lost {
                why: format!(
                    "the lock \"{name}\" was lost ({why}); the command was stopped{}",
                    stopped()
                ),
                command,
            },
            (Some(Cause::Outage), _) => Outcome::Lost {
                why: format!(
                    "the lock \"{name}\" could not be renewed in time; the command was stopped before another could start{}",
                    stopped()
                ),
                command,
            },
            (Some(Cause::Superseded(why)), _) => Outcome::Superseded {
                why: format!("{why}; the command was stopped{}", stopped()),
                command,
            },
            (Some(Cause::Overrun), _) => {
                let limit = policy.max_runtime.map_or(0.0, |limit| limit.as_secs_f64());
                let why = format!(
                    "\"{name}\" ran longer than --max-runtime {limit} s: the command was stopped and the lock released{}",
                    stopped()
                );
                Outcome::Overrun { why, command }
            }
            (Some(Cause::Hurry) | None, Some(end)) => Outcome::Command(end),
            (Some(Cause::Hurry) | None, None) => {
                let why = "the run ended without an outcome: please report this";
                Outcome::Failed(Failure::new(FailureKind::Internal, why))
            }
        }
    }
}

struct Step<'a> {
    rules: &'a Rules,
    policy: &'a Policy,
    state: &'a mut State,
    reading: Reading,
    actions: &'a mut Vec<Action>,
}

impl Step<'_> {
    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn happened(&mut self, event: Event) {
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
            Event::TreeDead => {
                if matches!(self.state.phase, Phase::Killing | Phase::Straggling) {
                    self.release();
                }
            }
            Event::Tick => {}
        }
    }

    fn heard(&mut self, words: FromKeeper) {
        match words {
            FromKeeper::Progress(line) => self.act(Action::Progress(line)),
            FromKeeper::Notice(line) => self.act(Action::Notice(line)),
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
            FromKeeper::AskedToStop { why } => match self.state.phase {
                Phase::Waiting | Phase::Claiming { .. } => {
                    self.state.unrun = Some(Outcome::Superseded { why, command: None });
                    self.release();
                }
                Phase::Running { .. } | Phase::Stopping { .. } | Phase::Straggling => {
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
            FromKeeper::Left { problem } => {
                if matches!(self.state.phase, Phase::Releasing { .. }) {
                    if let Some(problem) = problem {
                        self.problem(format!(
                            "the lock \"{}\" could not be released: {problem}",
                            self.policy.name
                        ));
                    }
                    self.finish();
                } else {
                    self.state.left = true;
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
                let why = "meshlock's keeper process ended unexpectedly: nothing was run";
                self.end_unrun(Outcome::Failed(Failure::new(FailureKind::Internal, why)));
            }
            Phase::Running { .. } | Phase::Stopping { .. } | Phase::Straggling => {
                let left = (self.reading.deadline - self.rules.grace).since(self.reading.now);
                self.act(Action::Notice(format!(
                    "meshlock's keeper process ended: the lock \"{}\" can no longer be renewed, the command will be stopped in {} s",
                    self.policy.name,
                    left.as_secs()
                )));
            }
            Phase::Releasing { .. } => self.finish_unreleased("meshlock's keeper process has ended"),
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
            Phase::Running { .. } if self.reading.now >= self.reading.deadline && self.rules.checks.own_timer => {
                // We slept through the deadline: the end proves nothing about when.
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
                self.act(Action::Notice(format!(
                    "the lock \"{}\" was lost ({why}): stopping the command",
                    self.policy.name
                )));
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
    }

    fn release(&mut self) {
        if self.state.left {
            self.finish();
            return;
        }
        if !self.state.keeper_lives {
            self.finish_unreleased("meshlock's keeper process has ended");
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
            let left = lease_ends.since(self.reading.now).as_secs_f64().ceil();
            self.problem(format!(
                "the lock \"{}\" could not be released ({reason}): it may block others for up to {left} s more",
                self.policy.name
            ));
        }
        self.finish();
    }

    fn problem(&mut self, problem: String) {
        self.act(Action::Notice(problem.clone()));
        self.state.problem = Some(problem);
    }

    fn finish(&mut self) {
        self.state.phase = Phase::Over;
        self.act(Action::Finish);
    }

    /// What the time alone demands.
    fn judge(&mut self) {
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
                    "the lock \"{}\" could not be renewed in time: stopping the command",
                    self.policy.name
                )));
                // Fixed here: a renewal that still comes through no longer moves the kill.
                self.stop(Cause::Outage, self.policy.stop_signal, deadline);
            }
            Phase::Running { since } if self.rules.max_runtime.is_some_and(|limit| now >= since + limit) => {
                self.stop(Cause::Overrun, self.policy.stop_signal, now + self.rules.grace);
            }
            Phase::Stopping { kill_at } if now >= kill_at => self.kill(),
            Phase::Releasing { by } if now >= by => {
                self.finish_unreleased("no answer from etcd within --release-timeout");
            }
            _ => {}
        }
        self.stop_again();
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
