//! Receive buffer and batch.

use core::fmt;
use std::net::SocketAddr;

/// Size of the longest run that GRO merges.
const RX_BUFFER_LEN: usize = 1 << 16;

/// The buffer of one receive call: 64 KiB, the most that the kernel merges. Reuse it.
pub struct RxBuffer {
    bytes: Box<[u8]>,
}

impl RxBuffer {
    /// Allocates a buffer.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: vec![0; RX_BUFFER_LEN].into_boxed_slice(),
        }
    }

    #[inline]
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Default for RxBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RxBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxBuffer")
            .field("len", &self.bytes.len())
            .finish()
    }
}

/// The result of one receive call: one datagram, or several of one sender merged by GRO.
#[derive(Clone, Copy, Debug)]
pub struct RxBatch<'b> {
    /// The payloads, one after the other.
    pub data: &'b [u8],
    /// Length of each payload in bytes, never 0. The last may be shorter.
    pub segment_len: usize,
    /// Address and port of the sender. The port carries no meaning.
    pub source: SocketAddr,
    /// IPv4 TOS or IPv6 traffic class: DSCP in bits 7:2, ECN in bits 1:0. Only set after
    /// [`UdpLink::set_receive_tos`](super::UdpLink::set_receive_tos).
    pub tos: Option<u8>,
    /// IPv4 TTL or IPv6 hop limit. Only set after
    /// [`UdpLink::report_headers`](super::UdpLink::report_headers).
    pub hop_limit: Option<u8>,
}

impl<'b> RxBatch<'b> {
    /// Returns the UDP payloads in the order of arrival.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> Segments<'b> {
        Segments::new(self.data, self.segment_len)
    }
}

/// An iterator over the UDP payloads of an [`RxBatch`]. An empty datagram yields nothing.
#[derive(Clone, Debug)]
pub struct Segments<'b> {
    rest: &'b [u8],
    segment_len: usize,
}

impl<'b> Segments<'b> {
    /// Creates an iterator. `segment_len` must not be 0.
    pub(crate) const fn new(data: &'b [u8], segment_len: usize) -> Self {
        Self {
            rest: data,
            segment_len,
        }
    }
}

impl<'b> Iterator for Segments<'b> {
    type Item = &'b [u8];

    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let at = self.segment_len.clamp(1, self.rest.len());
        let (segment, rest) = self.rest.split_at(at);
        self.rest = rest;
        Some(segment)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.len().div_ceil(self.segment_len.max(1));
        (left, Some(left))
    }
}

impl ExactSizeIterator for Segments<'_> {}
