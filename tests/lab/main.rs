//! The fault lab: meshlock under everything that may befall it, judged by an observer that does not trust
//! it. `tests/lab/run` is its command; without arguments, as one of the tests, it runs each part once and short.

#![expect(clippy::expect_used, reason = "a failed run should panic")]

#[expect(dead_code, unused_imports, reason = "the tests of the promises use the rest")]
#[path = "../promises/harness/mod.rs"]
mod harness;

mod cluster;
mod hold;
mod renewals;
mod soak;
mod storm;
mod survivals;

use clap::{Parser, Subcommand};
use libtest_mimic::Trial;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "tests/lab/run")]
struct Arguments {
    /// Another build than the one that cargo has made for the tests.
    #[arg(long, global = true, value_name = "PATH")]
    binary: Option<PathBuf>,
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Random faults on three members and several clients, from a printed seed; `etcdctl lock` under the same ones.
    Storm(storm::Arguments),
    /// Each single fault that a hold is to survive, so many times.
    Survivals(survivals::Arguments),
    /// Many cycles, long holds, many kills: what is left behind.
    Soak(soak::Arguments),
}

fn main() -> ExitCode {
    // With a part it is the lab's command, without it a test like all others, with libtest's arguments.
    let by_hand = std::env::args().nth(1);
    if by_hand.is_some_and(|part| Part::has_subcommand(&part) || part == "help") {
        let arguments = Arguments::parse();
        if let Some(binary) = arguments.binary {
            let binary = binary.canonicalize().expect("the other build");
            harness::meshlock::OTHER_BINARY.set(binary).expect("set once");
        }
        match arguments.part {
            Part::Storm(arguments) => storm::run(&arguments),
            Part::Survivals(arguments) => survivals::run(&arguments),
            Part::Soak(arguments) => soak::run(&arguments),
        }
        return ExitCode::SUCCESS;
    }
    let trial = |name: &str, part: fn()| {
        Trial::test(name, move || {
            part();
            Ok(())
        })
    };
    let trials = vec![
        trial("the_judge_of_the_storm_sees_what_is_wrong", storm::check_the_judge),
        trial("a_short_storm", || storm::run(&storm::Arguments::short())),
        trial("each_survival_once", || survivals::run(&survivals::Arguments::short())),
        trial("a_short_soak", || soak::run(&soak::Arguments::short())),
    ];
    // One after the other: each part keeps the machine busy by itself.
    let arguments = libtest_mimic::Arguments {
        test_threads: Some(1),
        ..libtest_mimic::Arguments::from_args()
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}
