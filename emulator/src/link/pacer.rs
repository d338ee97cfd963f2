//! Limits the rate of packets that are not acknowledged.
//!
//! A sender of datagrams would fill the receive buffer of its peer's socket within a millisecond.
//! With a NIC, the link speed limits it. This module limits it to an assumed link speed.

use std::sync::atomic::{AtomicU64, Ordering};

use rocade_transport::Time;

/// Bytes per microsecond: 8 Gbit/s.
const BYTES_PER_US: u64 = 1_000;
/// Bytes added per batch, because a receive buffer holds fewer bytes of short packets.
const PER_RUN_BYTES: u64 = 256;
/// Most time that packets may leave ahead of the link speed.
const BURST_NS: u64 = 200_000;

/// The time at which a link of that speed would be idle again.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    free_at_ns: AtomicU64,
}

impl Pacer {
    /// Reserves the link for a batch of this many bytes. Returns false if the batch has to wait.
    pub(crate) fn try_acquire(&self, now: Time, bytes: usize) -> bool {
        let now = now.as_ns();
        let cost_ns = (bytes as u64 + PER_RUN_BYTES) * 1_000 / BYTES_PER_US;
        let next = |free_at: u64| {
            let free_at = free_at.max(now);
            (free_at <= now + BURST_NS).then_some(free_at + cost_ns)
        };
        self.free_at_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_burst_leaves_at_once_and_the_rest_at_the_speed_of_the_port() {
        let pacer = Pacer::default();
        let at = |us: u64| Time::from_ns(us * 1_000);
        const BATCH: usize = 49_744;
        let burst = (0..100)
            .take_while(|_| pacer.try_acquire(at(1), BATCH))
            .count();
        assert_eq!(burst, 5, "200 us ahead, and one more");
        let mut sent = 0;
        for us in 1..=1_001 {
            sent += u64::from(pacer.try_acquire(at(us), BATCH));
        }
        assert_eq!(sent, 20, "a batch each 50 us");
        assert!(
            pacer.try_acquire(at(5_000), BATCH),
            "time that was not used is over"
        );
    }
}
