//! Passing on a packet that reached the wrong process of this host.
//!
//! GRO merges datagrams of one 5-tuple whatever their destination QP, and an index beyond the
//! `SO_REUSEPORT` group is hashed, so a process may receive packets of another slot. It sends them
//! to its own address again, wrapped in a header that steers and that remembers the sender:
//!
//! ```text
//!  0      1      2      3       4        5          6..8          8..24            24..28    28..44  44..
//! 0xFF  magic0 magic1 version family  slot   source port   source address (v6)  scope id    key   packet
//! ```
//!
//! Opcode 0xFF is in the manufacturer range, and `magic0` has a TVer that no packet has, so that
//! nobody takes such a datagram for a packet. A wrapped packet is never wrapped again, and
//! unwrapping yields packets of the own slot only: there can be no loop.
//!
//! The wrapper says who the sender is, and anybody can send datagrams: so it carries the
//! [`ForwardKey`] of the address, which only the processes that share the address have.

use core::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::random;
use crate::steering::Slot;

/// Bytes before the packet.
pub(crate) const HEADER_LEN: usize = KEY_AT + KEY_LEN;

/// Bytes of a key.
pub(crate) const KEY_LEN: usize = 16;

const MAGIC: [u8; 4] = [0xFF, 0x52, 0xF0, 2];
const FAMILY_V4: u8 = 4;
const FAMILY_V6: u8 = 6;
const SLOT_AT: usize = 5;
const KEY_AT: usize = 28;

/// The secret of the processes that share an address: 128 random bits, made with the address's
/// first socket and handed on with the sockets.
#[derive(Clone, Copy)]
pub struct ForwardKey([u8; KEY_LEN]);

impl ForwardKey {
    /// A new one.
    pub(crate) fn random() -> Self {
        Self(random::bytes())
    }

    pub(crate) const fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn bytes(&self) -> [u8; KEY_LEN] {
        self.0
    }
}

impl PartialEq for ForwardKey {
    /// In a time that says nothing of where they differ.
    fn eq(&self, other: &Self) -> bool {
        let differing = self
            .0
            .iter()
            .zip(&other.0)
            .fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

impl Eq for ForwardKey {}

impl fmt::Debug for ForwardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A secret stays out of logs.
        f.write_str("ForwardKey(..)")
    }
}

/// What a received datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<'d> {
    /// As it came from the network.
    Direct,
    /// A packet for our slot that another process on this address has passed on: its original
    /// sender, and the packet.
    Forwarded(SocketAddr, &'d [u8]),
    /// It pretends to be one, and is not: to be dropped.
    Forged,
}

/// Does it begin as a wrapped packet does, of whatever version?
#[inline]
pub(crate) fn is_wrapped(datagram: &[u8]) -> bool {
    datagram.starts_with(&MAGIC[..3])
}

/// The header to put before a packet of `to_slot` that came from `source`.
///
/// `None` if the packet must not be forwarded: it is wrapped already, too short to have a
/// destination, or neither for that slot nor for QP 1, which all slots share.
pub(crate) fn header(
    key: &ForwardKey,
    to_slot: Slot,
    source: SocketAddr,
    packet: &[u8],
) -> Option<[u8; HEADER_LEN]> {
    if is_wrapped(packet) || !may_reach(packet, to_slot) {
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
    header[KEY_AT..].copy_from_slice(&key.0);
    Some(header)
}

/// Is a packet for this slot, or for QP 1? Whom that one is for is in its payload.
fn may_reach(packet: &[u8], slot: Slot) -> bool {
    let dest = packet.get(SLOT_AT..SLOT_AT + 3);
    dest.is_some_and(|dest| dest[0] == slot.get() || dest == [0, 0, 1])
}

/// The original sender and the packet, if this is a packet of `slot` that somebody has wrapped who
/// has the key.
pub(crate) fn unwrap<'d>(
    key: &ForwardKey,
    slot: Slot,
    datagram: &'d [u8],
) -> Option<(SocketAddr, &'d [u8])> {
    let (header, packet) = datagram.split_first_chunk::<HEADER_LEN>()?;
    let (_, proof) = header.split_last_chunk::<KEY_LEN>()?;
    if !header.starts_with(&MAGIC) || ForwardKey(*proof) != *key {
        return None;
    }
    let for_us = header[SLOT_AT] == slot.get() && may_reach(packet, slot);
    if !for_us || is_wrapped(packet) {
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

    const KEY: ForwardKey = ForwardKey(*b"0123456789abcdef");

    fn wrap(slot: u8, source: SocketAddr, packet: &[u8]) -> Option<Vec<u8>> {
        let header = header(&KEY, Slot::new(slot), source, packet)?;
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
                unwrap(&KEY, Slot::new(7), &wrapped),
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
        assert_eq!(unwrap(&KEY, Slot::new(8), &wrapped), None);
        // The inner destination is another one than the header says.
        wrapped[HEADER_LEN + 5] = 8;
        assert_eq!(unwrap(&KEY, Slot::new(7), &wrapped), None);
        assert_eq!(unwrap(&KEY, Slot::new(7), &packet(7)), None);
    }

    #[test]
    fn qp_1_is_in_all_slots() {
        let source = "192.0.2.1:50000".parse().unwrap();
        let mut gsi = packet(0);
        gsi[5..8].copy_from_slice(&[0, 0, 1]);
        let wrapped = wrap(7, source, &gsi).unwrap();
        assert_eq!(wrapped[5], 7);
        assert_eq!(
            unwrap(&KEY, Slot::new(7), &wrapped),
            Some((source, &gsi[..]))
        );
        gsi[7] = 2;
        assert_eq!(wrap(7, source, &gsi), None);
    }

    #[test]
    fn who_has_not_the_key_cannot_wrap() {
        let source = "192.0.2.1:50000".parse().unwrap();
        let wrapped = wrap(7, source, &packet(7)).unwrap();
        for at in KEY_AT..HEADER_LEN {
            let mut forged = wrapped.clone();
            forged[at] ^= 0x10;
            assert_eq!(unwrap(&KEY, Slot::new(7), &forged), None, "byte {at}");
        }
        let others = ForwardKey::random();
        assert_ne!(others, ForwardKey::random());
        assert_eq!(unwrap(&others, Slot::new(7), &wrapped), None);
        assert_eq!(format!("{others:?}"), "ForwardKey(..)");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_trouble(
            slot: u8,
            mut bytes in proptest::collection::vec(any::<u8>(), 0..80),
            magic: bool,
        ) {
            if magic && bytes.len() >= HEADER_LEN {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[KEY_AT..HEADER_LEN].copy_from_slice(&KEY.0);
            }
            if let Some((_, packet)) = unwrap(&KEY, Slot::new(slot), &bytes) {
                prop_assert!(may_reach(packet, Slot::new(slot)));
            }
        }
    }
}
