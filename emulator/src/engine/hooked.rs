//! Packets that pass the packet hooks (`link/packet_hooks.rs`), which may drop, change or delay
//! them.

use std::sync::Arc;

use rocade_transport::PacketMeta;
use rocade_wire::{ICRC_LEN, Packet, Qpn};

use super::Nic;
use super::cx::Cx;
use super::dispatch::{Dispatch, Disposition, Flush, Origin};
use super::transmit::Batch;
use crate::link::Link as _;
use crate::link::packet_hooks::{
    DelayedRx, DelayedTx, ECN_CE, Ingress, PacketInfo, RxVerdict, TxVerdict,
};
use crate::link::{Inbound, Segments};
use crate::state::{Caller, LocalEndpoint, TxRoute, TxState};

impl Origin for Ingress {
    fn is_intact<'p>(&mut self, _: impl FnOnce() -> (&'p [u8], [u8; ICRC_LEN])) -> bool {
        true
    }

    fn is_accepted(&self, tx: &mut TxState) -> bool {
        match self {
            Self::Udp(..) => !tx.rejects_udp(),
            Self::Shm(peer_link) => tx.accepts_shm(peer_link),
        }
    }

    fn ingress(&self) -> Self {
        self.clone()
    }
}

/// The route of a packet that may be delayed.
pub(super) type OwnedTxRoute = (Arc<LocalEndpoint>, TxRoute);

impl Nic {
    /// Sends a complete and sealed batch through the packet hooks. Returns false if there is no
    /// space.
    #[cold]
    pub(super) fn send_hooked(
        &self,
        endpoint: &Arc<LocalEndpoint>,
        tx_route: &mut TxRoute,
        batch: Batch<'_>,
        caller: Caller,
    ) -> bool {
        let shared = tx_route.live_peer_link().is_some();
        let packet_info = PacketInfo {
            source: endpoint.link.local(),
            destination: tx_route.to,
            udp: (!shared).then_some((tx_route.tx.source_port, 0)),
            tos: tx_route.traffic_class,
        };
        let owned_route = |is_marked| {
            let mut tx_route = tx_route.clone();
            tx_route.traffic_class |= if is_marked { ECN_CE } else { 0 };
            (Arc::clone(endpoint), tx_route)
        };
        let segments = Segments::new(batch.bytes, batch.segment_len);
        let mut sent = true;
        match self.links.hooks.on_tx(
            self.host.now(),
            packet_info,
            (segments, batch.remark),
            owned_route,
        ) {
            TxVerdict::Pass => sent = self.put(endpoint, tx_route, batch, caller),
            TxVerdict::Modified(delayed_tx) => {
                self.send_delayed(delayed_tx, batch.unpublished, caller);
            }
            TxVerdict::Delayed(due) => {
                self.scheduler.service_queue.wake_thread_by(due);
                return true;
            }
        }
        if self.links.hooks.has_faults() {
            self.links.hooks.note_tx();
            self.release_delayed_tx(caller);
        }
        sent
    }

    /// Sends a complete and sealed packet that belongs to no QP. It is lost if there is no space.
    pub(crate) fn send_datagram(
        &self,
        endpoint: &Arc<LocalEndpoint>,
        tx_route: &mut TxRoute,
        bytes: &[u8],
    ) {
        let batch = Batch::single(bytes, false);
        let caller = Caller::Application;
        if self.links.hooks.is_active() {
            self.send_hooked(endpoint, tx_route, batch, caller);
        } else {
            self.put(endpoint, tx_route, batch, caller);
        }
    }

    fn release_delayed_tx(&self, caller: Caller) {
        let now = self.host.now();
        while let Some(delayed_tx) = self.links.hooks.take_delayed_tx(now) {
            self.send_delayed(delayed_tx, false, caller);
        }
    }

    fn send_delayed(&self, delayed_tx: DelayedTx<OwnedTxRoute>, unpublished: bool, caller: Caller) {
        let (endpoint, mut tx_route) = delayed_tx.tx_route;
        for _ in 0..delayed_tx.copies {
            // Without space the packet is lost.
            let batch = Batch::single(&delayed_tx.bytes, unpublished);
            self.put(&endpoint, &mut tx_route, batch, caller);
        }
    }

    /// Sends and delivers the packets whose delay is over.
    #[cold]
    pub(super) fn release_delayed(&self, caller: Caller) {
        self.release_delayed_tx(caller);
        loop {
            let now = self.host.now();
            let Some(mut delayed_rx) = self.links.hooks.take_delayed_rx(now) else {
                return;
            };
            let qps = self.tables.qps.read();
            let mem = self.tables.regions().read(now);
            let cx = Cx {
                now,
                caller,
                mem: &mem,
            };
            let mut dispatch = Dispatch::new(self, &qps, cx, Flush::Now);
            let disposition = dispatch.deliver_delayed(&mut delayed_rx);
            dispatch.flush_locked();
            if disposition == Disposition::UnknownQp(Qpn::GSI) {
                let DelayedRx { meta, bytes, .. } = delayed_rx;
                let endpoints = self.links.endpoints.read();
                let mut endpoints = endpoints.iter();
                let here = endpoints.find(|endpoint| endpoint.link.local() == meta.destination);
                // The packet was for this process when it arrived.
                if let Some(endpoint) = here {
                    self.to_gsi(endpoint, meta.source, &bytes, true);
                }
            }
        }
    }
}

impl Dispatch<'_> {
    /// [`Dispatch::packet`] for packets that are captured or subject to fault rules.
    #[cold]
    pub(super) fn hooked_packet<'p>(
        &mut self,
        meta: &PacketMeta,
        packet: impl Inbound<'p>,
        origin: &mut impl Origin,
    ) -> Disposition {
        // Not the time of the batch: its later packets may have been sent after that.
        let (hooks, now) = (&self.engine.links.hooks, self.engine.host.now());
        let bytes = packet.copied();
        if Packet::parse(&bytes).is_err() {
            hooks.record_dropped(now, meta, &bytes, &origin.ingress(), "not a RoCEv2 packet");
            return Disposition::Malformed;
        }
        let is_intact = origin.is_intact(|| match bytes.split_last_chunk() {
            Some((covered, icrc)) => (covered, *icrc),
            None => (&[], [0; ICRC_LEN]),
        });
        // The check has determined the Identification.
        let ingress = origin.ingress();
        if !is_intact {
            hooks.record_dropped(now, meta, &bytes, &ingress, "wrong ICRC");
            return Disposition::BadIcrc;
        }
        let mut delayed_rx = match hooks.on_rx(now, meta, bytes, ingress) {
            RxVerdict::Pass(delayed_rx) => delayed_rx,
            RxVerdict::Damaged => return Disposition::BadIcrc,
            RxVerdict::Delayed(due) => {
                self.engine.scheduler.service_queue.wake_thread_by(due);
                return Disposition::Delivered;
            }
        };
        let disposition = self.deliver_delayed(&mut delayed_rx);
        if hooks.has_faults() {
            hooks.note_rx();
            while let Some(mut next) = hooks.take_delayed_rx(now) {
                self.deliver_delayed(&mut next);
            }
        }
        disposition
    }

    fn deliver_delayed(&mut self, delayed_rx: &mut DelayedRx) -> Disposition {
        let mut disposition = Disposition::Delivered;
        for _ in 0..delayed_rx.copies {
            let DelayedRx {
                meta,
                bytes,
                ingress,
                ..
            } = &mut *delayed_rx;
            disposition = self.deliver(meta, &**bytes, ingress);
        }
        disposition
    }
}
