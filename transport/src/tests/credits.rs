//! End-to-end credits: the announcements of a responder, and the reaction of a requester.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{Aeth, Headers, Msn, Operation, Psn, Syndrome};

use super::responder::{fetch_add, read as read_request, target, write_only};
use super::{
    PMTU, PSN, Request, operations, pattern, read, register, register_filled, send, statuses, write,
};
use crate::testing::{Delivery, PacketEvent, Pair, Side, TestDomain, TestSrq};
use crate::{Gate, Managed, PdTag, QpAttr, QpAttrMask, QpState, QpType, SendOp, WcStatus};

const OK: WcStatus = WcStatus::Success;
const RNR: WcStatus = WcStatus::RnrRetryExcErr;

/// The code for "no limit".
const NO_LIMIT: u8 = 31;

/// Returns the syndromes and MSNs that B has sent since the last call.
fn told(pair: &mut Pair) -> Vec<(u8, u32)> {
    let of = |t: &crate::testing::Traced| {
        let aeth = t.packet().headers().aeth?;
        (t.from == Side::B).then_some((aeth.syndrome.code(), aeth.msn.get()))
    };
    let told = pair.trace().iter().filter_map(of).collect();
    pair.clear_trace();
    told
}

/// Returns the packets that A has sent since the last call.
fn sent(pair: &mut Pair) -> Vec<(Operation, u32)> {
    pair.drain_both();
    let sent = operations(pair, Side::A);
    pair.clear_trace();
    sent
}

fn send_only(psn: u32) -> Request {
    Request::new(Operation::SendOnly, psn)
}

/// Creates a pair whose B only sends what the test injects.
fn alone() -> Pair {
    let mut pair = Pair::default();
    pair.set_network(|_| Delivery::Drop);
    pair
}

/// Injects an answer to A, with its credit code.
pub(super) fn answer(pair: &mut Pair, operation: Operation, psn: u32, (code, msn): (u8, u32)) {
    let request = Request::new(operation, psn);
    let mut headers = Headers::new(request.headers.bth);
    headers.bth.dest_qp = rocade_wire::Qpn::new(0x11);
    headers.aeth = Some(Aeth {
        syndrome: Syndrome::from_code(code),
        msn: Msn::new(msn),
    });
    if operation == Operation::AtomicAcknowledge {
        headers.atomic_ack = Some(rocade_wire::AtomicAckEth { original: 0 });
    }
    let mut bytes = vec![0; headers.len() + 4];
    headers.emit(&mut bytes).unwrap();
    pair.inject(Side::A, &bytes);
}

fn ack(pair: &mut Pair, psn: u32, code: u8, msn: u32) {
    answer(pair, Operation::Acknowledge, psn, (code, msn));
}

fn post_sends(pair: &mut Pair, count: u64) {
    for wr_id in 0..count {
        pair.send(Side::A, wr_id, send(), &[]);
    }
}

//= RC-CRD-01 AETH-20 type=test
#[test]
fn acknowledgements_tell_of_the_receives_that_are_left() {
    let (mut pair, region) = target();
    for wr_id in 0..6 {
        pair.recv(Side::B, wr_id, &[region.sge()]);
    }
    pair.clear_trace();
    // A count of 6 has its own code. Counts of 5 and 4 are both announced as 4.
    write_only(0, &region, 1).inject(&mut pair);
    send_only(1).inject(&mut pair);
    send_only(2).inject(&mut pair);
    assert_eq!(told(&mut pair), [(5, 1), (4, 2), (4, 3)]);
    // The receive of a message in progress is not counted.
    Request::new(Operation::SendFirst, 3)
        .payload(&[0; PMTU as usize])
        .inject(&mut pair);
    read_request(4, &region, 0, 8).inject(&mut pair);
    assert_eq!(told(&mut pair), [(3, 3), (0x61, 3)]);
}

