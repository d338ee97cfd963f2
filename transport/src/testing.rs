//! Tools for tests of this crate and of its users.
//!
//! [`TestMemory`] is memory without a device, [`Setup`] creates a QP in any state, and [`Pair`]
//! connects two QPs by a network in virtual time. No tool sleeps or reads a clock: time advances to
//! the next packet or deadline. Misuse panics.

mod coalescing;
mod fabric;
mod memory;
mod pair;
mod setup;
mod srq;
mod transit;

pub use coalescing::CoalesceCounts;
pub use fabric::{Fabric, FabricNode, NodeId, Trip};
pub use memory::{Region, TestMemory};
pub use pair::{Node, Pair};
pub use setup::{CONTEXT_MTU, Setup, context};
pub use srq::{TestDomain, TestSrq};
pub use transit::{Fate, Side, Traced, Transit};
