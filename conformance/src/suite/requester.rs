//! The peer as requester: its packets, and its reaction to valid responses.

use rocade_wire::{Aeth, Msn, NakCode, Operation, Psn, Reth, Rkey, Syndrome};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, QpSpec,
    bench::POSITIVE,
    case::{equal, fail},
    peer::{Buffer, Status, Work, WorkOp},
};

pub(super) const CASES: &[Case] = &[
    Case::requester("RC-PSN-04", "first-request-has-sq-psn", first_psn),
    Case::requester("RC-SEG-01", "sent-in-three-packets", |b| segments(b, 600)),
    Case::requester("RC-SEG-01", "sent-in-full-packets", |b| segments(b, 512)),
    Case::requester("RC-SEG-02", "empty-messages", empty),
    Case::requester("RC-SEG-03", "reth-in-the-first-packet-only", reth_once),
    Case::requester(
        "RC-ACK-05",
        "last-packet-asks-for-an-acknowledgement",
        ack_req,
    ),
    Case::requester("RC-APM-02", "requests-say-migrated", migrated),
    Case::requester("RC-PSN-05", "request-after-a-read", read_psns),
    Case::requester("RC-WQE-01", "completions-in-order", in_order),
    Case::requester("RC-WQE-04", "fence-waits-for-a-read", fence),
    Case::requester("RC-WQE-07", "immediate-data-is-sent-verbatim", immediate),
    Case::requester("RC-WQE-08", "solicited-at-the-end-only", solicited),
    Case::requester("RC-WQE-10", "atomic-result-in-host-order", atomic_result),
    Case::requester("RC-LIM-01", "no-more-reads-than-max-rd-atomic", read_limit),
    Case::requester("RC-ACK-08", "acknowledgement-within-a-message", ack_within),
    Case::requester("RC-REQ-01", "future-acknowledgement-is-dropped", future),
    Case::requester("RC-REQ-02", "ghost-acknowledgement-is-dropped", ghost),
    Case::requester("RC-REQ-03", "one-acknowledgement-for-many", coalesced),
    Case::requester("RC-REQ-03", "msn-does-not-matter", msn_ignored),
    Case::requester(
        "RC-ACK-03",
        "read-response-acknowledges-earlier-sends",
        read_acknowledges,
    ),
    Case::requester(
        "RC-REQ-15",
        "reserved-syndromes-are-ignored",
        reserved_syndromes,
    ),
];

/// A remote address and a key, for which the rig has no memory.
const VA: u64 = 0x0000_7f00_dead_0008;
const RKEY: u32 = 0x1234_5678;

pub(super) const SEND: WorkOp = WorkOp::Send { imm: None };
pub(super) const WRITE: WorkOp = WorkOp::Write {
    va: VA,
    rkey: Rkey::new(RKEY),
    imm: None,
};
pub(super) const READ: WorkOp = WorkOp::Read {
    va: VA,
    rkey: Rkey::new(RKEY),
};

/// Returns the RETH of a request for `dma_len` bytes, `offset` bytes into the message.
pub(super) fn reth(offset: u64, dma_len: u32) -> Reth {
    Reth {
        va: VA + offset,
        rkey: Rkey::new(RKEY),
        dma_len,
    }
}

/// Returns a connection whose region 0 contains a pattern.
pub(super) fn connect<'b>(bench: &'b Bench<'b>, spec: QpSpec) -> CaseResult<Conn<'b>> {
    let conn = bench.connect(spec)?;
    conn.qp().write_memory(0, 0, &pattern(2048));
    Ok(conn)
}

/// Posts a work request for the first `len` bytes of region 0.
pub(super) fn post(conn: &Conn<'_>, id: u64, op: WorkOp, len: u32) -> CaseResult {
    conn.post_send(&Work::new(id, op, Buffer::new(0, len)))
}

/// Posts a READ with a buffer behind the pattern.
pub(super) fn post_read(conn: &Conn<'_>, id: u64, len: u32) -> CaseResult {
    conn.post_send(&Work::new(id, READ, Buffer::new(2048, len)))
}

