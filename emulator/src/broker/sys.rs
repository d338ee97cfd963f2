//! System calls of the broker and its clients: locks, polling, and starting a program that outlives
//! this process. The broker's `unsafe` code is in this file and `words.rs`.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::BrokerError;
use crate::inherited::{Defaults, StartPermit};
use crate::sync::turn;
pub(super) use crate::sys::{effective_uid, poll, poll_readable};

/// Returns a pidfd, which is readable when the process has ended (pidfd_open(2)).
pub(crate) fn open_process(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).map_err(|_| io::ErrorKind::Other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh fd without another owner, close-on-exec by itself.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The first descriptor that a service manager passes (`SD_LISTEN_FDS_START`).
const FIRST_PASSED: RawFd = 3;

/// Takes the descriptor that a service manager has passed. Returns `None` if it was taken before.
///
/// # Errors
/// No such descriptor is open.
pub(super) fn take_passed_descriptor() -> io::Result<Option<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(None);
    }
    // SAFETY: takes no pointers, and fails for a closed descriptor.
    check(unsafe { libc::fcntl(FIRST_PASSED, libc::F_SETFD, libc::FD_CLOEXEC) })?;
    // SAFETY: open, and its only owner is the one returned here, because that happens once. The
    // manager has passed it for that.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(FIRST_PASSED) }))
}

/// Returns true if a process was stopped by a signal or a debugger. Returns false where /proc does
/// not show it.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    state.starts_with(['T', 't'])
}

/// Gives this process the normal scheduling policy and at least the normal priority, where the
/// system allows it. Returns false if the process keeps a lower priority.
pub(crate) fn run_at_usual_priority() -> bool {
    // SAFETY: takes no pointers.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let is_behind = [libc::SCHED_IDLE, libc::SCHED_BATCH].map(libc::c_long::from);
    let mut is_usual = true;
    if is_behind.contains(&policy) {
        // SAFETY: plain data, for which zero is a value: the only priority of that policy.
        let usual: libc::sched_param = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live sched_param.
        let set = unsafe {
            libc::syscall(
                libc::SYS_sched_setscheduler,
                0,
                libc::SCHED_OTHER,
                &raw const usual,
            )
        };
        is_usual = set == 0;
    }
    // SAFETY: takes no pointers.
    let niceness = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    if niceness > 0 {
        // SAFETY: takes no pointers.
        is_usual &= unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) } == 0;
    }
    is_usual
}

/// Takes the exclusive lock of a file (flock(2)) unless another open file holds it. The lock lives
/// until all duplicates of the fd are closed, in all processes.
pub(crate) fn try_lock(file: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: takes no pointers.
    let result = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock {
        Ok(false)
    } else {
        Err(error)
    }
}

/// Resources of which a broker needs more than the program that starts it.
const RAISED: [Resource; 5] = [
    libc::RLIMIT_NOFILE,
    libc::RLIMIT_FSIZE,
    libc::RLIMIT_AS,
    libc::RLIMIT_DATA,
    libc::RLIMIT_CPU,
];
/// The default limit of the stack. Without a limit the kernel lays out the memory differently.
const USUAL_STACK: libc::rlim_t = 8 << 20;

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = c_int;

/// Raises the soft limits of this process to the hard limits. Async-signal-safe.
///
/// # Errors
/// The last one. The other limits are raised all the same.
pub(crate) fn raise_limits() -> io::Result<()> {
    let mut result = raise_limit(libc::RLIMIT_STACK, USUAL_STACK);
    for resource in RAISED {
        result = raise_limit(resource, libc::RLIM_INFINITY).and(result);
    }
    result
}

/// Raises the soft limit of this process to `wanted`, or to the hard limit if that is lower.
fn raise_limit(resource: Resource, wanted: libc::rlim_t) -> io::Result<()> {
    let mut limit = limit_of(0, resource)?;
    if limit.rlim_cur >= wanted.min(limit.rlim_max) {
        return Ok(());
    }
    limit.rlim_cur = wanted.min(limit.rlim_max);
    // SAFETY: the pointer is to a live rlimit.
    check(unsafe { libc::setrlimit(resource, &raw const limit) }).map(drop)
}

/// Returns true if the hard limits of this process are too low to serve all possible clients.
pub(crate) fn are_limits_too_low() -> bool {
    are_process_limits_too_low(0).unwrap_or(false)
}

