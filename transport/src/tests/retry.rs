//! Losses, timers, retries: the requester on a lossy network.

use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{NakCode, Operation, Psn, Syndrome};

use super::errors::response;
use super::{
    PMTU, PSN, operations, pattern, read, register, register_filled, send, statuses, write,
};
use crate::testing::{Delivery, PacketEvent, Pair, Side};
use crate::{DropReason, QpState, SendOp, WcStatus};

/// Drops the packets of `from` with these numbers, counted from 0.
fn lose(pair: &mut Pair, from: Side, indices: &'static [usize]) {
    pair.set_network(move |event: &PacketEvent<'_>| {
        if event.from == from && indices.contains(&event.index) {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
}

/// Returns the times at which A sent the packet with this PSN, in µs.
fn times_us(pair: &Pair, psn: u32) -> Vec<u64> {
    pair.trace()
        .iter()
        .filter(|t| t.from == Side::A && t.packet().bth().psn == Psn::new(PSN + psn))
        .map(|t| t.time.as_ns() / 1000)
        .collect()
}

const OK: WcStatus = WcStatus::Success;

/// Checks that an ACK after the RNR NAK ends the wait: the message found a receive after all.
//= RC-REQ-17 RC-REQ-19 type=test
#[test]
fn an_acknowledgement_ends_the_wait_for_a_receiver() {
    let mut pair = Pair::default();
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, send(), &[]);
    pair.drain_both();
    let rnr_nak = response(Operation::Acknowledge, 0, 0x20 | 12);
    pair.inject(Side::A, &rnr_nak);
    pair.send(Side::A, 2, send(), &[]);
    pair.drain_both();
    assert_eq!(times_us(&pair, 1), [], "an RNR wait");
    pair.inject(Side::A, &response(Operation::Acknowledge, 0, 0x1f));
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert_eq!(times_us(&pair, 1), [pair.now().as_ns() / 1000]);
}

//= RC-REQ-05, RC-REQ-16 type=test
#[test]
fn a_sequence_nak_makes_the_requester_go_back() {
    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::A, 5 * PMTU, 1);
    let dst = register(&pair, Side::B, 5 * PMTU);
    lose(&mut pair, Side::A, &[1]);
    pair.send(Side::A, 1, write(&dst), &[src.sge()]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert_eq!(pair.node(Side::B).mem.all(&dst), pattern(5 * PMTU, 1));
    let psns: Vec<u32> = operations(&pair, Side::A)
        .iter()
        .map(|(_, psn)| *psn)
        .collect();
    assert_eq!(psns, [0, 1, 2, 3, 4, 1, 2, 3, 4]);
    // Resumed in the middle: Middle and Last, no RETH.
    assert_eq!(operations(&pair, Side::A)[5].0, Operation::WriteMiddle);
    let counters = pair.node(Side::A).qp.counters();
    assert_eq!((counters.seq_naks_received, counters.timeouts), (1, 0));
    assert_eq!(pair.node(Side::B).qp.counters().seq_naks_sent, 1);
    // The first packet that is sent again requests an ACK.
    let asking: Vec<bool> = pair
        .trace()
        .iter()
        .filter(|t| t.from == Side::A)
        .map(|t| t.packet().bth().ack_req)
        .collect();
    assert_eq!(asking[4..], [true, true, false, false, true]);
}

//= RC-TMR-03 type=test
#[test]
fn a_lost_acknowledgement_costs_a_timeout_but_no_second_execution() {
    let mut pair = Pair::default();
    let buffer = register(&pair, Side::B, 100);
    lose(&mut pair, Side::B, &[0]);
    pair.recv(Side::B, 1, &[buffer.sge()]);
    pair.recv(Side::B, 2, &[buffer.sge()]);
    pair.send(Side::A, 1, send(), &[]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(1, OK)]);
    assert_eq!(pair.node(Side::A).qp.counters().timeouts, 1);
    assert_eq!(times_us(&pair, 0), [0, 67108]);
}

