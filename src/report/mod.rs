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

mod file;
pub mod health;

pub use self::file::{Report, Run, Target};
use crate::outcome::Outcome;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::Mode;
use std::cell::OnceCell;
use std::fmt::Write as _;
use std::fs;
use std::io;
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

/// What a command that only asks has to say, on stdout; a reader that went away is no error.
pub fn page(text: &str) {
    use io::Write as _;
    let mut stdout = io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).ok();
}

/// clap's help or version, which go to stdout; a reader that went away is no error.
pub fn help(text: &clap::Error) {
    text.print().ok();
}

#[cfg(test)]
mod tests {
    use super::*;

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
