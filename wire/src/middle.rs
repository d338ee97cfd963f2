//! The middle packets of long messages, which differ in little: a short way to read them.

use crate::{Bth, ICRC_LEN, Operation, Packet};

/// A SEND or WRITE Middle packet: no headers but the BTH, no pad, TVer 0. Nothing else is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Middle<'a> {
    bth: Bth,
    bytes: &'a [u8],
}

impl<'a> Middle<'a> {
    /// `None` where the UDP payload is something else, which [`Packet::parse`] has to look at.
    #[inline]
    #[must_use]
    pub fn parse(udp_payload: &'a [u8]) -> Option<Self> {
        Self::parse_in_place(udp_payload.first_chunk()?, udp_payload)
    }

    /// Likewise for a packet in memory that somebody else may change meanwhile: `head` is a copy of its
    /// BTH, and of `udp_payload` only the length is used.
    #[inline]
    #[must_use]
    pub fn parse_in_place(head: &[u8; Bth::LEN], udp_payload: &'a [u8]) -> Option<Self> {
        let bth = Bth::from_bytes(head);
        let is_middle = matches!(
            bth.opcode.operation(),
            Some(Operation::SendMiddle | Operation::WriteMiddle)
        );
        //= BTH-04 BTH-05 ENC-16
        let plain = bth.pad_count == 0 && bth.tver == 0 && udp_payload.len() >= Packet::MIN_LEN;
        (is_middle && plain).then_some(Self {
            bth,
            bytes: udp_payload,
        })
    }

    /// The base transport header.
    #[inline]
    #[must_use]
    pub const fn bth(&self) -> &Bth {
        &self.bth
    }

    /// What is between BTH and ICRC.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.covered()[Bth::LEN..]
    }

    /// Everything before the ICRC.
    #[inline]
    #[must_use]
    pub fn covered(&self) -> &'a [u8] {
        &self.bytes[..self.bytes.len() - ICRC_LEN]
    }

    /// The ICRC as received.
    #[inline]
    #[must_use]
    pub fn icrc_bytes(&self) -> [u8; ICRC_LEN] {
        self.bytes.last_chunk().copied().unwrap_or([0; ICRC_LEN])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;

    proptest! {
        /// It says the same as the long way, or nothing.
        #[test]
        fn reads_what_packet_reads(mut bytes in prop::collection::vec(any::<u8>(), 0..200), opcode in 0..8u8, flags: u8) {
            if let [first, second, ..] = bytes.as_mut_slice() {
                *first = opcode;
                *second &= flags;
            }
            let packet = Packet::parse(&bytes);
            match Middle::parse(&bytes) {
                Some(middle) => {
                    let packet = packet.unwrap();
                    prop_assert_eq!(middle.bth(), packet.bth());
                    prop_assert_eq!(middle.payload(), packet.payload());
                    prop_assert_eq!(middle.covered(), packet.covered());
                    prop_assert_eq!(middle.icrc_bytes(), packet.icrc_bytes());
                }
                None => if let Ok(packet) = packet {
                    let operation = packet.bth().opcode.operation();
                    let is_middle = matches!(operation, Some(Operation::SendMiddle | Operation::WriteMiddle));
                    prop_assert!(!is_middle || packet.bth().pad_count > 0);
                }
            }
        }
    }

    #[test]
    fn the_copy_of_the_head_counts() {
        let mut bytes: Vec<u8> = (0..40).collect();
        let mut head = [0; Bth::LEN];
        head[0] = 7;
        assert!(Middle::parse_in_place(&head, &bytes).is_some());
        head[0] = 6;
        bytes[0] = 7;
        assert!(Middle::parse_in_place(&head, &bytes).is_none());
    }
}
