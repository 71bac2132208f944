//! SIGKILL for one half of meshlock at a random moment of its start: the other half leaves no process, and what is
//! left in etcd ends with the lease and with the next run.

use super::left;
use crate::harness::{Etcd, Meshlock, Running, eventually, proc, so};
use nix::sys::signal::Signal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The moments lie within this time of the start.
const START: Duration = Duration::from_millis(40);
/// Few at once, lest no start is over within [`START`].
const BRISK: usize = 4;
/// Many at once, where each waits for a deadline or a delay.
const PATIENT: usize = 32;

#[derive(Clone, Copy)]
enum Half {
    Guardian,
    Keeper,
}

use Half::{Guardian, Keeper};

pub(super) fn run(kills: usize, seed: u64) -> String {
    let etcd = Etcd::start();
    let orphaned = each(BRISK, kills, |number| killed(&etcd, Guardian, number, seed));
    let unclean = etcd.keys("meshlock/open/").len();
    assert_eq!(unclean, 0, "the keeper clears up after its guardian");
    let unkept = each(PATIENT, kills, |number| killed(&etcd, Keeper, number, seed));
    let began = Instant::now();
    eventually("no entry and no lease", || {
        so(etcd.keys("meshlock/lock/").is_empty() && etcd.leases().is_empty())
    });
    let ended = began.elapsed();
    let unclean = etcd.keys("meshlock/open/").len();
    for half in [Guardian, Keeper] {
        each(PATIENT, kills, |number| {
            meshlock(&etcd, half, number).finish().success();
            true
        });
    }
    left::assert_records_only(&etcd, &[], 0);
    format!(
        "{kills} guardians (in {orphaned} the command ran) and {kills} keepers ({unkept}) killed at a random moment of \
         their first {START:?}: no process left; no entry and no lease {ended:.1?} after the last; the \
         next runs cleared {unclean} open records"
    )
}

/// Kills one half; true if the command had been started by then.
fn killed(etcd: &Etcd, half: Half, number: usize, seed: u64) -> bool {
    let running = meshlock(etcd, half, number)
        .sh("echo up; sleep 600 & exec sleep 600")
        .start();
    thread::sleep(START.mul_f64(chance(seed, half, number)));
    match half {
        Guardian => {
            running.signal(Signal::SIGKILL);
            let ended = running.finish().any_stdout().any_stderr();
            !ended.signaled(Signal::SIGKILL).stdout.is_empty()
        }
        Keeper => {
            proc::signal(keeper(&running), Signal::SIGKILL);
            // 70 where there was no hold yet.
            let ended = running.finish().any_stdout().any_stderr();
            !ended.any_code([70, 79]).stdout.is_empty()
        }
    }
}

/// The guardian's first child, which may not have its name yet.
fn keeper(running: &Running) -> i32 {
    eventually("a keeper", || {
        let children = proc::children(running.pid());
        children
            .into_iter()
            .min_by_key(|child| (proc::start_time(*child), *child))
    })
}

fn meshlock(etcd: &Etcd, half: Half, number: usize) -> Meshlock {
    Meshlock::run(etcd, format!("killed-{}-{number}", half as u8)).args(["-q", "--ttl=4", "--keep=0"])
}

/// Does it so often, by so many at once; how often it was true.
fn each(lanes: usize, times: usize, task: impl Fn(usize) -> bool + Sync) -> usize {
    let (next, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= times {
                        return;
                    }
                    count.fetch_add(usize::from(task(number)), Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner()
}

/// From 0 to 1, the same for the same seed: splitmix64.
fn chance(seed: u64, half: Half, number: usize) -> f64 {
    let place = 2 * number as u64 + half as u64;
    let mut bits = seed.wrapping_add((place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let bits = u32::try_from((bits ^ (bits >> 31)) >> 32).expect("32 bits");
    f64::from(bits) / f64::from(u32::MAX)
}
