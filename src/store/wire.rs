//! The store's own words and etcd-client's, one turned into the other. Decides nothing.

use super::line::Line;
use super::{Answer, Found, If, Item, Op, Order, Read, Txn, What};
use etcd_client::{
    Compare, CompareOp, DeleteOptions, Error, GetOptions, PutOptions, ResponseHeader, SortOrder, SortTarget, TxnOp,
    TxnOpResponse,
};
use std::sync::Arc;
use std::time::Duration;

/// What an answer gives beside the id of the cluster that gave it.
pub(super) type Answered<T> = Result<(Option<u64>, T), Error>;

pub(super) async fn commit(client: Arc<Line>, txn: etcd_client::Txn) -> Answered<Answer> {
    let response = client.kv_client().txn(txn).await?;
    let header = response.header();
    let reads = response.op_responses().into_iter().filter_map(|done| match done {
        TxnOpResponse::Get(mut found) => Some(Found {
            all: found.count(),
            items: found.take_kvs().into_iter().map(item).collect(),
        }),
        TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
    });
    let answer = Answer {
        succeeded: response.succeeded(),
        cluster: header.map_or(0, ResponseHeader::cluster_id),
        revision: header.map_or(0, ResponseHeader::revision),
        term: header.map_or(0, ResponseHeader::raft_term),
        reads: reads.collect(),
    };
    Ok((cluster(header), answer))
}

pub(super) fn txn(txn: Txn) -> etcd_client::Txn {
    let when: Vec<Compare> = txn
        .when
        .into_iter()
        .map(|test| match test {
            If::Created { key, at } => Compare::create_revision(key, CompareOp::Equal, at),
            If::Empty { prefix } => Compare::create_revision(prefix, CompareOp::Equal, 0).with_prefix(),
        })
        .collect();
    let ops = |ops: Vec<Op>| ops.into_iter().map(op).collect::<Vec<_>>();
    etcd_client::Txn::new()
        .when(when)
        .and_then(ops(txn.then))
        .or_else(ops(txn.otherwise))
}

fn op(op: Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease))),
        Op::Delete { key } => TxnOp::delete(key, None),
        Op::DeleteUpTo { first, last, once } => {
            let end = format!("{last}\0");
            let delete = TxnOp::delete(first, Some(DeleteOptions::new().with_range(end)));
            match once {
                Some(key) => TxnOp::txn(
                    etcd_client::Txn::new()
                        .when([Compare::create_revision(key, CompareOp::Greater, 0)])
                        .and_then([delete]),
                ),
                None => delete,
            }
        }
        Op::Read(Read {
            what,
            created_before,
            keys_only,
        }) => {
            let mut options = GetOptions::new();
            if let Some(revision) = created_before {
                options = options.with_max_create_revision(revision - 1);
            }
            if keys_only {
                options = options.with_keys_only();
            }
            match what {
                What::Key(key) => TxnOp::get(key, Some(options)),
                What::First { prefix, order, limit } => {
                    let (target, order) = match order {
                        Order::Oldest => (SortTarget::Create, SortOrder::Ascend),
                        Order::Youngest => (SortTarget::Create, SortOrder::Descend),
                        Order::LastKey => (SortTarget::Key, SortOrder::Descend),
                    };
                    let options = options.with_prefix().with_sort(target, order).with_limit(limit.into());
                    TxnOp::get(prefix, Some(options))
                }
            }
        }
    }
}

pub(super) fn item(item: etcd_client::KeyValue) -> Item {
    let (created, lease) = (item.create_revision(), item.lease());
    let (key, value) = item.into_key_value();
    Item {
        key: String::from_utf8_lossy(&key).into_owned(),
        value,
        created,
        lease,
    }
}

pub(super) fn cluster(header: Option<&ResponseHeader>) -> Option<u64> {
    header.map(ResponseHeader::cluster_id)
}

/// A TTL in an answer; `None` where the lease has run out or is not known.
pub(super) fn seconds_granted(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().filter(|&ttl| ttl > 0).map(Duration::from_secs)
}
