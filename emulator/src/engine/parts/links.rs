//! The ways by which packets come and go: sockets, rings, groups, routes, raw frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::engine::hooked::OwnedTxRoute;
use crate::engine::peer_links::Unopened;
use crate::link::packet_hooks::PacketHooks;
use crate::link::peer_link::AnyPeerLink;
use crate::raw::RawPorts;
use crate::state::{Groups, LocalEndpoint, Routes};
use crate::sync::{Mutex, RwLock, rank};

/// The links of the process, and what is known of the ways over them.
#[derive(Debug)]
pub(crate) struct Links {
    pub(in crate::engine) endpoints: RwLock<Vec<Arc<LocalEndpoint>>, rank::Endpoints>,
    /// Held while an endpoint is opened.
    pub(in crate::engine) opening: Mutex<(), rank::EndpointOpening>,
    pub(in crate::engine) routes: Routes,
    pub(in crate::engine) groups: Groups,
    /// There are datagram QPs, which report the headers of received packets.
    pub(in crate::engine) shows_headers: AtomicBool,
    pub(in crate::engine) frames: RawPorts,
    pub(in crate::engine) peer_links: RwLock<Vec<Arc<AnyPeerLink>>, rank::PeerLinks>,
    /// Number of `peer_links`, which pollers read without the lock.
    pub(in crate::engine) peer_link_count: AtomicUsize,
    /// The `peer_links` whose peers may not receive from them yet.
    pub(in crate::engine) unopened: Unopened,
    /// Captures and fault rules of packets.
    pub(in crate::engine) hooks: PacketHooks<OwnedTxRoute>,
}

impl Links {
    /// Makes the ways of an engine, of which none is open.
    pub(in crate::engine) fn new(hooks: PacketHooks<OwnedTxRoute>) -> Self {
        Self {
            endpoints: RwLock::default(),
            opening: Mutex::default(),
            routes: Routes::default(),
            groups: Groups::default(),
            shows_headers: AtomicBool::new(false),
            frames: RawPorts::default(),
            peer_links: RwLock::default(),
            peer_link_count: AtomicUsize::new(0),
            unopened: Unopened::default(),
            hooks,
        }
    }
}
