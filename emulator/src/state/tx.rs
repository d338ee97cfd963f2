//! The transmit side of a queue pair: its routes and the packets that could not be sent yet.

use std::sync::Arc;

use rocade_transport::{AddressVector, Qp, RouteTag, Time};
use rocade_wire::{Msn, Psn};

use super::local_endpoint::{LocalEndpoint, TxRoute};
use super::routes::{PeerRoutes, Route};
use super::service_queue::{QueuedReasons, ServiceReason};
use crate::journal::{AckDestination, JournalSlot, PendingAck};
use crate::link::peer_link::{AnyPeerLink, PeerLink as _};
use crate::link::{Link as _, MAX_SEGMENTS};

/// The transmit side of a QP.
#[derive(Debug, Default)]
pub(crate) struct TxState {
    pub(crate) route: Option<(Arc<LocalEndpoint>, TxRoute)>,
    /// The alternate path, which a migration makes the route.
    alternate: Option<Box<(Arc<LocalEndpoint>, TxRoute)>>,
    /// The routes of its datagrams.
    pub(crate) peer_routes: Option<Box<PeerRoutes>>,
    /// The peer has sent something through the shared memory link.
    peer_uses_shm: bool,
    /// Deadline of the pending timer entry of this QP.
    pub(crate) timer: Option<Time>,
    /// A batch of packets that the socket had no space for.
    pub(crate) backlog: Option<Box<TxBacklog>>,
    /// The last ACK that was appended to the ring as an unpublished record, and is not published
    /// yet.
    pub(crate) unpublished_ack: Option<Psn>,
    /// The pending ACK that the QP has recorded in the ACK journal.
    pub(crate) journal_slot: Option<JournalSlot>,
    /// The last batch of an unreliable QP went to a socket whose fill is known.
    pub(crate) is_measured: bool,
    /// The blocked batch, or what waits behind it, has an ACK that the ACK journal does not have.
    /// Its completion must not be seen yet.
    pub(crate) has_unsafe_ack: bool,
    /// The ready lists that the QP is on.
    pub(crate) queued: QueuedReasons,
    /// The sources that packets are accepted from.
    rx_filter: RxFilter,
}

/// The sources that a QP accepts packets from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RxFilter {
    /// Its peer, which uses one route.
    #[default]
    Peer,
    /// An XRC initiator: any process with its peer's address, because each message may reach the
    /// target in another process.
    Any,
    /// A datagram QP: any source but the QP itself, because it wants no copy of what it sends to a
    /// group.
    ExceptSelf,
    /// A target that another process owns: no source.
    Paused,
}

#[derive(Debug)]
pub(crate) struct TxBacklog {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) segment_len: usize,
    pub(crate) route: RouteTag,
    /// The port speed paces it, because the QP is unreliable.
    pub(crate) is_paced: bool,
    /// The ICRCs are filled in, as UDP needs them.
    pub(crate) sealed: bool,
}

/// Returns true if a packet is a positive or negative ACK, of any service.
pub(crate) fn is_acknowledgement(packet: &[u8]) -> bool {
    const ACKNOWLEDGE: u8 = 0x11;
    packet
        .first()
        .is_some_and(|opcode| opcode & 0x1f == ACKNOWLEDGE)
}

impl TxBacklog {
    /// Returns true if a positive or negative ACK is among the packets.
    pub(crate) fn has_ack(&self) -> bool {
        let mut packets = self.bytes.chunks(self.segment_len.max(1));
        packets.any(is_acknowledgement)
    }
}

impl TxState {
    /// Sets the route. A blocked batch of the old route is lost.
    pub(crate) fn set_route(&mut self, endpoint: Arc<LocalEndpoint>, tx_route: TxRoute) {
        self.backlog = None;
        self.has_unsafe_ack = false;
        self.unpublished_ack = None;
        self.peer_uses_shm = false;
        self.route = Some((endpoint, tx_route));
        self.journal_slot = None;
    }

