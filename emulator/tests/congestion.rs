//! Congestion control over real sockets: packets with CE marks cause CNPs.
//!
//! A sender that sets both ECN bits itself simulates a network that marks every packet.

#![allow(clippy::unwrap_used, reason = "tests: a failure may panic")]

mod common;

use std::time::{Duration, Instant};

use common::{ALL_ACCESS, Side};
use rocade_emulator::{BrokerMode, Connection, Engine, EngineConfig, SendOp, WcStatus};

const MARKED: u8 = 3;

fn side(address: &str, dcqcn: bool) -> Side {
    let config =
        EngineConfig::from_specs(&[format!("dev={address}")], BrokerMode::Embedded).unwrap();
    let config = EngineConfig { dcqcn, ..config };
    Side::on(Engine::new(config).unwrap(), 1 << 20)
}

fn connect(a: &Side, b: &Side, traffic_class: u8) {
    for (one, other) in [(a, b), (b, a)] {
        let connection = Connection {
            traffic_class,
            ..one.connection(other.qp.qp_num().get(), other.gid())
        };
        one.qp.connect(ALL_ACCESS, &connection).unwrap();
    }
}

fn write(a: &Side, b: &Side, len: usize) {
    let op = SendOp::Write {
        va: b.addr(0),
        rkey: b.mr.rkey(),
        imm: None,
    };
    a.send(1, op, &[a.sge(0, len)]);
    assert_eq!(a.completion().status, WcStatus::Success);
}

//= ENC-10 CNP-01 CNP-03 type=test
#[test]
fn marks_bring_notifications() {
    let (a, b) = (side("127.0.71.1", true), side("127.0.71.2", true));
    connect(&a, &b, MARKED);
    a.fill(0, &common::pattern(1 << 20, 7));
    let deadline = Instant::now() + Duration::from_secs(20);
    while a.qp.counters().cnps_received < 3 {
        write(&a, &b, 1 << 20);
        assert!(Instant::now() < deadline, "{:?}", b.qp.counters());
    }
    assert!(b.qp.counters().marked_packets > 3);
    assert_eq!(b.bytes(0, 1 << 20), common::pattern(1 << 20, 7));
}

/// The sender of READ responses gets CNPs, and its responses still arrive.
//= ENC-10 CNP-01 type=test
#[test]
fn responses_bring_notifications() {
    let (a, b) = (side("127.0.75.1", true), side("127.0.75.2", true));
    connect(&a, &b, MARKED);
    b.fill(0, &common::pattern(1 << 20, 9));
    let op = SendOp::Read {
        va: b.addr(0),
        rkey: b.mr.rkey(),
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while b.qp.counters().cnps_received < 3 {
        a.send(1, op, &[a.sge(0, 1 << 20)]);
        assert_eq!(a.completion().status, WcStatus::Success);
        assert!(Instant::now() < deadline, "{:?}", a.qp.counters());
    }
    assert!(a.qp.counters().marked_packets > 3);
    assert_eq!(a.bytes(0, 1 << 20), common::pattern(1 << 20, 9));
}

#[test]
fn without_the_switch_there_are_none() {
    let (a, b) = (side("127.0.73.1", false), side("127.0.73.2", false));
    connect(&a, &b, MARKED);
    for _ in 0..20 {
        write(&a, &b, 1 << 16);
    }
    assert_eq!(b.qp.counters().cnps_sent, 0);
    assert_eq!(a.qp.counters().cnps_received, 0);
}

//= QPS-05 type=test
#[test]
fn a_rate_takes_its_time() {
    let (a, b) = (side("127.0.74.1", false), side("127.0.74.2", false));
    connect(&a, &b, 0);
    // At 80 Mbit/s a MiB takes 0.1 s.
    a.qp.set_rate_limit(80_000).unwrap();
    let begin = Instant::now();
    write(&a, &b, 1 << 20);
    assert!(begin.elapsed() >= Duration::from_millis(100));
}
