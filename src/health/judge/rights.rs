//! Whether we may do what a lock needs, and whether others may more than they should.

use super::{is_local, unless};
use crate::health::{Endpoint, Facts, Fault, Finding, Lacking, Level};

pub(super) fn of_rights(facts: &Facts, served: bool) -> Vec<Finding> {
    let mut findings = of_our_rights(facts, served);
    findings.extend(of_writes(facts));
    findings.extend(of_the_password(facts));
    findings
}

fn of_our_rights(facts: &Facts, served: bool) -> Vec<Finding> {
    // A certificate's name is a user's only where etcd goes by it.
    let known = facts.user.is_some() || facts.endpoints.iter().any(|endpoint| endpoint.roles.is_some());
    let who =
        |named: Option<&str>| named.map_or_else(|| "our rights".to_owned(), |user| format!("the user \"{user}\""));
    let permitted = |prefixes: &[&str]| {
        Finding::new(
            Level::Green,
            "rights",
            &who(facts.named().filter(|_| known)),
            format!("right to read and to write below {}", prefixes.join(" and ")),
            "",
        )
    };
    let mut findings = Vec::new();
    match refused(facts) {
        // Nobody is known to etcd by a certificate where it does not ask for one.
        Some((endpoint, _, fault)) if !known && !endpoint.unknown_user => {
            findings.push(Finding::new(
                Level::Red,
                "user-wanted",
                "our rights",
                endpoint.without_url(&fault),
                "",
            ));
        }
        Some((endpoint, lacking, _)) => {
            let what = if endpoint.unknown_user {
                "etcd does not know the user that our certificate names".to_owned()
            } else {
                format!("no right to {}", told(&lacking))
            };
            let code = if endpoint.unknown_user {
                "user-unknown"
            } else {
                "rights"
            };
            let advice = format!("as root: {}", grant(facts.named(), endpoint, &lacking));
            findings.push(Finding::new(Level::Red, code, &who(facts.named()), what, &advice));
            let lacks = |prefix: &&str| lacking.iter().any(|lacking| lacking.prefix == *prefix);
            let prefixes: Vec<_> = facts.prefixes.iter().map(String::as_str).collect();
            let others: Vec<_> = prefixes.into_iter().filter(|prefix| !lacks(prefix)).collect();
            findings.extend((!others.is_empty()).then(|| permitted(&others)));
        }
        None if served && facts.has_users() => {
            findings.push(permitted(
                &facts.prefixes.iter().map(String::as_str).collect::<Vec<_>>(),
            ));
        }
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
    findings
}

fn of_writes(facts: &Facts) -> Option<Finding> {
    let (endpoint, fault) = facts.endpoints.iter().find_map(|endpoint| match &endpoint.write {
        // It has an alarm of its own.
        Some(Err(fault)) if !fault.is_denial() && !matches!(fault, Fault::NoSpace { .. }) => Some((endpoint, fault)),
        _ => None,
    })?;
    let writes = |endpoint: &Endpoint| matches!(endpoint.write, Some(Ok(())));
    Some(Finding::new(
        unless(facts.endpoints.iter().any(writes)),
        "no-write",
        &endpoint.url,
        format!("no majority confirms a write: {}", endpoint.without_url(fault)),
        "see to the other members, and to their disks",
    ))
}

fn of_the_password(facts: &Facts) -> Option<Finding> {
    let in_the_clear = |endpoint: &&Endpoint| endpoint.url.starts_with("http://") && !is_local(&endpoint.url);
    facts.user.as_ref()?;
    let endpoint = facts.endpoints.iter().find(in_the_clear)?;
    Some(Finding::new(
        Level::Yellow,
        "password-in-the-clear",
        &endpoint.url,
        "the password goes over the network without encryption".into(),
        "have etcd speak TLS, and write https://",
    ))
}

/// The first endpoint that refuses something, with what and why.
fn refused(facts: &Facts) -> Option<(&Endpoint, Vec<Lacking>, Fault)> {
    let denied = |asked: Option<Fault>| asked.filter(Fault::is_denial);
    facts.endpoints.iter().find_map(|endpoint| {
        let read = denied(endpoint.read.clone().and_then(Result::err));
        let write = denied(endpoint.write.clone().and_then(Result::err));
        let lacking = if endpoint.lacking.is_empty() {
            let below_all = |prefix: &String| Lacking {
                prefix: prefix.clone(),
                read: read.is_some(),
                write: write.is_some(),
            };
            facts.prefixes.iter().map(below_all).collect()
        } else {
            endpoint.lacking.clone()
        };
        Some((endpoint, lacking, read.or(write)?))
    })
}

/// `read and write everything below a/ and write everything below b/`.
fn told(lacking: &[Lacking]) -> String {
    let kinds = [
        (true, true, "read and write"),
        (true, false, "read"),
        (false, true, "write"),
    ];
    let below = kinds.iter().filter_map(|(read, write, verb)| {
        let of_the_kind = lacking.iter().filter(|one| (one.read, one.write) == (*read, *write));
        let prefixes: Vec<_> = of_the_kind.map(|one| one.prefix.as_str()).collect();
        (!prefixes.is_empty()).then(|| format!("{verb} everything below {}", prefixes.join(" and ")))
    });
    below.collect::<Vec<_>>().join(", and to ")
}

/// The role of users that have none.
const ROLE: &str = "meshlock";

/// The commands that give us what we lack.
fn grant(named: Option<&str>, endpoint: &Endpoint, lacking: &[Lacking]) -> String {
    let role = endpoint.roles.as_deref().and_then(<[String]>::first);
    let (new, role) = (role.is_none(), quoted(role.map_or(ROLE, String::as_str)));
    let user = named.map(quoted);
    let mut commands = Vec::new();
    // Who has a password has been let in.
    let added = user.as_ref().filter(|_| endpoint.unknown_user);
    commands.extend(added.map(|user| format!("etcdctl user add {user} --no-password")));
    commands.extend(new.then(|| format!("etcdctl role add {role}")));
    commands.extend(lacking.iter().map(|Lacking { prefix, .. }| {
        let prefix = quoted(prefix);
        format!("etcdctl role grant-permission --prefix=true {role} readwrite {prefix}")
    }));
    let granted = user.filter(|_| new);
    commands.extend(granted.map(|user| format!("etcdctl user grant-role {user} {role}")));
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
