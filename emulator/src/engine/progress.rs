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
const MAX_BATCHES: usize = 16;

/// Polls in vain, one after the other, before a poller lets others have its CPU: some 15 µs.
const PATIENT_POLLS: u64 = 32;

impl EngineInner {
    /// Drives all links on behalf of a thread that polls an empty CQ.
    pub(crate) fn progress_inline(&self) {
        let mut packets = 0;
        for port in self.ports.read().iter() {
            // Whoever holds the lock is receiving already.
            if let Some(mut rx) = port.rx.try_lock() {
                packets += self.receive(port, &mut rx).packets;
            }
        }
        if packets == 0 {
            let polls = self.idle_polls.fetch_add(1, Ordering::Relaxed);
            if polls >= PATIENT_POLLS {
                // What this thread waits for may be waiting for this CPU.
                std::thread::yield_now();
            }
        } else {
            self.idle_polls.store(0, Ordering::Relaxed);
        }
    }

    /// Receives from a link until it is empty or the batch limit is reached.
    pub(super) fn receive(&self, port: &Port, rx: &mut RxState) -> Received {
        let RxState { buffer, flows } = rx;
        let mut packets = 0;
        for _ in 0..MAX_BATCHES {
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
            if !flows.check(local, source, packet.covered(), packet.icrc_bytes()) {
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
        flows.finish(local, batch.source, checked);
        self.unlock(current, &mem);
        self.counters
            .rx_packets
            .fetch_add(packets, Ordering::Relaxed);
        packets
    }

    /// Drains a QP after its packets and lets it go.
    fn unlock(&self, locked: Option<Locked<'_>>, mem: &MemGuard<'_>) {
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

    fn count(&self, counter: impl FnOnce(&super::AtomicCounters) -> &std::sync::atomic::AtomicU64) {
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

struct Locked<'a> {
    inner: &'a QpInner,
    core: MutexGuard<'a, QpCore>,
}

fn lock_qp(qps: &QpTable, dest: Qpn) -> Option<Locked<'_>> {
    let inner = qps.get(dest)?;
    Some(Locked {
        inner,
        core: inner.lock(),
    })
}
