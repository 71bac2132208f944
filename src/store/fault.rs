//! From what etcd, gRPC and TLS report to a [`Fault`] in plain words: classified once, here. Errors of the
//! transport carry their cause only in the chain of sources, and its kinds are private to the crates that
//! make them, so that the words are what there is to go by.

use super::Fault;
use super::secure::{What, Wrong};
use super::tls::Tls;
use etcd_client::Error;
use rustls_pki_types::UnixTime;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, InvalidMessage};
use tonic::{Code, Status};

/// In etcd's words.
pub(super) const NO_SUCH_USER: &str = "user name not found";

const WRONG_PASSWORD: &str = "wrong user or password";

/// Whether another password may help; against a missing right none does.
pub(super) fn is_of_the_password(fault: &Fault) -> bool {
    matches!(fault, Fault::Denied { why } if why.ends_with(WRONG_PASSWORD))
}

/// Nothing came back in time.
pub(super) fn silent(endpoint: &str, within: Duration) -> Fault {
    Fault::Unreachable {
        why: format!(
            "{endpoint}: no answer within {} s",
            (within.as_secs_f64() * 10.0).round() / 10.0
        ),
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
/// (`shouldRefreshToken` in its `retry_interceptor.go`). Tokens are lost at a member's restart, time out,
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
    // So it says of the user that a certificate names.
    if text.contains(NO_SUCH_USER) {
        return Fault::Denied {
            why: format!("{endpoint}: etcd does not know the user that our certificate names"),
        };
    }
    if text.contains("invalid user ID or password") {
        return Fault::Denied {
            why: format!("{endpoint}: {WRONG_PASSWORD}"),
        };
    }
    // The latter where the keys at one revision are read in several calls: the next try reads at a later one.
    if text.contains("revision of auth store is old") || text.contains("required revision has been compacted") {
        return Fault::Unreachable { why };
    }
    match status.code() {
        Code::PermissionDenied => Fault::Denied {
            why: format!("{endpoint}: permission denied: meshlock doctor tells what is to be granted"),
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
    of_chain(endpoint, &chain(error))
}

/// What TLS knows of why a connection failed, told with the files that it stood on.
pub(super) fn of_tls(endpoint: &str, what: &What) -> Fault {
    let config = |why: String| Fault::Config {
        why: format!("{endpoint}: {why}"),
    };
    let tls = &what.tls;
    match &what.error {
        Wrong::File(unusable) => config(unusable.0.clone()),
        Wrong::HungUp => Fault::Unreachable {
            why: format!("{endpoint}: it broke off the TLS handshake"),
        },
        Wrong::NotHttp2 | Wrong::Tls(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => {
            config("it does not speak etcd's v3 API".to_owned())
        }
        Wrong::Tls(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => no_tls(endpoint),
        Wrong::Tls(rustls::Error::InvalidCertificate(error)) => config(their_certificate(endpoint, tls, error)),
        Wrong::Tls(rustls::Error::AlertReceived(alert)) => our_certificate(endpoint, tls, *alert),
        Wrong::Tls(rustls::Error::PeerIncompatible(why)) => {
            config(format!("it offers no TLS of a kind that can be used ({why:?})"))
        }
        Wrong::Tls(error) => Fault::Unreachable {
            why: format!("{endpoint}: {}", plain(&error.to_string())),
        },
    }
}

pub(super) fn wants_tls(endpoint: &str) -> Fault {
    Fault::Config {
        why: format!("{endpoint}: it speaks TLS: use https://"),
    }
}

pub(super) fn no_tls(endpoint: &str) -> Fault {
    Fault::Config {
        why: format!("{endpoint}: it does not speak TLS: use http://"),
    }
}

/// What is wrong with the certificate that a server has shown.
fn their_certificate(endpoint: &str, tls: &Tls, error: &CertificateError) -> String {
    let since = |time: &UnixTime| {
        let time = UNIX_EPOCH + Duration::from_secs(time.as_secs());
        humantime::format_rfc3339_seconds(time).to_string()
    };
    let clock = "or this machine's clock is wrong";
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => match &tls.cacert {
            Some(file) => format!("its certificate is not signed by a CA in {file}"),
            None => "its certificate is not signed by a CA that this system trusts: give the servers' CA by --cacert"
                .to_owned(),
        },
        CertificateError::Expired => format!("its certificate has expired, {clock}"),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("its certificate has expired at {}, {clock}", since(not_after))
        }
        CertificateError::NotValidYet => format!("its certificate is not valid yet, {clock}"),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("its certificate is not valid before {}, {clock}", since(not_before))
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<_> = presented.iter().map(|name| bare(name)).collect();
            let names = match names.as_slice() {
                [] => "for no name (it has no subjectAltName)".to_owned(),
                names => format!("for {}", names.join(", ")),
            };
            format!(
                "its certificate is {names}, not for {}: write the endpoint by a name that it is for, or give that by --tls-server-name",
                expected.to_str()
            )
        }
        CertificateError::NotValidForName => format!("its certificate is not for {endpoint}"),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not for servers (extendedKeyUsage lacks serverAuth)".to_owned()
        }
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is a CA's own (CA:TRUE), which may sign others and not serve: make one for the server"
                .to_owned()
        }
        CertificateError::Other(other) if other.to_string().contains("UnsupportedCertVersion") => {
            "its certificate is of X.509 version 1, which knows no host names: make one of version 3".to_owned()
        }
        error => format!("its certificate cannot be accepted: {error}"),
    }
}