//= RC-PSN-04 type=test
fn first_psn(bench: &Bench<'_>) -> CaseResult {
    for sq_psn in [0, 1, 0x007f_ffff, 0x0080_0000, 0x00ff_ffff] {
        let conn = connect(
            bench,
            QpSpec {
                sq_psn: Psn::new(sq_psn),
                ..QpSpec::default()
            },
        )?;
        post(&conn, 1, SEND, 8)?;
        conn.expect_request(Operation::SendOnly, 0)?;
        conn.ack(0, 1)?;
        conn.expect_completion(1, Status::Success)?;
    }
    Ok(())
}

//= RC-SEG-01 type=test
fn segments(bench: &Bench<'_>, len: u16) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, len.into())?;
    let operations: &[_] = if len == 512 {
        &[Operation::SendFirst, Operation::SendLast]
    } else {
        &[
            Operation::SendFirst,
            Operation::SendMiddle,
            Operation::SendLast,
        ]
    };
    let packets = conn.expect_requests(0, operations)?;
    let data: Vec<u8> = packets
        .iter()
        .flat_map(|packet| packet.payload.clone())
        .collect();
    if data != pattern(len.into()) {
        return fail("the payload differs from the data");
    }
    for packet in &packets[..packets.len() - 1] {
        equal(
            packet.payload.len(),
            conn.pmtu(),
            "payload of First and Middle",
        )?;
    }
    Ok(())
}

//= RC-SEG-02 type=test
fn empty(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 0)?;
    post(&conn, 2, WRITE, 0)?;
    post_read(&conn, 3, 0)?;
    let operations = [
        Operation::SendOnly,
        Operation::WriteOnly,
        Operation::ReadRequest,
    ];
    let packets = conn.expect_requests(0, &operations)?;
    for packet in &packets {
        equal(packet.payload.len(), 0, "payload")?;
    }
    equal(
        packets[1].headers.reth.map(|reth| reth.dma_len),
        Some(0),
        "DMALen",
    )?;
    conn.ack(1, 2)?;
    conn.read_response(Operation::ReadResponseOnly, 2, &[], 3)?;
    for id in 1..=3 {
        conn.expect_completion(id, Status::Success)?;
    }
    Ok(())
}

//= RC-SEG-03 type=test
fn reth_once(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, WRITE, 600)?;
    // The headers were already compared with the opcode.
    let operations = [
        Operation::WriteFirst,
        Operation::WriteMiddle,
        Operation::WriteLast,
    ];
    let packets = conn.expect_requests(0, &operations)?;
    equal(packets[0].headers.reth, Some(reth(0, 600)), "RETH")
}

//= RC-APM-02 type=test
fn migrated(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 600)?;
    post(&conn, 2, WRITE, 8)?;
    let operations = [
        Operation::SendFirst,
        Operation::SendMiddle,
        Operation::SendLast,
        Operation::WriteOnly,
    ];
    for packet in conn.expect_requests(0, &operations)? {
        equal(packet.headers.bth.migreq, true, "MigReq")?;
    }
    Ok(())
}

//= RC-ACK-05 RXE-110 type=test
fn ack_req(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 600)?;
    post(&conn, 2, WRITE, 8)?;
    post_read(&conn, 3, 8)?;
    let operations = [
        Operation::SendFirst,
        Operation::SendMiddle,
        Operation::SendLast,
        Operation::WriteOnly,
        Operation::ReadRequest,
    ];
    let packets = conn.expect_requests(0, &operations)?;
    for packet in &packets[2..4] {
        equal(
            packet.headers.bth.ack_req,
            true,
            "AckReq at the end of a message",
        )?;
    }
    Ok(())
}

