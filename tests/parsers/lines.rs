//! The lines on stderr: others' names and reasons end up on people's screens.

use crate::{MEGABYTE, holds, keeps_pace, long_text, text_of};
use meshlock::report::{line, printable};
use proptest::prelude::*;

/// Unicode's property `Bidi_Control` (UAX #9), and its separators of lines and paragraphs.
const STEERING: [std::ops::RangeInclusive<char>; 5] = [
    '\u{61c}'..='\u{61c}',
    '\u{200e}'..='\u{200f}',
    '\u{2028}'..='\u{2029}',
    '\u{202a}'..='\u{202e}',
    '\u{2066}'..='\u{2069}',
];

/// Unicode's property `Default_Ignorable_Code_Point` (UAX #44), less those above, and annotations.
const UNSEEN: [std::ops::RangeInclusive<char>; 16] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200d}',
    '\u{2060}'..='\u{2065}',
    '\u{206a}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

fn steers(char: char) -> bool {
    let mut ranges = STEERING.iter().chain(&UNSEEN);
    char.is_control() || ranges.any(|range| range.contains(&char))
}

#[test]
fn no_character_that_steers_gets_through_and_all_others_do() {
    for char in '\0'..=char::MAX {
        let shown = printable(&char.to_string());
        if steers(char) {
            assert!(shown.is_ascii() && shown.starts_with('\\'), "{char:?}: {shown:?}");
        } else {
            assert_eq!(shown, char.to_string());
        }
    }
}

#[test]
fn what_was_made_safe_once_stays_as_it_is() {
    holds(400, text_of(0..80), |text| {
        let once = printable(&text);
        prop_assert!(!once.contains(steers));
        prop_assert_eq!(printable(&once), once);
        Ok(())
    });
}

#[test]
fn a_line_is_one_whole_line_that_a_pipe_takes_at_once() {
    // Around the limit, where it is cut.
    let texts = prop_oneof![text_of(0..50), long_text(1300..1400), long_text(4000..4200)];
    holds(300, texts, |text| {
        let line = String::from_utf8(line(&text)).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let whole = format!("meshlock: {}\n", printable(&text));
        prop_assert!(line.len() <= 4096);
        prop_assert!(line.ends_with('\n') && line.matches('\n').count() == 1);
        if whole.len() <= 4096 {
            prop_assert_eq!(line, whole);
        } else {
            let kept = line.strip_suffix("…\n").unwrap_or_default();
            // No more is lost than the character that would not fit and the mark.
            prop_assert!(whole.starts_with(kept) && kept.len() > 4096 - 9, "{}", kept.len());
        }
        Ok(())
    });
}

#[test]
fn absurd_lengths_take_no_time() {
    for unit in ["a", "\u{1b}", "\u{202e}", "請"] {
        keeps_pace(
            MEGABYTE,
            |size| unit.bytes().cycle().take(size).collect(),
            |text| line(&String::from_utf8_lossy(text)),
        );
    }
}
