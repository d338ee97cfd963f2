//! System calls of the engine: eventfd, epoll, waiting, clocks, sockets and signals.
//!
//! Threads that post or poll make raw system calls, because functions of the C library are
//! cancellation points (pthread_cancel(3)).

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::failure::named;
use crate::sync::turn;

mod epoll;
pub(crate) mod forked;
mod netlink;

pub(crate) use epoll::Epoll;
pub(crate) use netlink::{Netlink, ask_netlink, route_socket};

/// Locked exclusively by tests that start programs, and shared by tests of file locks. Between fork
/// and exec, a child has copies of all files, and so of their locks.
#[cfg(test)]
pub(crate) static STARTS: crate::sync::RwLock<(), crate::sync::rank::Starts> =
    crate::sync::RwLock::new(());

/// Returns the monotonic clock, in nanoseconds.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the time of day, in nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

/// Returns the ID of the calling thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes no arguments.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    u32::try_from(id).unwrap_or(0)
}

#[inline]
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable. These clocks always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Returns the effective user ID of this process.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: has no arguments and always succeeds.
    unsafe { libc::geteuid() }
}

/// Returns a [`poll`] entry that waits for input or a hangup.
pub(crate) fn poll_readable(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Returns the error of a failed ppoll(2), with its name. A signal is no failure and needs none.
#[cold]
fn wait_error() -> io::Error {
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => error,
        error => named("failed to wait for packets and events (ppoll)")(error),
    }
}

/// Waits until one of the fds has an event or the timeout expires (`None`: never). Returns the
/// number of fds with events, 0 also after a signal.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout_ms = match turn::wait_for(fds, timeout) {
        None => -1,
        // Rounded up, so that a wait for a deadline does not end just before it.
        Some(timeout) => c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX),
    };
    let count = libc::nfds_t::try_from(fds.len())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: `fds` is a valid array of `count` entries, exclusively borrowed.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), count, timeout_ms) };
    match usize::try_from(ready) {
        Ok(ready) => Ok(ready),
        Err(_) => {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                Ok(0)
            } else {
                Err(error)
            }
        }
    }
}

/// Creates a socket by a raw system call. Forked children do not keep it. A preloaded library may
/// replace `socket` to run the sockets of programs over RDMA. Rocade's own sockets must not use
/// that.
pub(crate) fn socket(domain: Domain, kind: Type, protocol: Option<Protocol>) -> io::Result<Socket> {
    let (domain, kind) = (c_int::from(domain), c_int::from(kind));
    let protocol = protocol.map_or(0, c_int::from);
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) };
    let fd = c_int::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system call has just returned it, and it has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    forked::note(socket.as_fd());
    Ok(socket.into())
}

/// Binds a socket to an address by a raw system call, as in [`socket`].
pub(crate) fn bind(socket: BorrowedFd<'_>, address: &SockAddr) -> io::Result<()> {
    let (fd, len) = (socket.as_raw_fd(), address.len());
    // SAFETY: the address lives across the call, and `len` is its length.
    let bound = unsafe { libc::syscall(libc::SYS_bind, fd, address.as_ptr(), len) };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns true if this host has the address in this network namespace. Ignores the port.
pub(crate) fn is_of_this_host(mut address: SocketAddr) -> bool {
    address.set_port(0);
    udp_socket(address).is_ok()
}

/// Creates a UDP socket bound to an address by raw system calls.
pub(crate) fn udp_socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = socket(
        Domain::for_address(address),
        Type::DGRAM.cloexec(),
        Some(Protocol::UDP),
    )
    .map_err(named("failed to create a UDP socket"))?;
    bind(socket.as_fd(), &address.into())?;
    Ok(socket.into())
}

/// Receives a datagram without blocking, truncated to the length of `buffer`.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: `buffer` is exclusively borrowed, and has the given length.
    let len = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags,
        )
    };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Creates a blocking eventfd with the value 0, closed on exec.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    eventfd_with(libc::EFD_CLOEXEC)
}

