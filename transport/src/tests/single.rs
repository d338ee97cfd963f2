//! Checks that each attribute takes effect by itself on a running QP, and that a stopped QP keeps
//! no state.

use alloc::vec::Vec;

use rocade_wire::{Operation, Packet, Pkey};

use super::responder::{answer, batch, fetch_add, read as read_request, target, target_with};
use super::states::NO_MORE;
use super::{
    PMTU, PSN, Request, answers, operations, pattern, read, register, send, statuses, write,
};
use crate::testing::{Delivery, Pair, Side, context};
use crate::{
    AccessFlags, DropReason, ModifyContext, PacketMeta, QpAttr, QpAttrMask, QpEvent, QpState,
    WcStatus,
};

/// Returns attributes that all differ from those of the pair: only those in the mask may take
/// effect.
fn decoy() -> QpAttr {
    QpAttr {
        timeout: 9,
        retry_cnt: 2,
        rnr_retry: 3,
        max_rd_atomic: 5,
        max_dest_rd_atomic: 6,
        min_rnr_timer: 7,
        qp_access_flags: AccessFlags::LOCAL_WRITE,
        ..QpAttr::default()
    }
}

/// Changes one attribute in SQD, and returns to RTS.
fn change(pair: &mut Pair, side: Side, mask: QpAttrMask, attr: QpAttr) {
    pair.modify(side, QpState::Sqd, NO_MORE, &decoy());
    pair.modify(side, QpState::Sqd, mask, &attr);
    pair.modify(side, QpState::Rts, NO_MORE, &decoy());
}

/// Returns the times at which the first packet of A was sent, in ns.
fn transmissions(pair: &Pair) -> Vec<u64> {
    let ours = pair.trace().iter().filter(|t| t.from == Side::A);
    ours.filter(|t| t.packet().bth().psn.sub(PSN).get() == 0)
        .map(|t| t.time.as_ns())
        .collect()
}

fn into_the_void(pair: &mut Pair) -> Vec<u64> {
    let dst = register(pair, Side::B, 8);
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, write(&dst), &[]);
    pair.run();
    let completions = pair.take_completions(Side::A);
    assert_eq!(statuses(&completions), [(1, WcStatus::RetryExcErr)]);
    transmissions(pair)
}

#[test]
fn timeout_alone() {
    let mut pair = Pair::new(|_, setup| setup.attr.retry_cnt = 1);
    let attr = QpAttr {
        timeout: 16,
        ..decoy()
    };
    change(&mut pair, Side::A, QpAttrMask::TIMEOUT, attr);
    assert_eq!(into_the_void(&mut pair), [0, 4096 << 16]);
}

#[test]
fn retry_cnt_alone() {
    let mut pair = Pair::default();
    let attr = QpAttr {
        retry_cnt: 1,
        ..decoy()
    };
    change(&mut pair, Side::A, QpAttrMask::RETRY_CNT, attr);
    assert_eq!(into_the_void(&mut pair), [0, 4096 << 14]);
}

#[test]
fn rnr_retry_alone() {
    let mut pair = Pair::default();
    let attr = QpAttr {
        rnr_retry: 2,
        ..decoy()
    };
    change(&mut pair, Side::A, QpAttrMask::RNR_RETRY, attr);
    pair.send(Side::A, 1, send(), &[]);
    pair.run();
    assert_eq!(transmissions(&pair).len(), 3);
    let completions = pair.take_completions(Side::A);
    assert_eq!(statuses(&completions), [(1, WcStatus::RnrRetryExcErr)]);
}

#[test]
fn max_rd_atomic_alone() {
    for limit in [1, 3] {
        let mut pair = Pair::default();
        let attr = QpAttr {
            max_rd_atomic: limit,
            ..decoy()
        };
        change(&mut pair, Side::A, QpAttrMask::MAX_QP_RD_ATOMIC, attr);
        let (here, there) = (register(&pair, Side::A, 8), register(&pair, Side::B, 8));
        pair.set_network(|_| Delivery::Drop);
        for id in 0..6 {
            pair.send(Side::A, id, read(&there), &[here.sge()]);
        }
        pair.drain_both();
        assert_eq!(operations(&pair, Side::A).len(), usize::from(limit));
    }
}

