//! Packets that pass the packet hooks (`link/tap.rs`), which may drop, change or delay them.

use std::sync::Arc;

use rocade_transport::PacketMeta;
use rocade_wire::{ICRC_LEN, Packet, Qpn};

use super::EngineInner;
use super::dispatch::{Dispatch, Origin, Verdict};
use super::transmit::Run;
use crate::link::tap::{Arrived, Arriving, Departure, ECN_CE, Envelope, Leaving, Via};
use crate::link::{Inbound, Segments};
use crate::state::{Caller, LocalEndpoint, TxRoute, TxState};

impl Origin for Via {
    fn is_intact<'p>(&mut self, _: impl FnOnce() -> (&'p [u8], [u8; ICRC_LEN])) -> bool {
        true
    }

    fn is_accepted(&self, tx: &mut TxState) -> bool {
        match self {
            Self::Udp(..) => !tx.rejects_udp(),
            Self::Shm(shm_link) => tx.accepts_shm(shm_link),
        }
    }

    fn via(&self) -> Self {
        self.clone()
    }
}

/// The route of a packet that may be delayed.
pub(super) type OwnedTxRoute = (Arc<LocalEndpoint>, TxRoute);

impl EngineInner {
    /// Sends a complete and sealed run through the packet hooks. Returns false if there is no room.
    #[cold]
    pub(super) fn send_tapped(
        &self,
        endpoint: &Arc<LocalEndpoint>,
        tx_route: &TxRoute,
        first_shm_send: &mut bool,
        run: Run<'_>,
        caller: Caller,
    ) -> bool {
        let shared = tx_route.live_shm_link().is_some();
        let envelope = Envelope {
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
        let segments = Segments::new(run.bytes, run.segment_len);
        let mut sent = true;
        match self.tap.depart(self.now(), envelope, segments, owned_route) {
            Departure::Free => sent = self.put(endpoint, tx_route, first_shm_send, run, caller),
            Departure::Changed(leaving) => {
                self.leave(&leaving, first_shm_send, run.unpublished, caller)
            }
            Departure::Late(due) => {
                self.service_queue.wake_thread_by(due);
                return true;
            }
        }
        if self.tap.is_faulty() {
            self.tap.has_left();
            self.release_leaving(caller);
        }
        sent
    }

    /// Sends a complete and sealed packet that belongs to no QP. It is lost if there is no room.
    pub(crate) fn send_datagram(
        &self,
        endpoint: &Arc<LocalEndpoint>,
        tx_route: &TxRoute,
        bytes: &[u8],
    ) {
        let run = Run::single(bytes, false);
        let caller = Caller::Application;
        if self.tap.is_on() {
            self.send_tapped(endpoint, tx_route, &mut false, run, caller);
        } else {
            self.put(endpoint, tx_route, &mut false, run, caller);
        }
    }

    fn release_leaving(&self, caller: Caller) {
        let now = self.now();
        while let Some(leaving) = self.tap.take_leaving(now) {
            self.leave(&leaving, &mut false, false, caller);
        }
    }

    fn leave(
        &self,
        leaving: &Leaving<OwnedTxRoute>,
        first_shm_send: &mut bool,
        unpublished: bool,
        caller: Caller,
    ) {
        let (endpoint, tx_route) = &leaving.tx_route;
        for _ in 0..leaving.copies {
            // Without room the packet is lost.
            let run = Run::single(&leaving.bytes, unpublished);
            self.put(endpoint, tx_route, first_shm_send, run, caller);
        }
    }

    /// Sends and delivers the packets whose delay is over.
    #[cold]
    pub(super) fn release_late(&self, caller: Caller) {
        self.release_leaving(caller);
        loop {
            let now = self.now();
            let Some(mut arriving) = self.tap.take_arriving(now) else {
                return;
            };
            let qps = self.qps.read();
            let mem = self.regions().read(now);
            let mut dispatch = Dispatch::new(self, &qps, &mem, now, caller);
            let verdict = dispatch.arrive(&mut arriving, None);
            dispatch.let_go(None);
            if verdict == Verdict::UnknownQp(Qpn::GSI) {
                let Arriving { meta, bytes, .. } = arriving;
                let endpoints = self.endpoints.read();
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
    pub(super) fn tapped_packet<'p>(
        &mut self,
        meta: &PacketMeta,
        packet: impl Inbound<'p>,
        origin: &mut impl Origin,
        mut later: Option<&mut Vec<Qpn>>,
    ) -> Verdict {
        // Not the time of the batch: its later packets may have been sent after that.
        let (tap, now) = (&self.engine.tap, self.engine.now());
        let bytes = packet.copied();
        if Packet::parse(&bytes).is_err() {
            tap.refuse(now, meta, &bytes, &origin.via(), "not a RoCEv2 packet");
            return Verdict::Malformed;
        }
        let is_intact = origin.is_intact(|| match bytes.split_last_chunk() {
            Some((covered, icrc)) => (covered, *icrc),
            None => (&[], [0; ICRC_LEN]),
        });
        // The check has determined the Identification.
        let via = origin.via();
        if !is_intact {
            tap.refuse(now, meta, &bytes, &via, "wrong ICRC");
            return Verdict::BadIcrc;
        }
        let mut arriving = match tap.arrive(now, meta, bytes, via) {
            Arrived::Now(arriving) => arriving,
            Arrived::Damaged => return Verdict::BadIcrc,
            Arrived::Late(due) => {
                self.engine.service_queue.wake_thread_by(due);
                return Verdict::Taken;
            }
        };
        let verdict = self.arrive(&mut arriving, later.as_deref_mut());
        if tap.is_faulty() {
            tap.has_arrived();
            while let Some(mut next) = tap.take_arriving(now) {
                self.arrive(&mut next, later.as_deref_mut());
            }
        }
        verdict
    }

    fn arrive(&mut self, arriving: &mut Arriving, mut later: Option<&mut Vec<Qpn>>) -> Verdict {
        let mut verdict = Verdict::Taken;
        for _ in 0..arriving.copies {
            let Arriving {
                meta, bytes, via, ..
            } = &mut *arriving;
            verdict = self.hand_over(meta, &**bytes, via, later.as_deref_mut());
        }
        verdict
    }
}
