//! Queue pairs that take their receives from a shared queue.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::Operation;

use super::responder::answer;
use super::states::NO_MORE;
use super::{ALL, PMTU, Request, pattern, register_filled, send, statuses};
use crate::testing::{Delivery, Pair, Region, Side, TestMemory, TestSrq};
use crate::{AccessFlags, PdTag, PostError, QpAttr, QpEvent, QpState, Time, WcStatus};

use Operation::{SendFirst, SendLast, SendMiddle, SendOnly, WriteOnlyImm};

/// A protection domain other than that of the QPs.
const FOREIGN: PdTag = PdTag(TestMemory::PD.0 + 1);

/// Creates a pair whose B takes its receives from `srq`.
fn pair_with(srq: &Arc<TestSrq>) -> Pair {
    Pair::new(|side, setup| {
        if side == Side::B {
            setup.srq = Some(Arc::clone(srq));
            (setup.config.cap.max_recv_wr, setup.config.cap.max_recv_sge) = (0, 0);
        }
    })
}

/// Creates a pair with an SRQ of 8 in another protection domain, and memory in that domain.
fn pair() -> (Arc<TestSrq>, Pair, Region) {
    let srq = Arc::new(TestSrq::new(FOREIGN, 8));
    let pair = pair_with(&srq);
    let region = pair.node(Side::B).mem.register_foreign(8 * PMTU, ALL);
    (srq, pair, region)
}

fn post(srq: &TestSrq, wr_id: u64, region: &Region) {
    srq.with(|srq| srq.post(wr_id, &[region.sge()])).unwrap();
}

fn left(srq: &TestSrq) -> usize {
    srq.with(|srq| srq.queued())
}

/// Returns the number of free WQEs.
fn space(srq: &TestSrq) -> usize {
    srq.with(|srq| {
        let mut posted = 0;
        while srq.post(99, &[]).is_ok() {
            posted += 1;
        }
        posted
    })
}

//= RC-WQE-12 type=test
#[test]
fn receives_are_checked_against_the_domain_of_the_srq() {
    for len in [100, 3 * PMTU] {
        let (srq, mut pair, region) = pair();
        let own = pair.node(Side::B).mem.register(8 * PMTU, ALL);
        post(&srq, 1, &region);
        post(&srq, 2, &own);
        let src = register_filled(&pair, Side::A, len, 7);
        pair.send(Side::A, 10, send(), &[src.sge()]);
        pair.run();
        assert_eq!(
            statuses(&pair.take_completions(Side::B)),
            [(1, WcStatus::Success)]
        );
        let received = pair.node(Side::B).mem.bytes(&region, 0..len as usize);
        assert!(received == pattern(len, 7));
        pair.send(Side::A, 11, send(), &[src.sge()]);
        pair.run();
        assert_eq!(
            statuses(&pair.take_completions(Side::B)),
            [(2, WcStatus::LocProtErr)],
            "a key of the QP's domain"
        );
        assert_eq!(
            statuses(&pair.take_completions(Side::A)),
            [(10, WcStatus::Success), (11, WcStatus::RemOpErr)]
        );
    }
}

/// Checks that writes of the peer are still checked against the protection domain of the QP.
#[test]
fn remote_access_stays_in_the_domain_of_the_qp() {
    let (_, mut pair, foreign) = pair();
    let own = pair.node(Side::B).mem.register(PMTU, ALL);
    let write = |to: &Region| {
        Request::new(Operation::WriteOnly, 0)
            .reth(to.addr, to.rkey, 1)
            .payload(&[1])
    };
    assert_eq!(answer(&mut pair, &write(&own)), ["ACK psn=0 msn=1"]);
    let mut refused = write(&foreign);
    refused.headers.bth.psn = refused.headers.bth.psn.next();
    assert_eq!(
        answer(&mut pair, &refused),
        ["NAK REMOTE_ACCESS psn=1 msn=1"]
    );
}

