//! HTTP/2 over one connection to a member, for etcd-client and us to make calls by. Connects to nobody, and makes no second
//! connection where the first one has ended. Knows nothing of what is called.

use super::secure::Stream;
use hyper::body::{Body as _, Bytes, Frame};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::{HeaderValue, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::StdError;
use tower::service_fn;
use tower::util::BoxCloneSyncService;

/// etcd ends connections that ping more often than each 5 s (`--grpc-keepalive-min-time`), and any that
/// pings without a stream.
const PING_EACH: Duration = Duration::from_secs(10);
const PING_ANSWER_WITHIN: Duration = Duration::from_secs(4);

const AGENT: HeaderValue = HeaderValue::from_static(concat!("meshlock/", env!("CARGO_PKG_VERSION")));

/// As etcd-client takes it, in place of tonic's own channel: that keeps calls in a queue before a task of its own, and
/// connects anew by itself, which is here for the pool to do.
pub(super) type Calls = BoxCloneSyncService<Request<Body>, Response<Body>, StdError>;

#[derive(Clone)]
pub(super) struct Http2 {
    requests: SendRequest<Whole>,
    /// The scheme and the host, for each request to name.
    origin: Uri,
}

impl Http2 {
    /// Begins with our half of the handshake, and waits for nothing.
    ///
    /// # Errors
    /// Where nothing can be written any more.
    pub(super) async fn over(stream: Box<dyn Stream>, origin: Uri) -> Result<Self, hyper::Error> {
        let (requests, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EACH)
            .keep_alive_timeout(PING_ANSWER_WITHIN)
            .keep_alive_while_idle(false)
            .handshake(TokioIo::new(stream))
            .await?;
        // Why it ends is told to the calls that it takes along.
        tokio::spawn(connection);
        Ok(Self { requests, origin })
    }

    /// Whether no call can be made any more.
    pub(super) fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    pub(super) fn calls(&self) -> Calls {
        let http2 = self.clone();
        BoxCloneSyncService::new(service_fn(move |request| http2.clone().call(request)))
    }

    async fn call(mut self, mut request: Request<Body>) -> Result<Response<Body>, StdError> {
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        let origin = self.origin.into_parts();
        (uri.scheme, uri.authority) = (origin.scheme, origin.authority);
        *request.uri_mut() = Uri::from_parts(uri)?;
        request.headers_mut().insert(USER_AGENT, AGENT);
        let response = self.requests.send_request(request.map(Whole::of)).await?;
        Ok(response.map(Body::new))
    }
}

/// A body whose last piece is known as the last: HTTP/2 says so in the same frame, where gRPC's own would need another
/// one, and a packet for it.
struct Whole {
    body: Body,
    next: Next,
}

enum Next {
    /// Not asked for, or not there yet.
    Unknown,
    Frame(Result<Frame<Bytes>, Status>),
    End,
}

impl Whole {
    const fn of(body: Body) -> Self {
        Self {
            body,
            next: Next::Unknown,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        match std::mem::replace(&mut self.next, Next::Unknown) {
            Next::Unknown => Pin::new(&mut self.body)
                .poll_frame(context)
                .map(|next| next.map_or(Next::End, Next::Frame)),
            known => Poll::Ready(known),
        }
    }
}

impl hyper::body::Body for Whole {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Next::Frame(frame) = ready!(self.poll_next(context)) else {
            self.next = Next::End;
            return Poll::Ready(None);
        };
        if let Poll::Ready(next) = self.poll_next(context) {
            self.next = next;
        }
        Poll::Ready(Some(frame))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.next, Next::End)
    }
}
