//! Each single fault that a hold is to survive, so many times: meshlock's hold is judged, and one of
//! `etcdctl lock` stands beside it in the same fault as the control.
#![expect(clippy::print_stdout, reason = "the table is what the command is for")]

mod control;
mod faults;

use faults::{FAULTS, Fault, Trial};
use std::collections::VecDeque;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How often each fault is tried.
    #[arg(long, default_value_t = 20)]
    times: usize,
    /// How many trials run at once, each on servers of its own.
    #[arg(long, default_value_t = 5)]
    lanes: usize,
    /// Only the faults with this in their names.
    #[arg(long, default_value = "", hide_default_value = true)]
    only: String,
    /// Print nothing if all were survived.
    #[arg(long)]
    quiet: bool,
}

impl Arguments {
    pub(crate) fn short() -> Self {
        Self {
            times: 1,
            lanes: 5,
            only: String::new(),
            quiet: true,
        }
    }
}

/// What was seen of one fault.
#[derive(Default)]
struct Row {
    trials: usize,
    survived: usize,
    oldest: Option<Duration>,
    /// How often `etcdctl lock` survived the same.
    control: usize,
}

pub(crate) fn run(arguments: &Arguments) {
    let began = Instant::now();
    let chosen: Vec<&Fault> = FAULTS
        .iter()
        .filter(|fault| fault.name.contains(&arguments.only))
        .collect();
    assert!(!chosen.is_empty(), "no fault has {:?} in its name", arguments.only);
    let rows: Vec<Mutex<Row>> = chosen.iter().map(|_| Mutex::default()).collect();
    let due: VecDeque<usize> = (0..arguments.times).flat_map(|_| 0..chosen.len()).collect();
    let due = Mutex::new(due);
    let next = || due.lock().expect("not poisoned").pop_front();
    thread::scope(|scope| {
        for _ in 0..arguments.lanes {
            scope.spawn(|| {
                while let Some(index) = next() {
                    let trial = catch_unwind(chosen[index].strike);
                    rows[index]
                        .lock()
                        .expect("not poisoned")
                        .count(chosen[index].name, trial);
                }
            });
        }
    });
    let rows: Vec<Row> = rows
        .into_iter()
        .map(|row| row.into_inner().expect("not poisoned"))
        .collect();
    let survived = rows.iter().all(|row| row.survived == arguments.times);
    if !(arguments.quiet && survived) {
        println!("A hold with a TTL of 10 s and a grace of 2 s; a renewal 7 s old would stop the command.\n");
        println!(
            "{:58} {:>9} {:>15} {:>13}",
            "fault", "survived", "oldest renewal", "etcdctl lock"
        );
        for (fault, row) in chosen.iter().zip(&rows) {
            row.print(fault.name);
        }
        println!("\n{} trials in {:.0?}", arguments.times * chosen.len(), began.elapsed());
    }
    assert!(survived, "not every fault was survived");
}

impl Row {
    fn count(&mut self, name: &str, trial: thread::Result<Trial>) {
        self.trials += 1;
        let Ok(trial) = trial else {
            println!("{name}: this trial never came to the fault");
            return;
        };
        if !trial.survived {
            println!("{name}: this hold was disturbed");
        }
        self.survived += usize::from(trial.survived);
        self.control += usize::from(trial.control);
        self.oldest = self.oldest.max(trial.oldest);
    }

    fn print(&self, name: &str) {
        let oldest = self
            .oldest
            .map_or_else(|| "?".to_owned(), |age| format!("{:.2} s", age.as_secs_f64()));
        println!(
            "{name:58} {:>9} {oldest:>15} {:>13}",
            format!("{} of {}", self.survived, self.trials),
            format!("{} of {}", self.control, self.trials)
        );
    }
}
