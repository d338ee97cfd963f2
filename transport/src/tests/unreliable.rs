//! UC and UD: losses are not repaired, and affect no other message.

mod gaps;
mod uc;
mod ud;

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use rocade_wire::{Bth, Deth, Headers, ImmDt, Opcode, Operation, Packet, Psn, Qkey, Qpn, Service};

use super::{PMTU, pattern, read, register, register_filled, send, statuses, write};
use crate::testing::{CONTEXT_MTU, Delivery, Pair, Setup, Side, TestMemory, context};
use crate::{
    AccessFlags, AckPlacement, Destination, DropReason, ImmOrInv, PacketMeta, PostError, QpAttr,
    QpAttrMask, QpEvent, QpState, QpType, RouteTag, SendFlags, SendOp, SendWr, Sge, Time, TxBuffer,
    WcFlags, WcOpcode, WcStatus,
};

const QKEY: u32 = 0x1111_1111;
/// A Q_Key that selects the sender's own.
const CONTROLLED: u32 = 0x8000_0000;
const GRH_LEN: u32 = 40;
const SIZES: [u32; 8] = [
    0,
    1,
    PMTU - 1,
    PMTU,
    PMTU + 1,
    2 * PMTU,
    5 * PMTU - 1,
    70_000,
];

fn uc() -> Pair {
    Pair::new(|_, setup| setup.config.qp_type = QpType::Uc)
}

fn as_ud(setup: &mut Setup) {
    setup.config.qp_type = QpType::Ud;
    setup.attr.qkey = QKEY;
    setup.attr.path_mtu = CONTEXT_MTU.code().into();
}

fn ud() -> Pair {
    Pair::new(|_, setup| as_ud(setup))
}

fn to_b(qkey: u32) -> Destination {
    Destination {
        route: RouteTag(1),
        dest_qp: Qpn::new(0x22),
        qkey: Qkey::new(qkey),
    }
}

fn wr<'a>(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> SendWr<'a> {
    SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        sges,
    }
}

fn datagram(pair: &mut Pair, wr_id: u64, to: Destination, sges: &[Sge]) {
    let now = pair.now();
    let qp = &mut pair.node_mut(Side::A).qp;
    qp.post_datagram(now, &wr(wr_id, send(), sges), to, None)
        .expect("accepted");
}

fn dropped(pair: &Pair, side: Side, reason: DropReason) -> u64 {
    pair.node(side).qp.counters().dropped(reason)
}

fn state(pair: &Pair, side: Side) -> QpState {
    pair.node(side).qp.state()
}

/// Returns a packet to B as A would send it.
fn uc_packet(operation: Operation, psn: u32, payload: &[u8]) -> Vec<u8> {
    let opcode = Opcode::of(Service::Uc, operation).expect("defined");
    let mut bth = Bth::new(opcode, Qpn::new(0x22), Psn::new(psn));
    bth.pad_count = [0, 3, 2, 1][payload.len() % 4];
    with_payload(&Headers::new(bth), payload)
}

fn with_payload(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes).expect("room");
    bytes.extend(payload);
    bytes.resize(bytes.len() + usize::from(headers.bth.pad_count) + 4, 0);
    bytes
}

/// Creates a pair in which A has just failed to send work request 2 of 1 to 3.
fn failed(of: fn() -> Pair, post: fn(&mut Pair, u64, &[Sge])) -> (Pair, crate::testing::Region) {
    let mut pair = of();
    let src = register_filled(&pair, Side::A, 64, 1);
    let gone = register(&pair, Side::A, 64);
    pair.node(Side::A).mem.deregister(&gone);
    let dst = register(&pair, Side::B, 512);
    for wr_id in 1..=3 {
        pair.recv(Side::B, wr_id, &[dst.sge()]);
    }
    post(&mut pair, 1, &[src.sge()]);
    post(&mut pair, 2, &[gone.sge()]);
    post(&mut pair, 3, &[src.sge()]);
    pair.run();
    let sent = pair.take_completions(Side::A);
    assert_eq!(
        statuses(&sent),
        [
            (1, WcStatus::Success),
            (2, WcStatus::LocProtErr),
            (3, WcStatus::WrFlushErr)
        ]
    );
    assert_eq!(state(&pair, Side::A), QpState::Sqe);
    (pair, src)
}

