//! Waits for file descriptors.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

/// Sets the descriptor to non-blocking mode.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, so it is open. The call takes no pointer.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if done < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Waits until the descriptor is readable or `timeout` expires. A signal ends the wait early. The
/// wait may last up to 1 ms longer than `timeout`.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let timeout = rocade_emulator::hand_over_until_readable(fd, timeout);
    // Rounded up, so that the caller does not spin through the last millisecond.
    let ms = i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is to one valid `pollfd` that lives across the call, and the descriptor
    // is borrowed.
    let ready = unsafe { libc::poll(&raw mut poll, 1, ms) };
    if ready >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

/// An eventfd that wakes a thread from [`wait_any`].
#[derive(Debug)]
pub(crate) struct WakeFd(OwnedFd);

impl WakeFd {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn wake(&self) {
        // The call fails only if the counter is at its maximum, and then the descriptor is readable
        // anyway. SAFETY: the call takes no pointer.
        unsafe { libc::eventfd_write(self.0.as_raw_fd(), 1) };
    }

    pub(crate) fn clear(&self) {
        let mut count = 0;
        // SAFETY: `count` has room for the counter.
        unsafe { libc::eventfd_read(self.0.as_raw_fd(), &raw mut count) };
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until `wake_fd` is readable or one of `fds` is readable or invalid. Returns those of
/// `fds` that are. They need not be open.
pub(crate) fn wait_any(wake_fd: BorrowedFd<'_>, fds: &[RawFd]) -> Vec<RawFd> {
    let all = [wake_fd.as_raw_fd()].into_iter().chain(fds.iter().copied());
    let mut polls: Vec<_> = all
        .map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let count = libc::nfds_t::try_from(polls.len()).unwrap_or(0);
    // SAFETY: `polls` has `count` valid entries and lives across the call.
    if unsafe { libc::poll(polls.as_mut_ptr(), count, -1) } < 0 {
        return Vec::new();
    }
    let ready = polls.iter().skip(1).filter(|poll| poll.revents != 0);
    ready.map(|poll| poll.fd).collect()
}

/// Borrows the descriptor of a channel or context.
///
/// # Safety
/// The descriptor must stay open for `'a`.
pub(crate) unsafe fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller guarantees that the descriptor stays open for `'a`.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
