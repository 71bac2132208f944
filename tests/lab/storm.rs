//! A storm of random faults over three members and several clients, and the judgement of what came of it:
//! does meshlock keep "no overlap", and does the control, `etcdctl lock` under the very same faults, show that
//! the lab would see one? This file is the sequence; each concern has a file below.

mod calls;
mod cgroup;
mod faults;
mod judge;
mod members;
mod network;
mod observer;
mod plan;
mod record;
mod report;
mod witness;

use crate::harness::{Meshlock, directory, eventually, proc, so, tick};
use calls::Calls;
use faults::Faults;
use members::Members;
use network::Network;
use observer::Observer;
use plan::{Fault, Kind, Plan};
use record::{Locker, Record};
use report::Results;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use witness::Witness;

/// Random faults on three members and several clients, from a printed seed.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The storm to repeat [default: a new one]
    #[arg(long)]
    seed: Option<u64>,
    /// How long faults come; calm follows, for half a minute or so
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Clients that call meshlock
    #[arg(long, default_value_t = 6)]
    clients: usize,
    /// Clients that call `etcdctl lock`, whose overlaps show that the lab sees them; 0 for none
    #[arg(long, default_value_t = 3)]
    control: usize,
    /// Proxies on the loopback also where namespaces can be had
    #[arg(long)]
    loopback: bool,
    #[arg(skip)]
    short: bool,
}

/// From here on a control of etcd 3.4 that never overlapped means a blind lab: it does so several times a minute.
/// In 3.5 `etcdctl lock` ends with its lease, and was seen to overlap in no storm of five minutes.
const CONTROL_COUNTS_AFTER: Duration = Duration::from_secs(5 * 60);

/// How long a lease may outlive everybody.
const LINGER: Duration = Duration::from_secs(30);

const CLIENT_HOSTS: usize = 3;

/// How long calls may take to end once all faults are over: the longest TTL, the hand-over delay behind it, and
/// a queue of others.
const CALM: Duration = Duration::from_secs(120);

