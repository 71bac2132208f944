//! Lock names and the one key layout in etcd. Everything that reads or writes a key asks here; knows
//! nothing of how keys are read or written.
//!
//! | key | what |
//! | --- | --- |
//! | `lock/<name>/<lease>` | a queue entry; nothing else may lie under `lock/<name>/` |
//! | `open/<name>/<lease>` | the open record: written with the entry, bound to no lease |
//! | `log/<name>/<token>` | run records |
//! | `mark/<name>/…` | once and at-most-every marks |
//! | `freeze/<name>` | while it exists nobody starts |
//! | `ask/<name>/<lease>` | what is asked of the entry with that lease |
//!
//! With `--lock-key` the entries lie under `<key>/`, and `=<key>` stands for the name in the other places: no name is
//! encoded so, and the lock `deploy` is another one than that of the key `deploy`.

use std::fmt;

/// What lies under the root; displays as the first part of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Lock,
    Open,
    Log,
    Mark,
    Freeze,
    Ask,
}

impl Kind {
    pub const ALL: [Self; 6] = [Self::Lock, Self::Open, Self::Log, Self::Mark, Self::Freeze, Self::Ask];
}

/// Names and keys of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As typed by the user.
    pub name: String,
    root: String,
    /// What stands for the lock in our own keys.
    encoded: String,
    /// Of the queue's entries, with the closing slash.
    queue: String,
    /// Whether that is under `lock/`.
    verbatim: bool,
}

/// Why a name cannot be one; displays as a sentence's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadName {
    Empty,
    TooLong,
    ControlCharacter,
    Comma,
    NotUtf8,
    /// Of a key: its queue would lie among our own records, or they in it, and be taken for entries.
    AmongOurs,
}

/// The longest name, in bytes.
pub const NAME_LIMIT: usize = 255;

impl Place {
    /// The lock `name` under `root` (`--prefix`).
    ///
    /// # Errors
    /// Where the name is empty, longer than [`NAME_LIMIT`], or has a control character or a comma (which
    /// will one day separate several names).
    pub fn new(root: &str, name: &str) -> Result<Self, BadName> {
        check(name)?;
        if name.contains(',') {
            return Err(BadName::Comma);
        }
        let encoded = percent_encode(name);
        Ok(Self {
            name: name.to_owned(),
            queue: format!("{root}lock/{encoded}/"),
            root: root.to_owned(),
            encoded,
            verbatim: false,
        })
    }

    /// The lock whose keys have `encoded` in the place of the name: also what nobody could have named so.
    pub fn found(root: &str, encoded: &str) -> Self {
        let key = encoded.strip_prefix('=').map(decode);
        let verbatim = key.and_then(|key| Self::verbatim(root, &key, &key).ok());
        verbatim
            .filter(|place| place.encoded == encoded)
            .unwrap_or_else(|| Self {
                name: decode(encoded),
                queue: format!("{root}{}/{encoded}/", Kind::Lock),
                root: root.to_owned(),
                encoded: encoded.to_owned(),
                verbatim: false,
            })
    }

    /// A queue at the verbatim key prefix `key`, shared with etcdctl or Go programs (`--lock-key`); the
    /// rest lies under `root`, the key standing for the name there.
    ///
    /// # Errors
    /// As [`Place::new`], a comma apart, and where the queue and our own records would lie in one another.
    pub fn verbatim(root: &str, name: &str, key: &str) -> Result<Self, BadName> {
        check(name)?;
        check(key)?;
        let queue = format!("{key}/");
        if root.starts_with(&queue) || Kind::ALL.iter().any(|kind| queue.starts_with(&all(root, *kind))) {
            return Err(BadName::AmongOurs);
        }
        Ok(Self {
            name: name.to_owned(),
            queue,
            root: root.to_owned(),
            encoded: format!("={}", percent_encode(key)),
            verbatim: true,
        })
    }

    /// The prefix of all entries of the queue.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Lower-case hexadecimal without padding, as Go's `concurrency.Mutex` writes it.
    pub fn entry(&self, lease: i64) -> String {
        format!("{}{lease:x}", self.queue)
    }

    /// The key at which the queue is shared (`--lock-key`), if it is.
    pub fn lock_key(&self) -> Option<&str> {
        self.queue.strip_suffix('/').filter(|_| self.verbatim)
    }

    /// What people are told of it as; see [`called`].
    pub fn called(&self) -> String {
        called(&self.name, self.lock_key())
    }

    /// The lock at the key of the same text as this one's name: another one, and easily taken for it.
    #[must_use]
    pub fn namesake(&self) -> Option<Self> {
        let other = || Self::verbatim(&self.root, &self.name, &self.name).ok();
        (!self.verbatim).then(other).flatten()
    }

