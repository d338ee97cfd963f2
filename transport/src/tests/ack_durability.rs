//! ACKs at the end of a QP: all messages whose completions were handed out are acknowledged, and no
//! others.

use alloc::vec::Vec;

use rocade_wire::{FastPathPacket, Operation, Packet};

use super::{operations, read, register, register_filled, send, statuses, write};
use crate::testing::{Delivery, Pair, Side};
use crate::{PacketMeta, QpAttr, QpAttrMask, QpState, WcStatus};

const NO_MORE: QpAttrMask = QpAttrMask::empty();

/// Creates a pair whose B has completed the first of two messages and delays its ACK. The second
/// message is dropped.
fn holding() -> Pair {
    let mut pair = Pair::default();
    pair.set_ack_delay(1_000_000_000);
    let (here, there) = (register(&pair, Side::A, 8), register(&pair, Side::B, 8));
    for wr_id in [1, 2] {
        pair.recv(Side::B, wr_id, &[there.sge()]);
    }
    pair.send(Side::A, 1, send(), &[here.sge()]);
    pair.run_for(10_000);
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(1, WcStatus::Success)]
    );
    assert_eq!(operations(&pair, Side::B), []);
    pair.set_network(|event| {
        if event.from == Side::A {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    pair.send(Side::A, 2, send(), &[here.sge()]);
    pair.run_for(10_000);
    pair
}

/// Asserts that A receives the ACK of the first message only.
fn assert_first_acknowledged(pair: &mut Pair) {
    pair.drain_both();
    pair.run_for(10_000);
    assert_eq!(
        operations(pair, Side::B),
        [(Operation::Acknowledge, 0)],
        "{}",
        pair.trace_text()
    );
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [(1, WcStatus::Success)]
    );
}

#[test]
fn a_held_acknowledgement_survives_the_error_state() {
    let mut pair = holding();
    pair.modify(Side::B, QpState::Err, NO_MORE, &QpAttr::default());
    assert_first_acknowledged(&mut pair);
}

#[test]
fn a_lost_completion_is_not_acknowledged_but_those_before_are() {
    let mut pair = holding();
    let second = pair.trace().last().map(|traced| traced.bytes.clone());
    let now = pair.now();
    let meta = PacketMeta {
        source: Side::A.ip(),
        destination: Side::B.ip(),
        traffic_class: 0,
        hop_limit: 64,
    };
    let node = pair.node_mut(Side::B);
    let bytes = second.expect("it was sent");
    let packet = Packet::parse(&bytes).expect("a valid packet");
    node.qp.handle_packet(now, &meta, &packet, &node.mem);
    assert_eq!(node.qp.pending_completions().len(), 1);
    // There is no room for its completion.
    node.qp.set_fatal(now, 0);
    assert_first_acknowledged(&mut pair);
}

/// Creates a pair whose B has received three messages, on the fast or the slow path, whose
/// completions were not handed out. B may also have received a request that it refuses, and the
/// packets may be marked, so that a notification is to be sent before the ACK.
fn received(is_fast: bool, and_nonsense: bool, are_marked: bool) -> Pair {
    let mut pair = Pair::default();
    pair.set_ack_delay(1_000_000_000);
    let (here, there) = (register(&pair, Side::A, 8), register(&pair, Side::B, 8));
    pair.set_network(|_| Delivery::Drop);
    for wr_id in [1, 2, 3] {
        pair.recv(Side::B, wr_id, &[there.sge()]);
        pair.send(Side::A, wr_id, send(), &[here.sge()]);
    }
    if and_nonsense {
        let mut nowhere = there;
        nowhere.rkey = rocade_wire::Rkey::new(!there.rkey.get());
        pair.send(Side::A, 4, write(&nowhere), &[here.sge()]);
    }
    pair.run_for(10_000);
    let requests: Vec<_> = pair.trace().iter().map(|t| t.bytes.clone()).collect();
    let now = pair.now();
    let meta = PacketMeta {
        source: Side::A.ip(),
        destination: Side::B.ip(),
        traffic_class: 0,
        hop_limit: 64,
    };
    let meta = PacketMeta {
        traffic_class: if are_marked { 3 } else { 0 },
        ..meta
    };
    let node = pair.node_mut(Side::B);
    node.qp.control_congestion(are_marked);
    for bytes in &requests {
        let packet = Packet::parse(bytes).expect("a valid packet");
        let fast = FastPathPacket::parse(bytes).filter(|_| is_fast);
        if !fast.is_some_and(|fast| node.qp.handle_fast(now, &meta, &fast, &node.mem)) {
            node.qp.handle_packet(now, &meta, &packet, &node.mem);
        }
    }
    let fast_path_packets = if is_fast && !are_marked { 3 } else { 0 };
    assert_eq!(node.qp.counters().fast_path_packets, fast_path_packets);
    assert_eq!(node.qp.pending_completions().len(), 3);
    pair.set_network(|_| Delivery::Deliver);
    pair
}

//= RC-ACK-20 type=test
//= RC-ERR-G type=test
#[test]
fn of_several_messages_those_are_acknowledged_whose_completions_find_space() {
    for kind in 0..8 {
        for room in 0..3u8 {
            let mut pair = received(kind & 1 != 0, kind & 2 != 0, kind & 4 != 0);
            let now = pair.now();
            pair.node_mut(Side::B).qp.set_fatal(now, room.into());
            pair.drain_both();
            pair.run_for(10_000);
            let acks = room
                .checked_sub(1)
                .map(|psn| (Operation::Acknowledge, psn.into()));
            let sent = operations(&pair, Side::B);
            assert_eq!(sent, Vec::from_iter(acks), "{}", pair.trace_text());
            let done = (1..=u64::from(room)).map(|wr_id| (wr_id, WcStatus::Success));
            let seen = statuses(&pair.take_completions(Side::A));
            assert_eq!(seen, done.collect::<Vec<_>>());
        }
    }
}

/// Checks that completions that the caller took all at once, and removed, count as handed out.
//= RC-ACK-20 type=test
#[test]
fn what_was_taken_at_once_is_acknowledged() {
    for (is_fast, are_marked) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut pair = received(is_fast, false, are_marked);
        let now = pair.now();
        let qp = &mut pair.node_mut(Side::B).qp;
        qp.forget_completions();
        qp.set_fatal(now, 0);
        pair.drain_both();
        pair.run_for(10_000);
        let sent = operations(&pair, Side::B);
        assert_eq!(sent, [(Operation::Acknowledge, 2)]);
        let done = [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success));
        assert_eq!(statuses(&pair.take_completions(Side::A)), done);
    }
}

