//! A packet-level conformance suite for RoCEv2 devices.
//!
//! The suite sends hand-made packets to a device. A [`Rig`] is one end of a connection without a
//! NIC, made of a UDP socket and the codec of `rocade-wire`. The device under test is a [`Peer`].
//! This crate uses only the packet formats of Rocade, so that it tests the transport independently.
//!
//! | layer | module |
//! |---|---|
//! | building, sending, receiving and recording packets | [`rig`] |
//! | the operations that a device must offer to be tested | [`peer`] |
//! | connections between the two, and the expectations of a case | [`bench`](mod@bench) |
//! | the cases, named after the rules of the specification | [`suite`] |
//! | selecting and running them | [`runner`] |
//! | a device with verbs, driven by a program in C on its machine | [`agent`] |
//! | known deviations of a peer | [`expectations`] |
//! | what the rules say | [`rules`] |
//! | results as text, JSON, JUnit XML and HTML | [`report`] |
//!
//! Adding a case: write a function in the file of its area, and add it to the `CASES` of that file.
//! Adding a device: implement [`Peer`] and write `expectations/<name>.toml`.
//!
//! # Limits
//!
//! An unprivileged socket does not return the IPv4 header of a received packet. So the suite infers
//! the Identification from the ICRC, and does not check TTL and flags.

pub mod agent;
pub mod bench;
pub mod case;
pub mod expectations;
pub mod packet;
pub mod peer;
pub mod report;
pub mod rig;
pub mod rules;
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
pub use runner::{Selection, run, run_one};
