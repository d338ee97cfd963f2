//! A program that posts what it must not: buffers outside of their region, operations that a queue
//! pair does not have, more requests than a queue has entries, and memory that it takes away. The
//! device reports the error to the program, and the peer sees nothing of it.

use rocade_wire::{NakCode, Operation, Rkey, Service};

use super::{
    pattern,
    requester::{READ, SEND, WRITE, connect, post},
};
use crate::{
    Bench, Case, CaseError, CaseResult, Conn, QpSpec,
    bench::POSITIVE,
    case::{equal, fail},
    peer::{Buffer, Event, RegionSpec, Rights, State, Status, WindowBind, Work, WorkOp},
};

pub(super) const CASES: &[Case] = &[
    Case::requester("RC-REQ-14", "send-past-the-end-of-a-region", |b| {
        unreadable(b, SEND, |_| Buffer::new(4090, 64))
    }),
    Case::requester("RC-REQ-14", "write-past-the-end-of-a-region", |b| {
        unreadable(b, WRITE, |_| Buffer::new(4090, 64))
    }),
    Case::requester("RC-REQ-14", "send-from-before-a-region", |b| {
        unreadable(b, SEND, |_| Buffer::new(0usize.wrapping_sub(8), 16))
    }),
    Case::requester("RC-REQ-14", "send-from-a-range-that-wraps", |b| {
        unreadable(b, SEND, |c| Buffer::new(last_bytes(c), 8))
    }),
    Case::requester("RC-REQ-14", "send-from-another-pd", |b| {
        unreadable(b, SEND, |_| FOREIGN)
    }),
    Case::requester("RC-REQ-14", "write-from-another-pd", |b| {
        unreadable(b, WRITE, |_| FOREIGN)
    }),
    Case::requester("RC-REQ-14", "send-from-a-region-that-is-gone", gone_before),
    Case::requester(
        "RC-REQ-14",
        "region-goes-away-before-a-repetition",
        gone_in_flight,
    )
    .should(),
    Case::requester("RC-REQ-13", "read-past-the-end-of-a-region", |b| {
        unwritable(b, READ, |_| Buffer::new(4090, 64))
    }),
    Case::requester("RC-REQ-13", "read-into-a-range-that-wraps", |b| {
        unwritable(b, READ, |c| Buffer::new(last_bytes(c), 8))
    }),
    Case::requester("RC-REQ-13", "read-into-another-pd", |b| {
        unwritable(b, READ, |_| FOREIGN)
    }),
    Case::requester("RC-REQ-13", "atomic-into-a-wrong-key", |b| {
        unwritable(b, ADD, |_| Buffer {
            bad_key: true,
            ..Buffer::new(0, 8)
        })
    }),
    Case::requester("RC-REQ-13", "atomic-into-another-pd", |b| {
        unwritable(b, ADD, |_| FOREIGN)
    }),
    Case::requester("RC-REQ-13", "region-of-a-read-goes-away", |b| {
        gone_before_result(b, READ)
    }),
    Case::requester("RC-REQ-13", "region-of-an-atomic-goes-away", |b| {
        gone_before_result(b, ADD)
    }),
    Case::requester("UC-11", "uc-send-from-a-wrong-key", |b| {
        local_error(b, Service::Uc, SEND)
    }),
    Case::requester("UC-11", "uc-write-from-a-wrong-key", |b| {
        local_error(b, Service::Uc, WRITE)
    }),
    Case::requester("UD-12", "datagram-from-a-wrong-key", |b| {
        local_error(b, Service::Ud, SEND)
    }),
    Case::requester("UD-02", "datagram-longer-than-any-mtu", long_datagram),
    Case::requester("MW-04", "bind-to-a-region-of-another-pd", |b| {
        bad_bind(b, |bind| WindowBind { region: 1, ..bind })
    })
    .also(&["MW-05"]),
    Case::requester("MW-04", "bind-of-a-range-that-wraps", |b| {
        bad_bind(b, |bind| WindowBind {
            len: 0usize.wrapping_sub(512),
            ..bind
        })
    })
    .also(&["MW-05"]),
    Case::requester("MW-02", "bind-of-a-bound-window", bound_twice).also(&["MW-05"]),
    Case::requester("PST-10", "uc-has-no-read", |b| {
        none_such(b, Service::Uc, READ)
    }),
    Case::requester("PST-10", "uc-has-no-fetch-add", |b| {
        none_such(b, Service::Uc, ADD)
    }),
    Case::requester("PST-10", "uc-has-no-compare-swap", |b| {
        none_such(b, Service::Uc, SWAP)
    }),
    Case::requester("PST-10", "ud-has-no-write", |b| {
        none_such(b, Service::Ud, WRITE)
    }),
    Case::requester("PST-10", "ud-has-no-read", |b| {
        none_such(b, Service::Ud, READ)
    }),
    Case::requester("PST-10", "ud-has-no-fetch-add", |b| {
        none_such(b, Service::Ud, ADD)
    }),
    Case::requester("PST-10", "ud-has-no-compare-swap", |b| {
        none_such(b, Service::Ud, SWAP)
    }),
    Case::requester("PST-03", "rc-sends-nothing-in-rtr", |b| {
        not_ready(b, Service::Rc)
    }),
    Case::requester("PST-03", "uc-sends-nothing-in-rtr", |b| {
        not_ready(b, Service::Uc)
    }),
    Case::requester("PST-03", "ud-sends-nothing-in-rtr", |b| {
        not_ready(b, Service::Ud)
    }),
    Case::requester("PST-09", "send-queue-is-full", send_queue_full),
    Case::responder("PST-09", "receive-queue-is-full", receive_queue_full),
    Case::requester(
        "RC-LIM-02",
        "atomic-although-max-rd-atomic-is-0",
        no_atomics,
    )
    .should(),
    Case::requester("CQ-02", "the-queue-of-sends-is-full", full_of_sends)
        .also(&["CQ-15", "AEV-00"]),
];

