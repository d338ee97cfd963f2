//! Requests without the right, key or domain that their operation needs, and operations that a
//! service does not have.

use rocade_wire::{NakCode, Opcode, Operation, Rkey, Service};

use super::{BAD, Kind, RECEIVE, Target, ranges::uc_still_works, spec, start};
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    peer::{Buffer, ReceivesFrom, Rights, State, Status},
};

pub(in crate::suite) const CASES: &[Case] = &[
    Case::responder("RC-RSP-04", "only-write-is-missing", |b| qp(b, Kind::Write)),
    Case::responder("RC-RSP-04", "write-first-not-allowed", |b| {
        qp(b, Kind::WriteFirst)
    }),
    Case::responder("RC-RSP-04", "write-with-immediate-not-allowed", |b| {
        qp(b, Kind::WriteImm)
    }),
    Case::responder("RC-RSP-04", "only-read-is-missing", |b| qp(b, Kind::Read)),
    Case::responder("RC-RSP-04", "only-atomic-is-missing", |b| {
        qp(b, Kind::FetchAdd)
    }),
    Case::responder("RC-RSP-04", "compare-swap-not-allowed", |b| {
        qp(b, Kind::CmpSwap)
    }),
    Case::responder("RC-RSP-08", "region-without-write", |b| {
        region(b, Kind::Write)
    })
    .also(&["MR-13"]),
    Case::responder("RC-RSP-08", "region-without-write-for-a-first", |b| {
        region(b, Kind::WriteFirst)
    })
    .also(&["MR-13"]),
    Case::responder("RC-RSP-08", "region-without-write-for-an-immediate", |b| {
        region(b, Kind::WriteImm)
    })
    .also(&["MR-13"]),
    Case::responder("RC-RSP-08", "region-without-read", |b| {
        region(b, Kind::Read)
    })
    .also(&["MR-13"]),
    Case::responder("RC-RSP-08", "region-without-atomic", |b| {
        region(b, Kind::FetchAdd)
    })
    .also(&["MR-13"]),
    Case::responder("RC-RSP-08", "region-without-compare-swap", |b| {
        region(b, Kind::CmpSwap)
    })
    .also(&["MR-13"]),
    Case::responder("RC-RSP-08", "write-first-to-another-pd", |b| {
        foreign(b, Kind::WriteFirst)
    }),
    Case::responder("RC-RSP-08", "write-with-immediate-to-another-pd", |b| {
        foreign(b, Kind::WriteImm)
    }),
    Case::responder("RC-RSP-08", "compare-swap-in-another-pd", |b| {
        foreign(b, Kind::CmpSwap)
    }),
    Case::responder("RC-RSP-08", "write-first-with-a-wrong-key", |b| {
        wrong_key(b, Kind::WriteFirst)
    }),
    Case::responder("RC-RSP-08", "write-with-immediate-with-a-wrong-key", |b| {
        wrong_key(b, Kind::WriteImm)
    }),
    Case::responder("RC-RSP-08", "compare-swap-with-a-wrong-key", |b| {
        wrong_key(b, Kind::CmpSwap)
    }),
    Case::responder("RC-RSP-08", "read-with-key-0", |b| {
        refused(b, Kind::Read, Rights::ALL, false, |start| Target {
            rkey: Rkey::new(0),
            ..start
        })
    }),
    Case::responder("RC-RSP-08", "write-with-the-last-key", |b| {
        refused(b, Kind::Write, Rights::ALL, false, |start| Target {
            rkey: Rkey::new(u32::MAX),
            ..start
        })
    }),
    Case::responder("MR-14", "region-gone-in-the-middle-of-a-write", gone_within),
    Case::responder("RC-RSP-12", "region-of-a-receive-is-gone", |b| {
        receive_gone(b, false)
    })
    .also(&["RC-ERR-A"]),
    Case::responder(
        "RC-RSP-12",
        "region-of-a-receive-goes-within-a-message",
        |b| receive_gone(b, true),
    )
    .also(&["RC-ERR-A"]),
    Case::responder("SRQ-07", "region-of-a-shared-receive-is-gone", |b| {
        shared_receive_gone(b, false)
    })
    .also(&["RC-RSP-12"]),
    Case::responder(
        "SRQ-07",
        "region-of-a-shared-receive-goes-within-a-message",
        |b| shared_receive_gone(b, true),
    )
    .also(&["RC-RSP-12"]),
    Case::responder("RC-RSP-12", "receive-past-the-end-of-its-region", |b| {
        bad_receive(b, Buffer::new(4090, 64), false)
    })
    .also(&["RC-ERR-A"]),
    Case::responder("RC-RSP-12", "receive-in-a-region-of-another-pd", |b| {
        bad_receive(b, RECEIVE, true)
    })
    .also(&["RC-ERR-A"]),
    Case::responder("UC-08", "write-that-the-queue-pair-does-not-allow", |b| {
        uc_refused(b, Kind::Write.other_rights(), Rights::ALL, false)
    }),
    Case::responder("UC-08", "write-that-the-region-does-not-allow", |b| {
        uc_refused(b, Rights::ALL, Kind::Write.other_rights(), false)
    }),
    Case::responder("UC-08", "write-to-another-pd", |b| {
        uc_refused(b, Rights::ALL, Rights::ALL, true)
    }),
    Case::responder("UC-01", "read-is-dropped", |b| {
        no_operation(b, Service::Uc, 0x2c)
    }),
    Case::responder("UC-01", "compare-swap-is-dropped", |b| {
        no_operation(b, Service::Uc, 0x33)
    }),
    Case::responder("UC-01", "fetch-add-is-dropped", |b| {
        no_operation(b, Service::Uc, 0x34)
    }),
    Case::responder("UC-01", "send-with-invalidate-is-dropped", |b| {
        no_operation(b, Service::Uc, 0x37)
    }),
    Case::responder("BTH-15", "rc-send-to-a-uc-queue-pair", |b| {
        no_operation(b, Service::Uc, 0x04)
    }),
    Case::responder("BTH-15", "datagram-to-a-uc-queue-pair", |b| {
        no_operation(b, Service::Uc, 0x64)
    }),
    Case::responder("BTH-15", "rc-send-to-a-ud-queue-pair", |b| {
        no_operation(b, Service::Ud, 0x04)
    }),
    Case::responder("BTH-15", "uc-write-to-a-ud-queue-pair", |b| {
        no_operation(b, Service::Ud, 0x2a)
    }),
    Case::responder("BTH-15", "first-of-a-datagram", |b| {
        no_operation(b, Service::Ud, 0x60)
    }),
    Case::responder("BTH-15", "write-in-a-datagram", |b| {
        no_operation(b, Service::Ud, 0x6a)
    }),
];

