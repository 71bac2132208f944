//! A person at a terminal: an interactive shell in a session of its own on a pseudo-terminal.

use super::{MARK, PATIENCE, clean, mark, proc, tick};
use nix::pty::openpty;
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

/// The terminal, and the shell that has it.
pub(crate) struct Terminal {
    shell: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
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
    /// screen shows only what programs wrote.
    pub(crate) fn open(shell: &str) -> Self {
        let pty = openpty(None, None).expect("a pseudo-terminal");
        let mut modes = tcgetattr(&pty.slave).expect("its modes");
        modes.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(&pty.slave, SetArg::TCSANOW, &modes).expect("its modes");
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
            .env("TERM", "dumb")
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .spawn()
            .expect("a shell");
        drop(command);
        drop(pty.slave);
        let keyboard = File::from(pty.master);
        let screen = Arc::new(Mutex::new(String::new()));
        let mut reader = keyboard.try_clone().expect("a descriptor");
        thread::spawn({
            let screen = Arc::clone(&screen);
            move || {
                let mut buffer = [0; 4096];
                // EIO once nobody has the other side open any more.
                while let Ok(count @ 1..) = reader.read(&mut buffer) {
                    let text = String::from_utf8_lossy(&buffer[..count]).replace('\r', "");
                    screen.lock().expect("not poisoned").push_str(&text);
                }
            }
        });
        let mut terminal = Self {
            shell,
            keyboard,
            screen,
            seen: 0,
            mark,
        };
        terminal.expect(PROMPT);
        terminal
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
