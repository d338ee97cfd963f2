//! Methods of DC initiators and DC targets.

use rocade_wire::{Operation, Packet, Service};

use super::Qp;
use super::side::{RecvSide, SendSide};
use crate::attr::QpState;
use crate::counters::DropReason;
use crate::dc::{DciStreams, DctStatus, ResponseRoute};
use crate::error::PostError;
use crate::memory::Memory;
use crate::peer::PacketMeta;
use crate::time::Time;
use crate::transmit::TxBuffer;
use crate::wr::{DcDestination, RouteTag, SendWr};

impl Qp {
    /// Sets the number of the first session and the streams of a DC initiator. Call it before
    /// anything else.
    ///
    /// An earlier initiator with the same QP number must not have used that session number, or a
    /// higher one, recently.
    pub fn set_up_initiator(&mut self, first_session: u32, streams: Option<DciStreams>) {
        if let SendSide::Dynamic(initiator) = &mut self.send {
            initiator.set_up(first_session, streams);
        }
    }

    /// Returns true for a DC initiator with streams.
    #[must_use]
    pub fn has_streams(&self) -> bool {
        matches!(&self.send, SendSide::Dynamic(initiator) if initiator.has_streams())
    }

    /// Sets the access key of a DC target. Call it before anything else.
    pub fn set_up_target(&mut self, key: u64) {
        if let RecvSide::Target(target) = &mut self.recv {
            target.set_key(key);
        }
    }

    /// Queues a request of a DC initiator. `inline` as for [`Qp::post_send`].
    ///
    /// # Errors
    /// [`PostError`] if the QP is no DC initiator, its state or queue accepts no request, or the
    /// request is invalid. The request is not queued.
    pub fn post_dynamic(
        &mut self,
        now: Time,
        wr: &SendWr<'_>,
        to: DcDestination,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        let SendSide::Dynamic(initiator) = &mut self.send else {
            return Err(PostError::NoDestination);
        };
        //= DCS-09
        match self.state {
            QpState::Rts => initiator.post(wr, Some(to), inline),
            QpState::Err => {
                initiator.post(wr, Some(to), inline)?;
                //= RC-STA-02
                let (send, _, mut cx) = self.sides(now, &());
                send.flush(&mut cx);
                Ok(())
            }
            QpState::Reset | QpState::Init | QpState::Rtr | QpState::Sqd | QpState::Sqe => {
                Err(PostError::InvalidState)
            }
        }
    }

    /// Resets a stream in error of a DC initiator, which accepts requests again. Returns false if
    /// it was not in error.
    //= DC-40
    pub fn reset_stream(&mut self, stream: u16) -> bool {
        let SendSide::Dynamic(initiator) = &mut self.send else {
            return false;
        };
        initiator.reset_stream(stream)
    }

    /// Ends the sessions of an initiator that is about to be reset or destroyed, if everything is
    /// acknowledged.
    ///
    /// The DISCONNECT packets come out of [`Qp::poll_transmit`].
    //= DCW-12
    pub fn end_idle_sessions(&mut self) {
        if let SendSide::Dynamic(initiator) = &mut self.send {
            initiator.end_idle_sessions();
        }
    }

    /// Requests an event for the next wrong access key of a DC target.
    pub fn arm(&mut self) {
        if let RecvSide::Target(target) = &mut self.recv {
            target.arm();
        }
    }

    /// Makes a DC target accept no new sessions.
    pub fn drain_sessions(&mut self) {
        if let RecvSide::Target(target) = &mut self.recv {
            target.drain();
        }
    }

    /// Returns the status of a DC target. `None` for any other queue pair.
    #[must_use]
    pub fn target_status(&self) -> Option<DctStatus> {
        let RecvSide::Target(target) = &self.recv else {
            return None;
        };
        Some(target.status())
    }

    /// Returns how often a DC target has read the times of its sessions, to find silent ones.
    #[cfg(test)]
    pub(crate) fn session_visits(&self) -> u32 {
        match &self.recv {
            RecvSide::Target(target) => target.visits(),
            _ => 0,
        }
    }

    /// Returns the destination of the answers that [`Qp::poll_transmit`] of a DC target has put
    /// into a buffer for this route.
    ///
    /// A target generates the tags of its routes itself, so the caller need not keep them. `None`
    /// if the route is unknown.
    #[must_use]
    pub fn response_route(&self, route: RouteTag) -> Option<ResponseRoute> {
        let RecvSide::Target(target) = &self.recv else {
            return None;
        };
        target.response_route(route)
    }

    pub(super) fn handle_dynamic(
        &mut self,
        now: Time,
        meta: &PacketMeta,
        packet: &Packet<'_>,
        mem: &impl Memory,
    ) {
        let headers = packet.headers();
        let operation = headers.bth.opcode.operation();
        let is_response = operation.is_some_and(Operation::is_response);
        let is_datagram = headers.bth.opcode.service() == Service::Ud;
        let sends = self.state == QpState::Rts;
        let (send, recv, mut cx) = self.sides(now, mem);
        let result = match (send, recv) {
            (_, RecvSide::Target(target)) => {
                target.handle(&mut cx, meta, packet);
                Ok(())
            }
            (SendSide::Dynamic(_), _) if !sends => {
                cx.out.counters.drop_packet(DropReason::State);
                Ok(())
            }
            (SendSide::Dynamic(initiator), _) if is_datagram => {
                initiator.handle_datagram(&mut cx, meta, packet);
                Ok(())
            }
            (SendSide::Dynamic(initiator), _) if is_response => {
                initiator.handle_response(&mut cx, meta, headers, packet.payload())
            }
            _ => {
                //= BTH-15
                cx.out.counters.drop_packet(DropReason::WrongService);
                Ok(())
            }
        };
        self.conclude(now, result);
    }

    /// Appends pending DISCONNECT packets: an initiator in ERR sends nothing else.
    pub(super) fn send_disconnects(&mut self, tx: &mut TxBuffer) {
        if let SendSide::Dynamic(initiator) = &mut self.send {
            initiator.send_disconnects(tx);
        }
    }
}
