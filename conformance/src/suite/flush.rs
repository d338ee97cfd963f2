//! FLUSH and ATOMIC WRITE (Annex A19), from both sides.

use rocade_wire::{Feth, NakCode, Operation, Placement, Reth, Rkey, Selectivity};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, Feature, PacketBuilder, QpSpec,
    case::equal,
    peer::{Buffer, RegionSpec, Rights, State, Status, Work, WorkOp},
};

pub(super) const CASES: &[Case] = &[
    flushing("RC-RSP-25", "a-flush-is-answered-in-its-turn", flushes),
    flushing("ETH-13", "flush-of-a-region", flush_region),
    flushing("ETH-13", "flush-that-asks-for-nothing", |b| {
        bad_flush(b, Feth::from_raw(0x00))
    }),
    flushing("ETH-13", "flush-of-a-reserved-kind", |b| {
        bad_flush(b, Feth::from_raw(0x05))
    }),
    flushing("ETH-13", "flush-of-a-reserved-extent", |b| {
        bad_flush(b, Feth::from_raw(0x21))
    }),
    flushing("RC-RSP-08", "flush-beyond-the-region", |b| {
        no_access(b, RegionSpec::new(4096), |c| flush(c, 0, 4097))
    }),
    flushing("RC-RSP-08", "flush-of-a-region-without-the-right", |b| {
        let rights = Rights {
            flush: false,
            ..Rights::ALL
        };
        let region = RegionSpec {
            rights,
            ..RegionSpec::new(4096)
        };
        no_access(b, region, |c| flush(c, 0, 8))
    }),
    flushing(
        "RC-LIM-04",
        "flush-that-the-queue-pair-does-not-allow",
        |b| {
            let rights = Rights {
                flush: false,
                ..Rights::ALL
            };
            refused(b, rights, |c| flush(c, 0, 8))
        },
    ),
    storing("ORD-07", "an-atomic-write-stores-its-bytes", stores),
    storing(
        "RC-DUP-04",
        "a-repeated-atomic-write-stores-nothing",
        repeated_store,
    ),
    storing("ETH-12", "unaligned-atomic-write", |b| {
        refused(b, Rights::ALL, |c| store(c, 0, 4, 8, &[1; 8]))
    }),
    storing("ETH-12", "atomic-write-of-another-length", |b| {
        refused(b, Rights::ALL, |c| store(c, 0, 8, 16, &[1; 8]))
    }),
    storing("RC-RSP-08", "atomic-write-without-the-right", |b| {
        let rights = Rights {
            write: false,
            ..Rights::ALL
        };
        let region = RegionSpec {
            rights,
            ..RegionSpec::new(4096)
        };
        no_access(b, region, |c| store(c, 0, 8, 8, &[1; 8]))
    }),
    Case::requester("ETH-13", "flush-as-it-is-sent", asks_to_flush),
    Case::requester("ETH-12", "atomic-write-as-it-is-sent", asks_to_store),
];

