//! `held`: many locks held from one machine for minutes, or one that many wait for: what is lost, and what holding on
//! costs that machine and etcd.

use crate::children::{Household, programs, running};
use crate::client::Connected;
use crate::contender::{Contender, found};
use crate::harness::{eventually, so, unique};
use crate::site::Site;
use crate::table::{Table, figure, milliseconds};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use std::fs::{self, File};
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
    /// held: all want one lock, so that one holds it and the others wait
    #[arg(long)]
    on_one: bool,
    /// held: meshlock's TTL, in seconds; etcdctl keeps its own [default: its own]
    #[arg(long, value_name = "S")]
    ttl: Option<u32>,
    /// held: without `etcdctl lock`, whose threads fill a machine sooner
    #[arg(long)]
    alone: bool,
}

/// So many start at once; more would only measure how two processors share a thousand starts.
const BATCH: usize = 20;
/// Until what comes with a start, such as the watch, has been done.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

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
        "etcd's memory, MiB",
    ]);
    for contender in Contender::ON_ETCD {
        if arguments.alone && contender != Contender::Meshlock {
            continue;
        }
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
        let lock = if arguments.on_one {
            "held".to_owned()
        } else {
            format!("held-{number}")
        };
        let mut call = contender.call(&site, &lock, &command);
        call.envs(arguments.ttl.map(|seconds| ("MESHLOCK_TTL", seconds.to_string())));
        calls.push(call.spawn().expect("a call"));
        if number % BATCH == 0 || number == arguments.locks {
            eventually("all have come", || so(connected.count(&queues) == number));
        }
    }
    sleep(SETTLED_AFTER);
    let processes = programs(&calls).concat();
    let spent = || -> Duration { processes.iter().map(|pid| running(*pid)).sum() };
    let messages_before = site.messages();
    let (start, holders_before, server_before) = (Instant::now(), spent(), site.cpu());
    sleep(Duration::from_secs_f64(arguments.minutes * 60.0));
    let (time, holders, server) = (start.elapsed(), spent(), site.cpu());
    let (messages, memory) = (site.messages(), site.memory());
    let gone = arguments.locks - connected.count(&queues);
    // Those who come after find it open.
    let opened = File::options().write(true).open(&gate).expect("a gate");
    fs::remove_file(&gate).expect("no gate");
    File::create(&gate).expect("an empty file");
    drop(opened);
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
        each(milliseconds(holders.saturating_sub(holders_before))),
        each(milliseconds(server.saturating_sub(server_before))),
        each(messages - messages_before),
        figure(memory),
    ]);
}
