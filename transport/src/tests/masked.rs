//! Masked atomics: on the wire, in memory, and executed only once.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{
    Bth, Deth, Headers, Opcode, Operation, Psn, Qkey, Qpn, Rkey, RocadeProbe, Service,
};

use super::{ALL, operations, register, register_filled, statuses, write};
use crate::testing::{Delivery, Pair, Region, Side, TestDomain, TestMemory, TestSrq};
use crate::{
    AccessFlags, Counters, MaskedOp, Operands, PdTag, PostError, QpAttr, QpAttrMask, QpState,
    QpType, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WideOperand,
};

const OK: WcStatus = WcStatus::Success;
const EVERYTHING: WideOperand = [u64::MAX; 4];

fn swap(compare: WideOperand, compare_mask: WideOperand, swap: WideOperand) -> MaskedOp {
    MaskedOp::CmpSwap {
        compare,
        compare_mask,
        swap,
        swap_mask: EVERYTHING,
    }
}

fn connected(qp_type: QpType) -> Pair {
    let is_xrc = qp_type == QpType::XrcSend;
    let domain = Arc::new(TestDomain::default());
    let srq = Arc::new(TestSrq::new(TestMemory::PD, 8));
    domain.set(TestDomain::FIRST, Some(&srq));
    let mut pair = Pair::in_states(QpState::Rts, QpState::Rts, |side, setup| {
        if !is_xrc {
            return;
        }
        setup.config.qp_type = QpType::XrcSend;
        if side == Side::B {
            setup.config.qp_type = QpType::XrcRecv;
            setup.config.pd = PdTag(0);
            setup.domain = Some(Arc::clone(&domain));
        }
    });
    pair.node_mut(Side::A).qp.set_vendor_ops(true);
    pair
}

fn try_post(
    pair: &mut Pair,
    (to, log_size): (&Region, u8),
    op: MaskedOp,
    sges: &[Sge],
) -> Result<(), PostError> {
    let wr = SendWr {
        wr_id: 7,
        op: SendOp::Masked {
            va: to.addr,
            rkey: to.rkey,
            log_size,
        },
        flags: SendFlags::SIGNALED,
        sges,
    };
    pair.try_send(Side::A, &wr)?;
    pair.node_mut(Side::A).qp.set_operands(Operands::Masked(op));
    Ok(())
}

fn counters(pair: &Pair) -> Counters {
    pair.node(Side::B).qp.counters()
}

//= XAW-02 type=test
//= XAW-06 type=test
//= XAT-07 type=test
//= XAT-24 type=test
//= XAT-25 type=test
#[test]
fn every_size_of_both_services() {
    for qp_type in [QpType::Rc, QpType::XrcSend] {
        for log_size in 2..=5 {
            let len = 1usize << log_size;
            let mut pair = connected(qp_type);
            let result = register(&pair, Side::A, 64);
            let there = register_filled(&pair, Side::B, 64, 3);
            let before = pair.node(Side::B).mem.all(&there);
            // The result is split over two entries.
            let sges = [result.part(0, 3), result.part(8, 61)];
            let op = swap([0; 4], [0; 4], [0x0102_0304_0506_0708; 4]);
            try_post(&mut pair, (&there, log_size), op, &sges).unwrap();
            pair.run();
            let done = pair.take_completions(Side::A);
            assert_eq!(statuses(&done), [(7, OK)]);
            assert_eq!(done[0].opcode, WcOpcode::MaskedCompSwap);
            assert_eq!(done[0].opcode.code(), WcOpcode::CompSwap.code());
            assert_eq!(done[0].byte_len as usize, len);
            let mut got = pair.node(Side::A).mem.bytes(&result, 0..3);
            got.extend(pair.node(Side::A).mem.bytes(&result, 8..8 + len - 3));
            assert_eq!(got, before[..len]);
            let after = pair.node(Side::B).mem.all(&there);
            let word = 0x0102_0304_0506_0708u64.to_ne_bytes();
            if log_size == 2 {
                assert_eq!(after[..4], 0x0506_0708u32.to_ne_bytes());
            } else {
                assert!(after[..len].chunks(8).all(|chunk| chunk == word));
            }
            assert_eq!(after[len..], before[len..], "exactly the operand");
            let sent = operations(&pair, Side::A);
            let answered = operations(&pair, Side::B);
            let request = match qp_type {
                //= XAW-10 type=test
                _ if log_size == 3 => Operation::MaskedCmpSwap,
                QpType::Rc => Operation::MaskedCmpSwap,
                _ => Operation::XrcMaskedCmpSwap,
            };
            assert_eq!(
                sent.iter().map(|(op, _)| *op).collect::<Vec<_>>(),
                [request]
            );
            let response = if log_size > 3 {
                Operation::WideAtomicAcknowledge
            } else {
                Operation::AtomicAcknowledge
            };
            assert_eq!(answered[0].0, response);
            // An addition, field by field.
            let add = MaskedOp::FetchAdd {
                add: [1; 4],
                boundary: [1 << 7; 4],
            };
            try_post(&mut pair, (&there, log_size), add, &[result.sge()]).unwrap();
            pair.run();
            let done = pair.take_completions(Side::A);
            assert_eq!(done[0].opcode, WcOpcode::MaskedFetchAdd);
            let bytes = pair.node(Side::B).mem.bytes(&there, 0..len);
            let step = if log_size == 2 { 4 } else { 8 };
            let low = if cfg!(target_endian = "little") {
                0
            } else {
                step - 1
            };
            assert!(bytes.chunks(step).all(|word| word[low] == 9));
        }
    }
}

