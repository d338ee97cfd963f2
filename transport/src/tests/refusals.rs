//! Requests that the responder refuses.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use rocade_wire::{Opcode, Operation, Packet, Rkey};

use super::responder::{answer, batch, example, fetch_add, read, target, target_with, write_only};
use super::{ALL, PMTU, Request, answers, statuses};
use crate::testing::{Pair, Region, Side};
use crate::{AccessFlags, DropReason, QpEvent, QpState, WcStatus};

use Operation::{
    CmpSwap, FetchAdd, ReadRequest, SendFirst, SendLast, SendOnly, WriteFirst, WriteLast, WriteOnly,
};

/// Returns how B refuses a request: the answer, its receive completions, its events.
fn refusal(
    pair: &mut Pair,
    request: &Request,
) -> (Vec<String>, Vec<(u64, WcStatus)>, Vec<QpEvent>) {
    let answer = answer(pair, request);
    assert_eq!(pair.node(Side::B).qp.state(), QpState::Err, "{answer:?}");
    (
        answer,
        statuses(&pair.take_completions(Side::B)),
        pair.take_events(Side::B),
    )
}

fn invalid(psn: u32, msn: u32) -> Vec<String> {
    vec![alloc::format!("NAK INVALID_REQUEST psn={psn} msn={msn}")]
}

//= RC-RSP-04, RC-LIM-04, RC-ERR-C type=test
#[test]
fn the_access_flags_of_the_qp_gate_remote_operations() {
    for (operation, flag) in [
        (WriteOnly, AccessFlags::REMOTE_WRITE),
        (ReadRequest, AccessFlags::REMOTE_READ),
        (CmpSwap, AccessFlags::REMOTE_ATOMIC),
        (FetchAdd, AccessFlags::REMOTE_ATOMIC),
    ] {
        let (mut pair, region) = target_with(|setup| setup.attr.qp_access_flags.remove(flag));
        let request = example(operation, 0, &region);
        assert_eq!(
            refusal(&mut pair, &request),
            (invalid(0, 0), vec![], vec![QpEvent::ReqErr])
        );
        //= RC-SEG-02 type=test
        let (mut pair, region) = target_with(|setup| setup.attr.qp_access_flags.remove(flag));
        if operation == ReadRequest {
            assert_eq!(refusal(&mut pair, &read(0, &region, 0, 0)).0, invalid(0, 0));
        }
    }
}

//= RC-RSP-08 RC-RSP-22 RC-RSP-24 type=test
//= RC-ERR-C type=test
#[test]
fn keys_rights_and_ranges_are_checked() {
    for operation in [WriteOnly, ReadRequest, CmpSwap, FetchAdd] {
        for case in 0..6 {
            let (mut pair, region) = target();
            let mem = &pair.node(Side::B).mem;
            let mut wrong = match case {
                0 => mem.register(PMTU, AccessFlags::LOCAL_WRITE),
                1 => mem.register_foreign(PMTU, ALL),
                2 => mem.register(7, ALL),
                _ => region,
            };
            match case {
                3 => wrong.rkey = Rkey::new(0xdead),
                4 => wrong.addr = u64::MAX - 7,
                5 => mem.deregister(&region),
                _ => {}
            }
            let request = example(operation, 0, &wrong);
            let nak = vec![String::from("NAK REMOTE_ACCESS psn=0 msn=0")];
            let expected = (nak, vec![], vec![QpEvent::AccessErr]);
            assert_eq!(
                refusal(&mut pair, &request),
                expected,
                "{operation:?} {case}"
            );
            assert_eq!(pair.node(Side::B).mem.writes(), 0);
        }
    }
}

//= RC-SEG-02 type=test
#[test]
fn without_data_neither_key_nor_address_count() {
    let (mut pair, _) = target();
    let nowhere = |operation, psn| Request::new(operation, psn).reth(1, Rkey::new(0xdead), 0);
    pair.recv(Side::B, 3, &[]);
    assert_eq!(
        answer(&mut pair, &nowhere(WriteOnly, 0)),
        ["ACK psn=0 msn=1"]
    );
    assert_eq!(
        answer(&mut pair, &nowhere(ReadRequest, 1)),
        ["ReadResponseOnly ACK psn=1 msn=2"]
    );
    assert_eq!(
        answer(&mut pair, &nowhere(ReadRequest, 1)),
        ["ReadResponseOnly ACK psn=1 msn=2"]
    );
    let with_imm = nowhere(Operation::WriteOnlyImm, 2).imm([9; 4]);
    assert_eq!(answer(&mut pair, &with_imm), ["ACK psn=2 msn=3"]);
    assert_eq!(
        statuses(&pair.take_completions(Side::B)),
        [(3, WcStatus::Success)]
    );
}

