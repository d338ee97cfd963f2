//! The peer as initiator of dynamic connections, in Rocade's own encoding. The rig has the targets.

use std::time::Instant;

use rocade_wire::{
    DcEth, DcRespEth, Deth, Msn, NakCode, Opcode, Operation, Psn, Qkey, Qpn, Reth, Rkey,
    RocadeProbe, Service, Syndrome,
};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    bench::POSITIVE,
    case::{equal, fail},
    peer::{Buffer, DC_KEY, State, Status, Work, WorkOp, ack_timeout, rnr_timer},
    rig::{Received, Via},
};

pub(super) const CASES: &[Case] = &[
    Case::requester("DCW-18", "asks-before-it-sends", asks),
    Case::requester("DCW-18", "nothing-without-an-answer", unanswered),
    Case::requester("DCW-18", "what-is-no-answer", no_answer),
    Case::requester("DCW-03", "every-packet-names-the-session", several),
    Case::requester("DC-04", "read-and-atomic", fetches),
    Case::requester("DC-06", "another-target-waits", turns),
    Case::requester("DCW-12", "a-session-without-work-ends", rests),
    Case::requester("DCW-06", "answers-of-others", third_hosts),
    Case::requester("DCW-10", "the-start-is-lost", start_lost),
    Case::requester("DCW-10", "the-target-has-forgotten", forgotten),
    Case::requester("DCW-11", "the-target-is-not-ready", not_ready),
    Case::requester("DC-09", "a-refusal-ends-the-initiator", refused),
    Case::requester("DC-05", "an-initiator-receives-nothing", receives_nothing),
];

const SEND: WorkOp = WorkOp::Send { imm: None };
const VA: u64 = 0x0123_4567_89ab_cd00;
const RKEY: Rkey = Rkey::new(0x00fe_d123);

fn spec() -> QpSpec {
    QpSpec {
        service: Service::Dc,
        initiates: true,
        ..QpSpec::default()
    }
}

/// Connects an initiator whose memory contains a pattern.
fn connect<'b>(bench: &'b Bench<'_>, spec: QpSpec) -> CaseResult<Conn<'b>> {
    let conn = bench.connect(spec)?;
    conn.qp().write_memory(0, 0, &pattern(2048));
    Ok(conn)
}

fn post(conn: &Conn<'_>, id: u64, op: WorkOp, len: u32) -> CaseResult {
    conn.post_send(&Work::new(id, op, Buffer::new(0, len)))
}

/// Expects the datagram that asks whether the rig is Rocade.
fn expect_question(conn: &Conn<'_>) -> CaseResult {
    let packet = conn.receive()?;
    if !is_question(conn, &packet) {
        return fail(format!("{} instead of a hello datagram", packet.headers));
    }
    Ok(())
}

/// Returns true if the packet is the datagram that asks whether the rig is Rocade.
pub(super) fn is_question(conn: &Conn<'_>, packet: &Received) -> bool {
    let deth = packet
        .headers
        .deth
        .map(|deth| (deth.qkey.get(), deth.src_qp));
    packet.headers.bth.opcode == Opcode::new(0x64)
        && deth == Some((RocadeProbe::QKEY, conn.qp().qpn()))
        && RocadeProbe::from_payload(&packet.payload) == Some(RocadeProbe::Request)
}

fn datagram(conn: &Conn<'_>, qkey: u32, payload: &[u8]) -> PacketBuilder {
    let packet = PacketBuilder::new(Opcode::new(0x64), conn.qp().qpn(), Psn::new(0));
    packet.payload(payload).edit(|headers| {
        headers.deth = Some(Deth {
            qkey: Qkey::new(qkey),
            src_qp: conn.rig_qpn(),
            resv: 0,
        });
    })
}

/// Answers that the rig is Rocade.
pub(super) fn say_yes(conn: &Conn<'_>) -> CaseResult {
    conn.send(&datagram(
        conn,
        RocadeProbe::QKEY,
        &RocadeProbe::Reply.to_bytes(),
    ))
}

