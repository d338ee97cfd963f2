//! One transmission of a queue pair: takes batches from the transport, and gives each of them the
//! way out that is right for it.

use std::cell::RefCell;
use std::iter;
use std::sync::Arc;

use rocade_transport::{
    AccessError, AckPlacement, Qp, RouteTag, Source, TransmitTrigger, TxBuffer,
};

use super::Nic;
use super::cx::Cx;
use super::transmit::{Batch, sending};
use crate::faults::HookPoint;
use crate::link::peer_link::Fragment;
use crate::link::{MAX_SEGMENTS, MAX_SEND_LEN, Segments};
use crate::memory::{Fault, MemGuard, Readable};
use crate::state::{
    Icrcs, LocalEndpoint, QpCore, QpInner, ServiceReason, TxBacklog, TxRoute, is_acknowledgement,
    tx_route_for,
};
use crate::trace;
use crate::tuning::{LONG_RESPONSE, LONG_TX_BATCH};

const ICRC_LEN: usize = 4;
/// Longer payloads are copied here, not by the transport. For UDP the CRC is computed in the same
/// pass, and for shared memory they are copied right into the ring.
const LONGEST_COPY: usize = 256;

thread_local! {
    static TX_BUFFER: RefCell<TxBuffer> = RefCell::new(TxBuffer::new(MAX_SEND_LEN, MAX_SEGMENTS));
}

/// The way out of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outlet {
    /// None yet: the route is not ready, or the socket has to be spared. The batch becomes the
    /// backlog.
    Held,
    /// The packet hooks, which choose between ring and socket.
    Hooked,
    /// The ring of a shared memory link, into which registered memory is copied straight.
    Ring,
    Socket,
}

impl Outlet {
    /// Returns true if the bytes of the batch are complete, with their ICRCs, before it leaves.
    fn is_sealed(self) -> bool {
        self != Self::Ring
    }
}

/// The route of a batch.
struct Way<'w> {
    endpoint: &'w Arc<LocalEndpoint>,
    route: &'w mut TxRoute,
    is_measured: &'w mut bool,
}

/// A transmission of a QP, which may take several batches.
pub(super) struct Transmission<'t> {
    engine: &'t Nic,
    inner: &'t QpInner,
    cx: Cx<'t>,
    /// The place of an ACK among the packets.
    acks: AckPlacement,
    /// The ACK in it is not announced to the peer yet.
    unpublished: bool,
    /// The time in `cx` is that of now, and not of a moment before this transmission.
    is_on_time: bool,
    /// The time of the last batch in a trace.
    traced_ns: u64,
    /// Bytes that have been sent.
    sent: usize,
}

impl<'t> Transmission<'t> {
    pub(super) const fn new(
        engine: &'t Nic,
        inner: &'t QpInner,
        cx: Cx<'t>,
        acks: AckPlacement,
        unpublished: bool,
        trigger: TransmitTrigger,
    ) -> Self {
        Self {
            engine,
            inner,
            cx,
            acks,
            unpublished,
            // A post has just read the clock.
            is_on_time: matches!(trigger, TransmitTrigger::Posted),
            traced_ns: 0,
            sent: 0,
        }
    }

    /// Sends until nothing is left or there is no space.
    pub(super) fn run(mut self, core: &mut QpCore) {
        let with_buffer =
            TX_BUFFER.try_with(|buffer| self.run_with(core, &mut buffer.borrow_mut()));
        if with_buffer.is_err() {
            // The thread-local buffer is gone, because the thread is about to end.
            self.run_with(core, &mut TxBuffer::new(MAX_SEND_LEN, MAX_SEGMENTS));
        }
    }

    // The only place that calls the transport for packets, which the compiler inlines here.
    #[inline(never)]
    fn run_with(&mut self, core: &mut QpCore, buffer: &mut TxBuffer) {
        while self.send_next(core, buffer) {}
    }

