//! Receives packets from the links and hands them to the QPs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use rocade_transport::{PacketMeta, Time};
use rocade_wire::{Bth, FastPathPacket, ICRC_LEN, Qpn};

use super::EngineInner;
use super::dispatch::{Dispatch, Disposition, Origin, trigger_of};
use super::pending::ServiceContext;
use super::thread_polls::ThreadPolls;
use crate::counters::AtomicCounters;
use crate::hca::{Port, Traffic};
use crate::link::packet_hooks::Ingress;
use crate::link::{Arrival, DEFAULT_HOP_LIMIT, RxBatch, Segments};
use crate::state::{Caller, CqInner, Flow, Flows, LocalEndpoint, RxState, TxState};
use crate::steering::ProcessSlot;
use crate::tuning::{
    BULK_SEGMENT, BUSY_POLL, LONG_BATCH, MAX_BATCHES, MORE_NS, POLLED_SOCKET_INTERVAL,
};
use crate::xrc_shared::Misrouted;

impl EngineInner {
    /// Drives all links on behalf of a thread that polls the empty CQ `cq` (`None` in a
    /// simulation). Returns false if nothing was received.
    #[inline]
    pub(crate) fn progress_inline(&self, cq: Option<&CqInner>) -> bool {
        self.serve(ServiceContext::Poll);
        if self.hooks.is_active() {
            self.release_delayed(Caller::Application);
        }
        if self.plan.next_due().is_some() {
            self.execute_due_faults();
        }
        let shared = self.progress_shared(cq);
        if !shared.sockets {
            return shared.found;
        }
        let packets = self.receive_from_sockets(Caller::Application, 0);
        if packets == 0 && self.sim.is_some() {
            return self.advance() || shared.found;
        }
        if packets == 0 {
            return self.note_empty_poll(cq) || shared.found;
        }
        ThreadPolls::note_packets();
        true
    }

    #[inline]
    pub(super) fn receive_from_sockets(&self, caller: Caller, stalled_ns: u64) -> u64 {
        let mut packets = self.receive_frames(caller);
        for endpoint in self.endpoints.read().iter() {
            // The thread that holds the lock is receiving already.
            if let Some(mut rx) = endpoint.try_lock_rx(stalled_ns) {
                packets += self.receive(endpoint, &mut rx, caller).packets;
            }
        }
        self.serve_cm();
        packets
    }

    /// Receives from all links that no other thread receives from, or has received from for
    /// `stalled_ns` without going on. Returns true if there were packets.
    pub(super) fn receive_unlocked(&self, caller: Caller, stalled_ns: u64) -> bool {
        let found = self.receive_from_links(caller);
        let packets = self.receive_from_sockets(caller, stalled_ns);
        if packets > 0 {
            ThreadPolls::note_packets();
        }
        found || packets > 0
    }

    /// Receives from the shared memory links that no other thread receives from, on behalf of the
    /// application. Returns true if there were packets.
    pub(super) fn receive_from_shm(&self) -> bool {
        self.shm_link_count.load(Ordering::Acquire) > 0
            && self.receive_from_links(Caller::Application)
    }

    fn receive_from_links(&self, caller: Caller) -> bool {
        let shm_links = self.shm_links.read();
        let mut packets = 0;
        for shm_link in shm_links.iter().filter(|shm_link| shm_link.has_packets()) {
            if let Some(mut receiver) = shm_link.try_receiver() {
                packets += self.receive_from(shm_link, &mut receiver, caller);
            }
        }
        if packets > 0 {
            ThreadPolls::note_packets();
        }
        packets > 0
    }

    /// Handles an empty poll. Returns true if packets came while it waited.
    #[inline]
    fn note_empty_poll(&self, cq: Option<&CqInner>) -> bool {
        // Only every few polls: reading the clock takes a tenth of a poll.
        if !ThreadPolls::with(ThreadPolls::count_empty_poll) && !self.idle_polls.are_short() {
            return false;
        }
        let now = self.now().as_ns();
        self.arbiter.note_empty_poll(now);
        let Some(idle_ns) = ThreadPolls::with(|own| own.idle_ns(self, now)) else {
            return false;
        };
        idle_ns >= self.idle_polls.idle_poll_ns()
            && self.yield_or_sleep(cq, idle_ns, Time::from_ns(now))
    }

    /// Receives from the shared memory links.
    #[inline]
    fn progress_shared(&self, cq: Option<&CqInner>) -> ShmPoll {
        if self.shm_link_count.load(Ordering::Acquire) == 0 {
            return ShmPoll {
                found: false,
                sockets: true,
            };
        }
        let shm_links = self.shm_links.read();
        let mut found = self.receive_shared(&shm_links, Caller::Application) > 0;
        drop(shm_links);
        let before = self.polls.shared.load(Ordering::Relaxed);
        let polls = before.wrapping_add(if found { BUSY_POLL } else { 1 });
        self.polls.shared.store(polls, Ordering::Relaxed);
        let sockets = polls / POLLED_SOCKET_INTERVAL != before / POLLED_SOCKET_INTERVAL;
        if found {
            ThreadPolls::note_packets();
        } else if !sockets {
            found = self.note_empty_poll(cq);
        }
        ShmPoll { found, sockets }
    }

