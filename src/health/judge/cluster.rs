//! Whether the endpoints are those of one cluster, and all of it.

use super::address;
use crate::health::{Facts, Finding, Level};
use std::collections::BTreeMap;

pub(super) fn of_cluster(facts: &Facts) -> Vec<Finding> {
    let mut clusters: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (endpoint, member) in facts.members() {
        clusters.entry(member.cluster).or_default().push(&endpoint.url);
    }
    if clusters.len() > 1 {
        let each: Vec<String> = clusters
            .iter()
            .map(|(cluster, urls)| format!("{cluster:x} at {}", urls.join(", ")))
            .collect();
        return vec![Finding::new(
            Level::Red,
            "several-clusters",
            "the endpoints",
            format!(
                "they belong to {} clusters ({}), and a lock in one is none in another",
                clusters.len(),
                each.join("; ")
            ),
            "leave one cluster in the endpoints, on every machine the same",
        )];
    }
    let Some(peers) = facts.members().find_map(|(_, member)| member.peers.as_ref()) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let mut answered: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for (endpoint, member) in facts.members() {
        answered.entry(member.id).or_default().push(&endpoint.url);
    }
    for urls in answered.values().filter(|urls| urls.len() > 1) {
        findings.push(Finding::new(
            Level::Yellow,
            "same-member",
            "the endpoints",
            format!("{} are one and the same member, and fail together", urls.join(" and ")),
            "give each member once",
        ));
    }
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
    let missing: Vec<_> = peers
        .iter()
        .filter(|peer| !answered.contains_key(&peer.id))
        .filter(|peer| !silent.iter().any(|silent| goes_by(&peer.client_urls, silent)))
        .collect();
    for peer in missing.iter().skip(unknown) {
        findings.push(if peer.name.is_empty() {
            Finding::new(
                Level::Yellow,
                "not-started",
                &format!("member {:x}", peer.id),
                "it was added to the cluster and has not started, but counts for the majority".into(),
                "start it, or remove it from the cluster",
            )
        } else {
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
        });
    }
    findings
}
