//! The caller's transmit buffer: one run of equal segments, ready for segmentation offload.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use rocade_wire::{Aeth, Bth, MAX_HEADERS_LEN, Rkey};

use crate::wr::{RouteTag, Sge};

/// Bytes of the ICRC, left free at the end of each segment.
pub(crate) const ICRC_LEN: usize = 4;
/// Length of an acknowledgement: BTH, AETH, ICRC.
pub const ACK_LEN: usize = Bth::LEN + Aeth::LEN + ICRC_LEN;

/// The headers of a packet to be sent, on their way to the buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) bth: Bth,
    ext: [u8; Self::MAX_EXT_LEN],
    ext_len: usize,
}

impl Head {
    /// The longest combination that an opcode of any service defines.
    const MAX_EXT_LEN: usize = MAX_HEADERS_LEN - Bth::LEN;

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

    #[inline]
    fn ext(&self) -> &[u8] {
        &self.ext[..self.ext_len]
    }

    /// All of a packet that has no payload; `None` where it is not as long.
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

    /// Length of a segment with this head and payload, pad and ICRC included.
    #[inline]
    pub(crate) const fn segment_len(&self, payload_len: usize) -> usize {
        self.len() + payload_len + pad_len(payload_len) + ICRC_LEN
    }
}

/// Length of a segment with these extension headers and a payload as long, pad and ICRC included.
#[inline]
pub(crate) const fn segment_len(ext: &[u8], payload_len: usize) -> usize {
    Bth::LEN + ext.len() + payload_len + pad_len(payload_len) + ICRC_LEN
}

/// Where in registered memory the payload of a packet is. Key, rights and range have been checked; the
/// memory itself may be gone all the same ([`Qp::salvage`](crate::Qp::salvage)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A request's: a local buffer.
    Local(Sge),
    /// A READ response's: `len` bytes at address `va` of the region with key `rkey`.
    Remote {
        /// Remote key.
        rkey: Rkey,
        /// Address in the region's own address space.
        va: u64,
        /// Length in bytes, not 0.
        len: u32,
        /// The READ has been answered before.
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

    /// As many bytes, `bytes` behind this in memory that has been checked.
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

/// A payload that the caller still has to put into the buffer, where `at` is its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// Index of the first byte.
    pub at: usize,
    /// What belongs there.
    pub source: Source,
}

impl Deferred {
    /// Where the payload belongs.
    #[inline]
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        self.at..self.at + self.source.payload_len()
    }
}

/// A run of UDP payloads for one destination.
///
/// All segments have [`TxBuffer::segment_len`] bytes but the last, which may be shorter, so that
/// the run can go out in one segmented send. Each ends in 4 bytes that the caller fills with the
/// ICRC. Long payloads may be left for the caller to copy too, because it can sum them up on the way
/// ([`TxBuffer::defer_longer_than`]).
#[derive(Debug)]
pub struct TxBuffer {
    /// The first `used` bytes count; the rest is memory that is not cleared again and again.
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
    /// A buffer for at most `max_segments` segments and `max_bytes` bytes, at least one segment.
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

    /// Most bytes that fit.
    #[inline]
    pub(crate) const fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Takes no more than `max_bytes` bytes in all from now on, but for a first segment. Returns how many it took before.
    pub(crate) fn limit(&mut self, max_bytes: usize) -> usize {
        let before = self.max_bytes;
        self.max_bytes = before.min(max_bytes);
        before
    }

    /// Takes as many as that returned.
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

    /// Which way all of it takes.
    #[inline]
    #[must_use]
    pub const fn route(&self) -> RouteTag {
        self.route
    }

    /// May something be appended that takes this way?
    pub(crate) fn leads_to(&self, route: RouteTag) -> bool {
        self.segments == 0 || self.route == route
    }

    /// What is in it takes this way.
    pub(crate) const fn lead_to(&mut self, route: RouteTag) {
        self.route = route;
    }

    /// Nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// All segments, one after the other. What is deferred holds anything.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// The payloads that are not there yet, in order.
    #[must_use]
    pub fn deferred(&self) -> &[Deferred] {
        &self.deferred
    }

    /// Calls `each` with the bytes of each segment, and with its payload if that is deferred; `at` counts
    /// from the beginning of the segment then.
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

