//! Forged packets over UDP with the address of a peer that uses shared memory.

use std::net::{SocketAddr, UdpSocket};

use rocade_emulator::{LinkMode, SendOp};
use rocade_wire::icrc::IcrcFlow;
use rocade_wire::{Bth, Opcode, Operation, Psn, Qpn, Service};

use crate::common::Side;
use crate::node::{MEMORY, Site, assert_success};
use crate::processes::wait_until;

/// Sends a forged SEND of 8 bytes from the peer's address.
fn forge(side: &Side, psn: u32) {
    let ip = side.gid().to_ip();
    let socket = UdpSocket::bind(SocketAddr::new(ip, 0)).unwrap();
    let opcode = Opcode::of(Service::Rc, Operation::SendOnly).unwrap();
    let bth = Bth::new(opcode, Qpn::new(side.qp.qp_num().get()), Psn::new(psn));
    let mut packet = [&bth.to_bytes()[..], b"forged!!"].concat();
    let port = socket.local_addr().unwrap().port();
    let flow = IcrcFlow::new(ip, ip, port).unwrap();
    packet.extend(flow.compute(0, &packet).to_le_bytes());
    socket.send_to(&packet, SocketAddr::new(ip, 4791)).unwrap();
}

#[test]
fn udp_is_refused_once_the_peer_is_in_the_channel() {
    let site = Site::new();
    let engine = site.engine(LinkMode::Auto);
    let side = Side::on(engine.clone(), MEMORY);
    let mut node = site.node();
    let remote = node.connect(&side, 0);
    for wr_id in 0..4 {
        side.qp.recv_queue().push(wr_id, &[side.sge(0, 8)]).unwrap();
    }
    // Before the peer has sent anything, the link that it uses is unknown.
    forge(&side, remote.qpn);
    assert_success(&side, 0);
    assert_eq!(side.bytes(0, 8), b"forged!!");
    // The peer's own first packet now looks like a duplicate, and is acknowledged. From now on the
    // peer counts as using shared memory.
    node.ask("fill 0 0 8 1");
    node.ask("send 0 1 0 8");
    assert_eq!(node.ask("poll 0"), "1 Success 8");
    side.fill(0, &[0; 8]);
    let before = engine.counters().rx_wrong_link;
    forge(&side, remote.qpn + 1);
    wait_until(|| {
        assert!(
            side.cq.poll_one().is_none(),
            "the forged packet was accepted"
        );
        engine.counters().rx_wrong_link == before + 1
    });
    assert_eq!(side.bytes(0, 8), [0; 8]);
    // Packets through shared memory are accepted.
    node.ask("fill 0 0 8 1");
    node.ask("send 0 2 0 8");
    assert_success(&side, 1);
    side.send(
        5,
        SendOp::Write {
            va: remote.addr,
            rkey: remote.rkey,
            imm: None,
        },
        &[side.sge(0, 8)],
    );
    assert_success(&side, 5);
}
