//! Text for people as data: spans with a style, made harmless for a terminal as they are made, and turned into
//! characters at the very end. The one place for escaping, widths, spans of time and colours. Pure.

use anstyle::{AnsiColor, Effects};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// What a piece of text means; how that looks is decided here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    /// A heading or a label.
    Label,
    Strong,
    Good,
    Warning,
    Bad,
}

/// Text of one style. Holds nothing that could steer a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    text: String,
    style: Style,
}

pub type Line = Vec<Span>;

/// No piece of text is wider: no line that somebody is to read or to copy comes near it, and a key in etcd can have a
/// megabyte.
const WIDEST: usize = 4096;
/// Names are of up to 255 bytes; what is wider is of somebody else's making.
const WIDEST_NAME: usize = 255;

impl Span {
    pub(super) fn new(text: &str, style: Style) -> Self {
        let mut span = Self {
            text: printable(text),
            style,
        };
        span.cut(WIDEST);
        span
    }

    /// A lock's name or key, as others may have made it up.
    pub(super) fn name(text: &str) -> Self {
        let mut span = Self::plain(text);
        span.cut(WIDEST_NAME);
        span
    }

    pub(super) fn styled(self, style: Style) -> Self {
        Self { style, ..self }
    }

    pub(super) fn plain(text: &str) -> Self {
        Self::new(text, Style::Plain)
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn width(&self) -> usize {
        self.text.width()
    }

    /// At most so wide; what is cut off leaves an ellipsis.
    pub(super) fn cut(&mut self, width: usize) {
        if self.width() <= width {
            return;
        }
        let mut taken = 0;
        let end = self.text.char_indices().find(|(_, char)| {
            taken += char.width().unwrap_or(0);
            taken >= width
        });
        if let Some((end, _)) = end {
            self.text.truncate(end);
        }
        if width > 0 {
            self.text.push('…');
        }
    }

    /// Without anything that could be taken for the gap between two columns, by a person or by awk: of all that looks
    /// blank, a single space between two words is left.
    pub(super) fn no_gaps(&mut self) {
        let last = self.text.chars().count();
        let mut before = ' ';
        let mut text = String::with_capacity(self.text.len());
        for (number, char) in self.text.chars().enumerate() {
            let between_words = char == ' ' && before != ' ' && number + 1 < last;
            if is_blank(char) && !between_words {
                // Writing to a String cannot fail.
                write!(text, "{}", char.escape_unicode()).ok();
            } else {
                text.push(char);
            }
            before = char;
        }
        self.text = text;
    }

    /// Filled up with spaces, before the text or after it.
    pub(super) fn pad(&mut self, width: usize, before: bool) {
        let spaces = " ".repeat(width.saturating_sub(self.width()));
        if before {
            self.text.insert_str(0, &spaces);
        } else {
            self.text.push_str(&spaces);
        }
    }

    fn paint(&self, onto: &mut String, colour: bool) {
        let style = anstyle::Style::new();
        let style = match self.style {
            Style::Plain => style,
            Style::Label => style.effects(Effects::DIMMED),
            Style::Strong => style.effects(Effects::BOLD),
            Style::Good => style.fg_color(Some(AnsiColor::Green.into())),
            Style::Warning => style.fg_color(Some(AnsiColor::Yellow.into())),
            Style::Bad => style.fg_color(Some(AnsiColor::Red.into())).effects(Effects::BOLD),
        };
        // Writing to a String cannot fail.
        if colour && self.style != Style::Plain && !self.text.is_empty() {
            write!(onto, "{style}{}{style:#}", self.text).ok();
        } else {
            onto.push_str(&self.text);
        }
    }
}

/// The line on as many as it takes at this width, broken at blanks alone; all but the first are indented.
pub(super) fn wrapped(line: Line, width: Option<usize>, indent: usize) -> Vec<Line> {
    let Some(width) = width else { return vec![line] };
    let mut lines = vec![Line::new()];
    let (mut used, mut after_a_blank) = (0, false);
    for span in line {
        for word in span.text.split_inclusive(' ') {
            if after_a_blank && used > indent && used + word.trim_end().width() > width {
                lines.push(vec![Span::plain(&" ".repeat(indent))]);
                used = indent;
            }
            used += word.width();
            after_a_blank = word.ends_with(' ');
            let piece = Span {
                text: word.to_owned(),
                style: span.style,
            };
            if let Some(line) = lines.last_mut() {
                line.push(piece);
            }
        }
    }
    lines
}

/// The lines as characters, each line cut at `width` and without spaces at its end.
pub(super) fn paint(lines: &[Line], colour: bool, width: Option<usize>) -> String {
    let mut text = String::new();
    for line in lines {
        let mut left = width.unwrap_or(usize::MAX);
        let last = line.iter().rposition(|span| !span.text.trim_end().is_empty());
        for (number, span) in line.iter().enumerate().take(last.map_or(0, |last| last + 1)) {
            let mut span = span.clone();
            if Some(number) == last {
                span.text.truncate(span.text.trim_end().len());
            }
            span.cut(left);
            left -= span.width().min(left);
            span.paint(&mut text, colour);
        }
        text.push('\n');
    }
    text
}

/// `text` on one line and unable to steer a terminal: others' records and names end up on people's screens.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        if steers(char) {
            write!(safe, "{}", char.escape_default()).ok();
        } else {
            safe.push(char);
        }
    }
    safe
}