    /// Sends the next batch. Returns false if it was the last one for now.
    #[inline(always)]
    fn send_next(&mut self, core: &mut QpCore, buffer: &mut TxBuffer) -> bool {
        let (engine, QpCore { qp, tx, .. }) = (self.engine, &mut *core);
        let counts_bytes = engine.faults.triggers.await_any(HookPoint::Sent);
        let single =
            counts_bytes || engine.links.hooks.is_active() && engine.links.hooks.has_faults();
        buffer.clear();
        buffer.defer_longer_than(LONGEST_COPY);
        buffer.set_max_segments(if single { 1 } else { tx.max_segments() });
        qp.poll_transmit(self.cx.now, self.cx.mem, self.acks, buffer);
        if buffer.is_empty() {
            return false;
        }
        let (tag, len) = (buffer.route(), buffer.bytes().len());
        if tag != RouteTag::OWN {
            engine.find_response_route(qp, tx, tag);
        }
        let (is_ready, is_paced) = (tx.is_ready(tag), qp.sends_unreliably());
        let Some((endpoint, route)) = tx_route_for(&mut tx.route, &mut tx.peer_routes, tag) else {
            // A response to a peer that is not allowed is dropped. All other routes are known as
            // long as a datagram uses them.
            debug_assert!(qp.response_route(tag).is_some());
            return true;
        };
        let mut way = Way {
            endpoint,
            route,
            is_measured: &mut tx.is_measured,
        };
        let is_shared = way.route.live_peer_link().is_some();
        let outlet = self.outlet(&mut way, (is_ready, is_paced), buffer);
        self.note_answered(len);
        let fails = counts_bytes.then(|| {
            let segments = Segments::new(buffer.bytes(), buffer.segment_len());
            engine.faults.fails_after(self.inner, segments, self.cx.now)
        });
        let fails = fails.flatten();
        let sent_at = trace::is_on().then(|| self.sent_at(buffer));
        #[cfg(debug_assertions)]
        self.check_checkpoint(qp);
        let sent = self.send_by(outlet, &mut way, buffer, fails.as_deref());
        let Ok(has_left) = sent else {
            let unsent_ack = self.recover_partial_batch(qp, &mut way, buffer);
            let keep = |ack| self.keep(core, &Batch::single(ack, false), (tag, is_paced), true);
            return unsent_ack.as_deref().map(keep).is_none();
        };
        if has_left && !self.unpublished && matches!(outlet, Outlet::Hooked | Outlet::Ring) {
            tx.unpublished_ack = None;
        }
        if let Some(sent_at) = sent_at {
            let packets = Segments::new(buffer.bytes(), buffer.segment_len());
            trace::sent(sent_at, self.inner.qp_num(), way.route.to, packets);
        }
        qp.count_answered_reads();
        qp.note_sent(len);
        engine.note_sent(
            self.inner,
            buffer.segments(),
            len,
            is_shared,
            self.cx.caller,
        );
        if fails.is_some() {
            qp.set_fatal(self.cx.now, usize::MAX);
        }
        if !has_left {
            let batch = &Batch::of(buffer, false, "");
            self.keep(core, batch, (tag, is_paced), outlet.is_sealed());
            return false;
        }
        if len >= LONG_TX_BATCH {
            self.cx.now = engine.host.now();
        }
        qp.has_work_to_send(self.acks)
    }

    /// Asserts that another process can continue a shared target after the next packet.
    #[cfg(debug_assertions)]
    fn check_checkpoint(&self, qp: &Qp) {
        if let Some(ownership) = self.inner.ownership() {
            assert!(ownership.may_answer(qp), "an answer without a checkpoint");
        }
    }

