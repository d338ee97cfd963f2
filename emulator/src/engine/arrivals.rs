//! Packets from a socket on their way to the QPs: who sent each of them, and what becomes of those
//! that no QP of this process takes.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;

use rocade_transport::PacketMeta;
use rocade_wire::{Bth, FastPathPacket, ICRC_LEN, Qpn};

use super::Nic;
use super::cx::Cx;
use super::dispatch::{Dispatch, Disposition, Flush, Origin};
use crate::counters::AtomicCounters;
use crate::hca::{Port, Traffic};
use crate::link::Link as _;
use crate::link::packet_hooks::Ingress;
use crate::link::{Arrival, DEFAULT_HOP_LIMIT, RxBatch, Segments};
use crate::memory::MemGuard;
use crate::state::{Caller, Flow, Flows, Group, LocalEndpoint, TxState};
use crate::steering::ProcessSlot;
use crate::xrc_shared::Misrouted;

impl Nic {
    /// Hands the packets of a batch to their QPs. Consecutive packets of a QP are handled under one
    /// lock.
    // Not inlined: an empty poll, which is frequent, should not set up its stack frame.
    #[inline(never)]
    pub(super) fn deliver(
        &self,
        endpoint: &LocalEndpoint,
        flows: &mut Flows,
        batch: &RxBatch<'_>,
        flush: Flush<'_>,
        caller: Caller,
    ) -> RxOutcome {
        let arrivals = Arrivals {
            engine: self,
            endpoint,
            batch,
            is_allowed: self.host.peers.allow(batch.source.ip()),
        };
        if !arrivals.is_allowed && arrivals.refuse_all() {
            return RxOutcome::default();
        }
        let qps = self.tables.qps.read();
        let now = self.host.now();
        let mem = self.tables.regions().read(now);
        let cx = Cx {
            now,
            caller,
            mem: &mem,
        };
        let mut dispatch = Dispatch::new(self, &qps, cx, flush);
        arrivals.deliver(flows, &mut dispatch, &mem);
        let qp = dispatch.current().map(|(_, core)| &core.qp);
        let mid_message = qp.is_some_and(|qp| qp.receives_message());
        let completes = qp.is_some_and(|qp| qp.completions_waiting() > 0);
        dispatch.flush_locked();
        let (packets, bytes) = (dispatch.packets, dispatch.bytes);
        endpoint.count(|traffic| traffic.received(packets, bytes, false));
        self.note_change();
        RxOutcome {
            packets,
            mid_message,
            completes,
        }
    }
}

/// A batch from a socket.
struct Arrivals<'a> {
    engine: &'a Nic,
    endpoint: &'a LocalEndpoint,
    batch: &'a RxBatch<'a>,
    /// The sender of the datagrams may communicate with this process.
    is_allowed: bool,
}

/// A packet, and where it came from.
#[derive(Clone, Copy)]
struct Arrived<'a> {
    source: SocketAddr,
    segment: &'a [u8],
    /// Number of times that it was forwarded.
    hops: u8,
}

impl Arrived<'_> {
    const fn is_forwarded(&self) -> bool {
        self.hops > 0
    }
}

impl<'a> Arrivals<'a> {
    /// Hands each packet to its QP, or where it belongs.
    #[inline]
    fn deliver(&self, flows: &mut Flows, dispatch: &mut Dispatch<'_>, mem: &MemGuard<'_>) {
        let local = self.endpoint.link.local();
        let mut checked: u16 = 0;
        let mut sender = flows.find(local, self.batch.source);
        let direct = self.meta(self.batch.source);
        let mut segments = self.batch.segments();
        loop {
            let rest = segments.clone();
            let Some(segment) = segments.next() else {
                break;
            };
            let Some(arrived) = self.admit(segment) else {
                continue;
            };
            let disposition = if arrived.is_forwarded() {
                let disposition = self.deliver_forwarded(&arrived, flows, dispatch);
                // The flow of the other source may have replaced this one.
                sender = flows.find(local, self.batch.source);
                disposition
            } else {
                if mem.takes_placements() {
                    let packets = intact(self.endpoint, rest, flows.at(sender));
                    let accepts = |tx: &mut TxState| !tx.rejects_udp();
                    dispatch.place_ahead(&direct, packets, accepts);
                }
                let mut origin = self.origin(flows.at(sender));
                let disposition = dispatch.packet(&direct, arrived.segment, &mut origin);
                if !matches!(disposition, Disposition::Malformed | Disposition::BadIcrc) {
                    checked = checked.saturating_add(1);
                }
                disposition
            };
            if disposition != Disposition::Delivered {
                self.settle(&arrived, disposition, dispatch);
            }
        }
        if let Some(flow) = flows.at(sender) {
            flow.finish(checked);
        }
    }

