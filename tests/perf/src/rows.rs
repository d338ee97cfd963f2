//! The rows of the table: what is measured, and what it is compared with.

mod busy;
mod events;
mod guest;
mod services;

use crate::{
    figures::{Bound, Unit},
    probe::{
        Probe,
        perftest::{Column, Perftest},
        ping_pong::{SMALL_LEN, Wait},
        stream::Flow,
    },
    rig::Link,
};

/// One row: a comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The name for `--row`.
    pub(crate) name: &'static str,
    /// A description of what is measured.
    pub(crate) what: &'static str,
    /// A description of what it is compared with.
    pub(crate) against: &'static str,
    pub(crate) ours: Probe,
    /// The probe for comparison. With `None` the bound applies to the figure itself.
    pub(crate) floor: Option<Probe>,
    /// The floor is the limit of the machine, so that no figure over the same path can be better.
    pub(crate) limit: bool,
    /// The bound applies only to pairs whose processors share a cache, because only Rocade depends
    /// on it, and not the floor.
    pub(crate) shared_cache: bool,
    pub(crate) bound: Bound,
    pub(crate) unit: Unit,
}

const fn perftest(
    program: &'static str,
    arguments: &'static str,
    iterations: u32,
    column: Column,
) -> Perftest {
    Perftest {
        program,
        arguments,
        iterations,
        column,
        icrc: None,
    }
}

/// Defines the row for an ICRC backend.
const fn sum(name: &'static str, what: &'static str, way: &'static str) -> Row {
    Row {
        name,
        what,
        against: "the copy alone",
        ours: Probe::Sum { way },
        floor: Some(Probe::BareCopy),
        limit: true,
        shared_cache: false,
        bound: Bound::None,
        unit: Unit::Gbps,
    }
}

const WRITE_BW: Perftest = perftest("ib_write_bw", "-s 1048576 -m 4096", 4000, Column::Bandwidth);
const SEND_BW: Perftest = perftest("ib_send_bw", "-s 1048576 -m 4096", 4000, Column::Bandwidth);
const READ_BW: Perftest = perftest("ib_read_bw", "-s 1048576 -m 4096", 4000, Column::Bandwidth);
const WRITE_BW_1024: Perftest =
    perftest("ib_write_bw", "-s 1048576 -m 1024", 2000, Column::Bandwidth);
const SEND_LAT: Perftest = perftest("ib_send_lat", "-s 8", 20_000, Column::Typical);
const WRITE_LAT: Perftest = perftest("ib_write_lat", "-s 8", 20_000, Column::Typical);
const SEND_LIST: Perftest = perftest("ib_send_bw", "-s 64 -l 64", 1_280_000, Column::MessageRate);
const SEND_LAT_EVENTS: Perftest = perftest("ib_send_lat", "-s 64 -e", 5000, Column::Typical);

const STREAM_4096: Option<Probe> = Some(Probe::Stream {
    segment_len: 4152,
    segments: 15,
    flow: Flow::Free,
});
const SPIN: Option<Probe> = Some(Probe::PingPong {
    wait: Wait::Spin,
    len: SMALL_LEN,
});
const SPIN_ON_MEMORY: Option<Probe> = Some(Probe::PingPong {
    wait: Wait::Memory,
    len: SMALL_LEN,
});

/// Returns all rows in the order of the table. The guest comes last, because it takes the longest.
pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(services::ROWS).chain(guest::ROWS)
}

/// Returns the rows of programs that wait, in the order of their table.
pub(crate) fn events() -> impl Iterator<Item = &'static Row> {
    events::ROWS.iter()
}

/// Returns the rows beside busy loops, in the order of their table.
pub(crate) fn busy() -> impl Iterator<Item = &'static Row> {
    busy::ROWS.iter()
}

