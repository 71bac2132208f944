//! Real etcd servers on free ports of the loopback, to be hurt at will.

use super::{Proxy, clean, eventually, ground, proc, so, tick, unique};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Deref;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio, id};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// One server, and all that its [`Client`] can do.
pub(crate) struct Etcd {
    child: Child,
    arguments: Vec<String>,
    log: PathBuf,
    client: Client,
}

/// What etcdctl says of a server: a view of etcd that is not meshlock's.
#[derive(Clone)]
pub(crate) struct Client {
    scheme: &'static str,
    port: u16,
    metrics: u16,
    /// What etcdctl needs besides the endpoint: certificates, a user.
    access: Vec<String>,
}

/// Servers, mostly three, that elect a leader among them.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Etcd>,
    /// Between each member and those that speak to it.
    between: Vec<Proxy>,
}

/// What a member loses of its talk with the others.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// They do not hear it.
    pub(crate) speech: bool,
    /// It does not hear them.
    pub(crate) hearing: bool,
}

impl Cut {
    pub(crate) const BOTH_WAYS: Self = Self {
        speech: true,
        hearing: true,
    };
}

/// The TLS side of a server.
#[derive(Clone)]
pub(crate) struct ServerTls<'a> {
    pub(crate) cert: &'a Path,
    pub(crate) key: &'a Path,
    /// Whose certificates clients must show, if any.
    pub(crate) clients: Option<&'a Path>,
}

/// etcd elects within this time, and grants no lease shorter than one and a half of it. With the
/// defaults it takes a second to start.
const QUICK: [&str; 2] = ["--heartbeat-interval=10", "--election-timeout=100"];
/// Three members on two busy cores need more time, lest they depose one another all the time.
const STEADY: [&str; 2] = ["--heartbeat-interval=50", "--election-timeout=500"];

impl Etcd {
    /// One for all the tests that do not hurt it.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Etcd> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(extra: &[&str]) -> Self {
        Self::launch(extra, None)
    }

    pub(crate) fn start_tls(tls: &ServerTls<'_>) -> Self {
        Self::launch(&[], Some(tls))
    }

    fn launch(extra: &[&str], tls: Option<&ServerTls<'_>>) -> Self {
        // Somebody else may take a port between our look and etcd's: then once more.
        for _ in 0..5 {
            let ports = Ports::free();
            let name = unique("etcd");
            let mut arguments: Vec<String> = QUICK.iter().chain(extra).map(ToString::to_string).collect();
            arguments.push(format!("--initial-cluster={name}=http://127.0.0.1:{}", ports.peer));
            let peer = format!("http://127.0.0.1:{}", ports.peer);
            let mut etcd = Self::spawn(&name, &ports, &peer, arguments, tls);
            if etcd.becomes_ready() {
                return etcd;
            }
        }
        panic!("etcd does not start: is it installed? tests/run sees to it");
    }

    /// `advertised` is where the other members reach it.
    fn spawn(
        name: &str,
        ports: &Ports,
        advertised: &str,
        mut arguments: Vec<String>,
        tls: Option<&ServerTls<'_>>,
    ) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let directory = ground().directory.join(name);
        let client = format!("{scheme}://127.0.0.1:{}", ports.client);
        let peer = format!("http://127.0.0.1:{}", ports.peer);
        arguments.extend([
            format!("--name={name}"),
            format!("--data-dir={}", directory.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={advertised}"),
            // Health without certificates and users.
            format!("--listen-metrics-urls=http://127.0.0.1:{}", ports.metrics),
        ]);
        if let Some(tls) = tls {
            arguments.push(format!("--cert-file={}", tls.cert.display()));
            arguments.push(format!("--key-file={}", tls.key.display()));
            if let Some(clients) = tls.clients {
                arguments.push("--client-cert-auth".to_owned());
                arguments.push(format!("--trusted-ca-file={}", clients.display()));
            }
        }
        let log = ground().directory.join(format!("{name}.log"));
        Self {
            child: serve(&arguments, &log),
            arguments,
            log,
            client: Client {
                scheme,
                port: ports.client,
                metrics: ports.metrics,
                access: Vec::new(),
            },
        }
    }

    fn becomes_ready(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(30) {
            if self.healthy() {
                return true;
            }
            if self.child.try_wait().expect("etcd's state").is_some() {
                return false;
            }
            tick();
        }
        false
    }

    pub(crate) fn proxy(&self) -> Proxy {
        Proxy::to(self.client.port)
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn pause(&self) {
        let pid = self.pid();
        proc::signal(pid, Signal::SIGSTOP);
        eventually("etcd is stopped", || so(proc::stat(pid)?.state == 'T'));
    }

    pub(crate) fn resume(&self) {
        proc::signal(self.pid(), Signal::SIGCONT);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("etcd can be killed");
        self.child.wait().expect("etcd was killed");
    }

    /// The same ports and data once more.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = serve(&self.arguments, &self.log);
        assert!(self.becomes_ready(), "etcd does not start again");
    }

    /// A root user, and authentication on. etcdctl is root from here on.
    pub(crate) fn enable_auth(&mut self) {
        self.etcdctl(&["user", "add", "root:root"]);
        self.etcdctl(&["user", "grant-role", "root", "root"]);
        self.etcdctl(&["auth", "enable"]);
        self.client.access.push("--user=root:root".to_owned());
    }

    /// How etcdctl is to reach the server from here on, besides its endpoint.
    pub(crate) fn access(&mut self, options: &[String]) {
        self.client.access.extend_from_slice(options);
    }

    /// A view that lasts while the server is being hurt.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }
}

