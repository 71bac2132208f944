//! The protocol and both decision functions, checked in every history that a few clients can have within some
//! seconds: crashes and stops of either half at any step, cuts, slow and lost messages, a deposed leader, leases
//! taken away early, slow clocks. It runs the product's own decisions and transactions, and takes single rules
//! away to see that each is needed.
#![expect(clippy::expect_used, reason = "a failed test should panic")]
#![expect(clippy::print_stdout, reason = "how many states were checked is for the reader")]
#![expect(
    clippy::struct_excessive_bools,
    reason = "a model's facts are independent, each named by what it says"
)]

mod client;
mod etcd;
mod history;
mod quiet;
mod step;

use client::{DESERTED, LATE_START, Setting};
use history::{Action, Fate, Scene, State};
use meshlock::lock::keys::Place;
use meshlock::lock::protocol::Protocol;
use meshlock::lock::record::{FORMAT, Holder, Purpose};
use meshlock::rules::{Asked, Checks, Rules, Stragglers};
use quiet::{Known, STUCK};
use stateright::{Checker, HasDiscoveries, Model, Path, Property};
use std::time::{Duration, Instant};
use step::{OUT_OF_ORDER, OVERLAP, SAID_TO_VANISH, UNRECORDED};

impl Model for Scene {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.first()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.all(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        Some(self.next(last, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(OVERLAP, |_, state: &State| state.wrong != Some(OVERLAP)),
            Property::always(OUT_OF_ORDER, |_, state: &State| state.wrong != Some(OUT_OF_ORDER)),
            Property::always(LATE_START, |_, state: &State| state.wrong != Some(LATE_START)),
            Property::always(DESERTED, |_, state: &State| state.wrong != Some(DESERTED)),
            Property::always(UNRECORDED, |_, state: &State| state.wrong != Some(UNRECORDED)),
            Property::always(SAID_TO_VANISH, |_, state: &State| state.wrong != Some(SAID_TO_VANISH)),
            Property::always(STUCK, |scene: &Self, state: &State| {
                state.wrong.is_some() || scene.hands_on(state)
            }),
        ]
    }
}

fn rules(checks: Checks) -> Rules {
    let asked = Asked {
        ttl: Duration::from_secs(4),
        grace: Some(Duration::from_secs(1)),
        lost_grace: Duration::ZERO,
        max_runtime: None,
        release_timeout: Duration::from_secs(2),
    };
    Rules {
        checks,
        ..Rules::as_asked(&asked).expect("the smallest TTL")
    }
}

fn client(checks: Checks) -> Setting {
    let holder = Holder {
        format: FORMAT,
        host: String::new(),
        user: String::new(),
        pid: 1,
        program: String::new(),
        started: String::new(),
        purpose: Purpose::default(),
    };
    Setting {
        protocol: Protocol {
            place: Place::new("", "n").expect("a name"),
            holder,
            // Of all that can run in a history.
            keep: 3,
        },
        rules: rules(checks),
        rate: 1000,
        first: false,
        wait: None,
        stragglers: Stragglers::Leave,
    }
}

/// Every state of the scene is as it must be. `MESHLOCK_FAULTS` and `MESHLOCK_HORIZON` (in milliseconds) widen it.
fn holds(name: &str, mut scene: Scene) {
    let wider = |name| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().expect("a number"))
    };
    if let Some(faults) = wider("MESHLOCK_FAULTS") {
        scene.budget = u8::try_from(faults).expect("a few");
    }
    scene.horizon = wider("MESHLOCK_HORIZON").unwrap_or(scene.horizon);
    let start = Instant::now();
    let checker = scene.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} distinct states, {} steps, the longest history {}; {:.1?}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed()
    );
    assert!(checker.is_done(), "{name}: cut off");
    if let Some((what, path)) = checker.discoveries().into_iter().next() {
        let quiet = match checker.model().tell_quiet(path.last_state()) {
            quiet if what == STUCK => quiet,
            _ => String::new(),
        };
        panic!("{name}: {what}\n{}\n{quiet}", tell(path));
    }
}

