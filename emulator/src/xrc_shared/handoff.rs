//! Hands targets over between processes, acquires them, and delivers the packets that have waited
//! for that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rocade_transport::{PacketMeta, QpAttr, QpAttrMask, QpEvent, QpState, Time};
use rocade_wire::{Packet, Qpn};

use super::announcer::Announcement;
use super::restore::{context_of, restore, sgid_of};
use super::{
    Host, Misrouted, QueuedPacket, SharedTargets, event_code, event_from_code, qp, redirect,
};
use crate::broker::{BrokerLink, TargetEvent};
use crate::error::VerbsError;
use crate::state::{LocalEndpoint, QpCore, QpInner, TargetOwnership, TxRoute};
use crate::steering::ProcessSlot;

/// Number of attempts to deliver a packet whose target changes its owner meanwhile.
const TRIES: usize = 4;
/// Longest wait for a target that another process owns.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which its owner is asked again.
const REQUEST_INTERVAL: Duration = Duration::from_millis(20);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The outcome of an attempt to deliver a packet of a target.
enum Routing {
    /// The packet was delivered or dropped.
    Done,
    /// The packet belongs to the process in this slot.
    To(ProcessSlot),
    /// The target has just changed its owner.
    Again,
}

impl SharedTargets {
    /// Handles queued packets and events of targets, on the background thread. To be called without
    /// locks.
    pub(crate) fn serve(&self, host: &dyn Host) {
        if !self.is_busy.load(Ordering::Acquire) {
            return;
        }
        let raised = std::mem::take(&mut *self.raised.lock());
        for (qpn, event) in raised {
            self.broadcast_event(host, qpn, event);
        }
        let mut touched: Vec<Arc<QpInner>> = Vec::new();
        loop {
            let queued = {
                let mut queued = self.queued.lock();
                if queued.is_empty() {
                    self.is_busy.store(false, Ordering::Release);
                    break;
                }
                std::mem::take(&mut *queued)
            };
            for packet in queued {
                self.deliver(host, packet, &mut touched);
            }
            // A packet that arrives from now on overtakes only packets that have arrived within
            // this moment.
            for inner in touched.drain(..) {
                let mut core = inner.lock();
                if inner.ownership().is_some_and(TargetOwnership::is_owner) {
                    core.tx.set_rx_paused(false);
                }
            }
        }
        if !self.raised.lock().is_empty() {
            self.is_busy.store(true, Ordering::Release);
            host.wake_background();
        }
    }

    fn broadcast_event(&self, host: &dyn Host, qpn: Qpn, event: QpEvent) {
        let Some(inner) = qp(host, qpn) else { return };
        let shared = inner.domain().and_then(|domain| domain.shared());
        if let (Some(shared), Some(broker)) = (shared, host.broker())
            && let Some(code) = event_code(event)
        {
            let key = shared.key;
            let announcement = Announcement { key, qpn, code };
            self.announcer.announce(broker, announcement);
        }
    }

    /// Handles the events that the broker has sent.
    pub(crate) fn handle_target_events(&self, host: &dyn Host, broker: &BrokerLink) {
        for (qpn, event) in broker.client().take_target_events() {
            let Some(inner) = qp(host, qpn).filter(|inner| inner.ownership().is_some()) else {
                continue;
            };
            match event {
                TargetEvent::Wanted => self.yield_target(host, &inner),
                TargetEvent::Gone => self.target_gone(host, &inner),
                TargetEvent::Failed => {
                    inner.raise(QpEvent::Fatal);
                    inner.raise(QpEvent::LastWqeReached);
                }
                TargetEvent::Event(code) => {
                    if let Some(event) = event_from_code(code) {
                        inner.raise(event);
                    }
                }
            }
        }
    }

    /// Finds the process that a packet belongs to, and delivers it there.
    fn deliver(&self, host: &dyn Host, packet: QueuedPacket, touched: &mut Vec<Arc<QpInner>>) {
        let Some(inner) = self.find_target(host, packet.dest) else {
            host.count_misrouted(false);
            return;
        };
        if !touched.iter().any(|other| Arc::ptr_eq(other, &inner)) {
            touched.push(Arc::clone(&inner));
        }
        for _ in 0..TRIES {
            match self.try_deliver(host, &packet, &inner) {
                Routing::Done => return,
                Routing::To(slot) => return forward(host, packet, slot),
                Routing::Again => {}
            }
        }
        host.count_misrouted(false);
    }

