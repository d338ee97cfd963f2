//! Packets with a wrong ICRC, from which a device must not read anything else.

use rocade_wire::{Opcode, Operation, Qkey, Qpn, Service};

use super::{BAD, Kind, RECEIVE, spec, start};
use crate::{
    Bench, Case, CaseResult, Conn, Feature, PacketBuilder, QpSpec,
    peer::{ReceivesFrom, Rights, State},
};

pub(in crate::suite) const CASES: &[Case] = &[
    Case::responder("ICRC-11", "bad-send", |b| rc(b, Kind::Send)),
    Case::responder("ICRC-11", "bad-send-first", |b| rc(b, Kind::SendFirst)),
    Case::responder("ICRC-11", "bad-send-with-immediate", |b| {
        rc(b, Kind::SendImm)
    }),
    Case::responder("ICRC-11", "bad-send-with-invalidate", |b| {
        rc(b, Kind::SendInv)
    }),
    Case::responder("ICRC-11", "bad-write-first", |b| rc(b, Kind::WriteFirst)),
    Case::responder("ICRC-11", "bad-write-with-immediate", |b| {
        rc(b, Kind::WriteImm)
    }),
    Case::responder("ICRC-11", "bad-read", |b| rc(b, Kind::Read)),
    Case::responder("ICRC-11", "bad-compare-swap", |b| rc(b, Kind::CmpSwap)),
    Case::responder("ICRC-11", "bad-fetch-add", |b| rc(b, Kind::FetchAdd)),
    Case::responder("ICRC-11", "bad-atomic-write", |b| rc(b, Kind::AtomicWrite))
        .needing(Feature::AtomicWrite),
    Case::responder("ICRC-11", "bad-flush", |b| rc(b, Kind::Flush)).needing(Feature::Flush),
    Case::responder("ICRC-11", "bad-acknowledge", |b| opcode(b, 0x11)).also(&["RC-REQ-01"]),
    Case::responder("ICRC-11", "bad-reserved-opcode", |b| opcode(b, 0x1f)).also(&["OPC-36"]),
    Case::responder("ICRC-11", "bad-opcode-of-another-service", |b| {
        opcode(b, 0x24)
    })
    .also(&["BTH-15"]),
    Case::responder("ICRC-11", "bad-opcode-of-no-service", |b| opcode(b, 0x9f)).also(&["BTH-15"]),
    Case::responder("ICRC-11", "bad-opcode-of-a-manufacturer", |b| {
        opcode(b, 0xff)
    })
    .also(&["BTH-15"]),
    Case::responder("ICRC-11", "bad-uc-send", |b| uc(b, Operation::SendOnly)),
    Case::responder("ICRC-11", "bad-uc-write", |b| uc(b, Operation::WriteOnly)),
    Case::responder("ICRC-11", "bad-datagram", ud),
    Case::responder("ICRC-11", "bad-xrc-send", xrc),
    Case::responder("BTH-10", "unknown-opcode-to-the-multicast-number", |b| {
        to_number(b, Qpn::MULTICAST, 0xff)
    }),
    Case::responder("BTH-10", "reserved-datagram-to-the-multicast-number", |b| {
        to_number(b, Qpn::MULTICAST, 0x7f)
    }),
    Case::responder("BTH-10", "rc-send-to-the-multicast-number", |b| {
        to_number(b, Qpn::MULTICAST, 0x04)
    }),
    Case::responder("BTH-10", "rc-read-to-the-multicast-number", |b| {
        to_number(b, Qpn::MULTICAST, 0x0c)
    }),
    Case::responder("BTH-10", "datagram-to-the-multicast-number", |b| {
        to_number(b, Qpn::MULTICAST, 0x64)
    }),
    Case::responder("BTH-15", "unknown-opcode-to-the-manager", |b| {
        to_number(b, Qpn::GSI, 0xff)
    }),
    Case::responder("BTH-15", "rc-write-to-the-manager", |b| {
        to_number(b, Qpn::GSI, 0x0a)
    }),
    Case::responder("BTH-15", "rc-read-to-the-manager", |b| {
        to_number(b, Qpn::GSI, 0x0c)
    }),
    Case::responder("BTH-10", "unknown-opcode-to-queue-pair-0", |b| {
        to_number(b, Qpn::SMI, 0xff)
    }),
];

/// Checks that nothing has had an effect: the connection still expects its first PSN, and the
/// receive is still there.
fn untouched(conn: &Conn<'_>) -> CaseResult {
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_memory(0, &[0; 256])?;
    conn.expect_memory(RECEIVE.offset, &[0; 256])?;
    conn.expect_state(State::Rts)?;
    conn.probe(0, 1)
}

//= ICRC-11 type=test
fn rc(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    let packet = kind.request(&conn, 0, start(&conn));
    conn.send(&packet.clone().wrong_icrc(1))?;
    conn.send(&packet.wrong_icrc(0x8000_0000))?;
    untouched(&conn)
}

/// Returns a packet with this opcode, and a payload that is long enough for all headers.
fn with_opcode(conn: &Conn<'_>, code: u8) -> PacketBuilder {
    let packet = conn.rc_request(Operation::SendOnly, 0).payload(&[0xbd; 64]);
    packet.edit(|headers| headers.bth.opcode = Opcode::new(code))
}

//= ICRC-11 OPC-36 BTH-15 type=test
fn opcode(bench: &Bench<'_>, code: u8) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    conn.send(&with_opcode(&conn, code).ack_req().wrong_icrc(1))?;
    untouched(&conn)
}

/// The ICRC is right, but no queue pair of this service has the number.
//= BTH-10 BTH-15 type=test
fn to_number(bench: &Bench<'_>, qpn: Qpn, code: u8) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    let packet = with_opcode(&conn, code).edit(|headers| headers.bth.dest_qp = qpn);
    conn.send(&packet)?;
    untouched(&conn)
}

//= ICRC-11 type=test
fn uc(bench: &Bench<'_>, operation: Operation) -> CaseResult {
    let conn = bench.connect(QpSpec {
        service: Service::Uc,
        ..spec(Rights::ALL)
    })?;
    let region = conn.region();
    let mut packet = conn.request(operation, 0).payload(&BAD);
    if operation == Operation::WriteOnly {
        packet = packet.reth(region.va, region.rkey, 8);
    }
    conn.send(&packet.wrong_icrc(1))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_memory(0, &[0; 8])?;
    conn.expect_memory(RECEIVE.offset, &[0; 8])
}

//= ICRC-11 type=test
fn ud(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec {
        service: Service::Ud,
        ..spec(Rights::ALL)
    })?;
    let packet = conn.request(Operation::SendOnly, 0).payload(&BAD);
    conn.send(&packet.clone().wrong_icrc(1))?;
    // A wrong ICRC hides a wrong Q_Key as well.
    let wrong = packet.wrong_icrc(1).edit(|headers| {
        if let Some(deth) = &mut headers.deth {
            deth.qkey = Qkey::new(1);
        }
    });
    conn.send(&wrong)?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_memory(RECEIVE.offset, &[0; 64])
}

//= ICRC-11 type=test
fn xrc(bench: &Bench<'_>) -> CaseResult {
    let mut spec = spec(Rights::ALL);
    spec.receives_from = ReceivesFrom::Xrc;
    spec.regions[0].foreign_pd = true;
    let conn = bench.connect(spec)?;
    let packet = conn.request(Operation::SendOnly, 0).payload(&BAD);
    conn.send(&packet.ack_req().wrong_icrc(1))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_memory(RECEIVE.offset, &[0; 8])
}