    /// Returns the time of a batch that is sent now, for traces.
    fn sent_at(&mut self, buffer: &TxBuffer) -> u64 {
        let clock = &self.engine.host.clock;
        if !self.is_on_time {
            self.is_on_time = true;
            // A request follows the packet that has allowed it at once, and a response only after
            // the data were copied.
            let last_ns = trace::last_ns();
            let is_in_call = last_ns >= clock.monotonic_ns(self.cx.now);
            if is_in_call && !trace::is_response(buffer.bytes()) {
                self.traced_ns = last_ns;
            } else {
                self.cx.now = self.engine.host.now();
            }
        }
        self.traced_ns = clock.monotonic_ns(self.cx.now).max(self.traced_ns);
        self.traced_ns
    }

    /// Chooses the way out of a batch.
    #[inline(always)]
    fn outlet(
        &self,
        way: &mut Way<'_>,
        (is_ready, is_paced): (bool, bool),
        buffer: &TxBuffer,
    ) -> Outlet {
        let is_shared = way.route.live_peer_link().is_some();
        let mut spares_socket = || {
            let packets = (buffer.bytes(), buffer.segment_len());
            let mut may_leave = || {
                let now = self.engine.host.now();
                let leave = way.endpoint.may_leave(way.route, now, packets);
                leave.note(way.is_measured)
            };
            !is_shared && is_paced && !may_leave()
        };
        if !is_ready || spares_socket() {
            Outlet::Held
        } else if self.engine.links.hooks.is_active() {
            Outlet::Hooked
        } else if is_shared {
            Outlet::Ring
        } else {
            Outlet::Socket
        }
    }

    /// Lets an ACK that follows the first batch go with the next one, as does an ACK that would
    /// come too late behind a long response.
    #[inline]
    fn note_answered(&mut self, len: usize) {
        self.sent += len;
        if self.acks == AckPlacement::AfterFirst || self.sent > LONG_RESPONSE {
            self.acks = AckPlacement::First;
        }
    }

    /// Sends a batch. Returns false if it has to wait. Its bytes are complete then.
    #[inline(always)]
    fn send_by(
        &self,
        outlet: Outlet,
        way: &mut Way<'_>,
        buffer: &mut TxBuffer,
        remark: Option<&str>,
    ) -> Result<bool, Fault> {
        let (engine, Cx { caller, mem, .. }) = (self.engine, self.cx);
        fill_by_kernel(buffer, mem)?;
        if outlet.is_sealed() {
            seal(&mut way.route.icrc, buffer, mem)?;
        }
        let (len, segment_len) = (buffer.bytes().len(), buffer.segment_len());
        match outlet {
            Outlet::Held => Ok(false),
            Outlet::Hooked => {
                let batch = Batch::of(buffer, self.unpublished, remark.unwrap_or_default());
                Ok(engine.send_hooked(way.endpoint, way.route, batch, caller))
            }
            Outlet::Ring => {
                let sending = sending(way.route, len, segment_len, self.unpublished, caller);
                // The packets are lost if the link has just ended.
                let sent = way.route.send_shared(fragments(buffer, mem), sending)?;
                if !sent {
                    fill(buffer, mem)?;
                }
                Ok(sent)
            }
            Outlet::Socket => Ok(engine.send(way.endpoint, way.route, buffer.bytes(), segment_len)),
        }
    }

    /// Keeps a batch until there is space.
    #[cold]
    fn keep(
        &self,
        core: &mut QpCore,
        batch: &Batch<'_>,
        (route, is_paced): (RouteTag, bool),
        sealed: bool,
    ) {
        core.tx.backlog = Some(Box::new(TxBacklog {
            bytes: batch.bytes.into(),
            segment_len: batch.segment_len,
            route,
            is_paced,
            sealed,
        }));
        let (qpn, now) = (self.inner.qp_num(), self.cx.now);
        self.engine
            .scheduler
            .enqueue(qpn, core, ServiceReason::TxBlocked, now);
    }

