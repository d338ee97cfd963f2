//! The system calls of the UDP link. All its `unsafe` code is in this file, whose functions are
//! safe to call with any argument.
//!
//! Uses raw system calls for sending and receiving. The functions of the C library are cancellation
//! points, and the callers hold locks.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, c_void, socklen_t};

use crate::sync::turn;

/// Space for the control messages of one datagram: at most four small ones.
const CONTROL_LEN: usize = 128;

/// A control message buffer, aligned as `cmsghdr` needs it.
#[repr(C, align(8))]
struct CmsgBuf([u8; CONTROL_LEN]);

/// The result of [`receive`]: a datagram, or a batch of datagrams merged by GRO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Number of bytes in the buffer.
    pub(crate) len: usize,
    /// Payload length of each merged datagram (the last may be shorter), or `None` for a single
    /// one.
    pub(crate) segment_len: Option<usize>,
    /// Source address and port.
    pub(crate) source: SocketAddr,
    /// IPv4 TOS or IPv6 traffic class, if the socket reports it.
    pub(crate) tos: Option<u8>,
    /// IPv4 TTL or IPv6 hop limit, if the socket reports it.
    pub(crate) hop_limit: Option<u8>,
    /// True if the datagram was longer than the buffer.
    pub(crate) truncated: bool,
}

/// Options of [`send`]: IP header fields and segment length. `None` selects the socket's default.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendOptions {
    /// IPv4 TOS or IPv6 traffic class.
    pub(crate) tos: Option<u8>,
    /// IPv4 TTL or IPv6 hop limit, 1 to 255.
    pub(crate) hop_limit: Option<u8>,
    /// Length of the datagrams into which the kernel segments the data (`UDP_SEGMENT`), 0 to send
    /// one datagram.
    pub(crate) segment_len: Option<u16>,
}

/// Sets a socket option whose value is an `int`.
pub(crate) fn set_int(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    set_option(fd, level, name, &value)
}

/// Attaches a classic BPF program that selects the socket of the fd's `SO_REUSEPORT` group.
pub(crate) fn attach_reuseport_cbpf(
    fd: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "BPF program too long"))?;
    let program = libc::sock_fprog {
        len,
        filter: program.as_ptr().cast_mut(),
    };
    set_option(
        fd,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_REUSEPORT_CBPF,
        &program,
    )
}

/// Returns the number of datagrams that a socket has dropped because its buffer was full. Wraps at
/// 2^32.
pub(crate) fn receive_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    /// From linux/sock_diag.h: the index of the drops, and the number of values up to it.
    const SK_MEMINFO_DROPS: usize = 8;
    const VALUES: usize = SK_MEMINFO_DROPS + 1;
    let mut values = [0u32; VALUES];
    let mut len = socklen_of::<[u32; VALUES]>();
    // SAFETY: `values` is writable for `len` bytes, and `len` a live socklen_t.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(result).map(|_| values[SK_MEMINFO_DROPS])
}

fn set_option<T>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is a live object of exactly the stated size. The kernel only reads it, and
    // through `sock_fprog::filter` the instructions, which the caller borrows for this call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast::<c_void>(),
            socklen_of::<T>(),
        )
    };
    check(result).map(|_| ())
}

/// Receives without blocking into `buf`.
///
/// # Errors
/// Errors of recvmsg(2). `WouldBlock` if there is nothing to receive.
#[inline]
pub(crate) fn receive(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Received> {
    let mut name = SockAddr::NONE;
    let mut control = MaybeUninit::<CmsgBuf>::uninit();
    let mut iov = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: msghdr is plain old data for which zero is a valid value.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_name = (&raw mut name).cast();
    msg.msg_namelen = socklen_of::<SockAddr>();
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = CONTROL_LEN as _;

    // SAFETY: every pointer in `msg` is to a live local or to `buf`, which is exclusively borrowed,
    // each with its true length.
    let received = unsafe {
        libc::syscall(
            libc::SYS_recvmsg,
            fd.as_raw_fd(),
            &raw mut msg,
            libc::MSG_DONTWAIT,
        )
    };
    let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;

    let source = socket_addr(&name, msg.msg_namelen)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "datagram without a source"))?;
    let mut meta = Received {
        len,
        segment_len: None,
        source,
        tos: None,
        hop_limit: None,
        truncated: msg.msg_flags & libc::MSG_TRUNC != 0,
    };
    read_control(&msg, &mut meta);
    Ok(meta)
}

