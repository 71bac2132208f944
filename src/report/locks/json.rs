//! Locks and runs as JSON, format 1; the schemas are docs/status.schema.json and docs/history.schema.json. Every
//! field is always there, so that readers need not tell absent from null. Knows nothing of how they were read.

use super::super::text::{json, stamp};
use crate::lock::board::pieces::{Entry, Frozen, Life, Mark, Opened, Ran, StrayAsk, Turn};
use crate::lock::board::{Board, Lock, Namesake, Unread};
use crate::lock::record::{Ask, Holder, Run};
use crate::lock::view::is_cut;
use serde::Serialize;
use std::time::{Duration, SystemTime};

const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Status<'a> {
    format: u32,
    at: String,
    /// In hexadecimal, as in etcdctl's answers.
    cluster: String,
    revision: i64,
    locks: Vec<LockJson<'a>>,
}

#[derive(Serialize)]
struct LockJson<'a> {
    name: &'a str,
    lock_key: Option<&'a str>,
    lock_key_in_use: bool,
    key: &'a str,
    state: &'static str,
    taken: bool,
    held: bool,
    since: Option<String>,
    held_seconds: Option<u64>,
    waiters: usize,
    holder: Option<EntryJson<'a>>,
    /// `None` in an overview.
    queue: Option<Vec<EntryJson<'a>>>,
    frozen: Option<FrozenJson<'a>>,
    vanished: Vec<OpenJson<'a>>,
    died_waiting: Vec<OpenJson<'a>>,
    elsewhere: Vec<OpenJson<'a>>,
    last_run: Option<RunJson<'a>>,
    runs: Option<Vec<RunJson<'a>>>,
    marks: Option<Vec<MarkJson<'a>>>,
    /// Asks that concern none of the entries; `None` in an overview.
    stray_asks: Option<Vec<StrayJson<'a>>>,
    unread: UnreadJson,
}

/// How many more there are than are told.
#[derive(Serialize)]
struct UnreadJson {
    queue: Option<usize>,
    vanished: usize,
    runs: Option<usize>,
    marks: Option<usize>,
    stray_asks: Option<usize>,
}

#[derive(Serialize)]
struct StrayJson<'a> {
    key: &'a str,
    asked: Option<AskedJson<'a>>,
}

#[derive(Serialize)]
struct EntryJson<'a> {
    key: &'a str,
    token: i64,
    lease: Option<String>,
    /// unbound, unknown, left, overdue or gone.
    lease_state: &'static str,
    ttl_left_seconds: Option<u64>,
    ttl_seconds: Option<u64>,
    who: Option<WhoJson<'a>>,
    /// Of an entry that is not meshlock's.
    value: Option<&'a str>,
    value_cut: bool,
    asked: Option<AskedJson<'a>>,
}

#[derive(Serialize)]
struct WhoJson<'a> {
    host: &'a str,
    user: &'a str,
    pid: u32,
    program: &'a str,
    arguments: Option<&'a [String]>,
    started: Option<String>,
    owner: Option<&'a str>,
    reason: Option<&'a str>,
    trigger: Option<&'a str>,
    system: Option<&'a str>,
    route: Option<&'a str>,
    expect: Option<&'a str>,
    max_runtime_seconds: Option<u64>,
    tries: Option<u32>,
    /// Some text of it is longer, and ends in an ellipsis here.
    cut: bool,
}

#[derive(Serialize)]
struct FrozenJson<'a> {
    key: &'a str,
    by: &'a str,
    reason: &'a str,
    cut: bool,
}

#[derive(Serialize)]
struct AskedJson<'a> {
    kind: &'a str,
    by: &'a str,
    reason: &'a str,
    cut: bool,
}

#[derive(Serialize)]
struct OpenJson<'a> {
    key: &'a str,
    token: i64,
    lease: String,
    ttl_seconds: u64,
    held_since: Option<String>,
    may_have_waited: bool,
    who: Option<WhoJson<'a>>,
}

