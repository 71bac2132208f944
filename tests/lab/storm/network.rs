//! The ground of the storm: one network namespace for each member, for each client host and for the lab
//! itself, joined by a bridge; where these cannot be had, the loopback with a proxy on each line. A namespace
//! has no name and no holder but our descriptor and the processes in it, so nothing is left to clean up when
//! the lab and what it started are gone, however they went. Knows no etcd and no faults.

use crate::harness::{Proxy, etcd::free_port};
use nix::sched::{CloneFlags, setns, unshare};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::process::{self, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

pub(super) const MEMBERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Host {
    /// Where the lab's own etcdctl and the proxies are.
    Hub,
    Member(usize),
    Client(usize),
}

/// What does not arrive at `to`, of all that `from` sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Barrier {
    pub(super) to: Host,
    pub(super) from: Host,
    pub(super) percent: u8,
}

pub(super) struct Network {
    ground: Ground,
    clients: usize,
    barriers: Mutex<BTreeMap<u32, Barrier>>,
    /// Client hosts that reach etcd through proxies of their own, which can be slow, and reset: with namespaces
    /// the last one alone.
    lines: BTreeMap<usize, Vec<Proxy>>,
}

enum Ground {
    Namespaces(BTreeMap<Host, File>),
    Loopback {
        why: String,
        ports: Vec<(u16, u16)>,
        between: Vec<Proxy>,
    },
}

impl Network {
    /// The calling thread, and whatever it starts, is in the hub from here on.
    pub(super) fn build(clients: usize, loopback: bool) -> Self {
        let spaces = if loopback {
            Err("as asked for".to_owned())
        } else {
            namespaces(clients)
        };
        let ground = spaces.unwrap_or_else(|why| {
            let ports: Vec<(u16, u16)> = (0..MEMBERS).map(|_| (free_port(), free_port())).collect();
            let between = ports.iter().map(|(_, peer)| Proxy::to(*peer)).collect();
            Ground::Loopback { why, ports, between }
        });
        let mut network = Self {
            ground,
            clients,
            barriers: Mutex::default(),
            lines: BTreeMap::new(),
        };
        network.enter(Host::Hub);
        let behind_proxies = if network.can_lose() {
            clients - 1..clients
        } else {
            0..clients
        };
        for client in behind_proxies {
            let lines = (0..MEMBERS).map(|member| match &network.ground {
                Ground::Namespaces(_) => Proxy::between(ip(Host::Hub), (ip(Host::Member(member)), 2379).into()),
                Ground::Loopback { ports, .. } => Proxy::to(ports[member].0),
            });
            let lines = lines.collect();
            network.lines.insert(client, lines);
        }
        network
    }

    /// For the reader of the results.
    pub(super) fn describe(&self) -> String {
        match &self.ground {
            Ground::Namespaces(spaces) => format!("{} network namespaces on a bridge", spaces.len()),
            Ground::Loopback { why, .. } => format!("proxies on the loopback, no packet loss ({why})"),
        }
    }

    pub(super) const fn can_lose(&self) -> bool {
        matches!(self.ground, Ground::Namespaces(_))
    }

    pub(super) const fn clients(&self) -> usize {
        self.clients
    }

    /// Moves the calling thread, and whatever it starts from now on, to a host.
    pub(super) fn enter(&self, host: Host) {
        if let Ground::Namespaces(spaces) = &self.ground {
            setns(&spaces[&host], CloneFlags::CLONE_NEWNET).expect("our own namespace");
        }
    }

