//! Two queue pairs of one process, with a shared memory link whose ends are both in the process.

use rocade_emulator::{BrokerMode, Engine, EngineConfig, ImmOrInv, LinkMode, SendOp, WcStatus};

use crate::common::{Side, connect, pattern};
use crate::node::{Site, assert_success, engine, own_address};

const ROOM: usize = 256 << 10;

/// Transfers SEND and READ messages between two sides.
fn talk(a: &Side, b: &Side) {
    for (wr_id, len) in (0..).zip([0, 8, 1024, 100_000]) {
        a.fill(0, &pattern(len, len));
        b.qp.recv_queue()
            .push(wr_id, &[b.sge(0, len.max(1))])
            .unwrap();
        let op = SendOp::Send { imm: Some([7; 4]) };
        a.send(wr_id, op, &[a.sge(0, len)]);
        let wc = b.completion();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        assert_eq!(wc.imm_or_inv, ImmOrInv::Imm([7; 4]));
        assert_eq!(b.bytes(0, len), pattern(len, len));
        assert_success(a, wr_id);
    }
    let op = SendOp::Read {
        va: b.addr(0),
        rkey: b.mr.rkey(),
    };
    a.send(9, op, &[a.sge(128 << 10, 100_000)]);
    assert_success(a, 9);
    assert_eq!(a.bytes(128 << 10, 100_000), pattern(100_000, 100_000));
}

fn assert_shared(engine: &Engine, shared: bool) {
    let c = engine.counters();
    assert!(c.tx_packets > 0);
    let (tx, rx) = if shared {
        (c.tx_packets, c.rx_packets)
    } else {
        (0, 0)
    };
    assert_eq!((c.tx_shared, c.rx_shared), (tx, rx), "{c:?}");
}

#[test]
fn with_a_broker_it_is_used() {
    for link in [LinkMode::Auto, LinkMode::Shm, LinkMode::Udp] {
        let site = Site::new();
        let engine = site.engine(link);
        let (a, b) = (
            Side::on(engine.clone(), ROOM),
            Side::on(engine.clone(), ROOM),
        );
        connect(&a, &b);
        talk(&a, &b);
        talk(&b, &a);
        assert_shared(&engine, link != LinkMode::Udp);
    }
}

#[test]
fn without_a_broker_it_is_used_where_asked_for() {
    for link in [LinkMode::Auto, LinkMode::Shm] {
        let specs = [format!("dev={}", own_address())];
        let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).unwrap();
        let engine = Engine::new(EngineConfig { link, ..config }).unwrap();
        let (a, b) = (
            Side::on(engine.clone(), ROOM),
            Side::on(engine.clone(), ROOM),
        );
        connect(&a, &b);
        talk(&a, &b);
        assert_shared(&engine, link == LinkMode::Shm);
    }
}

#[test]
fn a_queue_pair_may_be_its_own_peer() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Shm);
    let side = Side::on(engine.clone(), ROOM);
    side.to_rts(side.qp.qp_num().get(), side.gid());
    side.fill(0, &pattern(5_000, 1));
    side.qp
        .recv_queue()
        .push(1, &[side.sge(64 << 10, 5_000)])
        .unwrap();
    side.send(2, SendOp::Send { imm: None }, &[side.sge(0, 5_000)]);
    let mut done = [side.completion(), side.completion()].map(|wc| (wc.wr_id, wc.status));
    done.sort_by_key(|wc| wc.0);
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(side.bytes(64 << 10, 5_000), pattern(5_000, 1));
    assert_shared(&engine, true);
}

/// The link connects two addresses of one process.
#[test]
fn between_two_devices() {
    let site = Site::new();
    let broker = BrokerMode::Auto(crate::processes::broker_config(site.dir.path()));
    let specs = [
        format!("dev={}", site.address),
        format!("other={}", own_address()),
    ];
    let config = EngineConfig::from_specs(&specs, broker).unwrap();
    let link = LinkMode::Shm;
    let engine_of_two = Engine::new(EngineConfig { link, ..config }).unwrap();
    let a = Side::on(engine_of_two.clone(), ROOM);
    let b = Side::on_device(engine_of_two.clone(), "other", ROOM);
    connect(&a, &b);
    talk(&a, &b);
    talk(&b, &a);
    assert_shared(&engine_of_two, true);
    // A queue pair of another process does not use it.
    let other = Side::on(engine(site.dir.path(), site.address, link), ROOM);
    let own = Side::on(engine_of_two, ROOM);
    connect(&own, &other);
    talk(&own, &other);
}
