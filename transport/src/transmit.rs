//! The caller's transmit buffer: one batch of equal segments, ready for segmentation offload.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use rocade_wire::{Aeth, Bth, MAX_HEADERS_LEN, Rkey};

use crate::wr::{RouteTag, Sge};

/// Bytes of the ICRC, left free at the end of each segment.
pub(crate) const ICRC_LEN: usize = 4;
/// Length of an ACK packet: BTH, AETH, ICRC.
pub const ACK_LEN: usize = Bth::LEN + Aeth::LEN + ICRC_LEN;

/// The headers of a packet to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) bth: Bth,
    ext: [u8; Self::MAX_EXT_LEN],
    ext_len: usize,
}

impl Head {
    /// The longest combination that an opcode of any service defines.
    const MAX_EXT_LEN: usize = MAX_HEADERS_LEN - Bth::LEN;

    /// Creates a BTH without extension headers.
    #[inline]
    pub(crate) const fn new(bth: Bth) -> Self {
        Self {
            bth,
            ext: [0; Self::MAX_EXT_LEN],
            ext_len: 0,
        }
    }

    /// Appends an extension header, in wire order.
    #[inline]
    pub(crate) fn push<const N: usize>(&mut self, header: &[u8; N]) {
        self.ext[self.ext_len..][..N].copy_from_slice(header);
        self.ext_len += N;
    }

    #[inline]
    const fn len(&self) -> usize {
        Bth::LEN + self.ext_len
    }

    #[inline]
    fn ext(&self) -> &[u8] {
        &self.ext[..self.ext_len]
    }

    /// Returns the whole packet, which has no payload. `None` if its length is not `N`.
    #[inline]
    pub(crate) fn alone<const N: usize>(&self) -> Option<[u8; N]> {
        let mut packet = [0; N];
        let (bth, ext) = packet.split_first_chunk_mut::<{ Bth::LEN }>()?;
        *bth = self.bth.to_bytes();
        if self.segment_len(0) != N {
            return None;
        }
        ext[..self.ext_len].copy_from_slice(&self.ext[..self.ext_len]);
        Some(packet)
    }

    /// Returns the length of a segment with this head and payload, including pad and ICRC.
    #[inline]
    pub(crate) const fn segment_len(&self, payload_len: usize) -> usize {
        self.len() + payload_len + pad_len(payload_len) + ICRC_LEN
    }
}

/// Returns the length of a segment with these extension headers and payload, including pad and
/// ICRC.
#[inline]
pub(crate) const fn segment_len(ext: &[u8], payload_len: usize) -> usize {
    Bth::LEN + ext.len() + payload_len + pad_len(payload_len) + ICRC_LEN
}

/// Location of a payload in registered memory.
///
/// Key, rights and range have been checked. The memory itself may still become unreadable
/// ([`Qp::recover_partial_batch`](crate::Qp::recover_partial_batch)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Payload of a request: a local buffer.
    Local(Sge),
    /// Payload of a READ response: `len` bytes at address `va` of the region with key `rkey`.
    Remote {
        /// Remote key.
        rkey: Rkey,
        /// Address in the region's own address space.
        va: u64,
        /// Length in bytes, not 0.
        len: u32,
        /// The response is a replay for a duplicate READ.
        replay: bool,
    },
}

impl Source {
    #[inline]
    const fn payload_len(&self) -> usize {
        match self {
            Self::Local(sge) => sge.len as usize,
            Self::Remote { len, .. } => *len as usize,
        }
    }

    /// Returns the source `bytes` bytes further, with the same length. That memory has been
    /// checked.
    #[inline]
    const fn behind(self, bytes: usize) -> Self {
        let bytes = bytes as u64;
        match self {
            Self::Local(Sge { addr, len, lkey }) => Self::Local(Sge {
                addr: addr.wrapping_add(bytes),
                len,
                lkey,
            }),
            Self::Remote {
                rkey,
                va,
                len,
                replay,
            } => Self::Remote {
                rkey,
                va: va.wrapping_add(bytes),
                len,
                replay,
            },
        }
    }
}

