//! Errors detected by the requester: NAKs, wrong responses, its own buffers.

use alloc::vec::Vec;

use rocade_wire::{
    Aeth, AtomicAckEth, Bth, Headers, Msn, Opcode, Operation, Psn, Qpn, Rkey, Service, Syndrome,
};

use super::{ALL, PMTU, PSN, operations, read, register, send, statuses, write};
use crate::testing::{Delivery, Pair, Side};
use crate::{
    AccessFlags, Completion, DropReason, PostError, QpAttr, QpAttrMask, QpState, SendFlags, SendOp,
    SendWr, Sge, WcStatus,
};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;

fn headers(operation: Operation, psn: u32) -> Headers {
    let opcode = Opcode::of(Service::Rc, operation).unwrap();
    Headers::new(Bth::new(opcode, Qpn::new(0x11), Psn::new(PSN).add(psn)))
}

fn emit(mut headers: Headers, payload: &[u8]) -> Vec<u8> {
    headers.bth.pad_count = [0, 3, 2, 1][payload.len() % 4];
    let mut bytes = alloc::vec![0; headers.len()];
    headers.emit(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
    bytes
}

/// Returns a response without payload to A. `syndrome` is the code in its AETH.
pub(super) fn response(operation: Operation, psn: u32, syndrome: u8) -> Vec<u8> {
    response_with(operation, psn, syndrome, &[])
}

fn response_with(operation: Operation, psn: u32, syndrome: u8, payload: &[u8]) -> Vec<u8> {
    let mut headers = headers(operation, psn);
    if operation != Operation::ReadResponseMiddle {
        headers.aeth = Some(Aeth {
            syndrome: Syndrome::from_code(syndrome),
            msn: Msn::new(0),
        });
    }
    if operation == Operation::AtomicAcknowledge {
        headers.atomic_ack = Some(AtomicAckEth { original: 5 });
    }
    emit(headers, payload)
}

/// Creates a pair whose A has sent a WRITE of PSN 0, a WRITE of PSNs 1..=3 and a READ of PSNs
/// 4..=6, none answered.
fn waiting() -> Pair {
    let mut pair = Pair::default();
    let here = register(&pair, Side::A, 3 * PMTU);
    let there = register(&pair, Side::B, 3 * PMTU);
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, write(&there), &[here.part(0, 1)]);
    pair.send(Side::A, 2, write(&there), &[here.sge()]);
    pair.send(Side::A, 3, read(&there), &[here.sge()]);
    pair.recv(Side::A, 9, &[]);
    pair.drain_both();
    pair
}

fn outcome(pair: &mut Pair, bytes: &[u8]) -> Vec<(u64, WcStatus)> {
    pair.inject(Side::A, bytes);
    statuses(&pair.take_completions(Side::A))
}

//= RC-REQ-07 RC-REQ-08 RC-REQ-09 type=test
//= RC-STA-01 WCS-09 WCS-10 type=test
//= WCS-11 type=test
#[test]
fn a_fatal_nak_completes_the_request_that_it_names() {
    for (code, status) in [
        (0x61, WcStatus::RemInvReqErr),
        (0x62, WcStatus::RemAccessErr),
        (0x63, WcStatus::RemOpErr),
    ] {
        for psn in 1..=3 {
            let mut pair = waiting();
            let nak = response(Operation::Acknowledge, psn, code);
            let expected = [(1, OK), (2, status), (3, FLUSHED), (9, FLUSHED)];
            assert_eq!(outcome(&mut pair, &nak), expected);
            assert_eq!(pair.node(Side::A).qp.state(), QpState::Err);
            assert_eq!(pair.node(Side::A).qp.next_timeout(), None);
            assert_eq!(outcome(&mut pair, &nak), []);
        }
        for psn in 4..=6 {
            let mut pair = waiting();
            let nak = response(Operation::Acknowledge, psn, code);
            let expected = [(1, OK), (2, OK), (3, status), (9, FLUSHED)];
            assert_eq!(outcome(&mut pair, &nak), expected);
        }
    }
}

