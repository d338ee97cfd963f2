//! Datagram queue pairs of the sides that `common` makes.

use std::time::{Duration, Instant};

use rocade_emulator::{
    AddressVector, Ah, Completion, Datagram, Gid, Qkey, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr,
    QpState, QpType, Qpn, SendFlags, SendOp, SendWr, Srq, VerbsError,
};

use super::Side;

pub const QKEY: u32 = 0x1234;
pub const GRH: usize = 40;

pub fn create(side: &Side, qp_type: QpType) -> Qp {
    create_with(side, qp_type, None)
}

pub fn create_with(side: &Side, qp_type: QpType, srq: Option<&Srq>) -> Qp {
    let cap = QpCap {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
    };
    let init = QpInitAttr {
        send_cq: side.cq.clone(),
        recv_cq: side.cq.clone(),
        srq: srq.cloned(),
        cap,
        qp_type,
        sq_sig_all: true,
        cookie: 1,
    };
    side.pd.create_qp(init).unwrap()
}

pub fn to_rts(qp: &Qp, qkey: u32) {
    let modify = |state: QpState, more| {
        let attr = QpAttr {
            qp_state: state.code(),
            port_num: 1,
            qkey,
            ..QpAttr::default()
        };
        qp.modify(&attr, QpAttrMask::STATE | more)
    };
    let init = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
    modify(QpState::Init, init).unwrap();
    modify(QpState::Rtr, QpAttrMask::empty()).unwrap();
    modify(QpState::Rts, QpAttrMask::SQ_PSN).unwrap();
}

/// Makes a datagram QP in RTS.
pub fn ud(side: &Side) -> Qp {
    let qp = create(side, QpType::Ud);
    to_rts(&qp, QKEY);
    qp
}

pub fn address(to: Gid) -> AddressVector {
    AddressVector {
        dgid: to,
        is_global: true,
        port_num: 1,
        ..AddressVector::default()
    }
}

pub fn wr<'a>(wr_id: u64, sges: &'a [rocade_emulator::Sge]) -> SendWr<'a> {
    SendWr {
        wr_id,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        sges,
    }
}

/// Posts a datagram to the QP `dest`.
pub fn send_to(qp: &Qp, ah: &Ah, dest: &Qp, wr: &SendWr<'_>) -> Result<(), VerbsError> {
    let to = Datagram {
        ah,
        dest_qp: dest.qp_num(),
        qkey: Qkey::new(QKEY),
    };
    qp.post_sends(|queue| queue.push_datagram(wr, to, None))
}

/// Waits until `done`, polling an empty CQ of `side`.
pub fn wait(side: &Side, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(side.cq.poll_one().is_none(), "an unexpected completion");
        assert!(Instant::now() < deadline);
    }
}

pub fn completions(side: &Side, count: usize) -> Vec<Completion> {
    (0..count).map(|_| side.completion()).collect()
}

/// Sends a datagram to the group of an address handle.
pub fn send_to_group(qp: &Qp, ah: &Ah, qkey: u32, wr: &SendWr<'_>) {
    let to = Datagram {
        ah,
        dest_qp: Qpn::MULTICAST,
        qkey: Qkey::new(qkey),
    };
    qp.post_sends(|queue| queue.push_datagram(wr, to, None))
        .unwrap();
}
