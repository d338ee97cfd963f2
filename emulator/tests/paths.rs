//! Local addresses: many of them in one process, and queue pairs that move between addresses.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::thread;
use std::time::Duration;

use common::{Side, connect, engine};
use rocade_emulator::{
    BrokerMode, Connection, Engine, EngineConfig, Gid, QpAttr, QpAttrMask, QpState, Qpn, SendOp,
    WcStatus,
};

/// Writes, and waits for the ACK. The other side makes no calls.
fn write(from: &Side, to: &Side, data: &[u8]) {
    from.fill(0, data);
    let op = SendOp::Write {
        va: to.addr(64),
        rkey: to.mr.rkey(),
        imm: None,
    };
    from.send(1, op, &[from.sge(0, data.len())]);
    assert_eq!(from.completion().status, WcStatus::Success);
    assert_eq!(to.bytes(64, data.len()), data);
}

/// The background thread receives from every address, however many there are.
#[test]
fn the_last_of_many_addresses_is_served_in_the_background_too() {
    const ADDRESSES: u8 = 100;
    const IDLE: Duration = Duration::from_millis(20);
    let peer = Side::new("127.2.10.250", 4096);
    let specs: Vec<String> = (1..=ADDRESSES)
        .map(|host| format!("dev{host}=127.2.10.{host}"))
        .collect();
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).unwrap();
    let many = Engine::new(config).unwrap();
    let mut sides = (1..=ADDRESSES)
        .map(|host| Side::on_device(many.clone(), &format!("dev{host}"), 4096))
        .collect::<Vec<_>>();
    let last = sides.pop().unwrap();
    // An address is in use once a QP has a path from it.
    for side in &sides {
        side.to_rtr(1, peer.gid());
    }
    connect(&peer, &last);
    for _ in 0..3 {
        // Lets the background thread fall asleep, so that only the packet wakes it.
        thread::sleep(IDLE);
        write(&peer, &last, b"anybody there?");
    }
}

fn to_state(side: &Side, state: QpState) {
    let attr = QpAttr {
        qp_state: state.code(),
        ..QpAttr::default()
    };
    side.qp.modify(&attr, QpAttrMask::STATE).unwrap();
}

/// Changes the addresses of a QP in SQD.
fn move_to(side: &Side, sgid_index: u8, dgid: Gid) {
    let connection = Connection {
        sgid_index,
        ..Connection::to(dgid, Qpn::new(0))
    };
    let attr = QpAttr {
        ah_attr: connection.address(),
        ..QpAttr::default()
    };
    side.qp.modify(&attr, QpAttrMask::AV).unwrap();
}

//= QPV-02 type=test
#[test]
fn a_connection_that_moves_in_sqd_goes_on_between_the_new_addresses() {
    let a = Side::on(engine("127.2.11.1,127.2.11.2"), 4096);
    let b = Side::on(engine("127.2.11.3,127.2.11.4"), 4096);
    connect(&a, &b);
    write(&a, &b, b"from the first");
    write(&b, &a, b"and back");
    for (side, peer) in [(&a, &b), (&b, &a)] {
        to_state(side, QpState::Sqd);
        move_to(side, 1, peer.context.gid_entries()[1].gid);
    }
    to_state(&a, QpState::Rts);
    to_state(&b, QpState::Rts);
    write(&a, &b, b"from the second");
    write(&b, &a, b"back there");
}
