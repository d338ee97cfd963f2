//! Ranges and lengths that overflow, or that an operation does not allow.

use rocade_wire::{NakCode, Operation, Service};

use super::{BAD, Kind, Target, spec, start};
use crate::{
    Bench, Case, CaseResult, Conn, Feature, QpSpec,
    peer::{Buffer, Rights, State, Status, WindowBind, Work, WorkOp},
};

/// The last multiple of 8: a range of 8 bytes from here ends exactly at 2^64.
const LAST_WORD: u64 = u64::MAX - 7;
/// The longest message.
const LONGEST: u32 = 1 << 31;

pub(in crate::suite) const CASES: &[Case] = &[
    Case::responder("RC-RSP-08", "write-first-up-to-2-to-the-64", |b| {
        at(b, Kind::WriteFirst, u64::MAX - 511, 512)
    }),
    Case::responder("RC-RSP-08", "write-with-immediate-up-to-2-to-the-64", |b| {
        at(b, Kind::WriteImm, LAST_WORD, 8)
    }),
    Case::responder("RC-RSP-08", "read-up-to-2-to-the-64", |b| {
        at(b, Kind::Read, LAST_WORD, 8)
    }),
    Case::responder("RC-RSP-08", "compare-swap-up-to-2-to-the-64", |b| {
        at(b, Kind::CmpSwap, LAST_WORD, 8)
    }),
    Case::responder("RC-RSP-08", "fetch-add-up-to-2-to-the-64", |b| {
        at(b, Kind::FetchAdd, LAST_WORD, 8)
    }),
    Case::responder("RC-RSP-08", "atomic-write-up-to-2-to-the-64", |b| {
        at(b, Kind::AtomicWrite, LAST_WORD, 8)
    })
    .needing(Feature::AtomicWrite),
    Case::responder("RC-RSP-08", "write-first-beyond-2-to-the-64", |b| {
        at(b, Kind::WriteFirst, LAST_WORD, 512)
    }),
    Case::responder(
        "RC-RSP-08",
        "write-with-immediate-beyond-2-to-the-64",
        |b| at(b, Kind::WriteImm, u64::MAX - 3, 8),
    ),
    Case::responder("RC-RSP-08", "read-beyond-2-to-the-64", |b| {
        at(b, Kind::Read, u64::MAX - 3, 8)
    }),
    Case::responder("RC-RSP-08", "read-from-before-the-region", |b| {
        with(b, Kind::Read, |start| Target {
            // The end of the range lies within the region.
            va: start.va.wrapping_sub(1 << 20),
            len: (1 << 20) + 8,
            ..start
        })
    }),
    Case::responder("RC-RSP-08", "longest-write-from-the-start", |b| {
        with(b, Kind::WriteFirst, |start| Target {
            len: LONGEST,
            ..start
        })
    }),
    Case::responder("RC-RSP-08", "longest-read-from-the-start", |b| {
        with(b, Kind::Read, |start| Target {
            len: LONGEST,
            ..start
        })
    }),
    Case::responder("RC-RSP-08", "longest-read-beyond-2-to-the-64", |b| {
        at(b, Kind::Read, u64::MAX - 0x7fff_fffe, LONGEST)
    }),
    Case::responder("RC-RSP-08", "read-from-address-0", |b| {
        at(b, Kind::Read, 0, 8)
    }),
    Case::responder("RC-SEG-05", "write-of-4-gigabytes", |b| {
        too_long(b, Kind::WriteFirst, u32::MAX)
    }),
    Case::responder("RC-SEG-05", "read-of-4-gigabytes", |b| {
        too_long(b, Kind::Read, u32::MAX)
    }),
    Case::responder(
        "RC-SEG-05",
        "longest-allowed-read-of-another-key",
        longest_read,
    )
    .also(&["RC-RSP-08"]),
    Case::responder("MW-07", "zero-based-write-wraps-to-the-window", |b| {
        zero_based(b, Kind::Write)
    })
    .also(&["MW-08"]),
    Case::responder("MW-07", "zero-based-read-wraps-to-the-window", |b| {
        zero_based(b, Kind::Read)
    })
    .also(&["MW-08"]),
    Case::responder("MW-07", "zero-based-atomic-wraps-to-the-window", |b| {
        zero_based(b, Kind::FetchAdd)
    })
    .also(&["MW-08"]),
    storing("atomic-write-of-no-length", |b| store(b, 0, &BAD)),
    storing("atomic-write-of-4-bytes", |b| store(b, 4, &BAD[..4])),
    storing("atomic-write-of-12-bytes", |b| store(b, 12, &[0xbd; 12])),
    storing("atomic-write-of-the-longest-length", |b| {
        store(b, LONGEST, &BAD)
    }),
    storing("atomic-write-without-payload", |b| store(b, 8, &[])),
    storing("atomic-write-with-half-a-payload", |b| {
        store(b, 8, &BAD[..4])
    }),
    storing("atomic-write-with-two-payloads", |b| {
        store(b, 8, &[0xbd; 16])
    }),
    Case::responder("UC-08", "write-beyond-2-to-the-64", |b| {
        uc_write(b, |start| Target {
            va: u64::MAX - 3,
            ..start
        })
    }),
    Case::responder("UC-08", "write-up-to-2-to-the-64", |b| {
        uc_write(b, |start| Target {
            va: LAST_WORD,
            ..start
        })
    }),
    Case::responder("UC-08", "write-past-the-end", |b| {
        uc_write(b, |start| Target {
            va: start.va + 4089,
            ..start
        })
    }),
    Case::responder("UC-08", "write-longer-than-dmalen", |b| {
        uc_write(b, |start| Target { len: 4, ..start })
    }),
    Case::responder("UC-08", "write-shorter-than-dmalen", |b| {
        uc_write(b, |start| Target { len: 12, ..start })
    }),
];

