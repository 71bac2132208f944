//! Random histories of the whole, and what must hold in each; and that every single rule is needed for it.

use crate::etcd::RivalPlan;
use crate::rules;
use crate::world::{Deed, Plan, World};
use meshlock::rules::Stragglers;
use meshlock::rules::{Checks, Rules};
use nix::sys::signal::Signal;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Whatever may befall a run but an early end of its lease.
fn rough() -> impl Strategy<Value = Deed> {
    prop_oneof![
        1 => Just(Deed::StopKeeper),
        1 => Just(Deed::KillKeeper),
        1 => Just(Deed::StopGuardian),
        1 => Just(Deed::FreezeGuardian),
        1 => Just(Deed::KillGuardian),
        3 => Just(Deed::Continue),
        2 => (100..6000u64).prop_map(Deed::NetworkDown),
        1 => (100..6000u64).prop_map(Deed::StaleLeader),
        1 => Just(Deed::BreakWatch),
        1 => mild(),
    ]
}

/// What leaves both halves and the network alone.
fn mild() -> impl Strategy<Value = Deed> {
    prop_oneof![
        1 => Just(Deed::Break),
        1 => any::<bool>().prop_map(Deed::Freeze),
        2 => Just(Deed::CommandEnds),
        1 => prop::sample::select(vec![Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]).prop_map(Deed::Signal),
    ]
}

fn early() -> impl Strategy<Value = Deed> {
    prop_oneof![Just(Deed::Revoke), Just(Deed::DeleteEntry)]
}

fn plan(deeds: impl Strategy<Value = Deed>, delays: Vec<u64>) -> impl Strategy<Value = Plan> {
    let policy = (
        prop::sample::select(vec![Stragglers::Leave, Stragglers::Wait, Stragglers::Kill]),
        prop::sample::select(vec![None, Some(0), Some(500), Some(3000)]),
        prop::option::weighted(0.2, 200..5000u64),
        prop::sample::select(vec![0, 0, 200, 500u64]),
        prop::bool::weighted(0.05),
    );
    let tree = (
        prop::sample::select(vec![1000, 1000, 4000u64]),
        0..8000u64,
        prop::sample::select(vec![0, 0, 300, 5000u64]),
        0..300u64,
        prop::option::of(0..1000u64),
    );
    // Often there before us: then we stand in a queue.
    let comes = prop_oneof![Just(0), 0..4000u64];
    let rival = (comes, 100..8000u64, 50..3000u64, any::<bool>()).prop_map(|(comes, waits, holds, clean)| RivalPlan {
        comes,
        waits,
        holds,
        clean,
    });
    (
        policy,
        tree,
        prop::collection::vec(prop::sample::select(delays), 1..12),
        prop::collection::vec(rival, 0..4),
        prop::collection::vec((0..2000u64, deeds), 0..9),
    )
        .prop_map(|(policy, tree, delays, rivals, deeds)| Plan {
            stragglers: policy.0,
            wait: policy.1,
            max_runtime: policy.2,
            lost_grace: policy.3,
            exec_fails: policy.4,
            call: tree.0,
            runs_for: tree.1,
            strays_for: tree.2,
            dying: tree.3,
            heeds_stop: tree.4,
            delays,
            rivals,
            deeds,
        })
}

/// The first history that breaks a promise, if `cases` of them show one.
fn counterexample(cases: u32, plans: impl Strategy<Value = Plan>, rules: Rules, strict_early: bool) -> Option<String> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 400,
        ..Config::default()
    };
    // The same histories on each run, so that a failure is everybody's; `MESHLOCK_SEED` walks others.
    let mut seed = [7; 32];
    if let Ok(number) = std::env::var("MESHLOCK_SEED") {
        seed[..8].copy_from_slice(&number.parse::<u64>().expect("a number").to_le_bytes());
    }
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let result = runner.run(&plans, |plan| {
        let mut world = World::new(plan, rules, strict_early);
        world.play();
        match world.violations.first() {
            Some(violation) => Err(TestCaseError::fail(violation.clone())),
            None => Ok(()),
        }
    });
    match result {
        Ok(()) => None,
        Err(TestError::Fail(_, plan)) => {
            let mut world = World::new(plan.clone(), rules, strict_early);
            world.trace = true;
            world.play();
            let broken = world.violations.join("; ");
            Some(format!("{broken}\n{plan:#?}\n{}", world.said.join("\n")))
        }
        Err(TestError::Abort(why)) => Some(why.to_string()),
    }
}

fn cases(number: u32) -> u32 {
    std::env::var("MESHLOCK_CASES").map_or(number, |cases| cases.parse().expect("a number"))
}

fn holds(found: Option<String>) {
    assert!(found.is_none(), "{}", found.unwrap_or_default());
}

const ANY_DELAY: [u64; 7] = [0, 20, 60, 200, 450, 1100, 2500];

#[test]
fn no_crash_stop_cut_or_late_answer_breaks_a_promise() {
    let plans = plan(rough(), ANY_DELAY.to_vec());
    holds(counterexample(cases(3000), plans, rules(Checks::ALL), true));
}

#[test]
fn a_lease_taken_away_early_lets_nobody_start_beside_us() {
    let plans = plan(prop_oneof![early(), mild()], vec![0, 20, 60]);
    holds(counterexample(cases(3000), plans, rules(Checks::ALL), true));
}

#[test]
fn whatever_happens_every_history_comes_to_an_end() {
    let plans = plan(prop_oneof![2 => rough(), 1 => early()], ANY_DELAY.to_vec());
    holds(counterexample(cases(3000), plans, rules(Checks::ALL), false));
}

/// Each rule is there for a reason: without it the histories above show one that breaks this promise.
fn bites(checks: Checks, promise: &str) {
    let plans = plan(rough(), ANY_DELAY.to_vec());
    let found = counterexample(3000, plans, rules(checks), true).expect("a history that breaks a promise");
    let broken = found.lines().next().unwrap_or_default();
    assert!(broken.contains(promise), "{found}");
}

#[test]
fn a_renewal_counted_from_its_answer_overstates_the_deadline() {
    let send_instant = false;
    bites(
        Checks {
            send_instant,
            ..Checks::ALL
        },
        "beyond what was accepted",
    );
}

#[test]
fn a_renewal_believed_without_a_read_overstates_the_deadline() {
    let own_key_read = false;
    bites(
        Checks {
            own_key_read,
            ..Checks::ALL
        },
        "beyond what was accepted",
    );
}

#[test]
fn without_the_handover_delay_we_start_beside_a_dying_tree() {
    let handover_delay = false;
    bites(
        Checks {
            handover_delay,
            ..Checks::ALL
        },
        "a start beside a rival's living tree",
    );
}

#[test]
fn without_its_own_timer_the_guardian_kills_too_late() {
    let own_timer = false;
    bites(
        Checks {
            own_timer,
            ..Checks::ALL
        },
        "beyond the deadline, and nobody kills it",
    );
}

#[test]
fn without_the_last_duty_a_tree_outlives_its_guardian() {
    let last_duty = false;
    bites(
        Checks {
            last_duty,
            ..Checks::ALL
        },
        "while the tree may be alive",
    );
}

#[test]
fn without_a_look_at_the_tree_the_lock_goes_too_early() {
    let tree_check = false;
    bites(
        Checks {
            tree_check,
            ..Checks::ALL
        },
        "tree",
    );
}

#[test]
fn without_a_read_before_the_start_a_waiters_departure_passes_for_the_holders() {
    let read_before_start = false;
    bites(
        Checks {
            read_before_start,
            ..Checks::ALL
        },
        "a start beside a rival's living tree",
    );
}