/// `10.0.0.1` for `IpAddress(10.0.0.1)`, and `a.example` for `DnsName("a.example")`.
fn bare(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// Why a server has hung up: mostly for our certificate, or for want of one.
fn our_certificate(endpoint: &str, tls: &Tls, alert: AlertDescription) -> Fault {
    let denied = |why: String| Fault::Denied {
        why: format!("{endpoint}: {why}"),
    };
    let spoken = spoken(alert);
    // Go's servers call it a bad certificate, whatever is wrong with it.
    let of_ours = matches!(
        alert,
        AlertDescription::BadCertificate | AlertDescription::CertificateExpired | AlertDescription::CertificateUnknown
    );
    if of_ours
        && let Some((cert, _)) = &tls.identity
        && let Some(out_of_date) = tls.validity().and_then(|valid| out_of_date(valid, SystemTime::now()))
    {
        return denied(format!("it refuses our certificate, which {out_of_date}: {cert}"));
    }
    match (alert, &tls.identity) {
        // etcd's --auto-tls makes keys of P-521, which ring has not.
        (AlertDescription::HandshakeFailure, identity) => Fault::Config {
            why: format!(
                "{endpoint}: its TLS and ours have nothing in common ({spoken}): its key must be RSA, Ed25519, or ECDSA with P-256 or P-384{}",
                // So Go's TLS 1.2 says it, which has an alert of its own for that in 1.3.
                if identity.is_none() {
                    "; or it wants a client's certificate: --cert and --key"
                } else {
                    ""
                }
            ),
        },
        (AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity, _) => Fault::Config {
            why: format!("{endpoint}: it offers no TLS of a kind that can be used ({spoken})"),
        },
        (AlertDescription::InternalError | AlertDescription::UserCanceled, _) => Fault::Unreachable {
            why: format!("{endpoint}: it broke off the TLS connection ({spoken})"),
        },
        (AlertDescription::UnrecognisedName, _) => Fault::Config {
            why: format!("{endpoint}: it has no certificate for that name: check --tls-server-name"),
        },
        (_, None) => denied(format!(
            "it wants a client's certificate ({spoken}): give --cert and --key"
        )),
        (AlertDescription::CertificateExpired, Some((cert, _))) => denied(format!(
            "it refuses our certificate, which has expired, or is not valid yet: {cert}"
        )),
        (AlertDescription::UnknownCA, Some((cert, _))) => denied(format!(
            "it refuses our certificate, which is not signed by a CA that it trusts: {cert}"
        )),
        (_, Some((cert, _))) => denied(format!("it refuses our certificate ({spoken}): {cert}")),
    }
}

fn out_of_date([from, to]: [SystemTime; 2], now: SystemTime) -> Option<String> {
    let at = |time| humantime::format_rfc3339_seconds(time);
    if now < from {
        return Some(format!("is not valid before {}", at(from)));
    }
    (now > to).then(|| format!("has expired at {}", at(to)))
}

/// `bad certificate` for `BadCertificate`.
fn spoken(alert: AlertDescription) -> String {
    let name = format!("{alert:?}");
    let mut words = String::new();
    let mut before = true;
    for letter in name.chars() {
        if letter.is_uppercase() && !before {
            words.push(' ');
        }
        before = letter.is_uppercase();
        words.extend(letter.to_lowercase());
    }
    words
}

fn chain(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect()
}

fn of_chain(endpoint: &str, chain: &[String]) -> Fault {
    let says = |words: &[&str]| chain.iter().any(|text| words.iter().any(|word| text.contains(word)));
    let cause = chain
        .iter()
        .rev()
        .find(|text| !text.is_empty())
        .map_or("", String::as_str);
    let cause = cause.lines().next().unwrap_or_default();
    if says(&[
        "broken pipe",
        "Broken pipe",
        "connection closed",
        "reset by peer",
        "without sending TLS close_notify",
    ]) {
        return Fault::Unreachable {
            why: format!("{endpoint}: the connection broke"),
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: Code, text: &str) -> Fault {
        classify("http://e:1", &Error::GRpcStatus(Status::new(code, text)))
    }

    fn transport(endpoint: &str, chain: &[&str]) -> Fault {
        of_chain(endpoint, &chain.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn what_may_pass_by_itself_is_unreachable() {
        for (code, text) in [
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (Code::Cancelled, "Timeout expired"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            (Code::Unknown, "raft: stopped"),
        ] {
            let fault = status(code, text);
            assert!(matches!(fault, Fault::Unreachable { .. }), "{text}: {fault:?}");
        }
        assert_eq!(
            status(Code::Unavailable, "etcdserver: no leader").to_string(),
            "http://e:1: no leader"
        );
    }

    #[test]
    fn refusals_are_denied_and_settings_are_config() {
        let wrong_password = "etcdserver: authentication failed, invalid user ID or password";
        for (code, text) in [
            (Code::InvalidArgument, wrong_password),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
        ] {
            let fault = status(code, text);
            assert!(matches!(fault, Fault::Denied { .. }), "{text}: {fault:?}");
        }
        let no_auth = status(Code::FailedPrecondition, "etcdserver: authentication is not enabled");
        assert!(matches!(no_auth, Fault::Config { .. }), "{no_auth:?}");
    }

    #[test]
    fn no_space_is_not_too_many_requests() {
        let full = status(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, Fault::NoSpace { .. }), "{full:?}");
        let gone = status(Code::NotFound, "etcdserver: requested lease not found");
        assert_eq!(gone, Fault::LeaseGone);
    }

    #[test]
    fn alerts_are_told_in_words() {
        for (alert, words) in [
            (AlertDescription::BadCertificate, "bad certificate"),
            (AlertDescription::UnknownCA, "unknown ca"),
            (AlertDescription::CertificateRequired, "certificate required"),
        ] {
            assert_eq!(spoken(alert), words);
        }
        assert_eq!(bare("IpAddress(10.0.0.1)"), "10.0.0.1");
        assert_eq!(bare("DnsName(\"a.example\")"), "a.example");
    }

    #[test]
    fn a_server_that_wants_a_certificate_denies_and_one_that_fails_is_away() {
        let alert = |alert| {
            of_tls(
                "https://e:1",
                &What {
                    error: Wrong::Tls(rustls::Error::AlertReceived(alert)),
                    tls: std::sync::Arc::default(),
                },
            )
        };
        assert!(matches!(
            alert(AlertDescription::CertificateRequired),
            Fault::Denied { .. }
        ));
        assert!(matches!(
            alert(AlertDescription::HandshakeFailure),
            Fault::Config { .. }
        ));
        assert!(matches!(
            alert(AlertDescription::InternalError),
            Fault::Unreachable { .. }
        ));
    }

    #[test]
    fn the_deepest_cause_is_told_in_plain_words() {
        let refused = [
            "transport error",
            "tcp connect error",
            "Connection refused (os error 111)",
        ];
        assert_eq!(
            transport("http://e:1", &refused).to_string(),
            "http://e:1: connection refused"
        );
    }

    #[test]
    fn go_s_three_errors_ask_for_a_fresh_token() {
        for (code, text) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
        ] {
            assert!(token_is_stale(&Error::GRpcStatus(Status::new(code, text))), "{text}");
        }
        assert!(!token_is_stale(&Error::GRpcStatus(Status::permission_denied(
            "etcdserver: permission denied"
        ))));
    }

    #[test]
    fn a_refused_watch_is_classified_by_its_reason() {
        let reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        let fault = classify("http://e:1", &Error::GRpcStatus(cancelled(reason)));
        assert!(matches!(fault, Fault::Denied { .. }), "{fault:?}");
        let fault = classify("http://e:1", &Error::GRpcStatus(cancelled("")));
        assert!(matches!(fault, Fault::Unreachable { .. }), "{fault:?}");
    }
}
