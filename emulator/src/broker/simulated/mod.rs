//! The brokers of a simulated host, and what tells them and their clients who they are.
//!
//! Sockets, locks and memory are the kernel's, which act at once, so that a run from a seed
//! repeats.

pub(crate) mod brokers;
pub(crate) mod handover;
pub(in crate::broker) mod host;
pub(in crate::broker) mod identity;
