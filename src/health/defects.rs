//! The one table of what is known to be wrong with released versions of etcd, as far as it concerns locks. To keep it
//! up, add a row; the numbers are those of etcd's change logs.

use super::Level;

/// A released version, without what comes after its three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

#[derive(Debug)]
pub struct Defect {
    pub code: &'static str,
    pub level: Level,
    pub what: &'static str,
    /// Older ones do not have it.
    pub since: Version,
    /// The first release without it of each line that was mended; older lines were not, newer ones never had it.
    pub fixed: &'static [Version],
    /// Concerns only clusters with users.
    pub of_users: bool,
    pub reference: &'static str,
}

const EVER: Version = Version(0, 0, 0);

pub const DEFECTS: &[Defect] = &[
    Defect {
        code: "etcd-inconsistent-data",
        level: Level::Red,
        what: "a member that is killed can lose writes that the others have, locks among them",
        since: Version(3, 5, 0),
        fixed: &[Version(3, 5, 3)],
        of_users: false,
        reference: "https://github.com/etcd-io/etcd/pull/13908",
    },
    Defect {
        code: "etcd-single-member-durability",
        level: Level::Yellow,
        what: "a cluster of one member can forget a lock that it has granted if it is killed",
        since: EVER,
        fixed: &[Version(3, 4, 21), Version(3, 5, 5)],
        of_users: false,
        reference: "https://github.com/etcd-io/etcd/issues/14370",
    },
    Defect {
        code: "etcd-deposed-leader-renews",
        level: Level::Yellow,
        what: "a deposed leader goes on renewing leases that the new one lets run out (meshlock checks, etcdctl lock does not)",
        since: EVER,
        fixed: &[Version(3, 4, 31), Version(3, 5, 13)],
        of_users: false,
        reference: "https://github.com/etcd-io/etcd/issues/15247",
    },
    Defect {
        code: "etcd-revoked-lease-renewed",
        level: Level::Yellow,
        what: "a lease that was just revoked can seem to be renewed (meshlock checks, etcdctl lock does not)",
        since: EVER,
        fixed: &[Version(3, 4, 38), Version(3, 5, 23), Version(3, 6, 5)],
        of_users: false,
        reference: "https://github.com/etcd-io/etcd/pull/20615",
    },
    Defect {
        code: "etcd-stale-reads",
        level: Level::Yellow,
        what: "a read that should be linearizable can be stale after a pause of a process or a change of leader, and show a lock that is gone",
        since: EVER,
        fixed: &[Version(3, 4, 42), Version(3, 5, 28), Version(3, 6, 9)],
        of_users: false,
        reference: "https://github.com/etcd-io/etcd/pull/21417",
    },
    Defect {
        code: "etcd-lost-watch-events",
        level: Level::Yellow,
        what: "a watch can miss a deletion around a compaction: a waiter then starts up to 10 s late",
        since: EVER,
        fixed: &[Version(3, 4, 36), Version(3, 5, 18)],
        of_users: false,
        reference: "https://github.com/etcd-io/etcd/pull/19249",
    },
    Defect {
        code: "etcd-defragmentation-corrupts",
        level: Level::Yellow,
        what: "defragmenting a member that is just catching up can corrupt its data",
        since: EVER,
        fixed: &[Version(3, 4, 38), Version(3, 5, 23), Version(3, 6, 5)],
        of_users: false,
        reference: "https://github.com/etcd-io/etcd/pull/20650",
    },
    Defect {
        code: "etcd-queue-without-lease",
        level: Level::Yellow,
        what: "etcdctl lock of this version, and the server's own lock call, go on without the lock if their lease ends while they wait: do not share locks with them (--lock-key)",
        since: EVER,
        fixed: &[Version(3, 5, 0)],
        of_users: false,
        reference: "https://github.com/etcd-io/etcd/issues/11456",
    },
    Defect {
        code: "etcd-authorization-bypass",
        level: Level::Yellow,
        what: "whoever reaches etcd can keep leases alive, compact, and raise alarms that stop all writes, without being a user (CVE-2026-33413)",
        since: EVER,
        fixed: &[Version(3, 4, 42), Version(3, 5, 28), Version(3, 6, 9)],
        of_users: true,
        reference: "https://github.com/etcd-io/etcd/security/advisories/GHSA-q8m4-xhhv-38mg",
    },
    Defect {
        code: "etcd-transaction-bypass",
        level: Level::Yellow,
        what: "users can read past their rights, and bind keys to others' leases, by transactions (CVE-2026-44283)",
        since: EVER,
        fixed: &[Version(3, 4, 44), Version(3, 5, 30), Version(3, 6, 11)],
        of_users: true,
        reference: "https://github.com/etcd-io/etcd/security/advisories/GHSA-x35m-3gp4-4fh5",
    },
    Defect {
        code: "etcd-end-of-life",
        level: Level::Yellow,
        what: "this line is no longer maintained: what is found in it stays in it",
        since: EVER,
        fixed: &[Version(3, 5, 0)],
        of_users: false,
        reference: "https://etcd.io/docs/latest/op-guide/versioning/",
    },
];

