//! The short way for the packets that come by the million.

use rocade_wire::{Operation, ShortPacket};

use super::Qp;
use crate::attr::QpState;
use crate::memory::Memory;
use crate::peer::PacketMeta;
use crate::time::Time;

impl Qp {
    /// Handles a packet as [`Qp::handle_packet`] would, if it is just what is expected. False where it is
    /// not, or where there is anything to be said against it: then `handle_packet` has to see it.
    #[inline]
    pub fn handle_short(
        &mut self,
        now: Time,
        meta: &PacketMeta,
        packet: &ShortPacket<'_>,
        mem: &impl Memory,
    ) -> bool {
        let bth = packet.bth();
        //= BTH-14
        if self.peer.reject_reason(meta, bth).is_some() {
            return false;
        }
        if packet.operation() == Operation::Acknowledge {
            if !matches!(self.state, QpState::Rts | QpState::Sqd) {
                return false;
            }
            let Some(result) = self
                .requester
                .take_ack(now, &self.peer, bth.psn, &mut self.out)
            else {
                return false;
            };
            self.out.counters.short_packets += 1;
            self.conclude(now, result);
            self.note_drained();
            return true;
        }
        //= RC-RSP-01
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return false;
        }
        let (peer, out) = (&self.peer, &mut self.out);
        let taken =
            self.responder
                .take_short(now, peer, mem, packet.operation(), bth, packet.body(), out);
        if taken {
            self.out.counters.short_packets += 1;
            self.note_comm_est();
        }
        taken
    }
}
