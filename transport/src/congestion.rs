//! Limits on how much a QP may have in flight.
//!
//! The first limit protects the peer's receive buffer, whose size is unknown and which all QPs of
//! the peer's process share. An overflow loses a burst of packets, which is expensive with
//! go-back-N. So a QP starts with a small window, enlarges it while no packet is lost and reduces
//! it after a loss. Bytes in flight are counted as receive-buffer cost: a packet costs at least
//! [`MIN_PACKET_COST`].
//!
//! The second limit protects against spurious timeouts, because a slow peer, or one that waits for
//! its processor, is not dead. The bytes in flight are limited so that their ACK is expected within
//! a quarter of the ACK timeout. The limit follows from the measured round-trip times.

/// Receive-buffer cost of the smallest packet, in bytes.
pub(crate) const MIN_PACKET_COST: u32 = 512;

const INITIAL_WINDOW_BYTES: u32 = 128 * 1024;
const MAX_WINDOW_BYTES: u32 = 2 * 1024 * 1024;
const MIN_WINDOW_BYTES: u32 = 16 * 1024;
/// A window of the smallest packets is far below half of the PSN space, even with what is sent
/// beyond it.
//= RC-PSN-03
const _: () = assert!(MAX_WINDOW_BYTES / MIN_PACKET_COST < 1 << 20);
/// Number of batches from which on a window counts as large.
const BATCHES_IN_LARGE: u64 = 8;
/// An ACK is expected within this fraction of the ACK timeout.
const TIMEOUT_PARTS: u64 = 4;
/// The assumed speed of a peer until it is measured. With the usual timeout of 67 ms,
/// [`INITIAL_WINDOW_BYTES`] are acknowledged in time.
const BYTES_PER_US: u64 = 8;
/// Most packets between two with AckReq.
const MAX_ACK_REQ_INTERVAL: u32 = 16;
/// Least number of ACKs requested per window from a slow peer.
const ACKS_PER_WINDOW: u32 = 4;
/// The sizes of all READ requests are multiples of this, and so of every path MTU.
const READ_UNIT: u32 = 4096;

/// A window in bytes with slow start and additive increase, multiplicative decrease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    bytes: u32,
    threshold: u32,
    /// Bytes that are expected to be acknowledged within `time_ns`.
    rtt_limit: u32,
    /// Time in which an ACK has to arrive, in ns. `u64::MAX` without a limit.
    time_ns: u64,
    /// Round-trip time in ns: the longest measured, decaying slowly. 0 if unknown.
    rtt_ns: u64,
}

