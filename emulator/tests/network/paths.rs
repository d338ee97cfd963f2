//! A connection of two paths, the interface of one of which goes down.

use rocade_emulator::{
    AsyncEventKind, BrokerMode, Connection, Engine, EngineConfig, LinkMode, QpAttr, QpAttrMask,
};

use super::common::{ALL_ACCESS, Side};
use super::hosts::wait_for;
use super::sandbox::own_network;
use super::two_paths::{ARMED, MIGRATED, REARM, migration_of, rearm, talk, wait_until};
use super::{ip, without_ipv6};

/// 134 ms: what is waited for in vain is not a busy machine.
const TIMEOUT: u8 = 15;

/// Four interfaces, two of each device.
fn two_devices() -> Engine {
    without_ipv6();
    ip("link set lo up\n\
        link add v0 type veth peer name v1\n\
        link add w0 type veth peer name w1\n\
        addr add 192.0.2.1/24 dev v0\naddr add 192.0.2.2/24 dev v1\n\
        addr add 198.51.100.1/24 dev w0\naddr add 198.51.100.2/24 dev w1\n\
        link set v0 up\nlink set v1 up\nlink set w0 up\nlink set w1 up\n");
    for interface in ["v0", "v1", "w0", "w1"] {
        wait_for(interface);
    }
    let config = EngineConfig::from_specs(&["a=v0+w0", "b=v1+w1"], BrokerMode::Embedded).unwrap();
    Engine::new(EngineConfig {
        link: LinkMode::Udp,
        ..config
    })
    .unwrap()
}

fn arm(sides: [&Side; 2], port: u8, seed: usize) {
    let [a, b] = sides;
    rearm(a, b, port, TIMEOUT);
    rearm(b, a, port, TIMEOUT);
    assert_eq!((migration_of(a), migration_of(b)), (REARM, REARM));
    talk(a, b, seed);
    assert_eq!((migration_of(a), migration_of(b)), (ARMED, ARMED));
}

/// It is on the path over this port, and has said so once, besides what has become of the port that it has left.
fn assert_moved(side: &Side, port: u8) {
    wait_until("migrated", || migration_of(side) == MIGRATED);
    assert_eq!(side.qp.query().0.port_num, port);
    let mut moves = 0;
    wait_until("told", || {
        while let Some(event) = side.context.take_async_event().unwrap() {
            side.context.ack_async_event(&event);
            match event.kind {
                AsyncEventKind::PathMig => moves += 1,
                AsyncEventKind::PortErr | AsyncEventKind::PortActive => {}
                other => panic!("{other:?}"),
            }
        }
        moves > 0
    });
    assert_eq!(moves, 1);
}

//= RC-APM-05 RC-APM-06 RC-APM-10 AEV-08 type=test
#[test]
fn a_path_whose_interface_goes_down_is_left() {
    if !own_network() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    let engine = two_devices();
    let a = Side::on_device(engine.clone(), "a", 1 << 20);
    let b = Side::on_device(engine, "b", 1 << 20);
    for (side, peer) in [(&a, &b), (&b, &a)] {
        let connection = Connection {
            timeout: TIMEOUT,
            retry_cnt: 3,
            ..side.connection(peer.qp.qp_num().get(), peer.gid())
        };
        side.qp.connect(ALL_ACCESS, &connection).unwrap();
    }
    let both = [&a, &b];
    arm(both, 2, 1);
    ip("link set v0 down\n");
    for seed in 2..8 {
        let (from, to) = if seed % 2 == 0 { (&a, &b) } else { (&b, &a) };
        talk(from, to, seed);
    }
    for side in both {
        assert_moved(side, 2);
    }
    // It comes back, and is the alternate path of the other one now.
    ip("link set v0 up\n");
    for interface in ["v0", "v1"] {
        wait_for(interface);
    }
    arm(both, 1, 8);
    let attr = QpAttr {
        path_mig_state: MIGRATED,
        ..QpAttr::default()
    };
    b.qp.modify(&attr, QpAttrMask::PATH_MIG_STATE).unwrap();
    assert_moved(&b, 1);
    talk(&b, &a, 9);
    assert_moved(&a, 1);
}
