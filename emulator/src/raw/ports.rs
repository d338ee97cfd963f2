//! The raw ports of a process: what goes out and comes in there, whatever queue pair it is of.
//!
//! A port has a speed, as for everything that nobody acknowledges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use rocade_transport::{Frame, Time};
use rocade_wire::Qpn;

use super::{FlowAttr, FlowId, Outgoing, PacketSocket, RawPort, has_right_checksums};
use crate::error::VerbsError;
use crate::hca::Hca;
use crate::link::PortSpeed;

/// Frames that one look receives at most.
const FRAMES: usize = 16;

/// The raw ports of a process.
#[derive(Debug, Default)]
pub(crate) struct RawPorts {
    ports: RwLock<Vec<Arc<RawPort>>>,
    speed: PortSpeed,
    /// Pollers look here first: there are flows.
    receiving: AtomicBool,
}

/// What has become of a request, or of a frame of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It has left, or is lost on the way.
    All,
    NoRoom,
    /// The interface does not take frames of this length.
    Refused,
}

impl RawPorts {
    /// The port of a device; opened where this is its first use.
    ///
    /// # Errors
    /// Those of [`RawPort::open`].
    pub(crate) fn port_of(&self, hca: &Arc<Hca>) -> Result<Arc<RawPort>, VerbsError> {
        let mut ports = self.ports.write();
        if let Some(port) = ports.iter().find(|port| Arc::ptr_eq(&port.hca, hca)) {
            return Ok(Arc::clone(port));
        }
        let port = Arc::new(RawPort::open(hca)?);
        ports.push(Arc::clone(&port));
        Ok(port)
    }

    /// Leads frames to a QP.
    ///
    /// # Errors
    /// As [`RawPort::add_flow`].
    pub(crate) fn add_flow(
        &self,
        port: &RawPort,
        qpn: Qpn,
        attr: FlowAttr,
    ) -> Result<FlowId, VerbsError> {
        let id = port.add_flow(qpn, attr)?;
        self.look();
        Ok(id)
    }

    /// Ends a flow; false where it has ended already.
    pub(crate) fn remove_flow(&self, port: &RawPort, id: FlowId) -> bool {
        let was_there = port.remove_flow(id);
        self.look();
        was_there
    }

    /// Are there any flows?
    #[inline]
    pub(crate) fn is_receiving(&self) -> bool {
        self.receiving.load(Ordering::Acquire)
    }

    /// What frames come through.
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

    /// Flows came or went.
    fn look(&self) {
        let ports = self.ports.read();
        let any = ports.iter().any(|port| port.receiver().is_some());
        self.receiving.store(any, Ordering::Release);
    }

    /// Sends the frames of a request until there is no room, and tells `sent` the length of each and whether it left.
    pub(crate) fn send(
        &self,
        port: &RawPort,
        outgoing: &mut Outgoing,
        now: impl Fn() -> Time,
        mut sent: impl FnMut(usize, bool),
    ) -> Sent {
        while let Some(frame) = outgoing.next() {
            if !self.speed.admits(now(), frame.len()) {
                return Sent::NoRoom;
            }
            match port.send(frame) {
                Ok(()) => sent(frame.len(), true),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Sent::NoRoom,
                    Some(libc::EMSGSIZE | libc::EINVAL) => return Sent::Refused,
                    _ => {
                        // Lost on the way: the interface is down, its queue is full.
                        tracing::debug!(%error, "a frame was lost");
                        sent(frame.len(), false);
                    }
                },
            }
            outgoing.left();
        }
        Sent::All
    }

    /// Receives frames for as long as there are some, but not for ever: calls `each` with each and the QP that it goes to.
    pub(crate) fn receive(&self, mut each: impl FnMut(Qpn, &Frame<'_>)) {
        let ports = self.ports.read().clone();
        for port in &ports {
            // Whoever holds the lock is receiving already.
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
