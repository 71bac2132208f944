//! The arithmetic of lease, deadline and grace: every span that the two decision functions go by, made
//! once from the granted TTL; and the one policy that is a choice of the user's. Pure; knows neither etcd nor processes.

use clap::ValueEnum;
use std::fmt;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// The TTLs that may be asked for. Below 4 s an ordinary election would stop commands; above 300 s
/// etcd's lease checkpoints can shorten a lease behind our back (etcd-io/etcd#13508).
pub const TTL_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_secs(4)..=Duration::from_secs(300);

/// What the user asked of the lease and of stopping; the rules follow from it and the granted TTL.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub ttl: Duration,
    /// `None`: the default, min(5 s, TTL/6).
    pub grace: Option<Duration>,
    pub lost_grace: Duration,
    pub max_runtime: Option<Duration>,
    pub release_timeout: Duration,
}

/// What becomes of processes that the command leaves running when it ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stragglers {
    /// Leave them alone; the lock goes when the command itself ends.
    Leave,
    /// Keep the lock until the last of them has ended.
    Wait,
    /// Kill them, then release.
    Kill,
}

/// The rules of one hold. All spans are real time on `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// What etcd granted, never what was asked.
    pub ttl: Duration,
    /// How long before the lease's earliest end the tree must be dead: clock drift and the time to kill.
    pub margin: Duration,
    /// From the stop signal to SIGKILL.
    pub grace: Duration,
    /// From a proof of loss to SIGKILL.
    pub lost_grace: Duration,
    /// From one renewal to the next, before jitter.
    pub interval: Duration,
    /// From a failed renewal to the next try.
    pub retry: Duration,
    /// A renewal answered later than this is not accepted: it may be an old leader's (etcd-io/etcd#15247).
    pub answer_within: Duration,
    /// How long nobody starts after an unclean departure.
    pub handover_delay: Duration,
    /// How long the guardian may take to claim an offered hold.
    pub claim_within: Duration,
    /// A second INT or TERM sooner than this after the first is a repetition, not an order to hurry.
    pub second_signal_after: Duration,
    pub max_runtime: Option<Duration>,
    pub release_timeout: Duration,
    pub checks: Checks,
}

/// The single rules that the model checker takes away one at a time; the product has them all.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches, each named by the rule it stands for"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checks {
    /// A renewal counts from its sending, not from its answer.
    pub send_instant: bool,
    /// A renewal is accepted only with a linearizable read of the own key in the same raft term.
    pub own_key_read: bool,
    /// A departure starts the command only where a read has shown that nobody else is ahead.
    pub read_before_start: bool,
    /// Only one that took entry and open record at one revision does so without a read after it.
    pub one_revision: bool,
    /// Nobody starts beside an unclean departure before the hand-over delay.
    pub handover_delay: bool,
    /// The guardian kills at the deadline on its own.
    pub own_timer: bool,
    /// The keeper kills what a vanished guardian left.
    pub last_duty: bool,
    /// The lock is released only when the tree was seen dead.
    pub tree_check: bool,
}

impl Checks {
    pub const ALL: Self = Self {
        send_instant: true,
        own_key_read: true,
        read_before_start: true,
        one_revision: true,
        handover_delay: true,
        own_timer: true,
        last_duty: true,
        tree_check: true,
    };
}

/// Why a combination cannot keep the promise; displays as one sentence with the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    TtlOutOfRange {
        ttl: Duration,
    },
    GraceTooLong {
        ttl: Duration,
        margin: Duration,
        grace: Duration,
        needed: Duration,
    },
    LostGraceTooLong {
        lost_grace: Duration,
        handover_delay: Duration,
    },
}

