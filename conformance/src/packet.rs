//! Builds packets to send. They are valid unless a method makes them invalid.

use std::net::IpAddr;

use rocade_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Headers, ImmDt, MAX_HEADERS_LEN, Msn, Opcode, Psn, Qpn,
    Reth, Rkey, Syndrome, icrc::IcrcFlow,
};

use crate::rig::Via;

/// A packet to send. Pad and ICRC are valid unless a method changes them.
#[derive(Clone, Debug)]
pub struct PacketBuilder {
    headers: Headers,
    payload: Vec<u8>,
    pad: Vec<u8>,
    icrc_error: u32,
    is_covered_twice: bool,
    cut: Option<usize>,
    pub(crate) via: Via,
    pub(crate) group: Option<IpAddr>,
}

impl PacketBuilder {
    /// Creates a packet without extension headers and payload.
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            headers: Headers::new(Bth::new(opcode, dest_qp, psn)),
            payload: Vec::new(),
            pad: Vec::new(),
            icrc_error: 0,
            is_covered_twice: false,
            cut: None,
            via: Via::Main,
            group: None,
        }
    }

    /// Sets AckReq.
    #[must_use]
    pub const fn ack_req(mut self) -> Self {
        self.headers.bth.ack_req = true;
        self
    }

    /// Sets the solicited-event bit.
    #[must_use]
    pub const fn solicited(mut self) -> Self {
        self.headers.bth.solicited = true;
        self
    }

    /// Sets the payload, and a pad of zeros as required.
    #[must_use]
    pub fn payload(mut self, payload: &[u8]) -> Self {
        payload.clone_into(&mut self.payload);
        let pad = Bth::pad_for(payload.len());
        self.pad(&vec![0; usize::from(pad)])
    }

    /// Sets the pad of up to 3 bytes, and PadCnt.
    #[must_use]
    pub fn pad(mut self, pad: &[u8]) -> Self {
        pad.clone_into(&mut self.pad);
        self.headers.bth.pad_count = u8::try_from(pad.len()).unwrap_or(u8::MAX);
        self
    }

    /// Adds a RETH.
    #[must_use]
    pub const fn reth(mut self, va: u64, rkey: Rkey, dma_len: u32) -> Self {
        self.headers.reth = Some(Reth { va, rkey, dma_len });
        self
    }

    /// Adds an AtomicETH.
    #[must_use]
    pub const fn atomic(mut self, va: u64, rkey: Rkey, swap_add: u64, compare: u64) -> Self {
        self.headers.atomic = Some(AtomicEth {
            va,
            rkey,
            swap_add,
            compare,
        });
        self
    }

    /// Adds immediate data.
    #[must_use]
    pub const fn imm(mut self, imm: [u8; 4]) -> Self {
        self.headers.imm = Some(ImmDt(imm));
        self
    }

    /// Adds an AETH.
    #[must_use]
    pub const fn aeth(mut self, syndrome: Syndrome, msn: Msn) -> Self {
        self.headers.aeth = Some(Aeth { syndrome, msn });
        self
    }

    /// Adds an AtomicAckETH.
    #[must_use]
    pub const fn atomic_ack(mut self, original: u64) -> Self {
        self.headers.atomic_ack = Some(AtomicAckEth { original });
        self
    }

    /// Edits any header.
    #[must_use]
    pub fn edit(mut self, edit: impl FnOnce(&mut Headers)) -> Self {
        edit(&mut self.headers);
        self
    }

    /// Flips these bits of the ICRC.
    #[must_use]
    pub const fn wrong_icrc(mut self, error: u32) -> Self {
        self.icrc_error = error;
        self
    }

    /// Uses the ICRC of Linux's rxe for a FLUSH.
    ///
    /// rxe lets the payload of a FLUSH begin at the BTH. Its ICRC therefore covers the packet
    /// twice, and the second time with the byte behind the P_Key as it is.
    #[must_use]
    pub const fn covered_twice(mut self) -> Self {
        self.is_covered_twice = true;
        self
    }

    /// Truncates the packet to `len` bytes with a valid ICRC.
    #[must_use]
    pub const fn cut(mut self, len: usize) -> Self {
        self.cut = Some(len);
        self
    }

    /// Selects the sending socket.
    #[must_use]
    pub const fn via(mut self, via: Via) -> Self {
        self.via = via;
        self
    }

    /// Sends the packet to a multicast group instead of the peer's address.
    #[must_use]
    pub const fn to_group(mut self, group: IpAddr) -> Self {
        self.group = Some(group);
        self
    }

    /// Returns the bytes from the BTH to the ICRC.
    #[must_use]
    pub fn emit(&self, flow: &IcrcFlow) -> Vec<u8> {
        let mut bytes = vec![0; MAX_HEADERS_LEN];
        // The buffer has room for the headers of every operation.
        let headers_len = self.headers.emit(&mut bytes).unwrap_or(MAX_HEADERS_LEN);
        bytes.truncate(headers_len);
        bytes.extend_from_slice(&self.payload);
        bytes.extend_from_slice(&self.pad);
        if let Some(len) = self.cut {
            bytes.truncate(len.saturating_sub(4));
        }
        // A packet shorter than a BTH has no ICRC.
        let icrc = if bytes.len() < Bth::LEN {
            0
        } else if self.is_covered_twice {
            //= RXE-17
            crc32_continued(flow.compute(0, &bytes), &bytes)
        } else {
            flow.compute(0, &bytes) ^ self.icrc_error
        };
        bytes.extend_from_slice(&icrc.to_le_bytes());
        bytes
    }

    /// Returns the properties that the printed packet does not show.
    pub(crate) fn remark(&self) -> Option<String> {
        let mut remarks = Vec::new();
        if self.icrc_error != 0 {
            remarks.push("wrong ICRC".to_owned());
        }
        if self.is_covered_twice {
            remarks.push("ICRC of rxe's FLUSH".to_owned());
        }
        if let Some(len) = self.cut {
            remarks.push(format!("cut to {len} bytes"));
        }
        if self.via != Via::Main {
            remarks.push(format!("via {:?}", self.via));
        }
        if let Some(group) = self.group {
            remarks.push(format!("to {group}"));
        }
        (!remarks.is_empty()).then(|| format!("next packet: {}", remarks.join(", ")))
    }
}

