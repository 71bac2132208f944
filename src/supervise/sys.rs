//! Every system call that Rust cannot check for us, each behind a safe function: fork and exec, signal
//! dispositions, the shared page, pidfds. The only unsafe code; decides nothing.
#![expect(unsafe_code, reason = "fork, exec, sigaction, mmap and pidfds have no safe form")]

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{ForkResult, Pid};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering};

// ---------------------------------------------------------------------------------------------
// What the caller handed to us, noted before Rust's runtime changes it.

/// Set by [`note_start`]: SIGPIPE was ignored.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// Set by [`note_start`]: bit n for a descriptor n of 0–2 that was closed.
static WERE_CLOSED: AtomicU8 = AtomicU8::new(0);

/// Rust's runtime ignores SIGPIPE and opens /dev/null on closed descriptors 0–2 before `main` (`std::rt`),
/// and either would reach the command; the loader runs this earlier still.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_START: extern "C" fn() = note_start;

extern "C" fn note_start() {
    // SAFETY: an all-zero sigaction is a valid value to be overwritten.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the disposition into `action`.
    if unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), &raw mut action) } == 0 {
        PIPE_WAS_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
    for fd in 0..3u8 {
        // SAFETY: F_GETFD only asks for flags; a closed descriptor is what it is asked about.
        if unsafe { libc::fcntl(i32::from(fd), libc::F_GETFD) } == -1 {
            WERE_CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

/// Has a standard output that was closed refuse what is written, as it would have: Rust's runtime has put a /dev/null
/// there that takes all, and what we were asked for would be lost without a word.
pub fn keep_stdout_closed() {
    if WERE_CLOSED.load(Ordering::Relaxed) & (1 << libc::STDOUT_FILENO) != 0
        && let Ok(unwritable) = File::open("/dev/null")
    {
        // Where that fails it is as before.
        nix::unistd::dup2_stdout(unwritable).ok();
    }
}

/// The caller's signal state, to be handed on to the command.
#[derive(Clone, Debug)]
pub struct Inherited {
    pub mask: SigSet,
    /// Of the signals that we change: those that were ignored.
    ignored: Vec<Signal>,
}

impl Inherited {
    /// Reads the caller's mask and which of `changed` it ignores.
    pub fn read(changed: &[Signal]) -> Result<Self, Errno> {
        let mut mask = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, None, Some(&mut mask))?;
        let mut ignored: Vec<Signal> = changed.iter().copied().filter(|signal| is_ignored(*signal)).collect();
        ignored.retain(|signal| *signal != Signal::SIGPIPE);
        if PIPE_WAS_IGNORED.load(Ordering::Relaxed) {
            ignored.push(Signal::SIGPIPE);
        }
        Ok(Self { mask, ignored })
    }

    pub fn ignores(&self, signal: Signal) -> bool {
        self.ignored.contains(&signal)
    }
}

pub fn is_ignored(signal: Signal) -> bool {
    // SAFETY: an all-zero sigaction is a valid value to be overwritten.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only reads the disposition into `action`.
    let read = unsafe { libc::sigaction(signal as i32, ptr::null(), &raw mut action) };
    read == 0 && action.sa_sigaction == libc::SIG_IGN
}

// ---------------------------------------------------------------------------------------------
// Dispositions.

pub fn set_default(signal: Signal) {
    disposition(signal as i32, libc::SIG_DFL);
}

pub fn ignore(signal: Signal) {
    disposition(signal as i32, libc::SIG_IGN);
}

/// Ignores every signal that can be ignored. By the kernel's own call: the C library refuses those that it keeps for its
/// threads (32 to 34 in musl), of which a stray one would end us. To block all would take one call, but real-time
/// signals that are blocked stay queued, against the limit that all processes of the user have together.
pub fn ignore_all() {
    /// The kernel's sigaction: the handler, then flags, restorer and mask, all zero.
    static IGNORED: [usize; 4] = [libc::SIG_IGN, 0, 0, 0];
    for signal in 1..=64 {
        // SIGCHLD stays: ignoring it would make waitpid(2) fail. KILL and STOP are refused.
        if signal != libc::SIGCHLD {
            // SAFETY: the kernel reads a sigaction of four words, with a mask of eight bytes, and writes none.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    signal,
                    &raw const IGNORED,
                    ptr::null_mut::<usize>(),
                    8,
                )
            };
        }
    }
}

