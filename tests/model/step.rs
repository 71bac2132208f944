//! What follows from each action. The transactions and the judgement of a renewal are the product's own; the
//! judgement of the history is here.

use crate::client::{Call, Client, Life, Renewing, Said, Setting, Told, Tree, silence};
use crate::etcd::{Etcd, Ms, ms};
use crate::history::{Act, Action, Fate, Foreign, Scene, State};
use meshlock::link::Ended;
use meshlock::lock::keeper::{self, Request, Seen};
use meshlock::lock::protocol::{Departure, Gone, How, Left, Ours, Protocol};
use meshlock::lock::queue::Renewal;
use meshlock::lock::record::{Run, VANISHED};
use meshlock::moment::Moment;
use meshlock::store::{Alive, Answer, Fault};

impl Scene {
    pub(crate) fn next(&self, last: &State, action: Action) -> State {
        let mut state = last.clone();
        match action {
            Action::Time => self.time(&mut state),
            Action::Client(index, act) => self.act(&mut state, index, act),
            Action::ForeignComes => {
                state.etcd.put_foreign(self.foreign_key());
                state.foreign = Foreign::Queued;
            }
            Action::ForeignStarts => state.foreign = Foreign::Runs,
            Action::ForeignEnds => {
                state.etcd.delete(&self.foreign_key());
                state.foreign = Foreign::Gone;
            }
        }
        self.tell_watches(&mut state);
        self.judge(&mut state);
        state
    }

    fn time(&self, state: &mut State) {
        let Some(next) = self.next_instant(state) else { return };
        // Chance may strike at each whole second, too.
        state.now = next.min((state.now / 1000 + 1) * 1000);
        state.etcd.expire(state.now);
        for (client, setting) in state.clients.iter_mut().zip(&self.clients) {
            let now = client.clock(setting, state.now);
            if client.guardian == Life::Stopped && client.vigil().is_some_and(|vigil| vigil <= now) {
                client.guardian = Life::Runs;
            }
        }
    }

    fn act(&self, state: &mut State, index: usize, act: Act) {
        let setting = &self.clients[index];
        let State { etcd, clients, .. } = state;
        let client = &mut clients[index];
        let now = client.clock(setting, state.now);
        match act {
            Act::Come => client.come(setting, now),
            Act::Guardian => client.guardian_runs(setting, now),
            Act::Keeper => client.keeper_runs(setting, now),
            Act::Rpc | Act::Arrive => {
                if let Some(mut call) = client.call.take() {
                    call.answer = Some(carry_out(etcd, setting, &call, state.now));
                    client.call = Some(call);
                }
                if act == Act::Rpc {
                    deliver(client, setting, now);
                }
            }
            Act::Deliver => deliver(client, setting, now),
            Act::GiveUp => {
                if let Some(call) = client.call.take() {
                    client.late = Some(call).filter(|call| call.answer.is_none());
                    // The keeper knows which request it was.
                    client.keeper_hears(setting, now, keeper::Event::Fault(silence()));
                }
            }
            Act::ArriveLate => {
                if let Some(call) = client.late.take() {
                    // Its answer interests nobody any more.
                    drop(carry_out(etcd, setting, &call, state.now));
                }
            }
            Act::RenewalArrives => {
                if let Some(renewal) = &mut client.renewal {
                    let mut alive = Alive {
                        sent: renewal.sent,
                        ttl: Some(setting.rules.ttl),
                        term: etcd.old_term(),
                    };
                    if !client.with_deposed {
                        etcd.keep_alive(renewal.lease, state.now, setting.rules.ttl, &mut alive);
                    }
                    renewal.stage = Renewing::Renewed(alive);
                    if !renewal.slow && client.keeper == Life::Runs {
                        answered(client, setting, now);
                    }
                }
            }
            Act::RenewalAnswered => answered(client, setting, now),
            Act::RenewalRead => {
                if let Some(renewal) = &client.renewal
                    && let Renewing::Reading(alive, answered) = renewal.stage
                {
                    let ours = Ours {
                        lease: renewal.lease,
                        token: renewal.token,
                        within: setting.rules.answer_within,
                    };
                    let result = etcd
                        .txn(setting.protocol.own_entry(renewal.lease))
                        .map(|own_entry| Protocol::judge_renewal(ours, alive, answered, own_entry));
                    client.renewed(setting, now, result);
                }
            }
            Act::RenewalGivenUp => client.renewed(setting, now, Err(silence())),
            Act::WatchStands => watch_stands(client, setting, etcd),
            Act::WatchTells | Act::WatchTellsLast => {
                if let Some(event) = client.next_told(act == Act::WatchTellsLast) {
                    client.keeper_hears(setting, now, event);
                }
            }
            Act::LeaseRevoked => {
                let lease = client.revoking.remove(0);
                etcd.revoke(lease);
            }
            Act::CommandEnds => client.command_ends(setting),
            Act::StraysEnd | Act::TreeDies => client.tree = Tree::Dead,
            Act::Continue => {
                for life in [&mut client.guardian, &mut client.keeper] {
                    if matches!(life, Life::Stopped | Life::Frozen) {
                        *life = Life::Runs;
                    }
                }
            }
            Act::Heal => heal(client),
            Act::Befall(fate) => {
                state.budget -= 1;
                self.befall(state, index, fate);
            }
        }
    }

