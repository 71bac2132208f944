//! What guardian and keeper say to one another. Neither may be thrown by the other's going mad.

use crate::{bytes, holds, long_text, text};
use meshlock::link::{Asked, Ended, FromGuardian, FromKeeper, Hold};
use meshlock::outcome::{Failure, FailureKind};
use meshlock::supervise::link::{Incoming, Link};
use nix::sys::socket::{MsgFlags, send};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

fn from_keeper(text: BoxedStrategy<String>) -> impl Strategy<Value = FromKeeper> {
    let hold = (
        any::<i64>(),
        long_text(0..300),
        any::<i64>(),
        any::<u64>(),
        any::<Duration>(),
    );
    let kinds = [
        FailureKind::Usage,
        FailureKind::Unavailable,
        FailureKind::Internal,
        FailureKind::Denied,
        FailureKind::Config,
    ];
    prop_oneof![
        text.clone().prop_map(FromKeeper::Progress),
        text.clone().prop_map(FromKeeper::Notice),
        hold.prop_map(|(token, key, lease, cluster, ttl)| FromKeeper::Held(Hold {
            token,
            key,
            lease,
            cluster,
            ttl
        })),
        Just(FromKeeper::Withdrawn),
        text.clone().prop_map(|why| FromKeeper::Lost { why }),
        (text.clone(), text.clone(), text.clone(), text.clone()).prop_map(|(why, kind, by, reason)| {
            let asked = Asked::new(&kind, &by, &reason);
            FromKeeper::AskedToStop { why, asked }
        }),
        text.clone().prop_map(|why| FromKeeper::Contended { why }),
        (select(kinds.to_vec()), text.clone()).prop_map(|(kind, why)| FromKeeper::Failed(Failure::new(kind, why))),
        prop::option::of(text).prop_map(|problem| FromKeeper::Left {
            problem,
            taken: Some("taken".to_owned())
        }),
    ]
}

fn from_guardian() -> impl Strategy<Value = FromGuardian> {
    let run =
        (text(), prop::option::of(any::<u8>()), text(), text()).prop_map(|(result, status, acquired, ended)| Ended {
            why: Some(result.clone()),
            asked: Some(Asked::new(&result, &acquired, &ended)),
            result,
            status,
            acquired,
            ended,
        });
    prop_oneof![
        Just(FromGuardian::Claimed),
        (any::<i32>(), any::<bool>()).prop_map(|(pid, own_group)| FromGuardian::Started { pid, own_group }),
        Just(FromGuardian::CommandEnded),
        Just(FromGuardian::Requeue),
        prop::option::of(run).prop_map(|run| FromGuardian::Release { run }),
        Just(FromGuardian::LossSeen),
    ]
}

fn send_bytes(link: &Link, bytes: &[u8]) {
    send(link.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT).expect("there is room");
}

#[test]
fn what_is_said_is_heard() {
    let (guardian, keeper) = Link::pair().expect("a pair");
    holds(400, (from_keeper(text().boxed()), from_guardian()), |(down, up)| {
        prop_assert_eq!(&down.clone().shortened(), &down);
        prop_assert!(keeper.send(&down) && guardian.send(&up));
        prop_assert!(matches!(guardian.receive::<FromKeeper>(), Incoming::Message(heard) if heard == down));
        prop_assert!(matches!(keeper.receive::<FromGuardian>(), Incoming::Message(heard) if heard == up));
        prop_assert!(matches!(guardian.receive::<FromKeeper>(), Incoming::Nothing));
        Ok(())
    });
}

#[test]
fn nothing_is_too_long_to_be_heard() {
    let (guardian, keeper) = Link::pair().expect("a pair");
    // JSON has six bytes for the one of a control character.
    let long = (select(vec!["\u{1b}", "a", "\u{10ffff}", "\"", "é"]), 0..300_000usize)
        .prop_map(|(char, times)| char.repeat(times));
    holds(200, from_keeper(long.boxed()), |said| {
        prop_assert!(keeper.send(&said.clone().shortened()));
        let Incoming::Message(heard) = guardian.receive::<FromKeeper>() else {
            return Err(TestCaseError::fail("nothing was heard"));
        };
        prop_assert_eq!(said.shortened(), heard);
        Ok(())
    });
}

#[test]
fn what_is_shortened_begins_as_it_did_and_says_so() {
    holds(400, long_text(2480..2520), |text| {
        let FromKeeper::Notice(short) = FromKeeper::Notice(text.clone()).shortened() else {
            return Err(TestCaseError::fail("another word"));
        };
        let whole = short == text;
        prop_assert!(whole || short.strip_suffix('…').is_some_and(|kept| text.starts_with(kept)));
        prop_assert_eq!(whole, text.chars().count() <= 2500);
        Ok(())
    });
}

#[test]
fn any_packet_is_passed_over_or_a_word_and_the_next_one_is_heard() {
    let damaged =
        (from_keeper(text().boxed()), any::<Index>(), any::<u8>(), any::<bool>()).prop_map(|(words, at, byte, cut)| {
            let mut bytes = serde_json::to_vec(&words).expect("JSON");
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at.max(1));
            }
            bytes
        });
    let deep = (1..20_000usize).prop_map(|depth| b"[".repeat(depth));
    let long = (0..60_000usize, any::<u8>()).prop_map(|(length, byte)| vec![byte; length]);
    let packets = prop::collection::vec(prop_oneof![3 => bytes(), 3 => damaged, 1 => deep, 1 => long], 0..3);
    let (guardian, keeper) = Link::pair().expect("a pair");
    let last = FromKeeper::Notice("the last".into());
    holds(400, packets, |packets| {
        // An empty packet cannot be told from the end, and is never sent.
        for packet in packets.iter().filter(|packet| !packet.is_empty()) {
            send_bytes(&keeper, packet);
        }
        prop_assert!(keeper.send(&last));
        for _ in 0..=packets.len() {
            match guardian.receive::<FromKeeper>() {
                Incoming::Message(heard) if heard == last => return Ok(()),
                Incoming::Message(_) => {}
                Incoming::Nothing | Incoming::Closed => break,
            }
        }
        Err(TestCaseError::fail("the last word was not heard"))
    });
}