//= RC-CRD-01 type=test
#[test]
fn every_positive_answer_tells_of_them() {
    let (mut pair, region) = target();
    for wr_id in 0..3 {
        pair.recv(Side::B, wr_id, &[region.sge()]);
    }
    pair.clear_trace();
    read_request(0, &region, 0, 3 * PMTU).inject(&mut pair);
    fetch_add(3, &region, 1).inject(&mut pair);
    assert_eq!(told(&mut pair), [(3, 1), (3, 1), (3, 2)]);
    // A duplicate is answered with the current credits.
    pair.recv(Side::B, 3, &[]);
    fetch_add(3, &region, 1).inject(&mut pair);
    assert_eq!(told(&mut pair), [(4, 2)]);
}

//= RC-CRD-01 AETH-11 XRC-08 type=test
#[test]
fn without_a_queue_of_its_own_a_responder_sets_no_limit() {
    let srq = Arc::new(TestSrq::new(PdTag(1), 8));
    let mut pair = Pair::new(|_, setup| setup.srq = Some(Arc::clone(&srq)));
    pair.recv(Side::B, 1, &[]);
    send_only(0).inject(&mut pair);
    assert_eq!(told(&mut pair), [(NO_LIMIT, 1)]);

    // The program decides when a receive may be consumed.
    let (mut pair, _) = target();
    let gate = Arc::new(Gate::default());
    pair.node_mut(Side::B).qp.manage(Managed {
        recv: Some(Arc::clone(&gate)),
        ..Managed::default()
    });
    pair.recv(Side::B, 1, &[]);
    gate.release_to(1);
    send_only(0).inject(&mut pair);
    assert_eq!(told(&mut pair), [(NO_LIMIT, 1)]);

    let domain = Arc::new(TestDomain::default());
    domain.set(TestDomain::FIRST, Some(&srq));
    let mut pair = Pair::new(|side, setup| {
        setup.config.qp_type = match side {
            Side::A => QpType::XrcSend,
            Side::B => QpType::XrcRecv,
        };
        setup.domain = (side == Side::B).then(|| Arc::clone(&domain));
    });
    pair.recv(Side::B, 1, &[]);
    pair.send(Side::A, 1, send(), &[]);
    pair.run();
    assert_eq!(told(&mut pair), [(NO_LIMIT, 1)]);
}

//= RC-ACK-06 type=test
#[test]
fn who_was_told_of_no_receives_hears_of_the_next() {
    let (mut pair, _) = target();
    pair.recv(Side::B, 1, &[]);
    send_only(0).inject(&mut pair);
    assert_eq!(told(&mut pair), [(0, 1)]);
    pair.recv(Side::B, 2, &[]);
    pair.drain_both();
    assert_eq!(told(&mut pair), [(1, 1)]);
    // No further announcement is needed: the ACK of each message announces the credits left.
    pair.recv(Side::B, 3, &[]);
    pair.drain_both();
    assert_eq!(told(&mut pair), []);
    send_only(1).inject(&mut pair);
    assert_eq!(told(&mut pair), [(1, 2)]);
    // A requester that received an RNR NAK retries without an announcement.
    send_only(2).inject(&mut pair);
    send_only(3).inject(&mut pair);
    assert_eq!(told(&mut pair), [(0, 3), (0x2c, 3)]);
    pair.recv(Side::B, 4, &[]);
    pair.drain_both();
    assert_eq!(told(&mut pair), []);
    // In ERR no credits are announced.
    send_only(3).inject(&mut pair);
    assert_eq!(told(&mut pair), [(0, 4)]);
    let none = QpAttrMask::empty();
    pair.modify(Side::B, QpState::Err, none, &QpAttr::default());
    pair.clear_trace();
    pair.recv(Side::B, 5, &[]);
    pair.drain_both();
    assert_eq!(told(&mut pair), []);
}

