//! Socket options that std lacks.

use std::{
    fs, io,
    net::{IpAddr, Ipv6Addr, UdpSocket},
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
/// by the interface of the local address. Accepts IPv6 packets without a UDP checksum.
//= ENC-06 ENC-07
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<()> {
    match socket.local_addr()?.ip() {
        IpAddr::V4(local) => {
            set(
                socket,
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_DO,
            )?;
            // The value is an in_addr, which has the size of an int.
            let interface = c_int::from_ne_bytes(local.octets());
            set(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, interface)
        }
        IpAddr::V6(local) => {
            let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF);
            set(socket, level, name, interface_of(local))?;
            set(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)
        }
    }
}

/// Returns the index of the interface that has an address, or 0, which leaves the choice to the
/// system.
fn interface_of(address: Ipv6Addr) -> c_int {
    let wanted = format!("{:032x}", u128::from(address));
    // A line is the address, the index, and the prefix, scope and flags, then the name.
    let table = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut rest = table.lines().filter_map(|line| line.strip_prefix(&wanted));
    let index = rest.next().and_then(|rest| rest.split_whitespace().next());
    index.map_or(0, |index| c_int::from_str_radix(index, 16).unwrap_or(0))
}

/// Disables the UDP checksum of sent packets.
pub(super) fn omit_checksum(socket: &UdpSocket) -> io::Result<()> {
    if socket.local_addr()?.is_ipv4() {
        set(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
    } else {
        set(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_TX, 1)
    }
}
