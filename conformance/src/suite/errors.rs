//! Requests that must be refused because of rights, keys, lengths or buffers, and the consequences.

use rocade_wire::{NakCode, Operation, Rkey};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    case::equal,
    peer::{Buffer, Event, RegionSpec, Rights, State, Status},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("RC-SEG-05", "write-beyond-2-to-the-31", |b| {
        too_long(b, Operation::WriteFirst)
    }),
    Case::responder("RC-SEG-05", "read-beyond-2-to-the-31", |b| {
        too_long(b, Operation::ReadRequest)
    }),
    Case::responder("RC-RSP-04", "write-not-allowed", |b| {
        not_allowed(b, |c| c.write(0, 0, b"new data"))
    }),
    Case::responder("RC-RSP-04", "empty-write-not-allowed", |b| {
        not_allowed(b, |c| c.write(0, 0, &[]))
    }),
    Case::responder("RC-RSP-04", "read-not-allowed", |b| {
        not_allowed(b, |c| c.read(0, 0, 8))
    }),
    Case::responder("RC-RSP-04", "atomic-not-allowed", |b| {
        not_allowed(b, |c| c.atomic(0, 0, 1, None))
    }),
    Case::responder(
        "RC-RSP-07",
        "send-packets-of-wrong-length",
        wrong_send_length,
    ),
    Case::responder(
        "RC-RSP-07",
        "write-packets-of-wrong-length",
        wrong_write_length,
    ),
    Case::responder("RC-RSP-07", "read-request-with-payload", read_with_payload).should(),
    Case::responder("OPC-37", "first-packet-with-pad", first_with_pad).should(),
    Case::responder("OPC-38", "pad-without-payload", pad_without_payload).should(),
    Case::responder("RC-RSP-08", "wrong-key", |b| {
        no_access(b, Rights::ALL, false, |_, rkey| (0, rkey ^ 0xff00))
    }),
    Case::responder("RC-RSP-08", "stale-key-tag", |b| {
        no_access(b, Rights::ALL, false, |_, rkey| (0, rkey ^ 1))
    }),
    Case::responder("RC-RSP-08", "past-the-end", |b| {
        no_access(b, Rights::ALL, false, |len, rkey| (len - 7, rkey))
    }),
    Case::responder("RC-RSP-08", "before-the-start", |b| {
        no_access(b, Rights::ALL, false, |_, rkey| (u64::MAX, rkey))
    }),
    Case::responder("RC-RSP-08", "address-wraps", address_wraps),
    Case::responder("RC-RSP-08", "region-without-rights", |b| {
        no_access(b, Rights::NONE, false, |_, rkey| (0, rkey))
    }),
    Case::responder("RC-RSP-08", "region-of-another-pd", |b| {
        no_access(b, Rights::ALL, true, |_, rkey| (0, rkey))
    }),
    Case::responder("RC-RSP-08", "deregistered-region", deregistered),
    Case::responder("RC-RSP-08", "whole-range-at-the-first-packet", whole_range).should(),
    Case::responder("RC-RSP-09", "write-longer-than-dmalen", write_too_long),
    Case::responder("RC-RSP-09", "write-shorter-than-dmalen", write_too_short),
    Case::responder("RC-RSP-10", "send-longer-than-the-receive", send_too_long),
    Case::responder(
        "RC-RSP-10",
        "send-grows-longer-than-the-receive",
        send_grows_too_long,
    ),
    Case::responder("RC-RSP-11", "misaligned-atomic", misaligned),
    Case::responder(
        "RC-RSP-12",
        "receive-buffer-with-a-wrong-key",
        bad_receive_buffer,
    ),
    Case::responder("RC-ERR-C", "event-for-invalid-request", |b| {
        event(b, Rights::NONE, Event::QpReqErr)
    }),
    Case::responder("RC-ERR-C", "event-for-access-error", |b| {
        event(b, Rights::ALL, Event::QpAccessErr)
    }),
    Case::responder(
        "RC-ERR-C",
        "completion-instead-of-event",
        completion_not_event,
    ),
    Case::responder("WCS-08", "status-of-a-refused-write", refused_write),
    Case::responder("RC-ERR-J", "invalidate-of-a-wrong-key", bad_invalidate).should(),
    Case::responder("RC-STA-01", "receives-are-flushed-in-order", flushed),
    Case::responder(
        "RC-STA-02",
        "receives-posted-in-err-are-flushed",
        posted_in_err,
    ),
    Case::responder("RC-STA-03", "silence-in-err", silent_in_err),
    Case::responder("RC-STA-03", "silence-after-the-nak", silent_after_nak),
];