/// Some state of the scene, with a rule less, is not.
fn breaks(name: &str, scene: Scene, promise: &'static str) {
    let checker = scene
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf([promise].into()))
        .spawn_bfs()
        .join();
    let path = checker.discovery(promise).expect("a history that breaks the promise");
    println!(
        "{name}: {promise}, after {} states:\n{}",
        checker.unique_state_count(),
        tell(path)
    );
}

fn tell(path: Path<State, Action>) -> String {
    let step = |(state, action): (State, Option<Action>)| Some(format!("{:>6} {:?}", state.now, action?));
    path.into_vec()
        .into_iter()
        .filter_map(step)
        .collect::<Vec<_>>()
        .join("\n")
}

const CRASHES: &[Fate] = &[
    Fate::KillGuardian,
    Fate::StopGuardian,
    Fate::FreezeGuardian,
    Fate::KillKeeper,
    Fate::StopKeeper,
];
const SILENCE: &[Fate] = &[Fate::Cut, Fate::SlowCall, Fate::SlowRenewal];
const EARLY: &[Fate] = &[Fate::Revoke, Fate::Delete];
/// All but an early end, which together with another fault is more than is promised.
const ANYTHING: &[Fate] = &[
    Fate::KillGuardian,
    Fate::StopGuardian,
    Fate::FreezeGuardian,
    Fate::KillKeeper,
    Fate::StopKeeper,
    Fate::Cut,
    Fate::SlowCall,
    Fate::SlowRenewal,
    Fate::Depose,
    Fate::Leap,
];

fn first(checks: Checks) -> Setting {
    Setting {
        first: true,
        ..client(checks)
    }
}

/// A holder and one who comes whenever it likes.
fn two(checks: Checks, faults: &'static [Fate]) -> Scene {
    Scene {
        clients: vec![first(checks), client(checks)],
        foreign: false,
        endless: false,
        faults,
        budget: 1,
        horizon: 3000,
        known: Known::default(),
    }
}

/// The holder's clock loses all that the margin allows, and who waits knows no hand-over delay.
fn slow_clock(checks: Checks) -> Scene {
    let holder = Setting {
        rate: 760,
        ..first(checks)
    };
    Scene {
        clients: vec![holder],
        foreign: true,
        endless: true,
        horizon: 5500,
        ..two(checks, SILENCE)
    }
}

/// A hold longer than a lease, and a waiter from the beginning.
fn long(scene: Scene) -> Scene {
    let mut scene = Scene {
        endless: true,
        horizon: 6500,
        ..scene
    };
    for client in &mut scene.clients {
        client.first = true;
    }
    scene
}

fn deposed(checks: Checks) -> Scene {
    long(two(checks, &[Fate::Depose]))
}

/// Three in the queue, the second of which gives up.
fn three(checks: Checks) -> Scene {
    let impatient = Setting {
        wait: Some(Duration::from_secs(1)),
        ..client(checks)
    };
    Scene {
        clients: vec![first(checks), impatient, client(checks)],
        budget: 0,
        ..two(checks, CRASHES)
    }
}

fn killing_strays(checks: Checks) -> Scene {
    let mut scene = two(checks, &[]);
    for client in &mut scene.clients {
        client.stragglers = Stragglers::Kill;
    }
    scene
}

/// The other asks once instead of waiting.
fn asking(checks: Checks, faults: &'static [Fate]) -> Scene {
    let mut scene = two(checks, faults);
    scene.clients[1].wait = Some(Duration::ZERO);
    scene
}

const ALL: Checks = Checks::ALL;

#[test]
fn a_crash_or_stop_of_either_half_at_any_step_breaks_nothing() {
    holds("crash", two(ALL, CRASHES));
}

#[test]
fn silence_and_late_messages_break_nothing() {
    let scene = Scene {
        horizon: 1500,
        ..two(ALL, SILENCE)
    };
    holds("silence", scene);
}

