//! Whether a hold still stands, for those inside of it: what etcd says of it, and what follows from that. Reads
//! only; knows nothing of how the hold came about.

use crate::moment::Moment;
use crate::rules::margin;
use crate::store::etcd::Etcd;
use crate::store::inquiry::Left;
use crate::store::{Fault, Op, Read, Txn, What};
use std::time::Duration;

/// A hold as the command was told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The lock's name.
    pub name: String,
    /// The entry's key.
    pub key: String,
    /// The entry's create revision.
    pub token: i64,
    pub lease: i64,
    pub cluster: u64,
}

/// What etcd said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub left: Left,
    /// Read linearizably, and asked for only after `left` was answered.
    pub entry: Option<Entry>,
    /// The raft term of that read.
    pub term: u64,
    pub cluster: u64,
}

/// What is there under the entry's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub created: i64,
    pub lease: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// For at least this long.
    Held { left: Duration },
    /// `why` ends the sentence that begins with the lock.
    NotHeld { why: String },
    /// No hold of this TTL could ever have that much left.
    NeverSo { most: Duration },
    /// Neither can be told: ask again.
    Unproven { why: String },
}

/// A new leader may be elected between the two answers, hardly twice in a row.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(100);

/// Asks etcd until something is proven, a few times at the most.
///
/// # Errors
/// Where etcd could not be asked.
pub async fn prove(etcd: &Etcd, claim: &Claim, at_least: Duration) -> Result<Verdict, Fault> {
    let mut verdict = ask(etcd, claim, at_least).await?;
    for _ in 1..TRIES {
        if !matches!(verdict, Verdict::Unproven { .. }) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
        verdict = ask(etcd, claim, at_least).await?;
    }
    Ok(verdict)
}

async fn ask(etcd: &Etcd, claim: &Claim, at_least: Duration) -> Result<Verdict, Fault> {
    let evidence = async {
        // In this order: see `judge`.
        let left = etcd.lease_left(claim.lease).await?;
        let read = Op::Read(Read {
            what: What::Key(claim.key.clone()),
            created_before: None,
            keys_only: true,
        });
        let answer = etcd
            .txn(Txn {
                then: vec![read],
                ..Txn::default()
            })
            .await?;
        let entry = answer
            .reads
            .into_iter()
            .next()
            .and_then(|found| found.items.into_iter().next());
        Ok(Evidence {
            left,
            entry: entry.map(|item| Entry {
                created: item.created,
                lease: item.lease,
            }),
            term: answer.term,
            cluster: answer.cluster,
        })
    };
    match evidence.await {
        Ok(evidence) => Ok(judge(claim, &evidence, at_least, Moment::now())),
        Err(Fault::Foreign { why } | Fault::Replaced { why }) => Ok(Verdict::NotHeld {
            why: format!("cannot be held: {why}"),
        }),
        Err(fault) => Err(fault),
    }
}

/// The verdict at `now`.
///
/// How long a lease lives is told by whoever takes itself for the leader, which a deposed one goes on doing after a
/// pause (etcd-io/etcd#15247). A linearizable read, begun after that answer and in the same raft term, shows that there
/// was no newer leader when it was given; any later one only prolongs the lease.
pub fn judge(claim: &Claim, evidence: &Evidence, at_least: Duration, now: Moment) -> Verdict {
    let not_held = |why: String| Verdict::NotHeld { why };
    let Evidence { left, entry, .. } = evidence;
    if evidence.cluster != claim.cluster {
        return not_held(format!(
            "cannot be held: the cluster {:x} answers, and the lock is in {:x}",
            evidence.cluster, claim.cluster
        ));
    }
    let Some(entry) = entry else {
        return not_held(
            "is not held any more: its entry in etcd is gone (the lease was revoked or ran out, or somebody deleted the key)"
                .to_owned(),
        );
    };
    if entry.created != claim.token {
        return not_held(format!(
            "is not held any more: its entry in etcd was replaced (token {} now, ours is {})",
            entry.created, claim.token
        ));
    }
    if entry.lease != claim.lease {
        return not_held("is not held any more: its entry in etcd is no longer bound to our lease".to_owned());
    }
    if left.term != evidence.term {
        return Verdict::Unproven {
            why: "etcd's leader changed meanwhile".to_owned(),
        };
    }
    let (Some(remaining), Some(granted)) = (left.left, left.granted) else {
        return not_held("can no longer be relied on: its lease has run out".to_owned());
    };
    // A demoted leader tells of centuries.
    let end = left.sent + remaining.min(granted);
    let sure = (end - margin(granted)).since(now);
    let most = granted.saturating_sub(margin(granted));
    if at_least > most {
        return Verdict::NeverSo { most };
    }
    if sure.is_zero() {
        not_held(format!(
            "can no longer be relied on: its lease ends within the margin of {}",
            seconds(margin(granted))
        ))
    } else if sure < at_least {
        not_held(format!(
            "is held for {} more, and {} were asked for",
            seconds(sure),
            seconds(at_least)
        ))
    } else {
        Verdict::Held { left: sure }
    }
}

