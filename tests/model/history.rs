//! All histories of one scene: what can happen in a state, what follows from it, and what must never be. Steps
//! of one client that touch nothing of the others are not interleaved with theirs: only its own faults are. Time goes on only when every running process and every undisturbed message has had its
//! turn, and then to the next instant at which anything is due.

use crate::client::{Call, Client, Life, Renew, Renewing, Setting, Tree, Watch};
use crate::etcd::{Etcd, Ms};
use crate::quiet::Known;
use meshlock::lock::keeper::Request;

/// Who takes part, and what may befall them.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) clients: Vec<Setting>,
    /// A waiter that is not meshlock's: no hand-over delay, no open record.
    pub(crate) foreign: bool,
    /// Commands end only in the quiet runs: for scenes that are about a long hold.
    pub(crate) endless: bool,
    pub(crate) faults: &'static [Fate],
    /// How many of them in one history.
    pub(crate) budget: u8,
    /// Until when faults and chance may have their way.
    pub(crate) horizon: Ms,
    pub(crate) known: Known,
}

/// A fault, to be done to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    KillGuardian,
    StopGuardian,
    FreezeGuardian,
    KillKeeper,
    StopKeeper,
    /// Its network is silent, both ways.
    Cut,
    /// Its request, or renewal, and the answer take any time.
    SlowCall,
    SlowRenewal,
    /// A new leader; the client stays with the old one, which does not know.
    Depose,
    /// Its lease is revoked, its entry deleted.
    Revoke,
    Delete,
    /// Its watch keeps the next word to itself: servers have done so (etcd-io/etcd#18089, #20655).
    Untold,
    /// Its clock leaps ahead, by half a lease.
    Leap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    Come,
    Guardian,
    Keeper,
    /// The request is carried out and answered.
    Rpc,
    Arrive,
    Deliver,
    GiveUp,
    ArriveLate,
    RenewalArrives,
    RenewalAnswered,
    RenewalRead,
    RenewalGivenUp,
    WatchStands,
    WatchTells,
    /// What it would tell last.
    WatchTellsLast,
    LeaseRevoked,
    CommandEnds,
    StraysEnd,
    TreeDies,
    Continue,
    Heal,
    Befall(Fate),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Time,
    Client(usize, Act),
    ForeignComes,
    ForeignStarts,
    ForeignEnds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Foreign {
    None,
    Away,
    Queued,
    Runs,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) now: Ms,
    pub(crate) etcd: Etcd,
    pub(crate) clients: Vec<Client>,
    pub(crate) foreign: Foreign,
    pub(crate) budget: u8,
    /// The highest token under which a command was started.
    pub(crate) last_token: i64,
    pub(crate) wrong: Option<&'static str>,
}

/// The key of a foreign entry under a queue's prefix.
const FOREIGN: &str = "f";

impl Scene {
    pub(crate) fn first(&self) -> State {
        let mut state = State {
            now: 0,
            etcd: Etcd::default(),
            clients: (1..)
                .zip(&self.clients)
                .map(|(number, setting)| Client::new(number, setting))
                .collect(),
            foreign: if self.foreign { Foreign::Away } else { Foreign::None },
            budget: self.budget,
            last_token: 0,
            wrong: None,
        };
        for (client, setting) in state.clients.iter_mut().zip(&self.clients) {
            if setting.first {
                client.come(setting, client.clock(setting, 0));
            }
        }
        state
    }

    /// Everything that can happen now.
    pub(crate) fn all(&self, state: &State, actions: &mut Vec<Action>) {
        if state.wrong.is_none() {
            self.all_of(state, state.now <= self.horizon, false, actions);
        }
    }

    /// With `chance`, also what need not happen; once all is calm, every command ends.
    pub(crate) fn all_of(&self, state: &State, chance: bool, calm: bool, actions: &mut Vec<Action>) {
        for index in 0..state.clients.len() {
            let from = actions.len();
            self.local(state, index, actions);
            if actions.len() > from {
                if chance {
                    self.faults(state, index, actions);
                }
                return;
            }
        }
        let mut urgent = false;
        for index in 0..state.clients.len() {
            urgent |= Self::network(state, index, actions);
            let client = &state.clients[index];
            if client.tree == Tree::Dying {
                actions.push(Action::Client(index, Act::TreeDies));
                urgent = true;
            }
            if chance {
                self.chance(state, index, calm, actions);
                self.faults(state, index, actions);
            }
        }
        if chance {
            self.foreign(state, actions);
        }
        if !urgent && self.next_instant(state).is_some() && chance {
            actions.push(Action::Time);
        }
    }