    /// Returns true if an ACK is lost with the route: it is blocked, or an unpublished record.
    pub(crate) fn has_blocked_ack(&self) -> bool {
        let backlog = self.backlog.as_ref();
        self.unpublished_ack.is_some() || backlog.is_some_and(|backlog| backlog.has_ack())
    }

    /// Sets the path that a migration leads to.
    pub(crate) fn set_alternate(&mut self, endpoint: Arc<LocalEndpoint>, tx_route: TxRoute) {
        self.alternate = Some(Box::new((endpoint, tx_route)));
    }

    /// Makes the alternate path the route.
    #[cold]
    pub(crate) fn migrate(&mut self) {
        if let Some(alternate) = self.alternate.take() {
            let (endpoint, tx_route) = *alternate;
            self.set_route(endpoint, tx_route);
        }
    }

    /// Remembers a route that datagrams of `qp` may use.
    pub(crate) fn learn(&mut self, route: &Arc<Route>, qp: &Qp) {
        let backlog = self.backlog.as_ref().map(|backlog| backlog.route);
        let peer_routes = self.peer_routes.get_or_insert_default();
        peer_routes.learn(route, || qp.queued_routes().chain(backlog));
    }

    /// Sets the local endpoint and the address vector of a DC target's responses.
    pub(crate) fn respond_from(&mut self, endpoint: Arc<LocalEndpoint>, av: AddressVector) {
        self.peer_routes
            .get_or_insert_default()
            .respond_from(endpoint, av);
    }

    /// Returns the local endpoint and address vector of a response whose route is not known yet.
    #[cold]
    pub(crate) fn unknown_response(
        &self,
        tag: RouteTag,
    ) -> Option<&(Arc<LocalEndpoint>, AddressVector)> {
        let peer_routes = self
            .peer_routes
            .as_ref()
            .filter(|peer_routes| !peer_routes.contains(tag))?;
        peer_routes.response_source()
    }

    /// Sets the route of a response.
    pub(crate) fn add_response_route(&mut self, tag: RouteTag, route: &Arc<Route>) {
        let backlog = self.backlog.as_ref().map(|backlog| backlog.route);
        let peer_routes = self.peer_routes.get_or_insert_default();
        peer_routes.add_response_route(tag, route, backlog);
    }

    /// Returns true unless the route still waits for the broker's answer.
    #[inline]
    pub(crate) fn is_ready(&self, tag: RouteTag) -> bool {
        tag == RouteTag::OWN
            || self
                .peer_routes
                .as_ref()
                .is_none_or(|peer_routes| peer_routes.is_ready(tag))
    }

    /// Returns true if the QP has a route.
    pub(crate) const fn has_route(&self) -> bool {
        self.route.is_some() || self.peer_routes.is_some()
    }

    /// Makes the paths that match a new shared memory link use it, unless they have one.
    pub(crate) fn attach_peer_link(&mut self, peer_link: &Arc<AnyPeerLink>) {
        if let Some((endpoint, tx_route)) = &mut self.route {
            tx_route.attach_peer_link(endpoint, peer_link);
        }
        if let Some((endpoint, tx_route)) = self.alternate.as_deref_mut() {
            tx_route.attach_peer_link(endpoint, peer_link);
        }
    }

    /// Makes the paths use UDP again whose shared memory link has ended.
    pub(crate) fn drop_ended_peer_link(&mut self) {
        if let Some((_, tx_route)) = &mut self.route {
            tx_route
                .peer_link
                .take_if(|peer_link| peer_link.has_ended());
            self.peer_uses_shm &=
                tx_route.peer_link.is_some() || self.rx_filter == RxFilter::Paused;
        }
        if let Some((_, tx_route)) = self.alternate.as_deref_mut() {
            tx_route
                .peer_link
                .take_if(|peer_link| peer_link.has_ended());
        }
    }

    /// Accepts packets from any process with the peer's address.
    pub(crate) const fn accept_any(&mut self) {
        self.rx_filter = RxFilter::Any;
    }