    fn try_deliver(&self, host: &dyn Host, packet: &QueuedPacket, inner: &Arc<QpInner>) -> Routing {
        let Some(ownership) = inner.ownership() else {
            return Routing::Done;
        };
        if !ownership.is_owner() {
            if let Some(owner) = ownership.other_owner() {
                return Routing::To(owner);
            }
            return match self.try_acquire(host, inner) {
                Ok(_) => Routing::Again,
                Err(error) => {
                    tracing::warn!(%error, qp_num = ?inner.qp_num(), "failed to acquire an XRC target, dropping its packet");
                    Routing::Done
                }
            };
        }
        let Ok(whole) = Packet::parse(&packet.bytes) else {
            return Routing::Done;
        };
        let meta = PacketMeta {
            source: packet.source.ip(),
            destination: packet.destination,
            traffic_class: 0,
            hop_limit: 64,
        };
        let now = host.now();
        let mem = host.regions().read(now);
        let mut core = inner.lock();
        if !ownership.is_owner() {
            return Routing::Again;
        }
        ownership.mark_incomplete();
        core.qp.handle_packet(now, &meta, &whole, &mem);
        inner.note_violations(&mut core);
        let is_misrouted = core.qp.take_misrouted();
        host.flush_outputs(inner, &mut core, &mem, now);
        if !is_misrouted {
            return Routing::Done;
        }
        let srqn = whole.headers().xrceth.map(|eth| Qpn::new(eth.srqn));
        let to = srqn.map(ProcessSlot::of);
        match to {
            // Otherwise the packet is dropped, and the peer sends it again.
            Some(to) if release_to(inner, &mut core, Some(to)) => Routing::To(to),
            _ => Routing::Done,
        }
    }

    /// Hands a target over to the process that has requested it.
    fn yield_target(&self, host: &dyn Host, inner: &QpInner) {
        let Some(ownership) = inner.ownership() else {
            return;
        };
        let Some((slot, at_once)) = ownership
            .record()
            .requested()
            .filter(|(slot, _)| *slot != ownership.slot())
        else {
            return;
        };
        let now = host.now();
        let mem = host.regions().read(now);
        let mut core = inner.lock();
        if !ownership.is_owner() {
            drop(core);
            let Some(_guard) = self.acquiring.try_lock() else {
                return;
            };
            let control = ownership.record().control();
            if !ownership.is_owner()
                && control.owner == Some(ownership.slot())
                && control.is_checkpointed
            {
                // This process owned it without having received a packet.
                ownership.record().transfer_to(Some(slot));
            }
            return;
        }
        ownership.mark_incomplete();
        host.flush_outputs(inner, &mut core, &mem, now);
        if core.qp.snapshot().is_none() && at_once {
            // It is in the middle of a message that will not continue.
            let step = QpAttr {
                qp_state: QpState::Err.code(),
                ..QpAttr::default()
            };
            let context = context_of(inner.hca(), &step);
            // Allowed in any state.
            let _ = core.qp.modify(now, &step, QpAttrMask::STATE, &context);
            host.flush_outputs(inner, &mut core, &mem, now);
        }
        release_to(inner, &mut core, Some(slot));
    }

