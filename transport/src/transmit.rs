//! The caller's transmit buffer: one run of equal segments, ready for segmentation offload.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

use rocade_wire::Headers;

/// Bytes of the ICRC, left free at the end of each segment.
pub(crate) const ICRC_LEN: usize = 4;

/// A run of UDP payloads for one destination.
///
/// All segments have [`TxBuffer::segment_len`] bytes but the last, which may be shorter, so that
/// the run can go out in one segmented send. Each ends in 4 bytes that the caller fills with the
/// ICRC.
///
/// Its memory is its own or, with [`TxBuffer::within`], the caller's, which is only written to: it may
/// be shared with somebody who reads it.
#[derive(Debug)]
pub struct TxBuffer<'a> {
    /// The first `used` bytes count; the rest is memory that is not cleared again and again.
    bytes: Bytes<'a>,
    used: usize,
    segment_len: usize,
    segments: usize,
    max_bytes: usize,
    max_segments: usize,
    closed: bool,
}

#[derive(Debug)]
enum Bytes<'a> {
    Own(Vec<u8>),
    Borrowed(&'a mut [u8]),
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Borrowed(bytes) => bytes,
        }
    }
}

impl DerefMut for Bytes<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Borrowed(bytes) => bytes,
        }
    }
}

impl TxBuffer<'static> {
    /// A buffer for at most `max_segments` segments and `max_bytes` bytes, at least one segment.
    #[must_use]
    pub fn new(max_bytes: usize, max_segments: usize) -> Self {
        Self {
            bytes: Bytes::Own(vec![0; max_bytes]),
            used: 0,
            segment_len: 0,
            segments: 0,
            max_bytes,
            max_segments,
            closed: false,
        }
    }
}

impl<'a> TxBuffer<'a> {
    /// A buffer for at most `max_segments` segments in these bytes, which have to be enough for one.
    #[must_use]
    pub fn within(bytes: &'a mut [u8], max_segments: usize) -> Self {
        Self {
            used: 0,
            segment_len: 0,
            segments: 0,
            max_bytes: bytes.len(),
            max_segments,
            closed: false,
            bytes: Bytes::Borrowed(bytes),
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
    pub(crate) fn fits(&self, len: usize) -> bool {
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
    pub(crate) fn push<E>(
        &mut self,
        headers: &Headers,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.used;
        let header_len = headers.len();
        let payload_end = header_len + payload_len;
        let len = payload_end + usize::from(headers.bth.pad_count) + ICRC_LEN;
        if let Bytes::Own(bytes) = &mut self.bytes
            && bytes.len() < start + len
        {
            bytes.resize(start + len, 0);
        }
        let segment = &mut self.bytes[start..start + len];
        let emitted = headers.emit(segment);
        debug_assert_eq!(emitted.ok(), Some(header_len));
        fill(&mut segment[header_len..payload_end])?;
        //= ICRC-10
        segment[payload_end..].fill(0);
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

/// Length of a segment with these headers and payload, pad and ICRC included.
pub(crate) fn segment_len(headers: &Headers, payload_len: usize) -> usize {
    headers.len() + payload_len + pad_len(payload_len) + ICRC_LEN
}

/// Pad bytes after `payload_len` bytes of payload (BTH-04).
pub(crate) const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}
