//! Memory windows of type 2, and invalidation of keys by either side.

use rocade_wire::{Ieth, NakCode, Operation, Rkey};

use super::{
    errors::BAD_INVALIDATE,
    pattern,
    requester::{SEND, WRITE, post},
};
use crate::{
    Bench, Case, CaseResult, Conn, QpSpec,
    case::equal,
    peer::{Buffer, Event, RegionSpec, Rights, State, Status, WindowBind, Work, WorkOp},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("MW-08", "a-window-opens-a-part-of-a-region", opens),
    Case::responder("MW-08", "range-of-a-window", range),
    Case::responder("MW-08", "rights-of-a-window", rights),
    Case::responder("MW-02", "a-free-window-opens-nothing", free),
    Case::responder("MW-07", "addresses-from-0", zero_based),
    Case::responder("INV-03", "send-with-invalidate", invalidate),
    Case::responder("INV-04", "a-free-window-cannot-be-freed", free_twice).should(),
    Case::responder("MR-14", "freed-in-the-middle-of-a-write", in_the_middle),
    Case::responder("RC-DUP-01", "a-repeated-invalidate-frees-nothing", repeated),
    Case::requester("RC-WQE-05", "a-bind-takes-no-psn", no_psn),
    Case::requester("RC-WQE-05", "an-invalidation-waits", waits),
    Case::requester("RC-WQE-09", "the-key-is-in-the-last-packet", on_the_wire),
    Case::requester("MW-05", "a-bind-that-fails", bad_bind),
    Case::requester("INV-01", "a-region-cannot-be-invalidated", plain_region),
];

/// Offset and length of the window.
const START: usize = 1024;
const LEN: usize = 1024;

const WRITES: Rights = Rights {
    write: true,
    read: false,
    atomic: false,
    flush: false,
};

fn bind(rkey: Rkey) -> WindowBind {
    WindowBind {
        rkey,
        region: 0,
        offset: START,
        len: LEN,
        rights: WRITES,
        zero_based: false,
    }
}

fn spec() -> QpSpec {
    QpSpec {
        regions: vec![RegionSpec {
            rights: Rights::NONE,
            bindable: true,
            ..RegionSpec::new(4096)
        }],
        receives: vec![Buffer::new(3072, 256), Buffer::new(3328, 256)],
        ..QpSpec::default()
    }
}

/// Posts a local operation at the peer.
fn local(conn: &Conn<'_>, id: u64, op: WorkOp) -> CaseResult {
    conn.post_send(&Work::new(id, op, Buffer::new(0, 0)))
}

/// Returns a connection whose peer has bound a window to a region without remote rights, and the
/// key of the window.
fn bound<'b>(
    bench: &'b Bench<'b>,
    change: impl Fn(WindowBind) -> WindowBind,
) -> CaseResult<(Conn<'b>, Rkey)> {
    let conn = bench.connect(spec())?;
    let rkey = conn.window()?;
    local(&conn, 100, WorkOp::Bind(change(bind(rkey))))?;
    conn.expect_completion(100, Status::Success)?;
    Ok((conn, rkey))
}

fn write(conn: &Conn<'_>, index: i32, va: u64, rkey: Rkey, payload: &[u8]) -> CaseResult {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let packet = conn.request(Operation::WriteOnly, index);
    conn.send(&packet.reth(va, rkey, len).payload(payload).ack_req())
}

fn start(conn: &Conn<'_>) -> u64 {
    conn.region().va + START as u64
}

fn refused(conn: &Conn<'_>, index: i32, msn: u32) -> CaseResult {
    conn.expect_nak(index, NakCode::RemoteAccess, msn)?;
    conn.expect_event(Event::QpAccessErr)?;
    conn.expect_state(State::Err)
}

//= MW-08 type=test
fn opens(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, |bind| bind)?;
    let data = pattern(256);
    write(&conn, 0, start(&conn), rkey, &data)?;
    conn.expect_ack(0, 1)?;
    let end = start(&conn) + LEN as u64;
    write(&conn, 1, end - 8, rkey, b"last end")?;
    conn.expect_ack(1, 2)?;
    conn.expect_memory(START, &data)?;
    conn.expect_memory(START + LEN - 8, b"last end")?;
    // The region itself still has no remote rights.
    let region = conn.region();
    write(&conn, 2, start(&conn), region.rkey, b"too much")?;
    refused(&conn, 2, 2)?;
    conn.expect_memory(START, &data)
}

