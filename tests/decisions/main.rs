//! The two decision functions, walked through random histories: alone they promise little, coupled they
//! must keep every promise. Fast, and without etcd; the loops around them are held by the other tests.

#![expect(clippy::expect_used, reason = "a failed test should panic")]
#![expect(
    clippy::struct_excessive_bools,
    reason = "a model's facts are independent, each named by what it says"
)]

mod alone;
mod etcd;
mod guardian;
mod histories;
mod keeper;
mod protocol;
mod world;

use meshlock::rules::{Asked, Checks, Rules};
use std::time::Duration;

fn rules(checks: Checks) -> Rules {
    let asked = Asked {
        ttl: Duration::from_secs(4),
        grace: None,
        lost_grace: Duration::ZERO,
        max_runtime: None,
        release_timeout: Duration::from_secs(2),
    };
    Rules {
        checks,
        ..Rules::as_asked(&asked).expect("the smallest TTL")
    }
}