impl Deref for Etcd {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Client {
    pub(crate) fn healthy(&self) -> bool {
        self.http("/health").is_some_and(|answer| answer.contains("\"true\""))
    }

    fn http(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// A counter of the server's own, summed over its labels that contain `label`.
    pub(crate) fn metric(&self, name: &str, label: &str) -> f64 {
        eventually("metrics", || self.http("/metrics"))
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(label))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// How many requests of each method came in, a stream as one.
    pub(crate) fn requests(&self) -> BTreeMap<String, u32> {
        self.counted("grpc_server_started_total{")
    }

    /// How many messages of each method came in.
    pub(crate) fn messages(&self) -> BTreeMap<String, u32> {
        self.counted("grpc_server_msg_received_total{")
    }

    fn counted(&self, metric: &str) -> BTreeMap<String, u32> {
        let metrics = eventually("metrics", || self.http("/metrics"));
        let request = |line: &str| {
            let line = line.strip_prefix(metric)?;
            let (_, method) = line.split_once("grpc_method=\"")?;
            let count = line.rsplit(' ').next()?.parse().ok()?;
            Some((method.split('"').next()?.to_owned(), count))
        };
        metrics
            .lines()
            .filter_map(request)
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.address())
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// What etcdctl prints.
    #[track_caller]
    pub(crate) fn etcdctl<S: AsRef<OsStr>>(&self, arguments: &[S]) -> String {
        // An election on a busy machine takes longer than the five seconds that it waits by itself.
        let patient = "--command-timeout=60s";
        let output = self
            .etcdctl_command()
            .arg(patient)
            .args(arguments)
            .output()
            .expect("etcdctl");
        assert!(
            output.status.success(),
            "etcdctl {:?}: {}",
            arguments.iter().map(AsRef::as_ref).collect::<Vec<_>>(),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    pub(crate) fn etcdctl_command(&self) -> std::process::Command {
        let mut command = clean(program("MESHLOCK_TEST_ETCDCTL", "etcdctl"));
        command
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", self.endpoint()))
            .args(&self.access);
        command
    }

    /// All of it at one revision: etcdctl's `put KEY VALUE` and `del KEY`, a line each, 128 at the most.
    #[track_caller]
    pub(crate) fn txn(&self, operations: &str) {
        let mut txn = self
            .etcdctl_command()
            .arg("txn")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("etcdctl");
        // Conditions, then what is to be done, then what else: an empty line ends each.
        let text = format!("\n{operations}\n\n\n");
        let mut stdin = txn.stdin.take().expect("a pipe");
        stdin.write_all(text.as_bytes()).expect("written");
        drop(stdin);
        assert!(txn.wait().expect("etcdctl").success(), "{operations}");
    }

    #[track_caller]
    pub(crate) fn put(&self, key: &str, value: &str) {
        self.etcdctl(&["put", "--", key, value]);
    }

    #[track_caller]
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        let value = self.etcdctl(&["get", "--print-value-only", "--", key]);
        (!value.is_empty()).then(|| value.trim_end_matches('\n').to_owned())
    }

    #[track_caller]
    pub(crate) fn del(&self, key: &str) {
        self.etcdctl(&["del", "--", key]);
    }

    #[track_caller]
    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        self.etcdctl(&["get", "--prefix", "--keys-only", "--sort-by=CREATE", "--", prefix])
            .lines()
            .filter(|line| !line.is_empty())
            .map(ToOwned::to_owned)
            .collect()
    }

    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.etcdctl(&[arguments, &["--write-out=json"]].concat())).expect("JSON")
    }

