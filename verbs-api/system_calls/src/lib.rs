//! System calls that no library of the program can take over.
//!
//! Libraries such as rdma-core's `librspreload`, which turns a program's sockets into rsockets,
//! define `socket`, `close`, `epoll_ctl` and so on. The dynamic linker would bind the calls of
//! Rocade's libraries to them as well, those of Rust's standard library included. Rocade's own
//! sockets would then be treated like the program's, or its calls run into Rocade's own stubs.
//!
//! So each library has these functions itself, hidden from other objects, and the linker binds its
//! calls to them ([`own_system_calls!`](crate::own_system_calls)). They differ from those of libc
//! in one point: they are no cancellation points. `ppoll` stays libc's for that reason.

use libc::{
    c_int, c_long, c_uint, c_void, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
};

/// Makes a system call with the given arguments, which sets `errno` on failure.
macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {{
        // SAFETY: a function of libc would make the same call. The kernel checks the pointers.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    }};
}

/// The result of a call that returns an `int`.
fn int(result: c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

/// The result of a call that returns a number of bytes.
fn size(result: c_long) -> ssize_t {
    ssize_t::try_from(result).unwrap_or(-1)
}

/// See socket(2).
pub extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    int(call!(SYS_socket, domain, kind, protocol))
}

/// See socketpair(2).
///
/// # Safety
/// As for socketpair(2).
pub unsafe extern "C" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    fds: *mut c_int,
) -> c_int {
    int(call!(SYS_socketpair, domain, kind, protocol, fds))
}

/// See bind(2).
///
/// # Safety
/// As for bind(2).
pub unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    int(call!(SYS_bind, fd, address, len))
}

/// See listen(2).
pub extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    int(call!(SYS_listen, fd, backlog))
}

/// See accept4(2).
///
/// # Safety
/// As for accept4(2).
pub unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    int(call!(SYS_accept4, fd, address, len, flags))
}

/// See connect(2).
///
/// # Safety
/// As for connect(2).
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    int(call!(SYS_connect, fd, address, len))
}

/// See shutdown(2).
pub extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    int(call!(SYS_shutdown, fd, how))
}

/// See getsockname(2).
///
/// # Safety
/// As for getsockname(2).
pub unsafe extern "C" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    int(call!(SYS_getsockname, fd, address, len))
}

/// See getpeername(2).
///
/// # Safety
/// As for getpeername(2).
pub unsafe extern "C" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    int(call!(SYS_getpeername, fd, address, len))
}

/// See getsockopt(2).
///
/// # Safety
/// As for getsockopt(2).
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    int(call!(SYS_getsockopt, fd, level, name, value, len))
}

/// See setsockopt(2).
///
/// # Safety
/// As for setsockopt(2).
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    int(call!(SYS_setsockopt, fd, level, name, value, len))
}

/// See recv(2).
///
/// # Safety
/// As for recv(2).
pub unsafe extern "C" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    let nowhere = std::ptr::null_mut::<c_void>();
    size(call!(
        SYS_recvfrom,
        fd,
        buffer,
        len,
        flags,
        nowhere,
        nowhere
    ))
}

/// See recvfrom(2).
///
/// # Safety
/// As for recvfrom(2).
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    size(call!(
        SYS_recvfrom,
        fd,
        buffer,
        len,
        flags,
        address,
        address_len
    ))
}

/// See recvmsg(2).
///
/// # Safety
/// As for recvmsg(2).
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    size(call!(SYS_recvmsg, fd, message, flags))
}

/// See send(2).
///
/// # Safety
/// As for send(2).
pub unsafe extern "C" fn send(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    let nowhere = std::ptr::null::<c_void>();
    size(call!(SYS_sendto, fd, buffer, len, flags, nowhere, 0))
}

/// See sendto(2).
///
/// # Safety
/// As for sendto(2).
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    size(call!(
        SYS_sendto,
        fd,
        buffer,
        len,
        flags,
        address,
        address_len
    ))
}

/// See sendmsg(2).
///
/// # Safety
/// As for sendmsg(2).
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    size(call!(SYS_sendmsg, fd, message, flags))
}

/// See read(2).
///
/// # Safety
/// As for read(2).
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    size(call!(SYS_read, fd, buffer, len))
}

/// See readv(2).
///
/// # Safety
/// As for readv(2).
pub unsafe extern "C" fn readv(fd: c_int, buffers: *const libc::iovec, count: c_int) -> ssize_t {
    size(call!(SYS_readv, fd, buffers, count))
}

/// See write(2).
///
/// # Safety
/// As for write(2).
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    size(call!(SYS_write, fd, buffer, len))
}

/// See writev(2).
///
/// # Safety
/// As for writev(2).
pub unsafe extern "C" fn writev(fd: c_int, buffers: *const libc::iovec, count: c_int) -> ssize_t {
    size(call!(SYS_writev, fd, buffers, count))
}

/// See close(2).
pub extern "C" fn close(fd: c_int) -> c_int {
    int(call!(SYS_close, fd))
}

/// See fcntl(2). The optional argument arrives in the register of a third one.
pub extern "C" fn fcntl(fd: c_int, command: c_int, argument: size_t) -> c_int {
    int(call!(SYS_fcntl, fd, command, argument))
}

