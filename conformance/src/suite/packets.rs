//! Headers, encapsulation and ICRC: the packets that a responder accepts or drops.

use rocade_wire::{NakCode, Opcode, Operation, Pkey, Qpn, Service};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    case::{equal, fail},
    peer::{Buffer, State},
    rig::Via,
};

pub(super) const CASES: &[Case] = &[
    Case::responder("ICRC-11", "wrong-icrc-is-dropped", |b| {
        dropped(b, |p| p.wrong_icrc(1))
    }),
    Case::responder("ICRC-10", "pad-need-not-be-zero", nonzero_pad),
    Case::responder("BTH-03", "migreq-is-not-needed", |b| {
        accepted(b, |p| p.edit(|h| h.bth.migreq = false))
    }),
    Case::responder("RC-APM-02", "answers-say-migrated", migrated),
    Case::responder("BTH-05", "other-version-is-dropped", |b| {
        dropped(b, |p| p.edit(|h| h.bth.tver = 1))
    }),
    Case::responder("BTH-06", "other-partition-is-dropped", |b| {
        dropped(b, |p| p.edit(|h| h.bth.pkey = Pkey::new(0x8001)))
    }),
    Case::responder("BTH-06", "partition-zero-is-dropped", |b| {
        dropped(b, |p| p.edit(|h| h.bth.pkey = Pkey::new(0x8000)))
    }),
    Case::responder("BTH-06", "limited-member-is-accepted", |b| {
        accepted(b, |p| p.edit(|h| h.bth.pkey = Pkey::new(0x7fff)))
    }),
    Case::responder("BTH-07", "congestion-bits-are-ignored", |b| {
        accepted(b, |p| {
            p.edit(|h| {
                h.bth.fecn = true;
                h.bth.becn = true;
            })
        })
    }),
    Case::responder("BTH-09", "reserved-bits-are-ignored", |b| {
        accepted(b, |p| p.edit(|h| h.bth.resv6 = 0x3f))
    }),
    Case::responder("BTH-12", "reserved-bits-are-ignored", |b| {
        accepted(b, |p| p.edit(|h| h.bth.resv7 = 0x7f))
    }),
    Case::responder("BTH-10", "unknown-queue-pair-is-ignored", unknown_qp),
    Case::responder("BTH-15", "other-service-is-dropped", other_service),
    Case::responder("CNP-03", "cnp-has-no-answer", cnp),
    Case::responder("ENC-03", "source-port-is-not-checked", |b| {
        accepted(b, |p| p.via(Via::OtherPort))
    }),
    Case::responder("ENC-03", "own-source-port-is-constant", source_port).should(),
    Case::responder("ENC-06", "udp-checksum-zero-is-accepted", |b| {
        accepted(b, |p| p.via(Via::NoChecksum))
    }),
    Case::responder("ENC-16", "truncated-is-dropped", truncated),
    Case::responder("ENC-16", "pad-beyond-the-end-is-dropped", pad_beyond_end),
    Case::responder("RC-LIM-05", "other-address-is-dropped", |b| {
        dropped(b, |p| p.via(Via::ThirdHost))
    }),
    Case::responder("OPC-36", "reserved-code-is-refused", reserved_opcode),
    Case::responder(
        "OPC-36",
        "reserved-code-ahead-is-a-gap",
        reserved_opcode_ahead,
    )
    .should(),
    Case::responder(
        "OPC-36",
        "reserved-code-behind-is-dropped",
        reserved_opcode_behind,
    )
    .should(),
];

/// Eight bytes in packets that must be dropped.
const BAD: [u8; 8] = [0xbd; 8];
/// Eight bytes in packets that must be accepted.
const GOOD: [u8; 8] = *b"goodgood";

/// Checks that a WRITE changed by `spoil` has no effect, so that its PSN can be used again.
fn dropped(bench: &Bench<'_>, spoil: impl Fn(PacketBuilder) -> PacketBuilder) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(&spoil(conn.write(0, 0, &BAD)))?;
    still_at_start(&conn)
}

/// Checks that no packet has had an effect: a WRITE with the first PSN is executed, and there is
/// only its response.
fn still_at_start(conn: &Conn<'_>) -> CaseResult {
    conn.write_only(0, 0, &GOOD)?;
    conn.expect_ack(0, 1)?;
    conn.expect_memory(0, &GOOD)?;
    conn.expect_silence()
}

/// Checks that a WRITE changed by `vary` is executed.
fn accepted(bench: &Bench<'_>, vary: impl Fn(PacketBuilder) -> PacketBuilder) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(&vary(conn.write(0, 0, &GOOD)))?;
    conn.expect_ack(0, 1)?;
    conn.expect_memory(0, &GOOD)
}

