//! What comes out of a QP besides packets.

use alloc::collections::VecDeque;

use rocade_wire::Qpn;

use crate::completion::{Completion, ImmOrInv, WcFlags, WcOpcode, WcStatus};
use crate::counters::Counters;
use crate::event::QpEvent;
use crate::time::Time;

/// The QP has to go to ERR; whatever caused it has been reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal;

/// Completions, events and counters on their way out.
#[derive(Debug)]
pub(crate) struct Outputs {
    /// The QP that they are of.
    qp_num: Qpn,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: VecDeque<QpEvent>,
    pub(crate) counters: Counters,
}

impl Outputs {
    pub(crate) fn new(qp_num: Qpn) -> Self {
        Self {
            qp_num,
            completions: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn complete_send(
        &mut self,
        now: Time,
        wr_id: u64,
        status: WcStatus,
        detail: SendDetail,
    ) {
        self.completions.push_back(Completion {
            wr_id,
            status,
            opcode: detail.opcode,
            byte_len: detail.byte_len,
            qp_num: self.qp_num,
            src_qp: Qpn::new(0),
            imm_or_inv: ImmOrInv::None,
            wc_flags: WcFlags::empty(),
            vendor_err: 0,
            is_send: true,
            solicited: false,
            slots: detail.slots,
            timestamp_ns: now.as_ns(),
        });
    }

    pub(crate) fn complete_recv(
        &mut self,
        now: Time,
        wr_id: u64,
        status: WcStatus,
        detail: RecvDetail,
    ) {
        let wc_flags = match detail.imm_or_inv {
            ImmOrInv::None => WcFlags::empty(),
            ImmOrInv::Imm(_) => WcFlags::WITH_IMM,
            ImmOrInv::Inv(_) => WcFlags::WITH_INV,
        };
        self.completions.push_back(Completion {
            wr_id,
            status,
            opcode: detail.opcode,
            byte_len: detail.byte_len,
            qp_num: self.qp_num,
            src_qp: Qpn::new(0),
            imm_or_inv: detail.imm_or_inv,
            wc_flags,
            vendor_err: 0,
            is_send: false,
            solicited: detail.solicited,
            slots: 1,
            timestamp_ns: now.as_ns(),
        });
    }
}

/// What a send completion says besides its status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendDetail {
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    /// See [`Completion::slots`].
    pub(crate) slots: u32,
}

/// What a receive completion says besides its status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvDetail {
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    pub(crate) imm_or_inv: ImmOrInv,
    pub(crate) solicited: bool,
}

impl RecvDetail {
    /// For completions in error, where only the status counts (CQ-11).
    pub(crate) const ERROR: Self = Self {
        opcode: WcOpcode::Recv,
        byte_len: 0,
        imm_or_inv: ImmOrInv::None,
        solicited: false,
    };
}
