//! What only the two ends of dynamic connections have.

use rocade_wire::{Operation, Packet, Service};

use super::Qp;
use super::side::{RecvSide, SendSide};
use crate::attr::QpState;
use crate::counters::DropReason;
use crate::dc::{AnswerRoute, DciStreams, DctStatus};
use crate::error::PostError;
use crate::memory::Memory;
use crate::peer::PacketMeta;
use crate::time::Time;
use crate::transmit::TxBuffer;
use crate::wr::{DcDestination, RouteTag, SendWr};

impl Qp {
    /// Before anything else of a DC initiator: the number of its first session, and whether it has streams. An initiator that had
    /// the same QP number before must not have used that number, or a higher one, lately (DCW-07).
    pub fn set_up_initiator(&mut self, first_session: u32, streams: Option<DciStreams>) {
        if let SendSide::Dynamic(initiator) = &mut self.send {
            initiator.set_up(first_session, streams);
        }
    }

    /// Is it a DC initiator that has streams?
    #[must_use]
    pub fn has_streams(&self) -> bool {
        matches!(&self.send, SendSide::Dynamic(initiator) if initiator.has_streams())
    }

    /// Before anything else of a DC target: its access key.
    pub fn set_up_target(&mut self, key: u64) {
        if let RecvSide::Target(target) = &mut self.recv {
            target.set_key(key);
        }
    }

    /// Queues a request of a DC initiator; `inline` as for [`Qp::post_send`].
    ///
    /// # Errors
    /// The request is not queued.
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
            _ => Err(PostError::InvalidState),
        }
    }

    /// A stream of a DC initiator takes requests again after an error; false where it is not in error.
    //= DC-40
    pub fn reset_stream(&mut self, stream: u16) -> bool {
        match &mut self.send {
            SendSide::Dynamic(initiator) => initiator.reset_stream(stream),
            _ => false,
        }
    }

    /// An initiator is about to be reset or destroyed: tells the last target, as far as everything has been
    /// acknowledged. What it says is transmitted like anything else.
    //= DCW-12
    pub fn hang_up(&mut self) {
        if let SendSide::Dynamic(initiator) = &mut self.send {
            initiator.hang_up();
        }
    }

    /// The next wrong key for a DC target raises an event.
    pub fn arm(&mut self) {
        if let RecvSide::Target(target) = &mut self.recv {
            target.arm();
        }
    }

    /// A DC target takes no new sessions from now on.
    pub fn drain_sessions(&mut self) {
        if let RecvSide::Target(target) = &mut self.recv {
            target.drain();
        }
    }

    /// What is to be known of a DC target; `None` of any other queue pair.
    #[must_use]
    pub fn target_status(&self) -> Option<DctStatus> {
        match &self.recv {
            RecvSide::Target(target) => Some(target.status()),
            _ => None,
        }
    }

    /// Where the answers go that [`Qp::poll_transmit`] of a DC target has put into a buffer for this way: its ways
    /// have names of their own, which the caller need not remember. `None` where it is forgotten.
    #[must_use]
    pub fn answer_route(&self, route: RouteTag) -> Option<AnswerRoute> {
        match &self.recv {
            RecvSide::Target(target) => target.answer_route(route),
            _ => None,
        }
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

    /// An initiator in ERR has nothing to send but the ends of its sessions.
    pub(super) fn say_farewells(&mut self, tx: &mut TxBuffer) {
        if let SendSide::Dynamic(initiator) = &mut self.send {
            initiator.say_farewells(tx);
        }
    }
}
