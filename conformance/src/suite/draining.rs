//! The state SQD: what was begun ends, nothing new begins, and RTS goes on.

use rocade_wire::{NakCode, Operation, Service};

use super::{
    pattern,
    requester::{READ, SEND, WRITE, connect, post, post_read},
};
use crate::{
    Bench, Case, CaseResult, Conn, QpSpec,
    case::equal,
    peer::{Buffer, Event, State, Status, Work},
};

pub(super) const CASES: &[Case] = &[
    Case::requester("RC-STA-06", "an-idle-rc-queue-is-drained-at-once", |b| {
        idle(b, Service::Rc)
    }),
    Case::requester("RC-STA-06", "an-idle-uc-queue-is-drained-at-once", |b| {
        idle(b, Service::Uc)
    }),
    Case::requester("RC-STA-06", "an-idle-ud-queue-is-drained-at-once", |b| {
        idle(b, Service::Ud)
    }),
    Case::requester("RC-STA-06", "the-event-is-for-who-asks", unasked),
    Case::requester("RC-STA-06", "a-request-ends", request_ends),
    Case::requester("RC-STA-06", "all-requests-end", requests_end),
    Case::requester("RC-STA-06", "a-read-ends-with-its-last-response", read_ends),
    Case::requester("RC-STA-06", "a-request-is-repeated", repeats),
    Case::requester("RC-STA-06", "an-error-ends-it", fails).also(&["RC-STA-01", "RC-REQ-08"]),
    Case::requester("RC-STA-06", "drained-twice", twice),
    Case::requester("PST-05", "rc-requests-wait", |b| waits(b, Service::Rc)).also(&["RC-STA-06"]),
    Case::requester("PST-05", "uc-requests-wait", |b| waits(b, Service::Uc)).also(&["RC-STA-06"]),
    Case::requester("PST-05", "datagrams-wait", |b| waits(b, Service::Ud)).also(&["RC-STA-06"]),
    Case::requester("PST-05", "an-error-flushes-what-waits", flushed).also(&["RC-STA-01"]),
    Case::responder("RC-STA-06", "requests-are-answered", answers),
    Case::responder("RC-STA-06", "uc-receives-go-on", |b| {
        receives(b, Service::Uc)
    }),
    Case::responder("RC-STA-06", "ud-receives-go-on", |b| {
        receives(b, Service::Ud)
    }),
];

fn spec(service: Service) -> QpSpec {
    QpSpec {
        service,
        ..QpSpec::default()
    }
}

fn rc<'b>(bench: &'b Bench<'b>) -> CaseResult<Conn<'b>> {
    connect(bench, spec(Service::Rc))
}

/// Checks that the send queue is drained: the event has come, and the state is SQD.
fn is_drained(conn: &Conn<'_>) -> CaseResult {
    conn.expect_event(Event::SqDrained)?;
    conn.expect_state(State::Sqd)
}

//= RC-STA-06 type=test
fn idle(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = connect(bench, spec(service))?;
    conn.drain(true)?;
    is_drained(&conn)?;
    conn.resume()?;
    conn.expect_state(State::Rts)?;
    conn.expect_no_event()
}

//= RC-STA-06 type=test
fn unasked(bench: &Bench<'_>) -> CaseResult {
    let conn = rc(bench)?;
    conn.drain(false)?;
    conn.expect_state(State::Sqd)?;
    conn.expect_no_event()
}

/// Posts a SEND that has to wait, and checks that nothing is sent.
fn post_waiting(conn: &Conn<'_>, id: u64) -> CaseResult {
    post(conn, id, SEND, 8)?;
    conn.expect_silence()?;
    conn.expect_no_completion()
}

/// Checks that the SEND which waited is sent in RTS, as request `index`.
fn goes_on(conn: &Conn<'_>, id: u64, index: i32, msn: u32) -> CaseResult {
    conn.resume()?;
    conn.expect_request(Operation::SendOnly, index)?;
    conn.ack(index, msn)?;
    conn.expect_completion(id, Status::Success)?;
    conn.expect_state(State::Rts)
}

//= RC-STA-06 type=test
fn request_ends(bench: &Bench<'_>) -> CaseResult {
    let conn = rc(bench)?;
    post(&conn, 1, WRITE, 8)?;
    conn.expect_request(Operation::WriteOnly, 0)?;
    conn.drain(true)?;
    conn.expect_no_event()?;
    post_waiting(&conn, 2)?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    is_drained(&conn)?;
    conn.expect_silence()?;
    goes_on(&conn, 2, 1, 2)?;
    conn.expect_no_event()
}

