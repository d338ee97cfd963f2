//! The routes of datagrams, from an address handle to the link.
//!
//! A route is a combination of local address, remote address, traffic class, hop limit and the slot
//! of the peer process. It is made when the first datagram is posted for it. All address handles
//! and queue pairs with the same combination share it. A queue pair keeps references to the routes
//! that it uses, so that an address handle may be destroyed while its datagrams are queued.
//!
//! The broker decides whether a route uses shared memory. Posting must not wait for the broker: the
//! background thread requests the answer, and until then the route has no space. When a shared
//! memory link comes later, the route changes at once. The peer receives first what came over UDP
//! before.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use crate::link::Link as _;
use crate::sync::{Mutex, RwLock, rank};
use rocade_transport::{AddressVector, RouteTag};
use rocade_wire::Qpn;

use super::local_endpoint::{LocalEndpoint, TxRoute};
use crate::link::LocalAddr;
use crate::link::peer_link::{AnyPeerLink, PeerLink as _};
use crate::steering::ProcessSlot;

/// Number of routes that a queue pair remembers before it drops those that it does not need.
const REMEMBERED: usize = 64;

/// The combination that identifies a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    local: LocalAddr,
    to: IpAddr,
    traffic_class: u8,
    hop_limit: u8,
    slot: ProcessSlot,
}

/// A route of datagrams.
#[derive(Debug)]
pub(crate) struct Route {
    tag: RouteTag,
    /// Any QP of the peer process.
    dest: Qpn,
    endpoint: Arc<LocalEndpoint>,
    udp_route: TxRoute,
    peer_link: RwLock<Option<Arc<AnyPeerLink>>>,
    /// The broker was asked for a shared memory link.
    is_ready: AtomicBool,
}

impl Route {
    /// Its tag.
    pub(crate) const fn tag(&self) -> RouteTag {
        self.tag
    }

    /// The local endpoint, a QP of the peer process and the peer's address.
    pub(crate) const fn endpoints(&self) -> (&Arc<LocalEndpoint>, Qpn, IpAddr) {
        (&self.endpoint, self.dest, self.udp_route.to)
    }

    /// Records the answer of the broker, and the shared memory link if there is one.
    pub(crate) fn resolve(&self, peer_link: Option<Arc<AnyPeerLink>>) {
        if let Some(peer_link) = peer_link {
            self.peer_link.write().get_or_insert(peer_link);
        }
        self.is_ready.store(true, Ordering::Release);
    }
}

/// The routes of a process.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    known: Mutex<HashMap<Key, Weak<Route>>, rank::Routes>,
    /// Number of tags given out.
    names: AtomicU64,
    /// The routes that the broker was not asked about yet.
    new: Mutex<Vec<Weak<Route>>>,
}

