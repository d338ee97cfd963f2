//! The caller's transmit buffer: one run of equal segments, ready for segmentation offload.

use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{AtomicEth, Bth};

/// Bytes of the ICRC, left free at the end of each segment.
pub(crate) const ICRC_LEN: usize = 4;

/// The headers of a packet to be sent, on their way to the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) bth: Bth,
    ext: [u8; Self::MAX_EXT_LEN],
    ext_len: usize,
}

impl Head {
    /// The longest that follows a BTH on RC.
    const MAX_EXT_LEN: usize = AtomicEth::LEN;

    /// A BTH without extension headers.
    #[inline]
    pub(crate) const fn new(bth: Bth) -> Self {
        Self {
            bth,
            ext: [0; Self::MAX_EXT_LEN],
            ext_len: 0,
        }
    }

    /// Appends an extension header, in the order of the wire (OPC-35).
    #[inline]
    pub(crate) fn push<const N: usize>(&mut self, header: &[u8; N]) {
        self.ext[self.ext_len..][..N].copy_from_slice(header);
        self.ext_len += N;
    }

    #[inline]
    const fn len(&self) -> usize {
        Bth::LEN + self.ext_len
    }

    /// Length of a segment with this head and payload, pad and ICRC included.
    #[inline]
    pub(crate) const fn segment_len(&self, payload_len: usize) -> usize {
        self.len() + payload_len + pad_len(payload_len) + ICRC_LEN
    }
}

/// A run of UDP payloads for one destination.
///
/// All segments have [`TxBuffer::segment_len`] bytes but the last, which may be shorter, so that
/// the run can go out in one segmented send. Each ends in 4 bytes that the caller fills with the
/// ICRC.
#[derive(Debug)]
pub struct TxBuffer {
    /// The first `used` bytes count; the rest is memory that is not cleared again and again.
    bytes: Vec<u8>,
    used: usize,
    segment_len: usize,
    segments: usize,
    max_bytes: usize,
    max_segments: usize,
    closed: bool,
}

impl TxBuffer {
    /// A buffer for at most `max_segments` segments and `max_bytes` bytes, at least one segment.
    #[must_use]
    pub fn new(max_bytes: usize, max_segments: usize) -> Self {
        Self {
            bytes: vec![0; max_bytes],
            used: 0,
            segment_len: 0,
            segments: 0,
            max_bytes,
            max_segments,
            closed: false,
        }
    }

    /// Empties the buffer, keeping its memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.segment_len = 0;
        self.segments = 0;
        self.closed = false;
    }

    /// Nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// All segments, one after the other.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// All segments, to fill in the ICRCs.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.used]
    }

    /// Length of every segment but, possibly, the last.
    #[must_use]
    pub const fn segment_len(&self) -> usize {
        self.segment_len
    }

    /// Number of segments.
    #[must_use]
    pub const fn segments(&self) -> usize {
        self.segments
    }

    /// Limits the run to single segments from now on (no segmentation offload).
    pub const fn set_max_segments(&mut self, max_segments: usize) {
        self.max_segments = max_segments;
    }

    /// Can a segment of `len` bytes (ICRC included) be appended?
    #[inline]
    pub(crate) const fn fits(&self, len: usize) -> bool {
        if self.segments == 0 {
            return true;
        }
        !self.closed
            && self.segments < self.max_segments
            && len <= self.segment_len
            && self.used + len <= self.max_bytes
    }

    /// Appends headers and `payload_len` bytes of payload, which `fill` writes, plus pad.
    /// The caller has asked [`TxBuffer::fits`] before and set the pad count in the BTH.
    /// If `fill` fails, the buffer is as before.
    #[inline]
    pub(crate) fn push<E>(
        &mut self,
        head: &Head,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.used;
        let len = head.segment_len(payload_len);
        if self.bytes.len() < start + len {
            self.bytes.resize(start + len, 0);
        }
        let segment = &mut self.bytes[start..start + len];
        let (bth, rest) = segment.split_at_mut(Bth::LEN);
        bth.copy_from_slice(&head.bth.to_bytes());
        let (ext, rest) = rest.split_at_mut(head.ext_len);
        if !ext.is_empty() {
            ext.copy_from_slice(&head.ext[..head.ext_len]);
        }
        let (payload, rest) = rest.split_at_mut(payload_len);
        fill(payload)?;
        //= ICRC-10
        let (pad, icrc) = rest.split_at_mut(rest.len() - ICRC_LEN);
        for byte in pad {
            *byte = 0;
        }
        icrc.copy_from_slice(&[0; ICRC_LEN]);
        self.used += len;
        if self.segments == 0 {
            self.segment_len = len;
        } else if len < self.segment_len {
            self.closed = true;
        }
        self.segments += 1;
        Ok(())
    }
}

/// Pad bytes after `payload_len` bytes of payload (BTH-04).
#[inline]
pub(crate) const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}