const VA: u64 = 0x0000_7f00_dead_0008;
const RKEY: Rkey = Rkey::new(0x1234_5678);

const ADD: WorkOp = WorkOp::FetchAdd {
    va: VA,
    rkey: RKEY,
    add: 1,
};
const SWAP: WorkOp = WorkOp::CmpSwap {
    va: VA,
    rkey: RKEY,
    compare: 0,
    swap: 1,
};

/// Bytes in a region of another protection domain.
const FOREIGN: Buffer = Buffer {
    region: 1,
    ..Buffer::new(0, 8)
};

/// Returns a specification with a second region in another protection domain.
fn spec() -> QpSpec {
    QpSpec {
        regions: vec![
            RegionSpec {
                bindable: true,
                ..RegionSpec::new(4096)
            },
            RegionSpec {
                bindable: true,
                foreign_pd: true,
                ..RegionSpec::new(4096)
            },
        ],
        ..QpSpec::default()
    }
}

/// Returns the offset from the first region of the last 4 bytes of the address space.
fn last_bytes(conn: &Conn<'_>) -> usize {
    let offset = u64::MAX.wrapping_sub(conn.region().va).wrapping_sub(3);
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Posts a request whose data cannot be read. Nothing is sent.
//= RC-REQ-14 MR-11 type=test
fn unreadable(bench: &Bench<'_>, op: WorkOp, buffer: impl Fn(&Conn<'_>) -> Buffer) -> CaseResult {
    let conn = connect(bench, spec())?;
    conn.post_send(&Work::new(1, op, buffer(&conn)))?;
    conn.expect_completion(1, Status::LocProtErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

//= RC-REQ-14 type=test
fn gone_before(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, spec())?;
    conn.deregister(1)?;
    let work = Work::new(1, SEND, FOREIGN);
    match conn.post_send(&work) {
        // The key is no longer known to the owner, whose program may refuse at once.
        Err(CaseError::Skipped(_)) => return conn.expect_silence(),
        posted => posted?,
    }
    conn.expect_completion(1, Status::LocProtErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

/// A device may have read the data before, so that the repetition succeeds.
//= RC-REQ-14 RC-REQ-16 type=test
fn gone_in_flight(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, SEND, 8)?;
    let first = conn.expect_request(Operation::SendOnly, 0)?;
    conn.deregister(0)?;
    conn.nak(0, NakCode::PsnSequence, 0)?;
    loop {
        if let Some(completion) = conn.qp().poll_completion() {
            equal(completion.status, Status::LocProtErr, "status")?;
            return conn.expect_silence();
        }
        if let Some(again) = conn.poll_receive()? {
            equal(
                again.payload == first.payload,
                true,
                "the repetition has the data",
            )?;
            conn.ack(0, 1)?;
            return conn.expect_completion(1, Status::Success).map(drop);
        }
    }
}

/// Answers the READ or atomic, if the device sends it at all.
fn answer(conn: &Conn<'_>, op: WorkOp) -> CaseResult {
    if op == READ {
        return conn.read_response(Operation::ReadResponseOnly, 0, &[0xbd; 64], 1);
    }
    let response = conn.answer(Operation::AtomicAcknowledge, 0);
    let msn = rocade_wire::Msn::new(1);
    conn.send(&response.aeth(POSITIVE, msn).atomic_ack(u64::MAX))
}

/// Posts a request whose result cannot be stored. A device may check that before it sends or when
/// the result arrives.
//= RC-REQ-13 MR-11 type=test
fn unwritable(bench: &Bench<'_>, op: WorkOp, buffer: impl Fn(&Conn<'_>) -> Buffer) -> CaseResult {
    let conn = connect(bench, spec())?;
    conn.qp().write_memory(0, 4080, &[7; 16]);
    let mut work = Work::new(1, op, buffer(&conn));
    if op == READ {
        // The response fits no path MTU otherwise.
        work.buffer.len = 64;
    }
    conn.post_send(&work)?;
    let status = loop {
        if let Some(completion) = conn.qp().poll_completion() {
            break completion.status;
        }
        if conn.poll_receive()?.is_some() {
            answer(&conn, op)?;
            break conn.completion()?.status;
        }
    };
    equal(status, Status::LocProtErr, "status")?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(4080, &[7; 16])
}

//= RC-REQ-13 type=test
fn gone_before_result(bench: &Bench<'_>, op: WorkOp) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let len = if op == READ { 64 } else { 8 };
    conn.post_send(&Work::new(1, op, Buffer::new(2048, len)))?;
    conn.receive()?;
    conn.deregister(0)?;
    answer(&conn, op)?;
    conn.expect_completion(1, Status::LocProtErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(2048, &[0; 64])
}

//= UC-11 UD-12 type=test
fn local_error(bench: &Bench<'_>, service: Service, op: WorkOp) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            service,
            ..QpSpec::default()
        },
    )?;
    let buffer = Buffer {
        bad_key: true,
        ..Buffer::new(0, 8)
    };
    conn.post_send(&Work::new(1, op, buffer))?;
    conn.expect_completion(1, Status::LocProtErr)?;
    conn.expect_silence()
}

