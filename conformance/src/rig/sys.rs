//! Socket options that std lacks.

use std::{
    io,
    net::{IpAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd},
};

use libc::{c_int, socklen_t};

fn set(socket: &UdpSocket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = socklen_t::try_from(size_of::<c_int>()).map_err(io::Error::other)?;
    // SAFETY: the socket lends its open descriptor, and the value is a c_int that outlives the
    // call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            len,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets DF, so that sent IPv4 packets have Identification 0, which the ICRC covers. Sends to groups
/// by the interface of the local address. Also accepts IPv6 packets without a UDP checksum.
//= ENC-06 ENC-07
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<()> {
    if let IpAddr::V4(local) = socket.local_addr()?.ip() {
        set(
            socket,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        )?;
        // The value is an in_addr, which has the size of an int.
        let interface = c_int::from_ne_bytes(local.octets());
        set(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, interface)
    } else {
        set(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)
    }
}

/// Disables the UDP checksum of sent packets.
pub(super) fn omit_checksum(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
    } else {
        set(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_TX, 1)
    }
}