/// A payload that the caller still has to copy into the buffer, from index `at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// Index of the first byte.
    pub at: usize,
    /// Location of the payload.
    pub source: Source,
}

impl Deferred {
    /// Returns the range of the payload in the buffer.
    #[inline]
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.at..self.at + self.source.payload_len()
    }
}

/// A batch of UDP payloads for one destination.
///
/// All segments have [`TxBuffer::segment_len`] bytes except the last, which may be shorter, so that
/// one segmented send can transmit the batch. Each ends in 4 bytes that the caller fills with the
/// ICRC.
///
/// The copy of long payloads may be deferred to the caller, which can compute the ICRC while
/// copying ([`TxBuffer::defer_longer_than`]).
#[derive(Debug)]
pub struct TxBuffer {
    /// Only the first `used` bytes count. The rest is memory that is not cleared each time.
    bytes: Vec<u8>,
    used: usize,
    deferred: Vec<Deferred>,
    longest_copy: usize,
    segment_len: usize,
    segments: usize,
    max_bytes: usize,
    max_segments: usize,
    closed: bool,
    stays_open: bool,
    route: RouteTag,
}

impl TxBuffer {
    /// Creates a buffer for at most `max_segments` segments and `max_bytes` bytes. At least one
    /// segment always fits.
    #[must_use]
    pub fn new(max_bytes: usize, max_segments: usize) -> Self {
        Self {
            bytes: vec![0; max_bytes],
            used: 0,
            deferred: Vec::new(),
            longest_copy: usize::MAX,
            segment_len: 0,
            segments: 0,
            max_bytes,
            max_segments,
            closed: false,
            stays_open: false,
            route: RouteTag::OWN,
        }
    }

    /// Returns the capacity in bytes.
    #[inline]
    pub(crate) const fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Limits the batch to `max_bytes` bytes from now on, except for a first segment. Returns the
    /// previous limit.
    pub(crate) fn limit(&mut self, max_bytes: usize) -> usize {
        let before = self.max_bytes;
        self.max_bytes = before.min(max_bytes);
        before
    }

    /// Restores a limit that [`TxBuffer::limit`] returned.
    pub(crate) const fn set_limit(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// Empties the buffer, keeping its memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.deferred.clear();
        self.segment_len = 0;
        self.segments = 0;
        self.closed = false;
        self.route = RouteTag::OWN;
    }

    /// Returns the route of the batch.
    #[inline]
    #[must_use]
    pub const fn route(&self) -> RouteTag {
        self.route
    }

    /// Returns true if a packet for this route can be appended.
    pub(crate) fn accepts_route(&self, route: RouteTag) -> bool {
        self.segments == 0 || self.route == route
    }

    /// Sets the route of the batch.
    pub(crate) const fn set_route(&mut self, route: RouteTag) {
        self.route = route;
    }

    /// Returns true if the buffer is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns all segments, one after another. The bytes of deferred payloads are undefined.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Returns the deferred payloads, in order.
    #[must_use]
    pub fn deferred(&self) -> &[Deferred] {
        &self.deferred
    }

    /// Calls `each` with the bytes of each segment, and with its payload if that is deferred. `at`
    /// is then an index into the segment.
    #[inline]
    pub fn for_each_segment(&mut self, mut each: impl FnMut(&mut [u8], Option<Deferred>)) {
        let mut deferred = &self.deferred[..];
        let mut start = 0;
        for segment in self.bytes[..self.used].chunks_mut(self.segment_len.max(1)) {
            let end = start + segment.len();
            let mut payload = None;
            if let Some((&Deferred { at, source }, rest)) = deferred.split_first()
                && at < end
            {
                deferred = rest;
                payload = Some(Deferred {
                    at: at - start,
                    source,
                });
            }
            each(segment, payload);
            start = end;
        }
    }

