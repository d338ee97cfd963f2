//! Memory windows and invalidation: operations without a PSN between others.

use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{Ieth, Operation, Rkey};

use super::{ALL, PMTU, Request, answers, operations, pattern, read, register, register_filled};
use super::{send, statuses};
use crate::testing::{Delivery, Pair, Region, Side, TestMemory};
use crate::{
    AccessFlags, Accessor, Bind, ImmOrInv, Memory, PostError, QpAttr, QpAttrMask, QpEvent, QpState,
    QpType, RemoteAccess, SendFlags, SendOp, SendWr, WcFlags, WcOpcode, WcStatus, WindowKind,
};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;
const RIGHTS: AccessFlags = AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE);

/// Returns the key after the next bind of a type 2 window.
const fn next(rkey: Rkey) -> Rkey {
    rkey.with_next_tag()
}

fn bind(rkey: Rkey, region: &Region) -> SendOp {
    SendOp::Bind(Bind {
        rkey,
        lkey: region.lkey,
        va: region.addr,
        len: u64::from(region.len),
        access: RIGHTS,
    })
}

fn windowed(pair: &Pair, side: Side, len: u32) -> Region {
    pair.node(side)
        .mem
        .register(len, ALL | AccessFlags::MW_BIND)
}

/// Creates a region of B with a type 2 window that B has bound.
fn bound(pair: &mut Pair, len: u32) -> (Region, Rkey) {
    let region = windowed(pair, Side::B, len);
    let rkey = next(pair.node(Side::B).mem.alloc_window(WindowKind::Type2));
    pair.send(Side::B, 900, bind(rkey, &region), &[]);
    pair.drain_both();
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(900, OK)]);
    (region, rkey)
}

const fn through(region: &Region, rkey: Rkey) -> Region {
    Region { rkey, ..*region }
}

fn write_to(region: &Region, rkey: Rkey) -> SendOp {
    super::write(&through(region, rkey))
}

fn post(pair: &mut Pair, side: Side, wr_id: u64, op: SendOp, flags: SendFlags) {
    let wr = SendWr {
        wr_id,
        op,
        flags,
        sges: &[],
    };
    pair.try_send(side, &wr).unwrap();
}

//= RC-WQE-05 type=test
//= MW-06 type=test
//= RC-PSN-05 type=test
#[test]
fn a_bind_takes_no_psn_and_holds_for_what_comes_behind_it() {
    let mut pair = Pair::default();
    let region = windowed(&pair, Side::B, 4 * PMTU);
    let free = pair.node(Side::B).mem.alloc_window(WindowKind::Type2);
    let rkey = next(free);
    let (src, note) = (
        register_filled(&pair, Side::A, 4 * PMTU, 1),
        register(&pair, Side::A, 8),
    );
    pair.recv(Side::A, 1, &[note.sge()]);
    pair.send(Side::B, 1, bind(rkey, &region), &[]);
    pair.send(Side::B, 2, send(), &[region.part(0, 4)]);
    pair.run();
    let done = pair.take_completions(Side::B);
    assert_eq!(statuses(&done), [(1, OK), (2, OK)]);
    assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::BindMw, 0));
    assert!(done[0].is_send());
    assert_eq!(operations(&pair, Side::B), [(Operation::SendOnly, 0)]);
    pair.take_completions(Side::A);

    pair.send(Side::A, 3, write_to(&region, rkey), &[src.sge()]);
    let back = register(&pair, Side::A, 4 * PMTU);
    pair.send(Side::A, 4, read(&through(&region, rkey)), &[back.sge()]);
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [(3, OK), (4, OK)]
    );
    assert_eq!(pair.node(Side::A).mem.all(&back), pattern(4 * PMTU, 1));
    // The window does not grant atomics.
    let add = SendOp::FetchAdd {
        va: region.addr,
        rkey,
        add: 1,
    };
    pair.send(Side::A, 5, add, &[back.part(0, 8)]);
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(5, WcStatus::RemAccessErr)]);
}

