//! Raw packets: from the queues of a QP to the network interface, and back.
//!
//! Raw packets bypass all links, captures and fault rules.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rocade_transport::{Frame, QpState, TransmitTrigger, WcStatus};
use rocade_wire::Qpn;

use super::Nic;
use super::cx::Cx;
use crate::error::VerbsError;
use crate::hca::Hca;
use crate::raw::{FlowAttr, FlowId, RawPort, RawState, Sent};
use crate::state::{Caller, QpCore, QpInner, ServiceReason};

impl Nic {
    /// Returns the raw port of a device, and opens it on first use.
    ///
    /// # Errors
    /// Those of [`RawPort::open`].
    pub(crate) fn raw_port(&self, hca: &Arc<Hca>) -> Result<Arc<RawPort>, VerbsError> {
        if self.host.is_simulated() {
            return Err(VerbsError::NotSupported("raw packets in a simulation"));
        }
        self.links.frames.port_of(hca)
    }

    /// Adds a flow that steers frames to a QP.
    pub(crate) fn add_flow(
        &self,
        inner: &QpInner,
        port: &RawPort,
        attr: FlowAttr,
    ) -> Result<FlowId, VerbsError> {
        let id = self.links.frames.add_flow(port, inner.qp_num(), attr)?;
        // The background thread may have one more descriptor to wait for.
        self.scheduler.wake_background();
        Ok(id)
    }

    /// Removes the remaining flows of a QP.
    pub(super) fn end_flows(&self, inner: &QpInner) {
        if let Some(raw) = inner.raw() {
            for flow in raw.port.flows_of(inner.qp_num()) {
                self.remove_flow(&raw.port, flow);
            }
        }
    }

    /// Removes a flow. Returns false if it was already removed.
    pub(crate) fn remove_flow(&self, port: &RawPort, id: FlowId) -> bool {
        let was_there = self.links.frames.remove_flow(port, id);
        // Both may wait for a socket that is not in use any more.
        self.scheduler.close_loop();
        self.scheduler.wake_background();
        was_there
    }

    /// Sends the frames of a raw packet QP.
    pub(super) fn send_frames(
        &self,
        inner: &QpInner,
        core: &mut QpCore,
        raw: &RawState,
        Cx { caller, mem, .. }: Cx<'_>,
    ) {
        let mut outgoing = raw.outgoing.lock();
        if !matches!(core.qp.state(), QpState::Rts | QpState::Sqd) {
            // Unsent frames were flushed or dropped.
            outgoing.clear();
            return;
        }
        let sent_bytes = Cell::new(0);
        let count = |len: usize, left: bool| {
            if !left {
                self.observers
                    .counters
                    .tx_errors
                    .fetch_add(1, Ordering::Relaxed);
                return;
            }
            self.note_sent(inner, 1, len, false, caller);
            sent_bytes.set(sent_bytes.get() + len);
        };
        loop {
            if outgoing.next().is_none() {
                let max_frame_len = raw.port.max_frame_len();
                let request = &mut outgoing.request;
                let Some(order) = core
                    .qp
                    .next_frame(self.host.now(), mem, max_frame_len, request)
                else {
                    return;
                };
                outgoing.prepare(order);
            }
            let now = || self.host.now();
            let sent = self.links.frames.send(&raw.port, &mut outgoing, now, count);
            core.qp.note_sent(sent_bytes.take());
            let count = outgoing.count();
            match sent {
                Sent::NoMemory => {
                    return self.scheduler.enqueue(
                        inner.qp_num(),
                        core,
                        ServiceReason::TxBlocked,
                        self.host.now(),
                    );
                }
                Sent::All => core.qp.frames_sent(self.host.now(), count),
                Sent::Refused => core.qp.frames_failed(self.host.now(), WcStatus::LocLenErr),
            }
            outgoing.clear();
        }
    }

    /// Receives pending frames, up to a limit. Returns the number that QPs have got.
    #[inline]
    pub(super) fn receive_frames(&self, caller: Caller) -> u64 {
        if self.links.frames.is_receiving() {
            self.receive_some_frames(caller)
        } else {
            0
        }
    }

    #[inline(never)]
    fn receive_some_frames(&self, caller: Caller) -> u64 {
        let mut packets = 0;
        self.links.frames.receive(|qpn, frame| {
            self.take_frame(qpn, frame, caller);
            packets += 1;
        });
        packets
    }

    fn take_frame(&self, qpn: Qpn, frame: &Frame<'_>, caller: Caller) {
        let found = self.tables.qp(qpn);
        let raw = found.as_ref().and_then(|inner| inner.raw());
        let other = raw.and_then(|raw| raw.queue_of(frame.bytes));
        let qpn = other.unwrap_or(qpn);
        self.with_qp(qpn, |inner, core, mem| {
            let now = self.host.now();
            core.qp.handle_frame(now, mem, frame);
            core.qp.note_received(1, frame.bytes.len());
            inner.hca().traffic.received(1, frame.bytes.len(), false);
            self.note_change();
            let cx = Cx { now, caller, mem };
            self.flush_outputs(inner, core, TransmitTrigger::Received, cx);
        });
    }
}
