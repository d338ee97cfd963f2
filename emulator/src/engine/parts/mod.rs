//! The parts of the engine. What needs one of them only is its method, and what needs several is a
//! method of [`Nic`](super::Nic).

mod faults;
mod host;
mod links;
mod observers;
mod presence;
mod scheduler;
mod tables;

pub(crate) use faults::Faults;
pub(crate) use host::{Host, KnownPeers};
pub(crate) use links::Links;
pub(crate) use observers::Observers;
pub(crate) use presence::{Attachment, Presence};
pub(crate) use scheduler::Scheduler;
pub(crate) use tables::Tables;
