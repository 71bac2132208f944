//! A holder that stays until it is told to go, and those who wait behind it, in the order in which they came.

use crate::call::stamp;
use crate::children::Household;
use crate::client::Connected;
use crate::contender::Contender;
use crate::harness::{eventually, so, unique};
use crate::site::Site;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

#[derive(clap::Args)]
#[group(skip)] // its name would be another section's
pub(crate) struct Arguments {
    /// memory, handover: how many wait
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 50, 500])]
    pub(crate) waiters: Vec<usize>,
    /// handover: how many are measured at least, by as many queues as that takes
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) handovers: usize,
    /// handover: how long each command runs, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub(crate) stay: u64,
}

/// So that the last one who came has settled down too: nobody outside sees that.
const SETTLED_AFTER: Duration = Duration::from_millis(300);

/// The holder is the first call; each command stamps a common file.
pub(crate) struct Queue {
    pub(crate) calls: Vec<Child>,
    household: Household,
    gate: PathBuf,
    stamps: PathBuf,
}

/// When a command ran, in ns, and who in the queue that was.
pub(crate) struct Stamp {
    pub(crate) number: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Queue {
    /// One holder, and so many waiters whose commands will stay for the time given.
    pub(crate) fn park(
        contender: Contender,
        site: &Site,
        connected: &mut Connected,
        waiters: usize,
        stay: Duration,
    ) -> Self {
        let household = Household::now();
        let lock = unique("queue");
        let (gate, stamps) = (site.file(unique("gate")), site.file(unique("stamps")));
        mkfifo(&gate, Mode::S_IRUSR | Mode::S_IWUSR).expect("a gate");
        let mut calls = Vec::new();
        for number in 0..=waiters {
            let command = stamp(&stamps, number, stay, Some(&*gate).filter(|_| number == 0));
            calls.push(contender.call(site, &lock, &command).spawn().expect("a call"));
            eventually("another in the queue", || {
                let there = match contender {
                    Contender::Flock => locks_on(&site.file(&lock)),
                    Contender::Meshlock | Contender::Etcdctl => connected.count(&contender.queue(&lock)),
                    Contender::Bare => number + 1,
                };
                so(there > number)
            });
        }
        sleep(SETTLED_AFTER);
        Self {
            calls,
            household,
            gate,
            stamps,
        }
    }

    /// Lets the holder go, and all others run after it; what they stamped, in the order in which they ran.
    pub(crate) fn work_off(mut self) -> Vec<Stamp> {
        drop(File::options().write(true).open(&self.gate).expect("a gate"));
        for call in &mut self.calls {
            let status = call.wait().expect("its status");
            assert!(status.success(), "a call ended by {status}");
        }
        self.household.alone();
        let text = fs::read_to_string(&self.stamps).expect("stamps");
        let mut stamps: Vec<Stamp> = text
            .lines()
            .map(|line| {
                let fields: Vec<u64> = line.split(' ').map(|field| field.parse().expect("a number")).collect();
                Stamp {
                    number: usize::try_from(fields[0]).expect("a number"),
                    start: fields[1],
                    end: fields[2],
                }
            })
            .collect();
        stamps.sort_by_key(|stamp| stamp.start);
        assert_eq!(stamps.len(), self.calls.len(), "each has run, and once");
        stamps
    }
}

/// Those who have a lock on the file or wait for one, by `/proc/locks`.
fn locks_on(file: &PathBuf) -> usize {
    let Ok(file) = fs::metadata(file) else { return 0 };
    let inode = format!(":{} ", file.ino());
    let locks = fs::read_to_string("/proc/locks").expect("locks");
    locks.lines().filter(|line| line.contains(&inode)).count()
}
