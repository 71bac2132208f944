//! `--endpoints`.

use crate::{ARGUMENT, holds, is_one_line, keeps_pace, os_text, with_option};
use meshlock::outcome::FailureKind;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStringExt as _;

fn parse(list: &str) -> Result<Vec<String>, String> {
    with_option("endpoints", list)
        .map(|run| run.connection.endpoints)
        .map_err(|failure| failure.why)
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\\.[a-z]{1,5}){0,3}",
        any::<Ipv4Addr>().prop_map(|address| address.to_string()),
        any::<Ipv6Addr>().prop_map(|address| format!("[{address}]")),
        select(vec!["localhost", "etcd_1", "[::1]", "[::ffff:10.0.0.1]"]).prop_map(str::to_owned),
    ]
}

fn endpoint() -> impl Strategy<Value = String> {
    (select(vec!["http", "https"]), host(), 1..=u16::MAX)
        .prop_map(|(scheme, host, port)| format!("{scheme}://{host}:{port}"))
}

#[test]
fn what_is_printed_is_understood_in_its_order_and_once() {
    holds(200, prop::collection::vec(endpoint(), 1..6), |endpoints| {
        let mut seen = BTreeSet::new();
        let once: Vec<_> = endpoints
            .iter()
            .filter(|endpoint| seen.insert(*endpoint))
            .cloned()
            .collect();
        prop_assert_eq!(parse(&endpoints.join(",")), Ok(once.clone()));
        prop_assert_eq!(parse(&once.join(" , ")), Ok(once));
        Ok(())
    });
}

#[test]
fn scheme_slash_and_case_make_no_difference() {
    holds(200, (host(), 1..=u16::MAX), |(host, port)| {
        let expected = Ok(vec![format!("http://{host}:{port}")]);
        for text in [
            format!("{host}:{port}"),
            format!("http://{host}:{port}/"),
            format!("HTTP://{host}:{port}"),
        ] {
            prop_assert_eq!(&parse(&text), &expected, "{}", text);
        }
        Ok(())
    });
}

#[test]
fn what_is_no_endpoint_is_refused() {
    let wrong = prop_oneof![
        host(),
        (
            host(),
            select(vec!["0", "65536", "99999999999", "-1", "+1", "", " 1", "1x", "٣"])
        )
            .prop_map(|(host, port)| format!("{host}:{port}")),
        (host(), 1..=u16::MAX, select(vec!["/path", "?a", "#b", "//", ":1"]))
            .prop_map(|(host, port, rest)| format!("{host}:{port}{rest}")),
        (
            select(vec!["unix", "unixs", "ftp", "", "http:", "ht tp"]),
            host(),
            1..=u16::MAX
        )
            .prop_map(|(scheme, host, port)| format!("{scheme}://{host}:{port}")),
        any::<Ipv6Addr>().prop_map(|address| format!("{address}:2379")),
        (select(vec![
            "[",
            "]",
            "[]",
            "[zz]",
            "[a:b]",
            "[::1",
            "::1]",
            "[[::1]]",
            "a]b",
            "[::1]x",
            "[127.0.0.1]",
            "[fe80::1%eth0]"
        ]))
        .prop_map(|host| format!("{host}:2379")),
        "[a-z]{1,5}[ !\"$&'()*;<>\\\\^`{|}~éＡ][a-z]{0,5}:1",
        "a{255,300}:1",
        "[a-z]{1,4}:1,(,|[a-z]{1,4}:2,)",
    ];
    holds(200, wrong, |item| {
        let refused = parse(&item);
        prop_assert!(refused.is_err(), "{:?} was taken for {:?}", item, refused);
        Ok(())
    });
}

/// Whoever takes an endpoint here finds out about it before anything connects.
#[test]
fn what_is_accepted_the_client_can_use() {
    let item = prop_oneof![endpoint(), "[a-z0-9.\\[\\]:/_-]{1,12}:[0-9]{1,5}"];
    holds(200, item, |item| {
        for endpoint in parse(&item).unwrap_or_default() {
            let used = endpoint.parse::<hyper::Uri>();
            prop_assert!(used.is_ok(), "{}: {:?}", endpoint, used.err());
            prop_assert_eq!(parse(&endpoint), Ok(vec![endpoint]));
        }
        Ok(())
    });
}

#[test]
fn a_password_in_an_endpoint_is_never_told() {
    let before = select(vec!["", "http://", "https://", "a:1,http://", "unix://", "x y://"]);
    holds(200, (before, "[a-z]{1,5}", endpoint()), |(before, user, endpoint)| {
        let address = endpoint.split_once("://").map_or("", |(_, address)| address);
        let why = parse(&format!("{before}{user}:hunter2@{address}")).expect_err("no user belongs there");
        prop_assert!(!why.contains("hunter2") && why.contains("--user"), "{}", why);
        Ok(())
    });
}

#[test]
fn whatever_is_typed_is_a_list_or_refused_in_one_line() {
    holds(200, os_text(), |text| {
        if let Err(failure) = with_option("endpoints", text) {
            prop_assert_eq!(failure.kind, FailureKind::Usage);
            is_one_line(&failure.why)?;
        }
        Ok(())
    });
}

#[test]
fn absurd_lengths_take_no_time() {
    let numbered = |size: usize| -> Vec<u8> {
        let hosts = (0..size / 10).flat_map(|number| format!("h{number:06}:1,").into_bytes());
        hosts.chain(*b"a:1").collect()
    };
    let parse = |list: &[u8]| with_option("endpoints", OsString::from_vec(list.to_owned())).is_ok();
    assert!(parse(&numbered(100)));
    keeps_pace(ARGUMENT, numbered, parse);
    for unit in ["a", "a:1,", "[", ":", "://", ",", " "] {
        keeps_pace(ARGUMENT, |size| unit.bytes().cycle().take(size).collect(), parse);
    }
}
