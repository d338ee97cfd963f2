//! What requester and responder share: the connection, and the outputs.

use alloc::collections::VecDeque;

use rocade_wire::{Bth, Mtu, Opcode, Operation, Pkey, Psn, Qpn};

use crate::completion::{Completion, ImmOrInv, WcFlags, WcOpcode, WcStatus};
use crate::counters::Counters;
use crate::event::QpEvent;
use crate::service::Service;
use crate::time::Time;
use crate::transmit::Head;

/// The connection's constants while the QP is up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conn {
    pub(crate) service: Service,
    pub(crate) qp_num: Qpn,
    pub(crate) dest_qp: Qpn,
    pub(crate) pkey: Pkey,
    pub(crate) pmtu: Mtu,
}

impl Conn {
    pub(crate) const fn pmtu_bytes(&self) -> u32 {
        self.pmtu.bytes()
    }

    /// Packets of a message of `len` bytes (MTU-03, RC-SEG-02).
    pub(crate) const fn packets(&self, len: u32) -> u32 {
        if len <= self.pmtu_bytes() {
            1
        } else {
            len.div_ceil(self.pmtu_bytes())
        }
    }

    /// Head of a packet to the peer; extension headers are the caller's.
    #[inline]
    pub(crate) fn head(&self, operation: Operation, psn: Psn, payload_len: usize) -> Head {
        Head::new(Bth {
            opcode: self.service.opcode(operation),
            solicited: false,
            //= BTH-03
            migreq: true,
            //= BTH-04
            pad_count: Bth::pad_for(payload_len),
            tver: 0,
            pkey: self.pkey,
            fecn: false,
            becn: false,
            resv6: 0,
            dest_qp: self.dest_qp,
            ack_req: false,
            resv7: 0,
            psn,
        })
    }
}

/// An opcode that no table entry has cannot be built from an operation of this service.
pub(crate) fn opcode_of(service: rocade_wire::Service, operation: Operation) -> Opcode {
    Opcode::of(service, operation).expect("the service defines every operation it sends")
}

/// The QP has to go to ERR; whatever caused it has been reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal;

/// Completions, events and counters on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) events: VecDeque<QpEvent>,
    pub(crate) counters: Counters,
}

impl Outputs {
    #[expect(clippy::too_many_arguments, reason = "the fields of a completion")]
    pub(crate) fn complete_send(
        &mut self,
        now: Time,
        conn: &Conn,
        wr_id: u64,
        status: WcStatus,
        opcode: WcOpcode,
        byte_len: u32,
        slots: u32,
    ) {
        self.completions.push_back(Completion {
            wr_id,
            status,
            opcode,
            byte_len,
            qp_num: conn.qp_num,
            src_qp: Qpn::new(0),
            imm_or_inv: ImmOrInv::None,
            wc_flags: WcFlags::empty(),
            vendor_err: 0,
            is_send: true,
            solicited: false,
            slots,
            timestamp_ns: now.as_ns(),
        });
    }

    pub(crate) fn complete_recv(
        &mut self,
        now: Time,
        conn: &Conn,
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
            qp_num: conn.qp_num,
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
