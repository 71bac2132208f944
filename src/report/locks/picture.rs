//! One lock, the whole of it: who holds it and why, who waits, what is in the way, how the last runs ended. Knows
//! nothing of how it was read.

use super::super::table::{Column, Yields, column, table};
use super::super::text::{Line, Span, Style, age, span, stamp, wrapped};
use super::overview::less_than;
use super::{NOTHING, history, namesake, result, state, typed, who, why};
use crate::lock::board::pieces::{Entry, Life, Mark, Opened, StrayAsk, Turn};
use crate::lock::board::{Lock, State};
use crate::lock::record::{Ask, Holder};
use std::time::{Duration, SystemTime};

/// What stands where nobody said it.
const UNSAID: &str = "not recorded";
/// The width of the labels.
const LABEL: usize = 9;
/// Of what is said of the lock in the line above.
const INDENT: usize = 2;

pub(super) fn lines(lock: &Lock, now: SystemTime, width: Option<usize>) -> Vec<Line> {
    let mut lines = vec![head(lock, now)];
    lines.extend(namesake(lock).map(|text| vec![Span::plain("  "), Span::new(&text, Style::Warning)]));
    let mut lines: Vec<Line> = lines
        .into_iter()
        .flat_map(|line| wrapped(line, width, INDENT))
        .collect();
    let details = details(lock, now).into_iter();
    lines.extend(details.flat_map(|line| wrapped(line, width, INDENT + LABEL + 1)));
    lines.extend(queue(lock, now, width));
    lines.extend(vanished(lock, now, width));
    lines.extend(died_waiting(lock, now, width));
    lines.extend(runs(lock, now, width));
    lines.extend(marks(lock, width));
    lines.extend(stray_asks(lock, width));
    lines
}

/// Of who has it, or had it last, and of what is to be known besides: a label on each line.
fn details(lock: &Lock, now: SystemTime) -> Vec<Line> {
    let mut lines = Vec::new();
    match (lock.state(), lock.queue.first()) {
        (State::Held | State::Handover | State::Frozen, Some(first)) => lines.extend(entry(lock, first)),
        (State::Elsewhere, _) => lines.extend(lock.elsewhere().next().map(opened).unwrap_or_default()),
        (State::Vanished, _) => {
            if let Some(open) = lock.vanished() {
                lines.extend(lock.held_since(open).map(|since| gone(open, since, now)));
                lines.extend(opened(open));
                let delay = format!(
                    "{}: so long the next run waits before it starts",
                    span(open.handover_delay())
                );
                lines.push(labelled("delay", &delay));
            }
        }
        (State::Free | State::Held | State::Handover | State::Frozen, _) => {}
    }
    // In whole seconds, as they were recorded.
    if let Some((shortest, longest)) = lock.usual_duration().filter(|(_, longest)| !longest.is_zero()) {
        let text = if shortest == longest {
            span(shortest)
        } else {
            format!("{} to {}", span(shortest), span(longest))
        };
        lines.push(labelled("usually", &format!("takes {text}")));
    }
    if let Some(frozen) = &lock.frozen {
        let by = if frozen.by.is_empty() {
            "somebody unknown"
        } else {
            &frozen.by
        };
        let reason = if frozen.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", frozen.reason)
        };
        lines.push(labelled("frozen", &format!("by {by}{reason}")));
        lines.push(labelled(
            "",
            &format!("nobody starts until the key {} is deleted", frozen.key),
        ));
    }
    lines
}

/// From when on it may have vanished, and for how long at most it has been away.
fn gone(open: &Opened, since: SystemTime, now: SystemTime) -> Line {
    let within = less_than(since, now).map_or(String::new(), |span| format!(", less than {} ago", &span[1..]));
    let turn = match open.turn {
        Turn::MayHaveCome => "the run before it ended, if not while it waited",
        Turn::Came | Turn::NeverCame => "its turn came",
    };
    labelled("vanished", &format!("after {}{within}, when {turn}", stamp(since)))
}

