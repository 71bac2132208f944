//! What the bench has others run: itself, by a first argument that nobody else gives.
//!
//! - `stamp FILE NUMBER MILLISECONDS [GATE]` appends `NUMBER START END` to FILE, in ns of `CLOCK_MONOTONIC`, and stays
//!   for the time given, or until the FIFO GATE is opened.
//! - `again SECONDS PROGRAM ...` calls PROGRAM again and again, and prints how many calls ended well within the time.

use nix::time::{ClockId, clock_gettime};
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The words of `stamp`.
pub(crate) fn stamp(file: &Path, number: usize, stay: Duration, gate: Option<&Path>) -> Vec<OsString> {
    let mut words = myself("stamp");
    words.extend([
        file.into(),
        number.to_string().into(),
        stay.as_millis().to_string().into(),
    ]);
    words.extend(gate.map(Into::into));
    words
}

/// Calls `command` again and again; it keeps its environment.
pub(crate) fn again(seconds: u64, command: &Command) -> Command {
    let words = myself("again");
    let mut again = Command::new(&words[0]);
    again.args(&words[1..]).arg(seconds.to_string());
    again.arg(command.get_program()).args(command.get_args());
    again.env_clear();
    again.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    again
}

fn myself(what: &str) -> Vec<OsString> {
    let path = env::current_exe().expect("our own path");
    vec![path.into(), what.into()]
}

/// Whether this process is such a call, which is over then.
pub(crate) fn answered() -> bool {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let Some(what) = words.first().and_then(|word| word.to_str()) else {
        return false;
    };
    let number = |at: usize| -> u64 { words[at].to_str().expect("text").parse().expect("a number") };
    match what {
        "stamp" => {
            let start = now();
            match words.get(4) {
                // Opening blocks until somebody else does.
                Some(gate) => drop(File::open(gate).expect("a gate")),
                None => sleep(Duration::from_millis(number(3))),
            }
            let mut file = File::options()
                .create(true)
                .append(true)
                .open(&words[1])
                .expect("a file");
            writeln!(file, "{} {start} {}", number(2), now()).expect("a stamp");
        }
        "again" => println!("{}", keep_calling(Duration::from_secs(number(1)), &words[2..])),
        _ => return false,
    }
    true
}

fn now() -> u128 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    Duration::from(now).as_nanos()
}

fn keep_calling(time: Duration, words: &[OsString]) -> u32 {
    let start = Instant::now();
    let mut done = 0;
    loop {
        let status = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .expect("a call");
        assert!(status.success(), "{words:?} ended by {status}");
        if start.elapsed() >= time {
            return done;
        }
        done += 1;
    }
}