fn disposition(signal: i32, handler: libc::sighandler_t) {
    // SAFETY: an all-zero sigaction is a valid value: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    // SAFETY: SIG_DFL and SIG_IGN run no code of ours. A signal that cannot be changed is refused with
    // EINVAL and stays as it is, which is what the callers want.
    unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
}

/// SIGCONT by anyone has come since last asked.
static WOKEN: AtomicBool = AtomicBool::new(false);
/// SIGCONT by anyone but our own timer and our keeper has come since last asked.
static CONTINUED: AtomicBool = AtomicBool::new(false);
/// Whose SIGCONT only wakes us.
static KEEPER: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_continue(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo.
    let info = unsafe { &*info };
    WOKEN.store(true, Ordering::Relaxed);
    if info.si_code == libc::SI_TIMER {
        return;
    }
    // SAFETY: si_pid is there for every si_code with which SIGCONT comes otherwise.
    let sender = unsafe { info.si_pid() };
    if sender != KEEPER.load(Ordering::Relaxed) {
        CONTINUED.store(true, Ordering::Relaxed);
    }
}

/// Catches SIGCONT, so that it ends a poll(2); see [`was_continued`].
pub fn catch_continue(keeper: Pid) {
    KEEPER.store(keeper.as_raw(), Ordering::Relaxed);
    // SAFETY: an all-zero sigaction is a valid value: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_continue as *const () as libc::sighandler_t;
    // Without SA_RESTART: the wake-up is what it is for.
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler touches nothing but atomics, so it is async-signal-safe.
    unsafe { libc::sigaction(libc::SIGCONT, &raw const action, ptr::null_mut()) };
}

/// Whether somebody continued us since the last call.
pub fn was_continued() -> bool {
    CONTINUED.swap(false, Ordering::Relaxed)
}

/// Whether any SIGCONT at all has come since the last call: no stop ends without one.
pub fn was_woken() -> bool {
    WOKEN.swap(false, Ordering::Relaxed)
}

/// No core dump of ours: passwords and keys may be in our memory.
pub fn leave_no_core() {
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0).ok();
}

/// Dies of `signal` by its default action, without a core dump of ours.
pub fn die_of(signal: i32) {
    leave_no_core();
    disposition(signal, libc::SIG_DFL);
    SigSet::empty().thread_set_mask().ok();
    // SAFETY: raise(3) has no preconditions.
    unsafe { libc::raise(signal) };
}

// ---------------------------------------------------------------------------------------------
// The shared page.

/// Memory that guardian and keeper share: mapped before the fork, never unmapped.
#[derive(Clone, Copy, Debug)]
pub struct Page(&'static Words);

/// Three words suffice; what they mean is [`super::link`]'s affair.
#[derive(Debug)]
#[repr(C)]
pub struct Words {
    pub deadline: AtomicU64,
    pub offer: AtomicU64,
    pub refusal: AtomicI32,
}

impl Page {
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing existing.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<Words>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: page-aligned, zeroed (a valid value of the atomics), large enough, and mapped until the
        // process ends.
        Ok(Self(unsafe { &*address.cast::<Words>() }))
    }

    pub const fn words(&self) -> &'static Words {
        self.0
    }
}

// ---------------------------------------------------------------------------------------------
// Processes.