    /// Waits until this process owns a target that another process may own. Asks the owner for it,
    /// and if `at_once` to abort its current message.
    pub(crate) fn acquire(
        &self,
        host: &dyn Host,
        inner: &QpInner,
        at_once: bool,
    ) -> Result<(), VerbsError> {
        let Some(ownership) = inner.ownership() else {
            return Ok(());
        };
        let begin = host.now();
        let mut asked: Option<Time> = None;
        while !ownership.is_owner() {
            if self.try_acquire(host, inner)? {
                inner.lock().tx.set_rx_paused(false);
                return Ok(());
            }
            let now = host.now();
            if now.since(begin) > ACQUIRE_TIMEOUT {
                return Err(VerbsError::Busy(
                    "XRC target, by a message that another process is receiving".to_owned(),
                ));
            }
            if asked.is_none_or(|at| now.since(at) > REQUEST_INTERVAL) {
                ownership.record().request(ownership.slot(), at_once);
                let shared = inner.domain().and_then(|domain| domain.shared());
                if let (Some(shared), Some(broker)) = (shared, host.broker()) {
                    broker.client().want_target(shared.key, inner.qp_num())?;
                }
                asked = Some(now);
            }
            host.pause(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Acquires a target if it was handed to this process or has no owner. Returns false if another
    /// process owns it.
    fn try_acquire(&self, host: &dyn Host, inner: &QpInner) -> Result<bool, VerbsError> {
        let Some(ownership) = inner.ownership() else {
            return Ok(true);
        };
        if !ownership.record().is_of(inner.qp_num()) {
            return Err(VerbsError::InvalidArgument("the XRC target has ended"));
        }
        // Opening the route may take a while, so the QP is not locked. Other threads that want to
        // acquire the target wait.
        let _guard = self.acquiring.lock();
        let (attr, has_failed) = {
            let _core = inner.lock();
            if ownership.is_owner() {
                return Ok(true);
            }
            let Some(taken) = ownership.try_acquire() else {
                return Ok(false);
            };
            taken
        };
        let route = attr.map(|attr| tx_route_of_target(host, inner, &attr));
        let route = match route.transpose() {
            Ok(route) => route.flatten(),
            Err(error) => {
                ownership.invalidate_attr();
                ownership.record().transfer_to(None);
                return Err(error);
            }
        };
        let now = host.now();
        let mem = host.regions().read(now);
        let mut core = inner.lock();
        if ownership.is_owner() {
            return Ok(true);
        }
        if let Some(attr) = attr {
            core.tx.reset();
            restore(&mut core.qp, inner.hca(), &attr, now)?;
            if let Some((endpoint, tx_route)) = route {
                core.tx.set_route(endpoint, tx_route);
                core.tx.set_rx_paused(true);
            }
        }
        ownership.resume(&mut core.qp);
        if has_failed {
            core.qp.set_fatal(now, 0);
        }
        // All processes have got these events.
        while core.qp.poll_event().is_some() {}
        // Flushing writes the checkpoint.
        host.flush_outputs(inner, &mut core, &mem, now);
        Ok(true)
    }
}

fn forward(host: &dyn Host, mut packet: QueuedPacket, slot: ProcessSlot) {
    if !packet.seal() {
        return;
    }
    let misrouted = Misrouted {
        source: packet.source,
        destination: packet.destination,
        bytes: &packet.bytes,
        hops: packet.hops,
        is_sealed: true,
    };
    redirect(host, &misrouted, slot);
}

/// Hands over a target that this process owns, to `to` or to the next process that wants it.
/// Returns false if it still has something to send.
fn release_to(inner: &QpInner, core: &mut QpCore, to: Option<ProcessSlot>) -> bool {
    let Some(ownership) = inner.ownership() else {
        return false;
    };
    if core.tx.has_backlog() || !ownership.release_to(&core.qp, to) {
        return false;
    }
    core.tx.publish_ack();
    core.tx.set_rx_paused(true);
    true
}

fn tx_route_of_target(
    host: &dyn Host,
    inner: &QpInner,
    attr: &QpAttr,
) -> Result<Option<(Arc<LocalEndpoint>, TxRoute)>, VerbsError> {
    let is_connected = matches!(
        QpState::from_code(attr.qp_state),
        Some(QpState::Rtr | QpState::Rts | QpState::Sqd)
    );
    let hca = inner.hca();
    let Some(sgid) = sgid_of(hca, attr).filter(|_| is_connected) else {
        return Ok(None);
    };
    let dest = Qpn::new(attr.dest_qp_num);
    host.open_peer_route(hca, sgid, &attr.ah_attr, dest)
        .map(Some)
}
