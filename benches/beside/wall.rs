//! `wall`: the time and CPU of taking a free lock, running `true` and letting go, beside what nobody can save.

use crate::calm::Others;
use crate::children::{Household, Took};
use crate::client::Connected;
use crate::contender::{Contender, etcdctl, found, silent};
use crate::harness::meshlock;
use crate::site::Site;
use crate::table::{Samples, Table, figure};
use std::path::Path;

#[derive(clap::Args)]
#[group(skip)] // its name would be another section's
pub(crate) struct Arguments {
    /// wall: how often each is called
    #[arg(long, value_name = "N", default_value_t = 200)]
    rounds: usize,
}

/// Not counted: until files are cached, and each run makes room for its record as all later ones do.
const WARM_UP: usize = 25;
/// Rounds for which the machine should be ours.
const BLOCK: usize = 20;

const CONTENDERS: [Contender; 4] = [
    Contender::Meshlock,
    Contender::Etcdctl,
    Contender::Flock,
    Contender::Bare,
];

/// In milliseconds.
struct Cost {
    wall: Samples,
    cpu: Samples,
}

pub(crate) fn measure(arguments: &Arguments) {
    starts(arguments.rounds);
    for start in [Site::plain, Site::mutual_tls] {
        for members in [1, 3] {
            free_lock(&start(members), arguments.rounds);
        }
    }
}

/// What programs take that only start and read their arguments.
fn starts(rounds: usize) {
    let household = Household::now();
    let call = |program: &Path, arguments: &[&str]| {
        let mut call = silent(program);
        call.args(arguments);
        call
    };
    let meshlock = meshlock::binary();
    let mut calls = [
        ("`true`", call(&found(Path::new("true")), &[]), 0),
        ("`meshlock --version`", call(meshlock, &["--version"]), 0),
        (
            "`meshlock run -n --bogus`",
            call(meshlock, &["run", "-n", "--bogus"]),
            64,
        ),
        ("`etcdctl version`", call(&etcdctl(), &["version"]), 0),
    ];
    let mut block = |rounds: usize| -> Vec<_> {
        let round = |_| calls.each_mut().map(|(_, call, status)| household.time(call, *status));
        (0..rounds).map(round).collect()
    };
    block(WARM_UP);
    let mut others = Others::new();
    let mut costs = [const { Cost::new() }; 4];
    for _ in 0..rounds.div_ceil(BLOCK) {
        for took in others.avoid(&[], || block(BLOCK)) {
            add(&mut costs, &took);
        }
    }
    let mut table = table("start and arguments alone");
    for ((title, ..), cost) in calls.iter().zip(&costs) {
        table.row(cost.cells(title));
    }
    println!("\n{table}\n{}", others.account());
}

fn free_lock(site: &Site, rounds: usize) {
    let household = Household::now();
    let command = [found(Path::new("true"))];
    let mut calls = CONTENDERS.map(|contender| contender.call(site, "free", &command));
    let mut connected = Connected::to(site);
    let mut block = |rounds: usize| -> Vec<_> {
        let round = |_| {
            (
                calls.each_mut().map(|call| household.time(call, 0)),
                connected.cycle("free"),
            )
        };
        (0..rounds).map(round).collect()
    };
    block(WARM_UP);
    let (servers, mut others) = (site.servers(), Others::new());
    let mut costs = [const { Cost::new() }; CONTENDERS.len()];
    let (mut floor, mut revoke) = (Cost::new(), Cost::new());
    for _ in 0..rounds.div_ceil(BLOCK) {
        for (took, cycle) in others.avoid(&servers, || block(BLOCK)) {
            add(&mut costs, &took);
            floor.wall.time(cycle.lock);
            revoke.wall.time(cycle.revoke);
        }
    }
    let mut table = table(&site.title);
    for (contender, cost) in CONTENDERS.iter().zip(&costs) {
        table.row(cost.cells(contender.title()));
    }
    table.row(floor.cells("the requests alone, on a kept connection"));
    table.row(revoke.cells("LeaseRevoke, after the exit"));
    let [meshlock, etcdctl, _, bare] = &costs;
    table.row([
        "meshlock : etcdctl".to_owned(),
        figure(meshlock.wall.median() / etcdctl.wall.median()),
        figure(meshlock.wall.p90() / etcdctl.wall.p90()),
        figure(meshlock.cpu.median() / etcdctl.cpu.median()),
    ]);
    let own = |cost: &Cost| figure(cost.wall.median() - bare.wall.median() - floor.wall.median());
    let title = "over the command and the requests: meshlock, etcdctl";
    table.row([title, &own(meshlock), &own(etcdctl), "-"]);
    println!("\n{table}\n{}", others.account());
}

fn add<const N: usize>(costs: &mut [Cost; N], took: &[Took; N]) {
    for (cost, took) in costs.iter_mut().zip(took) {
        cost.wall.time(took.wall);
        cost.cpu.time(took.cpu);
    }
}

fn table(what: &str) -> Table {
    Table::new([what, "wall, ms", "90 % below", "user + system, ms"])
}

impl Cost {
    const fn new() -> Self {
        Self {
            wall: Samples::new(),
            cpu: Samples::new(),
        }
    }

    fn cells(&self, title: &str) -> [String; 4] {
        [
            title.to_owned(),
            figure(self.wall.median()),
            figure(self.wall.p90()),
            figure(self.cpu.median()),
        ]
    }
}
