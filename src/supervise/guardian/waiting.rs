//! What a user is told of the wait: one line at each change of holder, or, at a terminal, one line that is kept
//! current. Pure; knows nothing of how lines get out.

use crate::link::Waiting;
use humantime::format_duration;
use std::time::{Duration, SystemTime};

/// A line that stays.
pub(super) fn said(name: &str, waiting: &Waiting) -> String {
    match waiting {
        Waiting::Behind { ahead, holder } => format!("waiting ({ahead} ahead of us): \"{name}\" is held by {holder}"),
        Waiting::Frozen { words } => format!("waiting: \"{name}\" is frozen{words}"),
        Waiting::Delayed { left } => format!(
            "\"{name}\" was left without a release: waiting {:.1} s for what may still run there to be stopped",
            left.as_secs_f64()
        ),
    }
}

/// The line that is kept current, `now` by this machine's clock; what matters most comes first, since it is cut to
/// the terminal's width.
pub fn current(name: &str, waiting: &Waiting, waited: Duration, now: SystemTime) -> String {
    let seconds = |span: Duration| format_duration(Duration::from_secs(span.as_secs()));
    let waited = seconds(waited);
    match waiting {
        Waiting::Behind { ahead, holder } => {
            // By the holder's clock, which may be ahead of ours: then rather nothing.
            let since = holder.since.as_deref().map(humantime::parse_rfc3339_weak);
            let held = since.and_then(|since| now.duration_since(since.ok()?).ok());
            let held = held.map_or(String::new(), |held| format!(" {}", seconds(held)));
            let (who, purpose) = (&holder.who, &holder.purpose);
            format!("waiting {waited} ({ahead} ahead): \"{name}\" held{held} by {who}{purpose}")
        }
        Waiting::Frozen { words } => format!("waiting {waited}: \"{name}\" is frozen{words}"),
        Waiting::Delayed { .. } => format!(
            "waiting {waited}: \"{name}\" was left without a release, and what may still run there is being stopped"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::HeldBy;

    #[test]
    fn a_line_says_who_for_how_long_and_how_many_are_before_us() {
        let behind = |since: &str, ahead| Waiting::Behind {
            ahead,
            holder: HeldBy {
                who: "ops@web1 (pid 7)".into(),
                since: Some(since.into()),
                purpose: ", owner ann: month end".into(),
            },
        };
        let frozen = Waiting::Frozen {
            words: " by ann: audit".into(),
        };
        let delayed = Waiting::Delayed {
            left: Duration::from_millis(2950),
        };
        let foreign = Waiting::Behind {
            ahead: 2,
            holder: "unknown (not meshlock)".into(),
        };
        let now = humantime::parse_rfc3339("2026-11-30T21:24:17Z").expect("a time");
        for (waiting, seconds, said_so, current_so) in [
            (
                &behind("2026-11-30T21:20:07Z", 1),
                83,
                "waiting (1 ahead of us): \"x\" is held by ops@web1 (pid 7) since 2026-11-30T21:20:07Z, owner ann: month end",
                "waiting 1m 23s (1 ahead): \"x\" held 4m 10s by ops@web1 (pid 7), owner ann: month end",
            ),
            // Its clock is ahead of ours, or it is no time at all.
            (
                &behind("2026-11-30T21:24:18Z", 3),
                0,
                "waiting (3 ahead of us): \"x\" is held by ops@web1 (pid 7) since 2026-11-30T21:24:18Z, owner ann: month end",
                "waiting 0s (3 ahead): \"x\" held by ops@web1 (pid 7), owner ann: month end",
            ),
            (
                &behind("long ago", 1),
                3600,
                "waiting (1 ahead of us): \"x\" is held by ops@web1 (pid 7) since long ago, owner ann: month end",
                "waiting 1h (1 ahead): \"x\" held by ops@web1 (pid 7), owner ann: month end",
            ),
            (
                &foreign,
                5,
                "waiting (2 ahead of us): \"x\" is held by unknown (not meshlock)",
                "waiting 5s (2 ahead): \"x\" held by unknown (not meshlock)",
            ),
            (
                &frozen,
                5,
                "waiting: \"x\" is frozen by ann: audit",
                "waiting 5s: \"x\" is frozen by ann: audit",
            ),
            (
                &delayed,
                5,
                "\"x\" was left without a release: waiting 3.0 s for what may still run there to be stopped",
                "waiting 5s: \"x\" was left without a release, and what may still run there is being stopped",
            ),
        ] {
            assert_eq!(said("x", waiting), said_so);
            let waited = Duration::from_secs(seconds) + Duration::from_millis(900);
            assert_eq!(current("x", waiting, waited, now), current_so);
        }
    }
}
