//! Flushes a QP's outputs to the link, the CQs and the timers.

use std::io;
use std::iter;
use std::sync::atomic::Ordering;

use rocade_transport::{
    AckPlacement, AddressVector, Qp, QpType, RouteTag, TransmitTrigger, TxBuffer,
};
use rocade_wire::Gid;

use super::cx::Cx;
use super::transmission::Transmission;
use super::{Nic, failures};
use crate::config::LinkMode;
use crate::faults::HookPoint;
use crate::link::Link as _;
use crate::link::peer_link::{Fragment, Sending};
use crate::state::{
    Caller, LocalEndpoint, QpCore, QpInner, ServiceReason, TxBacklog, TxRoute, TxState,
    tx_route_for,
};
use crate::trace;

/// Complete segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) segment_len: usize,
    /// See [`Sending`].
    pub(crate) unpublished: bool,
    /// A comment for the capture, or an empty text.
    pub(crate) remark: &'a str,
}

impl<'a> Batch<'a> {
    pub(super) fn of(buffer: &'a TxBuffer, unpublished: bool, remark: &'a str) -> Self {
        Self {
            bytes: buffer.bytes(),
            segment_len: buffer.segment_len(),
            unpublished,
            remark,
        }
    }

    /// Makes a batch of one segment.
    pub(super) const fn single(bytes: &'a [u8], unpublished: bool) -> Self {
        Self {
            bytes,
            segment_len: bytes.len(),
            unpublished,
            remark: "",
        }
    }
}

impl Nic {
    /// Flushes the outputs of a QP after a change at `now`: sends packets, reports completions,
    /// raises events and arms the timer. The transport demands that all outputs are flushed after
    /// each change.
    ///
    /// The order matters. An ACK is sent before its completion can be seen, because the application
    /// may end the process when it sees the completion. An ACK that is delayed is in the ACK
    /// journal by then: see [`super::ack_durability`]. Room for the completion is reserved before
    /// that, because a message whose completion is lost must not be acknowledged.
    pub(crate) fn flush_outputs(
        &self,
        inner: &QpInner,
        core: &mut QpCore,
        trigger: TransmitTrigger,
        cx: Cx<'_>,
    ) {
        if core.detached {
            return;
        }
        let wants = core.qp.has_work_to_send(AckPlacement::First);
        let reserved = if wants {
            self.reserve(inner, core)
        } else {
            // Nothing is acknowledged, so completions need no space yet.
            core.held_space()
        };
        // Before the application or the peer can see that a message is complete. If this process is
        // ended then, another process has to be able to continue.
        inner.checkpoint(&core.qp);
        self.transmit(inner, core, trigger, cx, wants);
        inner.checkpoint(&core.qp);
        #[cfg(debug_assertions)]
        assert!(
            core.qp.completions_waiting() == 0 || core.tx.is_ack_safe(&core.qp),
            "a completion is seen before its ACK is safe"
        );
        self.report(inner, core, reserved);
        if let Some(failure) = core.qp.take_failure() {
            failures::report(inner, core, cx.mem, &failure);
        }
        if let Some(at) = core.next_timeout()
            && core.tx.timer.is_none_or(|pending| at < pending)
        {
            core.tx.timer = Some(at);
            self.scheduler.arm_timer(at, inner.qp_num());
        }
    }

    /// Reserves space in the CQs for the pending completions. Returns for how many.
    fn reserve(&self, inner: &QpInner, core: &mut QpCore) -> usize {
        let total = core.qp.completions_waiting();
        if total == 0 {
            return 0;
        }
        let before = core.held_space();
        let pending = core.qp.pending_completions();
        let reserved = before + inner.reserve(pending.get(before..).unwrap_or(&[]));
        if reserved < total {
            core.qp.set_fatal(self.host.now(), reserved);
        }
        reserved
    }

    /// Reports completions, the first `reserved` of which have space, and events.
    fn report(&self, inner: &QpInner, core: &mut QpCore, mut reserved: usize) {
        let is_watched = core.held.is_some()
            || core.tx.has_unsafe_ack
            || self.faults.triggers.await_any(HookPoint::Completion);
        let is_held = core.qp.completions_waiting() > 0
            && is_watched
            && self.hold_completions(inner, core, reserved);
        while !is_held && core.qp.completions_waiting() > 0 {
            if inner.complete(core, &mut reserved) > 0 {
                core.qp.set_fatal(self.host.now(), 0);
                core.overrun = inner.has_cqs();
            }
        }
        if core.overrun {
            return;
        }
        while let Some(event) = core.qp.poll_event() {
            inner.raise(event);
            if inner.ownership().is_some() {
                self.tables
                    .shared_targets
                    .raise(self, inner.qp_num(), event);
            }
        }
    }