//= RC-TMR-01 RC-TMR-06 RC-REQ-18 type=test
//= RC-STA-01 type=test
//= WCS-12 type=test
#[test]
fn retry_cnt_counts_retries() {
    for (retry_cnt, transmissions) in [(0, 1), (3, 4), (7, 8)] {
        let mut pair = Pair::new(|_, setup| {
            setup.attr.retry_cnt = retry_cnt;
            setup.attr.timeout = 10;
        });
        let (src, dst) = (register(&pair, Side::A, 9), register(&pair, Side::B, 9));
        pair.set_network(|_| Delivery::Drop);
        pair.send(Side::A, 1, write(&dst), &[src.sge()]);
        pair.send(Side::A, 2, read(&dst), &[src.sge()]);
        pair.recv(Side::A, 3, &[]);
        pair.run();
        let times = times_us(&pair, 0);
        // T, 2 T, then 4 T each, and 4 T for the last one in any case: the specification allows
        // every wait.
        let mut waits = [1, 2, 4, 4, 4, 4, 4, 4];
        waits[transmissions - 1] = 4;
        let ends: Vec<u64> = (1..=transmissions)
            .map(|n| waits[..n].iter().sum::<u64>() * 4_194_304)
            .collect();
        let starts = std::iter::once(0).chain(ends.iter().map(|end| end / 1000));
        assert_eq!(times, starts.take(transmissions).collect::<Vec<_>>());
        assert_eq!(Some(&pair.now().as_ns()), ends.last());
        let flushed = WcStatus::WrFlushErr;
        let expected = [(1, WcStatus::RetryExcErr), (2, flushed), (3, flushed)];
        assert_eq!(statuses(&pair.take_completions(Side::A)), expected);
        assert_eq!(pair.node(Side::A).qp.state(), QpState::Err);
    }
}

//= RC-TMR-01 type=test
#[test]
fn timeout_0_waits_forever() {
    let mut pair = Pair::new(|_, setup| setup.attr.timeout = 0);
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, send(), &[]);
    pair.run();
    assert_eq!(pair.take_completions(Side::A), []);
    assert_eq!(pair.node(Side::A).qp.next_timeout(), None);
    assert_eq!(operations(&pair, Side::A).len(), 1);
}

//= RC-REQ-17, RC-TMR-02 type=test
#[test]
fn progress_reloads_the_retry_counter() {
    let mut pair = Pair::new(|_, setup| {
        setup.attr.retry_cnt = 1;
        setup.attr.timeout = 10;
        setup.attr.max_rd_atomic = 1;
    });
    let (src, dst) = (register(&pair, Side::A, 8), register(&pair, Side::B, 8));
    // Every other packet of A is lost.
    pair.set_network(|t| {
        if t.from == Side::A && t.index % 2 == 0 {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    for id in 0..10 {
        pair.send(Side::A, id, read(&dst), &[src.sge()]);
    }
    pair.run();
    assert!(
        pair.take_completions(Side::A)
            .iter()
            .all(|c| c.status == OK)
    );
    assert_eq!(pair.node(Side::A).qp.counters().timeouts, 10);
    assert_eq!(pair.node(Side::A).qp.next_timeout(), None);
}

//= RC-REQ-06, RC-TMR-04, RC-TMR-05 type=test
//= WCS-13 type=test
#[test]
fn rnr_retry_counts_retries() {
    for (rnr_retry, transmissions) in [(0, 1), (2, 3), (6, 7)] {
        let mut pair = Pair::new(|_, setup| setup.attr.rnr_retry = rnr_retry);
        pair.send(Side::A, 1, send(), &[]);
        pair.send(Side::A, 2, send(), &[]);
        pair.run();
        let times = times_us(&pair, 0);
        assert_eq!(times.len(), transmissions);
        assert!(
            times
                .windows(2)
                .all(|t| t[1] - t[0] >= 640 && t[1] - t[0] < 660),
            "{times:?}"
        );
        let expected = [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&pair.take_completions(Side::A)), expected);
        // The responder is not affected.
        assert_eq!(pair.node(Side::B).qp.state(), QpState::Rts);
    }
}

//= RC-TMR-05 type=test
#[test]
fn rnr_retry_7_waits_for_the_receiver() {
    let mut pair = Pair::new(|_, setup| setup.attr.retry_cnt = 0);
    pair.send(Side::A, 1, send(), &[]);
    pair.run_for(50_000_000);
    assert!(times_us(&pair, 0).len() > 70);
    assert_eq!(pair.take_completions(Side::A), []);
    pair.recv(Side::B, 1, &[]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(1, OK)]);
}

//= RC-REQ-17 type=test
#[test]
fn an_acknowledgement_reloads_the_rnr_counter() {
    let mut pair = Pair::new(|_, setup| setup.attr.rnr_retry = 1);
    for id in 0..4 {
        pair.send(Side::A, id, send(), &[]);
    }
    for id in 0..4 {
        pair.run_for(300_000);
        pair.recv(Side::B, id, &[]);
        let done = pair.run_until(|pair| pair.node(Side::A).qp.send_queue_len() as u64 + id < 4);
        assert!(done);
    }
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [0, 1, 2, 3].map(|id| (id, OK))
    );
}

