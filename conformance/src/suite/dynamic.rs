//! Dynamic connections: the rig is an initiator with hand-made packets, in Rocade's own encoding.

use std::time::{Duration, Instant};

use rocade_wire::{
    Bth, DcEth, DcRespEth, Deth, NakCode, Opcode, Operation, Pkey, Qkey, RocadeProbe, Service,
    Syndrome,
};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    case::{equal, fail},
    peer::{Buffer, DC_KEY, Event, Status},
    rig::Via,
};

pub(super) const CASES: &[Case] = &[
    Case::responder("DCW-18", "asked-it-says-that-it-is-rocade", hello),
    Case::responder("DCW-18", "other-datagrams-are-no-question", no_hello),
    Case::responder("DCW-08", "data-comes-with-the-first-packet", begins),
    Case::responder("DCW-03", "messages-of-several-packets", several),
    Case::responder("DCW-09", "a-repeated-start-is-a-duplicate", repeated),
    Case::responder("DCW-09", "an-older-session", older),
    Case::responder("DCW-09", "a-newer-session-begins-anew", newer),
    Case::responder("DCW-09", "another-address-is-another-session", third_host),
    Case::responder("DCW-11", "no-session", no_session),
    Case::responder("DCK-03", "a-forged-key", forged),
    Case::responder("DCW-14", "what-comes-after-the-end", disconnected),
    Case::responder("DCW-12", "a-disconnect-that-nobody-began", lone_end),
    Case::responder("DCW-17", "a-path-mtu-that-is-none", |b| wrong_pmtu(b, 0)),
    Case::responder("DCW-17", "a-path-mtu-beyond-the-targets", |b| {
        wrong_pmtu(b, 5)
    }),
    Case::responder("DCW-17", "of-another-partition", partition),
    Case::responder("BTH-15", "rc-request-to-a-dc-target", other_service),
    Case::responder("DC-14", "an-empty-queue", empty),
    Case::responder("DCT-11", "destroyed-under-traffic", destroyed),
];

const SESSION: u32 = u32::MAX;

fn spec(receives: usize) -> QpSpec {
    QpSpec {
        service: Service::Dc,
        receives: vec![Buffer::new(0, 1024); receives],
        ..QpSpec::default()
    }
}

fn eth(packet: PacketBuilder, edit: impl FnOnce(&mut DcEth)) -> PacketBuilder {
    packet.edit(|headers| {
        if let Some(eth) = &mut headers.dceth {
            edit(eth);
        }
    })
}

/// Returns a WRITE that starts the session.
fn start(conn: &Conn<'_>, data: &[u8]) -> PacketBuilder {
    conn.write(0, 0, data)
}

/// Expects an acknowledgement that names the session.
fn expect_ack(conn: &Conn<'_>, index: i32, session: u32, msn: u32) -> CaseResult {
    let packet = conn.receive()?;
    let headers = packet.headers;
    equal(headers.bth.opcode, Opcode::new(0xd1), "opcode")?;
    equal(headers.bth.psn, conn.psn(index), "PSN of the answer")?;
    equal(headers.dcreth, Some(DcRespEth { session }), "session")?;
    match headers.aeth {
        Some(aeth) if matches!(aeth.syndrome, Syndrome::Ack(_)) => {
            equal(aeth.msn.get(), msn, "MSN")
        }
        other => fail(format!("{other:?} instead of ACK")),
    }
}

fn ask(
    conn: &Conn<'_>,
    bench: &Bench<'_>,
    qkey: u32,
    payload: &[u8],
    patience: Instant,
) -> CaseResult<Option<RocadeProbe>> {
    let from = bench.rig().new_qpn();
    bench.rig().expect(from, Service::Ud);
    let opcode = Opcode::of(Service::Ud, Operation::SendOnly);
    let opcode = opcode.unwrap_or_else(|| Opcode::new(0x64));
    let packet = PacketBuilder::new(opcode, conn.qp().qpn(), conn.psn(0)).payload(payload);
    bench.rig().send(&packet.edit(|headers| {
        headers.deth = Some(Deth {
            qkey: Qkey::new(qkey),
            src_qp: from,
            resv: 0,
        });
    }))?;
    // A response would arrive before this one.
    conn.send(&start(conn, &[]))?;
    expect_ack(conn, 0, SESSION, 1)?;
    let deadline = patience.max(Instant::now() + Duration::from_millis(1));
    let Some(answer) = bench.rig().receive(from, deadline)? else {
        return Ok(None);
    };
    let deth = answer
        .headers
        .deth
        .map(|deth| (deth.qkey.get(), deth.src_qp));
    equal(deth, Some((RocadeProbe::QKEY, conn.qp().qpn())), "DETH")?;
    Ok(RocadeProbe::from_payload(&answer.payload))
}

