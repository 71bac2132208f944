//! Faults of the network: what is cut, lost, late or reset.

use super::{Deed, Faults, Undo, pick};
use crate::storm::network::{Barrier, Host, MEMBERS};
use crate::storm::plan::Kind;
use fastrand::Rng;
use std::time::Duration;

impl Faults<'_> {
    pub(super) fn hurt_wires(&self, kind: Kind, dice: &mut Rng) -> Option<Deed> {
        let client = Host::Client(dice.usize(..self.network.clients()));
        let one = dice.usize(..MEMBERS);
        let other = Host::Member((one + dice.usize(1..MEMBERS)) % MEMBERS);
        let one = Host::Member(one);
        let members = || (0..MEMBERS).map(Host::Member);
        let (pairs, percent): (Vec<(Host, Host)>, u8) = match kind {
            Kind::CutMembers => (vec![(one, other)], 100),
            Kind::IsolateMember => (around(one, members()), 100),
            Kind::CutClient => (vec![if dice.bool() { (client, one) } else { (one, client) }], 100),
            // All ways, or only one of them: what is sent arrives and no answer does, or the other way round.
            Kind::CutClientOff => match dice.u32(..3) {
                0 => (members().map(|member| (client, member)).collect(), 100),
                1 => (members().map(|member| (member, client)).collect(), 100),
                _ => (around(client, members()), 100),
            },
            Kind::Lossy if !self.network.can_lose() => return None,
            Kind::Lossy => {
                let host = if dice.bool() { client } else { one };
                (around(host, members()), dice.u8(5..50))
            }
            Kind::Slow => {
                let client = pick(dice, self.network.slowable())?;
                let delay = Duration::from_millis(dice.u64(20..600));
                self.network.slow_down(client, delay);
                return Some(Deed {
                    whom: format!("client {client} by {delay:?}"),
                    undo: Some(Undo::Quicken(client)),
                });
            }
            _ => {
                let client = pick(dice, self.network.slowable())?;
                self.network.reset(client);
                return Some(Deed {
                    whom: format!("of client {client}"),
                    undo: None,
                });
            }
        };
        let raise = |&(from, to): &(Host, Host)| self.network.raise(Barrier { to, from, percent });
        Some(Deed {
            whom: format!("{pairs:?} {percent} %"),
            undo: Some(Undo::Lower(pairs.iter().map(raise).collect())),
        })
    }
}

/// Both directions between one host and the others.
fn around(one: Host, others: impl Iterator<Item = Host>) -> Vec<(Host, Host)> {
    others
        .filter(|other| *other != one)
        .flat_map(|other| [(one, other), (other, one)])
        .collect()
}
