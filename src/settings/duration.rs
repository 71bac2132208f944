//! Durations as people type them. Knows nothing of what they are for.

use std::time::Duration;

/// Longer ones are a slip, and a deadline computed from them might overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

const NOT_ONE: &str = "is not a duration: write 30s, 5m, 1h30m, or a number of seconds";
const TOO_LONG: &str = "is too long: 100 years at the most";

/// `30s`, `5m`, `1h30m`, `250ms`; a plain number is seconds; fractions are allowed. Go's durations, as in
/// `ETCDCTL_DIAL_TIMEOUT`, are among them.
///
/// # Errors
/// Why it is none, as the end of a sentence.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    loop {
        let (number, after) = split_at(rest, |c| !c.is_ascii_digit() && c != '.');
        let (unit, after) = split_at(after, |c| c.is_ascii_digit() || c == '.');
        // A number without a unit stands alone: 1h30 might mean minutes or seconds.
        let unit = match unit {
            "" if number == text => Duration::from_secs(1),
            unit => self::unit(unit).ok_or(NOT_ONE)?,
        };
        total = total
            .checked_add(times(unit, number)?)
            .filter(|total| *total <= LONGEST)
            .ok_or(TOO_LONG)?;
        if after.is_empty() {
            return Ok(total);
        }
        rest = after;
    }
}

fn split_at(text: &str, end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(end).unwrap_or(text.len()))
}

fn unit(name: &str) -> Option<Duration> {
    Some(match name {
        "ns" => Duration::from_nanos(1),
        // Both of Unicode's, as Go's ParseDuration has it.
        "us" | "\u{b5}s" | "\u{3bc}s" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        "h" => Duration::from_secs(3600),
        "d" => Duration::from_secs(86_400),
        _ => return None,
    })
}

fn times(unit: Duration, number: &str) -> Result<Duration, &'static str> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return Err(NOT_ONE);
    }
    let factor: f64 = number.parse().map_err(|_| NOT_ONE)?;
    Duration::try_from_secs_f64(unit.as_secs_f64() * factor).map_err(|_| TOO_LONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type_is_understood() {
        for (text, millis) in [
            ("0", 0),
            ("30", 30_000),
            ("0.5", 500),
            (".5", 500),
            ("30s", 30_000),
            ("1.5s", 1_500),
            ("250ms", 250),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1m0.5s", 60_500),
            ("2d", 172_800_000),
            ("2000000us", 2_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text:?}");
        }
    }

    #[test]
    fn what_could_be_meant_otherwise_is_refused() {
        for text in [
            "", " ", "s", "-5", "-5s", "+5", "1h30", "5 m", "30 s", "5min", "1e3", "1,5", "1.2.3s", "0x10", "inf",
            "NaN", ".", "..s", "5S", "٣s", "ms5", "5ss",
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.starts_with("is not a duration"), "{text:?}: {why}");
        }
    }

    #[test]
    fn what_would_overflow_is_refused() {
        let digits = "9".repeat(400);
        for text in [
            "99999999999999999999",
            "36501d",
            "18446744073709551616s",
            digits.as_str(),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.starts_with("is too long"), "{text:?}: {why}");
        }
    }
}
