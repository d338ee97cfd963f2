//! Extension headers of responses: AETH with its syndrome, AtomicAckETH.

use super::eth::be64;
use crate::{CreditCode, Msn, RnrTimer};

/// The reason why a responder refuses a request: bits 4:0 of a NAK syndrome.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum NakCode {
    /// A packet is missing.
    //= AETH-04
    PsnSequence,
    /// The request is not valid for the responder.
    //= AETH-05
    InvalidRequest,
    /// Key, range or rights do not allow the access.
    //= AETH-06
    RemoteAccess,
    /// The responder failed.
    //= AETH-07
    RemoteOperational,
    /// Reliable datagram only.
    //= AETH-08
    InvalidRdRequest,
    /// A reserved code, `5..=31`.
    //= AETH-09
    Reserved(u8),
}

impl NakCode {
    /// Decodes bits 4:0 of `code`. Higher bits are ignored.
    #[inline]
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 0x1f {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            reserved => Self::Reserved(reserved),
        }
    }

    /// The code, `0..=31`.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(code) => code & 0x1f,
        }
    }
}

/// First byte of the AETH.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Syndrome {
    /// Positive acknowledgement.
    //= AETH-01
    Ack(CreditCode),
    /// Receiver not ready: try again after the delay.
    //= AETH-02
    RnrNak(RnrTimer),
    /// Negative acknowledgement.
    Nak(NakCode),
    /// The whole byte of a reserved class. The requester ignores such a packet.
    //= AETH-03 AETH-10
    Reserved(u8),
}

impl Syndrome {
    /// Decodes a syndrome byte.
    #[inline]
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code >> 5 {
            0b000 => Self::Ack(CreditCode::from_low_bits(code)),
            0b001 => Self::RnrNak(RnrTimer::from_low_bits(code)),
            0b011 => Self::Nak(NakCode::from_code(code)),
            _ => Self::Reserved(code),
        }
    }

    /// The syndrome byte.
    #[inline]
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Ack(credits) => credits.code(),
            Self::RnrNak(timer) => 0x20 | timer.code(),
            Self::Nak(nak) => 0x60 | nak.code(),
            Self::Reserved(code) => code,
        }
    }
}

/// Acknowledge extended transport header.
//= ETH-03
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Number of messages that the responder has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            syndrome: Syndrome::from_code(b[0]),
            msn: Msn::new(u32::from_be_bytes([0, b[1], b[2], b[3]])),
        }
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        let [_, m0, m1, m2] = self.msn.get().to_be_bytes();
        [self.syndrome.code(), m0, m1, m2]
    }
}

/// Result of CmpSwap and FetchAdd.
//= ETH-04
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct AtomicAckEth {
    /// The value that was in memory before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline]
    #[must_use]
    pub const fn from_bytes(b: &[u8; Self::LEN]) -> Self {
        Self {
            original: be64(b, 0),
        }
    }

    /// Writes the header.
    #[inline]
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; Self::LEN] {
        self.original.to_be_bytes()
    }
}
