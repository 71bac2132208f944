//! How etcd is reached: endpoints, TLS files and the user, resolved and checked before anything connects.
//! What etcd makes of them is `store`'s affair.

use super::discovery;
use super::source::{Found, Source, Sources, quoted};
use crate::cli;
use crate::outcome::{Failure, FailureKind};
use crate::store::{Connection, Tls};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEFAULT_ENDPOINT: &str = "127.0.0.1:2379";
const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Larger ones are no certificates and no passwords, but /dev/zero.
const FILE_LIMIT: u64 = 1 << 20;

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

    // What DNS will say is not known here.
    let encrypted = discovery.is_some() || endpoints.iter().any(|endpoint| endpoint.starts_with("https://"));
    let tls = encrypted.then(|| tls(cacert, cert, key)).transpose()?;
    Ok(Connection {
        endpoints,
        discovery,
        dial_timeout,
        tls,
        user: user(typed, sources)?,
    })
}

/// A variable that would have etcdctl connect otherwise must not be passed over in silence: the lock might be
/// taken in another cluster than the one that everybody looks at.
fn refuse_unsupported(sources: &Sources) -> Result<(), Failure> {
    for (variable, value) in sources.0.iter() {
        let Some(name) = variable.to_str().and_then(|name| name.strip_prefix("ETCDCTL_")) else {
            continue;
        };
        let instead = match name {
            "INSECURE_SKIP_TLS_VERIFY" if !means_false(value) => "give the servers' CA by --cacert instead",
            // On is etcdctl's default: TLS only by https:// and by TLS files.
            "INSECURE_TRANSPORT" if means_false(value) => "write https:// in the endpoints instead",
            "INSECURE_SKIP_TLS_VERIFY" | "INSECURE_TRANSPORT" => continue,
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

fn tls(
    cacert: Option<Found<PathBuf>>,
    cert: Option<Found<PathBuf>>,
    key: Option<Found<PathBuf>>,
) -> Result<Tls, Failure> {
    let cacert = cacert.map(|file| certificates(&file)).transpose()?;
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((certificates(&cert)?, private_key(&key)?)),
        (None, None) => None,
        (Some(alone), None) => return Err(config(format!("{} needs --key beside it", alone.source))),
        (None, Some(alone)) => return Err(config(format!("{} needs --cert beside it", alone.source))),
    };
    Ok(Tls { cacert, identity })
}

/// An empty or DER file would be taken by the TLS library as no certificates at all, and every server then be
/// refused as unknown.
fn certificates(file: &Found<PathBuf>) -> Result<Vec<u8>, Failure> {
    let pem = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(pem),
        _ => Err(unusable(file, "it has no certificate in PEM format")),
    }
}

fn private_key(file: &Found<PathBuf>) -> Result<Vec<u8>, Failure> {
    let pem = read(file)?;
    let encrypted = pem.windows(9).any(|window| window == b"ENCRYPTED");
    if encrypted {
        Err(unusable(
            file,
            "the key is encrypted, and nobody is there to type the passphrase",
        ))
    } else if PrivateKeyDer::from_pem_slice(&pem).is_err() {
        Err(unusable(file, "it has no private key in PEM format"))
    } else {
        Ok(pem)
    }
}

/// The name from the first source that has one, and the password from the first that has one: a file, a variable of
/// its own, or `name:password` where the name is taken from there too.
fn user(typed: &cli::Connection, sources: &Sources) -> Result<Option<(String, String)>, Failure> {
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
    let password = first.map_or(Ok(String::new()), |(_, password)| password.read())?;
    if password.is_empty() {
        return Err(config(format!(
            "no password for the etcd user {}: give it by --password-file or MESHLOCK_PASSWORD",
            quoted(name)
        )));
    }
    Ok(Some((name.to_owned(), password)))
}

enum Password<'a> {
    File(Found<PathBuf>),
    Variable(Found<&'a OsStr>),
    Inline(&'a str),
}

impl Password<'_> {
    fn read(self) -> Result<String, Failure> {
        match self {
            Self::File(file) => password_file(&file),
            Self::Variable(variable) => match variable.value.to_str() {
                Some(password) => Ok(password.to_owned()),
                None => Err(variable.source.refuse("is not UTF-8")),
            },
            Self::Inline(password) => Ok(password.to_owned()),
        }
    }
}

fn password_file(file: &Found<PathBuf>) -> Result<String, Failure> {
    let mut password = String::from_utf8(read(file)?).map_err(|_| unusable(file, "it is not UTF-8"))?;
    if password.ends_with('\n') {
        password.pop();
    }
    Ok(password)
}

fn read(file: &Found<PathBuf>) -> Result<Vec<u8>, Failure> {
    let contents = |path: &Path| -> io::Result<Vec<u8>> {
        let mut contents = Vec::new();
        File::open(path)?.take(FILE_LIMIT + 1).read_to_end(&mut contents)?;
        Ok(contents)
    };
    match contents(&file.value) {
        Ok(contents) if contents.len() as u64 <= FILE_LIMIT => Ok(contents),
        Ok(_) => Err(unusable(file, "it is larger than 1 MiB")),
        Err(error) => Err(unusable(file, &super::reason(&error))),
    }
}

fn unusable(file: &Found<PathBuf>, why: &str) -> Failure {
    config(format!("{} {} cannot be used: {why}", file.source, quoted(&file.value)))
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