#[test]
fn max_dest_rd_atomic_alone() {
    for (limit, refused) in [(1, true), (2, false)] {
        let (mut pair, region) = target();
        let attr = QpAttr {
            max_dest_rd_atomic: limit,
            ..decoy()
        };
        change(&mut pair, Side::B, QpAttrMask::MAX_DEST_RD_ATOMIC, attr);
        let requests = [
            read_request(0, &region, 0, 1),
            read_request(1, &region, 0, 1),
        ];
        batch(&mut pair, &requests);
        let state = pair.node(Side::B).qp.state();
        assert_eq!(state == QpState::Err, refused, "{limit}: {state:?}");
    }
}

/// Checks the access flags, in RTS without SQD.
#[test]
fn access_flags_alone() {
    let (mut pair, region) = target();
    let write = |psn| super::responder::write_only(psn, &region, 1);
    assert_eq!(answer(&mut pair, &write(0)), ["ACK psn=0 msn=1"]);
    let attr = QpAttr {
        qp_access_flags: AccessFlags::REMOTE_READ,
        ..decoy()
    };
    pair.modify(Side::B, QpState::Rts, QpAttrMask::ACCESS_FLAGS, &attr);
    let reading = read_request(1, &region, 0, 1);
    assert_eq!(
        answer(&mut pair, &reading),
        ["ReadResponseOnly ACK psn=1 msn=2"]
    );
    assert_eq!(
        answer(&mut pair, &write(2)),
        ["NAK INVALID_REQUEST psn=2 msn=2"]
    );
    assert_eq!(pair.node(Side::B).mem.writes(), 1);
}

/// Checks the RNR timer, in RTS too. The requester waits as long as the responder requests.
#[test]
fn min_rnr_timer_alone() {
    let mut pair = Pair::default();
    let attr = QpAttr {
        min_rnr_timer: 20,
        ..decoy()
    };
    pair.modify(Side::B, QpState::Rts, QpAttrMask::MIN_RNR_TIMER, &attr);
    pair.send(Side::A, 1, send(), &[]);
    pair.run_for(15_000_000);
    let sent = transmissions(&pair);
    // Code 20 is 10.24 ms. The code before was 0.64 ms.
    assert_eq!(sent.len(), 2);
    assert!((10_240_000..10_260_000).contains(&sent[1]), "{sent:?}");
}

#[test]
fn pkey_index_alone() {
    let (mut pair, region) = target();
    let now = pair.now();
    let other = ModifyContext {
        pkey: Pkey::new(0x8003),
        ..context(pair.node(Side::B).qp.local())
    };
    let qp = &mut pair.node_mut(Side::B).qp;
    let sqd = QpAttr {
        qp_state: QpState::Sqd.code(),
        ..decoy()
    };
    qp.modify(now, &sqd, QpAttrMask::STATE, &other).unwrap();
    qp.modify(now, &sqd, QpAttrMask::PKEY_INDEX, &other)
        .unwrap();
    let mut request = super::responder::write_only(0, &region, 1);
    assert_eq!(answer(&mut pair, &request), [""; 0]);
    request.headers.bth.pkey = Pkey::new(0x8003);
    assert_eq!(answer(&mut pair, &request), ["ACK psn=0 msn=1"]);
}

/// Checks that a message that leaves its region later is refused at its first packet, before any of
/// it is written.
//= RC-RSP-08, RC-SEG-02 type=test
#[test]
fn the_whole_range_is_checked_at_the_first_packet() {
    let (mut pair, region) = target();
    let first = |len| {
        Request::new(Operation::WriteFirst, 0)
            .reth(region.addr, region.rkey, len)
            .payload(&pattern(PMTU, 1))
    };
    assert_eq!(
        answer(&mut pair, &first(10 * PMTU + 1)),
        ["NAK REMOTE_ACCESS psn=0 msn=0"]
    );
    assert_eq!(pair.node(Side::B).mem.writes(), 0);
    assert_eq!(pair.take_events(Side::B), [QpEvent::AccessErr]);
    // The whole message lies inside the region.
    let (mut pair, _) = target();
    assert_eq!(answer(&mut pair, &first(10 * PMTU)), ["ACK psn=0 msn=0"]);
    assert_eq!(pair.node(Side::B).mem.writes(), 1);
    // No response to such a READ is sent.
    let (mut pair, _) = target();
    assert_eq!(
        answer(&mut pair, &read_request(0, &region, 0, 10 * PMTU + 1)),
        ["NAK REMOTE_ACCESS psn=0 msn=0"]
    );
}

