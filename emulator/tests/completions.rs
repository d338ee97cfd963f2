//! Completions of queue pairs that are reset or destroyed, and the fast path of packets.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use common::{Side, pair, pattern};
use rocade_emulator::{
    Cq, Qp, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SendOp, WcStatus,
};

/// Number of entries of the CQ.
const DEPTH: u64 = 8;

fn queue_pair(side: &Side, cq: &Cq) -> Qp {
    let cap = QpCap {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init = QpInitAttr {
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap,
        qp_type: QpType::Rc,
        sq_sig_all: true,
        cookie: 0,
    };
    let qp = side.pd.create_qp(init).unwrap();
    let attr = QpAttr {
        qp_state: QpState::Init.code(),
        port_num: 1,
        ..QpAttr::default()
    };
    let mask =
        QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    qp.modify(&attr, mask).unwrap();
    qp
}

fn to(qp: &Qp, state: QpState) {
    let attr = QpAttr {
        qp_state: state.code(),
        ..QpAttr::default()
    };
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
}

/// Posts receives in INIT, all of which complete when the QP goes to ERR.
fn flush_receives(qp: &Qp, wr_ids: std::ops::Range<u64>) {
    for wr_id in wr_ids {
        qp.recv_queue().push(wr_id, &[]).unwrap();
    }
    to(qp, QpState::Err);
}

fn polled(cq: &Cq) -> Vec<u64> {
    std::iter::from_fn(|| cq.poll_one())
        .map(|completion| {
            assert_eq!(completion.status, WcStatus::WrFlushErr);
            completion.wr_id
        })
        .collect()
}

/// Completions of a QP that is reset or destroyed disappear, those of other QPs stay in order, and
/// the room is free again.
//= RC-STA-04, CQ-13 type=test
#[test]
fn a_queue_pair_takes_its_completions_along() {
    let ways: [fn(Qp); 2] = [|qp| to(&qp, QpState::Reset), drop];
    for go in ways {
        let side = Side::new("127.1.3.1", 64);
        let cq = side.context.create_cq(DEPTH as u32, None, 0, 0).unwrap();
        let [first, second, third] = [0; 3].map(|_| queue_pair(&side, &cq));
        flush_receives(&first, 0..2);
        flush_receives(&second, 10..14);
        flush_receives(&third, 20..22);
        go(second);
        assert_eq!(polled(&cq), [0, 1, 20, 21]);
        let all = (cq.capacity() as u64).min(16);
        let fourth = queue_pair(&side, &cq);
        flush_receives(&fourth, 0..all / 2);
        go(fourth);
        let fifth = queue_pair(&side, &cq);
        flush_receives(&fifth, 30..30 + all);
        assert_eq!(polled(&cq), (30..30 + all).collect::<Vec<_>>());
    }
}

/// The engine takes the fast path over UDP. `tests/shm` covers shared memory.
#[test]
fn the_engine_takes_the_short_way() {
    let (a, b) = pair("127.1.3.2", "127.1.3.3", 1 << 20);
    let data = pattern(100_000, 1);
    a.fill(0, &data);
    let op = SendOp::Write {
        va: b.addr(0),
        rkey: b.mr.rkey(),
        imm: None,
    };
    a.send(1, op, &[a.sge(0, data.len())]);
    assert_eq!(a.completion().status, WcStatus::Success);
    assert_eq!(b.bytes(0, data.len()), data);
    assert!(
        a.qp.counters().fast_path_packets >= 1,
        "{:?}",
        a.qp.counters()
    );
    // With an MTU of 1024 there are nearly a hundred MIDDLE packets.
    assert!(
        b.qp.counters().fast_path_packets >= 50,
        "{:?}",
        b.qp.counters()
    );
}

/// The background thread may keep a reference to a CQ for a moment longer than the application.
#[test]
fn a_channel_may_go_when_its_cqs_have_ended() {
    let side = Side::new("127.4.9.1", 64);
    let channel = side.context.create_comp_channel().unwrap();
    let cq = side.context.create_cq(8, Some(&channel), 0, 0).unwrap();
    assert!(channel.destroy().is_err(), "the CQ uses it");
    let held = cq.clone();
    cq.destroy().unwrap();
    channel.destroy().unwrap();
    drop((cq, held));
    assert!(
        side.channel.destroy().is_err(),
        "other channels are counted by themselves"
    );
}
