//! The keeper's loop, as `commands::keep` runs it.

use super::{Life, MINE, Watch, What, World, at, ended};
use crate::etcd::Ms;
use meshlock::link::FromKeeper;
use meshlock::lock::keeper::{self, Request, Watched};
use meshlock::rules::Stragglers;

impl World {
    pub(super) fn run_keeper(&mut self) {
        let mut steps = 0;
        while self.keeper == Life::Runs {
            let now = self.now;
            let event = if !self.to_keeper.is_empty() {
                keeper::Event::Guardian(self.to_keeper.drain(..).collect())
            } else if self.guardian == Life::Dead && !self.link_closed_seen {
                self.link_closed_seen = true;
                keeper::Event::GuardianGone(ended())
            } else if let Some(index) = self.inbox.iter().position(|(due, ..)| *due <= now) {
                let (_, request, watch, event) = self.inbox.remove(index);
                if request.is_some_and(|number| number != self.request)
                    || watch.is_some_and(|number| number != self.watch_number)
                {
                    continue;
                }
                event
            } else if self.keeper_alarm.is_some_and(|alarm| alarm <= at(now)) {
                keeper::Event::Tick
            } else {
                break;
            };
            self.keeper_step(event);
            steps += 1;
            if steps > 50 {
                return self.wrong(format!("the keeper spins: {:?}", self.keeper_state));
            }
        }
    }

    fn keeper_step(&mut self, event: keeper::Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            self.say(|| format!("keeper hears {event:?}"));
            let actions = keeper::step(&self.keeper_policy, &mut self.keeper_state, at(self.now), event);
            events.extend(self.keeper_carries_out(actions));
        }
        self.keeper_alarm = self.keeper_state.wake_at(&self.keeper_policy);
        if self.keeper_state.is_over() {
            self.keeper = Life::Dead;
        } else if self.rules.checks == meshlock::rules::Checks::ALL
            && self.keeper_alarm.is_some_and(|alarm| alarm <= at(self.now))
        {
            self.wrong(format!(
                "the keeper would wake in the past: {:?} {:?}",
                self.keeper_alarm, self.keeper_state
            ));
        }
    }

    pub(super) fn keeper_carries_out(&mut self, actions: Vec<keeper::Action>) -> Vec<keeper::Event> {
        let mut events = Vec::new();
        for action in actions {
            self.say(|| format!("keeper does {action:?}"));
            match action {
                keeper::Action::Send(request) => self.send(request),
                keeper::Action::Renew => {
                    if self.leaving {
                        self.wrong("a renewal after leaving");
                    }
                    let stale = self.now < self.stale_leader;
                    let token = self.keeper_state.token();
                    self.fly(What::Renewal(token, at(self.now), stale));
                }
                keeper::Action::Watch(Watched {
                    predecessor,
                    freeze,
                    from,
                }) => {
                    self.watch_number += 1;
                    let stands_from = self.now + self.delay();
                    self.watch = Some(Watch {
                        number: self.watch_number,
                        stands_from,
                        ready_said: false,
                        predecessor,
                        freeze,
                        with_past: from.is_some(),
                        lease: self.lease,
                        broken: false,
                    });
                }
                keeper::Action::Deadline(deadline) => {
                    if self.allowed.is_none_or(|allowed| deadline > allowed) {
                        self.wrong(format!(
                            "deadline {deadline:?} beyond what was accepted, {:?}",
                            self.allowed
                        ));
                    }
                    self.deadline = deadline;
                }
                keeper::Action::Offer(hold) => {
                    self.look_at_the_freeze();
                    self.offer = Some(hold.token);
                    self.claimed = false;
                    self.to_guardian.push_back(FromKeeper::Held(hold));
                }
                keeper::Action::Withdraw { token } => {
                    let back = self.offer == Some(token) && !self.claimed;
                    if back {
                        self.offer = None;
                    }
                    events.push(keeper::Event::Withdrawn(back));
                }
                keeper::Action::Tell(words) => {
                    if matches!(&words, FromKeeper::Progress(line) if line.starts_with("lost the place"))
                        && self.keeper_state.token().is_some()
                        && self.entry_stands()
                    {
                        self.wrong("a place given up without a reason");
                    }
                    if matches!(words, FromKeeper::Lost { .. }) {
                        if self.entry_stands() {
                            self.wrong("a loss without a reason");
                        }
                        if !self.claimed {
                            self.wrong("the loss of what nobody had claimed");
                        }
                    }
                    self.to_guardian.push_back(words);
                }
                keeper::Action::Wake => {
                    if self.guardian == Life::Stopped {
                        self.guardian = Life::Runs;
                    }
                }
                keeper::Action::Note => {}
                keeper::Action::LastDuty => {
                    if self.plan.stragglers == Stragglers::Leave && self.tree.by_itself && self.guardian_said_all {
                        self.wrong("a last duty on what was to be left alone");
                    }
                    let failed = self.guardian == Life::Dead || at(self.now) >= self.deadline;
                    if !failed && self.entry_stands() {
                        self.wrong("a last duty though the guardian does its own");
                    }
                    if self.tree.alive() {
                        self.tree.killed_at.get_or_insert(self.now);
                    }
                    self.duty = Some(self.now);
                }
                keeper::Action::End => {
                    self.let_go("revoked its lease");
                    if self.lease != 0 {
                        self.fly(What::Revoke);
                    }
                }
            }
        }
        events
    }

    /// What an offer goes by is no older than a call may be, or than a word of the watch.
    fn look_at_the_freeze(&mut self) {
        let old = self.etcd.frozen && self.now > self.etcd.frozen_since + self.plan.call.max(200);
        if old && self.rules.checks == meshlock::rules::Checks::ALL {
            self.wrong("an offer under a freeze");
        }
    }

    /// The lock is given up now.
    fn let_go(&mut self, how: &str) {
        if self.guarded() && self.entry_stands() {
            self.wrong(format!("the keeper {how} while the tree may be alive"));
        }
    }

    fn send(&mut self, request: Request) {
        if request == Request::Grant && (self.lease == 0 || self.keeper_state.wants_fresh_lease()) {
            if self.lease != 0 {
                self.fly(What::Revoke);
            }
            self.lease = self.lease.max(MINE) + 1;
            self.keeper_state.set_lease(self.lease, format!("lock/{}", self.lease));
            self.granted_sent = Some(self.now);
            self.allowed = Some(at(self.now) + self.rules.ttl - self.rules.margin);
            self.leaving = false;
        }
        let writes = |request: &Request| !matches!(request, Request::Look | Request::Read | Request::Stand { .. });
        let two = self.flights.iter().any(|flight| {
            let What::Request(_, other, _) = &flight.what else {
                return false;
            };
            let unanswered = flight.answers != Ms::MAX && flight.lease == self.lease;
            writes(other) && unanswered && !leaves(other)
        });
        if writes(&request) && two {
            self.wrong(format!("{request:?} while another write is under way"));
        }
        if leaves(&request) {
            self.let_go("left the queue");
            self.leaving = true;
        }
        self.request += 1;
        let token = self.keeper_state.token();
        self.fly(What::Request(self.request, Box::new(request), token));
    }
}

fn leaves(request: &Request) -> bool {
    matches!(
        request,
        Request::Leave { .. } | Request::Settle { .. } | Request::Abandon
    )
}
