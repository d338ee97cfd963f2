//! Passing on a packet that reached the wrong process of this host.
//!
//! GRO merges datagrams of one 5-tuple whatever their destination QP, and an index beyond the
//! `SO_REUSEPORT` group is hashed, so a process may receive packets of another slot. It sends them
//! to its own address again, wrapped in a header that steers and that remembers the sender:
//!
//! ```text
//!  0      1      2      3       4        5          6..8          8..24            24..28    28..
//! 0xFF  magic0 magic1 version family  slot   source port   source address (v6)  scope id  packet
//! ```
//!
//! Opcode 0xFF is in the manufacturer range, and `magic0` has a TVer that no packet has, so that
//! nobody takes such a datagram for a packet. A wrapped packet is never wrapped again, and
//! unwrapping yields packets of the own slot only: there can be no loop.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::steering::Slot;

/// Bytes before the packet.
pub(super) const HEADER_LEN: usize = 28;

const MAGIC: [u8; 4] = [0xFF, 0x52, 0xF0, 1];
const FAMILY_V4: u8 = 4;
const FAMILY_V6: u8 = 6;
const SLOT_AT: usize = 5;

/// The header to put before a packet of `to_slot` that came from `source`.
///
/// `None` if the packet must not be forwarded: it is wrapped already, too short to have a
/// destination, or not for that slot.
pub(super) fn header(to_slot: Slot, source: SocketAddr, packet: &[u8]) -> Option<[u8; HEADER_LEN]> {
    if packet.starts_with(&MAGIC) || packet.get(SLOT_AT) != Some(&to_slot.get()) {
        return None;
    }
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&MAGIC);
    let (family, ip, scope_id) = match source {
        SocketAddr::V4(addr) => (FAMILY_V4, addr.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(addr) => (FAMILY_V6, *addr.ip(), addr.scope_id()),
    };
    header[4] = family;
    header[SLOT_AT] = to_slot.get();
    header[6..8].copy_from_slice(&source.port().to_be_bytes());
    header[8..24].copy_from_slice(&ip.octets());
    header[24..28].copy_from_slice(&scope_id.to_be_bytes());
    Some(header)
}

/// The original sender and the packet, if this is a wrapped packet of `slot`.
pub(super) fn unwrap(slot: Slot, datagram: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (header, packet) = datagram.split_first_chunk::<HEADER_LEN>()?;
    let for_us = header[SLOT_AT] == slot.get() && packet.get(SLOT_AT) == Some(&slot.get());
    if !header.starts_with(&MAGIC) || !for_us || packet.starts_with(&MAGIC) {
        return None;
    }
    let port = u16::from_be_bytes([header[6], header[7]]);
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&header[8..24]).ok()?);
    let scope_id = u32::from_be_bytes(<[u8; 4]>::try_from(&header[24..28]).ok()?);
    let source = match (header[4], ip.to_canonical()) {
        (FAMILY_V4, IpAddr::V4(ip)) => SocketAddrV4::new(ip, port).into(),
        (FAMILY_V6, IpAddr::V6(ip)) => SocketAddrV6::new(ip, port, 0, scope_id).into(),
        _ => return None,
    };
    Some((source, packet))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(slot: u8) -> Vec<u8> {
        let mut packet = vec![0x04; 20];
        packet[5] = slot;
        packet
    }

    fn wrap(slot: u8, source: SocketAddr, packet: &[u8]) -> Option<Vec<u8>> {
        let header = header(Slot::new(slot), source, packet)?;
        Some([&header[..], packet].concat())
    }

    #[test]
    fn sender_and_packet_survive() {
        for source in [
            "192.0.2.1:50000",
            "[2001:db8::1]:65535",
            "[fe80::2%3]:49152",
        ] {
            let source: SocketAddr = source.parse().unwrap();
            let wrapped = wrap(7, source, &packet(7)).unwrap();
            assert_eq!(wrapped[0], 0xFF);
            assert_eq!(wrapped[5], 7);
            assert_eq!(
                unwrap(Slot::new(7), &wrapped),
                Some((source, &packet(7)[..]))
            );
        }
    }

    #[test]
    fn a_packet_is_wrapped_once() {
        let source = "192.0.2.1:50000".parse().unwrap();
        let wrapped = wrap(7, source, &packet(7)).unwrap();
        assert_eq!(wrap(7, source, &wrapped), None);
        assert_eq!(wrap(8, source, &packet(7)), None);
        assert_eq!(wrap(0, source, &[0; 5]), None);
    }

    #[test]
    fn only_the_slot_it_is_for_unwraps() {
        let source = "192.0.2.1:50000".parse().unwrap();
        let mut wrapped = wrap(7, source, &packet(7)).unwrap();
        assert_eq!(unwrap(Slot::new(8), &wrapped), None);
        // The inner destination is another one than the header says.
        wrapped[HEADER_LEN + 5] = 8;
        assert_eq!(unwrap(Slot::new(7), &wrapped), None);
        assert_eq!(unwrap(Slot::new(7), &packet(7)), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_trouble(
            slot: u8,
            mut bytes in proptest::collection::vec(any::<u8>(), 0..64),
            magic: bool,
        ) {
            if magic && bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&MAGIC);
            }
            if let Some((_, packet)) = unwrap(Slot::new(slot), &bytes) {
                prop_assert_eq!(packet.get(5), Some(&slot));
            }
        }
    }
}