//= RC-WQE-01 type=test
//= RC-WQE-02 type=test
//= RC-WQE-03 type=test
#[test]
fn local_operations_complete_in_their_turn() {
    let mut pair = Pair::new(|_, setup| setup.config.sq_sig_all = false);
    let region = windowed(&pair, Side::A, 8);
    let there = register(&pair, Side::B, 8);
    let mem = &pair.node(Side::A).mem;
    let keys: Vec<Rkey> = (0..4)
        .map(|_| next(mem.alloc_window(WindowKind::Type2)))
        .collect();
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, super::write(&there), &[region.sge()]);
    for (wr_id, rkey) in (2..).zip(&keys[..3]) {
        let flags = if wr_id == 3 {
            SendFlags::empty()
        } else {
            SendFlags::SIGNALED
        };
        post(&mut pair, Side::A, wr_id, bind(*rkey, &region), flags);
    }
    pair.send(Side::A, 5, super::write(&there), &[region.sge()]);
    post(
        &mut pair,
        Side::A,
        6,
        bind(keys[3], &region),
        SendFlags::SIGNALED,
    );
    pair.drain_both();
    // All are in effect and none is complete, because the WRITE before them is not.
    for key in &keys {
        assert!(pair.node(Side::A).mem.is_bound(*key));
    }
    assert_eq!(pair.take_completions(Side::A), []);
    assert_eq!(pair.node(Side::A).qp.send_queue_len(), 6);
    pair.heal();
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(
        statuses(&done),
        [(1, OK), (2, OK), (4, OK), (5, OK), (6, OK)]
    );
    let freed_wqes: Vec<u32> = done.iter().map(|c| c.freed_wqes).collect();
    assert_eq!(freed_wqes, [1, 1, 2, 1, 1]);
    assert_eq!(pair.node(Side::A).qp.send_queue_len(), 0);
    assert!(!pair.node(Side::A).qp.requests_in_flight());
    // A bind alone completes at once.
    let more = pair.node(Side::A).mem.alloc_window(WindowKind::Type1);
    pair.send(Side::A, 7, bind(next(more), &region), &[]);
    pair.drain_both();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(7, OK)]);
}

//= INV-05 type=test
//= RC-WQE-05 type=test
#[test]
fn a_local_invalidation_waits_for_all_before_it() {
    let mut pair = Pair::default();
    let (region, rkey) = bound(&mut pair, 8);
    let there = register(&pair, Side::A, 8);
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::B, 1, super::write(&there), &[region.sge()]);
    pair.send(Side::B, 2, SendOp::Invalidate { rkey }, &[]);
    pair.send(Side::B, 3, super::write(&there), &[region.sge()]);
    pair.drain_both();
    assert!(pair.node(Side::B).mem.is_bound(rkey));
    assert_eq!(
        operations(&pair, Side::B).len(),
        1,
        "no later request is sent"
    );
    pair.heal();
    pair.run();
    let done = pair.take_completions(Side::B);
    assert_eq!(statuses(&done), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(done[1].opcode, WcOpcode::LocalInv);
    assert!(!pair.node(Side::B).mem.is_bound(rkey));
    pair.send(Side::A, 4, write_to(&region, rkey), &[there.sge()]);
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(4, WcStatus::RemAccessErr)]);
}

//= RC-WQE-04 type=test
//= INV-05 type=test
#[test]
fn a_fenced_bind_waits_for_reads() {
    for fenced in [false, true] {
        let mut pair = Pair::default();
        let region = windowed(&pair, Side::A, 8);
        let there = register(&pair, Side::B, 8);
        let rkey = next(pair.node(Side::A).mem.alloc_window(WindowKind::Type2));
        pair.set_network(|_| Delivery::Drop);
        pair.send(Side::A, 1, read(&there), &[region.sge()]);
        let fence = if fenced {
            SendFlags::FENCE
        } else {
            SendFlags::empty()
        };
        post(
            &mut pair,
            Side::A,
            2,
            bind(rkey, &region),
            SendFlags::SIGNALED | fence,
        );
        pair.drain_both();
        assert_eq!(pair.node(Side::A).mem.is_bound(rkey), !fenced);
        pair.heal();
        pair.run();
        assert_eq!(
            statuses(&pair.take_completions(Side::A)),
            [(1, OK), (2, OK)]
        );
        assert!(pair.node(Side::A).mem.is_bound(rkey));
    }
}

