//! The transport headers.
//!
//! Each header is a plain struct with `from_bytes` and `to_bytes`. [`Headers`] holds all headers of
//! a packet.

mod aeth;
mod bth;
mod dc;
mod eth;

use core::fmt;

pub use aeth::{Aeth, AtomicAckEth, NakCode, Syndrome};
pub use bth::Bth;
pub use dc::{DcEth, DcRespEth, RocadeProbe};
pub use eth::{
    AtomicEth, Deth, Feth, Ieth, ImmDt, MaskedEth, Placement, Rdeth, Reth, Selectivity, XrcEth,
};

use crate::{ExtHeaders, Opcode, Pkey, Psn, Qpn, Rkey};

/// Zero bytes that follow the BTH of a CNP.
//= ETH-11
pub const CNP_BODY_LEN: usize = 16;

/// Bytes of the longest combination of headers that an opcode defines (DC atomics).
pub const MAX_HEADERS_LEN: usize = Bth::LEN + DcEth::LEN + AtomicEth::LEN;

/// Error: a buffer ends before the headers do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Truncated {
    /// Number of bytes needed.
    pub needed_len: usize,
    /// Number of bytes present.
    pub actual_len: usize,
}

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes needed, {} present",
            self.needed_len, self.actual_len
        )
    }
}

impl core::error::Error for Truncated {}

/// All headers of a packet.
///
/// [`Headers::emit`] writes those that are set. [`Headers::agrees_with_opcode`] checks that they
/// are the ones that the opcode requires.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// Reliable datagram header.
    pub rdeth: Option<Rdeth>,
    /// XRC shared receive queue.
    pub xrceth: Option<XrcEth>,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// Session header of a DC request.
    pub dceth: Option<DcEth>,
    /// Session header of a DC response.
    pub dcreth: Option<DcRespEth>,
    /// FLUSH header.
    pub feth: Option<Feth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Operands of an atomic request.
    pub atomic: Option<AtomicEth>,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Key to invalidate.
    pub ieth: Option<Ieth>,
    /// ACK or NAK.
    pub aeth: Option<Aeth>,
    /// Result of an atomic request.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Address and size of a masked atomic.
    pub masked: Option<MaskedEth>,
}