fn seconds(span: Duration) -> String {
    format!("{} s", (span.as_secs_f64() * 10.0).floor() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn claim() -> Claim {
        Claim {
            name: "billing".to_owned(),
            key: "meshlock/lock/billing/2a".to_owned(),
            token: 7,
            lease: 0x2a,
            cluster: 0xc,
        }
    }

    /// Of a hold that stands, with 20 s of 30 left.
    fn sound() -> Evidence {
        Evidence {
            left: Left {
                sent: at(100),
                left: Some(20 * SECOND),
                granted: Some(30 * SECOND),
                term: 4,
            },
            entry: Some(Entry {
                created: 7,
                lease: 0x2a,
            }),
            term: 4,
            cluster: 0xc,
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    fn verdict(change: impl FnOnce(&mut Evidence)) -> Verdict {
        let mut evidence = sound();
        change(&mut evidence);
        judge(&claim(), &evidence, Duration::ZERO, at(101))
    }

    #[track_caller]
    fn not_held(verdict: &Verdict, part: &str) {
        assert!(
            matches!(verdict, Verdict::NotHeld { why } if why.contains(part)),
            "{verdict:?}"
        );
    }

    #[test]
    fn what_is_left_counts_from_the_sending_and_less_the_margin() {
        assert_eq!(verdict(|_| ()), Verdict::Held { left: 16 * SECOND });
        let asked = |at_least| judge(&claim(), &sound(), at_least, at(101));
        assert_eq!(asked(16 * SECOND), Verdict::Held { left: 16 * SECOND });
        not_held(&asked(17 * SECOND), "16 s more, and 17 s were asked for");
        not_held(&asked(27 * SECOND), "27 s were asked for");
        assert_eq!(asked(28 * SECOND), Verdict::NeverSo { most: 27 * SECOND });
    }

    #[test]
    fn a_lease_within_its_margin_or_at_its_end_is_not_relied_on() {
        for left in [Some(3 * SECOND), Some(4 * SECOND), None] {
            not_held(&verdict(|evidence| evidence.left.left = left), "relied on");
        }
        not_held(&verdict(|evidence| evidence.left.granted = None), "relied on");
    }

    #[test]
    fn centuries_are_no_more_than_the_ttl() {
        let long = verdict(|evidence| evidence.left.left = Some(Duration::from_secs(9_223_372_036)));
        assert_eq!(long, Verdict::Held { left: 26 * SECOND });
    }

    #[test]
    fn another_entry_another_lease_or_another_cluster_is_not_our_hold() {
        not_held(&verdict(|evidence| evidence.entry = None), "gone");
        let other = |created, lease| verdict(|evidence| evidence.entry = Some(Entry { created, lease }));
        not_held(&other(8, 0x2a), "replaced (token 8 now, ours is 7)");
        not_held(&other(7, 0x2b), "bound to our lease");
        not_held(&other(7, 0), "bound to our lease");
        not_held(&verdict(|evidence| evidence.cluster = 0xd), "the cluster d answers");
        // An answer that does not say of which cluster.
        not_held(&verdict(|evidence| evidence.cluster = 0), "the cluster 0 answers");
    }

    #[test]
    fn an_answer_of_another_term_proves_nothing_but_a_loss() {
        for term in [3, 5] {
            let changed = verdict(|evidence| evidence.term = term);
            assert!(matches!(changed, Verdict::Unproven { .. }), "{changed:?}");
        }
        let gone = verdict(|evidence| {
            evidence.term = 5;
            evidence.entry = None;
        });
        not_held(&gone, "gone");
    }

    #[test]
    fn a_loss_is_told_before_a_demand_that_cannot_be_met() {
        let mut evidence = sound();
        evidence.entry = None;
        not_held(&judge(&claim(), &evidence, 100 * SECOND, at(101)), "gone");
    }
}
