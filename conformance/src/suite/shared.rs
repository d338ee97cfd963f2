//! Receives that several queue pairs share: shared receive queues and XRC.

use rocade_wire::{NakCode, Operation};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    case::equal,
    peer::{Buffer, Event, ReceivesFrom, RegionSpec, State, Status},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("RC-WQE-12", "memory-of-the-queues-domain", |b| {
        queues_domain(b, ReceivesFrom::Shared)
    }),
    Case::responder("RC-WQE-12", "memory-of-the-queue-pairs-domain", |b| {
        other_domain(b, ReceivesFrom::Shared)
    }),
    Case::responder("RC-RSP-06", "empty-shared-queue", |b| {
        empty(b, ReceivesFrom::Shared)
    }),
    Case::responder("RC-STA-09", "receives-stay-in-their-queue", |b| {
        stay(b, ReceivesFrom::Shared)
    }),
    Case::responder("XRC-02", "message-of-several-packets", |b| {
        queues_domain(b, ReceivesFrom::Xrc)
    }),
    Case::responder("XRC-04", "receive-in-another-domain", |b| {
        other_domain(b, ReceivesFrom::Xrc)
    }),
    Case::responder("XRC-07", "empty-queue", |b| empty(b, ReceivesFrom::Xrc)),
    Case::responder("XRC-16", "receives-stay-in-their-queue", |b| {
        stay(b, ReceivesFrom::Xrc)
    })
    .should(),
    Case::responder("XRC-04", "write-read-and-atomic", remote_access),
    Case::responder("XRC-04", "write-to-another-domain", |b| {
        no_access(b, |c| c.write(0, 0, &[1]))
    }),
    Case::responder("XRC-04", "read-of-another-domain", |b| {
        no_access(b, |c| c.read(0, 0, 8))
    }),
    Case::responder("XRC-04", "atomic-in-another-domain", |b| {
        no_access(b, |c| c.atomic(0, 0, 1, None))
    }),
    Case::responder("XRC-06", "send-to-an-unknown-queue", |b| {
        unknown_queue(b, |c| c.request(Operation::SendOnly, 0).ack_req())
    }),
    Case::responder("XRC-06", "write-through-an-unknown-queue", |b| {
        unknown_queue(b, |c| c.write(0, 0, &[1]))
    }),
    Case::responder("XRC-06", "read-through-an-unknown-queue", |b| {
        unknown_queue(b, |c| c.read(0, 0, 8))
    }),
    Case::responder("XRC-03", "another-queue-in-the-middle", changed_queue),
    Case::responder("BTH-15", "rc-request-to-an-xrc-target", other_service),
];

/// Returns a queue pair with receives in a region, which is optionally in the shared queue's
/// protection domain.
fn spec(receives_from: ReceivesFrom, foreign_pd: bool, receives: usize) -> QpSpec {
    QpSpec {
        receives_from,
        regions: vec![RegionSpec {
            foreign_pd,
            ..RegionSpec::new(4096)
        }],
        receives: vec![Buffer::new(0, 1024); receives],
        ..QpSpec::default()
    }
}

fn full(conn: &Conn<'_>, operation: Operation, index: i32) -> PacketBuilder {
    conn.request(operation, index)
        .payload(&pattern(conn.pmtu()))
        .ack_req()
}

//= RC-WQE-12 XRC-02 XRC-05 type=test
fn queues_domain(bench: &Bench<'_>, from: ReceivesFrom) -> CaseResult {
    let conn = bench.connect(spec(from, true, 2))?;
    conn.send_only(0, &pattern(100))?;
    conn.expect_ack(0, 1)?;
    equal(
        conn.expect_completion(0, Status::Success)?.byte_len,
        100,
        "length",
    )?;
    conn.expect_memory(0, &pattern(100))?;
    for (operation, index) in [
        (Operation::SendFirst, 1),
        (Operation::SendMiddle, 2),
        (Operation::SendLast, 3),
    ] {
        conn.send(&full(&conn, operation, index))?;
    }
    conn.expect_ack_up_to(3, 2)?;
    let len = 3 * conn.pmtu();
    let completion = conn.expect_completion(1, Status::Success)?;
    equal(completion.byte_len as usize, len, "length")?;
    conn.expect_memory(len - conn.pmtu(), &pattern(conn.pmtu()))
}