    /// Receives from a link until it is empty, a short batch came, or the batch limit is reached.
    /// After long batches the outputs of all QPs are flushed together, so that one ACK covers many
    /// packets. In the middle of a message this polls for a little longer, because the rest is on
    /// its way.
    ///
    /// Datagrams to QP 1 are only queued: [`EngineInner::serve_cm`] follows when the caller holds
    /// no lock.
    pub(super) fn receive(
        &self,
        endpoint: &LocalEndpoint,
        rx: &mut RxState,
        caller: Caller,
    ) -> Received {
        let RxState {
            buffer,
            flows,
            deferred_qps,
        } = rx;
        let mut received = Received {
            packets: 0,
            more: false,
        };
        let (mut batches, mut look_until) = (0, None);
        while batches < MAX_BATCHES {
            match endpoint.link.recv(buffer) {
                Ok(Some(batch)) => {
                    let is_short =
                        batch.data.len() < LONG_BATCH || batch.segment_len < BULK_SEGMENT;
                    let delivered =
                        self.deliver(endpoint, flows, deferred_qps, &batch, is_short, caller);
                    received.packets += delivered.packets;
                    received.more = true;
                    // The application waits for completions, perhaps to post new receives.
                    if is_short || delivered.completes {
                        break;
                    }
                    batches += 1;
                    // Simulated time does not advance meanwhile.
                    let looks = delivered.mid_message && self.sim.is_none();
                    look_until = looks.then(|| self.now().plus_ns(MORE_NS));
                }
                Ok(None) if look_until.is_some_and(|until| self.now() < until) => {}
                Ok(None) => {
                    received.more = false;
                    break;
                }
                Err(error) => {
                    tracing::debug!(%error, local = %endpoint.link.local_addr(), "failed to receive");
                    received.more = false;
                    break;
                }
            }
        }
        for qpn in deferred_qps.drain(..) {
            self.with_qp(qpn, |inner, core, mem| {
                let trigger = trigger_of(core);
                self.flush_outputs(inner, core, mem, trigger, self.now(), caller);
            });
        }
        received
    }

