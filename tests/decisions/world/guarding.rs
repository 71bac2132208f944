//! The guardian's loop, as `supervise::guard` runs it, and the tree under it.

use super::{Life, Sweep, Tree, World, at, ended};
use crate::etcd::Rival;
use meshlock::link::{FromGuardian, FromKeeper};
use meshlock::outcome::CommandEnd;
use meshlock::rules::Stragglers;
use meshlock::supervise::guardian::{self, Reading};
use nix::sys::signal::Signal;

impl World {
    pub(super) fn run_guardian(&mut self) {
        if self.guardian == Life::Stopped && self.vigil.is_some_and(|vigil| vigil <= at(self.now)) {
            self.guardian = Life::Runs;
        }
        if self.guardian != Life::Runs {
            return;
        }
        let mut events = Vec::new();
        while let Some(words) = self.to_guardian.pop_front() {
            events.push(self.guardian_hears(words));
        }
        if self.keeper == Life::Dead && !self.keeper_gone_seen {
            self.keeper_gone_seen = true;
            events.push(guardian::Event::KeeperGone);
        }
        let signals = std::mem::take(&mut self.signals);
        events.extend(signals.into_iter().map(|signal| guardian::Event::Signal {
            signal,
            from_kernel: false,
        }));
        if self.tree.failed_exec {
            self.tree.failed_exec = false;
            events.push(guardian::Event::NotStarted {
                found: false,
                why: "no such file".into(),
            });
        }
        if self.tree.forked && !self.tree.command && !self.tree.reaped && !self.plan.exec_fails {
            self.tree.reaped = true;
            events.push(guardian::Event::CommandEnded(CommandEnd::Exited(0)));
        }
        events.extend(self.sweep_once());
        if events.is_empty() {
            if self.guardian_alarm.is_none_or(|alarm| alarm > at(self.now)) {
                return;
            }
            events.push(guardian::Event::Tick);
        }
        for event in events {
            self.guardian_step(event);
            if self.guardian_state.is_over() {
                return self.guardian_ends();
            }
        }
        self.guardian_alarm = self.guardian_state.wake_at(&self.rules, self.deadline);
        self.vigil = self.guardian_state.vigil_from(&self.rules, self.deadline);
        self.guardian_checks();
    }

    fn guardian_checks(&mut self) {
        let all = self.rules.checks == meshlock::rules::Checks::ALL;
        if all && self.guardian_alarm.is_some_and(|alarm| alarm <= at(self.now)) {
            self.wrong(format!(
                "the guardian would wake in the past: {:?}",
                self.guardian_state
            ));
        }
        if self.guarded() && at(self.now) >= self.deadline && self.tree.killed_at.is_none() {
            self.wrong("a tree lives beyond the deadline, and nobody kills it");
        }
    }

    fn guardian_hears(&mut self, words: FromKeeper) -> guardian::Event {
        if matches!(
            words,
            FromKeeper::Left { problem: None, .. } | FromKeeper::Contended { .. } | FromKeeper::Failed(_)
        ) {
            self.left = true;
        }
        guardian::Event::Keeper(words)
    }

    fn guardian_step(&mut self, event: guardian::Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            self.say(|| format!("guardian hears {event:?}"));
            let reading = Reading {
                now: at(self.now),
                deadline: self.deadline,
            };
            let alive = self.guardian_state.tree_may_live();
            self.passing_on = matches!(event, guardian::Event::Signal { .. });
            let policy = &self.guardian_policy;
            let actions = guardian::step(&self.rules, policy, &mut self.guardian_state, reading, event);
            for action in actions {
                self.say(|| format!("guardian does {action:?}"));
                match action {
                    guardian::Action::Tell(FromGuardian::LossSeen) if alive => self.lost = true,
                    guardian::Action::Notice(ref line) if line.contains("stopping the command") => self.lost = true,
                    _ => {}
                }
                events.extend(self.guardian_carries_out(action));
            }
        }
    }

    fn guardian_carries_out(&mut self, action: guardian::Action) -> Option<guardian::Event> {
        match action {
            guardian::Action::Claim { token } => {
                let taken = self.offer == Some(token) && !self.claimed;
                self.claimed |= taken;
                return Some(guardian::Event::Claimed(taken));
            }
            guardian::Action::Start(hold) => self.start(hold.token),
            guardian::Action::Signal(signal) => {
                let ends = signal == Signal::SIGTERM || signal == Signal::SIGINT;
                if ends && self.tree.command {
                    self.tree.stopped |= !self.passing_on;
                    if let Some(after) = self.plan.heeds_stop {
                        self.tree.command_ends = self.tree.command_ends.min(self.now + after);
                    }
                }
            }
            guardian::Action::Kill => {
                self.sweep = Sweep::Kill;
                return self.sweep_once();
            }
            guardian::Action::AwaitTree => self.sweep = Sweep::Await,
            guardian::Action::Tell(words) => {
                if words == FromGuardian::CommandEnded
                    && (self.tree.command || self.plan.stragglers != Stragglers::Leave)
                {
                    self.wrong("the command was said to have ended");
                }
                self.guardian_said_all |= words == FromGuardian::CommandEnded;
                self.to_keeper.push_back(words);
            }
            guardian::Action::Release => {
                let run = self.guardian_state.hold().map(|_| ended());
                self.to_keeper.push_back(FromGuardian::Release { run });
            }
            guardian::Action::StopSelf(_)
            | guardian::Action::Progress(_)
            | guardian::Action::ShowWaiting { .. }
            | guardian::Action::HideWaiting
            | guardian::Action::Notice(_)
            | guardian::Action::Finish => {}
        }
        None
    }

    fn start(&mut self, token: i64) {
        if self.offer != Some(token) || !self.claimed {
            self.wrong("a start without a claimed hold");
        }
        if at(self.now) >= self.deadline - self.rules.grace {
            self.wrong("a start at or after the stop point");
        }
        if self.rivals.iter().any(Rival::runs) && (!self.early || self.strict_early) {
            self.wrong("a start beside a rival's living tree");
        }
        self.tree = Tree {
            forked: true,
            command: !self.plan.exec_fails,
            failed_exec: self.plan.exec_fails,
            command_ends: self.now + self.plan.runs_for,
            ..Tree::default()
        };
        let (pid, own_group) = (1, true);
        self.to_keeper.push_back(FromGuardian::Started { pid, own_group });
    }

    fn sweep_once(&mut self) -> Option<guardian::Event> {
        if !self.guardian_state.tree_may_live() {
            return None;
        }
        match self.sweep {
            Sweep::No => return None,
            Sweep::Await => {}
            Sweep::Kill => {
                if self.tree.alive() {
                    self.tree.killed_at.get_or_insert(self.now);
                }
            }
        }
        // A zombie counts until it is reaped.
        if self.tree.alive() || (self.tree.forked && !self.tree.reaped && !self.plan.exec_fails) {
            return None;
        }
        self.sweep = Sweep::No;
        Some(guardian::Event::TreeDead)
    }

    fn guardian_ends(&mut self) {
        self.guardian = Life::Dead;
        if self.guarded() {
            self.wrong("the guardian ended while the tree may be alive");
        }
        if !self.left {
            self.keeper = Life::Dead;
        }
    }
}
