//! Netlink sockets: questions to the kernel, and its reports of changes.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};

use super::{receive, socket};

/// Opens a non-blocking netlink socket that reports changes of interfaces and their addresses.
pub(crate) fn route_socket() -> io::Result<OwnedFd> {
    let kind = Type::RAW.cloexec().nonblocking();
    let protocol = Protocol::from(libc::NETLINK_ROUTE);
    let socket = OwnedFd::from(socket(
        Domain::from(libc::AF_NETLINK),
        kind,
        Some(protocol),
    )?);
    // SAFETY: the structure consists of integers, for which zero is a value.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or(0);
    let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
    address.nl_groups = groups.cast_unsigned();
    let len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    // SAFETY: the address lives across the call, and `len` is its length.
    let bound =
        unsafe { libc::syscall(libc::SYS_bind, socket.as_raw_fd(), &raw const address, len) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// A netlink socket for questions, which the kernel answers during the call.
#[derive(Debug)]
pub(crate) struct Netlink(Socket);

impl Netlink {
    /// Opens a socket for a protocol, `NETLINK_*`.
    ///
    /// # Errors
    /// Those of socket(2).
    pub(crate) fn open(protocol: c_int) -> io::Result<Self> {
        let kind = Type::RAW.cloexec().nonblocking();
        let protocol = Protocol::from(protocol);
        socket(Domain::from(libc::AF_NETLINK), kind, Some(protocol)).map(Self)
    }

    /// Sends a request to the kernel, and returns the length of the answer.
    ///
    /// # Errors
    /// Errors of the socket. `WouldBlock` if there is no answer.
    pub(crate) fn ask(&self, request: &[u8], answer: &mut [u8]) -> io::Result<usize> {
        // An unconnected netlink socket sends to the kernel. SAFETY: `request` is readable for its
        // length, and there is no address.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.0.as_raw_fd(),
                request.as_ptr(),
                request.len(),
                0usize,
                std::ptr::null::<libc::sockaddr>(),
                0usize,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        self.receive(answer)
    }

    /// Receives the next part of an answer. Returns its length.
    ///
    /// # Errors
    /// As [`Netlink::ask`].
    pub(crate) fn receive(&self, answer: &mut [u8]) -> io::Result<usize> {
        receive(self.0.as_fd(), answer)
    }
}

/// Sends a request to the kernel's routing tables, and returns the answer.
///
/// # Errors
/// As [`Netlink::ask`].
pub(crate) fn ask_netlink(request: &[u8]) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; 1024];
    let len = Netlink::open(libc::NETLINK_ROUTE)?.ask(request, &mut answer)?;
    answer.truncate(len);
    Ok(answer)
}
