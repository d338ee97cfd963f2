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

use libc::{epoll_event, pollfd, sockaddr_storage, socklen_t, timespec};

use crate::{
    args::{Answer, bytes_of, zeroed},
    ffi::Errno,
};

/// A system call. All memory that it names is borrowed as the kernel accesses it.
enum Call<'a> {
    Bind(&'a OwnedFd, &'a [u8]),
    Connect(&'a OwnedFd, &'a [u8]),
    /// A control of a descriptor, whose argument is a number.
    Control(RawFd, c_int, c_int),
    Epoll(c_int),
    EpollControl(&'a OwnedFd, c_int, RawFd, Option<&'a epoll_event>),
    EpollReady(&'a OwnedFd, &'a mut [epoll_event]),
    Eventfd(c_int),
    Name(&'a OwnedFd, Room<'a>),
    Option(&'a OwnedFd, (c_int, c_int), Answer<'a>),
    Poll(&'a mut [pollfd], Option<&'a mut timespec>),
    Read(&'a OwnedFd, &'a mut [u8]),
    ReceiveFrom(&'a OwnedFd, &'a mut [u8], Room<'a>),
    SendTo(&'a OwnedFd, &'a [u8], &'a [u8]),
    SetOption(&'a OwnedFd, (c_int, c_int), &'a [u8]),
    Socket(c_int, c_int),
    Write(&'a OwnedFd, &'a [u8]),
}

/// Room for an address, and for its length, which is that of the room before the call.
type Room<'a> = (&'a mut sockaddr_storage, &'a mut socklen_t);

/// Returns a number as an argument of a system call.
const fn number(value: c_int) -> usize {
    (value as isize).cast_unsigned()
}

/// Returns a pointer as an argument of a system call.
fn place<T>(value: *const T) -> usize {
    value.expose_provenance()
}

/// Returns memory that the kernel writes as an argument of a system call.
fn room<T: ?Sized>(value: &mut T) -> usize {
    ptr::from_mut(value).cast::<u8>().expose_provenance()
}

/// Returns bytes as two arguments of a system call.
fn bytes(value: &[u8]) -> (usize, usize) {
    (place(value.as_ptr()), value.len())
}

impl Call<'_> {
    /// Returns the number of the call, and its arguments.
    fn parts(self) -> (i64, [usize; 6]) {
        let fd = |fd: &OwnedFd| number(fd.as_raw_fd());
        match self {
            Self::Bind(socket, name) => {
                let (at, len) = bytes(name);
                (libc::SYS_bind, [fd(socket), at, len, 0, 0, 0])
            }
            Self::Connect(socket, name) => {
                let (at, len) = bytes(name);
                (libc::SYS_connect, [fd(socket), at, len, 0, 0, 0])
            }
            Self::Control(raw, command, argument) => {
                let all = [number(raw), number(command), number(argument), 0, 0, 0];
                (libc::SYS_fcntl, all)
            }
            Self::Epoll(flags) => (libc::SYS_epoll_create1, [number(flags), 0, 0, 0, 0, 0]),
            Self::EpollControl(set, operation, raw, event) => {
                let event = place(event.map_or(ptr::null(), ptr::from_ref));
                let all = [fd(set), number(operation), number(raw), event, 0, 0];
                (libc::SYS_epoll_ctl, all)
            }
            Self::EpollReady(set, events) => {
                // Without a time limit and a signal mask.
                let all = [fd(set), room(&mut *events), events.len(), 0, 0, 8];
                (libc::SYS_epoll_pwait, all)
            }
            Self::Eventfd(flags) => (libc::SYS_eventfd2, [0, number(flags), 0, 0, 0, 0]),
            Self::Name(socket, (address, len)) => {
                let (address, len) = (room(address), room(len));
                (libc::SYS_getsockname, [fd(socket), address, len, 0, 0, 0])
            }
            Self::Option(socket, (level, name), answer) => {
                let (value, len) = answer.as_ptrs();
                let (value, len) = (place(value), place(len));
                let all = [fd(socket), number(level), number(name), value, len, 0];
                (libc::SYS_getsockopt, all)
            }
            Self::Poll(fds, limit) => {
                // The kernel's ppoll(2) modifies the time. There is no signal mask.
                let limit = limit.map_or(0, room);
                let all = [room(fds), fds.len(), limit, 0, 8, 0];
                (libc::SYS_ppoll, all)
            }
            Self::Read(file, data) => (libc::SYS_read, [fd(file), room(data), data.len(), 0, 0, 0]),
            Self::ReceiveFrom(socket, data, (from, from_len)) => {
                let (at, len, flags) = (room(data), data.len(), number(libc::MSG_DONTWAIT));
                let all = [fd(socket), at, len, flags, room(from), room(from_len)];
                (libc::SYS_recvfrom, all)
            }
            Self::SendTo(socket, data, to) => {
                let ((at, len), flags) = (bytes(data), number(libc::MSG_NOSIGNAL));
                let (to, to_len) = bytes(to);
                (libc::SYS_sendto, [fd(socket), at, len, flags, to, to_len])
            }
            Self::SetOption(socket, (level, name), value) => {
                let (value, len) = bytes(value);
                let all = [fd(socket), number(level), number(name), value, len, 0];
                (libc::SYS_setsockopt, all)
            }
            Self::Socket(domain, kind) => {
                let all = [number(domain), number(kind), 0, 0, 0, 0];
                (libc::SYS_socket, all)
            }
            Self::Write(file, data) => {
                let (at, len) = bytes(data);
                (libc::SYS_write, [fd(file), at, len, 0, 0, 0])
            }
        }
    }

    /// Makes the call.
    fn make(self) -> Result<usize, Errno> {
        let (call, [a, b, c, d, e, f]) = self.parts();
        // SAFETY: each pointer among the arguments is NULL, or memory of the variant, which has the
        // length that the kernel gets, and which is borrowed exclusively if the kernel writes it.
        let result = unsafe { libc::syscall(call, a, b, c, d, e, f) };
        usize::try_from(result).map_err(|_| Errno::last())
    }

    /// Makes a call that returns a new descriptor.
    fn open(self) -> Result<OwnedFd, Errno> {
        let fd = c_int::try_from(self.make()?).map_err(|_| Errno::INVAL)?;
        // SAFETY: a new descriptor with no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Creates an eventfd, which is readable while its counter is not 0.
pub(super) fn eventfd() -> Result<OwnedFd, Errno> {
    Call::Eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).open()
}

/// Makes an eventfd readable.
pub(super) fn set_event(fd: &OwnedFd) {
    let _ = Call::Write(fd, &1_u64.to_ne_bytes()).make();
}

/// Resets an eventfd to 0.
pub(super) fn clear_event(fd: &OwnedFd) {
    let _ = Call::Read(fd, &mut [0; 8]).make();
}

/// Creates a UDP socket.
pub(super) fn udp_socket(domain: c_int) -> Result<OwnedFd, Errno> {
    Call::Socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC).open()
}