/// Checks lost responses: requests are repeated, and get the saved answer.
//= XAT-24 type=test
//= XAW-07 type=test
//= RC-DUP-04 type=test
#[test]
fn a_duplicate_is_answered_and_not_executed() {
    for log_size in 2..=5 {
        let mut pair = connected(QpType::Rc);
        let result = register(&pair, Side::A, 64);
        let there = register(&pair, Side::B, 64);
        let mut left = 3;
        pair.set_network(move |event| {
            if event.from == Side::B && left > 0 {
                left -= 1;
                return Delivery::Drop;
            }
            Delivery::Deliver
        });
        let add = MaskedOp::FetchAdd {
            add: [5; 4],
            boundary: [0; 4],
        };
        try_post(&mut pair, (&there, log_size), add, &[result.sge()]).unwrap();
        pair.run();
        assert_eq!(statuses(&pair.take_completions(Side::A)), [(7, OK)]);
        assert_eq!(pair.node(Side::B).mem.atomics(), 1);
        assert!(counters(&pair).duplicate_requests > 0);
        let len = 1 << log_size;
        assert_eq!(pair.node(Side::A).mem.bytes(&result, 0..len), vec![0; len]);
    }
}

//= XAT-15 type=test
//= XAW-07 type=test
//= XDEC-16 type=test
#[test]
fn what_the_peer_refuses() {
    let op = swap([0; 4], [0; 4], [1; 4]);
    for (log_size, offset, rights, status) in [
        (2, 2, ALL, WcStatus::RemInvReqErr),
        (3, 4, ALL, WcStatus::RemInvReqErr),
        (4, 8, ALL, WcStatus::RemInvReqErr),
        (5, 16, ALL, WcStatus::RemInvReqErr),
        (5, 64, ALL, WcStatus::RemAccessErr),
        (2, 64, ALL, WcStatus::RemAccessErr),
        (
            3,
            0,
            ALL.difference(AccessFlags::REMOTE_ATOMIC),
            WcStatus::RemAccessErr,
        ),
    ] {
        let mut pair = connected(QpType::Rc);
        let result = register(&pair, Side::A, 64);
        let mut there = pair.node(Side::B).mem.register(64, rights);
        there.addr += offset;
        try_post(&mut pair, (&there, log_size), op, &[result.sge()]).unwrap();
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(7, status)], "{log_size} {offset}");
        assert_eq!(pair.node(Side::B).mem.atomics(), 0);
        assert_eq!(pair.node(Side::B).qp.state(), QpState::Err);
    }
}

//= XAW-08 type=test
//= XAT-07 type=test
//= XAT-12 type=test
#[test]
fn what_is_not_posted() {
    let op = swap([0; 4], [0; 4], [1; 4]);
    let mut pair = connected(QpType::Rc);
    let result = register(&pair, Side::A, 64);
    let there = register(&pair, Side::B, 64);
    for log_size in [0, 1, 6, 7, 8, 255] {
        let posted = try_post(&mut pair, (&there, log_size), op, &[result.sge()]);
        assert!(posted.is_err(), "{log_size}");
    }
    let short = try_post(&mut pair, (&there, 4), op, &[result.part(0, 15)]);
    assert_eq!(short, Err(PostError::AtomicBuffer));
    // The operands are missing.
    let wr = SendOp::Masked {
        va: there.addr,
        rkey: Rkey::new(there.rkey.get()),
        log_size: 3,
    };
    pair.send(Side::A, 1, wr, &[result.sge()]);
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(1, WcStatus::LocQpOpErr)]);
}

