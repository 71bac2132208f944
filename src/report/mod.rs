//! The only writer to stdout and stderr. One line for each thing that the user
//! must know. Knows nothing of locks; decides only whether and how a line gets out.
//!
//! While a command runs under a lock, whoever waits to write cannot kill it in time: a full pipe or a
//! terminal stopped by Ctrl-S must never hold us up. So everything but the last word is written without
//! waiting and dropped where that is impossible. `O_NONBLOCK` belongs to the open file, which the command
//! shares (`fcntl(2)`): it is never set on an inherited descriptor, but on one opened anew.
//!
//! Writing to a terminal from the background under `stty tostop` raises SIGTTOU; the guardian blocks it
//! before it reports (`termios(3)`, TOSTOP).

mod current;
mod file;
pub mod health;
pub mod locks;
mod out;
pub mod prompt;
pub mod settings;
mod table;
mod text;

pub use self::file::{Report, Run, Target};
pub use self::out::{Looks, Out, Reader};
pub use self::text::{Line, Span, printable};
use crate::outcome::Outcome;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::Mode;
use std::cell::{OnceCell, RefCell};
use std::fs;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
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
    /// The line that is kept current, as it is on the terminal now; empty if there is none.
    current: RefCell<String>,
}

impl Reporter {
    pub const fn new(verbosity: Verbosity) -> Self {
        Self {
            verbosity,
            stderr: OnceCell::new(),
            current: RefCell::new(String::new()),
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

    /// How it ended, where that needs words.
    pub fn outcome(&self, outcome: &Outcome) {
        let silenced = self.verbosity == Verbosity::Quiet && matches!(outcome, Outcome::Contended { .. });
        if let Some(why) = outcome.why().filter(|_| !silenced) {
            self.last_word(why);
        }
    }

    /// Nothing may run under the lock any more: this may take a second.
    pub fn last_word(&self, line: &str) {
        self.say(line, LAST_WORD);
    }

    /// Whether a line can be kept current on stderr, and is wanted. Only where stdin is a terminal too: in a script's
    /// background, in a pipeline and under make there are others that write to the same row.
    pub fn can_keep_current(&self) -> bool {
        self.verbosity > Verbosity::Quiet && io::stdin().is_terminal() && current::has_place_on(&io::stderr())
    }

    /// Puts a line where the last one of this kind was, or takes it away. Other lines come before it.
    pub fn keep_current(&self, text: Option<&str>) {
        let stderr = io::stderr();
        // In the background the row belongs to others: nothing is written there, and nothing taken away.
        let here = current::has_place_on(&stderr);
        let now = text
            .filter(|_| here)
            .map_or(String::new(), |text| current::drawn(&prefixed(text), &stderr));
        let before = self.current.replace(now.clone());
        if here && !(before.is_empty() && now.is_empty()) {
            self.write(format!("{}{now}", current::CLEAR).as_bytes(), Duration::ZERO);
        }
    }

    fn say(&self, text: &str, patience: Duration) {
        let current = self.current.borrow();
        if current.is_empty() {
            self.write(&line(text), patience);
        } else {
            let line = [current::CLEAR.as_bytes(), &line(text), current.as_bytes()].concat();
            self.write(&line, patience);
        }
    }

    fn write(&self, bytes: &[u8], patience: Duration) {
        self.stderr.get_or_init(Stderr::find).write(bytes, patience);
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

fn prefixed(text: &str) -> String {
    format!("meshlock: {}", printable(text))
}

/// `text` as it is written: one line, whole, that a pipe takes at once.
pub fn line(text: &str) -> Vec<u8> {
    let mut line = prefixed(text);
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

/// The lines as where there is no screen: the whole of them, without colours.
pub fn plain(lines: &[Line]) -> String {
    text::paint(lines, false, None)
}

/// clap's help or version, which go to stdout; a reader that went away is no error.
///
/// # Errors
/// As [`Out::text`].
pub fn help(text: &clap::Error) -> io::Result<()> {
    out::is_writable()?;
    match text.print() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_and_cannot_steer_a_terminal() {
        assert_eq!(line("held by \r\n x"), b"meshlock: held by \\r\\n x\n");
    }

    #[test]
    fn a_line_fits_into_a_pipe_as_a_whole() {
        let long = line(&"é".repeat(5000));
        assert!(long.len() <= LINE_LIMIT);
        assert!(String::from_utf8(long).expect("whole characters").ends_with("…\n"));
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
