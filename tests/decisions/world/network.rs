//! The way to etcd and back: calls, renewals and watches, late, lost, or carried out after they were given up.

use super::{Flight, RENEWAL, TICK, What, World, at};
use crate::etcd::{Etcd, Ms, ms};
use meshlock::lock::keeper::{self, Answer, Request, Seen};
use meshlock::lock::queue::{Granted, Renewal};
use meshlock::store::Fault;

impl World {
    pub(super) fn delay(&mut self) -> Ms {
        self.next_delay += 1;
        let delays = &self.plan.delays;
        delays
            .get(self.next_delay % delays.len().max(1))
            .copied()
            .unwrap_or(TICK)
    }

    pub(super) fn network_up(&self) -> bool {
        self.now >= self.network_down
    }

    pub(super) fn flights_tick(&mut self) {
        let mut flights = std::mem::take(&mut self.flights);
        for flight in &mut flights {
            if !flight.arrived && self.now >= flight.arrives {
                flight.arrived = true;
                if self.network_up() {
                    self.arrived(flight);
                }
            }
        }
        flights.retain_mut(|flight| {
            let bound = match flight.what {
                What::Renewal(..) => flight.sent + RENEWAL,
                What::Request(..) | What::Revoke => flight.sent + self.plan.call,
            };
            let late = flight.answers > bound;
            if self.now >= flight.answers.min(bound) {
                let silent = late || !self.network_up();
                let lost = || Fault::Unreachable { why: "silence".into() };
                match &flight.what {
                    What::Request(number, ..) => {
                        let answer = flight.answer.take().filter(|_| !silent).unwrap_or_else(|| Err(lost()));
                        let event = match answer {
                            Ok(answer) => keeper::Event::Answer(answer),
                            Err(fault) => keeper::Event::Fault(fault),
                        };
                        self.inbox.push((self.now, Some(*number), None, event));
                    }
                    What::Renewal(_, sent, _) => {
                        let result = flight.renewal.take().filter(|_| !silent).unwrap_or_else(|| Err(lost()));
                        if let Ok(Renewal::Accepted { sent, ttl }) = &result
                            && flight.lease == self.lease
                        {
                            self.allowed = self.allowed.max(Some(*sent + *ttl - self.rules.margin));
                        }
                        let event = keeper::Event::Renewal {
                            lease: flight.lease,
                            sent: *sent,
                            result,
                        };
                        self.inbox.push((self.now, None, None, event));
                    }
                    What::Revoke => {}
                }
                // A write that outlives its call may still be carried out.
                flight.answers = Ms::MAX;
                flight.sent = Ms::MAX / 2;
            }
            !(flight.arrived && flight.answers == Ms::MAX)
        });
        self.flights.extend(flights);
    }

    fn arrived(&mut self, flight: &mut Flight) {
        let lease = flight.lease;
        let ttl = self.rules.ttl;
        match &flight.what {
            What::Revoke => self.etcd.revoke(lease),
            What::Renewal(token, sent, stale) => {
                if !stale && let Some(end) = self.etcd.leases.get_mut(&lease) {
                    *end = self.now + ms(ttl);
                }
                let there = self.etcd.entry(lease).map(|slot| slot.created);
                flight.renewal = Some(if *stale {
                    Ok(Renewal::Unproven {
                        why: "the leader changed".into(),
                    })
                } else if there.is_none() || there != *token {
                    Ok(Renewal::Gone { why: "gone".into() })
                } else if flight.answers - flight.sent > ms(self.rules.answer_within) {
                    Ok(Renewal::Unproven { why: "too late".into() })
                } else {
                    Ok(Renewal::Accepted { sent: *sent, ttl })
                });
            }
            What::Request(_, request, token) => {
                let token = *token;
                let entering = |etcd: &mut Etcd, may: bool| {
                    if !etcd.leases.contains_key(&lease) {
                        return Err(Fault::LeaseGone);
                    }
                    if may && etcd.entry(lease).is_none() {
                        etcd.arrive(lease, ttl);
                    }
                    let token = etcd.entry(lease).map(|slot| slot.created);
                    Ok(Answer::View(etcd.view(Some(lease), token)))
                };
                flight.answer = Some(match &**request {
                    Request::Look => Ok(Answer::View(self.etcd.view(None, None))),
                    Request::Grant => {
                        self.etcd.leases.entry(lease).or_insert(self.now + ms(ttl));
                        let sent = at(self.granted_sent.unwrap_or(flight.sent));
                        Ok(Answer::Granted(Granted { sent, ttl }, Ok(self.rules)))
                    }
                    Request::Enqueue => entering(&mut self.etcd, true),
                    Request::Seize => {
                        let free = self.etcd.entries.is_empty() && !self.etcd.frozen;
                        entering(&mut self.etcd, free)
                    }
                    Request::Read => Ok(Answer::View(self.etcd.view(Some(lease), Some(token.unwrap_or(0))))),
                    Request::Stand { predecessor } => {
                        let standing = self.etcd.standing(lease, token, predecessor.as_deref());
                        Ok(Answer::Standing(standing))
                    }
                    Request::Clear { stale, vanished, .. } => {
                        let mine = self.etcd.entry(lease).map(|slot| slot.created) == token;
                        let returned = vanished
                            .as_ref()
                            .is_some_and(|vanished| !self.etcd.open_stands(vanished.run.token));
                        if !self.etcd.frozen && mine && !returned {
                            for key in stale {
                                self.etcd.delete_open(key.parse().unwrap_or(0));
                            }
                        }
                        Ok(Answer::View(self.etcd.view(Some(lease), Some(token.unwrap_or(0)))))
                    }
                    Request::Leave { run, .. } => Ok(if self.etcd.leave(lease, token, run.is_some()) {
                        Answer::Gone
                    } else {
                        Answer::Taken
                    }),
                    Request::Settle { .. } => {
                        self.etcd.delete_open(lease);
                        Ok(Answer::Gone)
                    }
                    Request::Abandon => {
                        self.etcd.leave(lease, token, false);
                        Ok(Answer::Gone)
                    }
                });
            }
        }
    }