//= RC-SEG-05 type=test
fn too_long(bench: &Bench<'_>, operation: Operation) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let region = conn.region();
    let packet = conn
        .request(operation, 0)
        .reth(region.va, region.rkey, (1 << 31) + 1);
    let payload = if operation == Operation::ReadRequest {
        Vec::new()
    } else {
        pattern(256)
    };
    conn.send(&packet.payload(&payload).ack_req())?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)
}

//= RC-RSP-04 type=test
fn not_allowed(bench: &Bench<'_>, packet: impl Fn(&Conn<'_>) -> PacketBuilder) -> CaseResult {
    let conn = bench.connect(QpSpec {
        rights: Rights::NONE,
        ..QpSpec::default()
    })?;
    conn.send(&packet(&conn))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(0, &[0; 8])
}

const BUFFER: Buffer = Buffer::new(1024, 1024);

fn with_receives(count: usize) -> QpSpec {
    QpSpec {
        receives: vec![BUFFER; count],
        ..QpSpec::default()
    }
}

//= RC-RSP-07 RC-SEG-01 type=test
fn wrong_send_length(bench: &Bench<'_>) -> CaseResult {
    for (operation, len) in [
        (Operation::SendFirst, 252),
        (Operation::SendFirst, 512),
        (Operation::SendOnly, 260),
        (Operation::SendMiddle, 252),
        (Operation::SendMiddle, 0),
        (Operation::SendLast, 0),
        (Operation::SendLast, 257),
    ] {
        let conn = bench.connect(with_receives(1))?;
        let continues = matches!(operation, Operation::SendMiddle | Operation::SendLast);
        if continues {
            let first = conn.request(Operation::SendFirst, 0).payload(&pattern(256));
            conn.send(&first.ack_req())?;
            conn.expect_ack(0, 0)?;
        }
        let index = i32::from(continues);
        conn.send(
            &conn
                .request(operation, index)
                .payload(&pattern(len))
                .ack_req(),
        )?;
        conn.expect_nak(index, NakCode::InvalidRequest, 0)?;
        conn.expect_state(State::Err)?;
    }
    Ok(())
}

//= RC-RSP-07 RC-SEG-01 type=test
fn wrong_write_length(bench: &Bench<'_>) -> CaseResult {
    for (operation, len) in [
        (Operation::WriteFirst, 252),
        (Operation::WriteFirst, 512),
        (Operation::WriteOnly, 260),
        (Operation::WriteMiddle, 252),
        (Operation::WriteLast, 0),
        (Operation::WriteLast, 257),
    ] {
        let conn = bench.connect(QpSpec::default())?;
        let region = conn.region();
        let continues = matches!(operation, Operation::WriteMiddle | Operation::WriteLast);
        if continues {
            // A length with which the following packet would end the message.
            let dma_len = 256 + u32::try_from(len).unwrap_or(0);
            let first = conn
                .request(Operation::WriteFirst, 0)
                .payload(&pattern(256));
            conn.send(
                &first
                    .reth(region.va, region.rkey, dma_len.max(257))
                    .ack_req(),
            )?;
            conn.expect_ack(0, 0)?;
        }
        let index = i32::from(continues);
        let mut packet = conn
            .request(operation, index)
            .payload(&pattern(len))
            .ack_req();
        if !continues {
            let dma_len = if operation == Operation::WriteOnly {
                260
            } else {
                1024
            };
            packet = packet.reth(region.va, region.rkey, dma_len);
        }
        conn.send(&packet)?;
        conn.expect_nak(index, NakCode::InvalidRequest, 0)?;
        conn.expect_state(State::Err)?;
    }
    Ok(())
}