pub(super) fn head(lock: &Lock, now: SystemTime) -> Line {
    let (_, style) = state(lock);
    let first = lock.queue.first().map(|first| who(first.holder.as_ref()));
    let first = first.unwrap_or_default();
    let text = match lock.state() {
        State::Free if lock.runs.is_empty() => "free; no run is recorded".to_owned(),
        State::Free => "free".to_owned(),
        State::Held => match lock.since() {
            Some(since) => format!("held by {first} for {}", age(since, now)),
            None => format!("held by {first}"),
        },
        State::Handover => format!("nobody holds it: {first} comes next, after the hand-over delay"),
        State::Frozen if first.is_empty() => "frozen: nobody holds it, and nobody starts".to_owned(),
        State::Frozen => format!("frozen: nobody holds it: {first} comes next, once it is thawed"),
        State::Vanished if lock.vanished().is_some_and(|open| open.turn == Turn::MayHaveCome) => {
            "nobody holds it; somebody vanished (it may have been waiting): its lease ended without a release"
                .to_owned()
        }
        State::Vanished => "nobody holds it; the last run vanished: its lease ended without a release".to_owned(),
        State::Elsewhere if lock.hidden => {
            format!(
                "it is not known who holds it: the keys under {} may not be read by this user",
                lock.key
            )
        }
        State::Elsewhere => "its entry is gone, but its lease lives: it is about to be stopped".to_owned(),
    };
    let text = match (lock.state(), &lock.frozen) {
        (State::Frozen, _) | (_, None) => text,
        (_, Some(_)) => format!("{text}; frozen: nobody starts after that"),
    };
    vec![
        Span::name(&lock.called()).styled(Style::Strong),
        Span::plain(": "),
        Span::new(&text, style),
    ]
}

fn labelled(label: &str, text: &str) -> Line {
    let mut label = Span::new(label, Style::Label);
    label.pad(LABEL, false);
    vec![Span::plain("  "), label, Span::plain(" "), Span::plain(text)]
}

fn entry(lock: &Lock, entry: &Entry) -> Vec<Line> {
    let mut lines = match &entry.holder {
        Some(holder) => about(holder),
        None if entry.value.is_empty() => Vec::new(),
        None => vec![labelled("value", &entry.value)],
    };
    if let Some(since) = lock.since() {
        lines.insert(0, labelled("since", &stamp(since)));
        let limit = entry.holder.as_ref().and_then(|holder| holder.purpose.max_runtime);
        let last = limit.and_then(|limit| since.checked_add(Duration::from_secs(limit)));
        let last = last.map(|last| labelled("until", &format!("{} at the latest (--max-runtime)", stamp(last))));
        lines.splice(1..1, last);
    }
    lines.push(labelled("token", &entry.token.to_string()));
    lines.push(lease(entry));
    lines.push(labelled("key", &entry.key));
    if let Some(Ask { kind, by, reason, .. }) = &entry.asked {
        let by = if by.is_empty() {
            String::new()
        } else {
            format!(" by {by}")
        };
        let reason = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        lines.push(labelled("asked", &format!("{kind}{by}{reason}")));
    }
    lines
}

fn lease(entry: &Entry) -> Line {
    let id = format!("{:x}", entry.lease);
    let (text, style) = match entry.life {
        Life::Unbound => (
            "none: the key stays until somebody deletes it".to_owned(),
            Style::Warning,
        ),
        Life::Unknown | Life::Gone => (id, Style::Plain),
        Life::Left { left, granted } => (
            format!("{id}, {} left of a TTL of {}", span(left), span(granted)),
            Style::Plain,
        ),
        Life::Overdue { granted } => (
            format!(
                "{id}, overdue: its TTL of {} is over, and etcd has not ended it yet",
                span(granted)
            ),
            Style::Bad,
        ),
    };
    let mut line = labelled("lease", "");
    line.push(Span::new(&text, style));
    line
}

fn opened(open: &Opened) -> Vec<Line> {
    let mut lines = open.holder.as_ref().map(about).unwrap_or_default();
    lines.push(labelled("token", &open.token.to_string()));
    lines.push(labelled(
        "lease",
        &format!("{:x}, of a TTL of {}", open.lease, span(open.ttl)),
    ));
    lines.push(labelled("record", &open.key));
    lines
}

