//! Programs that wait for events, compared with TCP: latency, system calls and context switches.

use super::{Row, beside};
use crate::{
    figures::Unit,
    probe::{
        Probe,
        echo::Wake,
        exchange::{Exchange, Over, Program},
        tally::Event,
    },
    rig::Link,
};

const EPOLL: Program = Program::Echo(Wake::Epoll);
const BLOCK: Program = Program::Echo(Wake::Block);
const QPERF: Program = Program::Qperf("-cm1");
const QPERF_POLL: Program = Program::Qperf("-cm1 -cp1");
const RPING: Program = Program::Rping(1000);
const SEND_LAT: Program = Program::SendLat("-e", 5000);
const RSTREAM: Program = Program::Rstream(4000);

const TCP_EPOLL: &str = "the same over TCP";
const TCP_BLOCK: &str = "the same over TCP, recv";
const TCP_ECHO: &str = "an echo over TCP, recv";

const fn latency(
    name: &'static str,
    (what, program): (&'static str, Program),
    link: Link,
    (against, floor): (&'static str, Program),
) -> Row {
    let (ours, floor) = pair(program, link, floor);
    let ours = Probe::Exchange(ours, 0);
    let floor = Probe::Exchange(floor, 0);
    beside(name, (what, ours), (against, floor), Unit::Micros)
}

const fn tally(
    name: &'static str,
    (what, program): (&'static str, Program),
    (event, link): (Event, Link),
    (against, floor): (&'static str, Program),
) -> Row {
    let (ours, floor) = pair(program, link, floor);
    let ours = Probe::Tally(event, ours);
    let floor = Probe::Tally(event, floor);
    beside(name, (what, ours), (against, floor), Unit::PerMessage)
}

const fn pair(program: Program, link: Link, floor: Program) -> (Exchange, Exchange) {
    let ours = Exchange {
        program,
        over: Over::Rocade(link),
    };
    let floor = Exchange {
        program: floor,
        over: Over::Tcp,
    };
    (ours, floor)
}

const CALLS_SHM: (Event, Link) = (Event::SystemCall, Link::Shm);
const CALLS_UDP: (Event, Link) = (Event::SystemCall, Link::Udp);
const SWITCHES_SHM: (Event, Link) = (Event::ContextSwitch, Link::Shm);
const SWITCHES_UDP: (Event, Link) = (Event::ContextSwitch, Link::Udp);

pub(super) const ROWS: &[Row] = &[
    latency(
        "echo_epoll_shm",
        ("echo in an epoll loop, shm", EPOLL),
        Link::Shm,
        (TCP_EPOLL, EPOLL),
    ),
    latency(
        "echo_epoll_udp",
        ("echo in an epoll loop, udp", EPOLL),
        Link::Udp,
        (TCP_EPOLL, EPOLL),
    ),
    latency(
        "echo_block_shm",
        ("echo, ibv_get_cq_event, shm", BLOCK),
        Link::Shm,
        (TCP_BLOCK, BLOCK),
    ),
    latency(
        "echo_block_udp",
        ("echo, ibv_get_cq_event, udp", BLOCK),
        Link::Udp,
        (TCP_BLOCK, BLOCK),
    ),
    latency(
        "qperf_shm",
        ("qperf rc_lat, shm", QPERF),
        Link::Shm,
        ("qperf tcp_lat", QPERF),
    ),
    latency(
        "qperf_udp",
        ("qperf rc_lat, udp", QPERF),
        Link::Udp,
        ("qperf tcp_lat", QPERF),
    ),
    latency(
        "qperf_poll_shm",
        ("qperf rc_lat -cp1, shm", QPERF_POLL),
        Link::Shm,
        ("qperf tcp_lat", QPERF),
    ),
    latency(
        "qperf_poll_udp",
        ("qperf rc_lat -cp1, udp", QPERF_POLL),
        Link::Udp,
        ("qperf tcp_lat", QPERF),
    ),
    latency(
        "rping_shm",
        ("rping, an eighth of a round, shm", RPING),
        Link::Shm,
        (TCP_ECHO, BLOCK),
    ),
    latency(
        "rping_udp",
        ("rping, an eighth of a round, udp", RPING),
        Link::Udp,
        (TCP_ECHO, BLOCK),
    ),
    latency(
        "send_lat_events_shm",
        ("ib_send_lat -e, shm", SEND_LAT),
        Link::Shm,
        (TCP_ECHO, BLOCK),
    ),
    latency(
        "send_lat_events_udp",
        ("ib_send_lat -e, udp", SEND_LAT),
        Link::Udp,
        (TCP_ECHO, BLOCK),
    ),
    latency(
        "rstream_shm",
        ("rstream -T a, shm", RSTREAM),
        Link::Shm,
        ("the same over TCP, poll", RSTREAM),
    ),
    latency(
        "rstream_udp",
        ("rstream -T a, udp", RSTREAM),
        Link::Udp,
        ("the same over TCP, poll", RSTREAM),
    ),
    tally(
        "calls_epoll_shm",
        ("system calls, echo in an epoll loop, shm", EPOLL),
        CALLS_SHM,
        (TCP_EPOLL, EPOLL),
    ),
    tally(
        "calls_epoll_udp",
        ("system calls, echo in an epoll loop, udp", EPOLL),
        CALLS_UDP,
        (TCP_EPOLL, EPOLL),
    ),
    tally(
        "calls_block_shm",
        ("system calls, echo, ibv_get_cq_event, shm", BLOCK),
        CALLS_SHM,
        (TCP_BLOCK, BLOCK),
    ),
    tally(
        "calls_block_udp",
        ("system calls, echo, ibv_get_cq_event, udp", BLOCK),
        CALLS_UDP,
        (TCP_BLOCK, BLOCK),
    ),
    tally(
        "calls_send_lat_shm",
        ("system calls, ib_send_lat -e, shm", SEND_LAT),
        CALLS_SHM,
        (TCP_ECHO, BLOCK),
    ),
    tally(
        "calls_rping_shm",
        ("system calls, rping, shm", RPING),
        CALLS_SHM,
        (TCP_ECHO, BLOCK),
    ),
    tally(
        "switches_epoll_shm",
        ("context switches, echo in an epoll loop, shm", EPOLL),
        SWITCHES_SHM,
        (TCP_EPOLL, EPOLL),
    ),
    tally(
        "switches_epoll_udp",
        ("context switches, echo in an epoll loop, udp", EPOLL),
        SWITCHES_UDP,
        (TCP_EPOLL, EPOLL),
    ),
    tally(
        "switches_block_shm",
        ("context switches, echo, ibv_get_cq_event, shm", BLOCK),
        SWITCHES_SHM,
        (TCP_BLOCK, BLOCK),
    ),
    tally(
        "switches_block_udp",
        ("context switches, echo, ibv_get_cq_event, udp", BLOCK),
        SWITCHES_UDP,
        (TCP_BLOCK, BLOCK),
    ),
    tally(
        "switches_send_lat_shm",
        ("context switches, ib_send_lat -e, shm", SEND_LAT),
        SWITCHES_SHM,
        (TCP_ECHO, BLOCK),
    ),
    tally(
        "switches_rping_shm",
        ("context switches, rping, shm", RPING),
        SWITCHES_SHM,
        (TCP_ECHO, BLOCK),
    ),
];
