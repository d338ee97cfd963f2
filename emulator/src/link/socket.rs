//! Creates receive sockets (also for the broker's groups) and send sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use libc::c_int;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, SockRef, Socket, Type};

use super::{LinkError, LocalAddr, ROCE_PORT, socket_owner, sys};
use crate::failure::{NO_ADDRESS, named};
use crate::sys::bind;

/// Requested receive buffer size. An unprivileged process gets `net.core.rmem_max` at most.
const RECEIVE_BUFFER_BYTES: c_int = 8 << 20;
/// Requested send buffer size. An unprivileged process gets `net.core.wmem_max` at most.
const SEND_BUFFER_BYTES: c_int = 8 << 20;

/// Sharing of a receive socket's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// The socket has the port exclusively.
    Exclusive,
    /// The socket is a member of a `SO_REUSEPORT` group.
    ReusePort,
}

/// Opens a socket bound to port 4791 of the address, set up by [`configure_receive`].
pub(crate) fn open_receive(local: LocalAddr, sharing: Sharing) -> Result<Socket, LinkError> {
    let unusable = local.ip().is_unspecified()
        || local.ip().is_multicast()
        || (super::is_link_local(local.ip()) && local.scope_id() == 0);
    if unusable {
        return Err(LinkError::Unusable { local });
    }
    let failed = |failure| {
        move |source| LinkError::System {
            local,
            failure,
            source,
        }
    };
    let socket = new_socket(local).map_err(failed("failed to create a socket"))?;
    if sharing == Sharing::ReusePort {
        socket
            .set_reuse_port(true)
            .map_err(failed("failed to set SO_REUSEPORT"))?;
    }
    configure_receive(socket.as_fd(), local);
    bind(socket.as_fd(), &SockAddr::from(local.with_port(ROCE_PORT))).map_err(
        |source| match source.raw_os_error() {
            Some(libc::EADDRINUSE) => LinkError::InUse {
                local,
                owner: socket_owner::find(local),
            },
            Some(libc::EADDRNOTAVAIL | libc::ENODEV) => LinkError::NotLocal { local },
            _ => LinkError::System {
                local,
                failure: "failed to bind UDP port 4791",
                source,
            },
        },
    )?;
    Ok(socket)
}

/// Opens a socket bound to port 4791 of a multicast group, a member of the group on one interface.
/// It receives only the group's packets on that interface. Other processes may open the same group.
pub(crate) fn open_group(
    group: LocalAddr,
    own: IpAddr,
    interface: u32,
) -> Result<Socket, LinkError> {
    let failed = |failure| {
        move |source| LinkError::System {
            local: group,
            failure,
            source,
        }
    };
    let socket = new_socket(group).map_err(failed("failed to create a socket"))?;
    socket
        .set_reuse_address(true)
        .map_err(failed("failed to set SO_REUSEADDR"))?;
    configure_receive(socket.as_fd(), group);
    report_headers(socket.as_fd(), group)
        .map_err(failed("failed to enable reporting of IP header fields"))?;
    let mut address = group.with_port(ROCE_PORT);
    if let SocketAddr::V6(address) = &mut address {
        // Groups of some scopes require an interface.
        address.set_scope_id(interface);
    }
    bind(socket.as_fd(), &SockAddr::from(address))
        .map_err(failed("failed to bind UDP port 4791"))?;
    let joined = match (group.ip(), own) {
        (IpAddr::V4(group), IpAddr::V4(own)) => {
            let interface = match interface {
                0 => InterfaceIndexOrAddress::Address(own),
                index => InterfaceIndexOrAddress::Index(index),
            };
            socket
                .set_multicast_all_v4(false)
                .and_then(|()| socket.join_multicast_v4_n(&group, &interface))
        }
        (IpAddr::V6(group), _) => socket
            .set_multicast_all_v6(false)
            .and_then(|()| socket.join_multicast_v6(&group, interface)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    joined.map_err(failed("failed to join a multicast group"))?;
    Ok(socket)
}

/// Sets the interface by which a send socket of `local` sends to groups.
pub(crate) fn set_multicast(
    fd: BorrowedFd<'_>,
    local: LocalAddr,
    interface: u32,
) -> io::Result<()> {
    match local.ip() {
        // The interface is that of the address the socket is bound to.
        IpAddr::V4(_) => Ok(()),
        IpAddr::V6(_) => SockRef::from(&fd).set_multicast_if_v6(interface),
    }
}

/// Enables GRO and requests a large buffer. Ignores options that the system refuses. Without GRO,
/// each datagram is received individually.
pub(crate) fn configure_receive(fd: BorrowedFd<'_>, local: LocalAddr) {
    log_unsupported("UDP_GRO", sys::set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1));
    if local.ip().is_ipv6() {
        //= ENC-06
        let result = sys::set_int(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1);
        log_unsupported("UDP_NO_CHECK6_RX", result);
    }
    set_receive_buffer(fd, RECEIVE_BUFFER_BYTES);
}

/// Logs the failure of an optional socket option.
fn log_unsupported(option: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(option, %error, "failed to set an optional socket option");
    }
}

