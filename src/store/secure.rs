//! A connection to a member, by TLS where its URL says so, which then remembers why it failed: HTTP/2 above it keeps no
//! more of that than that the connection broke. A client takes the handshake for done before the server has seen its
//! certificate (TLS 1.3), so that the server's refusal comes as the answer to the first question.

use super::credentials::Credentials;
use super::files::Unusable;
use super::gather::Gathering;
use super::host::Dialer;
use super::tls::{self, Tls};
use hyper::Uri;
use hyper::http::uri::Scheme;
use rustls_pki_types::ServerName;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Timeout, timeout};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls;
use tokio_rustls::{Connect, TlsConnector};
use tonic::codegen::StdError;

/// Why a connection failed, with the files that it stood on.
#[derive(Clone, Default)]
pub(super) struct Trouble(Arc<Mutex<Option<What>>>);

pub(super) struct What {
    pub(super) error: Wrong,
    pub(super) tls: Arc<Tls>,
}

pub(super) enum Wrong {
    /// Ours: a file.
    File(Unusable),
    Tls(rustls::Error),
    /// It hung up before TLS was spoken.
    HungUp,
    /// TLS was spoken, but not HTTP/2 within.
    NotHttp2,
}

impl Trouble {
    /// Given away once.
    pub(super) fn take(&self) -> Option<What> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn remember(&self, error: Wrong, tls: &Arc<Tls>) {
        let what = What {
            error,
            tls: Arc::clone(tls),
        };
        // The first says why, the others what followed from it.
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(what);
    }
}

/// Makes a connection to one endpoint, over one that the dialer makes.
pub(super) struct Connector {
    plain: Dialer,
    credentials: Credentials,
    trouble: Trouble,
    /// So long may TLS's handshake take, if nobody else gives it up.
    within: Duration,
}

impl Connector {
    pub(super) fn new(plain: Dialer, credentials: Credentials, trouble: Trouble, within: Duration) -> Self {
        Self {
            plain,
            credentials,
            trouble,
            within,
        }
    }

    /// The stream to talk by, in which TLS has begun.
    ///
    /// # Errors
    /// Why there is none; [`Trouble`] knows more of it.
    pub(super) async fn connect(self, uri: &Uri) -> Result<Box<dyn Stream>, StdError> {
        let stream = self.plain.dial().await?;
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Ok(Box::new(Gathering::new(stream)));
        }
        let (config, tls) = self.credentials.tls().map_err(|unusable| {
            let why = unusable.0.clone();
            self.trouble.remember(Wrong::File(unusable), &Arc::default());
            why
        })?;
        let name = match &tls.server_name {
            Some(name) => name.clone(),
            None => host(uri)?,
        };
        let shaking = TlsConnector::from(config).connect(name, stream);
        let mut stream = Secured {
            stage: Stage::Shaking(Box::pin(timeout(self.within, shaking))),
            trouble: self.trouble,
            tls,
            broken: None,
        };
        // Its first words, on which the server works while we go on.
        poll_fn(|cx| match stream.open(cx) {
            Poll::Pending => Poll::Ready(Ok(())),
            Poll::Ready(opened) => Poll::Ready(opened.map(drop)),
        })
        .await?;
        Ok(Box::new(Gathering::new(stream)))
    }
}

/// What HTTP/2 is spoken over: one type, so that there is one HTTP/2 in the binary.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

fn host(uri: &Uri) -> Result<ServerName<'static>, StdError> {
    let host = uri.host().unwrap_or_default();
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    Ok(ServerName::try_from(host.to_owned())?)
}

/// Whether a server shows a certificate to one who asks for it; nobody vouches for it here.
pub(super) async fn shows_a_certificate(stream: TcpStream, uri: &Uri) -> bool {
    let (Ok(config), Ok(name)) = (tls::trusting_nobody(), host(uri)) else {
        return false;
    };
    let refused = TlsConnector::from(Arc::new(config)).connect(name, stream).await.err();
    let error = refused.as_ref().and_then(of_tls);
    matches!(error, Some(rustls::Error::InvalidCertificate(_)))
}

