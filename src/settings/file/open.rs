//! Opens a configuration file and reads it, if it can be trusted. Knows nothing of what is in it.

use crate::settings::reason;
use nix::fcntl::OFlag;
use nix::unistd::{Uid, User, geteuid};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Larger ones are not settings, but something else.
const LIMIT: u64 = 1 << 20;

/// The group and everybody (`inode(7)`). The group too: who is in it is decided elsewhere, and none of them needs to
/// write here.
const OTHERS_WRITE: u32 = 0o022;

/// Why there is nothing to read.
pub(super) enum Trouble {
    /// It is not there.
    Missing(io::Error),
    /// It cannot be seen whether it is there.
    OutOfSight(io::Error),
    /// As the rest of the sentence that begins with its name.
    Unfit(String),
}

/// The bytes of the file at `path`, which may be a link. Who could have written them is asked of the file that was
/// opened, so that nobody can put another in its place in between. The directory is not looked at: whoever may write
/// there can put only files of their own there, or lead to others' of which they choose no byte.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Trouble> {
    // A FIFO must not hold us up, and a terminal not become ours.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path);
    let file = opened.map_err(|error| match error.kind() {
        // Where something on the way is no directory there can be no file either.
        io::ErrorKind::NotFound if leads_nowhere(path) => unusable("it is a link that leads nowhere"),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Trouble::Missing(error),
        io::ErrorKind::PermissionDenied if fs::symlink_metadata(path).is_err() => Trouble::OutOfSight(error),
        _ => unread(&error),
    })?;
    let metadata = file.metadata().map_err(|error| unread(&error))?;
    if is_null(&metadata) {
        return Ok(Vec::new());
    }
    if let Some(why) = unfit(&metadata) {
        return Err(unusable(&why));
    }
    contents(file).map_err(|error| unread(&error)).and_then(|contents| {
        if contents.len() as u64 <= LIMIT {
            Ok(contents)
        } else {
            Err(unusable("it is larger than 1 MiB"))
        }
    })
}

/// Whether the file or its directory is a link to what is not there, as where a file system is not mounted: somebody
/// wanted settings to be read.
fn leads_nowhere(path: &Path) -> bool {
    let mut places = [Some(path), path.parent()].into_iter().flatten();
    places
        .any(|place| fs::symlink_metadata(place).is_ok_and(|found| found.is_symlink()) && fs::metadata(place).is_err())
}

fn contents(file: File) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut contents)?;
    Ok(contents)
}

fn unread(error: &io::Error) -> Trouble {
    Trouble::Unfit(format!("cannot be read: {}", reason(error)))
}

fn unusable(why: &str) -> Trouble {
    Trouble::Unfit(format!("cannot be used: {why}"))
}

/// `/dev/null`: by its number, since it may have other names (`null(4)`).
fn is_null(metadata: &Metadata) -> bool {
    metadata.file_type().is_char_device() && metadata.rdev() == nix::sys::stat::makedev(1, 3)
}

fn unfit(metadata: &Metadata) -> Option<String> {
    let owner = Uid::from_raw(metadata.uid());
    if metadata.is_dir() {
        Some("it is a directory".to_owned())
    } else if !metadata.is_file() {
        Some("it is no regular file".to_owned())
    } else if !owner.is_root() && owner != geteuid() {
        let name = User::from_uid(owner).ok().flatten().map(|user| user.name);
        let name = name.unwrap_or_else(|| format!("user {owner}"));
        Some(format!(
            "it belongs to {name}, who would decide for us: chown it to root or to us, or name another by --config"
        ))
    } else if metadata.mode() & OTHERS_WRITE != 0 {
        Some("others than its owner may write to it: chmod go-w".to_owned())
    } else {
        None
    }
}