/// The queue pair has all rights but that of the operation.
//= RC-RSP-04 RC-LIM-04 type=test
fn qp(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    let conn = bench.connect(QpSpec {
        rights: kind.other_rights(),
        ..spec(Rights::ALL)
    })?;
    conn.send(&kind.request(&conn, 0, start(&conn)))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(0, &[0; 512])
}

/// The region has all rights but that of the operation.
//= RC-RSP-08 MR-13 type=test
fn region(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    refused(bench, kind, kind.other_rights(), false, |start| start)
}

fn foreign(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    refused(bench, kind, Rights::ALL, true, |start| start)
}

fn wrong_key(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    refused(bench, kind, Rights::ALL, false, |start| Target {
        rkey: Rkey::new(start.rkey.get() ^ 0xff00),
        ..start
    })
}

fn refused(
    bench: &Bench<'_>,
    kind: Kind,
    rights: Rights,
    foreign_pd: bool,
    change: impl Fn(Target) -> Target,
) -> CaseResult {
    let mut spec = spec(rights);
    spec.regions[0].foreign_pd = foreign_pd;
    let conn = bench.connect(spec)?;
    conn.send(&kind.request(&conn, 0, change(start(&conn))))?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(0, &[0; 512])
}

//= MR-14 type=test
fn gone_within(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    let first = Kind::WriteFirst.request(&conn, 0, start(&conn));
    let last = conn.request(Operation::WriteLast, 1);
    conn.send(&first)?;
    conn.expect_ack(0, 0)?;
    conn.deregister(0)?;
    conn.send(&last.payload(&[0xbd; 256]).ack_req())?;
    conn.expect_nak(1, NakCode::RemoteAccess, 0)?;
    conn.expect_memory(256, &[0; 256])
}

