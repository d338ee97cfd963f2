//! Local operations: no packet, no PSN.
//!
//! A local operation takes effect when it reaches the head of the queue, before any later work
//! request starts. It completes in order like all others. An executed WQE counts as started, with
//! no packets.

use super::Requester;
use crate::cx::Cx;
use crate::memory::Memory;
use crate::segment::execute_local;
use crate::wr::{Operands, SendFlags, SendOp};

impl Requester {
    /// Executes the next WQE if it is a local operation that may start. Call it only when
    /// everything started has been sent.
    pub(super) fn run_local<H: Memory>(&mut self, cx: &mut Cx<'_, H>) -> bool {
        if !self.may_start() {
            return false;
        }
        let Some(wqe) = self.sq.wqes.get_mut(self.started) else {
            return false;
        };
        //= MW-06
        let waits = match (wqe.op, wqe.operands.as_deref()) {
            //= RC-WQE-05
            //= INV-05
            (SendOp::Invalidate { .. }, _) => self.started > 0,
            //= XCE-08
            (SendOp::Enable, _) => false,
            //= XCW-01
            //= XCW-07
            //= XCW-08
            (SendOp::Wait, Some(Operands::Wait(condition))) => !condition.holds_for(cx.out.qp_num),
            (SendOp::Wait, _) => false,
            //= RC-WQE-04
            //= UMR-16
            //= NOP-01
            (op, _) => !op.is_local() || wqe.flags.contains(SendFlags::FENCE) && self.rd_wqes > 0,
        };
        if waits {
            return false;
        }
        if let Err(status) = execute_local(cx, wqe.op, &mut wqe.operands) {
            // Not started: `check_failed` reports it once the earlier WQEs are complete.
            self.failed = Some(status);
            return false;
        }
        wqe.first_psn = self.next_new;
        wqe.packets = 0;
        wqe.cost_base = self.next_cost;
        wqe.packet_cost = 0;
        self.started += 1;
        self.current = self.started;
        self.complete_executed(cx);
        true
    }

    /// Completes the oldest WQEs if they are executed local operations.
    #[inline]
    pub(super) fn complete_executed<H>(&mut self, cx: &mut Cx<'_, H>) {
        if self.front_is_executed() {
            self.complete_all_executed(cx);
        }
    }

    #[inline]
    fn front_is_executed(&self) -> bool {
        self.started > 0 && self.sq.wqes.front().is_some_and(|front| front.packets == 0)
    }

    #[cold]
    fn complete_all_executed<H>(&mut self, cx: &mut Cx<'_, H>) {
        while self.front_is_executed() {
            self.complete_one(cx);
        }
    }
}
