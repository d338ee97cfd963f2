//! Waiting for a file descriptor.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::fd::{AsRawFd as _, RawFd};
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

/// The descriptor of a completion channel.
///
/// # Safety
/// It must stay open for `'a`.
pub(crate) unsafe fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
