//! Tests that apply to UC only.

use super::*;

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
            assert!(pair.trace().iter().all(|t| t.from == Side::A), "no answers");
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
        pair.set_network(move |event| {
            if event.index == lost {
                Delivery::Drop
            } else {
                Delivery::Deliver
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
        assert_eq!(pair.take_completions(Side::A).len(), 2, "both were sent");
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
        pair.set_network(move |event| {
            if event.index == lost {
                Delivery::Drop
            } else {
                Delivery::Deliver
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
        assert_eq!(received[0].byte_len, 8, "the length of the second");
    }
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
    // The expected PSN does not matter.
    pair.inject(Side::B, &uc_packet(Operation::SendMiddle, 77, &full));
    pair.inject(Side::B, &uc_packet(Operation::SendLast, 78, b"end"));
    assert_eq!(dropped(&pair, Side::B, DropReason::OutOfSequence), 2);
    pair.inject(Side::B, &uc_packet(Operation::SendOnly, 5, b"one"));
    // The same packet twice is two messages.
    pair.inject(Side::B, &uc_packet(Operation::SendOnly, 5, b"one"));
    // One message interrupts another, in PSN order.
    pair.inject(Side::B, &uc_packet(Operation::SendFirst, 6, &full));
    assert!(pair.node(Side::B).qp.receives_message());
    pair.inject(Side::B, &uc_packet(Operation::SendOnly, 7, b"three"));
    pair.inject(Side::B, &uc_packet(Operation::SendLast, 8, b"rest"));
    // A message continues with packets of another kind.
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
    // The immediate data of a WRITE needs a receive, too. The data before it is written.
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
        let foreign = mem.register_foreign(2 * PMTU, super::super::ALL);
        let open = mem.register(2 * PMTU, super::super::ALL);
        let small = mem.register(2 * PMTU - 1, super::super::ALL);
        let may_write = rights == AccessFlags::REMOTE_WRITE;
        let targets = [&closed, &foreign, &small, &open];
        for (wr_id, target) in (0u64..).zip(targets) {
            pair.send(Side::A, wr_id, write(target), &[src.sge()]);
        }
        pair.run();
        let refused = if may_write { 3 } else { 4 };
        let access = dropped(&pair, Side::B, DropReason::Access);
        // Without the right, Middle and Last are refused because they belong to no message.
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
