//! meshlock as its users call it: a builder for the call, a handle on the running process, and an end of
//! which everything must be as stated. stdout and stderr must be empty where nothing else is stated, so
//! that every test shows "silent on success" as well.

use super::{Etcd, MARK, PATIENCE, clean, directory, eventually, mark, proc, so};
use nix::sys::signal::Signal;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A call of meshlock to be made.
#[must_use]
pub(crate) struct Meshlock {
    endpoints: Option<String>,
    subcommand: &'static str,
    options: Vec<OsString>,
    name: Option<OsString>,
    /// Whether `--` stands before the command.
    dashes: bool,
    command: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    stdin: Stdio,
    stderr: Option<Stdio>,
    /// Programs in front of meshlock, as `nohup`.
    before: Vec<OsString>,
    log: Option<PathBuf>,
}

/// A call that was made.
#[must_use]
pub(crate) struct Running {
    child: Option<Child>,
    mark: String,
    line: String,
    stdout: PathBuf,
    stderr: PathBuf,
    log: Option<PathBuf>,
}

/// A call that has ended. One of [`success`](Self::success), [`status`](Self::status) and
/// [`signaled`](Self::signaled) closes it.
#[must_use]
pub(crate) struct Finished {
    running: Running,
    status: ExitStatus,
    stdout: Expected,
    stderr: Expected,
    stragglers: bool,
}

enum Expected {
    Exactly(Vec<u8>),
    /// One line of meshlock's with all of these in it.
    Line(Vec<String>),
    Anything,
}