    fn befall(&self, state: &mut State, index: usize, fate: Fate) {
        let setting = &self.clients[index];
        let State { etcd, clients, .. } = state;
        let client = &mut clients[index];
        match fate {
            Fate::KillGuardian => client.guardian = Life::Dead,
            Fate::StopGuardian => client.guardian = Life::Stopped,
            Fate::FreezeGuardian => client.guardian = Life::Frozen,
            Fate::KillKeeper => client.keeper = Life::Dead,
            Fate::StopKeeper => client.keeper = Life::Stopped,
            Fate::Cut => client.cut = true,
            Fate::SlowCall => {
                if let Some(call) = &mut client.call {
                    call.slow = true;
                }
            }
            Fate::SlowRenewal => {
                if let Some(renewal) = &mut client.renewal {
                    renewal.slow = true;
                }
            }
            Fate::Depose => {
                etcd.depose(state.now, setting.rules.ttl);
                client.cut = true;
                client.with_deposed = true;
            }
            Fate::Untold => {
                if let Some(watch) = &mut client.watch {
                    watch.told.remove(0);
                }
            }
            Fate::Leap => client.leapt += 2000,
            Fate::Revoke => etcd.revoke(client.lease),
            Fate::Delete => etcd.delete(&setting.protocol.place.entry(client.lease)),
        }
        client.forget();
    }

    fn tell_watches(&self, state: &mut State) {
        let deleted = state.etcd.take_deleted();
        if deleted.is_empty() {
            return;
        }
        for (client, setting) in state.clients.iter_mut().zip(&self.clients) {
            let own = setting.protocol.place.entry(client.lease);
            // Cut off it is silent, and its end will be told as that of the connection.
            let Some(watch) = client.watch.as_mut().filter(|watch| watch.tells() && !client.cut) else {
                continue;
            };
            for (key, at) in &deleted {
                let before = watch.watched.predecessor.as_ref();
                let seen = if *key == own {
                    Seen::OursGone
                } else if before.is_some_and(|before| before.entry == *key) {
                    Seen::PredecessorGone { at: *at }
                } else if before.is_some_and(|before| before.open.as_ref() == Some(key)) {
                    Seen::OpenGone { at: *at }
                } else if before.is_some_and(|before| before.earlier.as_ref() == Some(key)) {
                    Seen::EarlierGone
                } else {
                    continue;
                };
                watch.told.push(Told::Seen(seen));
            }
        }
    }

    fn judge(&self, state: &mut State) {
        let trees = state.clients.iter().filter(|client| client.guarded()).count();
        let foreign = usize::from(state.foreign == Foreign::Runs);
        let mut wrong = None;
        for client in &mut state.clients {
            wrong = wrong.or(client.wrong);
            if let Some(token) = client.started.take() {
                if token <= state.last_token {
                    wrong = wrong.or(Some(OUT_OF_ORDER));
                }
                state.last_token = token;
            }
        }
        if trees + foreign > 1 {
            wrong = Some(OVERLAP);
        }
        for (client, setting) in state.clients.iter().zip(&self.clients) {
            wrong = wrong.or(misrecorded(&state.etcd, client, setting));
        }
        state.wrong = state.wrong.or(wrong);
    }
}

/// Whatever becomes of a run, it stands in the records: open, by its own word, or as vanished.
fn misrecorded(etcd: &Etcd, client: &Client, setting: &Setting) -> Option<&'static str> {
    let (place, token) = (&setting.protocol.place, client.ran?);
    let record = etcd.value(&place.run_record(token)).and_then(Run::parse);
    match record {
        None if etcd.created(&place.open(client.lease)) != Some(token) => Some(UNRECORDED),
        Some(record) if record.ended.result == VANISHED && client.has_left() => Some(SAID_TO_VANISH),
        None | Some(_) => None,
    }
}

pub(crate) const UNRECORDED: &str = "a run leaves no record";
pub(crate) const SAID_TO_VANISH: &str = "a run that let go itself is recorded as vanished";
pub(crate) const OVERLAP: &str = "two trees are alive";
pub(crate) const OUT_OF_ORDER: &str = "a later comer started first";

