//! Shared memory links: how a QP gets one, and receiving from it.
//!
//! A QP whose path leads to another process of this host uses the shared memory link to that
//! process. The broker makes the link when the first QP of either side requests it. Until then the
//! QP uses UDP, and it moves to the link when the peer requests it later. When the peer process has
//! ended, its QPs go back to UDP, where their packets are lost. Two QPs of one process use a link
//! both of whose ends are in this process.

use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocade_transport::{AddressVector, PacketMeta};
use rocade_wire::{ICRC_LEN, Qpn};

use super::EngineInner;
use super::dispatch::{Dispatch, Origin, Verdict};
use crate::broker::BrokerLink;
use crate::config::LinkMode;
use crate::link::shm::{self, ChannelOffer, ShmChannel, ShmReceiver, ShmRun};
use crate::link::tap::Via;
use crate::link::{Inbound as _, LocalAddr};
use crate::state::{Caller, LocalEndpoint, QpInner, Route, TxState};
use crate::steering::Slot;
use crate::tuning::{DRAIN_BYTES, MAX_RUNS, MAX_UDP_BEFORE, UNPUBLISHED_ROUNDS};
use crate::xrc_shared::{Stray, source_of};

impl EngineInner {
    /// Returns the shared memory link from a local address to a QP of a peer, and makes it if there
    /// is none.
    pub(crate) fn channel_to(
        &self,
        endpoint: &LocalEndpoint,
        dest: Qpn,
        to: IpAddr,
    ) -> Option<Arc<ShmChannel>> {
        let slot = Slot::of(dest);
        if self.link_mode == LinkMode::Udp || slot == Slot::BROKER || self.sim.is_some() {
            return None;
        }
        let local = endpoint.link.local_addr();
        let peer = LocalAddr::new(to, local.scope_id());
        let broker = self.broker_link();
        let own = broker.as_ref().map_or(Slot::EMBEDDED, |b| b.slot());
        if slot == own && self.has_endpoint(peer) {
            let shares = broker.is_some() || self.link_mode == LinkMode::Shm;
            return shares
                .then(|| self.own_channel(local, peer, slot))
                .flatten();
        }
        let broker = broker.filter(|_| slot != own)?;
        // Links that were offered before the peer told its QP number are attached now.
        self.attach_offers(broker.client().take_offers(true));
        if let Some(channel) = self.find_channel(local, slot, to) {
            return Some(channel);
        }
        if !crate::sys::is_of_this_host(peer.with_port(0)) {
            return None;
        }
        match broker.client().channel_to(local, peer, slot) {
            Ok(offer) => {
                // The peer may have requested the link at the same time: then its offer came first.
                let offers = broker.client().take_offers(true);
                self.attach_offers(offers.into_iter().chain(offer));
            }
            Err(error) => tracing::info!(%error, %peer, %slot, "failed to get shared memory"),
        }
        self.find_channel(local, slot, to)
    }

    /// Returns true if this is an address of this process.
    fn has_endpoint(&self, address: LocalAddr) -> bool {
        let endpoints = self.endpoints.read();
        endpoints
            .iter()
            .any(|endpoint| endpoint.link.local_addr() == address)
    }

    /// Returns the shared memory link between two addresses of this process, or from one to itself.
    /// Both ends are in this process.
    //= UD-15
    fn own_channel(
        &self,
        local: LocalAddr,
        peer: LocalAddr,
        slot: Slot,
    ) -> Option<Arc<ShmChannel>> {
        if let Some(channel) = self.find_channel(local, slot, peer.ip()) {
            return Some(channel);
        }
        let ends = ShmChannel::own(local, peer, slot, self.peer_wake_fd.as_fd())
            .inspect_err(
                |error| tracing::warn!(%error, "failed to make a shared memory link, using UDP"),
            )
            .ok()?
            .map(Arc::new);
        self.adopt(local, peer, slot, &ends);
        self.find_channel(local, slot, peer.ip())
    }

    /// Adds both ends of a link within this process, unless another thread has added one: no thread
    /// would receive from a second link.
    pub(super) fn adopt(
        &self,
        local: LocalAddr,
        peer: LocalAddr,
        slot: Slot,
        ends: &[Arc<ShmChannel>; 2],
    ) {
        let mut is_first = false;
        self.change_channels(|channels| {
            is_first = !channels.iter().any(|c| c.leads(local, peer.ip(), slot));
            if is_first {
                channels.extend(ends.iter().cloned());
            }
        });
        if !is_first {
            return;
        }
        for end in ends {
            self.move_qps_to(end);
        }
        self.wake_background();
    }

    fn find_channel(&self, local: LocalAddr, slot: Slot, to: IpAddr) -> Option<Arc<ShmChannel>> {
        let channels = self.channels.read();
        let mut fitting = channels
            .iter()
            .filter(|channel| channel.leads(local, to, slot));
        fitting
            .find(|channel| !channel.has_ended() && !channel.has_hung_up())
            .cloned()
    }

