//! UC and UD: what is lost stays lost, and harms nothing else.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use rocade_wire::{Bth, Deth, Headers, ImmDt, Opcode, Operation, Packet, Psn, Qkey, Qpn, Service};

use super::{PMTU, pattern, read, register, register_filled, send, statuses, write};
use crate::testing::{CONTEXT_MTU, Fate, Pair, Setup, Side, TestMemory, context};
use crate::{
    AccessFlags, AckTiming, Destination, DropReason, ImmOrInv, PacketMeta, PostError, QpAttr,
    QpAttrMask, QpEvent, QpState, QpType, RouteTag, SendFlags, SendOp, SendWr, Sge, Time, TxBuffer,
    WcFlags, WcOpcode, WcStatus,
};

const QKEY: u32 = 0x1111_1111;
/// A Q_Key that stands for the sender's own.
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

//= UC-01 type=test
//= UC-02 type=test
//= UC-13 type=test
#[test]
fn uc_messages_arrive_in_every_size_without_an_answer() {
    for len in SIZES {
        for imm in [None, Some([1, 2, 3, 4])] {
            let mut pair = uc();
            let src = register_filled(&pair, Side::A, len.max(1), 7);
            let dst = register(&pair, Side::B, len + 1);
            let target = register(&pair, Side::B, len + 1);
            pair.recv(Side::B, 1, &[dst.sge()]);
            pair.recv(Side::B, 2, &[]);
            let part = [src.part(0, len)];
            pair.send(Side::A, 3, SendOp::Send { imm }, &part);
            let (va, rkey) = (target.addr, target.rkey);
            pair.send(Side::A, 4, SendOp::Write { va, rkey, imm }, &part);
            pair.run();
            let sent = pair.take_completions(Side::A);
            assert_eq!(
                statuses(&sent),
                [(3, WcStatus::Success), (4, WcStatus::Success)]
            );
            assert_eq!(sent[1].opcode, WcOpcode::RdmaWrite);
            let received = pair.take_completions(Side::B);
            assert_eq!(received.len(), 1 + usize::from(imm.is_some()), "{len}");
            assert_eq!((received[0].wr_id, received[0].byte_len), (1, len));
            if let Some(imm) = imm {
                let last = &received[1];
                assert_eq!((last.wr_id, last.byte_len), (2, len));
                assert_eq!(last.opcode, WcOpcode::RecvRdmaWithImm);
                assert_eq!(last.imm_or_inv, ImmOrInv::Imm(imm));
            }
            let sent = pattern(len.max(1), 7)[..len as usize].to_vec();
            for region in [&dst, &target] {
                let mem = &pair.node(Side::B).mem;
                assert_eq!(mem.bytes(region, 0..len as usize), sent);
                assert_eq!(mem.bytes(region, len as usize..len as usize + 1), [0]);
            }
            assert!(
                pair.trace().iter().all(|t| t.from == Side::A),
                "nobody answers"
            );
            let asks = |t: &crate::testing::Traced| t.packet().bth().ack_req;
            assert!(!pair.trace().iter().any(asks), "{}", pair.trace_text());
        }
    }
}

//= UC-03 type=test
//= UC-06 type=test
#[test]
fn uc_a_message_that_lost_a_packet_gives_its_receive_to_the_next() {
    for lost in 0..4 {
        let mut pair = uc();
        pair.set_network(move |transit| {
            if transit.index == lost {
                Fate::Drop
            } else {
                Fate::Deliver
            }
        });
        let src = register_filled(&pair, Side::A, 4 * PMTU, 1);
        let next = register_filled(&pair, Side::A, 2 * PMTU, 2);
        let dst = register(&pair, Side::B, 4 * PMTU);
        let other = register(&pair, Side::B, 4 * PMTU);
        pair.recv(Side::B, 1, &[dst.sge()]);
        pair.recv(Side::B, 2, &[other.sge()]);
        pair.send(Side::A, 3, send(), &[src.sge()]);
        pair.send(Side::A, 4, send(), &[next.sge()]);
        pair.run();
        assert_eq!(pair.take_completions(Side::A).len(), 2, "both have left");
        let received = pair.take_completions(Side::B);
        assert_eq!(
            statuses(&received),
            [(1, WcStatus::Success)],
            "packet {lost}"
        );
        assert_eq!(received[0].byte_len, 2 * PMTU);
        let mem = &pair.node(Side::B).mem;
        assert_eq!(mem.bytes(&dst, 0..2 * PMTU as usize), pattern(2 * PMTU, 2));
        assert_eq!(pair.node(Side::B).qp.recv_queue_len(), 1);
        assert_eq!(state(&pair, Side::B), QpState::Rts);
    }
}