    pub(super) fn break_watch(&mut self) {
        if let Some(watch) = self.watch.as_mut().filter(|watch| !watch.broken) {
            watch.broken = true;
            let fault = Fault::Unreachable { why: "broken".into() };
            let event = keeper::Event::WatchBroken(fault);
            self.inbox.push((self.now + 300, None, Some(watch.number), event));
        }
    }

    pub(super) fn watch_tick(&mut self) {
        if !self.network_up() {
            self.break_watch();
        }
        let departed = std::mem::take(&mut self.etcd.departed);
        let closed = std::mem::take(&mut self.etcd.closed);
        let freeze_changed = std::mem::take(&mut self.etcd.freeze_changed);
        let asked = std::mem::take(&mut self.etcd.asked);
        // Of several keys in any order.
        let backwards = self.next_delay.is_multiple_of(2);
        let Some(watch) = self.watch.as_mut().filter(|watch| !watch.broken) else {
            return;
        };
        if self.now < watch.stands_from {
            return;
        }
        let number = Some(watch.number);
        let lease = watch.lease;
        let mut all = Vec::new();
        let ready = !std::mem::replace(&mut watch.ready_said, true);
        let before_it_stood = ready && watch.with_past && self.etcd.entry(lease).is_none();
        if departed.contains_key(&lease) || before_it_stood {
            all.push(Seen::OursGone);
        }
        if let Some(before) = &watch.predecessor {
            let of = |key: &String| key.parse::<i64>().ok();
            let gone = of(&before.entry).and_then(|lease| departed.get(&lease));
            all.extend(gone.map(|at| Seen::PredecessorGone { at: *at }));
            let gone = before.open.as_ref().and_then(of).and_then(|lease| closed.get(&lease));
            all.extend(gone.map(|at| Seen::OpenGone { at: *at }));
            let gone = before.earlier.as_ref().and_then(of);
            all.extend(
                gone.filter(|lease| departed.contains_key(lease))
                    .map(|_| Seen::EarlierGone),
            );
        }
        if freeze_changed && watch.freeze {
            all.push(Seen::FreezeChanged);
        }
        if asked && let Some((_, value)) = self.etcd.ask.as_ref().filter(|(asked, _)| *asked == lease) {
            all.extend(serde_json::from_slice(value).ok().map(Seen::Asked));
        }
        if backwards {
            all.reverse();
        }
        for seen in ready.then_some(Seen::Ready).into_iter().chain(all) {
            // A watch keeps order.
            self.inbox
                .push((self.now + 60, None, number, keeper::Event::Seen(vec![seen])));
        }
    }

    pub(super) fn fly(&mut self, what: What) {
        let (there, back) = (self.delay(), self.delay());
        self.flights.push(Flight {
            what,
            lease: self.lease,
            sent: self.now,
            arrives: self.now + there,
            answers: self.now + there + back,
            answer: None,
            renewal: None,
            arrived: false,
        });
    }
}