    /// Accepts no copies of the packets that the QP itself sends to a group.
    pub(crate) const fn accept_except_self(&mut self) {
        self.rx_filter = RxFilter::ExceptSelf;
    }

    /// Returns true if the QP accepts no copies of its own packets.
    pub(crate) fn rejects_own(&self) -> bool {
        self.rx_filter == RxFilter::ExceptSelf
    }

    /// Pauses or resumes the acceptance of packets.
    pub(crate) const fn set_rx_paused(&mut self, is_rx_paused: bool) {
        self.rx_filter = if is_rx_paused {
            RxFilter::Paused
        } else {
            RxFilter::Peer
        };
        // While paused, `rejects_udp` must reach the check of `rx_filter`, which it usually skips.
        self.peer_uses_shm = is_rx_paused;
    }

    /// Returns true if no packets are accepted.
    pub(crate) fn is_rx_paused(&self) -> bool {
        self.rx_filter == RxFilter::Paused
    }

    /// Accepts a packet that came through a shared memory link. Returns false if the peer uses
    /// another link.
    #[inline]
    pub(crate) fn accepts_shm(&mut self, peer_link: &AnyPeerLink) -> bool {
        if let Some((_, tx_route)) = &self.route
            && let Some(own) = &tx_route.peer_link
            && !own.has_ended()
        {
            // Both sides may request a shared memory link at the same time. Then there are two.
            let is_own = own.is_parallel_to(peer_link);
            self.peer_uses_shm |= is_own;
            return match self.rx_filter {
                RxFilter::Peer => {
                    is_own || self.alternate.is_some() && self.may_migrate_to(peer_link)
                }
                RxFilter::Any | RxFilter::ExceptSelf => true,
                RxFilter::Paused => false,
            };
        }
        self.rx_filter != RxFilter::Paused
    }

    /// Returns true if the peer may announce a migration through this shared memory link.
    #[cold]
    fn may_migrate_to(&self, peer_link: &AnyPeerLink) -> bool {
        let alternate = self.alternate.as_ref();
        let own = alternate.and_then(|route| route.1.live_peer_link());
        own.is_none_or(|own| own.is_parallel_to(peer_link))
    }

    /// Returns true if packets over UDP are refused because the peer uses shared memory: anyone
    /// could have sent them.
    #[inline]
    pub(crate) fn rejects_udp(&self) -> bool {
        self.peer_uses_shm && self.filter_rejects_udp()
    }

    /// Returns true if there is no alternate path, or it uses shared memory too.
    #[cold]
    fn alternate_uses_shm(&self) -> bool {
        let alternate = self.alternate.as_ref();
        alternate.is_none_or(|route| route.1.live_peer_link().is_some())
    }

    #[cold]
    fn filter_rejects_udp(&self) -> bool {
        match self.rx_filter {
            RxFilter::Peer => self.has_live_peer_link() && self.alternate_uses_shm(),
            RxFilter::Any | RxFilter::ExceptSelf => false,
            RxFilter::Paused => true,
        }
    }

    fn has_live_peer_link(&self) -> bool {
        let peer_link = self
            .route
            .as_ref()
            .and_then(|(_, tx_route)| tx_route.peer_link.as_ref());
        peer_link.is_some_and(|peer_link| !peer_link.has_ended() && !peer_link.has_hung_up())
    }

    /// Forgets routes and unsent packets.
    pub(crate) fn reset(&mut self) {
        self.route = None;
        self.alternate = None;
        self.peer_routes = None;
        self.backlog = None;
        self.has_unsafe_ack = false;
        self.unpublished_ack = None;
        self.journal_slot = None;
    }

    pub(crate) const fn take_timer(&mut self) {
        self.timer = None;
    }

    /// Returns true if a batch of packets waits for space.
    pub(crate) const fn has_backlog(&self) -> bool {
        self.backlog.is_some()
    }

    /// The number of segments that a batch may have. A link without segmentation offload still cuts
    /// the batches of datagrams itself.
    pub(crate) fn max_segments(&self) -> usize {
        let one_by_one = self.route.as_ref().is_some_and(|(endpoint, tx_route)| {
            let by_shm = tx_route.peer_link.as_ref().is_some_and(|c| !c.has_ended());
            !by_shm && !endpoint.link.gso()
        });
        if one_by_one { 1 } else { MAX_SEGMENTS }
    }

