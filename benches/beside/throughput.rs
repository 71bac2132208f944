//! `throughput`: commands run in a second by clients that want the same locks again and again.

use crate::call::again;
use crate::calm::Others;
use crate::children::Household;
use crate::contender::{Contender, found};
use crate::harness::unique;
use crate::site::Site;
use crate::table::{Samples, Table, figure};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Stdio};

#[derive(clap::Args)]
#[group(skip)] // its name would be another section's
pub(crate) struct Arguments {
    /// throughput: how long each turn lasts
    #[arg(long, value_name = "S", default_value_t = 8)]
    seconds: u64,
    /// throughput: how many turns each gets
    #[arg(long, value_name = "N", default_value_t = 3)]
    turns: usize,
}

/// Clients, and the locks among which they are dealt out.
const CROWDS: [(usize, usize); 2] = [(8, 1), (64, 16)];

pub(crate) fn measure(arguments: &Arguments) {
    let mut others = Others::new();
    let mut table = Table::new([
        "etcd",
        "clients, locks",
        "meshlock, commands a second",
        "etcdctl lock",
        "meshlock : etcdctl",
    ]);
    for members in [1, 3] {
        let site = Site::plain(members);
        for (clients, locks) in CROWDS {
            let mut rates = [const { Samples::new() }; 2];
            for _ in 0..arguments.turns {
                for (contender, rates) in Contender::ON_ETCD.into_iter().zip(&mut rates) {
                    rates.push(others.avoid(&site.servers(), || {
                        rate(contender, &site, clients, locks, arguments.seconds)
                    }));
                }
            }
            let [meshlock, etcdctl] = rates.map(|rates| rates.median());
            table.row([
                site.title.clone(),
                format!("{clients}, {locks}"),
                figure(meshlock),
                figure(etcdctl),
                figure(meshlock / etcdctl),
            ]);
        }
    }
    println!("\n{table}\n{}", others.account());
}

fn rate(contender: Contender, site: &Site, clients: usize, locks: usize, seconds: u64) -> f64 {
    let household = Household::now();
    let command = [found(Path::new("true"))];
    let crowd = unique("crowd");
    let mut clients: Vec<Child> = (0..clients)
        .map(|client| {
            let call = contender.call(site, &format!("{crowd}-{}", client % locks), &command);
            again(seconds, &call).stdout(Stdio::piped()).spawn().expect("a client")
        })
        .collect();
    // As they come, also the orphans: whoever looks through all processes must not find thousands of dead ones.
    household.reap_until_gone(&clients);
    let done: u32 = clients
        .iter_mut()
        .map(|client| {
            let mut text = String::new();
            let mut stdout = client.stdout.take().expect("a pipe");
            stdout.read_to_string(&mut text).expect("its count");
            text.trim().parse::<u32>().expect("a count")
        })
        .sum();
    f64::from(done) / f64::from(u32::try_from(seconds).expect("some seconds"))
}
