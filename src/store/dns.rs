//! DNS where `getaddrinfo(3)` has no word for the question: services (SRV records, RFC 2782), asked for at the name
//! servers of `resolv.conf(5)`. Knows nothing of etcd.

use resolv_conf::Config;
use simple_dns::rdata::{RData, SRV};
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE, header_buffer};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// One who offers the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The lower, the earlier.
    pub(super) priority: u16,
    /// Among those of one priority, how often it is to be the first.
    pub(super) weight: u16,
    /// Without a closing dot.
    pub(super) host: String,
    pub(super) port: u16,
}

const RESOLV_CONF: &str = "/etc/resolv.conf";
const PORT: u16 = 53;

/// Less than `resolv.conf(5)` has, 5 s, so that a dead name server leaves time for the next one.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The largest datagram without EDNS is 512 (RFC 1035, 4.2.1); what is longer comes by TCP.
const DATAGRAM: usize = 4096;

/// What a name server said.
enum Said {
    Targets(Vec<Target>),
    /// Nothing of that name, or no service.
    Nothing,
}

/// Who offers the service of this name; nobody, if DNS has no such name. A name that is not absolute is looked for in
/// the domains of the search list, too, as `resolv.conf(5)` has it.
///
/// # Errors
/// Where no name server has an answer, in one line.
pub(super) async fn targets(service: &str) -> Result<Vec<Target>, String> {
    let text = fs::read(RESOLV_CONF).unwrap_or_default();
    // What cannot be understood is passed over, as the C library does.
    let (config, _) = Config::parse_with_errors(&text);
    let servers: Vec<IpAddr> = config.get_nameservers_or_local().iter().map(IpAddr::from).collect();
    let mut refusal = None;
    for name in names(service, &config) {
        match ask_around(&servers, config.attempts, &name).await {
            Ok(Said::Targets(targets)) => return Ok(targets),
            Ok(Said::Nothing) => {}
            Err(why) => refusal = Some(why),
        }
    }
    refusal.map_or(Ok(Vec::new()), Err)
}

/// The name by itself and in each domain of the search list: itself first, unless it has fewer dots than `ndots`.
fn names(service: &str, config: &Config) -> Vec<String> {
    if service.ends_with('.') {
        return vec![service.to_owned()];
    }
    let dots = service.bytes().filter(|byte| *byte == b'.').count();
    let alone_first = u32::try_from(dots).unwrap_or(u32::MAX) >= config.ndots;
    let searched = config.get_last_search_or_domain();
    let searched = searched.map(|domain| format!("{service}.{}", domain.trim_start_matches('.')));
    let mut names: Vec<String> = searched.collect();
    names.insert(if alone_first { 0 } else { names.len() }, service.to_owned());
    names
}

/// Each name server in turn, again and again, until one has an answer.
async fn ask_around(servers: &[IpAddr], attempts: u32, name: &str) -> Result<Said, String> {
    let mut why = "no name server is set".to_owned();
    for _ in 0..attempts.max(1) {
        for server in servers {
            let place = SocketAddr::new(*server, PORT);
            let asked = timeout(ANSWER_WITHIN, ask(place, name)).await;
            let asked = asked.unwrap_or_else(|_| Err(io::Error::other("no answer")));
            match asked {
                Ok(said) => return Ok(said),
                Err(error) => why = format!("the name server {server}: {error}"),
            }
        }
    }
    Err(why)
}

async fn ask(server: SocketAddr, name: &str) -> io::Result<Said> {
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let id = u16::from_ne_bytes(id);
    let question = question(id, name)?;
    let mut answer = by_datagram(server, id, &question).await?;
    if header_buffer::has_flags(&answer, PacketFlag::TRUNCATION).unwrap_or(true) {
        answer = by_stream(server, &question).await?;
    }
    understand(id, &answer)
}

fn question(id: u16, name: &str) -> io::Result<Vec<u8>> {
    let name = name.trim_end_matches('.');
    let name = Name::new(name).map_err(io::Error::other)?;
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let question = Question::new(name, TYPE::SRV.into(), CLASS::IN.into(), false);
    packet.questions.push(question);
    packet.build_bytes_vec().map_err(io::Error::other)
}