/// A queue pair without an alternate path cannot migrate.
//= RC-APM-02 RC-APM-09 type=test
fn migrated(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    for (index, migreq) in [(0, true), (1, false), (2, true)] {
        conn.send(&conn.write(index, 0, &GOOD).edit(|h| h.bth.migreq = migreq))?;
        equal(conn.receive()?.headers.bth.migreq, true, "MigReq")?;
    }
    Ok(())
}

//= ICRC-10 type=test
fn nonzero_pad(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(&conn.write(0, 0, b"hello").pad(&[1, 2, 3]))?;
    conn.expect_ack(0, 1)?;
    conn.expect_memory(0, b"hello\0\0\0")
}

//= BTH-10 type=test
fn unknown_qp(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    // No peer has enough queue pairs to use this number.
    let unlikely = Qpn::new(conn.qp().qpn().get() ^ 0x00ff_ff00);
    for qpn in [Qpn::SMI, unlikely, Qpn::MULTICAST] {
        conn.send(&conn.write(0, 0, &BAD).edit(|h| h.bth.dest_qp = qpn))?;
    }
    still_at_start(&conn)
}

//= BTH-15 OPC-31 OPC-32 type=test
//= OPC-34 type=test
fn other_service(bench: &Bench<'_>) -> CaseResult {
    const OPERATIONS: [Operation; 4] = [
        Operation::SendOnly,
        Operation::SendMiddle,
        Operation::WriteMiddle,
        Operation::WriteOnly,
    ];
    let conn = bench.connect(QpSpec::default())?;
    conn.post_recv(5, Buffer::new(1024, 1024))?;
    let services = [Service::Uc, Service::Rd, Service::Ud, Service::Xrc];
    let codes = services
        .into_iter()
        .flat_map(|service| OPERATIONS.map(|operation| Opcode::of(service, operation)));
    let manufacturer = [0xc0, 0xc4, 0xe0, 0xe4].map(|code| Some(Opcode::new(code)));
    for opcode in codes.chain(manufacturer).flatten() {
        // The payload is long enough for all headers.
        let packet = conn.request(Operation::SendOnly, 0).payload(&[0xbd; 64]);
        conn.send(&packet.ack_req().edit(|h| h.bth.opcode = opcode))?;
    }
    still_at_start(&conn)?;
    conn.expect_no_completion()
}

//= CNP-03 type=test
fn cnp(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let cnp = conn
        .request(Operation::SendOnly, 0)
        .payload(&[0; 16])
        .edit(|h| {
            h.bth.opcode = Opcode::CNP;
            h.bth.becn = true;
            h.bth.migreq = false;
        });
    conn.send(&cnp)?;
    still_at_start(&conn)
}

//= ENC-03 type=test
fn source_port(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let mut ports = Vec::new();
    for index in 0..3 {
        conn.write_only(index, 0, &[])?;
        ports.push(conn.receive()?.source_port);
    }
    if ports[0] < 0xc000 {
        return fail(format!("source port {} is below 0xC000", ports[0]));
    }
    equal(ports[1..].to_vec(), vec![ports[0]; 2], "source ports")
}

//= ENC-16 type=test
fn truncated(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    // Within the ICRC, within the BTH, without a RETH, and within the RETH.
    for len in [4, 11, 15, 16, 20, 31] {
        conn.send(&conn.write(0, 0, &BAD).cut(len))?;
    }
    still_at_start(&conn)
}

//= ENC-16 type=test
fn pad_beyond_end(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let packet = conn.request(Operation::SendOnly, 0).ack_req();
    conn.send(&packet.edit(|h| h.bth.pad_count = 3))?;
    still_at_start(&conn)
}

/// Reserved codes. Codes 0x18 and 0x19 are left out, because they are masked atomics of some NICs.
const RESERVED: [u8; 5] = [0x15, 0x1a, 0x1b, 0x1e, 0x1f];

fn reserved(conn: &Conn<'_>, index: i32, opcode: u8) -> CaseResult {
    let packet = conn
        .request(Operation::SendOnly, index)
        .payload(&pattern(32))
        .ack_req();
    conn.send(&packet.edit(|h| h.bth.opcode = Opcode::new(opcode)))
}

//= OPC-36 type=test
fn reserved_opcode(bench: &Bench<'_>) -> CaseResult {
    for opcode in RESERVED {
        let conn = bench.connect(QpSpec::default())?;
        reserved(&conn, 0, opcode)?;
        conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
        conn.expect_state(State::Err)?;
    }
    Ok(())
}

//= OPC-36 type=test
fn reserved_opcode_ahead(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    reserved(&conn, 1, RESERVED[0])?;
    conn.expect_nak(0, NakCode::PsnSequence, 0)?;
    conn.probe(0, 1)
}

//= OPC-36 type=test
fn reserved_opcode_behind(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.probe(0, 1)?;
    reserved(&conn, 0, RESERVED[0])?;
    conn.probe(1, 2)?;
    conn.expect_silence()
}
