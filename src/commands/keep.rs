//! The keeper's loop: names what etcd and the guardian did for [`crate::lock::keeper`] and carries out what
//! it decides. Runs in the forked keeper and never returns. Decides nothing, prints nothing.

use crate::link::{Ended, FromGuardian, FromKeeper};
use crate::lock::keeper::{self, Action, Answer, Event, Policy, Request, Seen, State, Watched};
use crate::lock::keys::Place;
use crate::lock::queue::{Change, Departure, Predecessor, Queue};
use crate::lock::record::{Ask, Holder, Run};
use crate::moment::Moment;
use crate::outcome::{Failure, FailureKind, INTERNAL};
use crate::rules::{Asked, Rules};
use crate::settings::{Draft, Surroundings};
use crate::store::etcd::Etcd;
use crate::store::{Connection, Fault};
use crate::supervise::alarm::Alarm;
use crate::supervise::last_duty::Quarry;
use crate::supervise::link::{Incoming, Link, Shared};
use crate::supervise::sys;
use crate::supervise::tree::Process;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};
use tokio::io::unix::AsyncFd;
use tokio::runtime::LocalOptions;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, spawn_local};

/// What the keeper is given over the fork.
pub struct Task {
    pub guardian: Pid,
    /// The guardian's children that are no part of the tree.
    pub strangers: BTreeSet<Process>,
    pub link: Link,
    pub shared: Shared,
    pub policy: Policy,
    pub asked: Asked,
    pub rules: Rules,
    /// What the guardian has yet to look around for, and tells us first of all.
    pub holder: Draft,
    pub connection: Connection,
    pub place: Place,
    /// How many run records are kept.
    pub keep: u32,
}

/// Keeps the lock until there is nothing more to keep; then ends the process.
pub fn keep(task: Task) -> ! {
    // The guardian hears of any failure here by the link's end.
    if prepare(&task).is_ok()
        && let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // Names are looked up on a thread, and where none can be made tokio panics: the first one stays.
            .thread_keep_alive(Duration::from_secs(u32::MAX.into()))
            // One thread: the tasks share it, so nothing need be Send.
            .build_local(LocalOptions::default())
    {
        // As a task: to wake what is blocked on takes a write to an eventfd(2) and a turn of epoll(7) for it.
        runtime.block_on(async {
            let running = spawn_local(async {
                if let Ok(mut running) = Loop::begin(task).await {
                    running.run().await;
                }
                // At once: nobody is left for whom anything would have to be taken apart.
                sys::exit_now(0);
            });
            running.await.ok();
        });
    }
    sys::exit_now(0)
}

/// Lets go of everything that belongs to the caller, and cannot be hit by what is meant for the guardian.
fn prepare(task: &Task) -> Result<(), nix::errno::Errno> {
    nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    sys::ignore_all();
    nix::sys::signal::SigSet::empty().thread_set_mask()?;
    // Another name than the guardian's: killall and pkill are to hit that one alone.
    sys::set_name(c"mlkeeper");
    // Passwords and keys are in our memory. Nobody inherits this from us, as the command would from the guardian.
    setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
    nix::unistd::chdir("/")?;
    sys::keep_only(task.link.as_fd())
}

/// `None` where the guardian has ended.
async fn first_word(link: &AsyncFd<Link>) -> Option<Surroundings> {
    loop {
        let mut ready = link.readable().await.ok()?;
        match ready.get_inner().receive() {
            Incoming::Message(found) => return Some(found),
            Incoming::Nothing => ready.clear_ready(),
            Incoming::Closed => return None,
        }
    }
}

/// What the tasks report back.
enum Report {
    /// With the number of its request: only the latest counts.
    Request(u64, Result<Answer, Fault>),
    /// The watch with this number has broken.
    Watch(u64, Fault),
    Event(Event),
}

/// How long the revocation may take once nobody waits for it.
const REVOKE_WITHIN: Duration = Duration::from_secs(3);
/// When what found no room in the link is said again.
const SAY_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How long one round of the last duty tries before it says that something will not die.
const DUTY_PATIENCE: Duration = Duration::from_secs(1);

