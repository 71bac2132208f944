//! What names mean to a call of meshlock: an `/etc/hosts` and an `/etc/resolv.conf` of the test's own, in a mount
//! namespace.

use super::directory;
use super::meshlock::plain;
use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;

/// Words that come before those of the call.
pub(crate) struct Names(Vec<OsString>);

const MOUNTS: &str = r#"mount --bind "$1" /etc/hosts && mount --bind "$2" /etc/resolv.conf && shift 2 && exec "$@""#;

impl Names {
    /// `None` where namespaces are not to be had.
    pub(crate) fn new(hosts: &[(IpAddr, &str)], resolv_conf: &str) -> Option<Self> {
        let directory = directory();
        let (own_hosts, own_resolv_conf) = (directory.join("hosts"), directory.join("resolv.conf"));
        let lines = hosts.iter().map(|(address, name)| format!("{address} {name}\n"));
        fs::write(&own_hosts, lines.collect::<String>()).expect("a file");
        fs::write(&own_resolv_conf, resolv_conf).expect("a file");
        let mut words: Vec<OsString> = [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            MOUNTS,
            "sh",
        ]
        .map(Into::into)
        .into();
        words.extend([own_hosts.into(), own_resolv_conf.into()]);
        let probe = plain(&[&words[..], &["true".into()]].concat()).output();
        probe.is_ok_and(|output| output.status.success()).then_some(Self(words))
    }

    pub(crate) fn words(&self) -> &[OsString] {
        &self.0
    }
}
