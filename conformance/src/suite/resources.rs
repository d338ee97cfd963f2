//! READs and atomics, and their replays.

use rocade_wire::{Mtu, NakCode, Operation, Rkey};

use super::pattern;
use crate::{
    Bench, Case, CaseResult, Conn, PacketBuilder, QpSpec,
    peer::{RegionSpec, State},
};

pub(super) const CASES: &[Case] = &[
    Case::responder("RC-PSN-05", "read-takes-a-psn-per-response", read_psns),
    Case::responder("RC-PSN-06", "read-responses-count-up", read_lengths),
    Case::responder("MTU-03", "path-mtu-bounds-payload", path_mtus),
    Case::responder("RC-ACK-04", "reads-one-after-the-other", consecutive_reads),
    Case::responder("RC-RSP-05", "read-without-resources", |b| {
        no_resources(b, |c| c.read(0, 0, 8))
    }),
    Case::responder("RC-RSP-05", "atomic-without-resources", |b| {
        no_resources(b, |c| c.atomic(0, 0, 1, None))
    }),
    Case::responder("RC-DUP-03", "read-is-answered-again", read_again),
    Case::responder("RC-DUP-03", "read-is-executed-again", read_anew),
    Case::responder("RC-DUP-03", "rest-of-a-read", read_rest),
    Case::responder("RC-DUP-03", "other-range-is-dropped", |b| {
        replay_dropped(b, |c| c.read(1, 64, 512))
    }),
    Case::responder("RC-DUP-03", "longer-range-is-dropped", |b| {
        replay_dropped(b, |c| c.read(1, 256, 1024))
    }),
    Case::responder("RC-DUP-03", "other-key-is-dropped", |b| {
        replay_dropped(b, |c| {
            let region = c.region();
            let rkey = Rkey::new(region.rkey.get() ^ 0x0000_ff00);
            c.request(Operation::ReadRequest, 0)
                .reth(region.va, rkey, 1024)
                .ack_req()
        })
    }),
    Case::responder("RC-DUP-06", "key-gone-since", key_gone),
    Case::responder("RC-DUP-04", "fetch-add-is-replayed", |b| {
        atomic_replay(b, None)
    }),
    Case::responder("RC-DUP-04", "compare-swap-is-replayed", |b| {
        atomic_replay(b, Some(5))
    }),
    Case::responder("RC-DUP-04", "other-operation-is-dropped", atomic_other),
    Case::responder("RC-DUP-05", "as-many-as-max-dest-rd-atomic", saved_depth),
    Case::responder("RC-DUP-05", "oldest-is-evicted", evicted).should(),
    Case::responder("ETH-02", "fetch-add", fetch_add),
    Case::responder("ETH-02", "compare-swap", compare_swap),
];

/// Returns a connection whose region 0 is filled with a pattern.
fn with_data<'b>(bench: &'b Bench<'b>, len: usize) -> CaseResult<(Conn<'b>, Vec<u8>)> {
    let regions = vec![RegionSpec::new(len)];
    let conn = bench.connect(QpSpec {
        regions,
        ..QpSpec::default()
    })?;
    let data = pattern(len);
    conn.qp().write_memory(0, 0, &data);
    Ok((conn, data))
}

//= RC-PSN-05 type=test
fn read_psns(bench: &Bench<'_>) -> CaseResult {
    let (conn, data) = with_data(bench, 4096)?;
    conn.send(&conn.read(0, 0, 1025))?;
    conn.expect_read_response(0, &data[..1025], 1)?;
    conn.probe(5, 2)
}

//= RC-PSN-06 RC-SEG-01 type=test
fn read_lengths(bench: &Bench<'_>) -> CaseResult {
    for (len, packets) in [(1, 1), (255, 1), (256, 1), (257, 2), (512, 2), (4095, 16)] {
        let (conn, data) = with_data(bench, 4096)?;
        conn.send(&conn.read(0, 1, len))?;
        let end = usize::try_from(len).unwrap_or(0) + 1;
        conn.expect_read_response(0, &data[1..end], 1)?;
        conn.probe(packets, 2)?;
    }
    Ok(())
}

