//! `meshlock status`: settings → the locks as they stand in etcd → stdout. A plain sequence; decides nothing.

use super::asking::{asking, unwritable};
use crate::lock::board::{Board, Lock};
use crate::lock::keys::{self, Kind, Place};
use crate::lock::survey::{self, Lives};
use crate::outcome::{CHECK, CONTENDED, Failure};
use crate::report::locks::{self, Detail};
use crate::report::{Out, Reader, Reporter, Verbosity};
use crate::settings::status::{Output, Status};
use crate::store::etcd::Etcd;
use crate::store::{Fault, Watched};
use std::io;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep, timeout};

/// Runs that a picture of one lock shows.
const RUNS: u32 = 5;
/// With more locks than this each one's TTL is asked for only if that is wanted.
const FEW_LOCKS: usize = 100;
/// How often the times that pass are drawn anew, and a broken watch is tried again.
const TICK: Duration = Duration::from_secs(1);
/// A watch on a member that hangs says nothing, and the connection notices only after 14 s: where it has been silent for
/// so long, it is asked something, and taken to be away if that is not answered within as long again.
const SILENCE: Duration = Duration::from_secs(2);
/// The least time from one look to the next, and from a long look as much again and again.
const REST: Duration = Duration::from_millis(100);
const RESTS: u32 = 9;

/// Shows the locks, and says whether all is well.
///
/// # Errors
/// Where etcd cannot be asked, or stdout not be written.
pub fn status(settings: &Status) -> Result<u8, Failure> {
    let mut out = Out::new(settings.looks);
    if settings.output == Output::Watch {
        let seen = asking(&settings.connection, async |etcd| {
            watch(&etcd, settings, &mut out).await
        })?;
        return seen.map(|()| 0).map_err(|error| unwritable(&error));
    }
    let board = asking(&settings.connection, async |etcd| look(&etcd, settings).await)?;
    let now = SystemTime::now();
    let mut status = 0;
    if settings.output != Output::Text {
        let reporter = Reporter::new(Verbosity::Normal);
        for lock in &board.locks {
            if let Some(text) = locks::namesake(lock) {
                reporter.notice(&format!("{}: {text}", lock.called()));
            }
        }
    }
    match settings.output {
        Output::Json => out.text(&locks::status_json(&board, now)),
        Output::Prometheus => out.text(&locks::prometheus(&board, now)),
        Output::Check { warn_after } => {
            let bad = |lock: &&Lock| match warn_after {
                Some(limit) => lock.is_held_for_longer(limit, now),
                None => lock.is_taken(),
            };
            let bad: Vec<&Lock> = board.locks.iter().filter(bad).collect();
            if !bad.is_empty() {
                status = if warn_after.is_some() { CHECK } else { CONTENDED };
            }
            let reporter = Reporter::new(Verbosity::Normal);
            for lock in bad {
                reporter.last_word(&locks::head(lock, now));
            }
            Ok(Reader::There)
        }
        Output::Text | Output::Watch => {
            if board.locks.is_empty() {
                nothing(settings);
            }
            out.show(|width| locks::status(&board, detail(settings), now, width))
        }
    }
    .map(|_| status)
    .map_err(|error| unwritable(&error))
}

async fn look(etcd: &Etcd, settings: &Status) -> Result<Board, Fault> {
    let lives = match settings.output {
        Output::Check { .. } => Lives::Doubtful,
        _ if wants_lives(settings) => Lives::Holders,
        // How much time is left would soon be wrong on a picture that stands, and is too much to ask each second.
        Output::Watch => Lives::Doubtful,
        _ => Lives::HoldersOfUpTo(FEW_LOCKS),
    };
    let mut boards = Vec::new();
    for place in &settings.places {
        boards.push(survey::one(etcd, place, RUNS, lives).await?);
    }
    match boards.into_iter().reduce(Board::with) {
        Some(board) => Ok(board),
        None => survey::all(etcd, &settings.prefix, lives).await,
    }
}

/// Whether the holders' TTLs are asked for, however many locks there are.
fn wants_lives(settings: &Status) -> bool {
    settings.ttl_left || !settings.places.is_empty()
}