async fn by_datagram(server: SocketAddr, id: u16, question: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // From there on the kernel takes nothing from anybody else.
    socket.connect(server).await?;
    socket.send(question).await?;
    let mut answer = vec![0; DATAGRAM];
    loop {
        let length = socket.recv(&mut answer).await?;
        if header_buffer::id(&answer[..length]) == Ok(id) {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

/// RFC 1035, 4.2.2: each message after its length.
async fn by_stream(server: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn understand(id: u16, answer: &[u8]) -> io::Result<Said> {
    let strange = || io::Error::other("an answer that cannot be understood");
    let packet = Packet::parse(answer).map_err(|_| strange())?;
    if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) {
        return Err(strange());
    }
    match packet.rcode() {
        RCODE::NoError => {}
        RCODE::NameError => return Ok(Said::Nothing),
        RCODE::ServerFailure => return Err(io::Error::other("it has no answer (SERVFAIL)")),
        RCODE::Refused => return Err(io::Error::other("it refuses to answer (REFUSED)")),
        other => return Err(io::Error::other(format!("it refuses to answer ({other:?})"))),
    }
    let records = packet.answers.iter().filter_map(|record| match &record.rdata {
        RData::SRV(service) => Some(service),
        _ => None,
    });
    let targets: Vec<Target> = records.filter_map(target).collect();
    Ok(if targets.is_empty() {
        Said::Nothing
    } else {
        Said::Targets(targets)
    })
}

/// `None` for what is no name of a host, the lone dot among it by which a domain says that it has no such service.
fn target(service: &SRV<'_>) -> Option<Target> {
    let host = service.target.to_string();
    let host = host.trim_end_matches('.');
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_plain) && service.port != 0).then(|| Target {
        priority: service.priority,
        weight: service.weight,
        host: host.to_owned(),
        port: service.port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_under(service: &str, resolv_conf: &str) -> Vec<String> {
        names(service, &Config::parse(resolv_conf).expect("a configuration"))
    }

    #[test]
    fn the_search_list_is_gone_through_as_the_c_library_does() {
        assert_eq!(names_under("_a._tcp.b", ""), ["_a._tcp.b"]);
        assert_eq!(names_under("_a._tcp.b.", "search c d"), ["_a._tcp.b."]);
        assert_eq!(
            names_under("_a._tcp.b", "search c d"),
            ["_a._tcp.b", "_a._tcp.b.c", "_a._tcp.b.d"]
        );
        assert_eq!(
            names_under("_a._tcp.b", "search c\noptions ndots:5"),
            ["_a._tcp.b.c", "_a._tcp.b"]
        );
    }

    #[test]
    fn an_answer_is_ours_or_none() {
        let asked = question(7, "_a._tcp.b").expect("a question");
        assert!(understand(7, &asked).is_err(), "a question is no answer");
        let mut reply = Packet::parse(&asked).expect("our own").into_reply();
        reply.set_flags(PacketFlag::RESPONSE);
        let bytes = reply.build_bytes_vec().expect("an answer");
        assert!(matches!(understand(7, &bytes), Ok(Said::Nothing)));
        assert!(understand(8, &bytes).is_err());
        for length in 0..bytes.len() {
            assert!(understand(7, &bytes[..length]).is_err(), "cut off after {length}");
        }
        *reply.rcode_mut() = RCODE::ServerFailure;
        assert!(understand(7, &reply.build_bytes_vec().expect("an answer")).is_err());
    }
    fn answer(targets: &[(u16, &'static str, u16)]) -> Vec<u8> {
        let asked = question(7, "_a._tcp.b").expect("a question");
        let mut reply = Packet::parse(&asked).expect("our own").into_reply();
        reply.set_flags(PacketFlag::RESPONSE);
        for (priority, host, port) in targets {
            let service = RData::SRV(SRV {
                priority: *priority,
                weight: 0,
                port: *port,
                target: Name::new_unchecked(host),
            });
            let owner = Name::new_unchecked("_a._tcp.b");
            reply
                .answers
                .push(simple_dns::ResourceRecord::new(owner, CLASS::IN, 1, service));
        }
        reply.build_bytes_vec_compressed().expect("an answer")
    }

    #[test]
    fn only_what_can_be_dialled_is_a_target() {
        let said = understand(7, &answer(&[(1, "a.b", 2), (1, "", 2), (1, "a b", 2), (1, "c.b", 0)]));
        let Ok(Said::Targets(targets)) = said else {
            panic!("no targets")
        };
        let a = Target {
            priority: 1,
            weight: 0,
            host: "a.b".to_owned(),
            port: 2,
        };
        assert_eq!(targets, [a]);
    }

    #[test]
    fn whatever_a_name_server_sends_is_understood_or_refused() {
        let mut chance = fastrand::Rng::with_seed(1);
        let sound = answer(&[(1, "one.a.b", 2379), (2, "two.a.b", 2379)]);
        for _ in 0..100_000 {
            let mut bytes = sound.clone();
            for _ in 0..chance.usize(1..6) {
                let at = chance.usize(..bytes.len());
                bytes[at] = chance.u8(..);
            }
            bytes.truncate(chance.usize(..=bytes.len()));
            let useless = |target: &Target| target.host.is_empty() || target.port == 0;
            if let Ok(Said::Targets(targets)) = understand(7, &bytes) {
                assert!(!targets.is_empty() && !targets.iter().any(useless), "{bytes:?}");
            }
        }
    }
}
