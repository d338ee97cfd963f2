//! A received packet: the UDP payload, checked once.

use core::fmt;

use crate::{Bth, CNP_BODY_LEN, Headers, Operation};

/// Bytes of the invariant CRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// The reason why bytes are no packet. All of these are dropped without an answer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum PacketError {
    /// Shorter than a BTH and an ICRC.
    //= ENC-16
    TooShort,
    /// The version of the transport headers is not 0.
    //= BTH-05
    TransportVersion(u8),
    /// Ends before the headers of its operation code do.
    //= ENC-16
    HeadersTruncated,
    /// Shorter than its headers, its pad and the ICRC together.
    //= ENC-16
    PadTruncated,
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("shorter than BTH and ICRC"),
            Self::TransportVersion(version) => write!(f, "transport header version {version}"),
            Self::HeadersTruncated => f.write_str("extension headers truncated"),
            Self::PadTruncated => f.write_str("pad truncated"),
        }
    }
}

impl core::error::Error for PacketError {}

/// A view of a packet: headers by value, payload in place.
///
/// The lengths are consistent and TVer is 0. No other rule has been checked. The opcode may be
/// reserved (then there are no extension headers). The payload may violate the
/// [`crate::PayloadRule`] of the opcode. The ICRC may be wrong. The queue pair checks those.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    headers: Headers,
    bytes: &'a [u8],
    payload: &'a [u8],
    pad: &'a [u8],
    icrc: [u8; ICRC_LEN],
}

impl<'a> Packet<'a> {
    /// Shortest packet.
    //= ENC-16
    pub const MIN_LEN: usize = Bth::LEN + ICRC_LEN;

    /// Checks the lengths of a UDP payload, including the ICRC.
    ///
    /// # Errors
    /// [`PacketError`]: the reason why the packet has to be dropped.
    #[inline(always)]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, PacketError> {
        //= ENC-16
        if udp_payload.len() < Self::MIN_LEN {
            return Err(PacketError::TooShort);
        }
        let (covered, icrc) = udp_payload
            .split_last_chunk::<ICRC_LEN>()
            .ok_or(PacketError::TooShort)?;
        //= BTH-05
        let tver = covered[1] & 0x0f;
        if tver != 0 {
            return Err(PacketError::TransportVersion(tver));
        }
        let (headers, rest) = Headers::parse(covered).map_err(|_| PacketError::HeadersTruncated)?;
        //= BTH-04 ENC-16
        let payload_len = rest
            .len()
            .checked_sub(usize::from(headers.bth.pad_count))
            .ok_or(PacketError::PadTruncated)?;
        let (payload, pad) = rest.split_at(payload_len);
        //= ETH-11
        if payload.len() < CNP_BODY_LEN && headers.bth.opcode.operation() == Some(Operation::Cnp) {
            return Err(PacketError::HeadersTruncated);
        }
        Ok(Self {
            headers,
            bytes: udp_payload,
            payload,
            pad,
            icrc: *icrc,
        })
    }

    /// Parses a packet like [`Packet::parse`], in memory that another process may change at the
    /// same time.
    ///
    /// `head` is a copy of its first bytes: at least [`crate::MAX_HEADERS_LEN`], or all of them.
    /// All header fields come from the copy. Of `udp_payload` only the length is used, and
    /// [`Packet::payload`] is a part of it. There is no ICRC to check: the bytes are 0.
    ///
    /// # Errors
    /// As [`Packet::parse`].
    #[inline]
    pub fn parse_in_place(head: &[u8], udp_payload: &'a [u8]) -> Result<Self, PacketError> {
        //= ENC-16
        if udp_payload.len() < Self::MIN_LEN || head.len() < Bth::LEN {
            return Err(PacketError::TooShort);
        }
        //= BTH-05
        let tver = head[1] & 0x0f;
        if tver != 0 {
            return Err(PacketError::TransportVersion(tver));
        }
        let (headers, _) = Headers::parse(head).map_err(|_| PacketError::HeadersTruncated)?;
        let end = udp_payload.len() - ICRC_LEN;
        let rest = udp_payload
            .get(headers.len()..end)
            .ok_or(PacketError::HeadersTruncated)?;
        //= BTH-04 ENC-16
        let payload_len = rest
            .len()
            .checked_sub(usize::from(headers.bth.pad_count))
            .ok_or(PacketError::PadTruncated)?;
        let (payload, pad) = rest.split_at(payload_len);
        //= ETH-11
        if payload.len() < CNP_BODY_LEN && headers.bth.opcode.operation() == Some(Operation::Cnp) {
            return Err(PacketError::HeadersTruncated);
        }
        Ok(Self {
            headers,
            bytes: udp_payload,
            payload,
            pad,
            icrc: [0; ICRC_LEN],
        })
    }

    /// All headers.
    #[inline]
    #[must_use]
    pub const fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The base transport header.
    #[inline]
    #[must_use]
    pub const fn bth(&self) -> &Bth {
        &self.headers.bth
    }

    /// The payload without the pad. For a CNP, its reserved bytes.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The pad, `0..=3` bytes, of any value.
    //= ICRC-10
    #[inline]
    #[must_use]
    pub const fn pad(&self) -> &'a [u8] {
        self.pad
    }

    /// The ICRC as received. On the wire its least significant byte comes first.
    //= ICRC-08
    #[inline]
    #[must_use]
    pub const fn icrc_bytes(&self) -> [u8; ICRC_LEN] {
        self.icrc
    }

    /// Returns everything before the ICRC: the input of [`crate::icrc::IcrcFlow`].
    #[inline]
    #[must_use]
    pub fn covered(&self) -> &'a [u8] {
        &self.bytes[..self.bytes.len() - ICRC_LEN]
    }

    /// The whole packet, ICRC included.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

#[cfg(test)]
pub(crate) mod tests;
