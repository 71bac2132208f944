//! Whether others used the machine while something was measured. Turns alone do not help there: who needs two
//! processors at once suffers from a third party more than who needs one.

use crate::children::{running, spent};
use crate::table::{Samples, figure};
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Of one CPU. What idles on a machine takes some of it.
const TOLERATED: f64 = 0.2;
/// So much time is given up for it in all; from there on everything counts as it is.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two tries: somebody compiles something.
const PAUSE: Duration = Duration::from_secs(2);

pub(crate) struct Others {
    /// The part of one CPU that they used, for each measurement.
    shares: Samples,
    given_up: Duration,
}

impl Others {
    pub(crate) const fn new() -> Self {
        Self {
            shares: Samples::new(),
            given_up: Duration::ZERO,
        }
    }

    /// Does `work` again until others have left the machine alone meanwhile. `servers` are ours and running all the
    /// time; what `work` has started is reaped at its end.
    pub(crate) fn avoid<T>(&mut self, servers: &[i32], mut work: impl FnMut() -> T) -> T {
        loop {
            let before = Now::look(servers);
            let done = work();
            let share = Now::look(servers).share_of_others_since(&before);
            if share <= TOLERATED || self.given_up > PATIENCE {
                self.shares.push(share);
                return done;
            }
            sleep(PAUSE);
            self.given_up += before.time.elapsed();
        }
    }

    pub(crate) fn account(&self) -> String {
        format!(
            "Others used {} of one CPU meanwhile, {} at the most.",
            figure(self.shares.median()),
            figure(self.shares.most())
        )
    }
}

struct Now {
    time: Instant,
    /// Of all CPUs together: in tickless kernels it is counted exactly, where the time in use is sampled and misses
    /// what is short.
    idle: Duration,
    cpus: f64,
    ours: Duration,
}

impl Now {
    fn look(servers: &[i32]) -> Self {
        let stat = fs::read_to_string("/proc/stat").expect("what the machine does");
        let mut lines = stat.lines().take_while(|line| line.starts_with("cpu"));
        let all: Vec<&str> = lines.next().expect("all CPUs").split_whitespace().collect();
        let field = |at: usize| all[at].parse::<f64>().expect("a number");
        Self {
            time: Instant::now(),
            // Waiting for a disk is idling as well.
            idle: Duration::from_secs_f64((field(4) + field(5)) / tick_rate()),
            cpus: lines.map(|_| 1.0).sum(),
            ours: spent() + servers.iter().map(|pid| running(*pid)).sum::<Duration>(),
        }
    }

    /// Of one CPU.
    fn share_of_others_since(&self, before: &Self) -> f64 {
        let time = (self.time - before.time).as_secs_f64();
        let idle = self.idle.saturating_sub(before.idle).as_secs_f64();
        let ours = self.ours.saturating_sub(before.ours).as_secs_f64();
        self.cpus - (idle + ours) / time
    }
}

/// The unit of `/proc/stat`.
fn tick_rate() -> f64 {
    let rate = sysconf(SysconfVar::CLK_TCK).expect("a constant").expect("a number");
    f64::from(i32::try_from(rate).expect("a small number"))
}
