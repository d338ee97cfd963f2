//! Statistics of a queue pair.

use super::Qp;
use crate::counters::{Counters, Violations};

impl Qp {
    /// Returns the statistics.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.out.counters.all()
    }

    /// Counts bytes that were sent, from BTH to ICRC.
    #[inline]
    pub fn note_sent(&mut self, bytes: usize) {
        self.out.counters.traffic().tx_bytes += bytes as u64;
    }

    /// Counts packets that the QP was given, and their bytes from BTH to ICRC.
    #[inline]
    pub fn note_received(&mut self, packets: u64, bytes: usize) {
        let traffic = self.out.counters.traffic();
        traffic.arrived_packets += packets;
        traffic.rx_bytes += bytes as u64;
    }

    /// Returns the key violations since the last call, if there were any.
    #[inline]
    pub fn take_violations(&mut self) -> Option<Violations> {
        self.out.counters.take_violations()
    }

    /// Returns the number of ACKs sent.
    #[must_use]
    pub fn acks_sent(&self) -> u64 {
        self.out.counters.acks_sent()
    }
}
