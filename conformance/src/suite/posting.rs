//! Requests of the owner: completions of failed requests only, buffers that the device must not
//! write, states before RTR, a reset, and the limit of a shared queue.

use rocade_wire::{NakCode, Operation, Rkey, Service};

use super::{
    pattern,
    requester::{READ, SEND, WRITE, connect, post},
};
use crate::{
    Bench, Case, CaseError, CaseResult, Conn, QpSpec,
    bench::POSITIVE,
    case::{equal, fail},
    peer::{
        Buffer, Event, ReceivesFrom, RegionSpec, Rights, State, Status, WindowBind, Work, WorkOp,
    },
};

pub(super) const CASES: &[Case] = &[
    Case::requester("RC-WQE-02", "success-without-a-completion", silent_success),
    Case::requester("RC-WQE-02", "a-refused-request-completes", refused).also(&["RC-REQ-08"]),
    Case::requester("RC-WQE-02", "a-local-error-completes", local_error).also(&["RC-REQ-14"]),
    Case::requester("RC-WQE-02", "what-follows-an-error-completes", flushed)
        .also(&["RC-STA-01", "RC-REQ-07"]),
    Case::requester("MR-13", "sends-need-no-local-write", read_only_send),
    Case::requester("MR-13", "reads-need-local-write", |b| {
        read_only_result(b, READ)
    })
    .also(&["RC-REQ-13"]),
    Case::requester("MR-13", "atomics-need-local-write", |b| {
        read_only_result(b, ADD)
    })
    .also(&["RC-REQ-13"]),
    Case::responder("MR-13", "receives-need-local-write", |b| {
        read_only_receive(b, ReceivesFrom::Own)
    })
    .also(&["RC-RSP-12", "RC-ERR-A"]),
    Case::responder("MR-13", "shared-receives-need-local-write", |b| {
        read_only_receive(b, ReceivesFrom::Shared)
    })
    .also(&["RC-RSP-12", "RC-ERR-A"]),
    Case::requester("MW-04", "windows-for-writes-need-local-write", |b| {
        bad_bind(b, WRITES, 1024)
    })
    .also(&["MW-05"]),
    Case::requester("MW-04", "windows-for-atomics-need-local-write", |b| {
        bad_bind(b, ATOMICS, 1024)
    })
    .also(&["MW-05"]),
    Case::requester("MW-04", "bind-from-before-a-region", |b| {
        bad_bind(b, READS, 0usize.wrapping_sub(8))
    })
    .also(&["MW-05"]),
    Case::responder(
        "MW-04",
        "windows-for-reads-need-no-local-write",
        read_only_window,
    )
    .also(&["MW-08"]),
    Case::responder(
        "RC-SEG-02",
        "empty-requests-outside-of-a-window",
        empty_outside,
    ),
    Case::responder("RC-RSP-01", "rc-requests-in-init", |b| {
        in_init(b, Service::Rc)
    }),
    Case::responder("RC-RSP-01", "uc-requests-in-init", |b| {
        in_init(b, Service::Uc)
    }),
    Case::responder("RC-RSP-01", "datagrams-in-init", |b| {
        in_init(b, Service::Ud)
    }),
    Case::requester("PST-02", "rc-sends-nothing-in-init", |b| {
        refused_in_init(b, Service::Rc)
    }),
    Case::requester("PST-02", "uc-sends-nothing-in-init", |b| {
        refused_in_init(b, Service::Uc)
    }),
    Case::requester("PST-02", "ud-sends-nothing-in-init", |b| {
        refused_in_init(b, Service::Ud)
    }),
    Case::requester(
        "RC-STA-04",
        "requests-end-without-a-completion",
        reset_sends,
    ),
    Case::responder(
        "RC-STA-04",
        "receives-end-without-a-completion",
        reset_receives,
    ),
    Case::responder("RC-STA-04", "an-error-ends", reset_error).also(&["RC-STA-01"]),
    Case::responder("SRQ-04", "limit-of-a-shared-queue", limit),
];

const VA: u64 = 0x0000_7f00_dead_0008;
const RKEY: Rkey = Rkey::new(0x1234_5678);

const ADD: WorkOp = WorkOp::FetchAdd {
    va: VA,
    rkey: RKEY,
    add: 1,
};

const READS: Rights = Rights {
    read: true,
    ..Rights::NONE
};
const WRITES: Rights = Rights {
    write: true,
    ..Rights::NONE
};
const ATOMICS: Rights = Rights {
    atomic: true,
    ..Rights::NONE
};

/// Posts a request for the first 8 bytes that completes only if it fails.
fn post_unsignaled(conn: &Conn<'_>, id: u64, buffer: Buffer) -> CaseResult {
    conn.post_send(&Work {
        signaled: false,
        ..Work::new(id, SEND, buffer)
    })
}

