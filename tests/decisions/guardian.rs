//! The guardian's promises, one short history each.

use crate::rules;
use meshlock::link::{FromGuardian, FromKeeper, Hold, Waiting};
use meshlock::moment::Moment;
use meshlock::outcome::{CommandEnd, Outcome};
use meshlock::rules::Stragglers;
use meshlock::rules::{Checks, Rules};
use meshlock::supervise::guardian::{Action, Event, Policy, Reading, State, step};
use nix::sys::signal::Signal;
use std::time::Duration;

struct Guardian {
    rules: Rules,
    policy: Policy,
    state: State,
    reading: Reading,
}

impl Guardian {
    /// Its lock is good for 3 s.
    fn waiting(stragglers: Stragglers) -> Self {
        let now = Moment::from_nanos(1_000_000_000_000);
        Self {
            rules: rules(Checks::ALL),
            policy: Policy {
                name: "n".into(),
                command: "c".into(),
                max_runtime: None,
                stop_signal: Signal::SIGTERM,
                stragglers,
                terminal: false,
                waiting_line: None,
            },
            state: State::default(),
            reading: Reading {
                now,
                deadline: now + Duration::from_secs(3),
            },
        }
    }

    fn running(stragglers: Stragglers) -> Self {
        let mut guardian = Self::waiting(stragglers);
        guardian.hears(FromKeeper::Held(hold()));
        let actions = guardian.on(Event::Claimed(true));
        assert!(actions.contains(&Action::Start(hold())));
        guardian
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        step(&self.rules, &self.policy, &mut self.state, self.reading, event)
    }

    fn hears(&mut self, words: FromKeeper) -> Vec<Action> {
        self.on(Event::Keeper(words))
    }

    /// Looks at the clock only with the next event.
    fn sleeps(&mut self, ms: u64) {
        self.reading.now = self.reading.now + Duration::from_millis(ms);
    }

    fn after(&mut self, ms: u64) -> Vec<Action> {
        self.sleeps(ms);
        self.on(Event::Tick)
    }

    fn outcome(&self) -> Outcome {
        self.state.outcome(&self.policy)
    }

    fn lost(&self) -> bool {
        matches!(self.outcome(), Outcome::Lost { .. })
    }
}

fn hold() -> Hold {
    Hold {
        token: 7,
        key: "lock/5".into(),
        lease: 5,
        cluster: 1,
        ttl: Duration::from_secs(4),
    }
}

fn from_the_terminal(signal: Signal) -> Event {
    Event::Signal {
        signal,
        from_kernel: true,
    }
}

fn signal(signal: Signal) -> Event {
    Event::Signal {
        signal,
        from_kernel: false,
    }
}

const SUCCESS: Event = Event::CommandEnded(CommandEnd::Exited(0));

#[test]
fn nothing_starts_at_the_stop_point_or_without_the_claim() {
    let mut late = Guardian::waiting(Stragglers::Leave);
    late.hears(FromKeeper::Held(hold()));
    late.sleeps(2400);
    assert_eq!(late.on(Event::Claimed(true)), [Action::Tell(FromGuardian::Claimed)]);
    assert_eq!(late.after(600), [Action::Tell(FromGuardian::Requeue)]);

    let mut withdrawn = Guardian::waiting(Stragglers::Leave);
    withdrawn.hears(FromKeeper::Held(hold()));
    assert_eq!(withdrawn.on(Event::Claimed(false)), []);
}

#[test]
fn an_outage_stops_at_the_stop_point_and_kills_at_the_deadline() {
    let mut guardian = Guardian::running(Stragglers::Leave);
    assert!(guardian.after(2400).contains(&Action::Signal(Signal::SIGTERM)));
    // A renewal that still comes through no longer moves the kill.
    guardian.reading.deadline = guardian.reading.deadline + Duration::from_secs(3);
    assert!(guardian.after(600).contains(&Action::Kill));
    assert_eq!(guardian.on(Event::TreeDead), [Action::Release]);
    assert!(guardian.lost());
}

#[test]
fn a_loss_kills_at_once_and_is_never_the_commands_own_end() {
    let mut guardian = Guardian::running(Stragglers::Leave);
    let actions = guardian.hears(FromKeeper::Lost { why: "deleted".into() });
    assert_eq!(actions, [Action::Tell(FromGuardian::LossSeen), Action::Kill]);
    assert_eq!(guardian.on(SUCCESS), [], "the rest of the tree may live");
    assert_eq!(guardian.on(Event::TreeDead), [Action::Release]);
    assert!(guardian.lost());
}

