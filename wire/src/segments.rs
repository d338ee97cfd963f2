//! Cuts a datagram into the packets that were sent as one.
//!
//! A sender hands Linux a batch of packets as one long datagram (`UDP_SEGMENT`). The NIC cuts it,
//! but interfaces like `lo` and veth do not. A receiver's GRO joins packets again. tcpdump sees the
//! long datagram, whose last four bytes are the ICRC of the last packet only.
//!
//! All packets of a batch have the same length, except that the last may be shorter. That length
//! follows from the operation code of a packet that fills the path MTU. Otherwise it is the one
//! with which the ICRC of the first packet is right.

use core::iter::FusedIterator;

use crate::icrc::{IcrcCheck, IcrcFlow};
use crate::ip::Datagram;
use crate::{Headers, ICRC_LEN, MAX_HEADERS_LEN, Mtu, Packet, PayloadRule};

/// The largest UDP payload of a packet.
pub const MAX_PACKET_LEN: usize = mtu_bytes(Mtu::Mtu4096) + MAX_HEADERS_LEN + ICRC_LEN;

/// Returns the payload bytes of a full packet.
const fn mtu_bytes(mtu: Mtu) -> usize {
    // At most 4096.
    mtu.bytes() as usize
}

/// A packet of a longer datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Segment<'a> {
    /// The packet, BTH to ICRC.
    pub udp_payload: &'a [u8],
    /// The IPv4 Identification that the packet has on the wire, 0 for IPv6. If the ICRC is wrong,
    /// the one that was expected.
    pub ip_id: u16,
    /// Set if the ICRC is right.
    pub icrc_is_right: bool,
}

/// The packets of a datagram, in order.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    rest: &'a [u8],
    segment_len: usize,
    flow: IcrcFlow,
    is_ipv6: bool,
    next_id: u16,
}

impl<'a> Segments<'a> {
    /// Cuts a datagram. `None` if it is a single packet, or if no length makes the ICRCs of at
    /// least half of its packets right.
    #[must_use]
    pub fn of(datagram: &Datagram<'a>) -> Option<Self> {
        let whole = datagram.udp_payload;
        // The ICRC of a packet covers DF as set.
        if whole.len() < 2 * Packet::MIN_LEN || !datagram.dont_fragment {
            return None;
        }
        let flow = IcrcFlow::new(datagram.src, datagram.dst, datagram.src_port)?;
        let id = datagram.ip_id;
        if has_icrc_of(&flow, id, whole) {
            return None;
        }
        let all = |segment_len| Self {
            rest: whole,
            segment_len,
            flow: flow.clone(),
            is_ipv6: datagram.src.is_ipv6(),
            next_id: id,
        };
        let (headers, _) = Headers::parse(whole).ok()?;
        let operation = headers.bth.opcode.operation();
        if operation.is_some_and(|of| of.payload_rule() == PayloadRule::FullMtu) {
            let of_mtu = Mtu::ALL
                .iter()
                .map(|mtu| headers.len() + mtu_bytes(*mtu) + ICRC_LEN)
                .filter(|&len| len < whole.len());
            if let Some(found) = of_mtu.map(all).find(Self::is_plausible) {
                return Some(found);
            }
        }
        // With the pad, every packet has a multiple of four bytes.
        (Packet::MIN_LEN..whole.len().min(MAX_PACKET_LEN + 1))
            .step_by(4)
            .filter(|&len| has_icrc_of(&flow, id, &whole[..len]))
            .map(all)
            .find(Self::is_plausible)
    }

    /// Returns true if all are packets, at least half of them with the right ICRC.
    fn is_plausible(&self) -> bool {
        let (mut right, mut all) = (0, 0);
        for segment in self.clone() {
            if Packet::parse(segment.udp_payload).is_err() {
                return false;
            }
            right += usize::from(segment.icrc_is_right);
            all += 1;
        }
        2 * right >= all
    }
}

/// Returns true if a packet has the ICRC for exactly this Identification.
fn has_icrc_of(flow: &IcrcFlow, ip_id: u16, packet: &[u8]) -> bool {
    packet
        .split_last_chunk::<ICRC_LEN>()
        .is_some_and(|(covered, icrc)| flow.compute(ip_id, covered).to_le_bytes() == *icrc)
}

impl<'a> Iterator for Segments<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let len = self.segment_len.min(self.rest.len());
        let (udp_payload, rest) = self.rest.split_at(len);
        self.rest = rest;
        let mut segment = Segment {
            udp_payload,
            ip_id: self.next_id,
            icrc_is_right: false,
        };
        // Linux numbers the packets of a batch. Those that GRO has joined may have any numbers.
        if let Some((covered, icrc)) = udp_payload.split_last_chunk::<ICRC_LEN>()
            && let IcrcCheck::Ok { ip_id } = self.flow.check(self.next_id, covered, *icrc)
        {
            segment.ip_id = ip_id;
            segment.icrc_is_right = true;
        }
        if !self.is_ipv6 {
            self.next_id = segment.ip_id.wrapping_add(1);
        }
        Some(segment)
    }
}

impl FusedIterator for Segments<'_> {}

#[cfg(test)]
mod tests;