//= WCS-06 type=test
//= MW-05 type=test
//= INV-01 type=test
//= RC-STA-01 type=test
#[test]
fn what_fails_is_reported_in_its_turn_and_ends_the_qp() {
    let bad_bind = |_: &Pair, region: &Region| {
        let nowhere = Rkey::new(0x7777_7700);
        (bind(nowhere, region), WcStatus::MwBindErr)
    };
    let plain_region = |_: &Pair, region: &Region| {
        let rkey = region.rkey;
        (SendOp::Invalidate { rkey }, WcStatus::LocQpOpErr)
    };
    let free_window = |pair: &Pair, _: &Region| {
        let rkey = pair.node(Side::A).mem.alloc_window(WindowKind::Type2);
        (SendOp::Invalidate { rkey }, WcStatus::LocQpOpErr)
    };
    let not_bindable = |pair: &Pair, _: &Region| {
        let rkey = pair.node(Side::A).mem.alloc_window(WindowKind::Type2);
        let region = register(pair, Side::A, 8);
        (bind(rkey, &region), WcStatus::MwBindErr)
    };
    type Case<'a> = &'a dyn Fn(&Pair, &Region) -> (SendOp, WcStatus);
    let cases: [Case<'_>; 4] = [&bad_bind, &plain_region, &free_window, &not_bindable];
    for (index, case) in cases.into_iter().enumerate() {
        for lost in [0, 1] {
            let mut pair = Pair::default();
            let region = windowed(&pair, Side::A, 8);
            let there = register(&pair, Side::B, 8);
            let (op, status) = case(&pair, &region);
            let mut left = lost;
            pair.set_network(move |_| {
                left -= 1;
                if left >= 0 {
                    Delivery::Drop
                } else {
                    Delivery::Deliver
                }
            });
            pair.send(Side::A, 1, super::write(&there), &[region.sge()]);
            pair.send(Side::A, 2, op, &[]);
            pair.send(Side::A, 3, super::write(&there), &[region.sge()]);
            pair.run();
            let done = pair.take_completions(Side::A);
            let expected = [(1, OK), (2, status), (3, FLUSHED)];
            assert_eq!(statuses(&done), expected, "{index} {lost}");
            assert_eq!(pair.node(Side::A).qp.state(), QpState::Err);
        }
    }
}

//= RC-STA-02 type=test
//= RC-STA-06 type=test
#[test]
fn drained_or_in_error_nothing_is_executed() {
    let mut pair = Pair::default();
    let region = windowed(&pair, Side::A, 8);
    let rkey = next(pair.node(Side::A).mem.alloc_window(WindowKind::Type2));
    let none = QpAttr::default();
    pair.modify(Side::A, QpState::Sqd, QpAttrMask::empty(), &none);
    pair.send(Side::A, 1, bind(rkey, &region), &[]);
    pair.run();
    assert!(!pair.node(Side::A).mem.is_bound(rkey));
    assert_eq!(pair.take_completions(Side::A), []);
    pair.modify(Side::A, QpState::Rts, QpAttrMask::empty(), &none);
    pair.run();
    assert!(pair.node(Side::A).mem.is_bound(rkey));
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    pair.modify(Side::A, QpState::Err, QpAttrMask::empty(), &none);
    pair.send(Side::A, 2, SendOp::Invalidate { rkey }, &[]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(2, FLUSHED)]);
    assert!(pair.node(Side::A).mem.is_bound(rkey));
}

//= RC-WQE-09 type=test
//= INV-03 type=test
//= RC-SEG-01 type=test
//= WCO-03 ETH-07 type=test
#[test]
fn a_send_frees_the_peers_window_before_the_receive_completes() {
    for len in [0, 5, PMTU, 3 * PMTU + 1] {
        let mut pair = Pair::default();
        let (_, rkey) = bound(&mut pair, 8);
        let src = register_filled(&pair, Side::A, len.max(1), 1);
        let dst = register(&pair, Side::B, len.max(1));
        pair.recv(Side::B, 1, &[dst.sge()]);
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        let sges = [src.part(0, len)];
        let wr = SendWr {
            wr_id: 1,
            op: SendOp::SendInv { rkey },
            flags,
            sges: &sges,
        };
        pair.try_send(Side::A, &wr).unwrap();
        pair.run();
        let sent = operations(&pair, Side::A);
        let last = if len <= PMTU {
            Operation::SendOnlyInv
        } else {
            Operation::SendLastInv
        };
        assert_eq!(sent.last().unwrap().0, last);
        let keys = pair.trace().iter().filter(|t| t.from == Side::A);
        let keys: Vec<_> = keys.filter_map(|t| t.packet().headers().ieth).collect();
        assert_eq!(keys, [Ieth(rkey)], "in the last packet");
        let done = pair.take_completions(Side::A);
        assert_eq!(
            (statuses(&done), done[0].opcode),
            (vec![(1, OK)], WcOpcode::Send)
        );
        let received = pair.take_completions(Side::B);
        assert_eq!(statuses(&received), [(1, OK)]);
        assert_eq!(received[0].imm_or_inv, ImmOrInv::Inv(rkey));
        assert_eq!(received[0].wc_flags, WcFlags::WITH_INV);
        assert_eq!(
            (received[0].byte_len, received[0].opcode),
            (len, WcOpcode::Recv)
        );
        assert!(received[0].solicited);
        assert!(!pair.node(Side::B).mem.is_bound(rkey));
        let data = pair.node(Side::B).mem.bytes(&dst, 0..len as usize);
        assert_eq!(data, pattern(len.max(1), 1)[..len as usize]);
    }
}

