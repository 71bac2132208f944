//! Runs that have ended, one line each, newest first. Knows nothing of how they were read.

use super::super::table::{Column, Yields, column, table};
use super::super::text::{Line, Span, age, span, stamp};
use super::{NOTHING, result, who, why};
use crate::lock::board::pieces::Ran;
use crate::lock::record::{Purpose, Run};
use std::time::SystemTime;

/// In this order also where they are read by programs: a new one goes to the end.
const COLUMNS: &[Column] = &[
    column("ENDED", false, Yields::Goes(9)),
    column("AGO", true, Yields::Never),
    column("NAME", false, Yields::To(12)),
    column("RESULT", false, Yields::Never),
    column("TOOK", true, Yields::Never),
    column("WHO", false, Yields::To(12)),
    column("PROGRAM", false, Yields::To(8)),
    column("OWNER", false, Yields::ToThenGoes(8, 3)),
    column("ROUTE", false, Yields::ToThenGoes(8, 2)),
    column("TRIGGER", false, Yields::Goes(4)),
    column("SYSTEM", false, Yields::Goes(5)),
    column("EXPECTED", false, Yields::Goes(7)),
    column("REASON", false, Yields::Goes(6)),
    column("TRIES", true, Yields::Goes(10)),
    column("TOKEN", true, Yields::Goes(8)),
    column("RECORD", false, Yields::Goes(11)),
    column("WHY", false, Yields::ToThenGoes(12, 1)),
];

/// Where the name is among them.
const NAME: usize = 2;

/// With the lock's name in each line, or without.
pub fn lines(runs: &[Ran], named: bool, now: SystemTime, width: Option<usize>) -> Vec<Line> {
    let mut columns = COLUMNS.to_vec();
    let mut rows: Vec<_> = runs.iter().map(|ran| row(ran, now)).collect();
    if !named {
        columns.remove(NAME);
        for row in &mut rows {
            row.remove(NAME);
        }
    }
    table(&columns, rows, width)
}

fn row(ran: &Ran, now: SystemTime) -> Vec<Span> {
    let run = ran.run.as_ref();
    let cell = |text: Option<String>| Span::plain(text.as_deref().unwrap_or(NOTHING));
    let purpose = run.map(|run| &run.holder.purpose);
    let said = |field: fn(&Purpose) -> &Option<String>| cell(purpose.and_then(|purpose| field(purpose).clone()));
    let ended = run.and_then(Run::ended);
    let (text, style) = result(ran);
    vec![
        cell(ended.map(stamp)),
        cell(ended.or(run.and_then(Run::noticed)).map(|over| age(over, now))),
        Span::name(&ran.called()),
        Span::new(&text, style),
        cell(run.and_then(Run::duration).map(span)),
        Span::plain(&who(run.map(|run| &run.holder))),
        cell(run.map(|run| run.holder.program.clone())),
        said(|purpose| &purpose.owner),
        said(|purpose| &purpose.route),
        said(|purpose| &purpose.trigger),
        said(|purpose| &purpose.system),
        cell(purpose.map(|purpose| purpose.expect.clone().unwrap_or_else(|| "0".to_owned()))),
        said(|purpose| &purpose.reason),
        cell(purpose.and_then(|purpose| purpose.tries).map(|tries| tries.to_string())),
        cell(run.map(|run| run.token.to_string())),
        Span::plain(&ran.key),
        cell(run.and_then(why)),
    ]
}