    /// Sends the packets of the QP, except an ACK that is delayed. `wants`: there may be something
    /// to send.
    pub(super) fn transmit(
        &self,
        inner: &QpInner,
        core: &mut QpCore,
        trigger: TransmitTrigger,
        cx: Cx<'_>,
        wants: bool,
    ) {
        if core.detached {
            return;
        }
        core.qp.coalescer_mut().flush_batch();
        let has_migrated = core.qp.take_migrated();
        if has_migrated {
            if core.tx.has_blocked_ack() {
                core.qp.repeat_ack();
            }
            core.tx.migrate();
        }
        let wants = wants || has_migrated;
        // A DC initiator may have local work to do before it has a target.
        let has_route = core.tx.has_route() || core.qp.config().qp_type == QpType::DcInitiator;
        if !has_route {
            if let Some(raw) = inner.raw() {
                self.send_frames(inner, core, raw, cx);
            }
            return;
        }
        // A part of the responses may leave, and the ACK become the backlog.
        let newest_ack = core.qp.newest_ack();
        if core.tx.backlog.is_some() && !self.send_backlog(&mut core.tx, cx.caller) {
            self.presence.secure_unsent_ack(core, newest_ack);
            return;
        }
        let acks = self.ack_placement(core, trigger);
        let acks_before = core.qp.acks_sent();
        if wants && (acks != AckPlacement::Defer || core.qp.has_work_to_send(acks)) {
            Transmission::new(self, inner, cx, acks, false, trigger).run(core);
        }
        let acked = core.qp.acks_sent() != acks_before;
        // After all other responses, because the peer may know of them before the ACK.
        if core.tx.backlog.is_none() && !core.tx.uses_socket() {
            self.put_lone_ack(inner, core, cx, trigger);
        }
        if core.tx.backlog.is_some() {
            self.presence.secure_unsent_ack(core, newest_ack);
        }
        let QpCore { qp, tx, .. } = core;
        if tx.backlog.is_none() {
            tx.has_unsafe_ack = false;
            tx.record_pending_ack(qp);
        }
        let waiting = qp.lone_ack().or(tx.unpublished_ack);
        qp.coalescer_mut()
            .transmitted(trigger, cx.now, acked, waiting);
        if waiting.is_some() {
            self.scheduler
                .enqueue(inner.qp_num(), core, ServiceReason::DelayedAck, cx.now);
        }
    }

    /// Puts the ACK that is delayed, if there is one, into the ring of the peer, as an unpublished
    /// record.
    fn put_lone_ack(
        &self,
        inner: &QpInner,
        core: &mut QpCore,
        cx: Cx<'_>,
        trigger: TransmitTrigger,
    ) {
        let Some(psn) = core.qp.lone_ack() else {
            return;
        };
        if !self.append_unpublished_ack(inner, core, cx) {
            Transmission::new(self, inner, cx, AckPlacement::First, true, trigger).run(core);
        }
        if core.tx.backlog.is_none() {
            core.tx.unpublished_ack = Some(psn);
        }
    }

    /// Writes the lone ACK that there is to send into the ring of the peer, as an unpublished
    /// record. Returns false without any effect if packet hooks are active, or if the ACK has to be
    /// sent otherwise.
    fn append_unpublished_ack(&self, inner: &QpInner, core: &mut QpCore, cx: Cx<'_>) -> bool {
        let QpCore { qp, tx, .. } = core;
        let Some((_, tx_route)) = &mut tx.route else {
            return false;
        };
        if tx_route.live_peer_link().is_none() || self.links.hooks.is_active() {
            return false;
        }
        let Some(ack) = qp.take_lone_ack() else {
            return false;
        };
        if trace::is_on() {
            let packets = iter::once(&ack[..]);
            trace::sent(trace::now_ns(), inner.qp_num(), tx_route.to, packets);
        }
        let (fragment, len) = (iter::once(Fragment::Bytes(&ack)), ack.len());
        let sending = sending(tx_route, len, len, true, cx.caller);
        let sent = tx_route.send_shared(fragment, sending);
        qp.note_sent(len);
        self.note_sent(inner, 1, len, true, cx.caller);
        // No registered memory is read.
        if sent == Ok(false) {
            tx.backlog = Some(Box::new(TxBacklog {
                bytes: ack.into(),
                segment_len: len,
                route: RouteTag::OWN,
                is_paced: false,
                sealed: false,
            }));
            self.scheduler.enqueue(
                inner.qp_num(),
                core,
                ServiceReason::TxBlocked,
                self.host.now(),
            );
        }
        true
    }

    /// Counts a batch of `segments` segments and `len` bytes.
    #[inline]
    pub(super) fn note_sent(
        &self,
        inner: &QpInner,
        segments: usize,
        len: usize,
        shared: bool,
        caller: Caller,
    ) {
        inner.hca().traffic.sent(segments as u64, len, shared);
        self.note_change();
        if caller == Caller::Application {
            self.scheduler.arbiter.note_send();
        }
    }