#[test]
fn an_end_seen_after_the_deadline_is_a_loss_however_the_command_was_hurried() {
    let mut calm = Guardian::running(Stragglers::Leave);
    calm.sleeps(3000);
    assert!(calm.on(SUCCESS).contains(&Action::Kill));
    assert!(calm.lost());

    let mut hurried = Guardian::running(Stragglers::Leave);
    hurried.on(signal(Signal::SIGTERM));
    hurried.sleeps(1000);
    hurried.on(signal(Signal::SIGTERM));
    hurried.sleeps(2000);
    assert!(hurried.on(SUCCESS).contains(&Action::Kill));
    assert!(hurried.lost());
}

#[test]
fn stragglers_or_a_dying_tree_beyond_the_deadline_are_a_loss() {
    let mut straggling = Guardian::running(Stragglers::Wait);
    assert_eq!(straggling.on(SUCCESS), [Action::AwaitTree]);
    straggling.sleeps(3000);
    assert_eq!(straggling.on(Event::TreeDead), [Action::Release]);
    assert!(straggling.lost());

    let mut dying = Guardian::running(Stragglers::Kill);
    assert_eq!(dying.on(SUCCESS), [Action::Kill]);
    assert!(!dying.lost());
    dying.after(3000);
    assert!(dying.lost());
}

#[test]
fn a_signal_ends_the_wait_for_stragglers() {
    let mut guardian = Guardian::running(Stragglers::Wait);
    guardian.on(SUCCESS);
    assert_eq!(guardian.on(signal(Signal::SIGUSR1)), []);
    assert_eq!(guardian.on(signal(Signal::SIGTERM)), [Action::Kill]);
    assert_eq!(guardian.on(Event::TreeDead), [Action::Release]);
    assert_eq!(guardian.outcome(), Outcome::Command(CommandEnd::Exited(0)));
}

#[test]
fn the_lock_of_a_dead_keeper_is_good_until_the_deadline() {
    let mut guardian = Guardian::running(Stragglers::Leave);
    guardian.on(Event::KeeperGone);
    assert!(guardian.on(SUCCESS).contains(&Action::Finish));
    assert_eq!(guardian.outcome(), Outcome::Command(CommandEnd::Exited(0)));
    assert!(guardian.state.problem().is_some());
}

#[test]
fn what_the_keeper_could_not_release_on_its_own_is_said_in_the_end() {
    let mut guardian = Guardian::running(Stragglers::Leave);
    let problem = Some("etcd is away".to_owned());
    guardian.sleeps(3000);
    guardian.hears(FromKeeper::Left { problem, taken: None });
    guardian.on(Event::KeeperGone);
    guardian.on(SUCCESS);
    let actions = guardian.on(Event::TreeDead);
    assert!(
        matches!(actions[..], [Action::Notice(_), Action::Finish]),
        "{actions:?}"
    );
    assert!(guardian.state.problem().is_some());
}

#[test]
fn a_silent_keeper_holds_up_the_end_no_longer_than_the_release_timeout() {
    let mut guardian = Guardian::running(Stragglers::Leave);
    guardian.on(SUCCESS);
    assert_eq!(guardian.after(1999), []);
    assert!(guardian.after(1).contains(&Action::Finish));
    assert_eq!(guardian.outcome(), Outcome::Command(CommandEnd::Exited(0)));
}

#[test]
fn a_lock_let_go_by_the_last_duty_is_lost_even_if_a_renewal_came_through_meanwhile() {
    let mut guardian = Guardian::running(Stragglers::Leave);
    guardian.sleeps(3500);
    guardian.reading.deadline = guardian.reading.now + Duration::from_secs(2);
    let actions = guardian.hears(FromKeeper::Left {
        problem: None,
        taken: None,
    });
    assert!(actions.contains(&Action::Kill), "what the duty did not find may live");
    guardian.on(Event::CommandEnded(CommandEnd::Signaled(9)));
    let actions = guardian.on(Event::TreeDead);
    assert!(actions.contains(&Action::Finish) && guardian.lost());
}