    /// Attaches links that peers have requested.
    pub(super) fn take_offers(&self) {
        if let Some(broker) = self.broker_link() {
            self.attach_offers(broker.client().take_offers(false));
        }
    }

    fn attach_offers(&self, offers: impl IntoIterator<Item = ChannelOffer>) {
        let Some(broker) = self.broker_link() else {
            return;
        };
        let mut attached = false;
        for offer in offers {
            if !self.peers.allow(offer.peer.ip()) {
                // Its packets have to come over UDP, where they are counted as refused.
                tracing::debug!(peer = %offer.peer, "refused shared memory from a peer that is not allowed");
                continue;
            }
            let channel = match ShmChannel::new(offer) {
                Ok(channel) => Arc::new(channel),
                Err(error) => {
                    tracing::warn!(%error, "failed to map a shared memory link, using UDP");
                    continue;
                }
            };
            if let Err(error) = broker.client().watch(channel.life_line()) {
                tracing::warn!(%error, "failed to watch a shared memory link, using UDP");
                continue;
            }
            tracing::debug!(%channel, "shared memory link is up");
            self.change_channels(|channels| channels.push(Arc::clone(&channel)));
            self.move_qps_to(&channel);
            attached = true;
        }
        if attached {
            // The thread has to announce its sleep on one more link.
            self.wake_background();
        }
    }

    fn change_channels(&self, change: impl FnOnce(&mut Vec<Arc<ShmChannel>>)) {
        let mut channels = self.channels.write();
        change(&mut channels);
        self.channel_count.store(channels.len(), Ordering::Release);
    }

    /// Makes QPs without a shared memory link that match a new one use it.
    pub(super) fn move_qps_to(&self, channel: &Arc<ShmChannel>) {
        for inner in self.qps.read().iter() {
            inner.lock().tx.offer_channel(channel);
        }
        self.routes.offer(channel);
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
        let never = self.link_mode == LinkMode::Udp || self.is_simulated();
        let at_once = never || av.dgid.to_ip().is_multicast();
        let (route, is_new) = self.routes.to(endpoint, dest, av, at_once)?;
        if is_new {
            self.wake_background();
        }
        Ok(route)
    }

    /// Requests the shared memory links of new routes, on the background thread.
    pub(super) fn resolve_new_routes(&self) {
        for route in self.routes.take_new() {
            let (endpoint, dest, to) = route.ends();
            route.resolve(self.channel_to(endpoint, dest, to));
        }
    }

    /// Checks for a shared memory link again after a QP has got a path without one.
    pub(crate) fn reconsider_path(&self, inner: &QpInner) {
        let channels = self.channels.read().clone();
        for channel in channels.iter().filter(|channel| !channel.has_ended()) {
            inner.lock().tx.offer_channel(channel);
        }
    }

    /// Receives the packets of a peer, including unpublished records.
    fn receive_unpublished(&self, channel: &Arc<ShmChannel>, rounds: usize) {
        let mut receiver = channel.receiver();
        for _ in 0..rounds {
            if channel.has_ended() || !receiver.read_unpublished() {
                break;
            }
            self.receive_from(channel, &mut receiver, Caller::Background);
        }
    }

    /// Like `receive_unpublished`, from all peers. A timer is due, and the awaited ACK may be an
    /// unpublished record.
    pub(super) fn receive_all_unpublished(&self) {
        for channel in self.channels.read().iter() {
            self.receive_unpublished(channel, UNPUBLISHED_ROUNDS);
        }
    }

    /// Drops the shared memory links whose peer has ended, and damaged ones. Receives what the peer
    /// has sent before: it may be the ACK of the last message.
    pub(super) fn drop_ended_channels(&self) {
        let channels: Vec<_> = self
            .channels
            .read()
            .iter()
            .filter(|channel| channel.has_hung_up())
            .cloned()
            .collect();
        if channels.is_empty() {
            return;
        }
        for channel in &channels {
            // Bounded, because a peer that violates the protocol could write for ever.
            self.receive_unpublished(channel, shm::MAX_RECORDS);
            channel.end();
        }
        self.change_channels(|all| {
            all.retain(|channel| !channels.iter().any(|c| Arc::ptr_eq(c, channel)));
        });
        for channel in &channels {
            tracing::debug!(%channel, "shared memory link has ended");
            if let Some(broker) = self.broker_link() {
                broker.client().unwatch(channel.life_line());
            }
        }
        for inner in self.qps.read().iter() {
            inner.lock().tx.drop_ended_channel();
        }
        self.routes.leave_ended();
    }

    /// Receives from shared memory links. Returns the number of packets. The application skips
    /// links that another thread receives from.
    #[inline]
    pub(super) fn receive_shared(&self, channels: &[Arc<ShmChannel>], caller: Caller) -> u64 {
        let mut packets = 0;
        for channel in channels {
            if !channel.has_packets() {
                continue;
            }
            channel.fetch_ahead();
            let receiver = if caller == Caller::Background {
                Some(channel.receiver())
            } else {
                channel.try_receiver()
            };
            if let Some(mut receiver) = receiver {
                packets += self.receive_from(channel, &mut receiver, caller);
            }
        }
        packets
    }

