//! The state that the engine and the handles share.
//!
//! Contains QPs, CQs, SRQs, routes, the work queue of the background thread, and the arbitration of
//! which thread drives the links. This module does not depend on the engine.

#![deny(clippy::disallowed_methods)]

mod ack_counter;
mod comp_counter;
mod cq;
mod cq_ring;
mod cross_channel;
mod domain;
mod driver_arbiter;
mod event_queue;
mod event_waiter;
mod events;
mod groups;
mod local_endpoint;
mod network;
mod pending_wqes;
mod qp;
mod qp_table;
mod routes;
mod service_queue;
mod sleepers;
mod srq;
mod target;
mod tx;
mod users;
mod wake_later;

pub use comp_counter::{CounterUnit, CounterValue};
pub use domain::{FileId, XrcdInitAttr};
pub use event_waiter::{EventWaiter, WaitStep};
pub use events::{AsyncEvent, AsyncEventKind, EventElement};

pub(crate) use ack_counter::AckCounter;
pub(crate) use comp_counter::CompCounterInner;
pub(crate) use cq::{CompChannelState, CqInner};
pub(crate) use cq_ring::CqRing;
pub(crate) use cross_channel::{CompletionWait, CrossChannelState, ManagedQueue, SendRelease};
pub(crate) use domain::{Domain, Domains};
pub(crate) use driver_arbiter::{Activity, Caller, DriverArbiter};
pub(crate) use event_queue::EventQueue;
pub(crate) use event_waiter::{AwaitedEvents, HasEvents, ReceivingWait, WaitOn};
pub(crate) use events::AsyncEvents;
pub(crate) use groups::{Group, Groups};
pub(crate) use local_endpoint::{Flow, Flows, Icrcs, LocalEndpoint, RxState, TxRoute};
pub(crate) use network::NetworkWatch;
pub(crate) use qp::{DctEvents, QpCore, QpInner, QpResources, XrcTargetInit};
pub(crate) use qp_table::QpTable;
pub(crate) use routes::{Route, Routes};
pub(crate) use service_queue::{ServiceQueue, ServiceReason};
pub(crate) use sleepers::{Follower, Place, Sleeper};
pub(crate) use srq::{SrqInner, SrqNumber, SrqNumbers};
pub(crate) use target::{OpenHandle, TargetOwnership};
pub(crate) use tx::{TxBacklog, TxState, is_acknowledgement, pending_ack_of, tx_route_for};
pub(crate) use users::{User, Users};
pub(crate) use wake_later::waking_later;

#[cfg(all(test, loom))]
mod loom_tests;
