//! Reads what a [`Board`] is made of: the keys of one lock or of all, and then what these leave open. Writes nothing,
//! needs no more than the right to read, and judges nothing.

mod overview;
mod questions;
mod whole;

use super::board::pieces::Life;
use super::board::{Board, Lock};
use super::keys::Place;
use crate::store::Fault;
use crate::store::etcd::Etcd;

/// Open records of one lock that are read. How many there are is told all the same.
const OPENS: u32 = 1000;
/// Questions under way at a time: after the loss of a site there is one for the lease of each of its runs, and the way
/// to etcd may be long.
const AT_A_TIME: usize = 128;
/// How often one lock is looked at again where it changes under our eyes.
const LOOKS: usize = 3;

/// Whose leases are asked about, at a call each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lives {
    /// Those of open records without an entry alone, without which a living run is not told from a vanished one.
    Doubtful,
    /// Those of all holders too.
    Holders,
    /// The same, if there are no more than so many locks.
    HoldersOfUpTo(usize),
}

/// One lock, and its last `runs` runs.
pub async fn one(etcd: &Etcd, place: &Place, runs: u32, lives: Lives) -> Result<Board, Fault> {
    let mut looks = 0;
    loop {
        let mut board = whole::read(etcd, place, runs).await?;
        questions::settle(etcd, &mut board.locks, lives != Lives::Doubtful).await?;
        looks += 1;
        // Its lease ended after we read the entry: by now somebody else may hold.
        let gone = |lock: &Lock| lock.queue.first().is_some_and(|first| first.life == Life::Gone);
        if looks == LOOKS || !board.locks.iter().any(gone) {
            return Ok(board);
        }
    }
}

/// All locks under `root`, by name: the holder, the number of entries and the last run of each.
pub async fn all(etcd: &Etcd, root: &str, lives: Lives) -> Result<Board, Fault> {
    let mut board = overview::read(etcd, root).await?;
    let holders = match lives {
        Lives::Doubtful => false,
        Lives::Holders => true,
        Lives::HoldersOfUpTo(limit) => board.locks.len() <= limit,
    };
    questions::settle(etcd, &mut board.locks, holders).await?;
    Ok(board)
}

/// Asks anew how long the leases of these locks' holders live: a renewal is no change of a key.
pub async fn renew(etcd: &Etcd, board: &mut Board) -> Result<(), Fault> {
    for first in board.locks.iter_mut().filter_map(|lock| lock.queue.first_mut()) {
        first.life = Life::at_first(first.lease);
    }
    questions::ask_about_leases(etcd, &mut board.locks, true).await
}