//= RC-REQ-15 type=test
#[test]
fn reserved_codes_are_ignored() {
    for syndrome in [0x40, 0x5f, 0x64, 0x65, 0x7f, 0x80, 0xff] {
        let mut pair = waiting();
        assert_eq!(
            outcome(&mut pair, &response(Operation::Acknowledge, 1, syndrome)),
            []
        );
        assert_eq!(pair.node(Side::A).qp.state(), QpState::Rts);
        assert_eq!(
            pair.node(Side::A)
                .qp
                .counters()
                .dropped(DropReason::Reserved),
            1,
            "{syndrome:#x}"
        );
    }
}

//= RC-REQ-10, WCS-07 type=test
#[test]
fn an_unexpected_response_is_fatal() {
    let bad = [
        (response_with(Operation::ReadResponseOnly, 0, 0x1f, &[1]), 1),
        (response(Operation::AtomicAcknowledge, 2, 0x1f), 2),
        (response(Operation::AtomicAcknowledge, 4, 0x1f), 3),
        (response_with(Operation::ReadResponseOnly, 4, 0x61, &[1]), 3),
    ];
    for (bytes, id) in bad {
        let mut pair = waiting();
        let outcome = outcome(&mut pair, &bytes);
        for (wr_id, status) in outcome {
            let expected = match wr_id {
                _ if wr_id < id => OK,
                _ if wr_id == id => WcStatus::BadRespErr,
                _ => FLUSHED,
            };
            assert_eq!(status, expected);
        }
        assert_eq!(pair.node(Side::A).qp.state(), QpState::Err);
    }
}

//= RC-REQ-11 type=test
#[test]
fn read_responses_must_have_the_right_length() {
    use Operation::{ReadResponseFirst, ReadResponseLast, ReadResponseMiddle, ReadResponseOnly};
    let pmtu = PMTU as usize;
    for (operation, len) in [
        (ReadResponseFirst, pmtu - 4),
        (ReadResponseMiddle, pmtu - 1),
        (ReadResponseOnly, pmtu),
        (ReadResponseLast, pmtu),
        (ReadResponseFirst, pmtu + 4),
        (ReadResponseOnly, 0),
    ] {
        let mut pair = waiting();
        let bytes = response_with(operation, 4, 0x1f, &alloc::vec![1; len]);
        let expected = [(1, OK), (2, OK), (3, WcStatus::LocLenErr), (9, FLUSHED)];
        assert_eq!(outcome(&mut pair, &bytes), expected, "{operation:?} {len}");
        assert_eq!(pair.node(Side::A).mem.writes(), 0);
    }
    // Correct up to the end, which is too long, too short or missing.
    for (operation, len) in [(ReadResponseLast, pmtu - 1), (ReadResponseMiddle, pmtu)] {
        let mut pair = waiting();
        for (operation, psn) in [(ReadResponseFirst, 4), (ReadResponseMiddle, 5)] {
            pair.inject(
                Side::A,
                &response_with(operation, psn, 0x1f, &alloc::vec![1; pmtu]),
            );
        }
        pair.take_completions(Side::A);
        let bytes = response_with(operation, 6, 0x1f, &alloc::vec![1; len]);
        assert_eq!(
            outcome(&mut pair, &bytes),
            [(3, WcStatus::LocLenErr), (9, FLUSHED)]
        );
    }
}

//= RC-ACK-03, RC-REQ-03 type=test
#[test]
fn a_read_response_acknowledges_what_was_before() {
    let mut pair = waiting();
    let bytes = response_with(Operation::ReadResponseFirst, 4, 0x1f, &[7; PMTU as usize]);
    assert_eq!(outcome(&mut pair, &bytes), [(1, OK), (2, OK)]);
    assert_eq!(pair.node(Side::A).mem.writes(), 1);
}

/// Returns the completions at A after a WRITE (1), the given request (2) and a SEND (3).
fn local_error(op: SendOp, sges: &[Sge], adapt: impl Fn(&mut Pair)) -> (Pair, Vec<Completion>) {
    let mut pair = Pair::default();
    adapt(&mut pair);
    let there = register(&pair, Side::B, 8);
    pair.send(Side::A, 1, write(&there), &[]);
    pair.send(Side::A, 2, op, sges);
    pair.send(Side::A, 3, send(), &[]);
    pair.run();
    let completions = pair.take_completions(Side::A);
    (pair, completions)
}

