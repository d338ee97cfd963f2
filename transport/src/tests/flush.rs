//! FLUSH and ATOMIC WRITE (Annex A19).

use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{Feth, Operation, Placement, Rkey, Selectivity};

use super::responder::{answer, target_with};
use super::{PMTU, Request, operations, pattern, register, register_filled, send, statuses, write};
use crate::testing::{Delivery, Pair, Region, Setup, Side};
use crate::{
    AccessFlags, PostError, QpEvent, QpState, QpType, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

const GLOBAL: Placement = Placement::GLOBAL_VISIBILITY;
const RIGHTS: AccessFlags = super::ALL.union(AccessFlags::FLUSH_GLOBAL);
const OK: WcStatus = WcStatus::Success;

fn allow(setup: &mut Setup) {
    setup.attr.qp_access_flags |= AccessFlags::FLUSH_GLOBAL;
}

fn flush_of(region: &Region, len: u32, selectivity: Selectivity) -> SendOp {
    SendOp::Flush {
        va: region.addr,
        rkey: region.rkey,
        len,
        feth: Feth::new(GLOBAL, selectivity),
    }
}

fn store(to: &Region) -> SendOp {
    SendOp::AtomicWrite {
        va: to.addr,
        rkey: to.rkey,
    }
}

fn flush(psn: u32, region: &Region, len: u32, feth: Feth) -> Request {
    let mut request = Request::new(Operation::Flush, psn).reth(region.addr, region.rkey, len);
    request.headers.feth = Some(feth);
    request
}

fn atomic_write(psn: u32, va: u64, rkey: Rkey, len: u32, bytes: &[u8]) -> Request {
    Request::new(Operation::AtomicWrite, psn)
        .reth(va, rkey, len)
        .payload(bytes)
}

/// Checks a sequence of both: each is answered in order by a READ response without data.
//= ETH-12 ETH-13 OPC-25 type=test
//= OPC-26 type=test
//= RC-PSN-06 WRX-12 type=test
#[test]
//= ORD-06 ORD-07 type=test
fn a_write_is_flushed_and_announced() {
    let mut pair = Pair::new(|_, setup| allow(setup));
    let src = register_filled(&pair, Side::A, 3 * PMTU, 1);
    let dst = pair.node(Side::B).mem.register(3 * PMTU, RIGHTS);
    let flag = register(&pair, Side::B, 8);
    pair.send(Side::A, 1, write(&dst), &[src.sge()]);
    pair.send(
        Side::A,
        2,
        flush_of(&dst, 3 * PMTU, Selectivity::Range),
        &[],
    );
    pair.send(Side::A, 3, store(&flag), &[src.part(0, 8)]);
    pair.send(
        Side::A,
        4,
        flush_of(&dst, 0, Selectivity::MemoryRegion),
        &[],
    );
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(1, OK), (2, OK), (3, OK), (4, OK)]);
    let opcodes: Vec<WcOpcode> = done.iter().map(|c| c.opcode).collect();
    let flushed = WcOpcode::Flush;
    assert_eq!(
        opcodes,
        [WcOpcode::RdmaWrite, flushed, WcOpcode::AtomicWrite, flushed]
    );
    assert_eq!((flushed.code(), WcOpcode::AtomicWrite.code()), (8, 9));
    assert_eq!(pair.node(Side::B).mem.all(&dst), pattern(3 * PMTU, 1));
    assert_eq!(pair.node(Side::B).mem.all(&flag), pattern(8, 1));
    let sent = &operations(&pair, Side::A)[3..];
    assert_eq!(
        sent,
        [
            (Operation::Flush, 3),
            (Operation::AtomicWrite, 4),
            (Operation::Flush, 5)
        ]
    );
    let answers: Vec<_> = operations(&pair, Side::B);
    let only = Operation::ReadResponseOnly;
    assert!(answers.ends_with(&[(only, 3), (only, 4), (only, 5)]));
    let is_empty = |t: &&crate::testing::Traced| t.packet().payload().is_empty();
    assert!(
        pair.trace()
            .iter()
            .filter(|t| t.from == Side::B)
            .all(|t| is_empty(&t))
    );
}

