//! The guardian's loop, as `supervise::guard` runs it, and the tree under it.

use super::{Client, DESERTED, LATE_START, Life, Setting, Sweep, Tree, ended};
use meshlock::link::{FromGuardian, FromKeeper};
use meshlock::moment::Moment;
use meshlock::outcome::CommandEnd;
use meshlock::rules::Stragglers;
use meshlock::supervise::guardian::{self, Reading};

impl Client {
    pub(crate) fn guardian_due(&self, now: Moment) -> bool {
        self.guardian == Life::Runs
            && (!self.to_guardian.is_empty()
                || (self.keeper == Life::Dead && !self.keeper_gone_told)
                || (self.command_over() && !self.reaped)
                || (self.sweep != Sweep::No && self.tree == Tree::Dead)
                || self.alarm.is_some_and(|alarm| alarm <= now))
    }

    pub(crate) const fn guardian_alarm(&self) -> Option<Moment> {
        self.alarm
    }

    /// From when on its own timer wakes it.
    pub(crate) const fn vigil(&self) -> Option<Moment> {
        self.vigil
    }

    fn set_timers(&mut self, setting: &Setting) {
        let own = |at: &Moment| setting.rules.checks.own_timer && *at > Moment::NEVER_BEGUN;
        let (state, rules) = (&self.guardian_state, &setting.rules);
        self.alarm = state.wake_at(rules, self.deadline).filter(own);
        self.vigil = state
            .vigil_from(rules, self.deadline)
            .filter(|_| rules.checks.own_timer);
    }

    pub(crate) fn guardian_runs(&mut self, setting: &Setting, now: Moment) {
        let mut events: Vec<guardian::Event> = Vec::new();
        for words in std::mem::take(&mut self.to_guardian) {
            self.left |= matches!(
                words,
                FromKeeper::Left { problem: None, .. } | FromKeeper::Contended { .. } | FromKeeper::Failed(_)
            );
            events.push(guardian::Event::Keeper(words));
        }
        if self.keeper == Life::Dead && !self.keeper_gone_told {
            self.keeper_gone_told = true;
            events.push(guardian::Event::KeeperGone);
        }
        if self.command_over() && !self.reaped {
            self.reaped = true;
            let end = if self.by_itself {
                CommandEnd::Exited(0)
            } else {
                CommandEnd::Signaled(9)
            };
            events.push(guardian::Event::CommandEnded(end));
        }
        events.extend(self.sweep_once());
        if events.is_empty() {
            events.push(guardian::Event::Tick);
        }
        for event in events {
            self.guardian_steps(setting, now, event);
            if self.guardian_state.is_over() {
                return self.guardian_ends();
            }
        }
        self.set_timers(setting);
    }

    fn guardian_steps(&mut self, setting: &Setting, now: Moment, event: guardian::Event) {
        let policy = setting.guardian_policy();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let reading = Reading {
                now,
                deadline: self.deadline,
            };
            for action in guardian::step(&setting.rules, &policy, &mut self.guardian_state, reading, event) {
                events.extend(self.guardian_does(setting, now, action));
            }
        }
    }

    fn guardian_does(&mut self, setting: &Setting, now: Moment, action: guardian::Action) -> Option<guardian::Event> {
        match action {
            guardian::Action::Claim { token } => {
                let taken = self.offer == Some(token) && !self.claimed;
                self.claimed |= taken;
                return Some(guardian::Event::Claimed(taken));
            }
            guardian::Action::Start(hold) => {
                if now >= self.deadline - setting.rules.grace {
                    self.wrong = Some(LATE_START);
                }
                self.started = Some(hold.token);
                self.ran = Some(hold.token);
                self.tree = Tree::Runs;
                self.to_keeper.push(FromGuardian::Started {
                    pid: 1,
                    own_group: true,
                });
            }
            guardian::Action::Kill => {
                self.sweep = Sweep::Kill;
                return self.sweep_once();
            }
            guardian::Action::AwaitTree => {
                self.sweep = Sweep::Await;
                return self.sweep_once();
            }
            guardian::Action::Tell(words) => self.to_keeper.push(words),
            guardian::Action::Release => {
                let run = self.guardian_state.hold().map(|_| ended());
                self.to_keeper.push(FromGuardian::Release { run });
            }
            guardian::Action::Signal(_)
            | guardian::Action::StopSelf(_)
            | guardian::Action::ShowWaiting { .. }
            | guardian::Action::HideWaiting
            | guardian::Action::Progress(_)
            | guardian::Action::Notice(_)
            | guardian::Action::Finish => {}
        }
        None
    }

    /// As the guardian sweeps: kills what is alive, and says when nothing is.
    fn sweep_once(&mut self) -> Option<guardian::Event> {
        if self.sweep == Sweep::No {
            return None;
        }
        if self.sweep == Sweep::Kill {
            self.killed();
        }
        if self.tree != Tree::Dead || !self.reaped {
            return None;
        }
        self.sweep = Sweep::No;
        Some(guardian::Event::TreeDead)
    }

    fn guardian_ends(&mut self) {
        self.guardian = Life::Dead;
        if self.guarded() {
            self.wrong = Some(DESERTED);
        }
        if !self.left && self.keeper != Life::Away {
            self.keeper = Life::Dead;
        }
        self.forget();
    }

    /// What is of no use to the dead would only tell states apart.
    pub(crate) fn forget(&mut self) {
        if self.guardian == Life::Dead {
            self.to_guardian.clear();
        }
        if self.keeper == Life::Dead {
            self.to_keeper.clear();
            self.watch = None;
            self.renewal = None;
            // What was sent may still arrive.
            if let Some(call) = self.call.take().filter(|call| call.answer.is_none()) {
                self.late = Some(call);
            }
        }
    }

    pub(super) fn killed(&mut self) {
        if matches!(self.tree, Tree::Runs | Tree::Strays) {
            self.tree = Tree::Dying;
        }
    }

    const fn command_over(&self) -> bool {
        matches!(self.tree, Tree::Strays | Tree::Dead)
    }

    pub(crate) fn command_ends(&mut self, setting: &Setting) {
        self.by_itself = true;
        // Where they are to be left alone they are nobody's business.
        self.tree = if setting.stragglers == Stragglers::Leave {
            Tree::Dead
        } else {
            Tree::Strays
        };
    }
}
