//! What the lock's protocol asks of etcd: transactions, and the life of a lease. Chooses no endpoint; knows neither
//! queues nor records.

use super::Etcd;
use crate::store::line::Line;
use crate::store::wire::{self, cluster, commit, seconds_granted};
use crate::store::{Alive, Answer, Fault, Txn, fault};
use etcd_client::LeaseGrantOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

impl Etcd {
    /// One transaction, at each endpoint in turn until one answers.
    pub async fn txn(&self, txn: Txn) -> Result<Answer, Fault> {
        let txn = wire::txn(txn);
        self.each(&|client| commit(client, txn.clone())).await
    }

    /// The same, and whether it was sent but once: else an earlier try may have been done, and its answer lost.
    pub async fn txn_counted(&self, txn: Txn) -> Result<(Answer, bool), Fault> {
        let txn = wire::txn(txn);
        let tries = AtomicU32::new(0);
        let answer = self
            .each(&|client| {
                tries.fetch_add(1, Ordering::Relaxed);
                commit(client, txn.clone())
            })
            .await?;
        Ok((answer, tries.into_inner() == 1))
    }

    /// The same at one endpoint, answered within the time given.
    pub async fn txn_once(&self, txn: Txn, within: Duration) -> Result<Answer, Fault> {
        let txn = wire::txn(txn);
        self.once(within, &|client| commit(client, txn.clone())).await
    }

    /// A lease of the given id; the TTL that was granted. That it is there already is success: the id is ours
    /// alone, and an earlier try's outcome may be unknown.
    pub async fn grant(&self, lease: i64, ttl: Duration) -> Result<Duration, Fault> {
        let seconds = i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX);
        let granted = self
            .each(&|client: Arc<Line>| async move {
                let asked = LeaseGrantOptions::new().with_id(lease);
                let mut client = client.lease_client();
                match client.grant(seconds, Some(asked)).await {
                    Ok(granted) => Ok((cluster(granted.header()), granted.ttl())),
                    Err(error) if fault::status_says(&error, "lease already exists") => {
                        let there = client.time_to_live(lease, None).await?;
                        // -1 where it has run out by now.
                        let granted = if there.ttl() > 0 { there.granted_ttl() } else { 0 };
                        Ok((cluster(there.header()), granted))
                    }
                    Err(error) => Err(error),
                }
            })
            .await?;
        seconds_granted(granted).ok_or(Fault::LeaseGone)
    }

    /// One renewal at one endpoint, [`Line::keep_alive`].
    pub async fn keep_alive(&self, lease: i64, within: Duration) -> Result<Alive, Fault> {
        self.once(within * 2, &|line: Arc<Line>| line.keep_alive(lease, within))
            .await
    }

    /// Ends the lease and all that is bound to it; that it is not there is success.
    pub async fn revoke(&self, lease: i64) -> Result<(), Fault> {
        self.each(&|client: Arc<Line>| async move {
            match client.lease_client().revoke(lease).await {
                Ok(revoked) => Ok((cluster(revoked.header()), ())),
                Err(error) if fault::status_says(&error, "requested lease not found") => Ok((None, ())),
                Err(error) => Err(error),
            }
        })
        .await
    }
}