impl Arguments {
    pub(crate) fn short() -> Self {
        Self {
            // The same each time: a test that fails for no change is nobody's friend.
            seed: Some(1),
            minutes: 0.4,
            clients: 4,
            control: 2,
            loopback: false,
            short: true,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) {
    let seed = arguments.seed.unwrap_or_else(|| fastrand::u64(..));
    report::say(&format!("storm: seed {seed}"));
    // In a thread of its own, since it moves to the hub's network.
    thread::scope(|scope| {
        let storm = scope.spawn(|| storm(arguments, seed));
        if let Err(panic) = storm.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A judge that sees nothing would pass everything.
pub(crate) fn check_the_judge() {
    judge::check();
}

fn storm(arguments: &Arguments, seed: u64) {
    let start = Instant::now();
    let network = Network::build(CLIENT_HOSTS, arguments.loopback);
    report::say(&format!("storm: {}", network.describe()));
    let wretch = Path::new(env!("CARGO_BIN_EXE_meshlock"))
        .with_file_name("examples")
        .join("wretch");
    assert!(
        wretch.exists(),
        "{} is not built: cargo build --examples",
        wretch.display()
    );
    let observer = Observer::new(&wretch, directory());
    let record = Record::default();
    let calls = Calls::new(&network, &observer, &record, arguments.short);
    let mut faults = Faults::new(Members::start(&network), &calls);
    let version = faults.members.version();
    let (gap, longest) = if arguments.short {
        (Duration::from_millis(350), Duration::from_secs(3))
    } else {
        (Duration::from_millis(1_500), Duration::from_secs(60))
    };
    let plan = Plan::new(seed, gap, longest);
    let span = Duration::from_secs_f64(arguments.minutes * 60.0);
    let witness = Witness::default();
    let mut stuck = Vec::new();

    thread::scope(|scope| {
        // Whatever becomes of us, the others end.
        let end = Ending(&calls, &observer, &witness);
        scope.spawn(|| observer.watch());
        for member in 0..network::MEMBERS {
            let etcdctl = faults.members.etcdctl_command(&[member]);
            let (witness, record) = (&witness, &record);
            scope.spawn(move || witness.listen(member, etcdctl, record));
        }
        for (locker, count) in [
            (Locker::Meshlock, arguments.clients),
            (Locker::Etcdctl, arguments.control),
        ] {
            for number in 0..count {
                let rng = fastrand::Rng::with_seed(seed ^ (number as u64 + 1) << 8 ^ locker as u64);
                let calls = &calls;
                scope.spawn(move || calls.client(locker, number, rng));
            }
        }
        // A short one has seen everything once it has dealt its cards.
        let faults_at_most = if arguments.short {
            Kind::all().count()
        } else {
            usize::MAX
        };
        blow(&mut faults, plan.take(faults_at_most), span);
        calls.stop();
        faults.heal_all();
        stuck = wait_for_ends(&calls, &faults.members);
        drop(end);
    });
    calm_down(&network, &faults.members);
    let results = judge(
        arguments,
        seed,
        &network,
        version,
        &observer,
        &record,
        stuck,
        &faults.members,
        start,
    );
    results.print(&record);
    conclude(&results, &record, &faults.members);
}

/// Fault after fault until the time is over.
fn blow(faults: &mut Faults<'_>, plan: impl Iterator<Item = Fault>, span: Duration) {
    let start = Instant::now();
    let mut next = Instant::now();
    for fault in plan {
        next = next.max(Instant::now().checked_sub(Duration::from_secs(1)).expect("a time")) + fault.after;
        while Instant::now() < next {
            faults.heal_due();
            tick();
        }
        if start.elapsed() > span {
            return;
        }
        faults.strike(fault);
    }
}

/// Calls that do not end.
fn wait_for_ends(calls: &Calls<'_>, members: &Members) -> Vec<String> {
    let start = Instant::now();
    let mut thaw = start;
    loop {
        if Instant::now() >= thaw {
            thaw_all(members);
            thaw = Instant::now() + Duration::from_secs(1);
        }
        let running = calls.running();
        if running.is_empty() {
            return Vec::new();
        }
        // The control may hang as it likes.
        let ours = running.iter().filter(|call| call.locker == Locker::Meshlock).count();
        if ours == 0 && start.elapsed() > Duration::from_secs(20) || start.elapsed() > CALM {
            for call in &running {
                proc::signal(call.pid, nix::sys::signal::Signal::SIGKILL);
            }
            let stuck = running.iter().filter(|call| call.locker == Locker::Meshlock);
            return stuck.map(|call| format!("{} on {}", call.hold, call.name)).collect();
        }
        tick();
    }
}

/// What a stopped member was asked for is done when it goes on, after it had been undone elsewhere: a name can
/// become frozen at any time yet.
fn thaw_all(members: &Members) -> bool {
    members.etcdctl(&["del", "--prefix", "meshlock/freeze/"]).is_some()
}

/// The next ones in line: what a holder that was killed could not take away itself, its open record, its
/// successor does.
fn calm_down(network: &Network, members: &Members) {
    eventually("no name is frozen", || so(thaw_all(members)));
    network.enter(network::Host::Client(0));
    for name in ["alpha", "beta"] {
        let endpoints = network.endpoints(0).join(",");
        Meshlock::run_at(endpoints, name)
            // It says who is in the way, if somebody is.
            .args(["--wait", "45"])
            .finish()
            .any_stderr()
            .success();
    }
    network.enter(network::Host::Hub);
}

#[expect(clippy::too_many_arguments, reason = "everything there is, once")]
fn judge(
    arguments: &Arguments,
    seed: u64,
    network: &Network,
    version: String,
    observer: &Observer,
    record: &Record,
    stuck: Vec<String>,
    members: &Members,
    start: Instant,
) -> Results {
    let leftovers = leftovers(members);
    observer.collect();
    let (lives, calls, strikes) = (observer.lives(), record.calls(), record.strikes());
    let is_control = |hold: &str| hold.starts_with('e');
    Results {
        seed,
        network: network.describe(),
        took: start.elapsed(),
        clients: [arguments.clients, arguments.control],
        holds: [Locker::Meshlock, Locker::Etcdctl].map(|locker| judge::count_holds(&lives, &calls, locker)),
        overlaps: judge::overlaps(&lives, &calls, &strikes),
        statuses: judge::statuses(&lives, &calls, &strikes),
        tokens: judge::tokens(&lives, &calls),
        orphans: observer
            .look()
            .into_iter()
            .filter(|(hold, ..)| !is_control(hold))
            .map(|(hold, role, pid)| format!("{role} of {hold}, pid {pid}"))
            .collect(),
        leftovers,
        stuck,
        control_counts: arguments.control > 1 && version.starts_with("3.4.") && start.elapsed() > CONTROL_COUNTS_AFTER,
        version,
        calls,
        lives,
    }
}

/// Keys and leases that do not go: a revocation may follow an exit by a moment, and a killed waiter's lease runs
/// out. Of the control's keys none: what it leaves behind is its own affair.
fn leftovers(members: &Members) -> Vec<String> {
    let start = Instant::now();
    loop {
        let keys = |kind| members.keys(&format!("meshlock/{kind}/"));
        let left: Option<Vec<Vec<String>>> = ["lock", "open", "ask"]
            .into_iter()
            .map(keys)
            .chain([members.leases()])
            .collect();
        let left = left.map_or_else(|| vec!["no answer from etcd".to_owned()], |left| left.concat());
        if left.is_empty() || start.elapsed() > LINGER {
            return left;
        }
        tick();
    }
}

fn conclude(results: &Results, record: &Record, members: &Members) {
    let failures = results.failures();
    let apart = results.overlaps.iter().any(|overlap| overlap.apart.is_some());
    if failures.is_empty() && !apart {
        return;
    }
    let kept = results.keep_trace(record, &members.logs());
    report::say(&format!("trace: {}", kept.join("trace").display()));
    let failures: Vec<String> = failures.into_iter().map(|(_, what)| what).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Lets the threads of a storm go, also where it fails.
struct Ending<'a>(&'a Calls<'a>, &'a Observer, &'a Witness);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.stop();
        self.1.stop();
        self.2.stop();
        for call in self.0.running() {
            proc::signal(call.pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}
