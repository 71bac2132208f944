//! One endpoint's host with all its addresses: looked up so that no answer is waited for twice, and dialled so that a
//! dead address does not keep us from a living one. Knows nothing of etcd.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// After this a second address is tried beside the first, and so on (RFC 8305, 5: 250 ms, no less than 100 ms). Short,
/// since a renewal at the shortest TTL has two thirds of a second.
const NEXT_AFTER: Duration = Duration::from_millis(150);

/// Who is known already is not kept waiting for name servers that may be dead.
const LOOK_AGAIN_FOR: Duration = Duration::from_millis(150);

#[derive(Debug)]
pub(super) struct Host {
    /// As `HOST:PORT`.
    authority: String,
    known: Mutex<Known>,
    /// One at a time, and it goes on when nobody waits any more: `getaddrinfo(3)` cannot be called off, and each takes a
    /// thread for as long as the name servers are silent. What comes when nobody waits any more is the next one's.
    lookup: tokio::sync::Mutex<Option<JoinHandle<io::Result<Vec<SocketAddr>>>>>,
}

#[derive(Debug, Default)]
struct Known {
    /// In the order of the last answer.
    addresses: Vec<SocketAddr>,
    /// The last one that was reached and failed all the same: it may take connections and answer nothing.
    failed: Option<SocketAddr>,
}

/// Where a channel has got to, if anywhere.
#[derive(Clone, Debug, Default)]
pub(super) struct Reached(Arc<Mutex<Option<SocketAddr>>>);

impl Reached {
    /// Whether it is of the same channel.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// One more connection to there, to see what is spoken.
    ///
    /// # Errors
    /// Where none was there, or is no more.
    pub(super) async fn dial_again(&self) -> io::Result<TcpStream> {
        let place = *self.place();
        dial(place.into_iter().collect()).await
    }

    fn place(&self) -> MutexGuard<'_, Option<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host {
    /// Of a URL with its port.
    pub(super) fn of(url: &str) -> Self {
        let authority = url.split_once("://").map_or(url, |(_, authority)| authority);
        Self {
            authority: authority.to_owned(),
            known: Mutex::default(),
            lookup: tokio::sync::Mutex::default(),
        }
    }

    /// How many addresses it is known to have; one where that is not known.
    pub(super) fn addresses(&self) -> usize {
        self.known().addresses.len().max(1)
    }

    /// What was reached is of no use: others go first from now on.
    pub(super) fn failed(&self, reached: &Reached) {
        let reached = *reached.place();
        let mut known = self.known();
        known.failed = reached.or(known.failed);
    }

    /// Where to dial, the most promising first. Where nobody can say anew, what was known before.
    ///
    /// # Errors
    /// Where the name means nothing to anybody.
    pub(super) async fn places(&self) -> io::Result<Vec<SocketAddr>> {
        let is_known = !self.known().addresses.is_empty();
        let looked_up = if is_known {
            let looked_up = timeout(LOOK_AGAIN_FOR, self.look_up()).await;
            looked_up.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        } else {
            self.look_up().await
        };
        let mut known = self.known();
        match looked_up {
            Ok(addresses) if !addresses.is_empty() => known.addresses = addresses,
            Ok(_) | Err(_) if is_known => {}
            Ok(_) => return Err(io::Error::other("the name has no address")),
            Err(error) => return Err(error),
        }
        let mut places = families_in_turn(&known.addresses);
        if let Some(failed) = places.iter().position(|place| Some(*place) == known.failed) {
            places.rotate_left(failed + 1);
        }
        Ok(places)
    }

    async fn look_up(&self) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = self.authority.parse() {
            return Ok(vec![address]);
        }
        let mut lookup = self.lookup.lock().await;
        let running = lookup.get_or_insert_with(|| {
            let authority = self.authority.clone();
            tokio::spawn(async move { Ok(lookup_host(authority).await?.collect()) })
        });
        let ended = running.await;
        *lookup = None;
        ended.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// IPv6 and IPv4 by turns, in the order that `getaddrinfo(3)` has chosen, so that a whole family that leads nowhere
/// costs one try (RFC 8305, 4).
fn families_in_turn(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let Some(first) = addresses.first() else {
        return Vec::new();
    };
    let (preferred, others) = addresses
        .iter()
        .copied()
        .partition::<Vec<_>, _>(|address| address.is_ipv6() == first.is_ipv6());
    let (mut preferred, mut others) = (preferred.into_iter(), others.into_iter());
    let mut mixed = Vec::with_capacity(addresses.len());
    while mixed.len() < addresses.len() {
        mixed.extend(preferred.next());
        mixed.extend(others.next());
    }
    mixed
}

/// Dials these places, and notes which one was reached.
#[derive(Clone)]
pub(super) struct Dialer {
    places: Vec<SocketAddr>,
    /// How long all of it may take, if not as long as it does.
    within: Option<Duration>,
    reached: Reached,
}

impl Dialer {
    pub(super) fn new(places: Vec<SocketAddr>, within: Option<Duration>, reached: Reached) -> Self {
        Self {
            places,
            within,
            reached,
        }
    }

    pub(super) async fn dial(self) -> io::Result<TcpStream> {
        let dialled = dial(self.places);
        let stream = match self.within {
            Some(within) => {
                let dialled = timeout(within, dialled).await;
                dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?
            }
            None => dialled.await?,
        };
        *self.reached.place() = stream.peer_addr().ok();
        Ok(stream)
    }
}

/// The first connection that stands. Each place gets a start before the next one, which then does not wait for it to
/// fail; of several errors the first is told.
async fn dial(places: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut first_error = None;
    let mut attempts = JoinSet::new();
    let mut places = places.into_iter();
    loop {
        if let Some(place) = places.next() {
            attempts.spawn(TcpStream::connect(place));
        }
        let is_last = places.len() == 0;
        let ended = if is_last {
            attempts.join_next().await
        } else {
            match timeout(NEXT_AFTER, attempts.join_next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            }
        };
        match ended {
            Some(Ok(Ok(stream))) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Some(Ok(Err(error))) => {
                first_error.get_or_insert(error);
            }
            Some(Err(error)) => return Err(io::Error::other(error)),
            None if is_last => return Err(first_error.unwrap_or_else(|| io::Error::other("it has no address"))),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(addresses: &[&str]) -> Vec<SocketAddr> {
        let parse = |address: &&str| address.parse().expect("an address");
        addresses.iter().map(parse).collect()
    }

    #[test]
    fn a_family_that_leads_nowhere_costs_one_try() {
        let mixed = families_in_turn(&of(&["[fd::1]:1", "[fd::2]:1", "[fd::3]:1", "10.0.0.1:1"]));
        assert_eq!(mixed, of(&["[fd::1]:1", "10.0.0.1:1", "[fd::2]:1", "[fd::3]:1"]));
        let mixed = families_in_turn(&of(&["10.0.0.1:1", "10.0.0.2:1", "[fd::1]:1"]));
        assert_eq!(mixed, of(&["10.0.0.1:1", "[fd::1]:1", "10.0.0.2:1"]));
        assert_eq!(families_in_turn(&[]), []);
    }
}
