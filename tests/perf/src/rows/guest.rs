//! Rocade compared with the kernel's rxe, both in a guest.

use super::{Row, perftest};
use crate::{
    figures::{Bound, Unit},
    probe::{
        Probe,
        guest::Provider,
        perftest::{Column, Perftest},
    },
};

/// Emulation is slow: the programs run fewer iterations with a longer ACK timeout.
const GUEST_WRITE_BW: Perftest = perftest(
    "ib_write_bw",
    "-s 65536 -m 4096 -u 18",
    2000,
    Column::Bandwidth,
);
const GUEST_SEND_LAT: Perftest = perftest("ib_send_lat", "-s 8 -u 18", 2000, Column::Typical);

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "guest_write_bw",
        what: "in one guest: ib_write_bw 64 KiB, MTU 4096, Rocade (auto)",
        against: "the same on the kernel's rxe",
        ours: Probe::InGuest(GUEST_WRITE_BW, Provider::Rocade("auto")),
        floor: Some(Probe::InGuest(GUEST_WRITE_BW, Provider::Rxe)),
        limit: false,
        shared_cache: false,
        bound: Bound::AtLeast(3.0),
        unit: Unit::Gbps,
    },
    Row {
        name: "guest_write_bw_udp",
        what: "in one guest: ib_write_bw 64 KiB, MTU 4096, Rocade (udp)",
        against: "the same on the kernel's rxe",
        ours: Probe::InGuest(GUEST_WRITE_BW, Provider::Rocade("udp")),
        floor: Some(Probe::InGuest(GUEST_WRITE_BW, Provider::Rxe)),
        limit: false,
        shared_cache: false,
        bound: Bound::None,
        unit: Unit::Gbps,
    },
    Row {
        name: "guest_send_lat",
        what: "in one guest: ib_send_lat 8 B, Rocade (auto)",
        against: "the same on the kernel's rxe",
        ours: Probe::InGuest(GUEST_SEND_LAT, Provider::Rocade("auto")),
        floor: Some(Probe::InGuest(GUEST_SEND_LAT, Provider::Rxe)),
        limit: false,
        shared_cache: false,
        bound: Bound::AtMost(0.7),
        unit: Unit::Micros,
    },
    Row {
        name: "guest_send_lat_udp",
        what: "in one guest: ib_send_lat 8 B, Rocade (udp)",
        against: "the same on the kernel's rxe",
        ours: Probe::InGuest(GUEST_SEND_LAT, Provider::Rocade("udp")),
        floor: Some(Probe::InGuest(GUEST_SEND_LAT, Provider::Rxe)),
        limit: false,
        shared_cache: false,
        bound: Bound::None,
        unit: Unit::Micros,
    },
];
