//! What goes through a port, for the counters that programs read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Since the engine was made.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    tx_packets: AtomicU64,
    tx_bytes: AtomicU64,
    tx_shared: AtomicU64,
    rx_packets: AtomicU64,
    rx_bytes: AtomicU64,
    rx_bad_icrc: AtomicU64,
    rx_malformed: AtomicU64,
}

/// What has gone through a port, and how much of it through shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) tx_packets: u64,
    pub(crate) tx_shared: u64,
    pub(crate) rx_packets: u64,
}

/// Names below `ports/N`, in the order of [`Traffic::values`].
pub(crate) const COUNTER_FILES: [&str; 11] = [
    "counters/port_xmit_packets",
    "counters/unicast_xmit_packets",
    "counters/port_xmit_data",
    "counters/port_rcv_packets",
    "counters/unicast_rcv_packets",
    "counters/port_rcv_data",
    "counters/port_rcv_errors",
    "hw_counters/sent_pkts",
    "hw_counters/rcvd_pkts",
    "hw_counters/shared_memory_pkts",
    "hw_counters/rx_icrc_encapsulated",
];

impl Traffic {
    /// A run of packets has left; `bytes` are those from BTH to ICRC.
    #[inline]
    pub(crate) fn sent(&self, packets: u64, bytes: usize, shared: bool) {
        self.tx_packets.fetch_add(packets, Ordering::Relaxed);
        self.tx_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if shared {
            self.tx_shared.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// Packets were handed to QPs.
    #[inline]
    pub(crate) fn received(&self, packets: u64, bytes: usize) {
        self.rx_packets.fetch_add(packets, Ordering::Relaxed);
        self.rx_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A packet with a wrong ICRC came (ICRC-11).
    pub(crate) fn bad_icrc(&self) {
        self.rx_bad_icrc.fetch_add(1, Ordering::Relaxed);
    }

    /// Something came that is no packet.
    pub(crate) fn malformed(&self) {
        self.rx_malformed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            tx_packets: self.tx_packets.load(Ordering::Relaxed),
            tx_shared: self.tx_shared.load(Ordering::Relaxed),
            rx_packets: self.rx_packets.load(Ordering::Relaxed),
        }
    }

    /// What the files of [`COUNTER_FILES`] say of this process. Data is counted in units of four
    /// bytes.
    pub(crate) fn values(&self) -> [u64; COUNTER_FILES.len()] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (sent, received) = (get(&self.tx_packets), get(&self.rx_packets));
        let (bad_icrc, malformed) = (get(&self.rx_bad_icrc), get(&self.rx_malformed));
        [
            sent,
            sent,
            get(&self.tx_bytes) / 4,
            received,
            received,
            get(&self.rx_bytes) / 4,
            bad_icrc + malformed,
            sent,
            received,
            get(&self.tx_shared),
            bad_icrc,
        ]
    }
}
