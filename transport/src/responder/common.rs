//! The common requests without detours: a SEND of one packet, and the middle of a WRITE.
//!
//! Anything unusual about one of them is left to the general way, which finds nothing changed.

use rocade_wire::{Headers, Operation};

use super::execute::{len_u32, recv_detail};
use super::{InProgress, Responder};
use crate::completion::{WcOpcode, WcStatus};
use crate::memory::Memory;
use crate::qp::conn::{Conn, Outputs};
use crate::time::Time;
use crate::wr::AccessFlags;

impl Responder {
    /// Executes a request that has the PSN expected; false where it is not a common one, or one
    /// that has to be refused.
    #[inline]
    pub(super) fn execute_common(
        &mut self,
        now: Time,
        conn: &Conn,
        mem: &impl Memory,
        headers: &Headers,
        payload: &[u8],
        out: &mut Outputs,
    ) -> bool {
        let bth = &headers.bth;
        let executed = match bth.opcode.operation() {
            Some(Operation::SendOnly | Operation::SendOnlyImm) => {
                self.common_send(now, conn, mem, headers, payload, out)
            }
            Some(Operation::WriteMiddle) => self.common_write(conn, mem, headers, payload),
            _ => false,
        };
        if executed {
            out.counters.rx_packets += 1;
            self.epsn = bth.psn.next();
            //= RC-ACK-01
            if bth.ack_req {
                self.schedule_ack(bth.psn);
            }
        }
        executed
    }

    fn common_send(
        &mut self,
        now: Time,
        conn: &Conn,
        mem: &impl Memory,
        headers: &Headers,
        payload: &[u8],
        out: &mut Outputs,
    ) -> bool {
        let len = len_u32(payload);
        //= RC-RSP-07
        let length_ok = len <= conn.pmtu_bytes() && (len > 0 || headers.bth.pad_count == 0);
        //= RC-RSP-03
        if !length_ok || !matches!(self.current, InProgress::None) {
            return false;
        }
        //= RC-RSP-06
        let Some(wqe) = self.rq.front() else {
            return false;
        };
        //= RC-RSP-10
        //= RC-RSP-12
        if u64::from(len) > wqe.data.len() || len > 0 && wqe.data.scatter(mem, 0, payload).is_err()
        {
            return false;
        }
        //= RC-RSP-24
        self.msn = self.msn.next();
        let detail = recv_detail(WcOpcode::Recv, len, headers);
        out.complete_recv(now, conn, wqe.wr_id, WcStatus::Success, detail);
        self.rq.pop_front();
        true
    }

    fn common_write(
        &mut self,
        conn: &Conn,
        mem: &impl Memory,
        headers: &Headers,
        payload: &[u8],
    ) -> bool {
        let InProgress::Write {
            rkey,
            va,
            len: total,
            received,
        } = &mut self.current
        else {
            return false;
        };
        let len = len_u32(payload);
        //= RC-RSP-04
        //= RC-RSP-07
        //= RC-RSP-09
        if !self.attr.access.contains(AccessFlags::REMOTE_WRITE)
            || len != conn.pmtu_bytes()
            || headers.bth.pad_count != 0
            || u64::from(*received) + u64::from(len) >= u64::from(*total)
        {
            return false;
        }
        //= MR-14
        let at = va.wrapping_add(u64::from(*received));
        if mem.write_remote(*rkey, at, payload).is_err() {
            return false;
        }
        *received += len;
        true
    }
}