/// Sends one datagram, or a batch of equal ones, from an unconnected socket without blocking.
///
/// # Errors
/// Errors of sendto(2) and sendmsg(2). `WouldBlock` if the socket's buffer is full.
#[inline]
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    to: &SocketAddr,
    data: &[u8],
    options: SendOptions,
) -> io::Result<usize> {
    if turn::is_dead() {
        return Ok(data.len());
    }
    let (name, name_len) = sockaddr(to);
    let mut control = CmsgBuf([0; CONTROL_LEN]);
    // SAFETY: msghdr is plain old data for which zero is a valid value.
    let mut msg: libc::msghdr = unsafe { mem::zeroed() };
    msg.msg_name = (&raw const name).cast_mut().cast();
    msg.msg_namelen = name_len;
    let mut iov = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;

    let mut writer = ControlWriter {
        buf: &mut control,
        len: 0,
    };
    if let Some(tos) = options.tos {
        match to {
            SocketAddr::V4(_) => writer.push(libc::IPPROTO_IP, libc::IP_TOS, c_int::from(tos)),
            SocketAddr::V6(_) => {
                writer.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, c_int::from(tos));
            }
        }
    }
    if let Some(limit) = options.hop_limit {
        match to {
            SocketAddr::V4(_) => writer.push(libc::IPPROTO_IP, libc::IP_TTL, c_int::from(limit)),
            SocketAddr::V6(_) => {
                writer.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, c_int::from(limit));
            }
        }
    }
    if let Some(segment_len) = options.segment_len {
        writer.push(libc::SOL_UDP, libc::UDP_SEGMENT, segment_len);
    }
    let control_len = writer.len;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if control_len == 0 {
        // SAFETY: `data` and `name` are readable for the lengths stated, and sendto only reads
        // them.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                fd.as_raw_fd(),
                data.as_ptr(),
                data.len(),
                flags,
                &raw const name,
                name_len,
            )
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error());
        turn::sent();
        return sent;
    }
    msg.msg_control = (&raw mut control).cast();
    msg.msg_controllen = control_len as _;

    // SAFETY: every pointer in `msg` is to a live local or to `data`, each with its true length,
    // and sendmsg only reads them.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const msg, flags) };
    let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error());
    turn::sent();
    sent
}

/// Appends control messages to a buffer.
struct ControlWriter<'a> {
    buf: &'a mut CmsgBuf,
    len: usize,
}

impl ControlWriter<'_> {
    /// Appends one message. The three that [`send`] writes fit easily. A message that does not fit
    /// is left out.
    fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        let data_len = u32::try_from(size_of::<T>()).unwrap_or(u32::MAX);
        // SAFETY: pure computations without access to memory.
        let (space, len) = unsafe { (libc::CMSG_SPACE(data_len), libc::CMSG_LEN(data_len)) };
        let space = space as usize;
        if self.len + space > CONTROL_LEN {
            debug_assert!(false, "control messages exceed their buffer");
            return;
        }
        let start = self.buf.0[self.len..].as_mut_ptr();
        let header = libc::cmsghdr {
            cmsg_len: len as _,
            cmsg_level: level,
            cmsg_type: kind,
        };
        // SAFETY: `space` bytes from `start` are inside the buffer (checked above). `start` is
        // aligned for cmsghdr, because the buffer is and CMSG_SPACE is a multiple of that
        // alignment.
        unsafe { start.cast::<libc::cmsghdr>().write(header) };
        // SAFETY: the data begins right behind the header, inside the same `space` bytes.
        unsafe {
            libc::CMSG_DATA(start.cast())
                .cast::<T>()
                .write_unaligned(value)
        };
        self.len += space;
    }
}

