//! The files that tell who we are and whom we trust, read within a time and a size. What has to be in them is for
//! those who ask.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Larger ones are no certificates and no passwords, but /dev/zero.
const LIMIT: u64 = 1 << 20;

/// A file that an option or a variable names, and what was in it. Displays as both names.
#[derive(Clone, PartialEq, Eq)]
pub struct Kept {
    pub option: String,
    pub path: PathBuf,
    pub contents: Vec<u8>,
    /// Whether there is nothing more to read, as in a FIFO.
    once: bool,
}

/// What is wrong with a file, as a line that names it.
#[derive(Debug)]
pub struct Unusable(pub String);

impl Kept {
    /// Reads the file, which may be a FIFO, such as bash's `<(pass show etcd)`: then until whoever writes it closes it.
    ///
    /// # Errors
    /// Where there is nothing to be read, or not within the time, or more than 1 MiB.
    pub fn read(option: String, path: PathBuf, within: Duration) -> Result<Self, Unusable> {
        let mut file = Self {
            option,
            path,
            contents: Vec::new(),
            once: false,
        };
        (file.contents, file.once) = file.now(Some(within))?;
        Ok(file)
    }

    /// The same file as it is now; `None` where it can be read but once.
    pub(super) fn again(&self) -> Option<Result<Self, Unusable>> {
        if self.once || fs::metadata(&self.path).is_ok_and(|found| !found.is_file()) {
            return None;
        }
        Some(self.now(None).map(|(contents, once)| Self {
            contents,
            once,
            ..self.clone()
        }))
    }

    /// What is in it, and whether it can be read but once.
    fn now(&self, within: Option<Duration>) -> Result<(Vec<u8>, bool), Unusable> {
        match contents(&self.path, within) {
            Ok((contents, once)) if contents.len() as u64 <= LIMIT => Ok((contents, once)),
            Ok(_) => Err(self.unusable("it is larger than 1 MiB")),
            Err(error) => Err(self.unusable(&match error.raw_os_error() {
                // In words alone: the number that `io::Error` adds helps nobody.
                Some(number) => Errno::from_raw(number).desc().to_owned(),
                None => error.to_string(),
            })),
        }
    }

    pub fn unusable(&self, why: &str) -> Unusable {
        Unusable(format!("{self} cannot be used: {why}"))
    }

    /// Whether every user of this machine can read it: its own mode, and those of the directories on the way.
    pub fn is_everybodys(&self) -> bool {
        let Ok(path) = fs::canonicalize(&self.path) else {
            return false;
        };
        let allows = |path: &Path, bit| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & bit != 0);
        allows(&path, 0o004) && path.ancestors().skip(1).all(|directory| allows(directory, 0o001))
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        match path.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{} \"{}…\"", self.option, &path[..end]),
            None => write!(f, "{} \"{path}\"", self.option),
        }
    }
}

/// In characters: more of a path leaves no room on the line for what is wrong with it.
const SHOWN: usize = 200;

fn contents(path: &Path, within: Option<Duration>) -> io::Result<(Vec<u8>, bool)> {
    // Opening a FIFO waits for a writer without this.
    let flags = nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let mut contents = Vec::new();
    let found = file.metadata()?;
    if found.is_file() {
        // With one to spare, and the end is seen without more room being made.
        contents.reserve_exact(usize::try_from(found.len().min(LIMIT)).unwrap_or_default() + 1);
        (&file).take(LIMIT + 1).read_to_end(&mut contents)?;
        return Ok((contents, false));
    }
    let Some(within) = within else {
        return Err(io::Error::other("it is no regular file any more"));
    };
    let until = Instant::now() + within;
    let mut chunk = [0; 4096];
    while contents.len() as u64 <= LIMIT {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut readable = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        match poll(&mut readable, timeout) {
            Ok(0) => {
                let within = within.as_secs_f64();
                let why = format!("nobody has written it, and closed it, within {within} s (--dial-timeout)");
                return Err(io::Error::other(why));
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        match (&file).read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => contents.extend_from_slice(&chunk[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((contents, true))
}