/// Returns the DCETH of a request, which must have a session of this initiator and the suite's key.
fn session_of(conn: &Conn<'_>, packet: &Received) -> CaseResult<DcEth> {
    let Some(eth) = packet.headers.dceth else {
        return fail(format!("no DCETH in {}", packet.headers));
    };
    equal(packet.headers.bth.opcode.service(), Service::Dc, "service")?;
    equal(eth.key, DC_KEY, "access key")?;
    equal(eth.dci, conn.qp().qpn(), "number of the initiator")?;
    equal(
        (eth.pmtu, eth.stream_channel),
        (1, 0),
        "path MTU and stream channel",
    )?;
    Ok(eth)
}

/// Expects this request. `start` says whether the request starts the session.
fn expect(
    conn: &Conn<'_>,
    operation: Operation,
    index: i32,
    start: bool,
) -> CaseResult<(Received, u32)> {
    let packet = conn.expect_request(operation, index)?;
    let eth = session_of(conn, &packet)?;
    equal(eth.start, start, "START")?;
    Ok((packet, eth.session))
}

/// Expects this request in an existing session, like [`expect`].
fn expect_in(
    conn: &Conn<'_>,
    operation: Operation,
    index: i32,
    start: bool,
    session: u32,
) -> CaseResult<Received> {
    let (packet, actual) = expect(conn, operation, index, start)?;
    equal(actual, session, "session")?;
    Ok(packet)
}

fn answer(conn: &Conn<'_>, operation: Operation, index: i32, session: u32) -> PacketBuilder {
    let packet = conn.answer(operation, index);
    packet.edit(|headers| headers.dcreth = Some(DcRespEth { session }))
}

fn acknowledge(conn: &Conn<'_>, index: i32, session: u32, syndrome: Syndrome) -> CaseResult {
    let packet = answer(conn, Operation::Acknowledge, index, session);
    conn.send(&packet.aeth(syndrome, Msn::new(1)))
}

fn refuse(conn: &Conn<'_>, index: i32, session: u32, code: u8) -> CaseResult {
    let nak = Syndrome::Nak(NakCode::Reserved(code));
    acknowledge(conn, index, session, nak)
}

/// Returns an initiator that has detected the rig and sent request 0, a SEND of 8 bytes with ID 0,
/// and the session.
fn begun<'b>(bench: &'b Bench<'_>, spec: QpSpec) -> CaseResult<(Conn<'b>, u32)> {
    let conn = connect(bench, spec)?;
    post(&conn, 0, SEND, 8)?;
    expect_question(&conn)?;
    say_yes(&conn)?;
    let (packet, session) = expect(&conn, Operation::SendOnly, 0, true)?;
    equal(packet.payload, pattern(8), "data")?;
    Ok((conn, session))
}

//= DCW-18 DCW-08 type=test
fn asks(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, spec())?;
    post(&conn, 0, SEND, 8)?;
    expect_question(&conn)?;
    conn.expect_silence()?;
    say_yes(&conn)?;
    let (_, session) = expect(&conn, Operation::SendOnly, 0, true)?;
    conn.expect_no_completion()?;
    acknowledge(&conn, 0, session, POSITIVE)?;
    conn.expect_completion(0, Status::Success)?;
    // The initiator does not send the datagram again.
    post(&conn, 1, SEND, 8)?;
    expect(&conn, Operation::SendOnly, 1, false)?;
    acknowledge(&conn, 1, session, POSITIVE)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= DCW-18 DC-09 type=test
fn unanswered(bench: &Bench<'_>) -> CaseResult {
    let patient = QpSpec {
        ack_timeout: ack_timeout(13),
        retry_cnt: 2,
        ..spec()
    };
    let conn = connect(bench, patient)?;
    let began = Instant::now();
    post(&conn, 0, SEND, 8)?;
    post(&conn, 1, SEND, 8)?;
    for _ in 0..3 {
        expect_question(&conn)?;
    }
    conn.expect_completion(0, Status::RetryExcErr)?;
    conn.expect_completion(1, Status::WrFlushErr)?;
    conn.expect_state(State::Err)?;
    // Three times 34 ms.
    if began.elapsed().as_millis() < 100 {
        return fail("the peer did not wait for the answers");
    }
    conn.expect_silence()
}