/// Gives back to the kernel what the stack once took and uses no more: the command line's reader goes 50 KiB deep, and a
/// waiter would keep that for as long as it waits. To be called from the main thread.
#[inline(never)] // what is below its own frame is below everybody's
pub fn shed_stack() {
    const PAGE: usize = 4096;
    /// As deep as anything here goes.
    const DEPTH: usize = 512 * 1024;
    let here = 0u8;
    // The page below is left alone: it may hold the rest of this frame, and madvise's.
    let end = (&raw const here).addr() / PAGE * PAGE - PAGE;
    // SAFETY: below the frame of the function that runs nothing is in use, and a page that is touched again is there
    // again, empty. Where the stack's mapping is shorter there is nothing that could be hit: others are put no nearer to
    // its top than 128 MiB (MIN_GAP in the kernel's mmap_base()), and madvise(2) passes over what is not mapped.
    unsafe { libc::madvise(ptr::without_provenance_mut(end - DEPTH), DEPTH, libc::MADV_DONTNEED) };
}

/// Forks: `None` in the child. To be called while there is but one thread: the child may then do all that we may.
pub fn fork() -> Result<Option<Pid>, Errno> {
    // SAFETY: with one thread the child may do all that the parent may.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// What a child needs to become the command. Never changed nor given back, since the child reads it beside us.
#[derive(Debug)]
pub struct Exec {
    /// The files to try in turn, as execvp(3) finds them along PATH.
    pub candidates: Vec<CString>,
    pub arguments: Vec<CString>,
    /// Without what is known only when it starts.
    pub environment: Vec<CString>,
    /// In a process group of its own; else in ours.
    pub own_group: bool,
}

/// What a script without "#!" runs under, as execvp(3) does it; flock(1) and timeout(1) behave so.
const SHELL: &CStr = c"/bin/sh";

/// All that the child goes by: its own once it runs.
struct Launch {
    exec: &'static Exec,
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
    /// The same for [`SHELL`], with a place for the script.
    script: Vec<*const libc::c_char>,
    /// The signals that we have changed, and whether the caller ignored them.
    changed: Vec<(Signal, bool)>,
    mask: SigSet,
    guardian: Pid,
    refusal: &'static AtomicI32,
}

/// Has a child become the command, with these variables besides. Where it cannot, its errno is in `refusal` by the time
/// that it can be waited for. To be called from the main thread, since the death signal is bound to the thread that has
/// the child (prctl(2)).
///
/// The child runs in our memory, on a stack of its own, until its exec, as that of `posix_spawn(3)` does: to copy what it
/// leaves behind at once takes longer than all else that it does. Unlike there we go on meanwhile, since an exec
/// can take any time (of a file on a server that is away, of a child that somebody has stopped). A core that it dumps in
/// that moment takes us along on Linux before 5.16; then the keeper's last duty is done.
pub fn spawn(
    exec: &'static Exec,
    variables: Vec<CString>,
    inherited: &Inherited,
    changed: &[Signal],
    refusal: &'static AtomicI32,
) -> Result<Pid, Errno> {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        let mut pointers: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(ptr::null());
        pointers
    };
    let arguments = pointers(&exec.arguments);
    let mut environment = pointers(&exec.environment);
    // Given away for good, as all that the child reads: nobody tells when it has left our memory.
    environment.splice(exec.environment.len().., pointers(variables.leak()));
    let mut script = vec![SHELL.as_ptr(), ptr::null()];
    script.extend(arguments.iter().skip(1));
    if arguments.len() < 2 {
        script.push(ptr::null());
    }
    let launch = Box::leak(Box::new(Launch {
        exec,
        arguments,
        environment,
        script,
        changed: changed
            .iter()
            .map(|signal| (*signal, inherited.ignores(*signal)))
            .collect(),
        mask: inherited.mask,
        guardian: Pid::this(),
        refusal,
    }));
    // In the child our handler of SIGCONT would tell us of what is not ours.
    let ours = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let child = beside_us(launch);
    ours.thread_set_mask()?;
    let child = child?;
    if exec.own_group {
        // Here as well as in the child: whichever comes first. Refused once the child has exec'ed.
        nix::unistd::setpgid(child, child).ok();
    }
    Ok(child)
}