//= UC-11 type=test
//= UD-12 type=test
//= RC-STA-02 type=test
#[test]
//= PST-06 type=test
fn a_local_error_ends_the_send_queue_only_until_rts() {
    let by_uc: fn(&mut Pair, u64, &[Sge]) = |pair, wr_id, sges| {
        pair.send(Side::A, wr_id, send(), sges);
    };
    let by_ud: fn(&mut Pair, u64, &[Sge]) = |pair, wr_id, sges| {
        datagram(pair, wr_id, to_b(QKEY), sges);
    };
    for (of, post) in [(uc as fn() -> Pair, by_uc), (ud, by_ud)] {
        let (mut pair, src) = failed(of, post);
        post(&mut pair, 4, &[src.sge()]);
        pair.drain_both();
        let flushed = pair.take_completions(Side::A);
        assert_eq!(statuses(&flushed), [(4, WcStatus::WrFlushErr)]);
        // The other direction is unchanged.
        let dst = register(&pair, Side::A, 512);
        pair.recv(Side::A, 9, &[dst.sge()]);
        let at_b = register(&pair, Side::B, 8);
        let (now, to_a) = (
            pair.now(),
            Destination {
                dest_qp: Qpn::new(0x11),
                ..to_b(QKEY)
            },
        );
        let qp = &mut pair.node_mut(Side::B).qp;
        let back = [at_b.sge()];
        let posted = match qp.config().qp_type {
            QpType::Ud => qp.post_datagram(now, &wr(5, send(), &back), to_a, None),
            _ => qp.post_send(now, &wr(5, send(), &back), None),
        };
        assert_eq!(posted, Ok(()));
        pair.run();
        assert_eq!(
            statuses(&pair.take_completions(Side::A)),
            [(9, WcStatus::Success)]
        );
        pair.take_completions(Side::B);
        pair.modify(
            Side::A,
            QpState::Rts,
            QpAttrMask::empty(),
            &QpAttr::default(),
        );
        post(&mut pair, 6, &[src.sge()]);
        pair.run();
        assert_eq!(
            statuses(&pair.take_completions(Side::A)),
            [(6, WcStatus::Success)]
        );
        assert_eq!(
            statuses(&pair.take_completions(Side::B)),
            [(2, WcStatus::Success)]
        );
    }
}

/// Checks a payload that the engine copies, but cannot read any more.
//= UC-11 type=test
#[test]
fn memory_that_went_away_fails_its_message_and_those_behind_it() {
    let mut pair = uc();
    let src = register_filled(&pair, Side::A, 4 * PMTU, 1);
    let half = register_filled(&pair, Side::A, 4 * PMTU, 2);
    pair.node(Side::A).mem.unmap(&half, PMTU as usize);
    let dst = register(&pair, Side::B, 4 * PMTU);
    pair.recv(Side::B, 1, &[dst.sge()]);
    for (wr_id, from) in [(2, &src), (3, &half), (4, &src)] {
        pair.send(Side::A, wr_id, send(), &[from.sge()]);
    }
    pair.run();
    let sent = pair.take_completions(Side::A);
    let expected = [
        (2, WcStatus::Success),
        (3, WcStatus::LocProtErr),
        (4, WcStatus::WrFlushErr),
    ];
    assert_eq!(statuses(&sent), expected);
    assert_eq!(state(&pair, Side::A), QpState::Sqe);
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(1, WcStatus::Success)]
    );
    assert_eq!(pair.node(Side::B).mem.all(&dst), pattern(4 * PMTU, 1));
}

//= UC-01 type=test
//= UD-01 type=test
//= UD-03 type=test
//= PST-10 type=test
#[test]
fn operations_that_a_service_does_not_have_are_refused() {
    let mut pair = uc();
    let src = register(&pair, Side::A, 8);
    let sges = [src.sge()];
    assert_eq!(
        pair.try_send(Side::A, &wr(1, read(&src), &sges)),
        Err(PostError::UnsupportedOpcode)
    );
    let now = pair.now();
    let qp = &mut pair.node_mut(Side::A).qp;
    assert_eq!(
        qp.post_datagram(now, &wr(1, send(), &sges), to_b(QKEY), None),
        Err(PostError::NoDestination)
    );
    let mut pair = ud();
    let qp = &mut pair.node_mut(Side::A).qp;
    for op in [write(&src), read(&src)] {
        let posted = qp.post_datagram(now, &wr(1, op, &sges), to_b(QKEY), None);
        assert_eq!(posted, Err(PostError::UnsupportedOpcode));
    }
    let posted = qp.post_send(now, &wr(1, send(), &sges), None);
    assert_eq!(posted, Err(PostError::NoDestination));
    let mut rc = Pair::default();
    let qp = &mut rc.node_mut(Side::A).qp;
    let posted = qp.post_datagram(now, &wr(1, send(), &sges), to_b(QKEY), None);
    assert_eq!(posted, Err(PostError::NoDestination));
    assert_eq!(qp.send_queue_len(), 0);
}

