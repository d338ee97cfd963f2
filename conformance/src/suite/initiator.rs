//! The peer as XRC initiator. Its requests are those of RC with other opcodes, and name the rig's
//! shared receive queue.

use rocade_wire::{Msn, NakCode, Operation, Reth, Rkey, Service};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, QpSpec,
    bench::POSITIVE,
    case::equal,
    peer::{Buffer, RIG_SRQN, State, Status, Work, WorkOp, rnr_timer},
    rig::Received,
};

pub(super) const CASES: &[Case] = &[
    Case::requester("XRC-03", "every-packet-of-a-send-names-the-queue", send),
    Case::requester("XRC-03", "every-packet-of-a-write-names-the-queue", write),
    Case::requester("XRC-05", "write-with-immediate", write_imm),
    Case::requester("XRC-02", "read", read),
    Case::requester("XRC-02", "atomic", atomic),
    Case::requester("XRC-06", "the-queue-is-refused", refused),
    Case::requester("XRC-07", "the-queue-is-empty", not_ready),
    Case::requester("XRC-02", "goes-back-after-a-gap", gap),
    Case::requester("BTH-15", "rc-answer-to-an-xrc-request", other_service),
    Case::requester("XRC-12", "an-initiator-receives-nothing", receives_nothing),
];

const VA: u64 = 0x0123_4567_89ab_cd00;
const RKEY: Rkey = Rkey::new(0x00fe_d123);

fn spec() -> QpSpec {
    QpSpec {
        service: Service::Xrc,
        ..QpSpec::default()
    }
}

/// Expects this request, which names the rig's shared receive queue.
fn expect(conn: &Conn<'_>, operation: Operation, index: i32) -> CaseResult<Received> {
    let packet = conn.expect_request(operation, index)?;
    let named = packet.headers.xrceth.map(|eth| (eth.srqn, eth.resv));
    equal(named, Some((RIG_SRQN, 0)), "XRCETH")?;
    Ok(packet)
}

fn post(conn: &Conn<'_>, id: u64, op: WorkOp, len: u32) -> CaseResult {
    conn.qp().write_memory(0, 0, &pattern(len as usize));
    conn.post_send(&Work::new(id, op, Buffer::new(0, len)))
}

//= XRC-03 XRC-13 type=test
fn send(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    post(&conn, 1, WorkOp::Send { imm: None }, 600)?;
    let mut data = Vec::new();
    let parts = [
        Operation::SendFirst,
        Operation::SendMiddle,
        Operation::SendLast,
    ];
    for (index, operation) in (0..).zip(parts) {
        data.extend(expect(&conn, operation, index)?.payload);
    }
    equal(data, pattern(600), "data")?;
    conn.expect_no_completion()?;
    conn.ack(2, 1)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= XRC-03 XRC-13 type=test
fn write(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    let op = WorkOp::Write {
        va: VA,
        rkey: RKEY,
        imm: None,
    };
    post(&conn, 2, op, 300)?;
    let reth = Reth {
        va: VA,
        rkey: RKEY,
        dma_len: 300,
    };
    let first = expect(&conn, Operation::WriteFirst, 0)?;
    equal(first.headers.reth, Some(reth), "RETH")?;
    let last = expect(&conn, Operation::WriteLast, 1)?;
    equal([first.payload, last.payload].concat(), pattern(300), "data")?;
    conn.ack(1, 1)?;
    conn.expect_completion(2, Status::Success).map(drop)
}

//= XRC-05 type=test
fn write_imm(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    let op = WorkOp::Write {
        va: VA,
        rkey: RKEY,
        imm: Some([1, 2, 3, 4]),
    };
    post(&conn, 3, op, 8)?;
    let packet = expect(&conn, Operation::WriteOnlyImm, 0)?;
    equal(
        packet.headers.imm.map(|imm| imm.0),
        Some([1, 2, 3, 4]),
        "immediate data",
    )?;
    conn.ack(0, 1)?;
    conn.expect_completion(3, Status::Success).map(drop)
}

//= XRC-02 type=test
fn read(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    let op = WorkOp::Read { va: VA, rkey: RKEY };
    conn.post_send(&Work::new(4, op, Buffer::new(0, 300)))?;
    expect(&conn, Operation::ReadRequest, 0)?;
    let data = pattern(300);
    conn.read_response(Operation::ReadResponseFirst, 0, &data[..256], 1)?;
    conn.read_response(Operation::ReadResponseLast, 1, &data[256..], 1)?;
    conn.expect_completion(4, Status::Success)?;
    conn.expect_memory(0, &data)
}

//= XRC-02 type=test
fn atomic(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    let op = WorkOp::FetchAdd {
        va: VA,
        rkey: RKEY,
        add: 5,
    };
    conn.post_send(&Work::new(5, op, Buffer::new(8, 8)))?;
    let packet = expect(&conn, Operation::FetchAdd, 0)?;
    equal(
        packet.headers.atomic.map(|eth| eth.swap_add),
        Some(5),
        "addend",
    )?;
    let answer = conn.answer(Operation::AtomicAcknowledge, 0);
    conn.send(
        &answer
            .aeth(POSITIVE, Msn::new(1))
            .atomic_ack(0x1234_5678_9abc_def0),
    )?;
    conn.expect_completion(5, Status::Success)?;
    conn.expect_memory(8, &0x1234_5678_9abc_def0_u64.to_ne_bytes())
}

//= XRC-06 type=test
fn refused(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    for id in 1..=2 {
        post(&conn, id, WorkOp::Send { imm: None }, 8)?;
    }
    expect(&conn, Operation::SendOnly, 0)?;
    conn.nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_completion(1, Status::RemAccessErr)?;
    conn.expect_completion(2, Status::WrFlushErr)?;
    conn.expect_state(State::Err)
}

//= XRC-07 type=test
fn not_ready(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    post(&conn, 1, WorkOp::Send { imm: None }, 8)?;
    expect(&conn, Operation::SendOnly, 0)?;
    conn.rnr_nak(0, rnr_timer(1), 0)?;
    let again = expect(&conn, Operation::SendOnly, 0)?;
    equal(again.payload, pattern(8), "data")?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= XRC-02 type=test
fn gap(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    post(&conn, 1, WorkOp::Send { imm: None }, 600)?;
    let parts = [
        Operation::SendFirst,
        Operation::SendMiddle,
        Operation::SendLast,
    ];
    for (index, operation) in (0..).zip(parts) {
        expect(&conn, operation, index)?;
    }
    conn.nak(1, NakCode::PsnSequence, 0)?;
    expect(&conn, Operation::SendMiddle, 1)?;
    expect(&conn, Operation::SendLast, 2)?;
    conn.ack(2, 1)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= BTH-15 type=test
fn other_service(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    post(&conn, 1, WorkOp::Send { imm: None }, 8)?;
    expect(&conn, Operation::SendOnly, 0)?;
    let of_rc = conn.answer(Operation::Acknowledge, 0).edit(|headers| {
        headers.bth.opcode = rocade_wire::Opcode::new(0x11);
    });
    conn.send(&of_rc.aeth(POSITIVE, Msn::new(1)))?;
    conn.expect_no_completion()?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

/// An initiator ignores requests.
//= XRC-12 type=test
fn receives_nothing(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    conn.write_only(0, 0, &[1; 8])?;
    conn.send_only(0, &[1; 8])?;
    conn.send(&conn.read(0, 0, 8))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 8])?;
    // The initiator continues to work.
    post(&conn, 1, WorkOp::Send { imm: None }, 8)?;
    expect(&conn, Operation::SendOnly, 0)?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success).map(drop)
}