//= RC-PSN-05 type=test
fn read_psns(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_read(&conn, 1, 600)?;
    post(&conn, 2, SEND, 8)?;
    conn.expect_read_request(0, reth(0, 600))?;
    conn.expect_request(Operation::SendOnly, 3)?;
    let data: Vec<u8> = pattern(700)[100..].to_vec();
    conn.read_response(Operation::ReadResponseFirst, 0, &data[..256], 1)?;
    conn.read_response(Operation::ReadResponseMiddle, 1, &data[256..512], 1)?;
    conn.read_response(Operation::ReadResponseLast, 2, &data[512..], 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(2048, &data)?;
    conn.ack(3, 2)?;
    conn.expect_completion(2, Status::Success)?;
    Ok(())
}

//= RC-WQE-01 type=test
fn in_order(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_read(&conn, 1, 8)?;
    post(&conn, 2, SEND, 8)?;
    post(&conn, 3, WRITE, 8)?;
    let operations = [
        Operation::ReadRequest,
        Operation::SendOnly,
        Operation::WriteOnly,
    ];
    conn.expect_requests(0, &operations)?;
    conn.read_response(Operation::ReadResponseOnly, 0, b"response", 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.ack(2, 3)?;
    conn.expect_completion(2, Status::Success)?;
    conn.expect_completion(3, Status::Success)?;
    Ok(())
}

//= RC-WQE-04 type=test
fn fence(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_read(&conn, 1, 8)?;
    conn.post_send(&Work {
        fence: true,
        ..Work::new(2, SEND, Buffer::new(2048, 8))
    })?;
    conn.expect_request(Operation::ReadRequest, 0)?;
    conn.expect_silence()?;
    conn.read_response(Operation::ReadResponseOnly, 0, b"response", 1)?;
    let packet = conn.expect_request(Operation::SendOnly, 1)?;
    equal(
        packet.payload,
        b"response".to_vec(),
        "what was read goes out again",
    )
}

//= RC-WQE-07 type=test
fn immediate(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let imm = Some([0x80, 0, 0xff, 0x01]);
    post(&conn, 1, WorkOp::Send { imm }, 300)?;
    let rkey = Rkey::new(RKEY);
    post(&conn, 2, WorkOp::Write { va: VA, rkey, imm }, 8)?;
    let operations = [
        Operation::SendFirst,
        Operation::SendLastImm,
        Operation::WriteOnlyImm,
    ];
    let packets = conn.expect_requests(0, &operations)?;
    for packet in &packets[1..] {
        equal(packet.headers.imm.map(|imm| imm.0), imm, "immediate data")?;
    }
    Ok(())
}

//= RC-WQE-08 BTH-02 type=test
fn solicited(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let with_imm = WorkOp::Write {
        va: VA,
        rkey: Rkey::new(RKEY),
        imm: Some([1; 4]),
    };
    for (id, op) in [(1, SEND), (2, WRITE), (3, with_imm)] {
        conn.post_send(&Work {
            solicited: true,
            ..Work::new(id, op, Buffer::new(0, 300))
        })?;
    }
    let operations = [
        Operation::SendFirst,
        Operation::SendLast,
        Operation::WriteFirst,
        Operation::WriteLast,
        Operation::WriteFirst,
        Operation::WriteLastImm,
    ];
    let packets = conn.expect_requests(0, &operations)?;
    let bits: Vec<bool> = packets
        .iter()
        .map(|packet| packet.headers.bth.solicited)
        .collect();
    equal(
        bits,
        vec![false, true, false, false, false, true],
        "solicited-event bits",
    )
}

//= RC-WQE-10 ETH-04 type=test
fn atomic_result(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let rkey = Rkey::new(RKEY);
    let swap = WorkOp::CmpSwap {
        va: VA,
        rkey,
        compare: 3,
        swap: 4,
    };
    let add = WorkOp::FetchAdd {
        va: VA,
        rkey,
        add: u64::MAX,
    };
    conn.post_send(&Work::new(1, swap, Buffer::new(2048, 8)))?;
    conn.post_send(&Work::new(2, add, Buffer::new(2056, 8)))?;
    let first = conn.expect_request(Operation::CmpSwap, 0)?.headers.atomic;
    let second = conn.expect_request(Operation::FetchAdd, 1)?.headers.atomic;
    let operands = |eth: Option<rocade_wire::AtomicEth>| {
        eth.map(|eth| (eth.va, eth.rkey, eth.swap_add, eth.compare))
    };
    equal(operands(first), Some((VA, rkey, 4, 3)), "CmpSwap")?;
    equal(operands(second), Some((VA, rkey, u64::MAX, 0)), "FetchAdd")?;
    for (index, original) in [(0, 0x0102_0304_0506_0708), (1, 9)] {
        let answer = conn.answer(Operation::AtomicAcknowledge, index);
        let msn = Msn::new(index.unsigned_abs() + 1);
        conn.send(&answer.aeth(POSITIVE, msn).atomic_ack(original))?;
        conn.expect_completion(u64::from(index.unsigned_abs()) + 1, Status::Success)?;
    }
    conn.expect_memory(2048, &0x0102_0304_0506_0708u64.to_ne_bytes())?;
    conn.expect_memory(2056, &9u64.to_ne_bytes())
}

//= RC-LIM-01 type=test
fn read_limit(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            max_rd_atomic: 2,
            ..QpSpec::default()
        },
    )?;
    for id in 0..3 {
        post_read(&conn, id, 8)?;
    }
    post(&conn, 3, SEND, 8)?;
    conn.expect_requests(0, &[Operation::ReadRequest; 2])?;
    conn.expect_silence()?;
    conn.read_response(Operation::ReadResponseOnly, 0, b"response", 1)?;
    conn.expect_request(Operation::ReadRequest, 2)?;
    conn.expect_request(Operation::SendOnly, 3)?;
    Ok(())
}

