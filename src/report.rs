//! The only writer to stdout and stderr, and the writer of `--report`. One line for each thing that the user
//! must know. Knows nothing of locks; decides only whether and how a line gets out.
//!
//! While a command runs under a lock, whoever waits to write cannot kill it in time: a full pipe or a
//! terminal stopped by Ctrl-S must never hold us up. So everything but the last word is written without
//! waiting and dropped where that is impossible. `O_NONBLOCK` belongs to the open file, which the command
//! shares (`fcntl(2)`): it is never set on an inherited descriptor, but on one opened anew.
//!
//! Writing to a terminal from the background under `stty tostop` raises SIGTTOU; the guardian blocks it
//! before it reports (`termios(3)`, TOSTOP).

use crate::link::Hold;
use crate::lock::record::{FORMAT, Holder};
use crate::outcome::{CommandEnd, Exit, Outcome};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::Mode;
use serde::Serialize;
use std::cell::OnceCell;
use std::fmt::Write as _;
use std::fs::{self, File, FileType};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// No progress, no contention; what went wrong is still said.
    Quiet,
    Normal,
    Verbose,
}

/// The last word may wait this long for a reader, once nothing runs under the lock any more.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The longest line: what a pipe takes as a whole or not at all (`pipe(7)`, `PIPE_BUF`).
const LINE_LIMIT: usize = 4096;

/// Tells the user, on stderr.
pub struct Reporter {
    verbosity: Verbosity,
    stderr: OnceCell<Stderr>,
}

impl Reporter {
    pub const fn new(verbosity: Verbosity) -> Self {
        Self {
            verbosity,
            stderr: OnceCell::new(),
        }
    }

    /// Something that helps while waiting; silenced by `-q`.
    pub fn progress(&self, line: &str) {
        if self.verbosity > Verbosity::Quiet {
            self.say(line, Duration::ZERO);
        }
    }

    /// Something that the user must know, whatever was asked.
    pub fn notice(&self, line: &str) {
        self.say(line, Duration::ZERO);
    }

    /// Something for those who asked for more.
    pub fn verbose(&self, line: &str) {
        if self.verbosity == Verbosity::Verbose {
            self.say(line, Duration::ZERO);
        }
    }

    /// The last word. Nothing may run under the lock any more: this may take a second.
    pub fn outcome(&self, outcome: &Outcome) {
        let silenced = self.verbosity == Verbosity::Quiet && matches!(outcome, Outcome::Contended { .. });
        if let Some(why) = outcome.why().filter(|_| !silenced) {
            self.say(why, LAST_WORD);
        }
    }

    fn say(&self, text: &str, patience: Duration) {
        self.stderr.get_or_init(Stderr::find).write(&line(text), patience);
    }
}

/// How stderr can be written to without waiting and without changing it for others.
enum Stderr {
    /// `send(2)` with `MSG_DONTWAIT` concerns the one call.
    Socket,
    /// Never waits for a reader; and written through the inherited descriptor, which knows the offset.
    RegularFile,
    /// A pipe, FIFO or terminal, opened anew in non-blocking mode.
    Reopened(OwnedFd),
    /// What must not be reopened, such as another user's pipe: asked beforehand whether it has room.
    Inherited,
    /// Closed at the other end.
    Gone,
}

impl Stderr {
    fn find() -> Self {
        match fs::metadata("/proc/self/fd/2").map(|metadata| metadata.file_type()) {
            Ok(kind) if kind.is_socket() => Self::Socket,
            Ok(kind) if kind.is_file() => Self::RegularFile,
            Ok(_) => match open_now("/proc/self/fd/2".as_ref()) {
                Ok(reopened) => Self::Reopened(reopened),
                // A FIFO that nobody reads, a terminal that hung up (`open(2)`).
                Err(Errno::ENXIO | Errno::EIO) => Self::Gone,
                Err(_) => Self::Inherited,
            },
            Err(_) => Self::Inherited,
        }
    }

    /// Where the line does not get out it is dropped: there is nobody left to tell.
    fn write(&self, line: &[u8], patience: Duration) {
        let stderr = io::stderr();
        let fd = stderr.as_fd();
        match self {
            Self::Socket => write_within(patience, line, fd, |rest| {
                send(fd.as_raw_fd(), rest, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)
            }),
            Self::RegularFile => write_within(patience, line, fd, |rest| nix::unistd::write(fd, rest)),
            Self::Reopened(own) => write_within(patience, line, own.as_fd(), |rest| nix::unistd::write(own, rest)),
            Self::Inherited => write_within(patience, line, fd, |rest| {
                if has_room(fd, Duration::ZERO) {
                    nix::unistd::write(fd, rest)
                } else {
                    Err(Errno::EAGAIN)
                }
            }),
            Self::Gone => Ok(()),
        }
        .ok();
    }
}

