//! Records of packets.

use std::net::IpAddr;

use rocade_wire::{Bth, Qpn};

use super::record::flag;
use super::{Kind, now_ns, write, write_at};

/// The BTH of a packet, and the next 4 bytes, which each packet has.
pub(crate) type FirstBytes = [u8; Bth::LEN + 4];

/// Folds an address to 64 bits, so that both ends of a packet find each other.
#[must_use]
pub fn fold(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            u64::try_from(bits >> 64 ^ bits & u128::from(u64::MAX)).unwrap_or(0)
        }
    }
}

/// Returns the AETH of a packet as a number. 0 if it has none.
fn aeth_of(packet: &[u8]) -> u32 {
    // Responses of connected services: READ First, Last and Only, ACK, atomic ACK.
    let has_aeth = packet
        .first()
        .is_some_and(|code| matches!(code & 0x1f, 0x0d | 0x0f..=0x12) && code >> 5 != 3);
    let aeth = packet.get(Bth::LEN..).and_then(<[u8]>::first_chunk);
    aeth.filter(|_| has_aeth)
        .map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Returns true for a packet that neither begins nor ends a message, of which a long message has
/// many.
pub(crate) const fn is_middle(opcode: u8) -> bool {
    matches!(opcode & 0x1f, 0x01 | 0x07 | 0x0e)
}

/// Returns true if a packet is a response of a connected service.
pub(crate) fn is_response(packet: &[u8]) -> bool {
    packet
        .first()
        .is_some_and(|opcode| matches!(opcode & 0x1f, 0x0d..=0x12))
}

/// Records packets that `own` sends. `time_ns` is before the first of them can arrive.
#[cold]
pub(crate) fn sent<'p>(
    time_ns: u64,
    own: Qpn,
    to: IpAddr,
    packets: impl Iterator<Item = &'p [u8]>,
) {
    let to = fold(to);
    for packet in packets {
        if packet.first().is_some_and(|opcode| !is_middle(*opcode))
            && let Some(bth) = packet.first_chunk().map(Bth::from_bytes)
        {
            let ends = u64::from(own.get()) << 32 | u64::from(bth.dest_qp.get());
            let rest = (packet.len(), aeth_of(packet));
            record(time_ns, Kind::Sent, &bth, ends, to, rest);
        }
    }
}

/// Records a packet of `len` bytes that has arrived at `here`. It begins with these.
#[cold]
pub(crate) fn received(bytes: &FirstBytes, here: IpAddr, len: usize) {
    let Some(bth) = bytes.first_chunk().map(Bth::from_bytes) else {
        return;
    };
    let aeth = aeth_of(bytes);
    let ends = u64::from(bth.dest_qp.get()) << 32;
    let kind = Kind::Received;
    record(now_ns(), kind, &bth, ends, fold(here), (len, aeth));
}

fn record(time_ns: u64, kind: Kind, bth: &Bth, ends: u64, to: u64, (len, aeth): (usize, u32)) {
    let flags = if bth.ack_req { flag::ACK_REQ } else { 0 };
    let fields = [ends, what(bth, flags, len), to, u64::from(aeth)];
    write_at(time_ns, kind, &fields, "");
}

/// Returns the PSN, the length, flags and the operation code.
fn what(bth: &Bth, flags: u32, len: usize) -> u64 {
    let len = u32::from(u16::try_from(len).unwrap_or(u16::MAX));
    let low = len << 16 | flags << 8 | u32::from(bth.opcode.get());
    u64::from(bth.psn.get()) << 32 | u64::from(low)
}

/// Records what a fault rule or a check did to a packet.
#[cold]
pub(crate) fn note(packet: &[u8], is_received: bool, to: IpAddr, words: &str) {
    if let Some(bth) = packet.first_chunk().map(Bth::from_bytes) {
        let flags = if is_received { flag::RECEIVED } else { 0 };
        let fields = [
            u64::from(bth.dest_qp.get()),
            what(&bth, flags, packet.len()),
            fold(to),
        ];
        write(Kind::Note, &fields, words);
    }
}

/// Records an expiry of the retransmission timer. `count` has the expiries so far.
#[cold]
pub(crate) fn timeout(own: Qpn, count: u64) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let ends = u64::from(own.get()) << 32 | u64::from(count);
    write(Kind::Timeout, &[ends], "");
}