//= UC-03 type=test
#[test]
fn uc_a_write_that_lost_a_packet_is_not_reported() {
    for lost in 0..3 {
        let mut pair = uc();
        pair.set_network(move |transit| {
            if transit.index == lost {
                Fate::Drop
            } else {
                Fate::Deliver
            }
        });
        let src = register_filled(&pair, Side::A, 3 * PMTU, 1);
        let dst = register(&pair, Side::B, 3 * PMTU);
        pair.recv(Side::B, 1, &[]);
        let imm = Some([9; 4]);
        let (va, rkey) = (dst.addr, dst.rkey);
        pair.send(Side::A, 2, SendOp::Write { va, rkey, imm }, &[src.sge()]);
        pair.send(
            Side::A,
            3,
            SendOp::Write { va, rkey, imm },
            &[src.part(0, 8)],
        );
        pair.run();
        let received = pair.take_completions(Side::B);
        assert_eq!(statuses(&received), [(1, WcStatus::Success)]);
        assert_eq!(received[0].byte_len, 8, "that of the second");
    }
}

/// A packet to B as A would send it.
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

//= UC-03 type=test
//= UC-04 type=test
//= UC-05 type=test
#[test]
fn uc_any_first_packet_begins_a_message_and_nothing_else_does() {
    let mut pair = uc();
    let dst = register(&pair, Side::B, 2 * PMTU);
    for wr_id in 1..=4 {
        pair.recv(Side::B, wr_id, &[dst.sge()]);
    }
    let full = vec![5; PMTU as usize];
    // The PSN expected is not what counts.
    pair.inject(Side::B, &uc_packet(Operation::SendMiddle, 77, &full));
    pair.inject(Side::B, &uc_packet(Operation::SendLast, 78, b"end"));
    assert_eq!(dropped(&pair, Side::B, DropReason::OutOfSequence), 2);
    pair.inject(Side::B, &uc_packet(Operation::SendOnly, 5, b"one"));
    // Twice the same is two messages.
    pair.inject(Side::B, &uc_packet(Operation::SendOnly, 5, b"one"));
    // A message that another one interrupts, in order of its PSN.
    pair.inject(Side::B, &uc_packet(Operation::SendFirst, 6, &full));
    assert!(pair.node(Side::B).qp.receives_message());
    pair.inject(Side::B, &uc_packet(Operation::SendOnly, 7, b"three"));
    pair.inject(Side::B, &uc_packet(Operation::SendLast, 8, b"rest"));
    // One that goes on with another kind.
    pair.inject(Side::B, &uc_packet(Operation::SendFirst, 9, &full));
    pair.inject(Side::B, &uc_packet(Operation::WriteLast, 10, b"rest"));
    assert!(!pair.node(Side::B).qp.receives_message());
    pair.inject(Side::B, &uc_packet(Operation::SendOnly, 11, b"4"));
    let received = pair.take_completions(Side::B);
    let lens: Vec<_> = received.iter().map(|c| (c.wr_id, c.byte_len)).collect();
    assert_eq!(lens, [(1, 3), (2, 3), (3, 5), (4, 1)]);
    assert_eq!(dropped(&pair, Side::B, DropReason::OutOfSequence), 4);
    assert_eq!(state(&pair, Side::B), QpState::Rts);
    assert!(pair.trace().is_empty(), "nothing was answered");
}