fn refused(bench: &Bench<'_>, packet: impl Fn(&Conn<'_>) -> PacketBuilder) -> CaseResult {
    let conn = bench.connect(with_receives(1))?;
    conn.send(&packet(&conn))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)
}

fn read_with_payload(bench: &Bench<'_>) -> CaseResult {
    refused(bench, |conn| conn.read(0, 0, 8).payload(b"surprise"))
}

//= OPC-37 type=test
fn first_with_pad(bench: &Bench<'_>) -> CaseResult {
    refused(bench, |conn| {
        conn.request(Operation::SendFirst, 0)
            .payload(&pattern(256))
            .pad(&[0; 3])
            .ack_req()
    })
}

//= OPC-38 type=test
fn pad_without_payload(bench: &Bench<'_>) -> CaseResult {
    refused(bench, |conn| {
        conn.request(Operation::SendOnly, 0).pad(&[0; 3]).ack_req()
    })
}

/// Sends a WRITE, a READ and an atomic with an address (relative to the region) and a key that
/// allow no access.
//= RC-RSP-08 MR-13 type=test
fn no_access(
    bench: &Bench<'_>,
    rights: Rights,
    foreign_pd: bool,
    target: impl Fn(u64, u32) -> (u64, u32),
) -> CaseResult {
    for operation in [
        Operation::WriteOnly,
        Operation::ReadRequest,
        Operation::FetchAdd,
    ] {
        let regions = vec![RegionSpec {
            rights,
            foreign_pd,
            ..RegionSpec::new(4096)
        }];
        let conn = bench.connect(QpSpec {
            regions,
            ..QpSpec::default()
        })?;
        let region = conn.region();
        let len = u64::try_from(region.len).unwrap_or(0);
        let (offset, rkey) = target(len, region.rkey.get());
        let mut va = region.va.wrapping_add(offset);
        let packet = conn.request(operation, 0).ack_req();
        let rkey = Rkey::new(rkey);
        conn.send(&match operation {
            Operation::FetchAdd => {
                // Alignment is another rule.
                va = if offset < len {
                    va.next_multiple_of(8)
                } else {
                    va & !7
                };
                packet.atomic(va, rkey, 1, 0)
            }
            Operation::WriteOnly => packet.reth(va, rkey, 8).payload(b"new data"),
            _ => packet.reth(va, rkey, 8),
        })?;
        conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
        conn.expect_state(State::Err)?;
        conn.expect_memory(0, &[0; 4096])?;
    }
    Ok(())
}

//= RC-RSP-08 type=test
fn address_wraps(bench: &Bench<'_>) -> CaseResult {
    for va in [u64::MAX - 3, u64::MAX - 7] {
        let conn = bench.connect(QpSpec::default())?;
        let packet = conn
            .request(Operation::WriteOnly, 0)
            .payload(b"new data")
            .ack_req();
        conn.send(&packet.reth(va, conn.region().rkey, 8))?;
        conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    }
    Ok(())
}

//= RC-RSP-08 type=test
fn deregistered(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let packet = conn.write(1, 0, b"new data");
    conn.probe(0, 1)?;
    conn.deregister(0)?;
    conn.send(&packet)?;
    conn.expect_nak(1, NakCode::RemoteAccess, 1)
}

//= RC-RSP-08 type=test
fn whole_range(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let region = conn.region();
    let packet = conn
        .request(Operation::WriteFirst, 0)
        .payload(&pattern(256))
        .ack_req();
    conn.send(&packet.reth(region.va, region.rkey, 4097))?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_memory(0, &[0; 256])
}

