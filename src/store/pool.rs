//! The endpoints of one cluster: which to ask next, what is known of each, and how long a try may take. Opens no
//! connection and asks nobody.

use super::Fault;
use super::host::{Host, Reached};
use super::line::Line;
use super::secure::Trouble;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// With several endpoints none may take longer than this from the others.
const TRY_AT_MOST: Duration = Duration::from_secs(1);

/// The endpoints, each with what is known of it.
pub(super) struct Pool {
    pub(super) members: Vec<Member>,
    /// The one to ask next.
    pub(super) current: usize,
    /// The only one that counts: the one expected, else that of the first answer.
    pub(super) cluster: Option<u64>,
    /// In a row, whoever it was that failed.
    failures: usize,
    /// DNS is being asked for the members, or was a moment ago.
    pub(super) looking: bool,
}

pub(super) struct Member {
    pub(super) url: Arc<str>,
    /// DNS knows it no more.
    retired: bool,
    pub(super) host: Arc<Host>,
    pub(super) connected: Option<Connected>,
    /// A connection that is being made ahead of the first call, which then waits for it and is told what came of it.
    pub(super) ahead: Option<JoinHandle<Result<Connected, Fault>>>,
    pub(super) standing: Standing,
    pub(super) trouble: Trouble,
    /// Wakes who watches there when a call has failed, so that the watch moves on with the calls.
    pub(super) failed: Arc<Notify>,
}

#[derive(Clone)]
pub(super) struct Connected {
    /// Shared, since it is as large as a page.
    pub(super) client: Arc<Line>,
    pub(super) to: Reached,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Standing {
    #[default]
    Unknown,
    /// It has answered for our cluster.
    Ours,
    /// It answered for another one, and never for ours.
    Foreign,
}

impl Member {
    fn at(url: &str) -> Self {
        Self {
            url: url.into(),
            retired: false,
            host: Arc::new(Host::of(url)),
            connected: None,
            ahead: None,
            standing: Standing::default(),
            trouble: Trouble::default(),
            failed: Arc::default(),
        }
    }
}

impl Pool {
    pub(super) fn new(urls: &[String], cluster: Option<u64>) -> Self {
        Self {
            members: urls.iter().map(|url| Member::at(url)).collect(),
            current: 0,
            cluster,
            failures: 0,
            looking: false,
        }
    }

    /// Holds the answer's cluster id against ours. An answer without one (an error read as success) says nothing.
    pub(super) fn vouch(&mut self, at: usize, cluster: Option<u64>) -> Result<(), Fault> {
        self.failures = 0;
        let Some(cluster) = cluster else { return Ok(()) };
        let ours = *self.cluster.get_or_insert(cluster);
        let member = &mut self.members[at];
        let endpoint = &member.url;
        if cluster == ours {
            member.standing = Standing::Ours;
            return Ok(());
        }
        if member.standing == Standing::Ours {
            return Err(Fault::Replaced {
                why: format!("{endpoint}: the cluster {ours:x} has been replaced by {cluster:x}"),
            });
        }
        let why = format!("{endpoint}: it serves another cluster ({cluster:x}) than the one of the lock ({ours:x})");
        member.standing = Standing::Foreign;
        self.advance(at);
        Err(Fault::Foreign { why })
    }

    /// The next endpoint is current, and what broke is used no more.
    pub(super) fn failed(&mut self, at: usize, broke: Option<&Reached>) {
        let member = &mut self.members[at];
        if let Some(broken) = broke {
            member.host.failed(broken);
            // Another call may have found a better one.
            member.connected.take_if(|connected| connected.to.is(broken));
        }
        member.failed.notify_waiters();
        self.advance(at);
        self.failures += 1;
    }

    /// Whether all have failed, each address once, and nobody looks for others yet; then somebody does from now on.
    pub(super) fn wants_others(&mut self) -> bool {
        let wants = self.failures >= self.turns() && !self.looking;
        self.looking |= wants;
        wants
    }

    /// So long may one try take, so that each address gets a turn within the time.
    pub(super) fn share(&self, time: Duration) -> Duration {
        let turns = u32::try_from(self.turns()).unwrap_or(u32::MAX);
        let share = time / turns.max(1);
        if self.active().count() > 1 {
            share.min(TRY_AT_MOST)
        } else {
            share
        }
    }

    fn active(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.retired)
    }

    /// After so many failures in a row each address of each endpoint has been tried.
    pub(super) fn turns(&self) -> usize {
        let addresses = self.active().map(|member| member.host.addresses());
        self.active().count() * addresses.max().unwrap_or(1)
    }

    /// These are the members now. Others keep their place, since calls may be under way there.
    pub(super) fn take_in(&mut self, urls: &[String]) {
        for member in &mut self.members {
            member.retired = !urls.iter().any(|url| **url == *member.url);
        }
        for url in urls {
            if !self.members.iter().any(|member| **url == *member.url) {
                self.members.push(Member::at(url));
            }
        }
    }

    /// To the next endpoint that is neither foreign nor retired, unless another call has already moved on from `at`.
    fn advance(&mut self, at: usize) {
        if self.current != at {
            return;
        }
        let count = self.members.len();
        self.current = (1..=count)
            .map(|step| (at + step) % count)
            .find(|&next| self.members[next].standing != Standing::Foreign && !self.members[next].retired)
            .unwrap_or(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(urls: &[&str]) -> Pool {
        let urls: Vec<String> = urls.iter().map(ToString::to_string).collect();
        Pool::new(&urls, None)
    }

    fn fail(pool: &mut Pool) -> usize {
        pool.failed(pool.current, None);
        pool.current
    }

    #[test]
    fn a_stranger_and_one_that_has_left_are_not_asked_again() {
        let mut pool = of(&["http://a:1", "http://b:1", "http://c:1"]);
        assert_eq!((fail(&mut pool), fail(&mut pool), fail(&mut pool)), (1, 2, 0));
        assert_eq!(pool.vouch(0, Some(1)), Ok(()));
        assert!(matches!(pool.vouch(1, Some(2)), Err(Fault::Foreign { .. })));
        assert_eq!((fail(&mut pool), fail(&mut pool)), (2, 0));
        pool.take_in(&["http://a:1".to_owned(), "http://d:1".to_owned()]);
        assert_eq!((fail(&mut pool), fail(&mut pool)), (3, 0));
        assert_eq!(pool.turns(), 2);
    }

    #[test]
    fn others_are_looked_for_once_all_have_failed_in_a_row() {
        let mut pool = of(&["http://a:1", "http://b:1"]);
        fail(&mut pool);
        assert!(!pool.wants_others());
        assert_eq!(pool.vouch(1, Some(1)), Ok(()));
        fail(&mut pool);
        assert!(!pool.wants_others());
        fail(&mut pool);
        assert!(pool.wants_others());
        assert!(!pool.wants_others(), "somebody looks already");
    }

    #[test]
    fn one_endpoint_has_all_the_time_and_several_share_it() {
        let time = Duration::from_secs(3);
        assert_eq!(of(&["http://a:1"]).share(time), time);
        assert_eq!(of(&["http://a:1"; 2]).share(time), TRY_AT_MOST);
        assert_eq!(of(&["http://a:1"; 6]).share(time), time / 6);
    }
}