/// Returns a row that compares two figures without a bound.
const fn beside(
    name: &'static str,
    (what, ours): (&'static str, Probe),
    (against, floor): (&'static str, Probe),
    unit: Unit,
) -> Row {
    Row {
        name,
        what,
        against,
        ours,
        floor: Some(floor),
        limit: false,
        shared_cache: false,
        bound: Bound::None,
        unit,
    }
}

/// RC, compared with the machine.
const ROWS: &[Row] = &[
    Row {
        name: "write_bw_4096",
        what: "ib_write_bw 1 MiB, MTU 4096, udp",
        against: "raw UDP stream, 15 × 4152 B",
        ours: Probe::Perftest(WRITE_BW, Link::Udp),
        floor: STREAM_4096,
        limit: true,
        shared_cache: false,
        bound: Bound::AtLeast(0.60),
        unit: Unit::Gbps,
    },
    Row {
        name: "send_bw_4096",
        what: "ib_send_bw 1 MiB, MTU 4096, udp",
        against: "raw UDP stream, 15 × 4152 B",
        ours: Probe::Perftest(SEND_BW, Link::Udp),
        floor: STREAM_4096,
        limit: true,
        shared_cache: false,
        bound: Bound::AtLeast(0.60),
        unit: Unit::Gbps,
    },
    Row {
        name: "read_bw_4096",
        what: "ib_read_bw 1 MiB, MTU 4096, udp",
        against: "raw UDP stream, 15 × 4152 B",
        ours: Probe::Perftest(READ_BW, Link::Udp),
        floor: STREAM_4096,
        limit: true,
        shared_cache: false,
        bound: Bound::AtLeast(0.50),
        unit: Unit::Gbps,
    },
    Row {
        name: "write_bw_4096_vpclmul256",
        what: "ib_write_bw 1 MiB, MTU 4096, udp, ICRC with 256 bits",
        against: "raw UDP stream, 15 × 4152 B",
        ours: Probe::Perftest(WRITE_BW.with_icrc("vpclmul256"), Link::Udp),
        floor: STREAM_4096,
        limit: true,
        shared_cache: false,
        bound: Bound::AtLeast(0.60),
        unit: Unit::Gbps,
    },
    Row {
        name: "write_bw_4096_pclmul128",
        what: "ib_write_bw 1 MiB, MTU 4096, udp, ICRC with 128 bits",
        against: "raw UDP stream, 15 × 4152 B",
        ours: Probe::Perftest(WRITE_BW.with_icrc("pclmul128"), Link::Udp),
        floor: STREAM_4096,
        limit: true,
        shared_cache: false,
        bound: Bound::None,
        unit: Unit::Gbps,
    },
    Row {
        name: "write_bw_1024",
        what: "ib_write_bw 1 MiB, MTU 1024, udp",
        against: "raw UDP stream, 60 × 1080 B",
        ours: Probe::Perftest(WRITE_BW_1024, Link::Udp),
        floor: Some(Probe::Stream {
            segment_len: 1080,
            segments: 60,
            flow: Flow::Free,
        }),
        limit: true,
        shared_cache: false,
        bound: Bound::AtLeast(0.42),
        unit: Unit::Gbps,
    },
    Row {
        name: "send_lat_8",
        what: "ib_send_lat 8 B, udp",
        against: "raw UDP ping-pong, spinning on receive",
        ours: Probe::Perftest(SEND_LAT, Link::Udp),
        floor: SPIN,
        limit: true,
        shared_cache: false,
        bound: Bound::AtMost(1.4),
        unit: Unit::Micros,
    },
    Row {
        name: "send_lat_8_vpclmul256",
        what: "ib_send_lat 8 B, udp, ICRC with 256 bits",
        against: "raw UDP ping-pong, spinning on receive",
        ours: Probe::Perftest(SEND_LAT.with_icrc("vpclmul256"), Link::Udp),
        floor: SPIN,
        limit: true,
        shared_cache: false,
        bound: Bound::AtMost(1.4),
        unit: Unit::Micros,
    },
    Row {
        name: "write_lat_8",
        what: "ib_write_lat 8 B, udp",
        against: "raw UDP ping-pong, spinning on memory that a blocked thread writes",
        ours: Probe::Perftest(WRITE_LAT, Link::Udp),
        floor: SPIN_ON_MEMORY,
        limit: false,
        shared_cache: false,
        bound: Bound::AtMost(1.3),
        unit: Unit::Micros,
    },
    Row {
        name: "send_list_64",
        what: "ib_send_bw 64 B, lists of 64, udp",
        against: "raw UDP stream, 60 × 130 B",
        ours: Probe::Perftest(SEND_LIST, Link::Udp),
        floor: Some(Probe::StreamRate {
            segment_len: 130,
            segments: 60,
            flow: Flow::Free,
        }),
        limit: true,
        shared_cache: false,
        bound: Bound::AtLeast(0.25),
        unit: Unit::Mps,
    },
    Row {
        name: "send_lat_events_64",
        what: "ib_send_lat 64 B with events, udp",
        against: "raw UDP ping-pong, blocking, 80 B",
        ours: Probe::Perftest(SEND_LAT_EVENTS, Link::Udp),
        floor: Some(Probe::PingPong {
            wait: Wait::Block,
            len: SMALL_LEN + 56,
        }),
        limit: false,
        shared_cache: false,
        bound: Bound::None,
        unit: Unit::Micros,
    },
    Row {
        name: "shm_send_lat_8",
        what: "ib_send_lat 8 B, shm",
        against: "raw UDP ping-pong, spinning on receive",
        ours: Probe::Perftest(SEND_LAT, Link::Shm),
        floor: SPIN,
        limit: false,
        shared_cache: false,
        bound: Bound::AtMost(0.35),
        unit: Unit::Micros,
    },
    Row {
        name: "shm_write_lat_8",
        what: "ib_write_lat 8 B, shm",
        against: "raw UDP ping-pong, spinning on memory that a blocked thread writes",
        ours: Probe::Perftest(WRITE_LAT, Link::Shm),
        floor: SPIN_ON_MEMORY,
        limit: false,
        shared_cache: false,
        bound: Bound::AtMost(0.8),
        unit: Unit::Micros,
    },
    Row {
        name: "shm_write_bw",
        what: "ib_write_bw 1 MiB, MTU 4096, shm",
        against: "memcpy between processes, 1 copy of 1 MiB",
        ours: Probe::Perftest(WRITE_BW, Link::Shm),
        floor: Some(Probe::Copy { copies: 1 }),
        limit: false,
        shared_cache: true,
        bound: Bound::AtLeast(0.5),
        unit: Unit::Gbps,
    },
    Row {
        name: "shm_write_bw_ring",
        what: "ib_write_bw 1 MiB, MTU 4096, shm",
        against: "memcpy through a ring of shared memory, 2 copies of 1 MiB",
        ours: Probe::Perftest(WRITE_BW, Link::Shm),
        floor: Some(Probe::Copy { copies: 2 }),
        limit: false,
        shared_cache: false,
        bound: Bound::AtLeast(0.7),
        unit: Unit::Gbps,
    },
    Row {
        name: "shm_ring",
        what: "memcpy through a ring of shared memory, 2 copies of 1 MiB",
        against: "memcpy between processes, 1 copy of 1 MiB",
        ours: Probe::Copy { copies: 2 },
        floor: Some(Probe::Copy { copies: 1 }),
        limit: false,
        shared_cache: false,
        bound: Bound::None,
        unit: Unit::Gbps,
    },
    sum(
        "icrc_avx512",
        "copy of 4 KiB with its ICRC, AVX-512",
        "avx512",
    ),
    sum(
        "icrc_vpclmul256",
        "copy of 4 KiB with its ICRC, VPCLMULQDQ of 256 bits",
        "vpclmul256",
    ),
    sum(
        "icrc_pclmul128",
        "copy of 4 KiB with its ICRC, PCLMULQDQ",
        "pclmul128",
    ),
    sum("icrc_pmull", "copy of 4 KiB with its ICRC, PMULL", "pmull"),
    sum(
        "icrc_crc32",
        "copy of 4 KiB with its ICRC, CRC instructions of AArch64",
        "crc32",
    ),
    sum(
        "icrc_table",
        "copy of 4 KiB with its ICRC, by tables",
        "table",
    ),
    Row {
        name: "stream_4152",
        what: "raw UDP stream, 15 × 4152 B, bounded",
        against: "raw UDP stream, 15 × 4152 B",
        ours: Probe::Stream {
            segment_len: 4152,
            segments: 15,
            flow: Flow::Bounded,
        },
        floor: Some(Probe::Stream {
            segment_len: 4152,
            segments: 15,
            flow: Flow::Free,
        }),
        limit: false,
        shared_cache: false,
        bound: Bound::None,
        unit: Unit::Gbps,
    },
    Row {
        name: "stream_1080",
        what: "raw UDP stream, 60 × 1080 B, bounded",
        against: "raw UDP stream, 60 × 1080 B",
        ours: Probe::Stream {
            segment_len: 1080,
            segments: 60,
            flow: Flow::Bounded,
        },
        floor: Some(Probe::Stream {
            segment_len: 1080,
            segments: 60,
            flow: Flow::Free,
        }),
        limit: false,
        shared_cache: false,
        bound: Bound::None,
        unit: Unit::Gbps,
    },
    Row {
        name: "stream_130",
        what: "raw UDP stream, 60 × 130 B, bounded",
        against: "raw UDP stream, 60 × 130 B",
        ours: Probe::StreamRate {
            segment_len: 130,
            segments: 60,
            flow: Flow::Bounded,
        },
        floor: Some(Probe::StreamRate {
            segment_len: 130,
            segments: 60,
            flow: Flow::Free,
        }),
        limit: false,
        shared_cache: false,
        bound: Bound::None,
        unit: Unit::Mps,
    },
    Row {
        name: "qps_1000",
        what: "64 KiB WRITEs, 1000 RC QPs in turn, udp",
        against: "the same with one QP",
        ours: Probe::RoundRobin { queue_pairs: 1000 },
        floor: Some(Probe::RoundRobin { queue_pairs: 1 }),
        limit: false,
        shared_cache: false,
        bound: Bound::AtLeast(0.8),
        unit: Unit::Gbps,
    },
    Row {
        name: "idle_qp",
        what: "memory per idle RC QP, 16-deep queues",
        against: "-",
        ours: Probe::IdleQp,
        floor: None,
        limit: false,
        shared_cache: false,
        bound: Bound::AtMost(16.0),
        unit: Unit::Kib,
    },
    Row {
        name: "connections",
        what: "connections made and ended by the connection manager, one after the other",
        against: "TCP: connect, accept, close",
        ours: Probe::Connections,
        floor: Some(Probe::TcpConnections),
        limit: false,
        shared_cache: false,
        bound: Bound::AtLeast(0.2),
        unit: Unit::Kps,
    },
];

#[cfg(test)]
mod tests {
    use rocade_wire::crc::Backend;

    use super::*;

    #[test]
    fn every_way_to_compute_the_icrc_has_its_row() {
        for name in Backend::names() {
            let is_its = |row: &&Row| matches!(row.ours, Probe::Sum { way } if way == name);
            assert_eq!(all().filter(is_its).count(), 1, "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let rows = || all().chain(events()).chain(busy());
        for (index, row) in rows().enumerate() {
            let is_it = |other: &Row| other.name == row.name;
            assert!(!rows().skip(index + 1).any(is_it), "{}", row.name);
        }
    }
}
