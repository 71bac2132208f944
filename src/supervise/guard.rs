//! The guardian's loop: names what happened for [`super::guardian`] and carries out what it decides.
//! Synchronous, one thread, and nothing in it ever blocks but its one poll(2). Decides nothing.

use super::alarm::{Alarm, time_spec};
use super::guardian::{self, Action, Event, Policy, Reading, State, waiting};
use super::link::{Incoming, Link, Shared};
use super::signals::{self, Caught, Signals};
use super::sys::{self, Exec, Inherited};
use super::tree::{self, Process};
use crate::link::{Ended, FromGuardian, FromKeeper, Hold};
use crate::moment::Moment;
use crate::outcome::{CommandEnd, Failure, FailureKind, Outcome};
use crate::rules::{Asked, Rules};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigEvent, SigevNotify, Signal, kill, killpg};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{self, Timer};
use nix::sys::wait::waitpid;
use nix::time::ClockId;
use nix::unistd::{AccessFlags, Pid};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// How loud a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Verbose,
    Progress,
    Notice,
}

/// What the guardian's loop is given.
pub struct Task<'a> {
    pub keeper: Pid,
    pub link: Link,
    pub shared: Shared,
    pub signals: Signals,
    pub inherited: Inherited,
    pub policy: Policy,
    pub asked: Asked,
    pub rules: Rules,
    /// Children that were there before us (`exec meshlock` in a script): no part of the tree.
    pub strangers: BTreeSet<i32>,
    /// The command.
    pub exec: &'static Exec,
    /// What it is told of a hold, in its environment.
    pub variables: &'a dyn Fn(&Hold) -> Vec<CString>,
    /// Prints a line; must not block.
    pub say: &'a dyn Fn(Level, &str),
    /// Keeps a line current, or with `None` takes it away; must not block.
    pub keep_current: &'a dyn Fn(Option<&str>),
    /// Whether [`Level::Verbose`] is heard: the lines cost a look through /proc.
    pub verbose: bool,
}

/// How the run went.
#[derive(Debug)]
pub struct Ran {
    pub outcome: Outcome,
    pub hold: Option<Hold>,
    /// What could not be released, and for how long it blocks others.
    pub problem: Option<String>,
    pub acquired: Option<SystemTime>,
    pub ended: SystemTime,
}

/// Guards one run from waiting to the end.
pub fn guard(task: Task) -> Ran {
    match Loop::new(task) {
        Ok(mut running) => running.run(),
        Err(error) => Ran {
            outcome: Outcome::Failed(Failure::new(
                FailureKind::Internal,
                match error {
                    // timer_create(2) alone says so: it keeps room for its signal.
                    Errno::EAGAIN => {
                        "cannot set up the guardian: too many signals of this user are pending (ulimit -i); \
                                      nothing was run"
                            .to_owned()
                    }
                    error => format!("cannot set up the guardian: {}; nothing was run", error.desc()),
                },
            )),
            hold: None,
            problem: None,
            acquired: None,
            ended: SystemTime::now(),
        },
    }
}

/// The command's process, from its start to wait.
struct Command {
    pid: Pid,
    own_group: bool,
    ended: bool,
}

/// What is being done to the tree beyond waiting for the command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sweep {
    No,
    /// Look until it is empty.
    Await,
    /// Kill until it is empty.
    Kill {
        since: Moment,
        named: bool,
    },
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each named by what it says"
)]
struct Loop<'a> {
    task: Task<'a>,
    state: State,
    rules: Rules,
    /// For the next decision that time alone brings.
    alarm: Alarm,
    /// Sends SIGCONT to ourselves from the stop point on: however we came to be stopped, we wake.
    vigil: Timer,
    vigil_at: Option<Moment>,
    command: Option<Command>,
    sweep: Sweep,
    acquired: Option<SystemTime>,
    keeper_reaped: bool,
    link_open: bool,
    left: bool,
    /// Descriptors kept for the search through /proc: without one the tree could not be found. Taken before the start,
    /// so that nothing else can fail for a limit of the caller's.
    reserve: Vec<OwnedFd>,
    /// We have just been stopped and continued.
    stopped: bool,
}

/// The process, held while /proc is asked whether it is still the same.
const RESERVED: usize = 2;

/// From one round of killing to the next; a SIGCHLD brings it forward.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);
/// From one look for stragglers to the next, where no SIGCHLD tells: a descendant that is not our child.
const STRAGGLER_PAUSE: Duration = Duration::from_millis(500);
/// After this a tree that will not die is named.
const UNDYING_AFTER: Duration = Duration::from_secs(1);
/// The period of the vigil.
const VIGIL_PERIOD: Duration = Duration::from_millis(100);

