//! Tests of cross-channel operations.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use rocade_wire::{Operation, Qpn};

use super::{operations, read, register, register_filled, send, statuses, write};
use crate::testing::{Delivery, Pair, Side};
use crate::{
    Calc, CalcOp, Condition, Gate, Managed, Operands, PostError, QpAttr, QpAttrMask, QpState,
    QpType, Reduction, Release, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, has_reached,
};

const OK: WcStatus = WcStatus::Success;
const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// A condition that holds once a counter has reached a value. It counts its checks.
#[derive(Debug, Default)]
struct Until {
    counter: AtomicU32,
    value: u32,
    asked: AtomicU32,
}

impl Condition for Until {
    fn holds_for(&self, who: Qpn) -> bool {
        assert_eq!(who, Qpn::new(0x11));
        self.asked.fetch_add(1, Ordering::Relaxed);
        has_reached(self.counter.load(Ordering::Relaxed), self.value)
    }
}

/// Releases a number of work requests of a queue.
#[derive(Debug)]
struct Open(Arc<Gate>, u32);

impl Release for Open {
    fn release(&self) {
        self.0.release_to(self.1);
    }
}

fn post(pair: &mut Pair, wr_id: u64, op: SendOp, flags: SendFlags, operands: Option<Operands>) {
    let wr = SendWr {
        wr_id,
        op,
        flags,
        sges: &[],
    };
    // Like an engine, which does not poll between posts.
    pair.node_mut(Side::A)
        .qp
        .post_send(crate::Time::ZERO, &wr, None)
        .unwrap();
    if let Some(operands) = operands {
        pair.node_mut(Side::A).qp.set_operands(operands);
    }
    pair.drain_both();
}

fn managed_pair(managed: impl Fn(Side) -> Managed) -> Pair {
    let mut pair = Pair::in_states(QpState::Rts, QpState::Rts, |_, _| {});
    for side in [Side::A, Side::B] {
        pair.node_mut(side).qp.manage(managed(side));
    }
    pair
}

fn ids(pair: &mut Pair, side: Side) -> Vec<(u64, WcStatus)> {
    statuses(&pair.take_completions(side))
}

//= XCW-01 type=test
//= XCW-06 type=test
//= XCW-07 type=test
#[test]
fn a_wait_holds_up_what_comes_after_it() {
    let mut pair = managed_pair(|_| Managed::default());
    let region = register_filled(&pair, Side::A, 8, 1);
    let there = register(&pair, Side::B, 8);
    let until = Arc::new(Until {
        value: 2,
        ..Until::default()
    });
    pair.send(Side::A, 1, write(&there), &[region.sge()]);
    let wait = || Some(Operands::Wait(Arc::clone(&until) as Arc<dyn Condition>));
    post(&mut pair, 2, SendOp::Wait, SIGNALED, wait());
    pair.send(Side::A, 3, write(&there), &[region.sge()]);
    pair.run();
    assert_eq!(ids(&mut pair, Side::A), [(1, OK)]);
    assert!(until.asked.load(Ordering::Relaxed) > 0);
    until.counter.store(1, Ordering::Relaxed);
    pair.run();
    assert_eq!(ids(&mut pair, Side::A), []);
    until.counter.store(2, Ordering::Relaxed);
    pair.drain_both();
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(2, OK), (3, OK)]);
    assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::Send, 0));
    let sent = operations(&pair, Side::A);
    let sent: Vec<_> = sent.into_iter().map(|(operation, _)| operation).collect();
    assert_eq!(sent, [Operation::WriteOnly; 2]);
    // Waiting work requests are flushed like all others.
    until.counter.store(0, Ordering::Relaxed);
    post(&mut pair, 4, SendOp::Wait, SendFlags::empty(), wait());
    pair.send(Side::A, 5, write(&there), &[region.sge()]);
    pair.modify(
        Side::A,
        QpState::Err,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    pair.drain_both();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(ids(&mut pair, Side::A), [(4, flushed), (5, flushed)]);
    assert_eq!(Arc::strong_count(&until), 1, "no request waits");
}