//= UC-13 type=test
//= UC-01 type=test
#[test]
fn uc_packets_of_wrong_length_or_kind_are_dropped_with_their_message() {
    let mut pair = uc();
    let dst = register(&pair, Side::B, 4 * PMTU);
    pair.recv(Side::B, 1, &[dst.sge()]);
    let (full, short) = (vec![1; PMTU as usize], vec![1; PMTU as usize - 4]);
    let long = vec![1; PMTU as usize + 4];
    pair.inject(Side::B, &uc_packet(Operation::SendFirst, 0, &short));
    pair.inject(Side::B, &uc_packet(Operation::SendOnly, 1, &long));
    pair.inject(Side::B, &uc_packet(Operation::SendFirst, 2, &full));
    pair.inject(Side::B, &uc_packet(Operation::SendMiddle, 3, &short));
    assert_eq!(dropped(&pair, Side::B, DropReason::Malformed), 3);
    pair.inject(Side::B, &uc_packet(Operation::SendFirst, 4, &full));
    let mut reserved = uc_packet(Operation::SendLast, 5, b"x");
    reserved[0] = 0x20 | Operation::ReadRequest.low_bits();
    pair.inject(Side::B, &reserved);
    assert_eq!(dropped(&pair, Side::B, DropReason::Reserved), 1);
    pair.inject(Side::B, &uc_packet(Operation::SendLast, 6, b"x"));
    assert!(pair.take_completions(Side::B).is_empty());
    assert_eq!(pair.node(Side::B).qp.recv_queue_len(), 1);
    let mut of_rc = uc_packet(Operation::SendOnly, 7, b"x");
    of_rc[0] = Operation::SendOnly.low_bits();
    pair.inject(Side::B, &of_rc);
    assert_eq!(dropped(&pair, Side::B, DropReason::WrongService), 1);
}

//= UC-07 type=test
//= UC-09 type=test
#[test]
fn uc_messages_without_a_fitting_receive_are_dropped() {
    let mut pair = uc();
    let src = register_filled(&pair, Side::A, 3 * PMTU, 1);
    let dst = register(&pair, Side::B, 2 * PMTU);
    pair.send(Side::A, 1, send(), &[src.part(0, 8)]);
    pair.send(Side::A, 2, send(), &[src.sge()]);
    pair.run();
    assert_eq!(
        dropped(&pair, Side::B, DropReason::NoReceive),
        2,
        "one for each first packet"
    );
    assert_eq!(dropped(&pair, Side::B, DropReason::OutOfSequence), 2);
    pair.recv(Side::B, 7, &[dst.sge()]);
    pair.send(Side::A, 3, send(), &[src.sge()]);
    pair.send(Side::A, 4, send(), &[src.part(0, 2 * PMTU)]);
    pair.run();
    assert_eq!(dropped(&pair, Side::B, DropReason::TooLong), 1);
    let received = pair.take_completions(Side::B);
    assert_eq!(statuses(&received), [(7, WcStatus::Success)]);
    // The immediate data of a WRITE needs one too; what came before it is written.
    let target = register(&pair, Side::B, 3 * PMTU);
    let (va, rkey) = (target.addr, target.rkey);
    let imm = Some([1; 4]);
    pair.send(Side::A, 5, SendOp::Write { va, rkey, imm }, &[src.sge()]);
    pair.run();
    assert_eq!(dropped(&pair, Side::B, DropReason::NoReceive), 3);
    let mem = &pair.node(Side::B).mem;
    let written = [
        pattern(3 * PMTU, 1)[..2 * PMTU as usize].to_vec(),
        vec![0; PMTU as usize],
    ];
    assert_eq!(mem.all(&target), written.concat());
    assert_eq!(pair.take_completions(Side::A).len(), 5);
    assert!(pair.take_events(Side::B).is_empty());
}

