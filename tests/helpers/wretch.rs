//! The command that the fault lab has run under a lock: it behaves well or badly, as it is told, and leaves
//! behind what a judge needs who trusts nobody but the kernel.
//!
//! `wretch DIRECTORY NAME HOLD ROLE MILLISECONDS STATUS`: HOLD is the lab's number of the call that runs it, so
//! that every process of a hold is known by its command line alone, whatever became of its environment.
//! Each process has a file of its own, `DIRECTORY/NAME/HOLD.ROLE.PID`, times in ns of `CLOCK_BOOTTIME`:
//!
//!     start <time> <fencing token or ->
//!     met <pid> <its hold>              another hold's process that was alive after our start
//!     end <time> <status>               only by a process that ends by itself
//!     beat <time>                       the last line, rewritten every 5 ms
#![expect(clippy::expect_used, reason = "a failed helper should fail its test")]

use nix::sys::signal::SigSet;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::setsid;
use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt as _;
use std::process::{self, Child, Command};
use std::thread;
use std::time::Duration;

const BEAT: Duration = Duration::from_millis(5);
/// What a wretch leaves behind ends by itself at last, so that a failed lab does not fill the machine.
const LEFT_ALONE_MS: u64 = 60_000;

struct Wretch {
    directory: String,
    name: String,
    hold: String,
    milliseconds: u64,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [directory, name, hold, role, milliseconds, status] = &arguments[..] else {
        panic!("DIRECTORY NAME HOLD ROLE MILLISECONDS STATUS, not {arguments:?}")
    };
    let wretch = Wretch {
        directory: directory.clone(),
        name: name.clone(),
        hold: hold.clone(),
        milliseconds: milliseconds.parse().expect("a number"),
    };
    let status = status.parse().expect("a number");
    wretch.live(role, status);
    process::exit(status);
}

impl Wretch {
    fn live(&self, role: &str, status: i32) {
        match role {
            // In between: makes a session and is gone, so that its child is nobody's.
            "fork-stray" | "fork-scrubbed" => {
                setsid().expect("a session");
                drop(self.spawn(role.trim_start_matches("fork-"), LEFT_ALONE_MS));
                return;
            }
            "deaf" | "deaf-family" => SigSet::all().thread_block().expect("a mask"),
            _ => {}
        }
        let mut life = Life::begin(self, role, status);
        let mut family: Vec<Child> = Vec::new();
        match role {
            "family" | "deaf-family" => family.extend((0..3).map(|_| self.spawn("child", self.milliseconds))),
            "daemons" => drop(self.spawn("fork-stray", 0).wait()),
            "scrubber" => {
                drop(
                    self.command("fork-scrubbed", 0)
                        .env_clear()
                        .spawn()
                        .expect("itself")
                        .wait(),
                );
            }
            "glutton" => gorge(),
            _ => {}
        }
        let begun = now();
        let mut next = 0;
        while now() - begun < self.milliseconds * 1_000_000 {
            thread::sleep(BEAT);
            life.beat();
            // A child that forks and forks, one at a time.
            if role == "child" && now() > next {
                next = now() + 200_000_000;
                for mut done in family.drain(..) {
                    done.wait().expect("a child");
                }
                family.push(self.spawn("grandchild", 100));
            }
        }
        for mut child in family {
            child.wait().expect("a child");
        }
        life.end();
    }

    fn command(&self, role: &str, milliseconds: u64) -> Command {
        let mut command = Command::new(env::current_exe().expect("itself"));
        command.args([&self.directory, &self.name, &self.hold, role]);
        command.args([&milliseconds.to_string(), "0"]);
        command
    }

    fn spawn(&self, role: &str, milliseconds: u64) -> Child {
        self.command(role, milliseconds).spawn().expect("itself")
    }
}

/// The file of one process.
struct Life {
    file: File,
    /// All but the beat.
    text: String,
    status: i32,
}

impl Life {
    fn begin(wretch: &Wretch, role: &str, status: i32) -> Self {
        let start = now();
        let token = env::var("MESHLOCK_HELD_TOKEN").unwrap_or_else(|_| "-".to_owned());
        let directory = format!("{}/{}", wretch.directory, wretch.name);
        fs::create_dir_all(&directory).expect("the lab's directory");
        let path = format!("{directory}/{}.{role}.{}", wretch.hold, process::id());
        let mut life = Self {
            file: File::create(path).expect("a file"),
            text: format!("start {start} {token}\n"),
            status,
        };
        life.beat();
        if role != "grandchild" {
            for (pid, hold) in others(wretch) {
                writeln!(life.text, "met {pid} {hold}").expect("a String");
            }
        }
        life
    }

    fn beat(&mut self) {
        self.write(&format!("beat {}\n", now()));
    }

    fn end(&mut self) {
        let end = now();
        writeln!(self.text, "end {end} {}", self.status).expect("a String");
        self.write(&format!("beat {end}\n"));
    }

    /// In one write, so that who is killed leaves the old text or the new one.
    fn write(&self, beat: &str) {
        self.file
            .write_all_at(format!("{}{beat}", self.text).as_bytes(), 0)
            .expect("a stamp");
    }
}

/// Living processes of other holds of the same name; one that is stopped is alive.
fn others(wretch: &Wretch) -> Vec<(String, String)> {
    let program = env::args().next().expect("a name");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !pid.starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        let Ok(line) = fs::read_to_string(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        let words: Vec<&str> = line.split('\0').collect();
        if let [its_program, directory, name, hold, ..] = words[..]
            && its_program == program
            && directory == wretch.directory
            && name == wretch.name
            && hold != wretch.hold
            && alive(&pid)
        {
            found.push((pid, hold.to_owned()));
        }
    }
    found
}

fn alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Until the memory that it was allowed is gone, or half a gigabyte where nobody has set a limit.
fn gorge() {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    for _ in 0..512 {
        eaten.push(vec![1; 1 << 20]);
    }
    black_box(&eaten);
}

fn now() -> u64 {
    let time = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock"));
    u64::try_from(time.as_nanos()).expect("a time")
}
