//! A peer that answers what it must not: READ responses of wrong lengths, responses without a
//! request, and broken packets. The device drops them or fails the request, and writes nothing
//! past the end of its buffer.

use rocade_wire::{Msn, NakCode, Operation, Pkey, Syndrome};

use super::{
    pattern,
    requester::{READ, SEND, WRITE, connect, post, post_read, reth},
};
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    bench::POSITIVE,
    peer::{Buffer, State, Status, Work, WorkOp, rnr_timer},
    rig::Via,
};

pub(super) const CASES: &[Case] = &[
    response("first-longer-than-the-path-mtu", |b| {
        read(b, 600, &[(Operation::ReadResponseFirst, 512)])
    }),
    response("first-shorter-than-the-path-mtu", |b| {
        read(b, 600, &[(Operation::ReadResponseFirst, 252)])
    }),
    response("middle-shorter-than-the-path-mtu", |b| {
        let first = (Operation::ReadResponseFirst, 256);
        read(b, 600, &[first, (Operation::ReadResponseMiddle, 252)])
    }),
    response("middle-beyond-the-end", |b| {
        let first = (Operation::ReadResponseFirst, 256);
        read(b, 400, &[first, (Operation::ReadResponseMiddle, 256)])
    }),
    response("last-beyond-the-end", |b| {
        let first = (Operation::ReadResponseFirst, 256);
        read(b, 400, &[first, (Operation::ReadResponseLast, 148)])
    }),
    response("last-before-the-end", |b| {
        let first = (Operation::ReadResponseFirst, 256);
        read(b, 400, &[first, (Operation::ReadResponseLast, 140)])
    }),
    response("last-without-data", |b| {
        let first = (Operation::ReadResponseFirst, 256);
        read(b, 400, &[first, (Operation::ReadResponseLast, 0)])
    }),
    response("first-of-a-short-read", |b| {
        read(b, 100, &[(Operation::ReadResponseFirst, 256)])
    }),
    response("only-of-a-long-read", |b| {
        read(b, 600, &[(Operation::ReadResponseOnly, 256)])
    }),
    response("data-of-an-empty-read", |b| {
        read(b, 0, &[(Operation::ReadResponseOnly, 8)])
    }),
    wrong("read-response-to-a-write", |b| {
        unexpected(b, WRITE, Operation::WriteOnly)
    }),
    wrong("read-response-to-an-atomic", |b| {
        unexpected(b, ADD, Operation::FetchAdd)
    }),
    Case::requester("RC-REQ-01", "read-response-without-a-request", |b| {
        unsolicited(b, |c| read_response(c, 0))
    }),
    Case::requester("RC-REQ-01", "atomic-response-without-a-request", |b| {
        unsolicited(b, |c| atomic_response(c, 0))
    }),
    Case::requester("RC-REQ-01", "nak-of-nothing", |b| {
        unsolicited(b, |c| nak(c, 0, Syndrome::Nak(NakCode::RemoteAccess)))
    }),
    Case::requester("RC-REQ-01", "rnr-nak-of-nothing", |b| {
        unsolicited(b, |c| nak(c, 0, Syndrome::RnrNak(rnr_timer(1))))
    }),
    Case::requester("RC-REQ-02", "read-response-again", read_again),
    Case::requester("RC-REQ-02", "atomic-response-again", atomic_again),
    Case::requester("RC-REQ-19", "sequence-nak-comes-too-late", |b| {
        late(b, Syndrome::Nak(NakCode::PsnSequence))
    }),
    Case::requester("RC-REQ-19", "invalid-request-comes-too-late", |b| {
        late(b, Syndrome::Nak(NakCode::InvalidRequest))
    }),
    Case::requester("RC-REQ-19", "access-error-comes-too-late", |b| {
        late(b, Syndrome::Nak(NakCode::RemoteAccess))
    }),
    Case::requester("RC-REQ-19", "rnr-nak-comes-too-late", |b| {
        late(b, Syndrome::RnrNak(rnr_timer(1)))
    }),
    Case::requester("ICRC-11", "bad-ack", |b| spoilt(b, |p| p.wrong_icrc(1))),
    Case::requester("ICRC-11", "bad-nak", bad_nak),
    Case::requester("ICRC-11", "bad-read-response", bad_read_response),
    Case::requester("ICRC-11", "bad-atomic-response", bad_atomic_response),
    Case::requester("BTH-05", "ack-of-another-version", |b| {
        spoilt(b, |p| p.edit(|h| h.bth.tver = 1))
    }),
    Case::requester("BTH-06", "ack-of-another-partition", |b| {
        spoilt(b, |p| p.edit(|h| h.bth.pkey = Pkey::new(0x8001)))
    }),
    Case::requester("RC-LIM-05", "ack-from-another-address", |b| {
        spoilt(b, |p| p.via(Via::ThirdHost))
    }),
    Case::requester("ENC-16", "ack-without-its-aeth", |b| {
        spoilt(b, |p| p.cut(16))
    }),
    Case::requester("ENC-03", "ack-from-any-source-port", any_port),
    Case::requester("RC-REQ-08", "read-without-access", |b| {
        refused(b, READ, NakCode::RemoteAccess, Status::RemAccessErr)
    }),
    Case::requester("RC-REQ-08", "atomic-without-access", |b| {
        refused(b, ADD, NakCode::RemoteAccess, Status::RemAccessErr)
    }),
    Case::requester("RC-REQ-07", "send-that-is-invalid", |b| {
        refused(b, SEND, NakCode::InvalidRequest, Status::RemInvReqErr)
    }),
    Case::requester("RC-REQ-07", "atomic-that-is-invalid", |b| {
        refused(b, ADD, NakCode::InvalidRequest, Status::RemInvReqErr)
    }),
    Case::requester("RC-REQ-09", "send-that-fails-at-the-responder", |b| {
        refused(b, SEND, NakCode::RemoteOperational, Status::RemOpErr)
    }),
    Case::requester("RC-REQ-09", "read-that-fails-at-the-responder", |b| {
        refused(b, READ, NakCode::RemoteOperational, Status::RemOpErr)
    }),
];

