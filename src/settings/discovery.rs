//! Whether DNS is to be asked for etcd's members, and where. Checks what can be checked without a network.

use super::connection;
use super::source::{Found, Sources};
use crate::cli;
use crate::outcome::{Failure, FailureKind};
use crate::store::Discovery;

/// So that the longest name that is asked for fits into DNS (RFC 1035, 3.1).
const DOMAIN_LIMIT: usize = 200;
const NAME_LIMIT: usize = 40;

/// Where this is off etcdctl passes over members without TLS.
const INSECURE: &str = "ETCDCTL_INSECURE_DISCOVERY";

/// `None` where the endpoints are given, or the default ones count. `secure`: members without TLS do not count.
pub(super) fn resolve(typed: &cli::Connection, sources: &Sources, secure: bool) -> Result<Option<Discovery>, Failure> {
    let domain = sources.find("discovery-srv", typed.discovery_srv.as_deref());
    let name = sources.find("discovery-srv-name", typed.discovery_srv_name.as_deref());
    let endpoints = sources.find("endpoints", typed.endpoints.as_deref());
    let domain = match (domain, endpoints) {
        // etcdctl passes over the endpoints then: with us nobody is to wonder which cluster it was.
        (Some(domain), Some(endpoints)) if domain.source.layer == endpoints.source.layer => {
            let why = format!("and {} cannot both be given", endpoints.source);
            return Err(domain.source.refuse(&why));
        }
        (Some(domain), Some(endpoints)) if endpoints.source.layer < domain.source.layer => None,
        (None, None) => {
            let alone = |name: Found<_>| name.source.refuse("needs --discovery-srv beside it");
            return name.map_or(Ok(None), |name| Err(alone(name)));
        }
        (domain, _) => domain,
    };
    let Some(domain) = domain else { return Ok(None) };
    // etcdctl then wants certificates for the domain itself.
    if !secure && sources.environment.get(INSECURE).is_some_and(connection::means_false) {
        let why =
            format!("{INSECURE} is off, which meshlock does not support: give the servers' CA by --cacert instead");
        return Err(Failure::new(FailureKind::Config, why));
    }
    Ok(Some(Discovery {
        domain: domain.read(|text| part(text, b".-_", DOMAIN_LIMIT, "is not a domain"))?,
        name: name
            .map(|name| name.read(|text| part(text, b"-_", NAME_LIMIT, "is not a name in DNS")))
            .transpose()?,
        secure,
    }))
}

/// One dot at most between two letters, and one at the end.
fn part(text: &str, besides: &[u8], limit: usize, refusal: &str) -> Result<String, String> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || besides.contains(&byte);
    let labels = text.strip_suffix('.').unwrap_or(text).split('.');
    let fits = text.len() <= limit && text.bytes().all(letter);
    if fits && labels.into_iter().all(|label| (1..=63).contains(&label.len())) {
        Ok(text.to_owned())
    } else {
        Err(refusal.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{refused, with};
    use crate::outcome::FailureKind;
    use crate::settings::Run;
    use crate::store::Discovery;

    #[test]
    fn what_is_said_first_counts_and_never_both() {
        const SRV: &str = "--discovery-srv=d.test";
        let dns = |arguments: &[&str], variables: &[(&str, &str)]| {
            let settings = with(arguments, variables).unwrap_or_else(|failure| panic!("{failure}"));
            let Run { connection, reach, .. } = settings;
            assert_eq!(connection.endpoints.is_empty(), connection.discovery.is_some());
            assert_eq!(
                reach.discovery_srv,
                connection.discovery.as_ref().map(|discovery| discovery.domain.clone())
            );
            connection.discovery
        };
        let found = |name: Option<&str>| {
            Some(Discovery {
                domain: "d.test".to_owned(),
                name: name.map(str::to_owned),
                secure: false,
            })
        };
        let (our, etcdctls) = (("MESHLOCK_ENDPOINTS", "a:1"), ("ETCDCTL_DISCOVERY_SRV", "d.test"));
        let name = ("ETCDCTL_DISCOVERY_SRV_NAME", "blue");
        assert_eq!(dns(&[], &[]), None);
        assert_eq!(dns(&[SRV], &[]), found(None));
        assert_eq!(dns(&[SRV], &[our]), found(None));
        assert_eq!(dns(&[SRV, "--discovery-srv-name=b"], &[name]), found(Some("b")));
        assert_eq!(dns(&[], &[etcdctls, name]), found(Some("blue")));
        assert_eq!(dns(&[], &[our, etcdctls]), None);
        assert_eq!(dns(&["--endpoints=a:1"], &[etcdctls, name]), None);
        for (arguments, variables, kind, why) in [
            (
                &[SRV, "--endpoints=a:1"][..],
                &[][..],
                FailureKind::Usage,
                "--discovery-srv and --endpoints cannot both be given",
            ),
            (
                &[],
                &[("ETCDCTL_ENDPOINTS", "a:1"), etcdctls],
                FailureKind::Config,
                "ETCDCTL_DISCOVERY_SRV and ETCDCTL_ENDPOINTS cannot both be given",
            ),
            (
                &[SRV],
                &[("ETCDCTL_INSECURE_DISCOVERY", "false")],
                FailureKind::Config,
                "ETCDCTL_INSECURE_DISCOVERY is off, which meshlock does not support: give the servers' CA by --cacert instead",
            ),
            (
                &["--discovery-srv-name=b"],
                &[],
                FailureKind::Usage,
                "--discovery-srv-name needs --discovery-srv beside it",
            ),
            (
                &["--discovery-srv=a b"],
                &[],
                FailureKind::Usage,
                "--discovery-srv \"a b\" is not a domain",
            ),
            (
                &["--discovery-srv=a..b"],
                &[],
                FailureKind::Usage,
                "--discovery-srv \"a..b\" is not a domain",
            ),
            (
                &[SRV, "--discovery-srv-name=a.b"],
                &[],
                FailureKind::Usage,
                "--discovery-srv-name \"a.b\" is not a name in DNS",
            ),
        ] {
            assert_eq!(refused(arguments, variables), (kind, why.to_owned()));
        }
    }
}
