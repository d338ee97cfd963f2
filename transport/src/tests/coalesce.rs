//! Coalescing: packets wait for a reply or for more posts, and are sent in time.

use rocade_wire::Operation;

use super::{operations, register, register_filled, send, statuses, write};
use crate::testing::{CoalesceCounts, Delivery, Pair, Side};
use crate::{BATCH_DELAY_NS, DELAYED_ACK_NS, QpAttr, QpAttrMask, QpState, WcStatus};

const LATENCY_NS: u64 = 5_000;

/// Exchanges messages of 8 bytes there and back, `rounds` times.
fn converse(pair: &mut Pair, rounds: u64) {
    let (here, there) = (register(pair, Side::A, 8), register(pair, Side::B, 8));
    // One more receive than needed, so that no message waits for credits.
    pair.recv(Side::A, 2 * rounds, &[here.sge()]);
    pair.recv(Side::B, 2 * rounds, &[there.sge()]);
    for round in 0..rounds {
        pair.recv(Side::A, 2 * round, &[here.sge()]);
        pair.recv(Side::B, 2 * round, &[there.sge()]);
        pair.send(Side::A, 2 * round + 1, send(), &[here.sge()]);
        pair.run_for(LATENCY_NS + 100);
        pair.send(Side::B, 2 * round + 1, send(), &[there.sge()]);
        pair.run_for(LATENCY_NS + 100);
    }
}

//= RC-ACK-01 type=test
#[test]
fn in_a_conversation_acknowledgements_leave_with_the_answers() {
    let mut pair = Pair::default();
    pair.set_coalescing(DELAYED_ACK_NS);
    converse(&mut pair, 20);
    let coalesce_counts = pair.coalesce_counts();
    assert!(coalesce_counts.acks >= 20, "{coalesce_counts:?}");
    assert_eq!(
        (coalesce_counts.lone_acks, coalesce_counts.posts),
        (0, 0),
        "{}",
        pair.trace_text()
    );
    // The last message gets no reply. It is still acknowledged, but later.
    let (asked, before) = (pair.now(), pair.take_completions(Side::B).len());
    assert_eq!(before, 40 - 1, "all but the last");
    pair.clear_trace();
    pair.run();
    assert_eq!(operations(&pair, Side::A), [(Operation::Acknowledge, 19)]);
    assert!(pair.now().ns_since(asked) >= DELAYED_ACK_NS - LATENCY_NS);
    assert_eq!(pair.coalesce_counts().lone_acks, 1);
    assert_eq!(pair.take_completions(Side::B).len(), 1);
    assert_eq!(pair.take_completions(Side::A).len(), 40);
    for side in Side::BOTH {
        assert_eq!(pair.node(side).qp.counters().timeouts, 0);
    }
}

#[test]
fn an_acknowledgement_that_is_held_survives_whatever_ends_the_queue_pair() {
    let ends: [fn(&mut Pair); 3] = [
        |pair| {
            let none = QpAttrMask::empty();
            pair.modify(Side::A, QpState::Err, none, &QpAttr::default());
        },
        |pair| {
            let now = pair.now();
            pair.node_mut(Side::A).qp.set_fatal(now, 0);
        },
        |pair| {
            let none = QpAttrMask::empty();
            pair.modify(Side::A, QpState::Sqd, none, &QpAttr::default());
        },
    ];
    for end in ends {
        let mut pair = Pair::default();
        pair.set_coalescing(1_000_000_000);
        converse(&mut pair, 20);
        assert!(pair.node(Side::A).qp.coalescer().held_since().is_some());
        assert_eq!(pair.take_completions(Side::B).len(), 39);
        end(&mut pair);
        pair.run_for(LATENCY_NS);
        assert!(pair.node(Side::A).qp.coalescer().held_since().is_none());
        let last = statuses(&pair.take_completions(Side::B));
        assert_eq!(last, [(39, WcStatus::Success)]);
    }
}

/// Posts WRITEs of 8 bytes, all at once. Returns how many of them were delayed.
fn burst(pair: &mut Pair, count: u64) -> u64 {
    pair.run_for(1_000_000);
    let here = register_filled(pair, Side::A, 8, 1);
    let there = register(pair, Side::B, 8);
    for wr_id in 0..count {
        pair.send(Side::A, wr_id, write(&there), &[here.sge()]);
        pair.drain_both();
    }
    pair.coalesce_counts().posts
}

#[test]
fn a_burst_of_posts_leaves_together() {
    let mut pair = Pair::default();
    pair.set_coalescing(DELAYED_ACK_NS);
    assert_eq!(burst(&mut pair, 12), 12 - 4);
    assert_eq!(operations(&pair, Side::A).len(), 4);
    let begin = pair.now();
    // The next packet for the QP causes their transmission.
    pair.run_for(2 * LATENCY_NS);
    assert_eq!(operations(&pair, Side::A).len(), 12);
    pair.run();
    assert_eq!(pair.take_completions(Side::A).len(), 12);
    assert!(pair.now().ns_since(begin) < BATCH_DELAY_NS);
}

#[test]
fn posts_do_not_wait_for_ever() {
    let mut pair = Pair::default();
    pair.set_coalescing(DELAYED_ACK_NS);
    pair.set_network(|_| Delivery::Drop);
    burst(&mut pair, 12);
    pair.run_for(BATCH_DELAY_NS - 1);
    assert_eq!(operations(&pair, Side::A).len(), 4);
    pair.run_for(1);
    assert_eq!(operations(&pair, Side::A).len(), 12);
    pair.heal();
    pair.run();
    assert_eq!(pair.take_completions(Side::A).len(), 12);
    assert_eq!(
        pair.coalesce_counts(),
        CoalesceCounts {
            posts: 8,
            ..CoalesceCounts::default()
        }
    );
}