//= DCW-18 type=test
fn no_answer(bench: &Bench<'_>) -> CaseResult {
    let conn = connect(bench, spec())?;
    post(&conn, 0, SEND, 8)?;
    expect_question(&conn)?;
    let yes = RocadeProbe::Reply.to_bytes();
    for (qkey, payload) in [
        (crate::peer::QKEY, &yes[..]),
        (RocadeProbe::QKEY, &yes[..7]),
        (RocadeProbe::QKEY, &RocadeProbe::Request.to_bytes()),
        (RocadeProbe::QKEY, &[0; 8]),
    ] {
        conn.send(&datagram(&conn, qkey, payload))?;
    }
    conn.send(&datagram(&conn, RocadeProbe::QKEY, &yes).via(Via::ThirdHost))?;
    conn.expect_silence()?;
    say_yes(&conn)?;
    expect(&conn, Operation::SendOnly, 0, true).map(drop)
}

//= DCW-01 DCW-03 DCW-04 type=test
//= DCW-05 DCW-08 type=test
fn several(bench: &Bench<'_>) -> CaseResult {
    let (conn, session) = begun(bench, spec())?;
    acknowledge(&conn, 0, session, POSITIVE)?;
    conn.expect_completion(0, Status::Success)?;
    let op = WorkOp::Write {
        va: VA,
        rkey: RKEY,
        imm: None,
    };
    post(&conn, 1, op, 600)?;
    let first = expect_in(&conn, Operation::WriteFirst, 1, false, session)?;
    let reth = Reth {
        va: VA,
        rkey: RKEY,
        dma_len: 600,
    };
    equal(first.headers.reth, Some(reth), "RETH")?;
    let middle = expect_in(&conn, Operation::WriteMiddle, 2, false, session)?;
    let last = expect_in(&conn, Operation::WriteLast, 3, false, session)?;
    equal(last.headers.bth.ack_req, true, "AckReq")?;
    let data = [first.payload, middle.payload, last.payload].concat();
    equal(data, pattern(600), "data")?;
    acknowledge(&conn, 3, session, POSITIVE)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= DC-04 DCW-01 type=test
fn fetches(bench: &Bench<'_>) -> CaseResult {
    let (conn, session) = begun(bench, spec())?;
    acknowledge(&conn, 0, session, POSITIVE)?;
    conn.expect_completion(0, Status::Success)?;
    let read = WorkOp::Read { va: VA, rkey: RKEY };
    conn.post_send(&Work::new(1, read, Buffer::new(2048, 300)))?;
    expect_in(&conn, Operation::ReadRequest, 1, false, session)?;
    let data = pattern(300);
    for (operation, index, part) in [
        (Operation::ReadResponseFirst, 1, &data[..256]),
        (Operation::ReadResponseLast, 2, &data[256..]),
    ] {
        let packet = answer(&conn, operation, index, session).payload(part);
        conn.send(&packet.aeth(POSITIVE, Msn::new(2)))?;
    }
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(2048, &data)?;
    let add = WorkOp::FetchAdd {
        va: VA,
        rkey: RKEY,
        add: 5,
    };
    conn.post_send(&Work::new(2, add, Buffer::new(3000, 8)))?;
    let packet = expect_in(&conn, Operation::FetchAdd, 3, false, session)?;
    equal(
        packet.headers.atomic.map(|eth| eth.swap_add),
        Some(5),
        "addend",
    )?;
    let packet = answer(&conn, Operation::AtomicAcknowledge, 3, session);
    conn.send(&packet.aeth(POSITIVE, Msn::new(3)).atomic_ack(77))?;
    conn.expect_completion(2, Status::Success)?;
    conn.expect_memory(3000, &77u64.to_ne_bytes())
}

/// Expects the packet that ends the session.
fn expect_end(conn: &Conn<'_>, index: i32, session: u32) -> CaseResult {
    let packet = conn.receive()?;
    equal(packet.headers.bth.opcode, Opcode::new(0xda), "opcode")?;
    equal(packet.headers.bth.psn, conn.peer_psn(index), "PSN")?;
    equal(session_of(conn, &packet)?.session, session, "session")
}

/// Returns another target of the rig.
fn other_target(bench: &Bench<'_>) -> Qpn {
    let other = bench.rig().new_qpn();
    bench.rig().expect(other, Service::Dc);
    other
}

fn post_to(conn: &Conn<'_>, id: u64, target: Qpn) -> CaseResult {
    conn.post_send(&Work {
        target: Some(target),
        ..Work::new(id, SEND, Buffer::new(0, 8))
    })
}

//= DC-06 DC-08 DCW-07 type=test
//= DCW-12 DCW-13 type=test
fn turns(bench: &Bench<'_>) -> CaseResult {
    let (conn, session) = begun(bench, spec())?;
    let other = other_target(bench);
    post(&conn, 1, SEND, 8)?;
    post_to(&conn, 2, other)?;
    // The same target continues at once.
    expect_in(&conn, Operation::SendOnly, 1, false, session)?;
    conn.expect_silence()?;
    let at_other = || bench.rig().receive(other, bench.patience());
    equal(
        bench.rig().receive(other, Instant::now())?.is_none(),
        true,
        "no packet for the other target",
    )?;
    acknowledge(&conn, 1, session, POSITIVE)?;
    conn.expect_completion(0, Status::Success)?;
    conn.expect_completion(1, Status::Success)?;
    expect_end(&conn, 2, session)?;
    let Some(packet) = at_other()? else {
        return fail("no packet for the other target");
    };
    equal(packet.headers.bth.psn, conn.peer_psn(3), "PSN")?;
    let eth = session_of(&conn, &packet)?;
    let next = session.wrapping_add(1);
    equal((eth.session, eth.start), (next, true), "session and START")?;
    // Acknowledgements of the old session have no effect on the new one.
    acknowledge(&conn, 3, session, POSITIVE)?;
    conn.expect_no_completion()?;
    acknowledge(&conn, 3, next, POSITIVE)?;
    conn.expect_completion(2, Status::Success).map(drop)
}

//= DCW-07 DCW-12 type=test
fn rests(bench: &Bench<'_>) -> CaseResult {
    let (conn, session) = begun(bench, spec())?;
    acknowledge(&conn, 0, session, POSITIVE)?;
    conn.expect_completion(0, Status::Success)?;
    expect_end(&conn, 1, session)?;
    post(&conn, 1, SEND, 8)?;
    let next = session.wrapping_add(1);
    expect_in(&conn, Operation::SendOnly, 2, true, next)?;
    acknowledge(&conn, 2, next, POSITIVE)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= DCW-06 BTH-15 type=test
fn third_hosts(bench: &Bench<'_>) -> CaseResult {
    let (conn, session) = begun(bench, spec())?;
    let ack = |session| {
        let packet = answer(&conn, Operation::Acknowledge, 0, session);
        packet.aeth(POSITIVE, Msn::new(1))
    };
    conn.send(&ack(session).via(Via::ThirdHost))?;
    for other in [
        session.wrapping_sub(1),
        session.wrapping_add(1),
        session ^ 1 << 31,
    ] {
        conn.send(&ack(other))?;
    }
    let of_rc = ack(session).edit(|headers| {
        headers.bth.opcode = Opcode::new(0x11);
        headers.dcreth = None;
    });
    conn.send(&of_rc)?;
    conn.expect_no_completion()?;
    conn.expect_silence()?;
    conn.send(&ack(session))?;
    conn.expect_completion(0, Status::Success).map(drop)
}

//= DCW-10 type=test
fn start_lost(bench: &Bench<'_>) -> CaseResult {
    let (conn, session) = begun(bench, spec())?;
    post(&conn, 1, SEND, 8)?;
    expect_in(&conn, Operation::SendOnly, 1, false, session)?;
    // The target received only the second packet, which does not start the session, or neither
    // packet.
    refuse(&conn, 0, session, DcRespEth::NAK_NO_SESSION)?;
    for index in 0..2 {
        expect_in(&conn, Operation::SendOnly, index, index == 0, session)?;
    }
    acknowledge(&conn, 1, session, POSITIVE)?;
    conn.expect_completion(0, Status::Success)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

/// Lost requests may have been executed, so the session is not started again.
//= DCW-10 type=test
fn forgotten(bench: &Bench<'_>) -> CaseResult {
    let patient = QpSpec {
        // The count does not distinguish between retries after a NAK and those after a repeated
        // NAK.
        ack_timeout: ack_timeout(13),
        retry_cnt: 2,
        ..spec()
    };
    let (conn, session) = begun(bench, patient)?;
    acknowledge(&conn, 0, session, POSITIVE)?;
    conn.expect_completion(0, Status::Success)?;
    post(&conn, 1, SEND, 8)?;
    for _ in 0..3 {
        expect_in(&conn, Operation::SendOnly, 1, false, session)?;
        refuse(&conn, 1, session, DcRespEth::NAK_NO_SESSION)?;
    }
    conn.expect_completion(1, Status::RetryExcErr)?;
    conn.expect_state(State::Err)
}

//= DCW-11 type=test
fn not_ready(bench: &Bench<'_>) -> CaseResult {
    let (conn, session) = begun(bench, spec())?;
    acknowledge(&conn, 0, session, Syndrome::RnrNak(rnr_timer(1)))?;
    expect_in(&conn, Operation::SendOnly, 0, true, session)?;
    refuse(&conn, 0, session, DcRespEth::NAK_NO_RESOURCES)?;
    expect_in(&conn, Operation::SendOnly, 0, true, session)?;
    acknowledge(&conn, 0, session, POSITIVE)?;
    conn.expect_completion(0, Status::Success).map(drop)
}

//= DC-09 type=test
fn refused(bench: &Bench<'_>) -> CaseResult {
    let (conn, session) = begun(bench, spec())?;
    post(&conn, 1, SEND, 8)?;
    post_to(&conn, 2, other_target(bench))?;
    expect_in(&conn, Operation::SendOnly, 1, false, session)?;
    acknowledge(&conn, 0, session, Syndrome::Nak(NakCode::RemoteAccess))?;
    conn.expect_completion(0, Status::RemAccessErr)?;
    conn.expect_completion(1, Status::WrFlushErr)?;
    conn.expect_completion(2, Status::WrFlushErr)?;
    conn.expect_state(State::Err)
}

/// An initiator ignores requests, and continues to work.
//= DC-05 BTH-15 type=test
fn receives_nothing(bench: &Bench<'_>) -> CaseResult {
    let (conn, session) = begun(bench, spec())?;
    for operation in [Operation::SendOnly, Operation::WriteOnly] {
        let region = conn.region();
        let request = conn.rc_request(operation, 0).payload(&[1; 8]).ack_req();
        conn.send(&if operation == Operation::WriteOnly {
            request.reth(region.va, region.rkey, 8)
        } else {
            request
        })?;
        let request = conn.request(operation, 0).payload(&[1; 8]).ack_req();
        conn.send(&if operation == Operation::WriteOnly {
            request.reth(region.va, region.rkey, 8)
        } else {
            request
        })?;
    }
    conn.expect_silence()?;
    conn.expect_memory(0, &pattern(8))?;
    acknowledge(&conn, 0, session, POSITIVE)?;
    conn.expect_completion(0, Status::Success).map(drop)
}
