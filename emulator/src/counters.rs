//! What an engine counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hca::Hca;

/// Statistics of an engine, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounters {
    /// Packets sent.
    pub tx_packets: u64,
    /// Sends that the system refused for a reason other than lack of room.
    pub tx_errors: u64,
    /// Packets handed to a QP.
    pub rx_packets: u64,
    /// Datagrams that are no RoCEv2 packets (ENC-16, BTH-05).
    pub rx_malformed: u64,
    /// Packets with a wrong ICRC (ICRC-11).
    pub rx_bad_icrc: u64,
    /// Packets for a QP that does not exist (BTH-10).
    pub rx_unknown_qp: u64,
    /// Packets that came over UDP, or through another channel, for a QP whose peer uses a channel.
    pub rx_wrong_link: u64,
    /// Packets from addresses that are not among the allowed peers ([`Peers`](crate::config::Peers)), not looked at further.
    pub rx_refused: u64,
    /// Datagrams that pretended to be passed on by another process of this host, and were not.
    pub rx_forged: u64,
    /// Packets passed on to the process that they are for.
    pub forwarded: u64,
    /// Those of the packets sent that went through shared memory.
    pub tx_shared: u64,
    /// Those of the packets handed to a QP that came through shared memory.
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
    /// As they are now, with what the devices of the engine have counted.
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