/// Creates a non-blocking eventfd with the value 0, closed on exec.
pub(crate) fn eventfd_nonblocking() -> io::Result<OwnedFd> {
    eventfd_with(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
}

fn eventfd_with(flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, flags) };
    if fd < 0 {
        let failed = named("failed to create an eventfd");
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates a memory file, closed on exec.
pub(crate) fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: a terminated string that lives across the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        let failed = named("failed to create a file in memory (memfd_create)");
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates a descriptor that never becomes readable, closed on exec.
pub(crate) fn never_readable_fd() -> io::Result<OwnedFd> {
    // A socket without an address, to which no process can send. Its inode identifies it even if it
    // is duplicated.
    let socket = socket(Domain::UNIX, Type::DGRAM.cloexec(), None);
    Ok(socket
        .map_err(named("failed to create a unix socket"))?
        .into())
}

/// Checks that this process may create a file of this length. The kernel ends a process that
/// exceeds its limit with SIGXFSZ.
///
/// # Errors
/// `FileTooLarge`, with the limit.
pub(crate) fn check_file_size(len: u64) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is writable. A failed call leaves it unchanged.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    if limit.rlim_cur == libc::RLIM_INFINITY || len <= limit.rlim_cur {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!(
            "a file of {len} bytes is above the limit of this process, {} bytes (ulimit -f)",
            limit.rlim_cur
        ),
    ))
}

/// Sends a signal to this process.
pub(crate) fn signal_this_process(signal: i32) {
    // SAFETY: kill(2) accesses no memory.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Ignores SIGXFSZ, so that exceeding the limit of the size of files (ulimit -f) is an error of the
/// call. By default it ends the process.
#[derive(Debug)]
pub struct FileSizeErrors {
    before: libc::sighandler_t,
}

impl FileSizeErrors {
    /// Begins to ignore the signal.
    #[must_use]
    pub fn begin() -> Self {
        // SAFETY: a valid disposition of a valid signal.
        let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        Self { before }
    }

    /// Restores the disposition before [`FileSizeErrors::begin`], for a program that replaces this
    /// one.
    pub fn end(&self) {
        if self.before != libc::SIG_ERR {
            // SAFETY: a disposition of the signal that this process has had.
            unsafe { libc::signal(libc::SIGXFSZ, self.before) };
        }
    }
}

/// Ignores SIGINT and SIGQUIT until it is dropped, for a process that waits for a program. The
/// program gets them from the same terminal.
#[derive(Debug)]
pub struct IgnoredInterrupts {
    before: [libc::sighandler_t; 2],
}

const INTERRUPTS: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

impl IgnoredInterrupts {
    /// Begins to ignore the signals. A program that was started before does not.
    #[must_use]
    pub fn begin() -> Self {
        // SAFETY: a valid disposition of valid signals.
        let before = INTERRUPTS.map(|signal| unsafe { libc::signal(signal, libc::SIG_IGN) });
        Self { before }
    }
}

impl Drop for IgnoredInterrupts {
    fn drop(&mut self) {
        for (signal, before) in INTERRUPTS.into_iter().zip(self.before) {
            if before != libc::SIG_ERR {
                // SAFETY: a disposition of the signal that this process has had.
                unsafe { libc::signal(signal, before) };
            }
        }
    }
}

/// Makes an eventfd readable. If it is readable already, edge-triggered waiters get a new edge.
pub(crate) fn eventfd_set(fd: BorrowedFd<'_>) {
    if turn::is_dead() {
        return;
    }
    let one = 1u64.to_ne_bytes();
    // SAFETY: `one` is readable for 8 bytes. The call fails only if the counter would overflow, and
    // the descriptor is readable then.
    unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), one.as_ptr(), one.len()) };
}

/// Makes an eventfd unreadable, without blocking if another thread has just done so.
pub(crate) fn eventfd_clear(fd: BorrowedFd<'_>) {
    let mut value = [0u8; 8];
    let iov = libc::iovec {
        iov_base: value.as_mut_ptr().cast(),
        iov_len: value.len(),
    };
    // No position, because an eventfd has none.
    let position: libc::c_long = -1;
    // SAFETY: `iov` names 8 writable bytes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_preadv2,
            fd.as_raw_fd(),
            &raw const iov,
            1usize,
            position,
            position,
            libc::RWF_NOWAIT,
        )
    };
    if result < 0 && io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
        // Without support in the kernel, the program may have read the descriptor before.
        if !is_readable_now(fd) {
            return;
        }
        // SAFETY: `value` is writable for 8 bytes.
        unsafe {
            libc::syscall(
                libc::SYS_read,
                fd.as_raw_fd(),
                value.as_mut_ptr(),
                value.len(),
            )
        };
    }
}

/// Returns true if a descriptor is readable. Like the callers' calls, this one is no cancellation
/// point.
fn is_readable_now(fd: BorrowedFd<'_>) -> bool {
    is_ready_now(&mut poll_readable(fd))
}

