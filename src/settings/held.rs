//! What a command is told of the holds around it, and `meshlock verify` finds again: one list, the outermost first,
//! with where each hold can be asked after. Names of files, never what is in them, and never a password.

use super::source::{Environment, Sources};
use crate::cli;
use crate::store::Connection;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf, absolute};

/// A JSON array of [`Held`].
pub const ALL: &str = "MESHLOCK_HELD_ALL";

/// One hold. Fields may be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub name: String,
    pub token: i64,
    pub key: String,
    /// In hexadecimal, as in `MESHLOCK_HELD_LEASES`.
    pub lease: String,
    /// In hexadecimal, as in `MESHLOCK_HELD_CLUSTER`.
    pub cluster: String,
    #[serde(flatten)]
    pub reach: Reach,
}

/// How etcd was reached, for somebody with another working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Empty where DNS is asked for them.
    pub endpoints: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_srv: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_srv_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cacert: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// The file with the certificate's private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_key: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_file: Option<PathBuf>,
    /// How long the first contact may take, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dial_timeout_ms: Option<u64>,
}

/// The variable's value: the holds around us and our own.
pub fn list(outer: &[Held], own: &Held) -> String {
    let all: Vec<&Held> = outer.iter().chain([own]).collect();
    // Text and numbers alone cannot fail to be written.
    serde_json::to_string(&all).unwrap_or_default()
}

/// The holds around this process, the outermost first. What cannot be read was not written by us.
pub(super) fn around(environment: &Environment) -> Vec<Held> {
    told(environment).unwrap_or_default()
}

/// The same; `None` where it cannot be read.
pub(super) fn told(environment: &Environment) -> Option<Vec<Held>> {
    match environment.get(ALL) {
        Some(list) => serde_json::from_str(list.to_str()?).ok(),
        None => Some(Vec::new()),
    }
}

/// How etcd is reached under these settings. A file whose name is not UTF-8 cannot be told of, and a FIFO has been read.
pub(super) fn reach(typed: &cli::Connection, sources: &Sources, connection: &Connection) -> Reach {
    let file = |flag, typed: Option<&Path>| {
        let found = sources.path(flag, typed)?;
        absolute(found.value)
            .ok()
            .filter(|file| file.to_str().is_some() && file.is_file())
    };
    let user = connection.user.as_ref().map(|(name, _)| name.clone());
    let discovery = connection.discovery.as_ref();
    Reach {
        endpoints: connection.endpoints.join(","),
        discovery_srv: discovery.map(|discovery| discovery.domain.clone()),
        discovery_srv_name: discovery.and_then(|discovery| discovery.name.clone()),
        cacert: file("cacert", typed.cacert.as_deref()),
        cert: file("cert", typed.cert.as_deref()),
        cert_key: file("key", typed.key.as_deref()),
        tls_server_name: sources
            .find("tls-server-name", typed.tls_server_name.as_deref())
            .and_then(|name| name.value.to_str().map(ToOwned::to_owned)),
        password_file: user
            .as_ref()
            .and_then(|_| file("password-file", typed.password_file.as_deref())),
        user,
        dial_timeout_ms: u64::try_from(connection.dial_timeout.as_millis()).ok(),
    }
}

/// Reaches as the hold did, where nothing else was typed.
pub(super) fn reach_again(typed: &mut cli::Connection, held: &Held, sources: &Sources) {
    let Reach {
        endpoints,
        discovery_srv,
        discovery_srv_name,
        cacert,
        cert,
        cert_key,
        tls_server_name,
        user,
        password_file,
        dial_timeout_ms,
    } = held.reach.clone();
    if typed.endpoints.is_none() && typed.discovery_srv.is_none() {
        typed.endpoints = discovery_srv.is_none().then(|| endpoints.into());
        (typed.discovery_srv, typed.discovery_srv_name) =
            (discovery_srv.map(Into::into), discovery_srv_name.map(Into::into));
    }
    let dial_timeout = dial_timeout_ms.map(|millis| format!("{}ms", millis.max(1)).into());
    typed.dial_timeout = typed.dial_timeout.take().or(dial_timeout);
    typed.cacert = typed.cacert.take().or(cacert);
    if typed.cert.is_none() && typed.key.is_none() {
        (typed.cert, typed.key) = (cert, cert_key);
    }
    typed.tls_server_name = typed.tls_server_name.take().or(tls_server_name.map(Into::into));
    if typed.user.is_some() {
        return;
    }
    typed.password_file = typed.password_file.take().or(password_file);
    // Etcdctl's variables reach the command whole: there the same user may stand with his password.
    let variable = sources.variable("user").filter(|_| typed.password_file.is_none());
    let has_password = variable.is_some_and(|variable| {
        let whole = variable.value.to_str().and_then(|text| text.split_once(':'));
        whole.is_some_and(|(name, _)| Some(name) == user.as_deref())
    });
    typed.user = user.map(OsString::from).filter(|_| !has_password);
}
