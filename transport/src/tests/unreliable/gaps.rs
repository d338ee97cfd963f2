//! Messages of UC that lose packets or are refused midway, and packets that were sent when a queue
//! ends.

use rocade_wire::{Reth, Rkey};

use super::*;
use crate::{Bind, WindowKind};

/// Returns a packet of a WRITE to B as A would send it. Only the first has a RETH.
fn uc_write(operation: Operation, psn: u32, reth: Option<Reth>, payload: &[u8]) -> Vec<u8> {
    let opcode = Opcode::of(Service::Uc, operation).expect("defined");
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x22), Psn::new(psn)));
    headers.bth.pad_count = Bth::pad_for(payload.len());
    headers.reth = reth;
    headers.imm = operation.has_imm().then_some(ImmDt([9; 4]));
    with_payload(&headers, payload)
}

/// Checks a gap that is followed by packets of another WRITE that would fit in place of the lost
/// ones.
//= UC-03 UC-05 type=test
#[test]
fn uc_a_gap_ends_a_write() {
    // The PSN of the last packet that is lost, or 0 if none is.
    for lost in [0, 1, 7] {
        let mut pair = uc();
        let target = register(&pair, Side::B, 3 * PMTU);
        pair.recv(Side::B, 1, &[]);
        let reth = Reth {
            va: target.addr,
            rkey: target.rkey,
            dma_len: 3 * PMTU,
        };
        let full = |byte| vec![byte; PMTU as usize];
        let first = uc_write(Operation::WriteFirst, 0, Some(reth), &full(1));
        pair.inject(Side::B, &first);
        assert!(pair.node(Side::B).qp.receives_message());
        let middle = uc_write(Operation::WriteMiddle, lost + 1, None, &full(2));
        pair.inject(Side::B, &middle);
        let last = uc_write(Operation::WriteLastImm, lost + 2, None, &full(3));
        pair.inject(Side::B, &last);
        assert!(!pair.node(Side::B).qp.receives_message());
        let (written, received, dropped_packets) = match lost {
            0 => ([1, 2, 3], 1, 0),
            _ => ([1, 0, 0], 0, 2),
        };
        let mem = &pair.node(Side::B).mem;
        assert_eq!(mem.all(&target), written.map(full).concat(), "{lost}");
        assert_eq!(pair.take_completions(Side::B).len(), received);
        assert_eq!(pair.node(Side::B).qp.recv_queue_len(), 1 - received);
        let dropped = dropped(&pair, Side::B, DropReason::OutOfSequence);
        assert_eq!(dropped, dropped_packets);
    }
}

/// Checks that a packet that the network repeats does not continue the message either.
//= UC-04 type=test
#[test]
fn uc_a_repeated_packet_ends_a_write() {
    let mut pair = uc();
    let target = register(&pair, Side::B, 4 * PMTU);
    let reth = Reth {
        va: target.addr,
        rkey: target.rkey,
        dma_len: 4 * PMTU,
    };
    let full = |byte| vec![byte; PMTU as usize];
    let first = uc_write(Operation::WriteFirst, 0, Some(reth), &full(1));
    let middle = uc_write(Operation::WriteMiddle, 1, None, &full(2));
    for packet in [&first, &middle, &middle] {
        pair.inject(Side::B, packet);
    }
    assert!(!pair.node(Side::B).qp.receives_message());
    let expected = [full(1), full(2), full(0), full(0)].concat();
    assert_eq!(pair.node(Side::B).mem.all(&target), expected);
}

/// Checks that the first packet determines the length of a WRITE.
//= UC-08 UC-13 type=test
#[test]
fn uc_a_write_of_another_length_than_announced_is_dropped() {
    let full = vec![7; PMTU as usize];
    for (announced, ends_with) in [
        (PMTU - 1, Operation::WriteMiddle),
        (2 * PMTU - 1, Operation::WriteMiddle),
        (2 * PMTU - 1, Operation::WriteLastImm),
        (3 * PMTU, Operation::WriteLastImm),
    ] {
        let mut pair = uc();
        let target = register(&pair, Side::B, 3 * PMTU);
        pair.recv(Side::B, 1, &[]);
        let reth = Reth {
            va: target.addr,
            rkey: target.rkey,
            dma_len: announced,
        };
        let first = uc_write(Operation::WriteFirst, 0, Some(reth), &full);
        pair.inject(Side::B, &first);
        pair.inject(Side::B, &uc_write(ends_with, 1, None, &full));
        let malformed = dropped(&pair, Side::B, DropReason::Malformed);
        assert_eq!(malformed, 1, "{announced} {ends_with:?}");
        assert!(!pair.node(Side::B).qp.receives_message());
        assert!(pair.take_completions(Side::B).is_empty());
        assert_eq!(pair.node(Side::B).qp.recv_queue_len(), 1);
        // The bytes after the announced ones are unchanged.
        let begin = PMTU * u32::from(announced >= PMTU);
        let range = begin as usize..3 * PMTU as usize;
        let behind = pair.node(Side::B).mem.bytes(&target, range);
        assert!(behind.iter().all(|byte| *byte == 0), "{announced}");
    }
}

