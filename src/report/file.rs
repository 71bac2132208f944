//! `--report`: the outcome as JSON, in a file found writable before anything ran. Knows how a call ended and
//! nothing of how it came about.

use super::{LAST_WORD, open_now, write_within};
use crate::link::Hold;
use crate::lock::expect::Expected;
use crate::lock::record::{FORMAT, Holder};
use crate::outcome::{CommandEnd, Exit, Outcome};
use nix::errno::Errno;
use serde::Serialize;
use std::fs::{self, File, FileType};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// What `--report` writes; the schema is in meshlock-run(1). Every field is always there, so that
/// readers need not tell absent from null.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    format: u32,
    name: &'a str,
    /// [`Outcome::name`].
    outcome: &'static str,
    /// What a shell shows: 128+n where meshlock dies of a signal.
    status: u8,
    signal: Option<i32>,
    why: Option<&'a str>,
    command: Option<CommandEnd>,
    /// Why the lock could not be released, and for how long it may still block others.
    unreleased: Option<&'a str>,
    token: Option<i64>,
    key: Option<&'a str>,
    /// In hexadecimal, as in the key and in etcdctl's answers.
    lease: Option<String>,
    cluster: Option<String>,
    host: &'a str,
    user: &'a str,
    pid: u32,
    program: &'a str,
    owner: Option<&'a str>,
    reason: Option<&'a str>,
    trigger: Option<&'a str>,
    system: Option<&'a str>,
    route: Option<&'a str>,
    /// The exit statuses that count as success, separated by commas.
    expect: Option<String>,
    /// Whether the run ended so; `None` where nothing was run.
    met: Option<bool>,
    /// Only where their being recorded was asked for.
    arguments: Option<&'a [String]>,
    started: &'a str,
    acquired: Option<&'a str>,
    ended: &'a str,
}

/// What a report is made of.
pub struct Run<'a> {
    pub name: &'a str,
    pub holder: &'a Holder,
    pub outcome: &'a Outcome,
    /// The status for contention (`-E`).
    pub conflict_status: u8,
    pub hold: Option<&'a Hold>,
    pub unreleased: Option<&'a str>,
    /// RFC 3339, UTC.
    pub acquired: Option<&'a str>,
    pub ended: &'a str,
}

impl<'a> Report<'a> {
    pub fn new(run: &Run<'a>) -> Self {
        let (status, signal) = match run.outcome.exit(run.conflict_status) {
            Exit::Status(status) => (status, None),
            Exit::Raise(signal) => (CommandEnd::Signaled(signal).status(), Some(signal)),
        };
        let (purpose, command) = (&run.holder.purpose, run.outcome.command());
        let expected = purpose.expected();
        let judge = |expected: &Expected| expected.met(run.outcome.name(), command.map(CommandEnd::status));
        Self {
            format: FORMAT,
            name: run.name,
            outcome: run.outcome.name(),
            status,
            signal,
            why: run.outcome.why(),
            command,
            unreleased: run.unreleased,
            token: run.hold.map(|hold| hold.token),
            key: run.hold.map(|hold| hold.key.as_str()),
            lease: run.hold.map(|hold| format!("{:x}", hold.lease)),
            cluster: run.hold.map(|hold| format!("{:x}", hold.cluster)),
            host: &run.holder.host,
            user: &run.holder.user,
            pid: run.holder.pid,
            program: &run.holder.program,
            owner: purpose.owner.as_deref(),
            reason: purpose.reason.as_deref(),
            trigger: purpose.trigger.as_deref(),
            system: purpose.system.as_deref(),
            route: purpose.route.as_deref(),
            expect: expected.as_ref().map(Expected::to_string),
            met: expected.as_ref().filter(|_| run.hold.is_some()).map(judge),
            arguments: purpose.arguments.as_deref(),
            started: &run.holder.started,
            acquired: run.acquired,
            ended: run.ended,
        }
    }
}

