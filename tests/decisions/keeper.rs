//! The keeper's promises, one short history each.

use crate::rules;
use meshlock::link::{FromGuardian, FromKeeper};
use meshlock::lock::keeper::{Action, Answer, Event, Policy, Request, State, begin, step};
use meshlock::lock::queue::{Granted, View};
use meshlock::moment::Moment;
use meshlock::rules::Checks;
use meshlock::store::Fault;
use std::time::Duration;

const TOKEN: i64 = 7;
const LEASE: i64 = 5;

struct Keeper {
    policy: Policy,
    state: State,
    now: Moment,
}

impl Keeper {
    fn new(wait: Option<Duration>) -> Self {
        let now = Moment::from_nanos(1_000_000_000_000);
        let policy = Policy {
            name: "n".into(),
            began: now,
            wait,
            dial_timeout: Duration::from_secs(2),
            outer_leases: Vec::new(),
            jitter: 0.0,
        };
        let mut state = State::new(rules(Checks::ALL));
        begin(&policy, &mut state);
        Self { policy, state, now }
    }

    /// In the queue, and offered the lock at once if `view` lets it.
    fn queued(view: View) -> Self {
        let mut keeper = Self::new(None);
        keeper.granted();
        keeper.on(Event::Answer(Answer::View(view)));
        keeper
    }

    /// Its command runs.
    fn holding() -> Self {
        let mut keeper = Self::queued(alone());
        keeper.hears(FromGuardian::Claimed);
        keeper.hears(FromGuardian::Started { group: None });
        keeper
    }

    fn granted(&mut self) -> Vec<Action> {
        self.state.set_lease(LEASE, "lock/5".into());
        let rules = rules(Checks::ALL);
        let granted = Granted {
            sent: self.now,
            ttl: rules.ttl,
        };
        self.on(Event::Answer(Answer::Granted(granted, Ok(rules))))
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        step(&self.policy, &mut self.state, self.now, event)
    }

    fn hears(&mut self, words: FromGuardian) -> Vec<Action> {
        self.on(Event::Guardian(words))
    }

    fn after(&mut self, ms: u64) -> Vec<Action> {
        self.now = self.now + Duration::from_millis(ms);
        self.on(Event::Tick)
    }
}

/// The queue with nobody but us in it.
fn alone() -> View {
    View {
        cluster: 1,
        mine: Some(TOKEN),
        ahead: None,
        stale: Vec::new(),
        frozen: None,
        ask: None,
        oldest_kept: None,
    }
}

fn denied() -> Fault {
    Fault::Denied { why: "no right".into() }
}

fn lets_go(actions: &[Action]) -> bool {
    actions.iter().any(|action| {
        matches!(
            action,
            Action::Send(Request::Leave { .. } | Request::Abandon) | Action::End
        )
    })
}

fn says_lost(actions: &[Action]) -> bool {
    actions
        .iter()
        .any(|action| matches!(action, Action::Tell(FromKeeper::Lost { .. })))
}

#[test]
fn a_read_that_is_refused_during_a_hold_does_not_let_the_lock_go() {
    let mut keeper = Keeper::holding();
    let reads = keeper.on(Event::WatchReady);
    assert!(reads.contains(&Action::Send(Request::Read)));
    assert!(!lets_go(&keeper.on(Event::Fault(denied()))));
    assert!(keeper.after(250).contains(&Action::Send(Request::Read)));
}

#[test]
fn a_replaced_cluster_seen_by_a_read_is_a_loss() {
    let mut keeper = Keeper::holding();
    keeper.on(Event::WatchReady);
    let actions = keeper.on(Event::Fault(Fault::Replaced { why: "restored".into() }));
    assert!(says_lost(&actions) && !lets_go(&actions));
}