/// The child, in our memory if the kernel allows it, else in a copy.
fn beside_us(launch: &'static mut Launch) -> Result<Pid, Errno> {
    /// In words of 16 bytes, as a stack is aligned. What the child calls is no deeper than a few hundred bytes.
    const STACK: usize = 16 * 1024 / 16;
    let stack = Box::leak(Box::<[u128]>::new_uninit_slice(STACK));
    // The kernel's `struct clone_args`, in its first version.
    let arguments: [u64; 8] = [
        libc::CLONE_VM as u64,
        0,
        0,
        0,
        libc::SIGCHLD as u64,
        stack.as_mut_ptr().expose_provenance() as u64,
        size_of_val(stack) as u64,
        0,
    ];
    let launch = ptr::from_mut(launch);
    // SAFETY: the child gets a stack of its own that is never given back, and the launch for itself; with no other thread
    // and all signals blocked nothing else runs in it. It allocates nothing, cannot unwind, touches nothing
    // of ours but atomics, and calls the kernel alone: errno is the guardian's.
    let child = unsafe { direct::clone3(&arguments, become_command, launch) };
    if let Ok(child @ 1..) = i32::try_from(child) {
        return Ok(Pid::from_raw(child));
    }
    // Linux before 5.3, seccomp in older containers, emulators. Any other trouble comes again.
    match fork()? {
        Some(child) => Ok(child),
        None => become_command(launch),
    }
}

/// In the child.
extern "C" fn become_command(launch: *mut Launch) -> ! {
    // SAFETY: given away to us by the guardian, and never given back.
    let launch = unsafe { &mut *launch };
    let error = exec(launch);
    launch.refusal.store(error, Ordering::Release);
    loop {
        // SAFETY: exit_group(2) has no preconditions. It ends this process alone and runs no destructors.
        unsafe { direct::call(libc::SYS_exit_group, [127, 0, 0, 0]) };
    }
}

/// Returns only if nothing could be executed, with the errno.
fn exec(launch: &mut Launch) -> i32 {
    use direct::call;
    if launch.exec.own_group {
        // SAFETY: integers.
        unsafe { call(libc::SYS_setpgid, [0, 0, 0, 0]) };
    }
    // SAFETY: integers.
    unsafe {
        call(
            libc::SYS_prctl,
            [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0],
        )
    };
    // SAFETY: without arguments.
    if unsafe { call(libc::SYS_getppid, [0; 4]) } != launch.guardian.as_raw() as isize {
        // The guardian died before the death signal was set: nobody would stop us.
        return libc::ESRCH;
    }
    for (signal, ignored) in &launch.changed {
        let action = [if *ignored { libc::SIG_IGN } else { libc::SIG_DFL }, 0, 0, 0];
        // SAFETY: as in `ignore_all`.
        unsafe {
            call(
                libc::SYS_rt_sigaction,
                [*signal as usize, action.as_ptr().expose_provenance(), 0, 8],
            )
        };
    }
    let mask = ptr::from_ref(launch.mask.as_ref()).expose_provenance();
    // SAFETY: the kernel's set of signals is the first eight bytes of the library's.
    unsafe { call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, mask, 0, 8]) };
    let closed = WERE_CLOSED.load(Ordering::Relaxed);
    for fd in 0..3 {
        if closed & (1 << fd) != 0 {
            // SAFETY: opened by Rust's runtime as a stand-in; nobody here uses it any more.
            unsafe { call(libc::SYS_close, [fd, 0, 0, 0]) };
        }
    }
    // Returns why it did not.
    let execute = |file: &CStr, arguments: &[*const libc::c_char]| {
        let [arguments, environment] = [arguments, &launch.environment].map(|list| list.as_ptr().expose_provenance());
        let file = file.as_ptr().expose_provenance();
        // SAFETY: a string that ends with NUL, and two lists of such that end with NULL.
        let refused = unsafe { call(libc::SYS_execve, [file, arguments, environment, 0]) };
        i32::try_from(-refused).unwrap_or(libc::EIO)
    };
    // As execvp(3): a refusal is remembered while later entries of PATH are tried.
    let mut error = libc::ENOENT;
    let several = launch.exec.candidates.len() > 1;
    for candidate in &launch.exec.candidates {
        match execute(candidate, &launch.arguments) {
            libc::ENOENT | libc::ENOTDIR if several => {}
            libc::EACCES if several => error = libc::EACCES,
            libc::ENOEXEC => {
                launch.script[1] = candidate.as_ptr();
                execute(SHELL, &launch.script);
                return libc::ENOEXEC;
            }
            last => return last,
        }
    }
    error
}

