//! Extensions of Rocade on an initiator: masked atomics, local operations, cross-channel.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::{
    Block, Calc, CalcOp, Condition, Fill, Gate, Indirect, Layout, Managed, MaskedOp, Operands,
    Reduction, Release, Remap,
};

const OK: WcStatus = WcStatus::Success;
const SIGNALED: SendFlags = SendFlags::SIGNALED;

fn equipped(
    fabric: &mut Fabric,
    dci: NodeId,
    to: DcDestination,
    (wr_id, op, operands): (u64, SendOp, Operands),
    sges: &[crate::Sge],
) {
    let wr = SendWr {
        wr_id,
        op,
        flags: SIGNALED,
        sges,
    };
    let qp = &mut fabric.node_mut(dci).qp;
    qp.post_dynamic(crate::Time::ZERO, &wr, to, None).unwrap();
    qp.set_operands(operands);
    fabric.drain(dci);
}

fn local(fabric: &mut Fabric, dci: NodeId, wr_id: u64, op: SendOp, operands: Option<Operands>) {
    let wr = SendWr {
        wr_id,
        op,
        flags: SIGNALED,
        sges: &[],
    };
    let qp = &mut fabric.node_mut(dci).qp;
    qp.post_send(crate::Time::ZERO, &wr, None).unwrap();
    if let Some(operands) = operands {
        qp.set_operands(operands);
    }
    fabric.drain(dci);
}

fn done(fabric: &mut Fabric, dci: NodeId) -> Vec<(u64, WcStatus)> {
    statuses(&fabric.take_completions(dci))
}

