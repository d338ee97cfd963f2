//! The caller's transmit buffer: one run of equal segments, ready for segmentation offload.

use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{AtomicEth, Bth};

use crate::wr::Sge;

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
/// ICRC. Long payloads of requests may stay outside, in registered memory, for the caller to gather
/// ([`TxBuffer::leave_outside`]).
#[derive(Debug)]
pub struct TxBuffer {
    /// The first `used` bytes count; the rest is memory that is not cleared again and again.
    bytes: Vec<u8>,
    used: usize,
    /// What belongs between the bytes, and before which of them.
    outside: Vec<(usize, Sge)>,
    outside_len: usize,
    longest_copy: usize,
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
            outside: Vec::new(),
            outside_len: 0,
            longest_copy: usize::MAX,
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
        self.outside.clear();
        self.outside_len = 0;
        self.segment_len = 0;
        self.segments = 0;
        self.closed = false;
    }

    /// Nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// All segments, one after the other, but for what is outside.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Length of all segments in bytes, with what is outside.
    #[must_use]
    pub const fn total_len(&self) -> usize {
        self.used + self.outside_len
    }

    /// Payloads that stay in registered memory, with their places in [`TxBuffer::bytes`], in order: each
    /// has been checked and belongs before the byte with that index.
    #[must_use]
    pub fn outside(&self) -> &[(usize, Sge)] {
        &self.outside
    }

    /// Calls `each` with the bytes of each segment, to fill in its ICRC, and with the payload that
    /// belongs before the byte with some index of them.
    #[inline]
    pub fn for_each_segment(&mut self, mut each: impl FnMut(&mut [u8], Option<(usize, Sge)>)) {
        let total_len = self.total_len();
        let mut outside = self.outside.iter().copied().peekable();
        let (mut at, mut done) = (0, 0);
        while done < total_len {
            let mut len = self.segment_len.min(total_len - done);
            done += len;
            // A payload is never the end of a segment: the ICRC is.
            let payload = outside.next_if(|&(place, _)| place < at + len);
            if let Some((_, sge)) = payload {
                len -= sge.len as usize;
            }
            let end = at + len;
            each(
                &mut self.bytes[at..end],
                payload.map(|(place, sge)| (place - at, sge)),
            );
            at = end;
        }
    }

    /// From now on payloads of requests that are longer than `longest_copy` bytes, and sent for the
    /// first time, stay outside. Who gathers them reads the memory twice, for the ICRC and for sending: if
    /// the application changes it in between, the packet is lost. What is sent again is copied.
    pub const fn leave_outside(&mut self, longest_copy: usize) {
        self.longest_copy = longest_copy;
    }

    pub(crate) const fn leaves_outside(&self, payload_len: usize) -> bool {
        payload_len > self.longest_copy
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
            && self.total_len() + len <= self.max_bytes
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
        self.append(head, payload_len, pad_len(payload_len), fill)?;
        self.count(head.segment_len(payload_len));
        Ok(())
    }

    /// Like [`TxBuffer::push`] for a payload that stays where it is.
    pub(crate) fn push_outside(&mut self, head: &Head, payload: Sge) {
        let payload_len = payload.len as usize;
        // Pad and ICRC follow the head.
        let place = self.used + head.len();
        let Ok(()) = self.append(head, 0, pad_len(payload_len), |_| {
            Ok::<_, core::convert::Infallible>(())
        });
        self.outside.push((place, payload));
        self.outside_len += payload_len;
        self.count(head.segment_len(payload_len));
    }

    #[inline]
    fn append<E>(
        &mut self,
        head: &Head,
        payload_len: usize,
        pad_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.used;
        let len = head.len() + payload_len + pad_len + ICRC_LEN;
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
        Ok(())
    }

    #[inline]
    fn count(&mut self, len: usize) {
        if self.segments == 0 {
            self.segment_len = len;
        } else if len < self.segment_len {
            self.closed = true;
        }
        self.segments += 1;
    }
}

/// Pad bytes after `payload_len` bytes of payload (BTH-04).
#[inline]
pub(crate) const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}