fn sent(pair: &Pair, side: Side) -> Vec<Operation> {
    let sent = operations(pair, side).into_iter();
    sent.map(|(operation, _)| operation).collect()
}

/// Checks that an unknown peer is probed once, after the requests that were sent before. Afterwards
/// each side counts as Rocade.
//= XAW-08 type=test
#[test]
fn a_peer_is_asked_before_the_first_one() {
    for qp_type in [QpType::Rc, QpType::XrcSend] {
        let mut pair = connected(qp_type);
        pair.node_mut(Side::A).qp.set_vendor_ops(false);
        let result = register(&pair, Side::A, 64);
        let there = register(&pair, Side::B, 64);
        let add = MaskedOp::FetchAdd {
            add: [1; 4],
            boundary: [0; 4],
        };
        // The probe is lost, and then its answer.
        let mut lost = 0;
        pair.set_network(move |event| {
            let is_probe = event.packet.headers().deth.is_some();
            lost += u32::from(is_probe);
            if is_probe && lost < 3 {
                Delivery::Drop
            } else {
                Delivery::Deliver
            }
        });
        pair.send(Side::A, 1, write(&there), &[result.part(0, 8)]);
        for _ in 0..2 {
            try_post(&mut pair, (&there, 3), add, &[result.sge()]).unwrap();
        }
        pair.send(Side::A, 2, write(&there), &[result.part(0, 8)]);
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(1, OK), (7, OK), (7, OK), (2, OK)]);
        let masked = match qp_type {
            QpType::Rc => Operation::MaskedFetchAdd,
            _ => Operation::XrcMaskedFetchAdd,
        };
        // Three probes: of the first two, one probe and one answer were lost.
        let asked = Operation::SendOnly;
        let write = Operation::WriteOnly;
        let expected = [write, asked, asked, asked, masked, masked, write];
        assert_eq!(sent(&pair, Side::A), expected, "{}", pair.trace_text());
        // The peer is known from now on.
        try_post(&mut pair, (&there, 3), add, &[result.sge()]).unwrap();
        pair.run();
        assert_eq!(sent(&pair, Side::A).len(), expected.len() + 1);
    }
}

/// Checks a device that drops the probe: no other packet is sent, and the request fails as if its
/// packets were lost.
//= XAW-08 type=test
#[test]
fn a_peer_that_is_not_rocade_gets_none() {
    let mut pair = connected(QpType::Rc);
    pair.node_mut(Side::A).qp.set_vendor_ops(false);
    pair.set_network(|event| match event.packet.headers().deth {
        Some(_) => Delivery::Drop,
        None => Delivery::Deliver,
    });
    let result = register(&pair, Side::A, 64);
    let there = register(&pair, Side::B, 64);
    pair.send(Side::A, 1, write(&there), &[result.part(0, 8)]);
    let op = swap([0; 4], [0; 4], [1; 4]);
    try_post(&mut pair, (&there, 4), op, &[result.sge()]).unwrap();
    pair.send(Side::A, 2, write(&there), &[result.part(0, 8)]);
    pair.run();
    let done = pair.take_completions(Side::A);
    let (lost, flushed) = (WcStatus::RetryExcErr, WcStatus::WrFlushErr);
    assert_eq!(statuses(&done), [(1, OK), (7, lost), (2, flushed)]);
    assert_eq!(pair.node(Side::A).qp.state(), QpState::Err);
    // As often as any request: once, and seven times more.
    let mut expected = vec![Operation::WriteOnly];
    expected.extend([Operation::SendOnly; 8]);
    assert_eq!(sent(&pair, Side::A), expected);
}