    /// Hands the packets of a batch to their QPs. Consecutive packets of a QP are handled under one
    /// lock. The outputs of the QPs are flushed `at_once`, or the QPs are added to `deferred_qps`.
    // Not inlined: an empty poll, which is frequent, should not set up its stack frame.
    #[inline(never)]
    fn deliver(
        &self,
        endpoint: &LocalEndpoint,
        flows: &mut Flows,
        deferred_qps: &mut Vec<Qpn>,
        batch: &RxBatch<'_>,
        at_once: bool,
        caller: Caller,
    ) -> RxOutcome {
        let local = endpoint.link.local();
        let is_allowed = self.peers.allow(batch.source.ip());
        if !is_allowed && self.refuse_all(endpoint, batch) {
            return RxOutcome::default();
        }
        let qps = self.qps.read();
        let now = self.now();
        let mem = self.regions().read(now);
        let mut dispatch = Dispatch::new(self, &qps, &mem, now, caller);
        let mut deferred_qps = (!at_once || !deferred_qps.is_empty()).then_some(deferred_qps);
        let mut checked: u16 = 0;
        let mut sender = flows.find(local, batch.source);
        let meta_of = |source: SocketAddr| PacketMeta {
            source: source.ip(),
            destination: local,
            traffic_class: batch.tos.unwrap_or(0),
            hop_limit: batch.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT),
        };
        let direct = meta_of(batch.source);
        let mut segments = batch.segments();
        loop {
            let rest = segments.clone();
            let Some(segment) = segments.next() else {
                break;
            };
            let (source, segment, hops) = match endpoint.link.arrival(segment) {
                Arrival::Direct => (batch.source, segment, 0),
                Arrival::Forwarded(source, inner, hops) => (source, inner, hops.saturating_add(1)),
                Arrival::Forged => {
                    self.count(|counters| &counters.rx_forged);
                    continue;
                }
            };
            let forwarded = hops > 0;
            if !(if forwarded {
                self.peers.allow(source.ip())
            } else {
                is_allowed
            }) {
                self.forward(endpoint, source, segment, forwarded, |c| &c.rx_refused);
                continue;
            }
            if forwarded {
                sender = flows.find(local, source);
            }
            let misrouted = |bytes, hops| Misrouted {
                source,
                destination: local,
                bytes,
                hops,
                is_sealed: true,
            };
            let relayed;
            let meta = if forwarded {
                relayed = meta_of(source);
                &relayed
            } else {
                &direct
            };
            if !forwarded && mem.takes_placements() {
                let packets = intact(endpoint, rest, flows.at(sender));
                let accepts = |tx: &mut TxState| !tx.rejects_udp();
                dispatch.place_ahead(&direct, packets, accepts, deferred_qps.as_deref_mut());
            }
            let (flow, tos) = (flows.at(sender), batch.tos.unwrap_or(0));
            let disposition = dispatch.packet(
                meta,
                segment,
                &mut Socket { flow, tos },
                deferred_qps.as_deref_mut(),
            );
            if forwarded {
                sender = flows.find(local, batch.source);
            } else if !matches!(disposition, Disposition::Malformed | Disposition::BadIcrc) {
                checked = checked.saturating_add(1);
            }
            match disposition {
                Disposition::Delivered => {}
                Disposition::Malformed => {
                    self.count(|counters| &counters.rx_malformed);
                    endpoint.count(Traffic::malformed);
                }
                Disposition::BadIcrc => {
                    self.count(|counters| &counters.rx_bad_icrc);
                    endpoint.count(Traffic::bad_icrc);
                }
                // GRO may have merged it with a packet for this process although it is for another
                // process on this address.
                //= BTH-10
                Disposition::UnknownQp(dest) => {
                    if let Some(group) = &endpoint.group {
                        //= MC-03
                        if dest == Qpn::MULTICAST {
                            let members = group.members();
                            let hca = endpoint.hca.as_ref();
                            let port = hca.and_then(|hca| hca.port(group.port()));
                            if port.is_some_and(Port::is_held_down) {
                                continue;
                            }
                            let is_own = hca.is_some_and(|hca| hca.has_address(meta.source));
                            let to = (&*members, is_own);
                            dispatch.deliver_to_members(
                                meta,
                                segment,
                                to,
                                deferred_qps.as_deref_mut(),
                            );
                        } else {
                            self.count(|counters| &counters.rx_unknown_qp);
                        }
                        continue;
                    }
                    if dest == Qpn::GSI && self.to_gsi(endpoint, source.ip(), segment, forwarded) {
                        continue;
                    }
                    let is_queued = || {
                        self.shared_targets
                            .queue_or_redirect(self, misrouted(segment, hops))
                    };
                    if forwarded && self.may_be_shared(dest) && is_queued() {
                        continue;
                    }
                    self.forward(endpoint, source, segment, forwarded, |c| &c.rx_unknown_qp);
                }
                Disposition::WrongLink => self.count(|counters| &counters.rx_wrong_link),
                Disposition::OwnedElsewhere => {
                    self.shared_targets
                        .queue_or_redirect(self, misrouted(segment, hops));
                }
            }
        }
        if let Some(flow) = flows.at(sender) {
            flow.finish(checked);
        }
        let qp = dispatch.current().map(|(_, core)| &core.qp);
        let mid_message = qp.is_some_and(|qp| qp.receives_message());
        let completes = qp.is_some_and(|qp| qp.completions_waiting() > 0);
        dispatch.flush_locked(deferred_qps);
        let (packets, bytes) = (dispatch.packets, dispatch.bytes);
        endpoint.count(|traffic| traffic.received(packets, bytes, false));
        self.count_traffic();
        RxOutcome {
            packets,
            mid_message,
            completes,
        }
    }

    /// Drops a batch of a peer that may not communicate with this process. Returns false without
    /// any effect if a packet in it was forwarded for another source.
    #[cold]
    fn refuse_all(&self, endpoint: &LocalEndpoint, batch: &RxBatch<'_>) -> bool {
        let passed_on = |segment| matches!(endpoint.link.arrival(segment), Arrival::Forwarded(..));
        if batch.segments().any(passed_on) {
            return false;
        }
        for segment in batch.segments() {
            self.forward(endpoint, batch.source, segment, false, |c| &c.rx_refused);
        }
        true
    }

    /// Forwards a packet that this process does not accept to the process on this address that it
    /// is for. Counts it with `counter` if there is none.
    #[cold]
    fn forward(
        &self,
        endpoint: &LocalEndpoint,
        source: SocketAddr,
        segment: &[u8],
        forwarded: bool,
        counter: impl FnOnce(&AtomicCounters) -> &AtomicU64,
    ) {
        let to = segment
            .first_chunk()
            .map(|bth| ProcessSlot::of(Bth::from_bytes(bth).dest_qp));
        if let Some(to) = to
            && !forwarded
            && endpoint.link.forward(to, source, segment)
        {
            self.count(|counters| &counters.forwarded);
        } else {
            self.count(counter);
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

/// The result of polling shared memory.
#[derive(Clone, Copy, Debug)]
struct ShmPoll {
    /// Packets were received.
    found: bool,
    /// The sockets are to be polled now, which takes much longer.
    sockets: bool,
}

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct RxOutcome {
    /// Number of packets handed to QPs.
    packets: u64,
    /// The last packet was not the last one of its message.
    mid_message: bool,
    /// The QP of the last packet has completions to report.
    completes: bool,
}

/// The result of one call of `receive`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Number of packets handed to QPs.
    pub(super) packets: u64,
    /// There may be more.
    pub(super) more: bool,
}
