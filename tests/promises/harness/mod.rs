//! What the tests stand on. Every process that is started here carries [`RUN`] in its environment and
//! every file lies under one directory, so that a janitor outside the test process can clear both away
//! even where the test process was killed.

pub(crate) mod dns;
pub(crate) mod etcd;
pub(crate) mod meshlock;
pub(crate) mod names;
pub(crate) mod observer;
pub(crate) mod proc;
pub(crate) mod proxy;
pub(crate) mod pty;
pub(crate) mod schema;
pub(crate) mod screen;
pub(crate) mod tls;

pub(crate) use etcd::{Cluster, Etcd};
pub(crate) use meshlock::{Finished, Meshlock, Running, bounded, option, refused};
pub(crate) use observer::Observer;
pub(crate) use proxy::Proxy;
pub(crate) use pty::Terminal;

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The variable by which the janitor knows this test process's processes.
pub(crate) const RUN: &str = "TEST_RUN";
/// The variable by which a test knows its own.
pub(crate) const MARK: &str = "TEST_MARK";

/// How long anything may take on a machine that is busy with something else. Only ever a bound: a test
/// that succeeds does not wait for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for its standard input to end, which it does when the test process is gone, however it went.
const JANITOR: &str = r#"
trap '' HUP INT QUIT TERM
read -r _
for try in 1 2 3 4 5 6 7 8 9 10; do
    left=$(grep -lsz "^TEST_RUN=$1\$" /proc/[0-9]*/environ | tr -dc '0-9\n')
    [ -n "$left" ] || break
    kill -KILL $left
done 2>/dev/null
rm -rf "$2"
rmdir "/sys/fs/cgroup/memory/meshlock-test-$1" "/sys/fs/cgroup/meshlock-test-$1" 2>/dev/null
"#;

struct Ground {
    id: String,
    directory: PathBuf,
    /// Its standard input is the janitor's leash.
    _janitor: Child,
}

fn ground() -> &'static Ground {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    GROUND.get_or_init(|| {
        let id = format!(
            "{}-{:x}",
            process::id(),
            proc::start_time(process::id().cast_signed()).unwrap_or(0)
        );
        // etcd waits for its disk at every step: memory is one that does not make it wait.
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() {
            memory.to_owned()
        } else {
            env::temp_dir()
        };
        let directory = base.join(format!("meshlock-test-{id}"));
        fs::create_dir(&directory).expect("a directory for the tests");
        let janitor = Command::new("sh")
            .args(["-c", JANITOR, "janitor", &id])
            .arg(&directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("a janitor");
        Ground {
            id,
            directory,
            _janitor: janitor,
        }
    })
}

fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A name that no other test uses.
pub(crate) fn unique(base: &str) -> String {
    format!("{base}-{}", number())
}

/// A value for [`MARK`] that no other call has, those of another test run at the same time included: what
/// carries it is killed at the call's end.
pub(crate) fn mark() -> String {
    format!("{}-{}", id(), number())
}

/// A new directory for the test's own files; the janitor removes it.
pub(crate) fn directory() -> PathBuf {
    let directory = ground().directory.join(unique("d"));
    fs::create_dir(&directory).expect("a directory");
    directory
}

/// A file that its owner alone can read, as files with secrets should be.
pub(crate) fn secret(contents: &str) -> PathBuf {
    let file = directory().join("secret");
    fs::write(&file, contents).expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    file
}

/// A command with nothing in its environment but a path, a home and the mark of the test run, and without the
/// configuration files of whoever runs the tests.
pub(crate) fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()))
        .env("HOME", &ground().directory)
        .env("MESHLOCK_CONFIG", "/dev/null")
        .env(RUN, id());
    command
}

/// What [`RUN`] is in all processes that are started here.
pub(crate) fn id() -> &'static str {
    &ground().id
}

/// Polls until `truth` gives something.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut truth: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = truth() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tick();
    }
}

/// Lets time pass, where the promise is about time: that something lasts, or that it has ended by then.
pub(crate) fn pass(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        tick();
    }
}

/// The step of polling; synchronises nothing by itself.
pub(crate) fn tick() {
    thread::sleep(Duration::from_millis(10));
}

/// `true` as something, for [`eventually`].
pub(crate) fn so(truth: bool) -> Option<()> {
    truth.then_some(())
}
