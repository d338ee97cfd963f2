//! Path migration: the MigReq bit, which shows the migration state of a side, and the effect of a
//! packet with this bit.
//!
//! The alternate path of the peer leads to the rig's other address.

use rocade_wire::Operation;

use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    case::equal,
    peer::{Buffer, Event, Status, Work, WorkOp},
    rig::Via,
};

pub(super) const CASES: &[Case] = &[
    Case::responder("RC-APM-02", "migrated-says-so", says_migrated),
    Case::responder("RC-APM-02", "rearmed-says-so", says_rearmed),
    Case::requester("RC-APM-02", "requests-say-so-too", requests_say_so),
    Case::responder("RC-APM-09", "migrated-takes-either", takes_either),
    Case::responder("RC-APM-04", "not-armed-by-a-peer-that-is-not", not_armed),
    Case::responder("RC-APM-07", "armed-and-asked-on-the-primary-path", primary),
    Case::responder(
        "RC-APM-05",
        "armed-and-asked-on-the-alternate-path",
        migrates,
    ),
];

/// Returns a WRITE with or without the MigReq bit.
fn write(conn: &Conn<'_>, index: i32, value: u8, migreq: bool) -> PacketBuilder {
    let packet = conn.write(index, 0, &[value; 8]);
    packet.edit(|headers| headers.bth.migreq = migreq)
}

/// Expects that the packet is executed, and that its acknowledgement has this MigReq bit.
fn expect_done(conn: &Conn<'_>, packet: &PacketBuilder, index: i32, bit: bool) -> CaseResult {
    conn.send(packet)?;
    let answer = conn.receive()?;
    equal(answer.headers.bth.psn, conn.psn(index), "PSN of the answer")?;
    equal(answer.headers.bth.migreq, bit, "MigReq")
}

//= RC-APM-01 RC-APM-02 type=test
fn says_migrated(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    expect_done(&conn, &write(&conn, 0, 1, true), 0, true)
}

//= RC-APM-02 RC-APM-03 type=test
fn says_rearmed(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.rearm()?;
    expect_done(&conn, &write(&conn, 0, 1, false), 0, false)?;
    // The peer is armed now.
    expect_done(&conn, &write(&conn, 1, 2, false), 1, false)
}

//= RC-APM-02 type=test
fn requests_say_so(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let send = |id| Work::new(id, WorkOp::Send { imm: None }, Buffer::new(0, 8));
    conn.post_send(&send(1))?;
    let before = conn.expect_request(Operation::SendOnly, 0)?;
    equal(before.headers.bth.migreq, true, "MigReq")?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.rearm()?;
    conn.post_send(&send(2))?;
    let after = conn.expect_request(Operation::SendOnly, 1)?;
    equal(after.headers.bth.migreq, false, "MigReq")?;
    conn.ack(1, 2)?;
    conn.expect_completion(2, Status::Success).map(drop)
}

//= RC-APM-09 type=test
fn takes_either(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    expect_done(&conn, &write(&conn, 0, 1, false), 0, true)?;
    expect_done(&conn, &write(&conn, 1, 2, true), 1, true)?;
    conn.expect_memory(0, &[2; 8])?;
    conn.expect_no_event()
}

/// The peer has received no packet that shows that the rig is armed, so it does not migrate.
//= RC-APM-04 type=test
fn not_armed(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.rearm()?;
    expect_done(&conn, &write(&conn, 0, 1, true), 0, false)?;
    conn.send(&write(&conn, 1, 2, true).via(Via::ThirdHost))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[1; 8])?;
    conn.expect_no_event()?;
    expect_done(&conn, &write(&conn, 1, 3, true), 1, false)
}

fn arm<'b>(bench: &'b Bench<'_>) -> CaseResult<Conn<'b>> {
    let conn = bench.connect(QpSpec::default())?;
    conn.rearm()?;
    expect_done(&conn, &write(&conn, 0, 1, false), 0, false)?;
    Ok(conn)
}

//= RC-APM-07 type=test
fn primary(bench: &Bench<'_>) -> CaseResult {
    let conn = arm(bench)?;
    conn.send(&write(&conn, 1, 2, true))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[1; 8])?;
    conn.expect_no_event()?;
    expect_done(&conn, &write(&conn, 1, 3, false), 1, false)
}

//= RC-APM-05 RC-APM-06 RC-APM-08 type=test
fn migrates(bench: &Bench<'_>) -> CaseResult {
    let conn = arm(bench)?;
    // A packet without the bit from another address is dropped.
    conn.send(&write(&conn, 1, 2, false).via(Via::ThirdHost))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[1; 8])?;
    conn.expect_no_event()?;
    conn.send(&write(&conn, 1, 3, true).via(Via::ThirdHost))?;
    conn.expect_event(Event::PathMig)?;
    // The migration has completed: the peer continues on the new path, and also sends its responses
    // there.
    conn.send(&write(&conn, 2, 4, true).via(Via::ThirdHost))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[4; 8])
}
