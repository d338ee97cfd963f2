//! Masked atomics: on the wire, in memory, and never executed twice.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{Operation, Rkey};

use super::{ALL, operations, register, register_filled, statuses};
use crate::testing::{Fate, Pair, Region, Side, TestDomain, TestMemory, TestSrq};
use crate::{
    AccessFlags, Counters, MaskedOp, Operands, PdTag, PostError, QpState, QpType, SendFlags,
    SendOp, SendWr, Sge, WcOpcode, WcStatus, Words,
};

const OK: WcStatus = WcStatus::Success;
const EVERYTHING: Words = [u64::MAX; 4];

fn swap(compare: Words, compare_mask: Words, swap: Words) -> MaskedOp {
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
    pair.node_mut(Side::A).qp.set_extended(true);
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
    pair.node_mut(Side::A).qp.equip(Operands::Masked(op));
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
            // Split over two entries.
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
            // And an addition, field by field.
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

/// Responses are lost: requests come again, and get the saved answer.
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
        pair.set_network(move |transit| {
            if transit.from == Side::B && left > 0 {
                left -= 1;
                return Fate::Drop;
            }
            Fate::Deliver
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
    pair.node_mut(Side::A).qp.set_extended(false);
    let refused = try_post(&mut pair, (&there, 3), op, &[result.sge()]);
    assert_eq!(refused, Err(PostError::UnsupportedOpcode));
    // Forgotten operands.
    pair.node_mut(Side::A).qp.set_extended(true);
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