    /// The create revision of a key that is there.
    #[track_caller]
    pub(crate) fn created(&self, key: &str) -> i64 {
        self.json(&["get", key])
            .pointer("/kvs/0/create_revision")
            .and_then(serde_json::Value::as_i64)
            .expect("the key is there")
    }

    /// In hexadecimal, as its peers and etcdctl know it.
    #[track_caller]
    pub(crate) fn member_id(&self) -> String {
        let status = self.json(&["endpoint", "status"]);
        let id = status
            .pointer("/0/Status/header/member_id")
            .and_then(serde_json::Value::as_u64);
        format!("{:x}", id.expect("its id"))
    }

    /// Rises with each write.
    #[track_caller]
    pub(crate) fn revision(&self) -> i64 {
        self.json(&["get", "nothing"])
            .pointer("/header/revision")
            .and_then(serde_json::Value::as_i64)
            .expect("a revision")
    }

    /// All leases, in hexadecimal as etcdctl wants them.
    #[track_caller]
    pub(crate) fn leases(&self) -> Vec<String> {
        self.etcdctl(&["lease", "list"])
            .lines()
            .skip(1)
            .map(ToOwned::to_owned)
            .collect()
    }

    /// Ends the lease of a queue entry, whose key ends in its id.
    #[track_caller]
    pub(crate) fn revoke(&self, entry: &str) {
        self.etcdctl(&["lease", "revoke", lease_of(entry)]);
    }

    /// The keys of a lock's queue, oldest first. `name` needs no encoding.
    #[track_caller]
    pub(crate) fn queue(&self, name: &str) -> Vec<String> {
        self.keys(&format!("meshlock/lock/{name}/"))
    }

    #[track_caller]
    pub(crate) fn wait_for_queue(&self, name: &str, length: usize) -> Vec<String> {
        eventually(&format!("{length} in the queue of {name}"), || {
            Some(self.queue(name)).filter(|queue| queue.len() == length)
        })
    }

    /// Nothing of the lock is left but run records, and no lease of its entries.
    #[track_caller]
    pub(crate) fn assert_clean(&self, name: &str) {
        for kind in ["lock", "open", "ask"] {
            assert_eq!(self.keys(&format!("meshlock/{kind}/{name}/")), Vec::<String>::new());
        }
    }