//= MTU-01 MTU-03 RC-SEG-01 type=test
fn path_mtus(bench: &Bench<'_>) -> CaseResult {
    for pmtu in [Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096] {
        let regions = vec![RegionSpec::new(16384)];
        let conn = bench.connect(QpSpec {
            pmtu,
            regions,
            ..QpSpec::default()
        })?;
        let data = pattern(conn.pmtu());
        conn.write_only(0, 0, &data)?;
        conn.expect_ack(0, 1)?;
        let len = 2 * pmtu.bytes() + 3;
        conn.qp().write_memory(0, 2 * data.len(), &data);
        conn.send(&conn.read(1, 0, len))?;
        let end = [&data[..], &vec![0; data.len()], &data[..3]].concat();
        conn.expect_read_response(1, &end, 2)?;
        conn.probe(4, 3)?;
    }
    Ok(())
}

//= RC-ACK-04 type=test
fn consecutive_reads(bench: &Bench<'_>) -> CaseResult {
    let (conn, data) = with_data(bench, 4096)?;
    for number in 0..4u8 {
        let index = 3 * i32::from(number);
        conn.send(&conn.read(index, 700 * u32::from(number), 700))?;
    }
    for number in 0..4u8 {
        let part = &data[700 * usize::from(number)..][..700];
        conn.expect_read_response(3 * i32::from(number), part, u32::from(number) + 1)?;
    }
    Ok(())
}

//= RC-RSP-05 type=test
fn no_resources(bench: &Bench<'_>, packet: impl Fn(&Conn<'_>) -> PacketBuilder) -> CaseResult {
    let conn = bench.connect(QpSpec {
        max_dest_rd_atomic: 0,
        ..QpSpec::default()
    })?;
    conn.send(&packet(&conn))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_state(State::Err)
}

//= RC-DUP-03 type=test
fn read_again(bench: &Bench<'_>) -> CaseResult {
    let (conn, data) = with_data(bench, 4096)?;
    for _ in 0..2 {
        conn.send(&conn.read(0, 0, 1000))?;
        conn.expect_read_response(0, &data[..1000], 1)?;
    }
    conn.probe(4, 2)?;
    // The responder repeats older requests than the newest, too.
    conn.send(&conn.read(0, 0, 1000))?;
    conn.expect_read_response(0, &data[..1000], 2)
}

//= RC-DUP-03 type=test
fn read_anew(bench: &Bench<'_>) -> CaseResult {
    let (conn, data) = with_data(bench, 4096)?;
    conn.send(&conn.read(0, 0, 300))?;
    conn.expect_read_response(0, &data[..300], 1)?;
    conn.qp().write_memory(0, 0, &[0xee; 300]);
    conn.send(&conn.read(0, 0, 300))?;
    conn.expect_read_response(0, &[0xee; 300], 1)
}

//= RC-DUP-03 type=test
fn read_rest(bench: &Bench<'_>) -> CaseResult {
    let (conn, data) = with_data(bench, 4096)?;
    conn.send(&conn.read(0, 0, 1000))?;
    conn.expect_read_response(0, &data[..1000], 1)?;
    for (index, skipped) in [(1, 256), (3, 768)] {
        conn.send(&conn.read(index, skipped, 1000 - skipped))?;
        let start = usize::try_from(skipped).unwrap_or(0);
        conn.expect_read_response(index, &data[start..1000], 1)?;
    }
    conn.probe(4, 2)
}

/// Checks that a duplicate of a READ of 1024 bytes is ignored if it does not match the READ.
//= RC-DUP-03 type=test
fn replay_dropped(bench: &Bench<'_>, packet: impl Fn(&Conn<'_>) -> PacketBuilder) -> CaseResult {
    let (conn, data) = with_data(bench, 4096)?;
    conn.send(&conn.read(0, 0, 1024))?;
    conn.expect_read_response(0, &data[..1024], 1)?;
    conn.send(&packet(&conn))?;
    conn.probe(4, 2)?;
    conn.expect_silence()
}

//= RC-DUP-06 type=test
fn key_gone(bench: &Bench<'_>) -> CaseResult {
    let (conn, data) = with_data(bench, 4096)?;
    let request = conn.read(0, 0, 300);
    conn.send(&request)?;
    conn.expect_read_response(0, &data[..300], 1)?;
    conn.deregister(0)?;
    conn.send(&request)?;
    conn.probe(2, 2)?;
    conn.expect_silence()
}

