//! The peer as requester: work requests that fail at the responder, or before they are sent.

use rocade_wire::{Msn, NakCode, Operation};

use super::{
    pattern,
    requester::{READ, SEND, WRITE, connect, post, post_read, reth},
};
use crate::{
    Bench, Case, CaseResult, QpSpec,
    bench::POSITIVE,
    case::equal,
    peer::{Buffer, State, Status, Work, WorkOp},
};

pub(super) const CASES: &[Case] = &[
    Case::requester("RC-REQ-07", "invalid-request", |b| {
        fatal(b, NakCode::InvalidRequest, Status::RemInvReqErr)
    }),
    Case::requester("RC-REQ-08", "remote-access", |b| {
        fatal(b, NakCode::RemoteAccess, Status::RemAccessErr)
    }),
    Case::requester("RC-REQ-09", "remote-operational", |b| {
        fatal(b, NakCode::RemoteOperational, Status::RemOpErr)
    }),
    Case::requester("RC-REQ-10", "read-response-to-a-send", unexpected_response).should(),
    Case::requester("RC-REQ-11", "short-read-response", |b| read_length(b, 255)).should(),
    Case::requester("RC-REQ-11", "long-read-response", |b| read_length(b, 260)).should(),
    Case::requester("RC-REQ-10", "atomic-result-for-a-read", |b| {
        wrong_response(b, READ, Operation::ReadRequest)
    })
    .should(),
    Case::requester("RC-REQ-10", "atomic-result-for-a-write", |b| {
        wrong_response(b, WRITE, Operation::WriteOnly)
    })
    .should(),
    Case::requester("RC-REQ-07", "read-is-refused", |b| {
        refused_resource(b, NakCode::InvalidRequest, Status::RemInvReqErr)
    }),
    Case::requester("RC-REQ-08", "read-is-refused", |b| {
        refused_resource(b, NakCode::RemoteAccess, Status::RemAccessErr)
    }),
    Case::requester("RC-REQ-13", "read-into-a-wrong-key", read_into_bad_key),
    Case::requester("RC-REQ-14", "send-from-a-wrong-key", send_from_bad_key),
    Case::requester("RC-LIM-02", "read-although-max-rd-atomic-is-0", no_reads).should(),
    Case::requester(
        "RC-STA-02",
        "sends-posted-in-err-are-flushed",
        posted_in_err,
    ),
    Case::requester(
        "RC-STA-03",
        "responses-in-err-are-dropped",
        responses_in_err,
    ),
];

//= RC-REQ-07 RC-REQ-08 RC-REQ-09 type=test
//= RC-STA-01 type=test
fn fatal(bench: &Bench<'_>, code: NakCode, status: Status) -> CaseResult {
    let spec = QpSpec {
        receives: vec![Buffer::new(3072, 8)],
        ..QpSpec::default()
    };
    let conn = connect(bench, spec)?;
    for id in 1..=3 {
        post(&conn, id, WRITE, 8)?;
    }
    conn.expect_requests(0, &[Operation::WriteOnly; 3])?;
    // A NAK acknowledges all requests before the refused one.
    conn.nak(1, code, 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_completion(2, status)?;
    let rest = [conn.completion()?, conn.completion()?];
    for completion in rest {
        equal(
            completion.status,
            Status::WrFlushErr,
            "status of the others",
        )?;
    }
    equal(
        rest.iter().filter(|completion| completion.receive).count(),
        1,
        "flushed receives",
    )?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

//= RC-REQ-10 type=test
fn unexpected_response(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    conn.read_response(Operation::ReadResponseOnly, 0, b"surprise", 1)?;
    conn.expect_completion(1, Status::BadRespErr)?;
    conn.expect_state(State::Err)
}

//= RC-REQ-11 type=test
fn read_length(bench: &Bench<'_>, len: usize) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_read(&conn, 1, 256)?;
    conn.expect_request(Operation::ReadRequest, 0)?;
    conn.read_response(Operation::ReadResponseOnly, 0, &pattern(len), 1)?;
    conn.expect_completion_of(1, &[Status::LocLenErr, Status::BadRespErr])?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(2048 + 256, &[0; 8])
}

//= RC-REQ-10 type=test
fn wrong_response(bench: &Bench<'_>, op: WorkOp, request: Operation) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    conn.post_send(&Work::new(1, op, Buffer::new(2048, 8)))?;
    conn.expect_request(request, 0)?;
    let answer = conn.answer(Operation::AtomicAcknowledge, 0);
    conn.send(&answer.aeth(POSITIVE, Msn::new(1)).atomic_ack(u64::MAX))?;
    conn.expect_completion(1, Status::BadRespErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(2048, &[0; 8])
}

/// The READ is refused midway: the NAK has the PSN of the response that it replaces.
//= RC-REQ-07 RC-REQ-08 RC-RSP-22 type=test
fn refused_resource(bench: &Bench<'_>, code: NakCode, status: Status) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    post_read(&conn, 2, 600)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    conn.expect_read_request(1, reth(0, 600))?;
    conn.read_response(Operation::ReadResponseFirst, 1, &pattern(256), 1)?;
    conn.nak(2, code, 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_completion(2, status)?;
    conn.expect_state(State::Err)
}

fn bad_key(op: WorkOp) -> Work {
    let buffer = Buffer::new(2048, 8);
    Work::new(
        1,
        op,
        Buffer {
            bad_key: true,
            ..buffer
        },
    )
}

//= RC-REQ-13 type=test
fn read_into_bad_key(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    conn.post_send(&bad_key(READ))?;
    // The device may check the key when the request starts or when the data arrive.
    let status = loop {
        if let Some(completion) = conn.qp().poll_completion() {
            break completion.status;
        }
        if conn.poll_receive()?.is_some() {
            conn.read_response(Operation::ReadResponseOnly, 0, b"response", 1)?;
            break conn.completion()?.status;
        }
    };
    equal(status, Status::LocProtErr, "status")?;
    conn.expect_state(State::Err)
}

//= RC-REQ-14 type=test
fn send_from_bad_key(bench: &Bench<'_>) -> CaseResult {
    for op in [SEND, WRITE] {
        let conn = connect(bench, QpSpec::default())?;
        conn.post_send(&bad_key(op))?;
        conn.expect_completion(1, Status::LocProtErr)?;
        conn.expect_state(State::Err)?;
        conn.expect_silence()?;
    }
    Ok(())
}

/// A device may refuse to queue the request instead.
//= RC-LIM-02 type=test
fn no_reads(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            max_rd_atomic: 0,
            ..QpSpec::default()
        },
    )?;
    if post_read(&conn, 1, 8).is_err() {
        return conn.expect_silence();
    }
    conn.expect_completion(1, Status::LocQpOpErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

//= RC-STA-02 type=test
fn posted_in_err(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    conn.to_error()?;
    post(&conn, 1, SEND, 8)?;
    conn.expect_completion(1, Status::WrFlushErr)?;
    conn.expect_silence()
}

//= RC-STA-01 RC-STA-03 type=test
fn responses_in_err(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_read(&conn, 1, 8)?;
    conn.expect_request(Operation::ReadRequest, 0)?;
    conn.to_error()?;
    conn.read_response(Operation::ReadResponseOnly, 0, b"response", 1)?;
    conn.expect_completion(1, Status::WrFlushErr)?;
    conn.expect_no_completion()?;
    conn.expect_memory(2048, &[0; 8])
}