/// See ioctl(2). The optional argument arrives in the register of a third one.
pub extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, argument: size_t) -> c_int {
    int(call!(SYS_ioctl, fd, request, argument))
}

/// See poll(2).
///
/// # Safety
/// As for poll(2).
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // Not every architecture has poll(2).
    let limit = (timeout_ms >= 0).then(|| libc::timespec {
        tv_sec: (timeout_ms / 1_000).into(),
        tv_nsec: (timeout_ms % 1_000 * 1_000_000).into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    int(call!(
        SYS_ppoll,
        fds,
        count,
        limit,
        std::ptr::null::<c_void>(),
        0usize
    ))
}

/// See pipe(2).
///
/// # Safety
/// As for pipe(2).
pub unsafe extern "C" fn pipe2(fds: *mut c_int, flags: c_int) -> c_int {
    int(call!(SYS_pipe2, fds, flags))
}

/// See eventfd(2).
pub extern "C" fn eventfd(count: c_uint, flags: c_int) -> c_int {
    int(call!(SYS_eventfd2, count, flags))
}

/// See epoll_create1(2).
pub extern "C" fn epoll_create1(flags: c_int) -> c_int {
    int(call!(SYS_epoll_create1, flags))
}

/// See epoll_ctl(2).
///
/// # Safety
/// As for epoll_ctl(2).
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    int(call!(SYS_epoll_ctl, epoll, operation, fd, event))
}

/// See epoll_wait(2).
///
/// # Safety
/// As for epoll_wait(2).
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    // Not every architecture has epoll_wait(2).
    let mask = std::ptr::null::<c_void>();
    int(call!(
        SYS_epoll_pwait,
        epoll,
        events,
        count,
        timeout_ms,
        mask,
        0usize
    ))
}

/// Gives the library that invokes it the functions of this module, by their names in libc. Not for
/// test builds, where the names would belong to the whole program.
#[macro_export]
macro_rules! own_system_calls {
    () => {
        $crate::own_system_calls!(
            accept4 bind close connect epoll_create1 epoll_ctl epoll_wait eventfd fcntl getpeername
            getsockname getsockopt ioctl listen pipe2 poll read readv recv recvfrom recvmsg send
            sendmsg sendto setsockopt shutdown socket socketpair write writev
        );
    };
    ($($name:ident)*) => {
        $(
            core::arch::global_asm!(
                ".text",
                ".p2align 4",
                concat!(".globl ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(".type ", stringify!($name), ", %function"),
                concat!(stringify!($name), ":"),
                $crate::jump_to!(),
                concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
                target = sym $crate::$name,
            );
        )*
    };
}

/// The instruction that jumps to `target`.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump_to {
    () => {
        "jmp {target}"
    };
}

/// The instruction that jumps to `target`.
#[cfg(target_arch = "aarch64")]
#[doc(hidden)]
#[macro_export]
macro_rules! jump_to {
    () => {
        "b {target}"
    };
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

    use super::*;

    /// Two connected stream sockets.
    fn pair() -> [OwnedFd; 2] {
        let mut fds = [-1; 2];
        // SAFETY: room for two descriptors.
        let made = unsafe { socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) };
        assert_eq!(made, 0);
        // SAFETY: these descriptors were just made.
        fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Receives up to 8 bytes.
    fn received(socket: &OwnedFd, flags: c_int) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0_u8; 8];
        // SAFETY: room for 8 bytes.
        let len = unsafe { recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), 8, flags) };
        bytes.truncate(usize::try_from(len).map_err(|_| io::Error::last_os_error())?);
        Ok(bytes)
    }

    fn is_readable(socket: &OwnedFd, timeout_ms: c_int) -> bool {
        let (fd, events) = (socket.as_raw_fd(), libc::POLLIN);
        let mut set = pollfd {
            fd,
            events,
            revents: 0,
        };
        // SAFETY: one entry.
        unsafe { poll(&raw mut set, 1, timeout_ms) == 1 && set.revents == libc::POLLIN }
    }

    #[test]
    fn they_do_what_those_of_libc_do() {
        let [a, b] = pair();
        assert!(!is_readable(&b, 0));
        // SAFETY: three readable bytes.
        let wrote = unsafe { write(a.as_raw_fd(), b"abc".as_ptr().cast(), 3) };
        assert_eq!(wrote, 3);
        assert!(is_readable(&b, -1));
        assert_eq!(received(&b, libc::MSG_PEEK).unwrap(), b"abc");
        let mut unread: c_int = 0;
        let place = (&raw mut unread).expose_provenance();
        assert_eq!(ioctl(b.as_raw_fd(), libc::FIONREAD, place), 0);
        assert_eq!(unread, 3);
        assert_eq!(received(&b, 0).unwrap(), b"abc");
    }

    #[test]
    fn they_set_errno() {
        let [a, b] = pair();
        let nonblocking = usize::try_from(libc::O_NONBLOCK).unwrap();
        assert_eq!(fcntl(a.as_raw_fd(), libc::F_SETFL, nonblocking), 0);
        let error = received(&a, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(close(-1), -1);
        let error = io::Error::last_os_error().raw_os_error();
        assert_eq!(error, Some(libc::EBADF));
        drop(b);
        assert_eq!(received(&a, 0).unwrap(), b"");
    }
}
