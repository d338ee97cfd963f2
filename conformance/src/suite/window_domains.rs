//! Memory windows and several queue pairs: whose packets, binds and invalidations a window of each
//! type obeys.

use rocade_wire::{Ieth, NakCode, Operation, Rkey};

use super::{
    errors::BAD_INVALIDATE,
    pattern,
    requester::{SEND, connect, post},
};
use crate::{
    Bench, Case, CaseResult, Conn, QpSpec,
    case::equal,
    peer::{Buffer, Event, RegionSpec, Rights, State, Status, WindowBind, Work, WorkOp},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("MW-03", "write-through-another-queue-pair", |b| {
        through_sibling(b, Operation::WriteOnly)
    })
    .also(&["RC-RSP-08"]),
    Case::responder("MW-03", "read-through-another-queue-pair", |b| {
        through_sibling(b, Operation::ReadRequest)
    })
    .also(&["RC-RSP-08"]),
    Case::responder("MW-03", "atomic-through-another-queue-pair", |b| {
        through_sibling(b, Operation::FetchAdd)
    })
    .also(&["RC-RSP-08"]),
    Case::responder("MW-03", "through-a-queue-pair-of-another-pd", |b| {
        other_domain(b, Kind::Two)
    })
    .also(&["MW-08"]),
    Case::responder(
        "MW-03",
        "send-with-invalidate-through-another-queue-pair",
        sent_invalidation,
    )
    .also(&["RC-ERR-J"])
    .should(),
    Case::requester(
        "MW-03",
        "invalidation-through-another-queue-pair",
        local_invalidation,
    )
    .also(&["INV-01"])
    .should(),
    Case::requester("MW-02", "bound-through-another-queue-pair", bound_twice).also(&["MW-05"]),
    Case::responder("MW-02", "the-next-bind-chooses-the-queue-pair", moves),
    Case::responder("MW-08", "the-key-of-an-earlier-bind", earlier_key),
    Case::responder("MW-01", "opens-memory-to-each-queue-pair", to_each),
    Case::responder("MW-01", "not-to-another-pd", |b| other_domain(b, Kind::One)).also(&["MW-08"]),
    Case::responder("MW-01", "bound-again-at-any-time", bound_again),
    Case::responder("MW-01", "an-empty-bind-opens-nothing", unbound),
    Case::responder("MW-01", "opens-nothing-before-a-bind", never_bound),
    Case::requester("MW-01", "an-invalidation-fails", invalidated).also(&["INV-01"]),
    Case::responder("MW-01", "a-send-with-invalidate-fails", invalidated_by_peer)
        .also(&["RC-ERR-J"]),
    Case::responder("MW-08", "range-of-a-type-1-window", range_of_type_1),
    Case::responder("MW-08", "rights-of-a-type-1-window", rights_of_type_1),
    Case::responder(
        "MW-06",
        "the-message-after-a-bind-has-its-key",
        sent_at_once,
    ),
    Case::responder(
        "MW-11",
        "the-earlier-key-opens-nothing",
        earlier_key_of_type_1,
    ),
    Case::requester("MW-05", "a-type-1-bind-that-fails", bad_bind).also(&["MW-04"]),
];

/// Offset and length of the window.
const START: usize = 1024;
const LEN: usize = 1024;

const EVERY: Rights = Rights {
    flush: false,
    ..Rights::ALL
};

/// The type of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Two,
}

fn spec() -> QpSpec {
    QpSpec {
        regions: vec![RegionSpec {
            rights: Rights::NONE,
            bindable: true,
            ..RegionSpec::new(4096)
        }],
        ..QpSpec::default()
    }
}

const fn bind(rkey: Rkey) -> WindowBind {
    WindowBind {
        rkey,
        region: 0,
        offset: START,
        len: LEN,
        rights: EVERY,
        zero_based: false,
    }
}

/// Posts a local operation at the peer.
fn local(conn: &Conn<'_>, id: u64, op: WorkOp) -> CaseResult {
    conn.post_send(&Work::new(id, op, Buffer::new(0, 0)))
}

