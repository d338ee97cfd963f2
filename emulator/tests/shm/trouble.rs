//! Queue pairs while the broker is stopped, or in a sandbox.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rocade_emulator::broker::{self, BrokerConfig};
use rocade_emulator::{
    BrokerMode, Connection, Engine, EngineConfig, Gid, LinkMode, Qpn, SendOp, WcStatus,
};

use crate::common::{ALL_ACCESS, Side};
use crate::node::*;
use crate::processes::{Stopped, broker_config, wait_until};
use crate::sandbox;

/// Stops the site's broker until the result is dropped.
fn stopped_broker(site: &Site) -> Stopped {
    Stopped::new(broker::status(&broker_config(site.dir.path())).unwrap().pid)
}

/// Sends a message to the node and one back. The node sleeps in between.
fn round_trip(side: &Side, node: &mut Node, index: usize, tag: u64) {
    node.ask(&format!("recv {index} {tag} 0 100"));
    assert_eq!(node.ask(&format!("sleep {index}")), "asleep");
    side.send(tag, SendOp::Send { imm: None }, &[side.sge(0, 8)]);
    assert_eq!(node.answer(), format!("{tag} Success 8"));
    assert_success(side, tag);
    side.qp.recv_queue().push(tag, &[side.sge(0, 100)]).unwrap();
    node.ask(&format!("send {index} {tag} 0 16"));
    let received = side.completion();
    assert_eq!(
        (received.status, received.byte_len),
        (WcStatus::Success, 16)
    );
    assert_eq!(
        node.ask(&format!("poll {index}")),
        format!("{tag} Success 16")
    );
}

#[test]
fn new_queue_pairs_connect_over_udp_while_the_broker_is_stopped() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let old = Side::on(engine.clone(), MEMORY);
    // Over UDP, so that there is no shared memory link yet.
    let mut node = site.node();
    let other = own_address();
    let mut third = site.node_at(other, "udp");
    third.connect(&old, 0);
    node.new_qp(0);
    site.wait_for_clients(3);

    let stopped = stopped_broker(&site);
    round_trip(&old, &mut third, 0, 1);
    let new = Side::on(engine, MEMORY);
    third.connect(&new, 1);
    round_trip(&new, &mut third, 1, 2);
    round_trip(&old, &mut third, 0, 3);
    drop(stopped);

    // Afterwards everything works as before.
    site.wait_for_clients(3);
    let again = Side::on(site.engine(LinkMode::Auto), MEMORY);
    let before = again.engine.counters().tx_shared;
    let mut fourth = site.node();
    fourth.connect(&again, 0);
    round_trip(&again, &mut fourth, 0, 4);
    assert!(again.engine.counters().tx_shared > before);
}

#[test]
fn live_queue_pairs_go_on_while_another_waits_for_a_stopped_broker() {
    let site = Site::new();
    let second = own_address();
    let spec = format!("dev={},{second}", site.address);
    // The broker runs already, because starting one takes longer.
    let mut node = site.node();
    node.new_qp(0);
    let broker = BrokerMode::Auto(BrokerConfig {
        start_timeout: Duration::from_secs(5),
        ..broker_config(site.dir.path())
    });
    let config = EngineConfig::from_specs(&[spec], broker).unwrap();
    let engine = Engine::new(EngineConfig {
        link: LinkMode::Udp,
        ..config
    })
    .unwrap();
    let live = Side::on(engine.clone(), MEMORY);
    let waiting = Side::on(engine, MEMORY);
    node.connect(&live, 1);
    round_trip(&live, &mut node, 1, 1);

    let _stopped = stopped_broker(&site);
    let has_returned = AtomicBool::new(false);
    let is_waiting = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            is_waiting.store(true, Ordering::SeqCst);
            let error = to_rtr_on_second_address(&waiting, node_gid(&site));
            has_returned.store(true, Ordering::SeqCst);
            assert!(error.contains("does not answer"), "{error}");
        });
        wait_until(|| is_waiting.load(Ordering::SeqCst));
        let mut during = 0;
        while !has_returned.load(Ordering::SeqCst) {
            during += 1;
            round_trip(&live, &mut node, 1, during);
        }
        // Not only a round trip before the wait, and one that ended after it. A busy machine does
        // not do many in the time of the wait.
        assert!(during > 4, "{during} round trips");
    });
}

fn node_gid(site: &Site) -> Gid {
    Gid::from_ip(site.address)
}

/// Connects from the second address of the device. Returns the error.
fn to_rtr_on_second_address(side: &Side, peer: Gid) -> String {
    side.qp.to_init(ALL_ACCESS).unwrap();
    let connection = Connection {
        sgid_index: 1,
        ..Connection::to(peer, Qpn::new(0x02_0100))
    };
    side.qp.to_rtr(&connection).unwrap_err().to_string()
}

#[test]
fn queue_pairs_work_in_a_sandbox() {
    for refused in [sandbox::STRICT, sandbox::NO_GROUPS] {
        let site = Site::new();
        let address = site.address;
        // The first node starts the broker, which is in the sandbox as well.
        let mut nodes: Vec<_> = (0..2)
            .map(|_| {
                let mut node = site.node_in(address, "udp", |command| {
                    sandbox::sandbox(command, refused);
                });
                let remote = node.new_qp(0);
                (node, remote)
            })
            .collect();
        let [(one, first), (other, second)] = &mut nodes[..] else {
            panic!()
        };
        for (node, peer) in [(&mut *one, second.qpn), (&mut *other, first.qpn)] {
            let connected = node.ask(&format!("connect 0 {peer} {address}"));
            assert_eq!(connected, "connected");
        }
        for (wr_id, len) in [(1, 8), (2, 5000), (3, 1 << 20)] {
            other.ask(&format!("recv 0 {wr_id} 0 {len}"));
            one.ask(&format!("fill 0 0 {len} {wr_id}"));
            one.ask(&format!("send 0 {wr_id} 0 {len}"));
            assert_eq!(other.ask("poll 0"), format!("{wr_id} Success {len}"));
            assert_eq!(other.ask(&format!("check 0 0 {len} {wr_id}")), "true");
            assert_eq!(one.ask("poll 0"), format!("{wr_id} Success {len}"));
        }
    }
}
