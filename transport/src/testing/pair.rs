//! Two QPs and a network between them, in virtual time.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use rocade_wire::{FastPathPacket, Gid, Packet, Pkey};

use super::coalescing::Coalescing;
use super::packet_event::{Delivery, PacketEvent, Side, Traced};
use super::{Setup, TestDomain, TestMemory, context};
use crate::attr::{QpAttr, QpAttrMask, QpState, QpType};
use crate::coalesce::{AckPlacement, TransmitTrigger};
use crate::completion::Completion;
use crate::error::PostError;
use crate::event::QpEvent;
use crate::peer::PacketMeta;
use crate::qp::Qp;
use crate::queue::Srqn;
use crate::time::Time;
use crate::transmit::{ICRC_LEN, TxBuffer};
use crate::wr::{SendFlags, SendOp, SendWr, Sge};

/// A QP, its memory and its outputs.
#[derive(Debug)]
pub struct Node {
    /// The QP.
    pub qp: Qp,
    /// Memory of the QP.
    pub mem: TestMemory,
    /// Completions that [`Pair::take_completions`] has not returned yet.
    pub completions: Vec<Completion>,
    /// Events that were not polled yet.
    pub events: Vec<QpEvent>,
}

/// Longer payloads are copied by the harness, as by an engine. The transport copies the others.
const LONGEST_COPY: usize = 200;

/// A packet in flight.
#[derive(Debug)]
struct InFlight {
    to: Side,
    path: (IpAddr, IpAddr),
    bytes: Vec<u8>,
}

type DeliveryHook = Box<dyn FnMut(&PacketEvent<'_>) -> Delivery>;

/// Two connected QPs.
pub struct Pair {
    pub(super) nodes: [Node; 2],
    /// Setups of the QPs.
    setups: [Setup; 2],
    pub(super) now: Time,
    latency_ns: u64,
    gap_ns: u64,
    network: DeliveryHook,
    tx: TxBuffer,
    in_flight: BTreeMap<(Time, u64), InFlight>,
    serial: u64,
    sent: [usize; 2],
    link_free: [Time; 2],
    ack_delay_ns: Option<u64>,
    acks_due: [Option<Time>; 2],
    pub(super) coalescing: Option<Coalescing>,
    trace: Vec<Traced>,
    tracing: bool,
    slow_path: bool,
    marks: [bool; 2],
    /// The P_Key that alternate paths are loaded with.
    pub alternate_pkey: Pkey,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("now", &self.now)
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new(|_, _| {})
    }
}

impl Pair {
    /// Creates both QPs in RTS. `adapt` may change the setup of each.
    #[must_use]
    pub fn new(adapt: impl FnMut(Side, &mut Setup)) -> Self {
        Self::in_states(QpState::Rts, QpState::Rts, adapt)
    }

    /// Creates the QPs in these states.
    #[must_use]
    pub fn in_states(a: QpState, b: QpState, mut adapt: impl FnMut(Side, &mut Setup)) -> Self {
        let mut setups = [(Side::A, 0x11), (Side::B, 0x22)]
            .map(|(side, qpn)| Setup::new(qpn, side.ip(), 0x33 - qpn, side.other().ip()));
        adapt(Side::A, &mut setups[0]);
        adapt(Side::B, &mut setups[1]);
        let node = |setup: &Setup, state| Node {
            qp: setup.build(state),
            mem: TestMemory::new(),
            completions: Vec::new(),
            events: Vec::new(),
        };
        Self {
            nodes: [node(&setups[0], a), node(&setups[1], b)],
            setups,
            now: Time::ZERO,
            latency_ns: 5_000,
            gap_ns: 0,
            network: Box::new(|_| Delivery::Deliver),
            tx: TxBuffer::new(65_000, 64),
            in_flight: BTreeMap::new(),
            serial: 0,
            sent: [0; 2],
            link_free: [Time::ZERO; 2],
            ack_delay_ns: None,
            acks_due: [None; 2],
            coalescing: None,
            trace: Vec::new(),
            tracing: true,
            slow_path: false,
            marks: [false; 2],
            alternate_pkey: Pkey::DEFAULT,
        }
    }

    /// Sets the one-way latency in ns. The default is 5 µs.
    pub const fn set_latency(&mut self, ns: u64) {
        self.latency_ns = ns;
    }

    /// Sets the time between two packets of one sender in ns. The default is 0, which delivers
    /// packets that are sent together as one batch.
    pub const fn set_gap(&mut self, ns: u64) {
        self.gap_ns = ns;
    }