    fn receive_from(
        &self,
        channel: &Arc<ShmChannel>,
        receiver: &mut ShmReceiver<'_>,
        caller: Caller,
    ) -> u64 {
        let tables = || {
            let (qps, now) = (self.qps.read(), self.now());
            (qps, now, self.regions().read(now))
        };
        let mut locked = tables();
        // The record is first read after the locks are taken. Its cache line is being prefetched
        // meanwhile.
        let after_udp = receiver.is_after_udp();
        if after_udp {
            drop(locked);
            self.receive_udp_before(channel, caller);
            locked = tables();
        }
        let (qps, now, mem) = locked;
        let mut meta = PacketMeta {
            source: channel.peer(),
            destination: channel.local(),
            traffic_class: 0,
            hop_limit: 0,
        };
        let mut dispatch = Dispatch::new(self, &qps, &mem, now, caller);
        let (mut undrained, mut last) = (0, None);
        receiver.receive(MAX_RUNS, after_udp, |run: ShmRun<'_>| {
            //= ENC-08
            (meta.traffic_class, meta.hop_limit) = run.header();
            for segment in run.segments() {
                undrained += segment.len();
                match dispatch.packet(&meta, segment, &mut FromChannel(channel), None) {
                    Verdict::Taken => {}
                    Verdict::Malformed => self.count(|counters| &counters.rx_malformed),
                    // Only when a fault rule corrupts packets.
                    Verdict::BadIcrc => self.count(|counters| &counters.rx_bad_icrc),
                    //= BTH-10
                    Verdict::UnknownQp(_) => self.count(|counters| &counters.rx_unknown_qp),
                    Verdict::WrongLink => self.count(|counters| &counters.rx_wrong_link),
                    Verdict::Elsewhere => {
                        let bytes = segment.copied();
                        let stray = Stray {
                            source: source_of(channel.peer()),
                            destination: channel.local(),
                            bytes: &bytes,
                            hops: 0,
                            is_sealed: false,
                        };
                        self.shared_targets.keep(self, stray);
                    }
                }
            }
            if undrained >= DRAIN_BYTES {
                undrained = 0;
                // All QPs of a link have its address, and therefore its device.
                last = dispatch.current().map(|(qp, _)| qp).or(last);
                dispatch.let_go(None);
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
            self.count_traffic();
        }
        dispatch.let_go(None);
        received
    }

    /// Receives from the UDP socket after a QP of the peer has moved from UDP to shared memory.
    /// Packets that it has sent before must not be overtaken. On the loopback interface they have
    /// already arrived.
    #[cold]
    fn receive_udp_before(&self, channel: &ShmChannel, caller: Caller) {
        let endpoints = self.endpoints.read();
        let mut of_channel = endpoints
            .iter()
            .filter(|endpoint| endpoint.link.local() == channel.local());
        if let Some(endpoint) = of_channel.next() {
            let mut rx = endpoint.rx.lock();
            // Bounded, because other senders may keep the socket full.
            for _ in 0..MAX_UDP_BEFORE {
                if !self.receive(endpoint, &mut rx, caller).more {
                    break;
                }
            }
        }
    }

    /// Announces to all peers that they have to wake this process. Returns false if there are
    /// packets to receive already.
    pub(super) fn announce_sleep(&self) -> bool {
        let channels = self.channels.read();
        channels.is_empty() || ShmChannel::announce_sleep(channels.iter().map(AsRef::as_ref))
    }

    /// Announces that the process is awake. Returns true if a peer has woken it for packets.
    pub(super) fn announce_awake(&self) -> bool {
        let channels = self.channels.read();
        // `count` visits all of them.
        channels.iter().filter(|channel| channel.wake_up()).count() > 0
    }

    /// Tells the broker that this process uses shared memory.
    pub(super) fn share(&self, broker: &BrokerLink) {
        if self.link_mode != LinkMode::Udp
            && let Err(error) = broker.client().share(self.peer_wake_fd.as_fd())
        {
            tracing::warn!(%error, "failed to announce shared memory to the broker, using UDP");
        }
    }
}

/// Packets from a shared memory link. They have no ICRC, because memory does not corrupt them.
struct FromChannel<'c>(&'c Arc<ShmChannel>);

impl Origin for FromChannel<'_> {
    #[inline]
    fn is_intact<'p>(&mut self, _: impl FnOnce() -> (&'p [u8], [u8; ICRC_LEN])) -> bool {
        true
    }

    #[inline]
    fn is_accepted(&self, tx: &mut TxState) -> bool {
        tx.accepts_shm(self.0)
    }

    fn via(&self) -> Via {
        Via::Channel(Arc::clone(self.0))
    }
}
