//! `handover`: from the end of one command to the start of the next, by the commands' own clocks. flock(1) needs
//! nobody else for it, so that what is over its time is the price of a lock among machines.

use crate::calm::Others;
use crate::client::Connected;
use crate::contender::Contender;
use crate::queue::{Arguments, Queue, Stamp};
use crate::site::Site;
use crate::table::{Samples, Table, figure, milliseconds};
use std::time::Duration;

const CONTENDERS: [Contender; 3] = [Contender::Meshlock, Contender::Etcdctl, Contender::Flock];

pub(crate) fn measure(arguments: &Arguments) {
    let site = Site::plain(1);
    let mut connected = Connected::to(&site);
    let mut others = Others::new();
    let mut table = Table::new([
        "waiters",
        "who",
        "handover, ms",
        "90 % below",
        "over flock's, ms",
        "that : etcdctl's",
        "measured",
    ]);
    for &waiters in &arguments.waiters {
        let mut samples = [const { Samples::new() }; CONTENDERS.len()];
        for _ in 0..arguments.handovers.div_ceil(waiters.max(1)) {
            for (contender, samples) in CONTENDERS.into_iter().zip(&mut samples) {
                let stay = Duration::from_millis(arguments.stay);
                let stamps = others.avoid(&site.servers(), || {
                    Queue::park(contender, &site, &mut connected, waiters, stay).work_off()
                });
                samples.extend(handovers(contender, &stamps));
            }
        }
        let [_, etcdctl, flock] = &samples;
        let net = |samples: &Samples| samples.median() - flock.median();
        for (contender, samples) in CONTENDERS.into_iter().zip(&samples) {
            let of = |value: f64| figure(if contender == Contender::Flock { f64::NAN } else { value });
            table.row([
                waiters.to_string(),
                contender.title().to_owned(),
                figure(samples.median()),
                figure(samples.p90()),
                of(net(samples)),
                of(net(samples) / net(etcdctl)),
                samples.len().to_string(),
            ]);
        }
    }
    println!("\n{table}\n{}", others.account());
}

/// In milliseconds. The kernel promises no order to those who wait for flock's lock.
fn handovers(contender: Contender, stamps: &[Stamp]) -> impl Iterator<Item = f64> {
    if contender != Contender::Flock {
        let order = stamps.iter().map(|stamp| stamp.number);
        assert!(order.eq(0..stamps.len()), "first come, first served");
    }
    stamps.windows(2).map(|pair| {
        let between = pair[1].start.checked_sub(pair[0].end).expect("no overlap");
        milliseconds(Duration::from_nanos(between))
    })
}
