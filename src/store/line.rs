//! The line to one endpoint: etcd-client's, and a renewal in one message, which etcd-client cannot send. Chooses no
//! endpoint, waits for nothing longer than it is told to.

use super::Alive;
use super::http2::Http2;
use super::wire::{Answered, cluster, seconds_granted};
use crate::moment::Moment;
use etcd_client::{Client, Error, ResponseHeader};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

pub(super) struct Line {
    client: Client,
    /// The same connection.
    http2: Http2,
    /// etcd-client sends a token with each call, and shows it to nobody.
    with_token: bool,
}

impl Deref for Line {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// `etcdserverpb.LeaseKeepAliveRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct KeepAlive {
    #[prost(int64, tag = "1")]
    id: i64,
}

/// `etcdserverpb.LeaseKeepAliveResponse`, as far as it says something new.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Renewed {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(int64, tag = "3")]
    ttl: i64,
}

/// `etcdserverpb.ResponseHeader`, the same.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Header {
    #[prost(uint64, tag = "1")]
    cluster_id: u64,
    #[prost(uint64, tag = "4")]
    raft_term: u64,
}

impl Line {
    pub(super) const fn new(client: Client, http2: Http2, with_token: bool) -> Self {
        Self {
            client,
            http2,
            with_token,
        }
    }

    /// Whether no call can be made by it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.http2.is_closed()
    }

    /// One renewal, on a stream of its own: on a kept one an answer cannot be told from that to an earlier request, and
    /// it ends with its connection. The message that counts is answered within `within`, or not at all.
    pub(super) async fn keep_alive(self: Arc<Self>, lease: i64, within: Duration) -> Answered<Alive> {
        if self.with_token {
            return Box::pin(self.keep_alive_twice(lease, within)).await;
        }
        let sent = Moment::now();
        let answered = timeout(within, self.keep_alive_once(lease)).await;
        let Ok(answered) = answered else {
            return Err(Error::LeaseKeepAliveError("it did not answer in time".to_owned()));
        };
        let Renewed { header, ttl } = answered?;
        let header = header.unwrap_or_default();
        let alive = Alive {
            sent,
            ttl: seconds_granted(ttl),
            term: header.raft_term,
        };
        Ok((Some(header.cluster_id).filter(|id| *id != 0), alive))
    }

    /// etcd's keep-alive is a stream of requests and answers, and ends with the requests: with one of each it is what a
    /// call without streams is on the wire.
    async fn keep_alive_once(&self, lease: i64) -> Result<Renewed, Status> {
        let mut grpc = Grpc::new(self.http2.calls());
        grpc.ready().await.map_err(Status::from_error)?;
        let mut request = Request::new(KeepAlive { id: lease });
        request
            .metadata_mut()
            .insert("hasleader", AsciiMetadataValue::from_static("true"));
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let answer = grpc.unary(request, path, ProstCodec::default()).await?;
        Ok(answer.into_inner())
    }

    /// By etcd-client, which reads the first answer itself and drops it, and TTL and term with it. So a second
    /// request follows, and counts. As long as for the answer it may take to open the stream.
    async fn keep_alive_twice(self: Arc<Self>, lease: i64, within: Duration) -> Answered<Alive> {
        let mut client = self.client.lease_client();
        let Ok(opened) = timeout(within, client.keep_alive(lease)).await else {
            return Err(Error::LeaseKeepAliveError("it did not answer in time".to_owned()));
        };
        let (mut keeper, mut answers) = match opened {
            Ok(opened) => opened,
            Err(Error::LeaseKeepAliveError(text)) if text == "lease not found" => {
                let (sent, ttl, term) = (Moment::now(), None, 0);
                return Ok((None, Alive { sent, ttl, term }));
            }
            Err(error) => return Err(error),
        };
        let sent = Moment::now();
        keeper.keep_alive().await?;
        let Ok(answer) = timeout(within, answers.message()).await else {
            return Err(Error::LeaseKeepAliveError(
                "the renewal was answered too late".to_owned(),
            ));
        };
        let Some(answer) = answer? else {
            return Err(Error::LeaseKeepAliveError(
                "the stream ended without an answer".to_owned(),
            ));
        };
        let alive = Alive {
            sent,
            ttl: seconds_granted(answer.ttl()),
            term: answer.header().map_or(0, ResponseHeader::raft_term),
        };
        Ok((cluster(answer.header()), alive))
    }
}
