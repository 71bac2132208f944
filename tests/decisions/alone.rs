//! Each decision function alone, in histories that its other half would never make: what must hold even then.

use crate::rules;
use meshlock::link::{Asked, Ended, FromGuardian, FromKeeper, Hold};
use meshlock::lock::keeper::{self, Answer, Request, Seen};
use meshlock::lock::queue::{Ahead, Entry, Granted, Heir, Predecessor, Renewal, Stale, Standing, View};
use meshlock::moment::Moment;
use meshlock::outcome::{CommandEnd, Failure, FailureKind, Outcome};
use meshlock::rules::Checks;
use meshlock::rules::Stragglers;
use meshlock::store::Fault;
use meshlock::supervise::guardian::{self, Reading};
use nix::sys::signal::Signal;
use proptest::prelude::*;
use std::time::Duration;

const BEGIN: Moment = Moment::from_nanos(1_000_000_000_000);

fn hold() -> Hold {
    Hold {
        token: 7,
        key: "lock/5".into(),
        lease: 5,
        cluster: 1,
        ttl: Duration::from_secs(4),
    }
}

fn record() -> Ended {
    Ended {
        result: "command".into(),
        status: Some(0),
        acquired: String::new(),
        ended: String::new(),
        why: None,
        asked: None,
    }
}

fn leaves(request: &Request) -> bool {
    matches!(
        request,
        Request::Leave { .. } | Request::Settle { .. } | Request::Abandon
    )
}

/// What may happen to a guardian; what it has not asked for yet is left out by the test.
fn guardian_event() -> impl Strategy<Value = guardian::Event> {
    use guardian::Event;
    let why = || "why".to_owned();
    let signals = vec![Signal::SIGINT, Signal::SIGTERM, Signal::SIGTSTP, Signal::SIGCONT];
    prop_oneof![
        4 => Just(Event::Keeper(FromKeeper::Held(hold()))),
        1 => Just(Event::Keeper(FromKeeper::Withdrawn)),
        1 => Just(Event::Keeper(FromKeeper::Lost { why: why() })),
        1 => Just(Event::Keeper(FromKeeper::AskedToStop {
            why: why(),
            asked: Asked::new("break", "ann", "")
        })),
        1 => Just(Event::Keeper(FromKeeper::Contended { why: why() })),
        1 => Just(Event::Keeper(FromKeeper::Failed(Failure::new(FailureKind::Internal, "why")))),
        1 => (prop::option::of(Just(why())), prop::option::of(Just(why())))
            .prop_map(|(problem, taken)| Event::Keeper(FromKeeper::Left { problem, taken })),
        1 => Just(Event::KeeperGone),
        2 => (prop::sample::select(signals), any::<bool>())
            .prop_map(|(signal, from_kernel)| Event::Signal { signal, from_kernel }),
        1 => Just(Event::NotStarted { found: true, why: why() }),
        2 => Just(Event::CommandEnded(CommandEnd::Exited(0))),
        2 => Just(Event::TreeDead),
        6 => Just(Event::Tick),
    ]
}

fn keeper_event() -> impl Strategy<Value = keeper::Event> {
    use keeper::Event;
    let fault = || {
        let why = || "why".to_owned();
        prop::sample::select(vec![
            Fault::Unreachable { why: why() },
            Fault::Denied { why: why() },
            Fault::NoSpace { why: why() },
            Fault::Replaced { why: why() },
            Fault::LeaseGone,
        ])
    };
    let renewal = prop::sample::select(vec![true, false]).prop_map(|gone| {
        let why = "why".to_owned();
        let renewal = if gone {
            Renewal::Gone { why }
        } else {
            Renewal::Unproven { why }
        };
        Event::Renewal {
            lease: 5,
            sent: BEGIN,
            result: Ok(renewal),
        }
    });
    let words = prop::sample::select(vec![
        FromGuardian::Claimed,
        FromGuardian::Started {
            pid: 7,
            own_group: false,
        },
        FromGuardian::CommandEnded,
        FromGuardian::Requeue,
        FromGuardian::LossSeen,
        FromGuardian::Release { run: Some(record()) },
    ]);
    prop_oneof![
        8 => view().prop_map(|view| Event::Answer(Answer::View(view))),
        2 => fault().prop_map(Event::Fault),
        1 => renewal,
        3 => seen().prop_map(Event::Seen),
        1 => fault().prop_map(Event::WatchBroken),
        3 => words.prop_map(|words| Event::Guardian(vec![words])),
        1 => Just(Event::GuardianGone(record())),
        2 => any::<bool>().prop_map(Event::Withdrawn),
        1 => any::<bool>().prop_map(|dead| Event::DutyDone { dead, run: record() }),
        4 => Just(Event::Tick),
    ]
}

