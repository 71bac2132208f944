//! How one endpoint is connected to, by its name, TCP, TLS and a first token, and what a connection broke of where TLS
//! or a look at the server tells more than the error does. Chooses no endpoint.

use super::Etcd;
use crate::store::host::{Dialer, Reached};
use crate::store::http2::Http2;
use crate::store::line::Line;
use crate::store::pool::{Connected, Standing};
use crate::store::secure::{Connector, What, Wrong, shows_a_certificate, speaks_plainly};
use crate::store::{Fault, fault};
use etcd_client::{Channel, Client, ConnectOptions};
use hyper::Uri;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::codegen::StdError;

impl Etcd {
    /// Begins to connect, if somebody is known to connect to. Nothing is asked yet.
    pub fn connect_ahead(&self) {
        let mut pool = self.pool();
        let at = pool.current;
        if let Some(member) = pool.members.get_mut(at) {
            let etcd = self.clone();
            member.ahead = Some(tokio::spawn(async move { etcd.newly_connected(at, None).await }));
        }
    }

    /// The endpoint's client, connected.
    pub(super) async fn connected(&self, at: usize, within: Option<Duration>) -> Result<Connected, Fault> {
        let ahead = self.pool().members[at].ahead.take();
        if let Some(ahead) = ahead {
            let made = ahead.await;
            made.unwrap_or_else(|error| Err(fault::of_transport(&self.url(at), &error)))?;
        }
        let known = self.pool().members[at].connected.clone();
        match known.filter(|known| !known.client.is_closed()) {
            Some(connected) => Ok(connected),
            // Apart: it takes five times the room of a call, which each call would take for it.
            None => Box::pin(self.newly_connected(at, within)).await,
        }
    }

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
        let http2 = match self.http2(at, dialer).await {
            Ok(http2) => http2,
            Err(error) => return Err(self.explained(at, Some(to), fault::of_transport(url, &*error)).await),
        };
        let mut options = ConnectOptions::new().with_require_leader(self.0.require_leader);
        if let Some((user, password)) = self.0.credentials.user() {
            self.before_a_password(at, to).await?;
            options = options.with_user(user, password);
        }
        let with_token = self.0.credentials.user().is_some();
        match Client::from_channel(Channel::Custom(http2.calls()), Some(options)).await {
            Ok(client) => Ok(Line::new(client, http2, with_token)),
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

    async fn http2(&self, at: usize, dialer: Dialer) -> Result<Http2, StdError> {
        let uri: Uri = self.url(at).parse()?;
        let trouble = self.pool().members[at].trouble.clone();
        // A call gives up before, and leaves the connection to itself.
        let within = 2 * self.0.settings.dial_timeout;
        let connector = Connector::new(dialer, self.0.credentials.clone(), trouble, within);
        let stream = connector.connect(&uri).await?;
        Ok(Http2::over(stream, uri).await?)
    }

    /// The fault of a broken connection by what TLS knows of it, where that is more.
    pub(super) async fn explained(&self, at: usize, to: Option<&Reached>, fault: Fault) -> Fault {
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
pub(super) async fn speaks_tls(url: &str, to: &Reached) -> bool {
    match (url.parse(), to.dial_again().await) {
        (Ok(uri), Ok(stream)) => shows_a_certificate(stream, &uri).await,
        _ => false,
    }
}