/// As JSON, for people's eyes too, and a newline. Of text, numbers and maps with text as keys, which cannot fail.
pub(super) fn json(value: &impl Serialize) -> String {
    printable_json(&serde_json::to_string_pretty(value).unwrap_or_default()) + "\n"
}

/// In which no string can steer a terminal either: outside of strings there is nothing but ASCII.
fn printable_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for char in json.chars() {
        if steers(char) && char != '\n' {
            for unit in char.encode_utf16(&mut [0; 2]) {
                write!(safe, "\\u{unit:04x}").ok();
            }
        } else {
            safe.push(char);
        }
    }
    safe
}

/// Controls, separators of lines, marks that reverse what follows (Unicode's UAX #9), and what is there without being
/// seen: the property `Default_Ignorable_Code_Point` (UAX #44), and annotations.
fn steers(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Spaces of all widths, and the Braille pattern without a dot.
fn is_blank(char: char) -> bool {
    char.is_whitespace() || char == '\u{2800}'
}

/// As short as it says enough: 250ms, 12s, 4m10s, 2h5m, 3d4h.
pub(super) fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    let two = |large: u64, unit: &str, small: u64, rest: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{rest}"),
    };
    match seconds {
        // Records know no fractions: nothing is 0s.
        0 if span.is_zero() => "0s".to_owned(),
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

/// The time that has passed since, in whole seconds; a clock that is behind the writer's makes it none.
pub(super) fn age(since: SystemTime, now: SystemTime) -> String {
    span(Duration::from_secs(
        now.duration_since(since).unwrap_or_default().as_secs(),
    ))
}

/// RFC 3339, UTC, in whole seconds.
pub(super) fn stamp(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_cannot_steer_a_terminal_or_hide() {
        assert_eq!(
            printable("a\u{1b}[2Jb\nc\u{202e}d\u{7f}é"),
            "a\\u{1b}[2Jb\\nc\\u{202e}d\\u{7f}é"
        );
        for hidden in [
            '\u{9b}',
            '\u{200b}',
            '\u{200d}',
            '\u{2066}',
            '\u{feff}',
            '\u{ad}',
            '\u{e0041}',
            '\u{3164}',
        ] {
            let text = Span::plain(&format!("a{hidden}b"));
            assert_eq!(text.text, format!("a{}b", hidden.escape_unicode()));
        }
        assert_eq!(printable("請求書 Ünïcödé 🦀 e\u{301}"), "請求書 Ünïcödé 🦀 e\u{301}");
    }

    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({"a": "x\u{202e}\u{7f}\u{e0041}\u{1b}\u{9b}é"});
        let json = serde_json::to_string_pretty(&value).expect("JSON");
        let safe = printable_json(&json);
        assert!(!safe.chars().any(|char| steers(char) && char != '\n'), "{safe:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("JSON"), value);
    }

    #[test]
    fn widths_are_those_on_the_screen() {
        let mut span = Span::plain("請求書");
        assert_eq!(span.width(), 6);
        span.pad(8, false);
        assert_eq!(span.text, "請求書  ");
        for (text, width, cut) in [
            ("請求書", 5, "請求…"),
            ("請求書", 4, "請…"),
            ("abc", 3, "abc"),
            ("abcd", 3, "ab…"),
            ("abcd", 1, "…"),
            ("abcd", 0, ""),
        ] {
            let mut span = Span::plain(text);
            span.cut(width);
            assert_eq!(span.text, cut, "{text} at {width}");
            assert!(span.width() <= width);
        }
    }

    #[test]
    fn nothing_blank_is_left_in_a_cell_but_a_single_space_between_words() {
        for (text, cell) in [
            ("a b", "a b"),
            (" a  b ", "\\u{20}a \\u{20}b\\u{20}"),
            ("請求\u{3000}書", "請求\\u{3000}書"),
            ("a\u{a0}b", "a\\u{a0}b"),
            ("a\u{2003}b\u{202f}c", "a\\u{2003}b\\u{202f}c"),
            ("\u{2800}", "\\u{2800}"),
        ] {
            let mut span = Span::plain(text);
            span.no_gaps();
            assert_eq!(span.text, cell);
        }
    }

    #[test]
    fn no_text_and_no_name_is_wider_than_anybody_reads() {
        let huge = "書".repeat(1_000_000);
        assert_eq!(
            Span::plain(&huge).width(),
            4095,
            "an ellipsis, and no half of a character"
        );
        assert_eq!(Span::name(&huge).width(), 255);
        let name = "x".repeat(255);
        assert_eq!(Span::name(&name).text, name);
    }

    #[test]
    fn a_line_is_cut_at_the_screens_edge_and_coloured_only_if_wanted() {
        let line = vec![Span::new("held", Style::Bad), Span::plain("  by ops@web1  ")];
        assert_eq!(paint(std::slice::from_ref(&line), false, None), "held  by ops@web1\n");
        assert_eq!(paint(std::slice::from_ref(&line), false, Some(10)), "held  by …\n");
        let painted = paint(&[line], true, Some(10));
        assert!(
            painted.starts_with("\u{1b}[") && painted.contains("held\u{1b}[0m"),
            "{painted:?}"
        );
    }

    #[test]
    fn a_long_line_goes_on_below_from_a_blank_on() {
        let line = vec![Span::new("billing", Style::Strong), Span::plain(": held by nobody")];
        let drawn = |width| paint(&wrapped(line.clone(), width, 2), false, None);
        assert_eq!(drawn(None), "billing: held by nobody\n");
        assert_eq!(drawn(Some(23)), "billing: held by nobody\n");
        assert_eq!(drawn(Some(16)), "billing: held by\n  nobody\n");
        assert_eq!(
            drawn(Some(5)),
            "billing:\n  held\n  by\n  nobody\n",
            "no word is broken"
        );
    }

    #[test]
    fn spans_of_time_are_short() {
        for (seconds, text) in [
            (0.25, "250ms"),
            (12.9, "12s"),
            (60.0, "1m"),
            (250.0, "4m10s"),
            (7500.0, "2h5m"),
            (3600.0, "1h"),
            (273_600.0, "3d4h"),
            (86_400.0, "1d"),
        ] {
            assert_eq!(span(Duration::from_secs_f64(seconds)), text);
        }
        let now = SystemTime::now();
        assert_eq!(age(now + Duration::from_secs(5), now), "0s");
    }
}