//= RC-REQ-14 RC-REQ-13 RC-WQE-01 type=test
//= WCS-04 type=test
#[test]
fn a_bad_local_buffer_fails_its_request_in_its_turn() {
    // Keys are assigned in the order of registration, so these are known beforehand.
    let layout = |pair: &mut Pair| {
        let mem = &pair.node(Side::A).mem;
        [
            mem.register(8, ALL),
            mem.register_foreign(8, ALL),
            mem.register(8, AccessFlags::empty()),
        ]
    };
    let mut pair = Pair::default();
    let [good, foreign, read_only] = layout(&mut pair);
    let remote = register(&pair, Side::B, 8);
    let unknown = Sge {
        lkey: rocade_wire::Lkey::new(0xbad),
        ..good.sge()
    };
    let both = [good.sge(), good.part(1, 8)];
    let atomic = SendOp::FetchAdd {
        va: remote.addr,
        rkey: remote.rkey,
        add: 1,
    };
    let cases: [(SendOp, &[Sge]); 8] = [
        (send(), &[foreign.sge()]),
        (send(), &[unknown]),
        (send(), &both),
        (write(&remote), &[unknown]),
        (read(&remote), &[foreign.sge()]),
        (read(&remote), &[read_only.sge()]),
        (atomic, &[read_only.sge()]),
        (atomic, &[good.part(4, 8)]),
    ];
    for (op, sges) in cases {
        let (pair, completions) = local_error(op, sges, |pair| {
            layout(pair);
        });
        let expected = [(1, OK), (2, WcStatus::LocProtErr), (3, FLUSHED)];
        assert_eq!(statuses(&completions), expected, "{op:?}");
        assert_eq!(
            operations(&pair, Side::A).len(),
            1,
            "no packet of it was sent"
        );
        assert_eq!(pair.node(Side::A).qp.state(), QpState::Err);
    }
    // Gathering needs no access right.
    pair.recv(Side::B, 1, &[register(&pair, Side::B, 8).sge()]);
    pair.send(Side::A, 1, send(), &[read_only.sge()]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
}

//= RC-REQ-13 type=test
#[test]
fn a_result_buffer_that_vanishes_fails_the_read() {
    let mut pair = Pair::default();
    let here = register(&pair, Side::A, 8);
    let there = register(&pair, Side::B, 8);
    pair.send(Side::A, 1, read(&there), &[here.sge()]);
    pair.drain_both();
    pair.node(Side::A).mem.deregister(&here);
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [(1, WcStatus::LocProtErr)]
    );
}

//= RC-LIM-02 type=test
//= WCS-02 type=test
#[test]
fn reads_without_permission_to_have_any_outstanding_fail() {
    let mut pair = Pair::new(|_, setup| setup.attr.max_rd_atomic = 0);
    let there = register(&pair, Side::B, 8);
    pair.send(Side::A, 1, write(&there), &[]);
    pair.send(Side::A, 2, read(&there), &[]);
    pair.run();
    let expected = [(1, OK), (2, WcStatus::LocQpOpErr)];
    assert_eq!(statuses(&pair.take_completions(Side::A)), expected);
}

//= WCS-01, MTU-04 type=test
#[test]
fn a_message_must_not_be_longer_than_two_gib() {
    let huge = Sge {
        addr: 0,
        len: 1 << 30,
        lkey: rocade_wire::Lkey::new(0),
    };
    let (_, completions) = local_error(send(), &[huge, huge, Sge { len: 1, ..huge }], |_| {});
    assert_eq!(
        statuses(&completions),
        [(1, OK), (2, WcStatus::LocLenErr), (3, FLUSHED)]
    );
    let max = Sge {
        len: u32::MAX,
        ..huge
    };
    let (_, completions) = local_error(send(), &[max; 8], |_| {});
    assert_eq!(statuses(&completions)[1], (2, WcStatus::LocLenErr));
}