    /// Delays ACKs without other responses ([`AckPlacement::Defer`]) by this time. By default they
    /// are not delayed.
    pub const fn set_ack_delay(&mut self, ns: u64) {
        self.ack_delay_ns = Some(ns);
    }

    /// Sets what the network does with packets from now on.
    pub fn set_network(&mut self, network: impl FnMut(&PacketEvent<'_>) -> Delivery + 'static) {
        self.network = Box::new(network);
    }

    /// Makes the network deliver all packets again.
    pub fn heal(&mut self) {
        self.set_network(|_| Delivery::Deliver);
    }

    /// Disables the fast path ([`Qp::handle_fast`]) from now on.
    pub const fn take_slow_path(&mut self) {
        self.slow_path = true;
    }

    /// Sets whether the network marks the packets from one side (ECN).
    pub const fn mark_packets(&mut self, from: Side, marked: bool) {
        self.marks[from as usize] = marked;
    }

    /// Stops recording packets, for long runs.
    pub fn stop_tracing(&mut self) {
        self.tracing = false;
        self.trace.clear();
    }

    /// Returns the current time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Returns one side.
    #[must_use]
    pub const fn node(&self, side: Side) -> &Node {
        &self.nodes[side as usize]
    }

    /// Returns one side, to change it. The resulting packets are sent in the next step.
    pub fn node_mut(&mut self, side: Side) -> &mut Node {
        self.note(side, TransmitTrigger::Other);
        &mut self.nodes[side as usize]
    }

    /// Returns the packets sent so far.
    #[must_use]
    pub fn trace(&self) -> &[Traced] {
        &self.trace
    }

    /// Returns the packets sent so far, one `TIME_US SIDE> PACKET` per line. `x` marks a lost
    /// packet.
    #[must_use]
    pub fn trace_text(&self) -> String {
        self.trace
            .iter()
            .map(|t| {
                let lost = if t.dropped { 'x' } else { ' ' };
                alloc::format!(
                    "{lost}{:>9} {:?}> {}\n",
                    t.time.as_ns() / 1000,
                    t.from,
                    t.text
                )
            })
            .collect()
    }

    /// Clears the record of packets.
    pub fn clear_trace(&mut self) {
        self.trace.clear();
    }

    /// Posts a signaled send.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    pub fn try_send(&mut self, side: Side, wr: &SendWr<'_>) -> Result<(), PostError> {
        let is_xrc = self.setups[side as usize].config.qp_type == QpType::XrcSend;
        let qp = &mut self.nodes[side as usize].qp;
        qp.post_send(self.now, wr, None)?;
        if is_xrc {
            qp.set_remote_srqn(TestDomain::FIRST);
        }
        let lens = wr.sges.iter().map(|sge| sge.len);
        let bytes = lens.fold(0, u32::saturating_add);
        match &mut self.coalescing {
            Some(coalescing) if qp.should_batch(self.now, bytes) => {
                coalescing.coalesce_counts.posts += 1
            }
            _ => self.note(side, TransmitTrigger::Posted),
        }
        Ok(())
    }

