//! Whether we may do what a lock needs, and whether others may more than they should.

use super::{is_local, unless};
use crate::health::{Endpoint, Facts, Fault, Finding, Level};

pub(super) fn of_rights(facts: &Facts, served: bool) -> Vec<Finding> {
    let below = facts.prefixes.join(" and ");
    let denied = |asked: Option<Fault>| asked.filter(Fault::is_denial);
    let refused = facts.endpoints.iter().find_map(|endpoint| {
        let read = denied(endpoint.read.clone().and_then(Result::err));
        let write = denied(endpoint.write.clone().and_then(Result::err));
        let lacking = match (&read, &write) {
            (Some(_), Some(_)) => "read and write",
            (Some(_), None) => "read",
            (None, _) => "write",
        };
        Some((endpoint, lacking, read.or(write)?))
    });
    let who = facts
        .user
        .as_ref()
        .map_or_else(|| "our rights".to_owned(), |user| format!("the user \"{user}\""));
    let mut findings = Vec::new();
    match refused {
        Some((endpoint, _, fault)) if facts.user.is_none() && !facts.certificate => {
            findings.push(Finding::new(
                Level::Red,
                "user-wanted",
                "our rights",
                endpoint.without_url(&fault),
                "",
            ));
        }
        Some((endpoint, lacking, _)) => findings.push(Finding::new(
            Level::Red,
            "rights",
            &who,
            format!("no right to {lacking} everything below {below}"),
            &format!("as root: {}", grant(facts, endpoint.roles.as_deref())),
        )),
        None if served && facts.has_users() => findings.push(Finding::new(
            Level::Green,
            "rights",
            &who,
            format!("right to read and to write below {below}"),
            "",
        )),
        None if served && facts.is_local() => findings.push(Finding::new(
            Level::Green,
            "open",
            "our rights",
            "etcd has no users, and is asked on this machine alone".into(),
            "",
        )),
        None if served => findings.push(Finding::new(
            Level::Yellow,
            "open",
            "our rights",
            "etcd has no users: whoever reaches it can take, break and delete locks".into(),
            "give it users or ask for certificates, unless the network lets nobody else in",
        )),
        None => {}
    }
    let lost = facts.endpoints.iter().find_map(|endpoint| match &endpoint.write {
        // It has an alarm of its own.
        Some(Err(fault)) if !fault.is_denial() && !matches!(fault, Fault::NoSpace { .. }) => Some((endpoint, fault)),
        _ => None,
    });
    if let Some((endpoint, fault)) = lost {
        findings.push(Finding::new(
            unless(
                facts
                    .endpoints
                    .iter()
                    .any(|endpoint| matches!(endpoint.write, Some(Ok(())))),
            ),
            "no-write",
            &endpoint.url,
            format!("no majority confirms a write: {}", endpoint.without_url(fault)),
            "see to the other members, and to their disks",
        ));
    }
    let in_the_clear = |endpoint: &&Endpoint| endpoint.url.starts_with("http://") && !is_local(&endpoint.url);
    if facts.user.is_some()
        && let Some(endpoint) = facts.endpoints.iter().find(in_the_clear)
    {
        findings.push(Finding::new(
            Level::Yellow,
            "password-in-the-clear",
            &endpoint.url,
            "the password goes over the network without encryption".into(),
            "have etcd speak TLS, and write https://",
        ));
    }
    findings
}

/// The commands that give us what we lack.
fn grant(facts: &Facts, roles: Option<&[String]>) -> String {
    let role = roles.and_then(<[String]>::first).map(String::as_str);
    let user = facts.user.as_deref();
    let (role, new) = match (role, user, roles) {
        (Some(role), ..) => (role, false),
        (None, Some(_), Some(_)) => ("meshlock", true),
        // Who we are is etcd's secret, or our certificate's.
        (None, ..) => ("ROLE", false),
    };
    let mut commands = Vec::new();
    commands.extend(new.then(|| format!("etcdctl role add {role}")));
    commands.extend(facts.prefixes.iter().map(|prefix| {
        let (role, prefix) = (quoted(role), quoted(prefix));
        format!("etcdctl role grant-permission --prefix=true {role} readwrite {prefix}")
    }));
    commands.extend(
        user.filter(|_| new)
            .map(|user| format!("etcdctl user grant-role {} {role}", quoted(user))),
    );
    commands.join(" && ")
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "/._-:@%+=".contains(char);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
