//! Statistics of a process: what is counted, and how the words in memory are ordered.
//!
//! Three tables of [`Metric`]s ([`QP`], [`PORT`], [`PROCESS`]) describe all values. A further value
//! is a line in one of them, which all commands then show. A counter of queue pairs also becomes a
//! file below `hw_counters`.
//!
//! The background thread takes a snapshot at most five times a second while there is traffic,
//! and stores it in the process's page, a part of its journal. Readers get the page from the broker
//! (`broker/statistics.rs`).

mod page;
mod schema;

use std::net::IpAddr;

use rocade_transport::{Counters, QpType, Violations};
use rocade_wire::Qpn;

use crate::counters::EngineCounters;

pub(crate) use page::{DeviceRow, QpRows, Snapshot, qp_metrics};
pub use page::{DeviceValues, QpValues, Statistics};
pub use schema::{PORT, PROCESS, QP};

/// The way in which a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that also shrinks.
    Gauge,
}

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
    /// Messages, or work requests.
    Messages,
    /// Events of another kind.
    Events,
    /// Objects, such as queue pairs.
    Objects,
}

impl Unit {
    /// Returns the name of the unit in plural.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Messages => "messages",
            Self::Events => "events",
            Self::Objects => "objects",
        }
    }
}

/// The description of a value, and the way to get it from a sample.
#[derive(Debug)]
pub struct Metric<S: 'static> {
    /// Its name, that of the kernel's `hw_counters` if it has one.
    pub name: &'static str,
    /// The label `reason`, where several values have one name.
    pub reason: Option<&'static str>,
    /// The way in which it changes.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// A sentence for people, without a full stop.
    pub help: &'static str,
    get: fn(&S) -> u64,
}

impl<S> Metric<S> {
    pub(crate) fn get(&self, sample: &S) -> u64 {
        (self.get)(sample)
    }

    /// Returns true if the values of several objects add up for ever.
    pub(crate) const fn is_counter(&self) -> bool {
        matches!(self.kind, Kind::Counter)
    }
}

/// Facts about a queue pair, from which its values are taken.
#[derive(Clone, Debug, Default)]
pub struct QpSample {
    pub(crate) counters: Counters,
    /// Send work requests that are not complete.
    pub(crate) send_queue: usize,
    /// Receive work requests that are not complete.
    pub(crate) recv_queue: usize,
    /// Completions in its CQs that are not polled.
    pub(crate) comp_queue: usize,
    /// Bytes in flight, and the window.
    pub(crate) flight: (u64, u64),
}

/// Facts about a port beside the sums of its queue pairs.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortSample {
    /// Packets through shared memory, sent and received.
    pub(crate) tx_shared: u64,
    pub(crate) rx_shared: u64,
    pub(crate) bad_icrc: u64,
    pub(crate) malformed: u64,
    pub(crate) violations: Violations,
}

/// Facts about a process beside its ports.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSample {
    pub(crate) counters: EngineCounters,
    pub(crate) qps: usize,
    pub(crate) regions: usize,
    pub(crate) memory_bytes: u64,
}

/// A queue pair, its peer and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpLabels {
    /// Its number.
    pub qpn: Qpn,
    /// The index of its device in the list of the process.
    pub device: usize,
    /// The code of its type, as in `ibv_qp_type`.
    pub kind: u8,
    /// The code of its state, as in `ibv_qp_state`.
    pub state: u8,
    /// The number of its peer, 0 without one.
    pub dest: Qpn,
    /// The address of its peer.
    pub peer: Option<IpAddr>,
}

impl QpLabels {
    /// Returns the name of its type.
    #[must_use]
    pub const fn kind_name(&self) -> &'static str {
        match QpType::name_of(self.kind as u32) {
            Some(name) => name,
            None => "?",
        }
    }

    /// Returns the name of its state.
    #[must_use]
    pub const fn state_name(&self) -> &'static str {
        match self.state {
            0 => "RESET",
            1 => "INIT",
            2 => "RTR",
            3 => "RTS",
            4 => "SQD",
            5 => "SQE",
            6 => "ERR",
            _ => "?",
        }
    }
}

/// Returns the names of the files below `hw_counters` that hold sums over queue pairs: the
/// counters of [`QP`] without a label. Those of packets come from the port.
pub fn hw_counters() -> impl Iterator<Item = (usize, &'static str)> {
    let counts = |metric: &Metric<QpSample>| metric.is_counter() && metric.reason.is_none();
    let of_port = |metric: &Metric<QpSample>| matches!(metric.name, "sent_pkts" | "rcvd_pkts");
    (QP.iter().enumerate())
        .filter(move |(_, metric)| counts(metric) && !of_port(metric))
        .map(|(index, metric)| (index, metric.name))
}