//= RC-ERR-J type=test
//= INV-03 type=test
//= INV-04 type=test
#[test]
fn a_key_that_cannot_be_freed_ends_both() {
    type Case<'a> = &'a dyn Fn(&mut Pair) -> Rkey;
    let unknown: Case<'_> = &|_| Rkey::new(0x1234_5678);
    let region: Case<'_> = &|pair| register(pair, Side::B, 8).rkey;
    let free: Case<'_> = &|pair| pair.node(Side::B).mem.alloc_window(WindowKind::Type2);
    let stale: Case<'_> = &|pair| next(bound(pair, 8).1);
    let type_1: Case<'_> = &|pair| {
        let region = windowed(pair, Side::B, 8);
        let rkey = next(pair.node(Side::B).mem.alloc_window(WindowKind::Type1));
        pair.send(Side::B, 900, bind(rkey, &region), &[]);
        pair.drain_both();
        pair.take_completions(Side::B);
        rkey
    };
    for (index, case) in [unknown, region, free, stale, type_1]
        .into_iter()
        .enumerate()
    {
        let mut pair = Pair::default();
        let rkey = case(&mut pair);
        let dst = register(&pair, Side::B, 8);
        let src = register_filled(&pair, Side::A, 8, 1);
        pair.recv(Side::B, 1, &[dst.sge()]);
        pair.recv(Side::B, 2, &[dst.sge()]);
        pair.clear_trace();
        pair.send(Side::A, 1, SendOp::SendInv { rkey }, &[src.sge()]);
        pair.run();
        assert_eq!(
            answers(&mut pair),
            ["NAK REMOTE_ACCESS psn=0 msn=0"],
            "{index}"
        );
        let done = pair.take_completions(Side::A);
        assert_eq!(statuses(&done), [(1, WcStatus::RemAccessErr)], "{index}");
        let received = pair.take_completions(Side::B);
        let expected = [(1, WcStatus::RemAccessErr), (2, FLUSHED)];
        assert_eq!(statuses(&received), expected, "{index}");
        assert_eq!(pair.take_events(Side::B), [], "the receive reports it");
        assert_eq!(pair.node(Side::B).qp.state(), QpState::Err);
    }
}

/// Checks that a duplicate READ is not answered through another key for the same bytes, even with
/// the same rights.
//= RC-DUP-03 type=test
#[test]
fn a_read_is_repeated_through_the_key_that_it_had() {
    let mut pair = Pair::default();
    let (region, rkey) = bound(&mut pair, 8);
    pair.clear_trace();
    let through = |rkey| Request::new(Operation::ReadRequest, 0).reth(region.addr, rkey, 8);
    let expected = ["ReadResponseOnly ACK psn=0 msn=1"];
    through(rkey).inject(&mut pair);
    assert_eq!(answers(&mut pair), expected);
    through(region.rkey).inject(&mut pair);
    assert_eq!(answers(&mut pair), [""; 0]);
    through(rkey).inject(&mut pair);
    assert_eq!(answers(&mut pair), expected);
}

//= RC-DUP-01 type=test
#[test]
fn a_repeated_send_frees_nothing_again() {
    let mut pair = Pair::default();
    let (region, rkey) = bound(&mut pair, 8);
    let dst = register(&pair, Side::B, 8);
    let src = register(&pair, Side::A, 8);
    pair.recv(Side::B, 1, &[dst.sge()]);
    // The ACK is lost.
    pair.set_network(|event| match event.from {
        Side::A => Delivery::Deliver,
        Side::B => Delivery::Drop,
    });
    pair.send(Side::A, 1, SendOp::SendInv { rkey }, &[src.sge()]);
    pair.run_until(|pair| !pair.node(Side::B).completions.is_empty());
    pair.take_completions(Side::B);
    // The window is bound again, with the same key.
    pair.send(Side::B, 2, bind(rkey, &region), &[]);
    pair.drain_both();
    pair.heal();
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert!(pair.node(Side::A).qp.counters().retransmitted_packets > 0);
    assert!(pair.node(Side::B).mem.is_bound(rkey));
}

