//! One hold whose command notes every signal, and which is closed only if nothing at all disturbed it.

use crate::harness::etcd::{Client, lease_of};
use crate::harness::{Meshlock, Running, eventually, observer, proc, so};
use nix::sys::signal::Signal;
use std::time::Duration;

/// What the holds of the lab ask for; the least that meshlock takes is 4 s.
pub(crate) const TTL: Duration = Duration::from_secs(10);
pub(crate) const GRACE: Duration = Duration::from_secs(2);
/// From the deadline to the earliest end of such a lease.
pub(crate) const MARGIN: Duration = Duration::from_secs(1);

/// A status that nothing but the command itself ends with.
const OWN_STATUS: i32 = 7;

/// A hold that was taken.
#[must_use]
pub(crate) struct Hold {
    running: Running,
    name: String,
    key: String,
    token: i64,
    command: i32,
}

impl Hold {
    #[track_caller]
    pub(crate) fn take(endpoints: &str, options: &[String], name: &str) -> Self {
        let mut running = Meshlock::run_at(endpoints, name)
            .args([
                format!("--ttl={}", TTL.as_secs()),
                format!("--grace={}", GRACE.as_secs()),
            ])
            .args(options)
            .sh(&format!(
                "echo $MESHLOCK_HELD_KEY $MESHLOCK_HELD_TOKEN; {}; exit {OWN_STATUS}",
                listener()
            ))
            .start();
        running.wait_for_stdout("ready ");
        let said = eventually("a whole line", || {
            Some(running.stdout()).filter(|said| said.ends_with('\n'))
        });
        let words: Vec<&str> = said.split_whitespace().collect();
        let [key, token, "ready", command] = words[..] else {
            panic!("{said:?}")
        };
        Self {
            name: name.to_owned(),
            key: key.to_owned(),
            token: token.parse().expect("a token"),
            command: command.parse().expect("a pid"),
            running,
        }
    }

    /// The process that the user started.
    pub(crate) fn guardian(&self) -> i32 {
        self.running.pid()
    }

    /// Has the command end by itself. The entry has stood all the time, nothing was said, no signal came, the
    /// command's own status came out, and nothing of the hold is left.
    #[track_caller]
    pub(crate) fn end(self, reader: &Client) {
        // A key that was away for a moment would have another create revision.
        let found = reader.json(&["get", &self.key]);
        let created = found
            .pointer("/kvs/0/create_revision")
            .and_then(serde_json::Value::as_i64);
        let said = self.running.stdout() + &self.running.stderr();
        assert_eq!(created, Some(self.token), "{}'s entry; it said: {said}", self.name);
        proc::signal(self.command, Signal::SIGUSR2);
        let undisturbed = format!("{} {}\nready {}\nSIGUSR2\n", self.key, self.token, self.command);
        self.running.finish().stdout(undisturbed).status(OWN_STATUS);
        let lease = lease_of(&self.key);
        let of_the_hold = |key: &String| lease_of(key) == lease;
        for kind in ["lock", "open", "ask"] {
            let left = reader.keys(&format!("meshlock/{kind}/{}/", self.name));
            assert!(!left.iter().any(of_the_hold), "left: {left:?}");
        }
        eventually("the lease is gone", || so(!reader.leases().iter().any(of_the_hold)));
    }
}

/// For a shell: says `ready` and its pid, then each signal, and ends with USR2.
pub(crate) fn listener() -> String {
    format!("\"{}\" signals", observer::helper().display())
}