    /// Does something at a host.
    pub(super) fn at<T: Send>(&self, host: Host, what: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                self.enter(host);
                what()
            });
            there.join().expect("no panic")
        })
    }

    /// Where a member listens: for clients, for peers, and where peers are to look for it.
    pub(super) fn urls(&self, member: usize) -> [String; 3] {
        match &self.ground {
            Ground::Namespaces(_) => {
                let ip = ip(Host::Member(member));
                [
                    format!("http://{ip}:2379"),
                    format!("http://{ip}:2380"),
                    format!("http://{ip}:2380"),
                ]
            }
            Ground::Loopback { ports, between, .. } => [
                format!("http://127.0.0.1:{}", ports[member].0),
                format!("http://127.0.0.1:{}", ports[member].1),
                between[member].endpoint(),
            ],
        }
    }

    /// The members as a client host reaches them.
    pub(super) fn endpoints(&self, client: usize) -> Vec<String> {
        match self.lines.get(&client) {
            Some(lines) => lines.iter().map(Proxy::endpoint).collect(),
            None => (0..MEMBERS).map(|member| self.urls(member)[0].clone()).collect(),
        }
    }

    /// The client hosts whose lines can be slow.
    pub(super) fn slowable(&self) -> Vec<usize> {
        self.lines.keys().copied().collect()
    }

    pub(super) fn slow_down(&self, client: usize, delay: Duration) {
        for line in &self.lines[&client] {
            line.delay(delay);
        }
    }

    /// Resets all connections of a client host.
    pub(super) fn reset(&self, client: usize) {
        for line in &self.lines[&client] {
            line.cut();
        }
    }

    pub(super) fn raise(&self, barrier: Barrier) -> u32 {
        let mut barriers = self.barriers.lock().expect("not poisoned");
        let number = barriers.last_key_value().map_or(0, |(last, _)| last + 1);
        barriers.insert(number, barrier);
        self.apply(&barriers, barrier);
        number
    }

    pub(super) fn lower(&self, number: u32) {
        let mut barriers = self.barriers.lock().expect("not poisoned");
        if let Some(barrier) = barriers.remove(&number) {
            self.apply(&barriers, barrier);
        }
    }

    /// Brings the place that `changed` concerns in line with the barriers that stand.
    fn apply(&self, barriers: &BTreeMap<u32, Barrier>, changed: Barrier) {
        match &self.ground {
            Ground::Namespaces(_) => {
                let mut rules = String::from(
                    "add table ip storm\ndelete table ip storm\nadd table ip storm\n\
                     add chain ip storm arriving { type filter hook input priority 0; }\n",
                );
                for barrier in barriers.values().filter(|barrier| barrier.to == changed.to) {
                    let chance = match barrier.percent {
                        100.. => String::new(),
                        percent => format!("numgen random mod 100 < {percent} "),
                    };
                    writeln!(
                        rules,
                        "add rule ip storm arriving ip saddr {} {chance}drop",
                        ip(barrier.from)
                    )
                    .ok();
                }
                self.at(changed.to, || nft(&rules)).expect("nft");
            }
            Ground::Loopback { between, .. } => {
                let stands = |from, to| {
                    barriers
                        .values()
                        .any(|barrier| barrier.from == from && barrier.to == to && barrier.percent >= 100)
                };
                match (changed.from, changed.to) {
                    (Host::Client(client), Host::Member(member)) | (Host::Member(member), Host::Client(client)) => {
                        let up = stands(Host::Client(client), Host::Member(member));
                        let down = stands(Host::Member(member), Host::Client(client));
                        self.lines[&client][member].hold_exactly(up, down);
                    }
                    // Streams between members carry both ways: one direction cannot be cut alone here.
                    (_, Host::Member(member)) => {
                        let cut = (0..MEMBERS).any(|from| stands(Host::Member(from), Host::Member(member)));
                        between[member].hold_exactly(cut, cut);
                    }
                    _ => {}
                }
            }
        }
    }
}

fn ip(host: Host) -> IpAddr {
    let last = match host {
        Host::Hub => 254,
        Host::Member(member) => member + 1,
        Host::Client(client) => client + 11,
    };
    IpAddr::from([10, 66, 0, u8::try_from(last).expect("few hosts")])
}

fn namespaces(clients: usize) -> Result<Ground, String> {
    let hosts = (0..MEMBERS)
        .map(Host::Member)
        .chain((0..clients).map(Host::Client))
        .chain([Host::Hub]);
    let mut spaces = BTreeMap::new();
    for host in hosts {
        let space = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(io::Error::from)?;
            File::open("/proc/thread-self/ns/net")
        });
        let space = space.join().expect("no panic");
        spaces.insert(host, space.map_err(|error| format!("no network namespace: {error}"))?);
    }
    let within = |host: &Host, script: &str| {
        let space = &spaces[host];
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                setns(space, CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string())?;
                script.split('\n').try_for_each(ip_command)
            });
            there.join().expect("no panic")
        })
    };
    within(
        &Host::Hub,
        &format!(
            "link set lo up\nlink add bridge0 type bridge\nlink set bridge0 up\naddress add {}/24 dev bridge0",
            ip(Host::Hub)
        ),
    )?;
    for (number, (host, space)) in spaces.iter().enumerate().filter(|(_, (host, _))| **host != Host::Hub) {
        // By our descriptor, since the namespace has no name.
        let place = format!("/proc/{}/fd/{}", process::id(), space.as_raw_fd());
        within(
            &Host::Hub,
            &format!(
                "link add line{number} type veth peer name line netns {place}\nlink set line{number} master bridge0\n\
                 link set line{number} up"
            ),
        )?;
        within(
            host,
            &format!(
                "link set lo up\nlink set line up\naddress add {}/24 dev line",
                ip(*host)
            ),
        )?;
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                setns(space, CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string())?;
                nft("add table ip storm\n")
            });
            there.join().expect("no panic")
        })?;
    }
    Ok(Ground::Namespaces(spaces))
}

fn ip_command(words: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(words.split(' '))
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    let told = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output
        .status
        .success()
        .then_some(())
        .ok_or(format!("ip {words}: {told}"))
}

fn nft(rules: &str) -> Result<(), String> {
    let run = || -> io::Result<process::Output> {
        let mut nft = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        nft.stdin.take().expect("a pipe").write_all(rules.as_bytes())?;
        nft.wait_with_output()
    };
    let output = run().map_err(|error| format!("nft: {error}"))?;
    let told = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or(format!("nft: {told}"))
}
