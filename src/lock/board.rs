//! Locks as they stood at one revision, put together from what was read: who holds, who waits, what vanished,
//! what is frozen, how the last runs ended. Plain data and what follows from it; pure. Knows neither how it was
//! read nor how it is shown.

pub mod pieces;

use self::pieces::{Entry, Frozen, Mark, Opened, Ran, StrayAsk, Turn};
use super::keys::{Kind, Place, called};
use super::record::{Run, time};
use super::view::held_since;
use crate::store::Item;
use std::time::{Duration, SystemTime};

/// What one call has seen.
#[derive(Clone, Debug)]
pub struct Board {
    pub cluster: u64,
    /// etcd's, at which all of it was so.
    pub revision: i64,
    pub locks: Vec<Lock>,
}

/// One lock. An overview holds of the queue the holder alone, of the runs the last, and no marks.
#[derive(Clone, Debug)]
pub struct Lock {
    pub name: String,
    /// The prefix of the queue's entries.
    pub key: String,
    /// The key at which it is shared (`--lock-key`), where it is no lock by name.
    pub lock_key: Option<String>,
    /// What is known of the key that has this name's text.
    pub namesake: Option<Namesake>,
    /// Oldest first, as far as it was read.
    pub queue: Vec<Entry>,
    /// How many entries there are.
    pub length: usize,
    /// Its queue lies where we may not read: who has it nobody can tell.
    pub hidden: bool,
    /// Open records without an entry in this queue, oldest first.
    pub open: Vec<Opened>,
    pub frozen: Option<Frozen>,
    /// Newest first.
    pub runs: Vec<Ran>,
    /// `None` in an overview.
    pub marks: Option<Vec<Mark>>,
    /// Asks that concern none of the entries.
    pub stray_asks: Vec<StrayAsk>,
    /// What there is more of.
    pub unread: Unread,
}

/// What is known of the lock at the key that has a name's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namesake {
    /// Somebody has it or waits for it, or has vanished.
    InUse,
    /// Runs that ended.
    Recorded,
}

/// How many of each there are beside those that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Open records without an entry.
    pub opens: usize,
    pub runs: usize,
    pub marks: usize,
    pub asks: usize,
}

/// What is to be seen of a lock at a glance; displays as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Free,
    Held,
    /// The first in the queue sits out the hand-over delay after a run that vanished.
    Handover,
    /// Nobody holds it, and nobody will.
    Frozen,
    /// A run ended without a release, and nobody has come since.
    Vanished,
    /// A run is there whose entry was not seen: its queue lies at a key (`--lock-key`) that we may not read, or its entry
    /// is gone before its lease.
    Elsewhere,
}

/// What was read of one lock.
#[derive(Debug, Default)]
pub struct Read {
    pub queue: Vec<Item>,
    pub length: usize,
    pub hidden: bool,
    pub opens: Vec<Item>,
    pub freeze: Option<Item>,
    pub runs: Vec<Item>,
    pub marks: Option<Vec<Item>>,
    pub asks: Vec<Item>,
    pub namesake: Option<Namesake>,
    pub unread: Unread,
}

impl Board {
    /// Both, as if seen by one look.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.locks.extend(other.locks);
        self
    }
}