const ADD: WorkOp = WorkOp::FetchAdd {
    va: 0x0000_7f00_dead_0008,
    rkey: rocade_wire::Rkey::new(0x1234_5678),
    add: 1,
};

/// The buffer of results, behind which there is memory of the same region.
const RESULT: Buffer = Buffer::new(2048, 8);

/// Creates a case about the length of a READ response.
const fn response(slug: &'static str, run: fn(&Bench<'_>) -> CaseResult) -> Case {
    Case::requester("RC-REQ-11", slug, run).should()
}

/// Creates a case about a response of the wrong kind.
const fn wrong(slug: &'static str, run: fn(&Bench<'_>) -> CaseResult) -> Case {
    Case::requester("RC-REQ-10", slug, run).should()
}

/// Answers a READ of `len` bytes by these packets, and checks that the READ fails.
//= RC-REQ-11 RC-REQ-10 type=test
fn read(bench: &Bench<'_>, len: u32, packets: &[(Operation, usize)]) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_read(&conn, 1, len)?;
    conn.expect_read_request(0, reth(0, len))?;
    for (index, &(operation, len)) in (0..).zip(packets) {
        conn.read_response(operation, index, &pattern(len), 1)?;
    }
    conn.expect_completion_of(1, &[Status::LocLenErr, Status::BadRespErr])?;
    conn.expect_state(State::Err)?;
    let end = 2048 + usize::try_from(len).unwrap_or(0);
    conn.expect_memory(end, &[0; 600])
}

//= RC-REQ-10 type=test
fn unexpected(bench: &Bench<'_>, op: WorkOp, request: Operation) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    conn.post_send(&Work::new(1, op, RESULT))?;
    conn.expect_request(request, 0)?;
    conn.read_response(Operation::ReadResponseOnly, 0, b"surprise", 1)?;
    conn.expect_completion(1, Status::BadRespErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(2048, &[0; 8])
}

fn read_response(conn: &Conn<'_>, index: i32) -> PacketBuilder {
    let packet = conn.answer(Operation::ReadResponseOnly, index);
    packet.payload(b"surprise").aeth(POSITIVE, Msn::new(1))
}

fn atomic_response(conn: &Conn<'_>, index: i32) -> PacketBuilder {
    let packet = conn.answer(Operation::AtomicAcknowledge, index);
    packet.aeth(POSITIVE, Msn::new(1)).atomic_ack(u64::MAX)
}

fn nak(conn: &Conn<'_>, index: i32, syndrome: Syndrome) -> PacketBuilder {
    let packet = conn.answer(Operation::Acknowledge, index);
    packet.aeth(syndrome, Msn::new(0))
}

/// Checks that the queue pair sends its next request as if nothing had happened.
fn goes_on(conn: &Conn<'_>, index: i32, msn: u32) -> CaseResult {
    post(conn, 9, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, index)?;
    conn.ack(index, msn)?;
    conn.expect_completion(9, Status::Success).map(drop)
}

/// Sends a response before there is any request.
//= RC-REQ-01 type=test
fn unsolicited(bench: &Bench<'_>, packet: impl Fn(&Conn<'_>) -> PacketBuilder) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    conn.send(&packet(&conn))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_state(State::Rts)?;
    goes_on(&conn, 0, 1)
}

