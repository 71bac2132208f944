//! A hold of `etcdctl lock`, whose command is the same as that of meshlock's: what became of the two.

use crate::harness::etcd::Client;
use crate::harness::{MARK, clean, directory, mark, meshlock, proc, so, tick};
use crate::hold::{TTL, listener};
use nix::sys::signal::Signal;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

pub(super) struct Control {
    child: Child,
    mark: String,
    stdout: PathBuf,
    /// Where it came to hold the lock at all.
    taken: Option<Taken>,
}

struct Taken {
    key: String,
    token: i64,
    command: i32,
}

/// How long etcdctl may take to get the lock, and to end after its command.
const BOUND: Duration = Duration::from_secs(30);

impl Control {
    #[track_caller]
    pub(super) fn take(endpoints: &str, options: &[String], name: &str, reader: &Client) -> Self {
        let stdout = directory().join("stdout");
        let mark = mark();
        let child = clean(reader.etcdctl_command().get_program())
            .env("ETCDCTL_API", "3")
            .env(MARK, &mark)
            .arg(format!("--endpoints={endpoints}"))
            .args(options)
            .args([
                "lock",
                name,
                &format!("--ttl={}", TTL.as_secs()),
                "--",
                "sh",
                "-c",
                &listener(),
            ])
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).expect("a file"))
            .stderr(Stdio::null())
            .spawn()
            .expect("etcdctl");
        let mut control = Self {
            child,
            mark,
            stdout,
            taken: None,
        };
        let command = control.within(|control| {
            let said = control.said();
            said.strip_prefix("ready ")?.strip_suffix('\n')?.parse().ok()
        });
        control.taken = command.map(|command| {
            let key = reader.keys(&format!("{name}/")).remove(0);
            let token = reader.created(&key);
            Taken { key, token, command }
        });
        control
    }

    /// Whether the command has run undisturbed, and under its lock all the time.
    pub(super) fn end(mut self, reader: &Client) -> bool {
        let Some(Taken { key, token, command }) = self.taken.take() else {
            return false;
        };
        let found = reader
            .etcdctl_command()
            .args(["get", "--write-out=json", &key])
            .output();
        let created = found.is_ok_and(|found| {
            let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap_or_default();
            found
                .pointer("/kvs/0/create_revision")
                .and_then(serde_json::Value::as_i64)
                == Some(token)
        });
        let running = self.child.try_wait().is_ok_and(|ended| ended.is_none());
        proc::signal(command, Signal::SIGUSR2);
        self.within(|control| so(control.child.try_wait().is_ok_and(|ended| ended.is_some())));
        created && running && self.said() == format!("ready {command}\nSIGUSR2\n")
    }

    fn within<T>(&mut self, mut truth: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        let began = Instant::now();
        while began.elapsed() < BOUND {
            if let Some(found) = truth(self) {
                return Some(found);
            }
            tick();
        }
        None
    }

    fn said(&self) -> String {
        meshlock::read(&self.stdout)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        for pid in proc::with_environment(MARK, &self.mark) {
            proc::signal(pid, Signal::SIGKILL);
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
