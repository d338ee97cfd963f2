//! A safe Rust API for RDMA on Rocade's emulated NIC, without a C library in between.
//!
//! The objects are those of verbs: [`DeviceList`], [`Context`], [`ProtectionDomain`],
//! [`MemoryRegion`], [`MemoryWindow`], [`IndirectKey`], [`CompletionQueue`],
//! [`SharedReceiveQueue`], [`XrcDomain`] and [`QueuePair`]. A registered buffer belongs to its
//! region, and is accessible only through it, because the peer may change it at any moment. A work
//! request that names a region that was dropped completes with an error.
//!
//! The connection manager connects by IP address and port, blocking or with futures: [`Listener`],
//! [`Route`], [`Request`] and [`Connection`].
//!
//! # Two hosts in one test
//! ```
//! use std::time::Duration;
//!
//! use rocade_verbs::{
//!     AccessFlags, ConnectOptions, DeviceList, Config, SendRequest,
//! };
//!
//! const SECOND: Duration = Duration::from_secs(1);
//! let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
//!
//! // Two NICs in a simulated network: no interface, no privilege, virtual time.
//! let list = DeviceList::new(Config::simulated(1))?;
//! let (a, b) = (list.open("a")?.protection_domain()?, list.open("b")?.protection_domain()?);
//! let (a_memory, b_memory) = (a.register(4096, access)?, b.register(4096, access)?);
//! let (a_cq, b_cq) = (a.context().completion_queue(16)?, b.context().completion_queue(16)?);
//!
//! // Each end connects to the endpoint of the other.
//! let (a_qp, b_qp) = (a.queue_pair(&a_cq).build()?, b.queue_pair(&b_cq).build()?);
//! let (a_end, b_end) = (a_qp.endpoint(), b_qp.endpoint());
//! let a_qp = a_qp.connect(b_end, &ConnectOptions::default())?;
//! let _b_qp = b_qp.connect(a_end, &ConnectOptions::default())?;
//!
//! a_memory.write(0, b"over RoCEv2")?;
//! a_qp.post_send(&SendRequest::write(&[a_memory.sge(..11)?], b_memory.remote().at(100)))?;
//! a_cq.wait(SECOND)?;
//! assert_eq!(b_memory.to_vec(100, 11)?, b"over RoCEv2");
//! # Ok::<(), rocade_verbs::Error>(())
//! ```
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
mod path;
mod queue_pair;
mod raw;
mod reactor;
mod request;
mod rss;
mod shared_receives;
mod sys;
mod units;
mod window;
mod xrc;

// Protocol values.
pub use rocade_transport::{AccessFlags, Counters, QpState, Sge, WcOpcode, WcStatus};
pub use rocade_wire::mad::RejReason;
pub use rocade_wire::{Gid, Guid, Lkey, Mtu, Pkey, Psn, Qpn, Rkey};

pub use self::attributes::{Ece, QpCap, QueuePairAttributes};
pub use self::completion::{Completion, CompletionQueue};
pub use self::config::Config;
pub use self::connection::{Connection, Listener, PeerOptions, Request, Route};
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
pub use self::error::{Error, Result, VerbsError, VerbsErrorKind};
pub use self::events::{AsyncEventKind, Event, EventSource, ObjectId};
pub use self::facts::{DeviceAttr, DeviceInfo, EngineCounters, GidEntry, PortAttr};
pub use self::indirect::{IndirectKey, KeyMapping};
pub use self::masked::MaskedAtomic;
pub use self::memory::{Advice, MemoryRegion};
pub use self::path::MigrationState;
pub use self::queue_pair::{ConnectOptions, QueuePair, QueuePairBuilder, UnconnectedQueuePair};
pub use self::raw::RawQueuePair;
pub use self::request::SendRequest;
pub use self::rss::{RssHash, RssQueuePair, WorkQueue, WqState};
pub use self::shared_receives::SharedReceiveQueue;
pub use self::units::{AckTimeout, Rate, RnrRetry, RnrTimer};
pub use self::window::{MemoryWindow, Type1Window};
pub use self::xrc::{XrcDomain, XrcTarget};
