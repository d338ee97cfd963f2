//! Shared memory links: how a QP gets one, and receiving from it.
//!
//! A QP whose path leads to another process of this host uses the shared memory link to that
//! process. The broker makes the link when the first QP of either side requests it. Until then the
//! QP uses UDP, and it moves to the link when the peer requests it later, or when the peer receives
//! from it ([`opening`]). When the peer process has ended, its QPs go back to UDP, where their
//! packets are lost. Two QPs of one process use a link both of whose ends are in this process.

use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocade_transport::{AddressVector, PacketMeta};
use rocade_wire::{ICRC_LEN, Qpn};

use super::cx::Cx;
use super::dispatch::{Dispatch, Disposition, Flush, Origin};
use super::{Links, Nic};
use crate::broker::BrokerLink;
use crate::config::LinkMode;
use crate::link::Link as _;
use crate::link::packet_hooks::Ingress;
use crate::link::peer_link::{
    AnyBatch, AnyPeerLink, AnyReceiver, PeerBatch as _, PeerLink as _, PeerLinkOffer,
    PeerReceiver as _,
};
use crate::link::shm::MAX_RECORDS;
use crate::link::{Inbound, LocalAddr};
use crate::state::{Caller, LocalEndpoint, Route, TxState};
use crate::steering::ProcessSlot;
use crate::tuning::{FLUSH_BYTES, MAX_SHM_BATCHES, MAX_UDP_BEFORE, UNPUBLISHED_ROUNDS};
use crate::xrc_shared::{Misrouted, source_of};

mod opening;

pub(super) use opening::Unopened;

impl Links {
    /// Returns true if this is an address of this process.
    fn has_endpoint(&self, address: LocalAddr) -> bool {
        let endpoints = self.endpoints.read();
        endpoints
            .iter()
            .any(|endpoint| endpoint.link.local_addr() == address)
    }

    fn find_peer_link(
        &self,
        local: LocalAddr,
        slot: ProcessSlot,
        to: IpAddr,
        fits: impl Fn(&AnyPeerLink) -> bool,
    ) -> Option<Arc<AnyPeerLink>> {
        let peer_links = self.peer_links.read();
        let mut fitting = peer_links
            .iter()
            .filter(|peer_link| peer_link.connects(local, to, slot) && fits(peer_link));
        fitting
            .find(|peer_link| !peer_link.has_ended() && !peer_link.has_hung_up())
            .cloned()
    }

    fn change_peer_links(&self, change: impl FnOnce(&mut Vec<Arc<AnyPeerLink>>)) {
        let mut peer_links = self.peer_links.write();
        change(&mut peer_links);
        self.peer_link_count
            .store(peer_links.len(), Ordering::Release);
    }

    /// Announces to all peers that they have to wake this process. Returns false if there are
    /// packets to receive already.
    pub(super) fn announce_sleep(&self) -> bool {
        let peer_links = self.peer_links.read();
        peer_links.is_empty() || AnyPeerLink::announce_sleep(peer_links.iter().map(AsRef::as_ref))
    }

    /// Announces that the process is awake. Returns true if a peer has woken it for packets.
    pub(super) fn announce_awake(&self) -> bool {
        let peer_links = self.peer_links.read();
        // `count` visits all of them.
        peer_links
            .iter()
            .filter(|peer_link| peer_link.wake_up())
            .count()
            > 0
    }
}

impl Nic {
    /// Returns the shared memory link from a local address to a QP of a peer, and makes it if there
    /// is none.
    pub(crate) fn peer_link_to(
        &self,
        endpoint: &LocalEndpoint,
        dest: Qpn,
        to: IpAddr,
    ) -> Option<Arc<AnyPeerLink>> {
        let slot = ProcessSlot::of(dest);
        if self.host.link_mode == LinkMode::Udp
            || slot == ProcessSlot::BROKER
            || self.host.sim.is_some()
        {
            return None;
        }
        let local = endpoint.link.local_addr();
        let peer = LocalAddr::new(to, local.scope_id());
        let broker = self.presence.broker_link();
        let own = broker.as_ref().map_or(ProcessSlot::EMBEDDED, |b| b.slot());
        if slot == own && self.links.has_endpoint(peer) {
            let shares = broker.is_some() || self.host.link_mode == LinkMode::Shm;
            return shares
                .then(|| self.own_peer_link(local, peer, slot))
                .flatten();
        }
        let broker = broker.filter(|_| slot != own)?;
        // Links that were offered before the peer told its QP number are attached now.
        self.attach_offers(broker.client().take_offers(true));
        let may_use = |peer_link: &AnyPeerLink| self.may_use(peer_link);
        if self
            .links
            .find_peer_link(local, slot, to, |_| true)
            .is_some()
        {
            return self.links.find_peer_link(local, slot, to, may_use);
        }
        if !crate::sys::is_of_this_host(peer.with_port(0)) {
            return None;
        }
        match broker.client().shm_link_to(local, peer, slot) {
            Ok(offer) => {
                // The peer may have requested the link at the same time: then its offer came first.
                let offers = broker.client().take_offers(true);
                self.attach_offers(offers.into_iter().chain(offer));
            }
            Err(error) => tracing::info!(%error, %peer, %slot, "failed to get shared memory"),
        }
        self.links.find_peer_link(local, slot, to, may_use)
    }

