//! Masked atomics, in Rocade's format and in that of NVIDIA's NICs. Also indirect keys, which look
//! like any key to the peer.

use rocade_wire::{MaskedEth, Msn, NakCode, Opcode, Operation, Rkey};

use super::{
    dynamic_initiator::{is_question, say_yes},
    pattern,
};
use crate::{
    Bench, Case, CaseResult, Conn, Feature, PacketBuilder, QpSpec,
    bench::POSITIVE,
    case::equal,
    peer::{Buffer, MaskedWork, Rights, State, Status, Work, WorkOp},
    rig::Received,
};

pub(super) const CASES: &[Case] = &[
    masked_case("XAW-03", "masked-compare-and-swap", masked_swap),
    masked_case("XAW-03", "masked-add-in-fields", masked_add),
    masked_case("XAW-04", "half-a-word", half_word),
    masked_case("XAW-06", "operands-of-several-words", wide),
    masked_case("XAW-07", "a-repeated-masked-atomic", repeated),
    masked_case("XAW-07", "of-a-size-that-is-none", |b| {
        masked_refused(b, NakCode::InvalidRequest, |c| masked(c, 0, 0, 6, &[0; 64]))
    }),
    masked_case("XAW-07", "unaligned", |b| {
        masked_refused(b, NakCode::InvalidRequest, |c| masked(c, 0, 4, 3, &[0; 16]))
    }),
    masked_case("XAW-07", "operands-that-end-early", |b| {
        masked_refused(b, NakCode::InvalidRequest, |c| masked(c, 0, 0, 3, &[0; 8]))
    }),
    masked_case("XAW-07", "beyond-the-region", |b| {
        masked_refused(b, NakCode::RemoteAccess, |c| {
            masked(c, 0, 4096, 3, &[0; 16])
        })
    }),
    short_case("HW-11", "masked-compare-and-swap-of-a-nic", short_swap),
    short_case("HW-11", "a-repeated-one-of-a-nic", short_repeated),
    short_case("HW-11", "an-unaligned-one-of-a-nic", short_unaligned),
    masked_case("HW-12", "masked-add-by-analogy", short_add),
    Case::responder("UMR-24", "a-write-that-crosses-segments", crossing),
    Case::responder("UMR-24", "a-read-that-crosses-segments", reading),
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
    Case::requester(
        "XAW-10",
        "masked-compare-and-swap-as-it-is-sent",
        sends_swap,
    ),
    Case::requester("XAW-03", "masked-add-as-it-is-sent", sends_add),
    Case::requester("XAW-04", "half-a-word-as-it-is-sent", sends_half),
    Case::requester("XAW-06", "several-words-as-they-are-sent", sends_wide),
    Case::requester("XAW-06", "an-answer-of-another-length", wrong_answer),
    Case::requester("XAW-07", "repeats-the-same-masked-atomic", repeats),
    Case::requester("XAW-07", "a-masked-atomic-is-refused", |b| {
        is_refused(b, NakCode::InvalidRequest, Status::RemInvReqErr)?;
        is_refused(b, NakCode::RemoteAccess, Status::RemAccessErr)
    }),
];

