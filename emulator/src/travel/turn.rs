//! Hands targets over between processes, acquires them, and delivers the packets that have waited
//! for that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rocade_transport::{PacketMeta, QpAttr, QpAttrMask, QpEvent, QpState};
use rocade_wire::{Packet, Qpn};

use super::like::{become_like, context_of, sgid_of};
use super::{Host, Kept, Stray, Travels, code_of, event_of, hand_over, qp};
use crate::broker::{BrokerLink, TargetNews};
use crate::cells::{Path, QpCore, QpInner, Travel, Uplink};
use crate::error::VerbsError;
use crate::steering::Slot;

/// Number of attempts to deliver a packet whose target changes its owner meanwhile.
const TRIES: usize = 4;
/// Longest wait for a target that another process owns.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which its owner is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(20);
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// The outcome of an attempt to deliver a packet of a target.
enum Course {
    /// The packet was delivered or dropped.
    Done,
    /// The packet belongs to the process in this slot.
    To(Slot),
    /// The target has just changed its owner.
    Again,
}

impl Travels {
    /// Handles queued packets and events of targets, on the background thread. To be called without
    /// locks.
    pub(crate) fn serve(&self, host: &dyn Host) {
        if !self.is_busy.load(Ordering::Acquire) {
            return;
        }
        let raised = std::mem::take(&mut *self.raised.lock());
        for (qpn, event) in raised {
            tell_of(host, qpn, event);
        }
        let mut touched: Vec<Arc<QpInner>> = Vec::new();
        loop {
            let kept = {
                let mut kept = self.kept.lock();
                if kept.is_empty() {
                    self.is_busy.store(false, Ordering::Release);
                    break;
                }
                std::mem::take(&mut *kept)
            };
            for packet in kept {
                self.place(host, packet, &mut touched);
            }
            // A packet that arrives from now on overtakes only packets that have arrived within
            // this moment.
            for inner in touched.drain(..) {
                let mut core = inner.lock();
                if inner.travel().is_some_and(Travel::is_here) {
                    core.tx.set_deaf(false);
                }
            }
        }
        if !self.raised.lock().is_empty() {
            self.is_busy.store(true, Ordering::Release);
            host.call_background();
        }
    }

    /// Handles the events that the broker has sent.
    pub(crate) fn take_news(&self, host: &dyn Host, broker: &BrokerLink) {
        for (qpn, news) in broker.client().take_target_news() {
            let Some(inner) = qp(host, qpn).filter(|inner| inner.travel().is_some()) else {
                continue;
            };
            match news {
                TargetNews::Wanted => self.yield_target(host, &inner),
                TargetNews::Gone => self.target_gone(host, &inner),
                TargetNews::Failed => {
                    inner.raise(QpEvent::Fatal);
                    inner.raise(QpEvent::LastWqeReached);
                }
                TargetNews::Event(code) => {
                    if let Some(event) = event_of(code) {
                        inner.raise(event);
                    }
                }
            }
        }
    }

    /// Finds the process that a packet belongs to, and delivers it there.
    fn place(&self, host: &dyn Host, packet: Kept, touched: &mut Vec<Arc<QpInner>>) {
        let Some(inner) = self.find_target(host, packet.dest) else {
            host.count_stray(false);
            return;
        };
        if !touched.iter().any(|other| Arc::ptr_eq(other, &inner)) {
            touched.push(Arc::clone(&inner));
        }
        for _ in 0..TRIES {
            match self.try_place(host, &packet, &inner) {
                Course::Done => return,
                Course::To(slot) => return send_on(host, packet, slot),
                Course::Again => {}
            }
        }
        host.count_stray(false);
    }