    /// Returns the shared memory link between two addresses of this process, or from one to itself.
    /// Both ends are in this process.
    //= UD-15
    fn own_peer_link(
        &self,
        local: LocalAddr,
        peer: LocalAddr,
        slot: ProcessSlot,
    ) -> Option<Arc<AnyPeerLink>> {
        let find = || self.links.find_peer_link(local, slot, peer.ip(), |_| true);
        if let Some(peer_link) = find() {
            return Some(peer_link);
        }
        let ends = AnyPeerLink::within(local, peer, slot, self.scheduler.peer_wake_fd.as_fd())
            .inspect_err(
                |error| tracing::warn!(%error, "failed to make a shared memory link, using UDP"),
            )
            .ok()?
            .map(Arc::new);
        self.add_own_peer_link(local, peer, slot, &ends);
        find()
    }

    /// Adds both ends of a link within this process, unless another thread has added one: no thread
    /// would receive from a second link.
    pub(super) fn add_own_peer_link(
        &self,
        local: LocalAddr,
        peer: LocalAddr,
        slot: ProcessSlot,
        ends: &[Arc<AnyPeerLink>; 2],
    ) {
        let mut is_first = false;
        self.links.change_peer_links(|peer_links| {
            is_first = !peer_links
                .iter()
                .any(|c| c.connects(local, peer.ip(), slot));
            if is_first {
                peer_links.extend(ends.iter().cloned());
            }
        });
        if !is_first {
            return;
        }
        self.scheduler.wake_background();
        for end in ends {
            end.open();
        }
        for end in ends {
            self.move_qps_to(end);
        }
    }

    /// Attaches links that peers have requested.
    pub(super) fn take_offers(&self) {
        if let Some(broker) = self.presence.broker_link() {
            self.attach_offers(broker.client().take_offers(false));
        }
    }

    fn attach_offers(&self, offers: impl IntoIterator<Item = PeerLinkOffer>) {
        let Some(broker) = self.presence.broker_link() else {
            return;
        };
        let mut added = Vec::new();
        for offer in offers {
            if !self.host.peers.allow(offer.peer.ip()) {
                // Its packets have to come over UDP, where they are counted as refused.
                tracing::debug!(peer = %offer.peer, "refused shared memory from a peer that is not allowed");
                continue;
            }
            let peer_link = match AnyPeerLink::open(offer) {
                Ok(peer_link) => Arc::new(peer_link),
                Err(error) => {
                    tracing::warn!(%error, "failed to map a shared memory link, using UDP");
                    continue;
                }
            };
            let watched = peer_link.liveness().map(|fd| broker.client().watch(fd));
            if let Some(Err(error)) = watched {
                tracing::warn!(%error, "failed to watch a shared memory link, using UDP");
                continue;
            }
            tracing::debug!(%peer_link, "shared memory link is up");
            self.links
                .change_peer_links(|peer_links| peer_links.push(Arc::clone(&peer_link)));
            added.push(peer_link);
        }
        if !added.is_empty() {
            self.open_peer_links(added);
        }
    }

    /// Returns the route of datagrams from an address to a QP of a peer.
    ///
    /// # Errors
    /// Those of [`LocalEndpoint::tx_route_to`].
    pub(crate) fn route_to(
        &self,
        endpoint: &Arc<LocalEndpoint>,
        dest: Qpn,
        av: &AddressVector,
    ) -> io::Result<Arc<Route>> {
        let never = self.host.link_mode == LinkMode::Udp || self.host.is_simulated();
        let at_once = never || av.dgid.to_ip().is_multicast();
        let (route, is_new) = self.links.routes.to(endpoint, dest, av, at_once)?;
        if is_new {
            self.scheduler.wake_background();
        }
        Ok(route)
    }

