//! rsockets: sockets that transfer data by RDMA.
//!
//! The crate `rocade-rsockets` implements the wire protocol. This module has the queue pairs, the
//! buffers and the calls. One thread (`service`) handles connection events of all sockets, so that
//! setup and teardown progress while the program is busy. The calling threads transfer the data.

pub(crate) mod accept;
mod address;
mod cm;
mod connect;
mod datagram;
mod endpoint;
pub(crate) mod epoll;
mod iomap;
mod iov;
mod memory;
mod options;
mod poll;
mod process;
mod queue;
mod service;
mod stream;
mod stream_qp;
mod sys;
mod wait;

use std::{
    ffi::{c_int, c_uint, c_void},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use libc::{fd_set, iovec, msghdr, pollfd, sockaddr, socklen_t, timeval};
use rocade_abi::AF_IB;
use rocade_rsockets::How;

use self::{
    datagram::DatagramSocket,
    iov::Cursor,
    options::{Options, SOL_RDMA},
    process::{Process, Socket, process},
    stream::{Flags, StreamSocket},
};
use crate::{
    devices,
    ffi::{Errno, number_call},
};

/// Returns the socket of a descriptor.
fn find(fd: c_int) -> Result<(&'static Process, Socket), Errno> {
    let process = process()?;
    let socket = process.socket(fd).ok_or(Errno(libc::EBADF))?;
    Ok((process, socket))
}

/// Returns the stream socket of a descriptor.
fn find_stream(fd: c_int) -> Result<(&'static Process, Arc<StreamSocket>), Errno> {
    match find(fd)? {
        (process, Socket::Stream(socket)) => Ok((process, socket)),
        (_, Socket::Datagram(_)) => Err(Errno(libc::EOPNOTSUPP)),
    }
}

/// Calls `f`, and returns 0, or -1 with errno set.
fn call(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    number(|| f().map(|()| 0))
}

/// Calls `f`, and returns a small number, or -1 with errno set.
fn number(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    let result = number_call(|| f().map(|number| number as isize));
    c_int::try_from(result).unwrap_or(-1)
}

/// Calls `f`, and returns a number of bytes, or -1 with errno set.
fn bytes(f: impl FnOnce() -> Result<usize, Errno>) -> isize {
    number_call(|| f().map(|bytes| isize::try_from(bytes).unwrap_or(isize::MAX)))
}

/// `rsocket`.
pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number(|| {
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let kind = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let is_stream = kind == libc::SOCK_STREAM;
        if !(matches!(domain, libc::AF_INET | libc::AF_INET6) || domain == AF_IB && is_stream) {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        // Opens the devices here, so that later calls open no sockets. A preloaded library that
        // redirects `socket` to `rsocket` exempts the internal sockets only during this call.
        if devices::all()?.is_empty() {
            return Err(Errno::NODEV);
        }
        let process = process()?;
        process.service()?;
        let options = Options::default();
        match (kind, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                let socket = Arc::new(StreamSocket::new(process.new_token(), domain, options));
                socket.nonblocking.store(nonblocking, Ordering::Relaxed);
                process.register(&socket);
                Ok(process.insert(Socket::Stream(socket), Some(sys::eventfd()?)))
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                let socket = Arc::new(DatagramSocket::new(domain, options)?);
                socket.nonblocking.store(nonblocking, Ordering::Relaxed);
                Ok(process.insert(Socket::Datagram(socket), None))
            }
            (libc::SOCK_STREAM | libc::SOCK_DGRAM, _) => Err(Errno(libc::EPROTONOSUPPORT)),
            _ => Err(Errno(libc::ESOCKTNOSUPPORT)),
        }
    })
}

/// `rbind`.
pub(crate) unsafe extern "C" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    call(|| {
        let (process, socket) = find(fd)?;
        // SAFETY: by contract readable for its length.
        let addr = unsafe { address::read(addr, len) }?;
        match socket {
            Socket::Stream(socket) => socket.bind(process, addr),
            Socket::Datagram(socket) => socket.bind(process, addr),
        }
    })
}

/// `rlisten`.
pub(crate) extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    call(|| {
        let (process, socket) = find_stream(fd)?;
        socket.listen(process, backlog)
    })
}

/// `rconnect`.
pub(crate) unsafe extern "C" fn rconnect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    call(|| {
        let (process, socket) = find(fd)?;
        // SAFETY: by contract readable for its length.
        let addr = unsafe { address::read(addr, len) }?;
        match socket {
            Socket::Stream(socket) => socket.connect(process, addr),
            Socket::Datagram(socket) => socket.connect(process, addr),
        }
    })
}

