//! A watch on one endpoint: what changes there is told until the watch breaks. Begins none anew; knows nothing of what
//! the keys mean.

use super::Etcd;
use crate::store::host::Reached;
use crate::store::line::Line;
use crate::store::wire::{Answered, cluster};
use crate::store::{Change, Fault, Watched, fault};
use etcd_client::{Error, Event, EventType, WatchOptions, WatchResponse, WatchStream};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

impl Etcd {
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
                    Ok(None) => return self.ended(at, to.as_ref(), None).await,
                    Err(error) => return self.ended(at, to.as_ref(), Some(&error)).await,
                }
            };
            if let Err(fault) = self.vouch(at, cluster(response.header())) {
                return fault;
            }
            if response.canceled() {
                let status = fault::cancelled(response.cancel_reason());
                return fault::classify(endpoint, &Error::GRpcStatus(status));
            }
            for change in response.events().iter().filter_map(change) {
                if changes.send(change).is_err() {
                    return closed();
                }
            }
        }
    }

    /// Why the stream of a watch ended, by an error or without one; the next endpoint is current.
    async fn ended(&self, at: usize, to: Option<&Reached>, error: Option<&Error>) -> Fault {
        let endpoint = &*self.url(at);
        let Some(error) = error else {
            self.rotate(at, to);
            return Fault::Unreachable {
                why: format!("{endpoint}: the watch ended"),
            };
        };
        let (fault, broke) = (fault::classify(endpoint, error), fault::connection_broke(error));
        self.rotate(at, to.filter(|_| broke));
        if broke {
            self.explained(at, to, fault).await
        } else {
            fault
        }
    }
}

fn change(event: &Event) -> Option<Change> {
    let item = event.kv()?;
    let key = String::from_utf8_lossy(item.key()).into_owned();
    Some(match event.event_type() {
        EventType::Delete => Change::Deleted {
            key,
            at: item.mod_revision(),
        },
        EventType::Put => Change::Put {
            key,
            value: item.value().to_vec(),
        },
    })
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

fn closed() -> Fault {
    Fault::Internal {
        why: "nobody listens to the watch any more".to_owned(),
    }
}
