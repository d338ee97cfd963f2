//! The connection manager of a process, the counterpart of the kernel's `rdma_cm`.
//!
//! [`CmId`]s are resolved, bound and connected. Their events arrive at a [`CmChannel`].
//! [`rocade_transport::cm`] implements the protocol. One lock protects all of it. It is the last
//! lock to be taken, except for those of event queues, so that sockets are opened and the broker is
//! asked before.
//!
//! Datagrams to QP 1 come from the engine's receive loop (`engine/progress.rs`). With a broker, the
//! broker has the socket of slot 0, and forwards them by service and communication ID (`gsi`,
//! `broker/gsi.rs`).

mod address;
mod command;
mod event;
mod host;
mod id;
mod io;
mod messages;
mod options;
mod react;
mod removal;
mod resolve;
mod resolve_addr;

pub use address::{CmAddr, IbAddr, PathHint};
pub use command::CmId;
pub use event::{CmChannel, CmEvent, CmEventKind, CmParam, ConnParam, UdParam};
pub use id::PortSpace;
pub use rocade_transport::cm::CmCounters;
pub use rocade_wire::mad::{Ece, RejReason, ServiceId};

pub(crate) use host::CmHost;
pub(crate) use io::CmIo;

use std::net::SocketAddr;

/// The addresses of an ID, with its device and services.
#[derive(Clone, Debug, Default)]
pub struct CmAddresses {
    /// Local address and port.
    pub local: Option<SocketAddr>,
    /// The peer's address and port.
    pub peer: Option<SocketAddr>,
    /// The name of the device.
    pub device: Option<String>,
    /// With native InfiniBand addresses ([`CmAddr::Ib`]): the service IDs of this side and of the
    /// peer, 0 for none.
    pub services: Option<[ServiceId; 2]>,
}
