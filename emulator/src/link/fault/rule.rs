//! Fault rules.

use std::fmt;
use std::net::IpAddr;

use rocade_wire::{Operation, Packet, Psn, Qpn, Syndrome};

use super::ending::Ending;
use super::model::LinkModel;
use super::units::{BitErrorRate, Duration};

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drops the packet.
    Drop,
    /// Duplicates the packet.
    Duplicate,
    /// Delays the packet.
    Delay {
        /// The delay in nanoseconds.
        ns: u64,
    },
    /// Lets later packets overtake the packet.
    Reorder {
        /// The number of these packets, at least 1.
        packets: u32,
    },
    /// Flips a bit of the packet.
    Corrupt {
        /// The rate of wrong bits, so that long packets are hit more often. `None` for each packet.
        ber: Option<BitErrorRate>,
    },
    /// Marks the packet like a switch with congestion (ECN CE).
    Ecn,
    /// Sends the packet through a link with a data rate, a latency and a queue.
    Link(LinkModel),
    /// Sends the packet on one of several paths, at random.
    Spray {
        /// The number of paths, at least 2.
        paths: u32,
        /// The additional delay of each path over the one before, in nanoseconds.
        ns: u64,
    },
    /// Drops the packet in either direction.
    Partition,
    /// Drops the packet if the process sends it.
    Mute,
    /// Ends or stops the process before the packet has any effect.
    End(Ending),
}

/// The direction of a packet, from the viewpoint of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// Sent by the process.
    Tx,
    /// Received by the process.
    Rx,
}

/// The source and the destination address of a packet.
pub type Ends = (IpAddr, IpAddr);

/// Packet classes, in addition to the names of operations.
pub(super) const CLASSES: [&str; 6] = ["REQUEST", "RESPONSE", "ACK", "NAK", "RNR_NAK", "ATOMIC"];

/// A rule: the packets that it matches, and its action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) action: Action,
    /// `None` for both.
    pub(super) direction: Option<PacketDirection>,
    /// Names of operations or classes. Matches all packets if empty.
    pub(super) opcodes: Vec<String>,
    pub(super) qpn: Option<Qpn>,
    /// Source or destination address.
    pub(super) ip: Option<IpAddr>,
    /// First and last PSN.
    pub(super) psn: Option<(Psn, Psn)>,
    /// Shortest and longest IP packet, in bytes.
    pub(super) size: Option<(u64, u64)>,
    /// First and last of the matching packets to hit, counted from 1.
    pub(super) nth: Option<(u64, u64)>,
    pub(super) every: Option<u64>,
    /// Probability in millionths.
    pub(super) per_million: Option<u32>,
    pub(super) seed: Option<u64>,
}

impl Rule {
    /// Returns the action.
    #[must_use]
    pub const fn action(&self) -> &Action {
        &self.action
    }

    /// Returns true if a packet matches, before `nth` and `every` are applied. `ends` are its
    /// source and destination.
    #[must_use]
    pub fn fits(&self, direction: PacketDirection, ends: Ends, packet: &Packet<'_>) -> bool {
        let bth = packet.bth();
        let within = |(first, last): (Psn, Psn)| {
            bth.psn.diff(first) >= 0 && last.diff(bth.psn) >= 0 && last.diff(first) >= 0
        };
        self.direction.is_none_or(|own| own == direction)
            && self.qpn.is_none_or(|qpn| qpn == bth.dest_qp)
            && self.ip.is_none_or(|ip| ip == ends.0 || ip == ends.1)
            && self.psn.is_none_or(within)
            && (self.size)
                .is_none_or(|(min, max)| (min..=max).contains(&ip_bytes(ends, packet.as_bytes())))
            && (self.opcodes.is_empty() || self.opcodes.iter().any(|name| is_called(packet, name)))
    }

    /// Returns true if the rule hits the `number`th matching packet, counted from 1.
    #[must_use]
    pub fn hits_number(&self, number: u64) -> bool {
        self.nth
            .is_none_or(|(first, last)| (first..=last).contains(&number))
            && self.every.is_none_or(|every| number.is_multiple_of(every))
    }

    pub(super) fn per_million(&self) -> u32 {
        self.per_million.unwrap_or(1_000_000)
    }

    pub(super) const fn seed(&self) -> Option<u64> {
        self.seed
    }
}