impl Headers {
    /// Creates a BTH without extension headers.
    #[inline]
    #[must_use]
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            rdeth: None,
            xrceth: None,
            deth: None,
            dceth: None,
            dcreth: None,
            feth: None,
            reth: None,
            atomic: None,
            imm: None,
            ieth: None,
            aeth: None,
            atomic_ack: None,
            masked: None,
        }
    }

    /// Creates the header of a congestion notification to `dest_qp`. [`CNP_BODY_LEN`] zero bytes
    /// follow.
    #[must_use]
    pub const fn cnp(dest_qp: Qpn, pkey: Pkey) -> Self {
        //= CNP-01
        let mut bth = Bth::new(Opcode::CNP, dest_qp, Psn::new(0));
        bth.migreq = false;
        bth.becn = true;
        bth.pkey = pkey;
        Self::new(bth)
    }

    /// Returns the set of present extension headers.
    #[inline]
    #[must_use]
    pub const fn ext(&self) -> ExtHeaders {
        const fn flag(set: bool, header: ExtHeaders) -> u16 {
            if set { header.bits() } else { 0 }
        }
        ExtHeaders::from_bits_retain(
            flag(self.rdeth.is_some(), ExtHeaders::RDETH)
                | flag(self.xrceth.is_some(), ExtHeaders::XRCETH)
                | flag(self.deth.is_some(), ExtHeaders::DETH)
                | flag(self.dceth.is_some(), ExtHeaders::DCETH)
                | flag(self.dcreth.is_some(), ExtHeaders::DCRETH)
                | flag(self.feth.is_some(), ExtHeaders::FETH)
                | flag(self.reth.is_some(), ExtHeaders::RETH)
                | flag(self.atomic.is_some(), ExtHeaders::ATOMIC_ETH)
                | flag(self.imm.is_some(), ExtHeaders::IMM_DT)
                | flag(self.ieth.is_some(), ExtHeaders::IETH)
                | flag(self.aeth.is_some(), ExtHeaders::AETH)
                | flag(self.atomic_ack.is_some(), ExtHeaders::ATOMIC_ACK_ETH)
                | flag(self.masked.is_some(), self.masked_kind()),
        )
    }

    /// Returns the format of the header of a masked atomic, which depends on the service.
    #[inline]
    const fn masked_kind(&self) -> ExtHeaders {
        if self.bth.opcode.service().has_short_masked_eth() {
            ExtHeaders::SHORT_MASKED_ETH
        } else {
            ExtHeaders::MASKED_ETH
        }
    }

    /// Returns true if the extension headers that are set are those of the opcode. A reserved
    /// opcode has none.
    #[must_use]
    pub fn agrees_with_opcode(&self) -> bool {
        self.ext() == self.bth.opcode.ext().unwrap_or(ExtHeaders::empty())
    }

    /// Returns the length of all headers that are set, including the BTH.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always a BTH")]
    pub const fn len(&self) -> usize {
        Bth::LEN + self.ext().len_bytes()
    }

    /// Reads the BTH and the extension headers that its opcode defines. Returns them and the rest
    /// of `bytes`.
    ///
    /// A reserved opcode has no extension headers.
    ///
    /// # Errors
    /// [`Truncated`] if `bytes` ends before the headers do.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Truncated> {
        let mut cursor = Reader {
            rest: bytes,
            total: bytes,
        };
        let bth = Bth::from_bytes(cursor.take()?);
        let mut headers = Self::new(bth);
        let ext = bth.opcode.ext().unwrap_or(ExtHeaders::empty());
        if ext.is_empty() {
            return Ok((headers, cursor.rest));
        }
        //= OPC-35
        if ext.contains(ExtHeaders::RDETH) {
            headers.rdeth = Some(Rdeth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::XRCETH) {
            headers.xrceth = Some(XrcEth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::DETH) {
            headers.deth = Some(Deth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::DCETH) {
            headers.dceth = Some(DcEth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::DCRETH) {
            headers.dcreth = Some(DcRespEth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::FETH) {
            headers.feth = Some(Feth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::RETH) {
            headers.reth = Some(Reth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::ATOMIC_ETH) {
            headers.atomic = Some(AtomicEth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::IMM_DT) {
            headers.imm = Some(ImmDt(*cursor.take()?));
        }
        if ext.contains(ExtHeaders::IETH) {
            //= ETH-07
            headers.ieth = Some(Ieth(Rkey::new(u32::from_be_bytes(*cursor.take()?))));
        }
        if ext.contains(ExtHeaders::AETH) {
            headers.aeth = Some(Aeth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::ATOMIC_ACK_ETH) {
            headers.atomic_ack = Some(AtomicAckEth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::MASKED_ETH) {
            headers.masked = Some(MaskedEth::from_bytes(cursor.take()?));
        }
        if ext.contains(ExtHeaders::SHORT_MASKED_ETH) {
            headers.masked = Some(MaskedEth::from_short(cursor.take()?));
        }
        Ok((headers, cursor.rest))
    }

    /// Writes the headers that are set to the start of `out` and returns their length.
    ///
    /// # Errors
    /// [`Truncated`] if `out` is shorter than [`Headers::len`]. Its contents are then undefined.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Truncated> {
        let actual_len = out.len();
        self.emit_into(out).ok_or_else(|| Truncated {
            needed_len: self.len(),
            actual_len,
        })
    }

    #[inline]
    fn emit_into(&self, out: &mut [u8]) -> Option<usize> {
        let total_len = out.len();
        let rest = put(out, self.bth.to_bytes())?;
        //= OPC-35
        let rest = put_some(rest, self.rdeth.as_ref().map(Rdeth::to_bytes))?;
        let rest = put_some(rest, self.xrceth.as_ref().map(XrcEth::to_bytes))?;
        let rest = put_some(rest, self.deth.as_ref().map(Deth::to_bytes))?;
        let rest = put_some(rest, self.dceth.as_ref().map(DcEth::to_bytes))?;
        let rest = put_some(rest, self.dcreth.as_ref().map(DcRespEth::to_bytes))?;
        let rest = put_some(rest, self.feth.as_ref().map(Feth::to_bytes))?;
        let rest = put_some(rest, self.reth.as_ref().map(Reth::to_bytes))?;
        let rest = put_some(rest, self.atomic.as_ref().map(AtomicEth::to_bytes))?;
        let rest = put_some(rest, self.imm.map(|imm| imm.0))?;
        let rest = put_some(rest, self.ieth.map(|ieth| ieth.0.get().to_be_bytes()))?;
        let rest = put_some(rest, self.aeth.as_ref().map(Aeth::to_bytes))?;
        let rest = put_some(rest, self.atomic_ack.as_ref().map(AtomicAckEth::to_bytes))?;
        let rest = match &self.masked {
            Some(masked) if self.masked_kind().contains(ExtHeaders::SHORT_MASKED_ETH) => {
                put(rest, masked.to_short())?
            }
            masked => put_some(rest, masked.as_ref().map(MaskedEth::to_bytes))?,
        };
        Some(total_len - rest.len())
    }
}

/// Stores `bytes` at the start of `out` and returns the rest.
#[inline]
fn put<const N: usize>(out: &mut [u8], bytes: [u8; N]) -> Option<&mut [u8]> {
    let (head, rest) = out.split_first_chunk_mut::<N>()?;
    *head = bytes;
    Some(rest)
}

#[inline]
fn put_some<const N: usize>(out: &mut [u8], bytes: Option<[u8; N]>) -> Option<&mut [u8]> {
    match bytes {
        Some(bytes) => put(out, bytes),
        None => Some(out),
    }
}

/// Takes headers off the front of a buffer.
struct Reader<'a> {
    rest: &'a [u8],
    total: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Truncated> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            let before = self.total.len() - self.rest.len();
            return Err(Truncated {
                needed_len: before + N,
                actual_len: self.total.len(),
            });
        };
        self.rest = rest;
        Ok(head)
    }
}

#[cfg(test)]
mod tests;
