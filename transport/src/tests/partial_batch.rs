//! Memory that is unmapped while it is registered: checks succeed, accesses fail.

use alloc::vec::Vec;

use rocade_wire::{Operation, Packet};

use super::{PMTU, operations, pattern, read, register, register_filled, send, statuses, write};
use crate::testing::{Delivery, Pair, Region, Side};
use crate::{PacketMeta, QpEvent, QpState, SendFlags, SendOp, SendWr, WcStatus};

const OK: WcStatus = WcStatus::Success;
const LOST: WcStatus = WcStatus::LocProtErr;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;

//= RC-REQ-14 type=test
//= ODP-04 type=test
#[test]
fn a_request_whose_data_is_gone_fails_alone() {
    // Short and long payloads, in the first packet and in the middle.
    for (len, left) in [
        (8, 0),
        (8, 4),
        (PMTU, 0),
        (PMTU, PMTU - 1),
        (10 * PMTU, 0),
        (10 * PMTU, 3 * PMTU),
        (10 * PMTU, 3 * PMTU + 1),
        (200 * PMTU, 150 * PMTU),
        (5 * PMTU + 8, 0),
        (5 * PMTU + 8, 3 * PMTU + 5),
    ] {
        let mut pair = Pair::default();
        let (good, bad) = (
            register_filled(&pair, Side::A, 5 * PMTU, 1),
            register_filled(&pair, Side::A, len, 2),
        );
        let dst = register(&pair, Side::B, 300 * PMTU);
        pair.node(Side::A).mem.unmap(&bad, left as usize);
        // Requests before and after it, and the response to a request of the peer.
        let theirs = register_filled(&pair, Side::B, 8, 3);
        let ours = register(&pair, Side::A, 8);
        pair.send(Side::B, 1, write(&ours), &[theirs.sge()]);
        pair.send(Side::A, 1, write(&dst), &[good.sge()]);
        pair.send(Side::A, 2, write(&dst), &[bad.sge()]);
        pair.send(Side::A, 3, write(&dst), &[good.sge()]);
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(
            statuses(&done),
            [(1, OK), (2, LOST), (3, FLUSHED)],
            "{len} {left}"
        );
        assert_eq!(pair.node(Side::A).qp.state(), QpState::Err);
        assert_eq!(statuses(&pair.take_completions(Side::B)), [(1, OK)]);
        let mem = &pair.node(Side::B).mem;
        // All bytes that were still readable have arrived, and none of the packet that was not.
        let arrived = (left / PMTU * PMTU) as usize;
        assert_eq!(mem.bytes(&dst, 0..arrived), pattern(len, 2)[..arrived]);
        assert_eq!(
            mem.bytes(&dst, arrived.max(5 * PMTU as usize)..300 * PMTU as usize),
            alloc::vec![0; 300 * PMTU as usize - arrived.max(5 * PMTU as usize)]
        );
    }
}

//= RC-REQ-14 type=test
#[test]
fn what_was_lost_before_it_is_repeated_first() {
    let mut pair = Pair::default();
    let good = register_filled(&pair, Side::A, 5 * PMTU, 1);
    let bad = register_filled(&pair, Side::A, 5 * PMTU, 2);
    let dst = register(&pair, Side::B, 10 * PMTU);
    pair.node(Side::A).mem.unmap(&bad, 0);
    pair.recv(Side::B, 1, &[dst.sge()]);
    let mut left = 7;
    pair.set_network(move |_| {
        left -= 1;
        if left >= 0 {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    pair.send(Side::A, 1, send(), &[good.sge()]);
    pair.send(Side::A, 2, send(), &[bad.sge()]);
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(1, OK), (2, LOST)]);
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(1, OK)]);
}

