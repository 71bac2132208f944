//! The way onto stdout for commands that show something: a screen of some width and perhaps with colours, or
//! whatever else reads. A reader that went away is no error. Knows nothing of what is shown.

use super::text::{Line, paint};
use super::write_within;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::time::Duration;
use terminal_size::{Height, Width, terminal_size_of};

/// How long a reader may keep us waiting: a person may read a page for long.
const READER: Duration = Duration::from_secs(24 * 3600);

/// What a terminal that does not tell its size is taken for.
const USUAL: (usize, usize) = (80, 24);

/// What a terminal can do that a file cannot; both only on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    pub colour: bool,
    /// The cursor can be moved.
    pub cursor: bool,
}

/// Standard output.
pub struct Out {
    looks: Looks,
    terminal: bool,
    /// Lines above the cursor that the next picture replaces.
    drawn: usize,
}

/// Whether anybody still reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    There,
    Gone,
}

/// Where stdout was closed there is one that cannot be written (see `sys::keep_stdout_closed`): said here since std takes that
/// failure for success.
///
/// # Errors
/// Where nothing can be written.
pub(super) fn is_writable() -> io::Result<()> {
    let flags = fcntl(io::stdout(), FcntlArg::F_GETFL).map_err(described)?;
    match OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE {
        OFlag::O_RDONLY => Err(described(Errno::EBADF)),
        _ => Ok(()),
    }
}

fn described(error: Errno) -> io::Error {
    io::Error::other(error.desc())
}

impl Out {
    pub fn new(looks: Looks) -> Self {
        Self {
            looks,
            terminal: io::stdout().is_terminal(),
            drawn: 0,
        }
    }

    /// # Errors
    /// Where it cannot be written, and somebody would read it.
    pub fn text(&self, text: &str) -> io::Result<Reader> {
        let stdout = io::stdout();
        let fd = stdout.as_fd();
        match write_within(READER, text.as_bytes(), fd, |rest| nix::unistd::write(fd, rest)) {
            Ok(()) => Ok(Reader::There),
            // A terminal that hung up says EIO.
            Err(Errno::EPIPE | Errno::EIO) => Ok(Reader::Gone),
            Err(error) => Err(described(error)),
        }
    }

    /// What `render` makes for the width of the screen; `None` is no screen, where nothing is left out.
    ///
    /// # Errors
    /// As [`Out::text`].
    pub fn show(&self, render: impl FnOnce(Option<usize>) -> Vec<Line>) -> io::Result<Reader> {
        let width = self.size().map(|(width, _)| width);
        self.text(&paint(&render(width), self.terminal && self.looks.colour, None))
    }

    /// In the place of what was drawn before. The terminal is in no other state than before, whatever ends us; where
    /// the cursor cannot be moved, one picture follows the other.
    ///
    /// # Errors
    /// As [`Out::text`].
    pub fn redraw(&mut self, render: impl FnOnce(Option<usize>) -> Vec<Line>) -> io::Result<Reader> {
        let Some((width, height)) = self.size() else {
            let mut text = if self.drawn > 0 { "\n".to_owned() } else { String::new() };
            let lines = render(None);
            self.drawn = lines.len();
            text.push_str(&paint(&lines, false, None));
            return self.text(&text);
        };
        let mut lines = render(Some(width));
        let most = if self.looks.cursor {
            height.saturating_sub(1).max(1)
        } else {
            usize::MAX
        };
        if lines.len() > most {
            let hidden = lines.len() - (most - 1);
            lines.truncate(most - 1);
            lines.push(vec![super::text::Span::plain(&format!("… {hidden} more lines"))]);
        }
        let mut text = String::new();
        if self.drawn > 0 && self.looks.cursor {
            // Up, and clear to the end of the screen (ECMA-48's CUU and ED).
            text = format!("\x1b[{}A\x1b[J", self.drawn);
        } else if self.drawn > 0 {
            text.push('\n');
        }
        self.drawn = lines.len();
        text.push_str(&paint(&lines, self.looks.colour, Some(width)));
        self.text(&text)
    }

    /// Whether a picture can be drawn over, so that it is worth drawing again as time passes.
    pub fn redraws(&self) -> bool {
        self.terminal && self.looks.cursor
    }

    /// Asked without writing.
    pub fn reader(&self) -> Reader {
        let stdout = io::stdout();
        let mut asked = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        let gone = poll(&mut asked, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        if gone { Reader::Gone } else { Reader::There }
    }

    fn size(&self) -> Option<(usize, usize)> {
        self.terminal.then(|| match terminal_size_of(io::stdout()) {
            Some((Width(width @ 1..), Height(height @ 1..))) => (width.into(), height.into()),
            _ => USUAL,
        })
    }
}