//= XCE-05 type=test
//= XCE-06 type=test
#[test]
fn a_managed_send_queue_sends_what_is_released() {
    let gate = Arc::new(Gate::default());
    let mut pair = managed_pair(|side| Managed {
        send: (side == Side::A).then(|| Arc::clone(&gate)),
        ..Managed::default()
    });
    let region = register_filled(&pair, Side::A, 8, 1);
    let there = register(&pair, Side::B, 8);
    for wr_id in 1..=3 {
        pair.send(Side::A, wr_id, write(&there), &[region.sge()]);
    }
    pair.run();
    assert_eq!((ids(&mut pair, Side::A), gate.posted()), (Vec::new(), 3));
    gate.release_to(2);
    pair.drain_both();
    pair.run();
    assert_eq!(ids(&mut pair, Side::A), [(1, OK), (2, OK)]);
    // An undone post is not counted.
    pair.node_mut(Side::A).qp.unpost_send(1);
    assert_eq!(gate.posted(), 2);
    pair.send(Side::A, 4, write(&there), &[region.sge()]);
    gate.release_to(3);
    pair.drain_both();
    pair.run();
    assert_eq!(ids(&mut pair, Side::A), [(4, OK)]);
    pair.modify(
        Side::A,
        QpState::Reset,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    assert_eq!(gate.posted(), 0);
}

//= XCE-05 type=test
//= XCE-08 type=test
#[test]
fn a_receive_exists_once_it_is_released() {
    let gate = Arc::new(Gate::default());
    let mut pair = managed_pair(|side| Managed {
        recv: (side == Side::B).then(|| Arc::clone(&gate)),
        ..Managed::default()
    });
    let region = register_filled(&pair, Side::A, 8, 1);
    let there = register(&pair, Side::B, 8);
    pair.recv(Side::B, 7, &[there.sge()]);
    pair.recv(Side::B, 8, &[there.sge()]);
    pair.send(Side::A, 1, send(), &[region.sge()]);
    pair.run_for(100_000);
    assert_eq!(ids(&mut pair, Side::B), [], "RNR");
    assert!(pair.node(Side::B).qp.counters().rnr_naks_sent > 0);
    let open = Operands::Enable(Arc::new(Open(Arc::clone(&gate), 1)));
    // Any queue may execute the release.
    let Operands::Enable(release) = &open else {
        unreachable!()
    };
    release.release();
    pair.run();
    assert_eq!(ids(&mut pair, Side::B), [(7, OK)]);
    assert_eq!(ids(&mut pair, Side::A), [(1, OK)]);
    // Work requests that were not released are flushed, too.
    pair.modify(
        Side::B,
        QpState::Err,
        QpAttrMask::empty(),
        &QpAttr::default(),
    );
    pair.drain_both();
    assert_eq!(ids(&mut pair, Side::B), [(8, WcStatus::WrFlushErr)]);
}

/// Checks a chain: A waits, releases its own receives and continues, in order, despite losses.
//= XCE-04 type=test
//= NOP-01 type=test
#[test]
fn a_master_releases_others_in_its_turn() {
    let gate = Arc::new(Gate::default());
    let mut pair = managed_pair(|_| Managed::default());
    pair.set_network({
        let mut count = 0;
        move |_| {
            count += 1;
            if count % 3 == 0 {
                Delivery::Drop
            } else {
                Delivery::Deliver
            }
        }
    });
    let region = register_filled(&pair, Side::A, 8, 1);
    let there = register(&pair, Side::B, 8);
    let until = Arc::new(Until {
        value: 1,
        ..Until::default()
    });
    post(&mut pair, 1, SendOp::Nop, SIGNALED, None);
    let wait = Operands::Wait(Arc::clone(&until) as Arc<dyn Condition>);
    post(&mut pair, 2, SendOp::Wait, SendFlags::empty(), Some(wait));
    let open = Operands::Enable(Arc::new(Open(Arc::clone(&gate), 5)));
    post(&mut pair, 3, SendOp::Enable, SIGNALED, Some(open));
    pair.send(Side::A, 4, write(&there), &[region.sge()]);
    for _ in 0..5 {
        gate.note_posted();
    }
    pair.run();
    assert_eq!(ids(&mut pair, Side::A), [(1, OK)]);
    assert!(!gate.is_open(5));
    until.counter.store(1, Ordering::Relaxed);
    pair.drain_both();
    assert!(gate.is_open(5) && gate.is_open(1));
    pair.run();
    assert_eq!(ids(&mut pair, Side::A), [(2, OK), (3, OK), (4, OK)]);
}

//= XCH-06 type=test
#[test]
fn slots_without_a_reader_are_free_once_executed() {
    for sends_untaken in [false, true] {
        let mut pair = managed_pair(|_| Managed {
            sends_untaken,
            receives_untaken: sends_untaken,
            ..Managed::default()
        });
        let region = register_filled(&pair, Side::A, 8, 1);
        let there = register(&pair, Side::B, 8);
        let max = pair.node(Side::A).qp.config().cap.max_send_wr;
        let mut refused = None;
        for wr_id in 0..u64::from(2 * max) {
            let wr = SendWr {
                wr_id,
                op: write(&there),
                flags: SIGNALED,
                sges: &[region.sge()],
            };
            // The harness takes completions, but does not free their WQEs.
            if let Err(error) = pair
                .node_mut(Side::A)
                .qp
                .post_send(crate::Time::ZERO, &wr, None)
            {
                refused = Some((wr_id, error));
                break;
            }
            pair.run();
        }
        let full = (!sends_untaken).then_some((u64::from(max), PostError::QueueFull));
        assert_eq!(refused, full);
    }
}

//= XCC-01 type=test
//= XCC-06 type=test
#[test]
fn what_is_computed_is_sent() {
    let mut pair = managed_pair(|_| Managed::default());
    let operands = register(&pair, Side::A, 48);
    let there = register(&pair, Side::B, 64);
    let numbers: Vec<u8> = (1..=6u64).flat_map(u64::to_be_bytes).collect();
    pair.node(Side::A).mem.fill(&operands, 0, &numbers);
    pair.recv(Side::B, 7, &[there.sge()]);
    // The packet is lost once. Its retransmission is the same, even if the operands have changed.
    let mut first = true;
    pair.set_network(move |_| {
        if core::mem::take(&mut first) {
            Delivery::Drop
        } else {
            Delivery::Deliver
        }
    });
    let calc = |located| {
        Operands::Calc(Calc {
            op: CalcOp::Add,
            located,
        })
    };
    let sges: [Sge; 2] = [operands.part(0, 16), operands.part(24, 24)];
    let wr = SendWr {
        wr_id: 1,
        op: send(),
        flags: SIGNALED,
        sges: &sges,
    };
    pair.node_mut(Side::A)
        .qp
        .post_send(crate::Time::ZERO, &wr, None)
        .unwrap();
    pair.node_mut(Side::A).qp.set_operands(calc(false));
    pair.drain_both();
    pair.node(Side::A).mem.fill(&operands, 0, &[0; 48]);
    pair.run();
    let done = pair.take_completions(Side::B);
    assert_eq!(statuses(&done), [(7, OK)]);
    assert_eq!(done[0].byte_len, 8);
    let sum = (1u64 + 2 + 4 + 5 + 6).to_be_bytes();
    assert_eq!(pair.node(Side::B).mem.bytes(&there, 0..8), sum);
    assert_eq!(ids(&mut pair, Side::A), [(1, OK)]);
    // The operands cannot be read.
    let gone = Sge {
        lkey: rocade_wire::Lkey::new(0xdead),
        ..operands.part(0, 16)
    };
    let wr = SendWr {
        sges: &[gone],
        ..wr
    };
    pair.node_mut(Side::A)
        .qp
        .post_send(crate::Time::ZERO, &wr, None)
        .unwrap();
    pair.node_mut(Side::A).qp.set_operands(calc(true));
    pair.drain_both();
    pair.run();
    assert_eq!(ids(&mut pair, Side::A), [(1, WcStatus::LocProtErr)]);
}

/// Checks that a READ stores the result over the elements that it reads, and leaves the rest of its
/// buffers unchanged. Each element counts once, despite losses.
//= XCC-01 type=test
//= XCC-03 type=test
//= XCC-06 type=test
#[test]
fn what_is_read_is_computed() {
    for (located, loss) in [(false, 0), (true, 0), (false, 3), (true, 4)] {
        let mut pair = managed_pair(|_| Managed::default());
        let there = register(&pair, Side::B, 8000);
        let here = register_filled(&pair, Side::A, 8100, 5);
        let before = pair.node(Side::A).mem.all(&here);
        let numbers: Vec<u8> = (0..1000u64)
            .flat_map(|n| (n * 7 % 1001).to_be_bytes())
            .collect();
        pair.node(Side::B).mem.fill(&there, 0, &numbers);
        let mut count = 0;
        pair.set_network(move |_| {
            count += 1;
            if loss > 0 && count < 20 && count % loss == 0 {
                Delivery::Drop
            } else {
                Delivery::Deliver
            }
        });
        let op = if located { CalcOp::MaxLoc } else { CalcOp::Add };
        let sges = [here.part(0, 5), here.part(100, 7995)];
        let reduce = Operands::Reduce(Reduction::new(Calc { op, located }));
        let wr = SendWr {
            wr_id: 1,
            op: read(&there),
            flags: SIGNALED,
            sges: &sges,
        };
        let qp = &mut pair.node_mut(Side::A).qp;
        qp.post_send(crate::Time::ZERO, &wr, None).unwrap();
        qp.set_operands(reduce);
        pair.drain_both();
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(1, OK)]);
        let (len, result) = if located {
            // Values are the elements at even indices.
            let even = (0..1000u64).step_by(2).map(|n| n * 7 % 1001);
            let (at, best) = even.enumerate().max_by_key(|(_, value)| *value).unwrap();
            let location = (2 * at as u64 + 1) * 7 % 1001;
            (16, [best.to_be_bytes(), location.to_be_bytes()].concat())
        } else {
            let sum: u64 = (0..1000u64).map(|n| n * 7 % 1001).sum();
            (8, sum.to_be_bytes().to_vec())
        };
        assert_eq!(
            (done[0].byte_len as usize, done[0].opcode),
            (len, WcOpcode::RdmaRead)
        );
        let after = pair.node(Side::A).mem.all(&here);
        assert_eq!(after[..5], result[..5]);
        assert_eq!(after[100..95 + len], result[5..]);
        assert_eq!(after[5..100], before[5..100]);
        assert_eq!(after[95 + len..], before[95 + len..]);
    }
}