//= RC-WQE-02 type=test
fn silent_success(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_unsignaled(&conn, 1, Buffer::new(0, 8))?;
    post(&conn, 2, WRITE, 8)?;
    post_unsignaled(&conn, 3, Buffer::new(0, 8))?;
    for (index, operation) in [
        Operation::SendOnly,
        Operation::WriteOnly,
        Operation::SendOnly,
    ]
    .into_iter()
    .enumerate()
    {
        conn.expect_request(operation, i32::try_from(index).unwrap_or(0))?;
    }
    conn.ack(2, 3)?;
    conn.expect_completion(2, Status::Success)?;
    conn.expect_no_completion()
}

//= RC-WQE-02 RC-REQ-08 type=test
fn refused(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post_unsignaled(&conn, 1, Buffer::new(0, 8))?;
    conn.expect_request(Operation::SendOnly, 0)?;
    conn.nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_completion(1, Status::RemAccessErr)?;
    conn.expect_state(State::Err)
}

//= RC-WQE-02 RC-REQ-14 type=test
fn local_error(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    let buffer = Buffer {
        bad_key: true,
        ..Buffer::new(0, 8)
    };
    post_unsignaled(&conn, 1, buffer)?;
    conn.expect_completion(1, Status::LocProtErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

//= RC-WQE-02 RC-STA-01 type=test
fn flushed(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    post(&conn, 1, WRITE, 8)?;
    for id in [2, 3] {
        post_unsignaled(&conn, id, Buffer::new(0, 8))?;
    }
    conn.expect_request(Operation::WriteOnly, 0)?;
    conn.nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_completion(1, Status::RemInvReqErr)?;
    for id in [2, 3] {
        conn.expect_completion(id, Status::WrFlushErr)?;
    }
    Ok(())
}

/// Returns a queue pair with a region that the device cannot write, for binds, too.
fn read_only() -> QpSpec {
    QpSpec {
        regions: vec![RegionSpec {
            bindable: true,
            ..RegionSpec::read_only(4096)
        }],
        ..QpSpec::default()
    }
}

//= MR-13 type=test
fn read_only_send(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, read_only())?;
    post(&conn, 1, SEND, 64)?;
    let packet = conn.expect_request(Operation::SendOnly, 0)?;
    equal(packet.payload == pattern(64), true, "the data arrives")?;
    conn.ack(0, 1)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

/// A device may check the buffer before it sends, or when the result arrives.
//= MR-13 RC-REQ-13 type=test
fn read_only_result(bench: &Bench<'_>, op: WorkOp) -> CaseResult {
    let conn = bench.connect(read_only())?;
    conn.post_send(&Work::new(1, op, Buffer::new(2048, 8)))?;
    let status = loop {
        if let Some(completion) = conn.qp().poll_completion() {
            break completion.status;
        }
        if conn.poll_receive()?.is_some() {
            if op == READ {
                conn.read_response(Operation::ReadResponseOnly, 0, &[0xbd; 8], 1)?;
            } else {
                let response = conn.answer(Operation::AtomicAcknowledge, 0);
                let msn = rocade_wire::Msn::new(1);
                conn.send(&response.aeth(POSITIVE, msn).atomic_ack(u64::MAX))?;
            }
            break conn.completion()?.status;
        }
    };
    equal(status, Status::LocProtErr, "status")?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(2048, &[0; 8])
}

//= MR-13 RC-RSP-12 type=test
fn read_only_receive(bench: &Bench<'_>, receives_from: ReceivesFrom) -> CaseResult {
    let mut spec = QpSpec {
        receives_from,
        receives: vec![Buffer::new(1024, 64)],
        ..read_only()
    };
    spec.regions[0].foreign_pd = receives_from == ReceivesFrom::Shared;
    let conn = bench.connect(spec)?;
    conn.send_only(0, &[0xbd; 16])?;
    conn.expect_nak(0, NakCode::RemoteOperational, 0)?;
    conn.expect_completion(0, Status::LocProtErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(1024, &[0; 16])
}

/// Returns a window of 1024 bytes on the first region.
fn window(rkey: Rkey, rights: Rights, offset: usize) -> WorkOp {
    WorkOp::Bind(WindowBind {
        rkey,
        region: 0,
        offset,
        len: 1024,
        rights,
        zero_based: false,
    })
}

//= MW-04 MW-05 type=test
fn bad_bind(bench: &Bench<'_>, rights: Rights, offset: usize) -> CaseResult {
    let conn = bench.connect(read_only())?;
    let bind = window(conn.window()?, rights, offset);
    match conn.post_send(&Work::new(1, bind, Buffer::new(0, 0))) {
        // A library may see the mistake before it posts.
        Err(CaseError::Skipped(_)) => return conn.expect_silence(),
        posted => posted?,
    }
    conn.expect_completion(1, Status::MwBindErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_silence()
}

/// Returns a connection with a window to read bytes 1024 to 2047.
fn readable<'b>(bench: &'b Bench<'b>) -> CaseResult<(Conn<'b>, Rkey)> {
    let conn = connect(bench, read_only())?;
    let rkey = conn.window()?;
    let bind = window(rkey, READS, 1024);
    conn.post_send(&Work::new(1, bind, Buffer::new(0, 0)))?;
    conn.expect_completion(1, Status::Success)?;
    Ok((conn, rkey))
}

//= MW-04 MW-08 type=test
fn read_only_window(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = readable(bench)?;
    let va = conn.region().va + 1024;
    let read = conn.request(Operation::ReadRequest, 0).ack_req();
    conn.send(&read.reth(va, rkey, 64))?;
    conn.expect_read_response(0, &pattern(2048)[1024..1088], 1)
}

//= RC-SEG-02 type=test
fn empty_outside(bench: &Bench<'_>) -> CaseResult {
    let (conn, rkey) = readable(bench)?;
    let va = conn.region().va;
    // The window has no right to write either.
    let write = conn.request(Operation::WriteOnly, 0).ack_req();
    conn.send(&write.reth(va, rkey, 0))?;
    conn.expect_ack(0, 1)?;
    let read = conn.request(Operation::ReadRequest, 1).ack_req();
    conn.send(&read.reth(va, rkey, 0))?;
    conn.expect_read_response(1, &[], 2)
}

/// Returns a queue pair in INIT, with a receive.
fn init(service: Service) -> QpSpec {
    QpSpec {
        service,
        state: State::Init,
        receives: vec![Buffer::new(1024, 512)],
        ..QpSpec::default()
    }
}

//= RC-RSP-01 PST-02 type=test
fn in_init(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = bench.connect(init(service))?;
    conn.send(&conn.request(Operation::SendOnly, 0).payload(&[0xbd; 16]))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_memory(1024, &[0; 128])?;
    conn.expect_state(State::Init)
}

//= PST-02 type=test
fn refused_in_init(bench: &Bench<'_>, service: Service) -> CaseResult {
    let conn = bench.connect(init(service))?;
    match post(&conn, 1, SEND, 8) {
        Err(CaseError::Skipped(_)) => conn.expect_silence(),
        Err(error) => Err(error),
        Ok(()) => fail("a request was posted in INIT"),
    }
}

//= RC-STA-04 RC-PSN-04 type=test
fn reset_sends(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, QpSpec::default())?;
    for id in [1, 2] {
        post(&conn, id, WRITE, 8)?;
    }
    conn.expect_request(Operation::WriteOnly, 0)?;
    conn.expect_request(Operation::WriteOnly, 1)?;
    conn.reset()?;
    // The acknowledgement of the requests before the reset is one of a PSN that was not sent.
    conn.ack(1, 2)?;
    conn.expect_no_completion()?;
    post(&conn, 3, SEND, 8)?;
    conn.expect_request(Operation::SendOnly, 0)?;
    conn.ack(0, 1)?;
    conn.expect_completion(3, Status::Success)?;
    conn.expect_no_completion()
}

/// The PSN and the MSN start again.
//= RC-STA-04 RC-RSP-24 type=test
fn reset_receives(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec {
        receives: vec![Buffer::new(0, 64), Buffer::new(64, 64)],
        ..QpSpec::default()
    })?;
    conn.send_only(0, b"before")?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(0, Status::Success)?;
    conn.reset()?;
    conn.expect_no_completion()?;
    conn.post_recv(7, Buffer::new(128, 64))?;
    conn.send_only(0, b"after")?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(7, Status::Success)?;
    conn.expect_memory(64, &[0; 64])?;
    conn.expect_memory(128, b"after")
}

//= RC-STA-04 type=test
fn reset_error(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(&conn.atomic(0, 4, 1, None))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_state(State::Err)?;
    conn.reset()?;
    conn.expect_state(State::Rts)?;
    conn.post_recv(7, Buffer::new(128, 64))?;
    conn.send_only(0, b"again")?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(7, Status::Success)?;
    conn.expect_memory(128, b"again")
}

/// The event comes with the message that leaves fewer receives than the limit, and only once.
//= SRQ-04 type=test
fn limit(bench: &Bench<'_>) -> CaseResult {
    let mut spec = QpSpec {
        receives_from: ReceivesFrom::Shared,
        receives: (0..4).map(|index| Buffer::new(64 * index, 64)).collect(),
        ..QpSpec::default()
    };
    spec.regions[0].foreign_pd = true;
    let conn = bench.connect(spec)?;
    conn.limit(3)?;
    for index in 0..4 {
        conn.send_only(index, b"a message")?;
        conn.expect_ack(index, u32::try_from(index + 1).unwrap_or(0))?;
        conn.expect_completion(u64::try_from(index).unwrap_or(0), Status::Success)?;
        if index == 1 {
            conn.expect_event(Event::SrqLimitReached)?;
        } else {
            conn.expect_no_event()?;
        }
    }
    Ok(())
}