    /// Returns the buffers of the deferred payloads in order, each with its source. A caller that
    /// fills all of them then calls [`TxBuffer::note_filled`].
    pub fn deferred_mut(&mut self) -> Vec<(Source, &mut [u8])> {
        let mut rest = &mut self.bytes[..self.used];
        let mut before = 0;
        let mut buffers = Vec::with_capacity(self.deferred.len());
        for deferred in &self.deferred {
            let range = deferred.range();
            let (_, behind) = rest.split_at_mut(range.start - before);
            let (buffer, behind) = behind.split_at_mut(range.len());
            buffers.push((deferred.source, buffer));
            (rest, before) = (behind, range.end);
        }
        buffers
    }

    /// Notes that all payloads have been filled in: none is deferred any more.
    pub fn note_filled(&mut self) {
        self.deferred.clear();
    }

    /// Defers payloads longer than `longest_copy` bytes from now on, if they are contiguous in
    /// memory.
    pub const fn defer_longer_than(&mut self, longest_copy: usize) {
        self.longest_copy = longest_copy;
    }

    #[inline]
    pub(crate) const fn defers(&self, payload_len: usize) -> bool {
        payload_len > self.longest_copy
    }

    /// Returns the length of every segment except, possibly, the last.
    #[must_use]
    pub const fn segment_len(&self) -> usize {
        self.segment_len
    }

    /// Returns the number of segments.
    #[must_use]
    pub const fn segments(&self) -> usize {
        self.segments
    }

    /// Sets the largest number of segments of a batch. 1 is without segmentation offload.
    pub const fn set_max_segments(&mut self, max_segments: usize) {
        self.max_segments = max_segments;
    }

    /// Sets whether a shorter segment, which would end the batch, is refused.
    pub(crate) const fn stay_open(&mut self, stay: bool) {
        self.stays_open = stay;
    }

    /// Returns true if a segment of `len` bytes (ICRC included) can be appended.
    #[inline]
    pub(crate) const fn fits(&self, len: usize) -> bool {
        if self.segments == 0 {
            return true;
        }
        !self.closed
            && self.segments < self.max_segments
            && (len == self.segment_len || len < self.segment_len && !self.stays_open)
            && self.used + len <= self.max_bytes
    }

    /// Returns how many segments of `len` bytes (ICRC included) can be appended without ending the
    /// batch.
    #[inline]
    pub(crate) fn space(&self, len: usize) -> usize {
        if self.segments > 0 && (self.closed || len != self.segment_len) {
            return 0;
        }
        let bytes = (self.max_bytes - self.used) / len;
        bytes.min(self.max_segments.saturating_sub(self.segments))
    }

    /// Appends headers and `payload_len` bytes of payload, which `fill` writes, plus pad.
    ///
    /// The caller has checked [`TxBuffer::fits`] and set the pad count in the BTH. If `fill` fails,
    /// the buffer is unchanged.
    #[inline(always)]
    pub(crate) fn push<E>(
        &mut self,
        head: &Head,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.push_parts((&head.bth, head.ext()), payload_len, fill)
    }

