//! A name server of the test's own, which says what the test wants, or nothing.

use simple_dns::rdata::{A, RData, SRV};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

pub(crate) struct NameServer {
    address: IpAddr,
    zone: Arc<Zone>,
}

#[derive(Default)]
struct Zone {
    records: Mutex<Vec<(String, Record)>>,
    silent: AtomicBool,
    /// Says of services by datagram only that there is more to be said.
    long_winded: AtomicBool,
}

#[derive(Clone)]
pub(crate) enum Record {
    Address(Ipv4Addr),
    Service {
        priority: u16,
        host: &'static str,
        port: u16,
    },
}

impl NameServer {
    /// `None` where its port is not ours to take, as for everybody but root.
    pub(crate) fn start() -> Option<Self> {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        // Other test runs, and the machine's own server, have other addresses.
        let [.., high, low] = process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, high | 0x80, low, NEXT.fetch_add(1, Ordering::SeqCst));
        let udp = match UdpSocket::bind((address, 53)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
            bound => bound.expect("a name server's port"),
        };
        let tcp = TcpListener::bind((address, 53)).expect("a name server's port");
        let zone = Arc::<Zone>::default();
        let (by_datagram, by_stream) = (Arc::clone(&zone), Arc::clone(&zone));
        thread::spawn(move || by_datagram.serve_datagrams(&udp));
        thread::spawn(move || by_stream.serve_streams(&tcp));
        let address = address.into();
        Some(Self { address, zone })
    }

    /// What must stand in `/etc/resolv.conf`.
    pub(crate) fn resolv_conf(&self) -> String {
        format!("nameserver {}\n", self.address)
    }

    /// All that it knows from now on.
    pub(crate) fn says(&self, records: &[(&str, Record)]) {
        let records = records
            .iter()
            .map(|(name, record)| ((*name).to_owned(), record.clone()));
        *self.zone.records.lock().expect("not poisoned") = records.collect();
    }

    pub(crate) fn be_silent(&self) {
        self.zone.silent.store(true, Ordering::SeqCst);
    }

    pub(crate) fn be_long_winded(&self) {
        self.zone.long_winded.store(true, Ordering::SeqCst);
    }
}

impl Zone {
    fn serve_datagrams(&self, socket: &UdpSocket) {
        let mut question = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            if !self.silent.load(Ordering::SeqCst)
                && let Some(answer) = self.answer(&question[..length], self.long_winded.load(Ordering::SeqCst))
            {
                socket.send_to(&answer, from).ok();
            }
        }
    }

    fn serve_streams(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming().flatten() {
            let zone = Arc::clone(self);
            thread::spawn(move || while zone.serve_stream(&stream).is_some() {});
        }
    }

    /// One question: the C library puts several on one connection.
    fn serve_stream(&self, mut stream: &TcpStream) -> Option<()> {
        let mut length = [0; 2];
        stream.read_exact(&mut length).ok()?;
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut question).ok()?;
        if self.silent.load(Ordering::SeqCst) {
            return Some(());
        }
        let answer = self.answer(&question, false)?;
        let length = u16::try_from(answer.len()).expect("a short answer").to_be_bytes();
        stream.write_all(&[&length[..], &answer].concat()).ok()
    }

    fn answer(&self, question: &[u8], cut_short: bool) -> Option<Vec<u8>> {
        let mut answer = Packet::parse(question).ok()?.into_reply();
        answer.set_flags(PacketFlag::RESPONSE);
        let asked = answer.questions.first()?;
        let (name, kind) = (asked.qname.to_string().to_ascii_lowercase(), asked.qtype);
        let records = self.records.lock().expect("not poisoned").clone();
        let known: Vec<&Record> = records
            .iter()
            .filter(|(known, _)| *known == name)
            .map(|(_, record)| record)
            .collect();
        if known.is_empty() {
            *answer.rcode_mut() = RCODE::NameError;
        }
        for record in known {
            let data = match *record {
                Record::Address(address) if kind == QTYPE::TYPE(TYPE::A) => RData::A(A {
                    address: address.to_bits(),
                }),
                Record::Service { priority, host, port } if kind == QTYPE::TYPE(TYPE::SRV) => RData::SRV(SRV {
                    priority,
                    weight: 0,
                    port,
                    target: Name::new_unchecked(host),
                }),
                _ => continue,
            };
            if cut_short && kind == QTYPE::TYPE(TYPE::SRV) {
                answer.set_flags(PacketFlag::TRUNCATION);
            } else {
                let owner = Name::new_unchecked(&name).into_owned();
                answer.answers.push(ResourceRecord::new(owner, CLASS::IN, 1, data));
            }
        }
        answer.build_bytes_vec().ok()
    }
}