/// Checks that unsolicited probes and answers are dropped: from other queue pairs, with another
/// key, without a request.
//= XAW-08 type=test
#[test]
fn only_the_peer_is_told() {
    let mut pair = connected(QpType::Rc);
    let probe = |from: u32, qkey: u32, payload: &[u8]| {
        let mut headers = Headers::new(Bth::new(
            Opcode::of(Service::Ud, Operation::SendOnly).unwrap(),
            Qpn::new(0x22),
            Psn::new(0),
        ));
        headers.bth.pad_count = [0, 3, 2, 1][payload.len() % 4];
        headers.deth = Some(Deth {
            qkey: Qkey::new(qkey),
            resv: 0,
            src_qp: Qpn::new(from),
        });
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes).unwrap();
        bytes.extend(payload);
        bytes.resize(bytes.len() + usize::from(headers.bth.pad_count) + 4, 0);
        bytes
    };
    let ask = RocadeProbe::Request.to_bytes();
    let answer = RocadeProbe::Reply.to_bytes();
    for packet in [
        probe(0x12, RocadeProbe::QKEY, &ask),
        probe(0x11, RocadeProbe::QKEY ^ 1, &ask),
        probe(0x11, RocadeProbe::QKEY, b"something"),
        probe(0x11, RocadeProbe::QKEY, &answer),
    ] {
        pair.inject(Side::B, &packet);
    }
    pair.run();
    assert_eq!(counters(&pair).dropped(crate::DropReason::WrongService), 4);
    assert_eq!(sent(&pair, Side::B), []);
    let third_host = "192.0.2.99".parse().unwrap();
    let packet = probe(0x11, RocadeProbe::QKEY, &ask);
    pair.inject_from(Side::B, third_host, Side::B.ip(), &packet);
    pair.run();
    assert_eq!(sent(&pair, Side::B), []);
    pair.inject(Side::B, &packet);
    pair.run();
    assert_eq!(sent(&pair, Side::B), [Operation::SendOnly]);
}

/// Checks that results are big-endian unit by unit, if the queue pair is configured so.
//= XAT-05 type=test
//= XAT-25 type=test
#[test]
fn results_may_be_big_endian() {
    let mut pair = connected(QpType::Rc);
    pair.node_mut(Side::A).qp.set_big_endian_results(true);
    let result = register(&pair, Side::A, 64);
    let there = register(&pair, Side::B, 64);
    let words = [0x0102_0304_0506_0708u64, 0x1112_1314_1516_1718];
    let in_memory = words.map(u64::to_ne_bytes).concat();
    pair.node(Side::B).mem.fill(&there, 0, &in_memory);
    let op = swap([0; 4], EVERYTHING, [1; 4]);
    for (log_size, expected) in [
        (3, words.map(u64::to_be_bytes).concat()[..8].to_vec()),
        (4, words.map(u64::to_be_bytes).concat()),
    ] {
        try_post(&mut pair, (&there, log_size), op, &[result.sge()]).unwrap();
        pair.run();
        assert_eq!(
            pair.node(Side::A).mem.bytes(&result, 0..1 << log_size),
            expected
        );
    }
    try_post(&mut pair, (&there, 2), op, &[result.part(32, 8)]).unwrap();
    let (va, rkey) = (there.addr + 8, there.rkey);
    let add = SendOp::FetchAdd { va, rkey, add: 1 };
    pair.send(Side::A, 8, add, &[result.part(48, 8)]);
    pair.run();
    let mem = &pair.node(Side::A).mem;
    let half = if cfg!(target_endian = "little") {
        4..8
    } else {
        0..4
    };
    assert_eq!(mem.bytes(&result, 32..36), words[0].to_be_bytes()[half]);
    assert_eq!(mem.bytes(&result, 36..40), [0; 4]);
    assert_eq!(mem.bytes(&result, 48..56), words[1].to_be_bytes());
    // The setting survives a reset of the queue pair.
    pair.modify(
        Side::A,
        QpState::Reset,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
}

/// Checks that a result of the wrong length is not accepted.
//= RC-REQ-10 XAW-06 type=test
#[test]
fn results_have_the_length_that_was_asked_for() {
    for (log_size, other) in [(4, 5), (5, 4)] {
        let mut pair = connected(QpType::Rc);
        let result = register(&pair, Side::A, 64);
        let there = register_filled(&pair, Side::B, 64, 3);
        let op = |word| swap([0; 4], [0; 4], [word; 4]);
        // The peer's answer to an operand of another size.
        let mut model = connected(QpType::Rc);
        let (here, far) = (register(&model, Side::A, 64), register(&model, Side::B, 64));
        try_post(&mut model, (&far, other), op(1), &[here.sge()]).unwrap();
        model.run();
        let is_result = |bytes: &[u8]| bytes.len() >= 16 + 16;
        let mut answers = model.trace().iter().filter(|sent| sent.from == Side::B);
        let wrong = answers.find(|sent| is_result(&sent.bytes)).unwrap();
        let wrong = wrong.bytes.clone();
        pair.set_network(move |event| {
            let is_response = event.from == Side::B && !event.packet.payload().is_empty();
            if is_response {
                Delivery::Replace(wrong.clone())
            } else {
                Delivery::Deliver
            }
        });
        try_post(&mut pair, (&there, log_size), op(1), &[result.sge()]).unwrap();
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(7, WcStatus::BadRespErr)]);
        assert_eq!(pair.node(Side::A).mem.all(&result), [0; 64]);
    }
}