/// Sends a SEND First, which is acknowledged, or nothing.
fn begin(conn: &Conn<'_>, within: bool) -> CaseResult<i32> {
    if within {
        let first = conn.request(Operation::SendFirst, 0).ack_req();
        conn.send(&first.payload(&[0xbd; 256]))?;
        conn.expect_ack(0, 0)?;
    }
    Ok(i32::from(within))
}

/// Returns the packet that ends the message, or is all of it.
fn end(conn: &Conn<'_>, within: bool, index: i32) -> PacketBuilder {
    let operation = if within {
        Operation::SendLast
    } else {
        Operation::SendOnly
    };
    conn.request(operation, index).payload(&BAD).ack_req()
}

//= RC-RSP-12 RC-ERR-A type=test
fn receive_gone(bench: &Bench<'_>, within: bool) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    let index = begin(&conn, within)?;
    conn.deregister(0)?;
    conn.send(&end(&conn, within, index))?;
    conn.expect_nak(index, NakCode::RemoteOperational, 0)?;
    conn.expect_completion(0, Status::LocProtErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(RECEIVE.offset + 256 * usize::from(within), &[0; 8])
}

/// The other receive stays in its queue.
//= SRQ-07 RC-RSP-12 type=test
fn shared_receive_gone(bench: &Bench<'_>, within: bool) -> CaseResult {
    let mut spec = spec(Rights::ALL);
    spec.receives_from = ReceivesFrom::Shared;
    spec.regions[0].foreign_pd = true;
    spec.receives = vec![RECEIVE, RECEIVE];
    let conn = bench.connect(spec)?;
    let index = begin(&conn, within)?;
    conn.deregister(0)?;
    conn.send(&end(&conn, within, index))?;
    conn.expect_nak(index, NakCode::RemoteOperational, 0)?;
    conn.expect_completion(0, Status::LocProtErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_no_completion()
}

//= RC-RSP-12 RC-ERR-A type=test
fn bad_receive(bench: &Bench<'_>, receive: Buffer, foreign_pd: bool) -> CaseResult {
    let mut spec = spec(Rights::ALL);
    spec.regions[0].foreign_pd = foreign_pd;
    spec.receives = vec![receive];
    let conn = bench.connect(spec)?;
    conn.send_only(0, &[0xbd; 16])?;
    conn.expect_nak(0, NakCode::RemoteOperational, 0)?;
    conn.expect_completion(0, Status::LocProtErr)?;
    conn.expect_state(State::Err)?;
    // No byte of the message arrives, even if the first ones would fit.
    conn.expect_memory(4080, &[0; 16])
}

//= UC-08 type=test
fn uc_refused(
    bench: &Bench<'_>,
    of_queue_pair: Rights,
    of_region: Rights,
    foreign_pd: bool,
) -> CaseResult {
    let mut spec = QpSpec {
        service: Service::Uc,
        rights: of_queue_pair,
        ..spec(of_region)
    };
    spec.regions[0].foreign_pd = foreign_pd;
    spec.regions.push(crate::peer::RegionSpec::new(4096));
    spec.receives = vec![Buffer {
        region: 1,
        ..RECEIVE
    }];
    let conn = bench.connect(spec)?;
    conn.send(&Kind::Write.request(&conn, 0, start(&conn)))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 8])?;
    uc_still_works(&conn)
}

/// Sends an opcode that the service of the queue pair does not have. It is dropped, and uses no
/// receive.
//= BTH-15 UC-01 type=test
fn no_operation(bench: &Bench<'_>, service: Service, code: u8) -> CaseResult {
    let conn = bench.connect(QpSpec {
        service,
        ..spec(Rights::ALL)
    })?;
    let packet = conn.rc_request(Operation::SendOnly, 0).payload(&[0xbd; 64]);
    conn.send(&packet.edit(|headers| headers.bth.opcode = Opcode::new(code)))?;
    conn.expect_silence()?;
    conn.expect_no_completion()?;
    conn.expect_memory(RECEIVE.offset, &[0; 128])?;
    conn.expect_state(State::Rts)?;
    conn.send(&conn.request(Operation::SendOnly, 1).payload(b"next"))?;
    conn.expect_completion(0, Status::Success).map(drop)
}
