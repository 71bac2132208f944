//! What the facts mean for locks: one finding for each thing that somebody should know, the good ones included. Pure.

mod cluster;
mod rights;

use self::cluster::of_cluster;
use self::rights::of_rights;
use crate::health::defects::{DEFECTS, Version};
use crate::health::{Alarm, Endpoint, Facts, Fault, Finding, Level, Machine, Member, Status};
use std::collections::BTreeSet;
use std::time::Duration;

/// A renewal that is answered only after a second, or a sixth of a shorter TTL, does not count.
const SLOW: Duration = Duration::from_millis(500);

/// etcd's own `--quota-backend-bytes`, if nobody has set another.
const DEFAULT_QUOTA: u64 = 2 << 30;

/// Sources by which the kernel can keep time only roughly.
const ROUGH_CLOCKS: &[&str] = &["jiffies", "refined-jiffies"];

/// In the order in which they are told: endpoints, the cluster, our rights, versions, this machine.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let served = facts.endpoints.iter().any(Endpoint::serves);
    let mut findings: Vec<Finding> = facts
        .endpoints
        .iter()
        .flat_map(|endpoint| of_endpoint(endpoint, served))
        .collect();
    findings.extend(of_cluster(facts));
    findings.extend(of_rights(facts, served));
    findings.extend(of_versions(facts));
    findings.extend(facts.exposed.iter().map(|file| {
        let what = "it can be read by every user of this machine";
        Finding::new(Level::Yellow, "secret-exposed", file, what.into(), "chmod o= it")
    }));
    findings.push(of_machine(&facts.machine));
    findings
}

/// What is wrong with a single member is bad where the others do without it, and worse where they do not.
const fn unless(served: bool) -> Level {
    if served { Level::Yellow } else { Level::Red }
}

fn of_endpoint(endpoint: &Endpoint, served: bool) -> Vec<Finding> {
    let finding = |level, code, what: String, advice: &str| Finding::new(level, code, &endpoint.url, what, advice);
    let member = match &endpoint.member {
        Ok(member) => member,
        Err(fault) => {
            let what = endpoint.without_url(fault);
            return vec![match fault {
                Fault::Unreachable { .. } => finding(
                    unless(served),
                    "unreachable",
                    what,
                    "see to it, or take it out of the endpoints",
                ),
                Fault::Denied { .. } => finding(Level::Red, "denied", what, ""),
                _ => finding(Level::Red, "misconfigured", what, ""),
            }];
        }
    };
    let mut findings = vec![finding(Level::Green, "answers", described(endpoint, member), "")];
    if let Some(fault) = &member.denied {
        findings.push(finding(Level::Red, "denied", endpoint.without_url(fault), ""));
    }
    findings.extend(member.alarms.iter().map(|alarm| of_alarm(endpoint, *alarm)));
    if let Some(status) = &member.status {
        findings.extend(of_status(endpoint, status, served));
    }
    match &endpoint.read {
        Some(Ok(took)) if *took > SLOW => findings.push(finding(
            Level::Yellow,
            "slow",
            format!("a read took {}: renewals that take a second do not count", span(*took)),
            "look at its disk and its load",
        )),
        Some(Err(fault)) if !fault.is_denial() => findings.push(finding(
            unless(served),
            "no-majority",
            format!("no majority confirms a read: {}", endpoint.without_url(fault)),
            "see to the other members, and to the network between them",
        )),
        _ => {}
    }
    findings
}

fn of_alarm(endpoint: &Endpoint, alarm: Alarm) -> Finding {
    let red = |code, what: &str, advice| Finding::new(Level::Red, code, &endpoint.url, what.into(), advice);
    match alarm {
        Alarm::NoSpace => red(
            "no-space",
            "it is out of space (NOSPACE): nobody can take a lock, and those who hold one cannot record their run",
            "compact and defragment it, then etcdctl alarm disarm",
        ),
        Alarm::Corrupt => Finding {
            reference: Some("https://etcd.io/docs/latest/op-guide/data_corruption/"),
            ..red(
                "corrupt",
                "its data differ from the other members' (CORRUPT): two could hold one lock",
                "take out and replace the member that is wrong",
            )
        },
    }
}

fn of_status(endpoint: &Endpoint, status: &Status, served: bool) -> Vec<Finding> {
    let finding = |level, code, what: String, advice: &str| Finding::new(level, code, &endpoint.url, what, advice);
    let mut findings = Vec::new();
    if status.leader == 0 {
        findings.push(finding(
            unless(served),
            "no-leader",
            "it knows no leader: it is cut off from the other members, or too few of them are up".into(),
            "see to the other members, and to the network between them",
        ));
    }
    if status.learner {
        findings.push(finding(
            Level::Yellow,
            "learner",
            "it is a learner, and serves nobody yet".into(),
            "promote it, or take it out of the endpoints",
        ));
    }
    let full = |quota: u64| status.db_size > quota / 5 * 4;
    let size = bytes(status.db_size);
    match status.quota {
        Some(quota) if full(quota) => findings.push(finding(
            Level::Yellow,
            "nearly-full",
            format!(
                "its database has {size} of {}: when it is full, nobody can take a lock",
                bytes(quota)
            ),
            "compact and defragment it, or raise --quota-backend-bytes",
        )),
        None if full(DEFAULT_QUOTA) => findings.push(finding(
            Level::Yellow,
            "nearly-full",
            format!(
                "its database has {size}, and etcd's default quota is {}",
                bytes(DEFAULT_QUOTA)
            ),
            "compact and defragment it, unless --quota-backend-bytes is larger",
        )),
        _ => {}
    }
    findings
}

