//! A peer that is a real NIC, as a socket plays it.

use std::net::IpAddr;

use rocade_emulator::MaskedOp;
use rocade_emulator::{Operands, Rkey, SendFlags, SendWr};
use rocade_wire::icrc::IcrcFlow;
use rocade_wire::mad::{CmMessage, GSI_QKEY, IpCmHeader, Mad, Req, TransactionId};
use rocade_wire::{
    Aeth, Bth, Deth, Guid, Headers, Msn, Opcode, Operation, Packet, Psn, Service, Syndrome,
};

use super::*;

#[allow(dead_code, reason = "tests of other crates use the rest")]
#[path = "../../../tests/captures/hardware/frames.rs"]
mod frames;

const PORT: u16 = 7492;
/// First PSN of the requests that the NIC gets.
const PSN: u32 = 0x96_cb1e;

/// The NIC, and the address of the device under test.
struct Nic {
    socket: UdpSocket,
    peer: IpAddr,
    migreq: bool,
}

impl Nic {
    fn new(ip: &str, peer: &str, migreq: bool) -> Self {
        let socket = UdpSocket::bind((ip, 4791)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let peer = peer.parse().unwrap();
        Self {
            socket,
            peer,
            migreq,
        }
    }

    fn ip(&self) -> IpAddr {
        self.socket.local_addr().unwrap().ip()
    }

    fn send(&self, mut headers: Headers, payload: &[u8]) {
        headers.bth.migreq = self.migreq;
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet).unwrap();
        packet.extend(payload);
        let flow = IcrcFlow::new(self.ip(), self.peer, 4791).unwrap();
        packet.extend(flow.compute(0, &packet).to_le_bytes());
        self.socket.send_to(&packet, (self.peer, 4791)).unwrap();
    }

    /// Requests a connection as ConnectX does, without end-to-end flow control.
    fn request(&self) {
        let CmMessage::Req(mut req) = frames::message("REQ") else {
            panic!("no REQ")
        };
        req.ca_guid = Guid::new(0xec0d_9a03_0000_0001);
        req.service_id = ServiceId::of_port(0x0106, PORT);
        req.starting_psn = Psn::new(PSN);
        let header = IpCmHeader {
            src_port: 40_000,
            src: self.ip(),
            dst: self.peer,
        };
        req.private_data = [0; Req::PRIVATE_LEN];
        req.private_data[..IpCmHeader::LEN].copy_from_slice(&header.to_bytes());
        let opcode = Opcode::of(Service::Ud, Operation::SendOnly).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, Qpn::GSI, Psn::new(1)));
        headers.deth = Some(Deth {
            qkey: GSI_QKEY,
            src_qp: Qpn::GSI,
            resv: 0,
        });
        let mad = Mad::new(TransactionId::new(2), CmMessage::Req(req));
        self.send(headers, &mad.to_bytes());
    }

    /// Acknowledges all requests up to the first `msn`, and announces zero credits.
    fn acknowledge(&self, qpn: Qpn, msn: u32) {
        let opcode = Opcode::of(Service::Rc, Operation::Acknowledge).unwrap();
        let psn = Psn::new(PSN).add(msn - 1);
        let mut headers = Headers::new(Bth::new(opcode, qpn, psn));
        headers.aeth = Some(Aeth {
            syndrome: Syndrome::from_code(0),
            msn: Msn::new(msn),
        });
        self.send(headers, &[]);
    }

    /// Returns opcode and PSN of the next packet for another QP than QP 1.
    fn next(&self) -> (u8, u32) {
        let mut buffer = [0; 2048];
        loop {
            let (len, _) = self.socket.recv_from(&mut buffer).unwrap();
            let packet = Packet::parse(&buffer[..len]).unwrap();
            if packet.bth().dest_qp != Qpn::GSI {
                return (packet.bth().opcode.get(), packet.bth().psn.get());
            }
        }
    }
}

/// Connects a QP to a NIC, which has sent the request.
fn connected(node: &Node, nic: &Nic) -> Side {
    let side = Side::on(node.engine.clone(), 4096);
    let _listener = node.listener(PORT, 0);
    nic.request();
    let passive = node.expect(Kind::ConnectRequest, 1).new_id.unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        to(&side.qp, &passive, state);
    }
    side
}

//= HW-04 type=test
#[test]
fn a_nic_without_flow_control_gets_more_than_its_credits() {
    let node = Node::new("127.1.9.51");
    let nic = Nic::new("127.1.9.52", node.ip, true);
    let side = connected(&node, &nic);
    let mut psns = PSN..;
    for round in 1..=2 {
        for wr_id in 0..3 {
            side.send(wr_id, SendOp::Send { imm: None }, &[side.sge(0, 8)]);
        }
        for psn in psns.by_ref().take(3) {
            assert_eq!(nic.next(), (0x04, psn));
        }
        nic.acknowledge(side.qp.qp_num(), 3 * round);
        for _ in 0..3 {
            assert_eq!(side.completion().status, WcStatus::Success);
        }
    }
}

/// A masked compare-and-swap goes to a NIC at once, in the format of ConnectX.
//= HW-11 XAW-10 type=test
#[test]
fn a_nic_gets_a_masked_compare_and_swap() {
    let node = Node::new("127.1.9.53");
    let nic = Nic::new("127.1.9.54", node.ip, true);
    let side = connected(&node, &nic);
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Masked {
            va: 0,
            rkey: Rkey::new(0x2521),
            log_size: 3,
        },
        flags: SendFlags::SIGNALED,
        sges: &[side.sge(0, 8)],
    };
    let word = [0x80, 0, 0, 0];
    let op = Operands::Masked(MaskedOp::CmpSwap {
        compare: [0; 4],
        compare_mask: word,
        swap: word,
        swap_mask: word,
    });
    side.qp
        .post_sends(|queue| queue.push_with(&wr, op))
        .unwrap();
    assert_eq!(nic.next(), (0x18, PSN));
}
