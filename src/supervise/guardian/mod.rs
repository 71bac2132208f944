//! The guardian's decisions: a pure function from what happened to what is to be done. No I/O, no clock, no
//! randomness, so that tests and a model checker can walk it through every history; [`super::guard`] names
//! the events and carries out the actions.
//!
//! What it holds to: the command starts only before the stop point of a claimed hold; from the deadline on
//! nothing of the tree may live; the lock is let go only when nothing of the tree lives, or the command
//! ended by itself and its stragglers are to be left.

mod step;
pub mod waiting;

use self::step::Step;
use crate::link::{Asked, FromGuardian, FromKeeper, Hold, Waiting};
use crate::moment::Moment;
use crate::outcome::{CommandEnd, Failure, FailureKind, Outcome};
use crate::rules::{Rules, Stragglers};
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
    /// A line is kept current on the terminal while we wait, and counts the time from here on.
    pub waiting_line: Option<Moment>,
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
    /// The child could not become the command, and is gone.
    NotStarted {
        found: bool,
        why: String,
    },
    CommandEnded(CommandEnd),
    /// The kernel did not carry out [`Action::StopSelf`], and would not the next time.
    StopRefused,
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
    /// Have a child become the command.
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
    /// Bring the line that is kept current up to date: why we wait, and how long by now.
    ShowWaiting {
        waiting: Waiting,
        waited: Duration,
    },
    /// Take it away.
    HideWaiting,
    /// The run is over; the outcome is in [`State::outcome`].
    Finish,
}

/// How far the run is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Cause {
    /// A second INT or TERM: the user is in a hurry.
    Hurry,
    Overrun,
    Superseded(String),
    /// The command had ended, or was being stopped, when the lock turned out to be gone.
    Taken(String),
    /// No proof of loss, but the deadline came near.
    Outage,
    Lost(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    phase: Phase,
    keeper_lives: bool,
    /// That the keeper has ended, and what follows from it.
    keepers_death_told: bool,
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
    /// Why the keeper cannot renew the lock just now.
    trouble: Option<String>,
    /// What a person, or a newer waiter, made it stop by.
    asked: Option<Asked>,
    /// What could not be released, and for how long it blocks others.
    problem: Option<String>,
    /// Why we wait, where a line about it is kept current.
    waiting: Option<Waiting>,
    /// While that line is there: when it is due again.
    show_at: Option<Moment>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            phase: Phase::Waiting,
            keeper_lives: true,
            keepers_death_told: false,
            left: false,
            cause: None,
            command: None,
            unrun: None,
            first_signal: None,
            stopped_by: None,
            hold: None,
            trouble: None,
            asked: None,
            problem: None,
            waiting: None,
            show_at: None,
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
    step.show_waiting();
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
            Phase::Waiting => self.show_at,
            Phase::Killing | Phase::Over => None,
            Phase::Running { since } => {
                let stop = deadline - rules.grace;
                Some(rules.max_runtime.map_or(stop, |limit| stop.min(*since + limit)))
            }
            Phase::Stopping { kill_at } => Some((*kill_at).min(deadline)),
            Phase::Claiming { .. } | Phase::Straggling => Some(deadline),
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

    /// What was asked of the run, and stopped it.
    pub const fn asked(&self) -> Option<&Asked> {
        self.asked.as_ref()
    }

    /// Why it ended so, for the record; `None` where the command exited by itself.
    pub fn why(&self, policy: &Policy, outcome: &Outcome) -> Option<String> {
        let why = match self.cause.as_ref().filter(|_| self.unrun.is_none()) {
            Some(Cause::Lost(why) | Cause::Taken(why)) => why.clone(),
            Some(Cause::Outage) => format!("it could not be renewed in time{}", self.because()),
            Some(Cause::Overrun) => format!("it ran longer than --max-runtime {} s", limit(policy)),
            // By whom and why is recorded by itself.
            Some(Cause::Superseded(_)) => "it was asked to stop".to_owned(),
            Some(Cause::Hurry) | None => match outcome {
                Outcome::Command(CommandEnd::Exited(_)) => return None,
                Outcome::Command(end @ CommandEnd::Signaled(_)) => format!("the command {end}"),
                Outcome::Interrupted(signal) => format!("{signal} came before the command began"),
                other => other.why()?.to_owned(),
            },
        };
        Some(why)
    }

    /// In brackets; nothing where the keeper itself does not answer.
    fn because(&self) -> String {
        self.trouble.as_ref().map_or(String::new(), |why| format!(" ({why})"))
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
            (Some(Cause::Taken(why)), _) => Outcome::Lost {
                why: format!(
                    "the lock \"{name}\" was lost ({why}): the command may have gone on without it{}",
                    stopped()
                ),
                command,
            },
            (Some(Cause::Outage), _) => Outcome::Lost {
                why: format!(
                    "the lock \"{name}\" could not be renewed in time{}; the command was stopped before another could start{}",
                    self.because(),
                    stopped()
                ),
                command,
            },
            (Some(Cause::Superseded(why)), _) => Outcome::Superseded {
                why: format!("{why}; the command was stopped{}", stopped()),
                command,
            },
            (Some(Cause::Overrun), _) => {
                let why = format!(
                    "\"{name}\" ran longer than --max-runtime {} s: the command was stopped and the lock released{}",
                    limit(policy),
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

/// In seconds.
fn limit(policy: &Policy) -> f64 {
    policy.max_runtime.map_or(0.0, |limit| limit.as_secs_f64())
}