impl Routes {
    fn all(&self) -> Vec<Arc<Route>> {
        self.known
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Returns the route from an address to a QP of a peer, and makes it if there is none. The
    /// endpoint has a socket for this hop limit. Returns true beside the route if it is new and not
    /// ready `at_once`. Then the caller has to see that its shared memory link is requested.
    ///
    /// # Errors
    /// Those of [`LocalEndpoint::tx_route_to`].
    pub(crate) fn to(
        &self,
        endpoint: &Arc<LocalEndpoint>,
        dest: Qpn,
        av: &AddressVector,
        at_once: bool,
    ) -> std::io::Result<(Arc<Route>, bool)> {
        let key = Key {
            local: endpoint.link.local_addr(),
            to: av.dgid.to_ip(),
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            slot: ProcessSlot::of(dest),
        };
        let mut known = self.known.lock();
        if let Some(route) = known.get(&key).and_then(Weak::upgrade) {
            return Ok((route, false));
        }
        known.retain(|_, route| route.strong_count() > 0);
        let name = self.names.fetch_add(1, Ordering::Relaxed) + 1;
        let route = Arc::new(Route {
            tag: RouteTag(name),
            dest,
            endpoint: Arc::clone(endpoint),
            udp_route: endpoint.tx_route_to(dest, key.to, (av, None), None)?,
            peer_link: RwLock::default(),
            is_ready: AtomicBool::new(at_once),
        });
        known.insert(key, Arc::downgrade(&route));
        drop(known);
        if !at_once {
            self.new.lock().push(Arc::downgrade(&route));
        }
        Ok((route, !at_once))
    }

    /// Removes and returns the routes that the broker was not asked about yet.
    pub(crate) fn take_new(&self) -> Vec<Arc<Route>> {
        let new = std::mem::take(&mut *self.new.lock());
        new.iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes the routes that match a new shared memory link use it, unless they have one.
    pub(crate) fn attach_peer_link(&self, peer_link: &Arc<AnyPeerLink>) {
        for route in self.all() {
            let TxRoute { to, slot, .. } = route.udp_route;
            if peer_link.connects(route.endpoint.link.local_addr(), to, slot) {
                route
                    .peer_link
                    .write()
                    .get_or_insert_with(|| Arc::clone(peer_link));
            }
        }
    }

    /// Makes the routes whose shared memory link has ended use UDP again.
    pub(crate) fn drop_ended_peer_links(&self) {
        for route in self.all() {
            route
                .peer_link
                .write()
                .take_if(|peer_link| peer_link.has_ended());
        }
    }
}

/// The routes that the datagrams of a queue pair use.
#[derive(Debug, Default)]
pub(crate) struct PeerRoutes {
    peer_routes: HashMap<RouteTag, PeerRoute>,
    /// For a DC target: the local endpoint of its responses, and the address vector with their
    /// traffic class and hop limit.
    response_source: Option<(Arc<LocalEndpoint>, AddressVector)>,
    /// The last run was sent through a socket.
    by_socket: bool,
    /// Routes were dropped, which may have led over UDP and be resolved again.
    has_dropped: bool,
}

#[derive(Debug)]
struct PeerRoute {
    route: Arc<Route>,
    tx_route: TxRoute,
    /// Packets may have been sent over UDP since the last change of the shared memory link.
    used_udp: bool,
}

impl PeerRoutes {
    /// Remembers a route. If there are too many, only the routes that `needed` returns stay.
    pub(crate) fn learn<I: Iterator<Item = RouteTag>>(
        &mut self,
        route: &Arc<Route>,
        needed: impl FnOnce() -> I,
    ) {
        if self.peer_routes.contains_key(&route.tag) {
            return;
        }
        let many = REMEMBERED.max(self.peer_routes.capacity() / 2);
        if self.peer_routes.len() >= many {
            let mut stay = HashMap::new();
            for tag in needed() {
                if let Some(peer_route) = self.peer_routes.remove(&tag) {
                    stay.insert(tag, peer_route);
                }
            }
            stay.reserve(stay.len());
            self.peer_routes = stay;
            self.has_dropped = true;
        }
        self.insert(route.tag, route);
    }

    fn insert(&mut self, tag: RouteTag, route: &Arc<Route>) {
        let peer_route = PeerRoute {
            tx_route: route.udp_route.clone(),
            route: Arc::clone(route),
            used_udp: self.has_dropped,
        };
        self.peer_routes.insert(tag, peer_route);
    }

    /// Sets the local endpoint and the address vector of responses.
    pub(crate) fn respond_from(&mut self, endpoint: Arc<LocalEndpoint>, av: AddressVector) {
        self.response_source = Some((endpoint, av));
    }

    /// The local endpoint and the address vector of responses.
    pub(crate) const fn response_source(&self) -> Option<&(Arc<LocalEndpoint>, AddressVector)> {
        self.response_source.as_ref()
    }

    /// Returns true if the route of this tag is known.
    pub(crate) fn contains(&self, tag: RouteTag) -> bool {
        self.peer_routes.contains_key(&tag)
    }

    /// Remembers the route of a response under this tag. If there are too many, all other routes
    /// except `needed` are dropped: they can be resolved again.
    pub(crate) fn add_response_route(
        &mut self,
        tag: RouteTag,
        route: &Arc<Route>,
        needed: Option<RouteTag>,
    ) {
        if self.peer_routes.len() >= REMEMBERED {
            self.peer_routes.retain(|tag, _| Some(*tag) == needed);
            self.has_dropped = true;
        }
        self.insert(tag, route);
    }

    /// Returns true if the last run was sent through a socket.
    pub(crate) const fn use_socket(&self) -> bool {
        self.by_socket
    }

    /// Returns true unless the route still waits for the broker's answer.
    pub(crate) fn is_ready(&self, tag: RouteTag) -> bool {
        let peer_route = self.peer_routes.get(&tag);
        peer_route.is_none_or(|peer_route| peer_route.route.is_ready.load(Ordering::Acquire))
    }

    /// Returns the route of this tag for packets to send, through its shared memory link if it has
    /// one now.
    pub(crate) fn get(&mut self, tag: RouteTag) -> Option<(&Arc<LocalEndpoint>, &mut TxRoute)> {
        let PeerRoute {
            route,
            tx_route,
            used_udp,
        } = self.peer_routes.get_mut(&tag)?;
        let current = route.peer_link.read();
        let same = match (&*current, &tx_route.peer_link) {
            (Some(new), Some(old)) => Arc::ptr_eq(new, old),
            (None, None) => true,
            _ => false,
        };
        if !same {
            tx_route.peer_link.clone_from(&current);
            tx_route.first_shm_send = std::mem::take(used_udp);
        }
        drop(current);
        *used_udp |= tx_route.live_peer_link().is_none();
        self.by_socket = tx_route.peer_link.is_none();
        Some((&route.endpoint, tx_route))
    }
}