impl Window {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: INITIAL_WINDOW_BYTES,
            threshold: MAX_WINDOW_BYTES,
            rtt_limit: MAX_WINDOW_BYTES,
            time_ns: u64::MAX,
            rtt_ns: 0,
        }
    }

    /// Sets the ACK timeout, `None` without one.
    pub(crate) fn set_timeout(&mut self, timeout_ns: Option<u64>) {
        self.time_ns = timeout_ns.map_or(u64::MAX, |ns| ns / TIMEOUT_PARTS);
        self.rtt_limit = to_window(u128::from(self.time_ns) * u128::from(BYTES_PER_US) / 1000);
        self.rtt_ns = 0;
    }

    /// Asserts the conditions that hold between any two calls.
    #[cfg(debug_assertions)]
    pub(crate) fn check_invariants(&self) {
        assert!(self.bytes >= MIN_PACKET_COST, "{self:?}");
        assert!(self.bytes <= MAX_WINDOW_BYTES, "{self:?}");
        assert!(self.threshold >= MIN_WINDOW_BYTES, "{self:?}");
        assert!(self.threshold <= MAX_WINDOW_BYTES, "{self:?}");
        assert!(self.rtt_limit <= MAX_WINDOW_BYTES, "{self:?}");
        assert_eq!(self.read_chunk() % READ_UNIT, 0, "{self:?}");
    }

    /// Returns the bytes that may be in flight.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.bytes.min(self.rtt_limit))
    }

    /// Returns the bytes that may be in flight at the end of a batch of at most `batch` bytes that
    /// begins with `in_flight`.
    ///
    /// With a large window the batch is not cut short, because a short batch takes nearly as long
    /// to send. The ACK requests inside the batch open the window again.
    pub(crate) fn limit(&self, in_flight: u64, batch: usize) -> u64 {
        let (bytes, batch) = (self.bytes(), batch as u64);
        if in_flight < bytes && bytes >= BATCHES_IN_LARGE * batch {
            bytes + batch
        } else {
            bytes
        }
    }

    /// Returns the largest size of one READ request.
    ///
    /// The burst of its response has to fit the requester's receive buffer, and to arrive in time.
    /// On the wire a long READ is a series of ordinary requests with consecutive PSNs.
    pub(crate) fn read_chunk(&self) -> u32 {
        const KIB: u32 = 1024;
        let chunk = if self.bytes >= MAX_WINDOW_BYTES {
            1024 * KIB
        } else if self.bytes >= MAX_WINDOW_BYTES / 2 {
            256 * KIB
        } else {
            128 * KIB
        };
        // The round-trip time is unknown: a READ is sent as most devices send it.
        if self.rtt_ns == 0 {
            return chunk;
        }
        chunk
            .min(self.rtt_limit / READ_UNIT * READ_UNIT)
            .max(READ_UNIT)
    }

    /// Returns how often a packet of `packet_cost` requests an ACK: every n-th packet.
    ///
    /// As long as no round-trip time is known, every packet does, because each ACK of a slow peer
    /// proves that it is alive.
    pub(crate) fn ack_req_interval(&self, packet_cost: u32) -> u32 {
        if self.rtt_ns == 0 && self.time_ns != u64::MAX {
            return 1;
        }
        (self.rtt_limit / ACKS_PER_WINDOW / packet_cost).clamp(1, MAX_ACK_REQ_INTERVAL)
    }

    /// Returns how long an ACK may take, in ns.
    pub(crate) const fn patience_ns(&self) -> u64 {
        self.rtt_ns.saturating_mul(TIMEOUT_PARTS)
    }

    /// Returns the throughput in bits per second, if it is known.
    pub(crate) fn bps(&self) -> Option<u64> {
        let bits = self.bytes() * 8 * 1_000_000_000;
        bits.checked_div(self.rtt_ns)
    }

    /// Enlarges the window after `acked` bytes were acknowledged without loss.
    pub(crate) fn on_progress(&mut self, acked: u64) {
        let acked = u32::try_from(acked)
            .unwrap_or(MAX_WINDOW_BYTES)
            .min(MAX_WINDOW_BYTES);
        let growth = if self.bytes < self.threshold {
            acked
        } else {
            // Grows by about one eighth of the minimum per window's worth of ACKs.
            let growth = u64::from(MIN_WINDOW_BYTES / 8) * u64::from(acked) / u64::from(self.bytes);
            u32::try_from(growth).unwrap_or(MAX_WINDOW_BYTES).max(1)
        };
        self.bytes = (self.bytes + growth).min(MAX_WINDOW_BYTES);
    }

    /// Returns true if an ACK should have arrived after this time. Then [`Window::on_sample`] can
    /// be called before the ACK arrives.
    #[inline]
    pub(crate) const fn is_overdue(&self, elapsed_ns: u64) -> bool {
        elapsed_ns > self.time_ns
    }

    /// Records that `delivered` bytes were acknowledged in `rtt_ns`.
    ///
    /// `rtt_ns` is the time since the acknowledged packet was sent, or since a packet was sent that
    /// is still unacknowledged.
    //= RC-ACK-21
    pub(crate) fn on_sample(&mut self, delivered: u64, rtt_ns: u64) {
        let rtt_ns = rtt_ns.max(1);
        self.rtt_ns = rtt_ns.max(self.rtt_ns - self.rtt_ns / 8);
        if self.time_ns == u64::MAX {
            return;
        }
        let rtt_limit =
            to_window(u128::from(delivered) * u128::from(self.time_ns) / u128::from(rtt_ns));
        // A small amount that was acknowledged quickly does not show that more would be too slow.
        if rtt_ns > self.time_ns || rtt_limit > self.rtt_limit {
            self.rtt_limit = rtt_limit;
        }
    }

    /// Reduces the window after a reported gap: a packet was lost or reordered.
    pub(crate) fn on_loss(&mut self) {
        self.threshold = (self.bytes / 2).max(MIN_WINDOW_BYTES);
        self.bytes = self.threshold;
    }

    /// Reduces the window after a whole timeout without an answer, with so much in flight.
    pub(crate) fn on_timeout(&mut self, in_flight: u64) {
        self.threshold = (self.bytes / 2).max(MIN_WINDOW_BYTES);
        self.bytes = MIN_PACKET_COST;
        let quarter = u128::from(in_flight / TIMEOUT_PARTS);
        self.rtt_limit = self.rtt_limit.min(to_window(quarter));
    }

    /// Restores the window after a spurious timeout: no packet was lost, the ACK was only late.
    pub(crate) fn on_late_ack(&mut self) {
        self.bytes = self.threshold;
    }
}

