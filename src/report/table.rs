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
    /// Is cut, but to no less than the first, before it is left out as by the second.
    ToThenGoes(usize, u8),
}

impl Yields {
    /// In which place from the end it may be left out.
    fn rank(self) -> Option<u8> {
        match self {
            Self::Goes(rank) | Self::ToThenGoes(_, rank) => Some(rank),
            Self::Never | Self::To(_) => None,
        }
    }
}

const GAP: usize = 2;

/// What stands where there is nothing to say, so that columns stay columns.
pub(super) const NOTHING: &str = "-";

/// The header and the rows. `width` is the screen's; `None` leaves nothing out.
pub(super) fn table(columns: &[Column], mut rows: Vec<Vec<Span>>, width: Option<usize>) -> Vec<Line> {
    for row in &mut rows {
        for cell in row.iter_mut() {
            cell.no_gaps();
            if cell.text().is_empty() {
                *cell = Span::plain(NOTHING);
            }
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
        shown.retain(|(at, _)| columns[*at].yields.rank().is_none() || says(*at));
        if over(&shown, width) > 0 {
            shown.retain(|(at, _)| says(*at));
        }
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

/// By how much they are too wide together.
fn over(shown: &[(usize, usize)], width: usize) -> usize {
    let all: usize = shown.iter().map(|(_, width)| width + GAP).sum();
    all.saturating_sub(GAP + width)
}

fn fit(columns: &[Column], shown: &mut Vec<(usize, usize)>, width: usize) {
    let over = |shown: &[(usize, usize)]| over(shown, width);
    let next = |shown: &[(usize, usize)]| {
        let ranks = shown.iter().map(|(at, _)| columns[*at].yields);
        ranks.max_by_key(|yields| yields.rank())
    };
    // Nothing is cut for the sake of what is worth less and cannot be cut: that goes before.
    let cut = |shown: &[(usize, usize)]| matches!(next(shown), Some(Yields::ToThenGoes(..)));
    let spare = |shown: &[(usize, usize)], (at, width): &(usize, usize)| match columns[*at].yields {
        Yields::To(least) => width.saturating_sub(least),
        Yields::ToThenGoes(least, _) if cut(shown) => width.saturating_sub(least),
        Yields::Never | Yields::Goes(_) | Yields::ToThenGoes(..) => 0,
    };
    // A cut column says less than its whole, but more than one that is gone: these go only where that is not enough.
    while over(shown) > shown.iter().map(|column| spare(shown, column)).sum() {
        let goes = next(shown).and_then(Yields::rank);
        let Some(goes) = goes.and_then(|rank| {
            shown
                .iter()
                .position(|(at, _)| columns[*at].yields.rank() == Some(rank))
        }) else {
            break;
        };
        shown.remove(goes);
    }
    // From the widest, a character at a time.
    while over(shown) > 0 {
        let cuttable = (0..shown.len()).filter(|at| spare(shown, &shown[*at]) > 0);
        let Some(widest) = cuttable.max_by_key(|at| shown[*at].1) else {
            break;
        };
        shown[widest].1 -= 1;
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
    fn nothing_is_cut_beside_a_column_that_says_nothing() {
        let columns = [
            column("NAME", false, Yields::To(6)),
            column("FOR", true, Yields::Never),
            column("STATE", false, Yields::Never),
        ];
        let row = || vec![Span::plain("billing-of-all"), Span::plain("-"), Span::plain("free")];
        let drawn = |width| paint(&table(&columns, vec![row()], Some(width)), false, None);
        assert_eq!(drawn(26), "NAME            FOR  STATE\nbilling-of-all    -  free\n");
        assert_eq!(drawn(25), "NAME            STATE\nbilling-of-all  free\n");
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
    fn a_column_can_be_cut_before_it_goes() {
        let columns = &[
            column("NAME", false, Yields::Never),
            column("ROUTE", false, Yields::ToThenGoes(6, 1)),
            column("TTL", true, Yields::Goes(2)),
        ];
        let drawn = |width| {
            let row = ["billing", "#billing-oncall", "26s"].map(Span::plain);
            paint(&table(columns, vec![row.into()], Some(width)), false, None)
        };
        assert!(drawn(29).ends_with("billing  #billing-oncall  26s\n"), "{}", drawn(29));
        assert!(drawn(20).ends_with("billing  #billing-o…\n"), "{}", drawn(20));
        assert!(drawn(15).ends_with("billing  #bill…\n"), "{}", drawn(15));
        assert!(drawn(14).ends_with("NAME\nbilling\n"), "{}", drawn(14));
    }

    #[test]
    fn what_can_be_cut_is_cut_before_any_of_it_goes() {
        let columns = &[
            column("OWNER", false, Yields::ToThenGoes(5, 2)),
            column("WHY", false, Yields::ToThenGoes(6, 1)),
            column("TTL", true, Yields::Goes(3)),
        ];
        let drawn = |width| {
            let row = ["ann", "it could not be renewed", "26s"].map(Span::plain);
            paint(&table(columns, vec![row.into()], Some(width)), false, None)
        };
        assert!(drawn(29).ends_with("ann    it could not be renew…\n"), "{}", drawn(29));
        assert!(drawn(13).ends_with("ann    it co…\n"), "{}", drawn(13));
        assert!(drawn(12).ends_with("WHY\nit could no…\n"), "{}", drawn(12));
    }

    #[test]
    fn an_empty_cell_is_a_cell() {
        let rows = vec![vec![Span::plain(""), Span::plain("1"), Span::plain("")]];
        let lines = paint(&table(COLUMNS, rows, None), false, None);
        assert_eq!(lines.lines().nth(1), Some("-     1  -"));
    }

    #[test]
    fn no_cell_looks_like_two() {
        let rows = vec![vec![Span::plain(" a   b "), Span::plain("1"), Span::plain("x")]];
        let lines = paint(&table(COLUMNS, rows, None), false, None);
        assert_eq!(lines.lines().nth(1), Some("\\u{20}a \\u{20}\\u{20}b\\u{20}  1  x"));
    }
}
