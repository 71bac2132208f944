//! A stream that sends in one piece what is written to it in one turn of the runtime. HTTP/2 writes the head of a
//! request, its body and its end each by itself, as they come from three tasks: three packets, of which each wakes the
//! server. Knows nothing of what is written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// More than this is not kept back.
const LIMIT: usize = 16 * 1024;

pub(super) struct Gathering<S> {
    stream: S,
    unsent: Vec<u8>,
    /// How much of it is sent all the same.
    sent: usize,
    /// All other tasks have had their turn since the last of it was written.
    waited: bool,
}

impl<S> Gathering<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self {
            stream,
            unsent: Vec::new(),
            sent: 0,
            waited: false,
        }
    }
}

impl<S: AsyncWrite + Unpin> Gathering<S> {
    fn send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.unsent.len() {
            let rest = &self.unsent[self.sent..];
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                length => self.sent += length,
            }
        }
        self.unsent.clear();
        self.sent = 0;
        self.waited = false;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gathering<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.unsent.len() >= LIMIT {
            ready!(self.send(context))?;
        }
        let before = self.unsent.len();
        for slice in slices {
            self.unsent.extend_from_slice(slice);
        }
        self.waited = false;
        Poll::Ready(Ok(self.unsent.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.unsent.is_empty() && !std::mem::replace(&mut self.waited, true) {
            // What belongs to it is written before we are asked again: those who write were woken before us.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.send(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.send(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gathering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// What comes, write by write, of each no more than so much.
    struct Sink {
        pieces: Vec<Vec<u8>>,
        at_once: usize,
    }

    impl AsyncWrite for Sink {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let taken = &bytes[..bytes.len().min(self.at_once)];
            self.pieces.push(taken.to_vec());
            Poll::Ready(Ok(taken.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn over(at_once: usize) -> Gathering<Sink> {
        Gathering::new(Sink {
            pieces: Vec::new(),
            at_once,
        })
    }

    fn write(stream: &mut Gathering<Sink>, bytes: &[u8]) {
        let written = Pin::new(stream).poll_write(&mut Context::from_waker(Waker::noop()), bytes);
        assert!(matches!(written, Poll::Ready(Ok(length)) if length == bytes.len()));
    }

    fn is_flushed(stream: &mut Gathering<Sink>) -> bool {
        Pin::new(stream)
            .poll_flush(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[test]
    fn what_is_written_in_one_turn_is_sent_in_one_piece_and_then_at_once() {
        let mut stream = over(usize::MAX);
        assert!(is_flushed(&mut stream), "nothing is to be sent");
        for _ in 0..2 {
            write(&mut stream, b"head");
            assert!(!is_flushed(&mut stream), "others have a turn");
            write(&mut stream, b"body");
            assert!(!is_flushed(&mut stream), "and have it after each piece");
            assert!(is_flushed(&mut stream));
            assert!(is_flushed(&mut stream));
        }
        assert_eq!(stream.stream.pieces, [b"headbody", b"headbody"]);
    }

    #[test]
    fn nothing_is_lost_where_little_is_taken_at_once_or_much_is_written() {
        let mut stream = over(1000);
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(3 * LIMIT).collect();
        for bytes in bytes.chunks(700) {
            write(&mut stream, bytes);
            assert!(stream.unsent.len() < LIMIT + 700, "it is not kept back");
        }
        let shut = Pin::new(&mut stream).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        assert!(shut.is_ready());
        assert!(stream.stream.pieces.concat() == bytes);
    }
}