fn of_uc(managed: Managed) -> Pair {
    let mut pair = Pair::in_states(QpState::Rts, QpState::Rts, |_, setup| {
        setup.config.qp_type = QpType::Uc;
    });
    pair.node_mut(Side::A).qp.manage(managed);
    pair
}

//= XCH-02 type=test
//= XCW-01 type=test
//= XCC-01 type=test
#[test]
fn a_master_may_be_unreliable() {
    let gate = Arc::new(Gate::default());
    let mut pair = of_uc(Managed::default());
    let region = register_filled(&pair, Side::A, 16, 1);
    let there = register(&pair, Side::B, 16);
    let until = Arc::new(Until {
        value: 1,
        ..Until::default()
    });
    let numbers = [40u64, 2].map(u64::to_be_bytes).concat();
    pair.node(Side::A).mem.fill(&region, 0, &numbers);
    pair.send(Side::A, 1, write(&there), &[region.sge()]);
    post(&mut pair, 2, SendOp::Nop, SIGNALED, None);
    let wait = Operands::Wait(Arc::clone(&until) as Arc<dyn Condition>);
    post(&mut pair, 3, SendOp::Wait, SIGNALED, Some(wait));
    let open = Operands::Enable(Arc::new(Open(Arc::clone(&gate), 2)));
    post(&mut pair, 4, SendOp::Enable, SIGNALED, Some(open));
    let wr = SendWr {
        wr_id: 5,
        op: write(&there),
        flags: SIGNALED,
        sges: &[region.sge()],
    };
    let qp = &mut pair.node_mut(Side::A).qp;
    qp.post_send(crate::Time::ZERO, &wr, None).unwrap();
    let (op, located) = (CalcOp::Add, false);
    qp.set_operands(Operands::Calc(Calc { op, located }));
    gate.note_posted();
    gate.note_posted();
    pair.drain_both();
    pair.run();
    assert_eq!(ids(&mut pair, Side::A), [(1, OK), (2, OK)]);
    assert!(!gate.is_open(2));
    assert_eq!(pair.node(Side::B).mem.all(&there), numbers);
    until.counter.store(1, Ordering::Relaxed);
    pair.drain_both();
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(3, OK), (4, OK), (5, OK)]);
    assert_eq!(done[0].opcode, WcOpcode::Send);
    assert!(gate.is_open(1));
    assert_eq!(
        pair.node(Side::B).mem.bytes(&there, 0..8),
        42u64.to_be_bytes()
    );
    assert_eq!(Arc::strong_count(&until), 1, "no request waits");
    // Waiting work requests are flushed like all others.
    until.counter.store(0, Ordering::Relaxed);
    let wait = Operands::Wait(Arc::clone(&until) as Arc<dyn Condition>);
    post(&mut pair, 6, SendOp::Wait, SendFlags::empty(), Some(wait));
    pair.send(Side::A, 7, write(&there), &[region.sge()]);
    let none = QpAttrMask::empty();
    pair.modify(Side::A, QpState::Err, none, &QpAttr::default());
    pair.drain_both();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(ids(&mut pair, Side::A), [(6, flushed), (7, flushed)]);
    // Datagram QPs do not support it.
    let mut pair = Pair::in_states(QpState::Rts, QpState::Rts, |_, setup| {
        setup.config.qp_type = QpType::Ud;
    });
    for op in [SendOp::Nop, SendOp::Wait, SendOp::Enable] {
        let wr = SendWr {
            op,
            sges: &[],
            ..wr
        };
        let refused = pair.try_send(Side::A, &wr);
        assert_eq!(refused, Err(PostError::UnsupportedOpcode));
    }
}

