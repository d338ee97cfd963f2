//! Bulk path for the middle of a long message: many packets that differ in little but their PSN,
//! built in one loop.

use rocade_wire::Operation;

use crate::cx::Cx;
use crate::memory::{Extent, LocalAccess, Memory};
use crate::transmit::{Source, TxBuffer};
use crate::wr::Sge;

use super::Requester;
use super::segment::request_head;

/// Least number of packets that are worth the bulk path.
const FEWEST: u32 = 2;

impl Requester {
    /// Sends as many middle packets of the current SEND or WRITE as fit and `limit` allows, except
    /// for the last that it allows.
    ///
    /// One in `interval` packets requests an ACK. Returns false, without any change, if the slow
    /// path has to send the packets.
    #[inline]
    pub(super) fn send_bulk<H: Memory>(
        &mut self,
        cx: &mut Cx<'_, H>,
        una_cost: u64,
        (limit, interval): (u64, u32),
        tx: &mut TxBuffer,
    ) -> bool {
        let wqe = &self.sq.wqes[self.current];
        //= RC-SEG-01
        if !wqe.op.is_common() {
            return false;
        }
        let operation = if wqe.op.remote().is_some() {
            Operation::WriteMiddle
        } else {
            Operation::SendMiddle
        };
        let index = wqe.offset_of(self.cursor);
        let left = wqe.packets.saturating_sub(index + 1);
        let pmtu = cx.peer.pmtu_bytes();
        let repeats_oldest = self.cursor == self.una && self.cursor != self.next_new;
        if index == 0 || left < FEWEST || !tx.defers(pmtu as usize) || repeats_oldest {
            return false;
        }
        let head = request_head(cx.peer, wqe, operation, self.cursor, pmtu);
        let cost = u64::from(wqe.packet_cost);
        let in_window = limit.saturating_sub(wqe.cost_at(self.cursor) - una_cost + cost) / cost;
        let space = tx.space(head.segment_len(pmtu as usize));
        let count = u64::from(left).min(in_window).min(space as u64);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if count < FEWEST {
            return false;
        }
        let offset = index * pmtu;
        let len = count * pmtu;
        let Some((lkey, addr)) = wqe.data.in_one(offset, len as usize) else {
            return false;
        };
        let access = LocalAccess::Read;
        let extent = cx
            .host
            .check_local(cx.who, lkey, addr, u64::from(len), access);
        if extent != Ok(Extent::One) {
            return false;
        }
        let source = Source::Local(Sge {
            addr,
            len: pmtu,
            lkey,
        });
        // The interval may have been longer before.
        let since = self.packets_since_ack_req.min(interval - 1);
        let asks = |packets: u32| packets.is_multiple_of(interval);
        tx.push_deferred_batch(&head, source, count, |index, bth| {
            bth.ack_req = asks(since + index + 1);
        });
        let before = self.cursor;
        self.cursor = before.add(count);
        let repeated = u32::try_from(self.next_new.diff(before))
            .unwrap_or(0)
            .min(count);
        if repeated < count {
            self.next_new = self.cursor;
        }
        if repeated > 0 {
            self.forget_time();
        } else if since + count >= interval {
            self.time(cx.now, before.add(interval - since - 1), una_cost);
        }
        cx.out.counters.traffic().tx_packets += u64::from(count);
        if repeated > 0 {
            cx.out.counters.rare().retransmitted_packets += u64::from(repeated);
        }
        self.packets_since_ack_req = (since + count) % interval;
        if since + count >= interval {
            self.arm_ack_timer(cx.now);
        }
        true
    }
}