//= DCW-18 type=test
fn hello(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    let question = RocadeProbe::Request.to_bytes();
    let answer = ask(&conn, bench, RocadeProbe::QKEY, &question, bench.patience())?;
    equal(answer, Some(RocadeProbe::Reply), "answer")
}

//= DCW-18 type=test
fn no_hello(bench: &Bench<'_>) -> CaseResult {
    let question = RocadeProbe::Request.to_bytes();
    for (qkey, payload) in [
        (crate::peer::QKEY, &question[..]),
        (RocadeProbe::QKEY, &question[..7]),
        (RocadeProbe::QKEY, &RocadeProbe::Reply.to_bytes()),
        (RocadeProbe::QKEY, &[0; 8]),
        (RocadeProbe::QKEY, &[]),
    ] {
        let conn = bench.connect(spec(0))?;
        let now = Instant::now();
        equal(ask(&conn, bench, qkey, payload, now)?, None, "answer")?;
    }
    Ok(())
}

//= DCW-01 DCW-04 DCW-05 type=test
//= DCW-08 type=test
fn begins(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(1))?;
    conn.send_only(0, &pattern(100))?;
    expect_ack(&conn, 0, SESSION, 1)?;
    let received = conn.expect_completion(0, Status::Success)?;
    equal(received.byte_len, 100, "length")?;
    conn.expect_memory(0, &pattern(100))?;
    conn.write_only(1, 8, &[7; 8])?;
    expect_ack(&conn, 1, SESSION, 2)?;
    conn.expect_memory(8, &[7; 8])
}

//= DCW-03 type=test
fn several(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    let region = conn.region();
    let data = pattern(600);
    let parts = [
        Operation::WriteFirst,
        Operation::WriteMiddle,
        Operation::WriteLast,
    ];
    for ((index, operation), part) in (0..).zip(parts).zip(data.chunks(256)) {
        let packet = conn.request(operation, index).payload(part);
        conn.send(&if index == 0 {
            packet.reth(region.va, region.rkey, 600)
        } else if index == 2 {
            packet.ack_req()
        } else {
            packet
        })?;
    }
    conn.expect_ack_up_to(2, 1)?;
    conn.expect_memory(0, &data)?;
    conn.send(&conn.read(3, 0, 600))?;
    conn.expect_read_response(3, &data, 2)?;
    conn.send(&conn.atomic(6, 0, 1, None))?;
    let word = data
        .first_chunk()
        .map_or(0, |word| u64::from_ne_bytes(*word));
    conn.expect_atomic_ack(6, word, 3)
}

