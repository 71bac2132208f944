//! `history`: what a run costs where etcd still has all that earlier runs of the same name put and deleted, and once
//! that is compacted.

use crate::calm::Others;
use crate::children::Household;
use crate::client::Connected;
use crate::contender::{Contender, found};
use crate::site::Site;
use crate::table::{Samples, Table, figure, milliseconds};
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
#[group(skip)] // its name would be another section's
pub(crate) struct Arguments {
    /// history: after how many runs of one name to look; after the last etcd is compacted
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [0, 1000, 10_000, 50_000])]
    past: Vec<usize>,
    /// history: run them, which takes a quarter of an hour; else the keys that they would put and delete are, many
    /// at once
    #[arg(long)]
    called: bool,
}

const NAME: &str = "past";
/// Of each, in turn.
const ROUNDS: usize = 40;
/// Not counted: until files are cached, and all the run records are there that are kept.
const WARM_UP: usize = 25;
/// Orphans are reaped after so many runs.
const BATCH: usize = 20;

/// In milliseconds.
struct Cost {
    wall: Samples,
    server: Samples,
}

pub(crate) fn measure(arguments: &Arguments) {
    let site = Site::plain(1);
    let mut connected = Connected::to(&site);
    let mut others = Others::new();
    let mut table = Table::new([
        "runs before",
        "meshlock, ms",
        "90 % below",
        "etcd's CPU, ms",
        "etcdctl lock, ms",
        "90 % below",
        "etcd's CPU, ms",
    ]);
    let command = [found(Path::new("true"))];
    let mut calls = Contender::ON_ETCD.map(|contender| contender.call(&site, NAME, &command));
    block(&site, &mut calls, WARM_UP);
    let mut done = 0;
    for &runs in &arguments.past {
        let more = runs.saturating_sub(done);
        done += more;
        for (contender, call) in Contender::ON_ETCD.into_iter().zip(&mut calls) {
            if arguments.called {
                run(call, more);
            } else {
                let keys: Vec<String> = (0..more).flat_map(|_| contender.passing(NAME)).collect();
                connected.come_and_go(&keys);
            }
        }
        let costs = others.avoid(&site.servers(), || block(&site, &mut calls, ROUNDS));
        row(&mut table, &runs.to_string(), &costs);
    }
    connected.compact();
    let costs = others.avoid(&site.servers(), || block(&site, &mut calls, ROUNDS));
    row(&mut table, "the same, compacted", &costs);
    println!("\n{table}\n{}", others.account());
}

fn run(call: &mut Command, times: usize) {
    let household = Household::now();
    for done in 1..=times {
        let status = call.status().expect("a call");
        assert!(status.success(), "a call ended by {status}");
        if done % BATCH == 0 || done == times {
            household.alone();
        }
    }
}

fn block(site: &Site, calls: &mut [Command; 2], rounds: usize) -> [Cost; 2] {
    let household = Household::now();
    let mut costs = [const { Cost::new() }; 2];
    for _ in 0..rounds {
        for (call, cost) in calls.iter_mut().zip(&mut costs) {
            let before = site.cpu();
            cost.wall.time(household.time(call, 0).wall);
            cost.server.push(milliseconds(site.cpu().saturating_sub(before)));
        }
    }
    costs
}

fn row(table: &mut Table, title: &str, [meshlock, etcdctl]: &[Cost; 2]) {
    table.row([
        title.to_owned(),
        figure(meshlock.wall.median()),
        figure(meshlock.wall.p90()),
        figure(meshlock.server.median()),
        figure(etcdctl.wall.median()),
        figure(etcdctl.wall.p90()),
        figure(etcdctl.server.median()),
    ]);
}

impl Cost {
    const fn new() -> Self {
        Self {
            wall: Samples::new(),
            server: Samples::new(),
        }
    }
}
