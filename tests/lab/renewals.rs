//! How near a hold comes to its end: the deadline that meshlock's two halves share is read from outside, out of
//! the guardian's memory. A measurement and no judgement: where it cannot be read, nothing fails.

use crate::harness::{proc, tick};
use crate::hold::{MARGIN, TTL};
use nix::time::{ClockId, clock_gettime};
use std::fs::{File, read_to_string};
use std::os::unix::fs::FileExt as _;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The shared page of a running meshlock. Its first word is the deadline, in ns of `CLOCK_BOOTTIME`.
struct Page {
    memory: File,
    address: u64,
}

impl Page {
    fn of(guardian: i32) -> Option<Self> {
        let maps = read_to_string(format!("/proc/{guardian}/maps")).ok()?;
        // The only anonymous memory that is shared: `proc_pid_maps(5)`.
        let line = maps
            .lines()
            .find(|line| line.contains(" rw-s ") && line.contains("/dev/zero"))?;
        let address = u64::from_str_radix(line.split_once('-')?.0, 16).ok()?;
        let memory = File::open(format!("/proc/{guardian}/mem")).ok()?;
        Some(Self { memory, address })
    }

    fn deadline(&self) -> Option<Duration> {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, self.address).ok()?;
        Some(Duration::from_nanos(u64::from_ne_bytes(word)))
    }
}

/// Follows one of the lab's holds to its end: how old its last accepted renewal ever was.
pub(crate) fn oldest(guardian: i32) -> JoinHandle<Option<Duration>> {
    thread::spawn(move || {
        let page = Page::of(guardian)?;
        let mut oldest = None;
        while proc::alive(guardian) {
            let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
            // Zero after the end of the process, and before there is a hold.
            if let Some(deadline) = page.deadline().filter(|deadline| !deadline.is_zero()) {
                oldest = oldest.max(Some((now + TTL).saturating_sub(MARGIN + deadline)));
            }
            tick();
        }
        oldest
    })
}
