//! Receiving: from a link to the QPs.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use rocade_transport::{PacketMeta, Time};
use rocade_wire::{Bth, Packet, Qpn, ShortPacket};

use super::EngineInner;
use super::ack_hold::Cause;
use super::handover::Driver;
use super::qp_table::QpTable;
use super::uplink::{Flows, RxState, Uplink};
use crate::hca::Traffic;
use crate::link::{Arrival, RxBatch};
use crate::memory::MemGuard;
use crate::objects::{QpCore, QpInner};
use crate::steering::Slot;

/// Batches that one call receives from a link at most, so that acknowledgements do not wait too long.
const MAX_BATCHES: usize = 12;
/// A batch of so many bytes is part of a stream, unless its packets are shorter than [`BULK_SEGMENT`]:
/// after a batch of small messages the application has to post new receives. A peer that is as fast
/// as we are would otherwise use up all that are posted, and then wait for the RNR timer.
const LONG_BATCH: usize = 4_096;
const BULK_SEGMENT: usize = 512;
/// How long to look for the rest of a message before the part of it is acknowledged.
const MORE_NS: u64 = 12_000;

/// How long a poller is patient before it lets others have its CPU.
const PATIENCE_NS: u64 = 15_000;
/// A poll in vain looks at the clock once in so many times.
const CLOCK_TURN: u64 = 4;
/// What a poll of shared memory counts that finds something.
const BUSY_POLL: u64 = 8;
/// With shared memory in use the sockets have their turn after so many polls of it: every few
/// microseconds.
const SOCKET_TURN: u64 = 64;

impl EngineInner {
    /// Drives all links on behalf of a thread that polls an empty CQ. False where nothing was received.
    #[inline]
    pub(crate) fn progress_inline(&self) -> bool {
        self.ring_doorbells();
        self.retry_blocked_inline();
        let shared = self.progress_shared();
        if !shared.sockets {
            return shared.found;
        }
        let mut packets = 0;
        for uplink in self.uplinks.read().iter() {
            // Whoever holds the lock is receiving already.
            if let Some(mut rx) = uplink.rx.try_lock() {
                packets += self.receive(uplink, &mut rx, Driver::Application).packets;
            }
        }
        if packets == 0 {
            self.polled_in_vain();
        } else {
            self.polls.idle_since.store(0, Ordering::Relaxed);
        }
        shared.found || packets > 0
    }

    /// Polling found nothing.
    #[inline]
    fn polled_in_vain(&self) {
        // Not each time: reading the clock takes a tenth of a poll.
        let polls = self.polls.vain.load(Ordering::Relaxed);
        self.polls
            .vain
            .store(polls.wrapping_add(1), Ordering::Relaxed);
        if !polls.is_multiple_of(CLOCK_TURN) {
            return;
        }
        let now = self.now().as_ns();
        self.handover.polled_in_vain(now);
        let idle_since = self.polls.idle_since.load(Ordering::Relaxed);
        if idle_since == 0 {
            self.polls.idle_since.store(now, Ordering::Relaxed);
        } else if now.saturating_sub(idle_since) >= PATIENCE_NS {
            // The application waits for something else than the answer to its own.
            self.release_acks(PATIENCE_NS, Driver::Application);
            // What this thread waits for may be waiting for this CPU.
            std::thread::yield_now();
        }
    }

    /// Receives from the channels.
    #[inline]
    fn progress_shared(&self) -> Shared {
        if self.channel_count.load(Ordering::Acquire) == 0 {
            return Shared {
                found: false,
                sockets: true,
            };
        }
        let channels = self.channels.read();
        let found = self.receive_shared(&channels, Driver::Application) > 0;
        drop(channels);
        let before = self.polls.shared.load(Ordering::Relaxed);
        let polls = before.wrapping_add(if found { BUSY_POLL } else { 1 });
        self.polls.shared.store(polls, Ordering::Relaxed);
        let sockets = polls / SOCKET_TURN != before / SOCKET_TURN;
        if found {
            self.polls.idle_since.store(0, Ordering::Relaxed);
        } else if !sockets {
            self.polled_in_vain();
        }
        Shared { found, sockets }
    }

