//! What only Rocade has on the wire: masked atomics; and indirect keys, of which a peer sees no more than a key.

use rocade_wire::{MaskedEth, NakCode, Opcode, Operation, Rkey};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    case::equal,
    peer::{Buffer, Rights, State, Status, Work, WorkOp},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("XAW-03", "masked-compare-and-swap", masked_swap),
    Case::responder("XAW-03", "masked-add-in-fields", masked_add),
    Case::responder("XAW-04", "half-a-word", half_word),
    Case::responder("XAW-06", "operands-of-several-words", wide),
    Case::responder("XAW-07", "a-repeated-masked-atomic", repeated),
    Case::responder("XAW-07", "of-a-size-that-is-none", |b| {
        masked_refused(b, NakCode::InvalidRequest, |c| masked(c, 0, 0, 6, &[0; 64]))
    }),
    Case::responder("XAW-07", "unaligned", |b| {
        masked_refused(b, NakCode::InvalidRequest, |c| masked(c, 0, 4, 3, &[0; 16]))
    }),
    Case::responder("XAW-07", "operands-that-end-early", |b| {
        masked_refused(b, NakCode::InvalidRequest, |c| masked(c, 0, 0, 3, &[0; 8]))
    }),
    Case::responder("XAW-07", "beyond-the-region", |b| {
        masked_refused(b, NakCode::RemoteAccess, |c| {
            masked(c, 0, 4096, 3, &[0; 16])
        })
    }),
    Case::responder("UMR-24", "a-write-that-crosses-pieces", crossing),
    Case::responder("UMR-24", "a-read-that-crosses-pieces", reading),
    Case::responder("UMR-24", "beyond-the-end-of-an-indirect-key", |b| {
        no_access(b, Rights::ALL, |c, key| write(c, key, 596, &[1; 8]))
    }),
    Case::responder("UMR-13", "an-indirect-key-without-the-right", |b| {
        let rights = Rights {
            write: false,
            ..Rights::ALL
        };
        no_access(b, rights, |c, key| write(c, key, 0, &[1; 8]))
    }),
    Case::responder("UMR-18", "an-indirect-key-that-was-freed", freed),
];

/// A masked atomic of 2^`log_size` bytes at `offset`, with these operands.
fn masked(
    conn: &Conn<'_>,
    index: i32,
    offset: u64,
    log_size: u8,
    operands: &[u8],
) -> PacketBuilder {
    masked_of(
        conn,
        Operation::MaskedFetchAdd,
        index,
        offset,
        log_size,
        operands,
    )
}

fn masked_of(
    conn: &Conn<'_>,
    operation: Operation,
    index: i32,
    offset: u64,
    log_size: u8,
    operands: &[u8],
) -> PacketBuilder {
    let region = conn.region();
    let opcode = match operation {
        Operation::MaskedCmpSwap => Opcode::new(0xf8),
        _ => Opcode::new(0xf9),
    };
    let packet = conn.request(Operation::FetchAdd, index).payload(operands);
    packet.ack_req().edit(|headers| {
        headers.bth.opcode = opcode;
        headers.masked = Some(MaskedEth {
            va: region.va + offset,
            rkey: region.rkey,
            log_size,
            resv: [0; 3],
        });
    })
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

//= XAW-02 XAW-03 XAW-06 type=test
fn masked_swap(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let before = 0x1111_2222_3333_4444_u64;
    conn.qp().write_memory(0, 8, &before.to_ne_bytes());
    // Swap, compare, swap mask, compare mask: the lowest quarter is compared, the highest swapped.
    let operands = words(&[0xaaaa << 48, 0x4444, 0xffff << 48, 0xffff]);
    let swap = |index| masked_of(&conn, Operation::MaskedCmpSwap, index, 8, 3, &operands);
    conn.send(&swap(0))?;
    conn.expect_atomic_ack(0, before, 1)?;
    let after = 0xaaaa_2222_3333_4444_u64;
    conn.expect_memory(8, &after.to_ne_bytes())?;
    let miss = words(&[0, 0x5555, u64::MAX, 0xffff]);
    conn.send(&masked_of(&conn, Operation::MaskedCmpSwap, 1, 8, 3, &miss))?;
    conn.expect_atomic_ack(1, after, 2)?;
    conn.expect_memory(8, &after.to_ne_bytes())
}

//= XAW-02 XAW-03 type=test
fn masked_add(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let before = 0x0001_ffff_0002_ffff_u64;
    conn.qp().write_memory(0, 0, &before.to_ne_bytes());
    // Fields of 16 bits: nothing is carried from one to the next.
    let operands = words(&[0x0001_0001_0001_0001, 0x8000_8000_8000_8000]);
    conn.send(&masked(&conn, 0, 0, 3, &operands))?;
    conn.expect_atomic_ack(0, before, 1)?;
    conn.expect_memory(0, &0x0002_0000_0003_0000_u64.to_ne_bytes())
}

//= XAW-04 type=test
fn half_word(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.qp().write_memory(0, 0, &[0xff; 12]);
    conn.send(&masked(&conn, 0, 4, 2, &words(&[3, 0])))?;
    conn.expect_atomic_ack(0, 0xffff_ffff, 1)?;
    let expected = [&[0xff; 4][..], &2u32.to_ne_bytes(), &[0xff; 4]].concat();
    conn.expect_memory(0, &expected)
}

//= XAW-06 type=test
fn wide(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.qp().write_memory(0, 16, &[5; 16]);
    let operands = words(&[1, 2, 0, 0]);
    conn.send(&masked(&conn, 0, 16, 4, &operands))?;
    let packet = conn.receive()?;
    equal(packet.headers.bth.opcode, Opcode::new(0xf2), "opcode")?;
    equal(packet.headers.bth.psn, conn.psn(0), "PSN of the answer")?;
    equal(packet.payload, vec![5; 16], "original value")?;
    conn.probe(1, 2)
}

//= XAW-07 type=test
fn repeated(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    for _ in 0..3 {
        conn.send(&masked(&conn, 0, 0, 3, &words(&[7, 0])))?;
        conn.expect_atomic_ack(0, 0, 1)?;
    }
    conn.expect_memory(0, &7u64.to_ne_bytes())?;
    conn.probe(1, 2)
}

//= XAW-07 type=test
fn masked_refused(
    bench: &Bench<'_>,
    code: NakCode,
    packet: impl Fn(&Conn<'_>) -> PacketBuilder,
) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(&packet(&conn))?;
    conn.expect_nak(0, code, 0)?;
    conn.expect_memory(0, &[0; 64])?;
    conn.expect_state(State::Err)
}

/// Three pieces of 200 bytes, in another order than in memory.
const PIECES: [Buffer; 3] = [
    Buffer::new(2000, 200),
    Buffer::new(0, 200),
    Buffer::new(1000, 200),
];

fn connect<'b>(bench: &'b Bench<'_>, rights: Rights) -> CaseResult<(Conn<'b>, Rkey)> {
    let conn = bench.connect(QpSpec::default())?;
    let key = conn.indirect(&PIECES, rights)?;
    Ok((conn, key))
}

