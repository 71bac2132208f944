//! The judgement as a table: facts of a cluster that is well, one thing changed, and what is found.

use super::*;
use crate::health::{Fault, Lacking, Machine, Peer, Status};

const OURS: u64 = 0xc;

fn status(member: u64) -> Status {
    Status {
        took: Duration::from_millis(1),
        version: "3.5.30".to_owned(),
        cluster: OURS,
        member,
        leader: 1,
        learner: false,
        term: 2,
        db_size: 4096,
        quota: None,
        alarms: Vec::new(),
    }
}

/// A member that serves, of three.
fn sound(number: u64) -> Endpoint {
    let peer = |id| Peer {
        id,
        name: format!("m{id}"),
        client_urls: vec![format!("http://e{id}:2379")],
        learner: false,
    };
    Endpoint {
        url: format!("http://e{number}:2379"),
        member: Ok(Member {
            cluster: OURS,
            id: number,
            status: Some(status(number)),
            peers: Some((1..=3).map(peer).collect()),
            ..Member::default()
        }),
        read: Some(Ok(Duration::from_millis(2))),
        write: Some(Ok(())),
        lacking: Vec::new(),
        roles: None,
        unknown_user: false,
    }
}

fn facts() -> Facts {
    Facts {
        prefixes: vec!["meshlock/".to_owned()],
        exposed: Vec::new(),
        user: None,
        certificate: true,
        common_name: None,
        endpoints: (1..=3).map(sound).collect(),
        machine: Machine {
            asleep: Duration::ZERO,
            clock_source: Some("tsc".to_owned()),
        },
    }
}

/// The findings that are not green, after `change` was done to facts that have none.
fn bad(change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = facts();
    change(&mut facts);
    let mut findings = judge(&facts);
    findings.retain(|finding| finding.level > Level::Green);
    findings
}

#[track_caller]
fn is(findings: &[Finding], expected: &[(Level, &str)]) {
    let found: Vec<_> = findings.iter().map(|finding| (finding.level, finding.code)).collect();
    assert_eq!(found, expected, "{findings:#?}");
}

fn member(facts: &mut Facts, at: usize) -> &mut Member {
    facts.endpoints[at].member.as_mut().expect("it answers")
}

fn of(facts: &mut Facts, at: usize) -> &mut Status {
    member(facts, at).status.as_mut().expect("a status")
}

fn away(endpoint: &mut Endpoint) {
    *endpoint = Endpoint {
        url: endpoint.url.clone(),
        member: Err(Fault::Unreachable {
            why: format!("{}: connection refused", endpoint.url),
        }),
        read: None,
        write: None,
        lacking: Vec::new(),
        roles: None,
        unknown_user: false,
    };
}

fn refused() -> Fault {
    Fault::Denied {
        why: "http://e1:2379: permission denied".to_owned(),
    }
}

#[test]
fn what_is_well_is_green_line_by_line() {
    let findings = judge(&facts());
    let green = ["answers", "answers", "answers", "rights", "clock"].map(|code| (Level::Green, code));
    is(&findings, &green);
}

#[test]
fn one_member_away_is_yellow_and_all_of_them_red() {
    let one = bad(|facts| away(&mut facts.endpoints[1]));
    is(&one, &[(Level::Yellow, "unreachable")]);
    assert_eq!(one[0].about, "http://e2:2379");
    assert_eq!(one[0].what, "connection refused");
    let all = bad(|facts| facts.endpoints.iter_mut().for_each(away));
    is(&all, &[(Level::Red, "unreachable"); 3]);
}

#[test]
fn settings_that_are_wrong_at_one_endpoint_are_red() {
    let instead = |fault: Fault| {
        bad(|facts| {
            away(&mut facts.endpoints[0]);
            facts.endpoints[0].member = Err(fault);
        })
    };
    is(
        &instead(Fault::Config { why: "x".to_owned() }),
        &[(Level::Red, "misconfigured")],
    );
    is(
        &instead(Fault::Internal { why: "x".to_owned() }),
        &[(Level::Red, "misconfigured")],
    );
    is(&instead(refused()), &[(Level::Red, "denied")]);
}