fn seen() -> impl Strategy<Value = Vec<Seen>> {
    let one = prop_oneof![
        Just(Seen::Ready),
        Just(Seen::OursGone),
        (8..10i64).prop_map(|at| Seen::PredecessorGone { at }),
        (8..10i64).prop_map(|at| Seen::OpenGone { at }),
        Just(Seen::EarlierGone),
        Just(Seen::FreezeChanged),
    ];
    prop::collection::vec(one, 1..3)
}

fn view() -> impl Strategy<Value = View> {
    let ahead = Ahead {
        count: 1,
        holder: Entry {
            key: "lock/1".into(),
            token: 1,
            lease: 1,
            who: "ann".into(),
        },
        predecessor: Predecessor {
            entry: "lock/1".into(),
            open: Some("open/1".into()),
            earlier: None,
        },
        heir: Some(Heir { outdated: Vec::new() }),
    };
    let stale = Stale {
        key: "open/1".into(),
        ttl: Duration::from_secs(4),
    };
    (
        prop::option::weighted(0.9, Just(7)),
        prop::option::weighted(0.2, Just(ahead)),
        prop::option::weighted(0.2, Just(stale)),
        prop::option::weighted(0.1, Just(" by ann".to_owned())),
    )
        .prop_map(|(mine, ahead, stale, frozen)| View {
            cluster: 1,
            revision: 7,
            mine,
            stale: if ahead.is_some() {
                Vec::new()
            } else {
                stale.into_iter().collect()
            },
            vanished: None,
            ahead,
            frozen,
            ask: None,
            outdated: Vec::new(),
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_guardian_lets_no_tree_out_of_its_sight(
        stragglers in prop::sample::select(vec![Stragglers::Leave, Stragglers::Wait, Stragglers::Kill]),
        history in prop::collection::vec((0..700u64, prop::option::weighted(0.2, 0..2000u64), any::<bool>(), guardian_event()), 1..40),
    ) {
        let rules = rules(Checks::ALL);
        let policy = guardian::Policy {
            name: "n".into(),
            command: "c".into(),
            max_runtime: None,
            stop_signal: Signal::SIGTERM,
            stragglers,
            terminal: true,
            waiting_line: None,
        };
        let mut state = guardian::State::default();
        let mut reading = Reading { now: BEGIN, deadline: BEGIN + Duration::from_secs(3) };
        let (mut claims, mut killed, mut lost, mut ended) = (false, false, false, false);
        for (ms, renewed, taken, event) in history {
            reading.now = reading.now + Duration::from_millis(ms);
            if let Some(sent) = renewed {
                reading.deadline = reading.deadline.max(reading.now + Duration::from_millis(1000 + sent));
            }
            let event = if std::mem::take(&mut claims) { guardian::Event::Claimed(taken) } else { event };
            let lived = state.tree_may_live();
            let of_the_tree = matches!(event, guardian::Event::NotStarted { .. } | guardian::Event::CommandEnded(_) | guardian::Event::TreeDead);
            let ends = matches!(event, guardian::Event::CommandEnded(_));
            if state.is_over() || (of_the_tree && (!lived || (ended && !matches!(event, guardian::Event::TreeDead)))) {
                continue;
            }
            ended |= ends;
            let actions = guardian::step(&rules, &policy, &mut state, reading, event.clone());
            claims = actions.iter().any(|action| matches!(action, guardian::Action::Claim { .. }));
            killed |= actions.contains(&guardian::Action::Kill);
            if actions.iter().any(|action| matches!(action, guardian::Action::Start(_))) {
                prop_assert!(!lived && reading.now < reading.deadline - rules.grace);
                (killed, lost, ended) = (false, false, false);
            }
            lost |= lived && actions.contains(&guardian::Action::Tell(FromGuardian::LossSeen));
            if lived && !state.tree_may_live() {
                let left_alone = ends && stragglers == Stragglers::Leave && !lost && reading.now < reading.deadline;
                prop_assert!(left_alone || (of_the_tree && !ends), "let go after {:?}", event);
            }
            prop_assert!(!state.tree_may_live() || reading.now < reading.deadline || killed);
            let due = state.wake_at(&rules, reading.deadline);
            prop_assert!(due.is_none_or(|due| due > reading.now), "{:?} {:?}", due, state);
            prop_assert!(!(lost && matches!(state.outcome(&policy), Outcome::Command(_))));
        }
    }

    #[test]
    fn a_keeper_keeps_what_may_have_a_tree(history in prop::collection::vec((0..900u64, keeper_event()), 1..60)) {
        let rules = rules(Checks::ALL);
        let policy = keeper::Policy {
            name: "n".into(),
            endpoints: String::new(),
            keys: String::new(),
            user: None,
            began: BEGIN,
            wait: None,
            dial_timeout: Duration::from_secs(60),
            outer_leases: Vec::new(),
            shows_place: false,
            jitter: 0.0,
        };
        let mut state = keeper::State::new(rules);
        let mut now = BEGIN;
        let mut actions = keeper::begin(&policy, &mut state);
        // Whether a tree may be there, as far as the keeper can know.
        let (mut under_way, mut tree, mut withdraws, mut offered, mut gone) = (None, false, false, false, false);
        for (ms, event) in history {
            for action in &actions {
                match action {
                    keeper::Action::Send(Request::Grant) => {
                        state.set_lease(5, "lock/5".into());
                        under_way = Some(Request::Grant);
                    }
                    keeper::Action::Send(request) => under_way = Some(request.clone()),
                    keeper::Action::Offer(_) => offered = true,
                    keeper::Action::Withdraw { .. } => withdraws = true,
                    _ => {}
                }
            }
            if state.is_over() {
                break;
            }
            now = now + Duration::from_millis(ms);
            let event = match event {
                keeper::Event::Answer(Answer::View(view)) => match under_way.take() {
                    Some(Request::Grant) => {
                        let granted = Granted { sent: now, ttl: rules.ttl };
                        keeper::Event::Answer(Answer::Granted(granted, Ok(rules)))
                    }
                    // Whether it was taken depends on what the answer happens to be.
                    Some(Request::Leave { .. }) if view.mine.is_none() => keeper::Event::Answer(Answer::Taken),
                    Some(request) if leaves(&request) => keeper::Event::Answer(Answer::Gone),
                    Some(Request::Stand { .. }) => keeper::Event::Answer(Answer::Standing(Standing {
                        revision: 8,
                        mine: view.mine,
                        predecessor: view.ahead.is_some(),
                        frozen: view.frozen.is_some(),
                        ask: None,
                    })),
                    Some(_) => keeper::Event::Answer(Answer::View(view)),
                    None => keeper::Event::Tick,
                },
                keeper::Event::Fault(fault) if under_way.take().is_some() => keeper::Event::Fault(fault),
                keeper::Event::Fault(_) => keeper::Event::Tick,
                keeper::Event::Withdrawn(_) if !withdraws => keeper::Event::Tick,
                keeper::Event::Guardian(_) | keeper::Event::GuardianGone(_) if gone => keeper::Event::Tick,
                event => event,
            };
            let mut may_go = !tree;
            match &event {
                keeper::Event::Guardian(words) => {
                    for words in words {
                        match words {
                            FromGuardian::Started { .. } => tree |= offered,
                            FromGuardian::CommandEnded | FromGuardian::Release { .. } => {
                                (tree, offered) = (false, false);
                                may_go = true;
                            }
                            _ => {}
                        }
                    }
                }
                keeper::Event::DutyDone { dead: true, .. } => {
                    tree = false;
                    may_go = true;
                }
                _ => {}
            }
            offered &= !matches!(event, keeper::Event::Withdrawn(true));
            gone |= matches!(event, keeper::Event::GuardianGone(_));
            withdraws = false;
            actions = keeper::step(&policy, &mut state, now, event.clone());
            let goes = actions.iter().any(|action| matches!(
                action,
                keeper::Action::Send(request) if leaves(request)
            ) || *action == keeper::Action::End);
            prop_assert!(!goes || may_go || !tree, "let go after {:?}", event);
            if goes {
                (tree, offered) = (false, false);
            }
            let due = state.wake_at(&policy);
            prop_assert!(state.is_over() || due.is_none_or(|due| due > now), "{:?} {:?} {:?}", due, event, state);
        }
    }
}
