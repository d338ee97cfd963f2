//! Packets that arrive after an error of the queue pair or after its end, and READs that fail after
//! they have begun.

use rocade_wire::{NakCode, Opcode, Operation, Psn, Syndrome};

use super::{BAD, Kind, RECEIVE, spec, start};
use crate::{
    Bench, Case, CaseResult, Conn, QpSpec,
    case::equal,
    peer::{Event, RegionSpec, Rights, State, Status},
};

pub(in crate::suite) const CASES: &[Case] = &[
    Case::responder("RC-STA-03", "send-after-an-error", |b| {
        after_error(b, Kind::Send)
    }),
    Case::responder("RC-STA-03", "send-with-immediate-after-an-error", |b| {
        after_error(b, Kind::SendImm)
    }),
    Case::responder("RC-STA-03", "write-with-immediate-after-an-error", |b| {
        after_error(b, Kind::WriteImm)
    }),
    Case::responder("RC-STA-03", "read-after-an-error", |b| {
        after_error(b, Kind::Read)
    }),
    Case::responder("RC-STA-03", "compare-swap-after-an-error", |b| {
        after_error(b, Kind::CmpSwap)
    }),
    Case::responder("RC-STA-03", "fetch-add-after-an-error", |b| {
        after_error(b, Kind::FetchAdd)
    }),
    Case::responder(
        "RC-STA-03",
        "reserved-opcode-after-an-error",
        reserved_after_error,
    ),
    Case::responder("RC-STA-03", "a-write-again-after-an-error", |b| {
        again(b, Kind::Write)
    })
    .also(&["RC-DUP-01"]),
    Case::responder("RC-STA-03", "a-read-again-after-an-error", |b| {
        again(b, Kind::Read)
    })
    .also(&["RC-DUP-03"]),
    Case::responder("RC-STA-03", "an-atomic-again-after-an-error", |b| {
        again(b, Kind::FetchAdd)
    })
    .also(&["RC-DUP-04"]),
    Case::responder("RC-STA-03", "the-refused-packet-again", refused_again),
    Case::responder(
        "RC-STA-03",
        "rest-of-a-message-after-an-error",
        rest_of_message,
    )
    .also(&["RC-STA-01"]),
    Case::responder("BTH-10", "write-to-a-destroyed-queue-pair", |b| {
        destroyed(b, Kind::Write)
    }),
    Case::responder("BTH-10", "read-of-a-destroyed-queue-pair", |b| {
        destroyed(b, Kind::Read)
    }),
    Case::responder("BTH-10", "send-to-a-destroyed-queue-pair", |b| {
        destroyed(b, Kind::Send)
    }),
    Case::responder(
        "RC-RSP-22",
        "a-read-whose-region-goes-away",
        read_fails_midway,
    )
    .also(&["MR-14"]),
    Case::responder("CQ-02", "the-queue-of-receives-is-full", full_queue)
        .also(&["CQ-15", "AEV-00"]),
];

/// Returns a connection in ERR, because request `index` of the rig was refused.
fn broken(conn: &Conn<'_>, index: i32, msn: u32) -> CaseResult {
    conn.send(&conn.atomic(index, 4, 1, None))?;
    conn.expect_nak(index, NakCode::InvalidRequest, msn)?;
    conn.expect_state(State::Err)
}

/// Checks that the only completion is that of the flushed receive.
fn flushed(conn: &Conn<'_>) -> CaseResult {
    conn.expect_completion(0, Status::WrFlushErr)?;
    conn.expect_no_completion()
}

//= RC-STA-03 type=test
fn after_error(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    broken(&conn, 0, 0)?;
    for index in [0, 1] {
        conn.send(&kind.request(&conn, index, start(&conn)))?;
    }
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 64])?;
    conn.expect_memory(RECEIVE.offset, &[0; 64])?;
    flushed(&conn)
}

//= RC-STA-03 OPC-36 type=test
fn reserved_after_error(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    broken(&conn, 0, 0)?;
    let packet = conn.request(Operation::SendOnly, 0).payload(&[0xbd; 32]);
    conn.send(&packet.edit(|headers| headers.bth.opcode = Opcode::new(0x1f)))?;
    conn.expect_silence()?;
    flushed(&conn)
}