/// System calls without the C library, which notes each error in errno: that is the guardian's.
#[cfg(target_arch = "x86_64")]
mod direct {
    use super::{Launch, libc};
    use std::arch::asm;

    /// The result, or the errno below zero.
    pub(super) unsafe fn call(number: libc::c_long, arguments: [usize; 4]) -> isize {
        let [one, two, three, four] = arguments;
        let result;
        // SAFETY: the kernel's convention (syscall(2)). What the call itself does is the caller's affair.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") number => result,
                in("rdi") one, in("rsi") two, in("rdx") three, in("r10") four,
                out("rcx") _, out("r11") _,
                options(nostack),
            );
        }
        result
    }

    /// clone3(2): the child's number. The child begins at the top of its stack with `run`, and goes nowhere else.
    pub(super) unsafe fn clone3(
        arguments: &[u64; 8],
        run: extern "C" fn(*mut Launch) -> !,
        launch: *mut Launch,
    ) -> isize {
        let result;
        // SAFETY: as above. The child has the same registers but for the stack's, and returns to nobody.
        unsafe {
            asm!(
                "syscall",
                "test rax, rax",
                "jnz 2f",
                "xor ebp, ebp",
                "mov rdi, {launch}",
                "call {run}",
                "ud2",
                "2:",
                inlateout("rax") libc::SYS_clone3 => result,
                in("rdi") arguments, in("rsi") size_of_val(arguments),
                run = in(reg) run, launch = in(reg) launch,
                out("rcx") _, out("r11") _,
                options(nostack),
            );
        }
        result
    }
}

/// Elsewhere the child has a copy of our memory, and an errno of its own.
#[cfg(not(target_arch = "x86_64"))]
mod direct {
    use super::{Errno, Launch, libc};

    pub(super) unsafe fn call(number: libc::c_long, arguments: [usize; 4]) -> isize {
        let [one, two, three, four] = arguments;
        // SAFETY: the caller's affair.
        match unsafe { libc::syscall(number, one, two, three, four) } {
            -1 => -(Errno::last_raw() as isize),
            result => result as isize,
        }
    }

    pub(super) unsafe fn clone3(_: &[u64; 8], _: extern "C" fn(*mut Launch) -> !, _: *mut Launch) -> isize {
        -(libc::ENOSYS as isize)
    }
}

/// Reaps the next dead child, with its status as wait(2) gives it; `None` if none has died. By hand, since
/// nix has no word for a real-time signal and loses the child that died of one.
pub fn reap() -> Option<(Pid, libc::c_int)> {
    loop {
        let mut status = 0;
        // SAFETY: the status is written to a valid place; the rest are integers.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        if pid > 0 {
            return Some((Pid::from_raw(pid), status));
        }
        if pid == 0 || Errno::last() != Errno::EINTR {
            return None;
        }
    }
}

/// Sends `signal` to the one process that `pid` means now and `is_it` recognises: a pidfd is taken first,
/// so the number cannot come to mean another process in between (`pidfd_open(2)`).
pub fn signal_exactly(pid: i32, signal: Signal, is_it: impl FnOnce() -> bool) -> Result<(), Errno> {
    // SAFETY: pidfd_open takes two integers and returns a descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(Errno::last());
    }
    let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: just opened and owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if !is_it() {
        return Err(Errno::ESRCH);
    }
    // SAFETY: a NULL siginfo stands for kill(2)'s.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd.as_raw_fd(),
            signal as i32,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if sent < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Points descriptors 0–2 at /dev/null and closes all others but `keep`.
