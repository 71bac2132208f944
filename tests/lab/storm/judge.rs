//! The verdict: pure, from the lives that the observer saw, the calls with their ends, and what the lab did to
//! them. Trusts no word of meshlock's where the commands' own stamps say something.

use super::observer::Life;
use super::plan::Kind;
use super::record::{Call, Locker, MS, Strike};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;

/// Two trees of different holders of one name, alive at once.
#[derive(Clone, Debug)]
pub(super) struct Overlap {
    pub(super) locker: Locker,
    pub(super) name: String,
    pub(super) first: String,
    pub(super) second: String,
    pub(super) at: u64,
    pub(super) ms: u64,
    /// Which combination of faults, outside of what is promised, explains it.
    pub(super) apart: Option<&'static str>,
}

/// One thing that is wrong, when it happened and with which call.
#[derive(Clone, Debug)]
pub(super) struct Wrong {
    pub(super) at: u64,
    pub(super) hold: String,
    pub(super) what: String,
}

/// All processes of one call.
struct Hold<'a> {
    id: &'a str,
    first: u64,
    last: u64,
    token: Option<i64>,
    lives: Vec<&'a Life>,
}

const STRAYS: [&str; 2] = ["scrubbed", "fork-scrubbed"];
/// By name, in the order of their starts.
fn holds(lives: &[Life]) -> BTreeMap<&str, Vec<Hold<'_>>> {
    let mut holds: BTreeMap<(&str, &str), Hold<'_>> = BTreeMap::new();
    for life in lives {
        let hold = holds.entry((&life.name, &life.hold)).or_insert_with(|| Hold {
            id: &life.hold,
            first: life.first,
            last: life.last,
            token: None,
            lives: Vec::new(),
        });
        hold.first = hold.first.min(life.first);
        hold.last = hold.last.max(life.last);
        hold.token = hold.token.or(life.token);
        hold.lives.push(life);
    }
    let mut by_name: BTreeMap<&str, Vec<Hold<'_>>> = BTreeMap::new();
    for ((name, _), hold) in holds {
        by_name.entry(name).or_default().push(hold);
    }
    for holds in by_name.values_mut() {
        holds.sort_by_key(|hold| hold.first);
    }
    by_name
}

pub(super) fn count_holds(lives: &[Life], calls: &[Call], locker: Locker) -> usize {
    let ours = |hold: &&Hold<'_>| locker_of(calls, hold.id) == locker;
    holds(lives).values().flatten().filter(ours).count()
}

fn locker_of(calls: &[Call], hold: &str) -> Locker {
    let call = calls.iter().find(|call| call.hold == hold);
    call.map_or(Locker::Meshlock, |call| call.locker)
}

pub(super) fn overlaps(lives: &[Life], calls: &[Call], strikes: &[Strike]) -> Vec<Overlap> {
    let mut found = Vec::new();
    for (name, holds) in holds(lives) {
        for (index, second) in holds.iter().enumerate() {
            for first in &holds[..index] {
                let met = second
                    .lives
                    .iter()
                    .any(|life| life.met.iter().any(|(_, hold)| hold == first.id));
                if first.last <= second.first && !met {
                    continue;
                }
                found.push(Overlap {
                    locker: locker_of(calls, second.id),
                    name: name.to_owned(),
                    first: first.id.to_owned(),
                    second: second.id.to_owned(),
                    at: second.first,
                    ms: first.last.min(second.last).saturating_sub(second.first) / MS,
                    apart: apart(first, second.first, calls, strikes),
                });
            }
        }
    }
    found
}