    /// Posts a signaled send. For an XRC initiator, it goes to [`TestDomain::FIRST`].
    ///
    /// # Panics
    /// If the send is refused.
    pub fn send(&mut self, side: Side, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            sges,
        };
        self.try_send(side, &wr).expect("the send is accepted");
    }

    /// Posts a signaled send to an XRC SRQ of the peer.
    ///
    /// # Panics
    /// If the send is refused.
    pub fn send_to(&mut self, side: Side, srqn: Srqn, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            sges,
        };
        let now = self.now;
        let qp = &mut self.node_mut(side).qp;
        qp.post_send(now, &wr, None).expect("the send is accepted");
        qp.set_remote_srqn(srqn);
    }

    /// Posts a receive. For a QP with a shared queue it goes there, and for an XRC target to
    /// [`TestDomain::FIRST`] of its domain.
    ///
    /// # Panics
    /// If the receive is refused.
    pub fn recv(&mut self, side: Side, wr_id: u64, sges: &[Sge]) {
        if let Some(srq) = self.setups[side as usize].shared() {
            srq.with(|srq| srq.post(wr_id, sges))
                .expect("the receive is accepted");
            return;
        }
        let qp = &mut self.nodes[side as usize].qp;
        qp.post_recv(self.now, wr_id, sges)
            .expect("the receive is accepted");
        if qp.state() == QpState::Err {
            // The receive was flushed.
            self.note(side, TransmitTrigger::Other);
        } else if qp.has_unsent_credits() {
            let trigger = qp.coalescer().credit_trigger();
            self.note(side, trigger);
            self.drain(side);
        }
    }

    /// Modifies a QP to another state with only the state and `more` in the mask.
    ///
    /// # Panics
    /// If the modification is refused.
    pub fn modify(&mut self, side: Side, next: QpState, more: QpAttrMask, attr: &QpAttr) {
        let now = self.now;
        let attr = QpAttr {
            qp_state: next.code(),
            ..*attr
        };
        let mut context = context(self.setups[side as usize].local);
        context.alternate.sgid = Some(Gid::from_ip(side.alternate_ip()));
        context.alternate.pkey = self.alternate_pkey;
        self.node_mut(side)
            .qp
            .modify(now, &attr, QpAttrMask::STATE | more, &context)
            .expect("the transition is valid");
    }

    /// Takes the completions of one side, which frees their WQEs.
    pub fn take_completions(&mut self, side: Side) -> Vec<Completion> {
        let setup = &self.setups[side as usize];
        let node = &mut self.nodes[side as usize];
        for completion in &node.completions {
            match &setup.shared_of(completion.srqn) {
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

    /// Takes the events of one side.
    pub fn take_events(&mut self, side: Side) -> Vec<QpEvent> {
        core::mem::take(&mut self.nodes[side as usize].events)
    }

    /// Delivers a packet to `to` immediately, with the peer's addresses.
    ///
    /// # Panics
    /// If the bytes are no packet.
    pub fn inject(&mut self, to: Side, bytes: &[u8]) {
        self.deliver(to, (to.other().ip(), to.ip()), bytes);
        self.drain(to);
    }

    /// Delivers a packet to `to` immediately, with these addresses.
    ///
    /// # Panics
    /// If the bytes are no packet.
    pub fn inject_from(&mut self, to: Side, source: IpAddr, destination: IpAddr, bytes: &[u8]) {
        self.deliver(to, (source, destination), bytes);
        self.drain(to);
    }

    /// Takes all outputs of both sides.
    pub fn drain_both(&mut self) {
        self.drain(Side::A);
        self.drain(Side::B);
    }

    /// Executes the earliest packet or deadline. Returns false if there is none.
    pub fn step(&mut self) -> bool {
        self.drain_both();
        let Some(next) = self.next_event() else {
            return false;
        };
        self.now = self.now.max(next);
        for side in Side::BOTH {
            if self.acks_due[side as usize].is_some_and(|due| due <= self.now) {
                self.drain_with(side, AckPlacement::First);
            }
        }
        for side in Side::BOTH {
            self.release(side);
        }
        let mut touched = [false; 2];
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let InFlight { to, path, bytes } = entry.remove();
            touched[to as usize] = true;
            self.deliver(to, path, &bytes);
        }
        for side in Side::BOTH {
            let due = self
                .node(side)
                .qp
                .next_timeout()
                .is_some_and(|time| time <= self.now);
            if touched[side as usize] {
                self.drain(side);
            } else if due {
                let now = self.now;
                self.node_mut(side).qp.handle_timeout(now);
                self.drain(side);
            }
        }
        true
    }

    /// Steps until nothing is pending.
    ///
    /// # Panics
    /// After a million steps.
    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the events never end: {self:?}");
    }

    /// Steps while something is due within the next `ns` nanoseconds, and then advances to that
    /// time.
    pub fn run_for(&mut self, ns: u64) {
        let end = self.now.plus_ns(ns);
        self.drain_both();
        while self.next_event().is_some_and(|next| next <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Steps until `done` returns true. Returns false if nothing is pending before that.
    ///
    /// # Panics
    /// After ten million steps.
    pub fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        for _ in 0..10_000_000 {
            self.drain_both();
            if done(self) {
                return true;
            }
            if !self.step() {
                return false;
            }
        }
        panic!("the events never end: {self:?}");
    }

    /// Returns when the next packet or deadline is due.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        let packet = self.in_flight.keys().next().map(|(time, _)| *time);
        let timers = Side::BOTH.map(|side| self.node(side).qp.next_timeout());
        timers
            .into_iter()
            .chain(self.acks_due)
            .chain(Side::BOTH.map(|side| self.ack_release(side)))
            .chain(Side::BOTH.map(|side| self.post_release(side)))
            .chain([packet])
            .flatten()
            .min()
    }

    fn deliver(&mut self, to: Side, (source, destination): (IpAddr, IpAddr), bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("a packet");
        let meta = PacketMeta {
            source,
            destination,
            traffic_class: if self.marks[to.other() as usize] {
                3
            } else {
                2
            },
            hop_limit: 64,
        };
        let now = self.now;
        let node = &mut self.nodes[to as usize];
        let fast = FastPathPacket::parse(bytes).filter(|_| !self.slow_path);
        if !fast.is_some_and(|fast| node.qp.handle_fast(now, &meta, &fast, &node.mem)) {
            node.qp.handle_packet(now, &meta, &packet, &node.mem);
        }
        let trigger = if node.qp.receives_message() {
            TransmitTrigger::ReceivedPart
        } else {
            TransmitTrigger::Received
        };
        self.note(to, trigger);
    }

    pub(super) fn drain(&mut self, side: Side) {
        if self.coalescing.is_some() {
            self.drain_coalesced(side);
            return;
        }
        let acks = if self.ack_delay_ns.is_some() {
            AckPlacement::Defer
        } else {
            AckPlacement::First
        };
        self.drain_with(side, acks);
    }

    pub(super) fn drain_with(&mut self, side: Side, acks: AckPlacement) {
        let mut tx = core::mem::replace(&mut self.tx, TxBuffer::new(0, 0));
        tx.defer_longer_than(LONGEST_COPY);
        loop {
            let node = &mut self.nodes[side as usize];
            let wants = node.qp.has_work_to_send(acks);
            node.qp.poll_transmit(self.now, &node.mem, acks, &mut tx);
            assert!(wants || tx.is_empty(), "a transmission without work");
            while let Some(completion) = node.qp.poll_completion() {
                node.completions.push(completion);
            }
            while let Some(event) = node.qp.poll_event() {
                node.events.push(event);
            }
            if tx.is_empty() {
                break;
            }
            assert_eq!(tx.segments(), tx.bytes().len().div_ceil(tx.segment_len()));
            let mut segments = Vec::new();
            let mem = &node.mem;
            let read = |source, payload: &mut [u8]| mem.copy(source, payload);
            let mut lost = false;
            tx.for_each_segment(|segment, deferred| {
                if let Some(deferred) = deferred {
                    lost |= read(deferred.source, &mut segment[deferred.range()]).is_err();
                }
                segments.push(segment.to_vec());
            });
            if lost {
                segments.clear();
                node.qp
                    .recover_partial_batch(self.now, &mut tx, read, |segment| {
                        segments.push(segment.to_vec());
                    });
            }
            node.qp.count_answered_reads();
            for segment in segments {
                self.transmit(side, &segment);
            }
            tx.clear();
        }
        self.tx = tx;
        let held = self.node(side).qp.lone_ack().is_some();
        let due = &mut self.acks_due[side as usize];
        *due = match self.ack_delay_ns {
            Some(ns) if held => due.or(Some(self.now.plus_ns(ns))),
            _ => None,
        };
    }

    fn transmit(&mut self, from: Side, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("a valid packet");
        let pmtu = 128 << self.setups[from as usize].attr.path_mtu;
        assert!(
            packet.payload().len() <= pmtu,
            "longer than the path MTU: {packet}"
        );
        assert_eq!(bytes.len(), packet.covered().len() + ICRC_LEN);
        let path = self.path_from(from);
        let event = PacketEvent {
            time: self.now,
            from,
            path,
            index: self.sent[from as usize],
            packet,
        };
        self.sent[from as usize] += 1;
        let delivery = (self.network)(&event);
        if self.tracing {
            self.trace.push(Traced {
                time: self.now,
                from,
                path,
                text: event.packet.to_string(),
                bytes: bytes.to_vec(),
                dropped: delivery == Delivery::Drop,
            });
        }
        let start = self.link_free[from as usize].max(self.now);
        self.link_free[from as usize] = start.plus_ns(self.gap_ns);
        let arrival = start.plus_ns(self.latency_ns);
        match delivery {
            Delivery::Deliver => self.put(arrival, from.other(), path, bytes.to_vec()),
            Delivery::Drop => {}
            Delivery::Copies(delays) => {
                for delay in delays {
                    self.put(arrival.plus_ns(delay), from.other(), path, bytes.to_vec());
                }
            }
            Delivery::Replace(other) => self.put(arrival, from.other(), path, other),
        }
    }

    /// Returns source and destination address of a side's packets. Datagrams have the addresses of
    /// the sides.
    fn path_from(&self, from: Side) -> (IpAddr, IpAddr) {
        let qp = &self.node(from).qp;
        if qp.config().qp_type == QpType::Ud {
            (from.ip(), from.other().ip())
        } else {
            (qp.local(), qp.remote())
        }
    }

    fn put(&mut self, arrival: Time, to: Side, path: (IpAddr, IpAddr), bytes: Vec<u8>) {
        let packet = InFlight { to, path, bytes };
        self.in_flight.insert((arrival, self.serial), packet);
        self.serial += 1;
    }
}
