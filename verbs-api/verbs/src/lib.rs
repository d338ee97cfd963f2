//! A safe Rust API for RDMA on Rocade's emulated NIC, without a C library in between.
//!
//! The objects are those of verbs: [`DeviceList`], [`Context`], [`ProtectionDomain`],
//! [`MemoryRegion`], [`MemoryWindow`], [`IndirectKey`], [`CompletionQueue`],
//! [`SharedReceiveQueue`], [`XrcDomain`] and [`QueuePair`]. A registered buffer belongs to its
//! region, and is accessible only through it, because the peer may change it at any moment. A work
//! request that names a region that was dropped completes with an error.
//!
//! The connection manager connects by IP address and port, blocking or with futures: [`Listener`],
//! [`Route`], [`ConnectRequest`] and [`Connection`].
//!
//! # Two hosts in one test
//! ```
//! use rocade_verbs::{AccessFlags, simulated_pair};
//! use std::sync::Arc;
//!
//! // Two connected NICs in a simulated network: no interface, no privilege, virtual time.
//! let (a, b) = simulated_pair(1)?;
//! let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//! let (here, there) = (Arc::new(a.register(4096, access)?), b.register(4096, access)?);
//!
//! here.write(0, b"over RoCEv2")?;
//! let write = a.qp.write(&here.slice(..11)?, there.remote().at(100));
//! a.simulation().block_on(write)??;
//! assert_eq!(there.to_vec(100..111)?, b"over RoCEv2");
//! # Ok::<(), rocade_verbs::Error>(())
//! ```
//!
//! # Polling or futures
//! Each operation exists twice. [`QueuePair::post_send`] and [`CompletionQueue::wait`] or
//! [`CompletionQueue::poll`] are the calls of verbs. [`QueuePair::read`] and its siblings are
//! futures on any runtime, which own their `wr_id` and their memory: see [`Operation`].
//!
//! Between processes or machines, any byte stream can carry the endpoints: see
//! [`Endpoint::exchange`] and the example `rc_pingpong`.

mod attributes;
mod completion;
mod config;
mod connection;
mod cross_channel;
mod datagram;
mod device;
mod device_memory;
mod domain;
mod dynamic;
mod endpoint;
mod error;
mod events;
mod facts;
pub mod flow;
mod indirect;
mod masked;
mod memory;
mod operation;
mod pair;
mod path;
mod queue_pair;
mod range;
mod raw;
mod reactor;
mod request;
mod routing;
mod rss;
mod shared_futures;
mod shared_receives;
#[cfg(feature = "simulated-host")]
pub mod simulated_host;
mod simulation;
mod slice;
mod slots;
mod status;
mod stream;
mod sys;
mod units;
mod window;
mod xrc;

// Protocol values.
pub use rocade_emulator::config::ConfigError;
pub use rocade_emulator::faults::{FaultReport, Occurrence, ReportedRule, Subject};
pub use rocade_emulator::link::fault::RuleError;
pub use rocade_transport::{AccessFlags, Counters, QpState, Sge, WcOpcode};
pub use rocade_wire::mad::RejReason;
pub use rocade_wire::{Gid, Guid, Lkey, Mtu, Pkey, Psn, Qpn, Rkey};

pub use self::attributes::{Ece, QpCap, QueuePairAttributes};
pub use self::completion::{Completion, CompletionQueue};
pub use self::config::Config;
pub use self::connection::{ConnectRequest, Connection, Listener, PeerOptions, Route};
pub use self::cross_channel::{
    Calc, CalcOp, CrossChannel, CrossQueuePair, ManagedQueue, Task, TaskGroup, post_tasks,
};
pub use self::datagram::{
    AddressHandle, AddressOptions, DatagramQueuePair, DatagramQueuePairBuilder, GRH_LEN, UdAddress,
};
pub use self::device::{Context, DeviceList, ProtectionDomain};
pub use self::device_memory::{DeviceMemory, DeviceRegion, NullRegion};
pub use self::domain::ThreadDomain;
pub use self::dynamic::{
    DciStreams, DctAddress, DynamicInitiator, DynamicInitiatorBuilder, DynamicTarget,
};
pub use self::endpoint::{Endpoint, RemoteMemory};
pub use self::error::{
    BlockOnError, BuildError, CompletionError, ConnectError, DeviceListError, Error, EventError,
    ExchangeError, MalformedError, NoAddress, NotSimulated, OpenError, OperationError, PairError,
    RangeError, RegionError, RegisterError, Result, RouteError, SharedError, TaskError, TimedOut,
    VerbsError, VerbsErrorKind, WaitError, WordError,
};
pub use self::events::{AsyncEventKind, Event, EventSource, ObjectId};
pub use self::facts::{DeviceAttr, DeviceInfo, EngineCounters, GidEntry, PortAttr};
pub use self::indirect::{IndirectKey, KeyMapping};
pub use self::masked::MaskedAtomic;
pub use self::memory::{Advice, MemoryRegion};
pub use self::operation::Operation;
pub use self::pair::{Host, simulated_pair};
pub use self::path::MigrationState;
pub use self::queue_pair::{ConnectOptions, QueuePair, QueuePairBuilder, UnconnectedQueuePair};
pub use self::raw::RawQueuePair;
pub use self::request::SendRequest;
pub use self::rss::{RssHash, RssQueuePair, WorkQueue, WqState};
pub use self::shared_receives::SharedReceiveQueue;
pub use self::simulation::{Simulation, SimulationTask};
pub use self::slice::{MemorySlice, Slices};
pub use self::status::WcStatus;
pub use self::stream::{CompletionDriver, Completions, NextCompletion};
pub use self::units::{AckTimeout, Rate, RnrRetry, RnrTimer};
pub use self::window::{MemoryWindow, Type1Window};
pub use self::xrc::{XrcDomain, XrcTarget};