    fn local(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let (client, setting) = (&state.clients[index], &self.clients[index]);
        let now = client.clock(setting, state.now);
        if client.guardian_due(now) {
            actions.push(Action::Client(index, Act::Guardian));
        }
        if client.keeper_due(setting, now) {
            actions.push(Action::Client(index, Act::Keeper));
        }
        if actions
            .last()
            .is_none_or(|action| !matches!(action, Action::Client(at, _) if *at == index))
        {
            Self::private(state, index, actions);
        }
    }

    /// Messages that only this client can tell the order of: a grant, a renewal, the end of an empty lease.
    fn private(state: &State, index: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[index];
        let mut push = |act| actions.push(Action::Client(index, act));
        if client.cut {
            // Refused at once; the slow ones are the silence.
            if client.keeper == Life::Runs && client.call.is_some() {
                push(Act::GiveUp);
            }
            let answered = |renewal: &Renew| client.with_deposed && !matches!(renewal.stage, Renewing::Reading(..));
            if client.keeper == Life::Runs && client.renewal.as_ref().is_some_and(|renewal| !answered(renewal)) {
                push(Act::RenewalGivenUp);
            }
            return;
        }
        if client.keeper == Life::Runs {
            let grant = |call: &Call| call.request == Request::Grant && call.answer.is_none() && !call.slow;
            if client.call.as_ref().is_some_and(grant) {
                push(Act::Rpc);
            }
            match client
                .renewal
                .as_ref()
                .filter(|renewal| !renewal.slow)
                .map(|renewal| &renewal.stage)
            {
                Some(Renewing::Sent) => push(Act::RenewalArrives),
                Some(Renewing::Renewed(_)) => push(Act::RenewalAnswered),
                Some(Renewing::Reading(..)) => push(Act::RenewalRead),
                None => {}
            }
        }
        if client
            .revoking
            .first()
            .is_some_and(|lease| state.etcd.holds_nothing(*lease))
        {
            push(Act::LeaseRevoked);
        }
    }

    /// What is on its way; true where time waits for it.
    fn network(state: &State, index: usize, actions: &mut Vec<Action>) -> bool {
        let client = &state.clients[index];
        let runs = client.keeper == Life::Runs;
        let mut urgent = false;
        let mut push = |act, waits: bool| {
            actions.push(Action::Client(index, act));
            urgent |= waits;
        };
        if let Some(call) = &client.call {
            let through = !client.cut;
            match &call.answer {
                None if through && runs && !call.slow => push(Act::Rpc, true),
                None if through => push(Act::Arrive, false),
                Some(_) if through && runs => push(Act::Deliver, !call.slow),
                _ => {}
            }
            if runs && call.slow && through {
                push(Act::GiveUp, false);
            }
        }
        if client.late.is_some() && !client.cut {
            push(Act::ArriveLate, false);
        }
        if let Some(renewal) = &client.renewal {
            // The deposed leader answers though all else is silent.
            let through = !client.cut || client.with_deposed;
            match &renewal.stage {
                Renewing::Sent if through => push(Act::RenewalArrives, !renewal.slow),
                Renewing::Renewed(_) if through && runs => push(Act::RenewalAnswered, !renewal.slow),
                Renewing::Reading(..) if !client.cut && runs => push(Act::RenewalRead, !renewal.slow),
                _ => {}
            }
            if runs && renewal.slow && through {
                push(Act::RenewalGivenUp, false);
            }
        }
        if let Some(watch) = &client.watch
            && !client.cut
            && runs
        {
            if !watch.stands {
                push(Act::WatchStands, true);
            } else if !watch.told.is_empty() {
                push(Act::WatchTells, true);
                if watch.may_tell_last() {
                    push(Act::WatchTellsLast, true);
                }
            }
        }
        if !client.revoking.is_empty() && !client.cut {
            push(Act::LeaseRevoked, true);
        }
        urgent
    }