impl Rules {
    /// The rules for a lease of `granted`.
    ///
    /// # Errors
    /// Where TTL − margin − grace leaves less than one renewal interval and a second for its retry, or
    /// `--lost-grace` exceeds half the hand-over delay: the next holder could then meet a living tree.
    pub fn new(granted: Duration, asked: &Asked) -> Result<Self, Refusal> {
        let margin = margin(granted);
        let grace = asked.grace.unwrap_or((5 * SECOND).min(granted / 6));
        let interval = if granted < 15 * SECOND { SECOND } else { granted / 5 };
        let needed = interval + SECOND;
        if granted.saturating_sub(margin).saturating_sub(grace) < needed {
            return Err(Refusal::GraceTooLong {
                ttl: granted,
                margin,
                grace,
                needed,
            });
        }
        let handover_delay = handover_delay(granted);
        if asked.lost_grace > handover_delay / 2 {
            return Err(Refusal::LostGraceTooLong {
                lost_grace: asked.lost_grace,
                handover_delay,
            });
        }
        Ok(Self {
            ttl: granted,
            margin,
            grace,
            lost_grace: asked.lost_grace,
            interval,
            retry: Duration::from_millis(250),
            answer_within: SECOND.min(granted / 6),
            handover_delay,
            claim_within: SECOND,
            second_signal_after: SECOND,
            max_runtime: asked.max_runtime,
            release_timeout: asked.release_timeout,
            checks: Checks::ALL,
        })
    }

    /// The rules as asked, before etcd has granted anything.
    ///
    /// # Errors
    /// As [`Rules::new`], and where the TTL is out of [`TTL_RANGE`].
    pub fn as_asked(asked: &Asked) -> Result<Self, Refusal> {
        if !TTL_RANGE.contains(&asked.ttl) {
            return Err(Refusal::TtlOutOfRange { ttl: asked.ttl });
        }
        Self::new(asked.ttl, asked)
    }
}

/// How long before the earliest end of a lease of `granted` nothing may rely on it any more.
pub fn margin(granted: Duration) -> Duration {
    SECOND.max(granted / 10)
}

/// How long nobody starts after an unclean departure from under a lease of `ttl`.
pub fn handover_delay(ttl: Duration) -> Duration {
    SECOND.max(ttl / 10)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |span: &Duration| format!("{} s", span.as_secs_f64());
        match self {
            Self::TtlOutOfRange { ttl } => write!(
                f,
                "--ttl {} is out of range: it may be {} to {}",
                seconds(ttl),
                seconds(TTL_RANGE.start()),
                seconds(TTL_RANGE.end())
            ),
            Self::GraceTooLong {
                ttl,
                margin,
                grace,
                needed,
            } => write!(
                f,
                "a grace of {} is too long for a TTL of {}: less the margin of {} it leaves {}, and {} are needed to renew",
                seconds(grace),
                seconds(ttl),
                seconds(margin),
                seconds(&ttl.saturating_sub(*margin).saturating_sub(*grace)),
                seconds(needed)
            ),
            Self::LostGraceTooLong {
                lost_grace,
                handover_delay,
            } => write!(
                f,
                "--lost-grace {} is too long: it may be half the hand-over delay of {} at the most",
                seconds(lost_grace),
                seconds(handover_delay)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(ttl: u64, grace: Option<u64>) -> Asked {
        Asked {
            ttl: Duration::from_secs(ttl),
            grace: grace.map(Duration::from_secs),
            lost_grace: Duration::ZERO,
            max_runtime: None,
            release_timeout: Duration::from_secs(5),
        }
    }

    #[test]
    fn every_ttl_in_range_has_a_default_grace_that_fits() {
        for ttl in 4..=300 {
            assert!(Rules::as_asked(&asked(ttl, None)).is_ok(), "TTL {ttl} s");
        }
    }

    #[test]
    fn a_grace_that_leaves_no_time_to_renew_is_refused_with_the_numbers() {
        let refusal = Rules::as_asked(&asked(10, Some(8))).expect_err("10 - 1 - 8 < 2");
        assert_eq!(
            refusal.to_string(),
            "a grace of 8 s is too long for a TTL of 10 s: less the margin of 1 s it leaves 1 s, and 2 s are needed to renew"
        );
    }

    #[test]
    fn a_lost_grace_above_half_the_handover_delay_is_refused() {
        let mut asked = asked(30, None);
        asked.lost_grace = Duration::from_millis(1501);
        assert!(matches!(Rules::as_asked(&asked), Err(Refusal::LostGraceTooLong { .. })));
        asked.lost_grace = Duration::from_millis(1500);
        assert!(Rules::as_asked(&asked).is_ok());
    }

    #[test]
    fn ttls_out_of_range_are_refused() {
        for ttl in [0, 3, 301, 9_000_000_000] {
            assert!(matches!(
                Rules::as_asked(&asked(ttl, None)),
                Err(Refusal::TtlOutOfRange { .. })
            ));
        }
    }
}
