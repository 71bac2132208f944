//! What happens to a cluster in its ordinary life. Tried again where it fails: a member that has just come back to
//! hundreds of clients may take too long for etcdctl.

use crate::harness::etcd::Client;
use crate::harness::{Cluster, eventually, so};

/// Has the leader hand its office to another member.
pub(crate) fn move_leader(cluster: &Cluster, to: usize) {
    let id = cluster.members[to].member_id();
    eventually("the other leads", || {
        let leader = cluster.leader();
        if leader != to {
            let mut move_leader = cluster.members[leader].etcdctl_command();
            move_leader.args(["move-leader", &id]).output().expect("etcdctl");
        }
        so(cluster.leader() == to)
    });
}

/// Forgets all that was before.
pub(crate) fn compact(member: &Client) {
    let etcdctl = |arguments: &[&str]| {
        let output = member.etcdctl_command().args(arguments).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    eventually("the history is compacted", || {
        // Something to be compacted: the holds themselves write nothing.
        let answer = etcdctl(&["put", "elsewhere", "news", "--write-out=json"])?;
        let answer: serde_json::Value = serde_json::from_slice(&answer).ok()?;
        etcdctl(&["compact", &answer.pointer("/header/revision")?.to_string()])
    });
}
