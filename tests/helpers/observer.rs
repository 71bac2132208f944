//! What the tests run as meshlock's command where a shell would be too slow or too blunt.
//!
//! - `observer beat FILE [MILLISECONDS]` appends stamps to FILE, every 5 ms, until it is killed or the
//!   time is over: `<CLOCK_BOOTTIME in ns> <hold> <pid> <what>`. At its start it looks whether a process of
//!   another hold is still alive, and says so.
//! - `observer signals` prints `ready <pid>` and then the name of each signal that it gets, until USR2.
#![expect(clippy::expect_used, reason = "a failed helper should fail its test")]
#![expect(clippy::print_stdout, reason = "stdout is what the test reads")]

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::time::{ClockId, clock_gettime};
use std::env;
use std::fs::{self, File};
use std::io::{Write as _, stdout};
use std::process;
use std::thread;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["beat", file] => beat(file, None),
        ["beat", file, milliseconds] => {
            beat(
                file,
                Some(Duration::from_millis(milliseconds.parse().expect("a number"))),
            );
        }
        ["signals"] => signals(),
        _ => panic!("beat or signals, not {arguments:?}"),
    }
}

fn beat(file: &str, span: Option<Duration>) {
    // etcdctl's commands have no token, and a scrubbed environment has nothing but what was kept for us.
    let hold = ["OBSERVED_AS", "MESHLOCK_HELD_TOKEN", "ETCD_LOCK_KEY"]
        .iter()
        .find_map(|variable| env::var(variable).ok())
        .expect("a hold");
    let mut stamps = File::options()
        .create(true)
        .append(true)
        .open(file)
        .expect("the stamps");
    // One write for each line, so that the lines of several processes do not mix.
    let mut stamp = |what: &str| {
        let line = format!("{} {hold} {} {what}\n", now().as_nanos(), process::id());
        stamps.write_all(line.as_bytes()).expect("a stamp");
    };
    let start = now();
    stamp("start");
    for line in fs::read_to_string(file).expect("the stamps").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [_, other, pid, "start"] = fields[..]
            && other != hold
            && alive(pid)
        {
            stamp(&format!("alive={pid}"));
        }
    }
    while span.is_none_or(|span| now().saturating_sub(start) < span) {
        thread::sleep(Duration::from_millis(5));
        stamp("beat");
    }
    stamp("end");
}

/// There, not only as a zombie, and still this program: a pid may have been given to another.
fn alive(pid: &str) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    name.trim_end() == "observer" && state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// By the kernel's clock, and not by meshlock's word: this program judges it.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock").into()
}

fn signals() {
    let mut all = SigSet::all();
    all.remove(Signal::SIGCHLD);
    all.thread_block().expect("a mask");
    let arriving = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC).expect("a signalfd");
    let say = |word: &str| {
        println!("{word}");
        stdout().flush().expect("stdout");
    };
    say(&format!("ready {}", process::id()));
    loop {
        let signal = arriving.read_signal().expect("a signal").expect("it blocks");
        let signal = Signal::try_from(signal.ssi_signo.cast_signed()).expect("a signal's number");
        say(signal.as_str());
        if signal == Signal::SIGUSR2 {
            return;
        }
    }
}