impl Defect {
    pub fn concerns(&self, version: Version) -> bool {
        let line = |version: &Version| (version.0, version.1);
        version >= self.since
            && match self.fixed.iter().find(|fixed| line(fixed) == line(&version)) {
                Some(fixed) => version < *fixed,
                None => self.fixed.iter().all(|fixed| line(&version) < line(fixed)),
            }
    }

    /// The fix in the version's own line, else the first release that has none of all these defects.
    pub fn remedy(&self, version: Version) -> String {
        let own = self
            .fixed
            .iter()
            .find(|fixed| (fixed.0, fixed.1) == (version.0, version.1));
        let to = own.copied().or_else(|| version.next_sound());
        to.map_or_else(String::new, |to| format!("upgrade to {to} or later"))
    }
}

impl Version {
    /// The first later release that has none of all these defects.
    pub fn next_sound(self) -> Option<Self> {
        let fixes = DEFECTS.iter().flat_map(|defect| defect.fixed).copied();
        fixes
            .filter(|fixed| *fixed > self && !DEFECTS.iter().any(|defect| defect.concerns(*fixed)))
            .min()
    }

    /// `3.5.0-rc.1` is taken for 3.5.0.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.split(['-', '+']).next()?;
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let version = Self(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn known(version: &str) -> BTreeSet<&'static str> {
        let version = Version::parse(version).expect("a version");
        DEFECTS
            .iter()
            .filter(|defect| defect.concerns(version))
            .map(|defect| defect.code.strip_prefix("etcd-").expect("etcd's"))
            .collect()
    }

    #[test]
    fn each_version_has_what_its_change_log_mends_later() {
        assert_eq!(
            known("3.4.23"),
            BTreeSet::from([
                "deposed-leader-renews",
                "revoked-lease-renewed",
                "stale-reads",
                "lost-watch-events",
                "defragmentation-corrupts",
                "queue-without-lease",
                "authorization-bypass",
                "transaction-bypass",
                "end-of-life"
            ])
        );
        assert!(known("3.4.20").contains("single-member-durability"));
        assert!(known("3.5.2").contains("inconsistent-data"));
        assert!(!known("3.4.20").contains("inconsistent-data"), "it came with 3.5");
        assert_eq!(known("3.4.45"), BTreeSet::from(["end-of-life", "queue-without-lease"]));
        assert_eq!(known("3.5.29"), BTreeSet::from(["transaction-bypass"]));
        assert_eq!(known("3.6.4").len(), 5);
        for clean in ["3.5.30", "3.6.11", "3.7.0", "4.0.0"] {
            assert_eq!(known(clean), BTreeSet::new(), "{clean}");
        }
        assert!(known("3.3.27").len() >= 10, "older lines were not mended");
    }

    #[test]
    fn the_remedy_is_the_nearest_one() {
        let of = |code: &str| DEFECTS.iter().find(|defect| defect.code == code).expect("a defect");
        let stale = of("etcd-stale-reads");
        assert_eq!(stale.remedy(Version(3, 4, 23)), "upgrade to 3.4.42 or later");
        // Not to 3.5.0, which has worse ones.
        for older in [stale, of("etcd-end-of-life")] {
            assert_eq!(older.remedy(Version(3, 3, 27)), "upgrade to 3.5.30 or later");
        }
        assert_eq!(
            of("etcd-end-of-life").remedy(Version(3, 4, 45)),
            "upgrade to 3.5.30 or later"
        );
    }

    #[test]
    fn codes_are_unique_and_fixes_in_order() {
        let codes: BTreeSet<_> = DEFECTS.iter().map(|defect| defect.code).collect();
        assert_eq!(codes.len(), DEFECTS.len());
        for defect in DEFECTS {
            assert!(defect.fixed.is_sorted() && !defect.fixed.is_empty(), "{}", defect.code);
            assert!(defect.reference.starts_with("https://"));
        }
    }

    #[test]
    fn versions_are_three_numbers() {
        assert_eq!(Version::parse("3.5.30"), Some(Version(3, 5, 30)));
        assert_eq!(Version::parse("3.6.0-rc.1"), Some(Version(3, 6, 0)));
        for odd in ["", "3.5", "3.5.x", "3.5.0.1"] {
            assert_eq!(Version::parse(odd), None, "{odd:?}");
        }
    }
}
