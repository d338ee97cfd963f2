//! The fast path of the responder: a SEND or WRITE of one packet, and the middle of a message.
//!
//! Any unusual packet is left to the slow path.

use rocade_wire::{Bth, FastPathPacket, Operation, Reth};

use super::execute::len_u32;
use super::{InProgress, RecvDetail, Responder, complete_recv};
use crate::completion::{ImmOrInv, WcOpcode};
use crate::cx::Cx;
use crate::memory::{Accessor, Memory};
use crate::placement::{Placement, PlacementKey};
use crate::queue::RecvSource;
use crate::segment::MAX_MESSAGE_LEN;
use crate::wr::AccessFlags;

impl Responder {
    /// Executes a SEND or WRITE Only, or a SEND or WRITE Middle, without pad.
    ///
    /// Returns false if the packet is not expected next, or has to be refused. Then nothing has
    /// changed, except perhaps the content of a receive buffer.
    #[inline]
    pub(crate) fn take_fast<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        packet: &FastPathPacket<'_>,
    ) -> bool {
        let (bth, operation, payload) = (&packet.bth(), packet.operation(), packet.body());
        //= RC-PSN-02
        if bth.psn != self.epsn {
            return false;
        }
        let pmtu = cx.peer.pmtu_bytes() as usize;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the fast path has two more, of middle packets"
        )]
        let taken = match operation {
            //= RC-RSP-07
            Operation::SendOnly => payload.len() <= pmtu && self.take_send(cx, bth, payload),
            Operation::WriteOnly => {
                let reth = packet.reth().filter(|_| payload.len() <= pmtu);
                let taken = reth.is_some_and(|reth| self.take_write(cx.memory(), reth, payload));
                if taken {
                    cx.out.op_counters.add_remote_write(len_u32(payload));
                }
                taken
            }
            _ => payload.len() == pmtu && self.take_middle(cx.memory(), operation, payload),
        };
        if taken {
            self.nak_outstanding = false;
            cx.out.counters.traffic().rx_packets += 1;
            cx.out.counters.traffic().rx_messages += u64::from(operation.is_only());
            self.epsn = bth.psn.next();
            //= RC-ACK-01
            if bth.ack_req {
                self.schedule_ack(bth.psn);
            }
        }
        taken
    }

    /// Calls `place` for the first packets of a run, as far as [`Self::take_fast`] will take them.
    pub(crate) fn place_run<'p>(
        &self,
        (who, pmtu): (Accessor, usize),
        packets: impl Iterator<Item = FastPathPacket<'p>>,
        mut place: impl FnMut(Placement<'p>),
    ) {
        let may_write = self.attr.access.contains(AccessFlags::REMOTE_WRITE);
        let (mut psn, mut messages, mut bytes) = (self.epsn, 0, 0u32);
        for packet in packets {
            let payload = packet.body();
            if packet.bth().psn != psn || payload.is_empty() || payload.len() > pmtu {
                return;
            }
            let placement = |who, key, addr, ends| Placement {
                who,
                key,
                addr,
                payload,
                ends,
            };
            let placed = match (packet.operation(), &self.current, &self.receives) {
                (Operation::SendOnly, InProgress::None, RecvSource::Own(receives)) => {
                    receives.nth(messages).and_then(|wqe| {
                        messages += 1;
                        let (lkey, addr) = wqe.data.in_one(0, payload.len())?;
                        let who = Accessor { pd: wqe.pd, ..who };
                        Some(placement(who, PlacementKey::Local(lkey), addr, true))
                    })
                }
                (Operation::WriteOnly, InProgress::None, _) if may_write => {
                    let reth = packet.reth();
                    let reth = reth.filter(|reth| reth.dma_len == len_u32(payload));
                    reth.map(|reth| placement(who, PlacementKey::Remote(reth.rkey), reth.va, true))
                }
                (
                    Operation::WriteMiddle,
                    &InProgress::Write {
                        rkey,
                        va,
                        len,
                        received,
                    },
                    _,
                ) if may_write && payload.len() == pmtu => {
                    let before = u64::from(received) + u64::from(bytes);
                    bytes = bytes.saturating_add(len_u32(payload));
                    let fits = before + (payload.len() as u64) < u64::from(len);
                    let at = va.wrapping_add(before);
                    fits.then(|| placement(who, PlacementKey::Remote(rkey), at, false))
                }
                (Operation::SendMiddle, InProgress::Send { wqe, received }, _)
                    if payload.len() == pmtu =>
                {
                    let offset = received.checked_add(bytes);
                    bytes = bytes.saturating_add(len_u32(payload));
                    offset.and_then(|offset| {
                        let (lkey, addr) = wqe.data.in_one(offset, payload.len())?;
                        let who = Accessor { pd: wqe.pd, ..who };
                        Some(placement(who, PlacementKey::Local(lkey), addr, false))
                    })
                }
                _ => None,
            };
            let Some(placed) = placed else { return };
            place(placed);
            psn = psn.next();
        }
    }

    fn take_send<H: Memory>(&mut self, cx: &mut Cx<'_, H>, bth: &Bth, payload: &[u8]) -> bool {
        //= RC-RSP-03
        if !matches!(self.current, InProgress::None) || self.withholds_receives {
            return false;
        }
        //= RC-RSP-06
        let RecvSource::Own(receives) = &mut self.receives else {
            return false;
        };
        let Some(wqe) = receives.front() else {
            return false;
        };
        if !wqe.fill(cx.memory(), payload) {
            return false;
        }
        //= RC-RSP-24
        self.msn = self.msn.next();
        let detail = RecvDetail {
            opcode: WcOpcode::Recv,
            byte_len: len_u32(payload),
            imm_or_inv: ImmOrInv::None,
            solicited: bth.solicited,
        };
        complete_recv(cx, wqe, detail);
        receives.take();
        self.note_received(bth.psn);
        true
    }

    #[inline]
    fn take_write(
        &mut self,
        (mem, who): (&impl Memory, Accessor),
        reth: Reth,
        payload: &[u8],
    ) -> bool {
        //= RC-RSP-03
        let begins = matches!(self.current, InProgress::None);
        //= RC-RSP-04
        let allowed = self.attr.access.contains(AccessFlags::REMOTE_WRITE);
        //= RC-RSP-09
        let is_all = reth.dma_len == len_u32(payload);
        if !begins || !allowed || !is_all {
            return false;
        }
        //= RC-RSP-08
        if !payload.is_empty() && mem.write_remote(who, reth.rkey, reth.va, payload).is_err() {
            return false;
        }
        //= RC-RSP-24
        self.msn = self.msn.next();
        true
    }

    #[inline]
    fn take_middle(
        &mut self,
        (mem, who): (&impl Memory, Accessor),
        operation: Operation,
        payload: &[u8],
    ) -> bool {
        //= RC-RSP-03
        match (&mut self.current, operation) {
            (
                InProgress::Write {
                    rkey,
                    va,
                    len,
                    received,
                },
                Operation::WriteMiddle,
            ) => {
                let after = u64::from(*received) + payload.len() as u64;
                let at = va.wrapping_add(u64::from(*received));
                //= RC-RSP-04
                //= RC-RSP-09
                //= MR-14
                if !self.attr.access.contains(AccessFlags::REMOTE_WRITE)
                    || after >= u64::from(*len)
                    || mem.write_remote(who, *rkey, at, payload).is_err()
                {
                    return false;
                }
                *received += len_u32(payload);
            }
            (InProgress::Send { wqe, received }, Operation::SendMiddle) => {
                let after = u64::from(*received) + payload.len() as u64;
                //= RC-RSP-10 MTU-04
                //= RC-RSP-12
                if after > wqe.data.len().min(u64::from(MAX_MESSAGE_LEN))
                    || wqe.scatter((mem, who), *received, payload).is_err()
                {
                    return false;
                }
                *received += len_u32(payload);
            }
            _ => return false,
        }
        true
    }
}