//= UC-08 type=test
#[test]
fn uc_writes_that_are_not_allowed_change_nothing() {
    for rights in [AccessFlags::empty(), AccessFlags::REMOTE_WRITE] {
        let mut pair = Pair::new(|side, setup| {
            setup.config.qp_type = QpType::Uc;
            if side == Side::B {
                setup.attr.qp_access_flags = rights;
            }
        });
        let src = register_filled(&pair, Side::A, 2 * PMTU, 1);
        let mem = &pair.node(Side::B).mem;
        let closed = mem.register(2 * PMTU, AccessFlags::LOCAL_WRITE);
        let foreign = mem.register_foreign(2 * PMTU, super::ALL);
        let open = mem.register(2 * PMTU, super::ALL);
        let small = mem.register(2 * PMTU - 1, super::ALL);
        let may_write = rights == AccessFlags::REMOTE_WRITE;
        let targets = [&closed, &foreign, &small, &open];
        for (wr_id, target) in (0u64..).zip(targets) {
            pair.send(Side::A, wr_id, write(target), &[src.sge()]);
        }
        pair.run();
        let refused = if may_write { 3 } else { 4 };
        let access = dropped(&pair, Side::B, DropReason::Access);
        // Without the right, middles and lasts are refused as what they are: of no message.
        assert_eq!(access, refused, "{rights:?}");
        let mem = &pair.node(Side::B).mem;
        for target in [&closed, &foreign, &small] {
            assert!(mem.all(target).iter().all(|&byte| byte == 0));
        }
        assert_eq!(mem.all(&open) == pattern(2 * PMTU, 1), may_write);
        assert_eq!(state(&pair, Side::B), QpState::Rts);
        assert!(pair.take_events(Side::B).is_empty());
    }
}

//= UC-10 type=test
#[test]
fn uc_a_bad_receive_buffer_ends_the_receiver() {
    let mut pair = uc();
    let src = register_filled(&pair, Side::A, 8, 1);
    let dst = register(&pair, Side::B, 8);
    let gone = register(&pair, Side::B, 8);
    pair.node(Side::B).mem.deregister(&gone);
    pair.recv(Side::B, 1, &[gone.sge()]);
    pair.recv(Side::B, 2, &[dst.sge()]);
    pair.send(Side::A, 3, send(), &[src.sge()]);
    pair.run();
    let received = pair.take_completions(Side::B);
    assert_eq!(
        statuses(&received),
        [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]
    );
    assert_eq!(state(&pair, Side::B), QpState::Err);
    assert_eq!(state(&pair, Side::A), QpState::Rts);
}

/// A pair in which A has just failed to send work request 2 of 1 to 3.
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
        // The other direction is as before.
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

/// A payload that the engine copies, and cannot any more.
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

/// In SQD a message that has begun ends, and no other begins.
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
        .poll_transmit(Time::ZERO, &node.mem, AckTiming::Now, &mut tx);
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

/// What was flushed, left or never sent is reported once each, whatever the signals ask for.
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
    assert_eq!((sent.len(), sent[0].wr_id, sent[0].slots), (1, 3, 3));
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