//= RC-RSP-09 type=test
fn write_too_long(bench: &Bench<'_>) -> CaseResult {
    for (dma_len, operation, len) in [
        (300, Operation::WriteMiddle, 256),
        (300, Operation::WriteLast, 48),
    ] {
        let conn = bench.connect(QpSpec::default())?;
        let region = conn.region();
        let first = conn
            .request(Operation::WriteFirst, 0)
            .payload(&pattern(256));
        conn.send(&first.reth(region.va, region.rkey, dma_len).ack_req())?;
        conn.expect_ack(0, 0)?;
        conn.send(&conn.request(operation, 1).payload(&pattern(len)).ack_req())?;
        conn.expect_nak(1, NakCode::InvalidRequest, 0)?;
        // No byte behind the requested range is written.
        conn.expect_memory(300, &[0; 300])?;
    }
    Ok(())
}

//= RC-RSP-09 type=test
fn write_too_short(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let region = conn.region();
    let first = conn
        .request(Operation::WriteFirst, 0)
        .payload(&pattern(256));
    conn.send(&first.reth(region.va, region.rkey, 600).ack_req())?;
    conn.expect_ack(0, 0)?;
    conn.send(
        &conn
            .request(Operation::WriteLast, 1)
            .payload(&pattern(88))
            .ack_req(),
    )?;
    conn.expect_nak(1, NakCode::InvalidRequest, 0)?;
    for dma_len in [4, 12] {
        let conn = bench.connect(QpSpec::default())?;
        let region = conn.region();
        let only = conn
            .request(Operation::WriteOnly, 0)
            .payload(b"new data")
            .ack_req();
        conn.send(&only.reth(region.va, region.rkey, dma_len))?;
        conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    }
    Ok(())
}

