//! System calls of the engine: eventfd, waiting, the clock, and nothing else.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The monotonic clock, in nanoseconds.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable. This clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// A new eventfd with the value 0, blocking, closed on exec.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes an eventfd readable.
pub(crate) fn eventfd_set(fd: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` is readable for 8 bytes. Fails only if the counter would overflow: then the
    // descriptor is readable already.
    unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Makes an eventfd unreadable. Must not be called unless it is readable: it would block.
pub(crate) fn eventfd_clear(fd: BorrowedFd<'_>) {
    let mut value = [0u8; 8];
    // SAFETY: `value` is writable for 8 bytes.
    unsafe { libc::read(fd.as_raw_fd(), value.as_mut_ptr().cast(), value.len()) };
}

/// Has somebody set `O_NONBLOCK` on the descriptor?
pub(crate) fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Waits until the descriptor is readable.
///
/// # Errors
/// Those of poll(2), `Interrupted` among them: C programs expect blocking verbs to return on a
/// signal.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    wait_any(&[fd.as_raw_fd()], None).map(drop)
}

/// Waits until one of the descriptors is readable or the time is up. Bit `i` of the result tells
/// whether descriptor `i` is readable; there may be 64.
///
/// # Errors
/// Those of ppoll(2).
pub(crate) fn wait_any(fds: &[RawFd], timeout: Option<Duration>) -> io::Result<u64> {
    let mut polls: Vec<libc::pollfd> = fds
        .iter()
        .map(|fd| libc::pollfd {
            fd: *fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(t.subsec_nanos()),
    });
    let timeout_ptr = timeout
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `polls` holds as many entries as said, the timeout is null or a valid timespec,
    // both outlive the call; no signal mask.
    let n = unsafe {
        libc::ppoll(
            polls.as_mut_ptr(),
            polls.len() as libc::nfds_t,
            timeout_ptr,
            std::ptr::null(),
        )
    };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    let ready = polls
        .iter()
        .enumerate()
        .filter(|(_, poll)| poll.revents != 0);
    Ok(ready.fold(0, |bits, (index, _)| bits | 1 << index))
}

/// Blocks all signals in the calling thread but those of memory accesses that fail, which are caught
/// (`memory/guard`).
pub(crate) fn block_all_signals() {
    // SAFETY: a sigset is plain data that sigfillset initialises; the pointers outlive the calls.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
        libc::sigdelset(&raw mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// Lets the calling thread's timed waits end within a microsecond of the time asked for; the
/// default is 50.
pub(crate) fn set_precise_timers() {
    // SAFETY: no pointers; where it fails, waits last a little longer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong, 0, 0, 0) };
}

/// Has `handler` called when the process exits by exit(3) or by returning from `main`.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: `handler` is code of this object, which the C library calls before it unloads it. Fails
    // without memory: then nothing is called.
    unsafe { libc::atexit(handler) };
}
