//! Devices with two ports: path migration after a failure and at the application's request, over
//! UDP and through shared memory.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;
#[path = "common/two_paths.rs"]
mod two_paths;

use common::{ALL_ACCESS, Side, TIMEOUT};
use rocade_emulator::faults::FaultRule;
use rocade_emulator::{
    AsyncEventKind, BrokerMode, Connection, Engine, EngineConfig, EventElement, LinkMode, QpAttr,
    QpAttrMask,
};
use two_paths::{ARMED, MIGRATED, REARM, migration_of, talk, wait_until};

const LEN: usize = 1 << 20;
/// At least 67 ms, for a path that is going to fail. The QP leaves the path after four timeouts.
const DOOMED: u8 = 14;

/// Two devices of one engine, each with two ports.
fn engine(net: u8, link: LinkMode, faults: &str) -> Engine {
    let spec = |name, last| format!("{name}=127.9.{net}.{last}+127.10.{net}.{last}");
    let specs = [spec("a", 1), spec("b", 2)];
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).unwrap();
    Engine::new(EngineConfig {
        link,
        faults: FaultRule::parse_list(faults).unwrap(),
        ..config
    })
    .unwrap()
}

/// Two sides connected over their first ports.
fn pair(net: u8, link: LinkMode, faults: &str, timeout: u8) -> (Side, Side) {
    let engine = engine(net, link, faults);
    let a = Side::on_device(engine.clone(), "a", LEN);
    let b = Side::on_device(engine, "b", LEN);
    for (side, peer) in [(&a, &b), (&b, &a)] {
        let connection = Connection {
            timeout,
            retry_cnt: 3,
            ..side.connection(peer.qp.qp_num().get(), peer.gid())
        };
        side.qp.connect(ALL_ACCESS, &connection).unwrap();
    }
    (a, b)
}

fn rearm(side: &Side, peer: &Side, port: u8) {
    two_paths::rearm(side, peer, port, TIMEOUT);
}

/// Arms both sides for a migration to their second ports.
fn armed(a: &Side, b: &Side) {
    rearm(a, b, 2);
    rearm(b, a, 2);
    assert_eq!((migration_of(a), migration_of(b)), (REARM, REARM));
    talk(a, b, 1);
    assert_eq!((migration_of(a), migration_of(b)), (ARMED, ARMED));
}

/// Checks that the side has migrated to the path over this port, with exactly one event.
fn assert_moved(side: &Side, peer: &Side, port: u8) {
    wait_until("migrated", || migration_of(side) == MIGRATED);
    let attr = side.qp.query().0;
    assert_eq!((attr.port_num, attr.ah_attr.port_num), (port, port));
    let gid = peer.context.gid_entries_of(port).unwrap()[0].gid;
    assert_eq!((attr.ah_attr.dgid, attr.alt_port_num), (gid, 0));
    let event = side.context.next_async_event().unwrap();
    assert_eq!(event.kind, AsyncEventKind::PathMig);
    assert_eq!(event.element, EventElement::Qp(9));
    side.context.ack_async_event(&event);
}

#[test]
fn each_port_has_its_own_addresses() {
    let engine = engine(1, LinkMode::Udp, "");
    let context = engine.open_device("a").unwrap();
    assert_eq!(context.device_attr().phys_port_cnt, 2);
    for (port, ip) in [(1, "127.9.1.1"), (2, "127.10.1.1")] {
        let gids = context.gid_entries_of(port).unwrap();
        let gids: Vec<_> = gids.iter().map(|entry| entry.gid.to_ip()).collect();
        assert_eq!(gids, [ip.parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(context.port_attr(port).unwrap().gid_tbl_len, 1);
    }
    for port in [0, 3] {
        assert!(context.gid_entries_of(port).is_err());
        assert!(context.port_attr(port).is_err());
    }
}

/// The path may fail at each packet of every message.
//= RC-APM-05 RC-APM-06 type=test
#[test]
fn a_path_that_fails_is_replaced() {
    for (net, link) in [(2, LinkMode::Udp), (3, LinkMode::Shm)] {
        for dies_at in [130, 143, 151, 177, 200] {
            let faults = format!("drop ip=127.9.{net}.1 nth={dies_at}..");
            let (a, b) = pair(net, link, &faults, DOOMED);
            armed(&a, &b);
            for seed in 2..12 {
                talk(&a, &b, seed);
            }
            assert_moved(&a, &b, 2);
            assert_moved(&b, &a, 2);
            for side in [&a, &b] {
                side.qp.destroy().unwrap();
            }
        }
    }
}

/// The QP may migrate back again, any number of times.
//= RC-APM-03 RC-APM-10 type=test
#[test]
fn the_program_may_ask_for_a_migration() {
    for (net, link) in [(4, LinkMode::Udp), (5, LinkMode::Shm)] {
        let (a, b) = pair(net, link, "", TIMEOUT);
        armed(&a, &b);
        for round in 0..6 {
            let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let port = 2 - round % 2;
            let attr = QpAttr {
                path_mig_state: MIGRATED,
                ..QpAttr::default()
            };
            from.qp.modify(&attr, QpAttrMask::PATH_MIG_STATE).unwrap();
            assert_moved(from, to, port as u8);
            assert_eq!(migration_of(to), ARMED);
            talk(from, to, round);
            assert_moved(to, from, port as u8);
            for (side, peer) in [(from, to), (to, from)] {
                rearm(side, peer, 3 - port as u8);
            }
            talk(to, from, round);
            assert_eq!((migration_of(from), migration_of(to)), (ARMED, ARMED));
        }
    }
}