/// Whether a server speaks HTTP/2 without TLS: it answers our first words (RFC 9113, 3.4) with its settings (6.5).
pub(super) async fn speaks_plainly(mut stream: TcpStream) -> bool {
    const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    const SETTINGS: u8 = 4;
    let mut frame = [0; 9];
    stream.write_all(OPENING).await.is_ok() && stream.read_exact(&mut frame).await.is_ok() && frame[3] == SETTINGS
}

fn of_tls(error: &io::Error) -> Option<rustls::Error> {
    error.get_ref()?.downcast_ref().cloned()
}

/// A stream within TLS, which shakes hands as soon as somebody reads or writes, and takes nothing that is written before
/// the server has shown who it is. What HTTP/2 has to say first is so made up while the server is busy with its part.
/// Tells [`Trouble`] why it broke.
struct Secured {
    stage: Stage,
    trouble: Trouble,
    tls: Arc<Tls>,
    /// Nothing can be written any more, and what is to be read still has to be.
    broken: Option<io::Error>,
}

enum Stage {
    Shaking(Pin<Box<Timeout<Connect<TcpStream>>>>),
    Open(Box<TlsStream<TcpStream>>),
    /// The handshake failed.
    Shut,
}

impl Secured {
    /// The stream, once TLS and HTTP/2 are agreed on.
    fn open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut TlsStream<TcpStream>>> {
        if let Stage::Shaking(shaking) = &mut self.stage {
            let shaken = ready!(shaking.as_mut().poll(cx));
            self.stage = Stage::Shut;
            let mut stream = shaken?.inspect_err(|error| {
                let wrong = of_tls(error).map_or(Wrong::HungUp, Wrong::Tls);
                self.trouble.remember(wrong, &self.tls);
            })?;
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                self.stage = Stage::Open(Box::new(stream));
            } else {
                self.trouble.remember(Wrong::NotHttp2, &self.tls);
                // As far as it goes at once: nobody waits for that.
                drop(Pin::new(&mut stream).poll_shutdown(cx));
            }
        }
        Poll::Ready(match &mut self.stage {
            Stage::Open(stream) => Ok(stream),
            Stage::Shaking(_) | Stage::Shut => Err(io::ErrorKind::NotConnected.into()),
        })
    }

    fn noted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            if let Some(error) = of_tls(error) {
                self.trouble.remember(Wrong::Tls(error), &self.tls);
            }
        })
    }

    /// A server that hangs up may have said why before: that is still to be read where nothing can be written any more.
    fn last_words<T>(&mut self, written: io::Result<T>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let error = match (written, self.broken.take()) {
            (Ok(written), None) => return Poll::Ready(Ok(written)),
            (_, Some(error)) | (Err(error), None) => error,
        };
        let mut rest = [0; 512];
        loop {
            let mut rest = ReadBuf::new(&mut rest);
            match Pin::new(&mut *self).poll_read(cx, &mut rest) {
                Poll::Ready(Ok(())) if !rest.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Err(error)),
                // Soon: a broken connection counts as readable.
                Poll::Pending => {
                    self.broken = Some(error);
                    return Poll::Pending;
                }
            }
        }
    }
}

impl AsyncRead for Secured {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = ready!(self.open(cx))?;
        let result = ready!(Pin::new(stream).poll_read(cx, buffer));
        Poll::Ready(self.noted(result))
    }
}

impl AsyncWrite for Secured {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = ready!(self.open(cx))?;
        let written = ready!(Pin::new(stream).poll_write(cx, bytes));
        self.last_words(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = ready!(self.open(cx))?;
        let flushed = ready!(Pin::new(stream).poll_flush(cx));
        self.last_words(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = ready!(self.open(cx))?;
        Pin::new(stream).poll_shutdown(cx)
    }
}
