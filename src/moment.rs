//! An instant on `CLOCK_BOOTTIME`, the one clock of deadlines: it goes on counting while the machine
//! sleeps, as etcd's does elsewhere (`clock_gettime(2)`). Knows no lock and no process.

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since the machine's boot, time asleep included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    /// Before every other moment; what an unset deadline reads as.
    pub const NEVER_BEGUN: Self = Self(0);

    /// The clock's reading. A failing clock reads as the end of time: everything is then over, and
    /// a command is rather stopped than left to run unwatched.
    pub fn now() -> Self {
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Self(u64::MAX), |time| {
            let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
            let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
            Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
        })
    }

    /// How long the machine slept since it was started: the one difference between the two clocks.
    pub fn asleep() -> Duration {
        let awake = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::MAX, Duration::from);
        Duration::from_nanos(Self::now().0).saturating_sub(awake)
    }

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this moment, zero if it comes first.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
