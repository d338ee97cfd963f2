//! Packets of devices like mlx5, from a connection of the connection manager.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rocade_emulator::{BrokerMode, EngineConfig, Likeness, LinkMode};
use rocade_wire::ip::{self, Datagram};
use rocade_wire::mad::{CmMessage, CmTimeout, Mad};
use rocade_wire::{Operation, Packet, Pkey, Syndrome};

use super::*;

const IPS: [&str; 2] = ["127.1.9.41", "127.1.9.42"];
const PORT: u16 = 7491;
/// Packets of the conversation: five messages of the connection manager, three requests with their
/// answers.
const SENT: usize = 5 + 2 * 3;

fn node(ip: &'static str, capture: &Path) -> Node {
    let specs = [format!("dev={ip}")];
    let mut config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).unwrap();
    config.devices[0].like = Likeness::Mlx5;
    config.link = LinkMode::Udp;
    config.capture = Some(capture.to_owned());
    Node::on(ip, Engine::new(config).unwrap())
}

/// Connects, sends, reads, adds, and disconnects.
fn converse(a: &Node, b: &Node) {
    let side = |node: &Node| Side::on(node.engine.clone(), 4096);
    let (side_a, side_b) = (side(a), side(b));
    let _listener = b.listener(PORT, 0);
    let active = a.id(11);
    a.routed(&active, 11, addr(b.ip, PORT));
    let param = |qp: &Qp| ConnParam {
        responder_resources: 16,
        initiator_depth: 16,
        ..param(qp.qp_num(), b"")
    };
    active.connect(&param(&side_a.qp)).unwrap();
    let passive = b.expect(Kind::ConnectRequest, 1).new_id.unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        to(&side_b.qp, &passive, state);
    }
    side_b
        .qp
        .recv_queue()
        .push(5, &[side_b.sge(0, 64)])
        .unwrap();
    passive.accept(22, &param(&side_b.qp)).unwrap();
    a.expect(Kind::ConnectResponse, 11);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        to(&side_a.qp, &active, state);
    }
    active.establish().unwrap();
    b.expect(Kind::Established, 22);
    let (va, rkey) = (side_b.addr(1024), side_b.mr.rkey());
    let requests = [
        SendOp::Send { imm: None },
        SendOp::Read { va, rkey },
        SendOp::FetchAdd { va, rkey, add: 1 },
    ];
    for (wr_id, op) in (0..).zip(requests) {
        side_a.send(wr_id, op, &[side_a.sge(0, 8)]);
        assert_eq!(side_a.completion().status, WcStatus::Success);
    }
    assert_eq!(side_b.completion().status, WcStatus::Success);
    active.disconnect().unwrap();
    b.expect(Kind::Disconnected, 22);
    passive.disconnect().unwrap();
    a.expect(Kind::Disconnected, 11);
}

/// Returns the datagrams that the capturing engine has sent. `None` while it writes.
fn sent(path: &Path) -> Option<Vec<Vec<u8>>> {
    let mut reader = PcapNgReader::new(File::open(path).ok()?).ok()?;
    let mut all = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.ok()? else {
            continue;
        };
        let is_sent = packet
            .options
            .iter()
            .any(|option| matches!(option, EnhancedPacketOption::Flags(flags) if flags & 3 == 2));
        if is_sent {
            all.push(packet.data[14..].to_vec());
        }
    }
    Some(all)
}

/// Returns all datagrams of a conversation of two devices like mlx5.
fn datagrams() -> &'static [Vec<u8>] {
    static ALL: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a.pcapng", "b.pcapng"].map(|name| dir.path().join(name));
        let (a, b) = (node(IPS[0], &paths[0]), node(IPS[1], &paths[1]));
        converse(&a, &b);
        // The engines end with their last handles, and write the rest.
        drop((a, b));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let all = paths
                .iter()
                .map(|path| sent(path))
                .collect::<Option<Vec<_>>>();
            let all = all.map(|all| all.concat()).unwrap_or_default();
            if all.len() >= SENT {
                return all;
            }
            assert!(Instant::now() < deadline, "{} datagrams", all.len());
            thread::sleep(Duration::from_millis(1));
        }
    })
}

fn for_each(mut visit: impl FnMut(&Datagram<'_>, &Packet<'_>)) {
    for bytes in datagrams() {
        let datagram = Datagram::parse(bytes).unwrap();
        visit(&datagram, &Packet::parse(datagram.udp_payload).unwrap());
    }
}

//= HW-01 type=test
#[test]
fn like_mlx5_migreq_is_set() {
    for_each(|datagram, packet| {
        assert!(packet.bth().migreq, "{datagram}");
        assert_eq!(packet.bth().pkey, Pkey::DEFAULT);
    });
}

//= HW-02 type=test
#[test]
fn like_mlx5_all_packets_are_ecn_capable() {
    for_each(|datagram, _| {
        assert_eq!((datagram.tos, datagram.ttl), (0x02, 64), "{datagram}");
        assert_eq!(datagram.udp_checksum, 0);
    });
}

//= HW-03 ENC-04 type=test
#[test]
fn like_mlx5_a_connection_has_one_port_in_both_directions() {
    let (mut ports, mut labels) = (BTreeSet::new(), BTreeSet::new());
    for_each(|datagram, packet| {
        ports.insert(datagram.src_port);
        let mad = Mad::parse(packet.payload()).ok();
        if let Some(CmMessage::Req(req)) = mad.map(|mad| mad.message) {
            labels.insert(ip::source_port_of_flow_label(req.primary.flow_label));
        }
    });
    assert_eq!((ports.len(), &ports), (1, &labels));
    assert!(ports.iter().all(|port| *port >= 0xc000), "{ports:?}");
}

/// The receive was consumed, so that zero are left.
//= HW-04 type=test
#[test]
fn like_mlx5_acknowledgements_tell_of_credits() {
    let mut told = Vec::new();
    for_each(|_, packet| {
        if let Some(aeth) = packet.headers().aeth {
            let Syndrome::Ack(credits) = aeth.syndrome else {
                panic!("{packet}")
            };
            told.push((packet.bth().opcode.operation().unwrap(), credits.code()));
        }
    });
    let (read, atomic) = (Operation::ReadResponseOnly, Operation::AtomicAcknowledge);
    assert_eq!(told, [(Operation::Acknowledge, 0), (read, 0), (atomic, 0)]);
}

//= HW-09 type=test
#[test]
fn like_mlx5_the_connection_manager_has_its_values() {
    let mut names = BTreeSet::new();
    for_each(|_, packet| {
        let Ok(mad) = Mad::parse(packet.payload()) else {
            return;
        };
        let bth = packet.bth();
        assert!(!bth.ack_req && !bth.solicited);
        names.insert(mad.message.attribute());
        match mad.message {
            CmMessage::Req(req) => {
                let path = req.primary;
                assert_eq!((req.responder_resources, req.initiator_depth), (16, 16));
                assert_eq!((req.max_cm_retries, req.flow_control), (15, false));
                assert_eq!((path.local_lid, path.remote_lid), (0xffff, 0xffff));
                assert_eq!((path.hop_limit, path.packet_rate), (64, 7));
                assert_eq!(path.ack_timeout, CmTimeout::new(18));
            }
            CmMessage::Rep(rep) => {
                assert_eq!(rep.target_ack_delay, CmTimeout::new(16));
                assert_eq!((rep.responder_resources, rep.initiator_depth), (16, 16));
            }
            _ => {}
        }
    });
    assert_eq!(names.len(), 5, "REQ, REP, RTU, DREQ and DREP");
}
