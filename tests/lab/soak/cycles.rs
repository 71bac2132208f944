//! Many clients take and release few locks, again and again.

use super::left;
use crate::harness::{Etcd, Meshlock, directory, meshlock};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Adds one to the lock's counter in two steps, between which another's addition would be lost.
const COUNT: &str = r#"read -r count <"$MESHLOCK_HELD_NAME"
sleep 0.001
echo $((count + 1)) >"$MESHLOCK_HELD_NAME"
echo "$MESHLOCK_HELD_TOKEN" >>"$MESHLOCK_HELD_NAME.tokens""#;

/// meshlock's default for `--keep`.
const KEPT: usize = 20;

pub(super) fn run(cycles: usize, clients: usize, names: usize) -> String {
    let etcd = Etcd::start();
    let (files, home) = (directory(), directory());
    let locks: Vec<String> = (1..=names).map(|number| format!("cycle-{number}")).collect();
    for lock in &locks {
        fs::write(files.join(lock), "0\n").expect("a counter");
    }
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                loop {
                    let cycle = next.fetch_add(1, Ordering::Relaxed);
                    if cycle >= cycles {
                        return;
                    }
                    Meshlock::run(&etcd, &locks[cycle % names])
                        .args(["-q"])
                        .current_dir(&files)
                        .env("HOME", &home)
                        .env("TMPDIR", &home)
                        .sh(COUNT)
                        .finish()
                        .success();
                }
            });
        }
    });
    for (index, lock) in locks.iter().enumerate() {
        let due = (cycles + names - 1 - index) / names;
        assert_eq!(
            meshlock::read(&files.join(lock)),
            format!("{due}\n"),
            "{lock}'s counter"
        );
        assert_tokens_rise(&files.join(format!("{lock}.tokens")), due);
    }
    left::assert_records_only(&etcd, &locks, KEPT.min(cycles / names));
    left::assert_no_lease_ran_out(&etcd);
    assert_eq!(entries(&files), 2 * names, "files in the working directory");
    assert_eq!(entries(&home), 0, "files at home");
    format!(
        "{cycles} cycles by {clients} clients on {names} names: counters exact, tokens rising; left in etcd: {} run \
         records and no lease",
        etcd.keys("").len()
    )
}

fn assert_tokens_rise(file: &Path, count: usize) {
    let tokens: Vec<i64> = meshlock::read(file)
        .lines()
        .map(|line| line.parse().expect("a token"))
        .collect();
    assert_eq!(tokens.len(), count, "{}", file.display());
    assert!(tokens.is_sorted_by(|one, next| one < next), "{}", file.display());
}

fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).expect("a directory").count()
}
