//! Indirect memory keys: filled in order, used on either side.

use alloc::vec::Vec;

use rocade_wire::{Lkey, Rkey};

use super::{PMTU, operations, pattern, read, register, register_filled, send, statuses, write};
use crate::testing::{Delivery, Pair, Region, Side};
use crate::{
    AccessFlags, Block, Fill, Indirect, Layout, Operands, PostError, QpState, QpType, Remap,
    SendFlags, SendOp, SendWr, Sge, WcStatus,
};

const OK: WcStatus = WcStatus::Success;

fn segment(region: &Region, offset: u64, len: u64) -> Block {
    Block {
        lkey: region.lkey,
        addr: region.addr + offset,
        len,
        stride: 0,
    }
}

fn list(key: Rkey, blocks: &[Block]) -> Operands {
    let layout = Layout::list(blocks.iter().copied()).unwrap();
    Operands::Fill(Fill {
        key,
        if_free: false,
        access: Some(Indirect::RIGHTS),
        remap: Remap::To { base: 0, layout },
    })
}

fn free(key: Rkey) -> Operands {
    Operands::Fill(Fill {
        key,
        if_free: false,
        access: None,
        remap: Remap::Free,
    })
}

fn post(pair: &mut Pair, side: Side, wr_id: u64, operands: Operands, flags: SendFlags) {
    let wr = SendWr {
        wr_id,
        op: SendOp::Fill,
        flags,
        sges: &[],
    };
    pair.try_send(side, &wr).unwrap();
    pair.node_mut(side).qp.set_operands(operands);
}

/// Creates a key of `side` for all of a region, in segments of `len` bytes, the last first.
fn backwards(pair: &mut Pair, side: Side, region: &Region, len: u32) -> Rkey {
    let key = pair.node(side).mem.create_indirect(64);
    let count = u64::from(region.len / len);
    let len = u64::from(len);
    let blocks: Vec<_> = (0..count)
        .rev()
        .map(|n| segment(region, n * len, len))
        .collect();
    post(pair, side, 900, list(key, &blocks), SendFlags::SIGNALED);
    pair.drain_both();
    let done = pair.take_completions(side);
    assert_eq!(statuses(&done), [(900, OK)]);
    //= WCO-04 type=test
    assert_eq!((done[0].opcode as u32, done[0].byte_len), (0x87, 0));
    key
}

fn reversed(bytes: &[u8], len: u32) -> Vec<u8> {
    bytes
        .chunks(len as usize)
        .rev()
        .flatten()
        .copied()
        .collect()
}

const fn through(key: Rkey, len: u32) -> Region {
    Region {
        lkey: Lkey::new(key.get()),
        rkey: key,
        addr: 0,
        len,
    }
}

//= UMR-16 type=test
//= UMR-19 type=test
//= UMR-24 type=test
#[test]
fn every_operation_takes_it_as_local_and_remote_key() {
    const LEN: u32 = 3 * PMTU + 100;
    const PART: u32 = LEN / 13;
    let mut pair = Pair::default();
    let here = register_filled(&pair, Side::A, 13 * PART, 1);
    let there = register(&pair, Side::B, 13 * PART);
    let len = here.len;
    let a = through(backwards(&mut pair, Side::A, &here, PART), len);
    let b = through(backwards(&mut pair, Side::B, &there, PART), len);
    assert_eq!(operations(&pair, Side::A), [], "nothing of it on the wire");
    let source = pattern(len, 1);
    // Gathering backwards and scattering backwards restores the order.
    pair.send(Side::A, 1, write(&b), &[a.sge()]);
    pair.run();
    assert_eq!(pair.node(Side::B).mem.all(&there), source);
    pair.send(Side::A, 2, write(&there), &[a.sge()]);
    pair.run();
    assert_eq!(pair.node(Side::B).mem.all(&there), reversed(&source, PART));
    pair.send(Side::A, 3, read(&b), &[here.sge()]);
    pair.run();
    assert_eq!(pair.node(Side::A).mem.all(&here), source);
    pair.send(Side::A, 4, read(&there), &[a.sge()]);
    pair.run();
    assert_eq!(pair.node(Side::A).mem.all(&here), source);
    pair.recv(Side::B, 1, &[b.sge()]);
    pair.send(Side::A, 5, send(), &[here.sge()]);
    pair.run();
    assert_eq!(pair.node(Side::B).mem.all(&there), reversed(&source, PART));
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(1, OK)]);
    let done = pair.take_completions(Side::A);
    assert_eq!(
        statuses(&done),
        [(1, OK), (2, OK), (3, OK), (4, OK), (5, OK)]
    );
    // An atomic uses the key for its result, and for its target.
    let word = through(pair.node(Side::B).mem.create_indirect(2), 8);
    let at = len / 8 * 8 - 8;
    post(
        &mut pair,
        Side::B,
        6,
        list(word.rkey, &[segment(&there, at.into(), 8)]),
        SendFlags::SIGNALED,
    );
    pair.drain_both();
    let at = at as usize;
    let before = pair.node(Side::B).mem.bytes(&there, at..at + 8);
    let add = SendOp::FetchAdd {
        va: 0,
        rkey: word.rkey,
        add: 1,
    };
    pair.send(Side::A, 7, add, &[a.part(0, 8)]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(7, OK)]);
    let start = (len - PART) as usize;
    assert_eq!(
        pair.node(Side::A).mem.bytes(&here, start..start + 8),
        before
    );
}

