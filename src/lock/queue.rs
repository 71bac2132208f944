//! The queue in etcd: sends the transactions of [`super::protocol`] and returns what their answers say, as
//! plain data. Decides nothing: what follows from an answer is [`super::keeper`]'s affair.

use super::keys::{Kind, Place};
pub use super::protocol::Departure;
use super::protocol::{CLEARED_AT_ONCE, Gone, How, Left, Ours, Protocol, only};
use super::record::{Holder, Noticed, Run};
pub use super::view::{Ahead, Entry, Granted, Heir, Outdated, Predecessor, Renewal, Stale, Standing, Vanished, View};
use crate::moment::Moment;
use crate::rules::Rules;
pub use crate::store::Change;
use crate::store::etcd::Etcd;
use crate::store::{Answer, Fault, Watched};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc::UnboundedSender;

/// How long the start waits to hear whether one that vanished had only been waiting.
const ASKED_WITHIN: Duration = Duration::from_secs(1);

/// The queue of one lock, and us in it. Cheap to clone.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

struct Inner {
    store: Etcd,
    protocol: Protocol,
    /// The lease last asked for, and when its first try was sent.
    asked: Mutex<Option<(i64, Moment)>>,
    /// A release was sent.
    let_go: AtomicBool,
}

impl Queue {
    pub fn new(store: Etcd, place: Place, holder: Holder, keep: u32) -> Self {
        Self(Arc::new(Inner {
            store,
            protocol: Protocol { place, holder, keep },
            asked: Mutex::new(None),
            let_go: AtomicBool::new(false),
        }))
    }

    pub fn place(&self) -> &Place {
        &self.0.protocol.place
    }

    /// What the user should know of the way to etcd, each line once.
    pub fn notices(&self) -> Vec<String> {
        self.0.store.notices()
    }

    /// [`Protocol::look`].
    pub async fn look(&self) -> Result<View, Fault> {
        let answer = self.0.store.txn(self.0.protocol.look()).await?;
        self.view(answer, None, None).await
    }

    /// The lease `lease`; may be called again with it after an unknown outcome, and then still tells the
    /// instant before the very first try.
    pub async fn grant(&self, lease: i64, ttl: Duration) -> Result<Granted, Fault> {
        let sent = {
            let mut asked = self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
            match *asked {
                Some((id, sent)) if id == lease => sent,
                _ => asked.insert((lease, Moment::now())).1,
            }
        };
        let ttl = self.0.store.grant(lease, ttl).await?;
        Ok(Granted { sent, ttl })
    }

    /// [`Protocol::enqueue`].
    pub async fn enqueue(&self, lease: i64, ttl: Duration) -> Result<View, Fault> {
        let answer = self.0.store.txn(self.0.protocol.enqueue(lease, ttl)?).await?;
        if answer.succeeded {
            return self.view(answer, Some(lease), None).await;
        }
        // An earlier try was done though its answer was lost; others may have come behind us since.
        let token = only(answer.reads).map_or(0, |entry| entry.created);
        self.read(lease, token).await
    }

    /// [`Protocol::seize`].
    pub async fn seize(&self, lease: i64, ttl: Duration) -> Result<View, Fault> {
        let answer = self.0.store.txn(self.0.protocol.seize(lease, ttl)?).await?;
        self.view(answer, Some(lease), None).await
    }

    /// [`Protocol::read`].
    pub async fn read(&self, lease: i64, token: i64) -> Result<View, Fault> {
        let answer = self.0.store.txn(self.0.protocol.read(lease, token)).await?;
        self.view(answer, Some(lease), Some(token)).await
    }

    /// [`Protocol::stand`].
    pub async fn stand(&self, lease: i64, token: i64, predecessor: Option<&str>) -> Result<Standing, Fault> {
        let answer = self.0.store.txn(self.0.protocol.stand(lease, predecessor)).await?;
        Ok(Protocol::standing(answer, lease, token))
    }

    /// [`Protocol::clear`], for any number of open records. [`View::stale`] is empty if that was done. That a run
    /// vanished is recorded where etcd lets us, and the start goes on where not.
    pub async fn clear(
        &self,
        lease: i64,
        token: i64,
        stale: &[String],
        vanished: Option<&Vanished>,
        outdated: &[Outdated],
    ) -> Result<View, Fault> {
        let Inner { store, protocol, .. } = &*self.0;
        let run = match vanished {
            Some(vanished) if Box::pin(self.had_its_turn(vanished)).await => Some(self.noticed(vanished)),
            _ => None,
        };
        let gone = vanished.zip(run.as_ref()).map(|(vanished, run)| Gone {
            open: &vanished.open,
            left: Left { run, outdated },
        });
        // The oldest is the one to be recorded. It goes last: where this is cut short, it is still the oldest.
        let mut rest = stale;
        while let Some((older, now)) = rest
            .len()
            .checked_sub(CLEARED_AT_ONCE)
            .filter(|older| *older > 0)
            .map(|older| rest.split_at(older))
        {
            let answer = store.txn(protocol.clear(lease, token, now, None)?).await?;
            if !answer.succeeded {
                return self.view(answer, Some(lease), Some(token)).await;
            }
            rest = older;
        }
        let answer = match store.txn(protocol.clear(lease, token, rest, gone)?).await {
            Err(Fault::NoSpace { .. } | Fault::Denied { .. } | Fault::Internal { .. }) if gone.is_some() => {
                store.txn(protocol.clear(lease, token, rest, None)?).await?
            }
            outcome => outcome?,
        };
        self.view(answer, Some(lease), Some(token)).await
    }