/// What a person who was called wants to know first: all of it, said or not.
fn about(holder: &Holder) -> Vec<Line> {
    let Holder {
        user,
        host,
        pid,
        program,
        started,
        purpose,
        ..
    } = holder;
    let said = |text: &Option<String>| text.clone().unwrap_or_else(|| UNSAID.to_owned());
    let arguments = purpose.arguments.iter().flatten();
    let command: Vec<&str> = [program].into_iter().chain(arguments).map(String::as_str).collect();
    let command = command.join(" ");
    let expected = purpose.expect.as_deref().unwrap_or("0");
    let mut lines = vec![
        labelled("who", &format!("{user}@{host}, pid {pid}")),
        labelled("program", &command),
        labelled("owner", &said(&purpose.owner)),
        labelled("reason", &said(&purpose.reason)),
        labelled("trigger", &said(&purpose.trigger)),
        labelled("system", &said(&purpose.system)),
        labelled("expected", &format!("exit status {expected}")),
        labelled("route", &said(&purpose.route)),
        labelled("started", started),
    ];
    if let Some(tries) = purpose.tries {
        lines.push(labelled("tries", &tries.to_string()));
    }
    lines
}

const QUEUE: &[Column] = &[
    column("PLACE", true, Yields::Never),
    column("WHO", false, Yields::To(12)),
    column("WAITING", true, Yields::Never),
    column("PROGRAM", false, Yields::To(8)),
    column("PID", true, Yields::Goes(2)),
    column("OWNER", false, Yields::Goes(3)),
    column("TRIGGER", false, Yields::Goes(4)),
    column("REASON", false, Yields::Goes(5)),
    column("SINCE", false, Yields::Goes(6)),
    column("KEY", false, Yields::Goes(7)),
];

fn queue(lock: &Lock, now: SystemTime, width: Option<usize>) -> Vec<Line> {
    let rows = lock.waiting().iter().enumerate();
    let rows: Vec<_> = rows.map(|(place, entry)| waiter(place + 1, entry, now)).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let mut lines = section("waiting", width, table(QUEUE, rows, inner(width)));
    lines.extend(more(lock.length - lock.queue.len(), "behind them"));
    lines
}

fn waiter(place: usize, entry: &Entry, now: SystemTime) -> Vec<Span> {
    let holder = entry.holder.as_ref();
    let cell = |text: Option<String>| Span::plain(text.as_deref().unwrap_or(NOTHING));
    let since = holder.and_then(Holder::started);
    vec![
        Span::plain(&place.to_string()),
        Span::plain(&who(holder)),
        cell(since.map(|since| age(since, now))),
        cell(holder.map(|holder| holder.program.clone())),
        cell(holder.map(|holder| holder.pid.to_string())),
        cell(holder.and_then(|holder| holder.purpose.owner.clone())),
        cell(holder.and_then(|holder| holder.purpose.trigger.clone())),
        cell(holder.and_then(|holder| holder.purpose.reason.clone())),
        cell(since.map(stamp)),
        Span::plain(&entry.key),
    ]
}

const OPENED: &[Column] = &[
    column("WHO", false, Yields::To(12)),
    column("PROGRAM", false, Yields::To(8)),
    column("PID", true, Yields::Goes(4)),
    column("AGO", true, Yields::Never),
    column("DELAY", true, Yields::Never),
    column("OWNER", false, Yields::ToThenGoes(8, 3)),
    column("ROUTE", false, Yields::ToThenGoes(8, 2)),
    column("STARTED", false, Yields::Goes(5)),
    column("RECORD", false, Yields::Goes(6)),
];

/// Beside somebody who is there; else it is told of in full.
fn vanished(lock: &Lock, now: SystemTime, width: Option<usize>) -> Vec<Line> {
    let beside = lock.vanished().filter(|_| lock.state() != State::Vanished);
    let doubt = beside.is_some_and(|open| open.turn == Turn::MayHaveCome);
    let doubt = if doubt { " (it may have been waiting)" } else { "" };
    let title = format!("vanished{doubt}: no release, and no lease any more; the next to start waits for the delay");
    open_records(&title, beside, now, width)
}

fn died_waiting(lock: &Lock, now: SystemTime, width: Option<usize>) -> Vec<Line> {
    let title = "died waiting: never ran; the next to start waits for the delay all the same";
    let mut lines = open_records(title, lock.died_waiting(), now, width);
    lines.extend(more(lock.unread.opens, "that were not looked at"));
    lines
}

