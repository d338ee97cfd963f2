//! An epoll instance, as the descriptor of an event queue that a program waits for.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// An epoll instance. Its descriptor is readable while one of its members is.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    /// Makes an empty instance, closed on exec.
    ///
    /// # Errors
    /// Those of epoll_create1(2).
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            let failed = super::named("failed to create an epoll instance");
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: a new descriptor without another owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes `fd` a member. Returns true if it is one now.
    ///
    /// A member has to be removed before it is closed. Otherwise it stays one as long as any
    /// process has a duplicate of it.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> bool {
        self.control(libc::EPOLL_CTL_ADD, fd)
            || io::Error::last_os_error().raw_os_error() == Some(libc::EEXIST)
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        self.control(libc::EPOLL_CTL_DEL, fd);
    }

    fn control(&self, operation: libc::c_int, fd: BorrowedFd<'_>) -> bool {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: 0,
        };
        // SAFETY: `event` is readable and outlives the call.
        let result =
            unsafe { libc::epoll_ctl(self.raw_fd(), operation, fd.as_raw_fd(), &raw mut event) };
        result == 0
    }
}
