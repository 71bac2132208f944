//! Asks the person at the terminal for what nobody else is to see. Leaves the terminal as it was, however it ends. Knows
//! not what is asked for.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::Mode;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{read, write};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

/// What ends or stops a program that has set nothing up for it, while the terminal is another than it was.
const AWAITED: [Signal; 5] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGTSTP,
];

/// The longest line that a terminal hands over (termios(3), canonical mode).
const LINE: usize = 4096;

/// The line that is typed, which the terminal does not show; `None` where there is no terminal.
///
/// # Errors
/// Where the terminal fails, or its end is typed.
pub fn for_secret(prompt: &str) -> io::Result<Option<String>> {
    let Ok(terminal) = open(
        c"/dev/tty",
        OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC,
        Mode::empty(),
    ) else {
        return Ok(None);
    };
    loop {
        let (signal, line) = ask(&terminal, prompt)?;
        match (signal, line) {
            // It ends us, or stops us until somebody wants us back, or it is ignored: then once more.
            (Some(signal), _) => raise(signal)?,
            (None, Some(line)) => return Ok(Some(line)),
            (None, None) => return Err(io::Error::other("nothing was typed")),
        }
    }
}

/// The line, or the signal that came before it.
fn ask(terminal: &OwnedFd, prompt: &str) -> Result<(Option<Signal>, Option<String>), Errno> {
    let awaited = AWAITED.into_iter().collect::<SigSet>();
    let mut mask = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&awaited), Some(&mut mask))?;
    let modes = tcgetattr(terminal)?;
    let answer = typed(terminal, &modes, &awaited, prompt);
    // What was typed too early is no answer, and nothing for the shell either.
    tcsetattr(terminal, SetArg::TCSAFLUSH, &modes)?;
    write(terminal, b"\n")?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
    answer
}

fn typed(
    terminal: &OwnedFd,
    modes: &Termios,
    awaited: &SigSet,
    prompt: &str,
) -> Result<(Option<Signal>, Option<String>), Errno> {
    let mut silent = modes.clone();
    silent.local_flags.remove(LocalFlags::ECHO | LocalFlags::ECHONL);
    silent.local_flags.insert(LocalFlags::ICANON | LocalFlags::ISIG);
    tcsetattr(terminal, SetArg::TCSAFLUSH, &silent)?;
    write(terminal, prompt.as_bytes())?;
    let signals = SignalFd::with_flags(awaited, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    loop {
        let mut ready = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(terminal.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let [signalled, typed] = ready.map(|fd| fd.any().unwrap_or(false));
        if signalled && let Some(info) = signals.read_signal()? {
            let number = i32::try_from(info.ssi_signo).map_err(|_| Errno::EINVAL)?;
            return Ok((Some(Signal::try_from(number)?), None));
        }
        if typed {
            let mut line = [0; LINE];
            let count = read(terminal, &mut line)?;
            let line = &line[..count];
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let text = std::str::from_utf8(line).map_err(|_| Errno::EILSEQ)?;
            return Ok((None, (count > 0).then(|| text.to_owned())));
        }
    }
}