/// Returns true if the descriptor has one of the events, and fills them in. A raw system call, so
/// that it is no cancellation point.
pub(crate) fn is_ready_now(entry: &mut libc::pollfd) -> bool {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: one live entry, a live time, to which the kernel may write, and no signal mask.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            std::ptr::from_mut(entry),
            1usize,
            &raw mut now,
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    ready > 0
}

/// Hands over until the descriptor is readable, in a thread of a simulated host. Returns the time
/// for which any other thread has to wait.
#[doc(hidden)]
#[must_use]
pub fn hand_over_until_readable(fd: BorrowedFd<'_>, timeout: Duration) -> Duration {
    turn::wait_for(&[poll_readable(fd)], Some(timeout)).unwrap_or(timeout)
}

/// Returns true if the descriptor has `O_NONBLOCK`.
pub(crate) fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::c_long::from(libc::O_NONBLOCK) != 0
}

/// Sets `O_NONBLOCK`, as a program does.
#[cfg(all(test, not(loom)))]
pub(crate) fn set_nonblocking(fd: RawFd) {
    // SAFETY: no pointers.
    let result = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(result, 0);
}

unsafe extern "C-unwind" {
    /// Unlike the declaration in `libc`, this one allows pthread_cancel(3) to end the thread
    /// inside, which unwinds the stack.
    fn sem_wait(semaphore: *mut libc::sem_t) -> c_int;
}

/// A counting semaphore on which threads wait for events.
///
/// With respect to signals, the wait behaves like a blocking read(2). It continues after a handler
/// with `SA_RESTART` and fails after any other, whereas poll(2) always fails. It is also safe for a
/// verb that can be cancelled, because a thread that ends in it has not consumed anything.
///
/// Programs destroy an event channel while one of their threads waits on it (rping does). The
/// thread then waits forever, as in a read(2) of a closed descriptor. Each waiting thread therefore
/// has its own `EventSemaphore` to the shared semaphore. A cancelled thread takes its
/// `EventSemaphore` with it.
#[derive(Clone, Debug)]
pub(crate) struct EventSemaphore(Arc<RawSemaphore>);

#[derive(Debug)]
struct RawSemaphore(UnsafeCell<libc::sem_t>);

// SAFETY: a semaphore may be shared by threads, and its functions synchronise.
unsafe impl Send for RawSemaphore {}
// SAFETY: as above.
unsafe impl Sync for RawSemaphore {}

