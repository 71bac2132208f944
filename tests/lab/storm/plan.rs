//! The schedule of a storm: pure, from the seed alone. Knows what faults there are and when they come, not
//! whom they find nor how they are done.

use fastrand::Rng;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    CutMembers,
    IsolateMember,
    CutClient,
    CutClientOff,
    Lossy,
    Slow,
    Reset,
    KillMember,
    StopMember,
    StopLeader,
    StallLeader,
    MoveLeader,
    Compact,
    NoSpace,
    Freeze,
    KillGuardian,
    KillKeeper,
    KillCommand,
    StopGuardian,
    StopKeeper,
    StopCommand,
    StopGroup,
    EndGuardian,
    Break,
    Revoke,
    Delete,
    RemoveAmid,
    KillControl,
    StopControl,
}

/// What each is called in the results, how often it comes in one deck, and for how long it lasts, in
/// milliseconds of a full storm.
const KINDS: &[(Kind, &str, usize, std::ops::Range<u64>)] = &[
    (Kind::CutMembers, "members cut, one direction", 2, 500..9_000),
    (Kind::IsolateMember, "member cut off from members", 2, 500..12_000),
    (Kind::CutClient, "client-member cut, one direction", 3, 500..9_000),
    (Kind::CutClientOff, "client cut off", 3, 500..12_000),
    (Kind::Lossy, "packet loss", 3, 1_000..9_000),
    (Kind::Slow, "slow lines", 2, 1_000..9_000),
    (Kind::Reset, "connections reset", 2, 0..1),
    (Kind::KillMember, "member killed, started again", 2, 100..6_000),
    (Kind::StopMember, "member stopped", 2, 500..9_000),
    (Kind::StopLeader, "leader stopped", 2, 500..12_000),
    (Kind::StallLeader, "leader's fdatasync stalled", 3, 3_000..20_000),
    (Kind::MoveLeader, "leader moved", 2, 0..1),
    (Kind::Compact, "history compacted", 1, 0..1),
    (Kind::NoSpace, "NOSPACE alarm", 1, 500..4_000),
    (Kind::Freeze, "name frozen", 1, 500..3_000),
    (Kind::KillGuardian, "guardian killed", 3, 0..1),
    (Kind::KillKeeper, "keeper killed", 3, 0..1),
    (Kind::KillCommand, "command killed", 2, 0..1),
    (Kind::StopGuardian, "guardian stopped", 3, 500..12_000),
    (Kind::StopKeeper, "keeper stopped", 3, 500..12_000),
    (Kind::StopCommand, "command stopped", 1, 500..6_000),
    (Kind::StopGroup, "guardian and tree stopped", 2, 500..12_000),
    (Kind::EndGuardian, "TERM to meshlock", 1, 0..1),
    (Kind::Break, "hold broken by a person", 1, 5_000..8_000),
    (Kind::Revoke, "lease revoked, no other fault", 1, 0..1),
    (Kind::Delete, "key deleted, no other fault", 1, 0..1),
    (Kind::RemoveAmid, "lease revoked amid other faults", 1, 0..1),
    (Kind::KillControl, "etcdctl killed", 1, 0..1),
    (Kind::StopControl, "etcdctl stopped", 1, 2_000..12_000),
];

impl Kind {
    pub(super) fn name(self) -> &'static str {
        let row = KINDS.iter().find(|(kind, ..)| *kind == self);
        row.map_or("", |(_, name, ..)| name)
    }

    pub(super) fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|(kind, ..)| *kind)
    }
}

/// One fault to come.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    /// After the one before.
    pub(super) after: Duration,
    pub(super) lasts: Duration,
    /// Whom it finds, and how hard.
    pub(super) dice: Rng,
}

/// Endless. Kinds are dealt like cards, so that all of them come in any storm that is long enough for one deck.
pub(super) struct Plan {
    rng: Rng,
    deck: Vec<Kind>,
    mean_gap: Duration,
    /// A short storm has short faults.
    longest: Duration,
}

impl Plan {
    pub(super) fn new(seed: u64, mean_gap: Duration, longest: Duration) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            deck: Vec::new(),
            mean_gap,
            longest,
        }
    }

    fn deal(&mut self) -> Kind {
        if self.deck.is_empty() {
            // Each once first, then the rest: a short storm has seen all before it sees one twice.
            let mut rest: Vec<Kind> = KINDS
                .iter()
                .flat_map(|(kind, _, times, _)| std::iter::repeat_n(*kind, times - 1))
                .collect();
            let mut first: Vec<Kind> = Kind::all().collect();
            self.rng.shuffle(&mut rest);
            self.rng.shuffle(&mut first);
            self.deck = [rest, first].concat();
        }
        self.deck.pop().expect("a deck")
    }
}

impl Iterator for Plan {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let kind = self.deal();
        let span = KINDS
            .iter()
            .find(|(one, ..)| *one == kind)
            .map(|(.., span)| span.clone());
        let lasts = Duration::from_millis(self.rng.u64(span.unwrap_or(0..1)));
        Some(Fault {
            kind,
            after: self.mean_gap.mul_f64(self.rng.f64() * 2.0),
            lasts: lasts.min(self.longest),
            dice: self.rng.fork(),
        })
    }
}
