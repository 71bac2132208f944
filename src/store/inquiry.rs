//! What is asked of etcd beside the protocol of the lock: how long a lease lives, and how a member, its cluster and
//! a user's rights are. Changes nothing. Judges nothing: what the answers mean is for those who ask.

use super::etcd::Etcd;
use super::line::Line;
use super::wire::{cluster, seconds_granted};
use super::{Fault, If, Op, Txn, fault};
use crate::moment::Moment;
use etcd_client::{AlarmAction, AlarmType, GetOptions, ResponseHeader};
use std::sync::Arc;
use std::time::Duration;

/// How long a lease still lives, by the word of whoever answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub sent: Moment,
    /// Counted from no earlier than `sent`, rounded down to seconds. `None`: it has run out, or is not known.
    pub left: Option<Duration>,
    /// `None`: the lease is not known.
    pub granted: Option<Duration>,
    /// The raft term in which the answering member knew itself.
    pub term: u64,
}

/// A member's word on itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// From the question to its answer, on a connection that stood already.
    pub took: Duration,
    pub version: String,
    pub cluster: u64,
    pub member: u64,
    /// Whom it takes for the leader; 0 where it knows none.
    pub leader: u64,
    pub learner: bool,
    pub term: u64,
    /// In bytes.
    pub db_size: u64,
    /// In bytes; told from etcd 3.6 on.
    pub quota: Option<u64>,
    pub alarms: Vec<Alarm>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The quota is used up: no writes.
    NoSpace,
    /// The members' data differ.
    Corrupt,
}

/// A member's word on its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    pub cluster: u64,
    /// Who says so.
    pub member: u64,
    pub peers: Vec<Peer>,
}

/// A member as the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub id: u64,
    /// Empty where it has not started yet.
    pub name: String,
    pub client_urls: Vec<String>,
    pub learner: bool,
}

impl Alarm {
    /// As etcd calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSpace => "NOSPACE",
            Self::Corrupt => "CORRUPT",
        }
    }
}

impl Etcd {
    /// What is left of the lease. Asked without its keys, for which newer servers want the right to read them.
    pub async fn lease_left(&self, lease: i64) -> Result<Left, Fault> {
        self.each(&|client: Arc<Line>| async move {
            let sent = Moment::now();
            let answer = client.lease_client().time_to_live(lease, None).await?;
            let left = Left {
                sent,
                left: seconds_granted(answer.ttl()),
                granted: seconds_granted(answer.granted_ttl()),
                term: answer.header().map_or(0, ResponseHeader::raft_term),
            };
            Ok((cluster(answer.header()), left))
        })
        .await
    }

    pub async fn status(&self) -> Result<Status, Fault> {
        self.each(&|client: Arc<Line>| async move {
            let sent = Moment::now();
            let answer = client.maintenance_client().status().await?;
            let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
            let header = answer.header();
            let status = Status {
                took: Moment::now().since(sent),
                version: answer.version().to_owned(),
                cluster: header.map_or(0, ResponseHeader::cluster_id),
                member: header.map_or(0, ResponseHeader::member_id),
                leader: answer.leader(),
                learner: answer.is_learner(),
                term: answer.raft_term(),
                db_size: bytes(answer.db_size()),
                quota: Some(bytes(answer.db_size_quota())).filter(|quota| *quota > 0),
                alarms: [Alarm::NoSpace, Alarm::Corrupt]
                    .into_iter()
                    .filter(|alarm| answer.errors().iter().any(|error| error.contains(alarm.name())))
                    .collect(),
            };
            Ok((cluster(header), status))
        })
        .await
    }

    pub async fn membership(&self) -> Result<Membership, Fault> {
        self.each(&|client: Arc<Line>| async move {
            let answer = client.cluster_client().member_list().await?;
            let peers = answer.members().iter().map(|member| Peer {
                id: member.id(),
                name: member.name().to_owned(),
                client_urls: member.client_urls().to_vec(),
                learner: member.is_learner(),
            });
            let header = answer.header();
            let membership = Membership {
                cluster: header.map_or(0, ResponseHeader::cluster_id),
                member: header.map_or(0, ResponseHeader::member_id),
                peers: peers.collect(),
            };
            Ok((cluster(header), membership))
        })
        .await
    }

    pub async fn alarms(&self) -> Result<Vec<Alarm>, Fault> {
        self.each(&|client: Arc<Line>| async move {
            let answer = client
                .maintenance_client()
                .alarm(AlarmAction::Get, AlarmType::None, None)
                .await?;
            let alarms = answer.alarms().iter().filter_map(|raised| match raised.alarm() {
                AlarmType::Nospace => Some(Alarm::NoSpace),
                AlarmType::Corrupt => Some(Alarm::Corrupt),
                AlarmType::None => None,
            });
            Ok((cluster(answer.header()), alarms.collect()))
        })
        .await
    }

    /// The roles of the user, who may always ask that of himself; `None` where there is no such user.
    pub async fn roles(&self, user: &str) -> Result<Option<Vec<String>>, Fault> {
        self.each(&|client: Arc<Line>| async move {
            match client.auth_client().user_get(user).await {
                Ok(answer) => Ok((cluster(answer.header()), Some(answer.roles().to_vec()))),
                Err(error) if fault::status_says(&error, fault::NO_SUCH_USER) => Ok((None, None)),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// A linearizable read of the whole prefix, of which at most one key comes back: succeeds with the right to read all
    /// of it, and where a majority answers.
    pub async fn may_read(&self, prefix: &str) -> Result<(), Fault> {
        self.each(&|client: Arc<Line>| async move {
            let one = GetOptions::new().with_prefix().with_limit(1).with_keys_only();
            let answer = client.kv_client().get(prefix, Some(one)).await?;
            Ok((cluster(answer.header()), ()))
        })
        .await
    }

    /// A transaction that would put the keys if one of them had a create revision that none can have: etcd checks
    /// the rights of both branches before it looks at the condition, so that nothing is written.
    pub async fn may_write(&self, keys: &[String]) -> Result<(), Fault> {
        let put = |key: &String| Op::Put {
            key: key.clone(),
            value: Vec::new(),
            lease: 0,
        };
        let Some(key) = keys.first().cloned() else {
            return Ok(());
        };
        self.txn(Txn {
            when: vec![If::Created { key, at: -1 }],
            then: keys.iter().map(put).collect(),
            otherwise: Vec::new(),
        })
        .await
        .map(drop)
    }
}