    /// Requests the shared memory links of new routes, on the background thread.
    pub(super) fn resolve_new_routes(&self) {
        for route in self.links.routes.take_new() {
            let (endpoint, dest, to) = route.endpoints();
            route.resolve(self.peer_link_to(endpoint, dest, to));
        }
    }

    /// Receives the packets of a peer, including unpublished records.
    fn receive_unpublished(&self, peer_link: &Arc<AnyPeerLink>, rounds: usize) {
        let mut receiver = peer_link.receiver();
        for _ in 0..rounds {
            if peer_link.has_ended() || !receiver.read_unpublished() {
                break;
            }
            self.receive_from(peer_link, &mut receiver, Caller::Background);
        }
    }

    /// Receives the packets of all peers, including unpublished records.
    ///
    /// The awaited ACK may be an unpublished record when a timer is due, or when a datagram of the
    /// connection manager ends the connection.
    pub(crate) fn receive_all_unpublished(&self) {
        for peer_link in self.links.peer_links.read().iter() {
            self.receive_unpublished(peer_link, UNPUBLISHED_ROUNDS);
        }
    }

    /// Drops the shared memory links whose peer has ended, and damaged ones. Receives what the peer
    /// has sent before: it may be the ACK of the last message.
    pub(super) fn drop_ended_peer_links(&self) {
        let peer_links: Vec<_> = self
            .links
            .peer_links
            .read()
            .iter()
            .filter(|peer_link| peer_link.has_hung_up())
            .cloned()
            .collect();
        if peer_links.is_empty() {
            return;
        }
        for peer_link in &peer_links {
            // Bounded, because a peer that violates the protocol could write for ever.
            self.receive_unpublished(peer_link, MAX_RECORDS);
            peer_link.end();
        }
        self.links.change_peer_links(|all| {
            all.retain(|peer_link| !peer_links.iter().any(|c| Arc::ptr_eq(c, peer_link)));
        });
        for peer_link in &peer_links {
            tracing::debug!(%peer_link, "shared memory link has ended");
            if let (Some(broker), Some(fd)) = (self.presence.broker_link(), peer_link.liveness()) {
                broker.client().unwatch(fd);
            }
        }
        for inner in self.tables.qps.read().iter() {
            inner.lock().tx.drop_ended_peer_link();
        }
        self.links.routes.drop_ended_peer_links();
    }

    /// Receives from shared memory links. Returns the number of packets. The application skips
    /// links that another thread receives from.
    #[inline]
    pub(super) fn receive_shared(&self, peer_links: &[Arc<AnyPeerLink>], caller: Caller) -> u64 {
        let mut packets = 0;
        for peer_link in peer_links {
            if !peer_link.has_packets() {
                continue;
            }
            peer_link.prefetch_next();
            let receiver = if caller == Caller::Background {
                Some(peer_link.receiver())
            } else {
                peer_link.try_receiver()
            };
            if let Some(mut receiver) = receiver {
                packets += self.receive_from(peer_link, &mut receiver, caller);
            }
        }
        packets
    }

