//! A packet-level conformance suite for RoCEv2 devices.
//!
//! The suite talks to a device with hand-made packets: a [`Rig`] is one end of a connection
//! without a NIC, made of a UDP socket and the codec of `rocade-wire`; the device under test is
//! a [`Peer`]. Of Rocade the crate knows the packet formats only, so that it is an independent
//! judge of the transport.
//!
//! | layer | module |
//! |---|---|
//! | crafting, sending, receiving and recording packets | [`rig`] |
//! | what a device must be able to do to be tested | [`peer`] |
//! | connections between the two, and what a case may expect of them | [`bench`](mod@bench) |
//! | the cases, named after the rules of the specification | [`suite`] |
//! | selecting and running them | [`runner`] |
//! | a device with verbs, driven by a program in C on its machine | [`agent`] |
//! | known deviations of a peer | [`expectations`] |
//! | results as text and JSON | [`report`] |
//!
//! Adding a case: write a function in the file of its area, and add it to the `CASES` of that
//! file. Adding a device: implement [`Peer`] and write `expectations/<name>.toml`.
//!
//! # What is not covered
//!
//! IPv6 addresses are possible but have no cases of their own. The IPv4
//! header of a received packet is not visible to an unprivileged socket, so its Identification is
//! inferred from the ICRC and TTL and flags are not checked.

pub mod agent;
pub mod bench;
pub mod case;
pub mod expectations;
pub mod packet;
pub mod peer;
pub mod report;
pub mod rig;
pub mod runner;
pub mod suite;

pub use agent::Agent;
pub use bench::{Bench, Conn, Timing};
pub use case::{Case, CaseError, CaseResult, Feature, Level, Outcome, Role};
pub use expectations::Expectations;
pub use packet::PacketBuilder;
pub use peer::{Peer, PeerQp, QpSpec};
pub use report::Report;
pub use rig::Rig;
pub use runner::{Selection, run};