    /// Receives from a link until it is empty, a short batch came, or the batch limit is reached.
    /// After long batches the QPs are drained together: one acknowledgement for many packets. In the
    /// middle of a message the rest is on its way: it is waited for a little.
    pub(super) fn receive(&self, uplink: &Uplink, rx: &mut RxState, driver: Driver) -> Received {
        let RxState {
            buffer,
            flows,
            dirty,
        } = rx;
        let mut received = Received {
            packets: 0,
            more: false,
        };
        let (mut batches, mut look_until) = (0, None);
        while batches < MAX_BATCHES {
            match uplink.link.recv(buffer) {
                Ok(Some(batch)) => {
                    let is_short =
                        batch.data.len() < LONG_BATCH || batch.segment_len < BULK_SEGMENT;
                    let delivered = self.deliver(uplink, flows, dirty, &batch, is_short, driver);
                    received.packets += delivered.packets;
                    received.more = true;
                    // The application waits for completions, perhaps to post new receives.
                    if is_short || delivered.completes {
                        break;
                    }
                    batches += 1;
                    look_until = delivered.mid_message.then(|| self.now().plus_ns(MORE_NS));
                }
                Ok(None) if look_until.is_some_and(|until| self.now() < until) => {}
                Ok(None) => {
                    received.more = false;
                    break;
                }
                Err(error) => {
                    tracing::debug!(%error, local = %uplink.link.local(), "receive failed");
                    received.more = false;
                    break;
                }
            }
        }
        for qpn in dirty.drain(..) {
            self.with_qp(qpn, |inner, core, mem| {
                let cause = cause_of(core);
                self.drain(inner, core, mem, cause, self.now(), driver);
            });
        }
        received
    }

    /// Hands the packets of a batch to their QPs. Consecutive
    /// packets of a QP are handled under one lock. The QPs are drained `at_once`, or are `dirty`
    /// then.
    fn deliver(
        &self,
        uplink: &Uplink,
        flows: &mut Flows,
        dirty: &mut Vec<Qpn>,
        batch: &RxBatch<'_>,
        at_once: bool,
        driver: Driver,
    ) -> Delivered {
        let local = uplink.link.local();
        let welcome = self.peers.allow(batch.source.ip());
        if !welcome && self.refuse_all(uplink, batch) {
            return Delivered::default();
        }
        // Lock order: QP table, regions, QP, CQ.
        let qps = self.qps.read();
        let now = self.now();
        let mem = self.regions().read(now);
        let let_go = |locked: Option<Locked<'_>>, dirty: &mut Vec<Qpn>, mem: &MemGuard<'_>| {
            if at_once && dirty.is_empty() {
                self.unlock(locked, mem, now, driver);
            } else if let Some(locked) = locked {
                let qpn = locked.inner.qp_num();
                if !dirty.contains(&qpn) {
                    dirty.push(qpn);
                }
            }
        };
        let mut current: Option<Locked<'_>> = None;
        let (mut packets, mut bytes) = (0, 0);
        let mut checked: u16 = 0;
        let mut sender = flows.find(local, batch.source);
        let meta = PacketMeta {
            source: batch.source.ip(),
            destination: local,
        };
        for segment in batch.segments() {
            let (source, segment, forwarded) = match uplink.link.arrival(segment) {
                Arrival::Direct => (batch.source, segment, false),
                Arrival::Forwarded(source, inner) => (source, inner, true),
                Arrival::Forged => {
                    self.count(|counters| &counters.rx_forged);
                    continue;
                }
            };
            let welcome = if forwarded {
                self.peers.allow(source.ip())
            } else {
                welcome
            };
            if !welcome {
                self.refuse(uplink, source, segment, forwarded);
                continue;
            }
            //= ICRC-11
            if !forwarded
                && let Some(short) = ShortPacket::parse(segment)
                && flows
                    .at(sender)
                    .is_some_and(|flow| flow.check(short.covered(), short.icrc_bytes()))
            {
                switch_to(&mut current, &qps, short.bth().dest_qp, |locked| {
                    let_go(locked, dirty, &mem);
                });
                if let Some(locked) = &mut current
                    && !locked.core.tx.refuses_udp()
                    && locked.core.qp.handle_short(now, &meta, &short, &mem)
                {
                    checked = checked.saturating_add(1);
                    packets += 1;
                    bytes += segment.len();
                    continue;
                }
            }
            let Ok(packet) = Packet::parse(segment) else {
                self.count(|counters| &counters.rx_malformed);
                uplink.count(Traffic::malformed);
                continue;
            };
            let flow = if forwarded {
                flows.find(local, source)
            } else {
                sender
            };
            let intact = flows
                .at(flow)
                .is_some_and(|flow| flow.check(packet.covered(), packet.icrc_bytes()));
            if forwarded {
                sender = flows.find(local, batch.source);
            }
            if !intact {
                //= ICRC-11
                self.count(|counters| &counters.rx_bad_icrc);
                uplink.count(Traffic::bad_icrc);
                continue;
            }
            checked = checked.saturating_add(u16::from(!forwarded));
            let dest = packet.bth().dest_qp;
            switch_to(&mut current, &qps, dest, |locked| {
                let_go(locked, dirty, &mem)
            });
            let Some(locked) = &mut current else {
                self.not_ours(uplink, source, dest, segment, forwarded);
                continue;
            };
            if locked.core.tx.refuses_udp() {
                self.count(|counters| &counters.rx_wrong_link);
                continue;
            }
            let meta = if forwarded {
                PacketMeta {
                    source: source.ip(),
                    ..meta
                }
            } else {
                meta
            };
            locked.core.qp.handle_packet(now, &meta, &packet, &mem);
            packets += 1;
            bytes += segment.len();
        }
        if let Some(flow) = flows.at(sender) {
            flow.finish(checked);
        }
        let qp = current.as_ref().map(|locked| &locked.core.qp);
        let mid_message = qp.is_some_and(|qp| qp.receives_message());
        let completes = qp.is_some_and(|qp| qp.pending_completions().len() > 0);
        let_go(current, dirty, &mem);
        uplink.count(|traffic| traffic.received(packets, bytes));
        self.count_traffic();
        Delivered {
            packets,
            mid_message,
            completes,
        }
    }

