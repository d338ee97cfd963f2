//! The other transport services and the vendor extensions, compared with RC or with the plain
//! operation. The ratios have no bounds.

use super::{Row, beside, perftest};
use crate::{
    figures::Unit,
    probe::{Probe, offload::What, perftest::Column},
    rig::Link,
};

const fn rate(arguments: &'static str) -> Probe {
    let program = perftest("ib_send_bw", arguments, 200_000, Column::MessageRate);
    Probe::Perftest(program, Link::Udp)
}

const fn bandwidth(arguments: &'static str) -> Probe {
    let program = perftest("ib_write_bw", arguments, 20_000, Column::Bandwidth);
    Probe::Perftest(program, Link::Udp)
}

const fn latency(arguments: &'static str) -> Probe {
    let program = perftest("ib_send_lat", arguments, 20_000, Column::Typical);
    Probe::Perftest(program, Link::Udp)
}

const fn offload(what: What, count: u32) -> Probe {
    Probe::Offload { what, count }
}

const RC_RATE: Probe = rate("-s 64");

pub(super) const ROWS: &[Row] = &[
    beside(
        "ud_send_64",
        ("ib_send_bw 64 B over UD, udp", rate("-s 64 -c UD")),
        ("the same over RC", RC_RATE),
        Unit::Mps,
    ),
    beside(
        "ud_send_lat_64",
        ("ib_send_lat 64 B over UD, udp", latency("-s 64 -c UD")),
        ("the same over RC", latency("-s 64")),
        Unit::Micros,
    ),
    beside(
        "uc_send_64",
        ("ib_send_bw 64 B over UC, udp", rate("-s 64 -c UC")),
        ("the same over RC", RC_RATE),
        Unit::Mps,
    ),
    beside(
        "uc_write_64k",
        (
            "ib_write_bw 64 KiB over UC, udp",
            bandwidth("-s 65536 -c UC"),
        ),
        ("the same over RC", bandwidth("-s 65536")),
        Unit::Gbps,
    ),
    beside(
        "srq_send_64",
        (
            "ib_send_bw 64 B into a shared receive queue, udp",
            rate("-s 64 --use-srq"),
        ),
        ("the same into a queue of its own", RC_RATE),
        Unit::Mps,
    ),
    beside(
        "xrc_send_64",
        ("ib_send_bw 64 B over XRC, udp", rate("-s 64 -c XRC")),
        ("the same over RC", RC_RATE),
        Unit::Mps,
    ),
    beside(
        "mw_bind",
        (
            "a memory window of 4 KiB bound and invalidated",
            offload(What::Bind, 200_000),
        ),
        (
            "a region of 4 KiB registered and deregistered",
            offload(What::Register, 100_000),
        ),
        Unit::Kps,
    ),
    beside(
        "dc_send_64",
        ("ib_send_bw 64 B over DC, udp", rate("-s 64 -c DC")),
        (
            "the same over RC with a shared receive queue",
            rate("-s 64 --use-srq"),
        ),
        Unit::Mps,
    ),
    beside(
        "dc_write_64k",
        (
            "ib_write_bw 64 KiB over DC, udp",
            bandwidth("-s 65536 -c DC"),
        ),
        ("the same over RC", bandwidth("-s 65536")),
        Unit::Gbps,
    ),
    beside(
        "dc_switch_16",
        (
            "64 B WRITEs over DC, each to the next one of 16 targets",
            offload(What::Switch, 50_000),
        ),
        ("the same to one target", offload(What::Stay, 200_000)),
        Unit::Mps,
    ),
    beside(
        "umr_gather_64k",
        (
            "64 KiB WRITEs out of 64 segments behind one indirect key",
            offload(What::Gather, 20_000),
        ),
        (
            "the same out of one segment",
            offload(What::Contiguous, 20_000),
        ),
        Unit::Gbps,
    ),
    beside(
        "chain_step",
        (
            "8 B SEND and its answer, set free by WAIT and ENABLE",
            offload(What::Chain, 20_000),
        ),
        (
            "the same, posted when the completion has been polled",
            offload(What::Cpu, 20_000),
        ),
        Unit::Micros,
    ),
];
