//! How etcd is reached: endpoints, TLS files and the user, resolved and checked before anything connects.
//! What has to be in the files is `store`'s affair, as what etcd makes of them.

use super::discovery;
use super::source::{Found, Source, Sources, quoted};
use crate::cli;
use crate::outcome::{Failure, FailureKind};
use crate::report;
use crate::store::Connection;
use crate::store::credentials;
use crate::store::files::{Kept, Unusable};
use crate::store::tls::Tls;
use rustls_pki_types::ServerName;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{PathBuf, absolute};
use std::time::Duration;

const DEFAULT_ENDPOINT: &str = "127.0.0.1:2379";
const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Where systemd puts what a service is given by `LoadCredential=meshlock.password:/the/file` (systemd.exec(5)).
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
const CREDENTIAL: &str = "meshlock.password";

/// Variables of etcdctl's that concern its output or its own timing, and not where and as whom it connects.
const HARMLESS: &[&str] = &[
    "API",
    "COMMAND_TIMEOUT",
    "DEBUG",
    "HEX",
    "INSECURE_DISCOVERY", // but see `discovery`
    "KEEPALIVE_TIME",
    "KEEPALIVE_TIMEOUT",
    "MAX_RECV_BYTES",
    "MAX_REQUEST_BYTES",
    "WRITE_OUT",
];

const UNVERIFIED: &str = "INSECURE_SKIP_TLS_VERIFY";
const INSTEAD: &str =
    "give the servers' CA, or their own certificate, by --cacert, and another name by --tls-server-name";

/// Settings that are read from etcdctl's variables too.
pub(super) const SHARED_WITH_ETCDCTL: &[&str] = &[
    "CACERT",
    "CERT",
    "DIAL_TIMEOUT",
    "DISCOVERY_SRV",
    "DISCOVERY_SRV_NAME",
    "ENDPOINTS",
    "KEY",
    "PASSWORD",
    "USER",
];

pub(super) fn resolve(typed: &cli::Connection, sources: &Sources) -> Result<Connection, Failure> {
    refuse_unsupported(sources)?;
    let cacert = sources.path("cacert", typed.cacert.as_deref());
    let cert = sources.path("cert", typed.cert.as_deref());
    let key = sources.path("key", typed.key.as_deref());
    let tls_file = [&cacert, &cert, &key].into_iter().flatten().next();

    let discovery = discovery::resolve(typed, sources, tls_file.is_some())?;
    let endpoints = match sources.find("endpoints", typed.endpoints.as_deref()) {
        _ if discovery.is_some() => Vec::new(),
        // Not quoted: what stands there may end with a password.
        Some(list) if list.value.as_bytes().contains(&b'@') => {
            return Err(list.source.refuse("has a user in it: give the user by --user"));
        }
        Some(list) => list.read(|list| endpoints(list, tls_file.map(|file| &file.source)))?,
        None if tls_file.is_some() => vec![format!("https://{DEFAULT_ENDPOINT}")],
        None => vec![format!("http://{DEFAULT_ENDPOINT}")],
    };
    let dial_timeout = sources
        .find("dial-timeout", typed.dial_timeout.as_deref())
        .map(|value| value.read(super::positive_duration))
        .transpose()?
        .unwrap_or(DEFAULT_DIAL_TIMEOUT);

    let server_name = sources
        .find("tls-server-name", typed.tls_server_name.as_deref())
        .map(|name| name.read(server_name))
        .transpose()?;

    // What DNS will say is not known here.
    let encrypted = discovery.is_some() || endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
    let files = Files { within: dial_timeout };
    let tls = encrypted
        .then(|| files.tls(cacert, cert, key, server_name))
        .transpose()?;
    let (user, password_file) = match files.user(typed, sources)? {
        Some((name, Secret { password, file })) => (Some((name, password)), file),
        None => (None, None),
    };
    let private = tls.iter().filter_map(|tls| tls.identity.as_ref().map(|(_, key)| key));
    let private = private.chain(&password_file).filter(|file| file.is_everybodys());
    Ok(Connection {
        endpoints,
        discovery,
        dial_timeout,
        exposed: private.map(ToString::to_string).collect(),
        tls,
        user,
        password_file,
    })
}