impl<'a> Loop<'a> {
    fn new(task: Task<'a>) -> Result<Self, Errno> {
        let event = SigEvent::new(SigevNotify::SigevSignal {
            signal: Signal::SIGCONT,
            si_value: 0,
        });
        let vigil = Timer::new(ClockId::CLOCK_BOOTTIME, event)?;
        Ok(Self {
            state: State::default(),
            rules: task.rules,
            alarm: Alarm::new()?,
            vigil,
            vigil_at: None,
            command: None,
            sweep: Sweep::No,
            acquired: None,
            keeper_reaped: false,
            link_open: true,
            left: false,
            reserve: Vec::new(),
            stopped: false,
            task,
        })
    }

    fn run(&mut self) -> Ran {
        loop {
            // Drain first, then read the clock, then judge: a renewal that has come is never overlooked, and
            // no message is judged by an older hour than its own.
            let mut events = self.drain();
            if events.is_empty() {
                events.push(Event::Tick);
            }
            for event in events {
                self.step(event);
                if self.state.is_over() {
                    return self.finish();
                }
            }
            self.set_timers();
            if self.stopped {
                // Who continued us, and how late it is, is to be seen before anything else.
                self.stopped = false;
            } else {
                self.wait();
            }
        }
    }

    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let reading = Reading {
                now: Moment::now(),
                deadline: self.task.shared.deadline(),
            };
            for action in guardian::step(&self.rules, &self.task.policy, &mut self.state, reading, event) {
                events.extend(self.carry_out(action));
            }
        }
    }

    /// Everything that has happened since the last look.
    fn drain(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while self.link_open {
            match self.task.link.receive::<FromKeeper>() {
                Incoming::Message(words) => events.push(self.heard(words)),
                Incoming::Nothing => break,
                Incoming::Closed => {
                    self.link_open = false;
                    events.push(Event::KeeperGone);
                }
            }
        }
        let mut children_changed = self.sweep != Sweep::No;
        while let Some(caught) = self.task.signals.next() {
            if caught.signal == Signal::SIGCHLD {
                children_changed = true;
            } else {
                events.push(signal_event(caught));
            }
        }
        if children_changed {
            events.extend(self.reap());
        }
        events.extend(self.sweep_once());
        events
    }

    fn heard(&mut self, words: FromKeeper) -> Event {
        match &words {
            FromKeeper::Held(hold) => {
                // The keeper refused what the granted TTL does not allow, so this holds.
                if let Ok(rules) = Rules::new(hold.ttl, &self.task.asked) {
                    self.rules = rules;
                }
            }
            FromKeeper::Left { problem: None, .. } | FromKeeper::Contended { .. } | FromKeeper::Failed(_) => {
                self.left = true;
            }
            FromKeeper::Left { .. }
            | FromKeeper::Progress(_)
            | FromKeeper::Waiting(_)
            | FromKeeper::Notice(_)
            | FromKeeper::Withdrawn
            | FromKeeper::Lost { .. }
            | FromKeeper::Renewals { .. }
            | FromKeeper::AskedToStop { .. } => {}
        }
        Event::Keeper(words)
    }

    fn carry_out(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Claim { token } => return Some(Event::Claimed(self.task.shared.claim(token))),
            Action::Start(hold) => return self.start(&hold),
            Action::Signal(signal) => self.signal_command(signal),
            Action::Kill => {
                self.reserve.clear();
                if !matches!(self.sweep, Sweep::Kill { .. }) {
                    self.sweep = Sweep::Kill {
                        since: Moment::now(),
                        named: false,
                    };
                }
                // Kill first, everything else afterwards.
                return self.sweep_once();
            }
            Action::AwaitTree => {
                self.reserve.clear();
                self.sweep = Sweep::Await;
                self.name_stragglers("waiting for");
                // Mostly there is nothing to wait for.
                return self.sweep_once();
            }
            Action::Tell(words) => {
                if words == FromGuardian::CommandEnded {
                    self.name_stragglers("left running:");
                }
                self.task.link.send(&words);
            }
            Action::Release => {
                self.task.link.send(&FromGuardian::Release { run: self.run_record() });
            }
            Action::StopSelf(signal) => {
                self.set_timers();
                if !signals::stop_self(signal) {
                    return Some(Event::StopRefused);
                }
                self.stopped = true;
                // Before all that was drained together with the stop, or came while we were stopped: each of it
                // would send us back into a stop that is over.
                return signals::continued().map(signal_event);
            }
            Action::Progress(line) => (self.task.say)(Level::Progress, &line),
            Action::Notice(line) => (self.task.say)(Level::Notice, &line),
            Action::ShowWaiting { waiting, waited } => {
                let line = waiting::current(&self.task.policy.name, &waiting, waited, SystemTime::now());
                (self.task.keep_current)(Some(&line));
            }
            Action::HideWaiting => (self.task.keep_current)(None),
            Action::Finish => {}
        }
        None
    }

    fn start(&mut self, hold: &Hold) -> Option<Event> {
        self.acquired = Some(SystemTime::now());
        let exec = self.task.exec;
        let variables = (self.task.variables)(hold);
        let Task { inherited, shared, .. } = &self.task;
        let refusal = shared.refusal();
        let spawn = |()| sys::spawn(exec, variables, inherited, &signals::CHANGED, refusal);
        match fill(&mut self.reserve, &self.alarm).and_then(spawn) {
            Ok(pid) => {
                self.task.link.send(&FromGuardian::Started {
                    pid: pid.as_raw(),
                    own_group: exec.own_group,
                });
                self.command = Some(Command {
                    pid,
                    own_group: exec.own_group,
                    ended: false,
                });
                if self.task.verbose {
                    let line = format!("acquired \"{}\", token {}", self.task.policy.name, hold.token);
                    (self.task.say)(Level::Verbose, &line);
                }
                None
            }
            Err(error) => Some(Event::NotStarted {
                found: true,
                why: format!("cannot start a process: {}", error.desc()),
            }),
        }
    }

    /// The child has ended without having become the command.
    fn refused(&self, errno: Errno) -> Event {
        // execve(2) says the same of a missing file and of a missing interpreter in its first line.
        let there = |file: &CString| nix::unistd::access(file.as_c_str(), AccessFlags::F_OK).is_ok();
        let why = if errno == Errno::ENOENT && self.task.exec.candidates.iter().any(there) {
            "its interpreter was not found"
        } else {
            errno.desc()
        };
        Event::NotStarted {
            found: errno != Errno::ENOENT,
            why: why.into(),
        }
    }

    fn reap(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some((pid, status)) = sys::reap() {
            let end = if libc::WIFSIGNALED(status) {
                CommandEnd::Signaled(libc::WTERMSIG(status))
            } else {
                CommandEnd::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX))
            };
            // Its number may come to mean a process of the tree.
            self.task.strangers.remove(&pid.as_raw());
            if pid == self.task.keeper {
                self.keeper_reaped = true;
            } else if let Some(command) = self.command.as_mut().filter(|command| command.pid == pid) {
                command.ended = true;
                events.push(match self.task.shared.refusal().load(Ordering::Acquire) {
                    0 => Event::CommandEnded(end),
                    errno => self.refused(Errno::from_raw(errno)),
                });
            }
        }
        events
    }

    fn signal_command(&self, signal: Signal) {
        let Some(command) = self.command.as_ref().filter(|command| !command.ended) else {
            return;
        };
        // Not reaped yet, so the number is still the command's.
        let sent = if command.own_group {
            killpg(command.pid, signal)
        } else {
            kill(command.pid, signal)
        };
        if sent.is_err() && command.own_group {
            kill(command.pid, signal).ok();
        }
    }

    /// Whom the tree must not be taken to include.
    fn not_of_the_tree(&self) -> BTreeSet<i32> {
        let mut others = self.task.strangers.clone();
        others.extend((!self.keeper_reaped).then_some(self.task.keeper.as_raw()));
        others
    }

    /// One round of what [`Sweep`] asks for.
    fn sweep_once(&mut self) -> Option<Event> {
        if self.sweep == Sweep::No || !self.state.tree_may_live() {
            return None;
        }
        let me = Pid::this().as_raw();
        let others = self.not_of_the_tree();
        if let Sweep::Kill { since, named } = self.sweep {
            if let Some(command) = self
                .command
                .as_ref()
                .filter(|command| command.own_group && !command.ended)
            {
                killpg(command.pid, Signal::SIGKILL).ok();
            }
            let mut living = BTreeSet::new();
            let all = tree::descendants(me, &others, &mut living);
            for process in &living {
                process.kill().ok();
            }
            if !named && Moment::now().since(since) > UNDYING_AFTER {
                let names: Vec<String> = living.iter().map(|process| process.describe()).collect();
                if !names.is_empty() {
                    (self.task.say)(
                        Level::Notice,
                        &format!("cannot be killed, so the lock is kept: {}", names.join(", ")),
                    );
                    self.sweep = Sweep::Kill { since, named: true };
                } else if let Err(error) = all {
                    (self.task.say)(
                        Level::Notice,
                        &format!("cannot see whether the command's processes are dead, so the lock is kept: {error}"),
                    );
                    self.sweep = Sweep::Kill { since, named: true };
                }
            }
        }
        // As subreaper we are every descendant's last ancestor: no children, no tree. Zombies count until
        // they are reaped, so the command's end is never overlooked.
        if !tree::children(me).is_ok_and(|children| children.iter().all(|child| others.contains(child))) {
            return None;
        }
        self.sweep = Sweep::No;
        Some(Event::TreeDead)
    }

    fn name_stragglers(&self, what: &str) {
        if !self.task.verbose {
            return;
        }
        let mut living = BTreeSet::new();
        tree::descendants(Pid::this().as_raw(), &self.not_of_the_tree(), &mut living).ok();
        if !living.is_empty() {
            let names: Vec<String> = living.into_iter().map(Process::describe).collect();
            (self.task.say)(Level::Verbose, &format!("{what} {}", names.join(", ")));
        }
    }

    fn run_record(&self) -> Option<Ended> {
        self.state.hold()?;
        let outcome = self.state.outcome(&self.task.policy);
        let ended = SystemTime::now();
        let stamp = |time| humantime::format_rfc3339_seconds(time).to_string();
        let record = Ended {
            result: outcome.name().to_owned(),
            status: outcome.command().map(CommandEnd::status),
            acquired: stamp(self.acquired.unwrap_or(ended)),
            ended: stamp(ended),
            why: self.state.why(&self.task.policy, &outcome),
            asked: self.state.asked().cloned(),
        };
        Some(record.shortened())
    }

    fn set_timers(&mut self) {
        let deadline = self.task.shared.deadline();
        self.alarm.set(self.state.wake_at(&self.rules, deadline));
        let vigil = self.state.vigil_from(&self.rules, deadline);
        if vigil != self.vigil_at && (vigil.is_some() || self.vigil_at.is_some()) {
            self.vigil_at = vigil;
            let flags = timer::TimerSetTimeFlags::TFD_TIMER_ABSTIME;
            let from = vigil.map_or(TimeSpec::from_duration(Duration::ZERO), time_spec);
            let expiration = timer::Expiration::IntervalDelayed(from, TimeSpec::from_duration(VIGIL_PERIOD));
            self.vigil.set(expiration, flags).ok();
        }
    }

    fn wait(&mut self) {
        let mut fds = vec![PollFd::new(self.task.signals.as_fd(), PollFlags::POLLIN)];
        fds.push(PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN));
        if self.link_open {
            fds.push(PollFd::new(self.task.link.as_fd(), PollFlags::POLLIN));
        }
        let pause = match self.sweep {
            Sweep::No => PollTimeout::NONE,
            Sweep::Await => PollTimeout::try_from(STRAGGLER_PAUSE).unwrap_or(PollTimeout::MAX),
            Sweep::Kill { .. } => PollTimeout::try_from(SWEEP_PAUSE).unwrap_or(PollTimeout::MAX),
        };
        // EINTR is the vigil, or somebody's SIGCONT: a wake-up like any other.
        let woken = poll(&mut fds, pause).unwrap_or(0) > 0;
        let timer_fired = woken && fds[1].revents().is_some_and(|events| !events.is_empty());
        drop(fds);
        if timer_fired {
            self.alarm.take();
        }
    }

    fn finish(&mut self) -> Ran {
        let ended = SystemTime::now();
        let outcome = self.state.outcome(&self.task.policy);
        // A keeper that has left the queue revokes the lease on its own; one that has not is no use any
        // more. As PID 1 we take every other process along, so we wait.
        if !self.keeper_reaped {
            if !self.left {
                kill(self.task.keeper, Signal::SIGKILL).ok();
                waitpid(self.task.keeper, None).ok();
            } else if Pid::this().as_raw() == 1 {
                self.await_keeper();
            }
        }
        Ran {
            outcome,
            hold: self.state.hold().cloned(),
            problem: self.state.problem().map(str::to_owned),
            acquired: self.acquired,
            ended,
        }
    }

    /// Until the keeper has ended, a second at the most.
    fn await_keeper(&mut self) {
        let until = Moment::now() + Duration::from_secs(1);
        while !self.keeper_reaped && Moment::now() < until {
            let mut fds = [PollFd::new(self.task.signals.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(50u8)).ok();
            while self.task.signals.next().is_some() {}
            self.reap();
        }
    }
}

fn fill(reserve: &mut Vec<OwnedFd>, alarm: &Alarm) -> Result<(), Errno> {
    while reserve.len() < RESERVED {
        let spare = alarm.as_fd().try_clone_to_owned();
        reserve.push(spare.map_err(|error| Errno::try_from(error).unwrap_or(Errno::EMFILE))?);
    }
    Ok(())
}

const fn signal_event(caught: Caught) -> Event {
    Event::Signal {
        signal: caught.signal,
        from_kernel: caught.from_kernel,
    }
}
