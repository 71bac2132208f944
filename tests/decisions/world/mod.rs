//! Guardian and keeper as the two loops run them, coupled by their link and the shared page, with a small
//! etcd, rivals and a command's tree, in virtual time. Looks after what must hold at every instant.

mod guarding;
mod keeping;
mod network;

use crate::etcd::{Etcd, Ms, Rival, RivalPlan};
use meshlock::link::{Ended, FromGuardian, FromKeeper};
use meshlock::lock::keeper::{self, Answer, Request};
use meshlock::lock::queue::{Predecessor, Renewal};
use meshlock::lock::record::Ask;
use meshlock::moment::Moment;
use meshlock::outcome::Outcome;
use meshlock::rules::Rules;
use meshlock::rules::Stragglers;
use meshlock::store::Fault;
use meshlock::supervise::guardian;
use nix::sys::signal::Signal;
use std::collections::VecDeque;
use std::time::Duration;

pub(crate) const TICK: Ms = 20;
/// A renewal is bounded more tightly than other calls.
const RENEWAL: Ms = 1000;
const MINE: i64 = 1000;

/// What befalls the run.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    StopKeeper,
    KillKeeper,
    /// By SIGSTOP: our own timer and the keeper can wake it.
    StopGuardian,
    /// By the freezer: nothing can.
    FreezeGuardian,
    KillGuardian,
    /// Whatever was stopped goes on.
    Continue,
    NetworkDown(Ms),
    /// A deposed leader answers renewals.
    StaleLeader(Ms),
    Revoke,
    DeleteEntry,
    BreakWatch,
    Break,
    Freeze(bool),
    CommandEnds,
    Signal(Signal),
}

/// All that is fixed before a history begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) stragglers: Stragglers,
    pub(crate) wait: Option<Ms>,
    pub(crate) max_runtime: Option<Ms>,
    pub(crate) lost_grace: Ms,
    /// Of messages, taken in turn.
    pub(crate) delays: Vec<Ms>,
    /// How long a call is waited for.
    pub(crate) call: Ms,
    pub(crate) runs_for: Ms,
    /// How long after the command what it left goes on.
    pub(crate) strays_for: Ms,
    /// How long after SIGKILL, and after the stop signal if it is heeded at all.
    pub(crate) dying: Ms,
    pub(crate) heeds_stop: Option<Ms>,
    pub(crate) exec_fails: bool,
    pub(crate) rivals: Vec<RivalPlan>,
    /// Each after so long a time from the one before.
    pub(crate) deeds: Vec<(Ms, Deed)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Runs,
    Stopped,
    Frozen,
    Dead,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tree {
    forked: bool,
    command: bool,
    strays: bool,
    command_ends: Ms,
    strays_end: Ms,
    killed_at: Option<Ms>,
    /// The command ended before anybody stopped it.
    by_itself: bool,
    reaped: bool,
    failed_exec: bool,
    stopped: bool,
}

impl Tree {
    const fn alive(&self) -> bool {
        self.command || self.strays
    }
}

enum What {
    Request(u64, Box<Request>, Option<i64>),
    Renewal(Option<i64>, Moment, bool),
    Revoke,
}

/// A call on its way: to etcd, then back.
struct Flight {
    what: What,
    lease: i64,
    sent: Ms,
    arrives: Ms,
    answers: Ms,
    answer: Option<Result<Answer, Fault>>,
    renewal: Option<Result<Renewal, Fault>>,
    arrived: bool,
}

struct Watch {
    number: u64,
    stands_from: Ms,
    ready_said: bool,
    predecessor: Option<Predecessor>,
    freeze: bool,
    /// From a revision on: what happened to the entry before the watch stood is told as well.
    with_past: bool,
    lease: i64,
    broken: bool,
}

enum Sweep {
    No,
    Await,
    Kill,
}

pub(crate) struct World {
    pub(crate) now: Ms,
    plan: Plan,
    rules: Rules,
    pub(crate) etcd: Etcd,
    rivals: Vec<Rival>,
    flights: Vec<Flight>,
    next_delay: usize,
    network_down: Ms,
    stale_leader: Ms,