/// Creates a case for a responder that implements ATOMIC WRITE.
const fn storing(slug: &'static str, run: fn(&Bench<'_>) -> CaseResult) -> Case {
    Case::responder("ETH-12", slug, run).needing(Feature::AtomicWrite)
}

fn at(bench: &Bench<'_>, kind: Kind, va: u64, len: u32) -> CaseResult {
    with(bench, kind, |start| Target { va, len, ..start })
}

/// Sends a request for memory outside of the region, which is refused.
//= RC-RSP-08 MR-13 type=test
fn with(bench: &Bench<'_>, kind: Kind, change: impl Fn(Target) -> Target) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    conn.send(&kind.request(&conn, 0, change(start(&conn))))?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(0, &[0; 4096])
}

//= RC-SEG-05 type=test
fn too_long(bench: &Bench<'_>, kind: Kind, len: u32) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    conn.send(&kind.request(
        &conn,
        0,
        Target {
            len,
            ..start(&conn)
        },
    ))?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_memory(0, &[0; 4096])
}

/// The length is allowed, so the key decides.
//= RC-SEG-05 RC-RSP-08 type=test
fn longest_read(bench: &Bench<'_>) -> CaseResult {
    with(bench, Kind::Read, |start| Target {
        rkey: rocade_wire::Rkey::new(start.rkey.get() ^ 0xff00),
        len: LONGEST,
        ..start
    })
}

/// An address below 0 would lead from the window back into its region.
//= MW-07 MW-08 type=test
fn zero_based(bench: &Bench<'_>, kind: Kind) -> CaseResult {
    let mut spec = spec(Rights::ALL);
    spec.regions[0].bindable = true;
    let conn = bench.connect(spec)?;
    let rkey = conn.window()?;
    let bind = WindowBind {
        rkey,
        region: 0,
        offset: 1024,
        len: 1024,
        rights: Rights {
            flush: false,
            ..Rights::ALL
        },
        zero_based: true,
    };
    conn.post_send(&Work::new(100, WorkOp::Bind(bind), Buffer::new(0, 0)))?;
    conn.expect_completion(100, Status::Success)?;
    let target = Target {
        va: 0u64.wrapping_sub(1024),
        rkey,
        len: 8,
    };
    conn.send(&kind.request(&conn, 0, target))?;
    conn.expect_nak(0, NakCode::RemoteAccess, 0)?;
    conn.expect_memory(0, &[0; 2048])
}

//= ETH-12 type=test
fn store(bench: &Bench<'_>, len: u32, payload: &[u8]) -> CaseResult {
    let conn = bench.connect(spec(Rights::ALL))?;
    let target = Target {
        len,
        ..start(&conn)
    };
    let packet = Kind::AtomicWrite.request(&conn, 0, target).payload(payload);
    conn.send(&packet)?;
    conn.expect_nak(0, NakCode::InvalidRequest, 0)?;
    conn.expect_state(State::Err)?;
    conn.expect_memory(0, &[0; 64])
}

/// The WRITE is dropped, and the next message is executed.
//= UC-08 type=test
fn uc_write(bench: &Bench<'_>, change: impl Fn(Target) -> Target) -> CaseResult {
    let conn = bench.connect(QpSpec {
        service: Service::Uc,
        ..spec(Rights::ALL)
    })?;
    conn.send(&Kind::Write.request(&conn, 0, change(start(&conn))))?;
    conn.expect_silence()?;
    conn.expect_memory(8, &[0; 4088])?;
    uc_still_works(&conn)
}

/// Checks that a UC queue pair executes a SEND.
pub(super) fn uc_still_works(conn: &Conn<'_>) -> CaseResult {
    conn.send(&conn.request(Operation::SendOnly, 1).payload(b"next"))?;
    let completion = conn.expect_completion(0, Status::Success)?;
    crate::case::equal(completion.byte_len, 4, "byte_len")
}
