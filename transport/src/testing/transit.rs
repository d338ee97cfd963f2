//! Packets between two sides, as hooks and records see them.

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
    /// Both.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The peer.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// Its address on the alternate path.
    #[must_use]
    pub fn alternate_ip(self) -> IpAddr {
        match self {
            Self::A => IpAddr::from([10, 1, 0, 1]),
            Self::B => IpAddr::from([10, 1, 0, 2]),
        }
    }

    /// Its address.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        match self {
            Self::A => IpAddr::from([10, 0, 0, 1]),
            Self::B => IpAddr::from([10, 0, 0, 2]),
        }
    }
}

/// A packet about to travel.
#[derive(Debug)]
pub struct Transit<'a> {
    /// When.
    pub time: Time,
    /// Who sent it.
    pub from: Side,
    /// Its source and its destination address.
    pub path: (IpAddr, IpAddr),
    /// How many packets that side has sent before it.
    pub index: usize,
    /// It, parsed.
    pub packet: Packet<'a>,
}

/// What the network does with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives after the latency.
    Deliver,
    /// It is lost.
    Drop,
    /// It arrives once per entry, so many nanoseconds later than usual.
    Copies(Vec<u64>),
    /// These bytes arrive in its place, as if their ICRC were right.
    Replace(Vec<u8>),
}

/// A packet that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// When it was sent.
    pub time: Time,
    /// By whom.
    pub from: Side,
    /// Its source and its destination address.
    pub path: (IpAddr, IpAddr),
    /// In one line, without the P_Key and the like.
    pub text: String,
    /// The UDP payload, ICRC bytes 0.
    pub bytes: Vec<u8>,
    /// The network dropped it.
    pub dropped: bool,
}

impl Traced {
    /// It, parsed.
    ///
    /// # Panics
    /// Never: only what parses is traced.
    #[must_use]
    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).expect("our own packet")
    }
}
