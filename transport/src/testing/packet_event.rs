//! Packets between two sides, for hooks and records.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use rocade_wire::Packet;

use crate::time::Time;

/// One end of a [`Pair`](super::Pair).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The first QP, 10.0.0.1.
    A,
    /// The second QP, 10.0.0.2.
    B,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Returns the other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Returns the address on the alternate path.
    #[must_use]
    pub fn alternate_ip(self) -> IpAddr {
        match self {
            Self::A => IpAddr::from([10, 1, 0, 1]),
            Self::B => IpAddr::from([10, 1, 0, 2]),
        }
    }

    /// Returns the address.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        match self {
            Self::A => IpAddr::from([10, 0, 0, 1]),
            Self::B => IpAddr::from([10, 0, 0, 2]),
        }
    }
}

/// A packet that is about to be sent.
#[derive(Debug)]
pub struct PacketEvent<'a> {
    /// Time of transmission.
    pub time: Time,
    /// The sender.
    pub from: Side,
    /// Source and destination address.
    pub path: (IpAddr, IpAddr),
    /// Number of packets that the side has sent before it.
    pub index: usize,
    /// The parsed packet.
    pub packet: Packet<'a>,
}

/// The network's decision about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The packet arrives after the latency.
    Deliver,
    /// The packet is lost.
    Drop,
    /// The packet arrives once per entry, so many nanoseconds later than usual.
    Copies(Vec<u64>),
    /// These bytes arrive in place of the packet, as if their ICRC were correct.
    Replace(Vec<u8>),
}

/// A packet that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Time of transmission.
    pub time: Time,
    /// The sender.
    pub from: Side,
    /// Source and destination address.
    pub path: (IpAddr, IpAddr),
    /// The packet in one line, without fields such as the P_Key.
    pub text: String,
    /// The UDP payload, ICRC bytes 0.
    pub bytes: Vec<u8>,
    /// The network dropped it.
    pub dropped: bool,
}

impl Traced {
    /// Returns the parsed packet.
    ///
    /// # Panics
    /// Never: only packets that can be parsed are recorded.
    #[must_use]
    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).expect("a valid packet")
    }
}