/// Checks that an ACK taken by the caller counts as an announcement.
//= RC-ACK-06 type=test
#[test]
fn an_acknowledgement_that_was_taken_has_told_of_none() {
    let (mut pair, _) = target();
    pair.recv(Side::B, 1, &[]);
    super::single::feed(&mut pair, &send_only(0));
    let ack = pair
        .node_mut(Side::B)
        .qp
        .take_lone_ack()
        .expect("an ACK is pending");
    assert_eq!(ack[12], 0, "no receives");
    assert!(!pair.node(Side::B).qp.has_unsent_credits());
    pair.recv(Side::B, 2, &[]);
    pair.drain_both();
    assert_eq!(told(&mut pair), [(1, 1)]);
}

//= RC-CRD-02 RC-CRD-03 RC-CRD-04 type=test
#[test]
fn messages_start_while_there_are_credits_and_one_beyond_is_tried() {
    let mut pair = alone();
    post_sends(&mut pair, 1);
    assert_eq!(sent(&mut pair).len(), 1, "no limit is known");
    ack(&mut pair, 0, 2, 1);
    post_sends(&mut pair, 5);
    assert_eq!(
        sent(&mut pair),
        [(Operation::SendOnly, 1), (Operation::SendOnly, 2)]
    );
    // MSN 2, and one receive for the next message, which was already sent.
    ack(&mut pair, 1, 1, 2);
    assert_eq!(sent(&mut pair), []);
    // An older and smaller limit has no effect. A greater one counts.
    ack(&mut pair, 2, 1, 3);
    assert_eq!(sent(&mut pair), [(Operation::SendOnly, 3)]);
    ack(&mut pair, 3, 0, 4);
    assert_eq!(sent(&mut pair), [], "waits for credits first");
    pair.run_for(50_000_000);
    assert_eq!(
        sent(&mut pair),
        [(Operation::SendOnly, 4)],
        "after the timeout"
    );
    pair.run_for(10_000_000);
    assert_eq!(sent(&mut pair), [], "one");
    // The message found a receive: the requester no longer waits for announcements of this peer.
    ack(&mut pair, 4, 0, 5);
    assert_eq!(sent(&mut pair), [(Operation::SendOnly, 5)]);
    ack(&mut pair, 5, 0, 6);
    assert_eq!(pair.take_completions(Side::A).len(), 6);
}

//= RC-CRD-04 type=test
#[test]
fn of_a_long_message_beyond_the_credits_only_the_first_packet_leaves() {
    let mut pair = alone();
    let src = register(&pair, Side::A, 4 * PMTU);
    pair.node_mut(Side::A).qp.expect_credits();
    pair.send(Side::A, 1, send(), &[src.sge()]);
    pair.send(Side::A, 2, write(&src), &[src.part(0, 8)]);
    pair.drain_both();
    let asks = pair.trace()[0].packet().bth().ack_req;
    assert!(asks, "the packet requests an ACK");
    assert_eq!(sent(&mut pair), [(Operation::SendFirst, 0)]);
    // The message found none: only its first packet is sent again.
    ack(&mut pair, 0, 0x21, 0);
    pair.run_for(1_000_000);
    assert_eq!(sent(&mut pair), [(Operation::SendFirst, 0)]);
    // The message found the last receive, so the rest of it may follow.
    ack(&mut pair, 0, 0, 0);
    assert_eq!(
        sent(&mut pair),
        [
            (Operation::SendMiddle, 1),
            (Operation::SendMiddle, 2),
            (Operation::SendLast, 3),
            (Operation::WriteOnly, 4)
        ]
    );
    ack(&mut pair, 4, 0, 2);
    let all = statuses(&pair.take_completions(Side::A));
    assert_eq!(all, [(1, OK), (2, OK)]);
}

