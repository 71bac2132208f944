//! etcd's members as DNS knows them, under the names and in the order in which etcdctl asks for them. Decides which of
//! them count; how DNS is asked is `dns`'s affair.

use super::Fault;
use super::dns::{self, Target};
use std::fmt;

/// What `--discovery-srv` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    pub domain: String,
    /// Which of several clusters of the domain.
    pub name: Option<String>,
    /// Only members with TLS count.
    pub secure: bool,
}

impl Discovery {
    /// The URLs of the members, the first to be asked first; never none.
    pub(super) async fn members(&self) -> Result<Vec<String>, Fault> {
        let plain = async {
            if self.secure {
                Ok(Vec::new())
            } else {
                dns::targets(&self.service("")).await
            }
        };
        let secure = self.service("-ssl");
        let (secure, plain) = tokio::join!(dns::targets(&secure), plain);
        let mut members = Vec::new();
        for (scheme, targets) in [("https", &secure), ("http", &plain)] {
            for target in in_order(targets.clone().unwrap_or_default(), random) {
                let member = format!("{scheme}://{}:{}", target.host, target.port);
                if !members.contains(&member) {
                    members.push(member);
                }
            }
        }
        let unanswered = secure.err().or(plain.err());
        match unanswered {
            _ if !members.is_empty() => Ok(members),
            Some(why) => Err(Fault::Unreachable {
                why: format!("{self}: {why}"),
            }),
            None => Err(Fault::Unreachable {
                why: format!("{self}: DNS has none"),
            }),
        }
    }

    /// As etcd's `client.GetSRVService` has it.
    fn service(&self, suffix: &str) -> String {
        let name = self.name.as_ref().map_or(String::new(), |name| format!("-{name}"));
        format!("_etcd-client{suffix}{name}._tcp.{}", self.domain)
    }
}

impl fmt::Display for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secure = self.service("-ssl");
        if self.secure {
            write!(f, "SRV records {secure}")
        } else {
            write!(f, "SRV records {secure} and {}", self.service(""))
        }
    }
}

/// By priority, and among equals by lot, in which each has as many tickets as its weight (RFC 2782). `draw` gives a
/// number up to and with the one that it is given.
fn in_order(mut targets: Vec<Target>, mut draw: impl FnMut(u32) -> u32) -> Vec<Target> {
    // Those without weight first, so that they have a small chance.
    targets.sort_by_key(|target| (target.priority, target.weight));
    let mut ordered = Vec::with_capacity(targets.len());
    while let Some(Target { priority, .. }) = targets.first() {
        let priority = *priority;
        let equals = targets.iter().take_while(|target| target.priority == priority);
        let mut sums: Vec<u32> = equals.map(|target| u32::from(target.weight)).collect();
        for at in 1..sums.len() {
            sums[at] += sums[at - 1];
        }
        let drawn = draw(sums.last().copied().unwrap_or(0));
        let winner = sums.iter().position(|sum| *sum >= drawn).unwrap_or(0);
        ordered.push(targets.remove(winner));
    }
    ordered
}

fn random(most: u32) -> u32 {
    let mut bytes = [0; 4];
    // Without chance everybody asks the same member first, which does no harm.
    getrandom::fill(&mut bytes).ok();
    u32::from_ne_bytes(bytes) % (most.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_etcdctls() {
        let mut discovery = Discovery {
            domain: "example.org".to_owned(),
            name: None,
            secure: false,
        };
        assert_eq!(
            discovery.to_string(),
            "SRV records _etcd-client-ssl._tcp.example.org and _etcd-client._tcp.example.org"
        );
        discovery.name = Some("blue".to_owned());
        discovery.secure = true;
        assert_eq!(
            discovery.to_string(),
            "SRV records _etcd-client-ssl-blue._tcp.example.org"
        );
    }

    #[test]
    fn the_priority_comes_first_and_the_weight_is_a_chance() {
        let target = |priority, weight, host: &str| Target {
            priority,
            weight,
            host: host.to_owned(),
            port: 1,
        };
        let targets = || vec![target(2, 0, "last"), target(1, 30, "heavy"), target(1, 10, "light")];
        let hosts = |draw: fn(u32) -> u32| -> Vec<String> {
            let ordered = in_order(targets(), draw);
            ordered.into_iter().map(|target| target.host).collect()
        };
        assert_eq!(hosts(|_| 0), ["light", "heavy", "last"]);
        assert_eq!(hosts(|most| most), ["heavy", "light", "last"]);
        assert_eq!(hosts(|_| 10), ["light", "heavy", "last"]);
        assert_eq!(hosts(|_| 11), ["heavy", "light", "last"]);
    }
}
