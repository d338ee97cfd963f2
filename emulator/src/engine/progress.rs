//! Receiving: from a link to the QPs.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use rocade_transport::PacketMeta;
use rocade_wire::{Packet, Qpn};

use super::EngineInner;
use super::port::{Flows, Port, RxState};
use super::qp_table::QpTable;
use crate::link::RxBatch;
use crate::memory::MemGuard;
use crate::objects::{QpCore, QpInner};
use crate::steering::Slot;

/// Batches that one call receives from a link at most, so that a flood cannot hold a poller.
pub(super) const MAX_BATCHES: usize = 16;
/// The same for a thread that polls. It has to get at its completions and to post new receives: a
/// peer that is as fast as we are would otherwise use up all that are posted, and then wait for
/// the RNR timer.
const MAX_INLINE_BATCHES: usize = 1;

/// How long a poller is patient before it lets others have its CPU: some 15 µs, counted in polls of
/// shared memory in vain.
const PATIENCE: u64 = 512;
/// What a poll of the sockets counts in that unit.
const SOCKET_POLL: u64 = 16;
/// What a poll of shared memory counts that finds something.
const BUSY_POLL: u64 = 8;
/// With shared memory in use the sockets have their turn after so many polls of it: every few
/// microseconds.
const SOCKET_TURN: u64 = 64;

impl EngineInner {
    /// Drives all links on behalf of a thread that polls an empty CQ.
    pub(crate) fn progress_inline(&self) {
        if !self.progress_shared() {
            return;
        }
        let mut packets = 0;
        for port in self.ports.read().iter() {
            // Whoever holds the lock is receiving already.
            if let Some(mut rx) = port.rx.try_lock() {
                packets += self.receive(port, &mut rx, MAX_INLINE_BATCHES).packets;
            }
        }
        if packets == 0 {
            self.polled_in_vain(SOCKET_POLL);
        } else {
            self.idle_polls.store(0, Ordering::Relaxed);
        }
    }

    /// Polling found nothing.
    #[inline]
    fn polled_in_vain(&self, polls: u64) {
        self.handover.polled_in_vain(self.now().as_ns());
        let idle = self
            .idle_polls
            .load(Ordering::Relaxed)
            .saturating_add(polls);
        self.idle_polls.store(idle, Ordering::Relaxed);
        if idle >= PATIENCE {
            // What this thread waits for may be waiting for this CPU.
            std::thread::yield_now();
        }
    }

    /// Receives from the channels. True where it is the turn of the sockets: looking at them takes
    /// much longer.
    #[inline]
    fn progress_shared(&self) -> bool {
        let channels = self.channels.read();
        if channels.is_empty() {
            return true;
        }
        let found = self.receive_shared(&channels, false) > 0;
        drop(channels);
        let before = self.shared_polls.load(Ordering::Relaxed);
        let polls = before.wrapping_add(if found { BUSY_POLL } else { 1 });
        self.shared_polls.store(polls, Ordering::Relaxed);
        let sockets = polls / SOCKET_TURN != before / SOCKET_TURN;
        if found {
            self.idle_polls.store(0, Ordering::Relaxed);
        } else if !sockets {
            self.polled_in_vain(1);
        }
        sockets
    }

    /// Receives from a link until it is empty or there were `max_batches`.
    pub(super) fn receive(&self, port: &Port, rx: &mut RxState, max_batches: usize) -> Received {
        let RxState { buffer, flows } = rx;
        let mut packets = 0;
        for _ in 0..max_batches {
            match port.link.recv(buffer) {
                Ok(Some(batch)) => packets += self.deliver(port, flows, &batch),
                Ok(None) => {
                    return Received {
                        packets,
                        more: false,
                    };
                }
                Err(error) => {
                    tracing::debug!(%error, local = %port.link.local(), "receive failed");
                    return Received {
                        packets,
                        more: false,
                    };
                }
            }
        }
        Received {
            packets,
            more: true,
        }
    }

    /// Hands the packets of a batch to their QPs and returns how many there were. Consecutive
    /// packets of a QP are handled under one lock and drained together: that coalesces
    /// acknowledgements.
    fn deliver(&self, port: &Port, flows: &mut Flows, batch: &RxBatch<'_>) -> u64 {
        let local = port.link.local();
        // Lock order: QP table, regions, QP, CQ.
        let qps = self.qps.read();
        let mem = self.regions().read();
        let now = self.now();
        let mut current: Option<Locked<'_>> = None;
        let mut packets = 0;
        let mut checked: u16 = 0;
        let mut sender = flows.find(local, batch.source);
        for segment in batch.segments() {
            let (source, segment, forwarded) =
                match port.link.unwrap_forwarded(batch.source, segment) {
                    Some((source, inner)) => (source, inner, true),
                    None => (batch.source, segment, false),
                };
            let Ok(packet) = Packet::parse(segment) else {
                self.count(|counters| &counters.rx_malformed);
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
                continue;
            }
            checked = checked.saturating_add(u16::from(!forwarded));
            let dest = packet.bth().dest_qp;
            if current
                .as_ref()
                .is_none_or(|locked| locked.inner.qp_num() != dest)
            {
                self.unlock(current.take(), &mem);
                current = lock_qp(&qps, dest);
            }
            let Some(locked) = &mut current else {
                self.not_ours(port, source, dest, segment, forwarded);
                continue;
            };
            let meta = PacketMeta {
                source: source.ip(),
                destination: local,
            };
            let memory = mem.view(locked.inner.pd_id());
            locked.core.qp.handle_packet(now, &meta, &packet, &memory);
            packets += 1;
        }
        if let Some(flow) = flows.at(sender) {
            flow.finish(checked);
        }
        self.unlock(current, &mem);
        self.counters
            .rx_packets
            .fetch_add(packets, Ordering::Relaxed);
        packets
    }

    /// Drains a QP after its packets and lets it go.
    pub(super) fn unlock(&self, locked: Option<Locked<'_>>, mem: &MemGuard<'_>) {
        if let Some(mut locked) = locked {
            self.drain(locked.inner, &mut locked.core, mem);
        }
    }

    /// A packet for no QP of ours: GRO may have merged it with one of ours although it is for
    /// another process on this address, which then gets it.
    fn not_ours(
        &self,
        port: &Port,
        source: SocketAddr,
        dest: Qpn,
        segment: &[u8],
        forwarded: bool,
    ) {
        let to = Slot::of(dest);
        if !forwarded
            && port.link.slot().is_some_and(|own| own != to)
            && port.link.forward(to, source, segment).is_ok()
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

pub(super) fn lock_qp(qps: &QpTable, dest: Qpn) -> Option<Locked<'_>> {
    let inner = qps.get(dest)?;
    Some(Locked {
        inner,
        core: inner.lock(),
    })
}