//= SRQ-07 type=test
#[test]
fn messages_of_all_queue_pairs_take_the_oldest_receive() {
    let (srq, mut one, region) = pair();
    let mut other = pair_with(&srq);
    let same = other.node(Side::B).mem.register_foreign(8 * PMTU, ALL);
    assert_eq!(region, same);
    for wr_id in 1..=4 {
        post(&srq, wr_id, &region);
    }
    let first = Request::new(SendFirst, 0).payload(&[1; PMTU as usize]);
    let only = Request::new(SendOnly, 0).payload(&[2; 4]);
    let last = Request::new(SendLast, 1).payload(&[1; 4]);
    first.inject(&mut one);
    only.inject(&mut other);
    assert_eq!(left(&srq), 2);
    last.inject(&mut one);
    let write = Request::new(WriteOnlyImm, 2).imm([0; 4]);
    write.reth(0, region.rkey, 0).inject(&mut one);
    assert_eq!(
        statuses(&one.take_completions(Side::B)),
        [(1, WcStatus::Success), (3, WcStatus::Success)]
    );
    assert_eq!(
        statuses(&other.take_completions(Side::B)),
        [(2, WcStatus::Success)]
    );
    assert_eq!(left(&srq), 1);
}

//= RC-RSP-06 type=test
#[test]
fn an_empty_srq_is_a_receiver_that_is_not_ready() {
    let (srq, mut pair, region) = pair();
    let src = register_filled(&pair, Side::A, 3 * PMTU, 3);
    pair.send(Side::A, 1, send(), &[src.sge()]);
    pair.run_for(2_000_000);
    assert!(pair.node(Side::B).qp.counters().rnr_naks_sent > 0);
    assert_eq!(pair.take_completions(Side::B), vec![]);
    post(&srq, 9, &region);
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(9, WcStatus::Success)]
    );
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [(1, WcStatus::Success)]
    );
}

/// Checks that a duplicate packet consumes one receive only, and so does a message that is repeated
/// from its middle.
#[test]
fn what_is_repeated_takes_no_second_receive() {
    let (srq, mut pair, region) = pair();
    for wr_id in 0..8 {
        post(&srq, wr_id, &region);
    }
    let src = register_filled(&pair, Side::A, 3 * PMTU, 3);
    pair.set_network(|event| {
        let of_peer = event.from == Side::B && event.index % 3 == 0;
        if of_peer || event.index % 5 == 1 {
            Delivery::Drop
        } else {
            Delivery::Copies(vec![0, 20_000])
        }
    });
    for wr_id in 0..8 {
        pair.send(Side::A, wr_id, send(), &[src.sge()]);
    }
    pair.run();
    let all: Vec<_> = (0..8).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(statuses(&pair.take_completions(Side::B)), all);
    assert_eq!(statuses(&pair.take_completions(Side::A)), all);
    assert_eq!(left(&srq), 0);
}

//= PST-08 type=test
#[test]
fn receives_are_not_posted_to_the_queue_pair() {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err] {
        let srq = Arc::new(TestSrq::new(FOREIGN, 8));
        let mut pair = Pair::in_states(QpState::Rts, state, |side, setup| {
            setup.srq = (side == Side::B).then(|| Arc::clone(&srq));
        });
        pair.take_events(Side::B);
        let qp = &mut pair.node_mut(Side::B).qp;
        let refused = Err(PostError::SharedReceives);
        assert_eq!(qp.post_recv(Time::ZERO, 1, &[]), refused, "{state:?}");
        assert_eq!((qp.recv_queue_len(), left(&srq)), (0, 0));
    }
}

//= RC-STA-08 type=test
//= RC-STA-09 type=test
#[test]
fn in_error_only_the_receive_in_progress_is_flushed() {
    for (in_message, receives) in [(false, vec![]), (true, vec![(1, WcStatus::WrFlushErr)])] {
        let (srq, mut pair, region) = pair();
        post(&srq, 1, &region);
        post(&srq, 2, &region);
        if in_message {
            let first = Request::new(SendFirst, 0).payload(&[1; PMTU as usize]);
            first.inject(&mut pair);
        }
        pair.take_events(Side::B);
        pair.modify(Side::B, QpState::Err, NO_MORE, &QpAttr::default());
        pair.drain_both();
        assert_eq!(statuses(&pair.take_completions(Side::B)), receives);
        assert_eq!(pair.take_events(Side::B), [QpEvent::LastWqeReached]);
        assert_eq!(left(&srq), if in_message { 1 } else { 2 });
        pair.modify(Side::B, QpState::Err, NO_MORE, &QpAttr::default());
        pair.drain_both();
        assert_eq!(pair.take_events(Side::B), [], "once");
    }
}