//= PST-09, ATM-05 type=test
#[test]
fn posting_checks_counts_and_lengths() {
    let mut pair = Pair::default();
    let here = register(&pair, Side::A, 64);
    let mut post = |op, sges: &[Sge]| {
        let wr = SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::empty(),
            sges,
        };
        pair.try_send(Side::A, &wr)
    };
    assert_eq!(post(send(), &[here.sge(); 9]), Err(PostError::TooManySges));
    let atomic = SendOp::FetchAdd {
        va: 0,
        rkey: Rkey::new(0),
        add: 1,
    };
    assert_eq!(
        post(atomic, &[here.part(0, 7)]),
        Err(PostError::AtomicBuffer)
    );
    assert_eq!(post(atomic, &[]), Err(PostError::AtomicBuffer));
    for _ in 0..64 {
        assert_eq!(post(send(), &[here.sge(); 8]), Ok(()));
    }
    assert_eq!(post(send(), &[]), Err(PostError::QueueFull));
    let now = pair.now();
    let qp = &mut pair.node_mut(Side::A).qp;
    assert_eq!(
        qp.post_recv(now, 1, &[Sge::default(); 9]),
        Err(PostError::TooManySges)
    );
    for id in 0..64 {
        assert_eq!(qp.post_recv(now, id, &[]), Ok(()));
    }
    assert_eq!(qp.post_recv(now, 1, &[]), Err(PostError::QueueFull));
    //= WRX-06 type=test
    qp.unpost_send(63);
    assert_eq!(qp.send_queue_len(), 1);
    for _ in 0..63 {
        assert_eq!(post_one(&mut pair), Ok(()));
    }
    assert_eq!(post_one(&mut pair), Err(PostError::QueueFull));
}

fn post_one(pair: &mut Pair) -> Result<(), PostError> {
    post_flagged(pair, SendFlags::SIGNALED)
}

fn post_flagged(pair: &mut Pair, flags: SendFlags) -> Result<(), PostError> {
    let wr = SendWr {
        wr_id: 0,
        op: send(),
        flags,
        sges: &[],
    };
    pair.try_send(Side::A, &wr)
}

/// Checks the count of freed WQEs, also for requests that fail or are flushed.
//= RC-WQE-03 type=test
#[test]
fn a_completion_says_how_many_slots_it_frees() {
    let mut pair = Pair::new(|_, setup| setup.config.sq_sig_all = false);
    for signaled in [false, false, true, true, false, true, false] {
        pair.recv(Side::B, 0, &[]);
        let flags = if signaled {
            SendFlags::SIGNALED
        } else {
            SendFlags::empty()
        };
        post_flagged(&mut pair, flags).unwrap();
    }
    pair.run();
    let freed_wqes = |pair: &mut Pair| -> Vec<u32> {
        let taken = pair.take_completions(Side::A);
        taken.iter().map(|c| c.freed_wqes).collect()
    };
    assert_eq!(freed_wqes(&mut pair), [3, 1, 2]);
    // One completes without a completion, one fails, and all later ones are flushed.
    let bad = SendWr {
        wr_id: 1,
        op: write(&register(&pair, Side::A, 8)),
        flags: SendFlags::empty(),
        sges: &[],
    };
    pair.try_send(Side::A, &bad).unwrap();
    pair.modify(
        Side::B,
        QpState::Err,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    for _ in 0..2 {
        post_flagged(&mut pair, SendFlags::empty()).unwrap();
    }
    pair.run();
    assert_eq!(freed_wqes(&mut pair), [2, 1, 1]);
    // A batch whose posting is undone in ERR leaves no completions.
    for _ in 0..64 {
        post_one(&mut pair).unwrap();
    }
    assert_eq!(post_one(&mut pair), Err(PostError::QueueFull));
    pair.node_mut(Side::A).qp.unpost_send(64);
    post_one(&mut pair).unwrap();
    pair.drain_both();
    assert_eq!(freed_wqes(&mut pair), [1]);
}

//= RC-RSP-10, RC-REQ-07 type=test
#[test]
fn both_sides_report_a_receive_that_is_too_small() {
    let mut pair = Pair::default();
    let here = register(&pair, Side::A, 2 * PMTU);
    let there = register(&pair, Side::B, PMTU);
    pair.recv(Side::B, 1, &[there.sge()]);
    pair.recv(Side::B, 2, &[there.sge()]);
    pair.send(Side::A, 1, send(), &[here.sge()]);
    pair.send(Side::A, 2, send(), &[here.sge()]);
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [(1, WcStatus::RemInvReqErr), (2, FLUSHED)]
    );
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(1, WcStatus::LocLenErr), (2, FLUSHED)]
    );
}