//= RC-RSP-22 type=test
//= ODP-04 type=test
#[test]
fn a_read_of_memory_that_is_gone_is_refused() {
    for (len, left) in [
        (8, 0),
        (PMTU, PMTU / 2),
        (10 * PMTU, 0),
        (10 * PMTU, 4 * PMTU + 5),
        (200 * PMTU, 150 * PMTU),
        // The short last packet is read at once, and found unreadable before those that are read
        // later.
        (5 * PMTU + 8, 0),
        (5 * PMTU + 8, 3 * PMTU + 5),
        (8 * PMTU + 8, 8 * PMTU),
        (200 * PMTU + 1, 150 * PMTU),
    ] {
        let mut pair = Pair::default();
        let src = register_filled(&pair, Side::B, len, 2);
        let dst = register(&pair, Side::A, len);
        let scratch = register(&pair, Side::B, 8);
        pair.node(Side::B).mem.unmap(&src, left as usize);
        pair.send(Side::A, 1, write(&scratch), &[dst.part(0, 8)]);
        pair.send(Side::A, 2, read(&src), &[dst.sge()]);
        pair.send(Side::A, 3, write(&scratch), &[dst.part(0, 8)]);
        pair.run();
        let done = pair.take_completions(Side::A);
        let expected = [(1, OK), (2, WcStatus::RemAccessErr), (3, FLUSHED)];
        assert_eq!(statuses(&done), expected, "{len} {left}");
        let there = (left / PMTU * PMTU) as usize;
        let mem = &pair.node(Side::A).mem;
        assert_eq!(mem.bytes(&dst, 0..there), pattern(len, 2)[..there]);
        assert_eq!(pair.take_events(Side::B), [QpEvent::AccessErr]);
        assert_eq!(pair.node(Side::B).qp.state(), QpState::Err);
        // The NAK has the PSN of the response that it replaces, and is the last packet that was
        // sent.
        let last = operations(&pair, Side::B).pop();
        assert_eq!(last, Some((Operation::Acknowledge, 1 + left / PMTU)));
    }
}

/// Checks a READ whose data is unreadable after a later request has already moved the responder to
/// ERR.
//= RC-RSP-22 type=test
#[test]
fn a_read_is_refused_although_a_later_request_was_refused_before() {
    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::B, 5 * PMTU, 2);
    let dst = register(&pair, Side::A, 5 * PMTU);
    let beyond = Region {
        addr: src.addr + u64::from(5 * PMTU),
        ..src
    };
    pair.node(Side::B).mem.unmap(&src, 2 * PMTU as usize);
    // Both arrive before the responder transmits.
    pair.send(Side::A, 1, read(&src), &[dst.sge()]);
    pair.send(Side::A, 2, write(&beyond), &[dst.part(0, 8)]);
    pair.run();
    let done = pair.take_completions(Side::A);
    let expected = [(1, WcStatus::RemAccessErr), (2, FLUSHED)];
    assert_eq!(statuses(&done), expected);
    assert_eq!(pair.take_events(Side::B), [QpEvent::AccessErr]);
    assert_eq!(pair.node(Side::B).qp.state(), QpState::Err);
    let last = operations(&pair, Side::B).pop();
    assert_eq!(last, Some((Operation::Acknowledge, 2)));
}

//= RC-DUP-06 type=test
#[test]
fn a_repeated_read_of_memory_that_is_gone_is_dropped() {
    // A part of the longer READ is not sent yet when the first packets are found unreadable.
    for packets in [10, 100] {
        let mut pair = Pair::default();
        let src = register_filled(&pair, Side::B, packets * PMTU, 2);
        let dst = register(&pair, Side::A, packets * PMTU);
        // The answer is lost.
        pair.set_network(|event| {
            if event.from == Side::B {
                Delivery::Drop
            } else {
                Delivery::Deliver
            }
        });
        pair.send(Side::A, 1, read(&src), &[dst.sge()]);
        pair.drain_both();
        while operations(&pair, Side::B).len() < packets as usize && pair.step() {}
        pair.node(Side::B).mem.unmap(&src, 5 * PMTU as usize);
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(1, WcStatus::RetryExcErr)]);
        assert_eq!(pair.node(Side::B).qp.state(), QpState::Rts);
        let sent: Vec<_> = operations(&pair, Side::B)
            .into_iter()
            .skip(packets as usize)
            .map(|(operation, psn)| (operation == Operation::Acknowledge, psn))
            .collect();
        // From the first to the last readable packet, repeatedly.
        assert!(!sent.is_empty());
        assert!(sent.iter().all(|&(nak, psn)| !nak && psn < 5), "{sent:?}");
    }
}

