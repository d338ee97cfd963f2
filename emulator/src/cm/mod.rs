//! The connection manager of a process: what `rdma_cm` is in a kernel.
//!
//! [`CmId`]s are resolved, bound, connected; what happens to them comes as events of a [`CmChannel`]. The protocol
//! itself is [`rocade_transport::cm`]. All of it is behind one lock, which is the last one to be taken but for
//! those of event queues: what opens sockets, or asks the broker, is done before.
//!
//! Datagrams to QP 1 come from the engine's receive loop (`engine/progress.rs`). With a broker the socket of
//! slot 0 is the broker's, which passes them on by service and communication ID (`services`, `broker/gsi.rs`).

mod address;
mod command;
mod event;
pub(crate) mod gsi;
mod host;
mod id;
mod messages;
mod options;
mod react;
mod resolve;
pub(crate) mod services;

pub use address::{CmAddr, IbAddr, PathHint};
pub use command::CmId;
pub use event::{CmChannel, CmEvent, CmEventKind, CmParam, ConnParam, UdParam};
pub use id::PortSpace;
pub use rocade_transport::cm::CmCounters;
pub use rocade_wire::mad::{Ece, RejReason, ServiceId};

pub(crate) use host::CmHost;
pub(crate) use resolve::port_range;

use std::net::SocketAddr;

/// The addresses of an ID, and what they lead to.
#[derive(Clone, Debug, Default)]
pub struct CmAddresses {
    /// Own address and port.
    pub local: Option<SocketAddr>,
    /// Those of the peer.
    pub peer: Option<SocketAddr>,
    /// The device, by its name.
    pub device: Option<String>,
    /// Where the addresses are InfiniBand's own ([`CmAddr::Ib`]): the service IDs of this side and of the peer, 0
    /// for none.
    pub services: Option<[ServiceId; 2]>,
}