fn deliver(client: &mut Client, setting: &Setting, now: Moment) {
    if let Some(event) = client.take_answer(setting) {
        client.keeper_hears(setting, now, event);
    }
}

fn answered(client: &mut Client, setting: &Setting, now: Moment) {
    let Some(renewal) = &mut client.renewal else { return };
    if let Renewing::Renewed(alive) = renewal.stage {
        if setting.rules.checks.own_key_read {
            renewal.stage = Renewing::Reading(alive, now);
        } else {
            // Without the read there is nothing but the leader's word.
            let why = String::new();
            client.renewed(setting, now, Ok(Renewal::Unproven { why }));
        }
    }
}

/// Whatever was broken by the silence is told so, and made anew.
pub(crate) fn heal(client: &mut Client) {
    client.cut = false;
    client.with_deposed = false;
    if let Some(watch) = &mut client.watch {
        watch.stands = true;
        watch.told = vec![Told::Broken];
    }
}

fn watch_stands(client: &mut Client, setting: &Setting, etcd: &Etcd) {
    let own = setting.protocol.place.entry(client.lease);
    let there = etcd.keys.get(&own).map(|kept| kept.created);
    let token = client.token();
    if let Some(watch) = &mut client.watch {
        watch.stands = true;
        watch.told.push(Told::Seen(Seen::Ready));
        // From a revision in the past on, nothing that happened since is missed.
        if watch.watched.from.is_some() && there != token {
            watch.told.push(Told::Seen(Seen::OursGone));
        }
    }
}

/// What etcd does and says, by the product's own transactions.
fn carry_out(etcd: &mut Etcd, setting: &Setting, call: &Call, now: Ms) -> Result<Said, Fault> {
    let Setting { protocol, rules, .. } = setting;
    let (lease, token) = (call.lease, call.token);
    let known = token.unwrap_or(0);
    let view = |answer: Answer, lease, token| Ok(Said::View(Box::new(protocol.view(answer, lease, token))));
    match &call.request {
        Request::Look => view(etcd.txn(protocol.look())?, None, None),
        Request::Grant => {
            etcd.grant(lease, now + ms(rules.ttl));
            Ok(Said::Granted)
        }
        Request::Enqueue => {
            let answer = etcd.txn(protocol.enqueue(lease, rules.ttl)?)?;
            if answer.succeeded {
                return view(answer, Some(lease), None);
            }
            let items = answer.reads.into_iter().next().unwrap_or_default().items;
            let token = items.first().map_or(0, |entry| entry.created);
            view(etcd.txn(protocol.read(lease, token))?, Some(lease), Some(token))
        }
        Request::Seize => view(etcd.txn(protocol.seize(lease, rules.ttl)?)?, Some(lease), None),
        Request::Read => view(etcd.txn(protocol.read(lease, known))?, Some(lease), Some(known)),
        Request::Stand { predecessor } => {
            let answer = etcd.txn(protocol.stand(lease, predecessor.as_deref()))?;
            Ok(Said::Standing(Protocol::standing(answer, lease, known)))
        }
        Request::Clear {
            stale,
            vanished,
            outdated,
        } => {
            let gone = vanished.as_ref().map(|vanished| Gone {
                open: &vanished.open,
                left: Left {
                    run: &vanished.run,
                    outdated,
                },
            });
            let answer = etcd.txn(protocol.clear(lease, known, stale, gone)?)?;
            view(answer, Some(lease), Some(known))
        }
        Request::Leave {
            run: Some(ended),
            outdated,
        } if token.is_some() => {
            let run = run(protocol, known, ended);
            let left = Left { run: &run, outdated };
            let answer = etcd.txn(protocol.release(lease, left, How::AtOnce)?)?;
            // Any try may be a second one here: the first one's answer was lost.
            Ok(match Protocol::departed(answer, &run, false) {
                Some(Departure::Done) | None => Said::Gone,
                Some(Departure::Taken) => Said::Taken,
            })
        }
        Request::Settle { run: ended, outdated } => {
            let run = run(protocol, known, ended);
            let left = Left { run: &run, outdated };
            etcd.txn(protocol.settle(lease, left)?)?;
            Ok(Said::Gone)
        }
        Request::Leave { .. } | Request::Abandon => {
            if token.is_none() {
                etcd.revoke(lease);
            }
            etcd.txn(protocol.abandon(lease, How::AtOnce))?;
            Ok(Said::Gone)
        }
    }
}

fn run(protocol: &Protocol, token: i64, ended: &Ended) -> Run {
    Run {
        holder: protocol.holder.clone(),
        token,
        ended: ended.clone(),
        noticed: None,
    }
}
