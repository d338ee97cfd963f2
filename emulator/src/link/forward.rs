//! Forwards packets that reached the wrong process of this host.
//!
//! GRO merges datagrams of one 5-tuple even if their destination QPs differ, and the kernel hashes
//! an index beyond the `SO_REUSEPORT` group. A process may therefore receive packets of another
//! slot. It sends them to its own address again, with a header that steers them and holds the
//! original sender:
//!
//! ```text
//!  0      1      2      3       4        5          6..8          8..24            24..28    28..44  44..
//! 0xFF  magic0 magic1 version family  slot   source port   source address (v6)  scope id    key   packet
//! ```
//!
//! `family` is 4 or 6. Its upper half is the number of earlier forwards.
//!
//! Opcode 0xFF is in the manufacturer range, and `magic0` has a TVer that no packet has, so such a
//! datagram is never a packet. A misrouted packet is forwarded only once. Packets to an XRC target
//! that several processes share (`journal/targets.rs`) go to its current owner. They are forwarded
//! at most [`MAX_HOPS`] times, so that there is no loop.
//!
//! Any process can send datagrams with such a header and a forged sender. The header therefore
//! contains the [`ForwardKey`] of the address, which only the processes that share the address
//! have.

use core::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::random;
use crate::steering::ProcessSlot;

/// Bytes before the packet.
pub(crate) const HEADER_LEN: usize = KEY_AT + KEY_LEN;

/// Length of a key in bytes.
pub(crate) const KEY_LEN: usize = 16;

const MAGIC: [u8; 4] = [0xFF, 0x52, 0xF0, 3];
const FAMILY_V4: u8 = 4;
const FAMILY_V6: u8 = 6;
const FAMILY_BITS: u32 = 4;
/// Most forwards of a packet.
pub(crate) const MAX_HOPS: u8 = 4;
const SLOT_AT: usize = 5;
const KEY_AT: usize = 28;

/// The secret of the processes that share an address: 128 random bits, created with the address's
/// first socket and passed on with the sockets.
#[derive(Clone, Copy)]
pub struct ForwardKey([u8; KEY_LEN]);

impl ForwardKey {
    /// Returns a new random key.
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
    /// Compares in constant time.
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
        // Keeps the secret out of logs.
        f.write_str("ForwardKey(..)")
    }
}

/// The kind of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival<'d> {
    /// An unwrapped packet from the network.
    Direct,
    /// A packet that another process on this address forwarded: its original sender, the packet,
    /// and the number of earlier forwards.
    Forwarded(SocketAddr, &'d [u8], u8),
    /// A datagram with an invalid header, which must be dropped.
    Forged,
}

/// Returns true if the datagram begins like a wrapped packet of any version.
#[inline]
pub(crate) fn is_wrapped(datagram: &[u8]) -> bool {
    datagram.starts_with(&MAGIC[..3])
}

/// Returns the header for a packet to `to_slot` that came from `source` and was forwarded `hops`
/// times before.
///
/// Returns `None` if the packet must not be forwarded: it is wrapped already, too short to have a
/// destination, or was forwarded too often.
pub(crate) fn header(
    key: &ForwardKey,
    to_slot: ProcessSlot,
    source: SocketAddr,
    hops: u8,
    packet: &[u8],
) -> Option<[u8; HEADER_LEN]> {
    if is_wrapped(packet) || packet.len() < SLOT_AT + 3 || hops >= MAX_HOPS {
        return None;
    }
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&MAGIC);
    let (family, ip, scope_id) = match source {
        SocketAddr::V4(addr) => (FAMILY_V4, addr.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(addr) => (FAMILY_V6, *addr.ip(), addr.scope_id()),
    };
    header[4] = family | hops << FAMILY_BITS;
    header[SLOT_AT] = to_slot.get();
    header[6..8].copy_from_slice(&source.port().to_be_bytes());
    header[8..24].copy_from_slice(&ip.octets());
    header[24..28].copy_from_slice(&scope_id.to_be_bytes());
    header[KEY_AT..].copy_from_slice(&key.0);
    Some(header)
}