    keeper: Life,
    keeper_policy: keeper::Policy,
    pub(crate) keeper_state: keeper::State,
    keeper_alarm: Option<Moment>,
    /// With the number of the request or watch that they belong to.
    inbox: Vec<(Ms, Option<u64>, Option<u64>, keeper::Event)>,
    request: u64,
    watch_number: u64,
    watch: Option<Watch>,
    lease: i64,
    granted_sent: Option<Ms>,
    link_closed_seen: bool,
    duty: Option<Ms>,

    guardian: Life,
    guardian_policy: guardian::Policy,
    pub(crate) guardian_state: guardian::State,
    guardian_alarm: Option<Moment>,
    vigil: Option<Moment>,
    sweep: Sweep,
    signals: VecDeque<Signal>,
    keeper_gone_seen: bool,
    /// A signal that comes now is the user's, not ours.
    passing_on: bool,
    /// The keeper can know that the command has ended.
    guardian_said_all: bool,
    left: bool,

    to_keeper: VecDeque<FromGuardian>,
    to_guardian: VecDeque<FromKeeper>,
    deadline: Moment,
    offer: Option<i64>,
    claimed: bool,

    tree: Tree,
    /// The stop for an outage, or the kill for a loss, was decided while the tree was alive.
    lost: bool,
    /// What an accepted renewal or the grant allows.
    allowed: Option<Moment>,
    leaving: bool,
    /// No call takes so long that it may be carried out after it was given up.
    fast: bool,
    early: bool,
    /// Whether an overlap after an early revocation counts: nothing else was wrong.
    pub(crate) strict_early: bool,
    pub(crate) violations: Vec<String>,
    pub(crate) said: Vec<String>,
    pub(crate) trace: bool,
}

fn at(time: Ms) -> Moment {
    // Not from zero: an unset deadline must differ from any instant.
    Moment::from_nanos((time + 1_000_000) * 1_000_000)
}

impl World {
    pub(crate) fn new(plan: Plan, rules: Rules, strict_early: bool) -> Self {
        let rules = Rules {
            max_runtime: plan.max_runtime.map(Duration::from_millis),
            lost_grace: Duration::from_millis(plan.lost_grace),
            ..rules
        };
        let rivals = plan.rivals.iter().zip(1..);
        Self {
            now: 0,
            rules,
            etcd: Etcd::default(),
            rivals: rivals.map(|(rival, lease)| Rival::new(lease, rival.clone())).collect(),
            flights: Vec::new(),
            next_delay: 0,
            network_down: 0,
            stale_leader: 0,
            keeper: Life::Runs,
            keeper_policy: keeper::Policy {
                name: "n".into(),
                endpoints: String::new(),
                keys: String::new(),
                user: None,
                began: at(0),
                wait: plan.wait.map(Duration::from_millis),
                dial_timeout: Duration::from_secs(5),
                outer_leases: Vec::new(),
                shows_place: false,
                jitter: 0.5,
            },
            keeper_state: keeper::State::new(rules),
            keeper_alarm: None,
            inbox: Vec::new(),
            request: 0,
            watch_number: 0,
            watch: None,
            lease: 0,
            granted_sent: None,
            link_closed_seen: false,
            duty: None,
            guardian: Life::Runs,
            guardian_policy: guardian::Policy {
                name: "n".into(),
                command: "c".into(),
                max_runtime: rules.max_runtime,
                stop_signal: Signal::SIGTERM,
                stragglers: plan.stragglers,
                terminal: false,
                waiting_line: None,
            },
            guardian_state: guardian::State::default(),
            guardian_alarm: None,
            vigil: None,
            sweep: Sweep::No,
            signals: VecDeque::new(),
            keeper_gone_seen: false,
            passing_on: false,
            guardian_said_all: false,
            left: false,
            to_keeper: VecDeque::new(),
            to_guardian: VecDeque::new(),
            deadline: Moment::NEVER_BEGUN,
            offer: None,
            claimed: false,
            tree: Tree::default(),
            lost: false,
            allowed: None,
            leaving: false,
            fast: plan.delays.iter().all(|delay| *delay <= 200),
            early: false,
            strict_early,
            violations: Vec::new(),
            said: Vec::new(),
            trace: false,
            plan,
        }
    }