/// Creates a case for a responder that is Rocade.
const fn masked_case(
    rule: &'static str,
    slug: &'static str,
    run: fn(&Bench<'_>) -> CaseResult,
) -> Case {
    Case::responder(rule, slug, run).needing(Feature::Own)
}

/// Creates a case for a responder that has NVIDIA's masked compare-and-swap.
const fn short_case(
    rule: &'static str,
    slug: &'static str,
    run: fn(&Bench<'_>) -> CaseResult,
) -> Case {
    Case::responder(rule, slug, run).needing(Feature::MaskedSwap)
}

/// Returns a masked atomic of 2^`log_size` bytes at `offset`, with these operands.
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
    // Swap, compare, swap mask and compare mask: the lowest 16 bits are compared, and the highest
    // are swapped.
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
    // Fields of 16 bits, without a carry between them.
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

/// Returns a masked atomic in NVIDIA's format.
fn short(
    conn: &Conn<'_>,
    operation: Operation,
    (index, offset): (i32, u64),
    operands: &[u64],
) -> PacketBuilder {
    let packet = masked_of(conn, operation, index, offset, 3, &words(operands));
    packet.edit(|headers| {
        headers.bth.opcode = Opcode::new(match operation {
            Operation::MaskedCmpSwap => 0x18,
            _ => 0x19,
        });
    })
}

/// Swap, compare, swap mask and compare mask: the lowest 16 bits are compared and swapped.
const LOW_BITS: [u64; 4] = [0xaaaa, 0x4444, 0xffff, 0xffff];

fn short_swap_at(conn: &Conn<'_>, index: i32, offset: u64) -> PacketBuilder {
    short(conn, Operation::MaskedCmpSwap, (index, offset), &LOW_BITS)
}

/// Checks equal masks only, because no capture shows their order.
//= HW-11 XAW-10 type=test
fn short_swap(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let before = 0x1111_2222_3333_4444_u64;
    let after = 0x1111_2222_3333_aaaa_u64;
    conn.qp().write_memory(0, 8, &before.to_ne_bytes());
    for (index, original, msn) in [(0, before, 1), (1, after, 2)] {
        conn.send(&short_swap_at(&conn, index, 8))?;
        conn.expect_atomic_ack(index, original, msn)?;
        conn.expect_memory(8, &after.to_ne_bytes())?;
    }
    conn.probe(2, 3)
}

//= HW-11 RC-DUP-04 type=test
fn short_repeated(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.qp().write_memory(0, 0, &0x4444_u64.to_ne_bytes());
    for _ in 0..3 {
        conn.send(&short_swap_at(&conn, 0, 0))?;
        conn.expect_atomic_ack(0, 0x4444, 1)?;
    }
    conn.expect_memory(0, &0xaaaa_u64.to_ne_bytes())?;
    conn.probe(1, 2)
}

//= HW-11 type=test
fn short_unaligned(bench: &Bench<'_>) -> CaseResult {
    masked_refused(bench, NakCode::InvalidRequest, |c| short_swap_at(c, 0, 1))
}

//= HW-12 type=test
fn short_add(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let before = 0x0001_ffff_0002_ffff_u64;
    conn.qp().write_memory(0, 0, &before.to_ne_bytes());
    let operands = [0x0001_0001_0001_0001, 0x8000_8000_8000_8000];
    conn.send(&short(&conn, Operation::MaskedFetchAdd, (0, 0), &operands))?;
    conn.expect_atomic_ack(0, before, 1)?;
    conn.expect_memory(0, &0x0002_0000_0003_0000_u64.to_ne_bytes())
}

/// Three segments of 200 bytes, not in the order of memory.
const SEGMENTS: [Buffer; 3] = [
    Buffer::new(2000, 200),
    Buffer::new(0, 200),
    Buffer::new(1000, 200),
];

fn connect<'b>(bench: &'b Bench<'_>, rights: Rights) -> CaseResult<(Conn<'b>, Rkey)> {
    let conn = bench.connect(QpSpec::default())?;
    let key = conn.indirect(&SEGMENTS, rights)?;
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
    // The memory between the segments is unchanged.
    conn.expect_memory(200, &[0; 800])?;
    conn.expect_memory(1200, &[0; 800])
}

//= UMR-24 type=test
fn reading(bench: &Bench<'_>) -> CaseResult {
    let (conn, key) = connect(bench, Rights::ALL)?;
    let data = pattern(600);
    for (segment, part) in SEGMENTS.iter().zip(data.chunks(200)) {
        conn.qp().write_memory(0, segment.offset, part);
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

const VA: u64 = 0x0123_4567_89ab_cd00;
const RKEY: Rkey = Rkey::new(0x00fe_d123);
/// The offset of results.
const RESULT: usize = 64;

const ADD: MaskedWork = MaskedWork::FetchAdd {
    add: [0x0102_0304_0506_0708, 2, 3, 4],
    boundary: [1 << 63, 1 << 31, 0, 0],
};

fn post_masked(conn: &Conn<'_>, id: u64, log_size: u8, op: MaskedWork) -> CaseResult {
    let op = WorkOp::Masked {
        va: VA,
        rkey: RKEY,
        log_size,
        op,
    };
    conn.post_send(&Work::new(id, op, Buffer::new(RESULT, 1 << log_size)))
}

/// Expects this masked atomic. Before it, the peer may send the datagram that asks whether the rig
/// is Rocade.
fn expect_masked(conn: &Conn<'_>, index: i32, opcode: u8, log_size: u8) -> CaseResult<Received> {
    let mut packet = conn.receive()?;
    if is_question(conn, &packet) {
        say_yes(conn)?;
        packet = conn.receive()?;
    }
    let headers = packet.headers;
    equal(headers.bth.opcode, Opcode::new(opcode), "opcode")?;
    equal(headers.bth.psn, conn.peer_psn(index), "PSN of the request")?;
    equal(headers.bth.ack_req, true, "AckReq")?;
    let eth = MaskedEth {
        va: VA,
        rkey: RKEY,
        log_size,
        resv: [0; 3],
    };
    equal(headers.masked, Some(eth), "header")?;
    Ok(packet)
}

fn result(conn: &Conn<'_>, index: i32, original: u64) -> CaseResult {
    let packet = conn.answer(Operation::AtomicAcknowledge, index);
    let packet = packet.aeth(POSITIVE, Msn::new(1));
    conn.send(&packet.atomic_ack(original))
}

/// Sends the response to an operand of several words.
fn wide_result(conn: &Conn<'_>, index: i32, original: &[u64]) -> CaseResult {
    let packet = conn.answer(Operation::Acknowledge, index).edit(|headers| {
        headers.bth.opcode = Opcode::new(0xf2);
    });
    let packet = packet.aeth(POSITIVE, Msn::new(1));
    conn.send(&packet.payload(&words(original)))
}

//= XAW-10 HW-11 XAW-06 type=test
//= XAT-25 type=test
fn sends_swap(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    let op = MaskedWork::CmpSwap {
        swap: [1, 0, 0, 0],
        compare: [2, 0, 0, 0],
        swap_mask: [3, 0, 0, 0],
        compare_mask: [1 << 63, 0, 0, 0],
    };
    post_masked(&conn, 1, 3, op)?;
    let packet = expect_masked(&conn, 0, 0x18, 3)?;
    equal(packet.payload, words(&[1, 2, 3, 1 << 63]), "operands")?;
    conn.expect_no_completion()?;
    let original = 0x1122_3344_5566_7788_u64;
    result(&conn, 0, original)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(RESULT, &original.to_ne_bytes())
}

//= XAW-02 XAW-03 XAW-07 type=test
fn sends_add(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    post_masked(&conn, 1, 3, ADD)?;
    let packet = expect_masked(&conn, 0, 0xf9, 3)?;
    let operands = words(&[0x0102_0304_0506_0708, 1 << 63]);
    equal(packet.payload, operands, "operands")?;
    result(&conn, 0, 9)?;
    conn.expect_completion(1, Status::Success)?;
    // The operation uses one PSN.
    conn.post_send(&Work::new(2, WorkOp::Send { imm: None }, Buffer::new(0, 8)))?;
    conn.expect_request(Operation::SendOnly, 1)?;
    conn.ack(1, 2)?;
    conn.expect_completion(2, Status::Success).map(drop)
}

//= XAW-04 XAT-13 type=test
fn sends_half(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.qp().write_memory(0, RESULT, &[0xee; 8]);
    let op = MaskedWork::FetchAdd {
        add: [7, 0, 0, 0],
        boundary: [1 << 31, 0, 0, 0],
    };
    post_masked(&conn, 1, 2, op)?;
    let packet = expect_masked(&conn, 0, 0xf9, 2)?;
    equal(packet.payload, words(&[7, 1 << 31]), "operands")?;
    result(&conn, 0, 0x1234_5678)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(RESULT, &0x1234_5678_u32.to_ne_bytes())?;
    conn.expect_memory(RESULT + 4, &[0xee; 4])
}

//= XAW-06 XAT-14 XAT-25 type=test
fn sends_wide(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    post_masked(&conn, 1, 4, ADD)?;
    let packet = expect_masked(&conn, 0, 0xf9, 4)?;
    let operands = words(&[0x0102_0304_0506_0708, 2, 1 << 63, 1 << 31]);
    equal(packet.payload, operands, "operands")?;
    let original = [0x1122_3344_5566_7788_u64, 99];
    wide_result(&conn, 0, &original)?;
    conn.expect_completion(1, Status::Success)?;
    conn.expect_memory(RESULT, &original.map(u64::to_ne_bytes).concat())
}

/// A response of one word to an operand of two, and a response of four words.
//= XAW-06 RC-REQ-10 type=test
fn wrong_answer(bench: &Bench<'_>) -> CaseResult {
    for len in [1, 4] {
        let conn = bench.connect(QpSpec::default())?;
        post_masked(&conn, 1, 4, ADD)?;
        expect_masked(&conn, 0, 0xf9, 4)?;
        wide_result(&conn, 0, &[5; 4][..len])?;
        conn.expect_completion(1, Status::BadRespErr)?;
        conn.expect_state(State::Err)?;
        conn.expect_memory(RESULT, &[0; 32])?;
    }
    Ok(())
}

//= XAW-07 RC-REQ-16 type=test
fn repeats(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    post_masked(&conn, 1, 4, ADD)?;
    let first = expect_masked(&conn, 0, 0xf9, 4)?;
    conn.nak(0, NakCode::PsnSequence, 0)?;
    let second = expect_masked(&conn, 0, 0xf9, 4)?;
    equal(second.payload, first.payload, "operands")?;
    wide_result(&conn, 0, &[1, 2])?;
    conn.expect_completion(1, Status::Success)?;
    // A late response has no effect.
    wide_result(&conn, 0, &[3, 4])?;
    conn.expect_no_completion()?;
    conn.expect_memory(RESULT, &[1u64, 2].map(u64::to_ne_bytes).concat())
}

//= XAW-07 type=test
fn is_refused(bench: &Bench<'_>, code: NakCode, status: Status) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    post_masked(&conn, 1, 3, ADD)?;
    expect_masked(&conn, 0, 0xf9, 3)?;
    conn.nak(0, code, 0)?;
    conn.expect_completion(1, status)?;
    conn.expect_state(State::Err)
}
