//! Duplicates of SEND and WRITE packets: answered, never executed.

use rocade_wire::{Operation, Rkey};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, QpSpec,
    case::{equal, fail},
    peer::{Buffer, Status},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("RC-DUP-01", "send-is-not-received-twice", send_once),
    Case::responder("RC-DUP-01", "write-is-not-executed-twice", write_once),
    Case::responder(
        "RC-DUP-01",
        "write-with-immediate-takes-one-receive",
        write_imm_once,
    ),
    Case::responder("RC-DUP-01", "answer-names-the-newest-packet", newest),
    Case::responder("RC-DUP-01", "within-a-message", within_message),
    Case::responder("RC-DUP-01", "nothing-else-is-checked", unchecked),
    Case::responder("RC-DUP-01", "before-the-first-packet", before_first).should(),
    Case::responder("RC-DUP-02", "answer-does-not-split-a-read", not_inside_read),
    Case::responder("RC-DUP-08", "gap-stays-known", gap_stays_known).should(),
];

//= RC-DUP-01 type=test
fn send_once(bench: &Bench<'_>) -> CaseResult {
    let receives = vec![Buffer::new(1024, 8), Buffer::new(1032, 8)];
    let conn = bench.connect(QpSpec {
        receives,
        ..QpSpec::default()
    })?;
    conn.send_only(0, b"message1")?;
    conn.expect_ack(0, 1)?;
    conn.send_only(0, b"message1")?;
    conn.expect_ack(0, 1)?;
    conn.send_only(1, b"message2")?;
    conn.expect_ack(1, 2)?;
    conn.expect_completion(0, Status::Success)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_no_completion()?;
    conn.expect_memory(1024, b"message1message2")
}

//= RC-DUP-01 type=test
fn write_once(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.write_only(0, 0, b"first...")?;
    conn.expect_ack(0, 1)?;
    conn.write_only(1, 0, b"second..")?;
    conn.expect_ack(1, 2)?;
    conn.write_only(0, 0, b"first...")?;
    conn.expect_ack(1, 2)?;
    conn.expect_memory(0, b"second..")
}

//= RC-DUP-01 type=test
fn write_imm_once(bench: &Bench<'_>) -> CaseResult {
    let receives = vec![Buffer::new(1024, 8), Buffer::new(1032, 8)];
    let conn = bench.connect(QpSpec {
        receives,
        ..QpSpec::default()
    })?;
    let region = conn.region();
    let packet = conn.request(Operation::WriteOnlyImm, 0).imm(*b"1234");
    let packet = packet
        .reth(region.va, region.rkey, 8)
        .payload(b"new data")
        .ack_req();
    for _ in 0..2 {
        conn.send(&packet)?;
        conn.expect_ack(0, 1)?;
    }
    conn.expect_completion(0, Status::Success)?;
    conn.expect_no_completion()
}

//= RC-DUP-01 type=test
fn newest(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    for index in 0..4 {
        conn.probe(index, index.unsigned_abs() + 1)?;
    }
    for duplicate in [0, 3, 1] {
        conn.write_only(duplicate, 0, &[])?;
        conn.expect_ack(3, 4)?;
    }
    conn.probe(4, 5)
}

//= RC-DUP-01 type=test
fn within_message(bench: &Bench<'_>) -> CaseResult {
    let receives = vec![Buffer::new(1024, 1024)];
    let conn = bench.connect(QpSpec {
        receives,
        ..QpSpec::default()
    })?;
    let data = pattern(600);
    let first = conn
        .request(Operation::SendFirst, 0)
        .payload(&data[..256])
        .ack_req();
    let middle = conn
        .request(Operation::SendMiddle, 1)
        .payload(&data[256..512])
        .ack_req();
    let last = conn
        .request(Operation::SendLast, 2)
        .payload(&data[512..])
        .ack_req();
    for (packet, answer) in [(&first, 0), (&middle, 1), (&first, 1), (&middle, 1)] {
        conn.send(packet)?;
        conn.expect_ack(answer, 0)?;
    }
    for packet in [&last, &last, &first] {
        conn.send(packet)?;
        conn.expect_ack(2, 1)?;
    }
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.byte_len, 600, "byte_len")?;
    conn.expect_memory(1024, &data)
}

//= RC-DUP-01 type=test
fn unchecked(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.probe(0, 1)?;
    // A Middle without a First, with an invalid key.
    conn.send(
        &conn
            .request(Operation::WriteMiddle, 0)
            .payload(&pattern(256))
            .ack_req(),
    )?;
    conn.expect_ack(0, 1)?;
    let packet = conn
        .request(Operation::WriteOnly, 0)
        .payload(b"new data")
        .ack_req();
    conn.send(&packet.reth(0, Rkey::new(0), 8))?;
    conn.expect_ack(0, 1)?;
    conn.probe(1, 2)
}

//= RC-DUP-01 type=test
fn before_first(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.write_only(-3, 0, b"too late")?;
    conn.expect_ack(-1, 0)?;
    conn.probe(0, 1)?;
    conn.expect_memory(0, &[0; 8])
}

//= RC-DUP-02 type=test
fn not_inside_read(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.probe(0, 1)?;
    conn.send(&conn.read(1, 0, 1024))?;
    conn.expect_read_response(1, &[0; 1024], 2)?;
    conn.write_only(0, 0, &[])?;
    // The READ occupies packets 1 to 4. An acknowledgement of some of them would be an implied NAK.
    let answer = conn.receive()?.headers;
    if answer.bth.psn != conn.psn(0) && answer.bth.psn != conn.psn(4) {
        return fail(format!("answered with {answer}"));
    }
    conn.probe(5, 3)
}

//= RC-DUP-08 type=test
fn gap_stays_known(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.probe(0, 1)?;
    conn.write_only(2, 0, b"too soon")?;
    conn.expect_nak(1, rocade_wire::NakCode::PsnSequence, 1)?;
    conn.write_only(0, 0, &[])?;
    conn.expect_ack(0, 1)?;
    conn.write_only(3, 0, b"too soon")?;
    conn.expect_silence()
}
