//! `memory`: what waiters and holders take of it beside their commands, as proportional set sizes: pages that several
//! share count for each in part.

use crate::children::programs;
use crate::client::Connected;
use crate::contender::Contender;
use crate::queue::{Arguments, Queue};
use crate::site::Site;
use crate::table::{Samples, Table, figure};
use std::fs;
use std::time::Duration;

/// Looked at, of more than that.
const LOOKED_AT: usize = 20;

pub(crate) fn measure(arguments: &Arguments) {
    let site = Site::plain(1);
    let mut connected = Connected::to(&site);
    let mut table = Table::new(["waiters", "who", "a waiter, MiB", "90 % below", "the holder, MiB"]);
    for &waiters in &arguments.waiters {
        let rows = Contender::ON_ETCD.map(|contender| {
            let queue = Queue::park(contender, &site, &mut connected, waiters, Duration::ZERO);
            let processes = programs(&queue.calls);
            let (holder, waiting) = processes.split_first().expect("a holder");
            let mut sizes = Samples::new();
            sizes.extend(
                waiting
                    .iter()
                    .step_by(waiters.div_ceil(LOOKED_AT).max(1))
                    .map(|processes| size(processes)),
            );
            let row = (sizes.median(), sizes.p90(), size(holder));
            queue.work_off();
            table.row([
                waiters.to_string(),
                contender.title().to_owned(),
                figure(row.0),
                figure(row.1),
                figure(row.2),
            ]);
            row
        });
        let [meshlock, etcdctl] = rows;
        table.row([
            waiters.to_string(),
            "meshlock : etcdctl".to_owned(),
            figure(meshlock.0 / etcdctl.0),
            figure(meshlock.1 / etcdctl.1),
            figure(meshlock.2 / etcdctl.2),
        ]);
    }
    println!("\n{table}");
}

/// Of all its processes, in MiB.
fn size(processes: &[i32]) -> f64 {
    let kib: u32 = processes.iter().copied().map(proportional).sum();
    f64::from(kib) / 1024.0
}

/// In KiB.
fn proportional(pid: i32) -> u32 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("its memory");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let figure = line.and_then(|line| line.split_whitespace().next());
    figure.expect("a size").parse().expect("a number")
}
