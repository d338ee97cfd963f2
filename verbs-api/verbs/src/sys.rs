//! Waiting for a file descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

/// Makes reads from the descriptor return at once when there is nothing.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, so it is open; the call takes no pointer.
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

/// Waits until the descriptor is readable or `timeout` is over, whichever comes first; a signal
/// ends the wait early. Waits up to 1 ms longer than asked.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    // Rounded up, so that the caller does not spin through the last millisecond.
    let ms = i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid `pollfd` that lives across the call; the descriptor is borrowed.
    let ready = unsafe { libc::poll(&raw mut poll, 1, ms) };
    if ready >= 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

/// What one thread wakes another by that waits for descriptors.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointer.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: made just now, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn ring(&self) {
        // Fails only where it has been rung as often as it can.
        // SAFETY: no pointer is kept.
        unsafe { libc::eventfd_write(self.0.as_raw_fd(), 1) };
    }

    pub(crate) fn silence(&self) {
        let mut count = 0;
        // SAFETY: room for the count.
        unsafe { libc::eventfd_read(self.0.as_raw_fd(), &raw mut count) };
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until the bell rings or one of the descriptors is readable, or is none; which of them that are. They need not
/// be open.
pub(crate) fn wait_any(bell: BorrowedFd<'_>, fds: &[RawFd]) -> Vec<RawFd> {
    let all = [bell.as_raw_fd()].into_iter().chain(fds.iter().copied());
    let mut polls: Vec<_> = all
        .map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let count = libc::nfds_t::try_from(polls.len()).unwrap_or(0);
    // SAFETY: so many valid entries that live across the call.
    if unsafe { libc::poll(polls.as_mut_ptr(), count, -1) } < 0 {
        return Vec::new();
    }
    let ready = polls.iter().skip(1).filter(|poll| poll.revents != 0);
    ready.map(|poll| poll.fd).collect()
}

/// The descriptor of a completion channel.
///
/// # Safety
/// It must stay open for `'a`.
pub(crate) unsafe fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