/// Sets or clears `O_NONBLOCK`.
pub(super) fn set_nonblocking(fd: RawFd, on: bool) -> Result<(), Errno> {
    let flags = descriptor_flags(fd, libc::F_GETFL, 0)?;
    let bit = libc::O_NONBLOCK;
    let flags = if on { flags | bit } else { flags & !bit };
    descriptor_flags(fd, libc::F_SETFL, flags)?;
    Ok(())
}

/// Waits until a descriptor is ready or the time is up. Returns the number of ready descriptors.
///
/// # Errors
/// `EINTR`.
pub(super) fn poll(fds: &mut [pollfd], limit: Option<Duration>) -> Result<usize, Errno> {
    let mut limit = limit.map(|limit| timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    Call::Poll(fds, limit.as_mut()).make()
}

/// Creates an epoll instance.
pub(super) fn epoll(flags: c_int) -> Result<OwnedFd, Errno> {
    Call::Epoll(flags).open()
}

/// epoll_ctl(2).
pub(super) fn epoll_control(
    set: &OwnedFd,
    operation: c_int,
    fd: RawFd,
    event: Option<&epoll_event>,
) -> Result<(), Errno> {
    Call::EpollControl(set, operation, fd, event).make()?;
    Ok(())
}

/// Returns at most `most` events of an epoll instance that are there now.
pub(super) fn epoll_ready(set: &OwnedFd, most: usize) -> Result<Vec<epoll_event>, Errno> {
    let none = epoll_event { events: 0, u64: 0 };
    let mut events = vec![none; most];
    let count = Call::EpollReady(set, &mut events).make()?;
    events.truncate(count);
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
    let len = crate::args::address_len(domain).ok_or(Errno(libc::EAFNOSUPPORT))?;
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
    Call::Connect(socket, named(address, len)).make()?;
    Ok(())
}

/// Returns the bytes of an address of this length.
fn named(address: &sockaddr_storage, len: usize) -> &[u8] {
    bytes_of(address).get(..len).unwrap_or_default()
}

/// The length of the room for any address.
#[expect(clippy::cast_possible_truncation, reason = "a few dozen bytes")]
const STORAGE_LEN: socklen_t = size_of::<sockaddr_storage>() as socklen_t;

/// getsockname(2).
pub(super) fn name(socket: &OwnedFd) -> Result<sockaddr_storage, Errno> {
    let (mut address, mut len): (sockaddr_storage, _) = (zeroed(), STORAGE_LEN);
    Call::Name(socket, (&mut address, &mut len)).make()?;
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
    let (mut from, mut len): (sockaddr_storage, _) = (zeroed(), STORAGE_LEN);
    let got = Call::ReceiveFrom(socket, bytes, (&mut from, &mut len)).make()?;
    Ok((got, from))
}

/// Sends a datagram.
pub(super) fn send_to(
    socket: &OwnedFd,
    bytes: &[u8],
    to: &sockaddr_storage,
    len: usize,
) -> Result<(), Errno> {
    Call::SendTo(socket, bytes, named(to, len)).make()?;
    Ok(())
}

/// bind(2).
pub(super) fn bind(socket: &OwnedFd, address: &sockaddr_storage, len: usize) -> Result<(), Errno> {
    Call::Bind(socket, named(address, len)).make()?;
    Ok(())
}

/// getsockopt(2).
pub(super) fn option(
    socket: &OwnedFd,
    option: (c_int, c_int),
    answer: Answer<'_>,
) -> Result<(), Errno> {
    Call::Option(socket, option, answer).make()?;
    Ok(())
}

/// setsockopt(2).
pub(super) fn set_option(
    socket: &OwnedFd,
    option: (c_int, c_int),
    value: &[u8],
) -> Result<(), Errno> {
    Call::SetOption(socket, option, value).make()?;
    Ok(())
}

/// `F_GETFD`, `F_SETFD`, `F_GETFL` and `F_SETFL`.
pub(super) fn descriptor_flags(fd: RawFd, command: c_int, argument: c_int) -> Result<c_int, Errno> {
    let flags = Call::Control(fd, command, argument).make()?;
    Ok(c_int::try_from(flags).unwrap_or(0))
}