    fn wrong(&mut self, what: impl Into<String>) {
        let what = format!("at {} ms: {}", self.now, what.into());
        self.say(|| what.clone());
        self.violations.push(what);
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        if self.trace {
            let line = format!("{:>6} {}", self.now, line());
            self.said.push(line);
        }
    }

    /// The very entry that the keeper took.
    fn entry_stands(&self) -> bool {
        let token = self.keeper_state.token();
        self.etcd
            .entry(self.lease)
            .is_some_and(|slot| token.is_none_or(|token| token == slot.created))
    }

    /// The tree, as far as the lock has to answer for it.
    fn guarded(&self) -> bool {
        let left_alone = self.plan.stragglers == Stragglers::Leave && self.tree.by_itself;
        self.tree.alive() && !left_alone
    }

    pub(crate) fn over(&self) -> bool {
        self.guardian == Life::Dead && self.keeper == Life::Dead
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.guardian_state
            .is_over()
            .then(|| self.guardian_state.outcome(&self.guardian_policy))
    }

    /// Runs the whole history; what was wrong is in `violations`.
    pub(crate) fn play(&mut self) {
        let first = keeper::begin(&self.keeper_policy, &mut self.keeper_state);
        self.keeper_carries_out(first);
        let mut deeds: VecDeque<(Ms, Deed)> = self.plan.deeds.clone().into();
        let mut due = deeds.front().map_or(0, |(after, _)| *after);
        let mut quiet_from = None;
        while self.violations.is_empty() && !self.over() {
            while deeds.front().is_some() && self.now >= due {
                if let Some((_, deed)) = deeds.pop_front() {
                    self.befall(&deed);
                }
                due = self.now + deeds.front().map_or(0, |(after, _)| *after);
            }
            if deeds.is_empty() && quiet_from.is_none() && self.now >= due + 8000 {
                self.calm();
                quiet_from = Some(self.now);
            }
            self.tick();
            if quiet_from.is_some_and(|from| self.now > from + 30_000) {
                self.wrong(format!(
                    "it never ends: guardian {:?} {:?}, keeper {:?} {:?}",
                    self.guardian, self.guardian_state, self.keeper, self.keeper_state
                ));
            }
        }
        // What is still on its way arrives.
        for _ in 0..450 {
            self.now += TICK;
            self.etcd.expire(self.now);
            self.flights_tick();
        }
        let ours = |lease: &i64| *lease > MINE;
        if self.violations.is_empty() && self.etcd.entries.iter().any(|slot| ours(&slot.lease)) {
            self.wrong("an entry was left behind");
        }
        let undisturbed = self.left && !self.early && !self.etcd.expired && self.network_down == 0 && self.fast;
        if self.violations.is_empty() && undisturbed && !self.etcd.opens.iter().all(|(slot, _)| !ours(&slot.lease)) {
            self.wrong("an open record was left behind");
        }
        if self.violations.is_empty() && self.lost && matches!(self.outcome(), Some(Outcome::Command(_))) {
            self.wrong("a lost run passed for the command's own end");
        }
    }

    /// Nothing more befalls it, and whatever runs comes to its end.
    fn calm(&mut self) {
        self.say(|| "calm".into());
        self.befall(&Deed::Continue);
        self.network_down = self.network_down.min(self.now);
        self.plan.delays = vec![TICK];
        self.stale_leader = 0;
        self.etcd.freeze_changed |= self.etcd.frozen;
        self.etcd.frozen = false;
        for rival in &mut self.rivals {
            rival.go(&mut self.etcd);
        }
        self.plan.runs_for = self.plan.runs_for.min(1000);
        self.plan.strays_for = self.plan.strays_for.min(1000);
        self.tree.command_ends = self.tree.command_ends.min(self.now + 1000);
        self.tree.strays_end = self.tree.strays_end.min(self.now + 2000);
    }