#[test]
fn a_member_that_serves_nobody_is_yellow_where_the_others_do() {
    let no_leader = bad(|facts| {
        of(facts, 0).leader = 0;
        facts.endpoints[0].read = None;
    });
    is(&no_leader, &[(Level::Yellow, "no-leader")]);
    let no_read = bad(|facts| {
        let why = "http://e1:2379: no answer within 5 s".to_owned();
        facts.endpoints[0].read = Some(Err(Fault::Unreachable { why }));
    });
    is(&no_read, &[(Level::Yellow, "no-majority")]);
    is(&bad(|facts| of(facts, 2).learner = true), &[(Level::Yellow, "learner")]);
    let slow = bad(|facts| facts.endpoints[2].read = Some(Ok(Duration::from_millis(501))));
    is(&slow, &[(Level::Yellow, "slow")]);
}

#[test]
fn alarms_are_red_and_a_database_that_is_nearly_full_is_yellow_before() {
    for (alarm, code) in [(Alarm::NoSpace, "no-space"), (Alarm::Corrupt, "corrupt")] {
        let found = bad(|facts| member(facts, 0).alarms = vec![alarm]);
        is(&found, &[(Level::Red, code)]);
    }
    let size = |size, quota| {
        bad(|facts| {
            of(facts, 0).db_size = size;
            of(facts, 0).quota = quota;
        })
    };
    let gib = 1 << 30;
    is(&size(7 * gib, Some(8 * gib)), &[(Level::Yellow, "nearly-full")]);
    is(&size(6 * gib, Some(8 * gib)), &[]);
    // Where the quota is not told, it may be the default.
    is(&size(2 * gib, None), &[(Level::Yellow, "nearly-full")]);
    is(&size(gib, None), &[]);
}

#[test]
fn two_clusters_are_red() {
    let found = bad(|facts| member(facts, 1).cluster = 0xd);
    is(&found, &[(Level::Red, "several-clusters")]);
    let each = "c at http://e1:2379, http://e3:2379; d at http://e2:2379";
    assert!(found[0].what.contains(each), "{}", found[0].what);
}

#[test]
fn members_that_nobody_would_ask_are_told() {
    let short = bad(|facts| drop(facts.endpoints.remove(2)));
    is(&short, &[(Level::Yellow, "not-listed")]);
    assert_eq!(short[0].about, "member m3");
    // One that is away is known by its address.
    let known = bad(|facts| {
        facts.endpoints.remove(2);
        away(&mut facts.endpoints[1]);
    });
    is(&known, &[(Level::Yellow, "unreachable"), (Level::Yellow, "not-listed")]);
    // An address that no member goes by may be any of them.
    let behind = bad(|facts| {
        facts.endpoints[2].url = "http://proxy:1".to_owned();
        away(&mut facts.endpoints[2]);
    });
    is(&behind, &[(Level::Yellow, "unreachable")]);
    let twice = bad(|facts| {
        facts.endpoints.push(Endpoint {
            url: "http://alias:1".to_owned(),
            ..sound(1)
        });
    });
    is(&twice, &[(Level::Yellow, "same-member")]);
    let idle = bad(|facts| {
        facts.endpoints.remove(2);
        for at in 0..2 {
            member(facts, at).peers.as_mut().expect("peers")[2].name.clear();
        }
    });
    is(&idle, &[(Level::Yellow, "not-started")]);
}

/// What is to be done where the right to write is missing.
fn advice(user: Option<&str>, roles: Option<&[&str]>, prefixes: &[&str]) -> String {
    let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let found = bad(|facts| {
        facts.user = user.map(ToOwned::to_owned);
        facts.prefixes = owned(prefixes);
        for endpoint in &mut facts.endpoints {
            endpoint.url = endpoint.url.replace("http:", "https:");
        }
        facts.endpoints[0].write = Some(Err(refused()));
        facts.endpoints[0].roles = roles.map(owned);
    });
    is(&found, &[(Level::Red, "rights")]);
    found[0].advice.clone()
}

#[test]
fn missing_rights_come_with_the_commands_that_give_them() {
    assert_eq!(
        advice(Some("job"), Some(&["locks"]), &["meshlock/"]),
        "as root: etcdctl role grant-permission --prefix=true locks readwrite meshlock/"
    );
    assert_eq!(
        advice(Some("job"), Some(&[]), &["meshlock/"]),
        "as root: etcdctl role add meshlock \
         && etcdctl role grant-permission --prefix=true meshlock readwrite meshlock/ \
         && etcdctl user grant-role job meshlock"
    );
    assert_eq!(
        advice(Some("job"), Some(&["a b"]), &["team's/", "jobs/x/"]),
        r"as root: etcdctl role grant-permission --prefix=true 'a b' readwrite 'team'\''s/' && etcdctl role grant-permission --prefix=true 'a b' readwrite jobs/x/"
    );
    let nobody = bad(|facts| {
        facts.certificate = false;
        facts.endpoints[0].read = Some(Err(refused()));
    });
    is(&nobody, &[(Level::Red, "user-wanted")]);
}