#[test]
fn nothing_is_acknowledged_past_a_read_that_is_not_answered() {
    let mut pair = Pair::default();
    pair.set_ack_delay(1_000_000_000);
    let here = register(&pair, Side::A, 8);
    let there = register_filled(&pair, Side::B, 8, 1);
    pair.recv(Side::B, 1, &[there.sge()]);
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, read(&there), &[here.sge()]);
    pair.send(Side::A, 2, send(), &[here.sge()]);
    pair.run_for(10_000);
    let requests: Vec<_> = pair.trace().iter().map(|t| t.bytes.clone()).collect();
    let now = pair.now();
    let meta = PacketMeta {
        source: Side::A.ip(),
        destination: Side::B.ip(),
        traffic_class: 0,
        hop_limit: 64,
    };
    let node = pair.node_mut(Side::B);
    for bytes in &requests {
        let packet = Packet::parse(bytes).expect("a valid packet");
        node.qp.handle_packet(now, &meta, &packet, &node.mem);
    }
    assert_eq!(node.qp.pending_ack(), None);
    let newest = node.qp.newest_ack();
    assert_eq!(newest.map(|(_, msn)| msn.get()), Some(2), "behind the READ");
    pair.modify(Side::B, QpState::Err, NO_MORE, &QpAttr::default());
    pair.drain_both();
    assert_eq!(operations(&pair, Side::B), []);
}