/// Checks that an ATOMIC WRITE is executed once, despite losses.
//= RC-DUP-04 type=test
#[test]
fn what_is_repeated_is_executed_once() {
    for lost in 0..4 {
        let mut pair = Pair::new(|_, setup| allow(setup));
        let src = register_filled(&pair, Side::A, 8, 1);
        let dst = pair.node(Side::B).mem.register(8, RIGHTS);
        pair.set_network(move |event| {
            if event.from == Side::B && event.index == lost {
                return Delivery::Drop;
            }
            Delivery::Deliver
        });
        pair.send(Side::A, 1, store(&dst), &[src.sge()]);
        pair.send(Side::A, 2, flush_of(&dst, 8, Selectivity::Range), &[]);
        pair.send(Side::A, 3, store(&dst), &[src.sge()]);
        pair.run();
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(1, OK), (2, OK), (3, OK)]);
        assert_eq!(pair.node(Side::B).mem.writes(), 2, "{lost}");
    }
}

/// Checks the answers to invalid requests, built by hand.
//= ETH-09 ETH-12 ETH-13 type=test
//= RC-RSP-04 RC-RSP-08 type=test
#[test]
fn requests_are_checked() {
    const INVALID: &str = "NAK INVALID_REQUEST psn=0 msn=0";
    const ACCESS: &str = "NAK REMOTE_ACCESS psn=0 msn=0";
    const DONE: &str = "ReadResponseOnly ACK psn=0 msn=1";
    type Make = fn(&Region, &Region) -> Request;
    let cases: [(&str, Make); 18] = [
        (DONE, |r, _| flush(0, r, 64, Feth::from_raw(0x01))),
        (DONE, |r, _| flush(0, r, u32::MAX, Feth::from_raw(0x11))),
        (DONE, |r, _| flush(0, r, 0, Feth::from_raw(0x01))),
        (INVALID, |r, _| flush(0, r, 64, Feth::from_raw(0x00))),
        (INVALID, |r, _| flush(0, r, 64, Feth::from_raw(0x05))),
        (INVALID, |r, _| flush(0, r, 64, Feth::from_raw(0x21))),
        (INVALID, |r, _| flush(0, r, 64, Feth::from_raw(0x31))),
        // The queue pair does not allow persistence.
        (INVALID, |r, _| flush(0, r, 64, Feth::from_raw(0x03))),
        (INVALID, |r, _| flush(0, r, 1 << 31, Feth::from_raw(0x01))),
        (INVALID, |r, _| {
            let mut request = flush(0, r, 64, Feth::from_raw(0x01));
            request.headers.bth.solicited = true;
            request
        }),
        (INVALID, |r, _| {
            flush(0, r, 64, Feth::from_raw(0x01)).payload(b"data")
        }),
        (ACCESS, |r, _| {
            flush(0, r, 10 * PMTU + 1, Feth::from_raw(0x01))
        }),
        // The region lacks the right.
        (ACCESS, |_, other| flush(0, other, 64, Feth::from_raw(0x01))),
        (ACCESS, |_, other| flush(0, other, 0, Feth::from_raw(0x11))),
        (DONE, |r, _| {
            atomic_write(0, r.addr + 8, r.rkey, 8, b"12345678")
        }),
        (INVALID, |r, _| {
            atomic_write(0, r.addr + 4, r.rkey, 8, b"12345678")
        }),
        (INVALID, |r, _| atomic_write(0, r.addr, r.rkey, 4, b"1234")),
        (ACCESS, |r, _| {
            atomic_write(0, r.addr + u64::from(10 * PMTU), r.rkey, 8, b"12345678")
        }),
    ];
    for (index, (expected, make)) in cases.into_iter().enumerate() {
        let (mut pair, plain) = target_with(allow);
        let region = pair.node(Side::B).mem.register(10 * PMTU, RIGHTS);
        let request = make(&region, &plain);
        assert_eq!(answer(&mut pair, &request), [expected], "{index}");
        let writes = u64::from(expected == DONE && index > 10);
        assert_eq!(pair.node(Side::B).mem.writes(), writes, "{index}");
        let events = match expected {
            INVALID => vec![QpEvent::ReqErr],
            ACCESS => vec![QpEvent::AccessErr],
            _ => vec![],
        };
        assert_eq!(pair.take_events(Side::B), events, "{index}");
    }
}

