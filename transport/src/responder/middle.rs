//! The middle of a message, taken when it is exactly what is expected next.

use rocade_wire::{Bth, Operation};

use super::execute::len_u32;
use super::sequence::MAX_MESSAGE_LEN;
use super::{InProgress, Responder};
use crate::memory::Memory;
use crate::qp::conn::Outputs;
use crate::wr::AccessFlags;

impl Responder {
    /// Executes a SEND or WRITE Middle with a full payload and without pad (RC-RSP-07). False where it is
    /// unexpected or has to be refused: then nothing has changed but, perhaps, a receive buffer.
    #[inline]
    pub(crate) fn take_middle(
        &mut self,
        mem: &impl Memory,
        bth: &Bth,
        payload: &[u8],
        out: &mut Outputs,
    ) -> bool {
        //= RC-PSN-02
        if bth.psn != self.epsn {
            return false;
        }
        //= RC-RSP-03
        match (&mut self.current, bth.opcode.operation()) {
            (
                InProgress::Write {
                    rkey,
                    va,
                    len,
                    received,
                },
                Some(Operation::WriteMiddle),
            ) => {
                let after = u64::from(*received) + payload.len() as u64;
                let at = va.wrapping_add(u64::from(*received));
                //= RC-RSP-04
                //= RC-RSP-09
                //= MR-14
                if !self.attr.access.contains(AccessFlags::REMOTE_WRITE)
                    || after >= u64::from(*len)
                    || mem.write_remote(*rkey, at, payload).is_err()
                {
                    return false;
                }
                *received += len_u32(payload);
            }
            (InProgress::Send { wqe, received }, Some(Operation::SendMiddle)) => {
                let after = u64::from(*received) + payload.len() as u64;
                //= RC-RSP-10 MTU-04
                //= RC-RSP-12
                if after > wqe.data.len().min(u64::from(MAX_MESSAGE_LEN))
                    || wqe.data.scatter(mem, *received, payload).is_err()
                {
                    return false;
                }
                *received += len_u32(payload);
            }
            _ => return false,
        }
        self.nak_outstanding = false;
        out.counters.rx_packets += 1;
        self.epsn = bth.psn.next();
        //= RC-ACK-01
        if bth.ack_req {
            self.schedule_ack(bth.psn);
        }
        true
    }
}
