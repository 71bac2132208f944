//! What a person may do to a lock with etcdctl: freeze a name, break a hold, take a lease or an entry away.

use super::{Deed, Faults, Undo};
use crate::storm::plan::Kind;
use crate::storm::record::Locker;
use fastrand::Rng;

impl Faults<'_> {
    pub(super) fn by_hand(&self, kind: Kind, dice: &mut Rng) -> Option<Deed> {
        if kind == Kind::Freeze {
            let name = if dice.bool() { "alpha" } else { "beta" };
            let key = format!("meshlock/freeze/{name}");
            self.members
                .etcdctl(&["put", "--", &key, r#"{"format":1,"by":"storm","reason":"storm"}"#]);
            return Some(Deed {
                whom: name.to_owned(),
                undo: Some(forget(key)),
            });
        }
        let call = self.holder(Locker::Meshlock, dice)?;
        let (key, token) = self.oldest(&call.name)?;
        // First, so that its effect is never before it; whether it comes to anything or not.
        self.record.strike(kind, &call.hold);
        let whom = format!("{key} of {}", call.hold);
        match kind {
            Kind::Break => {
                let ask = key.replacen("/lock/", "/ask/", 1);
                let value = format!(r#"{{"format":1,"kind":"break","token":{token},"by":"storm","reason":"storm"}}"#);
                // Whether an answer comes or not: where the holder had just left, it is nobody's.
                self.members.etcdctl(&["put", "--", &ask, &value]);
                return Some(Deed {
                    whom,
                    undo: Some(forget(ask)),
                });
            }
            Kind::Delete => self.members.etcdctl(&["del", "--", &key])?,
            _ => {
                let lease = key.rsplit('/').next().expect("a key");
                self.members.etcdctl(&["lease", "revoke", lease])?
            }
        };
        Some(Deed { whom, undo: None })
    }

    /// The key of the one who holds, and its token.
    fn oldest(&self, name: &str) -> Option<(String, i64)> {
        let keys = self.members.keys(&format!("meshlock/lock/{name}/"))?;
        let key = keys.into_iter().next()?;
        let text = self.members.etcdctl(&["get", "--write-out=json", "--", &key])?;
        let answer: serde_json::Value = serde_json::from_str(&text).ok()?;
        let token = answer.pointer("/kvs/0/create_revision")?.as_i64()?;
        Some((key, token))
    }
}

fn forget(key: String) -> Undo {
    Undo::Etcdctl(vec!["del".to_owned(), "--".to_owned(), key])
}