//= MW-08 type=test
fn range(bench: &Bench<'_>) -> CaseResult {
    for (offset, len) in [(-1_i64, 1_usize), (1024, 1), (1017, 8), (-8, 256)] {
        let (conn, rkey) = bound(bench, |bind| bind)?;
        let va = start(&conn).wrapping_add_signed(offset);
        write(&conn, 0, va, rkey, &pattern(len))?;
        refused(&conn, 0, 0)?;
        conn.expect_memory(0, &[0; 4096])?;
    }
    Ok(())
}

//= MW-08 type=test
fn rights(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, |bind| bind)?;
    let read = conn.request(Operation::ReadRequest, 0);
    conn.send(&read.reth(start(&conn), rkey, 8).ack_req())?;
    refused(&conn, 0, 0)?;
    let (conn, rkey) = bound(bench, |bind| bind)?;
    let add = conn.request(Operation::FetchAdd, 0);
    conn.send(&add.atomic(start(&conn), rkey, 1, 0).ack_req())?;
    refused(&conn, 0, 0)
}

//= MW-02 type=test
fn free(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    let rkey = conn.window()?;
    write(&conn, 0, start(&conn), rkey, b"too soon")?;
    refused(&conn, 0, 0)
}

//= MW-07 type=test
fn zero_based(bench: &Bench<'_>) -> CaseResult {
    let zero_based = |bind| WindowBind {
        zero_based: true,
        ..bind
    };
    let (conn, rkey) = bound(bench, zero_based)?;
    write(&conn, 0, 8, rkey, b"offset 8")?;
    conn.expect_ack(0, 1)?;
    conn.expect_memory(START + 8, b"offset 8")?;
    write(&conn, 1, start(&conn), rkey, b"too far!")?;
    refused(&conn, 1, 1)
}

fn send_invalidate(conn: &Conn<'_>, index: i32, rkey: Rkey, payload: &[u8]) -> CaseResult {
    let packet = conn.request(Operation::SendOnlyInv, index).payload(payload);
    conn.send(&packet.ack_req().edit(|h| h.ieth = Some(Ieth(rkey))))
}

//= INV-03 RC-WQE-09 type=test
fn invalidate(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, |bind| bind)?;
    send_invalidate(&conn, 0, rkey, b"have it back")?;
    conn.expect_ack(0, 1)?;
    let received = conn.expect_completion(0, Status::Success)?;
    equal(received.invalidated, Some(rkey), "invalidated key")?;
    equal(received.byte_len, 12, "length")?;
    conn.expect_memory(3072, b"have it back")?;
    // Invalidation by the last packet of a long message, after a new bind.
    local(&conn, 101, WorkOp::Bind(bind(rkey)))?;
    conn.expect_completion(101, Status::Success)?;
    conn.post_recv(7, Buffer::new(2048, 512))?;
    conn.send_only(1, b"one more")?;
    conn.expect_ack(1, 2)?;
    conn.expect_completion(1, Status::Success)?;
    let first = conn.request(Operation::SendFirst, 2);
    conn.send(&first.payload(&pattern(256)))?;
    let last = conn.request(Operation::SendLastInv, 3).payload(b"the end");
    conn.send(&last.ack_req().edit(|h| h.ieth = Some(Ieth(rkey))))?;
    conn.expect_ack(3, 3)?;
    let received = conn.expect_completion(7, Status::Success)?;
    equal(received.invalidated, Some(rkey), "invalidated key")?;
    write(&conn, 4, start(&conn), rkey, b"too late")?;
    refused(&conn, 4, 3)
}

//= INV-04 RC-ERR-J type=test
fn free_twice(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, |bind| bind)?;
    send_invalidate(&conn, 0, rkey, b"once")?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(0, Status::Success)?;
    send_invalidate(&conn, 1, rkey, b"twice")?;
    conn.expect_nak(1, NakCode::RemoteAccess, 1)?;
    conn.expect_completion_of(1, BAD_INVALIDATE)?;
    conn.expect_state(State::Err)?;
    conn.expect_no_event()
}

//= MR-14 type=test
fn in_the_middle(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, |bind| bind)?;
    let first = conn.request(Operation::WriteFirst, 0);
    let data = pattern(256);
    conn.send(&first.reth(start(&conn), rkey, 600).payload(&data).ack_req())?;
    conn.expect_ack(0, 0)?;
    local(&conn, 101, WorkOp::Invalidate { rkey })?;
    conn.expect_completion(101, Status::Success)?;
    let middle = conn.request(Operation::WriteMiddle, 1).payload(&data);
    conn.send(&middle.ack_req())?;
    refused(&conn, 1, 0)?;
    conn.expect_memory(START, &data)?;
    conn.expect_memory(START + 256, &[0; 256])
}