impl Lock {
    pub fn new(place: &Place, read: Read) -> Self {
        let mut asks: Vec<StrayAsk> = read.asks.iter().map(StrayAsk::new).collect();
        let cut_off = read.length > read.queue.len();
        let horizon = read.queue.last().map(|entry| entry.created).filter(|_| cut_off);
        let queue: Vec<Entry> = read
            .queue
            .into_iter()
            .map(|item| {
                let asked = place.lease(Kind::Lock, &item.key).and_then(|lease| {
                    let (key, token) = (place.ask(lease), item.created);
                    let concerns = |stray: &mut StrayAsk| stray.key == key && stray.is_of(token);
                    asks.extract_if(.., concerns).next()?.ask
                });
                Entry::new(item, asked)
            })
            .collect();
        // They may concern entries that were not read.
        asks.retain(|stray| !cut_off || place.lease(Kind::Ask, &stray.key).is_none());
        let mut open: Vec<Opened> = read
            .opens
            .into_iter()
            // Of entries that were not read there are open records too.
            .filter(|item| horizon.is_none_or(|horizon| item.created <= horizon))
            .filter_map(|item| Some(Opened::new(place.lease(Kind::Open, &item.key)?, item)))
            .filter(|open| queue.iter().all(|entry| entry.token != open.token))
            .collect();
        open.sort_by_key(|open| open.token);
        let mut runs: Vec<Ran> = read.runs.into_iter().map(|item| Ran::new(place, item)).collect();
        runs.sort_by_key(|ran| std::cmp::Reverse(ran.created));
        let first = queue.first().map_or(i64::MAX, |first| first.token);
        let last_end = runs.first().map_or(0, |last| last.created);
        for (place, open) in open.iter_mut().enumerate() {
            open.turn = match open.token {
                // Whoever starts clears all that are older than it, and whoever is still there was before it all the time.
                token if place > 0 || token > first => Turn::NeverCame,
                token if token < last_end => Turn::MayHaveCome,
                _ => Turn::Came,
            };
        }
        Self {
            name: place.name.clone(),
            key: place.queue().to_owned(),
            lock_key: place.lock_key().map(ToOwned::to_owned),
            namesake: read.namesake,
            queue,
            length: read.length,
            hidden: read.hidden,
            open,
            frozen: read.freeze.map(|item| Frozen::new(&item)),
            runs,
            marks: read.marks.map(|marks| {
                let prefix = place.marks();
                marks.into_iter().map(|item| Mark::new(&prefix, &item)).collect()
            }),
            stray_asks: asks,
            unread: read.unread,
        }
    }

    /// What it is told of as; see [`called`].
    pub fn called(&self) -> String {
        called(&self.name, self.lock_key.as_deref())
    }

    pub fn state(&self) -> State {
        let Some(first) = self.queue.first() else {
            return match () {
                () if self.elsewhere().next().is_some() => State::Elsewhere,
                () if self.frozen.is_some() => State::Frozen,
                () if self.vanished().is_some() => State::Vanished,
                () => State::Free,
            };
        };
        // A freeze that was there when it became the first keeps it from starting.
        let first_since = first.token.max(self.handed_over());
        let ours = first.holder.is_some();
        if ours
            && self
                .frozen
                .as_ref()
                .is_some_and(|freeze| freeze.before_turn || freeze.created < first_since)
        {
            State::Frozen
        } else if ours && self.gone().any(|open| open.token < first.token) {
            State::Handover
        } else {
            State::Held
        }
    }

    /// The entry that has the lock.
    pub fn holder(&self) -> Option<&Entry> {
        self.queue.first().filter(|_| self.state() == State::Held)
    }

    /// Those that wait, as far as they were read.
    pub fn waiting(&self) -> &[Entry] {
        match (self.state(), self.queue.as_slice()) {
            (State::Held, [_, waiting @ ..]) => waiting,
            (_, all) => all,
        }
    }

    /// Where one of ours is the first and there is a freeze, of which no run record tells whether it came before the
    /// turn: the queue, and the revision at which it tells.
    pub(super) fn frozen_in_doubt(&self) -> Option<(&str, i64)> {
        let freeze = self.frozen.as_ref()?;
        let ours = self.queue.first()?.holder.is_some();
        (ours && self.state() == State::Held).then_some((&self.key, freeze.created))
    }

    /// At that revision this entry was the first.
    pub(super) fn first_at_the_freeze(&mut self, token: i64) {
        let another = self.queue.first().is_some_and(|first| token < first.token);
        if let Some(freeze) = self.frozen.as_mut() {
            freeze.before_turn = another;
        }
    }

    /// The revision at which the run before the holder's ended, as far as that is known.
    fn handed_over(&self) -> i64 {
        self.run_before().map_or(0, |ran| ran.created)
    }

    fn run_before(&self) -> Option<&Ran> {
        let token = self.queue.first()?.token;
        let before = |ran: &&Ran| ran.run.as_ref().is_some_and(|run| run.token < token);
        self.runs.first().filter(before)
    }

    /// Since when the lock is held; `None` where nobody holds it, or that is not known.
    pub fn since(&self) -> Option<SystemTime> {
        let (holder, token) = match self.state() {
            State::Held => self.queue.first().map(|first| (first.holder.as_ref(), first.token)),
            State::Elsewhere if self.hidden => None,
            State::Elsewhere => self.elsewhere().next().map(|open| (open.holder.as_ref(), open.token)),
            State::Free | State::Handover | State::Frozen | State::Vanished => None,
        }?;
        let last = self.runs.first().and_then(|ran| ran.run.as_ref());
        let holder = holder?;
        time(held_since(holder, token, last)).or_else(|| holder.started())
    }

