//! What keys alone do not tell of a lock, asked of etcd once they were read: how long leases live, who had its turn, what
//! began before a freeze. What follows from the answers is the board's affair.

use super::AT_A_TIME;
use crate::lock::board::Lock;
use crate::lock::board::pieces::Life;
use crate::store::etcd::Etcd;
use crate::store::pages::Keys;
use crate::store::{Fault, abreast};

/// All of them, of the holders' leases only if that is wanted.
pub(super) async fn settle(etcd: &Etcd, locks: &mut [Lock], holders: bool) -> Result<(), Fault> {
    ask_about_leases(etcd, locks, holders).await?;
    ask_about_turns(etcd, locks).await?;
    ask_about_freezes(etcd, locks).await;
    Ok(())
}

/// What etcd does not say stays unknown: a member without a leader can answer all the rest.
pub(super) async fn ask_about_leases(etcd: &Etcd, locks: &mut [Lock], holders: bool) -> Result<(), Fault> {
    let mut wanted = Vec::new();
    for lock in locks {
        if holders && let Some(first) = lock.queue.first_mut().filter(|first| first.lease != 0) {
            wanted.push((first.lease, (&mut first.life, false)));
        }
        // Whether a run has vanished is told by its lease alone: without an answer nothing may be said of the lock.
        wanted.extend(lock.open.iter_mut().map(|open| (open.lease, (&mut open.life, true))));
    }
    let (leases, mut lives): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
    let questions = leases.into_iter().map(|lease| {
        let etcd = etcd.clone();
        async move { etcd.lease_left(lease).await }
    });
    abreast::ask(AT_A_TIME, questions, |number, answer| {
        let (life, needed) = &mut lives[number];
        match answer {
            Ok(left) => **life = Life::of(left),
            Err(fault) if *needed => return Err(fault),
            Err(_) => {}
        }
        Ok(())
    })
    .await
}

/// Where one that vanished may have been a waiter. Without an answer, as where etcd has forgotten the past, that stays open.
async fn ask_about_turns(etcd: &Etcd, locks: &mut [Lock]) -> Result<(), Fault> {
    let doubtful = locks.iter_mut().filter_map(|lock| Some((lock.in_doubt()?, lock)));
    let (questions, mut locks): (Vec<_>, Vec<_>) = doubtful.unzip();
    let questions = questions.into_iter().map(|(entry, revision)| {
        let etcd = etcd.clone();
        async move { etcd.values(&[entry], revision).await }
    });
    abreast::ask(AT_A_TIME, questions, |number, answer| {
        if let Ok(values) = answer {
            locks[number].settle(values.iter().any(|value| !value.is_empty()));
        }
        Ok(())
    })
    .await
}

/// Where one of ours came behind somebody who leaves no record: what has begun before a freeze goes on, what has not is
/// kept from it. Without an answer it counts as begun.
async fn ask_about_freezes(etcd: &Etcd, locks: &mut [Lock]) {
    for lock in locks {
        let Some((queue, revision)) = lock.frozen_in_doubt() else {
            continue;
        };
        let mut entries = Keys::new(etcd, queue, false, Some(revision));
        let mut first = None;
        while let Ok(Some(entry)) = entries.next().await {
            first = Some(first.map_or(entry.created, |first: i64| first.min(entry.created)));
        }
        if let Some(first) = first {
            lock.first_at_the_freeze(first);
        }
    }
}