/// Checks that key and address of a WRITE of length 0 are ignored.
//= RC-SEG-02 UC-13 type=test
#[test]
fn uc_a_write_of_nothing_needs_no_key() {
    let mut pair = uc();
    pair.recv(Side::B, 1, &[]);
    let nowhere = SendOp::Write {
        va: 0,
        rkey: Rkey::new(0),
        imm: Some([1; 4]),
    };
    pair.send(Side::A, 2, nowhere, &[]);
    pair.run();
    let received = pair.take_completions(Side::B);
    assert_eq!(statuses(&received), [(1, WcStatus::Success)]);
    assert_eq!(dropped(&pair, Side::B, DropReason::Access), 0);
}

/// Checks memory that becomes inaccessible between the first packet and the one that consumes the
/// receive. The next message gets the receive.
//= UC-06 UC-08 type=test
#[test]
fn uc_a_refused_write_with_immediate_keeps_its_receive() {
    for packets in [1, 2, 3] {
        let mut pair = uc();
        let len = packets * PMTU;
        let target = register(&pair, Side::B, len);
        let src = register_filled(&pair, Side::A, len, 1);
        let [dst, other] = [register(&pair, Side::B, 8), register(&pair, Side::B, 8)];
        pair.recv(Side::B, 7, &[dst.sge()]);
        pair.recv(Side::B, 8, &[other.sge()]);
        pair.node(Side::B).mem.unmap(&target, (len - PMTU) as usize);
        let (va, rkey, imm) = (target.addr, target.rkey, Some([9; 4]));
        pair.send(Side::A, 1, SendOp::Write { va, rkey, imm }, &[src.sge()]);
        pair.run();
        assert_eq!(dropped(&pair, Side::B, DropReason::Access), 1);
        assert!(pair.take_completions(Side::B).is_empty());
        assert_eq!(pair.node(Side::B).qp.recv_queue_len(), 2);
        for wr_id in 2..=3 {
            pair.send(Side::A, wr_id, send(), &[src.part(0, 8)]);
        }
        pair.run();
        let expected = [(7, WcStatus::Success), (8, WcStatus::Success)];
        assert_eq!(statuses(&pair.take_completions(Side::B)), expected);
        assert_eq!(pair.node(Side::B).mem.all(&dst), pattern(len, 1)[..8]);
    }
}

/// Checks that solicited messages are reported as such.
//= RC-WQE-08 type=test
#[test]
fn uc_only_what_completes_a_receive_is_solicited() {
    let mut pair = uc();
    let [dst, src] = [Side::B, Side::A].map(|side| register(&pair, side, 8));
    let (va, rkey) = (dst.addr, dst.rkey);
    let imm = Some([9; 4]);
    let sges = [src.sge()];
    for (wr_id, op, is_solicited) in [
        (1, send(), true),
        (2, SendOp::Write { va, rkey, imm }, true),
        (3, write(&dst), false),
    ] {
        pair.recv(Side::B, wr_id, &[dst.sge()]);
        pair.clear_trace();
        let wr = SendWr {
            flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
            ..wr(wr_id, op, &sges)
        };
        pair.try_send(Side::A, &wr).unwrap();
        pair.run();
        let bit = pair.trace()[0].packet().bth().solicited;
        assert_eq!(bit, is_solicited, "{op:?}");
        let received = pair.take_completions(Side::B);
        assert!(received.iter().all(|completion| completion.solicited));
        assert_eq!(received.len(), usize::from(is_solicited));
    }
}

/// Calls `poll_transmit` of A once, with room for all packets, which are not passed on yet.
fn fill(pair: &mut Pair) -> TxBuffer {
    let mut tx = TxBuffer::new(8 * PMTU as usize, 64);
    let node = pair.node_mut(Side::A);
    node.qp
        .poll_transmit(Time::ZERO, &node.mem, AckPlacement::First, &mut tx);
    assert!(!tx.is_empty());
    tx
}

