//! The short way for the packets that long messages are made of.

use rocade_wire::Middle;

use super::{PacketMeta, Qp, QpState};
use crate::memory::Memory;

impl Qp {
    /// Handles a packet as [`Qp::handle_packet`] would, if it is the next one of the message that is
    /// being received. False where it is not, or where there is anything to be said against it: then
    /// `handle_packet` has to see it.
    #[inline]
    pub fn handle_middle(
        &mut self,
        meta: &PacketMeta,
        packet: &Middle<'_>,
        mem: &impl Memory,
    ) -> bool {
        let (bth, payload) = (packet.bth(), packet.payload());
        //= BTH-14 BTH-15 RC-RSP-01 RC-LIM-05 BTH-06
        //= RC-RSP-07
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
            && bth.opcode.service() == self.conn.service.wire()
            && payload.len() == self.conn.pmtu_bytes() as usize
            && bth.pkey.matches(self.conn.pkey)
            && meta.source == self.remote
            && meta.destination == self.local
            && self.responder.take_middle(mem, bth, payload, &mut self.out)
    }
}
