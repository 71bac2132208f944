//! One call of meshlock: guardian and keeper as their loops run them, the link, the shared page, the tree, and
//! what it has under way to etcd. The decisions are the product's own; knows nothing of other clients.

mod guarding;
mod keeping;

use crate::etcd::Ms;
use meshlock::link::{Ended, FromGuardian, FromKeeper};
use meshlock::lock::keeper::{self, Request, Seen, Watched};
use meshlock::lock::protocol::Protocol;
use meshlock::lock::queue::{Standing, View};
use meshlock::moment::Moment;
use meshlock::rules::{Rules, Stragglers};
use meshlock::store::{Alive, Fault};
use meshlock::supervise::guardian;
use std::time::Duration;

/// What does not change during a history.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) protocol: Protocol,
    pub(crate) rules: Rules,
    /// How many of its milliseconds its clock counts in a true second.
    pub(crate) rate: Ms,
    /// It comes at the very beginning, not whenever it likes.
    pub(crate) first: bool,
    pub(crate) wait: Option<Duration>,
    pub(crate) stragglers: Stragglers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Life {
    Away,
    Runs,
    /// By SIGSTOP: it can be woken.
    Stopped,
    /// By the freezer: it cannot.
    Frozen,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tree {
    None,
    Runs,
    /// The command has ended, what it left running has not.
    Strays,
    /// SIGKILL was sent; it is dead before time goes on.
    Dying,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Sweep {
    No,
    Await,
    Kill,
}

/// A request that was sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) request: Request,
    pub(crate) lease: i64,
    pub(crate) token: Option<i64>,
    /// It takes longer than others: time goes on meanwhile, and it may be given up.
    pub(crate) slow: bool,
    pub(crate) answer: Option<Result<Said, Fault>>,
}

/// [`keeper::Answer`] as a value that can be compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Said {
    Granted,
    View(Box<View>),
    Standing(Standing),
    Gone,
    Taken,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Renewing {
    Sent,
    /// The leader has renewed the lease; its answer is on the way.
    Renewed(Alive),
    /// Answered then; the read is on the way.
    Reading(Alive, Moment),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Renew {
    pub(crate) lease: i64,
    pub(crate) token: i64,
    pub(crate) sent: Moment,
    pub(crate) slow: bool,
    pub(crate) stage: Renewing,
}

/// What is on its way from the watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Told {
    Seen(Seen),
    Broken,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watch {
    pub(crate) watched: Watched,
    pub(crate) stands: bool,
    pub(crate) told: Vec<Told>,
}

impl Watch {
    pub(crate) fn may_forget(&self) -> bool {
        let first = self.told.first();
        first.is_some_and(|told| !matches!(told, Told::Broken | Told::Seen(Seen::Ready)))
    }

    /// The stream's own words keep their place.
    pub(crate) fn may_tell_last(&self) -> bool {
        self.told.len() > 1 && !self.told.contains(&Told::Seen(Seen::Ready)) && !self.told.contains(&Told::Broken)
    }

    /// Whether a change now would be told.
    pub(crate) fn tells(&self) -> bool {
        self.stands && !self.told.contains(&Told::Broken)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) number: i64,
    /// How far its clock has leapt ahead; one that counts the time asleep never leaps back.
    pub(crate) leapt: Ms,
    pub(crate) keeper: Life,
    pub(crate) guardian: Life,
    keeper_state: keeper::State,
    guardian_state: guardian::State,

    deadline: Moment,
    offer: Option<i64>,
    claimed: bool,
    /// Its timers, as it set them when it last ran: a renewal that comes later does not move them.
    alarm: Option<Moment>,
    vigil: Option<Moment>,
    to_keeper: Vec<FromGuardian>,
    to_guardian: Vec<FromKeeper>,
    link_closed_told: bool,
    keeper_gone_told: bool,
    /// The last word that a guardian needs before it ends.
    left: bool,

    pub(crate) lease: i64,
    granted_sent: Moment,
    pub(crate) call: Option<Call>,
    /// Given up, and perhaps carried out later.
    pub(crate) late: Option<Call>,
    pub(crate) renewal: Option<Renew>,
    pub(crate) watch: Option<Watch>,
    /// Leases to be revoked that nobody waits for.
    pub(crate) revoking: Vec<i64>,
    /// Nothing goes in or out.
    pub(crate) cut: bool,
    /// What it hears comes from a leader that was deposed, and does not know it.
    pub(crate) with_deposed: bool,

    pub(crate) tree: Tree,
    /// The command ended before anybody stopped it, or never began.
    by_itself: bool,
    reaped: bool,
    sweep: Sweep,
    duty: bool,
    /// The token of the start, if it was just now.
    pub(crate) started: Option<i64>,
    /// The token of the command, whenever it was started.
    pub(crate) ran: Option<i64>,
    pub(crate) wrong: Option<&'static str>,
}

impl Client {
    pub(crate) fn new(number: i64, setting: &Setting) -> Self {
        Self {
            number,
            leapt: 0,
            keeper: Life::Away,
            guardian: Life::Away,
            keeper_state: keeper::State::new(setting.rules),
            guardian_state: guardian::State::default(),
            deadline: Moment::NEVER_BEGUN,
            offer: None,
            claimed: false,
            alarm: None,
            vigil: None,
            to_keeper: Vec::new(),
            to_guardian: Vec::new(),
            link_closed_told: false,
            keeper_gone_told: false,
            left: false,
            lease: 0,
            granted_sent: Moment::NEVER_BEGUN,
            call: None,
            late: None,
            renewal: None,
            watch: None,
            revoking: Vec::new(),
            cut: false,
            with_deposed: false,
            tree: Tree::None,
            by_itself: false,
            reaped: false,
            sweep: Sweep::No,
            duty: false,
            started: None,
            ran: None,
            wrong: None,
        }
    }

    /// What its clock shows.
    pub(crate) fn clock(&self, setting: &Setting, now: Ms) -> Moment {
        began() + Duration::from_micros((now + self.leapt) * setting.rate)
    }

    /// The first true millisecond at which its clock shows that, or more.
    pub(crate) fn when(&self, setting: &Setting, moment: Moment) -> Ms {
        let micros = moment.since(began()).as_nanos().div_ceil(1000);
        let now = u64::try_from(micros.div_ceil(u128::from(setting.rate))).unwrap_or(Ms::MAX);
        now.saturating_sub(self.leapt)
    }

    /// The hold that was last offered.
    pub(crate) const fn claimed(&self) -> bool {
        self.claimed
    }

    /// It let go itself, and knows it.
    pub(crate) const fn has_left(&self) -> bool {
        self.left
    }

    pub(crate) fn over(&self) -> bool {
        let ended = |life| matches!(life, Life::Away | Life::Dead);
        ended(self.guardian) && ended(self.keeper)
    }

    /// Something of the tree is alive, for which the lock has to answer: what is to be left alone is none of it.
    pub(crate) const fn guarded(&self) -> bool {
        matches!(self.tree, Tree::Runs | Tree::Strays | Tree::Dying)
    }

    pub(crate) fn token(&self) -> Option<i64> {
        self.keeper_state.token()
    }

    pub(crate) fn come(&mut self, setting: &Setting, now: Moment) {
        self.keeper = Life::Runs;
        self.guardian = Life::Runs;
        let policy = setting.keeper_policy();
        let actions = keeper::begin(&policy, &mut self.keeper_state);
        self.keeper_does(setting, now, actions);
    }
}

pub(crate) const LATE_START: &str = "a command is started at or after the stop point";
pub(crate) const DESERTED: &str = "a guardian ends beside a living tree";

/// When every client's call of meshlock began, on its own clock: the waits are counted from here.
pub(crate) const fn began() -> Moment {
    // Not from zero: an unset deadline must differ from any instant.
    Moment::from_nanos(1_000_000_000_000)
}

fn ended() -> Ended {
    Ended {
        result: "command".into(),
        status: Some(0),
        acquired: String::new(),
        ended: String::new(),
        why: None,
        asked: None,
    }
}

pub(crate) fn silence() -> Fault {
    Fault::Unreachable { why: "silence".into() }
}

impl Setting {
    fn keeper_policy(&self) -> keeper::Policy {
        keeper::Policy {
            name: String::new(),
            endpoints: String::new(),
            keys: String::new(),
            user: None,
            began: began(),
            wait: self.wait,
            dial_timeout: Duration::from_secs(60),
            outer_leases: Vec::new(),
            jitter: 0.0,
            shows_place: false,
        }
    }

    const fn guardian_policy(&self) -> guardian::Policy {
        guardian::Policy {
            name: String::new(),
            command: String::new(),
            max_runtime: None,
            stop_signal: nix::sys::signal::Signal::SIGTERM,
            stragglers: self.stragglers,
            terminal: false,
            waiting_line: None,
        }
    }
}