/// Delivers a request to B without polling its outputs.
pub(super) fn feed(pair: &mut Pair, request: &Request) {
    let bytes = request.bytes();
    let now = pair.now();
    let node = pair.node_mut(Side::B);
    let meta = PacketMeta {
        source: node.qp.remote(),
        destination: node.qp.local(),
        traffic_class: 0,
        hop_limit: 64,
    };
    let packet = Packet::parse(&bytes).unwrap();
    node.qp.handle_packet(now, &meta, &packet, &node.mem);
}

/// Checks that no response is sent after the application, or the loss of a completion, has moved
/// the QP to ERR.
///
/// In the first case only, messages that were executed and may have been seen are acknowledged.
//= RC-STA-03 type=test
#[test]
fn responses_not_sent_are_dropped_in_the_error_state() {
    for fatal in [false, true] {
        let (mut pair, region) = target();
        feed(&mut pair, &super::responder::write_only(0, &region, 1));
        feed(&mut pair, &read_request(1, &region, 0, 3 * PMTU));
        feed(&mut pair, &fetch_add(4, &region, 1));
        if fatal {
            let now = pair.now();
            pair.node_mut(Side::B).qp.set_fatal(now, 0);
        } else {
            pair.modify(Side::B, QpState::Err, NO_MORE, &QpAttr::default());
        }
        pair.run();
        let expected: &[&str] = if fatal { &[] } else { &["ACK psn=0 msn=1"] };
        assert_eq!(answers(&mut pair), expected, "fatal: {fatal}");
    }
}

/// Checks that the queue of replays is bounded if duplicates arrive faster than they can be
/// answered.
//= RC-DUP-07 type=test
#[test]
fn replays_wait_in_a_queue_with_an_end() {
    const LIMIT: usize = 512;
    let (mut pair, region) = target();
    answer(&mut pair, &read_request(0, &region, 0, 8));
    answer(&mut pair, &fetch_add(1, &region, 1));
    let dropped = |pair: &Pair| {
        let counters = pair.node(Side::B).qp.counters();
        counters.dropped(DropReason::Duplicate)
    };
    for _ in 0..LIMIT {
        feed(&mut pair, &fetch_add(1, &region, 1));
    }
    assert_eq!(dropped(&pair), 0);
    feed(&mut pair, &read_request(0, &region, 0, 8));
    feed(&mut pair, &fetch_add(1, &region, 1));
    assert_eq!(dropped(&pair), 2);
    pair.drain_both();
    assert_eq!(answers(&mut pair).len(), LIMIT);
    // Once they are answered there is room again.
    let again = answer(&mut pair, &read_request(0, &region, 0, 8));
    assert_eq!(again, ["ReadResponseOnly ACK psn=0 msn=2"]);
    assert_eq!(pair.node(Side::B).mem.atomics(), 1);
}

/// Checks that as many READs can be replayed as the QP has resources.
//= RC-DUP-05 type=test
#[test]
fn the_newest_reads_can_be_replayed() {
    let (mut pair, region) = target_with(|setup| setup.attr.max_dest_rd_atomic = 2);
    for psn in 0..3 {
        answer(
            &mut pair,
            &read_request(psn, &region, 8 * u64::from(psn), 8),
        );
    }
    for (psn, replayed) in [(0, 0), (1, 1), (2, 1)] {
        let again = read_request(psn, &region, 8 * u64::from(psn), 8);
        assert_eq!(answer(&mut pair, &again).len(), replayed, "READ {psn}");
    }
}