/// Checks that no packet is sent, whatever the program is told.
//= UD-02 type=test
fn long_datagram(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec {
        service: Service::Ud,
        regions: vec![RegionSpec::new(8192)],
        ..QpSpec::default()
    })?;
    let posted = conn.post_send(&Work::new(1, SEND, Buffer::new(0, 4100)));
    match posted {
        Err(CaseError::Skipped(_)) => {}
        posted => posted?,
    }
    conn.expect_silence()
}

fn window(rkey: Rkey) -> WindowBind {
    WindowBind {
        rkey,
        region: 0,
        offset: 1024,
        len: 1024,
        rights: Rights {
            flush: false,
            ..Rights::ALL
        },
        zero_based: false,
    }
}

fn bind(conn: &Conn<'_>, id: u64, bind: WindowBind) -> CaseResult {
    conn.post_send(&Work::new(id, WorkOp::Bind(bind), Buffer::new(0, 0)))
}

//= MW-04 MW-05 type=test
fn bad_bind(bench: &Bench<'_>, change: impl Fn(WindowBind) -> WindowBind) -> CaseResult {
    let conn = connect(bench, spec())?;
    let rkey = conn.window()?;
    match bind(&conn, 1, change(window(rkey))) {
        // A library may see the mistake before it posts.
        Err(CaseError::Skipped(_)) => return conn.expect_silence(),
        posted => posted?,
    }
    conn.expect_completion(1, Status::MwBindErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

//= MW-02 MW-05 type=test
fn bound_twice(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, spec())?;
    let rkey = conn.window()?;
    bind(&conn, 1, window(rkey))?;
    conn.expect_completion(1, Status::Success)?;
    bind(&conn, 2, window(Rkey::new(rkey.get() ^ 1)))?;
    conn.expect_completion(2, Status::MwBindErr)?;
    conn.expect_state(State::Err)
}

/// The library refuses the request, or it fails. Nothing is sent.
//= PST-10 type=test
fn none_such(bench: &Bench<'_>, service: Service, op: WorkOp) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            service,
            ..QpSpec::default()
        },
    )?;
    match conn.post_send(&Work::new(1, op, Buffer::new(0, 8))) {
        Err(CaseError::Skipped(_)) => return conn.expect_silence(),
        posted => posted?,
    }
    conn.expect_completion(1, Status::LocQpOpErr)?;
    conn.expect_silence()
}

