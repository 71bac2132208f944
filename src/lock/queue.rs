//! The queue in etcd: sends the transactions of [`super::protocol`] and returns what their answers say, as
//! plain data. Decides nothing: what follows from an answer is [`super::keeper`]'s affair.

use super::keys::Place;
use super::protocol::{CLEARED_AT_ONCE, Left, Ours, Protocol, only};
use super::record::{Holder, Run};
pub use super::view::{Ahead, Entry, Granted, Renewal, Stale, View};
use crate::moment::Moment;
use crate::rules::Rules;
pub use crate::store::Change;
use crate::store::etcd::Etcd;
use crate::store::{Answer, Fault, Watched};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// The queue of one lock, and us in it. Cheap to clone.
#[derive(Clone)]
pub struct Queue(Arc<Inner>);

struct Inner {
    store: Etcd,
    protocol: Protocol,
    /// The lease last asked for, and when its first try was sent.
    asked: Mutex<Option<(i64, Moment)>>,
}

impl Queue {
    pub fn new(store: Etcd, place: Place, holder: Holder, keep: u32) -> Self {
        Self(Arc::new(Inner {
            store,
            protocol: Protocol { place, holder, keep },
            asked: Mutex::new(None),
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

    /// [`Protocol::clear`], for any number of open records. [`View::stale`] is empty if that was done.
    pub async fn clear(&self, lease: i64, token: i64, stale: &[String]) -> Result<View, Fault> {
        let mut rest = stale;
        loop {
            let (now, later) = rest.split_at(rest.len().min(CLEARED_AT_ONCE));
            let answer = self.0.store.txn(self.0.protocol.clear(lease, token, now)).await?;
            if later.is_empty() || !answer.succeeded {
                return self.view(answer, Some(lease), Some(token)).await;
            }
            rest = later;
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
        drop_upto: Option<&str>,
    ) -> Result<(), Fault> {
        let Inner { store, protocol, .. } = &*self.0;
        let (Some(token), Some(run)) = (token, run) else {
            if token.is_none() {
                // A lost enqueueing may still be under way; without its lease it can do nothing more.
                self.revoke(lease).await?;
            }
            return store.txn(protocol.abandon(lease)).await.map(drop);
        };
        let left = Left { run, drop_upto };
        match store.txn(protocol.release(lease, token, left)?).await {
            Err(Fault::NoSpace { .. }) => {
                let txn = protocol.release_unrecorded(lease, token, left);
                store.txn(txn).await.map(drop)
            }
            outcome => outcome.map(drop),
        }
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
        let opens_told = Protocol::opens_told(&answer);
        let mut view = protocol.view(answer, lease, token);
        if let Some(txn) = protocol.more_opens(opens_told, &view, token) {
            let opens = store.txn(txn).await?.reads.into_iter().next().unwrap_or_default();
            view.stale = protocol.stale(&opens, lease);
        }
        Ok(view)
    }
}
