//! A memory cgroup for the commands that eat more than they may, where the machine lets us make one. The
//! janitor of the tests takes it away.

use crate::harness::directory;
use std::fs;
use std::path::{Path, PathBuf};

/// Enough for meshlock and two dozen modest commands, and far too little for a glutton.
const LIMIT: &str = "67108864";

pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    pub(super) fn make() -> Option<Self> {
        // The name of all that this lab has made: by it the janitor finds it.
        let ours = directory();
        let name = ours.parent()?.file_name()?;
        // Version 1 has a hierarchy for memory alone, version 2 one for all.
        [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ]
        .into_iter()
        .find_map(|(root, limit)| {
            let directory = Path::new(root).join(name);
            fs::create_dir(&directory).ok()?;
            if fs::write(directory.join(limit), LIMIT).is_err() {
                fs::remove_dir(&directory).ok();
                return None;
            }
            // Otherwise the glutton only swaps.
            fs::write(directory.join("memory.swap.max"), "0").ok();
            Some(Self(directory))
        })
    }

    /// Words in front of a call that is to be in here.
    pub(super) fn entrance(&self) -> Vec<String> {
        let script = format!("echo $$ >'{}/cgroup.procs' && exec \"$@\"", self.0.display());
        ["sh", "-c", &script, "sh"].map(str::to_owned).into()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Busy for as long as one of its processes is there: then it is the janitor's.
        fs::remove_dir(&self.0).ok();
    }
}