//= DCW-09 type=test
fn repeated(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    conn.send(&start(&conn, &[1; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)?;
    conn.send(&start(&conn, &[2; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)?;
    conn.expect_memory(0, &[1; 8])
}

//= DCW-07 DCW-09 type=test
fn older(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    conn.send(&start(&conn, &[1; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)?;
    conn.send(&eth(start(&conn, &[2; 8]), |eth| eth.session = SESSION - 1))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[1; 8])
}

//= DCW-07 DCW-09 type=test
fn newer(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    conn.send(&start(&conn, &[1; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)?;
    // Session numbers wrap modulo 2^32, and each session has its own PSNs.
    conn.send(&eth(conn.write(1000, 0, &[2; 8]), |eth| {
        eth.session = 0;
        eth.start = true;
    }))?;
    expect_ack(&conn, 1000, 0, 1)?;
    conn.expect_memory(0, &[2; 8])?;
    // The previous session has ended.
    conn.write_only(1, 0, &[3; 8])?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[2; 8])
}

//= DCW-09 type=test
fn third_host(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    conn.send(&start(&conn, &[1; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)?;
    conn.send(&start(&conn, &[2; 8]).via(Via::ThirdHost))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[2; 8])?;
    conn.write_only(1, 0, &[3; 8])?;
    expect_ack(&conn, 1, SESSION, 2)
}

//= DCW-09 DCW-11 type=test
fn no_session(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    conn.send(&eth(start(&conn, &[1; 8]), |eth| eth.start = false))?;
    conn.expect_nak(0, NakCode::Reserved(DcRespEth::NAK_NO_SESSION), 0)?;
    conn.expect_memory(0, &[0; 8])?;
    conn.send(&start(&conn, &[1; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)
}

/// Every packet must have the access key, not only the first.
//= DCK-02 DCK-03 type=test
fn forged(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    for bit in [0, 31, 63] {
        conn.send(&eth(start(&conn, &[1; 8]), |eth| eth.key ^= 1 << bit))?;
    }
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 8])?;
    conn.send(&start(&conn, &[2; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)?;
    conn.send(&eth(conn.write(1, 0, &[3; 8]), |eth| eth.key = 0))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[2; 8])?;
    conn.write_only(1, 0, &[4; 8])?;
    expect_ack(&conn, 1, SESSION, 2)?;
    equal(DC_KEY & 1, 1, "the key of the suite")
}

fn end(conn: &Conn<'_>, index: i32) -> PacketBuilder {
    let packet = conn.request(Operation::SendOnly, index).ack_req();
    packet.edit(|headers| headers.bth.opcode = Opcode::new(0xda))
}

//= DCW-12 DCW-14 type=test
fn disconnected(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    conn.send(&start(&conn, &[1; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)?;
    // The end of the session is acknowledged each time.
    for _ in 0..2 {
        conn.send(&end(&conn, 1))?;
        expect_ack(&conn, 1, SESSION, 1)?;
    }
    // Late packets are acknowledged and never executed.
    conn.send(&start(&conn, &[2; 8]))?;
    expect_ack(&conn, 1, SESSION, 1)?;
    conn.write_only(1, 0, &[3; 8])?;
    conn.write_only(2, 0, &[3; 8])?;
    conn.expect_no_completion()?;
    conn.expect_memory(0, &[1; 8])
}

//= DCW-12 type=test
fn lone_end(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    conn.send(&eth(end(&conn, 0), |eth| eth.start = false))?;
    conn.expect_silence()?;
    conn.send(&start(&conn, &[1; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)
}

//= DCW-17 type=test
fn wrong_pmtu(bench: &Bench<'_>, pmtu: u8) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    conn.send(&eth(start(&conn, &[1; 8]), |eth| eth.pmtu = pmtu))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_memory(0, &[0; 8])?;
    conn.send(&start(&conn, &[1; 8]))?;
    expect_ack(&conn, 0, SESSION, 1)
}

//= DCW-17 type=test
fn partition(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    let foreign = |headers: &mut rocade_wire::Headers| headers.bth.pkey = Pkey::new(0x8001);
    conn.send(&start(&conn, &[1; 8]).edit(foreign))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 8])
}

//= BTH-15 type=test
fn other_service(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(1))?;
    conn.send(&conn.rc_request(Operation::SendOnly, 0).ack_req())?;
    let xrc = conn.rc_request(Operation::SendOnly, 0).edit(|headers| {
        headers.bth = Bth {
            opcode: Opcode::new(0xa4),
            ..headers.bth
        };
    });
    conn.send(&xrc)?;
    conn.expect_silence()?;
    conn.expect_no_completion()
}

//= DC-14 type=test
fn empty(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(0))?;
    conn.send_only(0, &[1; 8])?;
    conn.expect_rnr_nak(0, 0)?;
    conn.post_recv(7, Buffer::new(0, 1024))?;
    conn.send_only(0, &[1; 8])?;
    expect_ack(&conn, 0, SESSION, 1)?;
    conn.expect_completion(7, Status::Success).map(drop)
}

/// Destroys the target in the middle of a message. The receive ends, and later packets have no
/// effect.
//= DCT-11 DCW-16 type=test
fn destroyed(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(2))?;
    let first = conn.request(Operation::SendFirst, 0).payload(&[5; 256]);
    conn.send(&first.ack_req())?;
    expect_ack(&conn, 0, SESSION, 0)?;
    conn.destroy()?;
    let last = conn.request(Operation::SendLast, 1).payload(&[6; 8]);
    conn.send(&last.ack_req())?;
    conn.send(&start(&conn, &[7; 8]))?;
    conn.expect_silence()?;
    conn.expect_memory(256, &[0; 8])?;
    while let Some(event) = conn.qp().poll_event() {
        equal(event, Event::LastWqeReached, "event")?;
    }
    Ok(())
}
