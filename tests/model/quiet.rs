//! Liveness as a safety property: from every state that is reached, a run in which nothing more befalls anybody
//! hands the lock on until nobody wants it and nothing holds it. Decides nothing; walks on from a state along
//! one history, and never twice from the same state.

use crate::client::{Client, Life};
use crate::etcd::Ms;
use crate::history::{Act, Action, Foreign, Scene, State};
use crate::step::heal;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// Whatever is sat out is over long before: the longest is a lease, a hand-over delay and a release.
const AT_LAST: Ms = 60_000;

pub(crate) const STUCK: &str = "the lock is held by nobody, or for ever";

/// The states from which a quiet run is known to end well.
#[derive(Clone, Default)]
pub(crate) struct Known(Arc<Mutex<HashSet<u64>>>);

impl Known {
    fn has(&self, state: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&state)
    }

    fn learn(&self, states: HashSet<u64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(states);
    }
}

fn fingerprint(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

impl Scene {
    /// Whether the lock is handed on from here: once with everything that was stopped going on, and once
    /// with it stopped for ever: a stopped guardian that had claimed the lock may keep it, nobody else.
    pub(crate) fn hands_on(&self, state: &State) -> bool {
        let halted = state
            .clients
            .iter()
            .any(|client| halted(client.guardian) || halted(client.keeper));
        self.runs_out(state, true) && (!halted || self.runs_out(state, false))
    }

    fn runs_out(&self, state: &State, go_on: bool) -> bool {
        let mut state = state.clone();
        self.calm(&mut state, go_on);
        let until = state.now + AT_LAST;
        let mut way = HashSet::new();
        loop {
            let here = fingerprint(&state);
            if self.known.has(here) {
                break;
            }
            // Round in a circle it would go for ever.
            if state.wrong.is_some() || !way.insert(here) {
                return false;
            }
            match self.quiet_step(&state).filter(|_| state.now <= until) {
                Some(action) => state = self.next(&state, action),
                None if self.all_is_well(&state) => break,
                None => return false,
            }
        }
        self.known.learn(way);
        true
    }

    /// The quiet runs, step by step, for a reader.
    pub(crate) fn tell_quiet(&self, state: &State) -> String {
        let mut said = String::new();
        for go_on in [true, false] {
            let mut state = state.clone();
            self.calm(&mut state, go_on);
            writeln!(
                said,
                "--- quiet, {}",
                if go_on { "all go on" } else { "who was stopped stays so" }
            )
            .ok();
            for _ in 0..200 {
                let Some(action) = self.quiet_step(&state) else { break };
                writeln!(said, "{:>6} {action:?}", state.now).ok();
                state = self.next(&state, action);
            }
            for client in &state.clients {
                writeln!(said, "{:?} {:?} {:?}", client.guardian, client.keeper, client.tree).ok();
            }
            writeln!(said, "{:?}", state.etcd.keys.keys()).ok();
        }
        said
    }

    fn calm(&self, state: &mut State, go_on: bool) {
        state.budget = 0;
        let now = state.now;
        for (client, setting) in state.clients.iter_mut().zip(&self.clients) {
            if go_on {
                for life in [&mut client.guardian, &mut client.keeper] {
                    if halted(*life) {
                        *life = Life::Runs;
                    }
                }
            }
            if client.cut {
                heal(client);
            }
            if let Some(call) = &mut client.call {
                call.slow = false;
            }
            if let Some(renewal) = &mut client.renewal {
                renewal.slow = false;
            }
            if client.guardian == Life::Away {
                client.come(setting, client.clock(setting, now));
            }
        }
    }

    /// The one next thing; `None` where nothing happens any more.
    fn quiet_step(&self, state: &State) -> Option<Action> {
        let mut actions = Vec::new();
        self.all_of(state, true, true, &mut actions);
        let by_chance = |action: &Action| matches!(action, Action::Client(_, Act::Continue | Act::Heal));
        actions.retain(|action| !by_chance(action) && *action != Action::ForeignComes);
        let last = |action: &Action| *action == Action::Time;
        actions.iter().find(|action| !last(action)).or(actions.first()).copied()
    }

    /// Nobody wants the lock and nobody has it, unless one that was stopped had claimed it.
    fn all_is_well(&self, state: &State) -> bool {
        let keeps = |client: &Client| halted(client.guardian) && client.claimed();
        if state.clients.iter().any(keeps) {
            return true;
        }
        let rests = |client: &Client| client.over() || halted(client.guardian) || halted(client.keeper);
        let held = state.etcd.under(self.queue()).next().is_some();
        state.clients.iter().all(rests) && state.foreign != Foreign::Queued && !held
    }
}

const fn halted(life: Life) -> bool {
    matches!(life, Life::Stopped | Life::Frozen)
}