    /// The lease in the key of an entry, an open record or an ask of this lock, if it is one.
    pub fn lease(&self, kind: Kind, key: &str) -> Option<i64> {
        let prefix = match kind {
            Kind::Lock => self.queue.clone(),
            kind => format!("{}{kind}/{}/", self.root, self.encoded),
        };
        let written = key.strip_prefix(&prefix)?;
        let lease = i64::from_str_radix(written, 16).ok()?;
        (format!("{lease:x}") == written).then_some(lease)
    }

    /// The prefix of all open records.
    pub fn opens(&self) -> String {
        format!("{}open/{}/", self.root, self.encoded)
    }

    pub fn open(&self, lease: i64) -> String {
        format!("{}open/{}/{lease:x}", self.root, self.encoded)
    }

    /// The prefix of all run records.
    pub fn log(&self) -> String {
        format!("{}log/{}/", self.root, self.encoded)
    }

    /// Padded, so that run records sort by their token.
    pub fn run_record(&self, token: i64) -> String {
        format!("{}log/{}/{token:016x}", self.root, self.encoded)
    }

    /// The prefix of all marks.
    pub fn marks(&self) -> String {
        format!("{}mark/{}/", self.root, self.encoded)
    }

    /// The prefix of all that is asked.
    pub fn asks(&self) -> String {
        format!("{}ask/{}/", self.root, self.encoded)
    }

    pub fn freeze(&self) -> String {
        format!("{}freeze/{}", self.root, self.encoded)
    }

    pub fn ask(&self, lease: i64) -> String {
        format!("{}ask/{}/{lease:x}", self.root, self.encoded)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "lock",
            Self::Open => "open",
            Self::Log => "log",
            Self::Mark => "mark",
            Self::Freeze => "freeze",
            Self::Ask => "ask",
        })
    }
}

/// Whether the key can be the entry of the lease, in whatever queue.
pub fn is_entry(key: &str, lease: i64) -> bool {
    key.strip_suffix(&format!("/{lease:x}"))
        .is_some_and(|queue| !queue.is_empty())
}

/// What a lock is called where a person reads of it. One that is shared at a key is called by that: it is another lock
/// than the one of that name.
pub fn called(name: &str, lock_key: Option<&str>) -> String {
    lock_key.map_or_else(|| name.to_owned(), |key| format!("{key}{AT_A_KEY}"))
}

/// The key of the lock that is [`called`] so.
pub fn called_key(called: &str) -> Option<&str> {
    called.strip_suffix(AT_A_KEY)
}

const AT_A_KEY: &str = " (--lock-key)";

/// The prefix of all keys of a kind, whatever their names.
pub fn all(root: &str, kind: Kind) -> String {
    format!("{root}{kind}/")
}

/// The name as it is encoded in a key under [`all`].
pub fn encoded_name<'a>(root: &str, kind: Kind, key: &'a str) -> Option<&'a str> {
    let rest = key.strip_prefix(&all(root, kind))?;
    match kind {
        Kind::Freeze => Some(rest),
        Kind::Lock | Kind::Open | Kind::Log | Kind::Mark | Kind::Ask => Some(rest.split_once('/')?.0),
    }
    .filter(|name| !name.is_empty())
}

/// What is no encoded name stays as it is.
fn decode(encoded: &str) -> String {
    let mut name = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        let digit = |digit: Option<u8>| char::from(digit?).to_digit(16);
        match byte {
            b'%' => match (digit(rest.next()), digit(rest.next())) {
                (Some(high), Some(low)) => name.extend(u8::try_from(high * 16 + low)),
                _ => return encoded.to_owned(),
            },
            other => name.push(other),
        }
    }
    match String::from_utf8(name) {
        Ok(name) if percent_encode(&name) == encoded => name,
        _ => encoded.to_owned(),
    }
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty"),
            Self::TooLong => write!(f, "it is longer than {NAME_LIMIT} bytes"),
            Self::ControlCharacter => f.write_str("it has a control character"),
            Self::Comma => f.write_str("it has a comma"),
            Self::NotUtf8 => f.write_str("it is not UTF-8"),
            Self::AmongOurs => f.write_str("its entries and meshlock's own records under --prefix would mix"),
        }
    }
}

fn check(name: &str) -> Result<(), BadName> {
    if name.is_empty() {
        return Err(BadName::Empty);
    }
    if name.len() > NAME_LIMIT {
        return Err(BadName::TooLong);
    }
    if name.chars().any(char::is_control) {
        return Err(BadName::ControlCharacter);
    }
    Ok(())
}