/// Checks every size, to two targets in turn, with every third packet lost: each atomic is executed
/// once.
//= DC-04 XDEC-16 XAT-24 type=test
//= XAW-02 XAW-06 XAW-07 type=test
#[test]
fn masked_atomics_of_every_size() {
    let (mut fabric, dci, dcts) = star(2);
    let mut count = 0;
    fabric.set_network(move |_| {
        count += 1;
        if count % 3 == 0 {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    let result = region(&fabric, dci, 256);
    let places = [0, 1].map(|n| region(&fabric, dcts[n], 64));
    let mut wr_id = 0;
    for round in 1..=3u8 {
        for log_size in 2..=5 {
            for n in 0..2 {
                let to = fabric.to(dci, dcts[n], KEY + n as u64);
                let op = SendOp::Masked {
                    va: places[n].addr,
                    rkey: places[n].rkey,
                    log_size,
                };
                let add = Operands::Masked(MaskedOp::FetchAdd {
                    add: [0x0101; 4],
                    boundary: [0x80; 4],
                });
                wr_id += 1;
                equipped(
                    &mut fabric,
                    dci,
                    to,
                    (wr_id, op, add),
                    &[result.part(0, 32)],
                );
            }
        }
        fabric.run();
        let completions = fabric.take_completions(dci);
        assert_eq!(completions.len(), 8);
        for completion in completions {
            assert_eq!(completion.status, OK);
            assert_eq!(completion.opcode, WcOpcode::MaskedFetchAdd);
        }
        for n in 0..2 {
            // The operands of all four sizes contain the first word. Only the largest contains the
            // last two.
            let expected = [4, 2, 1, 1].map(|times| u64::from(times * round) * 0x0101);
            let bytes = expected.map(u64::to_ne_bytes).concat();
            if cfg!(target_endian = "little") {
                assert_eq!(fabric.node(dcts[n]).mem.bytes(&places[n], 0..32), bytes);
            }
        }
    }
    assert!(count_of(&fabric, "MASKED_FETCH_ADD") > 24 && count_of(&fabric, "WIDE") > 0);
    // The peer refuses an unaligned address, and the rest is flushed.
    let to = fabric.to(dci, dcts[0], KEY);
    let op = SendOp::Masked {
        va: places[0].addr + 4,
        rkey: places[0].rkey,
        log_size: 3,
    };
    let swap = Operands::Masked(MaskedOp::CmpSwap {
        compare: [0; 4],
        compare_mask: [0; 4],
        swap: [0; 4],
        swap_mask: [0; 4],
    });
    equipped(&mut fabric, dci, to, (99, op, swap), &[result.part(0, 32)]);
    fabric.run();
    assert_eq!(done(&mut fabric, dci), [(99, WcStatus::RemInvReqErr)]);
}

fn count_of(fabric: &Fabric, what: &str) -> usize {
    count(fabric, what)
}

/// Checks that a key is filled, used immediately by requests to two targets, and freed. NOPs
/// complete in order.
//= DC-04 XDEC-16 UMR-16 type=test
//= UMR-19 NOP-01 type=test
#[test]
fn operations_of_this_side_take_their_turn() {
    let (mut fabric, dci, dcts) = star(2);
    let here = region(&fabric, dci, 64);
    let there = [0, 1].map(|n| region(&fabric, dcts[n], 64));
    let pattern: Vec<u8> = (0..64).collect();
    fabric.node(dci).mem.fill(&here, 0, &pattern);
    let key = fabric.node(dci).mem.create_indirect(8);
    let segment = |offset, len| Block {
        lkey: here.lkey,
        addr: here.addr + offset,
        len,
        stride: 0,
    };
    let fill = |remap, access| {
        Some(Operands::Fill(Fill {
            key,
            if_free: false,
            access,
            remap,
        }))
    };
    let layout = Layout::list([segment(32, 16), segment(0, 16)]).unwrap();
    local(&mut fabric, dci, 1, SendOp::Nop, None);
    let to_list = fill(Remap::To { base: 0, layout }, Some(Indirect::RIGHTS));
    local(&mut fabric, dci, 2, SendOp::Fill, to_list);
    let sge = crate::Sge {
        addr: 0,
        len: 32,
        lkey: rocade_wire::Lkey::new(key.get()),
    };
    for n in 0..2 {
        let to = fabric.to(dci, dcts[n], KEY + n as u64);
        fabric.post(dci, to, 3 + n as u64, write(&there[n], 0), &[sge]);
        local(&mut fabric, dci, 5 + n as u64, SendOp::Nop, None);
    }
    local(&mut fabric, dci, 8, SendOp::Fill, fill(Remap::Free, None));
    let to = fabric.to(dci, dcts[1], KEY + 1);
    fabric.post(dci, to, 9, write(&there[1], 0), &[sge]);
    fabric.run();
    let gone = WcStatus::LocProtErr;
    assert_eq!(
        done(&mut fabric, dci),
        [
            (1, OK),
            (2, OK),
            (3, OK),
            (5, OK),
            (4, OK),
            (6, OK),
            (8, OK),
            (9, gone)
        ]
    );
    for n in 0..2 {
        let bytes = fabric.node(dcts[n]).mem.bytes(&there[n], 0..32);
        assert_eq!(bytes, [&pattern[32..48], &pattern[..16]].concat());
    }
}

#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Condition for Flag {
    fn holds_for(&self, _: Qpn) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Open(Arc<Gate>, u32);

impl Release for Open {
    fn release(&self) {
        self.0.release_to(self.1);
    }
}

/// Checks that a wait delays requests to the same target and to another. Later requests calculate,
/// in both directions.
//= XCH-02 XDEC-16 XCW-01 type=test
//= XCE-04 XCC-01 type=test
#[test]
fn an_initiator_may_be_a_master() {
    let (mut fabric, dci, dcts) = star(2);
    fabric.node_mut(dci).qp.manage(Managed::default());
    let here = region(&fabric, dci, 64);
    let there = [0, 1].map(|n| region(&fabric, dcts[n], 64));
    fabric
        .node(dci)
        .mem
        .fill(&here, 0, &[40u64, 2].map(u64::to_be_bytes).concat());
    let numbers = [5u64, 6, 7].map(u64::to_be_bytes).concat();
    fabric.node(dcts[1]).mem.fill(&there[1], 32, &numbers);
    let (flag, gate) = (Arc::new(Flag::default()), Arc::new(Gate::default()));
    gate.note_posted();
    let to = [0, 1].map(|n| fabric.to(dci, dcts[n], KEY + n as u64));
    fabric.post(dci, to[0], 1, write(&there[0], 0), &[here.part(0, 8)]);
    let wait = Operands::Wait(Arc::clone(&flag) as Arc<dyn Condition>);
    local(&mut fabric, dci, 2, SendOp::Wait, Some(wait));
    fabric.post(dci, to[0], 3, write(&there[0], 8), &[here.part(0, 8)]);
    let open = Operands::Enable(Arc::new(Open(Arc::clone(&gate), 1)));
    local(&mut fabric, dci, 4, SendOp::Enable, Some(open));
    let calc = Calc {
        op: CalcOp::Add,
        located: false,
    };
    let sum = (5, write(&there[1], 0), Operands::Calc(calc));
    equipped(&mut fabric, dci, to[1], sum, &[here.part(0, 16)]);
    let (va, rkey) = (there[1].addr + 32, there[1].rkey);
    let reduce = Operands::Reduce(Reduction::new(calc));
    let read = (6, SendOp::Read { va, rkey }, reduce);
    equipped(&mut fabric, dci, to[1], read, &[here.part(32, 24)]);
    fabric.run();
    assert_eq!(done(&mut fabric, dci), [(1, OK)]);
    assert!(!gate.is_open(1));
    flag.0.store(true, Ordering::Relaxed);
    fabric.drain(dci);
    fabric.run();
    let rest = [2, 3, 4, 5, 6].map(|wr_id| (wr_id, OK));
    assert_eq!(done(&mut fabric, dci), rest);
    assert!(gate.is_open(1));
    assert_eq!(
        fabric.node(dcts[1]).mem.bytes(&there[1], 0..8),
        42u64.to_be_bytes()
    );
    assert_eq!(
        fabric.node(dci).mem.bytes(&here, 32..40),
        18u64.to_be_bytes()
    );
    assert_eq!(fabric.node(dci).mem.bytes(&here, 40..56), [0; 16]);
}

/// Checks that a managed initiator sends released requests for any target, and counts them like
/// other queues.
//= XCH-02 XCE-04 XCE-05 type=test
//= XCE-06 XCH-06 type=test
#[test]
fn an_initiator_may_be_managed() {
    let (mut fabric, dci, dcts) = star(2);
    let gate = Arc::new(Gate::default());
    fabric.node_mut(dci).qp.manage(Managed {
        send: Some(Arc::clone(&gate)),
        sends_untaken: true,
        ..Managed::default()
    });
    let here = region(&fabric, dci, 64);
    let there = [0, 1].map(|n| region(&fabric, dcts[n], 64));
    let to = [0, 1].map(|n| fabric.to(dci, dcts[n], KEY + n as u64));
    // Two to the same target, one local operation, one to another target.
    fabric.post(dci, to[0], 1, write(&there[0], 0), &[here.part(0, 8)]);
    fabric.post(dci, to[0], 2, write(&there[0], 0), &[here.part(0, 8)]);
    local(&mut fabric, dci, 3, SendOp::Nop, None);
    fabric.post(dci, to[1], 4, write(&there[1], 0), &[here.part(0, 8)]);
    fabric.run();
    assert_eq!((done(&mut fabric, dci), gate.posted()), (Vec::new(), 4));
    assert!(
        !fabric
            .node(dci)
            .qp
            .has_work_to_send(crate::AckPlacement::First)
    );
    for (until, expected) in [(1, &[1][..]), (3, &[2, 3]), (3, &[]), (4, &[4])] {
        gate.release_to(until);
        fabric.drain(dci);
        fabric.run();
        let expected: Vec<_> = expected.iter().map(|wr_id| (*wr_id, OK)).collect();
        assert_eq!(done(&mut fabric, dci), expected);
    }
    // An undone post is not counted. The queue does not fill although no completions are polled.
    fabric.post(dci, to[0], 5, write(&there[0], 0), &[here.part(0, 8)]);
    let max = fabric.node(dci).qp.config().cap.max_send_wr;
    for wr_id in 0..u64::from(2 * max) {
        fabric.post(dci, to[1], wr_id, write(&there[1], 0), &[here.part(0, 8)]);
        gate.release_to(gate.posted());
        fabric.drain(dci);
        fabric.run();
    }
    fabric.node_mut(dci).completions.clear();
    let posted = gate.posted();
    fabric.post(dci, to[1], 7, write(&there[1], 0), &[here.part(0, 8)]);
    fabric.node_mut(dci).qp.unpost_send(1);
    assert_eq!(gate.posted(), posted);
    // Requests that are not released are flushed with the others.
    fabric.post(dci, to[1], 8, write(&there[1], 0), &[here.part(0, 8)]);
    let attr = crate::QpAttr {
        qp_state: QpState::Err.code(),
        ..crate::QpAttr::default()
    };
    let context = crate::testing::context(core::net::Ipv4Addr::LOCALHOST.into());
    let state = crate::QpAttrMask::STATE;
    let qp = &mut fabric.node_mut(dci).qp;
    qp.modify(crate::Time::ZERO, &attr, state, &context)
        .unwrap();
    fabric.drain(dci);
    assert_eq!(done(&mut fabric, dci), [(8, WcStatus::WrFlushErr)]);
    let attr = crate::QpAttr {
        qp_state: QpState::Reset.code(),
        ..attr
    };
    let qp = &mut fabric.node_mut(dci).qp;
    qp.modify(crate::Time::ZERO, &attr, state, &context)
        .unwrap();
    assert_eq!(gate.posted(), 0);
}
