//! Tools for tests of this crate and of its users: memory without a device ([`TestMemory`]), a
//! QP in any state ([`Setup`]), and two QPs with a network between them in virtual time
//! ([`Pair`]).
//!
//! Nothing here sleeps or reads a clock: time jumps to the next packet or deadline. Misuse
//! panics, as in any test.

mod fabric;
mod memory;
mod pacing;
mod pair;
mod setup;
mod srq;
mod transit;

pub use fabric::{Fabric, FabricNode, NodeId, Trip};
pub use memory::{Region, TestMemory};
pub use pacing::Paced;
pub use pair::{Node, Pair};
pub use setup::{CONTEXT_MTU, Setup, context};
pub use srq::{TestDomain, TestSrq};
pub use transit::{Fate, Side, Traced, Transit};