    pub(super) fn receive_from(
        &self,
        peer_link: &Arc<AnyPeerLink>,
        receiver: &mut AnyReceiver<'_>,
        caller: Caller,
    ) -> u64 {
        let tables = || {
            let (qps, now) = (self.tables.qps.read(), self.host.now());
            (qps, now, self.tables.regions().read(now))
        };
        let mut locked = tables();
        // The record is first read after the locks are taken. Its cache line is being prefetched
        // meanwhile.
        let after_udp = receiver.is_after_udp();
        if after_udp {
            drop(locked);
            // The peer has opened the link before it sent, so the responses go the same way.
            self.use_opened_links();
            self.receive_udp_before(peer_link, caller);
            locked = tables();
        }
        let (qps, now, mem) = locked;
        let mut meta = PacketMeta {
            source: peer_link.peer(),
            destination: peer_link.local(),
            traffic_class: 0,
            hop_limit: 0,
        };
        let cx = Cx {
            now,
            caller,
            mem: &mem,
        };
        let mut dispatch = Dispatch::new(self, &qps, cx, Flush::Now);
        let (mut unflushed_bytes, mut last) = (0, None);
        receiver.receive(MAX_SHM_BATCHES, after_udp, |batch: AnyBatch<'_>| {
            //= ENC-08
            (meta.traffic_class, meta.hop_limit) = batch.header();
            for (index, segment) in batch.segments().enumerate() {
                unflushed_bytes += segment.len();
                if mem.takes_placements() {
                    let rest = batch.segments().skip(index);
                    let packets = rest.map_while(Inbound::fast_path);
                    let accepts = |tx: &mut TxState| tx.accepts_shm(peer_link);
                    dispatch.place_ahead(&meta, packets, accepts);
                }
                let disposition = dispatch.packet(&meta, segment, &mut FromPeerLink(peer_link));
                if disposition != Disposition::Delivered {
                    self.settle_shared(peer_link, segment, disposition);
                }
            }
            mem.forget_placements();
            if unflushed_bytes >= FLUSH_BYTES {
                unflushed_bytes = 0;
                // All QPs of a link have its address, and therefore its device.
                last = dispatch.current().map(|(qp, _)| qp).or(last);
                dispatch.flush_locked();
            }
            if dispatch.uses_up_receives() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let (received, bytes) = (dispatch.packets, dispatch.bytes);
        if let Some(qp) = dispatch.current().map(|(qp, _)| qp).or(last) {
            qp.hca().traffic.received(received, bytes, true);
            self.note_change();
        }
        dispatch.flush_locked();
        received
    }

    /// Counts a packet of a shared memory link that no QP has handled, or leaves it to the owner of
    /// its target.
    #[cold]
    fn settle_shared<'p>(
        &self,
        peer_link: &AnyPeerLink,
        segment: impl Inbound<'p>,
        disposition: Disposition,
    ) {
        match disposition {
            Disposition::Delivered => {}
            Disposition::Malformed => self.observers.count(|counters| &counters.rx_malformed),
            // Only when a fault rule corrupts packets.
            Disposition::BadIcrc => self.observers.count(|counters| &counters.rx_bad_icrc),
            //= BTH-10
            Disposition::UnknownQp(_) => self.observers.count(|counters| &counters.rx_unknown_qp),
            Disposition::WrongLink => self.observers.count(|counters| &counters.rx_wrong_link),
            Disposition::OwnedElsewhere => {
                let bytes = segment.copied();
                let misrouted = Misrouted {
                    source: source_of(peer_link.peer()),
                    destination: peer_link.local(),
                    bytes: &bytes,
                    hops: 0,
                    is_sealed: false,
                };
                self.tables
                    .shared_targets
                    .queue_or_redirect(self, misrouted);
            }
        }
    }

    /// Receives from the UDP socket after a QP of the peer has moved from UDP to shared memory.
    /// Packets that it has sent before must not be overtaken. On the loopback interface they have
    /// already arrived.
    #[cold]
    fn receive_udp_before(&self, peer_link: &AnyPeerLink, caller: Caller) {
        let endpoints = self.links.endpoints.read();
        let mut matching = endpoints
            .iter()
            .filter(|endpoint| endpoint.link.local() == peer_link.local());
        if let Some(endpoint) = matching.next() {
            let mut rx = endpoint.lock_rx();
            // Bounded, because other senders may keep the socket full.
            for _ in 0..MAX_UDP_BEFORE {
                if !self.receive(endpoint, &mut rx, caller).more {
                    break;
                }
            }
        }
        if self.cm.has_arrived() {
            // The caller holds a lock, so that another thread handles the datagrams.
            self.scheduler.wake_background();
        }
    }

    /// Tells the broker that this process uses shared memory.
    pub(super) fn share(&self, broker: &BrokerLink) {
        if self.host.link_mode != LinkMode::Udp
            && let Err(error) = broker.client().share(self.scheduler.peer_wake_fd.as_fd())
        {
            tracing::warn!(%error, "failed to announce shared memory to the broker, using UDP");
        }
    }
}

/// Packets from a shared memory link. They have no ICRC, because memory does not corrupt them.
struct FromPeerLink<'c>(&'c Arc<AnyPeerLink>);

impl Origin for FromPeerLink<'_> {
    #[inline]
    fn is_intact<'p>(&mut self, _: impl FnOnce() -> (&'p [u8], [u8; ICRC_LEN])) -> bool {
        true
    }

    #[inline]
    fn is_accepted(&self, tx: &mut TxState) -> bool {
        tx.accepts_shm(self.0)
    }

    fn ingress(&self) -> Ingress {
        Ingress::Shm(Arc::clone(self.0))
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod wiring;

#[cfg(all(test, not(loom)))]
mod pipe;

#[cfg(all(test, not(loom)))]
mod opening_tests;
