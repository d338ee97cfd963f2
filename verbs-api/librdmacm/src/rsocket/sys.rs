//! System calls.
//!
//! A preloaded library may replace `socket` and `poll` in order to redirect programs to this
//! library. This module makes these system calls directly.

use std::{
    ffi::c_int,
    mem::size_of,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    time::Duration,
};

use libc::{epoll_event, pollfd, sockaddr, sockaddr_storage};

use crate::{args::zeroed, ffi::Errno};

fn checked(result: i64) -> Result<i64, Errno> {
    if result < 0 {
        Err(Errno::last())
    } else {
        Ok(result)
    }
}

fn owned(result: i64) -> Result<OwnedFd, Errno> {
    let fd = c_int::try_from(checked(result)?).map_err(|_| Errno::INVAL)?;
    // SAFETY: a new descriptor with no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Creates an eventfd, which is readable while its counter is not 0.
pub(super) fn eventfd() -> Result<OwnedFd, Errno> {
    // SAFETY: the arguments contain no pointers.
    owned(i64::from(unsafe {
        libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
    }))
}

/// Makes an eventfd readable.
pub(super) fn set_event(fd: &OwnedFd) {
    let one = 1_u64;
    // SAFETY: 8 bytes are readable.
    let _ = unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), &raw const one, 8_usize) };
}

/// Resets an eventfd to 0.
pub(super) fn clear_event(fd: &OwnedFd) {
    let mut count = 0_u64;
    // SAFETY: 8 bytes are writable.
    let _ = unsafe { libc::syscall(libc::SYS_read, fd.as_raw_fd(), &raw mut count, 8_usize) };
}

/// Creates a UDP socket.
pub(super) fn udp_socket(domain: c_int) -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: the arguments contain no pointers.
    owned(unsafe { libc::syscall(libc::SYS_socket, domain, kind, 0) })
}

/// Sets or clears `O_NONBLOCK`.
pub(super) fn set_nonblocking(fd: RawFd, on: bool) -> Result<(), Errno> {
    // SAFETY: the arguments contain no pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFL, 0) };
    let flags = checked(flags)?;
    let bit = i64::from(libc::O_NONBLOCK);
    let flags = if on { flags | bit } else { flags & !bit };
    // SAFETY: the arguments contain no pointers.
    checked(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_SETFL, flags) })?;
    Ok(())
}

/// Waits until a descriptor is ready or the time is up. Returns the number of ready descriptors.
///
/// # Errors
/// `EINTR`.
pub(super) fn poll(fds: &mut [pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit
        .as_ref()
        .map_or(ptr::null(), ptr::from_ref::<libc::timespec>);
    // SAFETY: the count of entries is right, the time is alive or NULL, and there is no signal
    // mask.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            fds.as_mut_ptr(),
            fds.len(),
            // The kernel's ppoll(2) modifies the time.
            limit.cast_mut(),
            ptr::null::<libc::sigset_t>(),
            8_usize,
        )
    };
    Ok(usize::try_from(checked(ready)?).unwrap_or(0))
}

/// Creates an epoll instance.
pub(super) fn epoll(flags: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: the arguments contain no pointers.
    owned(unsafe { libc::syscall(libc::SYS_epoll_create1, flags) })
}

/// epoll_ctl(2).
pub(super) fn epoll_control(
    set: &OwnedFd,
    operation: c_int,
    fd: RawFd,
    event: Option<&epoll_event>,
) -> Result<(), Errno> {
    let event = event.map_or(ptr::null(), ptr::from_ref);
    let set = set.as_raw_fd();
    // SAFETY: NULL or an event, which the kernel only reads.
    checked(unsafe { libc::syscall(libc::SYS_epoll_ctl, set, operation, fd, event) })?;
    Ok(())
}

/// Returns at most `most` events of an epoll instance that are there now.
pub(super) fn epoll_ready(set: &OwnedFd, most: usize) -> Result<Vec<epoll_event>, Errno> {
    let none = epoll_event { events: 0, u64: 0 };
    let mut events = vec![none; most];
    let mask = ptr::null::<libc::sigset_t>();
    let (to, fd) = (events.as_mut_ptr(), set.as_raw_fd());
    // SAFETY: room for as many events.
    let count = checked(unsafe { libc::syscall(libc::SYS_epoll_pwait, fd, to, most, 0, mask, 8) })?;
    events.truncate(usize::try_from(count).unwrap_or(0));
    Ok(events)
}

