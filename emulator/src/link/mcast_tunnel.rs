//! Multicast tunnel: IPv6 groups on the loopback interface.
//!
//! Linux has no route for IPv6 groups on the loopback interface, and sending to one fails with
//! `ENETUNREACH`. The processes of a host therefore tunnel such packets through an IPv4 group on
//! the same interface. A header holds what IP and UDP would have carried:
//!
//! ```text
//!  0      1      2      3         4..6         6..8   8..24            24..40        40..
//! 0xFF  magic0 magic1 version   source port    zero   source address   group         packet
//! ```
//!
//! Traffic class and hop limit are those of the outer datagram. Several IPv6 groups share an IPv4
//! group, so the receiver checks the group in the header. The source in the header is no more
//! trusted than the source of any packet, which can be forged.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use socket2::SockAddr;

use super::forward::Arrival;
use super::sys::{self, SendOptions};
use super::{LinkError, LocalAddr, ROCE_PORT, socket};

/// Bytes before the packet.
const HEADER_LEN: usize = 40;
/// Begins with an opcode that no packet has, like the magic number of forwarded packets.
const MAGIC: [u8; 4] = [0xFF, 0x52, 0xF1, 1];
/// Index of the loopback interface in every network namespace.
const LOOPBACK_INTERFACE: u32 = 1;

/// Returns true if a group, joined or sent to from this address and interface, uses the tunnel.
pub(crate) fn is_tunneled(group: IpAddr, own: IpAddr, interface: u32) -> bool {
    group.is_ipv6() && (own.is_loopback() || interface == LOOPBACK_INTERFACE)
}

/// Returns the IPv4 group that carries an IPv6 group, in the site-local range (239.255/16).
fn tunnel_group_of(group: Ipv6Addr) -> Ipv4Addr {
    let folded = group.segments().iter().fold(0, |sum, part| sum ^ part);
    let [high, low] = folded.to_be_bytes();
    Ipv4Addr::new(239, 255, high, low)
}

/// Opens a socket that receives the tunnelled packets of a group.
pub(crate) fn open_group(group: Ipv6Addr) -> Result<OwnedFd, LinkError> {
    let tunnel = LocalAddr::from(IpAddr::from(tunnel_group_of(group)));
    let own = Ipv4Addr::LOCALHOST.into();
    socket::open_group(tunnel, own, LOOPBACK_INTERFACE).map(OwnedFd::from)
}

/// Returns the packet tunnelled to `group`. Any other datagram is forged or belongs to another
/// group.
pub(crate) fn unwrap(group: IpAddr, datagram: &[u8]) -> Arrival<'_> {
    let parse = || {
        let (header, packet) = datagram.split_first_chunk::<HEADER_LEN>()?;
        let (magic, rest) = header.split_first_chunk::<4>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let (_, rest) = rest.split_first_chunk::<2>()?;
        let (source, to) = rest.split_first_chunk::<16>()?;
        let source = Ipv6Addr::from(*source);
        let to: [u8; 16] = to.try_into().ok()?;
        let is_right = *magic == MAGIC && IpAddr::from(Ipv6Addr::from(to)) == group;
        let source = SocketAddrV6::new(source, u16::from_be_bytes(*port), 0, 0);
        (is_right && !source.ip().is_multicast()).then_some((SocketAddr::V6(source), packet))
    };
    parse().map_or(Arrival::Forged, |(source, packet)| {
        Arrival::Forwarded(source, packet, 0)
    })
}

/// Sends tunnelled packets.
#[derive(Debug)]
pub(crate) struct Tunnel {
    fd: OwnedFd,
}

impl Tunnel {
    /// Opens a socket on the loopback interface.
    pub(crate) fn open() -> io::Result<Self> {
        let local = LocalAddr::from(IpAddr::from(Ipv4Addr::LOCALHOST));
        let socket = socket::new_socket(local)?;
        socket::shrink_receive_buffer(socket.as_fd());
        crate::sys::bind(socket.as_fd(), &SockAddr::from(local.with_port(0)))?;
        Ok(Self { fd: socket.into() })
    }

    /// Sends a batch of segments, one datagram each.
    ///
    /// # Errors
    /// Errors of sendmsg(2) for the first segment. Later segments that fail count as lost packets.
    pub(crate) fn send(
        &self,
        (source, port): (Ipv6Addr, u16),
        group: Ipv6Addr,
        (traffic_class, hop_limit): (u8, u8),
        batch: &[u8],
        segment_len: usize,
    ) -> io::Result<()> {
        let to = SocketAddr::new(tunnel_group_of(group).into(), ROCE_PORT);
        let options = SendOptions {
            tos: (traffic_class != 0).then_some(traffic_class),
            hop_limit: Some(hop_limit),
            segment_len: None,
        };
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&MAGIC);
        header[4..6].copy_from_slice(&port.to_be_bytes());
        header[8..24].copy_from_slice(&source.octets());
        header[24..].copy_from_slice(&group.octets());
        for (index, segment) in batch.chunks(segment_len.max(1)).enumerate() {
            let datagram = [&header, segment].concat();
            match sys::send(self.fd.as_fd(), &to, &datagram, options) {
                Err(error) if index == 0 => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_tunneled_to_the_group_are_unwrapped() {
        let group: Ipv6Addr = "ff1e::7:9".parse().unwrap();
        let link = open_group(group).unwrap();
        let source = (Ipv6Addr::LOCALHOST, 0xC123);
        let tunnel = Tunnel::open().unwrap();
        tunnel.send(source, group, (0, 64), b"abcde", 3).unwrap();
        let mut received = Vec::new();
        let mut buffer = [0; 2000];
        while received.len() < 2 {
            if let Ok(part) = sys::receive(link.as_fd(), &mut buffer) {
                let len = part.segment_len.unwrap_or(part.len);
                received.extend(buffer[..part.len].chunks(len).map(<[u8]>::to_vec));
            }
        }
        for (datagram, packet) in received.iter().zip([&b"abc"[..], b"de"]) {
            let Arrival::Forwarded(from, inner, 0) = unwrap(group.into(), datagram) else {
                panic!("{datagram:?}");
            };
            assert_eq!(from, "[::1]:49443".parse().unwrap());
            assert_eq!(inner, packet);
        }
        // A different IPv6 group with the same IPv4 group, and an invalid datagram.
        let other: Ipv6Addr = "ff1e::9:7".parse().unwrap();
        assert_eq!(tunnel_group_of(other), tunnel_group_of(group));
        let forged =
            |group: Ipv6Addr, bytes: &[u8]| matches!(unwrap(group.into(), bytes), Arrival::Forged);
        assert!(forged(other, &received[0]));
        assert!(forged(group, &received[0][..HEADER_LEN - 1]));
        assert!(forged(group, &[]));
        for at in [0, 1, 2, 3, 39] {
            let mut damaged = received[0].clone();
            damaged[at] ^= 1;
            assert!(forged(group, &damaged), "byte {at}");
        }
        let mut from_group = received[0].clone();
        from_group[8] = 0xFF;
        assert!(forged(group, &from_group));
    }

    #[test]
    fn groups_of_the_loopback_interface_are_tunneled() {
        let [v4, v6, one, other]: [IpAddr; 4] =
            ["239.1.1.1", "ff1e::1", "::1", "fd00::1"].map(|ip| ip.parse().unwrap());
        assert!(!is_tunneled(v4, "127.0.0.1".parse().unwrap(), 1));
        assert!(is_tunneled(v6, one, 0));
        assert!(is_tunneled(v6, other, LOOPBACK_INTERFACE));
        assert!(!is_tunneled(v6, other, 2));
    }
}