//= RC-ACK-08 type=test
fn ack_within(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 600)?;
    let operations = [
        Operation::SendFirst,
        Operation::SendMiddle,
        Operation::SendLast,
    ];
    conn.expect_requests(0, &operations)?;
    conn.ack(1, 0)?;
    conn.expect_no_completion()?;
    conn.ack(2, 1)?;
    conn.expect_completion(1, Status::Success)?;
    Ok(())
}

//= RC-REQ-01 type=test
fn future(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    for index in [1, 100, (1 << 23) - 1] {
        conn.ack(index, 1)?;
        conn.nak(index, NakCode::InvalidRequest, 0)?;
    }
    conn.expect_no_completion()?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    Ok(())
}

//= RC-REQ-02 RC-REQ-19 type=test
fn ghost(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    post(&conn, 2, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 1)?;
    for index in [0, -1, -(1 << 22)] {
        conn.ack(index, 1)?;
        conn.nak(index, NakCode::PsnSequence, 1)?;
        conn.nak(index, NakCode::RemoteAccess, 1)?;
    }
    conn.expect_no_completion()?;
    conn.expect_silence()?;
    conn.ack(1, 2)?;
    conn.expect_completion(2, Status::Success)?;
    Ok(())
}

//= RC-REQ-03 type=test
fn coalesced(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    for id in 0..5 {
        post(&conn, id, if id % 2 == 0 { SEND } else { WRITE }, 8)?;
    }
    for _ in 0..5 {
        conn.receive()?;
    }
    conn.ack(3, 4)?;
    for id in 0..4 {
        conn.expect_completion(id, Status::Success)?;
    }
    conn.expect_no_completion()?;
    conn.ack(4, 5)?;
    conn.expect_completion(4, Status::Success)?;
    Ok(())
}

//= RC-REQ-03 type=test
fn msn_ignored(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    post(&conn, 2, SEND, 8)?;
    conn.expect_requests(0, &[Operation::SendOnly; 2])?;
    // The MSN counts both requests, and the PSN acknowledges one.
    conn.ack(0, 2)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_no_completion()?;
    conn.ack(1, 0)?;
    conn.expect_completion(2, Status::Success)?;
    Ok(())
}

//= RC-ACK-03 type=test
fn read_acknowledges(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    post_read(&conn, 2, 8)?;
    conn.expect_requests(0, &[Operation::SendOnly, Operation::ReadRequest])?;
    conn.read_response(Operation::ReadResponseOnly, 1, b"response", 2)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_completion(2, Status::Success)?;
    conn.expect_memory(2048, b"response")
}

//= RC-REQ-15 AETH-03 AETH-09 type=test
//= AETH-10 type=test
fn reserved_syndromes(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    for code in [0x40, 0x5f, 0x65, 0x7f, 0x80, 0xa0, 0xc0, 0xff] {
        let syndrome = Syndrome::from_code(code);
        let answer = conn.answer(Operation::Acknowledge, 0);
        conn.send(&answer.edit(|h| {
            h.aeth = Some(Aeth {
                syndrome,
                msn: Msn::new(1),
            })
        }))?;
    }
    conn.expect_no_completion()?;
    conn.expect_silence()?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    Ok(())
}
