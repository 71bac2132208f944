//! The network between meshlock and one etcd, to be cut, held up and slowed down: faults as a partition
//! makes them, without root.

use super::etcd::free_port;
use nix::sys::socket::{Backlog, listen, setsockopt, sockopt};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;
use std::time::Duration;

/// A listener that passes everything on to one address, by default of the loopback.
pub(crate) struct Proxy {
    address: SocketAddr,
    line: Arc<Line>,
}

/// What both directions of all connections share.
struct Line {
    target: SocketAddr,
    /// From meshlock to etcd, and back.
    held: [AtomicBool; 2],
    refusing: AtomicBool,
    hanging_up: AtomicBool,
    over: AtomicBool,
    delay_ms: AtomicU64,
    /// Whose connections carry nothing more, by direction: an etcd member's id, as it tells its peers.
    muted: [Mutex<Option<String>>; 2],
    /// With these bytes begins what etcd does not hear any more.
    last_heard_before: Mutex<Option<Vec<u8>>>,
    /// Only those that still carry something are kept open.
    open: Mutex<Vec<Weak<TcpStream>>>,
}

const UP: usize = 0;
const DOWN: usize = 1;

impl Proxy {
    pub(crate) fn to(target: u16) -> Self {
        Self::between(IpAddr::from([127, 0, 0, 1]), SocketAddr::from(([127, 0, 0, 1], target)))
    }

    /// Where the loopback is not all there is of the network.
    pub(crate) fn between(own: IpAddr, target: SocketAddr) -> Self {
        // Somebody else may take a port between our look and our listening: then the next.
        let listener = (0..5).find_map(|_| TcpListener::bind((own, free_port())).ok());
        Self::behind(listener.expect("a port"), target)
    }

    /// At an address that is free.
    pub(crate) fn at(address: SocketAddr, target: SocketAddr) -> Self {
        Self::behind(TcpListener::bind(address).expect("a port"), target)
    }

    fn behind(listener: TcpListener, target: SocketAddr) -> Self {
        let address = listener.local_addr().expect("a listener's address");
        let line = Arc::new(Line {
            target,
            held: <[AtomicBool; 2]>::default(),
            refusing: AtomicBool::default(),
            hanging_up: AtomicBool::default(),
            over: AtomicBool::default(),
            delay_ms: AtomicU64::default(),
            muted: Default::default(),
            last_heard_before: Mutex::default(),
            open: Mutex::default(),
        });
        thread::spawn({
            let line = Arc::clone(&line);
            move || line.accept(&listener)
        });
        Self { address, line }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) const fn port(&self) -> u16 {
        self.address.port()
    }

    /// Resets all connections; new ones are let through.
    pub(crate) fn cut(&self) {
        for stream in self.line.open.lock().expect("not poisoned").drain(..) {
            if let Some(stream) = stream.upgrade() {
                reset(&stream);
            }
        }
    }