/// A variable that would have etcdctl connect otherwise must not be passed over in silence: the lock might be
/// taken in another cluster than the one that everybody looks at.
fn refuse_unsupported(sources: &Sources) -> Result<(), Failure> {
    // A lock from a server that anybody may pretend to be excludes nobody.
    let ours = format!("MESHLOCK_{UNVERIFIED}");
    if sources.environment.get(&ours).is_some_and(|value| !means_false(value)) {
        return Err(config(format!(
            "{ours} is set, which meshlock does not support: {INSTEAD}"
        )));
    }
    for (variable, value) in sources.environment.iter() {
        let Some(name) = variable.to_str().and_then(|name| name.strip_prefix("ETCDCTL_")) else {
            continue;
        };
        let instead = match name {
            UNVERIFIED if !means_false(value) => INSTEAD,
            // On is etcdctl's default: TLS only by https:// and by TLS files.
            "INSECURE_TRANSPORT" if means_false(value) => "write https:// in the endpoints instead",
            UNVERIFIED | "INSECURE_TRANSPORT" => continue,
            _ if SHARED_WITH_ETCDCTL.contains(&name) || HARMLESS.contains(&name) => continue,
            _ => "unset it",
        };
        if !value.is_empty() {
            return Err(config(format!(
                "ETCDCTL_{name} is set, which meshlock does not support: {instead}"
            )));
        }
    }
    Ok(())
}

/// As Go's `strconv.ParseBool` has it, which etcdctl reads its variables with.
pub(super) fn means_false(value: &OsStr) -> bool {
    ["0", "f", "F", "false", "FALSE", "False"]
        .iter()
        .any(|word| value == *word)
}

fn endpoints(list: &str, tls_file: Option<&Source>) -> Result<Vec<String>, String> {
    let mut endpoints = Vec::new();
    let mut seen = BTreeSet::new();
    for item in list.split(',') {
        let endpoint = endpoint(item.trim(), tls_file)?;
        if seen.insert(endpoint.clone()) {
            endpoints.push(endpoint);
        }
    }
    Ok(endpoints)
}

/// The longest host name that DNS has, with its closing dot (RFC 1035, 3.1).
const HOST_LIMIT: usize = 254;

fn endpoint(item: &str, tls_file: Option<&Source>) -> Result<String, String> {
    let (scheme, rest) = match item.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None if tls_file.is_some() => ("https".to_owned(), item),
        None => ("http".to_owned(), item),
    };
    let address = rest.strip_suffix('/').unwrap_or(rest);
    let item = quoted(item);
    match (scheme.as_str(), tls_file) {
        ("unix" | "unixs", _) => {
            return Err("has a unix socket, which meshlock cannot use: write HOST:PORT".to_owned());
        }
        ("http", Some(file)) => {
            return Err(format!(
                "has {item}, which means no TLS, but {file} is given: write https://{address}"
            ));
        }
        ("http" | "https", _) => {}
        _ => return Err(format!("has {item}: a scheme may be http or https")),
    }
    if address.is_empty() {
        return Err("has an empty item".to_owned());
    }
    let (host, port) = address
        .rsplit_once(':')
        .filter(|(host, _)| !host.contains(':') || (host.starts_with('[') && host.ends_with(']')))
        .ok_or_else(|| format!("has {item}, which has no port: write HOST:PORT, an IPv6 address in brackets"))?;
    let named = |name: &str| {
        let byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        (1..=HOST_LIMIT).contains(&name.len()) && name.bytes().all(byte)
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if !bracketed.map_or_else(|| named(host), |address| address.parse::<Ipv6Addr>().is_ok()) {
        return Err(format!("has {item}, which is not HOST:PORT"));
    }
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || port.parse::<u16>().is_ok_and(|port| port == 0) || port.parse::<u16>().is_err() {
        return Err(format!("has {item}, whose port is not a number from 1 to 65535"));
    }
    Ok(format!("{scheme}://{host}:{port}"))
}

fn server_name(name: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(name.to_owned()).map_err(|_| "is neither a host name nor an IP address".to_owned())
}

/// Reads files, none for longer than the first contact with etcd may take: a FIFO may have nobody to write it.
struct Files {
    within: Duration,
}

impl Files {
    fn read(&self, file: &Found<PathBuf>) -> Result<Kept, Failure> {
        // The keeper, which reads it again, has another working directory.
        let path = absolute(&file.value).unwrap_or_else(|_| file.value.clone());
        Ok(Kept::read(file.source.to_string(), path, self.within)?)
    }