struct Loop {
    task: TaskRest,
    queue: Queue,
    state: State,
    link: AsyncFd<Link>,
    link_open: bool,
    alarm: AsyncFd<Alarm>,
    reports: UnboundedSender<Report>,
    incoming: UnboundedReceiver<Report>,
    request: u64,
    request_task: Option<AbortHandle>,
    changes: Option<UnboundedReceiver<Change>>,
    watch: u64,
    watch_task: Option<AbortHandle>,
    predecessor: Option<Predecessor>,
    /// Words that found no room in the link yet.
    unsaid: VecDeque<FromKeeper>,
    lease: i64,
    quarry: Quarry,
    claimed_at: Option<SystemTime>,
}

/// What remains of [`Task`] once link and queue are taken out.
struct TaskRest {
    guardian: Pid,
    shared: Shared,
    policy: Policy,
    asked: Asked,
    holder: Holder,
}

impl Loop {
    /// Connects while the guardian looks around, and asks etcd for nothing before its word. Without one it has ended.
    async fn begin(task: Task) -> io::Result<Self> {
        // Ours first: where descriptors are scarce it is etcd that is out of reach, which is told, and not the keeper.
        let link = sys::readable(task.link)?;
        let alarm = sys::readable(Alarm::new()?)?;
        let store = Etcd::new(&task.connection);
        store.connect_ahead();
        let found = first_word(&link).await.ok_or(io::ErrorKind::BrokenPipe)?;
        let holder = task.holder.complete(found);
        let (reports, incoming) = unbounded_channel();
        Ok(Self {
            queue: Queue::new(store, task.place, holder.clone(), task.keep),
            state: State::new(task.rules),
            link,
            link_open: true,
            alarm,
            reports,
            incoming,
            request: 0,
            request_task: None,
            changes: None,
            watch: 0,
            watch_task: None,
            predecessor: None,
            unsaid: VecDeque::new(),
            lease: 0,
            quarry: Quarry {
                guardian: task.guardian.as_raw(),
                strangers: task.strangers,
                leader: None,
                noted: BTreeSet::new(),
                mark: String::new(),
            },
            claimed_at: None,
            task: TaskRest {
                guardian: task.guardian,
                shared: task.shared,
                policy: task.policy,
                asked: task.asked,
                holder,
            },
        })
    }