/// A request that was executed before the error is neither executed nor answered again.
//= RC-STA-03 RC-DUP-01 RC-DUP-04 type=test
fn again(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    let request = kind.request(&conn, 0, start(&conn));
    conn.send(&request)?;
    let first = conn.receive()?;
    equal(first.headers.bth.psn, conn.psn(0), "PSN of the response")?;
    conn.qp().write_memory(0, 0, &[7; 8]);
    broken(&conn, 1, 1)?;
    conn.send(&request)?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[7; 8])
}

/// The NAK is sent once. A requester that has lost it times out.
//= RC-STA-03 type=test
fn refused_again(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    broken(&conn, 0, 0)?;
    for _ in 0..3 {
        conn.send(&conn.atomic(0, 4, 1, None))?;
    }
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 16])
}

//= RC-STA-01 RC-STA-03 type=test
fn rest_of_message(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    let first = conn.request(Operation::SendFirst, 0).ack_req();
    conn.send(&first.payload(&[1; 256]))?;
    conn.expect_ack(0, 0)?;
    conn.to_error()?;
    conn.send(&conn.request(Operation::SendLast, 1).payload(&BAD).ack_req())?;
    conn.expect_silence()?;
    conn.expect_memory(RECEIVE.offset + 256, &[0; 8])?;
    flushed(&conn)
}

//= BTH-10 type=test
fn destroyed(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    conn.probe(0, 1)?;
    let request = kind.request(&conn, 1, start(&conn));
    conn.destroy()?;
    conn.send(&request)?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 64])?;
    conn.expect_memory(RECEIVE.offset, &[0; 64])
}

/// Length of a READ with as many responses as the socket of the rig surely holds: 128.
const LONG: u32 = 1 << 15;

/// The region is deregistered while the READ is answered. The device may be done by then. Its
/// responses have consecutive PSNs, and a NAK has the PSN of the response that it replaces.
//= RC-RSP-22 MR-14 type=test
fn read_fails_midway(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec {
        rq_psn: Psn::new(0x00ff_fff0),
        regions: vec![RegionSpec::new(1 << 15)],
        ..QpSpec::default()
    })?;
    conn.send(&conn.read(0, 0, LONG))?;
    let count = LONG / 256;
    let mut is_there = true;
    for number in 0..count {
        let packet = conn.receive()?;
        let index = i32::try_from(number).unwrap_or(i32::MAX);
        let psn = packet.headers.bth.psn;
        equal(psn, conn.psn(index), "PSN of the response")?;
        if let Some(Syndrome::Nak(code)) = packet.headers.aeth.map(|aeth| aeth.syndrome) {
            equal(code, NakCode::RemoteAccess, "NAK")?;
            return conn.expect_state(State::Err);
        }
        let expected = match number {
            0 => Operation::ReadResponseFirst,
            n if n + 1 == count => Operation::ReadResponseLast,
            _ => Operation::ReadResponseMiddle,
        };
        let operation = packet.headers.bth.opcode.operation();
        equal(operation, Some(expected), "opcode")?;
        if is_there {
            conn.deregister(0)?;
            is_there = false;
        }
    }
    // The device was faster than the owner.
    let end = i32::try_from(count).unwrap_or(i32::MAX);
    conn.probe(end, 2)
}

/// More receives complete than the completion queue has entries.
//= CQ-02 CQ-15 type=test
fn full_queue(bench: &Bench<'_>) -> CaseResult {
    const RECEIVES: i32 = 60;
    let receives = vec![RECEIVE; 60];
    let conn = bench.connect(QpSpec {
        receives,
        cq_depth: 1,
        ..QpSpec::default()
    })?;
    for index in 0..RECEIVES {
        let packet = conn.request(Operation::SendOnly, index).payload(&BAD);
        conn.send(&packet)?;
    }
    conn.note("peer does not poll its completion queue");
    conn.expect_event_of(Event::CqErr, 60)?;
    conn.expect_state(State::Err)?;
    // A device may have acknowledged requests without AckReq.
    while conn.poll_receive()?.is_some() {}
    let late = conn.request(Operation::SendOnly, RECEIVES).payload(&BAD);
    conn.send(&late.ack_req())?;
    conn.expect_silence()
}