    fn tls(
        &self,
        cacert: Option<Found<PathBuf>>,
        cert: Option<Found<PathBuf>>,
        key: Option<Found<PathBuf>>,
        server_name: Option<ServerName<'static>>,
    ) -> Result<Tls, Failure> {
        let cacert = cacert.map(|file| self.read(&file)).transpose()?;
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((self.read(&cert)?, self.read(&key)?)),
            (None, None) => None,
            (Some(alone), None) => return Err(config(format!("{} needs --key beside it", alone.source))),
            (None, Some(alone)) => return Err(config(format!("{} needs --cert beside it", alone.source))),
        };
        let mut tls = Tls {
            cacert,
            identity,
            server_name,
            made: None,
        };
        tls.check()?;
        Ok(tls)
    }

    /// The name from the first source that has one, and the password from the first that has one: a file, a variable of
    /// its own, or `name:password` where the name is taken from there too; else systemd's credential, or whoever sits at
    /// the terminal.
    fn user(&self, typed: &cli::Connection, sources: &Sources) -> Result<Option<(String, Secret)>, Failure> {
        let file = sources.path("password-file", typed.password_file.as_deref());
        let variable = sources.variable("password");
        let Some(user) = sources.find("user", typed.user.as_deref()) else {
            let password = file
                .map(|file| file.source)
                .or(variable.map(|variable| variable.source));
            return password.map_or(Ok(None), |source| {
                Err(config(format!(
                    "{source} is set, but no --user that the password is for"
                )))
            });
        };
        // It may hold a password: no complaint quotes it.
        let text = user.value.to_str().ok_or_else(|| user.source.refuse("is not UTF-8"))?;
        let (name, inline) = match text.split_once(':') {
            Some((name, password)) => (name, Some(password)),
            None => (text, None),
        };
        if name.is_empty() {
            return Err(user.source.refuse("has no user name"));
        }
        let file = file.map(|file| (file.source.layer, Password::File(file)));
        let variable = variable.map(|variable| (variable.source.layer, Password::Variable(variable)));
        let inline = inline.map(|inline| (user.source.layer, Password::Inline(inline)));
        let first = [file, variable, inline]
            .into_iter()
            .flatten()
            .min_by_key(|(layer, _)| *layer);
        let secret = match first {
            Some((_, Password::File(file))) => secret_in(self.read(&file)?)?,
            Some((_, Password::Variable(variable))) => match variable.value.to_str() {
                Some(password) => password.to_owned().into(),
                None => return Err(variable.source.refuse("is not UTF-8")),
            },
            Some((_, Password::Inline(password))) => password.to_owned().into(),
            None => match self.credential(sources)? {
                Some(secret) => secret,
                None if sources.environment.is_attended() => asked_for(name)?.into(),
                None => return Err(no_password(name)),
            },
        };
        if secret.password.is_empty() {
            return Err(no_password(name));
        }
        Ok(Some((name.to_owned(), secret)))
    }

    /// What systemd handed to the service that we are part of.
    fn credential(&self, sources: &Sources) -> Result<Option<Secret>, Failure> {
        let Some(directory) = sources.environment.get(CREDENTIALS) else {
            return Ok(None);
        };
        let path = PathBuf::from(directory).join(CREDENTIAL);
        if !path.exists() {
            return Ok(None);
        }
        let file = Kept::read(format!("the credential of {CREDENTIALS}"), path, self.within)?;
        secret_in(file).map(Some)
    }
}

/// A password, and the file that it came from.
struct Secret {
    password: String,
    file: Option<Kept>,
}

impl From<String> for Secret {
    fn from(password: String) -> Self {
        Self { password, file: None }
    }
}

fn secret_in(file: Kept) -> Result<Secret, Failure> {
    Ok(Secret {
        password: credentials::password(&file)?,
        file: Some(file),
    })
}

enum Password<'a> {
    File(Found<PathBuf>),
    Variable(Found<&'a OsStr>),
    Inline(&'a str),
}

fn asked_for(name: &str) -> Result<String, Failure> {
    let answer = report::prompt::for_secret(&format!("etcd password of {}: ", quoted(name)));
    answer
        .map_err(|error| {
            config(format!(
                "cannot ask for the etcd password of {}: {}",
                quoted(name),
                super::reason(&error)
            ))
        })?
        .ok_or_else(|| no_password(name))
}

fn no_password(name: &str) -> Failure {
    config(format!(
        "no password for the etcd user {}: give it by --password-file or MESHLOCK_PASSWORD",
        quoted(name)
    ))
}

impl From<Unusable> for Failure {
    fn from(Unusable(why): Unusable) -> Self {
        config(why)
    }
}

fn config(why: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Config, why)
}

/// What remains of a user's setting once the password is taken out.
pub(super) fn without_password(user: &OsStr) -> &OsStr {
    let bytes = user.as_bytes();
    let end = bytes.iter().position(|byte| *byte == b':').unwrap_or(bytes.len());
    OsStr::from_bytes(&bytes[..end])
}

#[cfg(test)]
mod tests;