    /// Returns true if sending is a system call.
    pub(crate) fn uses_socket(&self) -> bool {
        self.route
            .as_ref()
            .is_some_and(|(_, tx_route)| tx_route.peer_link.is_none())
    }

    /// Returns true if the last batch of a DC initiator or a datagram QP was sent through a socket.
    /// Their batches use different routes.
    pub(crate) fn peer_routes_use_socket(&self) -> bool {
        self.peer_routes
            .as_ref()
            .is_some_and(|peer_routes| peer_routes.use_socket())
    }

    /// The destination of the ACKs of a QP, for the ACK journal.
    pub(crate) fn ack_destination(&self, qp: &Qp) -> Option<AckDestination> {
        let (endpoint, tx_route) = self.route.as_ref()?;
        Some(AckDestination {
            local: endpoint.link.local_addr(),
            peer: tx_route.to,
            dest_qp: qp.dest_qp(),
            opcode: qp.ack_terms().opcode,
            pkey: qp.pkey(),
            traffic_class: tx_route.traffic_class,
        })
    }

    /// Records in the ACK journal which ACK the QP delays, or that it delays none. Nothing is
    /// blocked.
    #[inline]
    pub(crate) fn record_pending_ack(&mut self, qp: &Qp) {
        let Some(journal_slot) = &mut self.journal_slot else {
            return;
        };
        match qp.pending_ack() {
            Some(unacknowledged) => journal_slot.record(pending_ack_of(qp, unacknowledged)),
            None if self.queued.contains(ServiceReason::DelayedAck) => journal_slot.clear(),
            None => self.journal_slot = None,
        }
    }

    /// Returns true if no ACK waits to be sent, or others can send it should the process end, or
    /// its completion is held. An ACK that is in a ring does not wait.
    //= RC-ACK-20
    #[cfg(debug_assertions)]
    pub(crate) fn is_ack_safe(&self, qp: &Qp) -> bool {
        let waits = qp.newest_ack().map(|newest| pending_ack_of(qp, newest));
        let is_recorded = |ack| {
            let journal_slot = self.journal_slot.as_ref();
            journal_slot.is_some_and(|journal_slot| journal_slot.holds(ack))
        };
        self.has_unsafe_ack || waits.is_none_or(is_recorded)
    }

    /// Stops using the ACK journal: the QP delays no ACK for a while, or its route changes.
    pub(crate) fn release_journal_slot(&mut self) {
        self.journal_slot = None;
    }

    /// Publishes an unpublished ACK and wakes the peer for it.
    pub(crate) fn publish_ack(&mut self) {
        if self.unpublished_ack.take().is_some()
            && let Some((_, tx_route)) = &self.route
            && let Some(peer_link) = &tx_route.peer_link
        {
            peer_link.publish_unpublished();
        }
    }
}

/// The ACK that a QP would send now, as a journal record.
pub(crate) fn pending_ack_of(qp: &Qp, (psn, msn): (Psn, Msn)) -> PendingAck {
    let terms = qp.ack_terms();
    PendingAck {
        psn,
        msn,
        credits: terms.credits,
        migreq: terms.migreq,
    }
}

/// Returns the route of a batch: that to the peer, or one of those of datagrams.
#[inline]
pub(crate) fn tx_route_for<'w>(
    own: &'w mut Option<(Arc<LocalEndpoint>, TxRoute)>,
    peer_routes: &'w mut Option<Box<PeerRoutes>>,
    tag: RouteTag,
) -> Option<(&'w Arc<LocalEndpoint>, &'w mut TxRoute)> {
    if tag == RouteTag::OWN {
        own.as_mut()
            .map(|(endpoint, tx_route)| (&*endpoint, tx_route))
    } else {
        peer_routes.as_mut()?.get(tag)
    }
}
