//! Raw packets: from the queues of a QP to the network interface, and back.
//!
//! Nothing else of the engine sees them: no link, no capture, no faults. A port has a speed, as for everything that
//! nobody acknowledges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use rocade_transport::{Cause, Frame, QpState, WcStatus};
use rocade_wire::Qpn;

use super::EngineInner;
use super::handover::Driver;
use crate::cells::{QpCore, QpInner, Why};
use crate::error::VerbsError;
use crate::hca::Hca;
use crate::link::PortSpeed;
use crate::memory::MemGuard;
use crate::raw::{self, FlowAttr, FlowId, PacketSocket, RawPart, RawPort};

/// Frames that one look receives at most.
const FRAMES: usize = 16;

/// The raw ports of a process.
#[derive(Debug, Default)]
pub(super) struct RawPorts {
    ports: RwLock<Vec<Arc<RawPort>>>,
    speed: PortSpeed,
    /// Pollers look here first: there are flows.
    receiving: AtomicBool,
}

/// What has become of a request.
enum Sent {
    All,
    NoRoom,
    Refused,
}

impl RawPorts {
    /// Are there any flows?
    #[inline]
    pub(super) fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Acquire)
    }

    /// What frames come through.
    pub(super) fn receivers(&self) -> Vec<Arc<PacketSocket>> {
        if !self.is_receiving() {
            return Vec::new();
        }
        self.ports
            .read()
            .iter()
            .filter_map(|port| port.receiver())
            .collect()
    }

    /// Flows came or went.
    fn look(&self) {
        let ports = self.ports.read();
        let any = ports.iter().any(|port| port.receiver().is_some());
        self.receiving.store(any, Ordering::Release);
    }
}

impl EngineInner {
    /// The raw port of a device; opened where this is its first use.
    ///
    /// # Errors
    /// Those of [`RawPort::open`].
    pub(crate) fn raw_port(&self, hca: &Arc<Hca>) -> Result<Arc<RawPort>, VerbsError> {
        if self.is_simulated() {
            return Err(VerbsError::NotSupported("raw packets in a simulation"));
        }
        let mut ports = self.frames.ports.write();
        if let Some(port) = ports.iter().find(|port| Arc::ptr_eq(&port.hca, hca)) {
            return Ok(Arc::clone(port));
        }
        let port = Arc::new(RawPort::open(hca)?);
        ports.push(Arc::clone(&port));
        Ok(port)
    }

    /// Leads frames to a QP.
    pub(crate) fn add_flow(
        &self,
        inner: &QpInner,
        port: &RawPort,
        attr: FlowAttr,
    ) -> Result<FlowId, VerbsError> {
        let id = port.add_flow(inner.qp_num(), attr)?;
        self.frames.look();
        // The background thread may have one more descriptor to wait for.
        self.call_background();
        Ok(id)
    }

    /// Ends the flows that lead to a QP and that nobody has ended before.
    pub(crate) fn end_flows(&self, inner: &QpInner) {
        if let Some(raw) = inner.raw() {
            for flow in raw.port.flows_of(inner.qp_num()) {
                self.remove_flow(&raw.port, flow);
            }
        }
    }

    /// Ends a flow; false where it has ended already.
    pub(crate) fn remove_flow(&self, port: &RawPort, id: FlowId) -> bool {
        let was_there = port.remove_flow(id);
        self.frames.look();
        self.call_background();
        was_there
    }

    /// Sends the frames of a raw packet QP.
    pub(super) fn send_frames(
        &self,
        inner: &QpInner,
        core: &mut QpCore,
        raw: &RawPart,
        mem: &MemGuard<'_>,
        driver: Driver,
    ) {
        let mut outgoing = raw.outgoing.lock();
        if !matches!(core.qp.state(), QpState::Rts | QpState::Sqd) {
            // What had not left was flushed, or forgotten.
            outgoing.clear();
            return;
        }
        loop {
            if outgoing.next().is_none() {
                let longest = raw.port.longest();
                let request = &mut outgoing.request;
                let Some(order) = core.qp.next_frame(self.now(), mem, longest, request) else {
                    return;
                };
                outgoing.prepare(order);
            }
            let sent = self.put_frames(&raw.port, &mut outgoing, driver);
            let count = outgoing.count();
            match sent {
                Sent::NoRoom => return self.list(inner.qp_num(), core, Why::NoRoom, self.now()),
                Sent::All => core.qp.frames_left(self.now(), count),
                Sent::Refused => core.qp.frames_failed(self.now(), WcStatus::LocLenErr),
            }
            outgoing.clear();
        }
    }

    fn put_frames(&self, port: &RawPort, outgoing: &mut raw::Outgoing, driver: Driver) -> Sent {
        while let Some(frame) = outgoing.next() {
            if !self.frames.speed.admits(self.now(), frame.len()) {
                return Sent::NoRoom;
            }
            match port.send(frame) {
                Ok(()) => {
                    port.hca.traffic.sent(1, frame.len(), false);
                    self.count_traffic();
                    if driver == Driver::Application {
                        self.handover.sent();
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Sent::NoRoom,
                    Some(libc::EMSGSIZE | libc::EINVAL) => return Sent::Refused,
                    _ => {
                        // Lost on the way: the interface is down, its queue is full.
                        tracing::debug!(%error, "a frame was lost");
                        self.counters.tx_errors.fetch_add(1, Ordering::Relaxed);
                    }
                },
            }
            outgoing.left();
        }
        Sent::All
    }

    /// Receives frames for as long as there are some, but not for ever. Returns how many QPs have got.
    pub(super) fn receive_frames(&self, driver: Driver) -> u64 {
        if !self.frames.is_receiving() {
            return 0;
        }
        let mut packets = 0;
        let ports = self.frames.ports.read().clone();
        for port in &ports {
            // Whoever holds the lock is receiving already.
            let (Some(socket), Some(mut rx)) = (port.receiver(), port.rx.try_lock()) else {
                continue;
            };
            for _ in 0..FRAMES {
                let more = port.receive(&socket, &mut rx, |bytes, layout, targets| {
                    let checksums_ok =
                        !targets.is_empty() && raw::has_right_checksums(bytes, layout);
                    for (qpn, flow_tag) in targets {
                        let frame = Frame {
                            bytes,
                            checksums_ok,
                            flow_tag: *flow_tag,
                        };
                        self.take_frame(*qpn, &frame, driver);
                        packets += 1;
                    }
                });
                if !more {
                    break;
                }
            }
        }
        packets
    }

    fn take_frame(&self, qpn: Qpn, frame: &Frame<'_>, driver: Driver) {
        let found = self.qp(qpn);
        let raw = found.as_ref().and_then(|inner| inner.raw());
        let other = raw.and_then(|raw| raw.queue_of(frame.bytes));
        let qpn = other.unwrap_or(qpn);
        self.with_qp(qpn, |inner, core, mem| {
            let now = self.now();
            core.qp.handle_frame(now, mem, frame);
            inner.hca().traffic.received(1, frame.bytes.len(), false);
            self.count_traffic();
            self.drain(inner, core, mem, Cause::Received, now, driver);
        });
    }
}