/// Returns the original sender, the packet and the number of earlier forwards. Returns `None`
/// unless this is a datagram to `slot` with the right key.
pub(crate) fn unwrap<'d>(
    key: &ForwardKey,
    slot: ProcessSlot,
    datagram: &'d [u8],
) -> Option<(SocketAddr, &'d [u8], u8)> {
    let (header, packet) = datagram.split_first_chunk::<HEADER_LEN>()?;
    let (_, proof) = header.split_last_chunk::<KEY_LEN>()?;
    if !header.starts_with(&MAGIC) || ForwardKey(*proof) != *key {
        return None;
    }
    if header[SLOT_AT] != slot.get() || is_wrapped(packet) || packet.len() < SLOT_AT + 3 {
        return None;
    }
    let port = u16::from_be_bytes([header[6], header[7]]);
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&header[8..24]).ok()?);
    let scope_id = u32::from_be_bytes(<[u8; 4]>::try_from(&header[24..28]).ok()?);
    let (hops, family) = (
        header[4] >> FAMILY_BITS,
        header[4] & ((1 << FAMILY_BITS) - 1),
    );
    let source = match (family, ip.to_canonical()) {
        (FAMILY_V4, IpAddr::V4(ip)) => SocketAddrV4::new(ip, port).into(),
        (FAMILY_V6, IpAddr::V6(ip)) => SocketAddrV6::new(ip, port, 0, scope_id).into(),
        _ => return None,
    };
    Some((source, packet, hops))
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
        wrap_again(slot, source, 0, packet)
    }

    fn wrap_again(slot: u8, source: SocketAddr, hops: u8, packet: &[u8]) -> Option<Vec<u8>> {
        let header = header(&KEY, ProcessSlot::new(slot), source, hops, packet)?;
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
                unwrap(&KEY, ProcessSlot::new(7), &wrapped),
                Some((source, &packet(7)[..], 0))
            );
        }
    }

    #[test]
    fn a_packet_is_wrapped_once() {
        let source = "192.0.2.1:50000".parse().unwrap();
        let wrapped = wrap(7, source, &packet(7)).unwrap();
        assert_eq!(wrap(7, source, &wrapped), None);
        assert_eq!(wrap(0, source, &[0; 5]), None);
        assert_eq!(wrap(0, source, &[0; 7]), None);
    }

    #[test]
    fn a_packet_is_forwarded_a_limited_number_of_times() {
        let source: SocketAddr = "192.0.2.1:50000".parse().unwrap();
        for hops in 0..MAX_HOPS {
            // A packet to the target of another slot.
            let wrapped = wrap_again(8, source, hops, &packet(7)).unwrap();
            assert_eq!(
                unwrap(&KEY, ProcessSlot::new(8), &wrapped),
                Some((source, &packet(7)[..], hops))
            );
        }
        assert_eq!(wrap_again(8, source, MAX_HOPS, &packet(7)), None);
    }

    #[test]
    fn only_the_slot_it_is_for_unwraps() {
        let source = "192.0.2.1:50000".parse().unwrap();
        let wrapped = wrap(7, source, &packet(7)).unwrap();
        assert_eq!(unwrap(&KEY, ProcessSlot::new(8), &wrapped), None);
        assert_eq!(unwrap(&KEY, ProcessSlot::new(7), &packet(7)), None);
        let short = &wrapped[..HEADER_LEN + 7];
        assert_eq!(unwrap(&KEY, ProcessSlot::new(7), short), None);
    }

    #[test]
    fn a_packet_cannot_be_wrapped_without_the_key() {
        let source = "192.0.2.1:50000".parse().unwrap();
        let wrapped = wrap(7, source, &packet(7)).unwrap();
        for at in KEY_AT..HEADER_LEN {
            let mut forged = wrapped.clone();
            forged[at] ^= 0x10;
            assert_eq!(
                unwrap(&KEY, ProcessSlot::new(7), &forged),
                None,
                "byte {at}"
            );
        }
        let others = ForwardKey::random();
        assert_ne!(others, ForwardKey::random());
        assert_eq!(unwrap(&others, ProcessSlot::new(7), &wrapped), None);
        assert_eq!(format!("{others:?}"), "ForwardKey(..)");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_handled(
            slot: u8,
            mut bytes in proptest::collection::vec(any::<u8>(), 0..80),
            magic: bool,
        ) {
            if magic && bytes.len() >= HEADER_LEN {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[KEY_AT..HEADER_LEN].copy_from_slice(&KEY.0);
            }
            if let Some((_, packet, _)) = unwrap(&KEY, ProcessSlot::new(slot), &bytes) {
                prop_assert!(packet.len() >= 8);
                prop_assert_eq!(bytes[5], slot);
            }
        }
    }
}
