//! A descriptor that becomes readable at a [`Moment`]: poll(2)'s and tokio's own time-outs do not count the
//! time that the machine sleeps. Knows nothing of what it wakes for.

use crate::moment::Moment;
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

#[derive(Debug)]
pub struct Alarm {
    timer: TimerFd,
    set_for: Option<Moment>,
}

impl Alarm {
    pub fn new() -> Result<Self, Errno> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Self {
            timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?,
            set_for: None,
        })
    }

    /// Goes off at `at`, at once if that is past; `None` is never. Costs a call only where it changes.
    pub fn set(&mut self, at: Option<Moment>) {
        if at == self.set_for {
            return;
        }
        self.set_for = at;
        let set = match at {
            Some(at) => self
                .timer
                .set(Expiration::OneShot(time_spec(at)), TimerSetTimeFlags::TFD_TIMER_ABSTIME),
            None => self.timer.unset(),
        };
        debug_assert!(set.is_ok());
    }

    /// It went off: makes it unreadable, and to be set anew.
    pub fn take(&mut self) {
        self.timer.wait().ok();
        self.set_for = None;
    }
}

/// A moment as the kernel's timers take it; zero would disarm them.
pub fn time_spec(at: Moment) -> TimeSpec {
    TimeSpec::from_duration(Duration::from_nanos(at.as_nanos().max(1)))
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