//= UD-07 type=test
//= UD-08 type=test
//= UD-14 type=test
//= GRH-01 type=test
//= GRH-02 type=test
#[test]
fn a_datagram_brings_its_network_header() {
    for len in [0, 1, 63, 4096] {
        let mut pair = ud();
        let src = register_filled(&pair, Side::A, len.max(1), 3);
        let dst = register(&pair, Side::B, GRH_LEN + len);
        pair.recv(Side::B, 1, &[dst.part(0, 30), dst.part(30, 10 + len)]);
        datagram(&mut pair, 2, to_b(QKEY), &[src.part(0, len)]);
        pair.run();
        assert_eq!(
            statuses(&pair.take_completions(Side::A)),
            [(2, WcStatus::Success)]
        );
        let received = pair.take_completions(Side::B);
        assert_eq!(statuses(&received), [(1, WcStatus::Success)], "{len}");
        assert_eq!(received[0].byte_len, GRH_LEN + len);
        assert_eq!(received[0].src_qp, Qpn::new(0x11));
        assert_eq!(received[0].wc_flags, WcFlags::GRH);
        let bytes = pair.node(Side::B).mem.all(&dst);
        assert_eq!(bytes[..20], [0; 20]);
        let header = &bytes[20..40];
        assert_eq!((header[0], header[8], header[9]), (0x45, 64, 17));
        assert_eq!(header[12..], [10, 0, 0, 1, 10, 0, 0, 2]);
        let total = u16::from_be_bytes([header[2], header[3]]);
        // IP, UDP, BTH, DETH, payload and pad, ICRC.
        let padded = (len + 3) & !3;
        assert_eq!(u32::from(total), 20 + 8 + 12 + 8 + padded + 4);
        let sum: u32 = header
            .chunks(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        assert_eq!(
            (sum & 0xffff) + (sum >> 16),
            0xffff,
            "the checksum is right"
        );
        assert_eq!(bytes[40..], pattern(len.max(1), 3)[..len as usize]);
        assert!(pair.trace().iter().all(|t| t.from == Side::A));
    }
}

/// A datagram for B, from anywhere.
fn ud_packet(qkey: u32, imm: Option<[u8; 4]>, payload: &[u8]) -> Vec<u8> {
    let operation = if imm.is_some() {
        Operation::SendOnlyImm
    } else {
        Operation::SendOnly
    };
    let opcode = Opcode::of(Service::Ud, operation).expect("defined");
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x22), Psn::new(0xabcdef)));
    headers.bth.pad_count = [0, 3, 2, 1][payload.len() % 4];
    headers.bth.solicited = imm.is_some();
    headers.deth = Some(Deth {
        qkey: Qkey::new(qkey),
        resv: 0,
        src_qp: Qpn::new(0x77_7777),
    });
    headers.imm = imm.map(ImmDt);
    with_payload(&headers, payload)
}

fn deliver(pair: &mut Pair, source: IpAddr, bytes: &[u8]) {
    let packet = Packet::parse(bytes).expect("a packet");
    let meta = PacketMeta {
        source,
        destination: IpAddr::from([10, 0, 0, 2]),
        traffic_class: 0x68,
        hop_limit: 3,
    };
    let now = pair.now();
    let node = pair.node_mut(Side::B);
    node.qp.handle_packet(now, &meta, &packet, &node.mem);
    pair.drain_both();
}