//= RC-CRD-03 type=test
#[test]
fn what_takes_no_receive_needs_no_credit() {
    let mut pair = alone();
    let region = register(&pair, Side::A, 2 * PMTU);
    pair.node_mut(Side::A).qp.expect_credits();
    let imm = |imm| match write(&region) {
        SendOp::Write { va, rkey, .. } => SendOp::Write { va, rkey, imm },
        other => other,
    };
    pair.send(Side::A, 1, imm(None), &[region.sge()]);
    pair.send(Side::A, 2, read(&region), &[region.sge()]);
    pair.send(Side::A, 3, imm(None), &[region.part(0, 8)]);
    pair.send(Side::A, 4, imm(Some([1; 4])), &[region.part(0, 8)]);
    pair.send(Side::A, 5, imm(None), &[region.part(0, 8)]);
    assert_eq!(
        sent(&mut pair),
        [
            (Operation::WriteFirst, 0),
            (Operation::WriteLast, 1),
            (Operation::ReadRequest, 2),
            (Operation::WriteOnly, 4)
        ],
        "a WRITE with immediate needs a credit, and delays later requests"
    );
    // READ and WRITE also count as messages: MSN 1, and credits for the next two.
    ack(&mut pair, 1, 2, 1);
    assert_eq!(sent(&mut pair), [], "the READ and the WRITE are sent");
    ack(&mut pair, 1, 3, 1);
    let rest = [(Operation::WriteOnlyImm, 5), (Operation::WriteOnly, 6)];
    assert_eq!(sent(&mut pair), rest);
}

//= RC-CRD-05 AETH-11 type=test
#[test]
fn a_peer_that_set_no_limit_once_never_does() {
    let mut pair = alone();
    pair.node_mut(Side::A).qp.expect_credits();
    post_sends(&mut pair, 3);
    assert_eq!(sent(&mut pair).len(), 1);
    ack(&mut pair, 0, NO_LIMIT, 1);
    assert_eq!(sent(&mut pair).len(), 2);
    ack(&mut pair, 2, 0, 3);
    post_sends(&mut pair, 40);
    assert_eq!(sent(&mut pair).len(), 40);
}

//= RC-CRD-02 RC-REQ-02 type=test
#[test]
fn an_answer_of_any_kind_gives_credits_and_a_late_one_none() {
    let mut pair = alone();
    let region = register(&pair, Side::A, 8);
    pair.node_mut(Side::A).qp.expect_credits();
    pair.send(
        Side::A,
        1,
        SendOp::FetchAdd {
            va: region.addr,
            rkey: region.rkey,
            add: 1,
        },
        &[region.sge()],
    );
    pair.drain_both();
    answer(&mut pair, Operation::AtomicAcknowledge, 0, (2, 1));
    pair.clear_trace();
    post_sends(&mut pair, 4);
    assert_eq!(sent(&mut pair).len(), 2);
    ack(&mut pair, 2, 0, 3);
    // An ACK older than the last, and one in the future, have no effect.
    ack(&mut pair, 1, 4, 3);
    ack(&mut pair, 3, 4, 3);
    assert_eq!(sent(&mut pair).len(), 0);
    // The last ACK is repeated, with more credits.
    ack(&mut pair, 2, 1, 3);
    assert_eq!(sent(&mut pair).len(), 1);
}

/// Zero credits in the response to a READ or an atomic stop neither, nor WRITEs.
//= HW-04 RC-CRD-03 type=test
#[test]
fn zero_credits_in_a_response_stop_no_request_that_needs_none() {
    for operation in [Operation::ReadResponseOnly, Operation::AtomicAcknowledge] {
        let mut pair = alone();
        let region = register(&pair, Side::A, 8);
        let (va, rkey) = (region.addr, region.rkey);
        let add = SendOp::FetchAdd { va, rkey, add: 1 };
        let op = match operation {
            Operation::ReadResponseOnly => read(&region),
            _ => add,
        };
        let requests = [op, write(&region), read(&region), add];
        let sizes = requests.iter().map(|op| match op {
            // The response below has no payload.
            SendOp::Read { .. } => region.part(0, 0),
            _ => region.sge(),
        });
        let sges: Vec<_> = sizes.collect();
        for (psn, wr_id) in (0..12).zip(0..) {
            let (op, sge) = (requests[psn as usize % 4], sges[psn as usize % 4]);
            pair.send(Side::A, wr_id, op, &[sge]);
            assert_eq!(sent(&mut pair).len(), 1, "{psn}");
            let kind = match op {
                SendOp::Read { .. } => Operation::ReadResponseOnly,
                SendOp::FetchAdd { .. } => Operation::AtomicAcknowledge,
                _ => Operation::Acknowledge,
            };
            answer(&mut pair, kind, psn, (0, psn + 1));
            assert_eq!(statuses(&pair.take_completions(Side::A)), [(wr_id, OK)]);
        }
    }
}

