//! What is asked of etcd beside the protocol of the lock: how long a lease lives, and how a member, its cluster and
//! a user's rights are. Changes nothing. Judges nothing: what the answers mean is for those who ask.

use super::etcd::{Etcd, seconds_granted};
use super::wire::cluster;
use super::{Fault, If, Op, Order, Read, Txn, What};
use crate::moment::Moment;
use etcd_client::{Client, ResponseHeader};
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
    /// Its alarms and other troubles, in etcd's words.
    pub errors: Vec<String>,
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

impl Etcd {
    /// What is left of the lease.
    pub async fn lease_left(&self, lease: i64) -> Result<Left, Fault> {
        self.each(&|mut client: Client| async move {
            let sent = Moment::now();
            let answer = client.lease_time_to_live(lease, None).await?;
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
        self.each(&|mut client: Client| async move {
            let sent = Moment::now();
            let answer = client.status().await?;
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
                errors: answer.errors().to_vec(),
            };
            Ok((cluster(header), status))
        })
        .await
    }

    pub async fn peers(&self) -> Result<Vec<Peer>, Fault> {
        self.each(&|mut client: Client| async move {
            let answer = client.member_list().await?;
            let peers = answer.members().iter().map(|member| Peer {
                id: member.id(),
                name: member.name().to_owned(),
                client_urls: member.client_urls().to_vec(),
                learner: member.is_learner(),
            });
            Ok((cluster(answer.header()), peers.collect()))
        })
        .await
    }

    /// The roles of the user, who may always ask that of himself.
    pub async fn roles(&self, user: &str) -> Result<Vec<String>, Fault> {
        self.each(&|mut client: Client| async move {
            let answer = client.user_get(user).await?;
            Ok((cluster(answer.header()), answer.roles().to_vec()))
        })
        .await
    }

    /// A linearizable read of the whole prefix, of which nothing but the count comes back: succeeds with the right to
    /// read all of it, and where a majority answers.
    pub async fn may_read(&self, prefix: &str) -> Result<(), Fault> {
        let read = Op::Read(Read {
            what: What::First {
                prefix: prefix.to_owned(),
                order: Order::LastKey,
                limit: 1,
            },
            created_before: None,
            keys_only: true,
        });
        let txn = Txn {
            then: vec![read],
            ..Txn::default()
        };
        self.txn(txn).await.map(drop)
    }

    /// A transaction that would put the keys if one of them had a create revision that none can have: etcd checks
    /// the rights of both branches before it looks at the condition, so that nothing is written.
    pub async fn may_write(&self, keys: &[String]) -> Result<(), Fault> {
        let never = keys.first().map(|key| If::Created {
            key: key.clone(),
            at: -1,
        });
        let put = |key: &String| Op::Put {
            key: key.clone(),
            value: Vec::new(),
            lease: 0,
        };
        let txn = Txn {
            when: never.into_iter().collect(),
            then: keys.iter().map(put).collect(),
            otherwise: Vec::new(),
        };
        if txn.when.is_empty() {
            return Ok(());
        }
        self.txn(txn).await.map(drop)
    }
}