/// `rshutdown`.
pub(crate) extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    call(|| {
        let how = match how {
            libc::SHUT_RD => How::Read,
            libc::SHUT_WR => How::Write,
            libc::SHUT_RDWR => How::Both,
            _ => return Err(Errno::INVAL),
        };
        match find(fd)?.1 {
            Socket::Stream(socket) => socket.shutdown(how),
            Socket::Datagram(_) => Ok(()),
        }
    })
}

/// `rclose`.
pub(crate) extern "C" fn rclose(fd: c_int) -> c_int {
    call(|| process()?.close(fd))
}

/// Implements all receive calls.
///
/// # Safety
/// `addr` and `len` as for `rrecvfrom`.
unsafe fn receive(
    fd: c_int,
    mut to: Cursor,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<usize, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let flags = Flags {
        nonblocking: flags & libc::MSG_DONTWAIT != 0,
        wait_all: flags & libc::MSG_WAITALL != 0,
        peek: flags & libc::MSG_PEEK != 0,
    };
    let socket = find(fd)?.1;
    let domain = socket.domain();
    let (got, source) = match socket {
        Socket::Stream(socket) => (socket.recv(&mut to, flags)?, socket.peer()),
        Socket::Datagram(socket) => {
            let limit = socket.state.lock().options.recv_timeout;
            let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
            let nonblocking = flags.nonblocking || socket.is_nonblocking();
            let handle = Socket::Datagram(Arc::clone(&socket));
            loop {
                match socket.recv(&mut to, flags.peek) {
                    Err(Errno(libc::EAGAIN)) if !nonblocking => {
                        poll::wait_for(&handle, libc::POLLIN, deadline)?;
                    }
                    Ok((got, source)) => break (got, Some(source)),
                    Err(errno) => return Err(errno),
                }
            }
        }
    };
    if let Some(source) = source
        && !addr.is_null()
        && !len.is_null()
    {
        // SAFETY: by contract writable.
        unsafe { address::write(source, domain, addr, len) }?;
    }
    Ok(got)
}

/// Implements all send calls.
fn send(
    fd: c_int,
    mut from: Cursor,
    flags: c_int,
    to: Option<std::net::SocketAddr>,
) -> Result<usize, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let nonblocking = flags & libc::MSG_DONTWAIT != 0;
    let (process, socket) = find(fd)?;
    match socket {
        // As with TCP, a given address is ignored.
        Socket::Stream(socket) => socket.send(&mut from, nonblocking),
        Socket::Datagram(socket) => {
            let limit = socket.state.lock().options.send_timeout;
            let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
            let nonblocking = nonblocking || socket.is_nonblocking();
            let handle = Socket::Datagram(Arc::clone(&socket));
            loop {
                match socket.send(process, &mut from, to) {
                    Err(Errno(libc::EAGAIN)) if !nonblocking => {
                        poll::wait_for(&handle, libc::POLLOUT, deadline)?;
                    }
                    sent => return sent,
                }
            }
        }
    }
}

/// `rrecv`.
pub(crate) unsafe extern "C" fn rrecv(
    fd: c_int,
    to: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: same contract.
    unsafe {
        rrecvfrom(
            fd,
            to,
            len,
            flags,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    }
}

/// `rrecvfrom`.
pub(crate) unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    to: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    bytes(|| {
        // SAFETY: by contract writable.
        let to = unsafe { Cursor::one(to.cast(), len) }?;
        // SAFETY: by contract.
        unsafe { receive(fd, to, flags, addr, addr_len) }
    })
}

/// `rrecvmsg`, which returns no control messages.
pub(crate) unsafe extern "C" fn rrecvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> isize {
    bytes(|| {
        // SAFETY: by contract NULL or valid.
        let msg = unsafe { msg.as_mut() }.ok_or(Errno(libc::EFAULT))?;
        // SAFETY: by contract, and writable.
        let to = unsafe { Cursor::several(msg.msg_iov, msg.msg_iovlen) }?;
        let mut len = msg.msg_namelen;
        // SAFETY: by contract.
        let got = unsafe { receive(fd, to, flags, msg.msg_name.cast(), &raw mut len) }?;
        msg.msg_namelen = if msg.msg_name.is_null() { 0 } else { len };
        msg.msg_controllen = 0;
        msg.msg_flags = 0;
        Ok(got)
    })
}