fn to_window(bytes: u128) -> u32 {
    u32::try_from(bytes)
        .unwrap_or(MAX_WINDOW_BYTES)
        .min(MAX_WINDOW_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn window(timeout_ms: u64) -> Window {
        let mut window = Window::new();
        window.set_timeout(Some(timeout_ms * MS));
        window
    }

    //= RC-ACK-21 type=test
    #[test]
    fn what_is_in_flight_follows_the_round_trip() {
        let mut window = window(64);
        assert_eq!(window.bytes(), 128_000);
        // At 1 MB/s: 16 KB in 16 ms.
        window.on_sample(32_000, 32 * MS);
        assert_eq!(window.bytes(), 16_000);
        window.on_sample(1_000, 2 * MS);
        assert_eq!(window.bytes(), 16_000, "a small sample changes nothing");
        window.on_sample(16_000, 8 * MS);
        assert_eq!(window.bytes(), 32_000, "twice as fast");
        window.on_sample(4096, 40_000);
        assert_eq!(
            window.bytes(),
            u64::from(INITIAL_WINDOW_BYTES),
            "the peer is fast"
        );
        window.on_timeout(200_000);
        assert_eq!(window.bytes(), u64::from(MIN_PACKET_COST));
        window.on_late_ack();
        assert_eq!(window.bytes(), 50_000);
    }

    #[test]
    fn a_slow_peer_is_asked_more_often() {
        let mut window = window(64);
        assert_eq!(window.ack_req_interval(1024), 1, "unknown");
        window.on_sample(1_000, 1_000);
        assert_eq!(window.ack_req_interval(1024), 16);
        window.on_sample(16_384, 16 * MS + 1);
        assert_eq!(window.ack_req_interval(1024), 3);
        window.on_sample(512, 32 * MS);
        assert_eq!(window.ack_req_interval(1024), 1);
        assert_eq!(window.read_chunk(), READ_UNIT);
    }

    #[test]
    fn without_a_timeout_nothing_is_too_slow() {
        let mut window = Window::new();
        window.set_timeout(None);
        window.on_sample(1, u64::MAX);
        assert_eq!(window.bytes(), u64::from(INITIAL_WINDOW_BYTES));
        assert_eq!(window.ack_req_interval(4096), 16);
    }

    #[test]
    fn the_round_trip_is_forgotten_slowly() {
        let mut window = window(64);
        window.on_sample(1, 8 * MS);
        window.on_sample(1, MS);
        assert_eq!(window.patience_ns(), 28 * MS);
        window.on_sample(1, 100 * MS);
        assert_eq!(window.patience_ns(), 400 * MS);
    }

    #[test]
    fn a_window_doubles_until_it_lost_something_and_grows_slowly_then() {
        let mut window = Window::new();
        let begin = u64::from(INITIAL_WINDOW_BYTES);
        window.on_progress(begin);
        assert_eq!(window.bytes(), 2 * begin);
        window.on_loss();
        assert_eq!(window.bytes(), begin, "half the window");
        window.on_progress(begin);
        assert_eq!(window.bytes(), begin + u64::from(MIN_WINDOW_BYTES / 8));
        for _ in 0..20 {
            window.on_loss();
        }
        assert_eq!(window.bytes(), u64::from(MIN_WINDOW_BYTES));
        for _ in 0..20_000 {
            window.on_progress(begin);
        }
        assert_eq!(window.bytes(), u64::from(MAX_WINDOW_BYTES));
    }

    #[test]
    fn only_a_large_window_that_is_open_lets_a_run_end() {
        let window = Window::new();
        let bytes = window.bytes();
        let batch = usize::try_from(bytes / BATCHES_IN_LARGE).unwrap();
        assert_eq!(window.limit(bytes - 1, batch), bytes + batch as u64);
        assert_eq!(window.limit(bytes, batch), bytes, "the window is closed");
        assert_eq!(window.limit(0, batch + 1), bytes, "the window is small");
    }
}