//= UD-11 type=test
//= UD-14 type=test
#[test]
fn anybody_may_send_a_datagram() {
    let mut pair = Pair::in_states(QpState::Rts, QpState::Rtr, |_, setup| as_ud(setup));
    let dst = register(&pair, Side::B, 64);
    pair.recv(Side::B, 1, &[dst.sge()]);
    let bytes = ud_packet(QKEY, Some([4, 3, 2, 1]), b"hello");
    deliver(&mut pair, IpAddr::from([192, 0, 2, 9]), &bytes);
    let received = pair.take_completions(Side::B);
    assert_eq!(statuses(&received), [(1, WcStatus::Success)]);
    assert_eq!(received[0].src_qp, Qpn::new(0x77_7777));
    assert_eq!(received[0].imm_or_inv, ImmOrInv::Imm([4, 3, 2, 1]));
    assert_eq!(received[0].wc_flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert!(received[0].solicited);
    let bytes = pair.node(Side::B).mem.all(&dst);
    assert_eq!(
        (bytes[21], bytes[28]),
        (0x68, 3),
        "traffic class and hop limit"
    );
    assert_eq!(bytes[32..36], [192, 0, 2, 9]);
    assert_eq!(&bytes[40..45], b"hello");
    assert!(
        pair.take_events(Side::B).is_empty(),
        "no connection is established"
    );
}

//= UD-05 type=test
//= UD-09 type=test
//= UD-10 type=test
//= UD-01 type=test
#[test]
fn datagrams_that_cannot_be_taken_are_dropped_and_counted() {
    let mut pair = ud();
    let peer = Side::A.ip();
    deliver(&mut pair, peer, &ud_packet(QKEY, None, b"x"));
    assert_eq!(dropped(&pair, Side::B, DropReason::NoReceive), 1);
    let dst = register(&pair, Side::B, 44);
    pair.recv(Side::B, 1, &[dst.sge()]);
    deliver(&mut pair, peer, &ud_packet(QKEY + 1, None, b"x"));
    assert_eq!(dropped(&pair, Side::B, DropReason::BadQkey), 1);
    deliver(&mut pair, peer, &ud_packet(QKEY, None, b"12345"));
    assert_eq!(dropped(&pair, Side::B, DropReason::TooLong), 1);
    deliver(&mut pair, peer, &ud_packet(QKEY, None, &[0; 4097]));
    assert_eq!(dropped(&pair, Side::B, DropReason::Malformed), 1);
    let mut padded = ud_packet(QKEY, None, b"");
    padded[1] |= 1 << 4;
    padded.insert(20, 0);
    deliver(&mut pair, peer, &padded);
    assert_eq!(dropped(&pair, Side::B, DropReason::Malformed), 2);
    for low in (0..32).filter(|low| !matches!(low, 4 | 5)) {
        let mut other = ud_packet(QKEY, None, b"x");
        other[0] = 0x60 | low;
        deliver(&mut pair, peer, &other);
    }
    assert_eq!(dropped(&pair, Side::B, DropReason::Reserved), 30);
    let mut of_rc = ud_packet(QKEY, None, b"x");
    of_rc[0] = 4;
    deliver(&mut pair, peer, &of_rc);
    assert_eq!(dropped(&pair, Side::B, DropReason::WrongService), 1);
    let mut foreign = ud_packet(QKEY, None, b"x");
    foreign[2..4].copy_from_slice(&[0x12, 0x34]);
    deliver(&mut pair, peer, &foreign);
    assert_eq!(dropped(&pair, Side::B, DropReason::BadPkey), 1);
    assert!(pair.take_completions(Side::B).is_empty());
    // The receive is still there.
    deliver(&mut pair, peer, &ud_packet(QKEY, None, b"1234"));
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(1, WcStatus::Success)]
    );
    assert_eq!(state(&pair, Side::B), QpState::Rts);
}