    /// Appends a packet like [`TxBuffer::push`], from the BTH and the bytes that follow it, without
    /// assembling a [`Head`].
    #[inline(always)]
    pub(crate) fn push_parts<E>(
        &mut self,
        (bth, ext): (&Bth, &[u8]),
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.used;
        let len = segment_len(ext, payload_len);
        if self.bytes.len() < start + len {
            self.bytes.resize(start + len, 0);
        }
        let segment = &mut self.bytes[start..start + len];
        let (place, rest) = segment.split_at_mut(Bth::LEN);
        place.copy_from_slice(&bth.to_bytes());
        let (place, rest) = rest.split_at_mut(ext.len());
        if !ext.is_empty() {
            place.copy_from_slice(ext);
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

    /// Appends a packet like [`TxBuffer::push`], whose payload the caller copies. Access to the
    /// payload has been checked.
    #[inline]
    pub(crate) fn push_deferred(&mut self, head: &Head, source: Source) {
        let at = self.used + head.len();
        let Ok(()) = self.push(head, source.payload_len(), |_| {
            Ok::<_, core::convert::Infallible>(())
        });
        self.deferred.push(Deferred { at, source });
    }

    /// Appends `count` packets with consecutive PSNs. `bth` completes each BTH.
    ///
    /// The caller has checked [`TxBuffer::space`]. The payloads follow `first` in memory, each of
    /// the same length, and access to them has been checked.
    pub(crate) fn push_deferred_batch(
        &mut self,
        head: &Head,
        first: Source,
        count: u32,
        mut bth: impl FnMut(u32, &mut Bth),
    ) {
        let payload_len = first.payload_len();
        let len = head.segment_len(payload_len);
        let ext = head.ext();
        let start = self.used;
        let end = start + count as usize * len;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let segments = self.bytes[start..end].chunks_exact_mut(len);
        for (index, segment) in (0..count).zip(segments) {
            let mut of_this = head.bth;
            of_this.psn = of_this.psn.add(index);
            bth(index, &mut of_this);
            let (header, rest) = segment.split_at_mut(Bth::LEN);
            header.copy_from_slice(&of_this.to_bytes());
            if !ext.is_empty() {
                rest[..ext.len()].copy_from_slice(ext);
            }
            let before = index as usize;
            self.deferred.push(Deferred {
                at: start + before * len + head.len(),
                source: first.behind(before * payload_len),
            });
        }
        self.used = end;
        if self.segments == 0 {
            self.segment_len = len;
        }
        self.segments += count as usize;
    }
}

/// Returns the number of pad bytes after `payload_len` bytes of payload.
#[inline]
pub(crate) const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

#[cfg(test)]
mod tests {
    use rocade_wire::{Lkey, Opcode, Operation, Psn, Qpn, Service, XrcEth};

    use super::*;

    const LEN: u32 = 256;
    const COUNT: u32 = 3;

    fn source(index: u32) -> Source {
        Source::Local(Sge {
            addr: u64::from(0x1000 + index * LEN),
            len: LEN,
            lkey: Lkey::new(7),
        })
    }

    /// Checks that a batch equals its packets appended one by one, extension headers included.
    #[test]
    fn a_run_repeats_all_headers() {
        let opcode = Opcode::of(Service::Xrc, Operation::SendMiddle).unwrap();
        let mut head = Head::new(Bth::new(opcode, Qpn::new(9), Psn::new(0xff_ffff)));
        let srq = XrcEth {
            resv: 0,
            srqn: 0x0a_0b0c,
        };
        for headers in 0..2 {
            let mut batch = TxBuffer::new(4096, 8);
            batch.push_deferred_batch(&head, source(0), COUNT, |_, _| {});
            let mut single = TxBuffer::new(4096, 8);
            for index in 0..COUNT {
                let mut head = head;
                head.bth.psn = head.bth.psn.add(index);
                single.push_deferred(&head, source(index));
            }
            assert!(batch.bytes() == single.bytes(), "{headers}");
            assert_eq!(batch.deferred(), single.deferred(), "{headers}");
            assert_eq!(batch.segment_len(), single.segment_len(), "{headers}");
            head.push(&srq.to_bytes());
        }
    }

    /// Checks that no opcode defines more headers than fit.
    #[test]
    fn all_extension_headers_fit() {
        for opcode in 0..=u8::MAX {
            if let Some(ext) = Opcode::new(opcode).ext() {
                assert!(ext.len_bytes() <= Head::MAX_EXT_LEN, "{opcode:#x}");
            }
        }
    }
}
