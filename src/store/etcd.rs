//! etcd behind one client per endpoint, chosen here: the last good one first, the next after an error or a
//! time-out (etcdv3/etcd-client#39: the crate's own balancer goes on using dead members). Every call is
//! bounded and may be repeated. Knows neither queues nor records.

use super::credentials::Credentials;
use super::host::{Dialer, Reached};
use super::line::Line;
use super::pool::{Connected, Pool, Standing};
use super::secure::{Connector, What, Wrong, shows_a_certificate, speaks_plainly};
use super::wire::{self, Answered, cluster, commit};
use super::{Alive, Answer, Change, Connection, Fault, Txn, Watched, fault};
use etcd_client::{
    Channel, Client, ConnectOptions, Error, EventType, LeaseGrantOptions, WatchOptions, WatchResponse, WatchStream,
};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Endpoint;

/// DNS is asked for the members no more often than this.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(2);

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
            pool: Mutex::new(Pool::new(&settings.endpoints, cluster)),
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

    /// The same, and whether it was sent but once: else an earlier try may have been done, and its answer lost.
    pub async fn txn_counted(&self, txn: Txn) -> Result<(Answer, bool), Fault> {
        let txn = wire::txn(txn);
        let tries = AtomicU32::new(0);
        let answer = self
            .each(&|client| {
                tries.fetch_add(1, Ordering::Relaxed);
                commit(client, txn.clone())
            })
            .await?;
        Ok((answer, tries.into_inner() == 1))
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
            .each(&|client: Arc<Line>| async move {
                let asked = LeaseGrantOptions::new().with_id(lease);
                let mut client = client.lease_client();
                match client.grant(seconds, Some(asked)).await {
                    Ok(granted) => Ok((cluster(granted.header()), granted.ttl())),
                    Err(error) if fault::status_says(&error, "lease already exists") => {
                        let there = client.time_to_live(lease, None).await?;
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

    /// One renewal at one endpoint, [`Line::keep_alive`].
    pub async fn keep_alive(&self, lease: i64, within: Duration) -> Result<Alive, Fault> {
        self.once(within * 2, &|line: Arc<Line>| line.keep_alive(lease, within))
            .await
    }

    /// Ends the lease and all that is bound to it; that it is not there is success.
    pub async fn revoke(&self, lease: i64) -> Result<(), Fault> {
        self.each(&|client: Arc<Line>| async move {
            match client.lease_client().revoke(lease).await {
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
        let at = match self.current().await {
            Ok(at) => at,
            Err(fault) => return fault,
        };
        let failed = Arc::clone(&self.pool().members[at].failed);
        // From here on, so that no failure is missed between two messages.
        let mut failed = pin!(failed.notified());
        let open = |client| open_watch(client, watched.to_owned(), from);
        let mut opened = self.once_at(at, None, &open).await;
        if matches!(opened, Err(Fault::Denied { .. })) && self.0.settings.user.is_some() {
            // A stale token is refused as a missing right here; a new connection brings a new one.
            self.pool().members[at].connected = None;
            opened = self.once_at(at, None, &open).await;
        }
        let (mut stream, early) = match opened {
            Ok(opened) => opened,
            Err(fault) => return fault,
        };
        let to = self.reached(at);
        if changes.send(Change::Ready).is_err() {
            return closed();
        }
        let endpoint = &*self.url(at);
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
                        self.rotate(at, to.as_ref());
                        return Fault::Unreachable {
                            why: format!("{endpoint}: the watch ended"),
                        };
                    }
                    Err(error) => {
                        let (fault, broke) = (fault::classify(endpoint, &error), fault::connection_broke(&error));
                        self.rotate(at, to.as_ref().filter(|_| broke));
                        return if broke {
                            self.explained(at, to.as_ref(), fault).await
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
                    EventType::Delete => Change::Deleted {
                        key,
                        at: item.mod_revision(),
                    },
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
        F: Fn(Arc<Line>) -> Fut,
        Fut: Future<Output = Answered<T>>,
    {
        let dial_timeout = self.0.settings.dial_timeout;
        let deadline = Instant::now() + dial_timeout;
        let mut worst: Option<Fault> = None;
        let mut turn = 0;
        self.current().await?;
        // Known once the names were looked up.
        while turn < self.pool().turns() {
            turn += 1;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let at = self.pool().current;
            let tried = timeout(left, self.once_at(at, None, call)).await;
            let tried = tried.unwrap_or_else(|_| {
                self.rotate(at, self.reached(at).as_ref());
                Err(fault::silent(&self.url(at), dial_timeout))
            });
            match tried {
                // An endpoint that is set up wrongly need not keep us from the others.
                Err(fault @ (Fault::Unreachable { .. } | Fault::Config { .. } | Fault::Foreign { .. })) => {
                    worst = Some(worse(worst, fault));
                }
                outcome => return outcome,
            }
        }
        Err(worst.unwrap_or(Fault::Unreachable {
            why: "no endpoint is left to ask".to_owned(),
        }))
    }

    /// A call at the current endpoint; after a failure the next one is current.
    async fn once<T, F, Fut>(&self, within: Duration, call: &F) -> Result<T, Fault>
    where
        F: Fn(Arc<Line>) -> Fut,
        Fut: Future<Output = Answered<T>>,
    {
        let at = timeout(within, self.current())
            .await
            .unwrap_or_else(|_| Err(self.0.settings.silent()))?;
        self.once_at(at, Some(within), call).await
    }

    /// Without a time given, in this endpoint's share of `--dial-timeout`.
    async fn once_at<T, F, Fut>(&self, at: usize, within: Option<Duration>, call: &F) -> Result<T, Fault>
    where
        F: Fn(Arc<Line>) -> Fut,
        Fut: Future<Output = Answered<T>>,
    {
        let answered = self.ask(at, within, call).await;
        if answered.as_ref().is_err_and(fault::is_of_the_password) && self.0.credentials.another_password() {
            self.pool().members[at].connected = None;
            return Box::pin(self.ask(at, within, call)).await;
        }
        answered
    }

    async fn ask<T, F, Fut>(&self, at: usize, within: Option<Duration>, call: &F) -> Result<T, Fault>
    where
        F: Fn(Arc<Line>) -> Fut,
        Fut: Future<Output = Answered<T>>,
    {
        let endpoint = &*self.url(at);
        let Connected { client, to } = self
            .connected(at, within)
            .await
            .inspect_err(|_| self.rotate(at, None))?;
        let within = within.unwrap_or_else(|| self.share());
        let answered = timeout(within, async {
            let answered = call(Arc::clone(&client)).await;
            match answered {
                Err(error) if fault::token_is_stale(&error) && self.0.settings.user.is_some() => {
                    client.refresh_token().await?;
                    Box::pin(call(client)).await
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
                    fault = self.explained(at, Some(&to), fault).await;
                }
                if matches!(fault, Fault::Unreachable { .. } | Fault::Config { .. }) {
                    self.rotate(at, broke.then_some(&to));
                }
                let new = self.pool().members[at].standing == Standing::Unknown;
                let maybe_tls = broke && new && endpoint.starts_with("http://");
                if maybe_tls && matches!(timeout(within, speaks_tls(endpoint, &to)).await, Ok(true)) {
                    fault = fault::wants_tls(endpoint);
                }
                Err(fault)
            }
            Err(_) => {
                self.rotate(at, Some(&to));
                Err(fault::silent(endpoint, within))
            }
        }
    }

    /// The endpoint's client, connected.
    async fn connected(&self, at: usize, within: Option<Duration>) -> Result<Connected, Fault> {
        let known = self.pool().members[at].connected.clone();
        match known {
            Some(connected) => Ok(connected),
            // Apart: it takes five times the room of a call, which each call would take for it.
            None => Box::pin(self.newly_connected(at, within)).await,
        }
    }

    /// Eagerly, since a lazy channel hides why TLS failed.
    async fn newly_connected(&self, at: usize, within: Option<Duration>) -> Result<Connected, Fault> {
        let host = Arc::clone(&self.pool().members[at].host);
        let url = &*self.url(at);
        let share = || within.unwrap_or_else(|| self.share());
        let places = async {
            let places = host.places().await;
            places.map_err(|error| fault::of_transport(url, &error))
        };
        let places = bounded(url, share(), places).await?;
        // Less from here on where the name has turned out to have several addresses: others are to get a turn.
        let to = Reached::default();
        // Where time is short a black hole must not take that of the next endpoint: TCP alone is quick, or nothing.
        let dialer = Dialer::new(places, within.map(|within| within / 2), to.clone());
        let client = Box::pin(self.connect(at, dialer, &to));
        let client = bounded(url, share(), client).await.inspect_err(|_| host.failed(&to))?;
        let connected = Connected {
            client: Arc::new(client),
            to,
        };
        self.pool().members[at].connected = Some(connected.clone());
        Ok(connected)
    }

    /// TCP, TLS and, with a user, a first token.
    async fn connect(&self, at: usize, dialer: Dialer, to: &Reached) -> Result<Line, Fault> {
        let url = &*self.url(at);
        let channel = match self.channel(at, dialer).await {
            Ok(channel) => channel,
            Err(error) => return Err(self.explained(at, Some(to), fault::of_transport(url, &error)).await),
        };
        let mut options = ConnectOptions::new().with_require_leader(self.0.require_leader);
        if let Some((user, password)) = self.0.credentials.user() {
            self.before_a_password(at, to).await?;
            options = options.with_user(user, password);
        }
        let with_token = self.0.credentials.user().is_some();
        match Client::from_channel(Channel::Tonic(channel.clone()), Some(options)).await {
            Ok(client) => Ok(Line::new(client, channel, with_token)),
            Err(error) => Err(self.explained(at, Some(to), fault::classify(url, &error)).await),
        }
    }

    /// That an endpoint without TLS has none: a password that is sent to one with TLS is out on the network, and was
    /// for nothing.
    async fn before_a_password(&self, at: usize, to: &Reached) -> Result<(), Fault> {
        let url = &*self.url(at);
        let known = self.pool().members[at].standing == Standing::Ours;
        if known || !url.starts_with("http://") || is_plain(to).await {
            return Ok(());
        }
        Err(if speaks_tls(url, to).await {
            fault::wants_tls(url)
        } else {
            Fault::Unreachable {
                why: format!("{url}: the connection broke"),
            }
        })
    }

    async fn channel(&self, at: usize, dialer: Dialer) -> Result<tonic::transport::Channel, tonic::transport::Error> {
        let url = &*self.url(at);
        let endpoint = Endpoint::from_shared(url.to_owned())?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EACH)
            .keep_alive_timeout(PING_ANSWER_WITHIN)
            .keep_alive_while_idle(false);
        let trouble = self.pool().members[at].trouble.clone();
        // A call gives up before, and leaves the connection to itself.
        let within = 2 * self.0.settings.dial_timeout;
        let connector = Connector::new(dialer, self.0.credentials.clone(), trouble, within);
        endpoint.connect_with_connector(connector).await
    }

    /// The fault of a broken connection by what TLS knows of it, where that is more.
    async fn explained(&self, at: usize, to: Option<&Reached>, fault: Fault) -> Fault {
        let url = &*self.url(at);
        let (trouble, new) = {
            let pool = self.pool();
            let member = &pool.members[at];
            (member.trouble.take(), member.standing == Standing::Unknown)
        };
        let fault = match (trouble, to) {
            (None, _) => fault,
            (
                Some(What {
                    error: Wrong::HungUp, ..
                }),
                Some(to),
            ) if new && matches!(timeout(self.share(), is_plain(to)).await, Ok(true)) => fault::no_tls(url),
            (Some(what), _) => fault::of_tls(url, &what),
        };
        self.refuted(at, fault)
    }

    /// An endpoint that has answered under these settings is not set up wrongly: it is away, as where a proxy has
    /// nobody behind it and hangs up.
    fn refuted(&self, at: usize, fault: Fault) -> Fault {
        match fault {
            Fault::Config { why } if self.pool().members[at].standing == Standing::Ours => Fault::Unreachable { why },
            fault => fault,
        }
    }

    /// Holds the answer's cluster id against ours.
    fn vouch(&self, at: usize, cluster: Option<u64>) -> Result<(), Fault> {
        self.pool().vouch(at, cluster)
    }

    fn reached(&self, at: usize) -> Option<Reached> {
        let pool = self.pool();
        let connected = pool.members[at].connected.as_ref();
        connected.map(|connected| connected.to.clone())
    }

    /// On to the next endpoint, and off the connection that broke.
    fn rotate(&self, at: usize, broke: Option<&Reached>) {
        let mut pool = self.pool();
        pool.failed(at, broke);
        // They may have moved.
        if self.0.settings.discovery.is_some() && pool.wants_others() {
            let etcd = self.clone();
            tokio::spawn(async move { etcd.look_again().await });
        }
    }

    /// The member to ask next; where none is known yet, DNS is asked for them.
    async fn current(&self) -> Result<usize, Fault> {
        let known = !self.pool().members.is_empty();
        if !known {
            let members = self.0.settings.members().await?;
            self.pool().take_in(&members);
        }
        Ok(self.pool().current)
    }

    /// Asks DNS for the members once more, beside the calls, which go on with those that are known.
    async fn look_again(&self) {
        if let Ok(members) = self.0.settings.members().await {
            self.pool().take_in(&members);
        }
        sleep(LOOK_AGAIN_AFTER).await;
        self.pool().looking = false;
    }

    fn url(&self, at: usize) -> Arc<str> {
        Arc::clone(&self.pool().members[at].url)
    }

    /// So long may one try take, so that each address gets a turn within `--dial-timeout`.
    fn share(&self) -> Duration {
        self.pool().share(self.0.settings.dial_timeout)
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work's outcome, unless it does not come in time.
async fn bounded<T>(
    endpoint: &str,
    within: Duration,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let outcome = timeout(within, work).await;
    outcome.unwrap_or_else(|_| Err(fault::silent(endpoint, within)))
}

/// Whether a server that hung up on TLS does so since it speaks none.
async fn is_plain(to: &Reached) -> bool {
    match to.dial_again().await {
        Ok(stream) => speaks_plainly(stream).await,
        Err(_) => false,
    }
}

/// Whether a server that broke a plain connection wants TLS: it says nothing then.
async fn speaks_tls(url: &str, to: &Reached) -> bool {
    match (url.parse(), to.dial_again().await) {
        (Ok(uri), Ok(stream)) => shows_a_certificate(stream, &uri).await,
        _ => false,
    }
}

/// Opens one stream with a watcher for each and awaits that all are made, keeping what they tell meanwhile.
async fn open_watch(
    client: Arc<Line>,
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
    let mut stream = client.watch_client().watch(first, Some(options)).await?;
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