//= HW-04 type=test
#[test]
fn without_flow_control_credits_do_not_count() {
    let mut pair = alone();
    pair.node_mut(Side::A).qp.ignore_credits();
    for round in 0..3 {
        post_sends(&mut pair, 5);
        assert_eq!(sent(&mut pair).len(), 5);
        ack(&mut pair, 5 * round + 4, 0, 5 * round + 5);
        assert_eq!(pair.take_completions(Side::A).len(), 5);
    }
    // A peer that announces a credit without being asked has flow control after all.
    ack(&mut pair, 14, 2, 15);
    post_sends(&mut pair, 5);
    assert_eq!(sent(&mut pair).len(), 2);
}

/// Checks a peer whose MSN exceeds the messages that it was sent.
#[test]
fn messages_that_were_not_sent_cannot_be_complete() {
    let mut pair = alone();
    post_sends(&mut pair, 1);
    pair.drain_both();
    ack(&mut pair, 0, 1, 1_000_000);
    pair.clear_trace();
    post_sends(&mut pair, 4);
    assert_eq!(sent(&mut pair).len(), 1);
}

/// Runs 200 messages of A. B posts a few receives at a time, and the next when some were consumed.
fn slow_receiver(
    each: u64,
    pause_ns: u64,
    mut lose: impl FnMut(&PacketEvent<'_>) -> bool + 'static,
) -> Pair {
    let mut pair = Pair::new(|_, setup| {
        setup.config.cap.max_send_wr = 256;
        setup.config.cap.max_recv_wr = 256;
    });
    pair.node_mut(Side::A).qp.expect_credits();
    let src = register_filled(&pair, Side::A, 3 * PMTU, 4);
    let dst = register(&pair, Side::B, 3 * PMTU);
    pair.set_network(move |event| match lose(event) {
        true => Delivery::Drop,
        false => Delivery::Deliver,
    });
    for (wr_id, len) in (0..200).zip([0, 8, PMTU, 3 * PMTU].into_iter().cycle()) {
        pair.send(Side::A, wr_id, send(), &[src.part(0, len)]);
    }
    let mut posted = 0;
    while posted < 200 {
        for _ in 0..each.min(200 - posted) {
            pair.recv(Side::B, posted, &[dst.sge()]);
            posted += 1;
        }
        assert!(pair.run_until(|pair| pair.node(Side::B).qp.recv_queue_len() == 0));
        pair.run_for(pause_ns);
        let all = statuses(&pair.take_completions(Side::B));
        let expected: Vec<_> = (posted - all.len() as u64..posted)
            .map(|id| (id, OK))
            .collect();
        assert_eq!(all, expected);
    }
    pair.run();
    let all: Vec<_> = (0..200).map(|id| (id, OK)).collect();
    assert_eq!(statuses(&pair.take_completions(Side::A)), all);
    assert_eq!(pair.node(Side::B).mem.all(&dst), pattern(3 * PMTU, 4));
    pair
}

//= RC-CRD-03 RC-ACK-06 type=test
#[test]
fn a_slow_receiver_never_has_to_say_that_it_is_not_ready() {
    for each in [1, 2, 5, 30] {
        for pause_ns in [0, 1_000, 1_000_000, 30_000_000] {
            let pair = slow_receiver(each, pause_ns, |_| false);
            let counters = pair.node(Side::A).qp.counters();
            assert_eq!(counters.rnr_naks_received, 0, "{each}, {pause_ns} ns");
            assert_eq!((counters.timeouts, counters.retransmitted_packets), (0, 0));
        }
    }
}

/// Checks that all messages arrive in order despite losses of packets and credits.
#[test]
fn lost_credits_cost_time_and_nothing_else() {
    for seed in 1..20_u32 {
        let mut state = seed;
        let pair = slow_receiver(u64::from(seed % 5 + 1), 100_000, move |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 28 == 0
        });
        assert_eq!(pair.node(Side::A).qp.state(), QpState::Rts, "seed {seed}");
    }
}

