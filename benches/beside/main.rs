//! meshlock side by side with its peers: `etcdctl lock`, flock(1) and nothing at all, on etcd servers of the
//! bench's own. They take turns, so that what else the machine does meets all alike. Prints tables in Markdown.
//! `benches/run` is its command; under `cargo test` it does nothing, since it tests nothing.

#![expect(clippy::expect_used, reason = "a failed bench should panic")]
#![expect(clippy::print_stdout, reason = "stdout is what the bench is for")]

#[expect(dead_code, unused_imports, reason = "the tests of the promises use the rest")]
#[path = "../../tests/promises/harness/mod.rs"]
mod harness;

mod call;
mod calm;
mod children;
mod client;
mod contender;
mod growth;
mod handover;
mod held;
mod history;
mod machine;
mod memory;
mod queue;
mod server;
mod site;
mod table;
mod throughput;
mod wall;

use clap::{Parser, ValueEnum};
use std::env;
use std::path::PathBuf;

#[derive(Parser)]
#[command(name = "benches/run", args_override_self = true)]
struct Arguments {
    /// What to measure [default: all of it]
    #[arg(value_enum)]
    sections: Vec<Section>,
    /// The build to measure [default: cargo's, which is not the static one]
    #[arg(long, value_name = "PATH")]
    meshlock: Option<PathBuf>,
    #[command(flatten)]
    wall: wall::Arguments,
    #[command(flatten)]
    queues: queue::Arguments,
    #[command(flatten)]
    throughput: throughput::Arguments,
    #[command(flatten)]
    held: held::Arguments,
    #[command(flatten)]
    growth: growth::Arguments,
    #[command(flatten)]
    history: history::Arguments,
    #[command(flatten)]
    server: server::Arguments,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// The time and CPU of taking a free lock, running `true` and letting go
    Wall,
    /// What a waiter and a holder take of memory
    Memory,
    /// From the end of one command to the start of the next
    Handover,
    /// Commands in a second, where many want the same locks
    Throughput,
    /// Many locks held for long: what is lost, and what renewing costs
    Held,
    /// What runs leave in etcd
    Growth,
    /// What a run costs after many others of the same name, until etcd is compacted
    History,
    /// What a call costs etcd
    Server,
}

fn main() {
    if call::answered() || !env::args().any(|argument| argument == "--bench") {
        return;
    }
    let arguments = Arguments::parse();
    if let Some(binary) = &arguments.meshlock {
        let binary = binary.canonicalize().expect("the build to measure");
        harness::meshlock::OTHER_BINARY.set(binary).expect("set once");
    }
    children::adopt_orphans();
    println!("{}", machine::title());
    for section in Section::value_variants() {
        if !arguments.sections.is_empty() && !arguments.sections.contains(section) {
            continue;
        }
        let heading = section.to_possible_value().expect("not hidden");
        println!("\n## {}\n\nLoad before: {}.", heading.get_name(), machine::load());
        match section {
            Section::Wall => wall::measure(&arguments.wall),
            Section::Memory => memory::measure(&arguments.queues),
            Section::Handover => handover::measure(&arguments.queues),
            Section::Throughput => throughput::measure(&arguments.throughput),
            Section::Held => held::measure(&arguments.held),
            Section::Growth => growth::measure(&arguments.growth),
            Section::History => history::measure(&arguments.history),
            Section::Server => server::measure(&arguments.server),
        }
    }
}