//= RC-DUP-04 type=test
fn atomic_replay(bench: &Bench<'_>, compare: Option<u64>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.qp().write_memory(0, 8, &5u64.to_ne_bytes());
    for _ in 0..3 {
        conn.send(&conn.atomic(0, 8, 6, compare))?;
        conn.expect_atomic_ack(0, 5, 1)?;
    }
    let after: u64 = if compare.is_some() { 6 } else { 11 };
    conn.expect_memory(8, &after.to_ne_bytes())?;
    conn.probe(1, 2)
}

//= RC-DUP-04 type=test
fn atomic_other(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.send(&conn.atomic(0, 8, 6, None))?;
    conn.expect_atomic_ack(0, 0, 1)?;
    conn.send(&conn.atomic(0, 8, 7, Some(6)))?;
    conn.probe(1, 2)?;
    conn.expect_silence()?;
    conn.expect_memory(8, &6u64.to_ne_bytes())
}

/// Executes `count` fetch-adds of 1.
fn add(conn: &Conn<'_>, count: u8) -> CaseResult {
    for number in 0..count {
        let index = i32::from(number);
        conn.send(&conn.atomic(index, 0, 1, None))?;
        conn.expect_atomic_ack(index, number.into(), u32::from(number) + 1)?;
    }
    Ok(())
}

//= RC-DUP-05 type=test
fn saved_depth(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec {
        max_dest_rd_atomic: 4,
        ..QpSpec::default()
    })?;
    add(&conn, 4)?;
    for index in [0, 3, 1, 2] {
        conn.send(&conn.atomic(index, 0, 1, None))?;
        conn.expect_atomic_ack(index, u64::from(index.unsigned_abs()), 4)?;
    }
    conn.expect_memory(0, &4u64.to_ne_bytes())
}

//= RC-DUP-05 type=test
fn evicted(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec {
        max_dest_rd_atomic: 2,
        ..QpSpec::default()
    })?;
    add(&conn, 3)?;
    conn.send(&conn.atomic(0, 0, 1, None))?;
    conn.send(&conn.atomic(1, 0, 1, None))?;
    conn.expect_atomic_ack(1, 1, 3)?;
    conn.expect_memory(0, &3u64.to_ne_bytes())
}

//= ETH-02 ETH-04 type=test
fn fetch_add(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.qp()
        .write_memory(0, 16, &0xfedc_ba98_7654_3210u64.to_ne_bytes());
    conn.send(&conn.atomic(0, 16, u64::MAX, None))?;
    conn.expect_atomic_ack(0, 0xfedc_ba98_7654_3210, 1)?;
    conn.expect_memory(16, &0xfedc_ba98_7654_320fu64.to_ne_bytes())?;
    // The compare field of a FetchAdd is ignored.
    let packet = conn.atomic(1, 16, 1, None);
    conn.send(&packet.edit(|h| {
        if let Some(atomic) = &mut h.atomic {
            atomic.compare = 99;
        }
    }))?;
    conn.expect_atomic_ack(1, 0xfedc_ba98_7654_320f, 2)?;
    conn.expect_memory(8, &[0; 8])?;
    conn.expect_memory(24, &[0; 8])
}

//= ETH-02 ETH-04 type=test
fn compare_swap(bench: &Bench<'_>) -> CaseResult {
    let conn = bench.connect(QpSpec::default())?;
    conn.qp()
        .write_memory(0, 16, &0x0102_0304_0506_0708u64.to_ne_bytes());
    conn.send(&conn.atomic(0, 16, 1, Some(0x0807_0605_0403_0201)))?;
    conn.expect_atomic_ack(0, 0x0102_0304_0506_0708, 1)?;
    conn.expect_memory(16, &0x0102_0304_0506_0708u64.to_ne_bytes())?;
    conn.send(&conn.atomic(1, 16, 0x1122_3344_5566_7788, Some(0x0102_0304_0506_0708)))?;
    conn.expect_atomic_ack(1, 0x0102_0304_0506_0708, 2)?;
    conn.expect_memory(16, &0x1122_3344_5566_7788u64.to_ne_bytes())
}
