//! Tools for tests of this crate and of its users.
//!
//! [`TestMemory`] is memory without a device, [`Setup`] creates a QP in any state, and [`Pair`]
//! connects two QPs by a network in virtual time. No tool sleeps or reads a clock: time advances to
//! the next packet or deadline. Misuse panics.

mod coalescing;
mod fabric;
mod memory;
mod packet_event;
mod pair;
mod setup;
mod srq;

pub use coalescing::CoalesceCounts;
pub use fabric::{Fabric, FabricNode, FabricPacketEvent, NodeId};
pub use memory::{Region, TestMemory};
pub use packet_event::{Delivery, PacketEvent, Side, Traced};
pub use pair::{Node, Pair};
pub use setup::{CONTEXT_MTU, Setup, context};
pub use srq::{TestDomain, TestSrq};
