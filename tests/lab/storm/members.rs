//! The three etcd members of the storm, each at its own host, and what etcdctl says of them. Knows no faults:
//! who hurts a member says so, and whether it may be hurt now.

use super::network::{Host, MEMBERS, Network};
use super::record::Record;
use crate::harness::{clean, directory, etcd::program, eventually, proc, so};
use nix::sys::signal::Signal;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(super) struct Members {
    running: Vec<Option<Child>>,
    directory: PathBuf,
    /// For etcdctl at the hub.
    endpoints: Vec<String>,
}

impl Members {
    pub(super) fn start(network: &Network) -> Self {
        let mut members = Self {
            running: (0..MEMBERS).map(|_| None).collect(),
            directory: directory(),
            endpoints: (0..MEMBERS).map(|member| network.urls(member)[0].clone()).collect(),
        };
        for member in 0..MEMBERS {
            members.launch(network, member);
        }
        eventually("three healthy members", || so(members.healthy()));
        members
    }

    /// The same member with the same data.
    pub(super) fn launch(&mut self, network: &Network, member: usize) {
        let [client, peer, advertised] = network.urls(member);
        let peers: Vec<String> = (0..MEMBERS)
            .map(|other| format!("m{other}={}", network.urls(other)[2]))
            .collect();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.directory.join(format!("m{member}.log")))
            .expect("etcd's log");
        let mut command = clean(program("MESHLOCK_TEST_ETCD", "etcd"));
        command
            // etcd 3.4 starts on ARM only if told to; elsewhere it does not look.
            .env("ETCD_UNSUPPORTED_ARCH", "arm64")
            .args([
                format!("--name=m{member}"),
                format!("--data-dir={}", self.directory.join(format!("m{member}")).display()),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={advertised}"),
                format!("--initial-cluster={}", peers.join(",")),
            ])
            // Short, so that a storm has many elections; not so short that a busy machine holds them by itself.
            .args(["--heartbeat-interval=50", "--election-timeout=500"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("etcd's log"))
            .stderr(log);
        let child = network.at(Host::Member(member), || command.spawn().expect("etcd"));
        self.running[member] = Some(child);
    }

    pub(super) fn pid(&self, member: usize) -> Option<i32> {
        self.running[member].as_ref().map(|child| child.id().cast_signed())
    }

    pub(super) fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.running[member].take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    pub(super) fn signal(&self, member: usize, signal: Signal) {
        if let Some(pid) = self.pid(member) {
            proc::signal(pid, signal);
        }
    }

    /// Who leads, by its own word, of those that answer.
    pub(super) fn leader(&self) -> Option<usize> {
        (0..MEMBERS).find(|member| {
            let status = self.status(*member);
            let field = |path| status.as_ref().and_then(|status| status.pointer(path)).cloned();
            let leader = field("/0/Status/leader");
            leader.is_some() && leader == field("/0/Status/header/member_id")
        })
    }

    /// A member's id, as it tells.
    pub(super) fn id(&self, member: usize) -> Option<u64> {
        self.status(member)?.pointer("/0/Status/header/member_id")?.as_u64()
    }

    fn status(&self, member: usize) -> Option<serde_json::Value> {
        let text = self.etcdctl_at(&[member], &["endpoint", "status", "--write-out=json"])?;
        serde_json::from_str(&text).ok()
    }

    pub(super) fn etcdctl(&self, arguments: &[&str]) -> Option<String> {
        self.etcdctl_at(&[0, 1, 2], arguments)
    }

    /// What etcdctl prints, if it comes to anything: this is a storm.
    pub(super) fn etcdctl_at(&self, members: &[usize], arguments: &[&str]) -> Option<String> {
        let mut command = self.etcdctl_command(members);
        let output = command
            .args(["--command-timeout=1s", "--dial-timeout=1s"])
            .args(arguments)
            .output()
            .expect("etcdctl");
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(super) fn etcdctl_command(&self, members: &[usize]) -> Command {
        let endpoints: Vec<&str> = members.iter().map(|member| &*self.endpoints[*member]).collect();
        let mut command = clean(program("MESHLOCK_TEST_ETCDCTL", "etcdctl"));
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", endpoints.join(",")));
        command
    }

    pub(super) fn keys(&self, prefix: &str) -> Option<Vec<String>> {
        let text = self.etcdctl(&["get", "--prefix", "--keys-only", "--sort-by=CREATE", "--", prefix])?;
        Some(
            text.lines()
                .filter(|line| !line.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    pub(super) fn leases(&self) -> Option<Vec<String>> {
        let text = self.etcdctl(&["lease", "list"])?;
        Some(text.lines().skip(1).map(str::to_owned).collect())
    }

    /// All three answer a write.
    fn healthy(&self) -> bool {
        (0..MEMBERS).all(|member| self.etcdctl_at(&[member], &["put", "calm", ""]).is_some())
    }

    /// Waits for it; one that has ended by itself is started again, which is told.
    pub(super) fn wait_for_calm(&mut self, network: &Network, record: &Record) {
        eventually("three healthy members", || {
            for member in 0..MEMBERS {
                let ended = |child: &mut Child| child.try_wait().expect("its state").is_some();
                if self.running[member].as_mut().is_none_or(ended) {
                    record.say(format!("m{member} had ended by itself"));
                    self.launch(network, member);
                }
            }
            let healthy = self.healthy();
            if !healthy {
                // One that was asked for long ago may have been raised only now.
                self.etcdctl(&["alarm", "disarm"]);
            }
            so(healthy)
        });
    }

    pub(super) fn version(&self) -> String {
        let status = self.status(0);
        let version = status.as_ref().and_then(|status| status.pointer("/0/Status/version"));
        version.and_then(|version| version.as_str()).unwrap_or("?").to_owned()
    }

    /// One etcd API call that etcdctl does not have, by the gateway that etcd has for such as us.
    pub(super) fn post(&self, member: usize, path: &str, body: &str) -> Option<String> {
        use std::io::{Read as _, Write as _};
        let address = self.endpoints[member].trim_start_matches("http://");
        let address = address.parse().expect("an address");
        let patience = Duration::from_secs(1);
        let mut stream = std::net::TcpStream::connect_timeout(&address, patience).ok()?;
        stream.set_read_timeout(Some(patience)).ok()?;
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.contains("200 OK").then_some(answer)
    }

    pub(super) fn logs(&self) -> Vec<PathBuf> {
        (0..MEMBERS)
            .map(|member| self.directory.join(format!("m{member}.log")))
            .collect()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for member in 0..MEMBERS {
            self.kill(member);
        }
    }
}
