//! SEND and WRITE: segmentation, lengths, immediate data, receives.

use rocade_wire::{Operation, Rkey};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, QpSpec,
    case::equal,
    peer::{Buffer, Event, State, Status, rnr_timer},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("RC-SEG-01", "send-of-three-packets", |b| {
        send_message(b, 600)
    }),
    Case::responder("RC-SEG-01", "send-of-full-packets", |b| {
        send_message(b, 512)
    }),
    Case::responder("RC-SEG-01", "write-of-three-packets", |b| {
        write_message(b, 600)
    }),
    Case::responder("RC-SEG-01", "write-of-full-packets", |b| {
        write_message(b, 512)
    }),
    Case::responder("RC-SEG-02", "empty-send", empty_send),
    Case::responder("RC-SEG-02", "empty-write-has-no-key-check", empty_write),
    Case::responder("RC-SEG-02", "empty-read-has-no-key-check", empty_read),
    Case::responder(
        "RC-SEG-02",
        "empty-write-with-immediate-takes-a-receive",
        empty_write_imm,
    ),
    Case::responder("RC-RSP-06", "send-without-a-receive", rnr_send),
    Case::responder(
        "RC-RSP-06",
        "write-with-immediate-without-a-receive",
        rnr_write_only,
    ),
    Case::responder(
        "RC-RSP-06",
        "write-waits-at-its-last-packet",
        rnr_write_last,
    ),
    Case::responder("RC-TMR-04", "rnr-nak-carries-min-rnr-timer", rnr_timer_code),
    Case::responder("RC-WQE-07", "immediate-data-is-verbatim", immediate),
    Case::responder(
        "RC-WQE-07",
        "write-with-immediate-spares-the-buffer",
        write_immediate,
    ),
    Case::responder("RC-WQE-01", "receives-complete-in-order", receives_in_order),
    Case::responder("RC-STA-07", "first-request-in-rtr", comm_est),
];

const BUFFER: Buffer = Buffer::new(2048, 1024);

fn with_receive() -> QpSpec {
    QpSpec {
        receives: vec![BUFFER],
        ..QpSpec::default()
    }
}

/// Sends a message in packets of one path MTU. Only the last packet has AckReq.
fn send_in_packets(conn: &Conn<'_>, write: bool, data: &[u8]) -> CaseResult {
    let region = conn.region();
    let parts: Vec<_> = data.chunks(conn.pmtu()).collect();
    for (index, part) in (0..).zip(&parts) {
        let last = usize::try_from(index + 1) == Ok(parts.len());
        let operation = match (write, index == 0, last) {
            (false, true, _) => Operation::SendFirst,
            (false, false, false) => Operation::SendMiddle,
            (false, false, true) => Operation::SendLast,
            (true, true, _) => Operation::WriteFirst,
            (true, false, false) => Operation::WriteMiddle,
            (true, false, true) => Operation::WriteLast,
        };
        let mut packet = conn.request(operation, index).payload(part);
        if operation == Operation::WriteFirst {
            let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
            packet = packet.reth(region.va + 16, region.rkey, len);
        }
        conn.send(&if last { packet.ack_req() } else { packet })?;
    }
    let last = i32::try_from(parts.len()).unwrap_or(i32::MAX) - 1;
    conn.expect_ack_up_to(last, 1)
}

//= RC-SEG-01 type=test
fn send_message(bench: &Bench<'_>, len: u16) -> CaseResult {
    let conn = bench.connect(with_receive())?;
    let data = pattern(len.into());
    send_in_packets(&conn, false, &data)?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.byte_len, len.into(), "byte_len")?;
    conn.expect_memory(BUFFER.offset, &data)
}

//= RC-SEG-01 type=test
fn write_message(bench: &Bench<'_>, len: u16) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let data = pattern(len.into());
    send_in_packets(&conn, true, &data)?;
    conn.expect_memory(16, &data)?;
    conn.expect_memory(0, &[0; 16])?;
    conn.expect_memory(16 + data.len(), &[0; 16])?;
    conn.expect_no_completion()
}

//= RC-SEG-02 type=test
fn empty_send(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(with_receive())?;
    conn.send_only(0, &[])?;
    conn.expect_ack(0, 1)?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.byte_len, 0, "byte_len")
}

/// Returns a key that no region has.
fn wrong_key(conn: &Conn<'_>) -> Rkey {
    Rkey::new(conn.region().rkey.get() ^ 0x00ff_0001)
}

//= RC-SEG-02 type=test
fn empty_write(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let packet = conn.request(Operation::WriteOnly, 0).ack_req();
    conn.send(&packet.reth(3, wrong_key(&conn), 0))?;
    conn.expect_ack(0, 1)
}

//= RC-SEG-02 type=test
fn empty_read(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let packet = conn.request(Operation::ReadRequest, 0).ack_req();
    conn.send(&packet.reth(3, wrong_key(&conn), 0))?;
    conn.expect_read_response(0, &[], 1)?;
    conn.probe(1, 2)
}

//= RC-SEG-02 type=test
fn empty_write_imm(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(with_receive())?;
    let packet = conn
        .request(Operation::WriteOnlyImm, 0)
        .imm(*b"1234")
        .ack_req();
    conn.send(&packet.reth(3, wrong_key(&conn), 0))?;
    conn.expect_ack(0, 1)?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(
        (completion.byte_len, completion.imm),
        (0, Some(*b"1234")),
        "byte_len, immediate",
    )
}

