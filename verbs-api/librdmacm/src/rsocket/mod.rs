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

use libc::{msghdr, pollfd, timeval};
use rocade_abi::AF_IB;
use rocade_rsockets::How;

pub(crate) use self::poll::FdSet;
use self::{
    datagram::DatagramSocket,
    iov::{Cursor, Source, Target},
    options::{Options, SOL_RDMA},
    process::{Process, Socket, process},
    stream::{Flags, StreamSocket},
};
use crate::{
    args::{Answer, Buffer, In, InOut, Places, Reads, Room, Scattered, Writes, member},
    devices,
    engine::Lent,
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
pub(crate) fn rbind(fd: c_int, addr: Buffer<'_>) -> c_int {
    call(|| {
        let (process, socket) = find(fd)?;
        let addr = address::read(addr)?;
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
pub(crate) fn rconnect(fd: c_int, addr: Buffer<'_>) -> c_int {
    call(|| {
        let (process, socket) = find(fd)?;
        let addr = address::read(addr)?;
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
fn receive(fd: c_int, mut to: Target<'_>, flags: c_int, addr: Answer<'_>) -> Result<usize, Errno> {
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
        && !addr.has_no_length()
    {
        address::write(source, domain, addr)?;
    }
    Ok(got)
}

/// Implements all send calls.
fn send(
    fd: c_int,
    mut from: Source<'_>,
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
pub(crate) fn rrecv(fd: c_int, to: Room<'_>, flags: c_int) -> isize {
    rrecvfrom(fd, to, flags, Answer::none())
}

/// `rrecvfrom`.
pub(crate) fn rrecvfrom(fd: c_int, to: Room<'_>, flags: c_int, addr: Answer<'_>) -> isize {
    bytes(|| receive(fd, Cursor::one(to)?, flags, addr))
}

/// `rrecvmsg`, which returns no control messages.
pub(crate) fn rrecvmsg(fd: c_int, msg: InOut<'_, msghdr>, flags: c_int) -> isize {
    bytes(|| {
        let (buffers, name) = msg.message().map_err(|_| Errno(libc::EFAULT))?;
        let got = receive(fd, Cursor::several(buffers)?, flags, name)?;
        if name.is_null() {
            name.set_len(0);
        }
        msg.set(member!(msghdr, msg_controllen), 0)?;
        msg.set(member!(msghdr, msg_flags), 0)?;
        Ok(got)
    })
}

/// `rread`.
pub(crate) fn rread(fd: c_int, to: Room<'_>) -> isize {
    rrecv(fd, to, 0)
}

/// `rreadv`.
pub(crate) fn rreadv(fd: c_int, buffers: Scattered<'_, Writes>) -> isize {
    bytes(|| receive(fd, Cursor::several(buffers)?, 0, Answer::none()))
}

/// `rsend`.
pub(crate) fn rsend(fd: c_int, from: Buffer<'_>, flags: c_int) -> isize {
    bytes(|| send(fd, Cursor::one(from)?, flags, None))
}

/// `rsendto`.
pub(crate) fn rsendto(fd: c_int, from: Buffer<'_>, flags: c_int, addr: Buffer<'_>) -> isize {
    bytes(|| {
        let from = Cursor::one(from)?;
        let to = if addr.is_null() {
            None
        } else {
            Some(address::read(addr)?)
        };
        send(fd, from, flags, to)
    })
}

/// `rsendmsg`, which accepts no control messages.
pub(crate) fn rsendmsg(fd: c_int, msg: In<'_, msghdr>, flags: c_int) -> isize {
    bytes(|| {
        let (msg, buffers, name) = msg.message().map_err(|_| Errno(libc::EFAULT))?;
        if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let from = Cursor::several(buffers)?;
        let to = if name.is_null() || name.len() == 0 {
            None
        } else {
            Some(address::read(name)?)
        };
        send(fd, from, flags, to)
    })
}

/// `rwrite`.
pub(crate) fn rwrite(fd: c_int, from: Buffer<'_>) -> isize {
    rsend(fd, from, 0)
}

/// `rwritev`.
pub(crate) fn rwritev(fd: c_int, buffers: Scattered<'_, Reads>) -> isize {
    bytes(|| send(fd, Cursor::several(buffers)?, 0, None))
}

/// `rpoll`.
pub(crate) fn rpoll(fds: Places<'_, pollfd>, limit: c_int) -> c_int {
    number(|| {
        if fds.is_null() && fds.len() > 0 {
            return Err(Errno(libc::EFAULT));
        }
        let places = (0..fds.len()).map(|index| fds.at(index));
        let entries = places.clone().map(|place| Ok(*place.read()?));
        let mut entries = entries.collect::<Result<Vec<pollfd>, Errno>>()?;
        let limit = u64::try_from(limit).ok().map(Duration::from_millis);
        let ready = poll::poll(process()?, &mut entries, limit)?;
        for (place, entry) in places.zip(&entries) {
            place.set(member!(pollfd, revents), entry.revents)?;
        }
        Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
    })
}

/// `rselect`.
pub(crate) fn rselect(
    count: c_int,
    read: InOut<'_, FdSet>,
    write: InOut<'_, FdSet>,
    except: InOut<'_, FdSet>,
    limit: In<'_, timeval>,
) -> c_int {
    number(|| {
        let limit = match limit.optional() {
            None => None,
            Some(limit) => {
                let seconds = u64::try_from(limit.tv_sec).map_err(|_| Errno::INVAL)?;
                let micros = u64::try_from(limit.tv_usec).map_err(|_| Errno::INVAL)?;
                Some(Duration::from_secs(seconds) + Duration::from_micros(micros))
            }
        };
        let bits = poll::select(process()?, count, [read, write, except], limit)?;
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
pub(crate) fn rgetpeername(fd: c_int, addr: Answer<'_>) -> c_int {
    call(|| {
        let socket = find(fd)?.1;
        let peer = match &socket {
            Socket::Stream(socket) => socket.peer().ok_or(Errno(libc::ENOTCONN))?,
            Socket::Datagram(socket) => socket.peer_name()?,
        };
        address::write(peer, socket.domain(), addr)
    })
}

/// `rgetsockname`.
pub(crate) fn rgetsockname(fd: c_int, addr: Answer<'_>) -> c_int {
    call(|| {
        let socket = find(fd)?.1;
        let own = match &socket {
            Socket::Stream(socket) => socket.local().unwrap_or_else(|| nowhere(socket.domain)),
            Socket::Datagram(socket) => socket.local()?,
        };
        address::write(own, socket.domain(), addr)
    })
}

/// `rsetsockopt`.
pub(crate) fn rsetsockopt(fd: c_int, level: c_int, name: c_int, value: Buffer<'_>) -> c_int {
    call(|| {
        let (_, socket) = find(fd)?;
        let value = options::value(value)?;
        match socket {
            Socket::Stream(socket) => socket.set_option(level, name, &value),
            Socket::Datagram(socket) => socket.set_option(level, name, &value),
        }
    })
}

/// `rgetsockopt`.
pub(crate) fn rgetsockopt(fd: c_int, level: c_int, name: c_int, value: Answer<'_>) -> c_int {
    call(|| {
        let found = match find(fd)?.1 {
            Socket::Stream(socket) => socket.option(level, name)?,
            Socket::Datagram(socket) => match level {
                SOL_RDMA => socket.state.lock().options.rdma(name)?,
                _ => return sys::option(socket.udp(), (level, name), value),
            },
        };
        options::give(&found, value)
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
pub(crate) fn riomap(
    fd: c_int,
    range: Lent,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: libc::off_t,
) -> libc::off_t {
    let result = number_call(|| {
        let (_, socket) = find_stream(fd)?;
        let at = socket.map(range, len, prot, offset)?;
        isize::try_from(at).map_err(|_| Errno::INVAL)
    });
    result as libc::off_t
}

/// `riounmap`.
pub(crate) extern "C" fn riounmap(fd: c_int, start: *mut c_void, len: usize) -> c_int {
    call(|| find_stream(fd)?.1.unmap(start, len))
}

/// `riowrite`.
pub(crate) fn riowrite(fd: c_int, from: Buffer<'_>, offset: libc::off_t, flags: c_int) -> isize {
    bytes(|| {
        let (_, socket) = find_stream(fd)?;
        let mut from = Cursor::one(from)?;
        let nonblocking = flags & libc::MSG_DONTWAIT != 0;
        socket.send_direct(&mut from, offset.cast_unsigned(), nonblocking)
    })
}