/// The receive that was too short for one message is the first of those that are flushed.
//= RC-STA-01 type=test
#[test]
fn a_receive_that_was_given_back_is_flushed_first() {
    let mut pair = ud();
    let dst = register(&pair, Side::B, 41);
    pair.recv(Side::B, 1, &[dst.sge()]);
    pair.recv(Side::B, 2, &[dst.sge()]);
    deliver(&mut pair, Side::A.ip(), &ud_packet(QKEY, None, b"long"));
    assert_eq!(pair.node(Side::B).qp.recv_queue_len(), 2);
    pair.modify(
        Side::B,
        QpState::Err,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    pair.drain_both();
    let flushed = pair.take_completions(Side::B);
    assert_eq!(
        statuses(&flushed),
        [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]
    );
}

//= UD-04 type=test
//= UD-06 type=test
#[test]
fn a_controlled_q_key_stands_for_the_senders_own() {
    for (asked, sent) in [
        (QKEY, QKEY),
        (5, 5),
        (CONTROLLED, 0x4242),
        (0xffff_ffff, 0x4242),
        (0x8001_0000, 0x4242),
    ] {
        let mut pair = Pair::new(|side, setup| {
            as_ud(setup);
            if side == Side::A {
                setup.attr.qkey = 0x4242;
            }
        });
        let src = register(&pair, Side::A, 1);
        datagram(&mut pair, 1, to_b(asked), &[src.sge()]);
        pair.run();
        let deth = pair.trace()[0].packet().headers().deth.expect("a datagram");
        assert_eq!((deth.qkey, deth.src_qp), (Qkey::new(sent), Qpn::new(0x11)));
        let taken = dropped(&pair, Side::B, DropReason::NoReceive);
        assert_eq!(taken, u64::from(sent == QKEY));
    }
}

//= UD-02 type=test
#[test]
fn a_datagram_longer_than_the_mtu_is_not_sent() {
    let mut pair = ud();
    let src = register(&pair, Side::A, 4097);
    datagram(&mut pair, 1, to_b(QKEY), &[src.part(0, 4096)]);
    datagram(&mut pair, 2, to_b(QKEY), &[src.sge()]);
    pair.run();
    let sent = pair.take_completions(Side::A);
    assert_eq!(
        statuses(&sent),
        [(1, WcStatus::Success), (2, WcStatus::LocLenErr)]
    );
    assert_eq!(pair.trace().len(), 1);
    assert_eq!(state(&pair, Side::A), QpState::Sqe);
}

//= UD-03 type=test
//= UD-11 type=test
#[test]
fn a_run_takes_one_route_and_may_have_many_destinations() {
    let setup = {
        let mut setup = Setup::new(0x11, Side::A.ip(), 0, Side::B.ip());
        as_ud(&mut setup);
        setup
    };
    let mut qp = setup.build(QpState::Rts);
    let mem = TestMemory::new();
    let src = mem.register(64, AccessFlags::empty());
    let routes = [7, 7, 8, 8, 7];
    for (index, &route) in (0u32..).zip(&routes) {
        let to = Destination {
            route: RouteTag(route),
            dest_qp: Qpn::new(index),
            qkey: Qkey::new(0),
        };
        let wr = wr(index.into(), send(), &[]);
        let wr = SendWr {
            sges: &[src.sge()],
            ..wr
        };
        qp.post_datagram(Time::ZERO, &wr, to, None).unwrap();
    }
    assert_eq!(
        qp.queued_routes().map(|tag| tag.0).collect::<Vec<_>>(),
        routes
    );
    let mut tx = TxBuffer::new(65_000, 64);
    let mut runs = Vec::new();
    let mut psn = Psn::new(setup.attr.sq_psn);
    loop {
        tx.clear();
        qp.poll_transmit(Time::ZERO, &mem, AckTiming::Now, &mut tx);
        // What was in the buffer before is complete, and nothing else.
        assert_eq!(
            qp.pending_completions().len(),
            runs.iter().map(Vec::len).sum()
        );
        if tx.is_empty() {
            break;
        }
        let mut run = Vec::new();
        let route = tx.route().0;
        tx.for_each_segment(|segment, _| {
            let packet = Packet::parse(segment).unwrap();
            assert_eq!(packet.bth().psn, psn);
            psn = psn.next();
            run.push((route, packet.bth().dest_qp.get()));
        });
        runs.push(run);
    }
    assert_eq!(
        runs,
        [vec![(7, 0), (7, 1)], vec![(8, 2), (8, 3)], vec![(7, 4)]]
    );
}

/// Attributes of each type, and only those.
//= UD-13 type=test
#[test]
fn a_datagram_queue_pair_needs_a_q_key_and_no_peer() {
    let mut setup = Setup::new(0x11, Side::A.ip(), 0, Side::B.ip());
    as_ud(&mut setup);
    let mut qp = setup.build(QpState::Reset);
    let attr = |state: QpState| QpAttr {
        qp_state: state.code(),
        ..setup.attr
    };
    let init = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    let context = context(setup.local);
    let mut modify = |state, mask| qp.modify(Time::ZERO, &attr(state), mask, &context).is_ok();
    assert!(!modify(QpState::Init, init));
    assert!(!modify(
        QpState::Init,
        init | QpAttrMask::QKEY | QpAttrMask::ACCESS_FLAGS
    ));
    assert!(modify(QpState::Init, init | QpAttrMask::QKEY));
    assert!(!modify(QpState::Rtr, QpAttrMask::STATE | QpAttrMask::AV));
    assert!(modify(QpState::Rtr, QpAttrMask::STATE));
    assert!(modify(QpState::Rts, QpAttrMask::STATE | QpAttrMask::SQ_PSN));
}

/// A reset forgets the message in progress, the receive that was given back, and what waits.
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
