//! Whether the endpoints are those of one cluster, and all of it.

use super::address;
use crate::health::{Facts, Finding, Level, Member, Peer};
use std::collections::BTreeMap;

pub(super) fn of_cluster(facts: &Facts) -> Vec<Finding> {
    if let Some(several) = of_several(facts) {
        return vec![several];
    }
    let Some(peers) = facts.members().find_map(|(_, member)| member.peers.as_ref()) else {
        return Vec::new();
    };
    let answered = urls_by(facts, |member| member.id);
    let twice = answered.values().filter(|urls| urls.len() > 1);
    let twice = twice.map(|urls| {
        Finding::new(
            Level::Yellow,
            "same-member",
            "the endpoints",
            format!("{} are one and the same member, and fail together", urls.join(" and ")),
            "give each member once",
        )
    });
    let missing = missing(facts, peers, |peer| answered.contains_key(&peer.id));
    twice.chain(missing.into_iter().map(of_missing)).collect()
}

/// The endpoints that answered, by what they say of themselves.
fn urls_by(facts: &Facts, what: impl Fn(&Member) -> u64) -> BTreeMap<u64, Vec<&str>> {
    let mut urls: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (endpoint, member) in facts.members() {
        urls.entry(what(member)).or_default().push(&endpoint.url);
    }
    urls
}

fn of_several(facts: &Facts) -> Option<Finding> {
    let clusters = urls_by(facts, |member| member.cluster);
    if clusters.len() < 2 {
        return None;
    }
    let each: Vec<String> = clusters
        .iter()
        .map(|(cluster, urls)| format!("{cluster:x} at {}", urls.join(", ")))
        .collect();
    Some(Finding::new(
        Level::Red,
        "several-clusters",
        "the endpoints",
        format!(
            "they belong to {} clusters ({}), and a lock in one is none in another",
            clusters.len(),
            each.join("; ")
        ),
        "leave one cluster in the endpoints, on every machine the same",
    ))
}

/// The members that no endpoint is for, as far as that is sure.
fn missing<'a>(facts: &Facts, peers: &'a [Peer], answered: impl Fn(&Peer) -> bool) -> Vec<&'a Peer> {
    // Whoever did not answer may be any member, unless its address is one that a member goes by.
    let silent: Vec<&str> = facts
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.member.is_err())
        .map(|endpoint| address(&endpoint.url))
        .collect();
    let goes_by = |urls: &[String], silent: &&str| urls.iter().any(|url| address(url) == *silent);
    let unknown = silent
        .iter()
        .filter(|silent| !peers.iter().any(|peer| goes_by(&peer.client_urls, silent)))
        .count();
    peers
        .iter()
        .filter(|peer| !answered(peer))
        .filter(|peer| !silent.iter().any(|silent| goes_by(&peer.client_urls, silent)))
        .skip(unknown)
        .collect()
}

fn of_missing(peer: &Peer) -> Finding {
    if peer.name.is_empty() {
        return Finding::new(
            Level::Yellow,
            "not-started",
            &format!("member {:x}", peer.id),
            "it was added to the cluster and has not started, but counts for the majority".into(),
            "start it, or remove it from the cluster",
        );
    }
    Finding::new(
        Level::Yellow,
        "not-listed",
        &format!("member {}", peer.name),
        format!(
            "it is not among the endpoints, and of no help where these fail ({})",
            peer.client_urls.join(", ")
        ),
        "add it to the endpoints",
    )
}