/// Everything outside `[A-Za-z0-9._-]`, so that no name is the beginning of another's path: etcdctl's
/// `lock a` waits for a held `a/b`.
fn percent_encode(name: &str) -> String {
    use fmt::Write as _;
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            write!(encoded, "%{byte:02X}").ok();
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_names_do_not_collide() {
        let team = Place::new("meshlock/", "team").expect("a name");
        let db = Place::new("meshlock/", "team/db").expect("a name");
        assert_eq!(team.entry(0x2a), "meshlock/lock/team/2a");
        assert_eq!(db.entry(0x2a), "meshlock/lock/team%2Fdb/2a");
        assert!(!db.entry(0x2a).starts_with(team.queue()));
    }

    #[test]
    fn bad_names_are_refused() {
        let long = "x".repeat(256);
        for (name, why) in [
            ("", BadName::Empty),
            ("a,b", BadName::Comma),
            ("a\nb", BadName::ControlCharacter),
            ("a\u{7f}b", BadName::ControlCharacter),
            (long.as_str(), BadName::TooLong),
        ] {
            assert_eq!(Place::new("meshlock/", name), Err(why), "{name:?}");
        }
    }

    #[test]
    fn names_of_255_bytes_and_any_script_are_taken() {
        for name in ["x".repeat(255).as_str(), "Rechnung #7", "請求書", "a.b_c-d", "..", "/"] {
            assert!(Place::new("meshlock/", name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn a_key_found_leads_back_to_its_name_and_lease() {
        for name in ["team/db", "Rechnung #7", "請求書", "a.b_c-d", "..", "%41"] {
            let place = Place::new("m/", name).expect("a name");
            let encoded = encoded_name("m/", Kind::Open, &place.open(0x2a))
                .expect("a name")
                .to_owned();
            let found = Place::found("m/", &encoded);
            assert_eq!(found, place);
            assert_eq!(found.lease(Kind::Lock, &place.entry(0x2a)), Some(0x2a));
            assert_eq!(found.lease(Kind::Open, &place.open(0x2a)), Some(0x2a));
            assert_eq!(
                encoded_name("m/", Kind::Freeze, &place.freeze()),
                Some(encoded.as_str())
            );
        }
    }

    #[test]
    fn what_nobody_could_have_named_so_is_called_as_it_is_written() {
        for encoded in ["a b", "%", "%4", "%zz", "%41", "%ff", "%2f", "%C3%A"] {
            assert_eq!(Place::found("m/", encoded).name, encoded);
        }
        let key = Place::verbatim("m/", "jobs/go", "jobs/go").expect("a key");
        assert_eq!(Place::found("m/", "=jobs%2Fgo"), key);
        assert_eq!(
            Place::found("m/", "=m%2Flock%2Fa").name,
            "=m%2Flock%2Fa",
            "among ours: no key"
        );
        assert_eq!(encoded_name("m/", Kind::Lock, "m/lock/stray"), None);
        assert_eq!(encoded_name("m/", Kind::Lock, "m/lock//2a"), None);
        assert_eq!(encoded_name("m/", Kind::Lock, "elsewhere/lock/a/2a"), None);
    }

    #[test]
    fn a_verbatim_key_is_the_queues_prefix_and_the_name_elsewhere() {
        let place = Place::verbatim("meshlock/", "deploy", "jobs/deploy").expect("a key");
        assert_eq!(place.entry(255), "jobs/deploy/ff");
        assert_eq!(place.open(255), "meshlock/open/=jobs%2Fdeploy/ff");
        assert_eq!(place.lock_key(), Some("jobs/deploy"));
        assert_eq!(place.called(), "jobs/deploy (--lock-key)");
    }

    #[test]
    fn the_key_of_the_same_text_is_another_lock() {
        let name = Place::new("m/", "a/b").expect("a name");
        assert_eq!((name.lock_key(), name.called().as_str()), (None, "a/b"));
        let key = name.namesake().expect("a key");
        assert_eq!((key.queue(), key.called().as_str()), ("a/b/", "a/b (--lock-key)"));
        assert_eq!(key.namesake(), None);
        assert_eq!(Place::new("m/", "m").expect("a name").namesake(), None, "among ours");
    }

    #[test]
    fn an_entry_is_of_one_lease() {
        let place = Place::new("m/", "team/db").expect("a name");
        assert!(is_entry(&place.entry(0x2a), 0x2a));
        for (key, lease) in [
            (place.entry(0x2a).as_str(), 0x2b),
            (place.queue(), 0x2a),
            ("", 0),
            ("/0", 0),
        ] {
            assert!(!is_entry(key, lease), "{key}");
        }
    }

    #[test]
    fn a_verbatim_key_stays_out_of_our_own_records() {
        for key in ["meshlock", "meshlock/lock", "meshlock/open/x", "meshlock/freeze"] {
            assert_eq!(Place::verbatim("meshlock/", "x", key), Err(BadName::AmongOurs), "{key}");
        }
        for key in ["meshlock2", "mesh", "meshlock/deploy", "meshlock/locked"] {
            assert!(Place::verbatim("meshlock/", "x", key).is_ok(), "{key}");
        }
    }
}