/// Like [`are_limits_too_low`], for another process of this user. Returns `None` if its limits are
/// inaccessible.
pub(crate) fn are_process_limits_too_low(pid: u32) -> Option<bool> {
    const OPEN_FILES: libc::rlim_t = 1024;
    /// The memory of a shared-memory link is a file.
    const FILE_SIZE: libc::rlim_t = 64 << 20;
    let open_files = limit_of(pid, libc::RLIMIT_NOFILE).ok()?.rlim_max;
    let file_size = limit_of(pid, libc::RLIMIT_FSIZE).ok()?.rlim_max;
    Some(open_files < OPEN_FILES || file_size < FILE_SIZE)
}

/// Returns a limit of a process. `pid` 0 is this process.
fn limit_of(pid: u32, resource: Resource) -> io::Result<libc::rlimit> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: the pointer is to a live rlimit, and no new limit is set.
    check(unsafe { libc::prlimit(pid, resource, ptr::null(), limit.as_mut_ptr()) })?;
    // SAFETY: zero-initialised plain data.
    Ok(unsafe { limit.assume_init() })
}

/// Ignores SIGXFSZ, so that exceeding the file size limit is an error of the call and does not end
/// this process.
pub(crate) fn survive_file_size_limit() {
    // SAFETY: sets a valid disposition for a valid signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Returns true if the peer of a unix connection has not received all messages.
pub(crate) fn has_unread(connection: BorrowedFd<'_>) -> bool {
    let mut bytes: c_int = 0;
    // SAFETY: this request writes one int, which is live.
    let result = unsafe { libc::ioctl(connection.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    // Where the system does not report it, there are none.
    result == 0 && bytes > 0
}

/// Returns the file this code was loaded from: the shared library or the program.
pub(crate) fn own_file() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let address = own_file as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: dladdr takes any address, and writes a Dl_info.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: zero-initialised plain data.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: after success dli_fname is a C string that lives as long as the object is loaded,
    // which is as long as this code runs.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Makes a timer readable once after this time. `None` disarms it.
fn set_timer(timer: RawFd, time: Option<Duration>) {
    // SAFETY: plain data for which zero is a valid value.
    let mut spec: libc::itimerspec = unsafe { std::mem::zeroed() };
    if let Some(time) = time {
        spec.it_value.tv_sec = time.as_secs().try_into().unwrap_or(libc::time_t::MAX);
        // Never 0, which would disarm the timer.
        spec.it_value.tv_nsec = time.subsec_nanos().max(1).into();
    }
    // SAFETY: the new value is a live object, and the old one is not requested.
    let result = unsafe { libc::timerfd_settime(timer, 0, &raw const spec, ptr::null_mut()) };
    debug_assert_eq!(result, 0, "a valid time");
}

/// Lets a timer of a simulated process expire, and waits until it has.
#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
pub(crate) fn expire(timer: RawFd) {
    set_timer(timer, Some(Duration::ZERO));
    let mut fds = [libc::pollfd {
        fd: timer,
        events: libc::POLLIN,
        revents: 0,
    }];
    poll(&mut fds, None).expect("it expires");
}

/// An fd that becomes readable when a watched connection is readable or closed, or at a set time.
/// It stays the same while connections come and go.
#[derive(Debug)]
pub(crate) struct HangupWatch {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Drop for HangupWatch {
    fn drop(&mut self) {
        turn::alarm(self.timer.as_raw_fd(), None);
    }
}

impl HangupWatch {
    /// # Errors
    /// [`BrokerError::System`], which names the system call.
    pub(crate) fn new() -> Result<Self, BrokerError> {
        // SAFETY: takes no pointers.
        let epoll = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
            .map_err(BrokerError::failure("failed to create an epoll instance"))?;
        // SAFETY: a fresh fd without another owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        // SAFETY: takes no pointers.
        let timer = check(unsafe {
            libc::timerfd_create(
                libc::CLOCK_MONOTONIC,
                libc::TFD_CLOEXEC | libc::TFD_NONBLOCK,
            )
        })
        .map_err(BrokerError::failure(
            "failed to create a timer (timerfd_create)",
        ))?;
        // SAFETY: a fresh fd without another owner.
        let timer = unsafe { OwnedFd::from_raw_fd(timer) };
        let watch = Self { epoll, timer };
        watch
            .add(watch.timer.as_raw_fd(), libc::EPOLLIN)
            .map_err(BrokerError::failure("failed to watch a timer (epoll_ctl)"))?;
        Ok(watch)
    }

    /// Watches a connection until it is closed or forgotten.
    pub(crate) fn watch(&self, connection: BorrowedFd<'_>) -> io::Result<()> {
        self.add(connection.as_raw_fd(), libc::EPOLLIN | libc::EPOLLRDHUP)
    }

    /// Watches a connection for its end only.
    pub(crate) fn watch_end(&self, connection: BorrowedFd<'_>) -> io::Result<()> {
        self.add(connection.as_raw_fd(), libc::EPOLLRDHUP)
    }

    /// Stops watching a connection. Closing it has the same effect, unless a child of fork has a
    /// copy.
    pub(crate) fn forget(&self, connection: BorrowedFd<'_>) {
        // SAFETY: no event is needed for this operation. It fails if the connection is not watched.
        unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                connection.as_raw_fd(),
                ptr::null_mut(),
            );
        }
    }

    /// Makes the fd readable once after this time. `None` disarms the timer.
    pub(crate) fn wake_after(&self, time: Option<Duration>) {
        let time = turn::alarm(self.timer.as_raw_fd(), time);
        set_timer(self.timer.as_raw_fd(), time);
    }

    fn add(&self, fd: RawFd, events: c_int) -> io::Result<()> {
        let events = u32::try_from(events).unwrap_or(0);
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: the event is a live object.
        check(unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd,
                &raw mut event,
            )
        })
        .map(|_| ())
        .map_err(|error| match error.raw_os_error() {
            // The number of the epoll instance is another file now.
            Some(libc::EINVAL) => io::Error::from_raw_os_error(libc::EBADF),
            _ => error,
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

/// Lowest number for the copies of fds that a new program gets, above their final numbers.
const COPY_FLOOR: c_int = 10;
/// The new program's end of the liveness pipe.
const LIFE_LINE: c_int = 3;

/// Starts a detached program. It is not a child of this process, which thus gets no SIGCHLD, and
/// whose wait(2) is not disturbed. It has a session of its own, the root directory and default
/// signal handling, and takes [`Defaults`]. Its stdin is /dev/null and its output goes to `log`. It
/// inherits no other file of this process.
///
/// Returns a liveness fd that hangs up when the program ends or could not be executed (then the log
/// has the reason).
///
/// `argv[0]` is the program's path. `env` has entries of the form `NAME=value`.
pub(crate) fn spawn_detached(
    argv: &[CString],
    env: &[CString],
    log: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    let program = argv.first().ok_or(io::ErrorKind::InvalidInput)?;
    let argv = null_terminated(argv);
    let env = null_terminated(env);
    // An empty file stands in for /dev/null in a directory tree without devices.
    let null = File::open("/dev/null")
        .or_else(|_| crate::sys::memory_file(c"rocade-stdin").map(File::from))?;
    let (line, remote_line) = pipe()?;
    let plan = Plan {
        program: program.as_ptr(),
        argv: argv.as_ptr(),
        env: env.as_ptr(),
        stdin: copy_high(null.as_raw_fd())?,
        log: copy_high(log.as_raw_fd())?,
        line: copy_high(remote_line.as_raw_fd())?,
        last_fd: last_fd(),
        defaults: Defaults::new(),
    };
    let permit = StartPermit::new();

    // No signal handler of the application may run in the child.
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the pointer is to a live sigset_t.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: both pointers are to live, initialised sets.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: the child only calls `first_child`, which allocates nothing, takes no locks and never
    // returns.
    let child = unsafe { fork_quietly() };
    if child == 0 {
        // SAFETY: this is the child of a fork, which copied the plan and its targets.
        unsafe { first_child(&plan) }
    }
    let forked = if child < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(child)
    };
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    drop(permit);
    reap(forked?);
    Ok(line)
}

/// Data of the child, prepared before the fork.
struct Plan {
    program: *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    stdin: OwnedFd,
    log: OwnedFd,
    line: OwnedFd,
    /// The highest open fd, as far as it is known.
    last_fd: RawFd,
    defaults: Defaults,
}

/// Returns the highest fd of this process, and at least the usual limit.
fn last_fd() -> RawFd {
    const AT_LEAST: RawFd = 4096;
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open = open.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.parse().ok()
    });
    open.fold(AT_LEAST, RawFd::max)
}

fn null_terminated(strings: &[CString]) -> Vec<*const c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([ptr::null()])
        .collect()
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the pointer is to two ints.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: a fresh fd without another owner.
    let read = unsafe { OwnedFd::from_raw_fd(fds[0]) };
    // SAFETY: as above.
    let write = unsafe { OwnedFd::from_raw_fd(fds[1]) };
    Ok((read, write))
}