/// What a closed call has said.
pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Meshlock {
    /// `meshlock run`, with the command `true` where no other is given.
    pub(crate) fn run(etcd: &Etcd, name: impl AsRef<OsStr>) -> Self {
        let mut run = Self::run_at(etcd.endpoint(), name);
        run.log = Some(etcd.log().to_owned());
        run
    }

    pub(crate) fn run_at(endpoints: impl Into<String>, name: impl AsRef<OsStr>) -> Self {
        Self {
            endpoints: Some(endpoints.into()),
            subcommand: "run",
            options: Vec::new(),
            name: Some(name.as_ref().to_owned()),
            dashes: true,
            command: vec!["true".into()],
            variables: Vec::new(),
            directory: None,
            stdin: Stdio::null(),
            stderr: None,
            before: Vec::new(),
            log: None,
        }
    }

    /// A command that only asks, and is given its names as arguments: `meshlock status`.
    pub(crate) fn ask(etcd: &Etcd, subcommand: &'static str) -> Self {
        let mut ask = Self::ask_at(etcd.endpoint(), subcommand);
        ask.log = Some(etcd.log().to_owned());
        ask
    }

    pub(crate) fn ask_at(endpoints: impl Into<String>, subcommand: &'static str) -> Self {
        Self {
            subcommand,
            name: None,
            dashes: false,
            command: Vec::new(),
            ..Self::run_at(endpoints, "")
        }
    }

    /// Leaves `--endpoints` to the environment.
    pub(crate) fn without_endpoints(mut self) -> Self {
        self.endpoints = None;
        self
    }

    pub(crate) fn without_dashes(mut self) -> Self {
        self.dashes = false;
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, options: impl IntoIterator<Item = S>) -> Self {
        self.options
            .extend(options.into_iter().map(|option| option.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, variable: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.variables
            .push((variable.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn command<S: AsRef<OsStr>>(mut self, command: impl IntoIterator<Item = S>) -> Self {
        self.command = command.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// `sh -c script`, the command of most tests.
    pub(crate) fn sh(self, script: &str) -> Self {
        self.command(["sh", "-c", script])
    }

    pub(crate) fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    pub(crate) fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.stdin = stdin.into();
        self
    }

    pub(crate) fn stderr_to(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = Some(stderr.into());
        self
    }

    /// Has meshlock started by these words: `["nohup"]`, `["env", "--ignore-signal=CHLD"]`.
    pub(crate) fn by<S: AsRef<OsStr>>(mut self, before: impl IntoIterator<Item = S>) -> Self {
        self.before = before.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// The words of the call, for tests in which a shell makes it.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = self.before.clone();
        words.push(binary().into());
        words.push(self.subcommand.into());
        if let Some(endpoints) = &self.endpoints {
            words.push(format!("--endpoints={endpoints}").into());
        }
        words.extend(self.options.iter().cloned());
        words.extend(self.name.clone());
        if self.dashes {
            words.push("--".into());
        }
        words.extend(self.command.iter().cloned());
        words
    }

    /// In a session of its own, as under cron: whether the tests have a terminal must not matter.
    pub(crate) fn start(mut self) -> Running {
        let words = self.words();
        let mut line = String::new();
        for (variable, value) in &self.variables {
            write!(line, "{}={} ", variable.display(), value.display()).ok();
        }
        for word in &words {
            write!(line, "{} ", word.display()).ok();
        }
        let files = directory();
        let (stdout, stderr) = (files.join("stdout"), files.join("stderr"));
        let create = |path: &Path| Stdio::from(File::options().create(true).append(true).open(path).expect("a file"));
        let mark = mark();
        let mut command = clean("setsid");
        command
            .args(words)
            .env(MARK, &mark)
            .envs(self.variables)
            .stdin(self.stdin)
            .stdout(create(&stdout))
            .stderr(self.stderr.take().unwrap_or_else(|| create(&stderr)));
        if let Some(directory) = self.directory {
            command.current_dir(directory);
        }
        Running {
            child: Some(command.spawn().expect("meshlock")),
            mark,
            line,
            stdout,
            stderr,
            log: self.log,
        }
    }

    #[track_caller]
    pub(crate) fn finish(self) -> Finished {
        self.start().finish()
    }
}

/// The product.
pub(crate) fn binary() -> &'static Path {
    OTHER_BINARY.get().map_or_else(|| Path::new(BUILT), PathBuf::as_path)
}

/// The product as cargo has built it for the tests.
const BUILT: &str = env!("CARGO_BIN_EXE_meshlock");

/// Another build of it to be tested, where one is wanted.
pub(crate) static OTHER_BINARY: OnceLock<PathBuf> = OnceLock::new();

/// What cargo has built beside the product.
pub(crate) fn beside(name: &str) -> PathBuf {
    Path::new(BUILT).with_file_name(name)
}

impl Running {
    /// The guardian: the process that the user started.
    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().expect("running").id().cast_signed()
    }

    /// The keeper, once it is there.
    #[track_caller]
    pub(crate) fn keeper(&self) -> i32 {
        let guardian = self.pid();
        eventually("a keeper", || {
            proc::children(guardian)
                .into_iter()
                .find(|pid| proc::name(*pid) == "mlkeeper")
        })
    }

    /// All living processes of this call, whoever their parents are now.
    pub(crate) fn processes(&self) -> Vec<i32> {
        proc::with_environment(MARK, &self.mark)
    }

    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    pub(crate) fn stdin(&mut self) -> ChildStdin {
        self.child.as_mut().expect("running").stdin.take().expect("a pipe")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        proc::signal(self.pid(), signal);
    }

    pub(crate) fn stdout(&self) -> String {
        read(&self.stdout)
    }

    pub(crate) fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Waits for the command's word; gives all it has said so far.
    #[track_caller]
    pub(crate) fn wait_for_stdout(&mut self, part: &str) -> String {
        self.wait_for(part, Self::stdout)
    }

    #[track_caller]
    pub(crate) fn wait_for_stderr(&mut self, part: &str) -> String {
        self.wait_for(part, Self::stderr)
    }

    #[track_caller]
    fn wait_for(&mut self, part: &str, stream: impl Fn(&Self) -> String) -> String {
        let start = Instant::now();
        loop {
            // In this order: what was said before the end is there after it.
            let ended = self.child.as_mut().expect("running").try_wait().expect("its state");
            let text = stream(self);
            if text.contains(part) {
                return text;
            }
            assert!(
                ended.is_none() && start.elapsed() < PATIENCE,
                "no {part:?} was said (ended: {ended:?})\n{}",
                self.account()
            );
            super::tick();
        }
    }

    #[track_caller]
    pub(crate) fn finish(mut self) -> Finished {
        let start = Instant::now();
        let child = self.child.as_mut().expect("running");
        drop(child.stdin.take());
        let status = loop {
            if let Some(status) = self.child.as_mut().expect("running").try_wait().expect("its state") {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end\n{}", self.account());
            super::tick();
        };
        Finished {
            running: self,
            status,
            stdout: Expected::Exactly(Vec::new()),
            stderr: Expected::Exactly(Vec::new()),
            stragglers: false,
        }
    }

    /// The exit status alone, where it is only a part of what is asked; `None` after a signal.
    #[track_caller]
    pub(crate) fn code(self) -> Option<i32> {
        self.finish().code()
    }

    /// What somebody who reads of a failure wants to know.
    fn account(&self) -> String {
        let log = self.log.as_deref().map(read).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!(
            "--- call: {}\n--- stdout:\n{}--- stderr:\n{}--- processes: {:?}\n--- etcd's last words:\n{}\n",
            self.line,
            self.stdout(),
            self.stderr(),
            self.processes(),
            lines
                .get(lines.len().saturating_sub(12)..)
                .unwrap_or_default()
                .join("\n")
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A finished call's stragglers too. Several times, since what is being killed may fork.
        for _ in 0..5 {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for pid in left {
                proc::signal(pid, Signal::SIGKILL);
            }
        }
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Finished {
    pub(crate) fn stdout(mut self, exactly: impl AsRef<[u8]>) -> Self {
        self.stdout = Expected::Exactly(exactly.as_ref().to_owned());
        self
    }

    pub(crate) fn any_stdout(mut self) -> Self {
        self.stdout = Expected::Anything;
        self
    }

    pub(crate) fn stderr(mut self, exactly: impl AsRef<[u8]>) -> Self {
        self.stderr = Expected::Exactly(exactly.as_ref().to_owned());
        self
    }

    /// One line that begins with `meshlock: ` and has all these parts.
    pub(crate) fn stderr_line<S: AsRef<str>>(mut self, parts: impl IntoIterator<Item = S>) -> Self {
        self.stderr = Expected::Line(parts.into_iter().map(|part| part.as_ref().to_owned()).collect());
        self
    }

    pub(crate) fn any_stderr(mut self) -> Self {
        self.stderr = Expected::Anything;
        self
    }

    /// The command left processes behind, and was meant to.
    pub(crate) fn with_stragglers(mut self) -> Self {
        self.stragglers = true;
        self
    }

    /// The exit status, `None` after a signal.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    #[track_caller]
    pub(crate) fn success(self) -> Said {
        self.status(0)
    }

    #[track_caller]
    pub(crate) fn status(self, status: i32) -> Said {
        let right = self.status.code() == Some(status);
        self.close(right, &format!("exit status {status}"))
    }

    /// Where two statuses are right.
    #[track_caller]
    pub(crate) fn any_code<const N: usize>(self, codes: [i32; N]) -> Said {
        let right = self.code().is_some_and(|code| codes.contains(&code));
        self.close(right, &format!("one of {codes:?}"))
    }

    #[track_caller]
    pub(crate) fn signaled(self, signal: Signal) -> Said {
        let right = self.status.signal() == Some(signal as i32);
        self.close(right, &format!("death by {signal}"))
    }

    #[track_caller]
    fn close(self, right: bool, expected: &str) -> Said {
        let account = || self.running.account();
        assert!(right, "expected {expected}, got {}\n{}", self.status, account());
        assert!(
            self.stdout.fits(&self.running.stdout),
            "stdout should be {}\n{}",
            self.stdout.text(),
            account()
        );
        assert!(
            self.stderr.fits(&self.running.stderr),
            "stderr should be {}\n{}",
            self.stderr.text(),
            account()
        );
        if !self.stragglers {
            // The keeper may stay for a moment, to revoke the lease.
            eventually("no process of the call is left", || {
                so(self.running.processes().is_empty())
            });
        }
        Said {
            stdout: self.running.stdout(),
            stderr: self.running.stderr(),
        }
    }
}

impl Expected {
    fn fits(&self, file: &Path) -> bool {
        match self {
            Self::Anything => true,
            Self::Exactly(bytes) => fs::read(file).unwrap_or_default() == *bytes,
            Self::Line(parts) => {
                let text = read(file);
                text.starts_with("meshlock: ")
                    && text.ends_with('\n')
                    && text.lines().count() == 1
                    && parts.iter().all(|part| text.contains(part))
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Anything => "anything".to_owned(),
            Self::Exactly(bytes) => format!("exactly {:?}", String::from_utf8_lossy(bytes)),
            Self::Line(parts) => format!("one line of meshlock's with {parts:?}"),
        }
    }
}

/// What is in a file, nothing if it is not there (yet).
pub(crate) fn read(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

/// Has a command run by the tests alone, outside of meshlock.
pub(crate) fn plain(words: &[OsString]) -> Command {
    let (program, arguments) = words.split_first().expect("a program");
    let mut command = clean(program);
    command.args(arguments);
    command
}

/// `--name=path`.
pub(crate) fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}

/// A call that must not get as far as running anything.
#[track_caller]
pub(crate) fn refused(run: Meshlock, status: i32, parts: &[&str]) {
    let ran = directory().join("ran");
    run.command(["touch".into(), ran.clone().into_os_string()])
        .finish()
        .stderr_line(parts)
        .status(status);
    assert!(!ran.exists());
}

/// Ends within the time to connect that was given; told with much patience for a slow machine.
#[track_caller]
pub(crate) fn bounded(run: Meshlock) -> Finished {
    let start = Instant::now();
    let finished = run.args(["--dial-timeout", "1"]).finish();
    assert!(start.elapsed() < Duration::from_secs(20), "one second was asked for");
    finished
}
