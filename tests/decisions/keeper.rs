//! The keeper's promises, one short history each.

use crate::rules;
use meshlock::link::{Ended, FromGuardian, FromKeeper};
use meshlock::lock::keeper::{Action, Answer, Event, Policy, Request, Seen, State, Watched, begin, step};
use meshlock::lock::queue::{
    Ahead, Entry, Granted, Heir, Outdated, Predecessor, Renewal, Stale, Standing, Vanished, View,
};
use meshlock::lock::record::{Ask, Holder, Run};
use meshlock::moment::Moment;
use meshlock::outcome::FailureKind;
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
            endpoints: String::new(),
            keys: String::new(),
            user: None,
            began: now,
            wait,
            dial_timeout: Duration::from_secs(2),
            outer_leases: Vec::new(),
            shows_place: false,
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
        keeper.hears(FromGuardian::Started {
            pid: 7,
            own_group: false,
        });
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

    fn sees(&mut self, seen: Seen) -> Vec<Action> {
        self.on(Event::Seen(vec![seen]))
    }

    fn hears(&mut self, words: FromGuardian) -> Vec<Action> {
        self.on(Event::Guardian(vec![words]))
    }

    /// The watch breaks, and stands again: in between anything may have happened.
    fn watches_anew(&mut self) -> Vec<Action> {
        self.on(Event::WatchBroken(silence()));
        self.after(250);
        self.sees(Seen::Ready)
    }

    /// Time alone would not wake it again at this very instant, and again.
    fn rests(&self) -> bool {
        let due = self.state.wake_at(&self.policy);
        due.is_none_or(|due| due > self.now)
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
        revision: TOKEN,
        mine: Some(TOKEN),
        ahead: None,
        stale: Vec::new(),
        vanished: None,
        frozen: None,
        ask: None,
        outdated: Vec::new(),
    }
}

fn behind() -> View {
    let holder = Entry {
        key: "lock/1".into(),
        token: 1,
        lease: 1,
        who: "ann@db1".into(),
    };
    let ahead = Ahead {
        count: 1,
        holder,
        predecessor: Predecessor {
            entry: "lock/1".into(),
            open: Some("open/1".into()),
            earlier: None,
        },
        heir: None,
    };
    View {
        ahead: Some(ahead),
        ..alone()
    }
}

/// Whoever was there last left uncleanly.
fn after_a_crash() -> View {
    let stale = Stale {
        key: "open/1".into(),
        ttl: Duration::from_secs(40),
    };
    View {
        stale: vec![stale],
        ..alone()
    }
}

fn silence() -> Fault {
    Fault::Unreachable { why: "silence".into() }
}

fn record() -> Ended {
    Ended {
        result: "signal".into(),
        status: Some(137),
        acquired: String::new(),
        ended: String::new(),
        why: None,
        asked: None,
    }
}

fn denied() -> Fault {
    Fault::Denied { why: "no right".into() }
}