    /// Returns the packet in a segment, if its sender may communicate with this process.
    #[inline]
    fn admit(&self, segment: &'a [u8]) -> Option<Arrived<'a>> {
        let (arrived, is_allowed) = match self.endpoint.link.arrival(segment) {
            Arrival::Direct => {
                let source = self.batch.source;
                let arrived = Arrived {
                    source,
                    segment,
                    hops: 0,
                };
                (arrived, self.is_allowed)
            }
            Arrival::Forwarded(source, segment, hops) => {
                let arrived = Arrived {
                    source,
                    segment,
                    hops: hops.saturating_add(1),
                };
                (arrived, self.engine.host.peers.allow(source.ip()))
            }
            Arrival::Forged => {
                self.engine.observers.count(|counters| &counters.rx_forged);
                return None;
            }
        };
        if !is_allowed {
            self.forward(&arrived, |counters| &counters.rx_refused);
            return None;
        }
        Some(arrived)
    }

    fn meta(&self, source: SocketAddr) -> PacketMeta {
        PacketMeta {
            source: source.ip(),
            destination: self.endpoint.link.local(),
            traffic_class: self.batch.tos.unwrap_or(0),
            hop_limit: self.batch.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT),
        }
    }

    fn origin<'f>(&self, flow: Option<&'f mut Flow>) -> Socket<'f> {
        Socket {
            flow,
            tos: self.batch.tos.unwrap_or(0),
        }
    }

    /// Hands a packet to its QP that another process has forwarded.
    #[cold]
    fn deliver_forwarded(
        &self,
        arrived: &Arrived<'_>,
        flows: &mut Flows,
        dispatch: &mut Dispatch<'_>,
    ) -> Disposition {
        let sender = flows.find(self.endpoint.link.local(), arrived.source);
        let mut origin = self.origin(flows.at(sender));
        dispatch.packet(&self.meta(arrived.source), arrived.segment, &mut origin)
    }

    /// Treats a packet that no QP has handled by the reason for that, and counts it.
    #[inline(never)]
    fn settle(&self, arrived: &Arrived<'_>, disposition: Disposition, dispatch: &mut Dispatch<'_>) {
        let engine = self.engine;
        match disposition {
            Disposition::Delivered => {}
            Disposition::Malformed => {
                engine.observers.count(|counters| &counters.rx_malformed);
                self.endpoint.count(Traffic::malformed);
            }
            Disposition::BadIcrc => {
                engine.observers.count(|counters| &counters.rx_bad_icrc);
                self.endpoint.count(Traffic::bad_icrc);
            }
            Disposition::UnknownQp(dest) => match &self.endpoint.group {
                Some(group) => self.deliver_to_group(arrived, dest, group, dispatch),
                None => self.pass_on(arrived, dest),
            },
            Disposition::WrongLink => engine.observers.count(|counters| &counters.rx_wrong_link),
            Disposition::OwnedElsewhere => {
                self.queue_or_redirect(arrived);
            }
        }
    }

    /// Hands a packet that came to the address of a multicast group to its members.
    fn deliver_to_group(
        &self,
        arrived: &Arrived<'_>,
        dest: Qpn,
        group: &Group,
        dispatch: &mut Dispatch<'_>,
    ) {
        //= MC-03
        if dest != Qpn::MULTICAST {
            self.engine
                .observers
                .count(|counters| &counters.rx_unknown_qp);
            return;
        }
        let members = group.members();
        let hca = self.endpoint.hca.as_ref();
        let port = hca.and_then(|hca| hca.port(group.port()));
        if port.is_some_and(Port::is_held_down) {
            return;
        }
        let meta = self.meta(arrived.source);
        let is_own = hca.is_some_and(|hca| hca.has_address(meta.source));
        dispatch.deliver_to_members(&meta, arrived.segment, &members, is_own);
    }

    /// Passes on a packet to a QP that this process does not have. GRO may have merged it with a
    /// packet for this process although it is for another process on this address.
    //= BTH-10
    fn pass_on(&self, arrived: &Arrived<'_>, dest: Qpn) {
        let (engine, is_forwarded) = (self.engine, arrived.is_forwarded());
        let to_gsi = || {
            let source = arrived.source.ip();
            engine.to_gsi(self.endpoint, source, arrived.segment, is_forwarded)
        };
        if dest == Qpn::GSI && to_gsi() {
            return;
        }
        if is_forwarded && engine.may_be_shared(dest) && self.queue_or_redirect(arrived) {
            return;
        }
        self.forward(arrived, |counters| &counters.rx_unknown_qp);
    }

    /// Leaves a packet to the owner of its XRC target. Returns false if it has none.
    fn queue_or_redirect(&self, arrived: &Arrived<'_>) -> bool {
        let misrouted = Misrouted {
            source: arrived.source,
            destination: self.endpoint.link.local(),
            bytes: arrived.segment,
            hops: arrived.hops,
            is_sealed: true,
        };
        let targets = &self.engine.tables.shared_targets;
        targets.queue_or_redirect(self.engine, misrouted)
    }

    /// Drops a batch of a peer that may not communicate with this process. Returns false without
    /// any effect if a packet in it was forwarded for another source.
    #[cold]
    fn refuse_all(&self) -> bool {
        let link = &self.endpoint.link;
        let passed_on = |segment| matches!(link.arrival(segment), Arrival::Forwarded(..));
        if self.batch.segments().any(passed_on) {
            return false;
        }
        for segment in self.batch.segments() {
            let source = self.batch.source;
            let arrived = Arrived {
                source,
                segment,
                hops: 0,
            };
            self.forward(&arrived, |counters| &counters.rx_refused);
        }
        true
    }

    /// Forwards a packet that this process does not accept to the process on this address that it
    /// is for. Counts it with `counter` if there is none.
    #[cold]
    fn forward(&self, arrived: &Arrived<'_>, counter: impl FnOnce(&AtomicCounters) -> &AtomicU64) {
        let Arrived {
            source, segment, ..
        } = *arrived;
        let to = segment
            .first_chunk()
            .map(|bth| ProcessSlot::of(Bth::from_bytes(bth).dest_qp));
        if let Some(to) = to
            && !arrived.is_forwarded()
            && self.endpoint.link.forward(to, source, segment)
        {
            self.engine.observers.count(|counters| &counters.forwarded);
        } else {
            self.engine.observers.count(counter);
        }
    }
}

