//! A fabric of DC initiators and targets, in virtual time.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use rocade_wire::{Packet, Qpn};

use super::packet_event::Delivery;
use super::{Setup, TestMemory, TestSrq};
use crate::attr::{QpState, QpType};
use crate::coalesce::AckPlacement;
use crate::completion::Completion;
use crate::dc::DciStreams;
use crate::error::PostError;
use crate::event::QpEvent;
use crate::peer::PacketMeta;
use crate::qp::Qp;
use crate::time::Time;
use crate::transmit::{ICRC_LEN, TxBuffer};
use crate::wr::{DcDestination, RouteTag, SendFlags, SendOp, SendWr, Sge};

/// Longer payloads are copied by the harness, as by an engine. The transport copies the others.
const LONGEST_COPY: usize = 200;

/// Index of a node in a [`Fabric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// A queue pair, its memory and its outputs.
#[derive(Debug)]
pub struct FabricNode {
    /// The QP.
    pub qp: Qp,
    /// Address of the node.
    pub ip: IpAddr,
    /// Memory of the node.
    pub mem: TestMemory,
    /// The shared receive queue of a target.
    pub srq: Option<Arc<TestSrq>>,
    /// Completions that were not polled yet.
    pub completions: Vec<Completion>,
    /// Events that were not polled yet.
    pub events: Vec<QpEvent>,
    /// Packets to the node are dropped.
    pub is_dead: bool,
}

/// A packet that is about to be sent.
#[derive(Debug)]
pub struct FabricPacketEvent<'a> {
    /// Time of transmission.
    pub time: Time,
    /// The sender.
    pub from: NodeId,
    /// Number of packets sent before it.
    pub index: usize,
    /// The parsed packet.
    pub packet: Packet<'a>,
}

type DeliveryHook = Box<dyn FnMut(&FabricPacketEvent<'_>) -> Delivery>;

/// A network of any number of nodes, each with an address.
pub struct Fabric {
    nodes: Vec<FabricNode>,
    now: Time,
    latency_ns: u64,
    network: DeliveryHook,
    tx: TxBuffer,
    in_flight: BTreeMap<(Time, u64), (IpAddr, IpAddr, Vec<u8>)>,
    serial: u64,
    sent: usize,
    trace: Vec<String>,
    first_session: u32,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("now", &self.now)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl Default for Fabric {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            now: Time::from_ns(1),
            latency_ns: 5_000,
            network: Box::new(|_| Delivery::Deliver),
            tx: TxBuffer::new(65_000, 64),
            in_flight: BTreeMap::new(),
            serial: 0,
            sent: 0,
            trace: Vec::new(),
            first_session: u32::MAX - 2,
        }
    }
}

impl Fabric {
    fn add(&mut self, host: u8, qp_type: QpType, adapt: impl FnOnce(&mut Setup)) -> NodeId {
        let number = u32::try_from(self.nodes.len()).unwrap_or(0) + 0x100;
        let ip = IpAddr::from([10, 0, 0, host]);
        let mut setup = Setup::new(number, ip, 0, IpAddr::from([10, 0, 0, 99]));
        setup.config.qp_type = qp_type;
        let state = if qp_type == QpType::DcTarget {
            setup.srq = Some(Arc::new(TestSrq::new(TestMemory::PD, 4096)));
            QpState::Rtr
        } else {
            QpState::Rts
        };
        adapt(&mut setup);
        self.nodes.push(FabricNode {
            srq: setup.srq.clone(),
            qp: setup.build(state),
            ip,
            mem: TestMemory::new(),
            completions: Vec::new(),
            events: Vec::new(),
            is_dead: false,
        });
        NodeId(self.nodes.len() - 1)
    }

    /// Adds a target in RTR on host 10.0.0.`host`, with room for 4096 receives.
    pub fn add_target(&mut self, host: u8, key: u64, adapt: impl FnOnce(&mut Setup)) -> NodeId {
        let id = self.add(host, QpType::DcTarget, adapt);
        self.nodes[id.0].qp.set_up_target(key);
        id
    }

    /// Adds an initiator in RTS.
    pub fn add_initiator(
        &mut self,
        host: u8,
        streams: Option<DciStreams>,
        adapt: impl FnOnce(&mut Setup),
    ) -> NodeId {
        let id = self.add(host, QpType::DcInitiator, |setup| {
            setup.attr.sq_psn = 0xff_fff0;
            adapt(setup);
        });
        let first = self.first_session;
        self.nodes[id.0].qp.set_up_initiator(first, streams);
        id
    }