//= UMR-16 type=test
//= RC-WQE-04 type=test
//= RC-PSN-05 type=test
#[test]
fn it_takes_effect_in_its_turn() {
    for fenced in [false, true] {
        let mut pair = Pair::default();
        let here = register_filled(&pair, Side::A, 64, 1);
        let there = register(&pair, Side::B, 64);
        let key = through(pair.node(Side::A).mem.create_indirect(2), 32);
        pair.set_network(|_| Delivery::Drop);
        pair.send(Side::A, 1, read(&there), &[here.part(0, 8)]);
        let fence = if fenced {
            SendFlags::FENCE
        } else {
            SendFlags::empty()
        };
        let halves = [segment(&here, 48, 16), segment(&here, 16, 16)];
        let flags = SendFlags::SIGNALED | fence;
        post(&mut pair, Side::A, 2, list(key.rkey, &halves), flags);
        // Directly after it.
        pair.send(Side::A, 3, write(&there), &[key.sge()]);
        pair.drain_both();
        let sent = operations(&pair, Side::A).len();
        assert_eq!(sent, if fenced { 1 } else { 2 });
        assert_eq!(pair.take_completions(Side::A), []);
        pair.heal();
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(1, OK), (2, OK), (3, OK)]);
        let source = pattern(64, 1);
        let written = pair.node(Side::B).mem.bytes(&there, 0..32);
        assert_eq!(written, [&source[48..], &source[16..32]].concat());
    }
}

//= UMR-12 type=test
//= UMR-18 type=test
//= UMR-05 type=test
#[test]
fn what_cannot_be_filled_is_a_bind_error_and_a_free_key_no_key() {
    type Case = fn(&Pair, Rkey) -> Operands;
    let cases: [Case; 3] = [
        |pair, key| {
            let foreign = pair.node(Side::A).mem.register_foreign(8, super::ALL);
            list(key, &[segment(&foreign, 0, 8)])
        },
        |pair, key| list(key, &[segment(&register(pair, Side::A, 8), 1, 8)]),
        |_, _| free(Rkey::new(0x7777_7700)),
    ];
    for case in cases {
        let mut pair = Pair::default();
        let key = pair.node(Side::A).mem.create_indirect(2);
        let operands = case(&pair, key);
        post(&mut pair, Side::A, 1, operands, SendFlags::empty());
        pair.send(Side::A, 2, send(), &[]);
        pair.run();
        let failed = [(1, WcStatus::MwBindErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(statuses(&pair.take_completions(Side::A)), failed);
        assert_eq!(pair.node(Side::A).qp.state(), QpState::Err);
    }
    // Without its operands the request is invalid.
    let mut pair = Pair::default();
    pair.send(Side::A, 1, SendOp::Fill, &[]);
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(1, WcStatus::LocQpOpErr)]);
    // Freeing twice is allowed. Then an access of the peer fails.
    let mut pair = Pair::default();
    let there = register(&pair, Side::B, 64);
    let here = register(&pair, Side::A, 64);
    let key = through(backwards(&mut pair, Side::B, &there, 8), 64);
    for wr_id in 1..=2 {
        post(
            &mut pair,
            Side::B,
            wr_id,
            free(key.rkey),
            SendFlags::SIGNALED,
        );
    }
    pair.send(Side::A, 3, write(&key), &[here.sge()]);
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::B)[..2]),
        [(1, OK), (2, OK)]
    );
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(3, WcStatus::RemAccessErr)]);
}

/// Checks the invalidation of keys, also by a request of the peer.
//= INV-01 type=test
//= INV-03 type=test
//= UMU-05 type=test
#[test]
fn it_is_invalidated_as_windows_are() {
    let mut pair = Pair::default();
    let there = register(&pair, Side::B, 64);
    let key = backwards(&mut pair, Side::B, &there, 8);
    let note = register(&pair, Side::B, 8);
    pair.recv(Side::B, 1, &[note.sge()]);
    pair.send(Side::A, 2, SendOp::SendInv { rkey: key }, &[]);
    pair.run();
    let done = pair.take_completions(Side::B);
    assert_eq!(statuses(&done), [(1, OK)]);
    let again = Operands::Fill(Fill {
        key,
        if_free: true,
        access: Some(AccessFlags::empty()),
        remap: Remap::To {
            base: 0,
            layout: Layout::list([segment(&there, 0, 8)]).unwrap(),
        },
    });
    post(&mut pair, Side::B, 3, again.clone(), SendFlags::SIGNALED);
    pair.send(Side::B, 4, SendOp::Invalidate { rkey: key }, &[]);
    post(&mut pair, Side::B, 5, again.clone(), SendFlags::SIGNALED);
    post(&mut pair, Side::B, 6, again, SendFlags::SIGNALED);
    pair.run();
    let done = pair.take_completions(Side::B);
    let expected = [(3, OK), (4, OK), (5, OK), (6, WcStatus::MwBindErr)];
    assert_eq!(statuses(&done), expected);
}

//= UMR-19 type=test
#[test]
fn unreliable_services_have_no_such_operation() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut pair = Pair::new(|_, setup| setup.config.qp_type = qp_type);
        let none: [Sge; 0] = [];
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::Fill,
            flags: SendFlags::SIGNALED,
            sges: &none,
        };
        assert_eq!(
            pair.try_send(Side::A, &wr),
            Err(PostError::UnsupportedOpcode)
        );
    }
}