/// Returns the first packets of a run that are for the fast path and have the right ICRC. The state
/// of the flow stays unchanged.
fn intact<'p>(
    endpoint: &LocalEndpoint,
    segments: Segments<'p>,
    flow: Option<&mut Flow>,
) -> impl Iterator<Item = FastPathPacket<'p>> {
    let mut flow = flow.map(|flow| flow.clone());
    segments.map_while(move |segment| {
        let is_direct = matches!(endpoint.link.arrival(segment), Arrival::Direct);
        let packet = FastPathPacket::parse(segment).filter(|_| is_direct)?;
        let flow = flow.as_mut()?;
        flow.check(packet.covered(), packet.icrc_bytes())
            .then_some(packet)
    })
}

/// Packets of one sender, from a socket.
struct Socket<'f> {
    flow: Option<&'f mut Flow>,
    tos: u8,
}

impl Origin for Socket<'_> {
    #[inline]
    fn is_intact<'p>(&mut self, sealed: impl FnOnce() -> (&'p [u8], [u8; ICRC_LEN])) -> bool {
        let (covered, icrc) = sealed();
        let flow = self.flow.as_mut();
        flow.is_some_and(|flow| flow.check(covered, icrc))
    }

    #[inline]
    fn is_accepted(&self, tx: &mut TxState) -> bool {
        !tx.rejects_udp()
    }

    fn ingress(&self) -> Ingress {
        let (port, ip_id) = self.flow.as_ref().map_or((0, 0), |flow| flow.last());
        Ingress::Udp(port, ip_id, self.tos)
    }
}

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RxOutcome {
    /// Number of packets handed to QPs.
    pub(super) packets: u64,
    /// The last packet was not the last one of its message.
    pub(super) mid_message: bool,
    /// The QP of the last packet has completions to report.
    pub(super) completes: bool,
}