/// Where `--report` goes, found writable before anything ran.
#[derive(Clone, Debug)]
pub enum Target {
    /// Replaced as a whole, so that a reader never sees half a report.
    File(PathBuf),
    /// Opened at the start and kept: the reader of a FIFO takes a closing for the end. Leaked, since it lives as
    /// long as the process and the keeper has closed it behind our back.
    Stream(&'static OwnedFd),
}

impl Target {
    /// # Errors
    /// Where nothing could be written to `path`, and a FIFO that nobody reads.
    pub fn open(path: &Path) -> io::Result<Self> {
        let last = path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next();
        let path = std::path::absolute(path)?;
        // Made absolute it would name a file of which the kernel wants to know nothing: `x/` and `x/.` are directories.
        if matches!(last, Some(b"" | b".")) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        match fs::metadata(&path).map(|metadata| metadata.file_type()) {
            Ok(kind) if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(kind) if is_stream(&path, kind) => {
                let stream = open_now(&path).map_err(|error| {
                    if error == Errno::ENXIO && kind.is_fifo() {
                        io::Error::other("nobody reads it")
                    } else {
                        error.into()
                    }
                })?;
                Ok(Self::Stream(Box::leak(Box::new(stream))))
            }
            // Where the path is a link, the file behind it is replaced and the link stays.
            Ok(_) => Self::replaceable(fs::canonicalize(path)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::replaceable(path),
            Err(error) => Err(error),
        }
    }

    fn replaceable(path: PathBuf) -> io::Result<Self> {
        // Made and removed again: access rights alone do not tell of a full or read-only file system.
        let temporary = Temporary::beside(&path)?;
        drop(temporary);
        Ok(Self::File(path))
    }

    /// # Errors
    /// Where the report could not be written after all.
    pub fn write(&self, report: &Report) -> io::Result<()> {
        let mut json = serde_json::to_vec(report)?;
        json.push(b'\n');
        self.write_json(&json)
    }

    fn write_json(&self, json: &[u8]) -> io::Result<()> {
        match self {
            Self::File(path) => {
                let mut temporary = Temporary::beside(path)?;
                if let Ok(old) = fs::metadata(path) {
                    temporary.file.set_permissions(old.permissions())?;
                }
                temporary.file.write_all(json)?;
                fs::rename(&temporary.path, path)
            }
            Self::Stream(stream) => {
                write_within(LAST_WORD, json, stream.as_fd(), |rest| nix::unistd::write(stream, rest))
                    .map_err(io::Error::from)
            }
        }
    }
}

/// Whether to write into what is there. Descriptors by name, as in /dev/fd/3, count even where they are regular
/// files: they are meant, not the name of what is open there.
fn is_stream(path: &Path, kind: FileType) -> bool {
    let descriptors = ["/dev/fd", "/dev/stdout", "/dev/stderr", "/proc"];
    !kind.is_file() || descriptors.iter().any(|descriptor| path.starts_with(descriptor))
}

/// A new file in the same directory, gone again unless renamed.
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Temporary {
    fn beside(path: &Path) -> io::Result<Self> {
        // Not the pid: in containers it is always the same, and an old one's leavings would be in the way. Not the
        // report's own name: it may be as long as a name can be.
        let hidden = format!(".meshlock-report.{:x}", getrandom::u64().map_err(io::Error::other)?);
        let path = path.with_file_name(hidden);
        let file = File::create_new(&path)?;
        Ok(Self { path, file })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::record::Purpose;
    use crate::outcome::{CONTENDED, Failure, FailureKind};
    use nix::fcntl::{OFlag, open};
    use nix::sys::stat::Mode;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    fn report(outcome: &Outcome, hold: Option<&Hold>) -> serde_json::Value {
        let holder = Holder {
            format: FORMAT,
            host: "web1".into(),
            user: "ci".into(),
            pid: 4121,
            program: "invoice.sh".into(),
            started: "2026-11-30T14:02:11Z".into(),
            purpose: Purpose::default(),
        };
        serde_json::to_value(Report::new(&Run {
            name: "billing",
            holder: &holder,
            outcome,
            conflict_status: CONTENDED,
            hold,
            unreleased: None,
            acquired: hold.map(|_| "2026-11-30T14:02:12Z"),
            ended: "2026-11-30T14:02:13Z",
        }))
        .expect("JSON")
    }

    #[test]
    fn a_report_tells_the_calls_end_and_the_commands() {
        let hold = Hold {
            token: 42,
            key: "meshlock/lock/billing/2a".into(),
            lease: 0x2a,
            cluster: 0xcdf8_181e_3277_8c3d,
            ttl: Duration::from_secs(30),
        };
        let command = Some(CommandEnd::Signaled(9));
        let why = "the lease was revoked".to_owned();
        let lost = report(&Outcome::Lost { why, command }, Some(&hold));
        assert_eq!(lost["outcome"], "lost");
        assert_eq!(lost["status"], 79);
        assert_eq!(lost["command"]["signaled"], 9);
        assert_eq!(lost["lease"], "2a");
        assert_eq!(lost["cluster"], "cdf8181e32778c3d");

        let died = report(&Outcome::Command(CommandEnd::Signaled(15)), Some(&hold));
        assert_eq!((&died["status"], &died["signal"]), (&143.into(), &15.into()));
    }

    #[test]
    fn every_field_is_there_even_if_nothing_was_run() {
        let failed = Outcome::Failed(Failure::new(FailureKind::Unavailable, "no answer"));
        let failed = report(&failed, None);
        for field in [
            "token",
            "key",
            "lease",
            "cluster",
            "acquired",
            "command",
            "signal",
            "owner",
            "trigger",
            "system",
            "route",
            "met",
            "arguments",
        ] {
            assert_eq!(failed.get(field), Some(&serde_json::Value::Null), "{field}");
        }
    }

    #[test]
    fn a_regular_file_is_replaced_as_a_whole_and_keeps_its_rights_and_links() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, link) = (directory.path().join("report"), directory.path().join("link"));
        fs::write(&file, "old".repeat(1000)).expect("written");
        symlink(&file, &link).expect("a link");
        let before = fs::metadata(&file).expect("a file").permissions();

        let target = Target::open(&link).expect("writable");
        let text = |path| fs::read_to_string(path).expect("a file");
        assert_eq!(text(&file).len(), 3000, "untouched until the end");
        target.write_json(b"{}\n").expect("written");

        assert_eq!(text(&file), "{}\n");
        assert!(link.is_symlink());
        assert_eq!(fs::metadata(&file).expect("a file").permissions(), before);
        assert_eq!(
            fs::read_dir(&directory).expect("a directory").count(),
            2,
            "nothing is left beside it"
        );
    }

    #[test]
    fn what_cannot_be_written_is_found_beforehand() {
        let directory = tempfile::tempdir().expect("a directory");
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("a FIFO");
        for path in [
            directory.path(),
            &directory.path().join("none/report"),
            &fifo,
            "/".as_ref(),
        ] {
            assert!(Target::open(path).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn the_reader_of_a_fifo_gets_the_whole_report() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("fifo");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).expect("a FIFO");
        let reader = open(&path, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty()).expect("open");
        let target = Target::open(&path).expect("it has a reader");
        target.write_json(b"{}\n").expect("written");
        let mut text = [0; 3];
        File::from(reader).read_exact(&mut text).expect("text");
        assert_eq!(&text, b"{}\n");
    }
}