    /// No lease at all is left; only for a server of the test's own. Revocation may follow an exit by a moment.
    #[track_caller]
    pub(crate) fn assert_no_leases(&self) {
        eventually("no lease is left", || so(self.leases().is_empty()));
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(name) = self.log.file_stem() {
            fs::remove_dir_all(ground().directory.join(name)).ok();
        }
    }
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::with_timing([STEADY; 3])
    }

    /// The first member leads, and goes on believing so for 8 s when it is cut off, where the others elect another
    /// after half a second: a leader that was deposed and does not know it. No lease is shorter than 12 s then.
    pub(crate) fn with_obstinate_leader() -> Self {
        let cluster = Self::with_timing([["--heartbeat-interval=50", "--election-timeout=8000"], STEADY, STEADY]);
        let leader = cluster.leader();
        if leader != 0 {
            let id = cluster.members[0].member_id();
            cluster.members[leader].etcdctl(&["move-leader", &id]);
        }
        cluster
    }

    fn with_timing(timing: [[&str; 2]; 3]) -> Self {
        Self::form(&timing.each_ref().map(<[&str; 2]>::as_slice), true, None)
    }

    /// A member for each `timing`, empty for etcd's own. Without proxies nothing is between them, and they cannot be
    /// hurt, but measured.
    pub(crate) fn form(timing: &[&[&str]], with_proxies: bool, tls: Option<&ServerTls<'_>>) -> Self {
        for _ in 0..5 {
            let nodes: Vec<(String, Ports)> = timing.iter().map(|_| (unique("member"), Ports::free())).collect();
            let between: Vec<Proxy> = nodes
                .iter()
                .filter(|_| with_proxies)
                .map(|(_, ports)| Proxy::to(ports.peer))
                .collect();
            let direct = nodes
                .iter()
                .skip(between.len())
                .map(|(_, ports)| format!("http://127.0.0.1:{}", ports.peer));
            let advertised: Vec<String> = between.iter().map(Proxy::endpoint).chain(direct).collect();
            let peers: Vec<String> = nodes
                .iter()
                .zip(&advertised)
                .map(|((name, _), advertised)| format!("{name}={advertised}"))
                .collect();
            let mut members: Vec<Etcd> = nodes
                .iter()
                .zip(&advertised)
                .zip(timing)
                .map(|(((name, ports), advertised), timing)| {
                    let mut arguments: Vec<String> = timing.iter().map(ToString::to_string).collect();
                    arguments.push(format!("--initial-cluster={}", peers.join(",")));
                    Etcd::spawn(name, ports, advertised, arguments, tls)
                })
                .collect();
            if members.iter_mut().all(Etcd::becomes_ready) {
                return Self { members, between };
            }
        }
        panic!("no cluster of {} comes up", timing.len());
    }

    /// Cuts a member off from the others in silence; clients still reach it.
    pub(crate) fn isolate(&self, member: usize, cut: Cut) {
        let id = self.members[member].member_id();
        for (index, proxy) in self.between.iter().enumerate() {
            // It speaks in answers to those that have connected to it, and asks where it has connected itself.
            match (index == member, cut.speech) {
                (true, true) => proxy.hold_down(),
                (false, true) => proxy.mute_up(&id),
                (_, false) => {}
            }
            match (index == member, cut.hearing) {
                (true, true) => proxy.hold_up(),
                (false, true) => proxy.mute_down(&id),
                (_, false) => {}
            }
        }
    }

    /// The end of it.
    pub(crate) fn reunite(&self) {
        for proxy in &self.between {
            proxy.heal();
        }
    }

    /// As `--endpoints` takes them.
    pub(crate) fn endpoints(&self) -> String {
        self.members
            .iter()
            .map(|member| member.endpoint())
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Which member leads, by its own word.
    pub(crate) fn leader(&self) -> usize {
        eventually("a leader", || {
            self.members.iter().position(|member| {
                let output = member
                    .etcdctl_command()
                    .args(["endpoint", "status", "--write-out=json"])
                    .output()
                    .expect("etcdctl");
                let Ok(status) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else {
                    return false;
                };
                let leader = status.pointer("/0/Status/leader");
                leader.is_some() && leader == status.pointer("/0/Status/header/member_id")
            })
        })
    }
}

/// The id of the lease in an entry's key, in hexadecimal.
pub(crate) fn lease_of(entry: &str) -> &str {
    entry.rsplit('/').next().expect("a key")
}

fn serve(arguments: &[String], log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).expect("etcd's log");
    clean(program("MESHLOCK_TEST_ETCD", "etcd"))
        // etcd 3.4 starts on ARM only if told to; elsewhere it does not look.
        .env("ETCD_UNSUPPORTED_ARCH", "arm64")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("etcd's log"))
        .stderr(log)
        .spawn()
        .expect("etcd is not there: tests/run installs it")
}

/// The program that the environment names. etcdctl is by default the one beside etcd.
pub(crate) fn program(variable: &str, name: &str) -> PathBuf {
    let beside = || {
        let etcd = env::var_os("MESHLOCK_TEST_ETCD")?;
        Some(Path::new(&etcd).parent()?.join(name)).filter(|beside| beside.exists())
    };
    env::var_os(variable)
        .map(PathBuf::from)
        .or_else(beside)
        .unwrap_or_else(|| name.into())
}

struct Ports {
    client: u16,
    peer: u16,
    metrics: u16,
}

impl Ports {
    fn free() -> Self {
        Self {
            client: free_port(),
            peer: free_port(),
            metrics: free_port(),
        }
    }
}

/// Below the range from which the kernel takes the ports of outgoing connections, so that a server which
/// is away for a moment finds its port free again.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let spread = u16::try_from(id() % 11_000).unwrap_or(0);
    (0..11_000u16)
        .map(|_| 20_000 + (spread + NEXT.fetch_add(1, Ordering::Relaxed) % 11_000) % 11_000)
        .find(|port| is_free(*port))
        .expect("a free port")
}

/// Bound, and never listening: a child that another thread forks meanwhile has a copy until it executes something, and
/// a copy that listened would keep the port from whoever is to have it (`SO_REUSEADDR` in socket(7)).
fn is_free(port: u16) -> bool {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    setsockopt(&socket, sockopt::ReuseAddr, &true).expect("a socket's option");
    bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).is_ok()
}