/// Binds a type 1 window with the key `bind.rkey`. Returns the new key.
fn bind_type_1(conn: &Conn<'_>, id: u64, bind: &WindowBind) -> CaseResult<Rkey> {
    let rkey = conn.bind_type_1(id, bind)?;
    conn.expect_completion(id, Status::Success)?;
    Ok(rkey)
}

/// Returns a connection whose peer has bound a window, and the window's key.
fn bound<'b>(bench: &'b Bench<'b>, kind: Kind) -> CaseResult<(Conn<'b>, Rkey)> {
    let conn = connect(bench, spec())?;
    let rkey = match kind {
        Kind::One => bind_type_1(&conn, 100, &bind(conn.type_1_window()?))?,
        Kind::Two => {
            let rkey = conn.window()?;
            local(&conn, 100, WorkOp::Bind(bind(rkey)))?;
            conn.expect_completion(100, Status::Success)?;
            rkey
        }
    };
    Ok((conn, rkey))
}

fn start(conn: &Conn<'_>) -> u64 {
    conn.region().va + START as u64
}

/// Sends a WRITE as request packet `index`.
fn write(conn: &Conn<'_>, index: i32, va: u64, rkey: Rkey, payload: &[u8]) -> CaseResult {
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let packet = conn.request(Operation::WriteOnly, index);
    conn.send(&packet.reth(va, rkey, len).payload(payload).ack_req())
}

/// Checks that the window is open on this queue pair, by a WRITE to its first bytes.
fn is_open(conn: &Conn<'_>, index: i32, rkey: Rkey, msn: u32) -> CaseResult {
    write(conn, index, start(conn), rkey, b"it opens")?;
    conn.expect_ack(index, msn)?;
    conn.expect_memory(START, b"it opens")
}

fn refused(conn: &Conn<'_>, index: i32, msn: u32) -> CaseResult {
    conn.expect_nak(index, NakCode::RemoteAccess, msn)?;
    conn.expect_event(Event::QpAccessErr)?;
    conn.expect_state(State::Err)
}

/// Checks that the key opens nothing on a queue pair. Nothing but the first 8 bytes of the window
/// may have changed.
fn is_closed(conn: &Conn<'_>, index: i32, rkey: Rkey, msn: u32) -> CaseResult {
    write(conn, index, start(conn) + 512, rkey, b"too much")?;
    refused(conn, index, msn)?;
    conn.expect_memory(START + 8, &pattern(2048)[START + 8..])
}

//= MW-03 type=test
fn through_sibling(bench: &Bench<'_>, operation: Operation) -> CaseResult {
    let (first, rkey) = bound(bench, Kind::Two)?;
    let second = first.sibling()?;
    let (request, va) = (second.request(operation, 0), start(&first));
    second.send(&match operation {
        Operation::FetchAdd => request.atomic(va, rkey, 1, 0).ack_req(),
        Operation::ReadRequest => request.reth(va, rkey, 8).ack_req(),
        _ => request.reth(va, rkey, 8).payload(b"too much").ack_req(),
    })?;
    refused(&second, 0, 0)?;
    first.expect_memory(0, &pattern(2048))?;
    is_open(&first, 0, rkey, 1)
}

//= MW-01 MW-03 MW-08 type=test
fn other_domain(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    let (first, rkey) = bound(bench, kind)?;
    let other = connect(bench, spec())?;
    write(&other, 0, start(&first), rkey, b"too much")?;
    refused(&other, 0, 0)?;
    first.expect_memory(0, &pattern(2048))?;
    is_open(&first, 0, rkey, 1)
}

/// Returns a SEND with Invalidate as request packet `index`.
fn send_invalidate(conn: &Conn<'_>, index: i32, rkey: Rkey) -> CaseResult {
    let packet = conn.request(Operation::SendOnlyInv, index).payload(b"mine");
    conn.send(&packet.ack_req().edit(|h| h.ieth = Some(Ieth(rkey))))
}

