//! Messages beside busy loops on the same processors, compared with TCP beside as many.

use super::{Row, beside};
use crate::{
    figures::Unit,
    probe::{
        Probe,
        echo::Wake,
        exchange::{Exchange, Over, Program},
    },
    rig::Link,
};

const EPOLL: Program = Program::Echo(Wake::Epoll);
const BLOCK: Program = Program::Echo(Wake::Block);
const QPERF: Program = Program::Qperf("-cm1");
const QPERF_POLL: Program = Program::Qperf("-cm1 -cp1");
const RPING: Program = Program::Rping(200);
const SEND_LAT: Program = Program::SendLat("-e", 2000);
/// Fewer round trips, because each takes longer beside more loops.
const POLL_2: Program = Program::SendLat("", 4000);
const POLL_4: Program = Program::SendLat("", 2000);
const POLL_8: Program = Program::SendLat("", 1000);

const TCP_EPOLL: (&str, Program) = ("the same over TCP", EPOLL);
const TCP_BLOCK: (&str, Program) = ("the same over TCP, recv", BLOCK);
const TCP_ECHO: (&str, Program) = ("an echo over TCP, recv", BLOCK);
const TCP_LAT: (&str, Program) = ("qperf tcp_lat", QPERF);

const fn row(
    name: &'static str,
    loops: u32,
    (what, program, link): (&'static str, Program, Link),
    (against, floor): (&'static str, Program),
) -> Row {
    let ours = Exchange {
        program,
        over: Over::Rocade(link),
    };
    let floor = Exchange {
        program: floor,
        over: Over::Tcp,
    };
    let ours = Probe::Exchange(ours, loops);
    let floor = Probe::Exchange(floor, loops);
    beside(name, (what, ours), (against, floor), Unit::Micros)
}

/// Two processes that only wake each other, by pipes: what the scheduler allows.
const fn floor(name: &'static str, what: &'static str, wake: Wake, against: &'static str) -> Row {
    let program = Program::Echo(wake);
    let ours = Exchange {
        program,
        over: Over::Pipes,
    };
    let floor = Exchange {
        program,
        over: Over::Tcp,
    };
    let ours = Probe::Exchange(ours, 4);
    let floor = Probe::Exchange(floor, 4);
    beside(name, (what, ours), (against, floor), Unit::Micros)
}

pub(super) const ROWS: &[Row] = &[
    floor(
        "busy_4_pipes_epoll",
        "4 loops: wake-ups alone, by pipes in an epoll loop",
        Wake::Epoll,
        TCP_EPOLL.0,
    ),
    floor(
        "busy_4_pipes_block",
        "4 loops: wake-ups alone, by pipes, read",
        Wake::Block,
        TCP_BLOCK.0,
    ),
    row(
        "busy_4_echo_epoll_shm",
        4,
        ("4 loops: echo in an epoll loop, shm", EPOLL, Link::Shm),
        TCP_EPOLL,
    ),
    row(
        "busy_4_echo_epoll_udp",
        4,
        ("4 loops: echo in an epoll loop, udp", EPOLL, Link::Udp),
        TCP_EPOLL,
    ),
    row(
        "busy_4_echo_block_shm",
        4,
        ("4 loops: echo, ibv_get_cq_event, shm", BLOCK, Link::Shm),
        TCP_BLOCK,
    ),
    row(
        "busy_4_echo_block_udp",
        4,
        ("4 loops: echo, ibv_get_cq_event, udp", BLOCK, Link::Udp),
        TCP_BLOCK,
    ),
    row(
        "busy_4_qperf_shm",
        4,
        ("4 loops: qperf rc_lat, shm", QPERF, Link::Shm),
        TCP_LAT,
    ),
    row(
        "busy_4_qperf_udp",
        4,
        ("4 loops: qperf rc_lat, udp", QPERF, Link::Udp),
        TCP_LAT,
    ),
    row(
        "busy_8_qperf_shm",
        8,
        ("8 loops: qperf rc_lat, shm", QPERF, Link::Shm),
        TCP_LAT,
    ),
    row(
        "busy_8_qperf_udp",
        8,
        ("8 loops: qperf rc_lat, udp", QPERF, Link::Udp),
        TCP_LAT,
    ),
    row(
        "busy_4_rping_shm",
        4,
        (
            "4 loops: rping, an eighth of a round, shm",
            RPING,
            Link::Shm,
        ),
        TCP_ECHO,
    ),
    row(
        "busy_4_rping_udp",
        4,
        (
            "4 loops: rping, an eighth of a round, udp",
            RPING,
            Link::Udp,
        ),
        TCP_ECHO,
    ),
    row(
        "busy_4_send_lat_events_shm",
        4,
        ("4 loops: ib_send_lat -e, shm", SEND_LAT, Link::Shm),
        TCP_ECHO,
    ),
    row(
        "busy_4_send_lat_events_udp",
        4,
        ("4 loops: ib_send_lat -e, udp", SEND_LAT, Link::Udp),
        TCP_ECHO,
    ),
    row(
        "busy_2_send_lat_shm",
        2,
        ("2 loops: ib_send_lat, polling, shm", POLL_2, Link::Shm),
        TCP_ECHO,
    ),
    row(
        "busy_2_send_lat_udp",
        2,
        ("2 loops: ib_send_lat, polling, udp", POLL_2, Link::Udp),
        TCP_ECHO,
    ),
    row(
        "busy_4_send_lat_shm",
        4,
        ("4 loops: ib_send_lat, polling, shm", POLL_4, Link::Shm),
        TCP_ECHO,
    ),
    row(
        "busy_4_send_lat_udp",
        4,
        ("4 loops: ib_send_lat, polling, udp", POLL_4, Link::Udp),
        TCP_ECHO,
    ),
    row(
        "busy_8_send_lat_shm",
        8,
        ("8 loops: ib_send_lat, polling, shm", POLL_8, Link::Shm),
        TCP_ECHO,
    ),
    row(
        "busy_8_send_lat_udp",
        8,
        ("8 loops: ib_send_lat, polling, udp", POLL_8, Link::Udp),
        TCP_ECHO,
    ),
    row(
        "busy_2_qperf_poll_shm",
        2,
        ("2 loops: qperf rc_lat -cp1, shm", QPERF_POLL, Link::Shm),
        TCP_LAT,
    ),
    row(
        "busy_2_qperf_poll_udp",
        2,
        ("2 loops: qperf rc_lat -cp1, udp", QPERF_POLL, Link::Udp),
        TCP_LAT,
    ),
    row(
        "busy_4_qperf_poll_shm",
        4,
        ("4 loops: qperf rc_lat -cp1, shm", QPERF_POLL, Link::Shm),
        TCP_LAT,
    ),
    row(
        "busy_4_qperf_poll_udp",
        4,
        ("4 loops: qperf rc_lat -cp1, udp", QPERF_POLL, Link::Udp),
        TCP_LAT,
    ),
    row(
        "busy_8_qperf_poll_shm",
        8,
        ("8 loops: qperf rc_lat -cp1, shm", QPERF_POLL, Link::Shm),
        TCP_LAT,
    ),
    row(
        "busy_8_qperf_poll_udp",
        8,
        ("8 loops: qperf rc_lat -cp1, udp", QPERF_POLL, Link::Udp),
        TCP_LAT,
    ),
];
