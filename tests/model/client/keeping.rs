//! The keeper's loop, as `commands::keep` runs it.

use super::{Call, Client, Life, Renew, Renewing, Said, Setting, Told, Tree, Watch, ended, silence};
use meshlock::link::FromKeeper;
use meshlock::lock::keeper::{self, Answer, Request};
use meshlock::lock::queue::{Granted, Renewal};
use meshlock::moment::Moment;
use meshlock::store::Fault;

impl Client {
    pub(crate) fn keeper_due(&self, setting: &Setting, now: Moment) -> bool {
        self.keeper == Life::Runs
            && (!self.to_keeper.is_empty()
                || (self.guardian == Life::Dead && !self.link_closed_told)
                || (self.duty && self.tree != Tree::Dying)
                || self.keeper_alarm(setting).is_some_and(|alarm| alarm <= now))
    }

    pub(crate) fn keeper_alarm(&self, setting: &Setting) -> Option<Moment> {
        self.keeper_state.wake_at(&setting.keeper_policy())
    }

    pub(crate) fn keeper_runs(&mut self, setting: &Setting, now: Moment) {
        let event = if !self.to_keeper.is_empty() {
            keeper::Event::Guardian(std::mem::take(&mut self.to_keeper))
        } else if self.guardian == Life::Dead && !self.link_closed_told {
            self.link_closed_told = true;
            keeper::Event::GuardianGone(ended())
        } else if self.duty && self.tree != Tree::Dying {
            self.duty = false;
            keeper::Event::DutyDone {
                dead: true,
                run: ended(),
            }
        } else {
            keeper::Event::Tick
        };
        self.keeper_hears(setting, now, event);
    }

    pub(crate) fn keeper_hears(&mut self, setting: &Setting, now: Moment, event: keeper::Event) {
        let policy = setting.keeper_policy();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let actions = keeper::step(&policy, &mut self.keeper_state, now, event);
            events.extend(self.keeper_does(setting, now, actions));
        }
        if self.keeper_state.is_over() {
            self.keeper = Life::Dead;
            if self.lease != 0 {
                self.revoking.push(self.lease);
            }
            self.forget();
        }
    }

    pub(super) fn keeper_does(
        &mut self,
        setting: &Setting,
        now: Moment,
        actions: Vec<keeper::Action>,
    ) -> Vec<keeper::Event> {
        let mut events = Vec::new();
        for action in actions {
            match action {
                keeper::Action::Send(request) => self.send(setting, now, request),
                keeper::Action::Renew => {
                    if let Some(token) = self.token() {
                        self.renewal = Some(Renew {
                            lease: self.lease,
                            token,
                            sent: now,
                            slow: false,
                            stage: Renewing::Sent,
                        });
                    }
                }
                keeper::Action::Watch(watched) => {
                    self.watch = Some(Watch {
                        watched,
                        stands: false,
                        told: Vec::new(),
                    });
                }
                keeper::Action::Deadline(deadline) => self.deadline = deadline,
                keeper::Action::Offer(hold) => {
                    self.offer = Some(hold.token);
                    self.claimed = false;
                    self.say(FromKeeper::Held(hold));
                }
                keeper::Action::Withdraw { token } => {
                    let back = self.offer == Some(token) && !self.claimed;
                    if back {
                        self.offer = None;
                    }
                    events.push(keeper::Event::Withdrawn(back));
                }
                keeper::Action::Tell(words) => self.say(words),
                keeper::Action::Wake => {
                    if self.guardian == Life::Stopped {
                        self.guardian = Life::Runs;
                    }
                }
                keeper::Action::LastDuty => {
                    self.killed();
                    self.duty = true;
                }
                keeper::Action::Note | keeper::Action::End => {}
            }
        }
        events
    }

    fn say(&mut self, words: FromKeeper) {
        // Lines for the user decide nothing.
        if !matches!(
            words,
            FromKeeper::Progress(_) | FromKeeper::Waiting(_) | FromKeeper::Notice(_) | FromKeeper::Renewals { .. }
        ) && self.guardian != Life::Dead
        {
            self.to_guardian.push(words);
        }
    }

    fn send(&mut self, setting: &Setting, now: Moment, request: Request) {
        if request == Request::Grant && (self.lease == 0 || self.keeper_state.wants_fresh_lease()) {
            let drawn = if self.lease == 0 {
                self.number * 16
            } else {
                self.revoking.push(self.lease);
                self.lease + 1
            };
            self.lease = drawn;
            self.keeper_state.set_lease(drawn, setting.protocol.place.entry(drawn));
            self.granted_sent = now;
        }
        // Given up by being sent again; the model keeps the last of them.
        if let Some(call) = self.call.take().filter(|call| call.answer.is_none()) {
            self.late = Some(call);
        }
        self.call = Some(Call {
            request,
            lease: self.lease,
            token: self.token(),
            slow: false,
            answer: None,
        });
    }

    /// The answer that has come, in the keeper's words.
    pub(crate) fn take_answer(&mut self, setting: &Setting) -> Option<keeper::Event> {
        let call = self.call.take()?;
        Some(match call.answer? {
            Err(fault) => keeper::Event::Fault(fault),
            Ok(Said::Gone) => keeper::Event::Answer(Answer::Gone),
            Ok(Said::Taken) => keeper::Event::Answer(Answer::Taken),
            Ok(Said::Standing(standing)) => keeper::Event::Answer(Answer::Standing(standing)),
            Ok(Said::View(view)) => keeper::Event::Answer(Answer::View(*view)),
            Ok(Said::Granted) => {
                let granted = Granted {
                    sent: self.granted_sent,
                    ttl: setting.rules.ttl,
                };
                keeper::Event::Answer(Answer::Granted(granted, Ok(setting.rules)))
            }
        })
    }

    /// What the watch tells next, in the keeper's words; `last` before the rest, of which etcd keeps no order.
    pub(crate) fn next_told(&mut self, last: bool) -> Option<keeper::Event> {
        let watch = self.watch.as_mut().filter(|watch| !watch.told.is_empty())?;
        let next = if last { watch.told.len() - 1 } else { 0 };
        Some(match watch.told.remove(next) {
            Told::Seen(seen) => keeper::Event::Seen(vec![seen]),
            Told::Broken => {
                self.watch = None;
                keeper::Event::WatchBroken(silence())
            }
        })
    }

    pub(crate) fn renewed(&mut self, setting: &Setting, now: Moment, result: Result<Renewal, Fault>) {
        if let Some(Renew { lease, sent, .. }) = self.renewal.take() {
            self.keeper_hears(setting, now, keeper::Event::Renewal { lease, sent, result });
        }
    }
}