//= RC-REQ-02 type=test
fn read_again(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_read(&conn, 1, 8)?;
    conn.expect_read_request(0, reth(0, 8))?;
    conn.read_response(Operation::ReadResponseOnly, 0, b"original", 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.send(&read_response(&conn, 0))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_memory(2048, b"original")?;
    goes_on(&conn, 1, 2)
}

//= RC-REQ-02 type=test
fn atomic_again(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    conn.post_send(&Work::new(1, ADD, RESULT))?;
    conn.expect_request(Operation::FetchAdd, 0)?;
    conn.send(&atomic_response(&conn, 0))?;
    conn.expect_completion(1, Status::Success)?;
    conn.qp().write_memory(0, 2048, &[7; 8]);
    conn.send(&atomic_response(&conn, 0))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_memory(2048, &[7; 8])?;
    goes_on(&conn, 1, 2)
}

/// A NAK of a request that is already acknowledged.
//= RC-REQ-19 type=test
fn late(bench: &Bench<'_>, syndrome: Syndrome) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, WRITE, 8)?;
    conn.expect_request(Operation::WriteOnly, 0)?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.send(&nak(&conn, 0, syndrome))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_state(State::Rts)?;
    goes_on(&conn, 1, 2)
}

/// Sends an acknowledgement that is changed by `spoil` and therefore dropped, and then a right one.
//= ICRC-11 BTH-05 BTH-06 type=test
//= RC-LIM-05 ENC-16 type=test
fn spoilt(bench: &Bench<'_>, spoil: impl Fn(PacketBuilder) -> PacketBuilder) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, WRITE, 8)?;
    conn.expect_request(Operation::WriteOnly, 0)?;
    let ack = nak(&conn, 0, POSITIVE);
    conn.send(&spoil(ack.clone()))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.send(&ack)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= ENC-03 type=test
fn any_port(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, WRITE, 8)?;
    conn.expect_request(Operation::WriteOnly, 0)?;
    conn.send(&nak(&conn, 0, POSITIVE).via(Via::OtherPort))?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= ICRC-11 type=test
fn bad_nak(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, WRITE, 8)?;
    conn.expect_request(Operation::WriteOnly, 0)?;
    let nak = nak(&conn, 0, Syndrome::Nak(NakCode::RemoteAccess));
    conn.send(&nak.wrong_icrc(1))?;
    conn.expect_no_completion()?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= ICRC-11 type=test
fn bad_read_response(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_read(&conn, 1, 8)?;
    conn.expect_read_request(0, reth(0, 8))?;
    conn.send(&read_response(&conn, 0).wrong_icrc(1))?;
    conn.expect_no_completion()?;
    conn.expect_memory(2048, &[0; 8])?;
    conn.read_response(Operation::ReadResponseOnly, 0, b"original", 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(2048, b"original")
}

//= ICRC-11 type=test
fn bad_atomic_response(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    conn.post_send(&Work::new(1, ADD, RESULT))?;
    conn.expect_request(Operation::FetchAdd, 0)?;
    conn.send(&atomic_response(&conn, 0).wrong_icrc(1))?;
    conn.expect_no_completion()?;
    conn.expect_memory(2048, &[0; 8])?;
    let right = conn.answer(Operation::AtomicAcknowledge, 0);
    conn.send(&right.aeth(POSITIVE, Msn::new(1)).atomic_ack(5))?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(2048, &5u64.to_ne_bytes())
}

/// The responder refuses the only request.
//= RC-REQ-07 RC-REQ-08 RC-REQ-09 type=test
fn refused(bench: &Bench<'_>, op: WorkOp, code: NakCode, status: Status) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    conn.post_send(&Work::new(1, op, RESULT))?;
    conn.receive()?;
    conn.nak(0, code, 0)?;
    conn.expect_completion(1, status)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}
