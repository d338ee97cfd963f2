//! The raw ports of a process: sending and receiving frames for all its queue pairs.
//!
//! Sending has a rate limit, like all traffic without acknowledgements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::{RwLock, rank};
use rocade_transport::{Frame, Time};
use rocade_wire::Qpn;

use super::{FlowAttr, FlowId, Outgoing, PacketSocket, RawPort, has_right_checksums};
use crate::error::VerbsError;
use crate::hca::Hca;
use crate::link::Pacer;

/// Most frames that one poll receives.
const FRAMES: usize = 16;

/// The raw ports of a process.
#[derive(Debug, Default)]
pub(crate) struct RawPorts {
    ports: RwLock<Vec<Arc<RawPort>>, rank::RawPorts>,
    pacer: Pacer,
    /// True while there are flows, which pollers check first.
    receiving: AtomicBool,
}

/// Result of sending a request or one of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The frames were sent or lost.
    All,
    NoMemory,
    /// The interface does not accept frames of this length.
    Refused,
}

impl RawPorts {
    /// Returns the port of a device, and opens it on first use.
    ///
    /// # Errors
    /// Errors of [`RawPort::open`].
    pub(crate) fn port_of(&self, hca: &Arc<Hca>) -> Result<Arc<RawPort>, VerbsError> {
        let mut ports = self.ports.write();
        if let Some(port) = ports.iter().find(|port| Arc::ptr_eq(&port.hca, hca)) {
            return Ok(Arc::clone(port));
        }
        let port = Arc::new(RawPort::open(hca)?);
        ports.push(Arc::clone(&port));
        Ok(port)
    }

    /// Adds a flow to a QP.
    ///
    /// # Errors
    /// Errors of [`RawPort::add_flow`].
    pub(crate) fn add_flow(
        &self,
        port: &RawPort,
        qpn: Qpn,
        attr: FlowAttr,
    ) -> Result<FlowId, VerbsError> {
        let id = port.add_flow(qpn, attr)?;
        self.update_receiving();
        Ok(id)
    }

    /// Removes a flow. Returns false if it was removed before.
    pub(crate) fn remove_flow(&self, port: &RawPort, id: FlowId) -> bool {
        let was_there = port.remove_flow(id);
        self.update_receiving();
        was_there
    }

    /// Returns true if there are flows.
    #[inline]
    pub(crate) fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Acquire)
    }

    /// Returns the receive sockets.
    pub(crate) fn receivers(&self) -> Vec<Arc<PacketSocket>> {
        if !self.is_receiving() {
            return Vec::new();
        }
        self.ports
            .read()
            .iter()
            .filter_map(|port| port.receiver())
            .collect()
    }

    /// Updates `receiving` after a change of the flows.
    fn update_receiving(&self) {
        let ports = self.ports.read();
        let any = ports.iter().any(|port| port.receiver().is_some());
        self.receiving.store(any, Ordering::Release);
    }

    /// Sends the frames of a request until there is no room. Calls `sent` with the length of each,
    /// and whether it was sent.
    pub(crate) fn send(
        &self,
        port: &RawPort,
        outgoing: &mut Outgoing,
        now: impl Fn() -> Time,
        mut sent: impl FnMut(usize, bool),
    ) -> Sent {
        while let Some(frame) = outgoing.next() {
            if !self.pacer.try_acquire(now(), frame.len()) {
                return Sent::NoMemory;
            }
            match port.send(frame) {
                Ok(()) => sent(frame.len(), true),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Sent::NoMemory,
                    Some(libc::EMSGSIZE | libc::EINVAL) => return Sent::Refused,
                    _ => {
                        // The frame is lost, because the interface is down or its queue is full.
                        tracing::debug!(%error, "failed to send a frame, which is lost");
                        sent(frame.len(), false);
                    }
                },
            }
            outgoing.mark_sent();
        }
        Sent::All
    }

    /// Receives a limited number of frames. Calls `each` with each frame and its QP.
    pub(crate) fn receive(&self, mut each: impl FnMut(Qpn, &Frame<'_>)) {
        let ports = self.ports.read().clone();
        for port in &ports {
            // The thread that holds the lock is already receiving.
            let (Some(socket), Some(mut rx)) = (port.receiver(), port.rx.try_lock()) else {
                continue;
            };
            for _ in 0..FRAMES {
                let more = port.receive(&socket, &mut rx, |bytes, layout, targets| {
                    let checksums_ok = !targets.is_empty() && has_right_checksums(bytes, layout);
                    for (qpn, flow_tag) in targets {
                        let frame = Frame {
                            bytes,
                            checksums_ok,
                            flow_tag: *flow_tag,
                        };
                        each(*qpn, &frame);
                    }
                });
                if !more {
                    break;
                }
            }
        }
    }
}