    /// The places of the payloads that are not there yet, in order, each with what belongs there. Whoever fills them all
    /// says so ([`TxBuffer::note_filled`]).
    pub fn deferred_places(&mut self) -> Vec<(Source, &mut [u8])> {
        let mut rest = &mut self.bytes[..self.used];
        let mut before = 0;
        let mut places = Vec::with_capacity(self.deferred.len());
        for deferred in &self.deferred {
            let range = deferred.range();
            let (_, behind) = rest.split_at_mut(range.start - before);
            let (place, behind) = behind.split_at_mut(range.len());
            places.push((deferred.source, place));
            (rest, before) = (behind, range.end);
        }
        places
    }

    /// All payloads are there: none is deferred any more.
    pub fn note_filled(&mut self) {
        self.deferred.clear();
    }

    /// From now on payloads that are longer than `longest_copy` bytes, and in one piece in memory, are
    /// left for the caller to copy.
    pub const fn defer_longer_than(&mut self, longest_copy: usize) {
        self.longest_copy = longest_copy;
    }

    #[inline]
    pub(crate) const fn defers(&self, payload_len: usize) -> bool {
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

    /// Whether nothing may be appended behind which nothing else could be.
    pub(crate) const fn stay_open(&mut self, stay: bool) {
        self.stays_open = stay;
    }

    /// Can a segment of `len` bytes (ICRC included) be appended?
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

    /// How many segments of `len` bytes (ICRC included) can be appended that others may follow.
    #[inline]
    pub(crate) fn room(&self, len: usize) -> usize {
        if self.segments > 0 && (self.closed || len != self.segment_len) {
            return 0;
        }
        let bytes = (self.max_bytes - self.used) / len;
        bytes.min(self.max_segments.saturating_sub(self.segments))
    }

    /// Appends headers and `payload_len` bytes of payload, which `fill` writes, plus pad.
    /// The caller has asked [`TxBuffer::fits`] before and set the pad count in the BTH.
    /// If `fill` fails, the buffer is as before.
    #[inline(always)]
    pub(crate) fn push<E>(
        &mut self,
        head: &Head,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.push_parts((&head.bth, head.ext()), payload_len, fill)
    }

    /// Likewise, with the BTH and what follows it: nothing has to be put together before.
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

    /// Like [`TxBuffer::push`] for a payload that the caller copies. It has been checked.
    #[inline]
    pub(crate) fn push_deferred(&mut self, head: &Head, source: Source) {
        let at = self.used + head.len();
        let Ok(()) = self.push(head, source.payload_len(), |_| {
            Ok::<_, core::convert::Infallible>(())
        });
        self.deferred.push(Deferred { at, source });
    }

    /// Appends `count` packets with consecutive PSNs, for which there is [`TxBuffer::room`], and whose
    /// payloads follow `first` in memory, each as long. All are checked. `bth` completes each BTH.
    pub(crate) fn push_deferred_run(
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

/// Pad bytes after `payload_len` bytes of payload (BTH-04).
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

    /// A run is what its packets are one by one, extension headers included.
    #[test]
    fn a_run_repeats_all_headers() {
        let opcode = Opcode::of(Service::Xrc, Operation::SendMiddle).unwrap();
        let mut head = Head::new(Bth::new(opcode, Qpn::new(9), Psn::new(0xff_ffff)));
        let srq = XrcEth {
            resv: 0,
            srqn: 0x0a_0b0c,
        };
        for headers in 0..2 {
            let mut run = TxBuffer::new(4096, 8);
            run.push_deferred_run(&head, source(0), COUNT, |_, _| {});
            let mut single = TxBuffer::new(4096, 8);
            for index in 0..COUNT {
                let mut head = head;
                head.bth.psn = head.bth.psn.add(index);
                single.push_deferred(&head, source(index));
            }
            assert!(run.bytes() == single.bytes(), "{headers}");
            assert_eq!(run.deferred(), single.deferred(), "{headers}");
            assert_eq!(run.segment_len(), single.segment_len(), "{headers}");
            head.push(&srq.to_bytes());
        }
    }

    /// No opcode defines more headers than fit.
    #[test]
    fn all_extension_headers_fit() {
        for opcode in 0..=u8::MAX {
            if let Some(ext) = Opcode::new(opcode).ext() {
                assert!(ext.len_bytes() <= Head::MAX_EXT_LEN, "{opcode:#x}");
            }
        }
    }
}
