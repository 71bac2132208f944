//! The clients of the storm: each calls meshlock (or, as the control, `etcdctl lock`) again and again, with
//! commands of all kinds, from one host. Knows no faults.

use super::cgroup::Cgroup;
use super::network::{Host, Network};
use super::observer::Observer;
use super::record::{Call, Locker, Record, now};
use crate::harness::{clean, directory, etcd::program, meshlock, pass};
use fastrand::Rng;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the clients share.
pub(super) struct Calls<'a> {
    pub(super) network: &'a Network,
    pub(super) observer: &'a Observer,
    pub(super) record: &'a Record,
    cgroup: Option<Cgroup>,
    short: bool,
    files: PathBuf,
    running: Mutex<Vec<Running>>,
    over: AtomicBool,
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) hold: String,
    pub(super) locker: Locker,
    pub(super) name: String,
    /// meshlock's guardian, or etcdctl.
    pub(super) pid: i32,
    pub(super) half: Option<Half>,
}

/// Which half of one meshlock was hurt. The other one then is left alone: both at once is what meshlock does
/// not promise to bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Guardian,
    Keeper,
}

impl<'a> Calls<'a> {
    pub(super) fn new(network: &'a Network, observer: &'a Observer, record: &'a Record, short: bool) -> Self {
        Self {
            network,
            observer,
            record,
            cgroup: Cgroup::make(),
            short,
            files: directory(),
            running: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }

    pub(super) fn running(&self) -> Vec<Running> {
        self.running.lock().expect("not poisoned").clone()
    }

    /// Marks one half as the one that may be hurt; false if it was the other's turn already.
    pub(super) fn choose_half(&self, hold: &str, half: Half) -> bool {
        let mut running = self.running.lock().expect("not poisoned");
        let Some(call) = running.iter_mut().find(|call| call.hold == hold) else {
            return false;
        };
        *call.half.get_or_insert(half) == half
    }

    /// No new calls.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// One client, until it is over.
    pub(super) fn client(&self, locker: Locker, number: usize, mut rng: Rng) {
        let host = number % self.network.clients();
        self.network.enter(Host::Client(host));
        let letter = if locker == Locker::Meshlock { 'm' } else { 'e' };
        let mut call = 0;
        while !self.over.load(Ordering::SeqCst) {
            call += 1;
            let hold = format!("{letter}{number}-{call}");
            match locker {
                Locker::Meshlock => self.meshlock(&hold, host, &mut rng),
                Locker::Etcdctl => self.etcdctl(&hold, host, &mut rng),
            }
            pass(Duration::from_millis(rng.u64(0..200)));
        }
    }

    fn meshlock(&self, hold: &str, host: usize, rng: &mut Rng) {
        let name = if rng.bool() { "alpha" } else { "beta" };
        let roles = [
            "plain",
            "deaf",
            "family",
            "deaf-family",
            "daemons",
            "scrubber",
            "glutton",
        ];
        let role = roles[rng.usize(..roles.len() - usize::from(self.cgroup.is_none()))];
        let ttls: &[u64] = if self.short { &[4, 4, 5] } else { &[4, 4, 5, 6, 8, 20] };
        let ttl = ttls[rng.usize(..ttls.len())];
        let mut options = vec![
            "run".to_owned(),
            "-v".to_owned(),
            format!("--endpoints={}", shuffled(self.network.endpoints(host), rng)),
            format!("--ttl={ttl}"),
            format!("--report={}", self.files.join(hold).with_extension("report").display()),
        ];
        // What a command leaves behind is its user's affair, unless it is asked for: only then is it the lock's.
        let leaves_something = !matches!(role, "plain" | "deaf" | "glutton");
        let stragglers = if leaves_something {
            "kill"
        } else {
            ["leave", "wait", "kill"][rng.usize(..3)]
        };
        options.push(format!("--stragglers={stragglers}"));
        match rng.u32(..6) {
            0 => options.push("--no-wait".to_owned()),
            1 => options.push("--wait=2".to_owned()),
            _ => {}
        }
        if rng.u32(..8) == 0 {
            options.push("--lost-grace=0.4".to_owned());
        }
        let milliseconds = rng.u64(100..if self.short { 1500 } else { 4000 });
        let max_runtime = rng.u32(..12) == 0;
        if max_runtime {
            options.push(format!("--max-runtime={}ms", milliseconds / 2));
        }
        let status = [0, 0, 0, 1, 3, 42][rng.usize(..6)];
        let mut words = match &self.cgroup {
            Some(cgroup) if role == "glutton" => cgroup.entrance(),
            _ => Vec::new(),
        };
        words.push(meshlock::binary().to_str().expect("UTF-8").to_owned());
        words.extend(options);
        words.extend([name.to_owned(), "--".to_owned()]);
        words.extend(self.command(name, hold, role, milliseconds, status));
        self.call(
            &words,
            Call {
                hold: hold.to_owned(),
                locker: Locker::Meshlock,
                name: name.to_owned(),
                role,
                status,
                max_runtime,
                renews_each_ms: if ttl < 15 { 1_000 } else { ttl * 200 } + 3_000,
                started: 0,
                ended: None,
                said: String::new(),
                reported: None,
                words: String::new(),
            },
        );
    }

    /// The same, without the kinds of commands that outlive `etcdctl lock` by its nature.
    fn etcdctl(&self, hold: &str, host: usize, rng: &mut Rng) {
        let role = if rng.bool() { "plain" } else { "family" };
        // Often longer than its TTL: later versions than 3.4 overlap only where etcdctl itself is killed.
        let milliseconds = rng.u64(100..if self.short { 1500 } else { 8000 });
        let name = "control";
        let mut words = vec![
            program("MESHLOCK_TEST_ETCDCTL", "etcdctl").display().to_string(),
            format!("--endpoints={}", shuffled(self.network.endpoints(host), rng)),
            "lock".to_owned(),
            "--ttl=4".to_owned(),
            name.to_owned(),
            "--".to_owned(),
        ];
        words.extend(self.command(name, hold, role, milliseconds, 0));
        self.call(
            &words,
            Call {
                hold: hold.to_owned(),
                locker: Locker::Etcdctl,
                name: name.to_owned(),
                role,
                status: 0,
                max_runtime: false,
                renews_each_ms: 0,
                started: 0,
                ended: None,
                said: String::new(),
                reported: None,
                words: String::new(),
            },
        );
    }

    fn command(&self, name: &str, hold: &str, role: &str, milliseconds: u64, status: i32) -> [String; 7] {
        [
            self.observer.program().to_owned(),
            self.observer.directory().display().to_string(),
            name.to_owned(),
            hold.to_owned(),
            role.to_owned(),
            milliseconds.to_string(),
            status.to_string(),
        ]
    }

    fn call(&self, words: &[String], call: Call) {
        let said = self.files.join(&call.hold).with_extension("said");
        let report = self.files.join(&call.hold).with_extension("report");
        // In a session of its own, as under cron: whether the lab has a terminal must not matter.
        let mut child = clean("setsid")
            .args(words)
            .env("ETCDCTL_API", "3")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said).expect("a file"))
            .spawn()
            .expect("setsid");
        let hold = call.hold.clone();
        self.running.lock().expect("not poisoned").push(Running {
            hold: hold.clone(),
            locker: call.locker,
            name: call.name.clone(),
            pid: child.id().cast_signed(),
            half: None,
        });
        self.record.begin(Call {
            started: now(),
            words: words.join(" "),
            ..call
        });
        let status = child.wait().expect("its status");
        self.running
            .lock()
            .expect("not poisoned")
            .retain(|running| running.hold != hold);
        let reported = fs::read(&report)
            .ok()
            .and_then(|report| serde_json::from_slice::<serde_json::Value>(&report).ok())
            .and_then(|report| report.pointer("/status")?.as_i64());
        self.record.end(
            &hold,
            status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)),
            meshlock::read(&said),
            reported,
        );
        fs::remove_file(said).ok();
        fs::remove_file(report).ok();
    }
}

fn shuffled(mut endpoints: Vec<String>, rng: &mut Rng) -> String {
    rng.shuffle(&mut endpoints);
    endpoints.join(",")
}