/// Checks that losses during a long series of RNR NAKs do not add up.
#[test]
fn a_receiver_that_is_not_ready_is_alive() {
    let mut pair = Pair::new(|_, setup| {
        setup.attr.retry_cnt = 2;
        setup.attr.timeout = 10;
    });
    pair.set_network(|t| {
        if t.index % 4 == 3 {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    pair.send(Side::A, 1, send(), &[]);
    pair.run_for(500_000_000);
    assert!(pair.node(Side::A).qp.counters().timeouts > 20);
    pair.recv(Side::B, 1, &[]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
}

//= RC-REQ-12, RC-DUP-03 type=test
#[test]
fn a_read_resumes_where_a_response_is_missing() {
    for lost in 0..4 {
        let mut pair = Pair::new(|_, setup| setup.attr.timeout = 10);
        let src = register_filled(&pair, Side::B, 4 * PMTU, 1);
        let dst = register(&pair, Side::A, 4 * PMTU);
        pair.set_network(move |t| {
            if t.from == Side::B && t.index == lost {
                Delivery::Drop
            } else {
                Delivery::Deliver
            }
        });
        pair.send(Side::A, 1, read(&src), &[dst.sge()]);
        pair.run();
        assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
        assert_eq!(pair.node(Side::A).mem.all(&dst), pattern(4 * PMTU, 1));
        let lost = u32::try_from(lost).unwrap();
        assert_eq!(
            operations(&pair, Side::A),
            [(Operation::ReadRequest, 0), (Operation::ReadRequest, lost)]
        );
        let again = pair.trace().iter().rfind(|t| t.from == Side::A).unwrap();
        let reth = again.packet().headers().reth.unwrap();
        assert_eq!(reth.va, src.addr + u64::from(lost * PMTU));
        assert_eq!(reth.dma_len, (4 - lost) * PMTU);
        // Only a lost last packet needs the timer.
        let counters = pair.node(Side::A).qp.counters();
        assert_eq!(
            (counters.timeouts, counters.seq_naks_received),
            if lost == 3 { (1, 0) } else { (0, 1) }
        );
    }
}

#[test]
fn a_lost_read_request_is_repeated() {
    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::B, 100, 1);
    let dst = register(&pair, Side::A, 100);
    lose(&mut pair, Side::A, &[0, 1]);
    pair.send(Side::A, 1, read(&src), &[dst.sge()]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert_eq!(pair.node(Side::A).qp.counters().timeouts, 2);
}

//= RC-DUP-04 type=test
#[test]
fn an_atomic_whose_response_is_lost_executes_once() {
    let mut pair = Pair::default();
    let (counter, result) = (register(&pair, Side::B, 8), register(&pair, Side::A, 8));
    lose(&mut pair, Side::B, &[0, 1, 2]);
    pair.send(
        Side::A,
        1,
        SendOp::FetchAdd {
            va: counter.addr,
            rkey: counter.rkey,
            add: 3,
        },
        &[result.sge()],
    );
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert_eq!(pair.node(Side::B).mem.all(&counter), 3u64.to_ne_bytes());
    assert_eq!(pair.node(Side::A).mem.all(&result), 0u64.to_ne_bytes());
    assert_eq!(pair.node(Side::B).mem.atomics(), 1);
}

//= RC-REQ-04 type=test
#[test]
fn an_acknowledgement_beyond_a_read_is_an_implied_nak() {
    let mut pair = Pair::default();
    let src = register_filled(&pair, Side::B, 100, 1);
    let dst = register(&pair, Side::A, 100);
    lose(&mut pair, Side::B, &[1]);
    pair.send(Side::A, 1, write(&src), &[]);
    pair.send(Side::A, 2, read(&src), &[dst.sge()]);
    pair.send(Side::A, 3, write(&src), &[]);
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [1, 2, 3].map(|id| (id, OK))
    );
    assert_eq!(pair.node(Side::A).mem.all(&dst), pattern(100, 1));
    let counters = pair.node(Side::A).qp.counters();
    assert_eq!((counters.seq_naks_received, counters.timeouts), (1, 0));
    let psns: Vec<u32> = operations(&pair, Side::A)
        .iter()
        .map(|(_, psn)| *psn)
        .collect();
    assert_eq!(psns, [0, 1, 2, 1, 2]);
}

/// Checks that an ACK counts although a response before it arrives later: the peer may have ended
/// since, and does not repeat it.
//= RC-REQ-04 type=test
#[test]
fn an_acknowledgement_that_overtakes_a_response_counts_once_that_arrives() {
    let mut pair = Pair::default();
    let there = register(&pair, Side::B, 100);
    pair.set_network(|_| Delivery::Drop);
    for (id, op) in [read, write, read, write].into_iter().enumerate() {
        pair.send(Side::A, id as u64, op(&there), &[]);
    }
    pair.drain_both();
    let mut completed_after = |operation, psn| {
        pair.inject(Side::A, &response(operation, psn, 0x1f));
        statuses(&pair.take_completions(Side::A))
    };
    assert_eq!(completed_after(Operation::Acknowledge, 3), []);
    let first = completed_after(Operation::ReadResponseOnly, 0);
    assert_eq!(first, [(0, OK), (1, OK)], "up to the next READ");
    let second = completed_after(Operation::ReadResponseOnly, 2);
    assert_eq!(second, [(2, OK), (3, OK)]);
}

/// Checks that one loss, reported by many packets, costs one retry.
#[test]
fn a_loss_is_counted_once() {
    let mut pair = Pair::new(|_, setup| {
        setup.attr.retry_cnt = 1;
        setup.attr.timeout = 10;
    });
    pair.set_gap(100);
    let src = register_filled(&pair, Side::B, 60 * PMTU, 1);
    let dst = register(&pair, Side::A, 60 * PMTU);
    lose(&mut pair, Side::B, &[3]);
    pair.send(Side::A, 1, read(&src), &[dst.sge()]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert_eq!(pair.node(Side::A).qp.counters().seq_naks_received, 1);
}

//= RC-REQ-19 type=test
#[test]
fn a_sequence_nak_does_not_shorten_the_rnr_wait() {
    let mut pair = Pair::new(|_, setup| setup.attr.retry_cnt = 0);
    pair.send(Side::A, 1, send(), &[]);
    pair.run_for(20_000);
    let nak = response(Operation::Acknowledge, 0, 0x60);
    let rnr = response(Operation::Acknowledge, 0, 0x20 | 1);
    for bytes in [&nak, &rnr, &nak] {
        pair.inject(Side::A, bytes);
    }
    pair.run_for(600_000);
    assert_eq!(times_us(&pair, 0).len(), 1);
    pair.recv(Side::B, 1, &[]);
    pair.run();
    assert_eq!(times_us(&pair, 0).len(), 2);
    assert_eq!(pair.node(Side::A).qp.counters().rnr_naks_received, 1);
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
}

//= RC-REQ-02, RC-REQ-19 type=test
#[test]
fn late_and_early_responses_are_dropped() {
    let mut pair = Pair::default();
    let dst = register(&pair, Side::B, 8);
    pair.send(Side::A, 1, write(&dst), &[]);
    pair.run();
    pair.send(Side::A, 2, write(&dst), &[]);
    pair.set_network(|_| Delivery::Drop);
    pair.drain_both();
    for syndrome in [0x1f, 0x60, 0x61, 0x62, 0x63, 0x21] {
        pair.inject(Side::A, &response(Operation::Acknowledge, 0, syndrome));
        //= RC-REQ-01 type=test
        pair.inject(Side::A, &response(Operation::Acknowledge, 2, syndrome));
    }
    let node = pair.node(Side::A);
    assert_eq!(node.qp.state(), QpState::Rts);
    // The first one announces that the peer sets no limit.
    assert_eq!(node.qp.counters().dropped(DropReason::GhostResponse), 5);
    assert_eq!(node.qp.counters().dropped(DropReason::FutureResponse), 6);
    pair.inject(Side::A, &response(Operation::Acknowledge, 1, 0x1f));
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [1, 2].map(|id| (id, OK))
    );
}

//= RC-ACK-08, RC-REQ-03 type=test
#[test]
fn an_acknowledgement_in_mid_message_completes_nothing() {
    let mut pair = Pair::new(|_, setup| setup.attr.timeout = 10);
    let src = register(&pair, Side::A, 4 * PMTU);
    let dst = register(&pair, Side::B, 4 * PMTU);
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, write(&dst), &[src.part(0, 1)]);
    pair.send(Side::A, 2, write(&dst), &[src.sge()]);
    pair.run_for(1_000_000);
    pair.inject(Side::A, &response(Operation::Acknowledge, 2, 0x1f));
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    pair.clear_trace();
    // The timer runs from the ACK, and the rest is sent again.
    pair.run_for(4_100_000);
    assert_eq!(operations(&pair, Side::A), []);
    pair.run_for(100_000);
    assert_eq!(
        operations(&pair, Side::A),
        [(Operation::WriteMiddle, 3), (Operation::WriteLast, 4)]
    );
    pair.inject(Side::A, &response(Operation::Acknowledge, 4, 0x1f));
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(2, OK)]);
}