//= RC-ERR-C type=test
//= WCS-08 type=test
#[test]
fn a_receive_that_the_message_holds_reports_the_error() {
    let (mut pair, region) = target();
    pair.recv(Side::B, 1, &[]);
    pair.recv(Side::B, 2, &[]);
    let request = Request::new(Operation::WriteOnlyImm, 0)
        .imm([0; 4])
        .payload(&[1]);
    let request = request.reth(region.addr, Rkey::new(0xdead), 1);
    let nak = vec![String::from("NAK REMOTE_ACCESS psn=0 msn=0")];
    let receives = vec![(1, WcStatus::LocAccessErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(refusal(&mut pair, &request), (nak, receives, vec![]));

    let (mut pair, region) = target();
    pair.recv(Side::B, 1, &[region.sge()]);
    Request::new(SendFirst, 0)
        .payload(&[1; PMTU as usize])
        .inject(&mut pair);
    answers(&mut pair);
    let (nak, receives, events) = refusal(&mut pair, &write_only(1, &region, 1));
    assert_eq!(
        (nak, receives, events),
        (invalid(1, 0), vec![(1, WcStatus::RemInvReqErr)], vec![])
    );
}

//= RC-RSP-10, WCS-01 type=test
#[test]
fn a_send_must_fit_the_receive() {
    let (mut pair, region) = target();
    pair.recv(Side::B, 1, &[region.part(0, 1), region.part(5, 1)]);
    let request = Request::new(SendOnly, 0).payload(&[1; 3]);
    let receives = vec![(1, WcStatus::LocLenErr)];
    assert_eq!(
        refusal(&mut pair, &request),
        (invalid(0, 0), receives.clone(), vec![])
    );
    assert_eq!(pair.node(Side::B).mem.writes(), 0);

    let (mut pair, region) = target();
    pair.recv(Side::B, 1, &[region.part(0, PMTU)]);
    Request::new(SendFirst, 0)
        .payload(&[1; PMTU as usize])
        .inject(&mut pair);
    answers(&mut pair);
    let request = Request::new(SendLast, 1).payload(&[1]);
    assert_eq!(
        refusal(&mut pair, &request),
        (invalid(1, 0), receives, vec![])
    );
}

//= RC-RSP-12, RC-ERR-A type=test
#[test]
fn a_bad_receive_buffer_is_the_responders_fault() {
    let foreign = |pair: &Pair| pair.node(Side::B).mem.register_foreign(8, ALL).sge();
    let read_only = |pair: &Pair| {
        pair.node(Side::B)
            .mem
            .register(8, AccessFlags::REMOTE_WRITE)
            .sge()
    };
    for sge in [&foreign as &dyn Fn(&Pair) -> _, &read_only] {
        let (mut pair, _) = target();
        let sge = sge(&pair);
        pair.recv(Side::B, 1, &[sge]);
        pair.recv(Side::B, 2, &[sge]);
        let nak = vec![String::from("NAK REMOTE_OPERATIONAL psn=0 msn=0")];
        let receives = vec![(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
        let request = Request::new(SendOnly, 0).payload(&[1]);
        assert_eq!(refusal(&mut pair, &request), (nak, receives, vec![]));
        // No request is answered any more, and new receives are flushed.
        assert_eq!(answer(&mut pair, &request), [""; 0]);
        assert_eq!(
            pair.node(Side::B).qp.counters().dropped(DropReason::State),
            1
        );
    }
}

//= RC-RSP-07 RC-RSP-09 RC-RSP-11 type=test
//= RC-SEG-05 ATM-01 type=test
//= AEV-02 type=test
#[test]
fn malformed_requests_are_refused() {
    let pmtu = PMTU as usize;
    let write = |operation, len: u32, region: &Region| {
        Request::new(operation, 0).reth(region.addr, region.rkey, len)
    };
    let mut padded = Request::new(SendFirst, 0).payload(&vec![1; pmtu]);
    padded.headers.bth.pad_count = 1;
    padded.payload.pop();
    let (_, region) = target();
    let requests = [
        padded,
        Request::new(SendFirst, 0).payload(&vec![1; pmtu - 1]),
        Request::new(SendFirst, 0).payload(&vec![1; pmtu + 1]),
        Request::new(SendOnly, 0).payload(&vec![1; pmtu + 1]),
        write(WriteFirst, PMTU + 1, &region).payload(&vec![1; pmtu - 4]),
        write(WriteFirst, PMTU, &region).payload(&vec![1; pmtu]),
        write(WriteOnly, 2, &region).payload(&[1]),
        write(WriteOnly, 0, &region).payload(&[1]),
        write(WriteOnly, 2, &region).payload(&[1; 3]),
        write(WriteOnly, (1 << 31) + 1, &region).payload(&[1]),
        write(ReadRequest, (1 << 31) + 1, &region),
        write(ReadRequest, 4, &region).payload(&[1; 4]),
        Request::new(FetchAdd, 0).atomic(region.addr + 4, region.rkey, 1, 0),
        Request::new(CmpSwap, 0)
            .atomic(region.addr + 8, region.rkey, 1, 0)
            .payload(&[1; 4]),
    ];
    for request in requests {
        let (mut pair, region) = target();
        pair.recv(Side::B, 1, &[region.sge()]);
        let (nak, ..) = refusal(&mut pair, &request);
        assert_eq!(
            nak,
            invalid(0, 0),
            "{} + {}",
            request.headers,
            request.payload.len()
        );
        assert_eq!(pair.node(Side::B).mem.writes(), 0);
    }
    // Too little or too much data after a valid first packet.
    for len in [1, 3] {
        let (mut pair, region) = target();
        write(WriteFirst, PMTU + 2, &region)
            .payload(&vec![1; pmtu])
            .inject(&mut pair);
        answers(&mut pair);
        let last = Request::new(WriteLast, 1).payload(&vec![1; len]);
        assert_eq!(
            refusal(&mut pair, &last),
            (invalid(1, 0), vec![], vec![QpEvent::ReqErr])
        );
    }
}

//= OPC-36 type=test
#[test]
fn reserved_and_unsupported_opcodes_are_refused() {
    for code in 0..0x20u8 {
        let opcode = Opcode::new(code);
        if opcode
            .operation()
            .is_none_or(|o| matches!(o, Operation::Flush | Operation::AtomicWrite))
        {
            let (mut pair, _) = target();
            let mut request = Request::new(SendOnly, 0).payload(&[0; 64]);
            request.headers.bth.opcode = opcode;
            request.headers.feth = None;
            let bytes = request.bytes();
            if Packet::parse(&bytes).is_err() {
                continue;
            }
            pair.inject(Side::B, &bytes);
            assert_eq!(answers(&mut pair), invalid(0, 0), "{opcode}");
        }
    }
}

//= RC-ERR-J type=test
#[test]
fn nothing_can_be_invalidated_yet() {
    let (mut pair, region) = target();
    pair.recv(Side::B, 1, &[region.sge()]);
    let mut request = Request::new(Operation::SendOnlyInv, 0).payload(&[1]);
    request.headers.ieth = Some(rocade_wire::Ieth(region.rkey));
    let nak = vec![String::from("NAK REMOTE_ACCESS psn=0 msn=0")];
    let receives = vec![(1, WcStatus::RemAccessErr)];
    assert_eq!(refusal(&mut pair, &request), (nak, receives, vec![]));
}

//= RC-RSP-05 type=test
#[test]
fn reads_and_atomics_need_resources() {
    let (mut pair, region) = target_with(|setup| setup.attr.max_dest_rd_atomic = 0);
    assert_eq!(refusal(&mut pair, &read(0, &region, 0, 1)).0, invalid(0, 0));
    let (mut pair, region) = target_with(|setup| setup.attr.max_dest_rd_atomic = 2);
    let requests = [
        read(0, &region, 0, 1),
        fetch_add(1, &region, 1),
        read(2, &region, 0, 1),
    ];
    let answers = batch(&mut pair, &requests);
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[2], "NAK INVALID_REQUEST psn=2 msn=2");
}