//= RC-RSP-10 type=test
fn send_too_long(bench: &Bench<'_>) -> CaseResult {
    let receives = vec![Buffer::new(1024, 100)];
    let conn = bench.connect(QpSpec {
        receives,
        ..QpSpec::default()
    })?;
    conn.send_only(0, &pattern(101))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_completion(0, Status::LocLenErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(1124, &[0; 8])?;
    conn.expect_no_event()
}

//= RC-RSP-10 type=test
fn send_grows_too_long(bench: &Bench<'_>) -> CaseResult {
    let receives = vec![Buffer::new(1024, 300)];
    let conn = bench.connect(QpSpec {
        receives,
        ..QpSpec::default()
    })?;
    conn.send(
        &conn
            .request(Operation::SendFirst, 0)
            .payload(&pattern(256))
            .ack_req(),
    )?;
    conn.expect_ack(0, 0)?;
    conn.send(
        &conn
            .request(Operation::SendLast, 1)
            .payload(&pattern(45))
            .ack_req(),
    )?;
    conn.expect_nak(1, NakCode::InvalidRequest, 0)?;
    conn.expect_completion(0, Status::LocLenErr)?;
    conn.expect_memory(1324, &[0; 8])
}

//= RC-RSP-11 type=test
fn misaligned(bench: &Bench<'_>) -> CaseResult {
    for compare in [None, Some(0)] {
        let conn = bench.connect(QpSpec::default())?;
        conn.send(&conn.atomic(0, 4, 1, compare))?;
        conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
        conn.expect_memory(0, &[0; 16])?;
    }
    Ok(())
}

//= RC-RSP-12 RC-ERR-A type=test
fn bad_receive_buffer(bench: &Bench<'_>) -> CaseResult {
    let receives = vec![Buffer {
        bad_key: true,
        ..BUFFER
    }];
    let conn = bench.connect(QpSpec {
        receives,
        ..QpSpec::default()
    })?;
    conn.send_only(0, b"new data")?;
    conn.expect_nak(0, NakCode::RemoteOperational, 0)?;
    conn.expect_completion(0, Status::LocProtErr)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(BUFFER.offset, &[0; 8])
}

//= RC-ERR-C type=test
fn event(bench: &Bench<'_>, rights: Rights, expected: Event) -> CaseResult {
    let conn = bench.connect(QpSpec {
        rights,
        ..with_receives(1)
    })?;
    let packet = conn
        .request(Operation::WriteOnly, 0)
        .payload(b"new data")
        .ack_req();
    conn.send(&packet.reth(conn.region().va + 4096, conn.region().rkey, 8))?;
    let code = match expected {
        Event::QpAccessErr => NakCode::RemoteAccess,
        _ => NakCode::InvalidRequest,
    };
    conn.expect_nak(0, code, 0)?;
    conn.expect_event(expected)?;
    // No receive caused the error, so the receive is only flushed.
    conn.expect_completion(0, Status::WrFlushErr)?;
    conn.expect_no_event()
}

/// Sends a WRITE with immediate beyond the end of its region.
fn refused_immediate<'b>(bench: &'b Bench<'b>) -> CaseResult<Conn<'b>> {
    let conn = bench.connect(with_receives(1))?;
    let packet = conn
        .request(Operation::WriteOnlyImm, 0)
        .payload(b"new data")
        .imm(*b"1234");
    let region = conn.region();
    conn.send(&packet.reth(region.va + 4096, region.rkey, 8).ack_req())?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    Ok(conn)
}

/// The receive reports the error, with whatever status.
//= RC-ERR-C type=test
fn completion_not_event(bench: &Bench<'_>) -> CaseResult {
    let conn = refused_immediate(bench)?;
    conn.expect_completion_of(0, &[Status::LocAccessErr, Status::RemAccessErr])?;
    conn.expect_state(State::Err)?;
    conn.expect_no_event()
}

//= WCS-08 type=test
fn refused_write(bench: &Bench<'_>) -> CaseResult {
    let conn = refused_immediate(bench)?;
    conn.expect_completion(0, Status::LocAccessErr).map(drop)
}

/// The statuses of a receive whose SEND names a key that cannot be invalidated. The standard's one
/// is not known.
pub(super) const BAD_INVALIDATE: &[Status] = &[
    Status::RemAccessErr,
    Status::RemInvReqErr,
    Status::LocQpOpErr,
    Status::MwBindErr,
];

//= RC-ERR-J type=test
fn bad_invalidate(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(with_receives(1))?;
    let rkey = Rkey::new(conn.region().rkey.get() ^ 0x00ff_0001);
    let packet = conn
        .request(Operation::SendOnlyInv, 0)
        .payload(b"new data")
        .ack_req();
    conn.send(&packet.edit(|h| h.ieth = Some(rocade_wire::Ieth(rkey))))?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_completion_of(0, BAD_INVALIDATE)?;
    conn.expect_state(State::Err)
}

//= RC-STA-01 type=test
fn flushed(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(with_receives(3))?;
    conn.send_only(0, b"new data")?;
    conn.expect_ack(0, 1)?;
    conn.send(
        &conn
            .request(Operation::SendMiddle, 1)
            .payload(&pattern(256))
            .ack_req(),
    )?;
    conn.expect_nak(1, NakCode::InvalidRequest, 1)?;
    conn.expect_completion(0, Status::Success)?;
    conn.expect_completion(1, Status::WrFlushErr)?;
    conn.expect_completion(2, Status::WrFlushErr)?;
    conn.expect_no_completion()
}

//= RC-STA-02 type=test
fn posted_in_err(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.to_error()?;
    conn.post_recv(7, BUFFER)?;
    conn.expect_completion(7, Status::WrFlushErr)?;
    Ok(())
}

//= RC-STA-03 type=test
fn silent_in_err(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(with_receives(1))?;
    conn.to_error()?;
    conn.write_only(0, 0, b"new data")?;
    conn.send_only(1, b"new data")?;
    conn.send(&conn.read(5, 0, 8))?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 8])?;
    equal(conn.qp().state(), State::Err, "state")
}

//= RC-STA-03 type=test
fn silent_after_nak(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(&conn.atomic(0, 4, 1, None))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.write_only(0, 0, b"new data")?;
    conn.write_only(1, 0, b"new data")?;
    conn.expect_silence()?;
    conn.expect_memory(0, &[0; 8])
}