#[test]
fn a_lock_that_was_gone_at_the_release_is_lost_whatever_the_command_ended_with() {
    let gone = || FromKeeper::Left {
        problem: None,
        taken: Some("deleted".into()),
    };
    let mut guardian = Guardian::running(Stragglers::Leave);
    guardian.on(SUCCESS);
    assert!(guardian.hears(gone()).contains(&Action::Finish));
    let command = Some(CommandEnd::Exited(0));
    assert!(matches!(guardian.outcome(), Outcome::Lost { command: end, .. } if end == command));

    let mut unstarted = Guardian::running(Stragglers::Leave);
    unstarted.on(Event::NotStarted {
        found: false,
        why: "no such file".into(),
    });
    unstarted.hears(gone());
    assert!(matches!(unstarted.outcome(), Outcome::NotStarted { .. }), "nothing ran");
}

/// At a terminal, where a line is kept current.
fn at_a_terminal() -> Guardian {
    let mut guardian = Guardian::waiting(Stragglers::Leave);
    guardian.policy.terminal = true;
    guardian.policy.waiting_line = Some(guardian.reading.now);
    guardian
}

fn behind(ahead: i64) -> FromKeeper {
    FromKeeper::Waiting(Waiting::Behind {
        ahead,
        holder: "ann".into(),
    })
}

/// The waited seconds that were shown, `None` where the line was taken away.
fn line(actions: &[Action]) -> Vec<Option<u64>> {
    let shown = actions.iter().filter_map(|action| match action {
        Action::ShowWaiting { waited, .. } => Some(Some(waited.as_secs())),
        Action::HideWaiting => Some(None),
        _ => None,
    });
    shown.collect()
}

#[test]
fn the_waiting_line_is_brought_up_to_date_at_each_change_and_each_second() {
    let mut guardian = at_a_terminal();
    let wake_at = |guardian: &Guardian| guardian.state.wake_at(&guardian.rules, guardian.reading.deadline);
    assert_eq!(line(&guardian.after(300)), []);
    assert_eq!(wake_at(&guardian), None, "there is nothing to show yet");
    assert_eq!(line(&guardian.hears(behind(2))), [Some(0)]);
    assert_eq!(
        wake_at(&guardian),
        Some(guardian.reading.now + Duration::from_millis(700))
    );
    assert_eq!(line(&guardian.after(600)), []);
    assert_eq!(line(&guardian.after(100)), [Some(1)]);
    assert_eq!(line(&guardian.hears(behind(1))), [Some(1)]);
    assert_eq!(line(&guardian.on(signal(Signal::SIGWINCH))), [Some(1)]);
    // Slept through some.
    assert_eq!(line(&guardian.after(3500)), [Some(4)]);
    assert_eq!(
        wake_at(&guardian),
        Some(guardian.reading.now + Duration::from_millis(500))
    );
}

#[test]
fn the_waiting_line_is_taken_away_before_anything_else_happens() {
    type History = fn(&mut Guardian) -> Vec<Action>;
    let histories: [(History, Action); 4] = [
        (
            |guardian| {
                guardian.hears(FromKeeper::Held(hold()));
                guardian.on(Event::Claimed(true))
            },
            Action::Start(hold()),
        ),
        (|guardian| guardian.on(signal(Signal::SIGINT)), Action::Release),
        (
            |guardian| guardian.hears(FromKeeper::Contended { why: String::new() }),
            Action::Finish,
        ),
        (
            |guardian| guardian.on(from_the_terminal(Signal::SIGTSTP)),
            Action::StopSelf(Signal::SIGTSTP),
        ),
    ];
    for (history, what) in histories {
        let mut guardian = at_a_terminal();
        guardian.hears(behind(1));
        let actions = history(&mut guardian);
        assert_eq!(actions[0], Action::HideWaiting, "{actions:?}");
        assert!(actions.contains(&what), "{actions:?}");
        assert_eq!(line(&guardian.after(2000)), [], "it does not come back by itself");
    }
}

#[test]
fn the_waiting_line_comes_back_with_fg_alone() {
    let mut guardian = at_a_terminal();
    guardian.hears(behind(1));
    guardian.on(from_the_terminal(Signal::SIGTSTP));
    // News that came while we were stopped.
    assert_eq!(line(&guardian.hears(behind(1))), []);
    guardian.sleeps(5000);
    assert_eq!(line(&guardian.on(signal(Signal::SIGCONT))), [Some(5)]);
}

#[test]
fn without_a_line_to_keep_current_time_alone_tells_nothing() {
    let mut guardian = Guardian::waiting(Stragglers::Leave);
    let said = guardian.hears(behind(2));
    assert_eq!(
        said,
        [Action::Progress("waiting (2 ahead of us): \"n\" is held by ann".into())]
    );
    assert_eq!(guardian.state.wake_at(&guardian.rules, guardian.reading.deadline), None);
    assert_eq!(guardian.after(10_000), []);
}