    async fn run(&mut self) {
        let actions = keeper::begin(&self.task.policy, &mut self.state);
        self.carry_out(actions);
        while !self.state.is_over() {
            self.say_the_rest();
            let retry = (!self.unsaid.is_empty()).then(|| Moment::now() + SAY_AGAIN_AFTER);
            let due = self.state.wake_at(&self.task.policy);
            self.alarm.get_mut().set(due.into_iter().chain(retry).min());
            if let Some(event) = self.next().await {
                // A waiter or a holder is at rest after these, and keeps what it does not need for long.
                let rests = match &event {
                    Event::Seen(seen) => seen.contains(&Seen::Ready),
                    event => matches!(event, Event::Renewal { .. }),
                };
                self.step(event);
                if rests {
                    sys::shed_stack();
                }
            }
            for line in self.queue.notices() {
                self.tell(FromKeeper::Notice(line));
            }
        }
        // Apart, or its room would be taken from the start.
        Box::pin(self.end()).await;
    }

    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let actions = keeper::step(&self.task.policy, &mut self.state, Moment::now(), event);
            events.extend(self.carry_out(actions));
        }
    }

    /// The next thing that happens; `None` where it turns out to mean nothing.
    async fn next(&mut self) -> Option<Event> {
        let changed = async {
            match &mut self.changes {
                Some(changes) => changes.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The guardian's words first: they can only make us more careful.
            biased;
            ready = self.link.readable(), if self.link_open => {
                let mut ready = ready.ok()?;
                let mut said = Vec::new();
                let closed = loop {
                    match ready.get_inner().receive::<FromGuardian>() {
                        Incoming::Message(words) => said.push(words),
                        Incoming::Nothing => {
                            ready.clear_ready();
                            break false;
                        }
                        Incoming::Closed => break true,
                    }
                };
                if !said.is_empty() {
                    // The end will be read again.
                    return Some(self.heard(said));
                }
                self.link_open &= !closed;
                closed.then(|| Event::GuardianGone(orphaned_run(self.claimed_at)))
            }
            report = self.incoming.recv() => match report? {
                Report::Request(number, _) if number != self.request => None,
                Report::Request(_, Ok(answer)) => Some(Event::Answer(answer)),
                Report::Request(_, Err(fault)) => Some(Event::Fault(fault)),
                Report::Watch(number, fault) => (number == self.watch).then_some(Event::WatchBroken(fault)),
                Report::Event(event) => Some(event),
            },
            change = changed => {
                let Some(change) = change else {
                    // The broken watch itself says why.
                    self.changes = None;
                    return None;
                };
                let mut seen: Vec<Seen> = self.seen(change).into_iter().collect();
                while let Some(change) = self.changes.as_mut().and_then(|changes| changes.try_recv().ok()) {
                    seen.extend(self.seen(change));
                }
                (!seen.is_empty()).then_some(Event::Seen(seen))
            }
            ready = self.alarm.readable_mut() => {
                let mut ready = ready.ok()?;
                ready.get_inner_mut().take();
                ready.clear_ready();
                Some(Event::Tick)
            }
        }
    }

    fn heard(&mut self, said: Vec<FromGuardian>) -> Event {
        for words in &said {
            match words {
                FromGuardian::Claimed => self.claimed_at = Some(SystemTime::now()),
                FromGuardian::Started { pid, own_group } => self.quarry.started(*pid, *own_group),
                FromGuardian::CommandEnded
                | FromGuardian::Requeue
                | FromGuardian::Release { .. }
                | FromGuardian::LossSeen => {}
            }
        }
        Event::Guardian(said)
    }

    fn seen(&self, change: Change) -> Option<Seen> {
        let place = self.queue.place();
        match change {
            Change::Ready => Some(Seen::Ready),
            Change::Deleted { key, at } => {
                let before = self.predecessor.as_ref();
                let is = |other: Option<&String>| other == Some(&key);
                if is(before.map(|before| &before.entry)) {
                    Some(Seen::PredecessorGone { at })
                } else if is(before.and_then(|before| before.open.as_ref())) {
                    Some(Seen::OpenGone { at })
                } else if is(before.and_then(|before| before.earlier.as_ref())) {
                    Some(Seen::EarlierGone)
                } else if key == place.entry(self.lease) {
                    Some(Seen::OursGone)
                } else {
                    (key == place.freeze()).then_some(Seen::FreezeChanged)
                }
            }
            Change::Put { key, .. } if key == place.freeze() => Some(Seen::FreezeChanged),
            Change::Put { key, value } if key == place.ask(self.lease) => Ask::parse(&value).map(Seen::Asked),
            Change::Put { .. } => None,
        }
    }

    fn carry_out(&mut self, actions: Vec<Action>) -> Vec<Event> {
        let mut events = Vec::new();
        for action in actions {
            match action {
                Action::Send(request) => self.send(request),
                Action::Renew => self.renew(),
                Action::Watch(watched) => self.watch(watched),
                Action::Deadline(deadline) => self.task.shared.set_deadline(deadline),
                Action::Offer(hold) => {
                    self.task.shared.offer(hold.token);
                    self.tell(FromKeeper::Held(hold));
                }
                Action::Withdraw { token } => events.push(Event::Withdrawn(self.task.shared.withdraw(token))),
                Action::Tell(words) => self.tell(words),
                Action::Wake => {
                    // Only as long as the number is still our parent's.
                    if Pid::parent() == self.task.guardian {
                        kill(self.task.guardian, Signal::SIGCONT).ok();
                    }
                }
                Action::Note => self.quarry.note(),
                Action::LastDuty => self.last_duty(),
                Action::End => {}
            }
        }
        events
    }

    fn tell(&mut self, words: FromKeeper) {
        // News of the queue may go unsaid to a guardian that has been stopped for long; all else waits for room.
        let is_news = |words: &FromKeeper| matches!(words, FromKeeper::Progress(_) | FromKeeper::Waiting(_));
        let news = is_news(&words);
        if !news || self.unsaid.is_empty() {
            self.unsaid.push_back(words.shortened());
        }
        self.say_the_rest();
        if news {
            self.unsaid.retain(|words| !is_news(words));
        }
    }

    fn say_the_rest(&mut self) {
        while let Some(words) = self.unsaid.front()
            && self.link.get_ref().send(words)
        {
            self.unsaid.pop_front();
        }
    }

    // This one, `renew` and `watch` are out of line: the room that each takes to make its task, of 6 KiB, would be taken
    // together wherever one of them is called.
    #[inline(never)]
    fn send(&mut self, request: Request) {
        if request == Request::Grant {
            self.fresh_lease();
        }
        if let Some(task) = self.request_task.take() {
            task.abort();
        }
        self.request += 1;
        let number = self.request;
        let call = Call {
            queue: self.queue.clone(),
            lease: self.lease,
            token: self.state.token(),
            ttl: self.state.rules().ttl,
            asked: self.task.asked,
            holder: self.task.holder.clone(),
        };
        let reports = self.reports.clone();
        let task = spawn_local(async move {
            let result = call.carry_out(request).await;
            reports.send(Report::Request(number, result)).ok();
        });
        self.request_task = Some(task.abort_handle());
    }

    /// A random id of 63 bits, ours before etcd has answered, so that a grant can be sent again safely.
    /// Drawn only once per place in the queue: a repeated grant repeats its id.
    fn fresh_lease(&mut self) {
        if self.lease != 0 && !self.state.wants_fresh_lease() {
            return;
        }
        if self.lease != 0 {
            let (queue, old) = (self.queue.clone(), self.lease);
            spawn_local(async move { queue.revoke(old).await });
        }
        let mut bytes = [0; 8];
        // Others without chance would draw the same and take our lease and our entry for theirs: then rather none.
        // Nothing is held here, and the guardian hears of our end by the link.
        if getrandom::fill(&mut bytes).is_err() {
            sys::exit_now(INTERNAL);
        }
        // Zero would leave the choice to etcd.
        self.lease = (i64::from_ne_bytes(bytes) & i64::MAX).max(1);
        self.state.set_lease(self.lease, self.queue.place().entry(self.lease));
        self.quarry.mark = format!("{:x}", self.lease);
    }

    #[inline(never)]
    fn renew(&mut self) {
        let (queue, lease, rules) = (self.queue.clone(), self.lease, *self.state.rules());
        let Some(token) = self.state.token() else { return };
        let reports = self.reports.clone();
        spawn_local(async move {
            let sent = Moment::now();
            let result = queue.renew(lease, token, &rules).await;
            reports.send(Report::Event(Event::Renewal { lease, sent, result })).ok();
        });
    }

    #[inline(never)]
    fn watch(&mut self, watched: Watched) {
        if let Some(task) = self.watch_task.take() {
            task.abort();
        }
        let place = self.queue.place();
        let mut keys = vec![place.entry(self.lease), place.ask(self.lease)];
        keys.extend(watched.freeze.then(|| place.freeze()));
        if let Some(before) = &watched.predecessor {
            keys.push(before.entry.clone());
            keys.extend(before.open.clone());
            keys.extend(before.earlier.clone());
        }
        self.predecessor = watched.predecessor;
        let (sender, receiver) = unbounded_channel();
        self.watch += 1;
        let (queue, number, reports) = (self.queue.clone(), self.watch, self.reports.clone());
        let task = spawn_local(async move {
            let fault = queue.watch(keys, watched.from, sender).await;
            reports.send(Report::Watch(number, fault)).ok();
        });
        self.watch_task = Some(task.abort_handle());
        self.changes = Some(receiver);
    }

    fn last_duty(&mut self) {
        self.quarry.note();
        let (quarry, reports, claimed_at) = (self.quarry.clone(), self.reports.clone(), self.claimed_at);
        let duty = move || {
            let dead = quarry.kill_all(DUTY_PATIENCE);
            let run = orphaned_run(claimed_at);
            reports.send(Report::Event(Event::DutyDone { dead, run })).ok();
        };
        // Where the tree itself has used up the user's processes there is no thread to be had, and tokio would
        // panic: then here, for it must be done.
        if std::thread::Builder::new().spawn(duty.clone()).is_err() {
            duty();
        }
    }

    /// The lease goes last, and nobody waits for it.
    async fn end(&mut self) {
        if let Some(task) = self.request_task.take() {
            task.abort();
        }
        if self.lease != 0 {
            tokio::time::timeout(REVOKE_WITHIN, self.queue.revoke(self.lease))
                .await
                .ok();
        }
        // A guardian that is stopped hears the last word when it runs again; one that is gone takes it unheard.
        while !self.unsaid.is_empty() {
            tokio::time::sleep(SAY_AGAIN_AFTER).await;
            self.say_the_rest();
        }
    }
}