#[test]
fn nothing_of_all_that_breaks_anything() {
    let scene = Scene {
        horizon: 1000,
        ..two(ALL, ANYTHING)
    };
    holds("anything", scene);
}

#[test]
fn a_lease_taken_away_early_breaks_nothing() {
    holds("early", two(ALL, EARLY));
}

#[test]
fn who_asks_only_once_breaks_nothing() {
    holds("asking, early", asking(ALL, EARLY));
    holds("asking, crash", asking(ALL, CRASHES));
}

#[test]
fn a_slow_clock_before_a_foreign_waiter_breaks_nothing() {
    holds("slow clock", slow_clock(ALL));
}

#[test]
fn a_clock_that_leaps_breaks_nothing() {
    holds("leap", two(ALL, &[Fate::Leap]));
}

#[test]
fn a_deposed_leader_breaks_nothing() {
    holds("deposed", deposed(ALL));
}

#[test]
fn words_that_a_watch_never_tells_break_nothing() {
    holds("untold", two(ALL, &[Fate::Untold]));
    let scene = Scene {
        faults: &[Fate::Untold],
        budget: 1,
        horizon: 600,
        ..three(ALL)
    };
    holds("three, untold", scene);
}

#[test]
fn a_queue_of_three_is_served_in_order() {
    holds("three", three(ALL));
}

#[test]
fn strays_that_are_to_be_killed_break_nothing() {
    holds("strays", killing_strays(ALL));
}

#[test]
fn without_the_margin_a_slow_clock_overlaps() {
    let mut scene = slow_clock(ALL);
    for client in &mut scene.clients {
        client.rules.margin = Duration::ZERO;
    }
    breaks("no margin", scene, OVERLAP);
}

#[test]
fn a_renewal_counted_from_its_answer_overlaps() {
    let checks = Checks {
        send_instant: false,
        ..ALL
    };
    let scene = Scene {
        budget: 2,
        ..slow_clock(checks)
    };
    breaks("no send instant", scene, OVERLAP);
}

#[test]
fn a_renewal_believed_without_a_read_overlaps() {
    let checks = Checks {
        own_key_read: false,
        ..ALL
    };
    breaks("no read of the own key", deposed(checks), OVERLAP);
}

#[test]
fn without_a_read_before_the_start_one_starts_beside_the_holder() {
    let checks = Checks {
        read_before_start: false,
        ..ALL
    };
    breaks("no read before the start", three(checks), OVERLAP);
}

#[test]
fn an_entry_that_goes_without_its_open_record_makes_nobody_a_holder() {
    let checks = Checks {
        one_revision: false,
        ..ALL
    };
    breaks("no one revision", two(checks, EARLY), OVERLAP);
}

#[test]
fn without_the_handover_delay_an_early_end_overlaps() {
    let checks = Checks {
        handover_delay: false,
        ..ALL
    };
    breaks("no hand-over delay", two(checks, EARLY), OVERLAP);
}

#[test]
fn without_its_own_timer_the_guardian_lets_a_tree_outlive_the_lease() {
    let checks = Checks {
        own_timer: false,
        ..ALL
    };
    breaks(
        "no timer of the guardian's own",
        long(two(checks, &[Fate::StopKeeper])),
        OVERLAP,
    );
}

#[test]
fn without_the_last_duty_a_tree_outlives_its_guardian() {
    let checks = Checks {
        last_duty: false,
        ..ALL
    };
    breaks("no last duty", two(checks, &[Fate::KillGuardian]), OVERLAP);
}

#[test]
fn without_a_look_at_the_tree_the_lock_goes_too_early() {
    let checks = Checks {
        tree_check: false,
        ..ALL
    };
    breaks("no look at the tree", killing_strays(checks), DESERTED);
}

#[test]
fn without_a_limit_for_the_claim_a_stopped_waiter_holds_for_ever() {
    let mut scene = two(ALL, &[Fate::FreezeGuardian]);
    for client in &mut scene.clients {
        client.rules.claim_within = Duration::from_secs(3600);
    }
    breaks("no limit for the claim", scene, STUCK);
}