    /// Sends the rest of a batch after registered memory that was to be sent has vanished. Packets
    /// without space are lost, but for the last ACK, which is returned.
    #[cold]
    fn recover_partial_batch(
        &self,
        qp: &mut Qp,
        way: &mut Way<'_>,
        buffer: &mut TxBuffer,
    ) -> Option<Box<[u8]>> {
        let mut unsent_ack = None;
        let Cx { now, caller, mem } = self.cx;
        let read = |source, place: &mut [u8]| {
            registered(mem, source)
                .copy(place)
                .map_err(AccessError::from)
        };
        qp.recover_partial_batch(now, buffer, read, |segment| {
            let traffic = &self.inner.hca().traffic;
            traffic.sent(1, segment.len(), way.route.peer_link.is_some());
            let (covered, icrc) = segment.split_at_mut(segment.len() - ICRC_LEN);
            let crc = way.route.icrc.of_len(covered.len()).compute(0, covered);
            icrc.copy_from_slice(&crc.to_le_bytes());
            let batch = Batch::single(segment, false);
            let has_left = self.engine.put(way.endpoint, way.route, batch, caller);
            if !has_left && is_acknowledgement(segment) {
                unsent_ack = Some(Box::from(&*segment));
            }
        });
        unsent_ack
    }
}

/// Copies the missing payloads, and fills in the ICRC of each segment. Under segmentation offload
/// the kernel numbers the segments' IPv4 Identifications from 0.
//= ICRC-07
fn seal(icrcs: &mut Icrcs, buffer: &mut TxBuffer, memory: &MemGuard<'_>) -> Result<(), Fault> {
    let mut id = 0;
    let mut result = Ok(());
    buffer.for_each_segment(|segment, deferred| {
        let (covered, icrc) = segment.split_at_mut(segment.len() - ICRC_LEN);
        let of_len = icrcs.of_len(covered.len());
        //= ICRC-08
        let crc = match deferred {
            Some(payload) => {
                of_len.compute_filling(id, covered, payload.range(), |crc, head, space| {
                    let sum = registered(memory, payload.source).copy_and_sum(crc, head, space);
                    sum.unwrap_or_else(|fault| {
                        result = Err(fault);
                        0
                    })
                })
            }
            None => of_len.compute(id, covered),
        };
        icrc.copy_from_slice(&crc.to_le_bytes());
        id += 1;
    });
    result
}

/// Copies the missing payloads in one call if the kernel copies. A system call for each would cost
/// more than copying and CRC in separate passes.
#[inline]
fn fill_by_kernel(buffer: &mut TxBuffer, memory: &MemGuard<'_>) -> Result<(), Fault> {
    if memory.is_by_kernel() && !buffer.deferred().is_empty() {
        memory.copy_all(buffer.deferred_mut())?;
        buffer.note_filled();
    }
    Ok(())
}

/// Copies the missing payloads.
fn fill(buffer: &mut TxBuffer, memory: &MemGuard<'_>) -> Result<(), Fault> {
    let mut result = Ok(());
    buffer.for_each_segment(|segment, deferred| {
        if let Some(payload) = deferred {
            let copied = registered(memory, payload.source).copy(&mut segment[payload.range()]);
            result = result.and(copied);
        }
    });
    result
}

/// The fragments of a batch in order, from the buffer and from registered memory.
fn fragments<'a>(
    buffer: &'a TxBuffer,
    memory: &'a MemGuard<'_>,
) -> impl Iterator<Item = Fragment<'a>> {
    let bytes = buffer.bytes();
    let mut at = 0;
    let deferred = buffer.deferred().iter().flat_map(move |deferred| {
        let before = &bytes[at..deferred.at];
        at = deferred.range().end;
        let payload = registered(memory, deferred.source);
        [Fragment::Bytes(before), Fragment::Registered(payload)]
    });
    let end = buffer
        .deferred()
        .last()
        .map_or(0, |deferred| deferred.range().end);
    deferred.chain(iter::once(Fragment::Bytes(&bytes[end..])))
}

fn registered<'a>(memory: &'a MemGuard<'_>, source: Source) -> Readable<'a> {
    memory
        .source(source)
        .expect("checked by the transport under the same guard")
}
