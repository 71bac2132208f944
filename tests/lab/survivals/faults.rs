//! The faults, one row each: on what servers, through which endpoints, and what happens.

use super::control::Control;
use crate::cluster::move_leader;
use crate::harness::etcd::{Client, Cut, free_port};
use crate::harness::proxy::black_hole;
use crate::harness::{Cluster, Etcd, eventually, pass, so};
use crate::hold::{Hold, TTL};
use crate::renewals;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub(super) struct Fault {
    pub(super) name: &'static str,
    pub(super) strike: fn() -> Trial,
}

/// What became of the two holds.
pub(super) struct Trial {
    pub(super) survived: bool,
    /// How old meshlock's last accepted renewal ever was.
    pub(super) oldest: Option<Duration>,
    /// Whether `etcdctl lock` survived the same.
    pub(super) control: bool,
}

/// In all that hurt one member it is the first among the endpoints, and so the one in use.
pub(super) const FAULTS: &[Fault] = &[
    fault("the leader is killed", || {
        of_three(Cluster::leader, |cluster, leader| cluster.members[leader].kill())
    }),
    fault("the leader is stopped", || {
        of_three(Cluster::leader, |cluster, leader| cluster.members[leader].pause())
    }),
    fault("the leader is cut off from the others", || cut(true, true)),
    fault("the leader is no longer heard by the others", || cut(true, false)),
    fault("the leader no longer hears the others", || cut(false, true)),
    fault("the member in use is killed, a follower", || {
        of_three(follower, |cluster, follower| cluster.members[follower].kill())
    }),
    fault("the member in use is stopped, a follower", || {
        of_three(follower, |cluster, follower| cluster.members[follower].pause())
    }),
    fault("each member is restarted in turn", || {
        of_three(Cluster::leader, |cluster, first| {
            for place in 0..3 {
                cluster.members[(first + place) % 3].restart();
            }
        })
    }),
    fault("the leader's office is moved", || {
        of_three(Cluster::leader, |cluster, leader| {
            move_leader(cluster, (leader + 1) % 3);
        })
    }),
    fault("the only member is away for 2 s", || {
        let mut etcd = Etcd::start();
        let site = Site::at(etcd.endpoint(), etcd.client());
        site.survives(|| away(&mut etcd))
    }),
    fault("the only member, with users, is away; then a role changes", || {
        let (mut etcd, options) = with_users();
        let mut site = Site::at(etcd.endpoint(), etcd.client());
        site.options = options;
        site.survives(|| {
            away(&mut etcd);
            grant(&etcd, "read", "elsewhere/");
        })
    }),
    fault("the first endpoint is dead", || {
        beside(&format!("127.0.0.1:{}", free_port()))
    }),
    fault("the first endpoint hangs", || {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        beside(&silent.local_addr().expect("an address").to_string())
    }),
    fault("the first endpoint is a black hole", || {
        let (hole, _full) = black_hole();
        beside(&hole)
    }),
];

const fn fault(name: &'static str, strike: fn() -> Trial) -> Fault {
    Fault { name, strike }
}

/// Three members of which one is the fault's.
fn of_three(which: fn(&Cluster) -> usize, strike: impl FnOnce(&mut Cluster, usize)) -> Trial {
    let mut cluster = Cluster::start();
    let hurt = which(&cluster);
    let mut endpoints: Vec<String> = cluster.members.iter().map(|member| member.endpoint()).collect();
    endpoints.rotate_left(hurt);
    let site = Site::at(endpoints.join(","), cluster.members[(hurt + 1) % 3].client());
    site.survives(|| strike(&mut cluster, hurt))
}

fn follower(cluster: &Cluster) -> usize {
    (cluster.leader() + 1) % 3
}

fn cut(speech: bool, hearing: bool) -> Trial {
    of_three(Cluster::leader, |cluster, leader| {
        cluster.isolate(leader, Cut { speech, hearing });
        eventually("another leads", || so(cluster.leader() != leader));
    })
}

/// Shorter than 3 s, until it serves again.
fn away(etcd: &mut Etcd) {
    etcd.kill();
    pass(Duration::from_secs(2));
    etcd.restart();
}

/// One server behind an endpoint that is none.
fn beside(first: &str) -> Trial {
    let etcd = Etcd::start();
    Site::at(format!("{first},{}", etcd.address()), etcd.client()).survives(|| {})
}

/// One server with users, whose tokens end soon where they are not used, and how both holders say who they are.
fn with_users() -> (Etcd, Vec<String>) {
    let mut etcd = Etcd::start_with(&["--auth-token=simple", "--auth-token-ttl=3"]);
    etcd.etcdctl(&["user", "add", "billing:secret"]);
    etcd.etcdctl(&["role", "add", "locks"]);
    for prefix in ["meshlock/", CONTROL] {
        grant(&etcd, "readwrite", prefix);
    }
    etcd.etcdctl(&["user", "grant-role", "billing", "locks"]);
    etcd.enable_auth();
    (etcd, vec!["--user=billing:secret".to_owned()])
}

fn grant(etcd: &Etcd, right: &str, prefix: &str) {
    etcd.etcdctl(&["role", "grant-permission", "locks", "--prefix=true", right, prefix]);
}

/// Where the two holds are to live through a fault.
struct Site {
    endpoints: String,
    options: Vec<String>,
    /// Whom the fault does not concern.
    reader: Client,
}

/// The lock of `etcdctl lock`.
const CONTROL: &str = "control";

impl Site {
    const fn at(endpoints: String, reader: Client) -> Self {
        Self {
            endpoints,
            options: Vec::new(),
            reader,
        }
    }

    /// From the blow on for longer than a TTL, within which a lease ends that is not renewed. What was broken stays
    /// so to the end: the release has to live through it as well.
    fn survives(self, strike: impl FnOnce()) -> Trial {
        let hold = Hold::take(&self.endpoints, &self.options, "survivor");
        let control = Control::take(&self.endpoints, &self.options, CONTROL, &self.reader);
        let oldest = renewals::oldest(hold.guardian());
        strike();
        pass(TTL + Duration::from_secs(1));
        let control = control.end(&self.reader);
        // Its panic tells what went wrong.
        let survived = catch_unwind(AssertUnwindSafe(|| hold.end(&self.reader))).is_ok();
        Trial {
            survived,
            oldest: oldest.join().expect("a measurement"),
            control,
        }
    }
}
