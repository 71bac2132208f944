//! The line that is kept current in place: what fits into the terminal's width, and what takes it away again.
//! Knows nothing of what it says.

use nix::unistd::{getpgrp, tcgetpgrp};
use std::io::IsTerminal;
use std::os::fd::AsFd;
use unicode_width::UnicodeWidthChar;

/// To the row's start, and clear from there on (ECMA-48: CR, ED). More than the row, since a window that has become
/// narrower may have wrapped the line.
pub(super) const CLEAR: &str = "\r\x1b[J";

/// Where no width is known, as over a serial line.
const COLUMNS: u16 = 80;

/// Whether a line may be kept current there: a terminal, and we are in its foreground. From the background we
/// would write over what the user is typing.
pub(super) fn has_place_on(fd: &(impl AsFd + IsTerminal)) -> bool {
    fd.is_terminal() && tcgetpgrp(fd.as_fd()).is_ok_and(|foreground| foreground == getpgrp())
}

/// `text` as it is put on that terminal. The cursor goes back to the row's start: it stays there when a terminal
/// wraps the line anew, so that [`CLEAR`] finds all of it.
pub(super) fn drawn(text: &str, fd: impl AsFd) -> String {
    let columns = terminal_size::terminal_size_of(fd).map_or(COLUMNS, |(width, _)| width.0);
    fit(text, columns.into()) + "\r"
}

/// As much of `text` as one row takes. The last column stays free: terminals differ in what follows when it is
/// written to.
fn fit(text: &str, columns: usize) -> String {
    let room = columns.saturating_sub(1);
    if text.chars().map(width).sum::<usize>() <= room {
        return text.to_owned();
    }
    let mut left = room.saturating_sub(width('…'));
    let mut fitting: String = text
        .chars()
        .take_while(|char| {
            let fits = width(*char) <= left;
            left = left.saturating_sub(width(*char));
            fits
        })
        .collect();
    if room > 0 {
        fitting.push('…');
    }
    fitting
}

/// At least what a terminal takes for it: rather too short a line than a second row, which nothing would clear.
fn width(char: char) -> usize {
    // Makes a wide picture of the narrow sign before it.
    let selector = usize::from(char == '\u{fe0f}');
    char.width().unwrap_or(0).max(selector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_to_the_columns_that_it_takes_on_the_screen() {
        for (text, columns, fitting) in [
            ("abc", 80, "abc"),
            ("abc", 4, "abc"),
            ("abc", 3, "a…"),
            ("abc", 2, "…"),
            ("abc", 1, ""),
            ("abc", 0, ""),
            ("", 10, ""),
            // Two columns each.
            ("漢字漢字", 9, "漢字漢字"),
            ("漢字漢字", 8, "漢字漢…"),
            ("漢字漢字", 7, "漢字…"),
            // None of its own.
            ("e\u{301}e\u{301}e\u{301}", 4, "e\u{301}e\u{301}e\u{301}"),
            ("e\u{301}e\u{301}e\u{301}", 3, "e\u{301}…"),
            ("❤\u{fe0f}❤\u{fe0f}", 5, "❤\u{fe0f}❤\u{fe0f}"),
            ("❤\u{fe0f}❤\u{fe0f}", 4, "❤\u{fe0f}…"),
        ] {
            assert_eq!(fit(text, columns), fitting, "{text} {columns}");
        }
    }
}
