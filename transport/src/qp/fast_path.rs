//! The fast path for received packets.

use rocade_wire::{FastPathPacket, Operation};

use super::Qp;
use super::side::{RecvSide, SendSide};
use crate::attr::QpState;
use crate::memory::Memory;
use crate::peer::PacketMeta;
use crate::placement::Placement;
use crate::time::Time;

impl Qp {
    /// Calls `place` for the first packets of a run, as far as [`Qp::handle_fast`] will accept them
    /// and their places are known before. Changes nothing.
    pub fn placements<'p>(
        &mut self,
        now: Time,
        meta: &PacketMeta,
        packets: impl Iterator<Item = FastPathPacket<'p>>,
        place: impl FnMut(Placement<'p>),
    ) {
        let qpn = self.config.accessor().qpn;
        if meta.is_marked() || !self.state.receives() {
            return;
        }
        let (_, RecvSide::Reliable(responder), cx) = self.sides(now, &()) else {
            return;
        };
        let packets = packets.take_while(|packet| {
            let bth = packet.bth();
            bth.dest_qp == qpn && cx.peer.is_fast_path(meta, &bth)
        });
        responder.place_run((cx.who, cx.peer.pmtu_bytes() as usize), packets, place);
    }

    /// Handles an expected packet as [`Qp::handle_packet`] would, and returns true.
    ///
    /// Returns false for any packet that is unexpected or invalid. The caller then passes it to
    /// `handle_packet`.
    #[inline]
    pub fn handle_fast(
        &mut self,
        now: Time,
        meta: &PacketMeta,
        packet: &FastPathPacket<'_>,
        mem: &impl Memory,
    ) -> bool {
        let bth = &packet.bth();
        //= BTH-14
        if !self.peer.is_fast_path(meta, bth) || meta.is_marked() {
            return false;
        }
        if !bth.migreq {
            self.note_clear_migreq();
        }
        if packet.operation() == Operation::Acknowledge {
            if !matches!(self.state, QpState::Rts | QpState::Sqd) {
                return false;
            }
            let (SendSide::Reliable(requester), _, mut cx) = self.sides(now, &()) else {
                return false;
            };
            let Some(result) = requester.take_ack(&mut cx, bth.psn, packet.credits()) else {
                return false;
            };
            self.out.counters.traffic().fast_path_packets += 1;
            self.conclude(now, result);
            self.note_drained();
            return true;
        }
        //= RC-RSP-01
        if !self.state.receives() {
            return false;
        }
        let (_, RecvSide::Reliable(responder), mut cx) = self.sides(now, mem) else {
            return false;
        };
        let taken = responder.take_fast(&mut cx, packet);
        if taken {
            self.out.counters.traffic().fast_path_packets += 1;
            self.note_comm_est();
        }
        self.check_invariants();
        taken
    }
}