/// Opens without waiting, without emptying, at the end, and without making it our terminal.
fn open_now(path: &Path) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    open(path, flags, Mode::empty())
}

/// Calls `write`, which must not block, until all is written or `patience` is over.
fn write_within(
    patience: Duration,
    mut rest: &[u8],
    fd: BorrowedFd,
    write: impl Fn(&[u8]) -> nix::Result<usize>,
) -> nix::Result<()> {
    let began = Instant::now();
    while !rest.is_empty() {
        match write(rest) {
            Ok(written) => rest = &rest[written.min(rest.len())..],
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let left = patience.saturating_sub(began.elapsed());
                if left.is_zero() || !has_room(fd, left) {
                    return Err(Errno::EAGAIN);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether `fd` can be written to within `patience`; a signal counts as yes, the next write will tell.
fn has_room(fd: BorrowedFd, patience: Duration) -> bool {
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO);
    match poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)], timeout) {
        Ok(ready) => ready > 0,
        Err(error) => error == Errno::EINTR && !patience.is_zero(),
    }
}

fn line(text: &str) -> Vec<u8> {
    let mut line = format!("meshlock: {}", printable(text));
    if line.len() >= LINE_LIMIT {
        let mut end = LINE_LIMIT - "…\n".len();
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push('…');
    }
    line.push('\n');
    line.into_bytes()
}

/// `text` on one line and unable to steer a terminal: others' records and names end up on people's screens.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() || is_invisible_steering(char) {
            // Writing to a String cannot fail.
            write!(safe, "{}", char.escape_default()).ok();
        } else {
            safe.push(char);
        }
    }
    safe
}

/// Line separators, and the marks that reverse what follows (Unicode's UAX #9).
const fn is_invisible_steering(char: char) -> bool {
    matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// clap's help or version, which go to stdout; a reader that went away is no error.
pub fn help(text: &clap::Error) {
    text.print().ok();
}

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
        Self {
            format: FORMAT,
            name: run.name,
            outcome: run.outcome.name(),
            status,
            signal,
            why: run.outcome.why(),
            command: run.outcome.command(),
            unreleased: run.unreleased,
            token: run.hold.map(|hold| hold.token),
            key: run.hold.map(|hold| hold.key.as_str()),
            lease: run.hold.map(|hold| format!("{:x}", hold.lease)),
            cluster: run.hold.map(|hold| format!("{:x}", hold.cluster)),
            host: &run.holder.host,
            user: &run.holder.user,
            pid: run.holder.pid,
            program: &run.holder.program,
            owner: run.holder.purpose.owner.as_deref(),
            reason: run.holder.purpose.reason.as_deref(),
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
        let path = std::path::absolute(path)?;
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
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        // Not the pid: in containers it is always the same, and an old one's leavings would be in the way.
        hidden.push(format!(".{:x}", getrandom::u64().map_err(io::Error::other)?));
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
    use std::io::Read;
    use std::os::unix::fs::symlink;

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
            "token", "key", "lease", "cluster", "acquired", "command", "signal", "owner",
        ] {
            assert_eq!(failed.get(field), Some(&serde_json::Value::Null), "{field}");
        }
    }

    #[test]
    fn a_line_stays_one_line_and_cannot_steer_a_terminal() {
        assert_eq!(
            printable("a\u{1b}[2Jb\nc\u{202e}d\u{7f}é"),
            "a\\u{1b}[2Jb\\nc\\u{202e}d\\u{7f}é"
        );
        assert_eq!(line("held by \r\n x"), b"meshlock: held by \\r\\n x\n");
    }

    #[test]
    fn a_line_fits_into_a_pipe_as_a_whole() {
        let long = line(&"é".repeat(5000));
        assert!(long.len() <= LINE_LIMIT);
        assert!(String::from_utf8(long).expect("whole characters").ends_with("…\n"));
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

    #[test]
    fn a_full_pipe_holds_nobody_up() {
        let (_reader, writer) = nix::unistd::pipe().expect("a pipe");
        let again = open_now(format!("/proc/self/fd/{}", writer.as_raw_fd()).as_ref()).expect("reopened");
        let write = |rest: &[u8]| nix::unistd::write(&again, rest);
        assert_eq!(
            write_within(Duration::ZERO, &vec![0; 1 << 20], again.as_fd(), write),
            Err(Errno::EAGAIN)
        );
        let flags = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETFL).expect("flags");
        assert_eq!(
            flags & OFlag::O_NONBLOCK.bits(),
            0,
            "the inherited descriptor is left as it was"
        );
        let patience = Duration::from_millis(20);
        assert_eq!(write_within(patience, b"x", again.as_fd(), write), Err(Errno::EAGAIN));
    }
}
