//! etcd behind one client per endpoint, chosen here: the last good one first, the next after an error or a
//! time-out (etcdv3/etcd-client#39: the crate's own balancer goes on using dead members). Every call is
//! bounded and may be repeated. Knows neither what is asked nor how a connection is made.

mod calls;
mod connect;
mod watch;

use self::connect::speaks_tls;
use super::credentials::Credentials;
use super::host::Reached;
use super::line::Line;
use super::pool::{Connected, Pool, Standing};
use super::wire::Answered;
use super::{Connection, Fault, fault};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// DNS is asked for the members no more often than this.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(2);

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