/// Enables or disables reporting of the TOS or traffic class, which takes 0.1 µs per receive.
pub(crate) fn set_receive_tos(fd: BorrowedFd<'_>, local: LocalAddr, on: bool) -> io::Result<()> {
    let (level, name) = match local.ip() {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    };
    sys::set_int(fd, level, name, c_int::from(on))
}

/// Enables reporting of traffic class and hop limit, which UD receivers get from the IP header.
pub(crate) fn report_headers(fd: BorrowedFd<'_>, local: LocalAddr) -> io::Result<()> {
    set_receive_tos(fd, local, true)?;
    let (level, name) = match local.ip() {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTTL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    };
    sys::set_int(fd, level, name, 1)
}

/// Requests a receive buffer of this many bytes, beyond the system's limit if privileged.
fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: c_int) {
    let result = sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes));
    log_unsupported("SO_RCVBUF", result);
}

/// Restores the usual large receive buffer after [`shrink_receive_buffer`].
pub(crate) fn grow_receive_buffer(fd: BorrowedFd<'_>) {
    set_receive_buffer(fd, RECEIVE_BUFFER_BYTES);
}

/// Requests the smallest receive buffer, for a socket without a reader.
pub(crate) fn shrink_receive_buffer(fd: BorrowedFd<'_>) {
    let result = sys::set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 1);
    log_unsupported("SO_RCVBUF", result);
}

/// Discards the datagrams queued on a receive socket. Returns their number.
///
/// Bounded, so that a fast sender cannot keep this loop running.
pub(crate) fn discard_received(fd: BorrowedFd<'_>) -> usize {
    const LIMIT: usize = 1 << 16;
    let mut byte = [0; 1];
    (0..LIMIT)
        .take_while(|_| sys::receive(fd, &mut byte).is_ok())
        .count()
}

/// Opens a send socket of the address with this source port, unconnected and without fragmentation.
/// Sets the TTL or hop limit, unless `None` selects the kernel's default.
///
/// The socket must stay unconnected. Only then is the IPv4 Identification 0 (or the index of the
/// GSO segment), on which the ICRC of the packets relies.
//= ENC-07
pub(crate) fn open_send(local: LocalAddr, port: u16, hop_limit: Option<u8>) -> io::Result<Socket> {
    let socket = new_socket(local).map_err(named("failed to create a UDP socket"))?;
    let fd = socket.as_fd();
    forbid_fragments(fd, local).map_err(named(
        "failed to forbid fragmentation on a UDP socket (setsockopt)",
    ))?;
    let result = sys::set_int(
        fd,
        libc::SOL_SOCKET,
        libc::SO_SNDBUFFORCE,
        SEND_BUFFER_BYTES,
    )
    .or_else(|_| sys::set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES));
    log_unsupported("SO_SNDBUF", result);
    let limited = match (local.ip(), hop_limit) {
        (_, None) => Ok(()),
        (IpAddr::V4(_), Some(limit)) => socket.set_ttl_v4(limit.into()),
        (IpAddr::V6(_), Some(limit)) => socket.set_unicast_hops_v6(limit.into()),
    };
    limited.map_err(named(
        "failed to set the hop limit of a UDP socket (setsockopt)",
    ))?;
    // The socket has no reader, so datagrams to its port must not pile up.
    shrink_receive_buffer(fd);
    bind(socket.as_fd(), &SockAddr::from(local.with_port(port)))
        .map_err(named("failed to bind a UDP socket"))?;
    Ok(socket)
}

