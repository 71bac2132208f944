//! Gathers the facts: all endpoints at once, each within `--dial-timeout`, with questions that change nothing. Judges
//! nothing.

use super::{Endpoint, Facts, Fault, Lacking, Machine, Member};
use crate::lock::keys::{self, Kind};
use crate::moment::Moment;
use crate::store::Connection;
use crate::store::etcd::Etcd;
use crate::store::tls::Tls;
use std::fs;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Asks every endpoint after itself, and after what we may do there: read and write below each of the prefixes.
pub async fn examine(connection: &Connection, prefixes: &[String]) -> Facts {
    let mut asked = JoinSet::new();
    let (members, unknown) = match connection.members().await {
        Ok(members) => (members, None),
        Err(fault) => (Vec::new(), Some(fault)),
    };
    for (place, url) in members.into_iter().enumerate() {
        let alone = Connection {
            endpoints: vec![url],
            discovery: None,
            ..connection.clone()
        };
        let prefixes = prefixes.to_owned();
        asked.spawn(async move { (place, endpoint(alone, &prefixes).await) });
    }
    let mut endpoints = asked.join_all().await;
    endpoints.sort_by_key(|(place, _)| *place);
    let endpoints = endpoints.into_iter().map(|(_, endpoint)| endpoint);
    let undiscovered = unknown.map(|fault| Endpoint {
        url: connection.whom(),
        member: Err(fault),
        read: None,
        write: None,
        lacking: Vec::new(),
        roles: None,
        unknown_user: false,
    });
    Facts {
        prefixes: prefixes.to_owned(),
        user: connection.user.as_ref().map(|(name, _)| name.clone()),
        exposed: connection.exposed.clone(),
        common_name: connection.tls.as_ref().and_then(Tls::common_name),
        certificate: connection.tls.as_ref().is_some_and(|tls| tls.identity.is_some()),
        endpoints: endpoints.chain(undiscovered).collect(),
        machine: Machine {
            asleep: Moment::asleep(),
            clock_source: clock_source(),
        },
    }
}

async fn endpoint(connection: Connection, prefixes: &[String]) -> Endpoint {
    let mut found = Endpoint {
        url: connection.endpoints.join(","),
        member: Err(connection.silent()),
        read: None,
        write: None,
        lacking: Vec::new(),
        roles: None,
        unknown_user: false,
    };
    // What was found until then counts.
    timeout(connection.dial_timeout, look(&connection, prefixes, &mut found))
        .await
        .ok();
    found
}

async fn look(connection: &Connection, prefixes: &[String], found: &mut Endpoint) {
    let etcd = Etcd::alone(connection.clone());
    introduce(&etcd, &mut found.member).await;
    if let Err(denied @ (Fault::Denied { .. } | Fault::Config { .. })) = &found.member
        && connection.user.is_some()
    {
        // Who answers there is told to those who are not let in, too, by servers of some age.
        let denied = denied.clone();
        let stranger = Etcd::alone(Connection {
            user: None,
            ..connection.clone()
        });
        let mut member = Err(denied.clone());
        introduce(&stranger, &mut member).await;
        found.member = member
            .map(|member| Member {
                denied: Some(denied.clone()),
                ..member
            })
            .map_err(|_| denied);
        return;
    }
    let Ok(Member { status, .. }) = &found.member else {
        return;
    };
    if status.as_ref().is_some_and(|status| status.leader == 0) {
        return;
    }
    let silent = || connection.silent();
    found.read = Some(Err(silent()));
    let sent = Moment::now();
    found.read = Some(read(&etcd, prefixes).await.map(|()| Moment::now().since(sent)));
    found.write = Some(Err(silent()));
    found.write = Some(etcd.may_write(&probes(prefixes)).await);
    let certified = || connection.tls.as_ref().and_then(Tls::common_name);
    if let Some(user) = connection
        .user
        .as_ref()
        .map(|(name, _)| name.clone())
        .or_else(certified)
    {
        match etcd.roles(&user).await {
            Ok(Some(roles)) => found.roles = Some(roles),
            Ok(None) => found.unknown_user = true,
            Err(_) => {}
        }
    }
    let refused = |asked: Option<&Fault>| asked.is_some_and(Fault::is_denial);
    let read = found.read.as_ref().and_then(|read| read.as_ref().err());
    let write = found.write.as_ref().and_then(|write| write.as_ref().err());
    if prefixes.len() > 1 && (refused(read) || refused(write)) {
        found.lacking = lacking(&etcd, prefixes).await;
    }
}

/// What is refused below which prefix.
async fn lacking(etcd: &Etcd, prefixes: &[String]) -> Vec<Lacking> {
    let denied = |fault: Fault| fault.is_denial();
    let mut all = Vec::new();
    for (place, prefix) in prefixes.iter().enumerate() {
        let probes = if place == 0 {
            probes(&prefixes[..1])
        } else {
            vec![probe(prefix)]
        };
        let lacking = Lacking {
            prefix: prefix.clone(),
            read: etcd.may_read(prefix).await.is_err_and(denied),
            write: etcd.may_write(&probes).await.is_err_and(denied),
        };
        if lacking.read || lacking.write {
            all.push(lacking);
        }
    }
    all
}

/// Who answers, by his own word.
async fn introduce(etcd: &Etcd, member: &mut Result<Member, Fault>) {
    match etcd.status().await {
        Ok(status) => {
            let mut known = Member {
                cluster: status.cluster,
                id: status.member,
                alarms: status.alarms.clone(),
                status: Some(status),
                ..Member::default()
            };
            // Without a leader it may wait for one, and we for it in vain.
            *member = Ok(known.clone());
            known.peers = etcd.membership().await.ok().map(|membership| membership.peers);
            *member = Ok(known);
        }
        // etcd 3.4.42, 3.5.28 and 3.6.9 and later tell administrators alone, and others at least this.
        Err(Fault::Denied { .. }) => {
            *member = match etcd.membership().await {
                Ok(membership) => Ok(Member {
                    cluster: membership.cluster,
                    id: membership.member,
                    peers: Some(membership.peers),
                    alarms: etcd.alarms().await.unwrap_or_default(),
                    ..Member::default()
                }),
                Err(fault) => Err(fault),
            };
        }
        Err(fault) => *member = Err(fault),
    }
}

async fn read(etcd: &Etcd, prefixes: &[String]) -> Result<(), Fault> {
    for prefix in prefixes {
        etcd.may_read(prefix).await?;
    }
    Ok(())
}

/// One key below each prefix, and of each kind below the first: roles are given for prefixes, and for no key alone.
fn probes(prefixes: &[String]) -> Vec<String> {
    let (root, others) = match prefixes {
        [root, others @ ..] => (root.as_str(), others),
        [] => return Vec::new(),
    };
    let ours = Kind::ALL.map(|kind| keys::all(root, kind));
    ours.iter().chain(others).map(|prefix| probe(prefix)).collect()
}

/// One that nobody has.
fn probe(prefix: &str) -> String {
    format!("{prefix}%")
}

fn clock_source() -> Option<String> {
    let text = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource").ok()?;
    Some(text.trim().to_owned())
}