    /// Drains a QP after its packets and lets it go.
    pub(super) fn unlock(
        &self,
        locked: Option<Locked<'_>>,
        mem: &MemGuard<'_>,
        now: Time,
        driver: Driver,
    ) {
        if let Some(mut locked) = locked {
            let cause = cause_of(&locked.core);
            self.drain(locked.inner, &mut locked.core, mem, cause, now, driver);
        }
    }

    /// A batch of somebody who may not talk to us. False, and nothing has happened, where there is a packet in it
    /// that has been passed on for somebody else.
    #[cold]
    fn refuse_all(&self, uplink: &Uplink, batch: &RxBatch<'_>) -> bool {
        let passed_on = |segment| matches!(uplink.link.arrival(segment), Arrival::Forwarded(..));
        if batch.segments().any(passed_on) {
            return false;
        }
        for segment in batch.segments() {
            self.refuse(uplink, batch.source, segment, false);
        }
        true
    }

    /// A packet of somebody who may not talk to us. Perhaps to the process that it is for, if that is another.
    #[cold]
    fn refuse(&self, uplink: &Uplink, source: SocketAddr, segment: &[u8], forwarded: bool) {
        let to = segment
            .first_chunk()
            .map(|bth| Slot::of(Bth::from_bytes(bth).dest_qp));
        if let Some(to) = to
            && !forwarded
            && uplink.link.slot().is_some_and(|own| own != to)
            && uplink.link.forward(to, source, segment).is_ok()
        {
            self.count(|counters| &counters.forwarded);
        } else {
            self.count(|counters| &counters.rx_refused);
        }
    }

    /// A packet for no QP of ours: GRO may have merged it with one of ours although it is for
    /// another process on this address, which then gets it.
    fn not_ours(
        &self,
        uplink: &Uplink,
        source: SocketAddr,
        dest: Qpn,
        segment: &[u8],
        forwarded: bool,
    ) {
        let to = Slot::of(dest);
        if !forwarded
            && uplink.link.slot().is_some_and(|own| own != to)
            && uplink.link.forward(to, source, segment).is_ok()
        {
            self.count(|counters| &counters.forwarded);
        } else {
            //= BTH-10
            self.count(|counters| &counters.rx_unknown_qp);
        }
    }

    pub(super) fn count(
        &self,
        counter: impl FnOnce(&super::AtomicCounters) -> &std::sync::atomic::AtomicU64,
    ) {
        counter(&self.counters).fetch_add(1, Ordering::Relaxed);
    }
}

/// What polling shared memory has yielded.
#[derive(Clone, Copy, Debug)]
struct Shared {
    /// Packets.
    found: bool,
    /// It is the turn of the sockets: looking at them takes much longer.
    sockets: bool,
}

/// What a batch was.
#[derive(Clone, Copy, Debug, Default)]
struct Delivered {
    /// Packets handed to QPs.
    packets: u64,
    /// The last one was not the last of its message.
    mid_message: bool,
    /// Its QP has completions to report.
    completes: bool,
}

/// What one call received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    /// Packets handed to QPs.
    pub(super) packets: u64,
    /// There may be more.
    pub(super) more: bool,
}

pub(super) struct Locked<'a> {
    pub(super) inner: &'a QpInner,
    pub(super) core: MutexGuard<'a, QpCore>,
}

/// What a QP has just received.
fn cause_of(core: &QpCore) -> Cause {
    if core.qp.receives_message() {
        Cause::ReceivedPart
    } else {
        Cause::Received
    }
}

/// Locks the QP that the next packet is for, unless it is the one that is locked, which is let go then.
#[inline]
pub(super) fn switch_to<'q>(
    current: &mut Option<Locked<'q>>,
    qps: &'q QpTable,
    dest: Qpn,
    let_go: impl FnOnce(Option<Locked<'q>>),
) {
    if current
        .as_ref()
        .is_none_or(|locked| locked.inner.qp_num() != dest)
    {
        let_go(current.take());
        *current = qps.get(dest).map(|inner| Locked {
            inner,
            core: inner.lock(),
        });
    }
}