//= MR-14 type=test
#[test]
fn a_write_or_read_ends_where_its_window_is_freed() {
    let mut pair = Pair::default();
    let (region, rkey) = bound(&mut pair, 3 * PMTU);
    let data = pattern(PMTU, 1);
    Request::new(Operation::WriteFirst, 0)
        .reth(region.addr, rkey, 3 * PMTU)
        .payload(&data)
        .inject(&mut pair);
    pair.send(Side::B, 1, SendOp::Invalidate { rkey }, &[]);
    pair.drain_both();
    Request::new(Operation::WriteMiddle, 1)
        .payload(&data)
        .inject(&mut pair);
    assert_eq!(
        answers(&mut pair).last().map(alloc::string::String::as_str),
        Some("NAK REMOTE_ACCESS psn=1 msn=0")
    );
    assert_eq!(pair.take_events(Side::B), [QpEvent::AccessErr]);
    let mem = &pair.node(Side::B).mem;
    assert_eq!(mem.bytes(&region, 0..PMTU as usize), data);
    assert_eq!(
        mem.bytes(&region, PMTU as usize..3 * PMTU as usize),
        vec![0; 2 * PMTU as usize]
    );

    // A READ of more than a buffer holds.
    let mut pair = Pair::default();
    let len = 2000 * PMTU;
    let (region, rkey) = bound(&mut pair, len);
    let here = register(&pair, Side::A, len);
    pair.send(Side::A, 1, read(&through(&region, rkey)), &[here.sge()]);
    pair.run_until(|pair| operations(pair, Side::B).len() > 10);
    assert_eq!(pair.node(Side::B).mem.invalidate(who(), rkey), Ok(()));
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(1, WcStatus::RemAccessErr)]);
}

const fn who() -> Accessor {
    Accessor {
        pd: TestMemory::PD,
        qpn: rocade_wire::Qpn::new(0x22),
    }
}

//= MW-03 type=test
#[test]
fn a_window_of_another_qp_grants_no_access() {
    let mut pair = Pair::default();
    let region = windowed(&pair, Side::B, 8);
    let mem = &pair.node(Side::B).mem;
    let other = Accessor {
        qpn: rocade_wire::Qpn::new(0x23),
        ..who()
    };
    let rkey = next(mem.alloc_window(WindowKind::Type2));
    let SendOp::Bind(bind) = bind(rkey, &region) else {
        unreachable!()
    };
    assert_eq!(mem.bind(other, &bind), Ok(()));
    assert!(
        mem.check_remote(other, rkey, region.addr, 8, RemoteAccess::Read)
            .is_ok()
    );
    let here = register(&pair, Side::A, 8);
    pair.send(Side::A, 1, read(&through(&region, rkey)), &[here.sge()]);
    pair.run();
    let done = pair.take_completions(Side::A);
    assert_eq!(statuses(&done), [(1, WcStatus::RemAccessErr)]);
}

