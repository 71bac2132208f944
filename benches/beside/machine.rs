//! When, with what and on what something was measured: without that no figure means anything.

use crate::contender::{etcdctl, found, silent};
use crate::harness::etcd::program;
use crate::harness::meshlock;
use humantime::format_rfc3339_seconds;
use nix::sys::utsname::uname;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::available_parallelism;
use std::time::SystemTime;

pub(crate) fn title() -> String {
    let now = format_rfc3339_seconds(SystemTime::now()).to_string();
    let etcd = found(&program("MESHLOCK_TEST_ETCD", "etcd"));
    format!(
        "# {}: {}, {}, {} ({} bytes); {} CPUs, Linux {}",
        now.split('T').next().unwrap_or_default(),
        first_line(&etcd, "--version").replace(" Version:", ""),
        first_line(&etcdctl(), "version").replace(" version:", ""),
        first_line(meshlock::binary(), "--version"),
        fs::metadata(meshlock::binary()).expect("meshlock").len(),
        available_parallelism().expect("CPUs"),
        uname().expect("the kernel").release().display(),
    )
}

/// The load averages: of one, five and fifteen minutes.
pub(crate) fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").expect("the load");
    load.split(' ').take(3).collect::<Vec<_>>().join(", ")
}

fn first_line(program: &Path, argument: &str) -> String {
    let output = silent(program)
        .env("ETCDCTL_API", "3")
        .arg(argument)
        .stdout(Stdio::piped())
        .output()
        .expect("a version");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().next().unwrap_or_default().to_owned()
}
