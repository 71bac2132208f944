//! A person at a terminal: an interactive shell in a session of its own on a pseudo-terminal.

use super::{MARK, PATIENCE, clean, mark, proc, screen, tick};
use nix::pty::openpty;
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

/// The terminal, and the shell that has it.
pub(crate) struct Terminal {
    shell: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// All that was written, as it was written.
    written: Arc<Mutex<Vec<u8>>>,
    device: PathBuf,
    /// Up to where the screen has been looked at.
    seen: usize,
    mark: String,
}

/// What the shell says when it is ready for the next line.
const PROMPT: &str = "READY> ";
pub(crate) const CTRL_C: &str = "\x03";
pub(crate) const CTRL_Z: &str = "\x1a";
pub(crate) const CTRL_D: &str = "\x04";

impl Terminal {
    /// An interactive shell with job control: `bash` or `dash`. The terminal does not echo, so that the
    /// screen shows only what programs wrote, and passes for one that cannot move its cursor.
    pub(crate) fn open(shell: &str) -> Self {
        Self::open_as(shell, "dumb")
    }

    /// With another `TERM`, and room for long lines.
    pub(crate) fn open_as(shell: &str, kind: &str) -> Self {
        let pty = openpty(None, None).expect("a pseudo-terminal");
        let mut modes = tcgetattr(&pty.slave).expect("its modes");
        modes.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&pty.slave, SetArg::TCSANOW, &modes).expect("its modes");
        let device = fs::read_link(format!("/proc/self/fd/{}", pty.slave.as_raw_fd())).expect("its name");
        let mark = mark();
        let side = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        let mut command = clean("setsid");
        command.args(["--ctty", shell]);
        if shell == "bash" {
            command.args(["--norc", "--noprofile", "--noediting"]);
        }
        let shell = command
            .arg("-i")
            .env(MARK, &mark)
            .env("PS1", PROMPT)
            .env("TERM", kind)
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .expect("a shell");
        drop(command);
        drop(pty.slave);
        let keyboard = File::from(pty.master);
        let screen = Arc::new(Mutex::new(String::new()));
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut reader = keyboard.try_clone().expect("a descriptor");
        thread::spawn({
            let (screen, written) = (Arc::clone(&screen), Arc::clone(&written));
            move || {
                let mut buffer = [0; 4096];
                // EIO once nobody has the other side open any more.
                while let Ok(count @ 1..) = reader.read(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..count]).replace('\r', "");
                    screen.lock().expect("not poisoned").push_str(&text);
                    written
                        .lock()
                        .expect("not poisoned")
                        .extend_from_slice(&buffer[..count]);
                }
            }
        });
        let mut terminal = Self {
            shell,
            keyboard,
            screen,
            written,
            device,
            seen: 0,
            mark,
        };
        terminal.expect(PROMPT);
        if kind != "dumb" {
            terminal.resize(300);
        }
        terminal
    }

    /// The window gets another width.
    pub(crate) fn resize(&self, columns: u16) {
        let resized = clean("stty")
            .args(["cols", &columns.to_string(), "rows", "50", "-F"])
            .arg(&self.device)
            .status();
        assert!(resized.expect("stty").success());
    }

    /// What a person sees now.
    pub(crate) fn rows(&self) -> Vec<String> {
        screen::rows(&self.written.lock().expect("not poisoned"))
    }

    /// Waits until a person sees what is asked for.
    #[track_caller]
    pub(crate) fn see<T>(&self, what: &str, look: impl Fn(&[String]) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            let rows = self.rows();
            if let Some(found) = look(&rows) {
                return found;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{what} is not to be seen:\n{}",
                rows.join("\n")
            );
            tick();
        }
    }

    /// All that was ever written to it, cursor movements too.
    pub(crate) fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().expect("not poisoned")).into_owned()
    }

    /// Types a line.
    pub(crate) fn line(&mut self, line: &str) {
        self.keys(&format!("{line}\n"));
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal is there");
    }

    /// Types a line and gives what was on the screen when the shell was ready again.
    #[track_caller]
    pub(crate) fn run(&mut self, line: &str) -> String {
        self.line(line);
        self.expect(PROMPT)
    }

    #[track_caller]
    pub(crate) fn expect_prompt(&mut self) -> String {
        self.expect(PROMPT)
    }

    /// Waits until this is on the screen behind what was seen last; gives all up to it.
    #[track_caller]
    pub(crate) fn expect(&mut self, part: &str) -> String {
        let start = Instant::now();
        loop {
            {
                let screen = self.screen.lock().expect("not poisoned");
                let new = &screen[self.seen..];
                if let Some(at) = new.find(part) {
                    let text = new[..at].to_owned();
                    self.seen += at + part.len();
                    return text;
                }
                assert!(start.elapsed() < PATIENCE, "no {part:?} on the screen:\n{screen}");
            }
            tick();
        }
    }

    /// All that was ever on the screen, for the account of a failure.
    pub(crate) fn screen(&self) -> String {
        self.screen.lock().expect("not poisoned").clone()
    }

    /// The connection breaks: what a terminal's driver sends to its session then is HUP.
    pub(crate) fn hang_up(&self) {
        proc::signal(self.shell.id().cast_signed(), Signal::SIGHUP);
    }

    /// All living processes of the session, and what has left it.
    pub(crate) fn processes(&self) -> Vec<i32> {
        proc::with_environment(MARK, &self.mark)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        for pid in self.processes() {
            proc::signal(pid, Signal::SIGKILL);
        }
        self.shell.kill().ok();
        self.shell.wait().ok();
    }
}