fn forbid_fragments(fd: BorrowedFd<'_>, local: LocalAddr) -> io::Result<()> {
    match local.ip() {
        IpAddr::V4(_) => {
            let dont_fragment = libc::IP_PMTUDISC_DO;
            sys::set_int(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, dont_fragment)
        }
        IpAddr::V6(_) => {
            let dont_fragment = libc::IPV6_PMTUDISC_DO;
            sys::set_int(
                fd,
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                dont_fragment,
            )?;
            let result = sys::set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1);
            without_option("IPV6_DONTFRAG", result)
        }
    }
}

/// Accepts that the system does not know an option, as emulated systems may not. Without
/// `IPV6_DONTFRAG`, packets that are longer than the link's MTU are sent as fragments.
fn without_option(option: &str, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            log_unsupported(option, Err(error));
            Ok(())
        }
        result => result,
    }
}

/// Returns the kind of a receive socket of a shared address, or `None` for any other fd.
///
/// # Errors
/// Errors of getsockname(2) other than that the fd is no socket, such as a refusal of the system.
pub(crate) fn kind_of(fd: BorrowedFd<'_>, local: LocalAddr) -> io::Result<Option<ReceiveKind>> {
    let socket = SockRef::from(&fd);
    let bound = match socket.local_addr() {
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => return Ok(None),
        bound => bound.map_err(named(NO_ADDRESS))?.as_socket(),
    };
    let is_of_local = |bound: &SocketAddr| LocalAddr::from(*bound) == local;
    let is_datagram = socket.r#type().is_ok_and(|kind| kind == Type::DGRAM);
    let port = bound.filter(is_of_local).filter(|_| is_datagram);
    Ok(match port.map_or(0, |bound| bound.port()) {
        0 => None,
        ROCE_PORT if socket.reuse_port().unwrap_or(false) => Some(ReceiveKind::Group),
        ROCE_PORT => Some(ReceiveKind::Alone),
        port => Some(ReceiveKind::Relayed(port)),
    })
}

/// Returns the port that a socket is bound to.
pub(crate) fn port_of(socket: &Socket) -> io::Result<u16> {
    let source = socket.local_addr().map_err(named(NO_ADDRESS))?.as_socket();
    Ok(source.ok_or(io::ErrorKind::InvalidInput)?.port())
}

/// The kind of a receive socket of a shared address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveKind {
    /// A member of the `SO_REUSEPORT` group of port 4791.
    Group,
    /// Bound to port 4791, in no group.
    Alone,
    /// Bound to this other port, to which the broker forwards packets.
    Relayed(u16),
}

/// Opens a socket for a process to which the broker forwards packets, on any port of the address.
pub(crate) fn open_relayed(local: LocalAddr) -> io::Result<Socket> {
    let socket = new_socket(local)?;
    configure_receive(socket.as_fd(), local);
    bind(socket.as_fd(), &SockAddr::from(local.with_port(0)))?;
    Ok(socket)
}

/// Creates a UDP socket for addresses of this IP version.
pub(crate) fn new_socket(local: LocalAddr) -> io::Result<Socket> {
    let domain = match local.ip() {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    };
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = crate::sys::socket(domain, kind, Some(Protocol::UDP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unknown_option_is_accepted() {
        let error = |code| Err(io::Error::from_raw_os_error(code));
        assert!(without_option("X", Ok(())).is_ok());
        assert!(without_option("X", error(libc::ENOPROTOOPT)).is_ok());
        let refused = without_option("X", error(libc::EPERM)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    }
}