//= RC-RSP-06 RC-RSP-22 type=test
fn rnr_send(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send_only(0, b"is anybody there")?;
    conn.expect_rnr_nak(0, 0)?;
    conn.expect_no_event()?;
    equal(conn.qp().state(), State::Rts, "state after an RNR NAK")?;
    conn.post_recv(5, BUFFER)?;
    conn.send_only(0, b"is anybody there")?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(5, Status::Success)?;
    conn.expect_memory(BUFFER.offset, b"is anybody there")
}

//= RC-RSP-06 type=test
fn rnr_write_only(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let region = conn.region();
    let packet = conn
        .request(Operation::WriteOnlyImm, 0)
        .reth(region.va, region.rkey, 8)
        .imm(*b"1234")
        .payload(b"new data")
        .ack_req();
    conn.send(&packet)?;
    conn.expect_rnr_nak(0, 0)?;
    conn.expect_memory(0, &[0; 8])?;
    conn.post_recv(5, BUFFER)?;
    conn.send(&packet)?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(5, Status::Success)?;
    conn.expect_memory(0, b"new data")
}

//= RC-RSP-06 type=test
fn rnr_write_last(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let region = conn.region();
    let data = pattern(264);
    let first = conn
        .request(Operation::WriteFirst, 0)
        .reth(region.va, region.rkey, 264)
        .payload(&data[..256])
        .ack_req();
    let last = conn
        .request(Operation::WriteLastImm, 1)
        .imm(*b"1234")
        .payload(&data[256..])
        .ack_req();
    conn.send(&first)?;
    conn.expect_ack(0, 0)?;
    conn.send(&last)?;
    conn.expect_rnr_nak(1, 0)?;
    conn.expect_memory(256, &[0; 8])?;
    conn.post_recv(5, BUFFER)?;
    conn.send(&last)?;
    conn.expect_ack(1, 1)?;
    let completion = conn.expect_completion(5, Status::Success)?;
    equal(completion.byte_len, 264, "byte_len")?;
    conn.expect_memory(0, &data)
}

//= RC-TMR-04 type=test
fn rnr_timer_code(bench: &Bench<'_>) -> CaseResult {
    for code in [0, 1, 18, 31] {
        let timer = rnr_timer(code);
        let conn = bench.connect(QpSpec {
            min_rnr_timer: timer,
            ..QpSpec::default()
        })?;
        conn.send_only(0, b"is anybody there")?;
        equal(conn.expect_rnr_nak(0, 0)?, timer, "RNR timer")?;
    }
    Ok(())
}

//= RC-WQE-07 type=test
fn immediate(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(with_receive())?;
    let imm = [0x80, 0, 0xff, 0x01];
    let packet = conn
        .request(Operation::SendOnlyImm, 0)
        .imm(imm)
        .payload(b"data")
        .ack_req();
    conn.send(&packet)?;
    conn.expect_ack(0, 1)?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(
        (completion.byte_len, completion.imm),
        (4, Some(imm)),
        "byte_len, immediate",
    )
}

//= RC-WQE-07 type=test
fn write_immediate(bench: &Bench<'_>) -> CaseResult {
    // The receive's buffer is not used, so it need not be valid.
    let buffer = Buffer {
        bad_key: true,
        ..BUFFER
    };
    let conn = bench.connect(QpSpec {
        receives: vec![buffer],
        ..QpSpec::default()
    })?;
    let region = conn.region();
    let packet = conn
        .request(Operation::WriteOnlyImm, 0)
        .reth(region.va, region.rkey, 8)
        .imm(*b"1234")
        .payload(b"new data")
        .ack_req();
    conn.send(&packet)?;
    conn.expect_ack(0, 1)?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(
        (completion.byte_len, completion.imm),
        (8, Some(*b"1234")),
        "byte_len, immediate",
    )?;
    conn.expect_memory(0, b"new data")?;
    conn.expect_memory(BUFFER.offset, &[0; 8])
}

//= RC-WQE-01 type=test
fn receives_in_order(bench: &Bench<'_>) -> CaseResult {
    let receives = vec![
        Buffer::new(1024, 8),
        Buffer::new(1032, 8),
        Buffer::new(1040, 8),
    ];
    let conn = bench.connect(QpSpec {
        receives,
        ..QpSpec::default()
    })?;
    for (index, text) in (0..).zip([b"message1", b"message2", b"message3"]) {
        conn.send_only(index, text)?;
    }
    conn.expect_ack_up_to(2, 3)?;
    for id in 0..3 {
        conn.expect_completion(id, Status::Success)?;
    }
    conn.expect_memory(1024, b"message1message2message3")
}

//= RC-STA-07 type=test
fn comm_est(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec {
        state: State::Rtr,
        ..QpSpec::default()
    })?;
    conn.expect_no_event()?;
    conn.probe(0, 1)?;
    conn.expect_event(Event::CommEst)?;
    conn.probe(1, 2)?;
    conn.expect_no_event()?;
    equal(conn.qp().state(), State::Rtr, "state")
}