    /// Resolves the route of a DC target's response if it is not known yet.
    pub(super) fn find_response_route(&self, qp: &Qp, tx: &mut TxState, tag: RouteTag) {
        let Some((endpoint, av)) = tx.unknown_response(tag) else {
            return;
        };
        let Some(answer) = qp
            .response_route(tag)
            .filter(|to| self.host.peers().allow(to.remote))
        else {
            return;
        };
        //= DCT-03
        let av = AddressVector {
            dgid: Gid::from_ip(answer.remote),
            ..*av
        };
        if let Ok(route) = self.route_to(endpoint, answer.dest, &av) {
            tx.add_response_route(tag, &route);
        }
    }

    /// Sends the blocked batch. Returns false if there is still no space.
    #[cold]
    fn send_backlog(&self, tx: &mut TxState, caller: Caller) -> bool {
        let waits = |backlog: &TxBacklog| !tx.is_ready(backlog.route);
        if tx.backlog.as_deref().is_some_and(waits) {
            return false;
        }
        if let Some(backlog) = &tx.backlog
            && let Some((endpoint, tx_route)) =
                tx_route_for(&mut tx.route, &mut tx.peer_routes, backlog.route)
        {
            let batch = Batch {
                bytes: &backlog.bytes,
                segment_len: backlog.segment_len,
                unpublished: false,
                remark: "",
            };
            // A batch for a shared memory link that has ended is lost.
            let lost = !backlog.sealed && tx_route.live_peer_link().is_none();
            let mut may_leave = || {
                let packets = (batch.bytes, batch.segment_len);
                let leave = endpoint.may_leave(tx_route, self.host.now(), packets);
                leave.note(&mut tx.is_measured)
            };
            let is_paced = backlog.is_paced && tx_route.live_peer_link().is_none();
            let held = is_paced && !may_leave();
            if held || !lost && !self.put(endpoint, tx_route, batch, caller) {
                return false;
            }
            tx.backlog = None;
        }
        true
    }

    /// Sends complete bytes, which have to be sealed for a socket. Returns false if there is no
    /// space.
    pub(super) fn put(
        &self,
        endpoint: &LocalEndpoint,
        tx_route: &mut TxRoute,
        batch: Batch<'_>,
        caller: Caller,
    ) -> bool {
        if tx_route.live_peer_link().is_none() {
            return self.send(endpoint, tx_route, batch.bytes, batch.segment_len);
        }
        let fragments = iter::once(Fragment::Bytes(batch.bytes));
        let (len, segment_len) = (batch.bytes.len(), batch.segment_len);
        // No registered memory is read.
        let sending = sending(tx_route, len, segment_len, batch.unpublished, caller);
        tx_route.send_shared(fragments, sending).unwrap_or(true)
    }

    /// Returns false if the socket has no space. Other failures count as packet loss, for the
    /// transport's retries.
    pub(super) fn send(
        &self,
        endpoint: &LocalEndpoint,
        tx_route: &TxRoute,
        batch: &[u8],
        segment_len: usize,
    ) -> bool {
        // Groups always use UDP.
        if self.host.link_mode == LinkMode::Shm && !tx_route.to.is_multicast() {
            self.observers
                .counters
                .tx_errors
                .fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let sent = endpoint.link.send(
            tx_route.tx,
            tx_route.to,
            tx_route.traffic_class,
            batch,
            segment_len,
        );
        match sent {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => {
                let errors = self
                    .observers
                    .counters
                    .tx_errors
                    .fetch_add(1, Ordering::Relaxed);
                if errors == 0 {
                    // Only once: the retries of every QP would repeat it.
                    tracing::error!(
                        "failed to send to {}: {error}. Packets to it count as lost",
                        tx_route.to
                    );
                }
                true
            }
        }
    }

    /// Tries again to send a blocked batch, then continues.
    pub(super) fn resend_backlog(&self, inner: &QpInner, core: &mut QpCore, cx: Cx<'_>) {
        if inner.raw().is_some() {
            self.flush_outputs(inner, core, TransmitTrigger::Other, cx);
        } else if core.tx.backlog.is_some() {
            if self.send_backlog(&mut core.tx, cx.caller) {
                self.flush_outputs(inner, core, TransmitTrigger::Other, cx);
            } else {
                self.scheduler
                    .enqueue(inner.qp_num(), core, ServiceReason::TxBlocked, cx.now);
            }
        }
    }
}

/// Returns the parameters of a batch through the shared memory link of a path.
#[inline]
pub(super) fn sending(
    tx_route: &TxRoute,
    len: usize,
    segment_len: usize,
    unpublished: bool,
    caller: Caller,
) -> Sending {
    Sending {
        len,
        segment_len,
        traffic_class: tx_route.traffic_class,
        hop_limit: tx_route.hop_limit,
        after_udp: false,
        wait: caller == Caller::Background,
        unpublished,
    }
}
