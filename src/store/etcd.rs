//! etcd behind one client per endpoint, chosen here: the last good one first, the next after an error or a
//! time-out (etcdv3/etcd-client#39: the crate's own balancer goes on using dead members). Every call is
//! bounded and may be repeated. Knows neither queues nor records.

use super::credentials::Credentials;
use super::secure::{Secure, Trouble, What, Wrong, shows_a_certificate, speaks_plainly};
use super::wire::{self, Answered, cluster, commit};
use super::{Alive, Answer, Change, Connection, Fault, Txn, Watched, fault};
use crate::moment::Moment;
use etcd_client::{
    Channel, Client, ConnectOptions, Error, EventType, LeaseGrantOptions, ResponseHeader, WatchOptions, WatchResponse,
    WatchStream,
};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, timeout};
use tonic::transport::Endpoint;

/// With several endpoints none may take longer than this from the others.
const TRY_AT_MOST: Duration = Duration::from_secs(1);

/// etcd ends connections that ping more often than each 5 s (`--grpc-keepalive-min-time`), and any that
/// pings without a stream.
const PING_EACH: Duration = Duration::from_secs(10);
const PING_ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// A cluster, reached through its endpoints. Cheap to clone.
#[derive(Clone)]
pub struct Etcd(Arc<Inner>);

struct Inner {
    settings: Connection,
    credentials: Credentials,
    /// Whether a member that knows no leader is to refuse rather than to wait for one.
    require_leader: bool,
    pool: Mutex<Pool>,
}

struct Pool {
    members: Vec<Member>,
    /// The one to ask next.
    current: usize,
    /// The only one that counts: the one expected, else that of the first answer.
    cluster: Option<u64>,
}

#[derive(Default)]
struct Member {
    client: Option<Client>,
    standing: Standing,
    trouble: Trouble,
    /// Wakes who watches there when a call has failed, so that the watch moves on with the calls.
    failed: Arc<Notify>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Unknown,
    /// It has answered for our cluster.
    Ours,
    /// It answered for another one, and never for ours.
    Foreign,
}

impl Etcd {
    pub fn new(settings: &Connection) -> Self {
        Self::with(settings.clone(), None, true)
    }

    /// The one cluster with this id; what answers for another is no witness.
    pub fn of_cluster(settings: &Connection, cluster: u64) -> Self {
        Self::with(settings.clone(), Some(cluster), true)
    }

    /// One endpoint, asked about itself: also where it knows no leader.
    pub fn alone(settings: Connection) -> Self {
        Self::with(settings, None, false)
    }

    fn with(settings: Connection, cluster: Option<u64>, require_leader: bool) -> Self {
        Self(Arc::new(Inner {
            pool: Mutex::new(Pool {
                members: settings.endpoints.iter().map(|_| Member::default()).collect(),
                current: 0,
                cluster,
            }),
            credentials: Credentials::new(&settings),
            settings,
            require_leader,
        }))
    }

    /// What the user should know of the files that we show ourselves by, each line once.
    pub fn notices(&self) -> Vec<String> {
        self.0.credentials.notices()
    }

    /// One transaction, at each endpoint in turn until one answers.
    pub async fn txn(&self, txn: Txn) -> Result<Answer, Fault> {
        let txn = wire::txn(txn);
        self.each(&|client| commit(client, txn.clone())).await
    }

    /// The same at one endpoint, answered within the time given.
    pub async fn txn_once(&self, txn: Txn, within: Duration) -> Result<Answer, Fault> {
        let txn = wire::txn(txn);
        self.once(within, &|client| commit(client, txn.clone())).await
    }