//= RC-WQE-12 XRC-04 type=test
fn other_domain(bench: &Bench<'_>, from: ReceivesFrom) -> CaseResult {
    let conn = bench.connect(spec(from, false, 1))?;
    conn.send_only(0, &[1; 8])?;
    conn.expect_nak(0, NakCode::RemoteOperational, 0)?;
    conn.expect_completion(0, Status::LocProtErr)?;
    conn.expect_memory(0, &[0; 8])?;
    conn.expect_state(State::Err)
}

//= RC-RSP-06 XRC-07 type=test
fn empty(bench: &Bench<'_>, from: ReceivesFrom) -> CaseResult {
    let conn = bench.connect(spec(from, true, 0))?;
    conn.send_only(0, &[1; 8])?;
    let timer = conn.expect_rnr_nak(0, 0)?;
    equal(timer, QpSpec::default().min_rnr_timer, "RNR timer")?;
    conn.post_recv(7, Buffer::new(0, 1024))?;
    conn.send_only(0, &[1; 8])?;
    conn.expect_ack(0, 1)?;
    conn.expect_completion(7, Status::Success).map(drop)
}

//= RC-STA-08 RC-STA-09 XRC-16 type=test
fn stay(bench: &Bench<'_>, from: ReceivesFrom) -> CaseResult {
    let conn = bench.connect(QpSpec {
        state: State::Rts,
        ..spec(from, true, 3)
    })?;
    conn.send(&full(&conn, Operation::SendFirst, 0))?;
    conn.expect_ack(0, 0)?;
    while conn.qp().poll_event().is_some() {}
    conn.to_error()?;
    conn.expect_completion(0, Status::WrFlushErr)?;
    conn.expect_event(Event::LastWqeReached)?;
    conn.expect_no_completion()
}

//= XRC-04 type=test
fn remote_access(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(ReceivesFrom::Xrc, true, 0))?;
    conn.write_only(0, 8, &pattern(64))?;
    conn.expect_ack(0, 1)?;
    conn.expect_memory(8, &pattern(64))?;
    conn.send(&conn.read(1, 8, 600))?;
    let expected = [pattern(64), vec![0; 536]].concat();
    conn.expect_read_response(1, &expected, 2)?;
    conn.send(&conn.atomic(4, 0, 5, None))?;
    conn.expect_atomic_ack(4, 0, 3)?;
    conn.expect_memory(0, &5u64.to_ne_bytes())
}

//= XRC-04 type=test
fn no_access(bench: &Bench<'_>, packet: impl Fn(&Conn<'_>) -> PacketBuilder) -> CaseResult {
    let conn = bench.connect(spec(ReceivesFrom::Xrc, false, 0))?;
    conn.send(&packet(&conn))?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_memory(0, &[0; 8])?;
    conn.expect_state(State::Err)
}

//= XRC-06 type=test
fn unknown_queue(bench: &Bench<'_>, packet: impl Fn(&Conn<'_>) -> PacketBuilder) -> CaseResult {
    let conn = bench.connect(spec(ReceivesFrom::Xrc, true, 1))?;
    conn.send(&packet(&conn).edit(|h| {
        if let Some(eth) = &mut h.xrceth {
            eth.srqn ^= 1;
        }
    }))?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_state(State::Err)?;
    conn.expect_no_completion()?;
    conn.expect_memory(0, &[0; 8])
}

//= XRC-03 type=test
fn changed_queue(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(ReceivesFrom::Xrc, true, 1))?;
    conn.send(&full(&conn, Operation::SendFirst, 0))?;
    conn.expect_ack(0, 0)?;
    conn.send(&full(&conn, Operation::SendLast, 1).edit(|h| {
        if let Some(eth) = &mut h.xrceth {
            eth.srqn ^= 1;
        }
    }))?;
    conn.expect_nak(1, NakCode::InvalidRequest, 0)?;
    conn.expect_completion(0, Status::RemInvReqErr)?;
    conn.expect_state(State::Err)
}

//= BTH-15 type=test
fn other_service(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(ReceivesFrom::Xrc, true, 1))?;
    conn.send(&conn.rc_request(Operation::SendOnly, 0).ack_req())?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.send_only(0, &[1; 8])?;
    conn.expect_ack(0, 1)
}