/// The line of an endpoint that answers.
fn described(endpoint: &Endpoint, member: &Member) -> String {
    let read = match &endpoint.read {
        Some(Ok(took)) => format!(", a read in {}", span(*took)),
        _ => String::new(),
    };
    let Some(status) = &member.status else {
        return format!("a member that tells its version to administrators alone{read}");
    };
    let role = match status.leader {
        _ if status.learner => "learner",
        leader if leader == status.member => "leader",
        _ => "follower",
    };
    let database = bytes(status.db_size);
    format!(
        "etcd {}, {role}, answers in {}{read}, database {database}",
        status.version,
        span(status.took)
    )
}

fn of_versions(facts: &Facts) -> Vec<Finding> {
    let statuses = facts.members().filter_map(|(_, member)| member.status.as_ref());
    let told: BTreeSet<&str> = statuses.map(|status| status.version.as_str()).collect();
    let versions: BTreeSet<Version> = told.iter().filter_map(|version| Version::parse(version)).collect();
    let lines: BTreeSet<_> = versions.iter().map(|version| (version.0, version.1)).collect();
    let mut findings = Vec::new();
    if lines.len() > 1 {
        let versions: Vec<_> = versions.iter().map(ToString::to_string).collect();
        findings.push(Finding::new(
            Level::Yellow,
            "mixed-versions",
            "the members",
            format!("they are of different lines of etcd: {}", versions.join(", ")),
            "bring the upgrade to its end",
        ));
    }
    for version in versions {
        let concerned = DEFECTS
            .iter()
            .filter(|defect| defect.concerns(version) && (facts.has_users() || !defect.of_users));
        findings.extend(concerned.map(|defect| Finding {
            reference: Some(defect.reference),
            defect_of: Some(version),
            ..Finding::new(
                defect.level,
                defect.code,
                &format!("etcd {version}"),
                defect.what.to_owned(),
                &defect.remedy(version),
            )
        }));
    }
    findings
}

fn of_machine(machine: &Machine) -> Finding {
    let source = machine.clock_source.as_deref().unwrap_or("unknown");
    let finding = |level, code, what: String, advice: &str| Finding::new(level, code, "this machine", what, advice);
    if ROUGH_CLOCKS.contains(&source) {
        return finding(
            Level::Yellow,
            "rough-clock",
            format!("its clock source is {source}, which is not to be relied on for deadlines"),
            "find out why the kernel uses no better one",
        );
    }
    if machine.asleep >= Duration::from_secs(1) {
        return finding(
            Level::Yellow,
            "sleeps",
            format!(
                "it has slept for {} since it was started: a lock that is held meanwhile is lost",
                span(machine.asleep)
            ),
            "run nothing there that must not be stopped",
        );
    }
    finding(
        Level::Green,
        "clock",
        format!("it has not slept since it was started, clock source {source}"),
        "",
    )
}

impl Finding {
    fn new(level: Level, code: &'static str, about: &str, what: String, advice: &str) -> Self {
        Self {
            level,
            code,
            about: about.to_owned(),
            what,
            advice: advice.to_owned(),
            reference: None,
            defect_of: None,
        }
    }
}

impl Facts {
    fn members(&self) -> impl Iterator<Item = (&Endpoint, &Member)> {
        self.endpoints
            .iter()
            .filter_map(|endpoint| Some((endpoint, endpoint.member.as_ref().ok()?)))
    }

    /// Whether etcd asks who we are. Where we show a certificate, it may go by that.
    fn has_users(&self) -> bool {
        self.user.is_some() || self.certificate || !self.endpoints.iter().any(Endpoint::serves)
    }

    fn is_local(&self) -> bool {
        self.endpoints.iter().all(|endpoint| is_local(&endpoint.url))
    }
}

impl Endpoint {
    /// A majority stood behind its answer.
    fn serves(&self) -> bool {
        matches!(self.read, Some(Ok(_)))
    }

    /// The findings say themselves which endpoint it is.
    fn without_url(&self, fault: &Fault) -> String {
        let text = fault.to_string();
        let rest = text.strip_prefix(&self.url).and_then(|rest| rest.strip_prefix(": "));
        rest.unwrap_or(&text).to_owned()
    }
}

fn address(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.trim_end_matches('/')
}

fn is_local(url: &str) -> bool {
    let host = address(url).rsplit_once(':').map_or("", |(host, _)| host);
    host == "localhost" || host == "[::1]" || host.starts_with("127.")
}

/// To two digits or so.
fn span(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    match seconds {
        _ if seconds < 0.1 => format!("{:.1} ms", seconds * 1000.0),
        _ if seconds < 60.0 => format!("{seconds:.1} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

fn bytes(count: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(power, _)| count >> power > 0);
    let Some((power, unit)) = unit else {
        return format!("{count} B");
    };
    // Tenths.
    let tenths = ((count >> (power - 10)) * 10) >> 10;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests;
