//! Whether others used the machine while something was measured. Turns alone do not help there: who needs two
//! processors at once suffers from a third party more than who needs one.

use crate::children::{running, spent};
use crate::site::Site;
use crate::table::{Samples, figure};
use nix::unistd::{SysconfVar, sysconf};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Of one CPU. What idles on a machine takes some of it.
const TOLERATED: f64 = 0.2;
/// So long is the same tried again; then it counts as it is.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries: somebody compiles something.
const PAUSE: Duration = Duration::from_secs(2);

/// The part of one CPU that others used, for each measurement.
pub(crate) struct Others(Samples);

impl Others {
    pub(crate) const fn new() -> Self {
        Self(Samples::new())
    }

    /// Does `work` again until others have left the machine alone meanwhile, at the end of which all of its processes
    /// are reaped.
    pub(crate) fn avoid<T>(&mut self, site: &Site, mut work: impl FnMut() -> T) -> T {
        let begun = Instant::now();
        loop {
            let (start, before) = (Instant::now(), others(site));
            let done = work();
            let share = (others(site) - before) / start.elapsed().as_secs_f64();
            if share <= TOLERATED || begun.elapsed() > PATIENCE {
                self.0.push(share.max(0.0));
                return done;
            }
            sleep(PAUSE);
        }
    }

    pub(crate) fn account(&self) -> String {
        format!(
            "Others used {} of one CPU meanwhile, {} at the most.",
            figure(self.0.median()),
            figure(self.0.most())
        )
    }
}

/// In seconds, up to now.
fn others(site: &Site) -> f64 {
    let servers = site.cluster.members.iter().map(|member| running(member.pid()));
    let ours = spent() + servers.sum::<Duration>();
    busy() - ours.as_secs_f64()
}

/// Of all CPUs together, in seconds; what the host takes from a virtual machine is lost, too.
fn busy() -> f64 {
    let stat = fs::read_to_string("/proc/stat").expect("what the machine does");
    let line = stat.lines().next().expect("all CPUs").split_whitespace().skip(1);
    let fields: Vec<f64> = line.map(|field| field.parse().expect("a number")).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = fields[..] else {
        panic!("proc(5) has eight fields there");
    };
    let tick = sysconf(SysconfVar::CLK_TCK).expect("a constant").expect("a number");
    (user + nice + system + irq + softirq + steal) / f64::from(i32::try_from(tick).expect("a small number"))
}