impl EventSemaphore {
    /// Creates a closed semaphore.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a sem_t is plain data, for which zero is valid until it is initialised below.
        let semaphore = Arc::new(RawSemaphore(UnsafeCell::new(unsafe { std::mem::zeroed() })));
        // SAFETY: the semaphore does not move, and no other thread knows it yet.
        let result = unsafe { libc::sem_init(semaphore.0.get(), 0, 0) };
        if result < 0 {
            let error = io::Error::last_os_error();
            // An uninitialised semaphore must not be destroyed.
            let _ = ManuallyDrop::new(semaphore);
            return Err(error);
        }
        Ok(Self(semaphore))
    }

    /// Increments the semaphore.
    pub(crate) fn open(&self) {
        // SAFETY: an initialised semaphore. Fails if the counter would overflow, and it is open
        // then.
        unsafe { libc::sem_post(self.0.0.get()) };
    }

    /// Decrements the semaphore. Returns false if it was zero.
    pub(crate) fn close(&self) -> bool {
        // SAFETY: an initialised semaphore.
        unsafe { libc::sem_trywait(self.0.0.get()) == 0 }
    }

    /// Waits until the semaphore is not zero, and leaves it unchanged.
    ///
    /// # Errors
    /// `Interrupted` by a signal whose handler does not restart system calls.
    pub(crate) fn wait(&self) -> io::Result<()> {
        if turn::until(None, || self.close()).is_some() {
            self.open();
            return Ok(());
        }
        // No value may need a drop here when the thread is cancelled. SAFETY: an initialised
        // semaphore.
        if unsafe { sem_wait(self.0.0.get()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.open();
        Ok(())
    }
}

impl Drop for RawSemaphore {
    fn drop(&mut self) {
        // SAFETY: initialised, and without a waiter, because each waiter has a reference.
        unsafe { libc::sem_destroy(self.0.get()) };
    }
}

/// Descriptors to wait for. The first one added has index 0.
#[derive(Debug, Default)]
pub(crate) struct PollSet(Vec<libc::pollfd>);

impl PollSet {
    /// Adds a descriptor, and returns its index. A descriptor that was closed meanwhile counts as
    /// readable.
    pub(crate) fn add(&mut self, fd: RawFd) -> usize {
        self.0.push(libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        self.0.len() - 1
    }

    /// Adds entries of poll(2), at consecutive indices.
    pub(crate) fn extend(&mut self, entries: &[libc::pollfd]) {
        self.0.extend_from_slice(entries);
    }

    /// Number of descriptors.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Copies the results of the last wait to entries that were added at index `at`. Returns the
    /// number of ready ones.
    pub(crate) fn results(&self, at: usize, entries: &mut [libc::pollfd]) -> usize {
        for (entry, poll) in entries.iter_mut().zip(self.0.iter().skip(at)) {
            entry.revents = poll.revents;
        }
        entries.iter().filter(|entry| entry.revents != 0).count()
    }

    /// Waits until a descriptor is readable or the timeout expires.
    ///
    /// # Errors
    /// Errors of ppoll(2). No descriptor counts as readable then.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let polls = &mut self.0;
        let timeout = turn::wait_for(polls, timeout).map(|t| libc::timespec {
            tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(t.subsec_nanos()),
        });
        let timeout_ptr = timeout
            .as_ref()
            .map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `polls` has the given number of entries, the timeout is null or a valid timespec,
        // and both outlive the call. There is no signal mask.
        let n = unsafe {
            libc::ppoll(
                polls.as_mut_ptr(),
                polls.len() as libc::nfds_t,
                timeout_ptr,
                std::ptr::null(),
            )
        };
        if n < 0 {
            return Err(wait_error());
        }
        Ok(())
    }

    /// Like [`Self::wait`], but not a cancellation point.
    ///
    /// # Errors
    /// Errors of ppoll(2), `Interrupted` by any signal. No descriptor counts as readable then.
    pub(crate) fn wait_uncancelled(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let polls = &mut self.0;
        let mut timeout = turn::wait_for(polls, timeout).map(|t| libc::timespec {
            tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(t.subsec_nanos()),
        });
        let timeout_ptr = timeout
            .as_mut()
            .map_or(std::ptr::null_mut(), std::ptr::from_mut);
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: `polls` has the given number of entries. The timeout, which the kernel changes,
        // is null or a valid timespec. Both outlive the call. There is no signal mask, so its size
        // does not matter.
        let n = unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                polls.as_mut_ptr(),
                polls.len(),
                timeout_ptr,
                no_mask,
                0usize,
            )
        };
        if n < 0 {
            return Err(wait_error());
        }
        Ok(())
    }

    /// Like [`Self::wait`] without a timeout, for a thread that may be cancelled
    /// (pthread_cancel(3)), which unwinds the stack. No frame of the caller may hold anything that
    /// needs dropping.
    ///
    /// # Errors
    /// Errors of ppoll(2), `Interrupted` by any signal that is handled.
    pub(crate) fn wait_cancellable(&mut self) -> io::Result<()> {
        unsafe extern "C-unwind" {
            /// Unlike the declaration in `libc`, this one allows the stack to unwind.
            fn ppoll(
                fds: *mut libc::pollfd,
                count: libc::nfds_t,
                timeout: *const libc::timespec,
                mask: *const libc::sigset_t,
            ) -> c_int;
        }
        if let Some(none) = turn::wait_for(&self.0, None) {
            return self.wait(Some(none));
        }
        let (fds, count) = (self.0.as_mut_ptr(), self.0.len() as libc::nfds_t);
        // SAFETY: the set has the given number of entries. There is no timeout and no signal mask.
        if unsafe { ppoll(fds, count, std::ptr::null(), std::ptr::null()) } < 0 {
            return Err(wait_error());
        }
        Ok(())
    }

    /// Returns true if the descriptor with this index was readable at the end of the last wait.
    pub(crate) fn is_ready(&self, index: usize) -> bool {
        self.0.get(index).is_some_and(|poll| poll.revents != 0)
    }

    /// Returns true if any descriptor from this index on was readable at the end of the last wait.
    pub(crate) fn any_ready_from(&self, index: usize) -> bool {
        self.0.iter().skip(index).any(|poll| poll.revents != 0)
    }
}