    /// Whether it ever was the first in the queue: a waiter may die as well, and leaves the same open record. What
    /// cannot be told any more, since etcd has forgotten it, counts as a run.
    async fn had_its_turn(&self, vanished: &Vanished) -> bool {
        let (Inner { store, protocol, .. }, Some(revision)) = (&*self.0, vanished.waited_until) else {
            return true;
        };
        let Some(lease) = protocol.place.lease(Kind::Open, &vanished.open) else {
            return true;
        };
        let entry = [protocol.place.entry(lease)];
        let asked = store.values(&entry, revision);
        match tokio::time::timeout(ASKED_WITHIN, asked).await {
            Ok(Ok(values)) => values.iter().any(|value| !value.is_empty()),
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// The record of the vanished run, by us and now.
    fn noticed(&self, vanished: &Vanished) -> Run {
        let Holder { user, host, pid, .. } = &self.0.protocol.holder;
        Run {
            noticed: Some(Noticed {
                at: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
                by: format!("{user}@{host} (pid {pid})"),
            }),
            ..vanished.run.clone()
        }
    }

    /// One renewal, judged by [`Protocol::judge_renewal`].
    pub async fn renew(&self, lease: i64, token: i64, rules: &Rules) -> Result<Renewal, Fault> {
        match self.renew_once(lease, token, rules.answer_within).await {
            Err(Fault::Replaced { why }) => Ok(Renewal::Gone { why }),
            outcome => outcome,
        }
    }

    async fn renew_once(&self, lease: i64, token: i64, within: Duration) -> Result<Renewal, Fault> {
        let Inner { store, protocol, .. } = &*self.0;
        let alive = store.keep_alive(lease, within).await?;
        let answered = Moment::now();
        let own_entry = store.txn_once(protocol.own_entry(lease), within).await?;
        let ours = Ours { lease, token, within };
        Ok(Protocol::judge_renewal(ours, alive, answered, own_entry))
    }

    /// Leaves the queue; may be called again after an unknown outcome. `run` is what ran under the entry and
    /// is dead ([`Protocol::release`]); `None`, where nothing ever ran. `token` is `None` where the outcome of
    /// the enqueueing is unknown.
    pub async fn leave(
        &self,
        lease: i64,
        token: Option<i64>,
        run: Option<&Run>,
        outdated: &[Outdated],
    ) -> Result<Departure, Fault> {
        let Inner { store, protocol, .. } = &*self.0;
        let (Some(_), Some(run)) = (token, run) else {
            if token.is_none() {
                // A lost enqueueing may still be under way; without its lease it can do nothing more.
                self.revoke(lease).await?;
            }
            if !store.txn(protocol.abandon(lease, How::AtOnce)).await?.succeeded {
                store.txn(protocol.abandon(lease, How::Apart)).await?;
                store.txn(protocol.vacate(lease)).await?;
            }
            return Ok(Departure::Done);
        };
        let left = Left { run, outdated };
        let first = !self.0.let_go.swap(true, Ordering::Relaxed);
        if let Some(departure) = self.let_go(lease, left, How::AtOnce, first).await? {
            return Ok(departure);
        }
        let departure = Box::pin(self.let_go(lease, left, How::Apart, false)).await?;
        if departure == Some(Departure::Done) {
            store.txn(protocol.vacate(lease)).await?;
        }
        Ok(departure.unwrap_or(Departure::Taken))
    }

    async fn let_go(&self, lease: i64, left: Left<'_>, how: How, first: bool) -> Result<Option<Departure>, Fault> {
        let Inner { store, protocol, .. } = &*self.0;
        let (answer, once) = match store.txn_counted(protocol.release(lease, left, how)?).await {
            Err(Fault::NoSpace { .. }) => {
                let unrecorded = protocol.release_unrecorded(lease, left.run.token, how);
                (store.txn(unrecorded).await?, false)
            }
            outcome => outcome?,
        };
        Ok(Protocol::departed(answer, left.run, first && once))
    }

    /// [`Protocol::settle`]; may be called again after an unknown outcome.
    pub async fn settle(&self, lease: i64, run: &Run, outdated: &[Outdated]) -> Result<(), Fault> {
        let Inner { store, protocol, .. } = &*self.0;
        let left = Left { run, outdated };
        match store.txn(protocol.settle(lease, left)?).await {
            Err(Fault::NoSpace { .. }) => store.txn(protocol.settle_unrecorded(lease)).await,
            outcome => outcome,
        }
        .map(drop)
    }

    /// Ends the lease, and with it whatever is still bound to it. That it is unknown is success, which is final
    /// only once the grant's outcome is known.
    pub async fn revoke(&self, lease: i64) -> Result<(), Fault> {
        self.0.store.revoke(lease).await
    }

    /// Watches the keys, [`Change::Ready`] first; ends with why the watch broke. `None` is from now on: what
    /// happened before must be read then. A revision in the past leaves no gap, but etcd serves such a watch
    /// about every 100 ms until it has caught up.
    pub async fn watch(&self, keys: Vec<String>, from: Option<i64>, changes: UnboundedSender<Change>) -> Fault {
        let watched: Vec<_> = keys.into_iter().map(Watched::Key).collect();
        self.0.store.watch(&watched, from, &changes).await
    }

    async fn view(&self, answer: Answer, lease: Option<i64>, token: Option<i64>) -> Result<View, Fault> {
        let Inner { store, protocol, .. } = &*self.0;
        let (opens_told, last_run) = (Protocol::opens_told(&answer), Protocol::last_run(&answer));
        let mut view = protocol.view(answer, lease, token);
        if let Some(read) = protocol.more_opens(opens_told, &view, token) {
            let opens = store.found(read).await?;
            (view.stale, view.vanished) = protocol.stale(&opens, last_run.as_ref(), lease);
        }
        Ok(view)
    }
}