    /// From now on every connection, old and new, is reset.
    pub(crate) fn refuse(&self) {
        self.line.refusing.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// From now on old connections are reset, and new ones heard and closed in good order: as by a proxy in front of
    /// nobody.
    pub(crate) fn hang_up(&self) {
        self.line.hanging_up.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Nothing more arrives, and nobody is told: as when packets are dropped.
    pub(crate) fn hold(&self) {
        self.hold_up();
        self.hold_down();
    }

    /// etcd hears nothing more.
    pub(crate) fn hold_up(&self) {
        self.line.held[UP].store(true, Ordering::SeqCst);
    }

    /// etcd hears, its answers are held.
    pub(crate) fn hold_down(&self) {
        self.line.held[DOWN].store(true, Ordering::SeqCst);
    }

    /// etcd hears nothing more from the first piece on that has these bytes.
    pub(crate) fn hold_up_from(&self, bytes: &[u8]) {
        *self.line.last_heard_before.lock().expect("not poisoned") = Some(bytes.to_vec());
    }

    /// On connections that this member of the cluster has opened, nothing of what it sends passes any more.
    pub(crate) fn mute_up(&self, member: &str) {
        self.mute(UP, Some(member));
    }

    /// The same of what it is answered.
    pub(crate) fn mute_down(&self, member: &str) {
        self.mute(DOWN, Some(member));
    }

    fn mute(&self, direction: usize, member: Option<&str>) {
        *self.line.muted[direction].lock().expect("not poisoned") = member.map(str::to_owned);
    }

    /// Each direction as it is said, whatever was before.
    pub(crate) fn hold_exactly(&self, up: bool, down: bool) {
        self.line.held[UP].store(up, Ordering::SeqCst);
        self.line.held[DOWN].store(down, Ordering::SeqCst);
    }

    /// Each piece takes this long, each way.
    pub(crate) fn delay(&self, delay: Duration) {
        let delay = u64::try_from(delay.as_millis()).expect("a short time");
        self.line.delay_ms.store(delay, Ordering::SeqCst);
    }

    /// As new. What was held arrives now, as after lost packets are sent again.
    pub(crate) fn heal(&self) {
        self.hold_exactly(false, false);
        self.line.refusing.store(false, Ordering::SeqCst);
        self.line.hanging_up.store(false, Ordering::SeqCst);
        self.mute(UP, None);
        self.mute(DOWN, None);
        *self.line.last_heard_before.lock().expect("not poisoned") = None;
        self.delay(Duration::ZERO);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.line.over.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the listener, which then sees that it is over.
        drop(TcpStream::connect(self.address));
    }
}

impl Line {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for mut stream in listener.incoming().flatten() {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            if self.refusing.load(Ordering::SeqCst) {
                reset(&stream);
                continue;
            }
            if self.hanging_up.load(Ordering::SeqCst) {
                stream.set_read_timeout(Some(Duration::from_secs(1))).ok();
                // To the last byte: what is closed unread ends with a reset.
                while stream.read(&mut [0; 4096]).is_ok_and(|count| count == 4096) {}
                continue;
            }
            let Ok(server) = TcpStream::connect(self.target) else {
                reset(&stream);
                continue;
            };
            let (stream, server) = (Arc::new(stream), Arc::new(server));
            {
                let mut open = self.open.lock().expect("not poisoned");
                open.retain(|stream| stream.strong_count() > 0);
                open.extend([Arc::downgrade(&stream), Arc::downgrade(&server)]);
            }
            let caller = Arc::default();
            for (direction, from, to) in [(UP, &stream, &server), (DOWN, &server, &stream)] {
                to.set_nodelay(true).ok();
                let (line, from, to) = (Arc::clone(self), Arc::clone(from), Arc::clone(to));
                let caller = Arc::clone(&caller);
                thread::spawn(move || line.pump(direction, &from, &to, &caller));
            }
        }
    }

    fn pump(&self, direction: usize, mut from: &TcpStream, mut to: &TcpStream, caller: &OnceLock<String>) {
        // So that a hold is seen within this time though nothing comes.
        from.set_read_timeout(Some(Duration::from_millis(50))).ok();
        let mut buffer = [0; 16 * 1024];
        while !self.over.load(Ordering::SeqCst) {
            let count = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(_) => break,
            };
            if direction == UP
                && let Some(member) = member(&buffer[..count])
            {
                caller.set(member).ok();
            }
            if direction == UP && self.is_the_end(&buffer[..count]) {
                self.held[UP].store(true, Ordering::SeqCst);
            }
            thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst)));
            while self.holds(direction, caller) && !self.over.load(Ordering::SeqCst) {
                super::tick();
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Write).ok();
    }

    fn is_the_end(&self, piece: &[u8]) -> bool {
        let end = self.last_heard_before.lock().expect("not poisoned");
        end.as_ref()
            .is_some_and(|end| piece.windows(end.len()).any(|some| some == end))
    }

    fn holds(&self, direction: usize, caller: &OnceLock<String>) -> bool {
        let muted = self.muted[direction].lock().expect("not poisoned");
        self.held[direction].load(Ordering::SeqCst) || muted.is_some() && *muted == caller.get().cloned()
    }
}

/// The member of the cluster that says so in the head of its request to a peer.
fn member(head: &[u8]) -> Option<String> {
    let head = String::from_utf8_lossy(head);
    let (_, rest) = head.split_once("X-Server-From: ")?;
    rest.lines().next().map(str::to_owned)
}

/// Closes with RST, where the peer would otherwise see an orderly end.
fn reset(stream: &TcpStream) {
    let at_once = nix::libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(stream, sockopt::Linger, &at_once).ok();
    stream.shutdown(Shutdown::Both).ok();
}

/// A listener whose backlog is full: what is sent to it is dropped, as by a firewall. The connections that
/// fill it must live on.
pub(crate) fn black_hole() -> (String, (TcpListener, Vec<TcpStream>)) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listen(&listener, Backlog::new(0).expect("a backlog")).expect("a short backlog");
    let address = listener.local_addr().expect("an address");
    let mut full = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        full.push(stream);
    }
    (address.to_string(), (listener, full))
}
