//! The state SQE: a request of UC or UD that fails at home stops the send queue, but not the
//! receives, and RTS goes on.

use rocade_wire::{Operation, Service};

use super::{
    pattern,
    requester::{SEND, connect, post},
};
use crate::{
    Bench, Case, CaseResult, Conn, QpSpec,
    case::equal,
    peer::{Buffer, State, Status, Work},
};

pub(super) const CASES: &[Case] = &[
    Case::requester("RC-STA-05", "a-uc-send-that-fails", |b| {
        stops(b, Service::Uc)
    })
    .also(&["UC-11"]),
    Case::requester("RC-STA-05", "a-datagram-that-fails", |b| {
        stops(b, Service::Ud)
    })
    .also(&["UD-12"]),
    Case::requester("RC-STA-05", "rc-has-no-sqe", rc_fails).also(&["RC-REQ-14"]),
    Case::requester("PST-06", "uc-requests-are-flushed", |b| {
        flushes(b, Service::Uc)
    }),
    Case::requester("PST-06", "datagrams-are-flushed", |b| {
        flushes(b, Service::Ud)
    }),
    Case::responder("RC-STA-05", "uc-receives-go-on", |b| {
        receives(b, Service::Uc)
    }),
    Case::responder("RC-STA-05", "ud-receives-go-on", |b| {
        receives(b, Service::Ud)
    }),
    Case::requester("RC-STA-05", "uc-sends-again", |b| {
        sends_again(b, Service::Uc)
    }),
    Case::requester("RC-STA-05", "ud-sends-again", |b| {
        sends_again(b, Service::Ud)
    }),
    Case::responder("RC-STA-05", "uc-receives-end-in-err", |b| {
        to_error(b, Service::Uc)
    })
    .also(&["RC-STA-01"]),
    Case::responder("RC-STA-05", "ud-receives-end-in-err", |b| {
        to_error(b, Service::Ud)
    })
    .also(&["RC-STA-01"]),
];

/// The receive of each queue pair.
const RECEIVE: Buffer = Buffer::new(3072, 512);

/// Returns a connection whose peer has posted a SEND with a wrong key, which completes with its
/// error.
fn failed<'b>(bench: &'b Bench<'b>, service: Service) -> CaseResult<Conn<'b>> {
    let conn = connect(
        bench,
        QpSpec {
            service,
            receives: vec![RECEIVE],
            ..QpSpec::default()
        },
    )?;
    let buffer = Buffer {
        bad_key: true,
        ..Buffer::new(0, 8)
    };
    conn.post_send(&Work::new(1, SEND, buffer))?;
    // UC-11, UD-12 and RC-REQ-14 have cases of their own about the status.
    conn.expect_completion_of(1, &[Status::LocProtErr, Status::LocQpOpErr])?;
    Ok(conn)
}

//= RC-STA-05 UC-11 UD-12 type=test
fn stops(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = failed(bench, service)?;
    conn.expect_state(State::Sqe)?;
    conn.expect_silence()?;
    // The receive is still there.
    conn.expect_no_completion()?;
    conn.expect_no_event()
}

//= RC-STA-05 RC-REQ-14 type=test
fn rc_fails(bench: &Bench<'_>) -> CaseResult {
    let conn = failed(bench, Service::Rc)?;
    conn.expect_completion(0, Status::WrFlushErr)?;
    conn.expect_state(State::Err)
}

//= PST-06 type=test
fn flushes(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = failed(bench, service)?;
    for id in [2, 3] {
        post(&conn, id, SEND, 8)?;
        conn.expect_completion(id, Status::WrFlushErr)?;
    }
    conn.expect_silence()?;
    conn.expect_state(State::Sqe)
}

/// Checks that a message arrives in the receive.
fn arrives(conn: &Conn<'_>) -> CaseResult {
    let message = conn.request(Operation::SendOnly, 0);
    conn.send(&message.payload(b"a message"))?;
    let completion = conn.expect_completion(0, Status::Success)?;
    equal(completion.receive, true, "a receive")?;
    let offset = if conn.service() == Service::Ud { 40 } else { 0 };
    conn.expect_memory(RECEIVE.offset + offset, b"a message")
}

//= RC-STA-05 type=test
fn receives(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = failed(bench, service)?;
    arrives(&conn)?;
    conn.expect_state(State::Sqe)
}

//= RC-STA-05 type=test
fn sends_again(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = failed(bench, service)?;
    conn.expect_state(State::Sqe)?;
    conn.resume()?;
    conn.expect_state(State::Rts)?;
    post(&conn, 2, SEND, 64)?;
    let packet = conn.receive()?;
    let operation = packet.headers.bth.opcode.operation();
    equal(operation, Some(Operation::SendOnly), "opcode")?;
    equal(packet.payload == pattern(64), true, "the data arrives")?;
    conn.expect_completion(2, Status::Success)?;
    arrives(&conn)
}

//= RC-STA-05 RC-STA-01 type=test
fn to_error(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = failed(bench, service)?;
    conn.expect_state(State::Sqe)?;
    conn.to_error()?;
    conn.expect_completion(0, Status::WrFlushErr)?;
    conn.expect_state(State::Err)
}