//= RC-WQE-05 type=test
#[test]
fn uc_an_invalidation_waits_for_what_is_before_it() {
    let mut pair = uc();
    let region = pair
        .node(Side::A)
        .mem
        .register(8, super::super::ALL | AccessFlags::MW_BIND);
    let window = pair.node(Side::A).mem.alloc_window(WindowKind::Type2);
    let rkey = window.with_next_tag();
    let bind = SendOp::Bind(Bind {
        rkey,
        lkey: region.lkey,
        va: region.addr,
        len: 8,
        access: AccessFlags::REMOTE_WRITE,
    });
    pair.send(Side::A, 1, bind, &[]);
    pair.drain_both();
    assert_eq!(pair.take_completions(Side::A).len(), 1);
    pair.send(Side::A, 2, send(), &[region.sge()]);
    pair.send(Side::A, 3, SendOp::Invalidate { rkey }, &[]);
    pair.send(Side::A, 4, send(), &[region.sge()]);
    let mut tx = fill(&mut pair);
    // The first SEND may not have been sent yet.
    assert!(pair.node(Side::A).mem.is_bound(rkey));
    assert_eq!(tx.segments(), 1);
    tx.clear();
    let node = pair.node_mut(Side::A);
    node.qp
        .poll_transmit(Time::ZERO, &node.mem, AckPlacement::First, &mut tx);
    assert!(!node.mem.is_bound(rkey));
    assert_eq!(tx.segments(), 1, "the other SEND follows");
    pair.run();
    let done = pair.take_completions(Side::A);
    let expected = [2, 3, 4].map(|wr_id| (wr_id, WcStatus::Success));
    assert_eq!(statuses(&done), expected);
}

/// Checks that messages are complete if all their packets were handed out. The one in progress and
/// later ones are not.
//= RC-STA-01 UC-02 UD-12 type=test
#[test]
fn what_has_left_is_complete_when_the_queue_is_flushed() {
    for of in [uc as fn() -> Pair, ud] {
        let mut pair = of();
        let is_uc = pair.node(Side::A).qp.config().qp_type == QpType::Uc;
        let src = register(&pair, Side::A, 100 * PMTU);
        for wr_id in 1..=2 {
            if is_uc {
                pair.send(Side::A, wr_id, send(), &[src.part(0, 8)]);
            } else {
                datagram(&mut pair, wr_id, to_b(QKEY), &[src.part(0, 8)]);
            }
        }
        if is_uc {
            pair.send(Side::A, 3, send(), &[src.sge()]);
        }
        fill(&mut pair);
        if !is_uc {
            datagram(&mut pair, 3, to_b(QKEY), &[src.part(0, 8)]);
        }
        pair.modify(
            Side::A,
            QpState::Err,
            QpAttrMask::empty(),
            &QpAttr::default(),
        );
        pair.drain_both();
        let expected = [
            (1, WcStatus::Success),
            (2, WcStatus::Success),
            (3, WcStatus::WrFlushErr),
        ];
        assert_eq!(statuses(&pair.take_completions(Side::A)), expected);
    }
}

/// Checks that the receive of the message in progress is flushed before those that were posted
/// later.
//= RC-STA-01 UC-06 type=test
#[test]
fn uc_receives_are_flushed_in_the_order_of_their_posting() {
    for is_abandoned in [false, true] {
        let mut pair = uc();
        let dst = register(&pair, Side::B, 2 * PMTU);
        for wr_id in 1..=3 {
            pair.recv(Side::B, wr_id, &[dst.sge()]);
        }
        let full = vec![1; PMTU as usize];
        pair.inject(Side::B, &uc_packet(Operation::SendFirst, 0, &full));
        if is_abandoned {
            pair.inject(Side::B, &uc_packet(Operation::SendMiddle, 9, &full));
        }
        assert_eq!(pair.node(Side::B).qp.receives_message(), !is_abandoned);
        pair.modify(
            Side::B,
            QpState::Err,
            QpAttrMask::empty(),
            &QpAttr::default(),
        );
        pair.drain_both();
        let expected = [1, 2, 3].map(|wr_id| (wr_id, WcStatus::WrFlushErr));
        assert_eq!(statuses(&pair.take_completions(Side::B)), expected);
    }
}