//= XCE-05 type=test
//= XCE-06 type=test
//= XCH-06 type=test
#[test]
fn an_unreliable_queue_may_be_managed() {
    let gate = Arc::new(Gate::default());
    let mut pair = of_uc(Managed {
        send: Some(Arc::clone(&gate)),
        sends_untaken: true,
        ..Managed::default()
    });
    let region = register_filled(&pair, Side::A, 4000, 1);
    let there = register(&pair, Side::B, 4000);
    for wr_id in 1..=3 {
        pair.send(Side::A, wr_id, write(&there), &[region.sge()]);
    }
    pair.run();
    assert_eq!((ids(&mut pair, Side::A), gate.posted()), (Vec::new(), 3));
    gate.release_to(2);
    pair.drain_both();
    pair.run();
    assert_eq!(ids(&mut pair, Side::A), [(1, OK), (2, OK)]);
    pair.node_mut(Side::A).qp.unpost_send(1);
    assert_eq!(gate.posted(), 2);
    // No completions are polled, and the queue still does not fill.
    for wr_id in 3..300 {
        pair.send(Side::A, wr_id, write(&there), &[region.part(0, 8)]);
        gate.release_to(gate.posted());
        pair.drain_both();
        pair.run();
    }
    assert_eq!(ids(&mut pair, Side::A).len(), 297);
    let none = QpAttrMask::empty();
    pair.modify(Side::A, QpState::Reset, none, &QpAttr::default());
    assert_eq!(gate.posted(), 0);
}

/// Checks that UC cannot use a receive that is not released: the message is lost.
//= XCE-05 type=test
#[test]
fn an_unreliable_receive_exists_once_it_is_released() {
    let gate = Arc::new(Gate::default());
    let mut pair = of_uc(Managed::default());
    let managed = Managed {
        recv: Some(Arc::clone(&gate)),
        ..Managed::default()
    };
    pair.node_mut(Side::B).qp.manage(managed);
    let region = register_filled(&pair, Side::A, 8, 1);
    let there = register(&pair, Side::B, 8);
    pair.recv(Side::B, 7, &[there.sge()]);
    pair.send(Side::A, 1, send(), &[region.sge()]);
    pair.run();
    assert_eq!(ids(&mut pair, Side::B), []);
    gate.release_to(1);
    pair.send(Side::A, 2, send(), &[region.sge()]);
    pair.run();
    assert_eq!(ids(&mut pair, Side::B), [(7, OK)]);
    assert_eq!(ids(&mut pair, Side::A), [(1, OK), (2, OK)]);
}