/// The error of a call with a descriptor that is no set of `repoll_create`.
pub(super) fn not_a_set(fd: RawFd) -> Errno {
    let is_open = descriptor_flags(fd, libc::F_GETFD, 0).is_ok();
    if is_open {
        Errno::INVAL
    } else {
        Errno(libc::EBADF)
    }
}

/// Returns a poll entry that waits until a descriptor is readable.
pub(super) const fn readable(fd: RawFd) -> pollfd {
    pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Returns the local address that the kernel uses for a destination.
pub(super) fn source_of(destination: &sockaddr_storage) -> Result<sockaddr_storage, Errno> {
    let domain = c_int::from(destination.ss_family);
    let len = crate::id::address_len(domain).ok_or(Errno(libc::EAFNOSUPPORT))?;
    let socket = udp_socket(domain)?;
    connect(&socket, destination, len)?;
    name(&socket)
}

/// connect(2).
pub(super) fn connect(
    socket: &OwnedFd,
    address: &sockaddr_storage,
    len: usize,
) -> Result<(), Errno> {
    let address = ptr::from_ref(address).cast::<sockaddr>();
    // SAFETY: an address of that length.
    checked(unsafe { libc::syscall(libc::SYS_connect, socket.as_raw_fd(), address, len) })?;
    Ok(())
}

/// getsockname(2).
pub(super) fn name(socket: &OwnedFd) -> Result<sockaddr_storage, Errno> {
    let mut address: sockaddr_storage = zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<sockaddr_storage>()).unwrap_or(0);
    // SAFETY: room for the answer.
    checked(unsafe {
        libc::syscall(
            libc::SYS_getsockname,
            socket.as_raw_fd(),
            &raw mut address,
            &raw mut len,
        )
    })?;
    Ok(address)
}

/// Runs `start` with all signals blocked, so that a thread created by `start` handles no signals.
/// Those of failed memory accesses are not blocked, because the thread receives into registered
/// memory.
pub(super) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all: libc::sigset_t = zeroed();
    let mut before: libc::sigset_t = zeroed();
    // SAFETY: both are local variables.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
        libc::sigdelset(&raw mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let result = start();
    // SAFETY: the signal mask from before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}

/// Receives a datagram, if there is one. Returns its length and sender.
pub(super) fn recv_from(
    socket: &OwnedFd,
    bytes: &mut [u8],
) -> Result<(usize, sockaddr_storage), Errno> {
    let mut from: sockaddr_storage = zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<sockaddr_storage>()).unwrap_or(0);
    // SAFETY: room for the datagram and the address.
    let got = checked(unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            socket.as_raw_fd(),
            bytes.as_mut_ptr(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            &raw mut from,
            &raw mut len,
        )
    })?;
    Ok((usize::try_from(got).unwrap_or(0), from))
}

/// Sends a datagram.
pub(super) fn send_to(
    socket: &OwnedFd,
    bytes: &[u8],
    to: &sockaddr_storage,
    len: usize,
) -> Result<(), Errno> {
    // SAFETY: readable for their lengths.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.as_raw_fd(),
            bytes.as_ptr(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
            ptr::from_ref(to),
            len,
        )
    })?;
    Ok(())
}

/// bind(2).
pub(super) fn bind(socket: &OwnedFd, address: &sockaddr_storage, len: usize) -> Result<(), Errno> {
    let address = ptr::from_ref(address).cast::<sockaddr>();
    // SAFETY: an address of that length.
    checked(unsafe { libc::syscall(libc::SYS_bind, socket.as_raw_fd(), address, len) })?;
    Ok(())
}

/// getsockopt(2).
///
/// # Safety
/// `value` must be writable for `*len` bytes, and `len` must be valid.
pub(super) unsafe fn option(
    socket: &OwnedFd,
    (level, name): (c_int, c_int),
    value: *mut libc::c_void,
    len: *mut libc::socklen_t,
) -> Result<(), Errno> {
    let fd = socket.as_raw_fd();
    // SAFETY: by contract.
    checked(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) })?;
    Ok(())
}

/// setsockopt(2).
pub(super) fn set_option(
    socket: &OwnedFd,
    (level, name): (c_int, c_int),
    value: &[u8],
) -> Result<(), Errno> {
    let fd = socket.as_raw_fd();
    let (value, len) = (value.as_ptr(), value.len());
    // SAFETY: readable for its length.
    checked(unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, value, len) })?;
    Ok(())
}

/// `F_GETFD` and `F_SETFD`.
pub(super) fn descriptor_flags(fd: RawFd, command: c_int, argument: c_int) -> Result<c_int, Errno> {
    // SAFETY: the arguments contain no pointers.
    let flags = checked(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) })?;
    Ok(c_int::try_from(flags).unwrap_or(0))
}