/// `rread`.
pub(crate) unsafe extern "C" fn rread(fd: c_int, to: *mut c_void, len: usize) -> isize {
    // SAFETY: same contract.
    unsafe { rrecv(fd, to, len, 0) }
}

/// Converts the number of buffers of readv(2) and writev(2).
fn entry_count(count: c_int) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| Errno::INVAL)
}

/// `rreadv`.
pub(crate) unsafe extern "C" fn rreadv(fd: c_int, iov: *const iovec, count: c_int) -> isize {
    bytes(|| {
        // SAFETY: by contract, and writable.
        let to = unsafe { Cursor::several(iov, entry_count(count)?) }?;
        // SAFETY: no address.
        unsafe { receive(fd, to, 0, std::ptr::null_mut(), std::ptr::null_mut()) }
    })
}

/// `rsend`.
pub(crate) unsafe extern "C" fn rsend(
    fd: c_int,
    from: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    bytes(|| {
        // SAFETY: by contract readable.
        let from = unsafe { Cursor::one(from.cast(), len) }?;
        send(fd, from, flags, None)
    })
}

/// `rsendto`.
pub(crate) unsafe extern "C" fn rsendto(
    fd: c_int,
    from: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> isize {
    bytes(|| {
        // SAFETY: by contract readable.
        let from = unsafe { Cursor::one(from.cast(), len) }?;
        let to = if addr.is_null() {
            None
        } else {
            // SAFETY: by contract readable for its length.
            Some(unsafe { address::read(addr, addr_len) }?)
        };
        send(fd, from, flags, to)
    })
}

/// `rsendmsg`, which accepts no control messages.
pub(crate) unsafe extern "C" fn rsendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> isize {
    bytes(|| {
        // SAFETY: by contract NULL or valid.
        let msg = unsafe { msg.as_ref() }.ok_or(Errno(libc::EFAULT))?;
        if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // SAFETY: by contract, and readable.
        let from = unsafe { Cursor::several(msg.msg_iov, msg.msg_iovlen) }?;
        let to = if msg.msg_name.is_null() || msg.msg_namelen == 0 {
            None
        } else {
            // SAFETY: by contract readable for its length.
            Some(unsafe { address::read(msg.msg_name.cast(), msg.msg_namelen) }?)
        };
        send(fd, from, flags, to)
    })
}

/// `rwrite`.
pub(crate) unsafe extern "C" fn rwrite(fd: c_int, from: *const c_void, len: usize) -> isize {
    // SAFETY: same contract.
    unsafe { rsend(fd, from, len, 0) }
}

/// `rwritev`.
pub(crate) unsafe extern "C" fn rwritev(fd: c_int, iov: *const iovec, count: c_int) -> isize {
    bytes(|| {
        // SAFETY: by contract, and readable.
        let from = unsafe { Cursor::several(iov, entry_count(count)?) }?;
        send(fd, from, 0, None)
    })
}

/// `rpoll`.
pub(crate) unsafe extern "C" fn rpoll(
    fds: *mut pollfd,
    count: libc::nfds_t,
    limit: c_int,
) -> c_int {
    number(|| {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        let fds = if count == 0 {
            &mut []
        } else if fds.is_null() {
            return Err(Errno(libc::EFAULT));
        } else {
            // SAFETY: by contract as many entries.
            unsafe { std::slice::from_raw_parts_mut(fds, count) }
        };
        let limit = u64::try_from(limit).ok().map(Duration::from_millis);
        let ready = poll::poll(process()?, fds, limit)?;
        Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
    })
}

/// `rselect`.
pub(crate) unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    limit: *mut timeval,
) -> c_int {
    number(|| {
        // SAFETY: by contract NULL or valid.
        let limit = match unsafe { limit.as_ref() } {
            None => None,
            Some(limit) => {
                let seconds = u64::try_from(limit.tv_sec).map_err(|_| Errno::INVAL)?;
                let micros = u64::try_from(limit.tv_usec).map_err(|_| Errno::INVAL)?;
                Some(Duration::from_secs(seconds) + Duration::from_micros(micros))
            }
        };
        // SAFETY: by contract NULL or valid.
        let bits = unsafe { poll::select(process()?, count, [read, write, except], limit) }?;
        Ok(c_int::try_from(bits).unwrap_or(c_int::MAX))
    })
}