//= PST-03 type=test
fn not_ready(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            service,
            state: State::Rtr,
            ..QpSpec::default()
        },
    )?;
    match conn.post_send(&Work::new(1, SEND, Buffer::new(0, 8))) {
        Err(CaseError::Skipped(_)) => conn.expect_silence(),
        Err(error) => Err(error),
        Ok(()) => fail("a request was posted in RTR"),
    }
}

/// The most requests that are posted to fill a queue. A device may have more entries than the
/// program has asked for.
const MANY: u64 = 200;

/// Posts until the queue is full, and returns the number of posted requests.
fn fill(post: impl Fn(u64) -> CaseResult) -> CaseResult<u64> {
    for id in 0..MANY {
        match post(id) {
            Ok(()) => {}
            Err(CaseError::Skipped(_)) => return Ok(id),
            Err(error) => return Err(error),
        }
    }
    Err(CaseError::Skipped(
        "the queue is longer than the case can fill".to_owned(),
    ))
}

/// Checks that earlier requests are executed, and that a request fits again afterwards.
//= PST-09 type=test
fn send_queue_full(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let posted = fill(|id| post(&conn, id, WRITE, 8))?;
    for id in 0..posted {
        let index = i32::try_from(id).unwrap_or(i32::MAX);
        conn.expect_request(Operation::WriteOnly, index)?;
        conn.ack(index, u32::try_from(id + 1).unwrap_or(0))?;
        conn.expect_completion(id, Status::Success)?;
    }
    post(&conn, posted, WRITE, 8)?;
    let index = i32::try_from(posted).unwrap_or(i32::MAX);
    conn.expect_request(Operation::WriteOnly, index).map(drop)
}

//= PST-09 type=test
fn receive_queue_full(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let posted = fill(|id| conn.post_recv(id, Buffer::new(1024, 64)))?;
    conn.send_only(0, &pattern(8))?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(0, Status::Success)?;
    conn.post_recv(posted, Buffer::new(1024, 64))?;
    conn.send_only(1, &pattern(8))?;
    conn.expect_ack(1, 2)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

/// A device may refuse to queue the request instead.
//= RC-LIM-02 type=test
fn no_atomics(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(
        bench,
        QpSpec {
            max_rd_atomic: 0,
            ..QpSpec::default()
        },
    )?;
    match conn.post_send(&Work::new(1, ADD, Buffer::new(2048, 8))) {
        Err(CaseError::Skipped(_)) => return conn.expect_silence(),
        posted => posted?,
    }
    conn.expect_completion(1, Status::LocQpOpErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

/// More requests complete than the completion queue has entries.
//= CQ-02 CQ-15 type=test
fn full_of_sends(bench: &Bench<'_>) -> CaseResult {
    const REQUESTS: u64 = 60;
    let conn = connect(
        bench,
        QpSpec {
            cq_depth: 1,
            ..QpSpec::default()
        },
    )?;
    for id in 0..REQUESTS {
        post(&conn, id, WRITE, 8)?;
    }
    for index in 0..60 {
        conn.expect_request(Operation::WriteOnly, index)?;
        conn.ack(index, u32::try_from(index + 1).unwrap_or(0))?;
    }
    conn.note("peer does not poll its completion queue");
    conn.expect_event_of(Event::CqErr, REQUESTS)?;
    conn.expect_state(State::Err)
}
