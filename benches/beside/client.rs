//! etcd's requests on one kept connection, without any program around them: the floor under every lock that stands
//! on a lease, and a quick look into queues.

use crate::site::{Site, Tls};
use ::meshlock::store::files::{Kept, Unusable};
use etcd_client::{
    Channel, Client, CompactionOptions, Compare, CompareOp, GetOptions, LeaseGrantOptions, PutOptions, Txn, TxnOp,
};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Service, StdError};
use tonic::transport::Endpoint;

/// Operations in a transaction; etcd takes no more than 128 (`--max-txn-ops`).
const AT_ONCE: usize = 100;

pub(crate) struct Connected {
    runtime: Runtime,
    client: Client,
}

/// The requests of one run.
pub(crate) struct Cycle {
    /// A lease, the transaction that enters and the one that leaves.
    pub(crate) lock: Duration,
    /// Of the lease: nobody needs to wait for that.
    pub(crate) revoke: Duration,
}

impl Connected {
    /// To the first member, as meshlock.
    pub(crate) fn to(site: &Site) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let endpoint = site.cluster.members[0].endpoint();
        let plug = Plug(site.tls.as_ref().map(config));
        let client = runtime.block_on(async {
            let endpoint = Endpoint::from_shared(endpoint).expect("a URL").tcp_nodelay(true);
            let channel = endpoint.connect_with_connector(plug).await.expect("a connection");
            Client::from_channel(Channel::Tonic(channel), None)
                .await
                .expect("a client")
        });
        Self { runtime, client }
    }

    /// What a lock costs at the least: as meshlock's own requests, with a record of some length.
    pub(crate) fn cycle(&mut self, lock: &str) -> Cycle {
        let client = &mut self.client;
        self.runtime.block_on(async {
            let lease = fastrand::i64(1..);
            let start = Instant::now();
            let asked = LeaseGrantOptions::new().with_id(lease);
            client.lease_grant(30, Some(asked)).await.expect("a lease");
            let (entry, open) = (
                format!("floor/lock/{lock}/{lease:x}"),
                format!("floor/open/{lock}/{lease:x}"),
            );
            let record = [b'x'; 200];
            let arrival = Txn::new()
                .when([Compare::create_revision(&*entry, CompareOp::Equal, 0)])
                .and_then([
                    TxnOp::put(&*entry, record, Some(PutOptions::new().with_lease(lease))),
                    TxnOp::put(&*open, record, None),
                ]);
            let arrived = client.txn(arrival).await.expect("an answer");
            let token = arrived.header().expect("a header").revision();
            let departure = Txn::new()
                .when([Compare::create_revision(&*entry, CompareOp::Equal, token)])
                .and_then([
                    TxnOp::delete(&*entry, None),
                    TxnOp::delete(&*open, None),
                    TxnOp::put(format!("floor/log/{lock}"), record, None),
                ]);
            assert!(client.txn(departure).await.expect("an answer").succeeded());
            let lock = start.elapsed();
            client.lease_revoke(lease).await.expect("an answer");
            Cycle {
                lock,
                revoke: start.elapsed().saturating_sub(lock),
            }
        })
    }

    /// Puts the keys and deletes them, which leaves nothing but history.
    pub(crate) fn come_and_go(&mut self, keys: &[String]) {
        for some in keys.chunks(AT_ONCE) {
            let put = |key: &String| TxnOp::put(&**key, [b'x'; 200], None);
            let delete = |key: &String| TxnOp::delete(&**key, None);
            let ops: [Vec<TxnOp>; 2] = [some.iter().map(put).collect(), some.iter().map(delete).collect()];
            for ops in ops {
                let done = self.client.txn(Txn::new().and_then(ops));
                self.runtime.block_on(done).expect("an answer");
            }
        }
    }

    /// Forgets all that was, and gives the room back.
    pub(crate) fn compact(&mut self) {
        let client = &mut self.client;
        self.runtime.block_on(async {
            let found = client.get("nothing", None).await.expect("an answer");
            let revision = found.header().expect("a header").revision();
            let options = CompactionOptions::new().with_physical();
            client.compact(revision, Some(options)).await.expect("compacted");
            client.defragment().await.expect("defragmented");
        });
    }

    /// Has etcd write its database now, of which it else tells the size of up to 100 ms ago
    /// (`--backend-batch-interval`): a hash is made of what is written (`store.Hash` in etcd's mvcc).
    pub(crate) fn written(&mut self) {
        self.runtime.block_on(self.client.hash()).expect("a hash");
    }

    /// How many keys there are under `prefix`.
    pub(crate) fn count(&mut self, prefix: &str) -> usize {
        let options = GetOptions::new().with_prefix().with_count_only();
        let found = self.runtime.block_on(self.client.get(prefix, Some(options)));
        usize::try_from(found.expect("an answer").count()).expect("a count")
    }
}

/// As meshlock makes it.
fn config(tls: &Tls) -> Arc<ClientConfig> {
    let read = |option: &str, file: &Path| {
        let kept = Kept::read(option.to_owned(), file.to_owned(), Duration::from_secs(1));
        kept.unwrap_or_else(|Unusable(why)| panic!("{why}"))
    };
    let mut tls = ::meshlock::store::tls::Tls {
        cacert: Some(read("--cacert", &tls.authority.cert())),
        identity: Some((read("--cert", &tls.client.cert), read("--key", &tls.client.key))),
        ..Default::default()
    };
    tls.check().unwrap_or_else(|Unusable(why)| panic!("{why}"));
    tls.made.expect("made of the files")
}

/// Makes connections, by TLS where there is a configuration for it: etcd-client has its own only as a feature, which
/// would be in the measured program as well.
#[derive(Clone)]
struct Plug(Option<Arc<ClientConfig>>);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Service<Uri> for Plug {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = StdError;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.0.clone();
        Box::pin(async move {
            let host = uri.host().expect("a host").to_owned();
            let stream = TcpStream::connect((&*host, uri.port_u16().expect("a port"))).await?;
            stream.set_nodelay(true)?;
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(stream),
                Some(config) => {
                    let name = ServerName::try_from(host)?;
                    Box::new(TlsConnector::from(config).connect(name, stream).await?)
                }
            };
            Ok(TokioIo::new(stream))
        })
    }
}