fn read_control(msg: &libc::msghdr, meta: &mut Received) {
    // SAFETY: `msg` was filled by recvmsg, so msg_control and msg_controllen describe the valid
    // control messages in a live buffer.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !cmsg.is_null() {
        // SAFETY: CMSG_FIRSTHDR/CMSG_NXTHDR return aligned pointers to complete headers.
        let header = unsafe { &*cmsg };
        // SAFETY: as above. Computes the address behind the header.
        let data = unsafe { libc::CMSG_DATA(cmsg) };
        let len = header.cmsg_len as usize - (data as usize - cmsg as usize);
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let value = read_value::<c_int>(data, len).unwrap_or(0);
                meta.segment_len = usize::try_from(value).ok().filter(|&n| n > 0);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                meta.tos = read_value::<u8>(data, len);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let value = read_value::<c_int>(data, len).unwrap_or(0);
                meta.tos = u8::try_from(value).ok();
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                let value = read_value::<c_int>(data, len).unwrap_or(0);
                meta.hop_limit = u8::try_from(value).ok();
            }
            _ => {}
        }
        // SAFETY: `cmsg` came from this `msg`.
        cmsg = unsafe { libc::CMSG_NXTHDR(msg, cmsg) };
    }
}

/// Reads an integer from a control message with `len` bytes of data.
fn read_value<T: Copy + Integer>(data: *const u8, len: usize) -> Option<T> {
    // SAFETY: `len` bytes at `data` are valid (checked against the size). T is an integer, so any
    // bit pattern is valid, and the read needs no alignment.
    (len >= size_of::<T>()).then(|| unsafe { data.cast::<T>().read_unaligned() })
}

/// Types for which every bit pattern is valid.
trait Integer {}
impl Integer for u8 {}
impl Integer for c_int {}

/// An IPv4 or IPv6 socket address.
#[repr(C)]
union SockAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SockAddr {
    /// The zero value, of the unspecified family.
    // SAFETY: zero is valid for both, which are plain data.
    const NONE: Self = unsafe { mem::zeroed() };
}

fn sockaddr(addr: &SocketAddr) -> (SockAddr, socklen_t) {
    match addr {
        SocketAddr::V4(addr) => {
            let v4 = libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(addr.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            (SockAddr { v4 }, socklen_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(addr) => {
            let v6 = libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: addr.ip().octets(),
                },
                sin6_scope_id: addr.scope_id(),
            };
            (SockAddr { v6 }, socklen_of::<libc::sockaddr_in6>())
        }
    }
}

fn socket_addr(name: &SockAddr, len: socklen_t) -> Option<SocketAddr> {
    if len < socklen_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: at least that much is initialised, and every bit pattern is valid.
    let v4 = unsafe { name.v4 };
    match c_int::from(v4.sin_family) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 if len >= socklen_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above, because `len` covers the larger address.
            let v6 = unsafe { name.v6 };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn family(number: c_int) -> libc::sa_family_t {
    // Address families are small numbers.
    libc::sa_family_t::try_from(number).unwrap_or(0)
}

fn socklen_of<T>() -> socklen_t {
    socklen_t::try_from(size_of::<T>()).unwrap_or(socklen_t::MAX)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_addresses_survive_the_kernels_form() {
        for text in ["127.0.0.2:4791", "[::1]:4791", "[fe80::1%7]:65535"] {
            let addr: SocketAddr = text.parse().unwrap();
            let (raw, len) = sockaddr(&addr);
            assert_eq!(socket_addr(&raw, len), Some(addr));
            assert_eq!(socket_addr(&raw, 4), None);
        }
    }
}