#[test]
fn whom_a_certificate_names_is_told_as_a_user_only_where_etcd_goes_by_it() {
    let named = |change: &dyn Fn(&mut Endpoint)| {
        bad(|facts| {
            facts.common_name = Some("job".to_owned());
            facts.endpoints[0].read = Some(Err(refused()));
            change(&mut facts.endpoints[0]);
        })
    };
    is(&named(&|_| ()), &[(Level::Red, "user-wanted")]);
    let known = named(&|endpoint| endpoint.roles = Some(Vec::new()));
    is(&known, &[(Level::Red, "rights")]);
    assert_eq!(known[0].about, "the user \"job\"");
    let unknown = named(&|endpoint| endpoint.unknown_user = true);
    is(&unknown, &[(Level::Red, "user-unknown")]);
    assert_eq!(
        unknown[0].advice,
        "as root: etcdctl user add job --no-password && etcdctl role add meshlock \
         && etcdctl role grant-permission --prefix=true meshlock readwrite meshlock/ \
         && etcdctl user grant-role job meshlock"
    );
}

#[test]
fn what_is_missing_is_told_of_each_prefix() {
    let found = bad(|facts| {
        facts.user = Some("job".to_owned());
        facts.prefixes = ["a/", "b/", "c/"].map(ToOwned::to_owned).to_vec();
        for endpoint in &mut facts.endpoints {
            endpoint.url = endpoint.url.replace("http:", "https:");
        }
        let lacking = |prefix: &str, read| Lacking {
            prefix: prefix.to_owned(),
            read,
            write: true,
        };
        facts.endpoints[0].write = Some(Err(refused()));
        facts.endpoints[0].roles = Some(vec!["locks".to_owned()]);
        facts.endpoints[0].lacking = vec![lacking("b/", true), lacking("c/", false)];
    });
    assert_eq!(
        found[0].what,
        "no right to read and write everything below b/, and to write everything below c/"
    );
    assert!(!found[0].advice.contains("a/"), "{}", found[0].advice);
}

#[test]
fn an_open_etcd_is_yellow_unless_it_is_on_this_machine() {
    is(&bad(|facts| facts.certificate = false), &[(Level::Yellow, "open")]);
    let local = bad(|facts| {
        facts.certificate = false;
        for endpoint in &mut facts.endpoints {
            endpoint.url = endpoint.url.replace("http://e", "http://127.0.0.");
        }
    });
    is(&local, &[]);
    let clear = bad(|facts| facts.user = Some("job".to_owned()));
    is(&clear, &[(Level::Yellow, "password-in-the-clear")]);
}

#[test]
fn versions_bring_their_defects_once_each_and_those_of_users_only_with_users() {
    let old = |facts: &mut Facts| {
        for at in 0..3 {
            of(facts, at).version = "3.5.29".to_owned();
        }
    };
    is(&bad(old), &[(Level::Yellow, "etcd-transaction-bypass")]);
    let open = bad(|facts| {
        old(facts);
        facts.certificate = false;
    });
    is(&open, &[(Level::Yellow, "open")]);
    let mixed = bad(|facts| of(facts, 1).version = "3.6.11".to_owned());
    is(&mixed, &[(Level::Yellow, "mixed-versions")]);
    let corrupting = bad(|facts| of(facts, 1).version = "3.5.1".to_owned());
    assert!(corrupting.iter().any(|finding| finding.level == Level::Red));
    is(&bad(|facts| of(facts, 1).version = "unheard-of".to_owned()), &[]);
}

#[test]
fn a_machine_that_sleeps_or_counts_roughly_is_yellow() {
    let sleeper = bad(|facts| facts.machine.asleep = Duration::from_secs(4000));
    is(&sleeper, &[(Level::Yellow, "sleeps")]);
    let rough = bad(|facts| facts.machine.clock_source = Some("jiffies".to_owned()));
    is(&rough, &[(Level::Yellow, "rough-clock")]);
}

#[test]
fn sizes_and_spans_are_for_people() {
    for (count, text) in [(0, "0 B"), (28 << 10, "28.0 KiB"), (3 << 29, "1.5 GiB")] {
        assert_eq!(bytes(count), text);
    }
    for (millis, text) in [
        (1, "1.0 ms"),
        (300, "0.3 s"),
        (4_000_000, "67 min"),
        (10_800_000, "3 h"),
    ] {
        assert_eq!(span(Duration::from_millis(millis)), text);
    }
}