#[derive(Serialize)]
struct NoticedJson<'a> {
    at: Option<String>,
    by: &'a str,
}

#[derive(Serialize)]
struct RunJson<'a> {
    name: &'a str,
    lock_key: Option<&'a str>,
    key: &'a str,
    /// [`crate::outcome::Outcome::name`], or vanished; `None` where the record is not meshlock's.
    result: Option<&'a str>,
    status: Option<u8>,
    failed: bool,
    token: Option<i64>,
    acquired: Option<String>,
    ended: Option<String>,
    duration_seconds: Option<u64>,
    why: Option<&'a str>,
    asked: Option<AskedJson<'a>>,
    noticed: Option<NoticedJson<'a>>,
    who: Option<WhoJson<'a>>,
}

#[derive(Serialize)]
struct MarkJson<'a> {
    name: &'a str,
    value: &'a str,
    cut: bool,
}

#[derive(Serialize)]
struct History<'a> {
    format: u32,
    at: String,
    runs: Vec<RunJson<'a>>,
}

pub fn status_json(board: &Board, now: SystemTime) -> String {
    json(&Status {
        format: FORMAT,
        at: stamp(now),
        cluster: format!("{:x}", board.cluster),
        revision: board.revision,
        locks: board.locks.iter().map(|each| lock(each, now)).collect(),
    })
}

pub fn history_json(runs: &[Ran], now: SystemTime) -> String {
    json(&History {
        format: FORMAT,
        at: stamp(now),
        runs: runs.iter().map(run).collect(),
    })
}

fn lock(lock: &Lock, now: SystemTime) -> LockJson<'_> {
    let since = lock.since();
    let runs: Vec<_> = lock.runs.iter().map(run).collect();
    // An overview has neither.
    let whole = lock.marks.is_some();
    LockJson {
        name: &lock.name,
        lock_key: lock.lock_key.as_deref(),
        lock_key_in_use: lock.namesake == Some(Namesake::InUse),
        key: &lock.key,
        state: lock.state().word(),
        taken: lock.is_taken(),
        held: lock.is_held(),
        since: since.map(stamp),
        held_seconds: since.map(|since| now.duration_since(since).unwrap_or_default().as_secs()),
        waiters: lock.waiters(),
        holder: lock.holder().map(entry),
        queue: whole.then(|| lock.queue.iter().map(entry).collect()),
        frozen: lock.frozen.as_ref().map(frozen),
        vanished: lock.vanished().into_iter().map(|each| open(lock, each)).collect(),
        died_waiting: lock.died_waiting().map(|each| open(lock, each)).collect(),
        elsewhere: lock.elsewhere().map(|each| open(lock, each)).collect(),
        last_run: lock.runs.first().map(run),
        runs: whole.then_some(runs),
        marks: lock.marks.as_ref().map(|marks| marks.iter().map(mark).collect()),
        stray_asks: whole.then(|| lock.stray_asks.iter().map(stray).collect()),
        unread: unread(lock, whole),
    }
}

fn unread(lock: &Lock, whole: bool) -> UnreadJson {
    let Unread {
        opens,
        runs,
        marks,
        asks,
    } = lock.unread;
    UnreadJson {
        queue: whole.then_some(lock.length - lock.queue.len()),
        vanished: opens,
        runs: whole.then_some(runs),
        marks: whole.then_some(marks),
        stray_asks: whole.then_some(asks),
    }
}

fn frozen(frozen: &Frozen) -> FrozenJson<'_> {
    FrozenJson {
        key: &frozen.key,
        by: &frozen.by,
        reason: &frozen.reason,
        cut: is_cut(&frozen.by) || is_cut(&frozen.reason),
    }
}

fn asked(ask: &Ask) -> AskedJson<'_> {
    AskedJson {
        kind: &ask.kind,
        by: &ask.by,
        reason: &ask.reason,
        cut: [&ask.kind, &ask.by, &ask.reason].into_iter().any(|text| is_cut(text)),
    }
}