/// Checks that the peer refuses to invalidate a key for a message.
fn keeps_key(conn: &Conn<'_>, rkey: Rkey) -> CaseResult {
    conn.post_recv(7, Buffer::new(3072, 64))?;
    send_invalidate(conn, 0, rkey)?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_completion_of(7, BAD_INVALIDATE)?;
    conn.expect_state(State::Err)
}

//= MW-03 INV-02 type=test
fn sent_invalidation(bench: &Bench<'_>) -> CaseResult {
    let (first, rkey) = bound(bench, Kind::Two)?;
    let second = first.sibling()?;
    keeps_key(&second, rkey)?;
    is_open(&first, 0, rkey, 1)
}

/// Checks that a local operation fails, and that the queue pair sends nothing of what follows.
fn fails(conn: &Conn<'_>, op: WorkOp, statuses: &[Status]) -> CaseResult {
    local(conn, 1, op)?;
    post(conn, 2, SEND, 8)?;
    conn.expect_completion_of(1, statuses)?;
    conn.expect_completion(2, Status::WrFlushErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

/// The statuses of an invalidation that is refused.
const NOT_INVALIDATED: &[Status] = &[Status::LocQpOpErr, Status::MwBindErr];

//= MW-02 MW-03 type=test
fn local_invalidation(bench: &Bench<'_>) -> CaseResult {
    let (first, rkey) = bound(bench, Kind::Two)?;
    let second = first.sibling()?;
    fails(&second, WorkOp::Invalidate { rkey }, NOT_INVALIDATED)?;
    is_open(&first, 0, rkey, 1)
}

//= MW-02 MW-05 type=test
fn bound_twice(bench: &Bench<'_>) -> CaseResult {
    let (first, rkey) = bound(bench, Kind::Two)?;
    let second = first.sibling()?;
    fails(&second, WorkOp::Bind(bind(rkey)), &[Status::MwBindErr])?;
    is_open(&first, 0, rkey, 1)
}

/// Returns the key with another low byte, which the owner of a type 2 window chooses.
const fn retagged(rkey: Rkey) -> Rkey {
    Rkey::new(rkey.get() ^ 0x5a)
}

//= MW-02 MW-03 type=test
fn moves(bench: &Bench<'_>) -> CaseResult {
    let (first, rkey) = bound(bench, Kind::Two)?;
    let second = first.sibling()?;
    local(&first, 101, WorkOp::Invalidate { rkey })?;
    first.expect_completion(101, Status::Success)?;
    let next = retagged(rkey);
    local(&second, 102, WorkOp::Bind(bind(next)))?;
    second.expect_completion(102, Status::Success)?;
    is_open(&second, 0, next, 1)?;
    is_closed(&first, 0, next, 0)
}

//= MW-02 MW-08 type=test
fn earlier_key(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, Kind::Two)?;
    local(&conn, 101, WorkOp::Invalidate { rkey })?;
    let next = retagged(rkey);
    local(&conn, 102, WorkOp::Bind(bind(next)))?;
    conn.expect_completion(101, Status::Success)?;
    conn.expect_completion(102, Status::Success)?;
    is_open(&conn, 0, next, 1)?;
    is_closed(&conn, 1, rkey, 1)
}

//= MW-01 MW-03 type=test
fn to_each(bench: &Bench<'_>) -> CaseResult {
    let (first, rkey) = bound(bench, Kind::One)?;
    let second = first.sibling()?;
    is_open(&first, 0, rkey, 1)?;
    write(&second, 0, start(&first) + 8, rkey, b"also here")?;
    second.expect_ack(0, 1)?;
    let read = first.request(Operation::ReadRequest, 1).ack_req();
    first.send(&read.reth(start(&first) + 8, rkey, 9))?;
    first.expect_read_response(1, b"also here", 2)
}

//= MW-01 type=test
fn bound_again(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, Kind::One)?;
    is_open(&conn, 0, rkey, 1)?;
    let elsewhere = WindowBind {
        offset: 0,
        len: 64,
        ..bind(rkey)
    };
    let rkey = bind_type_1(&conn, 101, &elsewhere)?;
    write(&conn, 1, conn.region().va, rkey, b"the next")?;
    conn.expect_ack(1, 2)?;
    conn.expect_memory(0, b"the next")?;
    // The earlier range is no longer open.
    write(&conn, 2, start(&conn), rkey, b"too late")?;
    refused(&conn, 2, 2)?;
    conn.expect_memory(START, b"it opens")
}

