//! A simulated network: several HCAs in one process, virtual time, no sockets.
//!
//! A packet arrives after the latency, in the order of sending. Everything else is injected by
//! [`fault`](super::fault) rules. Time stands still while the program runs, and advances to the
//! next event when a poll finds nothing. A single-threaded program therefore behaves the same each
//! time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sync::Mutex;
use rocade_transport::Time;
use rocade_wire::Qpn;

use super::{Link, LocalAddr, RxBatch, RxBuffer, Segments, UdpTxHandle};

/// UDP source port of all packets.
const PORT: u16 = 0xC000;
/// Start of the virtual time, late enough that times before it can be represented.
const BEGIN_NS: u64 = 1_000_000_000;

/// Parameters of a simulated network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulation {
    /// Seed of all random values: QP numbers, initial PSNs, rules with a probability.
    pub seed: u64,
    /// Latency from one HCA to another.
    pub latency: Duration,
}

/// The network of an engine, and its time.
#[derive(Debug)]
pub(crate) struct SimNetwork {
    latency_ns: u64,
    now_ns: Arc<AtomicU64>,
    flying: Mutex<Flying>,
}

#[derive(Debug, Default)]
struct Flying {
    packets: BinaryHeap<Reverse<InFlight>>,
    /// Number of packets sent.
    sent: u64,
}

/// A packet in flight, ordered by arrival time, then by sending.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    due: Time,
    number: u64,
    to: IpAddr,
    from: IpAddr,
    tos: u8,
    bytes: Vec<u8>,
}

impl SimNetwork {
    pub(crate) fn new(simulation: Simulation) -> Self {
        let latency_ns = u64::try_from(simulation.latency.as_nanos()).unwrap_or(u64::MAX);
        Self {
            latency_ns: latency_ns.max(1),
            now_ns: Arc::new(AtomicU64::new(BEGIN_NS)),
            flying: Mutex::default(),
        }
    }

    /// Returns the time, for a clock.
    pub(crate) fn time(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.now_ns)
    }

    fn now(&self) -> Time {
        Time::from_ns(self.now_ns.load(Ordering::Relaxed))
    }

    /// Advances the time, never back.
    pub(crate) fn move_to(&self, time: Time) {
        self.now_ns.fetch_max(time.as_ns(), Ordering::Relaxed);
    }

    /// Returns the arrival time of the next packet.
    pub(crate) fn next_due(&self) -> Option<Time> {
        let flying = self.flying.lock();
        flying.packets.peek().map(|Reverse(packet)| packet.due)
    }
}

/// An address in a simulated network.
#[derive(Debug)]
pub(crate) struct SimLink {
    local: LocalAddr,
    network: Arc<SimNetwork>,
}

impl SimLink {
    pub(crate) const fn new(local: LocalAddr, network: Arc<SimNetwork>) -> Self {
        Self { local, network }
    }
}

impl Link for SimLink {
    fn local_addr(&self) -> LocalAddr {
        self.local
    }

    fn recv<'b>(&self, buf: &'b mut RxBuffer) -> io::Result<Option<RxBatch<'b>>> {
        let now = self.network.now();
        let mut flying = self.network.flying.lock();
        let is_ours = |packet: &InFlight| packet.due <= now && packet.to == self.local.ip();
        // The next packet belongs to another link, which will receive it.
        if !flying
            .packets
            .peek()
            .is_some_and(|Reverse(packet)| is_ours(packet))
        {
            return Ok(None);
        }
        let Some(Reverse(packet)) = flying.packets.pop() else {
            return Ok(None);
        };
        drop(flying);
        let len = packet.bytes.len();
        let data = &mut buf.as_mut_slice()[..len];
        data.copy_from_slice(&packet.bytes);
        Ok(Some(RxBatch {
            data,
            segment_len: len,
            source: SocketAddr::new(packet.from, PORT),
            tos: Some(packet.tos),
            hop_limit: None,
        }))
    }

    fn gso(&self) -> bool {
        true
    }

    fn tx_handle(&self, _: Qpn, _: u8) -> io::Result<UdpTxHandle> {
        Ok(UdpTxHandle::simulated(PORT))
    }

    fn send(
        &self,
        _: UdpTxHandle,
        to: IpAddr,
        traffic_class: u8,
        data: &[u8],
        segment_len: usize,
    ) -> io::Result<()> {
        let due = self.network.now().plus_ns(self.network.latency_ns);
        let mut flying = self.network.flying.lock();
        for bytes in Segments::new(data, segment_len) {
            flying.sent += 1;
            let packet = InFlight {
                due,
                number: flying.sent,
                to,
                from: self.local.ip(),
                tos: traffic_class,
                bytes: bytes.to_vec(),
            };
            flying.packets.push(Reverse(packet));
        }
        Ok(())
    }
}
