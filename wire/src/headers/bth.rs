//! Base transport header.

use crate::{Opcode, Pkey, Psn, Qpn};

/// Base transport header: the first 12 bytes of every packet.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Bth {
    /// Operation code.
    pub opcode: Opcode,
    /// SE: the receiver raises a solicited event. Only in the last packet of a message.
    //= BTH-02
    pub solicited: bool,
    /// M: the sender's path migration state is MIGRATED.
    //= BTH-03
    pub migreq: bool,
    /// Bytes of pad between payload and ICRC, `0..=3`.
    //= BTH-04
    pub pad_count: u8,
    /// Version of the transport headers, `0..=15`. Only 0 is defined.
    //= BTH-05
    pub tver: u8,
    /// Partition key.
    //= BTH-06
    pub pkey: Pkey,
    /// Forward congestion notification. Unused on RoCEv2.
    //= BTH-07
    pub fecn: bool,
    /// Backward congestion notification. Set in a CNP.
    //= BTH-08
    pub becn: bool,
    /// Six reserved bits, sent as 0.
    //= BTH-09
    pub resv6: u8,
    /// Number of the destination queue pair.
    //= BTH-10
    pub dest_qp: Qpn,
    /// A: the requester requests an ACK.
    //= BTH-11
    pub ack_req: bool,
    /// Seven reserved bits, sent as 0.
    //= BTH-12
    pub resv7: u8,
    /// Packet sequence number.
    //= BTH-13
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    const SOLICITED: u8 = 0x80;
    const MIGREQ: u8 = 0x40;
    const FECN: u8 = 0x80;
    const BECN: u8 = 0x40;
    const ACK_REQ: u8 = 0x80;

    /// Creates a header with the default P_Key, M set, and everything else zero.
    #[inline]
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migreq: true,
            pad_count: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            resv6: 0,
            dest_qp,
            ack_req: false,
            resv7: 0,
            psn,
        }
    }

    /// Returns the number of pad bytes for a payload of `payload_len` bytes, `0..=3`.
    #[inline]
    #[must_use]
    pub const fn pad_for(payload_len: usize) -> u8 {
        //= BTH-04
        payload_len.wrapping_neg().to_le_bytes()[0] & 3
    }

    /// Reads the header.
    #[inline(always)]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            opcode: Opcode::new(b[0]),
            solicited: b[1] & Self::SOLICITED != 0,
            migreq: b[1] & Self::MIGREQ != 0,
            pad_count: b[1] >> 4 & 3,
            tver: b[1] & 0x0f,
            pkey: Pkey::new(u16::from_be_bytes([b[2], b[3]])),
            fecn: b[4] & Self::FECN != 0,
            becn: b[4] & Self::BECN != 0,
            resv6: b[4] & 0x3f,
            dest_qp: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_req: b[8] & Self::ACK_REQ != 0,
            resv7: b[8] & 0x7f,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        }
    }

    /// Writes the header. Bits that do not fit their field are dropped.
    // Inlined: with constant fields, little code is left.
    #[inline(always)]
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let flags = if self.solicited { Self::SOLICITED } else { 0 }
            | if self.migreq { Self::MIGREQ } else { 0 }
            | (self.pad_count & 3) << 4
            | self.tver & 0x0f;
        let ecn = if self.fecn { Self::FECN } else { 0 }
            | if self.becn { Self::BECN } else { 0 }
            | self.resv6 & 0x3f;
        let ack = if self.ack_req { Self::ACK_REQ } else { 0 } | self.resv7 & 0x7f;
        // Assembled in words: assembling single bytes is slow.
        let words = (self.opcode.get() as u128) << 120
            | (flags as u128) << 112
            | (self.pkey.get() as u128) << 96
            | (ecn as u128) << 88
            | (self.dest_qp.get() as u128) << 64
            | (ack as u128) << 56
            | (self.psn.get() as u128) << 32;
        match words.to_be_bytes().first_chunk() {
            Some(bytes) => *bytes,
            None => [0; Self::LEN],
        }
    }
}