fn copy_high(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let copy = check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, COPY_FLOOR) })?;
    // SAFETY: a fresh fd without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Like fork(2), but the child ends without SIGCHLD, and the application's fork handlers do not run
/// (they may call into this very engine). Returns the child's PID, 0 in the child, or a negative
/// number on failure.
///
/// QEMU's user emulation knows only forks that end with SIGCHLD, and answers EINVAL to others. The
/// child has that signal there.
///
/// # Safety
/// As after fork in a process with threads: the child may only call async-signal-safe functions
/// until it executes another program or exits.
unsafe fn fork_quietly() -> libc::pid_t {
    let fork = |signal: c_int| {
        // SAFETY: with all other arguments 0, clone is fork with that exit signal. The memory is
        // copied, and nothing is written through the null pointers.
        unsafe { libc::syscall(libc::SYS_clone, signal, 0usize, 0usize, 0usize, 0usize) }
    };
    let mut pid = fork(0);
    if pid < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        pid = fork(libc::SIGCHLD);
    }
    libc::pid_t::try_from(pid).unwrap_or(-1)
}

/// Waits for a child made by [`fork_quietly`], which exits at once.
fn reap(child: libc::pid_t) {
    loop {
        // SAFETY: a null status is allowed.
        let result = unsafe { libc::waitpid(child, ptr::null_mut(), libc::__WALL) };
        if result >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Leaves the parent's session, and makes the program a child of init.
///
/// # Safety
/// Must only be called in a child of [`fork_quietly`]. Async-signal-safe.
unsafe fn first_child(plan: &Plan) -> ! {
    // SAFETY: takes no pointers.
    unsafe { libc::setsid() };
    // SAFETY: the grandchild calls `second_child` only.
    if unsafe { fork_quietly() } == 0 {
        // SAFETY: this is the grandchild.
        unsafe { second_child(plan) }
    }
    // SAFETY: ends the process without running exit handlers.
    unsafe { libc::_exit(0) }
}

/// Executes the program.
///
/// # Safety
/// Must only be called in a child of [`fork_quietly`]. Async-signal-safe. The plan's pointers must
/// be valid and its arrays null-terminated.
unsafe fn second_child(plan: &Plan) -> ! {
    let places = [
        (&plan.stdin, 0),
        (&plan.log, 1),
        (&plan.log, 2),
        (&plan.line, LIFE_LINE),
    ];
    for (fd, place) in places {
        // A raw system call, because a library preloaded into the application may have replaced the
        // C library's function. The replacement would act on the previous file at that number.
        // SAFETY: takes no pointers. The copies are above all places, so none is overwritten.
        unsafe { libc::syscall(libc::SYS_dup3, fd.as_raw_fd(), place, 0) };
    }
    // SAFETY: takes no pointers.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, LIFE_LINE + 1, u32::MAX, 0) };
    if closed != 0 {
        for fd in LIFE_LINE + 1..=plan.last_fd {
            // SAFETY: this process owns its whole fd table and uses none of these again.
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }
    for signal in 1..=64 {
        // SAFETY: a valid disposition. It fails harmlessly for signals that cannot be changed.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut none = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the pointer is to a live sigset_t.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set is initialised.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut()) };
    // SAFETY: takes no pointers.
    unsafe { libc::umask(0o077) };
    // SAFETY: the pointer is to a C string.
    unsafe { libc::chdir(c"/".as_ptr()) };
    plan.defaults.take();
    // Even the start of the program may exceed a low limit. What cannot be raised stays.
    let _ = raise_limits();
    // SAFETY: the caller guarantees valid pointers and null-terminated arrays.
    unsafe { libc::execve(plan.program, plan.argv, plan.env) };
    let message = b"the broker program cannot be executed\n";
    // SAFETY: the pointer and length are those of a constant.
    unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
    // SAFETY: ends the process without running exit handlers.
    unsafe { libc::_exit(127) }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn own_file_is_this_test() {
        let own = fs::canonicalize(own_file().unwrap()).unwrap();
        assert_eq!(
            own,
            fs::canonicalize(std::env::current_exe().unwrap()).unwrap()
        );
    }

    #[test]
    fn a_lock_is_held_until_the_last_copy_is_closed() {
        let _no_starts = crate::sys::STARTS.read();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let open = || {
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .unwrap()
        };
        let first = open();
        assert!(try_lock(first.as_fd()).unwrap());
        let copy = first.try_clone().unwrap();
        drop(first);
        assert!(!try_lock(open().as_fd()).unwrap());
        assert!(try_lock(copy.as_fd()).unwrap());
        drop(copy);
        assert!(try_lock(open().as_fd()).unwrap());
    }

    #[test]
    fn a_detached_program_runs_in_its_own_session_without_our_files() {
        let _starts = crate::sys::STARTS.write();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = File::create(&path).unwrap();
        let script = "echo $FOO; ls /proc/self/fd | tr '\\n' ' '; echo; pwd; \
                      cut -d' ' -f4,6 /proc/$$/stat; read x; echo end";
        let argv = [
            c"/bin/sh".into(),
            c"-c".into(),
            CString::new(script).unwrap(),
        ];
        let line = spawn_detached(&argv, &[c"FOO=bar".into()], log.as_fd()).unwrap();
        let mut fds = [poll_readable(line.as_fd())];
        assert_eq!(poll(&mut fds, Some(Duration::from_secs(20))).unwrap(), 1);
        let output = fs::read_to_string(path).unwrap();
        let lines: Vec<_> = output.lines().collect();
        let [foo, fds, directory, relations, end] = lines[..] else {
            panic!("{output}")
        };
        assert_eq!((foo, directory, end), ("bar", "/", "end"));
        // The fds 0, 1, 2, the liveness fd, and the directory that ls reads.
        assert_eq!(fds.trim(), "0 1 2 3 4");
        let (parent, session) = relations.split_once(' ').unwrap();
        assert_ne!(parent, std::process::id().to_string());
        // SAFETY: takes no pointers.
        let own_session = unsafe { libc::getsid(0) };
        assert_ne!(session, own_session.to_string());
    }

    #[test]
    fn a_program_that_does_not_exist_hangs_up_and_says_so() {
        let _starts = crate::sys::STARTS.write();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = File::create(&path).unwrap();
        let argv = [c"/nonexistent/rocade".into()];
        let line = spawn_detached(&argv, &[], log.as_fd()).unwrap();
        let mut fds = [poll_readable(line.as_fd())];
        assert_eq!(poll(&mut fds, Some(Duration::from_secs(20))).unwrap(), 1);
        assert!(
            fs::read_to_string(path)
                .unwrap()
                .contains("cannot be executed")
        );
    }

    #[test]
    fn a_watch_reports_what_it_was_asked_for() {
        // A child would have copies of the fds that are closed here.
        let _no_starts = crate::sys::STARTS.read();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let watch = HangupWatch::new().unwrap();
        watch.watch_end(ours.as_fd()).unwrap();
        let ready_within = |time| {
            let mut fds = [libc::pollfd {
                fd: watch.fd(),
                events: libc::POLLIN,
                revents: 0,
            }];
            poll(&mut fds, Some(time)).unwrap()
        };
        let ready = || ready_within(Duration::ZERO);
        io::Write::write_all(&mut &theirs, b"data").unwrap();
        assert_eq!(ready(), 0);
        watch.forget(ours.as_fd());
        watch.watch(ours.as_fd()).unwrap();
        assert_eq!(ready(), 1);
        watch.forget(ours.as_fd());
        assert_eq!(ready(), 0);
        watch.watch_end(ours.as_fd()).unwrap();
        drop(theirs);
        assert_eq!(ready(), 1);
        drop(ours);
        assert_eq!(ready(), 0);
        watch.wake_after(Some(Duration::ZERO));
        assert_eq!(ready_within(Duration::from_secs(20)), 1);
        watch.wake_after(None);
        assert_eq!(ready(), 0);
    }
}