    fn try_place(&self, host: &dyn Host, packet: &Kept, inner: &Arc<QpInner>) -> Course {
        let Some(travel) = inner.travel() else {
            return Course::Done;
        };
        if !travel.is_here() {
            if let Some(holder) = travel.holder_elsewhere() {
                return Course::To(holder);
            }
            return match self.take_target(host, inner) {
                Ok(_) => Course::Again,
                Err(error) => {
                    tracing::warn!(%error, qp_num = ?inner.qp_num(), "failed to acquire an XRC target, dropping its packet");
                    Course::Done
                }
            };
        }
        let Ok(whole) = Packet::parse(&packet.bytes) else {
            return Course::Done;
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
        if !travel.is_here() {
            return Course::Again;
        }
        travel.begin();
        core.qp.handle_packet(now, &meta, &whole, &mem);
        inner.note_violations(&mut core);
        let is_stray = core.qp.take_stray();
        host.drain(inner, &mut core, &mem, now);
        if !is_stray {
            return Course::Done;
        }
        let srqn = whole.headers().xrceth.map(|eth| Qpn::new(eth.srqn));
        let to = srqn.map(Slot::of);
        match to {
            // Otherwise the packet is dropped, and the peer sends it again.
            Some(to) if release(inner, &mut core, Some(to)) => Course::To(to),
            _ => Course::Done,
        }
    }

    /// Hands a target over to the process that has requested it.
    fn yield_target(&self, host: &dyn Host, inner: &QpInner) {
        let Some(travel) = inner.travel() else { return };
        let Some((slot, at_once)) = travel
            .cell()
            .wanted()
            .filter(|(slot, _)| *slot != travel.slot())
        else {
            return;
        };
        let now = host.now();
        let mem = host.regions().read(now);
        let mut core = inner.lock();
        if !travel.is_here() {
            drop(core);
            let Some(_turn) = self.taking.try_lock() else {
                return;
            };
            let control = travel.cell().control();
            if !travel.is_here() && control.holder == Some(travel.slot()) && control.is_whole {
                // This process owned it without having received a packet.
                travel.cell().hand_to(Some(slot));
            }
            return;
        }
        travel.begin();
        host.drain(inner, &mut core, &mem, now);
        if core.qp.progress().is_none() && at_once {
            // It is in the middle of a message that will not continue.
            let step = QpAttr {
                qp_state: QpState::Err.code(),
                ..QpAttr::default()
            };
            let context = context_of(inner.hca(), &step);
            // Allowed in any state.
            let _ = core.qp.modify(now, &step, QpAttrMask::STATE, &context);
            host.drain(inner, &mut core, &mem, now);
        }
        release(inner, &mut core, Some(slot));
    }

    /// Waits until this process owns a target that another process may own. Asks the owner for it,
    /// and if `at_once` to abort its current message.
    pub(crate) fn bring_here(
        &self,
        host: &dyn Host,
        inner: &QpInner,
        at_once: bool,
    ) -> Result<(), VerbsError> {
        let Some(travel) = inner.travel() else {
            return Ok(());
        };
        let begin = Instant::now();
        let mut asked: Option<Instant> = None;
        while !travel.is_here() {
            if self.take_target(host, inner)? {
                inner.lock().tx.set_deaf(false);
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(VerbsError::Busy(
                    "XRC target, by a message that another process is receiving".to_owned(),
                ));
            }
            if asked.is_none_or(|at| at.elapsed() > ASK_AGAIN) {
                travel.cell().want(travel.slot(), at_once);
                let shared = inner.domain().and_then(|domain| domain.shared());
                if let (Some(shared), Some(broker)) = (shared, host.broker()) {
                    broker.client().want_target(shared.key, inner.qp_num())?;
                }
                asked = Some(Instant::now());
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Acquires a target if it was handed to this process or has no owner. Returns false if another
    /// process owns it.
    fn take_target(&self, host: &dyn Host, inner: &QpInner) -> Result<bool, VerbsError> {
        let Some(travel) = inner.travel() else {
            return Ok(true);
        };
        if !travel.cell().is_of(inner.qp_num()) {
            return Err(VerbsError::InvalidArgument("the XRC target has ended"));
        }
        // Opening the route may take a while, so the QP is not locked. Other threads that want to
        // acquire the target wait.
        let _turn = self.taking.lock();
        let (attr, has_failed) = {
            let _core = inner.lock();
            if travel.is_here() {
                return Ok(true);
            }
            let Some(taken) = travel.take() else {
                return Ok(false);
            };
            taken
        };
        let route = attr.map(|attr| route_of_target(host, inner, &attr));
        let route = match route.transpose() {
            Ok(route) => route.flatten(),
            Err(error) => {
                travel.forget_attr();
                travel.cell().hand_to(None);
                return Err(error);
            }
        };
        let now = host.now();
        let mem = host.regions().read(now);
        let mut core = inner.lock();
        if travel.is_here() {
            return Ok(true);
        }
        if let Some(attr) = attr {
            core.tx.reset();
            become_like(&mut core.qp, inner.hca(), &attr, now)?;
            if let Some((uplink, path)) = route {
                core.tx.set_path(uplink, path);
                core.tx.set_deaf(true);
            }
        }
        travel.arrive(&mut core.qp);
        if has_failed {
            core.qp.set_fatal(now, 0);
        }
        // All processes have got these events.
        while core.qp.poll_event().is_some() {}
        // Flushing writes the checkpoint.
        host.drain(inner, &mut core, &mem, now);
        Ok(true)
    }
}

fn tell_of(host: &dyn Host, qpn: Qpn, event: QpEvent) {
    let Some(inner) = qp(host, qpn) else { return };
    let shared = inner.domain().and_then(|domain| domain.shared());
    if let (Some(shared), Some(broker)) = (shared, host.broker())
        && let Some(code) = code_of(event)
        && let Err(error) = broker.client().raise_of_target(shared.key, qpn, code)
    {
        tracing::info!(%error, ?qpn, ?event, "failed to tell other processes of an XRC target's event");
    }
}

fn send_on(host: &dyn Host, mut packet: Kept, slot: Slot) {
    if !packet.seal() {
        return;
    }
    let stray = Stray {
        source: packet.source,
        destination: packet.destination,
        bytes: &packet.bytes,
        hops: packet.hops,
        is_sealed: true,
    };
    hand_over(host, &stray, slot);
}

/// Hands over a target that this process owns, to `to` or to the next process that wants it.
/// Returns false if it still has something to send.
fn release(inner: &QpInner, core: &mut QpCore, to: Option<Slot>) -> bool {
    let Some(travel) = inner.travel() else {
        return false;
    };
    if core.tx.is_blocked() || !travel.hand_to(&core.qp, to) {
        return false;
    }
    core.tx.announce_quiet_ack();
    core.tx.set_deaf(true);
    true
}

fn route_of_target(
    host: &dyn Host,
    inner: &QpInner,
    attr: &QpAttr,
) -> Result<Option<(Arc<Uplink>, Path)>, VerbsError> {
    let is_connected = matches!(
        QpState::from_code(attr.qp_state),
        Some(QpState::Rtr | QpState::Rts | QpState::Sqd)
    );
    let hca = inner.hca();
    let Some(sgid) = sgid_of(hca, attr).filter(|_| is_connected) else {
        return Ok(None);
    };
    let dest = Qpn::new(attr.dest_qp_num);
    host.open_way(hca, sgid, &attr.ah_attr, dest).map(Some)
}