    fn chance(&self, state: &State, index: usize, calm: bool, actions: &mut Vec<Action>) {
        let client = &state.clients[index];
        let mut push = |act| actions.push(Action::Client(index, act));
        if client.guardian == Life::Away {
            push(Act::Come);
        }
        match client.tree {
            Tree::Runs if !calm && self.endless => {}
            Tree::Runs => push(Act::CommandEnds),
            Tree::Strays => push(Act::StraysEnd),
            Tree::None | Tree::Dying | Tree::Dead => {}
        }
        if [client.guardian, client.keeper]
            .iter()
            .any(|life| matches!(life, Life::Stopped | Life::Frozen))
        {
            push(Act::Continue);
        }
        if client.cut {
            push(Act::Heal);
        }
    }

    fn faults(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        if state.budget == 0 {
            return;
        }
        let client = &state.clients[index];
        for fate in self.faults {
            // Both halves down is the residue that no software on one host can exclude.
            let keeper_up = client.keeper == Life::Runs;
            let guardian_up = client.guardian == Life::Runs;
            let guardian_hard_down = matches!(client.guardian, Life::Frozen | Life::Dead);
            let may = match fate {
                Fate::KillGuardian => {
                    matches!(client.guardian, Life::Runs | Life::Stopped)
                        && (keeper_up || client.keeper == Life::Dead && !client.guarded())
                }
                Fate::StopGuardian | Fate::Leap => guardian_up,
                Fate::FreezeGuardian => guardian_up && keeper_up,
                Fate::KillKeeper => matches!(client.keeper, Life::Runs | Life::Stopped) && !guardian_hard_down,
                Fate::StopKeeper => keeper_up && !guardian_hard_down,
                Fate::SlowCall => client.call.as_ref().is_some_and(|call| !call.slow) && !client.cut,
                Fate::SlowRenewal => client.renewal.as_ref().is_some_and(|renewal| !renewal.slow) && !client.cut,
                Fate::Cut | Fate::Depose => client.keeper == Life::Runs && !client.cut,
                Fate::Untold => client.watch.as_ref().is_some_and(Watch::may_forget),
                Fate::Revoke | Fate::Delete => state.etcd.keys.contains_key(&self.entry(index, client)),
            };
            if may {
                actions.push(Action::Client(index, Act::Befall(*fate)));
            }
        }
    }

    fn foreign(&self, state: &State, actions: &mut Vec<Action>) {
        match state.foreign {
            Foreign::Away => actions.push(Action::ForeignComes),
            Foreign::Queued => {
                let oldest = state.etcd.under(self.queue()).min_by_key(|(_, kept)| kept.created);
                if oldest.is_some_and(|(key, _)| *key == self.foreign_key()) {
                    actions.push(Action::ForeignStarts);
                }
            }
            Foreign::Runs => actions.push(Action::ForeignEnds),
            Foreign::None | Foreign::Gone => {}
        }
    }

    pub(crate) fn queue(&self) -> &str {
        self.clients[0].protocol.place.queue()
    }

    pub(crate) fn foreign_key(&self) -> String {
        format!("{}{FOREIGN}", self.queue())
    }

    fn entry(&self, index: usize, client: &Client) -> String {
        self.clients[index].protocol.place.entry(client.lease)
    }

    /// The next instant at which anything is due by itself.
    pub(crate) fn next_instant(&self, state: &State) -> Option<Ms> {
        let mut due: Vec<Ms> = state.etcd.leases.values().copied().collect();
        for (client, setting) in state.clients.iter().zip(&self.clients) {
            let mut moments = Vec::new();
            match client.guardian {
                Life::Runs => moments.extend(client.guardian_alarm()),
                Life::Stopped => moments.extend(client.vigil()),
                Life::Away | Life::Frozen | Life::Dead => {}
            }
            if client.keeper == Life::Runs {
                moments.extend(client.keeper_alarm(setting));
            }
            due.extend(moments.into_iter().map(|moment| client.when(setting, moment)));
        }
        due.into_iter()
            .filter(|due| *due > state.now && *due < Ms::MAX / 2)
            .min()
    }
}
