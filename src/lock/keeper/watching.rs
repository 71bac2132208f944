//! The keeper's decisions on what its watch tells: which departure makes us the holder at once, and what must be read.

use super::state::{Departed, Phase};
use super::{Request, Seen, Step, Watched};
use crate::lock::queue::Standing;
use std::time::Duration;

/// How long the second of two words may be behind the first: both are sent at once, in one packet or two. Whoever left
/// uncleanly sends no second one, and is waited for a hundred times longer anyway.
const SECOND_WORD: Duration = Duration::from_millis(5);

impl Step<'_> {
    pub(super) fn watch(&mut self, wanted: Watched) {
        self.state.watch_at = None;
        self.state.watched = Some(wanted.clone());
        self.state.departed = Departed::default();
        self.act(super::Action::Watch(wanted));
    }

    /// Whether the watch tells all that would be told of these. Where the earlier one is gone, that was told.
    pub(super) fn watches(&self, wanted: &Watched) -> bool {
        let essence = |watched: &Watched| {
            let mut watched = watched.clone();
            let earlier = watched
                .predecessor
                .as_mut()
                .and_then(|predecessor| predecessor.earlier.take());
            (watched, earlier)
        };
        let (wanted, earlier) = essence(wanted);
        self.state.watched.as_ref().map(essence).is_some_and(|watched| {
            let same_earlier = earlier.is_none() || watched.1 == earlier;
            watched.0 == wanted && same_earlier
        })
    }

    pub(super) fn seen_by_the_watch(&mut self, all: Vec<Seen>) {
        let mut look = false;
        for seen in all {
            match seen {
                Seen::Ready => self.watch_stands(),
                Seen::OursGone => self.entry_gone("its entry in etcd was deleted, or its lease revoked".into()),
                Seen::Asked(ask) => self.asked(&ask),
                Seen::OpenGone { at } => self.state.departed.open = Some(at),
                Seen::PredecessorGone { at } => {
                    self.state.departed.entry = Some(at);
                    look = true;
                }
                Seen::EarlierGone => look = true,
                Seen::FreezeChanged => {
                    self.state.heir = None;
                    look = true;
                }
            }
        }
        self.inherit();
        if !look {
            return;
        }
        let Departed { entry, open } = &self.state.departed;
        let half_told = self.state.heir.is_some() && entry.is_some() && open.is_none();
        match self.state.phase {
            Phase::Waiting if half_told => self.state.read_at = Some(self.now + SECOND_WORD),
            Phase::Waiting | Phase::Delaying { .. } => self.read(),
            _ => {}
        }
    }

    /// What happened before a watch from now on must be read.
    fn watch_stands(&mut self) {
        let gap = self
            .state
            .watched
            .as_ref()
            .is_some_and(|watched| watched.from.is_none());
        match self.state.phase {
            Phase::Waiting | Phase::Held if gap => self.stand(),
            Phase::Delaying { .. } if gap => self.read(),
            _ => {}
        }
    }

    /// Starts upon the departure of the only one that was ahead, without another look: nobody can have come before us,
    /// and what goes at one revision was let go by its owner, at which the name was not frozen
    /// ([`How::AtOnce`](crate::lock::protocol::How)). Only our own entry may be gone, in words that are still under way; the hold's
    /// watch begins with a look at it, long before the hand-over delay that our open record imposes is over.
    pub(super) fn inherit(&mut self) {
        if self.state.phase != Phase::Waiting {
            return;
        }
        let checks = self.state.rules.checks;
        let Departed { entry, open } = self.state.departed;
        let let_go = entry.is_some() && (entry == open || !checks.one_revision);
        if !let_go || (self.state.heir.is_none() && checks.read_before_start) || !self.just_looked() {
            return;
        }
        if let Some(heir) = self.state.heir.take() {
            self.state.outdated = heir.outdated;
        }
        // A read that is under way can tell nothing more.
        self.state.under_way = None;
        self.state.again = None;
        self.state.read_again = false;
        self.state.read_at = None;
        self.state.seen_at = None;
        self.state.blocker = None;
        self.first();
    }

    /// What the watch tells may be old: a member lags, a line is slow. A departure after a look is no older than that look,
    /// so that whatever has befallen our entry or the name since is as recent. Half the hand-over delay leaves whoever
    /// would start in our place the other half; and an answer that is read instead may be as old as a call may take.
    fn just_looked(&self) -> bool {
        let recent = (self.state.rules.handover_delay / 2).min(self.policy.dial_timeout);
        let after = self.state.departed.entry > self.state.seen_at;
        after && self.now.since(self.state.looked_at) <= recent
    }

    /// Asks for the very keys that we wait by: that takes etcd no longer however many wait.
    pub(super) fn stand(&mut self) {
        if self.state.under_way.is_some() || self.state.again.is_some() {
            self.state.read_again = true;
        } else {
            let watched = self.state.watched.as_ref();
            let predecessor = watched.and_then(|watched| watched.predecessor.as_ref());
            let predecessor = predecessor.map(|predecessor| predecessor.entry.clone());
            self.send(Request::Stand { predecessor });
        }
    }

    pub(super) fn stands(&mut self, waits_behind: bool, standing: &Standing) {
        let waits = self.state.phase == Phase::Waiting;
        if !waits && self.state.phase != Phase::Held {
            return;
        }
        if standing.mine.is_none() {
            return self.entry_gone("its entry in etcd was deleted, or its lease revoked".into());
        }
        self.state.seen_at = Some(standing.revision);
        self.state.looked_at = self.state.asked_at;
        self.read_ask(standing.ask.as_deref());
        if !waits {
            return;
        }
        self.poll_later();
        let unchanged = if waits_behind {
            standing.predecessor
        } else {
            standing.frozen
        };
        if !unchanged {
            self.read();
        }
    }
}
