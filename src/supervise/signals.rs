//! The guardian's signals: which it takes, how they are told apart, and how it stops itself for the
//! terminal. Knows neither the lock nor the command.

use super::sys::{self, Inherited};
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

/// Passed on to the command. SIGCONT is caught instead, since a blocked one would not end our own stop.
const FORWARDED: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
];

/// Those whose disposition we change, so that the command must get the caller's back.
pub const CHANGED: [Signal; 3] = [Signal::SIGCHLD, Signal::SIGPIPE, Signal::SIGCONT];

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    pub signal: Signal,
    /// The kernel sent it, so to the terminal's whole foreground group: the command has it already.
    pub from_kernel: bool,
}

/// Our signals as a descriptor. They are blocked from the start to the end of the process, so none is lost
/// between two looks.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Takes the signals over. What the caller ignored stays ignored: nohup(1) means it.
    pub fn take() -> Result<(Self, Inherited), Errno> {
        let inherited = Inherited::read(&CHANGED)?;
        let mut taken = SigSet::empty();
        for signal in FORWARDED.into_iter().chain([Signal::SIGTTIN, Signal::SIGTTOU]) {
            if !sys::is_ignored(signal) {
                taken.add(signal);
            }
        }
        // An inherited "ignore" would have the kernel reap the command and lose its status (wait(2)).
        sys::set_default(Signal::SIGCHLD);
        taken.add(Signal::SIGCHLD);
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&taken), None)?;
        let mut open = SigSet::empty();
        open.add(Signal::SIGCONT);
        sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&open), None)?;
        let fd = SignalFd::with_flags(&taken, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok((Self { fd }, inherited))
    }

    /// The next signal that waits; SIGCONT last.
    pub fn next(&self) -> Option<Caught> {
        loop {
            match self.fd.read_signal() {
                Ok(Some(info)) => {
                    let number = i32::try_from(info.ssi_signo).ok()?;
                    if let Ok(signal) = Signal::try_from(number) {
                        return Some(Caught {
                            signal,
                            from_kernel: info.ssi_code == libc::SI_KERNEL,
                        });
                    }
                }
                Err(Errno::EINTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        continued()
    }
}

/// SIGCONT, if somebody has continued us since it was last told.
pub fn continued() -> Option<Caught> {
    sys::was_continued().then_some(Caught {
        signal: Signal::SIGCONT,
        from_kernel: false,
    })
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Stops this process by `signal`'s default action, so that the shell sees what it expects; returns when
/// continued. False if the kernel did not stop us, as it would not without us either: our group is orphaned (nobody
/// in its session could continue it), or we are PID 1.
pub fn stop_self(signal: Signal) -> bool {
    sys::was_woken();
    let mut alone = SigSet::empty();
    alone.add(signal);
    raise(signal).ok();
    sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&alone), None).ok();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&alone), None).ok();
    sys::was_woken()
}
