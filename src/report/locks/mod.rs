//! Locks as people and programs read of them: pure functions of a [`Board`](crate::lock::board::Board) and the
//! time. Here the words that all of them share.

mod history;
mod json;
mod overview;
mod picture;
mod prometheus;

pub use self::history::lines as history;
pub use self::json::{history_json, status_json};
pub use self::prometheus::prometheus;

use super::table::NOTHING;
use super::text::{Line, Span, Style};
use crate::lock::board::pieces::Ran;
use crate::lock::board::{Board, Lock, Namesake, State};
use crate::lock::record::{Holder, Run};
use std::time::SystemTime;

/// How much of each lock is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// One line.
    Glance,
    Whole,
}

/// The locks as text; `width` is the screen's, and `None` none, where nothing is left out.
pub fn status(board: &Board, detail: Detail, now: SystemTime, width: Option<usize>) -> Vec<Line> {
    match detail {
        Detail::Glance if board.locks.is_empty() => Vec::new(),
        Detail::Glance => overview::lines(board, now, width),
        Detail::Whole => {
            let pictures = board.locks.iter().map(|lock| picture::lines(lock, now, width));
            pictures.collect::<Vec<_>>().join(&Line::new())
        }
    }
}

/// One line: which lock, in what state, held by whom and for how long.
pub fn head(lock: &Lock, now: SystemTime) -> String {
    super::plain(&[picture::head(lock, now)]).trim_end().to_owned()
}

/// A line beside the locks, on what is wrong.
pub fn note(text: &str) -> Line {
    vec![Span::new(text, Style::Warning)]
}

/// Beside a lock by name: that the key of the same text is another one, and is known.
pub fn namesake(lock: &Lock) -> Option<String> {
    let known = match lock.namesake? {
        Namesake::InUse => "is in use",
        Namesake::Recorded if lock.is_unknown() => "has runs recorded",
        Namesake::Recorded => return None,
    };
    Some(format!(
        "the key of that name is another lock, and it {known}: look with meshlock status --lock-key {}",
        typed(&lock.name)
    ))
}

/// The same where runs were looked for.
pub fn recorded_of_the_key(key: &str) -> String {
    format!(
        "there are runs under the key of that name: look with meshlock history --lock-key {}",
        typed(key)
    )
}

/// As a shell takes it for one word.
fn typed(text: &str) -> String {
    let plain = |char: char| char.is_alphanumeric() || "_-./:@%+=".contains(char);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// What stands for a holder that is not meshlock's, or of a later format.
const UNKNOWN: &str = "unknown (not meshlock)";

fn who(holder: Option<&Holder>) -> String {
    holder.map_or_else(
        || UNKNOWN.to_owned(),
        |holder| format!("{}@{}", holder.user, holder.host),
    )
}

/// The state, and that the name is frozen too where that does not keep the holder from holding.
fn state(lock: &Lock) -> (String, Style) {
    let state = lock.state();
    let mut text = state.word().to_owned();
    if lock.frozen.is_some() && state != State::Frozen {
        text.push_str(",frozen");
    }
    let style = match state {
        State::Free => Style::Good,
        State::Held | State::Elsewhere => Style::Strong,
        State::Handover | State::Frozen => Style::Warning,
        State::Vanished => Style::Bad,
    };
    (text, style)
}

/// How a run ended, in one word: `ok`, `exit(3)`, `signal(9)`, `lost`, ….
fn result(ran: &Ran) -> (String, Style) {
    let Some(run) = &ran.run else {
        return ("unknown".to_owned(), Style::Warning);
    };
    let text = match run.met() {
        Some(true) => "ok".to_owned(),
        _ => ended(run),
    };
    (text, if ran.failed() { Style::Bad } else { Style::Good })
}

fn ended(run: &Run) -> String {
    match (run.ended.result.as_str(), run.ended.status) {
        ("command", Some(status)) => format!("exit({status})"),
        ("signal", Some(status @ 129..)) => format!("signal({})", status - 128),
        (other, _) => other.to_owned(),
    }
}

/// Why it did not end by itself, as far as that was recorded.
fn why(run: &Run) -> Option<String> {
    let asked = run.ended.asked.as_ref().map(|asked| {
        let part = |before: &str, text: &str| {
            if text.is_empty() {
                String::new()
            } else {
                format!("{before}{text}")
            }
        };
        format!("{}{}{}", asked.kind, part(" by ", &asked.by), part(": ", &asked.reason))
    });
    let noticed = run.noticed.as_ref().map(|noticed| format!("noticed by {}", noticed.by));
    // Who asked for it says more than that it was asked for.
    let own = run.ended.why.clone();
    let own = own.filter(|_| asked.is_none() || run.ended.result != "superseded");
    let said: Vec<String> = own.into_iter().chain(asked).chain(noticed).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

#[cfg(test)]
mod tests;
