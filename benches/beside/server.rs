//! `server`: what a call costs etcd, whatever it costs the machine that calls: the base of all arithmetic for fleets.

use crate::calm::Others;
use crate::children::Household;
use crate::contender::{Contender, found, silent};
use crate::harness::meshlock;
use crate::site::Site;
use crate::table::{Samples, Table, figure, milliseconds};
use std::path::Path;

#[derive(clap::Args)]
#[group(skip)] // its name would be another section's
pub(crate) struct Arguments {
    /// server: how often each is called
    #[arg(long, value_name = "N", default_value_t = 200)]
    calls: usize,
}

/// Not counted, as each run makes room for its record only once there are as many as are kept.
const WARM_UP: usize = 25;
/// Calls for which the machine should be ours.
const BLOCK: usize = 20;
/// Long enough that a hold is watched.
const A_WHILE: &str = "0.1";

pub(crate) fn measure(arguments: &Arguments) {
    for start in [Site::plain, Site::mutual_tls] {
        serve(&start(1), arguments.calls);
    }
}

fn serve(site: &Site, times: usize) {
    // Somebody else's entry, which is never renewed.
    site.cluster.members[0].put("meshlock/lock/taken/1f", "");
    let (truth, sleep) = ([found(Path::new("true"))], found(Path::new("sleep")));
    let nap = [sleep, A_WHILE.into()];
    let of_meshlock = |words: &[&str]| {
        let mut call = silent(meshlock::binary());
        call.arg(words[0])
            .arg(format!("--endpoints={}", site.endpoints()))
            .args(site.access())
            .args(&words[1..]);
        call
    };
    let mut calls = [
        ("meshlock run", Contender::Meshlock.call(site, "free", &truth), 0),
        (
            "nothing, for a tenth of a second",
            Contender::Bare.call(site, "nap", &nap),
            0,
        ),
        (
            "meshlock run, of a tenth of a second",
            Contender::Meshlock.call(site, "nap", &nap),
            0,
        ),
        (
            "meshlock run -n, contended",
            of_meshlock(&["run", "-n", "taken", "--", "true"]),
            75,
        ),
        ("meshlock status NAME", of_meshlock(&["status", "free"]), 0),
        ("etcdctl lock", Contender::Etcdctl.call(site, "free", &truth), 0),
    ];
    let household = Household::now();
    let (servers, mut others) = (site.servers(), Others::new());
    let mut table = Table::new([&*site.title, "etcd's CPU, ms", "messages to etcd"]);
    for (title, call, status) in &mut calls {
        let mut block = |calls: usize| {
            let messages = site.messages();
            let cpu = site.cpu();
            for _ in 0..calls {
                household.time(call, *status);
            }
            let cpu = site.cpu().saturating_sub(cpu);
            let calls = f64::from(u32::try_from(calls).expect("some calls"));
            (milliseconds(cpu) / calls, (site.messages() - messages) / calls)
        };
        block(WARM_UP);
        let (mut cpu, mut messages) = (Samples::new(), Samples::new());
        for _ in 0..times.div_ceil(BLOCK) {
            let each = others.avoid(&servers, || block(BLOCK));
            cpu.push(each.0);
            messages.push(each.1);
        }
        table.row([(*title).to_owned(), figure(cpu.median()), figure(messages.median())]);
    }
    println!("\n{table}\n{}", others.account());
}