/// Continues the Ethernet CRC-32 `crc` of some data with more bytes.
fn crc32_continued(crc: u32, bytes: &[u8]) -> u32 {
    let shift = |register: u32| (register >> 1) ^ if register & 1 != 0 { 0xedb8_8320 } else { 0 };
    let register = bytes.iter().fold(!crc, |register, &byte| {
        (0..8).fold(register ^ u32::from(byte), |register, _| shift(register))
    });
    !register
}

#[cfg(test)]
mod tests {
    use rocade_wire::{Packet, icrc::IcrcCheck};

    use super::*;

    fn flow() -> IcrcFlow {
        IcrcFlow::new([127, 0, 0, 1].into(), [127, 0, 0, 2].into(), 4791).unwrap()
    }

    fn builder() -> PacketBuilder {
        PacketBuilder::new(Opcode::new(0x04), Qpn::new(7), Psn::new(9)).payload(b"hello")
    }

    #[test]
    fn a_plain_packet_is_right() {
        let bytes = builder().emit(&flow());
        let packet = Packet::parse(&bytes).unwrap();
        assert_eq!(packet.payload(), b"hello");
        assert_eq!(packet.pad(), [0; 3]);
        assert_eq!(
            flow().check(0, packet.covered(), packet.icrc_bytes()),
            IcrcCheck::Ok { ip_id: 0 }
        );
    }

    #[test]
    fn errors_are_there_if_asked_for() {
        let good = builder().emit(&flow());
        let bad = builder().wrong_icrc(0x10).emit(&flow());
        assert_eq!(good.len(), bad.len());
        assert_eq!(good[..good.len() - 4], bad[..bad.len() - 4]);
        assert_ne!(good, bad);
        assert_eq!(builder().cut(17).emit(&flow()).len(), 17);
        assert!(builder().cut(17).remark().is_some());
        assert_eq!(builder().remark(), None);
    }
}