    /// From when on the run of this open record may have held it; `None` where that is not known.
    pub fn held_since(&self, open: &Opened) -> Option<SystemTime> {
        let last = self.runs.first().and_then(|ran| ran.run.as_ref());
        time(held_since(open.holder.as_ref()?, open.token, last))
    }

    /// How many wait, be it for a holder, a hand-over or a thaw; where the queue is hidden, at least.
    pub fn waiters(&self) -> usize {
        match self.state() {
            State::Held => self.length - 1,
            State::Elsewhere => self.elsewhere().count() - 1,
            State::Free | State::Handover | State::Frozen | State::Vanished => self.length,
        }
    }

    /// Whether nothing is there of it, at present or of the past.
    pub fn is_unknown(&self) -> bool {
        let marked = self.marks.as_ref().is_some_and(|marks| !marks.is_empty());
        self.state() == State::Free && self.runs.is_empty() && !marked
    }

    /// Whether somebody has it.
    pub fn is_held(&self) -> bool {
        matches!(self.state(), State::Held | State::Elsewhere)
    }

    /// Whether a `meshlock run --no-wait` would find it taken.
    pub fn is_taken(&self) -> bool {
        match self.state() {
            State::Held | State::Handover | State::Frozen | State::Elsewhere => true,
            State::Free | State::Vanished => false,
        }
    }

    /// Whether somebody has held it for longer than `limit`. What is not known counts as longer: nobody would hear
    /// of it otherwise.
    pub fn is_held_for_longer(&self, limit: Duration, now: SystemTime) -> bool {
        // A clock ahead of ours by more than that tells nothing, and silence would be the wrong guess.
        let longer = |since| match now.duration_since(since) {
            Ok(held) => held > limit,
            Err(ahead) => ahead.duration() > limit,
        };
        self.is_held() && self.since().is_none_or(longer)
    }

    /// Their lease has ended, and they never released: the next to start sits out a delay beside them.
    fn gone(&self) -> impl Iterator<Item = &Opened> {
        self.open.iter().filter(|open| !open.lives())
    }

    /// The run whose host died, or whose lease was taken away, as far as can be told; there is no second one.
    pub fn vanished(&self) -> Option<&Opened> {
        self.gone().find(|open| open.turn != Turn::NeverCame)
    }

    /// Waiters of whom the same is true, which never ran.
    pub fn died_waiting(&self) -> impl Iterator<Item = &Opened> {
        self.gone().filter(|open| open.turn == Turn::NeverCame)
    }

    /// Whether it vanished as a run, where one question decides that: was this entry there when the last recorded run
    /// ended, at this revision?
    pub fn in_doubt(&self) -> Option<(String, i64)> {
        let open = self.vanished().filter(|open| open.turn == Turn::MayHaveCome)?;
        Some((format!("{}{:x}", self.key, open.lease), self.runs.first()?.created))
    }

    /// The answer to that.
    pub fn settle(&mut self, was_there: bool) {
        for open in self.open.iter_mut().filter(|open| open.turn == Turn::MayHaveCome) {
            open.turn = if was_there { Turn::Came } else { Turn::NeverCame };
        }
    }

    /// Runs that live without an entry that was seen.
    pub fn elsewhere(&self) -> impl Iterator<Item = &Opened> {
        self.open.iter().filter(|open| open.lives())
    }

    /// From shortest to longest, of the runs read whose command ended by itself.
    pub fn usual_duration(&self) -> Option<(Duration, Duration)> {
        let own_end = |run: &&Run| run.ended.result == "command";
        let runs = self.runs.iter().filter_map(|ran| ran.run.as_ref());
        let durations: Vec<_> = runs.filter(own_end).filter_map(Run::duration).collect();
        durations.iter().min().copied().zip(durations.iter().max().copied())
    }
}

impl State {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Held => "held",
            Self::Handover => "handover",
            Self::Frozen => "frozen",
            Self::Vanished => "vanished",
            Self::Elsewhere => "elsewhere",
        }
    }
}

#[cfg(test)]
mod tests;