/// What is not promised, and nothing else.
fn apart(first: &Hold<'_>, at: u64, calls: &[Call], strikes: &[Strike]) -> Option<&'static str> {
    let struck = |kind: Kind| {
        strikes
            .iter()
            .find(|strike| strike.hold == first.id && strike.kind == kind)
    };
    if struck(Kind::RemoveAmid).is_some_and(|strike| strike.at <= at) {
        return Some("its lease was revoked by hand amid other faults");
    }
    // Whoever lived on: a process in a session of its own with an empty environment, born since the keeper
    // last noted the tree, which it does with each renewal, so that nothing tells whose it is once its
    // guardian is gone.
    let killed = struck(Kind::KillGuardian)?;
    let call = calls.iter().find(|call| call.hold == first.id)?;
    first
        .lives
        .iter()
        .filter(|life| life.last > at)
        .all(|life| STRAYS.contains(&&*life.role) && life.first + call.renews_each_ms * MS > killed.at)
        .then_some("its guardian was killed just after a process had scrubbed its environment and left the session")
}

/// Fencing tokens that do not grow from holder to holder.
pub(super) fn tokens(lives: &[Life], calls: &[Call]) -> (usize, Vec<Wrong>) {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for holds in holds(lives).values() {
        let mut last = 0;
        for hold in holds
            .iter()
            .filter(|hold| locker_of(calls, hold.id) == Locker::Meshlock)
        {
            let Some(token) = hold.token else { continue };
            seen += 1;
            if token <= last {
                wrong.push(Wrong {
                    at: hold.first,
                    hold: hold.id.to_owned(),
                    what: format!("token {token} after {last}"),
                });
            }
            last = token;
        }
    }
    (seen, wrong)
}

/// Exit statuses that contradict what happened.
pub(super) fn statuses(lives: &[Life], calls: &[Call], strikes: &[Strike]) -> Vec<Wrong> {
    let mut commands: BTreeMap<&str, &Life> = BTreeMap::new();
    for life in lives.iter().filter(|life| life.stamped && life.is_command()) {
        commands.insert(&life.hold, life);
    }
    let mut struck: BTreeMap<&str, Vec<Kind>> = BTreeMap::new();
    for strike in strikes {
        struck.entry(&strike.hold).or_default().push(strike.kind);
    }
    calls
        .iter()
        .filter(|call| call.locker == Locker::Meshlock)
        .filter_map(|call| {
            let (at, status) = call.ended?;
            let command = commands.get(&*call.hold).copied();
            let struck = struck.get(&*call.hold).map_or(&[][..], Vec::as_slice);
            let what = contradiction(call, status, command, struck)?;
            Some(Wrong {
                at,
                hold: call.hold.clone(),
                what: format!("status {status}: {what}"),
            })
        })
        .collect()
}

fn contradiction(call: &Call, status: i32, command: Option<&Life>, struck: &[Kind]) -> Option<&'static str> {
    const KILLED: i32 = -(Signal::SIGKILL as i32);
    const TERMINATED: i32 = -(Signal::SIGTERM as i32);
    let was = |kind| struck.contains(&kind);
    let ended = command.and_then(|command| command.end);
    if let Some(reported) = call.reported
        && reported != i64::from(if status < 0 { 128 - status } else { status })
        && !was(Kind::KillGuardian)
    {
        return Some("its report has another");
    }
    match status {
        KILLED if was(Kind::KillGuardian) => None,
        KILLED if was(Kind::KillCommand) || call.role == "glutton" => {
            ended.is_some().then_some("the command had ended by itself")
        }
        KILLED => Some("nobody but meshlock itself can have killed it"),
        // Waiting, meshlock dies of it; else the command did, to which it was passed on.
        TERMINATED if was(Kind::EndGuardian) => ended.is_some().then_some("the command had ended by itself"),
        ..0 => Some("a signal that nobody sent"),
        // Its keeper gone, a waiter gives up: nothing was run.
        70 if was(Kind::KillKeeper) => command.map(|_| "its command ran"),
        69 | 75 => command.map(|_| "its command ran"),
        79 => None,
        80 => (!was(Kind::Break)).then_some("nobody broke it"),
        124 => (!call.max_runtime).then_some("there was no limit"),
        own if own == call.status => match ended {
            Some((_, own)) if own == call.status => None,
            _ => Some("the command did not end by itself"),
        },
        _ => Some("not one of the table, or not for this call"),
    }
}

/// That the judge sees what is wrong, and nothing where all is well.
pub(super) fn check() {
    let call = |hold: &str, status: i32| Call {
        hold: hold.to_owned(),
        locker: Locker::Meshlock,
        name: "n".to_owned(),
        role: "plain",
        status: 0,
        max_runtime: false,
        renews_each_ms: 4_000,
        started: 0,
        ended: Some((9, status)),
        said: String::new(),
        reported: None,
        words: String::new(),
    };
    let life = |hold: &str, from: u64, to: u64, token: i64| Life {
        name: "n".to_owned(),
        hold: hold.to_owned(),
        role: "plain".to_owned(),
        pid: 1,
        stamped: true,
        first: from * MS,
        last: to * MS,
        end: Some((to * MS, 0)),
        token: Some(token),
        met: Vec::new(),
    };
    let calls = [call("a", 0), call("b", 0)];
    let well = [life("a", 1_000, 2_000, 7), life("b", 2_001, 3_000, 8)];
    assert!(overlaps(&well, &calls, &[]).is_empty());
    assert!(tokens(&well, &calls).1.is_empty());
    assert!(statuses(&well, &calls, &[]).is_empty());

    let both = [life("a", 1_000, 2_030, 8), life("b", 2_000, 3_000, 8)];
    assert_eq!(overlaps(&both, &calls, &[])[0].ms, 30);
    assert_eq!(tokens(&both, &calls).1.len(), 1);
    // Who is stopped stamps nothing, and is alive.
    let mut stopped = well.clone();
    stopped[1].met.push((1, "a".to_owned()));
    assert_eq!(overlaps(&stopped, &calls, &[]).len(), 1);

    // Only where the one that lived too long was hit by both is it outside of the promise.
    let strike = |hold: &str| Strike {
        at: 1_500 * MS,
        hold: hold.to_owned(),
        kind: Kind::RemoveAmid,
    };
    assert!(overlaps(&both, &calls, &[strike("a")])[0].apart.is_some());
    assert!(overlaps(&both, &calls, &[strike("b")])[0].apart.is_none());
    let killed = Strike {
        kind: Kind::KillGuardian,
        ..strike("a")
    };
    assert!(overlaps(&both, &calls, &[killed])[0].apart.is_none());

    for wrong in [1, 64, 69, 70, 75, 77, 78, 80, 124, 126, 127, 137, -9, -15] {
        assert_eq!(statuses(&well, &[call("a", wrong)], &[]).len(), 1, "{wrong}");
    }
    let mut unfinished = well.clone();
    unfinished[0].end = None;
    assert_eq!(statuses(&unfinished, &calls, &[]).len(), 1);
}