pub fn keep_only(keep: BorrowedFd) -> Result<(), Errno> {
    use nix::fcntl::{OFlag, open};
    let null = open(
        c"/dev/null",
        OFlag::O_RDWR | OFlag::O_CLOEXEC,
        nix::sys::stat::Mode::empty(),
    )?;
    for fd in 0..3 {
        // SAFETY: replaces a descriptor that nothing in this process owns.
        if unsafe { libc::dup2(null.as_raw_fd(), fd) } == -1 {
            return Err(Errno::last());
        }
    }
    drop(null);
    let keep = u32::try_from(keep.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    close_range(3, keep - 1)?;
    close_range(keep + 1, u32::MAX)
}

fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    if first > last {
        return Ok(());
    }
    // SAFETY: only descriptors inherited from the caller are closed; the callers own none of them.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return Ok(());
    }
    // Linux before 5.9.
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?.0;
    for fd in u64::from(first)..=u64::from(last).min(limit) {
        // SAFETY: as above; a number that is no descriptor is refused.
        unsafe { libc::close(RawFd::try_from(fd).unwrap_or(-1)) };
    }
    Ok(())
}

/// Ends the process at once, destructors and exit handlers left out.
pub fn exit_now(status: u8) -> ! {
    // SAFETY: _exit(2) has no preconditions.
    unsafe { libc::_exit(i32::from(status)) }
}

/// A name of 15 bytes at most for ps, killall and pkill.
pub fn set_name(name: &CStr) {
    nix::sys::prctl::set_name(name).ok();
}

/// A descriptor of ours as tokio waits for it to become readable. To be called within a runtime.
pub fn readable<T: AsRawFd>(owner: T) -> std::io::Result<tokio::io::unix::AsyncFd<T>> {
    // SAFETY: the only types handed in, `Link` and `Alarm`, own their descriptor: it stays open and the same
    // until they are dropped, which deregisters it first.
    unsafe { tokio::io::unix::AsyncFd::register_with_interest(owner, tokio::io::Interest::READABLE) }
        .map_err(Into::into)
}

// ---------------------------------------------------------------------------------------------
// Memory.

/// dlmalloc behind a lock of one word. Its own way is a mutex of the C library, which takes a tenth of all instructions
/// of a run, though nearly always there is but one thread.
#[cfg(target_env = "musl")]
#[derive(Debug)]
pub struct Heap {
    heap: std::cell::UnsafeCell<dlmalloc::Dlmalloc>,
    taken: AtomicBool,
}

#[cfg(target_env = "musl")]
impl Heap {
    /// What is asked of the kernel at once, in bytes: a run needs no second time. What is not touched takes no memory.
    const PIECE: usize = 128 * 1024;

    #[expect(clippy::new_without_default, reason = "there is one, and it is a static")]
    pub const fn new() -> Self {
        let mut heap = dlmalloc::Dlmalloc::new();
        heap.set_granularity(Self::PIECE);
        Self {
            heap: std::cell::UnsafeCell::new(heap),
            taken: AtomicBool::new(false),
        }
    }

    /// Whoever has it is done soon, or waits for a processor. A fork never comes in between: it is made while there is
    /// one thread.
    fn alone<T>(&self, work: impl FnOnce(&mut dlmalloc::Dlmalloc) -> T) -> T {
        while self.taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: nobody else has it, since `taken` was not set, and all come this way.
        let done = work(unsafe { &mut *self.heap.get() });
        self.taken.store(false, Ordering::Release);
        done
    }
}

// SAFETY: `alone` lets one thread in at a time.
#[cfg(target_env = "musl")]
unsafe impl Sync for Heap {}

// SAFETY: dlmalloc's functions keep this trait's contract where it is kept towards them, and `alone` neither allocates
// nor unwinds.
#[cfg(target_env = "musl")]
unsafe impl std::alloc::GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        // SAFETY: as the caller has promised.
        self.alone(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: as the caller has promised.
        self.alone(|heap| unsafe { heap.free(block, layout.size(), layout.align()) });
    }

    unsafe fn alloc_zeroed(&self, layout: std::alloc::Layout) -> *mut u8 {
        // SAFETY: as the caller has promised.
        self.alone(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: std::alloc::Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller has promised.
        self.alone(|heap| unsafe { heap.realloc(block, layout.size(), layout.align(), size) })
    }
}