/// Replaces shared memory of a simulated process by memory of its own, so that others see nothing
/// of it any more. A later unmapping removes that.
#[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
pub(crate) fn detach_memory(start: usize, len: usize) {
    // SAFETY: the range is mapped, and holds atomics and bytes for which zero is valid. Its owner
    // does not run.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::with_exposed_provenance_mut(start),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(mapped, libc::MAP_FAILED, "detached");
}

/// Runs `f` with pthread_cancel(3) disabled. `f` must not panic.
pub(crate) fn uncancelled<T>(f: impl FnOnce() -> T) -> T {
    const DISABLE: c_int = 1;
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    }
    let mut before = DISABLE;
    // SAFETY: `before` is writable. The call only fails for unknown states.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    let result = f();
    let mut disabled = DISABLE;
    // SAFETY: as above.
    unsafe { pthread_setcancelstate(before, &raw mut disabled) };
    result
}

/// Blocks all signals in the calling thread except those of failed memory accesses, which are
/// handled (`memory/guard`).
pub(crate) fn block_all_signals() {
    // SAFETY: a sigset is plain data that sigfillset initialises, and the pointers outlive the
    // calls.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
        libc::sigdelset(&raw mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// The effect of the program's signal handlers on system calls that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Interruption {
    /// All handlers restart system calls (`SA_RESTART`), or there are none.
    Restart = 1,
    /// No handler does.
    Interrupt = 2,
    /// Some handlers do.
    Mixed = 3,
}

impl Interruption {
    /// Returns the effect of the handlers that are installed at the moment.
    pub(crate) fn of_handlers() -> Self {
        let (mut restarting, mut interrupting) = (false, false);
        // Signals of faults end the thread, or are handled and change nothing.
        let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
        for signal in (1..=libc::SIGRTMAX()).filter(|signal| !faults.contains(signal)) {
            // SAFETY: plain data, for which zero is a value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: `action` is writable, and no handler is installed. The C library refuses
            // the signals that it uses itself.
            if unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } < 0 {
                continue;
            }
            match action.sa_sigaction {
                libc::SIG_DFL | libc::SIG_IGN => {}
                _ if action.sa_flags & libc::SA_RESTART != 0 => restarting = true,
                _ => interrupting = true,
            }
        }
        match (restarting, interrupting) {
            (_, false) => Self::Restart,
            (false, true) => Self::Interrupt,
            (true, true) => Self::Mixed,
        }
    }

    /// Returns the effect of the handlers, looked up every 100 ms at most, because
    /// that takes some microseconds.
    pub(crate) fn recent() -> Self {
        const VALID_NS: u64 = 100_000_000;
        static KNOWN: AtomicU8 = AtomicU8::new(0);
        static UNTIL: AtomicU64 = AtomicU64::new(0);
        let now = monotonic_ns();
        if now < UNTIL.load(Ordering::Relaxed) {
            match KNOWN.load(Ordering::Relaxed) {
                1 => return Self::Restart,
                2 => return Self::Interrupt,
                _ => return Self::Mixed,
            }
        }
        let found = Self::of_handlers();
        KNOWN.store(found as u8, Ordering::Relaxed);
        UNTIL.store(now + VALID_NS, Ordering::Relaxed);
        found
    }
}

/// Sets the timer slack of the calling thread to 1 µs. The default is 50 µs.
pub(crate) fn set_precise_timers() {
    // SAFETY: no pointers. If it fails, waits last a little longer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong, 0, 0, 0) };
}

/// Requests a short scheduler slice for the calling thread, which makes it run soon after waking
/// (`sched_setattr(2)`, from Linux 6.12 on). The thread never runs for long.
pub(crate) fn ask_for_short_slice() {
    const SLICE_NS: u64 = 100_000;
    let size = size_of::<libc::sched_attr>();
    // SAFETY: plain data, for which zero is a value.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: `attr` is writable and has the given length. 0 is the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    let is_usual = i64::from(attr.sched_policy) == i64::from(libc::SCHED_OTHER);
    if got < 0 || !is_usual {
        // The program has chosen another policy, which takes precedence.
        return;
    }
    attr.sched_runtime = SLICE_NS;
    // SAFETY: `attr` is a valid structure that contains its length. A failed call changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

/// Registers `handler` to run when the process exits by exit(3) or by returning from `main`.
pub(crate) fn at_exit(handler: extern "C" fn()) {
    // SAFETY: `handler` is code of this object, which the C library calls before it unloads the
    // object. If the registration fails for lack of memory, nothing is called.
    unsafe { libc::atexit(handler) };
}