//= RC-RSP-08 type=test
//= RC-RSP-12 type=test
//= RC-REQ-13 type=test
//= ODP-04 type=test
#[test]
fn writing_to_memory_that_is_gone() {
    for len in [8, 3 * PMTU] {
        let op = |to: &Region| {
            [
                write(to),
                SendOp::FetchAdd {
                    va: to.addr,
                    rkey: to.rkey,
                    add: 1,
                },
            ]
        };
        for which in 0..2 {
            let mut pair = Pair::default();
            let src = register_filled(&pair, Side::A, len, 1);
            let dst = register(&pair, Side::B, len);
            pair.node(Side::B).mem.unmap(&dst, 0);
            let sge = if which == 0 {
                src.sge()
            } else {
                src.part(0, 8)
            };
            pair.send(Side::A, 1, op(&dst)[which], &[sge]);
            pair.run();
            let done = pair.take_completions(Side::A);
            assert_eq!(statuses(&done), [(1, WcStatus::RemAccessErr)]);
        }
        // Into a receive buffer.
        let mut pair = Pair::default();
        let src = register_filled(&pair, Side::A, len, 1);
        let dst = register(&pair, Side::B, len);
        pair.node(Side::B).mem.unmap(&dst, 0);
        pair.recv(Side::B, 7, &[dst.sge()]);
        pair.send(Side::A, 1, send(), &[src.sge()]);
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(1, WcStatus::RemOpErr)]);
        assert_eq!(statuses(&pair.take_completions(Side::B)), [(7, LOST)]);
        // Results of READs.
        let mut pair = Pair::default();
        let src = register_filled(&pair, Side::B, len, 1);
        let dst = register(&pair, Side::A, len);
        pair.node(Side::A).mem.unmap(&dst, 0);
        pair.send(Side::A, 1, read(&src), &[dst.sge()]);
        pair.run();
        assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, LOST)]);
    }
}

/// Delivers the first packet that A has sent to B. B posts a SEND before it answers, so that both
/// are in one batch.
fn answer_with_a_send(pair: &mut Pair, own: &Region) {
    let bytes = pair.trace()[0].bytes.clone();
    let packet = Packet::parse(&bytes).expect("a valid packet");
    let now = pair.now();
    let meta = PacketMeta {
        source: Side::A.ip(),
        destination: Side::B.ip(),
        traffic_class: 0,
        hop_limit: 64,
    };
    let node = pair.node_mut(Side::B);
    node.qp.handle_packet(now, &meta, &packet, &node.mem);
    let wr = SendWr {
        wr_id: 9,
        op: send(),
        flags: SendFlags::SIGNALED,
        sges: &[own.sge()],
    };
    node.qp.post_send(now, &wr, None).expect("accepted");
}

/// Checks a SEND of the responder behind the response that cannot be read: the queue pair has
/// failed, so the SEND does not arrive.
//= RC-RSP-22 type=test
//= RC-STA-02 type=test
#[test]
fn a_request_behind_a_refused_read_is_not_sent() {
    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::B, 5 * PMTU, 2);
    let own = register_filled(&pair, Side::B, 8, 3);
    let dst = register(&pair, Side::A, 5 * PMTU);
    pair.recv(Side::A, 7, &[dst.part(0, 8)]);
    pair.node(Side::B).mem.unmap(&src, 2 * PMTU as usize);
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, read(&src), &[dst.sge()]);
    pair.drain_both();
    pair.heal();
    answer_with_a_send(&mut pair, &own);
    pair.run();
    let sent: Vec<_> = operations(&pair, Side::B);
    let expected = [
        (Operation::ReadResponseFirst, 0),
        (Operation::ReadResponseMiddle, 1),
        (Operation::Acknowledge, 2),
    ];
    assert_eq!(sent, expected, "{}", pair.trace_text());
    let done = statuses(&pair.take_completions(Side::A));
    assert_eq!(done, [(1, WcStatus::RemAccessErr), (7, FLUSHED)]);
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(9, FLUSHED)]);
}

/// Checks the same SEND behind a repeated response, whose loss is no error.
//= RC-DUP-06 type=test
#[test]
fn a_request_behind_a_lost_repetition_is_sent() {
    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::B, 5 * PMTU, 2);
    let own = register_filled(&pair, Side::B, 8, 3);
    let dst = register(&pair, Side::A, 5 * PMTU);
    pair.recv(Side::A, 7, &[dst.part(0, 8)]);
    pair.send(Side::A, 1, read(&src), &[dst.sge()]);
    pair.run();
    pair.node(Side::B).mem.unmap(&src, 2 * PMTU as usize);
    answer_with_a_send(&mut pair, &own);
    pair.run_for(20_000);
    let done = statuses(&pair.take_completions(Side::A));
    assert_eq!(done, [(1, OK), (7, OK)], "{}", pair.trace_text());
    assert_eq!(pair.node(Side::B).qp.state(), QpState::Rts);
}