    /// Sets the number of the first session of initiators that are added from now on.
    pub const fn set_first_session(&mut self, first: u32) {
        self.first_session = first;
    }

    /// Returns a node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &FabricNode {
        &self.nodes[id.0]
    }

    /// Returns a node, to change it. Its packets are sent by [`Fabric::drain`].
    pub fn node_mut(&mut self, id: NodeId) -> &mut FabricNode {
        &mut self.nodes[id.0]
    }

    /// Returns the current time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Sets what the network does with packets from now on.
    pub fn set_network(
        &mut self,
        network: impl FnMut(&FabricPacketEvent<'_>) -> Delivery + 'static,
    ) {
        self.network = Box::new(network);
    }

    /// Returns the packets sent so far, one per line.
    #[must_use]
    pub fn trace(&self) -> &[String] {
        &self.trace
    }

    /// Clears the record of packets.
    pub fn clear_trace(&mut self) {
        self.trace.clear();
    }

    /// Returns the destination for requests to a target.
    #[must_use]
    pub fn to(&self, from: NodeId, target: NodeId, key: u64) -> DcDestination {
        DcDestination {
            route: RouteTag(target.0 as u64 + 1),
            remote: self.nodes[target.0].ip,
            local: self.nodes[from.0].ip,
            dct: self.nodes[target.0].qp.qp_num(),
            key,
            stream: 0,
        }
    }

    /// Posts a signaled request, and sends it.
    ///
    /// # Errors
    /// As [`Qp::post_dynamic`].
    pub fn try_post(
        &mut self,
        from: NodeId,
        to: DcDestination,
        wr_id: u64,
        op: SendOp,
        sges: &[Sge],
    ) -> Result<(), PostError> {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            sges,
        };
        let now = self.now;
        self.nodes[from.0].qp.post_dynamic(now, &wr, to, None)?;
        self.drain(from);
        Ok(())
    }

    /// Posts a signaled request, and sends it.
    ///
    /// # Panics
    /// If the request is refused.
    pub fn post(&mut self, from: NodeId, to: DcDestination, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let posted = self.try_post(from, to, wr_id, op, sges);
        posted.expect("the request is accepted");
    }

    /// Posts a receive of a target.
    ///
    /// # Panics
    /// If there is no room, or the node is no target.
    pub fn recv(&mut self, target: NodeId, wr_id: u64, sges: &[Sge]) {
        let srq = self.nodes[target.0].srq.as_ref().expect("a target");
        let posted = srq.with(|srq| srq.post(wr_id, sges));
        posted.expect("the receive is accepted");
    }

    /// Takes the completions of a node, which frees their WQEs.
    pub fn take_completions(&mut self, id: NodeId) -> Vec<Completion> {
        let node = &mut self.nodes[id.0];
        for completion in &node.completions {
            match &node.srq {
                Some(srq) if !completion.is_send() => {
                    srq.with(|srq| srq.free_wqes(completion.freed_wqes));
                }
                _ => node
                    .qp
                    .free_wqes(completion.is_send(), completion.freed_wqes),
            }
        }
        core::mem::take(&mut node.completions)
    }

    /// Takes all outputs of a node.
    ///
    /// # Panics
    /// If a packet has no destination.
    pub fn drain(&mut self, id: NodeId) {
        loop {
            let mut tx = core::mem::replace(&mut self.tx, TxBuffer::new(0, 1));
            tx.clear();
            tx.defer_longer_than(LONGEST_COPY);
            let node = &mut self.nodes[id.0];
            node.qp
                .poll_transmit(self.now, &node.mem, AckPlacement::First, &mut tx);
            let is_empty = tx.is_empty();
            if !is_empty {
                self.send_batch(id, &mut tx);
            }
            self.tx = tx;
            if is_empty {
                break;
            }
        }
        let node = &mut self.nodes[id.0];
        while let Some(completion) = node.qp.poll_completion() {
            node.completions.push(completion);
        }
        while let Some(event) = node.qp.poll_event() {
            node.events.push(event);
        }
    }

    fn send_batch(&mut self, id: NodeId, tx: &mut TxBuffer) {
        let route = tx.route();
        let node = &mut self.nodes[id.0];
        let remote = node
            .qp
            .response_route(route)
            .map(|response| response.remote);
        let source = node.ip;
        let mut segments = Vec::new();
        let mut is_lost = false;
        tx.for_each_segment(|segment, deferred| {
            if let Some(payload) = deferred {
                let copied = node.mem.copy(payload.source, &mut segment[payload.range()]);
                is_lost |= copied.is_err();
            }
            segments.push(segment.to_vec());
        });
        if is_lost {
            segments.clear();
            let (qp, mem) = (&mut node.qp, &node.mem);
            let read = |source, place: &mut [u8]| mem.copy(source, place);
            qp.recover_partial_batch(self.now, tx, read, |segment| {
                segments.push(segment.to_vec())
            });
        }
        let remote = remote.or_else(|| {
            let index = usize::try_from(route.0.checked_sub(1)?).ok()?;
            Some(self.nodes.get(index)?.ip)
        });
        let remote = remote.expect("a known route");
        for bytes in segments {
            self.launch(id, source, remote, bytes);
        }
    }

    fn launch(&mut self, from: NodeId, source: IpAddr, remote: IpAddr, bytes: Vec<u8>) {
        let packet = Packet::parse(&bytes).expect("a valid packet");
        self.trace.push(packet.to_string());
        let event = FabricPacketEvent {
            time: self.now,
            from,
            index: self.sent,
            packet,
        };
        self.sent += 1;
        let delivery = (self.network)(&event);
        let (delays, bytes) = match delivery {
            Delivery::Deliver => (Vec::from([0]), bytes),
            Delivery::Drop => (Vec::new(), bytes),
            Delivery::Copies(delays) => (delays, bytes),
            Delivery::Replace(bytes) => (Vec::from([0]), bytes),
        };
        for delay in delays {
            self.serial += 1;
            let at = self.now.plus_ns(self.latency_ns + delay);
            let key = (at, self.serial);
            self.in_flight.insert(key, (source, remote, bytes.clone()));
        }
    }

    /// Delivers a packet immediately.
    ///
    /// # Panics
    /// If the bytes are no packet.
    pub fn inject(&mut self, source: IpAddr, to: NodeId, bytes: &[u8]) {
        let destination = self.nodes[to.0].ip;
        let packet = Packet::parse(bytes).expect("a packet");
        let meta = PacketMeta {
            source,
            destination,
            traffic_class: 0,
            hop_limit: 64,
        };
        let node = &mut self.nodes[to.0];
        node.qp.handle_packet(self.now, &meta, &packet, &node.mem);
        self.drain(to);
    }

    fn find(&self, ip: IpAddr, qpn: Qpn) -> Option<NodeId> {
        let is_it = |node: &FabricNode| node.ip == ip && node.qp.qp_num() == qpn && !node.is_dead;
        self.nodes.iter().position(is_it).map(NodeId)
    }

    /// Executes the next packet or timer before `until`. Returns false if there is none.
    pub fn step(&mut self, until: Time) -> bool {
        let alive = self.nodes.iter().enumerate().filter(|(_, n)| !n.is_dead);
        let timers = alive.filter_map(|(index, node)| Some((node.qp.next_timeout()?, index)));
        let timer = timers.min();
        let arrival = self.in_flight.keys().next().map(|key| key.0);
        let timer_first = match (timer, arrival) {
            (None, None) => return false,
            (Some((at, _)), Some(arrival)) => at < arrival,
            (timer, _) => timer.is_some(),
        };
        let at = if timer_first {
            timer.map(|timer| timer.0)
        } else {
            arrival
        };
        let Some(at) = at.filter(|at| *at <= until) else {
            return false;
        };
        self.now = self.now.max(at);
        if timer_first && let Some((_, index)) = timer {
            let now = self.now;
            self.nodes[index].qp.handle_timeout(now);
            self.drain(NodeId(index));
        } else if let Some((_, (source, remote, bytes))) = self.in_flight.pop_first() {
            let Some(qpn) = Packet::parse(&bytes)
                .ok()
                .map(|packet| packet.bth().dest_qp)
            else {
                return true;
            };
            if let Some(to) = self.find(remote, qpn) {
                self.inject(source, to, &bytes);
            }
        }
        true
    }

    /// Runs until nothing is pending, or `ns` nanoseconds have passed.
    ///
    /// # Panics
    /// If the events never end.
    pub fn run_for(&mut self, ns: u64) {
        let until = self.now.plus_ns(ns);
        let mut steps = 0u64;
        while self.step(until) {
            steps += 1;
            assert!(steps < 10_000_000, "the events never end");
        }
        self.now = self.now.max(until);
    }

    /// Runs until nothing is pending.
    pub fn run(&mut self) {
        let now = self.now;
        self.run_for(3_600_000_000_000);
        // Time does not pass if nothing happens.
        self.now = self.now.min(now.plus_ns(3_600_000_000_000));
    }

    /// Bytes of the ICRC at the end of each packet. It is not computed here.
    pub const ICRC_LEN: usize = ICRC_LEN;
}