/// Creates a case for a responder that implements FLUSH.
const fn flushing(
    rule: &'static str,
    slug: &'static str,
    run: fn(&Bench<'_>) -> CaseResult,
) -> Case {
    Case::responder(rule, slug, run).needing(Feature::Flush)
}

/// Creates a case for a responder that implements ATOMIC WRITE.
const fn storing(
    rule: &'static str,
    slug: &'static str,
    run: fn(&Bench<'_>) -> CaseResult,
) -> Case {
    Case::responder(rule, slug, run).needing(Feature::AtomicWrite)
}

const GLOBAL: Feth = Feth::new(Placement::GLOBAL_VISIBILITY, Selectivity::Range);

fn flush_with(conn: &Conn<'_>, index: i32, len: u32, feth: Feth) -> PacketBuilder {
    let region = conn.region();
    let packet = conn
        .request(Operation::Flush, index)
        .reth(region.va, region.rkey, len)
        .edit(|headers| headers.feth = Some(feth))
        .ack_req();
    if conn.peer().can(Feature::RxeFlush) {
        packet.covered_twice()
    } else {
        packet
    }
}

fn flush(conn: &Conn<'_>, index: i32, len: u32) -> PacketBuilder {
    flush_with(conn, index, len, GLOBAL)
}

fn store(conn: &Conn<'_>, index: i32, offset: u64, dma_len: u32, data: &[u8]) -> PacketBuilder {
    let region = conn.region();
    conn.request(Operation::AtomicWrite, index)
        .reth(region.va + offset, region.rkey, dma_len)
        .payload(data)
        .ack_req()
}

//= RC-RSP-25 ORD-06 RC-PSN-06 type=test
fn flushes(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.write_only(0, 0, &pattern(100))?;
    conn.expect_ack(0, 1)?;
    conn.send(&flush(&conn, 1, 100))?;
    conn.expect_read_response(1, &[], 2)?;
    // A duplicate is answered again, and does not increment the MSN.
    conn.send(&flush(&conn, 1, 100))?;
    conn.expect_read_response(1, &[], 2)?;
    conn.expect_memory(0, &pattern(100))?;
    conn.probe(2, 3)
}

//= ETH-13 type=test
fn flush_region(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let whole = Feth::new(Placement::GLOBAL_VISIBILITY, Selectivity::MemoryRegion);
    // The responder ignores address and length.
    conn.send(&flush_with(&conn, 0, u32::MAX, whole))?;
    conn.expect_read_response(0, &[], 1)?;
    conn.send(&flush(&conn, 1, 0))?;
    conn.expect_read_response(1, &[], 2)
}

//= ETH-13 RC-RSP-04 type=test
fn bad_flush(bench: &Bench<'_>, feth: Feth) -> CaseResult {
    refused(bench, Rights::ALL, |conn| flush_with(conn, 0, 64, feth))
}

//= RC-LIM-04 type=test
fn refused(
    bench: &Bench<'_>,
    rights: Rights,
    packet: impl Fn(&Conn<'_>) -> PacketBuilder,
) -> CaseResult {
    let conn = bench.connect(QpSpec {
        rights,
        ..QpSpec::default()
    })?;
    conn.send(&packet(&conn))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_memory(0, &[0; 32])?;
    conn.expect_state(State::Err)
}

//= RC-RSP-08 type=test
fn no_access(
    bench: &Bench<'_>,
    region: RegionSpec,
    packet: impl Fn(&Conn<'_>) -> PacketBuilder,
) -> CaseResult {
    let conn = bench.connect(QpSpec {
        regions: vec![region],
        ..QpSpec::default()
    })?;
    conn.send(&packet(&conn))?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_memory(0, &[0; 32])?;
    conn.expect_state(State::Err)
}

//= ORD-07 ETH-12 type=test
fn stores(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(&store(&conn, 0, 16, 8, &pattern(8)))?;
    conn.expect_read_response(0, &[], 1)?;
    conn.expect_memory(8, &[&[0; 8][..], &pattern(8), &[0; 8]].concat())?;
    conn.probe(1, 2)
}

//= RC-DUP-04 type=test
fn repeated_store(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(&store(&conn, 0, 16, 8, &pattern(8)))?;
    conn.expect_read_response(0, &[], 1)?;
    conn.write_only(1, 16, &[9; 8])?;
    conn.expect_ack(1, 2)?;
    conn.send(&store(&conn, 0, 16, 8, &pattern(8)))?;
    let answer = conn.receive()?;
    equal(answer.headers.bth.psn, conn.psn(0), "PSN of the answer")?;
    conn.expect_memory(16, &[9; 8])?;
    conn.probe(2, 3)
}

const VA: u64 = 0x0123_4567_89ab_cd00;
const RKEY: Rkey = Rkey::new(0x00fe_d123);

//= ETH-13 OPC-25 type=test
fn asks_to_flush(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let op = WorkOp::Flush {
        va: VA,
        rkey: RKEY,
        len: 5000,
    };
    conn.post_send(&Work::new(1, op, Buffer::new(0, 0)))?;
    let packet = conn.expect_request(Operation::Flush, 0)?;
    let reth = Reth {
        va: VA,
        rkey: RKEY,
        dma_len: 5000,
    };
    equal(packet.headers.reth, Some(reth), "RETH")?;
    equal(packet.headers.feth, Some(GLOBAL), "FETH")?;
    equal(packet.payload.len(), 0, "length of the payload")?;
    conn.expect_no_completion()?;
    conn.read_response(Operation::ReadResponseOnly, 0, &[], 1)?;
    conn.expect_completion(1, Status::Success).map(drop)
}

//= ETH-12 OPC-26 type=test
fn asks_to_store(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.qp().write_memory(0, 0, &pattern(8));
    let op = WorkOp::AtomicWrite { va: VA, rkey: RKEY };
    conn.post_send(&Work::new(1, op, Buffer::new(0, 8)))?;
    let packet = conn.expect_request(Operation::AtomicWrite, 0)?;
    let reth = Reth {
        va: VA,
        rkey: RKEY,
        dma_len: 8,
    };
    equal(packet.headers.reth, Some(reth), "RETH")?;
    equal(packet.payload, pattern(8), "data")?;
    conn.read_response(Operation::ReadResponseOnly, 0, &[], 1)?;
    conn.expect_completion(1, Status::Success).map(drop)
}