fn write(conn: &Conn<'_>, key: Rkey, va: u64, data: &[u8]) -> PacketBuilder {
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    conn.request(Operation::WriteOnly, 0)
        .reth(va, key, len)
        .payload(data)
        .ack_req()
}

//= UMR-24 type=test
fn crossing(bench: &Bench<'_>) -> CaseResult {
    let (conn, key) = connect(bench, Rights::ALL)?;
    let data = pattern(500);
    let (first, last) = data.split_at(256);
    conn.send(
        &conn
            .request(Operation::WriteFirst, 0)
            .reth(50, key, 500)
            .payload(first),
    )?;
    let packet = conn.request(Operation::WriteLast, 1).payload(last);
    conn.send(&packet.ack_req())?;
    conn.expect_ack_up_to(1, 1)?;
    conn.expect_memory(2000, &[&[0; 50], &data[..150]].concat())?;
    conn.expect_memory(0, &data[150..350])?;
    conn.expect_memory(1000, &[&data[350..], &[0; 50]].concat())?;
    // Between the pieces there is nothing.
    conn.expect_memory(200, &[0; 800])?;
    conn.expect_memory(1200, &[0; 800])
}

//= UMR-24 type=test
fn reading(bench: &Bench<'_>) -> CaseResult {
    let (conn, key) = connect(bench, Rights::ALL)?;
    let data = pattern(600);
    for (piece, part) in PIECES.iter().zip(data.chunks(200)) {
        conn.qp().write_memory(0, piece.offset, part);
    }
    conn.send(
        &conn
            .request(Operation::ReadRequest, 0)
            .reth(10, key, 580)
            .ack_req(),
    )?;
    conn.expect_read_response(0, &data[10..590], 1)
}

//= UMR-13 UMR-24 type=test
fn no_access(
    bench: &Bench<'_>,
    rights: Rights,
    packet: impl Fn(&Conn<'_>, Rkey) -> PacketBuilder,
) -> CaseResult {
    let (conn, key) = connect(bench, rights)?;
    conn.send(&packet(&conn, key))?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_memory(0, &[0; 4096])?;
    conn.expect_state(State::Err)
}

//= UMR-18 type=test
fn freed(bench: &Bench<'_>) -> CaseResult {
    let (conn, key) = connect(bench, Rights::ALL)?;
    conn.send(&write(&conn, key, 0, &pattern(8)))?;
    conn.expect_ack(0, 1)?;
    conn.expect_memory(2000, &pattern(8))?;
    let op = WorkOp::Invalidate { rkey: key };
    conn.post_send(&Work::new(9, op, Buffer::new(0, 0)))?;
    conn.expect_completion(9, Status::Success)?;
    conn.send(&write(&conn, key, 0, &[9; 8]).edit(|h| h.bth.psn = conn.psn(1)))?;
    conn.expect_nak(1, NakCode::RemoteAccess, 1)?;
    conn.expect_memory(2000, &pattern(8))
}
