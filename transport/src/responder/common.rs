//! The common request without detours: a SEND of one packet.
//!
//! Anything unusual about it is left to the general way, which finds nothing changed.

use rocade_wire::{Headers, Operation};

use super::execute::{len_u32, recv_detail};
use super::{InProgress, Responder};
use crate::completion::{WcOpcode, WcStatus};
use crate::memory::Memory;
use crate::qp::conn::{Conn, Outputs};
use crate::time::Time;

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
}
