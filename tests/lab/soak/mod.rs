//! Many cycles, long holds, a long queue, many kills: that none is lost and what is left behind, by etcd's own
//! count and by the kernel's.
#![expect(clippy::print_stdout, reason = "the figures are what the command is for")]

mod cycles;
mod holds;
mod kills;
mod left;
mod waiters;

use std::time::{Duration, Instant};

/// 0 leaves a part out.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How often a lock is taken and released.
    #[arg(long, default_value_t = 10_000)]
    cycles: usize,
    /// By how many clients at once.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// On how many names.
    #[arg(long, default_value_t = 4)]
    names: usize,
    /// How many locks are held while all members are restarted in turn.
    #[arg(long, default_value_t = 200)]
    holds: usize,
    /// How many minutes the restarts go on; one round at least.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// How many wait for one lock.
    #[arg(long, default_value_t = 500)]
    waiters: usize,
    /// How many guardians are killed as they start, and how many keepers.
    #[arg(long, default_value_t = 1000)]
    kills: usize,
    /// Of the moments of the kills.
    #[arg(long)]
    seed: Option<u64>,
    /// Print nothing if all is well.
    #[arg(long)]
    quiet: bool,
}

impl Arguments {
    pub(crate) const fn short() -> Self {
        Self {
            cycles: 400,
            clients: 16,
            names: 4,
            holds: 20,
            minutes: 0.0,
            waiters: 30,
            kills: 30,
            seed: Some(1),
            quiet: true,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) {
    let part = |count: usize, part: &dyn Fn() -> String| {
        if count == 0 {
            return;
        }
        let began = Instant::now();
        let figures = part();
        left::assert_no_processes();
        if !arguments.quiet {
            println!("{figures} ({:.0?})", began.elapsed());
        }
    };
    part(arguments.cycles, &|| {
        cycles::run(arguments.cycles, arguments.clients, arguments.names)
    });
    part(arguments.holds, &|| {
        holds::run(arguments.holds, Duration::from_secs_f64(60.0 * arguments.minutes))
    });
    part(arguments.waiters, &|| waiters::run(arguments.waiters));
    let seed = arguments.seed.unwrap_or_else(|| std::process::id().into());
    part(arguments.kills, &|| {
        // Before anything can fail.
        if !arguments.quiet {
            println!("--seed {seed}");
        }
        kills::run(arguments.kills, seed)
    });
}
