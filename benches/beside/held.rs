//! `held`: many locks held from one machine for minutes, by the defaults of each: what is lost, and what holding on
//! costs that machine and etcd.

use crate::children::{Household, programs, running};
use crate::client::Connected;
use crate::contender::{Contender, found};
use crate::harness::{eventually, so, unique};
use crate::site::Site;
use crate::table::{Table, figure};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fs::File;
use std::path::Path;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[group(skip)] // its name would be another section's
pub(crate) struct Arguments {
    /// held: how many locks
    #[arg(long, value_name = "N", default_value_t = 1000)]
    locks: usize,
    /// held: for how long
    #[arg(long, value_name = "MIN", default_value_t = 2.0)]
    minutes: f64,
}

/// So many start at once; more would only measure how two processors share a thousand starts.
const BATCH: usize = 20;
/// Until what comes with a start, such as the watch, has been done.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// What was spent so far.
struct Spent {
    /// By those who hold, in seconds.
    holders: f64,
    /// By etcd, in seconds.
    server: f64,
    /// That etcd has got, in calls and streams alike.
    messages: f64,
}

pub(crate) fn measure(arguments: &Arguments) {
    let mut table = Table::new([
        "who",
        "locks",
        "minutes",
        "entries gone",
        "exit status not 0",
        "CPU per lock and minute, ms",
        "etcd's CPU, ms",
        "messages to etcd",
    ]);
    for contender in Contender::ON_ETCD {
        hold(contender, arguments, &mut table);
    }
    println!("\n{table}");
}

fn hold(contender: Contender, arguments: &Arguments, table: &mut Table) {
    let site = Site::plain(1);
    let mut connected = Connected::to(&site);
    let household = Household::now();
    let gate = site.file(unique("gate"));
    mkfifo(&gate, Mode::S_IRUSR | Mode::S_IWUSR).expect("a gate");
    // Opening a FIFO blocks until somebody else does.
    let command = [found(Path::new("cat")), gate.clone()];
    let mut calls: Vec<Child> = Vec::new();
    let queues = contender.queue("held").trim_end_matches('/').to_owned();
    for number in 1..=arguments.locks {
        let lock = format!("held-{number}");
        calls.push(contender.call(&site, &lock, &command).spawn().expect("a call"));
        if number % BATCH == 0 || number == arguments.locks {
            eventually("all have their lock", || so(connected.count(&queues) == number));
        }
    }
    sleep(SETTLED_AFTER);
    let processes = programs(&calls).concat();
    let (start, before) = (Instant::now(), Spent::now(&processes, &site));
    sleep(Duration::from_secs_f64(arguments.minutes * 60.0));
    let (time, after) = (start.elapsed(), Spent::now(&processes, &site));
    let gone = arguments.locks - connected.count(&queues);
    drop(File::options().write(true).open(&gate).expect("a gate"));
    let ended = calls.iter_mut().map(|call| call.wait().expect("its status"));
    let failed = ended.filter(|status| !status.success()).count();
    household.alone();
    let minutes = time.as_secs_f64() / 60.0;
    let each = |value: f64| figure(value / f64::from(u32::try_from(arguments.locks).expect("some locks")) / minutes);
    table.row([
        contender.title().to_owned(),
        arguments.locks.to_string(),
        figure(minutes),
        gone.to_string(),
        failed.to_string(),
        each((after.holders - before.holders) * 1000.0),
        each((after.server - before.server) * 1000.0),
        each(after.messages - before.messages),
    ]);
}

impl Spent {
    fn now(processes: &[i32], site: &Site) -> Self {
        let etcd = &site.cluster.members[0];
        Self {
            holders: processes.iter().map(|pid| running(*pid).as_secs_f64()).sum(),
            server: running(etcd.pid()).as_secs_f64(),
            messages: etcd.metric("grpc_server_msg_received_total", ""),
        }
    }
}
