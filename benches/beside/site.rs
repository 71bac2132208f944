//! The etcd on which something is measured, and how it is reached: one member or three, plain or by mutual TLS.

use crate::children::running;
use crate::harness::etcd::ServerTls;
use crate::harness::tls::{Authority, Identity};
use crate::harness::{Cluster, Etcd, directory, eventually, option, so};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) struct Site {
    pub(crate) title: String,
    pub(crate) cluster: Cluster,
    pub(crate) tls: Option<Tls>,
    /// For what is not etcd's: flock's file, gates, stamps.
    files: PathBuf,
}

/// Who signs, and who we are.
pub(crate) struct Tls {
    pub(crate) authority: Authority,
    pub(crate) client: Identity,
}

impl Site {
    pub(crate) fn plain(members: usize) -> Self {
        Self::start(members, None)
    }

    pub(crate) fn mutual_tls(members: usize) -> Self {
        let authority = Authority::new();
        let client = authority.issue("bench");
        Self::start(members, Some(Tls { authority, client }))
    }

    fn start(members: usize, tls: Option<Tls>) -> Self {
        let server = tls
            .as_ref()
            .map(|tls| (tls.authority.issue("etcd"), tls.authority.cert()));
        let server = server.as_ref().map(|(identity, authority)| ServerTls {
            cert: &identity.cert,
            key: &identity.key,
            clients: Some(authority),
        });
        let mut site = Self {
            title: format!(
                "{members} {}, {}",
                if members == 1 { "member" } else { "members" },
                if tls.is_some() { "mTLS" } else { "plain" }
            ),
            cluster: Cluster::form(&vec![&[][..]; members], false, server.as_ref()),
            tls,
            files: directory(),
        };
        let access = site.access();
        for member in &mut site.cluster.members {
            member.access(&access);
        }
        site.lead_by_the_last();
        site
    }

    /// meshlock asks the first endpoint, etcdctl all in turn. The way over a follower is the longer one, and always
    /// having to take it is the worst that can happen to the one that we are measuring.
    fn lead_by_the_last(&self) {
        let last = self.cluster.members.len() - 1;
        let id = self.cluster.members[last].member_id();
        eventually("the last member leads", || {
            let leader = self.cluster.leader();
            if leader != last {
                self.cluster.members[leader].etcdctl(&["move-leader", &id]);
            }
            so(self.cluster.leader() == last)
        });
    }

    /// Their pids.
    pub(crate) fn servers(&self) -> Vec<i32> {
        self.cluster.members.iter().map(Etcd::pid).collect()
    }

    /// Of the first member.
    pub(crate) fn cpu(&self) -> Duration {
        running(self.cluster.members[0].pid())
    }

    /// That the first member has got, in calls and streams alike. Telling it takes some of its CPU time.
    pub(crate) fn messages(&self) -> f64 {
        self.cluster.members[0].metric("grpc_server_msg_received_total", "")
    }

    /// Of the first member, in MiB: resident, with what it maps of its database.
    pub(crate) fn memory(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.cluster.members[0].pid())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u32 = line
            .and_then(|line| line.split_whitespace().next()?.parse().ok())
            .expect("a size");
        f64::from(kib) / 1024.0
    }

    pub(crate) fn endpoints(&self) -> String {
        self.cluster.endpoints()
    }

    /// The options by which etcdctl and meshlock, alike, get in.
    pub(crate) fn access(&self) -> Vec<String> {
        let options = |tls: &Tls| {
            let Identity { cert, key } = &tls.client;
            vec![
                option("--cacert", &tls.authority.cert()),
                option("--cert", cert),
                option("--key", key),
            ]
        };
        self.tls.as_ref().map(options).unwrap_or_default()
    }

    pub(crate) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.files.join(name)
    }
}