fn lets_go(actions: &[Action]) -> bool {
    actions.iter().any(|action| {
        matches!(
            action,
            Action::Send(Request::Leave { .. } | Request::Settle { .. } | Request::Abandon) | Action::End
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
    let asks = Action::Send(Request::Stand { predecessor: None });
    assert!(keeper.watches_anew().contains(&asks));
    assert!(!lets_go(&keeper.on(Event::Fault(denied()))));
    assert!(keeper.after(250).contains(&asks));
}

#[test]
fn a_replaced_cluster_seen_by_a_read_is_a_loss() {
    let mut keeper = Keeper::holding();
    keeper.watches_anew();
    let actions = keeper.on(Event::Fault(Fault::Replaced { why: "restored".into() }));
    assert!(says_lost(&actions) && !lets_go(&actions));
}

#[test]
fn nothing_wakes_a_keeper_for_what_it_no_longer_does() {
    let mut leaving = Keeper::holding();
    leaving.hears(FromGuardian::Release { run: None });
    leaving.after(1500);
    assert!(leaving.rests(), "renewals end with the release");

    let mut lost = Keeper::holding();
    lost.sees(Seen::OursGone);
    lost.hears(FromGuardian::CommandEnded);
    lost.hears(FromGuardian::LossSeen);
    lost.after(3500);
    assert!(lost.rests(), "the guardian has seen the loss and is to answer");

    let mut entering = Keeper::new(Some(Duration::from_millis(500)));
    entering.granted();
    entering.after(1500);
    assert!(entering.rests(), "the wait is over, and the answer still to come");

    let mut requeueing = Keeper::queued(behind());
    requeueing.sees(Seen::OursGone);
    requeueing.on(Event::Answer(Answer::Gone));
    requeueing.on(Event::WatchBroken(silence()));
    requeueing.after(500);
    assert!(requeueing.rests(), "the watch of a place given up has broken");

    let mut clearing = Keeper::queued(after_a_crash());
    clearing.after(4000);
    clearing.on(Event::Fault(silence()));
    assert!(clearing.rests(), "the delay is over, and its end is to be sent again");
}

#[test]
fn a_wait_that_ends_in_an_outage_ends_as_unavailable_whoever_is_ahead() {
    for view in [behind(), after_a_crash()] {
        let mut keeper = Keeper::queued(view);
        keeper.policy.wait = Some(Duration::from_millis(2500));
        keeper.after(1000);
        let sent = keeper.now;
        let result = Err(silence());
        keeper.on(Event::Renewal {
            lease: LEASE,
            sent,
            result,
        });
        keeper.after(1500);
        let actions = keeper.on(Event::Answer(Answer::Gone));
        let unavailable = |action: &Action| matches!(action, Action::Tell(FromKeeper::Failed(failure)) if failure.kind == FailureKind::Unavailable);
        assert!(actions.iter().any(unavailable), "{actions:?}");
    }
}

#[test]
fn a_keeper_that_slept_hears_all_that_was_said_before_it_kills_anything() {
    let mut keeper = Keeper::queued(alone());
    keeper.now = keeper.now + Duration::from_secs(4);
    let started = FromGuardian::Started {
        pid: 7,
        own_group: false,
    };
    let actions = keeper.on(Event::Guardian(vec![
        FromGuardian::Claimed,
        started,
        FromGuardian::CommandEnded,
    ]));
    assert!(
        !actions.contains(&Action::LastDuty),
        "what the command left running is to be left alone"
    );
}

#[test]
fn an_offer_is_withdrawn_once_however_many_reasons_there_are() {
    let mut keeper = Keeper::queued(alone());
    keeper.now = keeper.now + Duration::from_secs(1);
    let actions = keeper.sees(Seen::OursGone);
    let withdrawals = actions
        .iter()
        .filter(|action| matches!(action, Action::Withdraw { .. }));
    assert_eq!(
        withdrawals.count(),
        1,
        "the second would be refused, and so pass for a claim"
    );
}

#[test]
fn an_offer_that_outlives_its_guardian_unclaimed_leaves_no_record_of_a_run() {
    let mut keeper = Keeper::queued(alone());
    assert!(
        keeper
            .on(Event::GuardianGone(record()))
            .contains(&Action::Withdraw { token: TOKEN })
    );
    assert!(
        keeper
            .on(Event::Withdrawn(true))
            .contains(&Action::Send(Request::Abandon))
    );

    let mut keeper = Keeper::queued(alone());
    keeper.on(Event::GuardianGone(record()));
    assert!(keeper.on(Event::Withdrawn(false)).contains(&Action::LastDuty));
}

#[test]
fn a_leaving_given_up_for_lack_of_an_answer_does_not_follow_the_next_one() {
    let mut keeper = Keeper::queued(after_a_crash());
    assert!(
        keeper
            .after(4000)
            .iter()
            .any(|action| matches!(action, Action::Send(Request::Clear { .. })))
    );
    keeper.sees(Seen::OursGone);
    assert!(
        keeper.after(2000).contains(&Action::Send(Request::Grant)),
        "queueing again"
    );
    assert!(keeper.granted().contains(&Action::Send(Request::Enqueue)));
}

#[test]
fn a_loss_before_the_command_began_does_not_haunt_the_next_hold() {
    let mut keeper = Keeper::queued(alone());
    keeper.hears(FromGuardian::Claimed);
    assert!(says_lost(&keeper.sees(Seen::OursGone)));
    keeper.hears(FromGuardian::LossSeen);
    keeper.hears(FromGuardian::Requeue);
    keeper.after(1000);
    keeper.on(Event::Answer(Answer::Gone));
    keeper.granted();
    keeper.on(Event::Answer(Answer::View(alone())));
    keeper.hears(FromGuardian::Claimed);
    let actions = keeper.hears(FromGuardian::Started {
        pid: 7,
        own_group: false,
    });
    assert!(!actions.contains(&Action::LastDuty), "{actions:?}");
}

#[test]
fn an_answer_to_a_renewal_of_a_lease_given_up_says_nothing_of_the_next() {
    let mut keeper = Keeper::queued(behind());
    let sent = keeper.now;
    assert!(keeper.after(1000).contains(&Action::Renew));
    keeper.sees(Seen::OursGone);
    keeper.on(Event::Answer(Answer::Gone));
    keeper.state.set_lease(LEASE + 1, "lock/6".into());
    let rules = rules(Checks::ALL);
    let granted = Granted {
        sent: keeper.now,
        ttl: rules.ttl,
    };
    keeper.on(Event::Answer(Answer::Granted(granted, Ok(rules))));
    keeper.on(Event::Answer(Answer::View(alone())));
    keeper.hears(FromGuardian::Claimed);
    keeper.hears(FromGuardian::Started {
        pid: 7,
        own_group: false,
    });
    let result = Ok(Renewal::Gone { why: "gone".into() });
    let actions = keeper.on(Event::Renewal {
        lease: LEASE,
        sent,
        result,
    });
    assert!(actions.is_empty(), "{actions:?}");
    assert!(
        keeper.after(1000).contains(&Action::Renew),
        "the new lease is renewed whatever became of the old one"
    );
}

#[test]
fn an_unknown_ask_is_passed_over_in_one_line() {
    let mut keeper = Keeper::holding();
    let ask = Ask {
        format: 1,
        kind: "dance".into(),
        token: TOKEN,
        by: String::new(),
        reason: String::new(),
    };
    assert_eq!(keeper.sees(Seen::Asked(ask.clone())).len(), 1);
    assert_eq!(keeper.sees(Seen::Asked(ask)), []);
}

#[test]
fn an_ask_of_a_later_format_is_not_obeyed_by_guess() {
    let mut keeper = Keeper::holding();
    let ask = Ask {
        format: 2,
        kind: "break".into(),
        token: TOKEN,
        by: "ann".into(),
        reason: String::new(),
    };
    let actions = keeper.sees(Seen::Asked(ask));
    assert!(
        matches!(actions[..], [Action::Tell(FromKeeper::Notice(_))]),
        "{actions:?}"
    );
}

#[test]
fn a_release_before_etcd_ever_answered_waits_for_nothing() {
    let mut keeper = Keeper::new(None);
    keeper.state.set_lease(LEASE, "lock/5".into());
    let left = Action::Tell(FromKeeper::Left {
        problem: None,
        taken: None,
    });
    assert_eq!(keeper.hears(FromGuardian::Release { run: None }), [left, Action::End]);
}

#[test]
fn a_place_lost_during_the_delay_is_not_a_lock_taken_by_another() {
    let mut keeper = Keeper::new(Some(Duration::ZERO));
    keeper.on(Event::Answer(Answer::View(View { mine: None, ..alone() })));
    keeper.granted();
    keeper.on(Event::Answer(Answer::View(after_a_crash())));
    keeper.after(4000);
    keeper.on(Event::Answer(Answer::View(View { mine: None, ..alone() })));
    assert!(
        keeper
            .on(Event::Answer(Answer::Gone))
            .contains(&Action::Send(Request::Grant))
    );
}

#[test]
fn a_wait_for_a_crashed_holders_tree_hears_of_a_freeze() {
    let mut keeper = Keeper::new(None);
    keeper.granted();
    let freeze = true;
    let actions = keeper.on(Event::Answer(Answer::View(after_a_crash())));
    assert!(actions.contains(&Action::Watch(Watched {
        predecessor: None,
        freeze,
        from: None
    })));
    assert!(keeper.sees(Seen::Ready).contains(&Action::Send(Request::Read)));
}

#[test]
fn a_hold_is_watched_from_the_last_look_at_the_queue_on() {
    let mut keeper = Keeper::queued(behind());
    keeper.sees(Seen::PredecessorGone { at: TOKEN + 999_999 });
    // Much was written while we waited: etcd would have to read it all for a watch from our entry on.
    let revision = TOKEN + 1_000_000;
    keeper.on(Event::Answer(Answer::View(View { revision, ..alone() })));
    keeper.hears(FromGuardian::Claimed);
    assert!(keeper.after(100).contains(&Action::Watch(Watched {
        predecessor: None,
        freeze: false,
        from: Some(revision + 1),
    })));
}

fn outdated() -> Outdated {
    Outdated {
        last: "log/2".into(),
        once: Some("log/3".into()),
    }
}

/// Behind the holder alone, as a read has shown.
fn heir() -> View {
    let mut view = behind();
    view.ahead.as_mut().expect("somebody").heir = Some(Heir {
        outdated: vec![outdated()],
    });
    view
}

fn offers(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Offer(_)))
}

fn reads(actions: &[Action]) -> bool {
    actions.contains(&Action::Send(Request::Read))
}

const GONE: Seen = Seen::PredecessorGone { at: TOKEN + 1 };
const CLOSED: Seen = Seen::OpenGone { at: TOKEN + 1 };

#[test]
fn the_heir_of_one_that_let_go_starts_without_a_read() {
    for both in [[GONE, CLOSED], [CLOSED, GONE]] {
        let mut keeper = Keeper::queued(heir());
        let actions = keeper.on(Event::Seen(both.to_vec()));
        assert!(offers(&actions) && !reads(&actions), "{actions:?}");
        // What makes room for our record goes by whether the predecessor leaves one.
        keeper.hears(FromGuardian::Claimed);
        let actions = keeper.hears(FromGuardian::Release { run: Some(success()) });
        let room = |action: &Action| matches!(action, Action::Send(Request::Leave { outdated: room, .. }) if *room == [outdated()]);
        assert!(actions.iter().any(room), "{actions:?}");
    }
}

#[test]
fn words_that_come_apart_start_the_heir_with_the_second() {
    let mut keeper = Keeper::queued(heir());
    let first = keeper.sees(GONE);
    assert!(!reads(&first) && !offers(&first), "{first:?}");
    let second = keeper.sees(CLOSED);
    assert!(offers(&second) && !reads(&second), "{second:?}");
    assert!(!reads(&keeper.after(5)));
}

#[test]
fn a_second_word_that_does_not_come_is_not_waited_for_long() {
    let mut keeper = Keeper::queued(heir());
    keeper.sees(GONE);
    assert!(reads(&keeper.after(5)));
    // Should it come after all, the answer is not waited for, and one offer is enough.
    assert!(offers(&keeper.sees(CLOSED)));
    assert!(!offers(&keeper.on(Event::Answer(Answer::View(alone())))));
}

#[test]
fn a_departure_seen_before_the_look_that_makes_the_heir_is_not_forgotten() {
    let mut keeper = Keeper::queued(behind());
    keeper.sees(Seen::EarlierGone);
    keeper.on(Event::Seen(vec![GONE, CLOSED]));
    assert!(offers(&keeper.on(Event::Answer(Answer::View(heir())))));
}

#[test]
fn whoever_is_no_heir_or_sees_no_clean_departure_reads_first() {
    let later = Seen::OpenGone { at: TOKEN + 2 };
    for (view, seen) in [
        (behind(), vec![GONE, CLOSED]),
        (heir(), vec![GONE, later.clone()]),
        (heir(), vec![later, GONE]),
        (heir(), vec![Seen::FreezeChanged, GONE, CLOSED]),
    ] {
        let mut keeper = Keeper::queued(view);
        let actions = keeper.on(Event::Seen(seen.clone()));
        assert!(reads(&actions) && !offers(&actions), "{seen:?}: {actions:?}");
    }
}

#[test]
fn an_heir_whose_look_is_old_reads_since_the_words_may_be_old_too() {
    // Half a hand-over delay of 1 s, or what a call may take.
    for (dial_timeout, ms, old) in [
        (2000, 500, false),
        (2000, 501, true),
        (300, 300, false),
        (300, 301, true),
    ] {
        let mut keeper = Keeper::queued(heir());
        keeper.policy.dial_timeout = Duration::from_millis(dial_timeout);
        keeper.now = keeper.now + Duration::from_millis(ms);
        let actions = keeper.on(Event::Seen(vec![GONE, CLOSED]));
        assert_eq!((offers(&actions), reads(&actions)), (!old, old), "{actions:?}");
    }
}

#[test]
fn a_departure_that_the_look_should_have_shown_starts_nobody() {
    let mut keeper = Keeper::queued(heir());
    let (gone, closed) = (Seen::PredecessorGone { at: TOKEN }, Seen::OpenGone { at: TOKEN });
    let actions = keeper.on(Event::Seen(vec![gone, closed]));
    assert!(reads(&actions) && !offers(&actions), "{actions:?}");
}

#[test]
fn an_heir_whose_own_entry_goes_with_the_predecessors_starts_nothing() {
    for all in [[Seen::OursGone, GONE, CLOSED], [GONE, CLOSED, Seen::OursGone]] {
        let mut keeper = Keeper::queued(heir());
        let actions = keeper.on(Event::Seen(all.to_vec()));
        assert!(!offers(&actions), "{actions:?}");
    }
}

#[test]
fn a_watch_that_broke_tells_nothing_of_what_went_meanwhile() {
    let mut keeper = Keeper::queued(heir());
    keeper.watches_anew();
    let actions = keeper.on(Event::Seen(vec![GONE, CLOSED]));
    assert!(!offers(&actions), "{actions:?}");
}

#[test]
fn a_hold_that_came_without_a_look_is_looked_at_as_soon_as_it_is_watched() {
    let mut keeper = Keeper::queued(heir());
    keeper.on(Event::Seen(vec![GONE, CLOSED]));
    keeper.hears(FromGuardian::Claimed);
    assert!(keeper.after(100).contains(&Action::Watch(Watched {
        predecessor: None,
        freeze: false,
        from: None,
    })));
    assert!(
        keeper
            .sees(Seen::Ready)
            .contains(&Action::Send(Request::Stand { predecessor: None }))
    );
    let standing = Standing {
        revision: TOKEN + 2,
        mine: None,
        predecessor: false,
        frozen: false,
        ask: None,
    };
    assert!(says_lost(&keeper.on(Event::Answer(Answer::Standing(standing)))));
}

#[test]
fn the_watch_outlasts_the_departure_of_the_one_before_the_predecessor() {
    let mut far = behind();
    let ahead = far.ahead.as_mut().expect("somebody");
    ahead.count = 2;
    ahead.predecessor.earlier = Some("lock/0".into());
    let mut keeper = Keeper::queued(far);
    keeper.sees(Seen::EarlierGone);
    let watches = |action: &Action| matches!(action, Action::Watch(_));
    assert!(!keeper.on(Event::Answer(Answer::View(heir()))).iter().any(watches));
    assert!(offers(&keeper.on(Event::Seen(vec![GONE, CLOSED]))));
}

#[test]
fn a_place_that_is_shown_is_looked_at_each_second_unless_far_back() {
    for (count, looks) in [(99, true), (100, false)] {
        let mut view = behind();
        view.ahead.as_mut().expect("somebody").count = count;
        let mut keeper = Keeper::new(None);
        keeper.policy.shows_place = true;
        keeper.granted();
        keeper.on(Event::Answer(Answer::View(view)));
        assert_eq!(reads(&keeper.after(1000)), looks);
    }
}

#[test]
fn far_back_in_the_queue_a_poll_asks_for_what_it_waits_by() {
    for (count, asks) in [(99, false), (100, true)] {
        let mut view = behind();
        view.ahead.as_mut().expect("somebody").count = count;
        let mut keeper = Keeper::queued(view);
        keeper.now = keeper.now + Duration::from_secs(2);
        let stand = Request::Stand {
            predecessor: Some("lock/1".into()),
        };
        let actions: Vec<Action> = (0..5).flat_map(|_| keeper.after(500)).collect();
        assert_eq!(actions.contains(&Action::Send(stand)), asks, "{actions:?}");
        assert_eq!(reads(&actions), !asks, "{actions:?}");
    }
}

#[test]
fn an_end_of_an_outage_is_told_only_where_its_begin_was() {
    let mut keeper = Keeper::new(None);
    let said = |actions: &[Action]| {
        let told = |action: &&Action| matches!(action, Action::Tell(FromKeeper::Progress(_)));
        actions.iter().filter(told).count()
    };
    let silent = keeper.on(Event::Fault(silence()));
    keeper.after(250);
    let contact = keeper.granted();
    assert_eq!((said(&silent), said(&contact)), (0, 0));
    let silent = keeper.on(Event::Fault(silence()));
    keeper.after(250);
    let again = keeper.on(Event::Answer(Answer::View(behind())));
    assert_eq!((said(&silent), said(&again)), (1, 1));
}

#[test]
fn a_change_of_place_is_told_only_where_it_is_shown() {
    let waits = |count: i64, holder: &str| {
        let mut view = behind();
        let ahead = view.ahead.as_mut().expect("somebody");
        ahead.count = count;
        ahead.holder.key = format!("lock/{holder}");
        ahead.holder.who = holder.into();
        Event::Answer(Answer::View(view))
    };
    for (shows_place, told) in [(false, [1, 0, 0, 1]), (true, [1, 1, 0, 1])] {
        let mut keeper = Keeper::new(None);
        keeper.policy.shows_place = shows_place;
        keeper.granted();
        let mut count = |event: Event| {
            let actions = keeper.on(event);
            keeper.sees(Seen::PredecessorGone { at: TOKEN + 1 });
            let waiting = |action: &&Action| matches!(action, Action::Tell(FromKeeper::Waiting(_)));
            actions.iter().filter(waiting).count()
        };
        let found = [waits(3, "1"), waits(2, "1"), waits(2, "1"), waits(1, "2")].map(&mut count);
        assert_eq!(found, told, "{shows_place}");
    }
}

#[test]
fn a_renewal_that_comes_through_ends_the_waking() {
    let mut keeper = Keeper::queued(alone());
    // The guardian was stopped meanwhile, and has claimed in its last moment.
    keeper.after(2500);
    let claimed = keeper.hears(FromGuardian::Claimed);
    assert!(claimed.contains(&Action::Wake), "{claimed:?}");
    let renewal = Renewal::Accepted {
        sent: keeper.now,
        ttl: rules(Checks::ALL).ttl,
    };
    let sent = keeper.now;
    keeper.on(Event::Renewal {
        lease: LEASE,
        sent,
        result: Ok(renewal),
    });
    let later = keeper.after(500);
    assert!(!later.contains(&Action::Wake), "{later:?}");
}

#[test]
fn from_the_stop_point_on_nothing_is_offered() {
    let mut keeper = Keeper::queued(behind());
    // Renewals came to nothing for so long.
    keeper.after(2500);
    keeper.sees(Seen::PredecessorGone { at: TOKEN + 1 });
    let seen = keeper.on(Event::Answer(Answer::View(alone())));
    assert!(
        !seen.iter().any(|action| matches!(action, Action::Offer(_))),
        "{seen:?}"
    );
}

/// A run whose command ended by itself, with 0.
fn success() -> Ended {
    Ended {
        result: "command".into(),
        status: Some(0),
        ..record()
    }
}

fn settles(actions: &[Action]) -> Option<&Ended> {
    actions.iter().find_map(|action| match action {
        Action::Send(Request::Settle { run, .. }) => Some(run),
        _ => None,
    })
}

fn says_taken(actions: &[Action]) -> bool {
    let said = |action: &Action| matches!(action, Action::Tell(FromKeeper::Left { taken: Some(_), .. }));
    actions.iter().any(said)
}

#[test]
fn an_entry_found_gone_at_the_release_is_a_loss_until_the_deadline_and_the_leases_end_after_it() {
    // The deadline of a fresh hold is 3 s away.
    for (ms, result) in [(0, "lost"), (2999, "lost"), (3000, "command")] {
        let mut keeper = Keeper::holding();
        keeper.hears(FromGuardian::Release { run: Some(success()) });
        keeper.now = keeper.now + Duration::from_millis(ms);
        let actions = keeper.on(Event::Answer(Answer::Taken));
        let run = settles(&actions).expect("a record");
        assert_eq!((run.result.as_str(), run.status), (result, Some(0)));
        assert_eq!(run.why.is_some(), result == "lost");
        if ms == 0 {
            assert!(says_taken(&keeper.on(Event::Answer(Answer::Gone))));
        }
    }
}

#[test]
fn what_is_known_to_be_lost_or_never_ran_is_recorded_as_it_was() {
    let lost = success().lost("revoked");
    let never = Ended {
        result: "not-found".into(),
        status: None,
        ..record()
    };
    for run in [lost, never] {
        let mut keeper = Keeper::holding();
        keeper.hears(FromGuardian::Release { run: Some(run.clone()) });
        assert_eq!(settles(&keeper.on(Event::Answer(Answer::Taken))), Some(&run));
        assert!(!says_taken(&keeper.on(Event::Answer(Answer::Gone))));
    }
}

#[test]
fn a_run_that_the_keeper_ended_for_a_silent_guardian_is_recorded_as_lost() {
    let mut keeper = Keeper::holding();
    assert!(keeper.after(3000).contains(&Action::LastDuty));
    let actions = keeper.on(Event::DutyDone {
        dead: true,
        run: record(),
    });
    let recorded = |action: &Action| {
        matches!(action, Action::Send(Request::Leave { run: Some(run), .. })
            if run.result == "lost" && run.status.is_none() && run.why.is_some())
    };
    assert!(actions.iter().any(recorded), "{actions:?}");
}

fn vanished(token: i64) -> Box<Vanished> {
    Box::new(Vanished {
        open: format!("open/{token}"),
        run: Run {
            holder: Holder::unknown(),
            token,
            ended: record(),
            noticed: None,
        },
        waited_until: None,
    })
}

/// The tokens of those that are recorded as vanished.
fn clears(actions: &[Action]) -> Option<Vec<i64>> {
    actions.iter().find_map(|action| match action {
        Action::Send(Request::Clear { vanished, .. }) => {
            Some(vanished.iter().map(|vanished| vanished.run.token).collect())
        }
        _ => None,
    })
}

#[test]
fn only_the_oldest_of_those_that_vanished_is_recorded_and_none_in_its_place() {
    let seen = |tokens: &[i64]| View {
        stale: tokens
            .iter()
            .map(|token| Stale {
                key: format!("open/{token}"),
                ttl: Duration::from_secs(4),
            })
            .collect(),
        vanished: tokens.first().map(|token| vanished(*token)),
        ..alone()
    };
    let mut keeper = Keeper::queued(seen(&[1, 2]));
    assert_eq!(clears(&keeper.after(1000)), Some(vec![1]));
    // It has come back meanwhile and let go itself; the other one had waited behind it.
    let actions = keeper.on(Event::Answer(Answer::View(seen(&[2]))));
    assert_eq!(clears(&actions), Some(Vec::new()));
}

#[test]
fn the_tree_is_looked_at_once_the_command_has_had_time_to_end() {
    let mut keeper = Keeper::queued(alone());
    keeper.hears(FromGuardian::Claimed);
    let started = FromGuardian::Started {
        pid: 7,
        own_group: false,
    };
    assert!(!keeper.hears(started.clone()).contains(&Action::Note));
    assert!(keeper.after(50).contains(&Action::Note), "with the watch");
    let mut late = Keeper::queued(alone());
    late.hears(FromGuardian::Claimed);
    assert!(!late.after(50).contains(&Action::Note), "nothing runs yet");
    assert!(late.hears(started).contains(&Action::Note));
}