//= MW-01 type=test
fn unbound(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = bound(bench, Kind::One)?;
    let nothing = WindowBind {
        offset: 0,
        len: 0,
        rights: Rights::NONE,
        ..bind(rkey)
    };
    let rkey = bind_type_1(&conn, 101, &nothing)?;
    is_closed(&conn, 0, rkey, 0)?;
    conn.expect_memory(START, &pattern(2048)[START..])
}

//= MW-01 type=test
fn never_bound(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, spec())?;
    let rkey = conn.type_1_window()?;
    is_closed(&conn, 0, rkey, 0)
}

//= MW-01 INV-01 type=test
fn invalidated(bench: &Bench<'_>) -> CaseResult {
    let (first, rkey) = bound(bench, Kind::One)?;
    let second = first.sibling()?;
    fails(&first, WorkOp::Invalidate { rkey }, NOT_INVALIDATED)?;
    is_open(&second, 0, rkey, 1)
}

//= MW-01 RC-ERR-J type=test
fn invalidated_by_peer(bench: &Bench<'_>) -> CaseResult {
    let (first, rkey) = bound(bench, Kind::One)?;
    let second = first.sibling()?;
    keeps_key(&first, rkey)?;
    is_open(&second, 0, rkey, 1)
}

//= MW-08 type=test
fn range_of_type_1(bench: &Bench<'_>) -> CaseResult {
    for (offset, len) in [(-1_i64, 1_usize), (1024, 1), (1017, 8), (-8, 256)] {
        let (conn, rkey) = bound(bench, Kind::One)?;
        let va = start(&conn).wrapping_add_signed(offset);
        write(&conn, 0, va, rkey, &vec![0xbd; len])?;
        refused(&conn, 0, 0)?;
        conn.expect_memory(0, &pattern(2048))?;
    }
    Ok(())
}

//= MW-08 type=test
fn rights_of_type_1(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, spec())?;
    let to_read = WindowBind {
        rights: Rights {
            read: true,
            ..Rights::NONE
        },
        ..bind(conn.type_1_window()?)
    };
    let rkey = bind_type_1(&conn, 100, &to_read)?;
    let read = conn.request(Operation::ReadRequest, 0).ack_req();
    conn.send(&read.reth(start(&conn), rkey, 64))?;
    conn.expect_read_response(0, &pattern(2048)[START..START + 64], 1)?;
    is_closed(&conn, 1, rkey, 1)
}

/// The bind need not have completed when the peer uses the key.
//= MW-06 type=test
fn sent_at_once(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, spec())?;
    let rkey = conn.bind_type_1(1, &bind(conn.type_1_window()?))?;
    post(&conn, 2, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    is_open(&conn, 0, rkey, 1)?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_completion(2, Status::Success).map(drop)
}

//= MW-11 type=test
fn earlier_key_of_type_1(bench: &Bench<'_>) -> CaseResult {
    let (conn, earlier) = bound(bench, Kind::One)?;
    let rkey = bind_type_1(&conn, 101, &bind(earlier))?;
    equal(rkey == earlier, false, "the bind keeps the key")?;
    is_open(&conn, 0, rkey, 1)?;
    is_closed(&conn, 1, earlier, 1)
}

//= MW-04 MW-05 type=test
fn bad_bind(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, spec())?;
    let too_long = WindowBind {
        len: 4096 - START + 1,
        ..bind(conn.type_1_window()?)
    };
    conn.bind_type_1(1, &too_long)?;
    conn.expect_completion(1, Status::MwBindErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}
