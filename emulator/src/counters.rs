//! The counters of an engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hca::Hca;

/// Statistics of an engine, since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Packets sent.
    pub tx_packets: u64,
    /// Sends that the system refused for a reason other than a full buffer.
    pub tx_errors: u64,
    /// Packets delivered to a QP.
    pub rx_packets: u64,
    /// Datagrams that are not RoCEv2 packets.
    pub rx_malformed: u64,
    /// Packets with a wrong ICRC.
    pub rx_bad_icrc: u64,
    /// Packets for a QP that does not exist.
    pub rx_unknown_qp: u64,
    /// Packets over UDP, or over a different shared-memory link, for a QP whose peer uses a
    /// shared-memory link.
    pub rx_wrong_link: u64,
    /// Packets dropped because their source is not among the allowed peers
    /// ([`Peers`](crate::config::Peers)).
    pub rx_refused: u64,
    /// Datagrams with a forged header of forwarded packets.
    pub rx_forged: u64,
    /// Packets forwarded to the right process.
    pub forwarded: u64,
    /// Packets sent over shared memory, also counted in `tx_packets`.
    pub tx_shared: u64,
    /// Packets received over shared memory, also counted in `rx_packets`.
    pub rx_shared: u64,
}

#[derive(Debug, Default)]
pub(crate) struct AtomicCounters {
    pub(crate) tx_errors: AtomicU64,
    pub(crate) rx_malformed: AtomicU64,
    pub(crate) rx_bad_icrc: AtomicU64,
    pub(crate) rx_unknown_qp: AtomicU64,
    pub(crate) rx_wrong_link: AtomicU64,
    pub(crate) rx_refused: AtomicU64,
    pub(crate) rx_forged: AtomicU64,
    pub(crate) forwarded: AtomicU64,
}

impl AtomicCounters {
    /// Returns the current values, with the sums of the engine's devices.
    pub(crate) fn with(&self, hcas: &[Arc<Hca>]) -> EngineCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let traffic = || hcas.iter().map(|hca| hca.traffic.totals());
        EngineCounters {
            tx_packets: traffic().map(|traffic| traffic.tx_packets).sum(),
            tx_errors: get(&self.tx_errors),
            rx_packets: traffic().map(|traffic| traffic.rx_packets).sum(),
            rx_malformed: get(&self.rx_malformed),
            rx_bad_icrc: get(&self.rx_bad_icrc),
            rx_unknown_qp: get(&self.rx_unknown_qp),
            rx_wrong_link: get(&self.rx_wrong_link),
            rx_refused: get(&self.rx_refused),
            rx_forged: get(&self.rx_forged),
            forwarded: get(&self.forwarded),
            tx_shared: traffic().map(|traffic| traffic.tx_shared).sum(),
            rx_shared: traffic().map(|traffic| traffic.rx_shared).sum(),
        }
    }
}