/// Checks that packets that arrive twice have no second effect, and cause no retransmission.
#[test]
fn duplicates_are_harmless() {
    let mut pair = Pair::default();
    pair.set_network(|_| Delivery::Copies(vec![0, 50]));
    let src = register_filled(&pair, Side::A, 3000, 1);
    let dst = register(&pair, Side::B, 3000);
    pair.recv(Side::B, 1, &[dst.sge()]);
    pair.recv(Side::B, 2, &[]);
    pair.send(Side::A, 1, send(), &[src.sge()]);
    pair.send(Side::A, 2, read(&dst), &[src.sge()]);
    pair.send(
        Side::A,
        3,
        SendOp::FetchAdd {
            va: dst.addr,
            rkey: dst.rkey,
            add: 1,
        },
        &[src.sge()],
    );
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [1, 2, 3].map(|id| (id, OK))
    );
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(1, OK)]);
    assert_eq!(pair.node(Side::B).mem.atomics(), 1);
    assert_eq!(pair.node(Side::A).qp.counters().retransmitted_packets, 0);
    assert_eq!(pair.node(Side::A).qp.state(), QpState::Rts);
}

/// Checks that a corrupted header that passes the ICRC by accident does no more than break the QP.
#[test]
fn nonsense_in_place_of_a_packet_is_survived() {
    for byte in 0..12 {
        let mut pair = Pair::default();
        let src = register_filled(&pair, Side::A, 3000, 1);
        let dst = register(&pair, Side::B, 3000);
        pair.set_network(move |t| {
            let mut bytes = t.packet.as_bytes().to_vec();
            bytes[byte] ^= 1 << (t.index % 8);
            if t.index % 3 == 1 && rocade_wire::Packet::parse(&bytes).is_ok() {
                Delivery::Replace(bytes)
            } else {
                Delivery::Deliver
            }
        });
        pair.send(Side::A, 1, write(&dst), &[src.sge()]);
        pair.send(Side::A, 2, read(&dst), &[src.sge()]);
        pair.run();
        assert_eq!(pair.take_completions(Side::A).len(), 2);
    }
}