/// Draws the locks at each change in etcd until nobody looks any more, or etcd refuses.
async fn watch(etcd: &Etcd, settings: &Status, out: &mut Out) -> Result<io::Result<()>, Fault> {
    let mut board = look(etcd, settings).await?;
    let mut away = None;
    'anew: loop {
        let watched = watched(settings, &board);
        match draw(out, &board, settings, away.as_ref()) {
            Ok(Reader::There) => {}
            Ok(Reader::Gone) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        }
        let (tell, mut told) = unbounded_channel();
        let mut watching = Box::pin(etcd.watch(&watched, None, &tell));
        let mut heard = Instant::now();
        let fault = loop {
            let changed = tokio::select! {
                fault = &mut watching => break fault,
                // What happened before the watch stood must be read, too.
                _ = told.recv() => true,
                () = sleep(TICK) => false,
            };
            let began = Instant::now();
            if changed {
                while told.try_recv().is_ok() {}
                match look(etcd, settings).await {
                    Ok(seen) => board = seen,
                    Err(fault) => break fault,
                }
                away = None;
                if self::watched(settings, &board) != watched {
                    continue 'anew;
                }
            } else if heard.elapsed() >= SILENCE {
                let lives = wants_lives(settings) && out.redraws();
                if let Err(fault) = ask_the_silent(etcd, settings, lives.then_some(&mut board)).await {
                    break fault;
                }
            }
            if changed || heard.elapsed() >= SILENCE {
                heard = Instant::now();
            }
            let looked = began.elapsed();
            let drawn = if changed || out.redraws() {
                draw(out, &board, settings, away.as_ref())
            } else {
                Ok(out.reader())
            };
            match drawn {
                Ok(Reader::There) => {}
                Ok(Reader::Gone) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
            if changed {
                sleep(REST.max(looked * RESTS)).await;
            }
        };
        match fault {
            fault @ Fault::Unreachable { .. } => away = Some(fault.to_string()),
            fault => return Err(fault),
        }
        sleep(TICK).await;
    }
}

/// Whether it still answers; and how long the leases on the board live, which no watch tells.
async fn ask_the_silent(etcd: &Etcd, settings: &Status, board: Option<&mut Board>) -> Result<(), Fault> {
    let prefix = settings.places.first().map_or_else(
        || keys::all(&settings.prefix, Kind::Lock),
        |place| place.queue().to_owned(),
    );
    let answered = timeout(SILENCE, etcd.may_read(&prefix)).await;
    answered.unwrap_or_else(|_| {
        let why = format!("no answer within {} s", SILENCE.as_secs());
        Err(Fault::Unreachable { why })
    })?;
    match board {
        Some(board) => survey::renew(etcd, board).await,
        None => Ok(()),
    }
}

fn draw(out: &mut Out, board: &Board, settings: &Status, away: Option<&String>) -> io::Result<Reader> {
    let now = SystemTime::now();
    out.redraw(|width| {
        let mut lines = locks::status(board, detail(settings), now, width);
        lines.extend(away.map(|why| locks::note(&format!("etcd does not answer, and this may be old: {why}"))));
        lines
    })
}

/// What a picture is made of. Queues at keys lie outside of the prefix.
fn watched(settings: &Status, board: &Board) -> Vec<Watched> {
    let of = |place: &Place| {
        vec![
            Watched::Prefix(place.queue().to_owned()),
            Watched::Prefix(place.opens()),
            Watched::Prefix(place.log()),
            Watched::Prefix(place.marks()),
            Watched::Prefix(place.asks()),
            Watched::Key(place.freeze()),
        ]
        .into_iter()
        .chain(place.namesake().map(|other| Watched::Prefix(other.opens())))
    };
    if settings.places.is_empty() {
        let kinds = [Kind::Lock, Kind::Open, Kind::Log, Kind::Freeze];
        let prefix = |kind| Watched::Prefix(keys::all(&settings.prefix, kind));
        let at_keys = board
            .locks
            .iter()
            .filter(|lock| lock.lock_key.is_some() && !lock.hidden);
        let at_keys = at_keys.map(|lock| Watched::Prefix(lock.key.clone()));
        return kinds.map(prefix).into_iter().chain(at_keys).collect();
    }
    settings.places.iter().flat_map(of).collect()
}

fn detail(settings: &Status) -> Detail {
    if settings.places.is_empty() {
        Detail::Glance
    } else {
        Detail::Whole
    }
}

/// A wrong prefix or cluster must not look like a quiet night.
fn nothing(settings: &Status) {
    Reporter::new(Verbosity::Normal).notice(&format!(
        "there is no lock under \"{}\" in etcd at {}",
        settings.prefix,
        settings.connection.whom()
    ));
}
