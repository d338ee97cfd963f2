//! Acknowledgements and message sequence numbers.

use rocade_wire::{NakCode, Operation};

use super::pattern;
use crate::{Bench, Case, CaseResult, QpSpec, case::fail, peer::Buffer};

pub(super) const CASES: &[Case] = &[
    Case::responder("RC-ACK-01", "asked-for-in-the-middle", middle),
    Case::responder("RC-ACK-02", "one-for-many", one_for_many),
    Case::responder(
        "RC-ACK-03",
        "read-response-covers-earlier-writes",
        covered_by_read,
    ),
    Case::responder("RC-RSP-24", "every-kind-of-message-counts", every_kind),
    Case::responder(
        "RC-RSP-24",
        "packets-within-a-message-do-not-count",
        within_message,
    ),
    Case::responder("RC-RSP-24", "duplicates-do-not-count", duplicates),
    Case::responder("RC-RSP-24", "nak-has-msn-without-the-failing-request", nak),
    Case::responder("RC-RSP-25", "read-sees-earlier-write", read_after_write),
    Case::responder(
        "RC-RSP-25",
        "later-write-does-not-pass-a-read",
        write_after_read,
    ),
];

//= RC-ACK-01 RC-ACK-08 type=test
fn middle(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let region = conn.region();
    let first = conn
        .request(Operation::WriteFirst, 0)
        .reth(region.va, region.rkey, 520);
    conn.send(&first.payload(&pattern(256)))?;
    conn.send(
        &conn
            .request(Operation::WriteMiddle, 1)
            .payload(&pattern(256))
            .ack_req(),
    )?;
    conn.expect_ack_up_to(1, 0)?;
    conn.send(
        &conn
            .request(Operation::WriteLast, 2)
            .payload(&pattern(8))
            .ack_req(),
    )?;
    conn.expect_ack(2, 1)
}

//= RC-ACK-02 type=test
fn one_for_many(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    for index in 0..9 {
        conn.send(
            &conn
                .write(index, 8, b"repeated")
                .edit(|h| h.bth.ack_req = false),
        )?;
    }
    conn.write_only(9, 8, b"repeated")?;
    conn.expect_ack_up_to(9, 10)?;
    conn.expect_silence()
}

//= RC-ACK-03 type=test
fn covered_by_read(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(
        &conn
            .write(0, 0, b"new data")
            .edit(|h| h.bth.ack_req = false),
    )?;
    conn.send(&conn.read(1, 0, 8))?;
    conn.expect_read_response(1, b"new data", 2)
}

//= RC-RSP-24 type=test
fn every_kind(bench: &Bench<'_>) -> CaseResult {
    let receives = vec![Buffer::new(2048, 8), Buffer::new(2056, 8)];
    let conn = bench.connect(QpSpec {
        receives,
        ..QpSpec::default()
    })?;
    let region = conn.region();
    conn.send_only(0, b"message1")?;
    conn.expect_ack(0, 1)?;
    conn.write_only(1, 0, &7u64.to_ne_bytes())?;
    conn.expect_ack(1, 2)?;
    conn.send(&conn.read(2, 0, 8))?;
    conn.expect_read_response(2, &7u64.to_ne_bytes(), 3)?;
    conn.send(&conn.atomic(3, 0, 1, None))?;
    conn.expect_atomic_ack(3, 7, 4)?;
    conn.send(&conn.atomic(4, 0, 9, Some(8)))?;
    conn.expect_atomic_ack(4, 8, 5)?;
    let packet = conn
        .request(Operation::WriteOnlyImm, 5)
        .reth(region.va, region.rkey, 0);
    conn.send(&packet.imm(*b"1234").ack_req())?;
    conn.expect_ack(5, 6)
}

//= RC-RSP-24 type=test
fn within_message(bench: &Bench<'_>) -> CaseResult {
    let receives = vec![Buffer::new(2048, 1024)];
    let conn = bench.connect(QpSpec {
        receives,
        ..QpSpec::default()
    })?;
    conn.send(
        &conn
            .request(Operation::SendFirst, 0)
            .payload(&pattern(256))
            .ack_req(),
    )?;
    conn.expect_ack(0, 0)?;
    conn.send(
        &conn
            .request(Operation::SendMiddle, 1)
            .payload(&pattern(256))
            .ack_req(),
    )?;
    conn.expect_ack(1, 0)?;
    conn.send(
        &conn
            .request(Operation::SendLast, 2)
            .payload(&pattern(3))
            .ack_req(),
    )?;
    conn.expect_ack(2, 1)
}

//= RC-RSP-24 type=test
fn duplicates(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.probe(0, 1)?;
    conn.probe(0, 1)?;
    conn.send(&conn.atomic(1, 0, 1, None))?;
    conn.expect_atomic_ack(1, 0, 2)?;
    conn.send(&conn.atomic(1, 0, 1, None))?;
    conn.expect_atomic_ack(1, 0, 2)?;
    conn.send(&conn.read(2, 0, 8))?;
    conn.expect_read_response(2, &1u64.to_ne_bytes(), 3)?;
    conn.send(&conn.read(2, 0, 8))?;
    conn.expect_read_response(2, &1u64.to_ne_bytes(), 3)?;
    conn.probe(3, 4)
}

//= RC-RSP-24 type=test
fn nak(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.probe(0, 1)?;
    conn.send_only(1, b"nobody waits")?;
    conn.expect_rnr_nak(1, 1)?;
    let region = conn.region();
    let packet = conn
        .request(Operation::WriteOnly, 1)
        .payload(b"new data")
        .ack_req();
    conn.send(&packet.reth(region.va + 4096, region.rkey, 8))?;
    conn.expect_nak(1, NakCode::RemoteAccess, 1)
}

//= RC-RSP-25 type=test
fn read_after_write(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let data = pattern(200);
    let later = [0xee; 200];
    conn.send(&conn.write(0, 0, &data).edit(|h| h.bth.ack_req = false))?;
    conn.send(&conn.read(1, 0, 200))?;
    conn.send(&conn.write(2, 0, &later))?;
    // The device may execute the later WRITE early only if the READ's data do not show it.
    let packet = conn.receive()?;
    if packet.payload != data && packet.payload != later {
        return fail("the READ saw neither the earlier nor the later WRITE");
    }
    Ok(())
}

//= RC-RSP-25 type=test
fn write_after_read(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.qp().write_memory(0, 0, &pattern(1024));
    conn.send(&conn.read(0, 0, 1024))?;
    conn.write_only(4, 2048, b"new data")?;
    // Four packets of the READ, then the acknowledgement of the WRITE.
    conn.expect_read_response(0, &pattern(1024), 1)?;
    conn.expect_ack(4, 2)
}