//= RC-STA-06 type=test
fn requests_end(bench: &Bench<'_>) -> CaseResult {
    let conn = rc(bench)?;
    post(&conn, 1, WRITE, 8)?;
    post(&conn, 2, SEND, 8)?;
    conn.expect_request(Operation::WriteOnly, 0)?;
    conn.expect_request(Operation::SendOnly, 1)?;
    conn.drain(true)?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_no_event()?;
    conn.ack(1, 2)?;
    conn.expect_completion(2, Status::Success)?;
    is_drained(&conn)
}

//= RC-STA-06 type=test
fn read_ends(bench: &Bench<'_>) -> CaseResult {
    let conn = rc(bench)?;
    let data = pattern(300);
    post_read(&conn, 1, 300)?;
    conn.expect_request(Operation::ReadRequest, 0)?;
    conn.drain(true)?;
    conn.read_response(Operation::ReadResponseFirst, 0, &data[..256], 1)?;
    conn.expect_no_event()?;
    conn.read_response(Operation::ReadResponseLast, 1, &data[256..], 1)?;
    conn.expect_completion(1, Status::Success)?;
    is_drained(&conn)?;
    conn.expect_memory(2048, &data)
}

/// The second packet of the message was lost.
//= RC-STA-06 RC-REQ-05 type=test
fn repeats(bench: &Bench<'_>) -> CaseResult {
    let conn = rc(bench)?;
    post(&conn, 1, SEND, 512)?;
    conn.expect_requests(0, &[Operation::SendFirst, Operation::SendLast])?;
    conn.drain(true)?;
    conn.nak(1, NakCode::PsnSequence, 0)?;
    let last = conn.expect_request(Operation::SendLast, 1)?;
    equal(last.payload == pattern(512)[256..], true, "the same data")?;
    conn.expect_no_event()?;
    conn.ack(1, 1)?;
    conn.expect_completion(1, Status::Success)?;
    is_drained(&conn)
}

//= RC-STA-06 RC-STA-01 type=test
fn fails(bench: &Bench<'_>) -> CaseResult {
    let conn = rc(bench)?;
    post(&conn, 1, WRITE, 8)?;
    conn.expect_request(Operation::WriteOnly, 0)?;
    conn.drain(true)?;
    post(&conn, 2, SEND, 8)?;
    conn.nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_completion(1, Status::RemAccessErr)?;
    conn.expect_completion(2, Status::WrFlushErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_no_event()
}

//= RC-STA-06 type=test
fn twice(bench: &Bench<'_>) -> CaseResult {
    let conn = rc(bench)?;
    for id in [1, 2] {
        let index = i32::from(id == 2);
        conn.drain(true)?;
        is_drained(&conn)?;
        post_waiting(&conn, id)?;
        goes_on(&conn, id, index, u32::from(id == 2) + 1)?;
    }
    conn.expect_no_event()
}

//= PST-05 RC-STA-06 type=test
fn waits(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = connect(bench, spec(service))?;
    conn.drain(true)?;
    is_drained(&conn)?;
    post_waiting(&conn, 1)?;
    if service == Service::Rc {
        return goes_on(&conn, 1, 0, 1);
    }
    conn.resume()?;
    let packet = conn.receive()?;
    let operation = packet.headers.bth.opcode.operation();
    equal(operation, Some(Operation::SendOnly), "opcode")?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= PST-05 RC-STA-01 type=test
fn flushed(bench: &Bench<'_>) -> CaseResult {
    let conn = rc(bench)?;
    conn.drain(true)?;
    is_drained(&conn)?;
    post_waiting(&conn, 1)?;
    conn.post_send(&Work::new(2, READ, Buffer::new(2048, 64)))?;
    conn.to_error()?;
    conn.expect_completion(1, Status::WrFlushErr)?;
    conn.expect_completion(2, Status::WrFlushErr)?;
    conn.expect_silence()
}

//= RC-STA-06 RC-RSP-01 type=test
fn answers(bench: &Bench<'_>) -> CaseResult {
    let conn = rc(bench)?;
    conn.drain(true)?;
    is_drained(&conn)?;
    conn.post_recv(7, Buffer::new(3072, 64))?;
    conn.send_only(0, b"a message")?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(7, Status::Success)?;
    conn.expect_memory(3072, b"a message")?;
    conn.send(&conn.read(1, 0, 64))?;
    conn.expect_read_response(1, &pattern(64), 2)?;
    conn.expect_state(State::Sqd)
}

//= RC-STA-06 type=test
fn receives(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = connect(bench, spec(service))?;
    conn.drain(true)?;
    is_drained(&conn)?;
    conn.post_recv(7, Buffer::new(3072, 64))?;
    conn.send(&conn.request(Operation::SendOnly, 0).payload(b"a message"))?;
    conn.expect_completion(7, Status::Success)?;
    conn.expect_state(State::Sqd)
}