//= RC-REQ-06 RC-CRD-04 type=test
#[test]
fn a_receiver_that_has_none_is_not_ready_in_the_end() {
    let mut pair = Pair::new(|_, setup| setup.attr.rnr_retry = 2);
    pair.node_mut(Side::A).qp.expect_credits();
    pair.recv(Side::B, 1, &[]);
    post_sends(&mut pair, 3);
    pair.run();
    let all = statuses(&pair.take_completions(Side::A));
    assert_eq!(all, [(0, OK), (1, RNR), (2, WcStatus::WrFlushErr)]);
    let tries = operations(&pair, Side::A);
    let psns: Vec<u32> = tries.iter().map(|(_, psn)| *psn).collect();
    assert_eq!(psns, [0, 1, 1, 1], "only the first without credit");
}

/// Checks the first announcement of a limit, after all messages were already sent: only the oldest
/// is tried again.
//= RC-CRD-04 type=test
#[test]
fn what_was_sent_too_much_is_repeated_one_by_one() {
    let mut pair = Pair::default();
    for wr_id in 0..2 {
        pair.recv(Side::B, wr_id, &[]);
    }
    post_sends(&mut pair, 10);
    pair.run_for(20_000);
    let psns: Vec<u32> = sent(&mut pair).iter().map(|(_, psn)| *psn).collect();
    assert_eq!(psns, (0..10).collect::<Vec<_>>());
    pair.run_for(700_000);
    let psns: Vec<u32> = sent(&mut pair).iter().map(|(_, psn)| *psn).collect();
    assert_eq!(psns, [2]);
    for wr_id in 2..10 {
        pair.recv(Side::B, wr_id, &[]);
    }
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)).len(), 10);
    assert_eq!(pair.node(Side::A).qp.counters().rnr_naks_received, 2);
}

/// Checks that a READ that is split counts as several messages, as the peer counts requests.
//= RC-CRD-02 type=test
#[test]
fn a_read_in_parts_is_counted_in_parts() {
    const LEN: u32 = 1 << 20;
    let mut pair = Pair::default();
    pair.node_mut(Side::A).qp.expect_credits();
    let here = register(&pair, Side::A, LEN);
    let there = register_filled(&pair, Side::B, LEN, 2);
    for wr_id in 0..4 {
        pair.recv(Side::B, wr_id, &[]);
    }
    pair.send(Side::A, 0, read(&there), &[here.sge()]);
    pair.run();
    let requests = operations(&pair, Side::A);
    let reads = requests
        .iter()
        .filter(|(op, _)| *op == Operation::ReadRequest);
    let reads = u32::try_from(reads.count()).unwrap();
    assert!(reads > 1, "{requests:?}");
    let last = pair.trace().last().unwrap().packet();
    assert_eq!(last.headers().aeth.unwrap().msn.get(), reads);
    pair.set_network(|_| Delivery::Drop);
    pair.clear_trace();
    let next = pair.node(Side::A).qp.query();
    assert_eq!(next.qp_state, QpState::Rts.code());
    post_sends(&mut pair, 6);
    pair.drain_both();
    let first = Psn::new(PSN).add(LEN / PMTU);
    assert_eq!(pair.trace()[0].packet().bth().psn, first);
    assert_eq!(sent(&mut pair).len(), 4, "as many as there are receives");
}