    /// A lease of the given id; the TTL that was granted. That it is there already is success: the id is ours
    /// alone, and an earlier try's outcome may be unknown.
    pub async fn grant(&self, lease: i64, ttl: Duration) -> Result<Duration, Fault> {
        let seconds = i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX);
        let granted = self
            .each(&|mut client: Client| async move {
                let asked = LeaseGrantOptions::new().with_id(lease);
                match client.lease_grant(seconds, Some(asked)).await {
                    Ok(granted) => Ok((cluster(granted.header()), granted.ttl())),
                    Err(error) if fault::status_says(&error, "lease already exists") => {
                        let there = client.lease_time_to_live(lease, None).await?;
                        // -1 where it has run out by now.
                        let granted = if there.ttl() > 0 { there.granted_ttl() } else { 0 };
                        Ok((cluster(there.header()), granted))
                    }
                    Err(error) => Err(error),
                }
            })
            .await?;
        seconds_granted(granted).ok_or(Fault::LeaseGone)
    }

    /// One renewal at one endpoint, on a stream of its own: on a kept one an answer cannot be told from that
    /// to an earlier request, and it ends with its connection. The request that counts is answered within
    /// `within` or not at all; so long may the stream take to open, too.
    pub async fn keep_alive(&self, lease: i64, within: Duration) -> Result<Alive, Fault> {
        self.once(within * 2, &|mut client: Client| async move {
            // etcd-client reads the first answer itself and drops it, and TTL and term with it. So a second
            // request follows, and counts.
            let (mut keeper, mut answers) = match client.lease_keep_alive(lease).await {
                Ok(opened) => opened,
                Err(Error::LeaseKeepAliveError(text)) if text == "lease not found" => {
                    return Ok((
                        None,
                        Alive {
                            sent: Moment::now(),
                            ttl: None,
                            term: 0,
                        },
                    ));
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
        })
        .await
    }

    /// Ends the lease and all that is bound to it; that it is not there is success.
    pub async fn revoke(&self, lease: i64) -> Result<(), Fault> {
        self.each(&|mut client: Client| async move {
            match client.lease_revoke(lease).await {
                Ok(revoked) => Ok((cluster(revoked.header()), ())),
                Err(error) if fault::status_says(&error, "requested lease not found") => Ok((None, ())),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Watches from the revision given, else from now on, and tells the changes, [`Change::Ready`]
    /// first; ends with why the watch broke.
    pub async fn watch(&self, watched: &[Watched], from: Option<i64>, changes: &UnboundedSender<Change>) -> Fault {
        let (at, failed) = {
            let pool = self.pool();
            (pool.current, Arc::clone(&pool.members[pool.current].failed))
        };
        // From here on, so that no failure is missed between two messages.
        let mut failed = pin!(failed.notified());
        let open = |client| open_watch(client, watched.to_owned(), from);
        let mut opened = self.once_at(at, self.per_try(), &open).await;
        if matches!(opened, Err(Fault::Denied { .. })) && self.0.settings.user.is_some() {
            // A stale token is refused as a missing right here; a new connection brings a new one.
            self.pool().members[at].client = None;
            opened = self.once_at(at, self.per_try(), &open).await;
        }
        let (mut stream, early) = match opened {
            Ok(opened) => opened,
            Err(fault) => return fault,
        };
        if changes.send(Change::Ready).is_err() {
            return closed();
        }
        let endpoint = &self.0.settings.endpoints[at];
        let mut early = early.into_iter();
        loop {
            let response = if let Some(response) = early.next() {
                response
            } else {
                let message = tokio::select! {
                    message = stream.message() => message,
                    // A member that hangs, or is cut off from the others, tells a watcher nothing.
                    () = &mut failed => {
                        return Fault::Unreachable {
                            why: format!("{endpoint}: it did not answer another call"),
                        };
                    }
                };
                match message {
                    Ok(Some(response)) => response,
                    Ok(None) => {
                        self.rotate(at, true);
                        return Fault::Unreachable {
                            why: format!("{endpoint}: the watch ended"),
                        };
                    }
                    Err(error) => {
                        let (fault, broke) = (fault::classify(endpoint, &error), fault::connection_broke(&error));
                        self.rotate(at, broke);
                        return if broke {
                            self.refuted(at, self.explained(at, fault))
                        } else {
                            fault
                        };
                    }
                }
            };
            if let Err(fault) = self.vouch(at, cluster(response.header())) {
                return fault;
            }
            if response.canceled() {
                let status = fault::cancelled(response.cancel_reason());
                return fault::classify(endpoint, &Error::GRpcStatus(status));
            }
            for event in response.events() {
                let Some(item) = event.kv() else { continue };
                let key = String::from_utf8_lossy(item.key()).into_owned();
                let change = match event.event_type() {
                    EventType::Delete => Change::Deleted { key },
                    EventType::Put => Change::Put {
                        key,
                        value: item.value().to_vec(),
                    },
                };
                if changes.send(change).is_err() {
                    return closed();
                }
            }
        }
    }

    /// A call at each endpoint in turn until one answers, all within `--dial-timeout`.
    pub(super) async fn each<T, F, Fut>(&self, call: &F) -> Result<T, Fault>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Answered<T>>,
    {
        let deadline = Instant::now() + self.0.settings.dial_timeout;
        let first = self.pool().current;
        let mut worst: Option<Fault> = None;
        for _ in 0..self.0.settings.endpoints.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match self.once(self.per_try().min(left), call).await {
                // An endpoint that is set up wrongly need not keep us from the others.
                Err(fault @ (Fault::Unreachable { .. } | Fault::Config { .. } | Fault::Foreign { .. })) => {
                    worst = Some(worse(worst, fault));
                }
                outcome => return outcome,
            }
            if self.pool().current == first {
                break;
            }
        }
        Err(worst.unwrap_or(Fault::Unreachable {
            why: "no endpoint is left to ask".to_owned(),
        }))
    }

    /// A call at the current endpoint; after a failure the next one is current.
    async fn once<T, F, Fut>(&self, within: Duration, call: &F) -> Result<T, Fault>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Answered<T>>,
    {
        let at = self.pool().current;
        self.once_at(at, within, call).await
    }

    async fn once_at<T, F, Fut>(&self, at: usize, within: Duration, call: &F) -> Result<T, Fault>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Answered<T>>,
    {
        let answered = self.ask(at, within, call).await;
        if answered.as_ref().is_err_and(fault::is_of_the_password) && self.0.credentials.another_password() {
            self.pool().members[at].client = None;
            return self.ask(at, within, call).await;
        }
        answered
    }

    async fn ask<T, F, Fut>(&self, at: usize, within: Duration, call: &F) -> Result<T, Fault>
    where
        F: Fn(Client) -> Fut,
        Fut: Future<Output = Answered<T>>,
    {
        let endpoint = &self.0.settings.endpoints[at];
        let connected = timeout(within, self.client(at)).await;
        let client = connected
            .unwrap_or_else(|_| Err(fault::silent(endpoint, within)))
            .inspect_err(|_| self.rotate(at, true))?;
        let answered = timeout(within, async {
            match call(client.clone()).await {
                Err(error) if fault::token_is_stale(&error) && self.0.settings.user.is_some() => {
                    client.refresh_token().await?;
                    call(client).await
                }
                outcome => outcome,
            }
        });
        match answered.await {
            Ok(Ok((cluster, value))) => {
                // What an earlier connection died of is over: this one was made without us.
                self.pool().members[at].trouble.take();
                self.vouch(at, cluster)?;
                Ok(value)
            }
            Ok(Err(error)) => {
                let mut fault = fault::classify(endpoint, &error);
                let broke = fault::connection_broke(&error);
                if broke {
                    fault = self.refuted(at, self.explained(at, fault));
                }
                if matches!(fault, Fault::Unreachable { .. } | Fault::Config { .. }) {
                    self.rotate(at, broke);
                }
                let new = self.pool().members[at].standing == Standing::Unknown;
                if broke && new && matches!(timeout(within, speaks_tls(endpoint)).await, Ok(true)) {
                    fault = Fault::Config {
                        why: format!("{endpoint}: it speaks TLS: use https://"),
                    };
                }
                Err(fault)
            }
            Err(_) => {
                self.rotate(at, true);
                Err(fault::silent(endpoint, within))
            }
        }
    }

    /// The endpoint's client, connected: eagerly, since a lazy channel hides why TLS failed.
    async fn client(&self, at: usize) -> Result<Client, Fault> {
        if let Some(client) = &self.pool().members[at].client {
            return Ok(client.clone());
        }
        let url = &self.0.settings.endpoints[at];
        let channel = match self.connect(at).await {
            Ok(channel) => channel,
            Err(error) => return Err(self.unconnected(at, &error).await),
        };
        let mut options = ConnectOptions::new().with_require_leader(self.0.require_leader);
        if let Some((user, password)) = self.0.credentials.user() {
            options = options.with_user(user, password);
        }
        let client = Client::from_channel(Channel::Tonic(channel), Some(options))
            .await
            .map_err(|error| self.refuted(at, self.explained(at, fault::classify(url, &error))))?;
        self.pool().members[at].client = Some(client.clone());
        Ok(client)
    }

    async fn connect(&self, at: usize) -> Result<tonic::transport::Channel, tonic::transport::Error> {
        let url = &self.0.settings.endpoints[at];
        let endpoint = Endpoint::from_shared(url.clone())?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EACH)
            .keep_alive_timeout(PING_ANSWER_WITHIN)
            .keep_alive_while_idle(false);
        if !url.starts_with("https://") {
            return endpoint.connect().await;
        }
        let trouble = self.pool().members[at].trouble.clone();
        let secure = Secure::new(self.0.credentials.clone(), trouble);
        endpoint.connect_with_connector(secure).await
    }

    async fn unconnected(&self, at: usize, error: &tonic::transport::Error) -> Fault {
        let url = &self.0.settings.endpoints[at];
        let (trouble, new) = {
            let pool = self.pool();
            let member = &pool.members[at];
            (member.trouble.take(), member.standing == Standing::Unknown)
        };
        let fault = match trouble {
            None => fault::of_transport(url, error),
            Some(What {
                error: Wrong::HungUp, ..
            }) if new && is_plain(url).await => fault::no_tls(url),
            Some(what) => fault::of_tls(url, &what),
        };
        self.refuted(at, fault)
    }

    /// The fault of a broken connection by what TLS knows of it, where that is more.
    fn explained(&self, at: usize, fault: Fault) -> Fault {
        let trouble = self.pool().members[at].trouble.take();
        trouble.map_or(fault, |what| fault::of_tls(&self.0.settings.endpoints[at], &what))
    }

    /// An endpoint that has answered under these settings is not set up wrongly: it is away, as where a proxy has
    /// nobody behind it and hangs up.
    fn refuted(&self, at: usize, fault: Fault) -> Fault {
        match fault {
            Fault::Config { why } if self.pool().members[at].standing == Standing::Ours => Fault::Unreachable { why },
            fault => fault,
        }
    }

    /// Holds the answer's cluster id against ours. An answer without one (an error read as success) says nothing.
    fn vouch(&self, at: usize, cluster: Option<u64>) -> Result<(), Fault> {
        let Some(cluster) = cluster else { return Ok(()) };
        let endpoint = &self.0.settings.endpoints[at];
        let mut pool = self.pool();
        let ours = *pool.cluster.get_or_insert(cluster);
        let member = &mut pool.members[at];
        if cluster == ours {
            member.standing = Standing::Ours;
            return Ok(());
        }
        if member.standing == Standing::Ours {
            return Err(Fault::Replaced {
                why: format!("{endpoint}: the cluster {ours:x} has been replaced by {cluster:x}"),
            });
        }
        member.standing = Standing::Foreign;
        pool.advance(at);
        Err(Fault::Foreign {
            why: format!("{endpoint}: it serves another cluster ({cluster:x}) than the one of the lock ({ours:x})"),
        })
    }

    fn rotate(&self, at: usize, connection_broke: bool) {
        let mut pool = self.pool();
        if connection_broke {
            pool.members[at].client = None;
        }
        pool.members[at].failed.notify_waiters();
        pool.advance(at);
    }

    fn per_try(&self) -> Duration {
        let Connection {
            endpoints,
            dial_timeout,
            ..
        } = &self.0.settings;
        match u32::try_from(endpoints.len()) {
            Ok(0 | 1) => *dial_timeout,
            Ok(several) => (*dial_timeout / several).min(TRY_AT_MOST),
            Err(_) => TRY_AT_MOST,
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// To the next endpoint that is not foreign, unless another call has already moved on from `at`.
    fn advance(&mut self, at: usize) {
        if self.current != at {
            return;
        }
        let count = self.members.len();
        self.current = (1..=count)
            .map(|step| (at + step) % count)
            .find(|&next| self.members[next].standing != Standing::Foreign)
            .unwrap_or(at);
    }
}

/// Whether a server that hung up on TLS does so since it speaks none.
async fn is_plain(url: &str) -> bool {
    match url.parse() {
        Ok(uri) => speaks_plainly(uri).await,
        Err(_) => false,
    }
}

/// Whether a server that broke a plain connection wants TLS: it says nothing then.
async fn speaks_tls(url: &str) -> bool {
    let uri = url
        .strip_prefix("http://")
        .and_then(|address| format!("https://{address}").parse().ok());
    match uri {
        Some(uri) => shows_a_certificate(uri).await,
        None => false,
    }
}

/// Opens one stream with a watcher for each and awaits that all are made, keeping what they tell meanwhile.
async fn open_watch(
    mut client: Client,
    watched: Vec<Watched>,
    from: Option<i64>,
) -> Answered<(WatchStream, Vec<WatchResponse>)> {
    let ended = || Error::WatchError("the watch ended as it began".to_owned());
    let wanted = watched.len();
    let mut watched = watched.into_iter().map(|watched| {
        let options = from.map_or_else(WatchOptions::new, |from| WatchOptions::new().with_start_revision(from));
        match watched {
            Watched::Key(key) => (key, options),
            Watched::Prefix(prefix) => (prefix, options.with_prefix()),
        }
    });
    let (first, options) = watched.next().ok_or_else(ended)?;
    let mut stream = client.watch(first, Some(options)).await?;
    for (next, options) in watched {
        stream.watch(next, Some(options)).await?;
    }
    let mut id = None;
    let mut created = 0;
    let mut early = Vec::new();
    while created < wanted {
        let response = stream.message().await?.ok_or_else(ended)?;
        id = cluster(response.header());
        if response.canceled() {
            // Made and cancelled at once: etcd's way of refusing, a stale token included.
            return Err(Error::GRpcStatus(fault::cancelled(response.cancel_reason())));
        }
        created += usize::from(response.created());
        early.push(response);
    }
    Ok((id, (stream, early)))
}

pub(super) fn seconds_granted(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().filter(|&ttl| ttl > 0).map(Duration::from_secs)
}

/// A refusal in the settings tells more than a silence does, and a stranger no more than that; among equals both are
/// told.
fn worse(before: Option<Fault>, now: Fault) -> Fault {
    match (before, now) {
        (
            Some(Fault::Unreachable { why: before } | Fault::Foreign { why: before }),
            Fault::Unreachable { why: now },
        )
        | (Some(Fault::Unreachable { why: before }), Fault::Foreign { why: now }) => Fault::Unreachable {
            why: format!("{before}; {now}"),
        },
        (None | Some(Fault::Unreachable { .. } | Fault::Foreign { .. }), now) => now,
        (Some(before), _) => before,
    }
}

fn closed() -> Fault {
    Fault::Internal {
        why: "nobody listens to the watch any more".to_owned(),
    }
}