//= RC-DUP-01 type=test
fn repeated(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, |bind| bind)?;
    send_invalidate(&conn, 0, rkey, b"once")?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(0, Status::Success)?;
    local(&conn, 101, WorkOp::Bind(bind(rkey)))?;
    conn.expect_completion(101, Status::Success)?;
    send_invalidate(&conn, 0, rkey, b"once")?;
    conn.expect_ack(0, 1)?;
    write(&conn, 1, start(&conn), rkey, b"still open")?;
    conn.expect_ack(1, 2)?;
    conn.expect_memory(START, b"still open")
}

//= RC-WQE-05 RC-PSN-05 type=test
fn no_psn(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    let rkey = conn.window()?;
    local(&conn, 1, WorkOp::Bind(bind(rkey)))?;
    post(&conn, 2, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    // The bind is effective when the next message arrives.
    write(&conn, 0, start(&conn), rkey, b"at once!")?;
    conn.expect_ack(0, 1)?;
    local(&conn, 3, WorkOp::Invalidate { rkey })?;
    post(&conn, 4, SEND, 8)?;
    conn.ack(0, 1)?;
    for id in 1..=3 {
        conn.expect_completion(id, Status::Success)?;
    }
    conn.expect_request(Operation::SendOnly, 1)?;
    conn.ack(1, 2)?;
    conn.expect_completion(4, Status::Success)?;
    Ok(())
}

//= RC-WQE-05 INV-05 type=test
fn waits(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, |bind| bind)?;
    post(&conn, 1, WRITE, 8)?;
    local(&conn, 2, WorkOp::Invalidate { rkey })?;
    post(&conn, 3, WRITE, 8)?;
    conn.expect_request(Operation::WriteOnly, 0)?;
    conn.expect_silence()?;
    write(&conn, 0, start(&conn), rkey, b"not yet!")?;
    conn.expect_ack(0, 1)?;
    conn.expect_no_completion()?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_completion(2, Status::Success)?;
    conn.expect_request(Operation::WriteOnly, 1)?;
    conn.ack(1, 2)?;
    conn.expect_completion(3, Status::Success)?;
    write(&conn, 1, start(&conn), rkey, b"too late")?;
    refused(&conn, 1, 1)
}

//= RC-WQE-09 RC-SEG-01 type=test
fn on_the_wire(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec())?;
    let rkey = Rkey::new(0x0a0b_0c0d);
    post(&conn, 1, WorkOp::SendInv { rkey }, 8)?;
    post(&conn, 2, WorkOp::SendInv { rkey }, 300)?;
    let only = conn.expect_request(Operation::SendOnlyInv, 0)?;
    equal(only.headers.ieth, Some(Ieth(rkey)), "key")?;
    conn.expect_request(Operation::SendFirst, 1)?;
    let last = conn.expect_request(Operation::SendLastInv, 2)?;
    equal(last.headers.ieth, Some(Ieth(rkey)), "key")?;
    equal(last.headers.bth.ack_req, true, "AckReq")?;
    conn.ack(2, 2)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_completion(2, Status::Success)?;
    Ok(())
}

/// Checks that a local operation fails after the earlier request and before the later one.
fn fails(conn: &Conn<'_>, op: WorkOp, statuses: &[Status]) -> CaseResult {
    post(conn, 1, WRITE, 8)?;
    local(conn, 2, op)?;
    post(conn, 3, WRITE, 8)?;
    conn.expect_request(Operation::WriteOnly, 0)?;
    conn.expect_silence()?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_completion_of(2, statuses)?;
    conn.expect_completion(3, Status::WrFlushErr)?;
    conn.expect_state(State::Err)
}

//= MW-04 MW-05 type=test
fn bad_bind(bench: &Bench<'_>) -> CaseResult {
    let without_receives = QpSpec {
        receives: Vec::new(),
        ..spec()
    };
    for len in [0, 4096 - START + 1] {
        let conn = bench.connect(without_receives.clone())?;
        let rkey = conn.window()?;
        let bind = WindowBind { len, ..bind(rkey) };
        fails(&conn, WorkOp::Bind(bind), &[Status::MwBindErr])?;
    }
    let conn = bench.connect(QpSpec::default())?;
    let rkey = conn.window()?;
    fails(&conn, WorkOp::Bind(bind(rkey)), &[Status::MwBindErr])
}

/// The standard's status of a failed invalidation may also be that of all operations on keys.
//= INV-01 type=test
fn plain_region(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let rkey = conn.region().rkey;
    let statuses = &[Status::LocQpOpErr, Status::MwBindErr];
    fails(&conn, WorkOp::Invalidate { rkey }, statuses)
}