fn open_records<'a>(
    title: &str,
    open: impl IntoIterator<Item = &'a Opened>,
    now: SystemTime,
    width: Option<usize>,
) -> Vec<Line> {
    let row = |open: &Opened| {
        let holder = open.holder.as_ref();
        let cell = |text: Option<String>| Span::plain(text.as_deref().unwrap_or(NOTHING));
        vec![
            Span::plain(&who(holder)),
            cell(holder.map(|holder| holder.program.clone())),
            cell(holder.map(|holder| holder.pid.to_string())),
            cell(holder.and_then(Holder::started).map(|started| age(started, now))),
            Span::plain(&span(open.handover_delay())),
            cell(holder.and_then(|holder| holder.purpose.owner.clone())),
            cell(holder.and_then(|holder| holder.purpose.route.clone())),
            cell(holder.and_then(Holder::started).map(stamp)),
            Span::plain(&open.key),
        ]
    };
    let rows: Vec<_> = open.into_iter().map(row).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    section(title, width, table(OPENED, rows, inner(width)))
}

/// That there is more than is shown.
fn more(unread: usize, what: &str) -> Option<Line> {
    (unread > 0).then(|| labelled("", &format!("and {unread} more {what}")))
}

fn runs(lock: &Lock, now: SystemTime, width: Option<usize>) -> Vec<Line> {
    if lock.runs.is_empty() {
        return Vec::new();
    }
    let mut lines = section("last runs", width, history::lines(&lock.runs, false, now, inner(width)));
    let call = match &lock.lock_key {
        Some(key) => format!("--lock-key {}", typed(key)),
        None => typed(&lock.name),
    };
    lines.extend(more(lock.unread.runs, &format!("in meshlock history {call}")));
    // Nobody else is there to be asked about.
    if let (State::Free | State::Frozen, None, Some(run)) = (
        lock.state(),
        lock.queue.first(),
        lock.runs.first().and_then(|ran| ran.run.as_ref()),
    ) {
        let (text, style) = result(&lock.runs[0]);
        lines.push(vec![Span::new("the last of them", Style::Label)]);
        let mut ended = labelled("result", "");
        ended.push(Span::new(&text, style));
        let why = why(run).map(|why| labelled("why", &why));
        let said = [ended].into_iter().chain(why).chain(about(&run.holder));
        lines.extend(said.flat_map(|line| wrapped(line, width, INDENT + LABEL + 1)));
    }
    lines
}

const MARKS: &[Column] = &[
    column("MARK", false, Yields::Never),
    column("VALUE", false, Yields::To(8)),
];

fn marks(lock: &Lock, width: Option<usize>) -> Vec<Line> {
    let marks = lock.marks.as_deref().unwrap_or_default();
    if marks.is_empty() {
        return Vec::new();
    }
    let row = |mark: &Mark| vec![Span::name(&mark.name), Span::plain(&mark.value)];
    let mut lines = section(
        "marks",
        width,
        table(MARKS, marks.iter().map(row).collect(), inner(width)),
    );
    lines.extend(more(lock.unread.marks, "before them"));
    lines
}

const STRAY_ASKS: &[Column] = &[
    column("KIND", false, Yields::To(8)),
    column("BY", false, Yields::To(8)),
    column("KEY", false, Yields::Never),
    column("REASON", false, Yields::Goes(1)),
];

fn stray_asks(lock: &Lock, width: Option<usize>) -> Vec<Line> {
    let row = |stray: &StrayAsk| {
        let said = |field: fn(&Ask) -> &String| stray.ask.as_ref().map_or(NOTHING, |ask| field(ask));
        vec![
            Span::plain(said(|ask| &ask.kind)),
            Span::plain(said(|ask| &ask.by)),
            Span::plain(&stray.key),
            Span::plain(said(|ask| &ask.reason)),
        ]
    };
    let rows: Vec<_> = lock.stray_asks.iter().map(row).collect();
    if rows.is_empty() && lock.unread.asks == 0 {
        return Vec::new();
    }
    let mut lines = section(
        "asked of nobody: no entry has that lease and token; without effect, and there until the key is deleted",
        width,
        table(STRAY_ASKS, rows, inner(width)),
    );
    lines.extend(more(lock.unread.asks, "that were not looked at"));
    lines
}

fn section(title: &str, width: Option<usize>, table: Vec<Line>) -> Vec<Line> {
    let mut lines = wrapped(vec![Span::new(title, Style::Strong)], width, INDENT);
    for mut line in table {
        line.insert(0, Span::plain("  "));
        lines.push(line);
    }
    lines
}

/// Within the indent.
fn inner(width: Option<usize>) -> Option<usize> {
    width.map(|width| width.saturating_sub(2))
}