//= MW-09 type=test
//= PST-10 type=test
//= UC-01 type=test
#[test]
fn uc_has_windows_too_and_ud_has_none() {
    let mut pair = Pair::new(|_, setup| {
        setup.config.qp_type = QpType::Uc;
        setup.config.sq_sig_all = false;
    });
    let region = windowed(&pair, Side::B, 4 * PMTU);
    let src = register_filled(&pair, Side::A, 4 * PMTU, 1);
    let here = register(&pair, Side::A, 4 * PMTU);
    let mem = &pair.node(Side::B).mem;
    let keys = [0; 2].map(|_| next(mem.alloc_window(WindowKind::Type2)));
    // Alone, among packets, and after packets.
    pair.send(Side::B, 1, bind(keys[0], &region), &[]);
    pair.drain_both();
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(1, OK)]);
    assert!(!pair.node(Side::B).qp.requests_in_flight());
    pair.send(Side::B, 2, super::write(&here), &[region.sge()]);
    post(
        &mut pair,
        Side::B,
        3,
        bind(keys[1], &region),
        SendFlags::empty(),
    );
    pair.send(Side::B, 4, super::write(&here), &[region.sge()]);
    pair.send(Side::B, 5, SendOp::Invalidate { rkey: keys[1] }, &[]);
    pair.run();
    let done = pair.take_completions(Side::B);
    assert_eq!(statuses(&done), [(2, OK), (4, OK), (5, OK)]);
    let opcodes: Vec<_> = done.iter().map(|c| (c.opcode, c.freed_wqes)).collect();
    let expected = [
        (WcOpcode::RdmaWrite, 1),
        (WcOpcode::RdmaWrite, 2),
        (WcOpcode::LocalInv, 1),
    ];
    assert_eq!(opcodes, expected);
    let mem = &pair.node(Side::B).mem;
    assert!(mem.is_bound(keys[0]) && !mem.is_bound(keys[1]));
    pair.send(Side::A, 6, write_to(&region, keys[0]), &[src.sge()]);
    pair.run();
    assert_eq!(pair.node(Side::B).mem.all(&region), pattern(4 * PMTU, 1));
    // A failure ends the send queue, after the requests before it.
    for (op, status) in [
        (bind(keys[0], &region), WcStatus::MwBindErr),
        (SendOp::Invalidate { rkey: keys[1] }, WcStatus::LocQpOpErr),
    ] {
        pair.send(Side::B, 7, super::write(&here), &[region.part(0, 8)]);
        pair.send(Side::B, 8, op, &[]);
        pair.send(Side::B, 9, super::write(&here), &[region.part(0, 8)]);
        pair.run();
        let done = pair.take_completions(Side::B);
        assert_eq!(statuses(&done), [(7, OK), (8, status), (9, FLUSHED)]);
        assert_eq!(pair.node(Side::B).qp.state(), QpState::Sqe);
        pair.modify(
            Side::B,
            QpState::Rts,
            QpAttrMask::empty(),
            &QpAttr::default(),
        );
    }
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::SendInv { rkey: keys[0] },
        flags: SendFlags::empty(),
        sges: &[],
    };
    let refused = Err(PostError::UnsupportedOpcode);
    assert_eq!(pair.try_send(Side::A, &wr), refused);

    let mut ud = Pair::new(|_, setup| {
        setup.config.qp_type = QpType::Ud;
        setup.attr.path_mtu = 5;
    });
    for op in [
        wr.op,
        bind(keys[0], &region),
        SendOp::Invalidate { rkey: keys[0] },
    ] {
        assert_eq!(ud.try_send(Side::A, &SendWr { op, ..wr }), refused);
    }
}

/// Checks losses before, between and after: everything is executed once and in order.
#[test]
fn retransmission_passes_over_what_was_executed() {
    for lost in 0..12 {
        let mut pair = Pair::default();
        let region = windowed(&pair, Side::A, 8);
        let long = register_filled(&pair, Side::A, 3 * PMTU, 1);
        let there = register(&pair, Side::B, 3 * PMTU);
        let back = register(&pair, Side::A, 3 * PMTU);
        let mem = &pair.node(Side::A).mem;
        let keys: Vec<Rkey> = (0..3)
            .map(|_| next(mem.alloc_window(WindowKind::Type2)))
            .collect();
        let mut index = 0;
        pair.set_network(move |_| {
            index += 1;
            if index == lost + 1 {
                Delivery::Drop
            } else {
                Delivery::Deliver
            }
        });
        pair.send(Side::A, 1, bind(keys[0], &region), &[]);
        pair.send(Side::A, 2, super::write(&there), &[long.sge()]);
        pair.send(Side::A, 3, bind(keys[1], &region), &[]);
        pair.send(Side::A, 4, bind(keys[2], &region), &[]);
        pair.send(Side::A, 5, read(&there), &[back.sge()]);
        pair.send(Side::A, 6, SendOp::Invalidate { rkey: keys[1] }, &[]);
        pair.send(Side::A, 7, SendOp::Invalidate { rkey: keys[0] }, &[]);
        pair.send(Side::A, 8, super::write(&there), &[long.part(0, 4)]);
        pair.run();
        let done = pair.take_completions(Side::A);
        let expected: Vec<_> = (1..9).map(|wr_id| (wr_id, OK)).collect();
        assert_eq!(statuses(&done), expected, "{lost}");
        let mem = &pair.node(Side::A).mem;
        assert_eq!(mem.all(&back), pattern(3 * PMTU, 1));
        assert!(!mem.is_bound(keys[0]) && !mem.is_bound(keys[1]) && mem.is_bound(keys[2]));
    }
}