/// What can be recorded of a run whose guardian was killed.
fn orphaned_run(claimed_at: Option<SystemTime>) -> Ended {
    let stamp = |time| humantime::format_rfc3339_seconds(time).to_string();
    let now = SystemTime::now();
    Ended {
        result: "signal".into(),
        status: Some(128 + 9),
        acquired: stamp(claimed_at.unwrap_or(now)),
        ended: stamp(now),
        why: Some("meshlock's guardian was killed".to_owned()),
        asked: None,
    }
}

/// One request with all it needs, free to run as a task of its own.
struct Call {
    queue: Queue,
    lease: i64,
    token: Option<i64>,
    ttl: Duration,
    asked: Asked,
    holder: Holder,
}

impl Call {
    async fn carry_out(self, request: Request) -> Result<Answer, Fault> {
        let Self {
            queue,
            lease,
            token,
            ttl,
            asked,
            holder,
        } = self;
        let token_or_none = token.unwrap_or(0);
        let record = |ended| Run {
            holder,
            token: token_or_none,
            ended,
            noticed: None,
        };
        match request {
            Request::Look => queue.look().await.map(Answer::View),
            Request::Grant => queue.grant(lease, asked.ttl).await.map(|granted| {
                let rules = Rules::new(granted.ttl, &asked).map_err(|refusal| {
                    Failure::new(
                        FailureKind::Config,
                        format!("etcd granted another TTL than was asked for: {refusal}"),
                    )
                });
                Answer::Granted(granted, rules)
            }),
            Request::Enqueue => queue.enqueue(lease, ttl).await.map(Answer::View),
            Request::Seize => queue.seize(lease, ttl).await.map(Answer::View),
            Request::Read => queue.read(lease, token_or_none).await.map(Answer::View),
            Request::Stand { predecessor } => queue
                .stand(lease, token_or_none, predecessor.as_deref())
                .await
                .map(Answer::Standing),
            Request::Clear {
                stale,
                vanished,
                outdated,
            } => Box::pin(queue.clear(lease, token_or_none, &stale, vanished.as_deref(), &outdated))
                .await
                .map(Answer::View),
            Request::Leave { run, outdated } => {
                let run = run.map(record);
                queue
                    .leave(lease, token, run.as_ref(), &outdated)
                    .await
                    .map(|departure| match departure {
                        Departure::Done => Answer::Gone,
                        Departure::Taken => Answer::Taken,
                    })
            }
            Request::Settle { run, outdated } => queue
                .settle(lease, &record(run), &outdated)
                .await
                .map(|()| Answer::Gone),
            Request::Abandon => queue.leave(lease, token, None, &[]).await.map(|_| Answer::Gone),
        }
    }
}