/// Checks an error that the peer causes: the message's own receive reports it.
//= RC-STA-08 type=test
#[test]
fn a_message_that_fails_takes_its_own_receive_only() {
    let (srq, mut pair, region) = pair();
    let short = region.part(0, 4);
    srq.with(|srq| srq.post(1, &[short])).unwrap();
    post(&srq, 2, &region);
    let long = Request::new(SendOnly, 0).payload(&[1; 8]);
    assert_eq!(
        answer(&mut pair, &long),
        ["NAK INVALID_REQUEST psn=0 msn=0"]
    );
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(1, WcStatus::LocLenErr)]
    );
    assert_eq!(pair.take_events(Side::B), [QpEvent::LastWqeReached]);
    assert_eq!(left(&srq), 1);
    //= RC-STA-03 type=test
    let next = Request::new(SendOnly, 1).payload(&[1; 4]);
    assert_eq!(answer(&mut pair, &next), [""; 0]);
    assert_eq!(left(&srq), 1);
}

/// Checks that there is no such event without an SRQ.
//= RC-STA-08 type=test
#[test]
fn a_receive_queue_of_its_own_has_no_last_wqe() {
    let mut pair = Pair::default();
    pair.modify(Side::B, QpState::Err, NO_MORE, &QpAttr::default());
    pair.drain_both();
    assert_eq!(pair.take_events(Side::B), []);
}

//= RC-STA-04 type=test
#[test]
fn what_ends_without_a_completion_gives_its_slot_back() {
    for destroyed in [false, true] {
        let (srq, mut pair, region) = pair();
        for wr_id in 1..=8 {
            post(&srq, wr_id, &region);
        }
        let full = [1; PMTU as usize];
        let only = Request::new(SendOnly, 0).payload(&[1; 4]);
        only.inject(&mut pair);
        assert_eq!(pair.node(Side::B).completions.len(), 1);
        for request in [
            Request::new(SendFirst, 1).payload(&full),
            Request::new(SendMiddle, 2).payload(&full),
        ] {
            request.inject(&mut pair);
        }
        assert_eq!((left(&srq), space(&srq)), (6, 0));
        if destroyed {
            pair.node_mut(Side::B).qp.abandon();
        } else {
            pair.modify(Side::B, QpState::Reset, NO_MORE, &QpAttr::default());
        }
        assert_eq!(
            space(&srq),
            1,
            "the WQE of the pending completion is still in use"
        );
        assert_eq!(pair.take_completions(Side::B).len(), 1, "the earlier one");
        assert_eq!(pair.take_events(Side::B), []);
    }
}

//= SRQ-04 type=test
#[test]
fn the_limit_is_reached_by_the_messages_of_any_queue_pair() {
    let (srq, mut pair, region) = pair();
    for wr_id in 1..=3 {
        post(&srq, wr_id, &region);
    }
    srq.with(|srq| srq.modify(None, Some(2))).unwrap();
    for (psn, events) in [(0, 0), (1, 1), (2, 1)] {
        Request::new(SendOnly, psn).payload(&[1]).inject(&mut pair);
        assert_eq!(srq.limit_events(), events, "{psn}");
    }
}

/// Checks that rights and ranges also apply to the SRQ's receives.
#[test]
fn a_receive_that_may_not_be_written_fails() {
    let (srq, mut pair, _) = pair();
    let read_only = pair
        .node(Side::B)
        .mem
        .register_foreign(PMTU, AccessFlags::REMOTE_READ);
    post(&srq, 1, &read_only);
    let request = Request::new(SendOnly, 0).payload(&[1; 8]);
    assert_eq!(
        answer(&mut pair, &request),
        ["NAK REMOTE_OPERATIONAL psn=0 msn=0"]
    );
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(1, WcStatus::LocProtErr)]
    );
}
