//! How the words of [`crate::link`] travel between guardian and keeper: a socket pair that keeps message
//! boundaries and tells of the other's death, and a shared page for what a message is too slow for. Knows
//! nothing of what the words mean.

use super::sys::Page;
use crate::moment::Moment;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// One end of the link.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
}

/// What a read of the link brings.
#[derive(Debug)]
pub enum Incoming<M> {
    Message(M),
    Nothing,
    /// The other half has ended.
    Closed,
}

impl Link {
    /// The guardian's and the keeper's end; neither ever blocks, neither outlives an exec.
    pub fn pair() -> Result<(Self, Self), Errno> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (guardian, keeper) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok((Self { socket: guardian }, Self { socket: keeper }))
    }

    /// Sends one message; false if there is no room for it, as when the other half has been stopped for long.
    /// Towards a dead one it counts as sent: whoever is there to be told of the death is told by the link.
    pub fn send<M: Serialize>(&self, message: &M) -> bool {
        let Ok(bytes) = serde_json::to_vec(message) else {
            return true;
        };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        !matches!(
            send(self.socket.as_raw_fd(), &bytes, flags),
            Err(Errno::EAGAIN | Errno::ENOBUFS)
        )
    }

    pub fn receive<M: DeserializeOwned>(&self) -> Incoming<M> {
        // Its length first (recv(2)): a buffer for the longest would stay with every waiter.
        let length = |flags| recv(self.socket.as_raw_fd(), &mut [], flags);
        let next = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC;
        loop {
            let read = length(next).and_then(|length| {
                let mut buffer = vec![0; length];
                let read = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT);
                read.map(|_| buffer)
            });
            match read {
                Ok(buffer) if buffer.is_empty() => return Incoming::Closed,
                // A message that does not parse cannot come from our own other half; passing over it is
                // safe, since nothing is ever permitted by the lack of one.
                Ok(buffer) => {
                    if let Ok(message) = serde_json::from_slice(&buffer) {
                        return Incoming::Message(message);
                    }
                }
                Err(Errno::EAGAIN) => return Incoming::Nothing,
                Err(Errno::EINTR) => {}
                Err(_) => return Incoming::Closed,
            }
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

/// The shared page's meaning: the deadline; the hand-shake by which an offered hold is claimed by the guardian or
/// withdrawn by the keeper, never both; and why there is no command.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    page: Page,
}

/// No hold is on offer. Tokens are revisions and so never zero, nor the largest number.
const NOTHING: u64 = 0;
const CLAIMED: u64 = u64::MAX;

impl Shared {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { page: Page::new()? })
    }

    pub fn deadline(self) -> Moment {
        Moment::from_nanos(self.page.words().deadline.load(Ordering::SeqCst))
    }

    pub fn set_deadline(self, deadline: Moment) {
        self.page.words().deadline.store(deadline.as_nanos(), Ordering::SeqCst);
    }

    /// Keeper: the hold with this token may be claimed.
    pub fn offer(self, token: i64) {
        self.page.words().offer.store(word(token), Ordering::SeqCst);
    }

    /// Guardian: takes the hold with this token; false if it has been withdrawn.
    pub fn claim(self, token: i64) -> bool {
        self.exchange(word(token), CLAIMED)
    }

    /// Keeper: takes the offer back; false if it has been claimed.
    pub fn withdraw(self, token: i64) -> bool {
        self.exchange(word(token), NOTHING)
    }

    /// The errno of a child that could not become the command.
    pub fn refusal(self) -> &'static AtomicI32 {
        &self.page.words().refusal
    }

    fn exchange(self, from: u64, to: u64) -> bool {
        self.page
            .words()
            .offer
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

fn word(token: i64) -> u64 {
    u64::try_from(token).unwrap_or(NOTHING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_claimed_or_withdrawn_but_never_both() {
        let shared = Shared::new().expect("a page");
        assert!(!shared.claim(7), "nothing is on offer yet");
        shared.offer(7);
        assert!(!shared.claim(6), "another hold's offer");
        assert!(shared.claim(7));
        assert!(!shared.withdraw(7));
        shared.offer(8);
        assert!(shared.withdraw(8));
        assert!(!shared.claim(8));
    }

    #[test]
    fn a_full_link_says_so_and_takes_messages_again_once_read() {
        let (here, there) = Link::pair().expect("a pair");
        while there.send(&"more") {}
        assert!(matches!(here.receive::<String>(), Incoming::Message(_)));
        assert!(there.send(&"more"));
    }

    #[test]
    fn the_other_ends_death_is_told_after_its_last_message() {
        let (here, there) = Link::pair().expect("a pair");
        assert!(there.send(&"last words"));
        drop(there);
        assert!(matches!(here.receive::<String>(), Incoming::Message(words) if words == "last words"));
        assert!(matches!(here.receive::<String>(), Incoming::Closed));
    }
}
