//! The diagnosis for people, a line for each finding, and for programs, with the facts behind it. Shows; decides
//! nothing.

use super::text::{self, Line, Span, Style};
use crate::health::{Alarm, Endpoint, Facts, Fault, Finding, Level, Machine, Peer, worst};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

/// The only format written.
const FORMAT: u32 = 1;

/// Of the longest level and two spaces.
const LEVEL_WIDTH: usize = 8;

/// One line for each finding, the worst first; `quiet` without those that are as they should be. What is known of a
/// version and is not bad in itself stands in one line, unless everything is to be told.
pub fn text(findings: &[Finding], quiet: bool, everything: bool) -> Vec<Line> {
    let mut shown: Vec<Finding> = if everything {
        findings.to_vec()
    } else {
        folded(findings)
    };
    shown.retain(|finding| !quiet || finding.level > Level::Green);
    shown.sort_by_key(|finding| Reverse(finding.level));
    shown.iter().map(line).collect()
}

fn folded(findings: &[Finding]) -> Vec<Finding> {
    let foldable = |finding: &Finding| finding.defect_of.filter(|_| finding.level == Level::Yellow);
    let mut told = BTreeSet::new();
    let fold = |finding: &Finding| {
        let Some(version) = foldable(finding) else {
            return Some(finding.clone());
        };
        let count = findings.iter().filter(|other| foldable(other) == Some(version)).count();
        if count == 1 {
            return Some(finding.clone());
        }
        let remedy = version
            .next_sound()
            .map(|sound| format!("upgrade to {sound} or later; "));
        told.insert(version).then(|| Finding {
            what: format!("{count} defects are known that concern locks"),
            advice: format!("{}-v tells each", remedy.unwrap_or_default()),
            reference: None,
            ..finding.clone()
        })
    };
    findings.iter().filter_map(fold).collect()
}

fn line(finding: &Finding) -> Line {
    let style = match finding.level {
        Level::Green => Style::Good,
        Level::Yellow => Style::Warning,
        Level::Red => Style::Bad,
    };
    let mut text = format!("{}: {}", finding.about, finding.what);
    if !finding.advice.is_empty() {
        text = format!("{text}; {}", finding.advice);
    }
    if let Some(reference) = finding.reference {
        text = format!("{text} ({reference})");
    }
    let mut level = Span::new(finding.level.name(), style);
    level.pad(LEVEL_WIDTH, false);
    vec![level, Span::plain(&text)]
}

#[derive(Serialize)]
struct Diagnosis<'a> {
    format: u32,
    level: &'static str,
    prefixes: &'a [String],
    user: Option<&'a str>,
    certificate: bool,
    endpoints: Vec<One<'a>>,
    machine: Clock<'a>,
    findings: Vec<Found<'a>>,
}

#[derive(Serialize)]
struct One<'a> {
    endpoint: &'a str,
    tls: bool,
    answered: bool,
    /// Why it did not answer, or did not let us in.
    problem: Option<String>,
    cluster: Option<String>,
    member: Option<String>,
    leader: Option<String>,
    learner: Option<bool>,
    version: Option<&'a str>,
    term: Option<u64>,
    latency_ms: Option<f64>,
    read_ms: Option<f64>,
    db_bytes: Option<u64>,
    quota_bytes: Option<u64>,
    alarms: Vec<&'static str>,
    may_read: Option<bool>,
    may_write: Option<bool>,
    roles: Option<&'a [String]>,
    members: Option<Vec<Other<'a>>>,
}

#[derive(Serialize)]
struct Other<'a> {
    member: String,
    name: &'a str,
    client_urls: &'a [String],
    learner: bool,
}

#[derive(Serialize)]
struct Clock<'a> {
    asleep_seconds: f64,
    clock_source: Option<&'a str>,
}

#[derive(Serialize)]
struct Found<'a> {
    level: &'static str,
    code: &'static str,
    about: &'a str,
    what: &'a str,
    advice: Option<&'a str>,
    reference: Option<&'static str>,
}

/// One JSON object and a newline.
pub fn json(facts: &Facts, findings: &[Finding]) -> String {
    let Machine { asleep, clock_source } = &facts.machine;
    text::json(&Diagnosis {
        format: FORMAT,
        level: worst(findings).name(),
        prefixes: &facts.prefixes,
        user: facts.named(),
        certificate: facts.certificate,
        endpoints: facts.endpoints.iter().map(one).collect(),
        machine: Clock {
            asleep_seconds: millis(*asleep).round() / 1000.0,
            clock_source: clock_source.as_deref(),
        },
        findings: findings.iter().map(found).collect(),
    })
}

fn one(endpoint: &Endpoint) -> One<'_> {
    let member = endpoint.member.as_ref().ok();
    let status = member.and_then(|member| member.status.as_ref());
    let fault = endpoint.member.as_ref().err();
    let problem = fault.or(member.and_then(|member| member.denied.as_ref()));
    let permitted = |denied: bool, known: bool| known.then_some(!denied);
    let read = endpoint.read.as_ref();
    let write = endpoint.write.as_ref();
    let read_denied = read.is_some_and(|read| read.as_ref().is_err_and(Fault::is_denial));
    let write_denied = write.is_some_and(|write| write.as_ref().is_err_and(Fault::is_denial));
    One {
        endpoint: &endpoint.url,
        tls: endpoint.url.starts_with("https://"),
        answered: endpoint.answered(),
        problem: problem.map(ToString::to_string),
        cluster: member.map(|member| format!("{:x}", member.cluster)),
        member: member.map(|member| format!("{:x}", member.id)),
        leader: status
            .filter(|status| status.leader != 0)
            .map(|status| format!("{:x}", status.leader)),
        learner: status.map(|status| status.learner),
        version: status.map(|status| status.version.as_str()),
        term: status.map(|status| status.term),
        latency_ms: status.map(|status| millis(status.took)),
        read_ms: read.and_then(|read| read.as_ref().ok()).map(|took| millis(*took)),
        db_bytes: status.map(|status| status.db_size),
        quota_bytes: status.and_then(|status| status.quota),
        alarms: member.map_or_else(Vec::new, |member| {
            member.alarms.iter().copied().map(Alarm::name).collect()
        }),
        may_read: permitted(read_denied, read_denied || matches!(read, Some(Ok(_)))),
        may_write: permitted(write_denied, write_denied || matches!(write, Some(Ok(())))),
        roles: endpoint.roles.as_deref(),
        members: member
            .and_then(|member| member.peers.as_ref())
            .map(|peers| peers.iter().map(other).collect()),
    }
}

fn other(peer: &Peer) -> Other<'_> {
    Other {
        member: format!("{:x}", peer.id),
        name: &peer.name,
        client_urls: &peer.client_urls,
        learner: peer.learner,
    }
}

fn found(finding: &Finding) -> Found<'_> {
    Found {
        level: finding.level.name(),
        code: finding.code,
        about: &finding.about,
        what: &finding.what,
        advice: Some(finding.advice.as_str()).filter(|advice| !advice.is_empty()),
        reference: finding.reference,
    }
}

fn millis(span: Duration) -> f64 {
    // To microseconds.
    (span.as_secs_f64() * 1_000_000.0).round() / 1000.0
}