fn stray(stray: &StrayAsk) -> StrayJson<'_> {
    StrayJson {
        key: &stray.key,
        asked: stray.ask.as_ref().map(asked),
    }
}

fn entry(entry: &Entry) -> EntryJson<'_> {
    let (state, left, granted) = match entry.life {
        Life::Unbound => ("unbound", None, None),
        Life::Unknown => ("unknown", None, None),
        Life::Gone => ("gone", None, None),
        Life::Left { left, granted } => ("left", Some(left), Some(granted)),
        Life::Overdue { granted } => ("overdue", Some(Duration::ZERO), Some(granted)),
    };
    EntryJson {
        key: &entry.key,
        token: entry.token,
        lease: Some(entry.lease)
            .filter(|lease| *lease != 0)
            .map(|lease| format!("{lease:x}")),
        lease_state: state,
        ttl_left_seconds: left.map(|left| left.as_secs()),
        ttl_seconds: granted.map(|granted| granted.as_secs()),
        who: entry.holder.as_ref().map(who),
        value: entry.holder.is_none().then_some(&entry.value),
        value_cut: is_cut(&entry.value),
        asked: entry.asked.as_ref().map(asked),
    }
}

fn who(holder: &Holder) -> WhoJson<'_> {
    let purpose = &holder.purpose;
    WhoJson {
        host: &holder.host,
        user: &holder.user,
        pid: holder.pid,
        program: &holder.program,
        arguments: purpose.arguments.as_deref(),
        started: holder.started().map(stamp),
        owner: purpose.owner.as_deref(),
        reason: purpose.reason.as_deref(),
        trigger: purpose.trigger.as_deref(),
        system: purpose.system.as_deref(),
        route: purpose.route.as_deref(),
        expect: purpose.expect.as_deref(),
        max_runtime_seconds: purpose.max_runtime,
        tries: purpose.tries,
        cut: holder.texts().any(|text| is_cut(text)),
    }
}

fn mark(mark: &Mark) -> MarkJson<'_> {
    MarkJson {
        name: &mark.name,
        value: &mark.value,
        cut: is_cut(&mark.name) || is_cut(&mark.value),
    }
}

fn open<'a>(lock: &Lock, open: &'a Opened) -> OpenJson<'a> {
    OpenJson {
        key: &open.key,
        token: open.token,
        lease: format!("{:x}", open.lease),
        ttl_seconds: open.ttl.as_secs(),
        held_since: lock
            .held_since(open)
            .filter(|_| open.turn != Turn::NeverCame)
            .map(stamp),
        may_have_waited: open.turn == Turn::MayHaveCome,
        who: open.holder.as_ref().map(who),
    }
}

fn run(ran: &Ran) -> RunJson<'_> {
    let run = ran.run.as_ref();
    RunJson {
        name: &ran.name,
        lock_key: ran.lock_key.as_deref(),
        key: &ran.key,
        result: run.map(|run| run.ended.result.as_str()),
        status: run.and_then(|run| run.ended.status),
        failed: ran.failed(),
        token: run.map(|run| run.token),
        acquired: run.and_then(Run::acquired).map(stamp),
        ended: run.and_then(Run::ended).map(stamp),
        duration_seconds: run.and_then(Run::duration).map(|duration| duration.as_secs()),
        why: run.and_then(|run| run.ended.why.as_deref()),
        asked: run.and_then(|run| run.ended.asked.as_ref()).map(|asked| AskedJson {
            kind: &asked.kind,
            by: &asked.by,
            reason: &asked.reason,
            cut: [&asked.kind, &asked.by, &asked.reason]
                .into_iter()
                .any(|text| is_cut(text)),
        }),
        noticed: run.and_then(|run| run.noticed.as_ref()).map(|noticed| NoticedJson {
            at: run.and_then(Run::noticed).map(stamp),
            by: &noticed.by,
        }),
        who: run.map(|run| who(&run.holder)),
    }
}
