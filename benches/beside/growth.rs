//! `growth`: what runs leave in etcd, which keeps all history until it is compacted: by one name used again and
//! again, and by a new name for each run.

use crate::children::Household;
use crate::client::Connected;
use crate::contender::{Contender, found};
use crate::site::Site;
use crate::table::{Table, figure};
use std::path::Path;

#[derive(clap::Args)]
#[group(skip)] // its name would be another section's
pub(crate) struct Arguments {
    /// growth: after how many runs to look; after the last etcd is compacted
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1000, 10000])]
    runs: Vec<usize>,
}

/// Orphans are reaped after so many runs.
const BATCH: usize = 20;

pub(crate) fn measure(arguments: &Arguments) {
    let mut table = Table::new(["who", "names", "runs", "database, MiB", "keys left", "compacted, MiB"]);
    for (contender, fresh) in [
        (Contender::Meshlock, false),
        (Contender::Meshlock, true),
        // Leaves nothing by either.
        (Contender::Etcdctl, false),
    ] {
        grow(contender, fresh, &arguments.runs, &mut table);
    }
    println!("\n{table}");
}

fn grow(contender: Contender, fresh: bool, milestones: &[usize], table: &mut Table) {
    let site = Site::plain(1);
    let mut connected = Connected::to(&site);
    let household = Household::now();
    let command = [found(Path::new("true"))];
    let etcd = &site.cluster.members[0];
    let mebibytes = || figure(etcd.metric("etcd_mvcc_db_total_size_in_bytes", "") / f64::from(1 << 20));
    let mut done = 0;
    for &runs in milestones {
        while done < runs {
            let lock = if fresh {
                format!("grown-{done}")
            } else {
                "grown".to_owned()
            };
            let status = contender.call(&site, &lock, &command).status().expect("a call");
            assert!(status.success(), "a call ended by {status}");
            done += 1;
            if done % BATCH == 0 {
                household.alone();
            }
        }
        household.alone();
        connected.written();
        let (total, keys) = (mebibytes(), connected.count(""));
        let alive = if Some(&runs) == milestones.last() {
            connected.compact();
            mebibytes()
        } else {
            "-".to_owned()
        };
        let names = if fresh { "a new one each" } else { "one" };
        table.row([
            contender.title(),
            names,
            &runs.to_string(),
            &total,
            &keys.to_string(),
            &alive,
        ]);
    }
}