    fn befall(&mut self, deed: &Deed) {
        self.say(|| format!("== {deed:?}"));
        // Both halves down by hand is the residue that no software on one host can exclude.
        let down = |life| life != Life::Runs;
        match deed {
            Deed::StopKeeper if self.keeper == Life::Runs && !down_hard(self.guardian) => {
                self.keeper = Life::Stopped;
            }
            Deed::KillKeeper if self.keeper != Life::Dead && !down_hard(self.guardian) => self.keeper = Life::Dead,
            Deed::StopGuardian if self.guardian == Life::Runs => self.guardian = Life::Stopped,
            Deed::FreezeGuardian if self.guardian == Life::Runs && !down(self.keeper) => {
                self.guardian = Life::Frozen;
            }
            Deed::KillGuardian if self.guardian != Life::Dead && !down(self.keeper) => self.guardian = Life::Dead,
            Deed::Continue => {
                for life in [&mut self.keeper, &mut self.guardian] {
                    if *life != Life::Dead {
                        *life = Life::Runs;
                    }
                }
            }
            Deed::NetworkDown(span) => self.network_down = self.now + span,
            Deed::StaleLeader(span) => self.stale_leader = self.now + span,
            Deed::Revoke | Deed::DeleteEntry if self.etcd.entry(self.lease).is_some() => {
                self.early = true;
                if matches!(deed, Deed::Revoke) {
                    self.etcd.revoke(self.lease);
                } else {
                    self.etcd.delete_entry(self.lease);
                }
            }
            Deed::BreakWatch => self.break_watch(),
            Deed::Break => {
                if let Some(slot) = self.etcd.entry(self.lease) {
                    let ask = Ask {
                        format: 1,
                        kind: "break".into(),
                        token: slot.created,
                        by: "ann".into(),
                        reason: String::new(),
                    };
                    self.etcd.ask = serde_json::to_vec(&ask).ok().map(|value| (self.lease, value));
                    self.etcd.asked = true;
                }
            }
            Deed::Freeze(on) => {
                if *on && !self.etcd.frozen {
                    self.etcd.frozen_since = self.now;
                }
                self.etcd.frozen = *on;
                self.etcd.freeze_changed = true;
            }
            Deed::CommandEnds if self.tree.command => self.tree.command_ends = self.now,
            Deed::Signal(signal) => self.signals.push_back(*signal),
            _ => {}
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        self.tree_tick();
        self.etcd.expire(self.now);
        self.flights_tick();
        for index in 0..self.rivals.len() {
            let ttl = self.rules.ttl;
            if self.rivals[index].tick(&mut self.etcd, ttl, self.now) {
                self.say(|| "a rival starts".into());
                if self.guarded() && (!self.early || self.strict_early) {
                    self.wrong("a rival started beside our living tree");
                }
            }
        }
        self.watch_tick();
        self.run_keeper();
        self.run_guardian();
    }

    fn tree_tick(&mut self) {
        let now = self.now;
        let dying = self.plan.dying;
        let tree = &mut self.tree;
        if tree.killed_at.is_some_and(|killed| now >= killed + dying) {
            tree.command = false;
            tree.strays = false;
        }
        if tree.command && now >= tree.command_ends {
            tree.command = false;
            tree.by_itself = !tree.stopped && tree.killed_at.is_none();
            tree.strays = self.plan.strays_for > 0;
            tree.strays_end = now + self.plan.strays_for;
        }
        if tree.strays && !tree.command && now >= tree.strays_end {
            tree.strays = false;
        }
        if let Some(since) = self.duty
            && (!self.tree.alive() || now >= since + 1000)
        {
            self.duty = None;
            let dead = !self.tree.alive();
            self.inbox
                .push((now, None, None, keeper::Event::DutyDone { dead, run: ended() }));
        }
    }
}

fn down_hard(life: Life) -> bool {
    matches!(life, Life::Frozen | Life::Dead)
}

fn ended() -> Ended {
    Ended {
        result: "command".into(),
        status: Some(0),
        acquired: String::new(),
        ended: String::new(),
        why: None,
        asked: None,
    }
}
