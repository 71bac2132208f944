//! What of a run's end counts as success: the exit statuses that were asked for with `--expect`. Knows nothing
//! of how the run came to end.

use super::record::{Purpose, Run};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The command's exit statuses that count as success, as a shell shows them: 128+n for a death of signal n.
/// Displays as it is kept in records: in ascending order, each once, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected(BTreeSet<u8>);

impl Default for Expected {
    fn default() -> Self {
        Self(BTreeSet::from([0]))
    }
}

impl Expected {
    /// Whether a run that ended so met it; `result` is [`crate::outcome::Outcome::name`]. Only a command that
    /// ended by itself can: one that was stopped, or never ran, did not do what it was run for.
    pub fn met(&self, result: &str, status: Option<u8>) -> bool {
        matches!(result, "command" | "signal") && status.is_some_and(|status| self.0.contains(&status))
    }
}

impl FromStr for Expected {
    type Err = String;

    /// The error ends a sentence that begins with the list.
    fn from_str(list: &str) -> Result<Self, String> {
        let status = |text: &str| {
            let text = text.trim();
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u8>().ok().filter(|_| digits)
        };
        list.split(',')
            .map(status)
            .collect::<Option<_>>()
            .map(Self)
            .ok_or_else(|| "is not a list of exit statuses from 0 to 255, such as 0,3".to_owned())
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statuses: Vec<String> = self.0.iter().map(u8::to_string).collect();
        f.write_str(&statuses.join(","))
    }
}

impl Purpose {
    /// What was expected of the run; 0 where nothing else was asked for. `None` where it was said in words that we
    /// do not know, as by a later version.
    pub fn expected(&self) -> Option<Expected> {
        match &self.expect {
            None => Some(Expected::default()),
            Some(list) => list.parse().ok(),
        }
    }
}

impl Run {
    /// Whether the run ended as was expected of it; `None` where its expectation cannot be read.
    pub fn met(&self) -> Option<bool> {
        let expected = self.holder.purpose.expected()?;
        Some(expected.met(&self.ended.result, self.ended.status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_kept_in_order_and_each_status_once() {
        for (asked, kept) in [
            ("0", "0"),
            ("3,0", "0,3"),
            (" 3 , 3,143,007 ", "3,7,143"),
            ("255", "255"),
        ] {
            assert_eq!(asked.parse::<Expected>().expect(asked).to_string(), kept);
        }
        for wrong in ["", ",", "0,", "256", "-1", "+1", "0 3", "success", "1-3", "\u{663}"] {
            assert!(wrong.parse::<Expected>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_a_command_that_ended_by_itself_can_meet_it() {
        let expected: Expected = "0,3,143".parse().expect("a list");
        for (result, status, met) in [
            ("command", Some(0), true),
            ("command", Some(3), true),
            ("command", Some(1), false),
            ("signal", Some(143), true),
            ("signal", Some(137), false),
            // A signal before the command began.
            ("signal", None, false),
            ("overrun", Some(143), false),
            ("lost", Some(0), false),
            ("superseded", Some(0), false),
            ("not-found", None, false),
        ] {
            assert_eq!(expected.met(result, status), met, "{result} {status:?}");
        }
    }

    #[test]
    fn a_record_without_an_expectation_expects_0_and_an_unknown_one_is_not_judged() {
        let run = |expect: &str, status: u8| -> Option<bool> {
            let record = format!(
                r#"{{"format":1,"host":"h","user":"u","pid":1,"program":"p","started":"s",{expect}
                "token":1,"result":"command","status":{status},"acquired":"a","ended":"e"}}"#
            );
            serde_json::from_str::<Run>(&record).expect("a record").met()
        };
        assert_eq!(run("", 0), Some(true));
        assert_eq!(run("", 3), Some(false));
        assert_eq!(run(r#""expect":"3","#, 3), Some(true));
        assert_eq!(run(r#""expect":"rows > 0","#, 0), None);
    }
}