/// Returns the length of the IP packet over UDP that contains these bytes, which also counts for a
/// packet that goes through shared memory.
pub(super) const fn ip_bytes(ends: Ends, udp_payload: &[u8]) -> u64 {
    const UDP: u64 = 8;
    let ip_header = match ends.1 {
        IpAddr::V4(_) => 20,
        IpAddr::V6(_) => 40,
    };
    ip_header + UDP + udp_payload.len() as u64
}

/// Returns true if `name` is the packet's operation, a prefix of it, or a class of the packet.
fn is_called(packet: &Packet<'_>, name: &str) -> bool {
    let Some(operation) = packet.bth().opcode.operation() else {
        return false;
    };
    let syndrome = packet.headers().aeth.map(|aeth| aeth.syndrome);
    match name {
        "REQUEST" => operation.is_request(),
        "RESPONSE" => operation.is_response(),
        "ACK" => operation == Operation::Acknowledge && matches!(syndrome, Some(Syndrome::Ack(_))),
        "NAK" => matches!(syndrome, Some(Syndrome::Nak(_))),
        "RNR_NAK" => matches!(syndrome, Some(Syndrome::RnrNak(_))),
        "ATOMIC" => operation.is_atomic(),
        _ => begins(operation.name(), name),
    }
}

/// Returns true if `name` is the operation's name, or its part before an underscore. `RDMA_` may be
/// left out.
pub(super) fn begins(operation: &str, name: &str) -> bool {
    let of = |operation: &str| {
        operation
            .strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    !name.is_empty() && (of(operation) || operation.strip_prefix("RDMA_").is_some_and(of))
}

impl Action {
    /// The direction of the packets that a rule with this action matches, if it names none.
    pub(super) const fn default_direction(&self) -> Option<PacketDirection> {
        match self {
            Self::Partition => None,
            _ => Some(PacketDirection::Tx),
        }
    }

    /// Returns true if the action depends on chance, even if the rule has no probability.
    pub(super) const fn draws(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. } | Self::Link(_) | Self::Spray { .. }
        )
    }
}

fn write_range(f: &mut fmt::Formatter<'_>, key: &str, (first, last): (u64, u64)) -> fmt::Result {
    if first == last {
        write!(f, " {key}={first}")
    } else if last == u64::MAX {
        write!(f, " {key}={first}..")
    } else {
        write!(f, " {key}={first}..{last}")
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Duplicate => f.write_str("dup"),
            Self::Delay { ns } => write!(f, "delay by={}", Duration(*ns)),
            Self::Reorder { packets } => write!(f, "reorder by={packets}"),
            Self::Corrupt { ber: None } => f.write_str("corrupt"),
            Self::Corrupt { ber: Some(ber) } => write!(f, "corrupt ber={ber}"),
            Self::Ecn => f.write_str("ecn"),
            Self::Link(model) => model.fmt(f),
            Self::Spray { paths, ns } => write!(f, "spray paths={paths} by={}", Duration(*ns)),
            Self::Partition => f.write_str("partition"),
            Self::Mute => f.write_str("mute"),
            Self::End(ending) => f.write_str(ending.name()),
        }
    }
}

impl fmt::Display for PacketDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
        })
    }
}

/// Prints the rule in the syntax that [`Rule::parse`] reads.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        if self.direction != self.action.default_direction() {
            f.write_str(match self.direction {
                Some(PacketDirection::Tx) => " dir=tx",
                Some(PacketDirection::Rx) => " dir=rx",
                None => " dir=both",
            })?;
        }
        if !self.opcodes.is_empty() {
            write!(f, " opcode={}", self.opcodes.join(","))?;
        }
        if let Some(qpn) = self.qpn {
            write!(f, " qpn={:#x}", qpn.get())?;
        }
        if let Some(ip) = self.ip {
            write!(f, " ip={ip}")?;
        }
        if let Some((first, last)) = self.psn {
            write_range(f, "psn", (first.get().into(), last.get().into()))?;
        }
        if let Some(range) = self.size {
            write_range(f, "size", range)?;
        }
        if let Some(range) = self.nth {
            write_range(f, "nth", range)?;
        }
        if let Some(every) = self.every {
            write!(f, " every={every}")?;
        }
        if let Some(per_million) = self.per_million {
            write!(f, " p={}", f64::from(per_million) / 1e6)?;
        }
        if let Some(seed) = self.seed {
            write!(f, " seed={seed}")?;
        }
        Ok(())
    }
}