/// Checks that in SQD a message in progress is finished, and no other is started.
//= RC-STA-06 type=test
#[test]
fn draining_ends_what_has_begun() {
    let mut pair = uc();
    let src = register_filled(&pair, Side::A, 100 * PMTU, 1);
    pair.send(Side::A, 1, send(), &[src.sge()]);
    pair.send(Side::A, 2, send(), &[src.part(0, 8)]);
    let node = pair.node_mut(Side::A);
    let mut tx = TxBuffer::new(8 * PMTU as usize, 64);
    node.qp
        .poll_transmit(Time::ZERO, &node.mem, AckPlacement::First, &mut tx);
    assert!(!tx.is_empty() && node.qp.requests_in_flight());
    let attr = QpAttr {
        en_sqd_async_notify: true,
        ..QpAttr::default()
    };
    pair.modify(
        Side::A,
        QpState::Sqd,
        QpAttrMask::EN_SQD_ASYNC_NOTIFY,
        &attr,
    );
    assert!(pair.node(Side::A).qp.query().sq_draining);
    pair.run();
    assert_eq!(pair.take_completions(Side::A).len(), 1);
    assert_eq!(pair.take_events(Side::A), [QpEvent::SqDrained]);
    assert_eq!(pair.node(Side::A).qp.send_queue_len(), 1);
    pair.modify(
        Side::A,
        QpState::Rts,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    pair.run();
    assert_eq!(pair.take_completions(Side::A).len(), 1);
}

/// Checks that each work request is reported once, whether flushed, sent or never sent, signaled or
/// not.
//= RC-STA-01 type=test
//= RC-WQE-02 type=test
#[test]
fn unsignaled_work_is_reported_with_what_follows_and_when_flushed() {
    let mut pair = Pair::new(|_, setup| {
        setup.config.qp_type = QpType::Uc;
        setup.config.sq_sig_all = false;
    });
    let src = register(&pair, Side::A, 8);
    let sges = [src.sge()];
    let silent = |wr_id| SendWr {
        flags: SendFlags::empty(),
        ..wr(wr_id, send(), &sges)
    };
    for wr_id in 1..=2 {
        pair.try_send(Side::A, &silent(wr_id)).unwrap();
    }
    pair.send(Side::A, 3, send(), &sges);
    pair.run();
    let sent = pair.take_completions(Side::A);
    assert_eq!((sent.len(), sent[0].wr_id, sent[0].freed_wqes), (1, 3, 3));
    pair.try_send(Side::A, &silent(4)).unwrap();
    pair.modify(
        Side::A,
        QpState::Err,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    pair.drain_both();
    let flushed = pair.take_completions(Side::A);
    assert_eq!(statuses(&flushed), [(4, WcStatus::WrFlushErr)]);
}

/// Checks that a reset drops the message in progress, the receive that was kept, and pending work.
//= RC-STA-04 type=test
#[test]
fn a_reset_forgets_everything() {
    let mut pair = uc();
    let dst = register(&pair, Side::B, 2 * PMTU);
    pair.recv(Side::B, 1, &[dst.sge()]);
    pair.inject(
        Side::B,
        &uc_packet(Operation::SendFirst, 1, &vec![1; PMTU as usize]),
    );
    pair.send(Side::B, 2, send(), &[]);
    pair.modify(
        Side::B,
        QpState::Reset,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    pair.drain_both();
    let qp = &pair.node(Side::B).qp;
    assert_eq!((qp.recv_queue_len(), qp.send_queue_len()), (0, 0));
    assert!(!qp.receives_message());
    assert!(pair.take_completions(Side::B).is_empty());
}
