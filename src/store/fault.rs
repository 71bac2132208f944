//! From what etcd, gRPC and TLS report to a [`Fault`] in plain words: classified once, here. Errors of the
//! transport carry their cause only in the chain of sources, and its kinds are private to the crates that
//! make them, so that the words are what there is to go by.

use super::Fault;
use etcd_client::Error;
use std::time::Duration;
use tonic::{Code, Status};

/// Nothing came back in time.
pub(super) fn silent(endpoint: &str, within: Duration) -> Fault {
    Fault::Unreachable {
        why: format!("{endpoint}: no answer within {} s", within.as_secs_f64()),
    }
}

/// What etcd-client reported of a call to `endpoint`.
pub(super) fn classify(endpoint: &str, error: &Error) -> Fault {
    match error {
        Error::GRpcStatus(status) => of_status(endpoint, status),
        Error::TransportError(error) => of_transport(endpoint, error),
        Error::IoError(error) => of_transport(endpoint, error),
        Error::WatchError(text) | Error::LeaseKeepAliveError(text) | Error::EndpointError(text) => Fault::Unreachable {
            why: format!("{endpoint}: {text}"),
        },
        Error::InvalidArgs(_)
        | Error::InvalidUri(_)
        | Error::Utf8Error(_)
        | Error::ElectError(_)
        | Error::InvalidMetadataValue(_)
        | Error::EndpointsNotManaged
        | Error::Internal(_) => Fault::Internal {
            why: format!("{endpoint}: {error}"),
        },
    }
}

/// A refusal in a watch's `cancel_reason`, where etcd puts the text of what would else be a status.
pub(super) fn cancelled(reason: &str) -> Status {
    let text = reason.rsplit("desc = ").next().unwrap_or(reason);
    if text.contains("permission denied") {
        Status::permission_denied(text)
    } else if text.is_empty() {
        Status::unavailable("the watch was cancelled")
    } else {
        Status::unavailable(text)
    }
}

/// Whether a fresh token may help: the three errors on which Go's client authenticates anew
/// (client/v3/retry_interceptor.go, `shouldRefreshToken`). Tokens are lost at a member's restart, time out,
/// and end with each change of a role.
pub(super) fn token_is_stale(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    status.code() == Code::Unauthenticated
        || status.message().contains("invalid auth token")
        || status.message().contains("user name is empty")
        || status.message().contains("revision of auth store is old")
}

/// Whether the connection itself failed: a refusal by etcd has no source.
pub(super) fn connection_broke(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => std::error::Error::source(status).is_some(),
        Error::TransportError(_) | Error::IoError(_) | Error::WatchError(_) | Error::LeaseKeepAliveError(_) => true,
        Error::InvalidArgs(_)
        | Error::InvalidUri(_)
        | Error::Utf8Error(_)
        | Error::ElectError(_)
        | Error::InvalidMetadataValue(_)
        | Error::EndpointError(_)
        | Error::EndpointsNotManaged
        | Error::Internal(_) => false,
    }
}

pub(super) fn status_says(error: &Error, text: &str) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains(text))
}

fn of_status(endpoint: &str, status: &Status) -> Fault {
    if let Some(source) = std::error::Error::source(status) {
        return of_transport(endpoint, source);
    }
    let text = status.message();
    let text = text.strip_prefix("etcdserver: ").unwrap_or(text);
    let why = format!("{endpoint}: {text}");
    if text.contains("database space exceeded") {
        return Fault::NoSpace {
            why: format!(
                "{endpoint}: etcd is out of space (NOSPACE) and takes no writes: compact and defragment it, then disarm the alarm"
            ),
        };
    }
    if text.contains("requested lease not found") {
        return Fault::LeaseGone;
    }
    if text.contains("authentication is not enabled") {
        return Fault::Config {
            why: format!("{endpoint}: a user is given, but authentication is not enabled in etcd: leave --user out"),
        };
    }
    if text.contains("user name is empty") {
        return Fault::Denied {
            why: format!("{endpoint}: etcd wants a user: give --user, or a certificate with one"),
        };
    }
    if text.contains("invalid user ID or password") {
        return Fault::Denied {
            why: format!("{endpoint}: wrong user or password"),
        };
    }
    if text.contains("revision of auth store is old") {
        return Fault::Unreachable { why };
    }
    match status.code() {
        Code::PermissionDenied => Fault::Denied {
            why: format!("{endpoint}: permission denied: the user needs read and write rights on the prefix"),
        },
        Code::Unauthenticated => Fault::Denied { why },
        Code::Unimplemented => Fault::Config {
            why: format!("{endpoint}: it does not speak etcd's v3 API"),
        },
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Internal => Fault::Unreachable { why },
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::DataLoss => Fault::Internal { why },
    }
}

/// A failure below gRPC, by the deepest cause that says something.
pub(super) fn of_transport(endpoint: &str, error: &(dyn std::error::Error + 'static)) -> Fault {
    let mut chain = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        chain.push(error.to_string());
        next = error.source();
    }
    of_chain(endpoint, &chain)
}

fn of_chain(endpoint: &str, chain: &[String]) -> Fault {
    let says = |words: &[&str]| chain.iter().any(|text| words.iter().any(|word| text.contains(word)));
    let cause = chain
        .iter()
        .rev()
        .find(|text| !text.is_empty())
        .map_or("", String::as_str);
    let cause = cause.lines().next().unwrap_or_default();
    let config = |what: &str| Fault::Config {
        why: format!("{endpoint}: {what}"),
    };
    let tls = endpoint.starts_with("https://");
    if says(&["UnknownIssuer", "unknown issuer"]) {
        return config("its certificate is not signed by a CA that we trust: check --cacert");
    }
    if says(&["invalid peer certificate"]) {
        return config(cause);
    }
    if tls && says(&["InvalidContentType", "tls handshake eof", "unexpected end of file"]) {
        return config("it does not speak TLS: use http://");
    }
    if tls && says(&["received fatal alert"]) {
        let alert = cause.rsplit("received fatal alert: ").next().unwrap_or(cause);
        return Fault::Denied {
            why: format!("{endpoint}: it refuses our certificate, or wants one ({alert}): check --cert and --key"),
        };
    }
    if says(&["HTTP/2 was not negotiated"]) {
        return config("it does not speak etcd's v3 API");
    }
    // A TLS server's alert, or its "HTTP request to an HTTPS server", read as an HTTP/2 frame.
    if !tls && says(&["frame with invalid size", "FRAME_SIZE_ERROR"]) {
        return config("it does not speak plain HTTP/2: use https:// if it speaks TLS");
    }
    if says(&["no native certs", "private key", "Error parsing TLS"]) {
        return config(cause);
    }
    Fault::Unreachable {
        why: format!("{endpoint}: {}", plain(cause)),
    }
}

/// Without the number of the system's error.
fn plain(cause: &str) -> String {
    let cause = cause.split(" (os error ").next().unwrap_or(cause);
    let mut letters = cause.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
