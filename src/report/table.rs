//! A table: one line for each row, columns under one another by their width on the screen. On a screen that is
//! too narrow columns give way, the least important first; elsewhere nothing is left out. Knows nothing of what
//! the cells mean.

use super::text::{Line, Span, Style};

#[derive(Clone, Copy)]
pub(super) struct Column {
    pub title: &'static str,
    /// A number, which stands at the right edge.
    pub number: bool,
    pub yields: Yields,
}

pub(super) const fn column(title: &'static str, number: bool, yields: Yields) -> Column {
    Column { title, number, yields }
}

/// What a column does where there is no room for all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Yields {
    Never,
    /// Is cut, but to no less than this.
    To(usize),
    /// Is left out, the highest number first.
    Goes(u8),
}

const GAP: usize = 2;

/// What stands where there is nothing to say, so that columns stay columns.
pub(super) const NOTHING: &str = "-";

/// The header and the rows. `width` is the screen's; `None` leaves nothing out.
pub(super) fn table(columns: &[Column], mut rows: Vec<Vec<Span>>, width: Option<usize>) -> Vec<Line> {
    for row in &mut rows {
        for cell in row.iter_mut() {
            cell.no_gaps();
        }
    }
    rows.insert(
        0,
        columns
            .iter()
            .map(|column| Span::new(column.title, Style::Label))
            .collect(),
    );
    let widest = |at: usize| rows.iter().map(|row| row[at].width()).max().unwrap_or(0);
    let mut shown: Vec<(usize, usize)> = (0..columns.len()).map(|at| (at, widest(at))).collect();
    if let Some(width) = width {
        // On a screen what says nothing only takes room.
        let says = |at: usize| rows.iter().skip(1).any(|row| row[at].text() != NOTHING);
        shown.retain(|(at, _)| matches!(columns[*at].yields, Yields::Never | Yields::To(_)) || says(*at));
        fit(columns, &mut shown, width);
    }
    let last = shown.len().saturating_sub(1);
    rows.into_iter()
        .map(|mut row| {
            let mut line = Line::new();
            for (number, (at, width)) in shown.iter().enumerate() {
                let mut cell = std::mem::take(&mut row[*at]);
                cell.cut(*width);
                cell.pad(*width, columns[*at].number);
                line.push(cell);
                if number < last {
                    line.push(Span::plain(&" ".repeat(GAP)));
                }
            }
            line
        })
        .collect()
}

fn fit(columns: &[Column], shown: &mut Vec<(usize, usize)>, width: usize) {
    let over = |shown: &[(usize, usize)]| {
        let all: usize = shown.iter().map(|(_, width)| width + GAP).sum();
        all.saturating_sub(GAP + width)
    };
    // A cut column says less than its whole, but more than one that is gone: these go only where that is not enough.
    let spare = |shown: &[(usize, usize)]| -> usize {
        shown
            .iter()
            .map(|(at, width)| match columns[*at].yields {
                Yields::To(least) => width.saturating_sub(least),
                Yields::Never | Yields::Goes(_) => 0,
            })
            .sum()
    };
    while over(shown) > spare(shown) {
        let rank = |(at, _): &(usize, usize)| match columns[*at].yields {
            Yields::Goes(rank) => Some(rank),
            Yields::Never | Yields::To(_) => None,
        };
        let goes = (0..shown.len())
            .filter(|at| rank(&shown[*at]).is_some())
            .max_by_key(|at| rank(&shown[*at]));
        let Some(goes) = goes else { break };
        shown.remove(goes);
    }
    // From the widest, a character at a time.
    while over(shown) > 0 {
        let cuttable = shown.iter_mut().filter(|(at, width)| match columns[*at].yields {
            Yields::To(least) => *width > least,
            Yields::Never | Yields::Goes(_) => false,
        });
        let Some((_, widest)) = cuttable.max_by_key(|(_, width)| *width) else {
            break;
        };
        *widest -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::paint;
    use super::*;

    const COLUMNS: &[Column] = &[
        column("NAME", false, Yields::To(6)),
        column("N", true, Yields::Never),
        column("MORE", false, Yields::Goes(1)),
    ];

    fn drawn(width: Option<usize>) -> String {
        let row =
            |name: &str, number: &str, more: &str| vec![Span::plain(name), Span::plain(number), Span::plain(more)];
        let rows = vec![row("billing-of-all", "7", "much"), row("請求書", "12", "-")];
        paint(&table(COLUMNS, rows, width), false, None)
    }

    #[test]
    fn columns_are_aligned_and_two_spaces_apart() {
        assert_eq!(
            drawn(None),
            "NAME             N  MORE\nbilling-of-all   7  much\n請求書          12  -\n"
        );
    }

    #[test]
    fn a_narrow_screen_cuts_first_and_then_leaves_out() {
        assert_eq!(
            drawn(Some(18)),
            "NAME       N  MORE\nbilling…   7  much\n請求書    12  -\n"
        );
        assert_eq!(drawn(Some(12)), "NAME       N\nbilling…   7\n請求書    12\n");
        assert!(
            drawn(Some(1)).starts_with("NAME     N\n"),
            "no panic, and the least that is shown"
        );
    }

    #[test]
    fn no_cell_looks_like_two() {
        let rows = vec![vec![Span::plain(" a   b "), Span::plain("1"), Span::plain("x")]];
        let lines = paint(&table(COLUMNS, rows, None), false, None);
        assert_eq!(lines.lines().nth(1), Some("\\u{20}a \\u{20}\\u{20}b\\u{20}  1  x"));
    }
}
