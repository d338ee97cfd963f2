//! How much a QP may have in flight.
//!
//! The peer's receive buffer is shared by all QPs of its process and unknown to us; an overflow
//! is a burst loss that go-back-N pays dearly. So a QP starts modestly, grows while nothing is
//! lost and backs off when something is. Bytes in flight are counted as receive-buffer cost: a
//! packet costs at least [`MIN_PACKET_COST`].

/// What the smallest packet costs the peer's receive buffer, in bytes.
pub(crate) const MIN_PACKET_COST: u32 = 512;

const INITIAL_BYTES: u64 = 128 * 1024;
const MAX_BYTES: u64 = 2 * 1024 * 1024;
const MIN_BYTES: u64 = 16 * 1024;
/// A window of so many runs is large.
const RUNS_IN_LARGE: u64 = 8;

/// A window in bytes with slow start and additive increase, multiplicative decrease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    bytes: u64,
    threshold: u64,
}

impl Window {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: INITIAL_BYTES,
            threshold: MAX_BYTES,
        }
    }

    /// Bytes that may be in flight.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What may be in flight at the end of a run of `run` bytes at most that begins with `in_flight`. A
    /// large window is no reason to cut the run short: a short one takes nearly as long to send. The
    /// requests for acknowledgement inside it open the window again.
    pub(crate) const fn limit(&self, in_flight: u64, run: usize) -> u64 {
        let run = run as u64;
        if in_flight < self.bytes && self.bytes >= RUNS_IN_LARGE * run {
            self.bytes + run
        } else {
            self.bytes
        }
    }

    /// How much a READ request asks for at most, so that the burst of its response fits the receive
    /// buffer of whoever asked. On the wire a long READ is a series of ordinary requests with consecutive
    /// PSNs.
    pub(crate) const fn read_chunk(&self) -> u32 {
        const KIB: u32 = 1024;
        if self.bytes >= MAX_BYTES {
            1024 * KIB
        } else if self.bytes >= MAX_BYTES / 2 {
            256 * KIB
        } else {
            128 * KIB
        }
    }

    /// `acked` bytes left the network in good order.
    pub(crate) fn on_progress(&mut self, acked: u64) {
        let growth = if self.bytes < self.threshold {
            acked
        } else {
            // About one eighth of the minimum per window's worth of acknowledgements.
            (MIN_BYTES / 8 * acked / self.bytes).max(1)
        };
        self.bytes = (self.bytes + growth).min(MAX_BYTES);
    }

    /// A gap was reported: something in the window was lost or reordered.
    pub(crate) fn on_loss(&mut self) {
        self.threshold = (self.bytes / 2).max(MIN_BYTES);
        self.bytes = self.threshold;
    }

    /// Nothing came back for a whole timeout.
    pub(crate) fn on_timeout(&mut self) {
        self.threshold = (self.bytes / 2).max(MIN_BYTES);
        self.bytes = MIN_BYTES;
    }
}
