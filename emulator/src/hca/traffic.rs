//! The traffic of a port, for the counters that applications read.
//!
//! One thread may send while another receives, so that their counters are on different cache lines.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

/// The counters since the engine was made.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    tx: CachePadded<Sent>,
    rx: CachePadded<Received>,
}

#[derive(Debug, Default)]
struct Sent {
    /// Through sockets.
    packets: AtomicU64,
    /// Through shared memory.
    shared: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Received {
    /// From sockets.
    packets: AtomicU64,
    /// From shared memory.
    shared: AtomicU64,
    bytes: AtomicU64,
    bad_icrc: AtomicU64,
    malformed: AtomicU64,
}

/// The packets of a port, and how many of them went through shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) tx_packets: u64,
    pub(crate) tx_shared: u64,
    pub(crate) rx_packets: u64,
    pub(crate) rx_shared: u64,
}

/// Names below `ports/N`, in the order of [`Traffic::values`].
pub(super) const COUNTER_FILES: [&str; 11] = [
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
    /// Counts a run of packets that was sent. `bytes` are those from BTH to ICRC.
    #[inline]
    pub(crate) fn sent(&self, packets: u64, bytes: usize, shared: bool) {
        let counter = if shared {
            &self.tx.shared
        } else {
            &self.tx.packets
        };
        counter.fetch_add(packets, Ordering::Relaxed);
        self.tx.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts packets that were handed to QPs.
    #[inline]
    pub(crate) fn received(&self, packets: u64, bytes: usize, shared: bool) {
        let counter = if shared {
            &self.rx.shared
        } else {
            &self.rx.packets
        };
        counter.fetch_add(packets, Ordering::Relaxed);
        self.rx.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a packet with a wrong ICRC.
    pub(crate) fn bad_icrc(&self) {
        self.rx.bad_icrc.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a malformed packet.
    pub(crate) fn malformed(&self) {
        self.rx.malformed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn totals(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (tx_shared, rx_shared) = (get(&self.tx.shared), get(&self.rx.shared));
        Totals {
            tx_packets: get(&self.tx.packets) + tx_shared,
            tx_shared,
            rx_packets: get(&self.rx.packets) + rx_shared,
            rx_shared,
        }
    }

    /// Returns the numbers of packets with a wrong ICRC, and of malformed ones.
    pub(crate) fn refused(&self) -> (u64, u64) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (get(&self.rx.bad_icrc), get(&self.rx.malformed))
    }

    /// Returns the values of [`COUNTER_FILES`] for this process. Data is counted in units of four
    /// bytes.
    pub(super) fn values(&self) -> [u64; COUNTER_FILES.len()] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Totals {
            tx_packets: sent,
            rx_packets: received,
            ..
        } = self.totals();
        let (bad_icrc, malformed) = self.refused();
        [
            sent,
            sent,
            get(&self.tx.bytes) / 4,
            received,
            received,
            get(&self.rx.bytes) / 4,
            bad_icrc + malformed,
            sent,
            received,
            get(&self.tx.shared),
            bad_icrc,
        ]
    }
}