/// Returns the unspecified address of a family.
fn nowhere(domain: c_int) -> std::net::SocketAddr {
    use std::net::{Ipv4Addr, Ipv6Addr};
    if matches!(domain, libc::AF_INET6 | AF_IB) {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    }
}

/// `rgetpeername`.
pub(crate) unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    call(|| {
        let socket = find(fd)?.1;
        let peer = match &socket {
            Socket::Stream(socket) => socket.peer().ok_or(Errno(libc::ENOTCONN))?,
            Socket::Datagram(socket) => socket.peer_name()?,
        };
        // SAFETY: by contract writable.
        unsafe { address::write(peer, socket.domain(), addr, len) }
    })
}

/// `rgetsockname`.
pub(crate) unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    call(|| {
        let socket = find(fd)?.1;
        let own = match &socket {
            Socket::Stream(socket) => socket.local().unwrap_or_else(|| nowhere(socket.domain)),
            Socket::Datagram(socket) => socket.local()?,
        };
        // SAFETY: by contract writable.
        unsafe { address::write(own, socket.domain(), addr, len) }
    })
}

/// `rsetsockopt`.
pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    call(|| {
        let (_, socket) = find(fd)?;
        // SAFETY: by contract readable.
        let value = unsafe { options::value(value, len) }?;
        match socket {
            Socket::Stream(socket) => socket.set_option(level, name, value),
            Socket::Datagram(socket) => socket.set_option(level, name, value),
        }
    })
}

/// `rgetsockopt`.
pub(crate) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    call(|| {
        let found = match find(fd)?.1 {
            Socket::Stream(socket) => socket.option(level, name)?,
            Socket::Datagram(socket) => match level {
                SOL_RDMA => socket.state.lock().options.rdma(name)?,
                // SAFETY: same contract.
                _ => return unsafe { sys::option(socket.udp(), (level, name), value, len) },
            },
        };
        // SAFETY: by contract writable.
        unsafe { options::give(&found, value, len) }
    })
}

/// `rfcntl`. C passes the variadic argument, which only some commands have, like a third argument.
pub(crate) extern "C" fn rfcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    number(|| {
        let (_, socket) = find(fd)?;
        #[expect(clippy::cast_possible_truncation, reason = "C passes an int")]
        #[expect(clippy::cast_possible_wrap, reason = "C passes an int")]
        let argument = argument as c_uint as c_int;
        let nonblocking = argument & libc::O_NONBLOCK != 0;
        match (command, socket) {
            (libc::F_GETFL, Socket::Stream(socket)) => Ok(socket.flags()),
            (libc::F_GETFL, Socket::Datagram(socket)) => {
                let set = if socket.is_nonblocking() {
                    libc::O_NONBLOCK
                } else {
                    0
                };
                Ok(libc::O_RDWR | set)
            }
            (libc::F_SETFL, Socket::Stream(socket)) => {
                socket.set_flags(argument);
                Ok(0)
            }
            (libc::F_SETFL, Socket::Datagram(socket)) => {
                socket.nonblocking.store(nonblocking, Ordering::Relaxed);
                Ok(0)
            }
            (libc::F_GETFD | libc::F_SETFD, _) => sys::descriptor_flags(fd, command, argument),
            _ => Err(Errno::INVAL),
        }
    })
}

/// `riomap`.
pub(crate) unsafe extern "C" fn riomap(
    fd: c_int,
    start: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: libc::off_t,
) -> libc::off_t {
    let result = number_call(|| {
        let (_, socket) = find_stream(fd)?;
        // SAFETY: same contract.
        let at = unsafe { socket.map(start, len, prot, offset) }?;
        isize::try_from(at).map_err(|_| Errno::INVAL)
    });
    result as libc::off_t
}

/// `riounmap`.
pub(crate) extern "C" fn riounmap(fd: c_int, start: *mut c_void, len: usize) -> c_int {
    call(|| find_stream(fd)?.1.unmap(start, len))
}

/// `riowrite`.
pub(crate) unsafe extern "C" fn riowrite(
    fd: c_int,
    from: *const c_void,
    len: usize,
    offset: libc::off_t,
    flags: c_int,
) -> isize {
    bytes(|| {
        let (_, socket) = find_stream(fd)?;
        // SAFETY: by contract readable.
        let mut from = unsafe { Cursor::one(from.cast(), len) }?;
        let nonblocking = flags & libc::MSG_DONTWAIT != 0;
        socket.send_direct(&mut from, offset.cast_unsigned(), nonblocking)
    })
}