/// Checks that the queue pair refuses a peer without the access right.
//= RC-LIM-04 type=test
#[test]
fn the_queue_pair_has_to_allow_it() {
    let (mut pair, region) = target_with(|setup| {
        setup.attr.qp_access_flags = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    });
    let request = atomic_write(0, region.addr, region.rkey, 8, b"12345678");
    assert_eq!(
        answer(&mut pair, &request),
        ["NAK INVALID_REQUEST psn=0 msn=0"]
    );
    let (mut pair, _) = target_with(|_| {});
    let region = pair.node(Side::B).mem.register(64, RIGHTS);
    let request = flush(0, &region, 64, Feth::new(GLOBAL, Selectivity::Range));
    assert_eq!(
        answer(&mut pair, &request),
        ["NAK INVALID_REQUEST psn=0 msn=0"]
    );
}

/// Checks posting: exactly eight bytes, the limit that READs have, and no support on unreliable
/// queue pairs.
//= RC-LIM-01 OPC-26 type=test
#[test]
fn what_is_posted_is_checked() {
    let mut pair = Pair::new(|_, setup| {
        allow(setup);
        setup.attr.max_rd_atomic = 1;
        setup.attr.max_dest_rd_atomic = 1;
    });
    let src = register_filled(&pair, Side::A, 16, 1);
    let dst = pair.node(Side::B).mem.register(8, RIGHTS);
    let post = |pair: &mut Pair, op, len| {
        let sges = [src.part(0, len)];
        let wr = SendWr {
            wr_id: 7,
            op,
            flags: SendFlags::SIGNALED,
            sges: &sges,
        };
        pair.try_send(Side::A, &wr)
    };
    for len in [0, 7, 9, 16] {
        let refused = post(&mut pair, store(&dst), len);
        assert_eq!(refused, Err(PostError::AtomicBuffer));
    }
    for _ in 0..4 {
        assert_eq!(post(&mut pair, store(&dst), 8), Ok(()));
        pair.send(Side::A, 7, flush_of(&dst, 8, Selectivity::Range), &[]);
    }
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(7, OK); 8]);
    assert_eq!(pair.node(Side::B).qp.state(), QpState::Rts);
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut pair = Pair::new(|_, setup| setup.config.qp_type = qp_type);
        let src = register(&pair, Side::A, 8);
        for op in [store(&dst), flush_of(&dst, 8, Selectivity::Range)] {
            let sges = [src.sge()];
            let wr = SendWr {
                wr_id: 1,
                op,
                flags: SendFlags::SIGNALED,
                sges: &sges,
            };
            let refused = pair.try_send(Side::A, &wr);
            assert_eq!(refused, Err(PostError::UnsupportedOpcode), "{qp_type:?}");
        }
    }
}

/// Checks that a response with data is not accepted.
//= RC-REQ-10 type=test
#[test]
fn an_answer_with_data_is_none() {
    for op in 0..2 {
        let mut pair = Pair::new(|_, setup| allow(setup));
        let src = register(&pair, Side::A, 8);
        let dst = pair.node(Side::B).mem.register(8, RIGHTS);
        pair.set_network(|event| {
            if event.from == Side::A {
                return Delivery::Deliver;
            }
            let mut headers = *event.packet.headers();
            let mut bytes = vec![0; headers.len()];
            headers.bth.pad_count = 0;
            headers.emit(&mut bytes).unwrap();
            bytes.extend([1, 2, 3, 4, 0, 0, 0, 0]);
            Delivery::Replace(bytes)
        });
        match op {
            0 => pair.send(Side::A, 1, store(&dst), &[src.sge()]),
            _ => pair.send(Side::A, 1, flush_of(&dst, 8, Selectivity::Range), &[]),
        }
        pair.send(Side::A, 2, send(), &[]);
        pair.run();
        let done = statuses(&pair.take_completions(Side::A));
        assert_eq!(done[0], (1, WcStatus::BadRespErr));
    }
}
