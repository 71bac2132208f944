//! For the trace alone: what becomes of every key, as each member tells it to `etcdctl watch`.

use super::record::{Record, WITNESSED};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Witness {
    watching: Mutex<Vec<Child>>,
    over: AtomicBool,
}

impl Witness {
    /// Listens to one member, whatever befalls it, until [`Witness::stop`]; in a thread of its own.
    pub(super) fn listen(&self, member: usize, mut etcdctl: Command, record: &Record) {
        etcdctl.args(["watch", "--prefix", ""]);
        etcdctl
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        while !self.over.load(Ordering::SeqCst) {
            let mut child = etcdctl.spawn().expect("etcdctl");
            let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            let mut watching = self.watching.lock().expect("not poisoned");
            if self.over.load(Ordering::SeqCst) {
                child.kill().ok();
            }
            watching.push(child);
            drop(watching);
            let mut what = String::new();
            for line in lines.map_while(Result::ok) {
                if line == "PUT" || line == "DELETE" {
                    what = line;
                } else if !what.is_empty() {
                    if line != "calm" {
                        record.say(format!("{WITNESSED}{what} {line}, says m{member}"));
                    }
                    what.clear();
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::SeqCst);
        for mut child in self.watching.lock().expect("not poisoned").drain(..) {
            child.kill().ok();
            child.wait().ok();
        }
    }
}
