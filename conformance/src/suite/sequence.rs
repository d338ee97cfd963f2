//! Packet sequence numbers, gaps, and the order of First, Middle and Last.

use rocade_wire::{NakCode, Operation};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    peer::{Buffer, State, Status},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("RC-PSN-04", "first-request-has-rq-psn", |b| {
        b.connect(QpSpec::default())?.probe(0, 1)
    }),
    Case::responder("RC-PSN-02", "next-but-one-is-a-gap", |b| gap(b, 1)),
    Case::responder("RC-PSN-02", "furthest-ahead-is-a-gap", |b| gap(b, HALF - 1)),
    Case::responder("RC-PSN-02", "oldest-duplicate", oldest_duplicate),
    Case::responder("RC-RSP-20", "one-nak-per-gap", one_nak),
    Case::responder("RC-RSP-20", "next-gap-has-its-own-nak", next_gap),
    Case::responder(
        "RC-RSP-20",
        "duplicates-are-answered-meanwhile",
        duplicates_meanwhile,
    ),
    Case::responder("RC-RSP-21", "no-sequence-nak-after-rnr-nak", gap_after_rnr),
    Case::responder("RC-RSP-23", "nak-does-not-advance", nak_does_not_advance),
    Case::responder(
        "RC-SEQ-01",
        "message-starts-with-first-or-only",
        not_a_start,
    ),
    Case::responder("RC-SEQ-02", "send-goes-on-with-send", within_send),
    Case::responder("RC-SEQ-03", "write-goes-on-with-write", within_write),
];

/// Half of the PSN space.
const HALF: i32 = 1 << 23;

fn gap(bench: &Bench<'_>, index: i32) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.write_only(index, 0, b"too soon")?;
    conn.expect_nak(0, NakCode::PsnSequence, 0)?;
    conn.probe(0, 1)?;
    conn.expect_memory(0, &[0; 8])
}

fn oldest_duplicate(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.write_only(0, 0, b"original")?;
    conn.expect_ack(0, 1)?;
    conn.write_only(1 - HALF, 0, b"too late")?;
    conn.expect_ack(0, 1)?;
    conn.probe(1, 2)?;
    conn.expect_memory(0, b"original")
}

//= RC-RSP-20 type=test
fn one_nak(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    for index in 1..4 {
        conn.write_only(index, 0, b"too soon")?;
    }
    conn.expect_nak(0, NakCode::PsnSequence, 0)?;
    conn.expect_silence()?;
    for index in 0..4 {
        conn.probe(index, index.unsigned_abs() + 1)?;
    }
    conn.expect_memory(0, &[0; 8])
}

//= RC-RSP-20 type=test
fn next_gap(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.write_only(1, 0, b"too soon")?;
    conn.expect_nak(0, NakCode::PsnSequence, 0)?;
    conn.probe(0, 1)?;
    conn.write_only(2, 0, b"too soon")?;
    conn.expect_nak(1, NakCode::PsnSequence, 1)?;
    conn.probe(1, 2)
}

//= RC-RSP-20 RC-DUP-08 type=test
fn duplicates_meanwhile(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.probe(0, 1)?;
    conn.write_only(2, 0, b"too soon")?;
    conn.expect_nak(1, NakCode::PsnSequence, 1)?;
    conn.write_only(0, 0, &[])?;
    conn.expect_ack(0, 1)
}

//= RC-RSP-21 type=test
fn gap_after_rnr(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send_only(0, b"nobody waits")?;
    conn.expect_rnr_nak(0, 0)?;
    conn.write_only(1, 0, b"too soon")?;
    conn.expect_silence()
}

//= RC-RSP-23 type=test
fn nak_does_not_advance(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.write_only(1, 0, b"too soon")?;
    conn.expect_nak(0, NakCode::PsnSequence, 0)?;
    conn.probe(0, 1)?;
    conn.write_only(1, 0, b"in order")?;
    conn.expect_ack(1, 2)?;
    conn.expect_memory(0, b"in order")
}

/// Returns a packet of any request operation, with the headers that it requires.
fn any_request(conn: &Conn<'_>, operation: Operation, index: i32) -> PacketBuilder {
    let region = conn.region();
    let full = operation.is_first() || operation.is_middle();
    let len: u32 = if full { 256 } else { 8 };
    let dma_len = if operation.is_first() { 1024 } else { len };
    let mut packet = conn.request(operation, index).ack_req();
    if operation.is_send() || operation.is_write() {
        packet = packet.payload(&pattern(if full { conn.pmtu() } else { 8 }));
    }
    if operation == Operation::ReadRequest
        || (operation.is_write() && (operation.is_first() || operation.is_only()))
    {
        packet = packet.reth(region.va, region.rkey, dma_len);
    }
    if matches!(operation, Operation::CmpSwap | Operation::FetchAdd) {
        packet = packet.atomic(region.va, region.rkey, 1, 0);
    }
    if operation.has_imm() {
        packet = packet.imm(*b"imm!");
    }
    packet
}

/// Returns room for two receives, outside of the memory that the rig writes.
fn with_receives() -> QpSpec {
    QpSpec {
        receives: vec![Buffer::new(2048, 1024), Buffer::new(3072, 1024)],
        ..QpSpec::default()
    }
}

//= RC-SEQ-01 type=test
fn not_a_start(bench: &Bench<'_>) -> CaseResult {
    for operation in [
        Operation::SendMiddle,
        Operation::SendLast,
        Operation::SendLastImm,
        Operation::WriteMiddle,
        Operation::WriteLast,
        Operation::WriteLastImm,
    ] {
        let conn = bench.connect(with_receives())?;
        conn.send(&any_request(&conn, operation, 0))?;
        conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
        conn.expect_state(State::Err)?;
    }
    Ok(())
}

const STARTS: [Operation; 8] = [
    Operation::SendFirst,
    Operation::SendOnly,
    Operation::SendOnlyImm,
    Operation::WriteFirst,
    Operation::WriteOnly,
    Operation::WriteOnlyImm,
    Operation::ReadRequest,
    Operation::FetchAdd,
];

//= RC-SEQ-02 RC-ERR-C type=test
fn within_send(bench: &Bench<'_>) -> CaseResult {
    let others = [
        Operation::WriteMiddle,
        Operation::WriteLast,
        Operation::WriteLastImm,
    ];
    for operation in STARTS.into_iter().chain(others) {
        let conn = bench.connect(with_receives())?;
        conn.send(&any_request(&conn, Operation::SendFirst, 0))?;
        conn.expect_ack(0, 0)?;
        conn.send(&any_request(&conn, operation, 1))?;
        conn.expect_nak(1, NakCode::InvalidRequest, 0)?;
        // The receive of the message reports the error.
        conn.expect_completion(0, Status::RemInvReqErr)?;
        conn.expect_state(State::Err)?;
    }
    Ok(())
}

//= RC-SEQ-03 type=test
fn within_write(bench: &Bench<'_>) -> CaseResult {
    let others = [
        Operation::SendMiddle,
        Operation::SendLast,
        Operation::SendLastImm,
    ];
    for operation in STARTS.into_iter().chain(others) {
        let conn = bench.connect(with_receives())?;
        conn.send(&any_request(&conn, Operation::WriteFirst, 0))?;
        conn.expect_ack(0, 0)?;
        conn.send(&any_request(&conn, operation, 1))?;
        conn.expect_nak(1, NakCode::InvalidRequest, 0)?;
        conn.expect_state(State::Err)?;
    }
    Ok(())
}