//= RC-REQ-17 type=test
#[test]
fn a_read_response_reloads_the_rnr_counter() {
    let mut pair = Pair::new(|_, setup| setup.attr.rnr_retry = 1);
    let (here, there) = (register(&pair, Side::A, 8), register(&pair, Side::B, 8));
    pair.send(Side::A, 1, send(), &[]);
    pair.run_for(20_000);
    pair.recv(Side::B, 1, &[]);
    pair.send(Side::A, 2, read(&there), &[here.sge()]);
    pair.send(Side::A, 3, send(), &[]);
    // Only the READ response acknowledges the first SEND.
    pair.set_network(|t| {
        let syndrome = t.packet.headers().aeth.map(|aeth| aeth.syndrome);
        let plain = t.packet.bth().opcode.operation() == Some(Operation::Acknowledge);
        if plain && matches!(syndrome, Some(Syndrome::Ack(_))) {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    pair.run_for(1_000_000);
    assert_eq!(pair.node(Side::A).qp.counters().rnr_naks_received, 2);
    pair.heal();
    pair.recv(Side::B, 2, &[]);
    pair.run();
    let expected = [1, 2, 3].map(|id| (id, OK));
    assert_eq!(statuses(&pair.take_completions(Side::A)), expected);
}

/// Returns the PSNs that A has sent, relative to its first, and whether they request an ACK.
fn sent(pair: &Pair) -> Vec<(u32, bool)> {
    let from_a = pair.trace().iter().filter(|t| t.from == Side::A);
    from_a
        .map(|t| {
            let bth = *t.packet().bth();
            (bth.psn.sub(PSN).get(), bth.ack_req)
        })
        .collect()
}

/// Checks that after a timeout only the first packets and the last one are sent again.
//= RC-ACK-21 type=test
#[test]
fn a_late_acknowledgement_is_no_reason_to_send_everything_again() {
    let mut pair = Pair::new(|_, setup| setup.attr.retry_cnt = 2);
    let src = register_filled(&pair, Side::A, 20 * PMTU, 1);
    let dst = register(&pair, Side::B, 20 * PMTU);
    // The peer sleeps for 100 ms. Then it handles all packets that have arrived.
    pair.set_network(|t| {
        let until = 100_000_000_u64;
        Delivery::Copies(vec![until.saturating_sub(t.time.as_ns())])
    });
    pair.send(Side::A, 1, write(&dst), &[src.part(0, 10 * PMTU)]);
    pair.send(
        Side::A,
        2,
        read(&dst),
        &[src.part(10 * u64::from(PMTU), 10 * PMTU)],
    );
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [(1, OK), (2, OK)]
    );
    // As long as no round-trip time is known, each packet requests an ACK.
    let first = (0..=10).map(|psn| (psn, true));
    let expected: Vec<_> = first.chain([(0, true), (1, true)]).collect();
    assert_eq!(sent(&pair)[..13], expected);
    let counters = pair.node(Side::A).qp.counters();
    assert!(counters.retransmitted_packets <= 3, "{counters:?}");
    assert_eq!((counters.timeouts, counters.seq_naks_received), (1, 0));
}

/// Checks that real losses are found by means of the last packet, for any operation.
//= RC-TMR-03 type=test
#[test]
fn what_was_lost_before_a_timeout_is_sent_again() {
    for last in 0..3 {
        // The first `lost` packets of A are lost with all that follow them, so that only the timer
        // detects it.
        for lost in 1..=8 {
            let mut pair = Pair::new(|_, setup| setup.attr.retry_cnt = 1);
            let src = register_filled(&pair, Side::A, 6 * PMTU, 1);
            let dst = register(&pair, Side::B, 6 * PMTU);
            pair.recv(Side::B, 0, &[]);
            pair.set_network(move |t| {
                if t.from == Side::A && (8 - lost..8).contains(&t.index) {
                    Delivery::Drop
                } else {
                    Delivery::Deliver
                }
            });
            pair.send(Side::A, 1, write(&dst), &[src.part(0, 5 * PMTU)]);
            pair.send(Side::A, 2, read(&dst), &[src.part(0, PMTU)]);
            pair.send(Side::A, 3, read(&dst), &[src.part(0, PMTU)]);
            let (va, rkey) = (dst.addr + u64::from(5 * PMTU), dst.rkey);
            let (last, sge) = match last {
                0 => (send(), src.part(0, 0)),
                1 => (read(&dst), src.part(0, PMTU)),
                _ => (SendOp::FetchAdd { va, rkey, add: 1 }, src.part(0, 8)),
            };
            pair.send(Side::A, 4, last, &[sge]);
            pair.run();
            let done = [1, 2, 3, 4].map(|id| (id, OK));
            assert_eq!(statuses(&pair.take_completions(Side::A)), done);
            let written = pair.node(Side::B).mem.bytes(&dst, 0..5 * PMTU as usize);
            assert_eq!(written, pattern(6 * PMTU, 1)[..5 * PMTU as usize]);
            assert_eq!(pair.node(Side::A).qp.next_timeout(), None);
        }
    }
}

/// Checks that a repeated sequence NAK counts as a new loss after the retransmission, without a
/// timeout.
//= RC-REQ-05, RC-DUP-08 type=test
#[test]
fn a_packet_may_get_lost_twice() {
    let mut pair = Pair::default();
    let dst = register(&pair, Side::B, 8);
    pair.set_network(|_| Delivery::Drop);
    for wr_id in 0..3 {
        pair.send(Side::A, wr_id, write(&dst), &[]);
    }
    pair.drain_both();
    for round in 0..3 {
        pair.clear_trace();
        let nak = Syndrome::Nak(NakCode::PsnSequence).code();
        super::credits::answer(&mut pair, Operation::Acknowledge, 0, (nak, 0));
        let sent = operations(&pair, Side::A);
        assert_eq!(sent.first(), Some(&(Operation::WriteOnly, 0)), "{round}");
    }
    assert_eq!(pair.now().as_ns(), 0);
    assert_eq!(pair.node(Side::A).qp.counters().seq_naks_received, 3);
}

/// Checks that each timeout in a row is longer than the one before. An RNR NAK proves that the
/// request arrived, so the next timeout is the shortest again.
//= RC-TMR-03, RC-REQ-06 type=test
#[test]
fn timeouts_do_not_add_up_past_a_receiver_that_is_not_ready() {
    let mut pair = Pair::default();
    lose(&mut pair, Side::A, &[0, 1, 2, 4]);
    pair.send(Side::A, 1, send(), &[]);
    pair.run_until(|pair| times_us(pair, 0).len() == 5);
    pair.recv(Side::B, 1, &[]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    let times = times_us(&pair, 0);
    assert_eq!(times.len(), 6);
    let waits: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] < waits[1] && waits[1] < waits[2], "{waits:?}");
    assert_eq!(waits[4], waits[0], "{waits:?}");
}
