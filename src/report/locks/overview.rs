//! All locks, one line each. Knows nothing of how they were read.

use super::super::table::{Column, Yields, column, table};
use super::super::text::{Line, Span, Style, age, span, stamp};
use super::{NOTHING, result, state, who};
use crate::lock::board::pieces::{Life, Ran};
use crate::lock::board::{Board, Lock, State};
use crate::lock::record::Run;
use std::time::SystemTime;

/// In this order also where they are read by programs: a new one goes to the end.
const COLUMNS: &[Column] = &[
    column("NAME", false, Yields::To(12)),
    column("STATE", false, Yields::Never),
    column("HOLDER", false, Yields::To(12)),
    column("SINCE", false, Yields::Goes(7)),
    column("FOR", true, Yields::Never),
    column("WAITERS", true, Yields::Never),
    column("TTL", true, Yields::Goes(5)),
    column("LAST", false, Yields::Never),
    column("AGO", true, Yields::Goes(2)),
    column("ENDED", false, Yields::Goes(8)),
    column("OWNER", false, Yields::ToThenGoes(8, 3)),
    column("ROUTE", false, Yields::ToThenGoes(8, 4)),
];

/// Where that is: on a narrow screen one of the last to go, while somebody is to be called.
const ROUTE: usize = 11;

pub(super) fn lines(board: &Board, now: SystemTime, width: Option<usize>) -> Vec<Line> {
    let mut columns = COLUMNS.to_vec();
    if board.locks.iter().any(somebody_is_to_be_called) {
        columns[ROUTE].yields = Yields::ToThenGoes(8, 1);
    }
    let rows = board.locks.iter().map(|lock| row(lock, now)).collect();
    table(&columns, rows, width)
}

/// For want of a good end.
fn somebody_is_to_be_called(lock: &Lock) -> bool {
    lock.state() == State::Vanished || lock.runs.first().is_some_and(Ran::failed)
}

/// For how long at most, in the largest unit: more would look like knowledge.
pub(super) fn less_than(since: SystemTime, now: SystemTime) -> Option<String> {
    let seconds = now.duration_since(since).ok()?.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let (length, unit) = units
        .into_iter()
        .find(|(length, _)| seconds >= *length)
        .unwrap_or((1, "s"));
    Some(format!("<{}{unit}", seconds / length + 1))
}

fn row(lock: &Lock, now: SystemTime) -> Vec<Span> {
    let cell = |text: Option<String>| Span::plain(text.as_deref().unwrap_or(NOTHING));
    let (state_text, state_style) = state(lock);
    let first = lock.queue.first();
    let holder = match lock.state() {
        State::Elsewhere if lock.hidden => None,
        State::Elsewhere => lock.elsewhere().next().and_then(|open| open.holder.as_ref()),
        State::Vanished => lock.vanished().and_then(|open| open.holder.as_ref()),
        State::Free | State::Held | State::Handover | State::Frozen => first.and_then(|first| first.holder.as_ref()),
    };
    let holder_text = match lock.state() {
        State::Elsewhere if lock.hidden => "unknown".to_owned(),
        State::Elsewhere | State::Vanished => who(holder),
        _ if first.is_some() => who(holder),
        _ => NOTHING.to_owned(),
    };
    let since = lock.since();
    // At most for so long it has been gone.
    let gone_since = lock.vanished().filter(|_| lock.state() == State::Vanished);
    let gone_since = gone_since.and_then(|open| lock.held_since(open));
    let held = since.map(|since| age(since, now));
    let last = lock.runs.first();
    let (last_text, last_style) = last.map_or((NOTHING.to_owned(), Style::Plain), result);
    let last_run = last.and_then(|ran| ran.run.as_ref());
    let ended = last_run.and_then(Run::ended);
    let over = ended.or(last_run.and_then(Run::noticed));
    // Of the holder, else of the last run: whom to ask.
    let purpose = holder
        .or_else(|| last.and_then(|ran| ran.run.as_ref()).map(|run| &run.holder))
        .map(|holder| &holder.purpose);
    vec![
        Span::name(&lock.called()),
        Span::new(&state_text, state_style),
        Span::plain(&holder_text),
        cell(since.or(gone_since).map(stamp)),
        cell(held.or(gone_since.and_then(|since| less_than(since, now)))),
        Span::plain(&lock.waiters().to_string()),
        ttl(first.map(|first| first.life)),
        Span::new(&last_text, last_style),
        cell(over.map(|over| age(over, now))),
        cell(ended.map(stamp)),
        cell(purpose.and_then(|purpose| purpose.owner.clone())),
        cell(purpose.and_then(|purpose| purpose.route.clone())),
    ]
}

fn ttl(life: Option<Life>) -> Span {
    match life {
        None | Some(Life::Unknown | Life::Gone) => Span::plain(NOTHING),
        Some(Life::Left { left, .. }) => Span::plain(&span(left)),
        Some(Life::Overdue { .. }) => Span::new("overdue", Style::Bad),
        Some(Life::Unbound) => Span::new("none", Style::Warning),
    }
}
