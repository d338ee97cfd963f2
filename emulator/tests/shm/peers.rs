//! `ROCADE_PEERS`: queue pairs cannot be connected to other peers, and their packets are dropped.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use rocade_emulator::config::{Origin, Peers};
use rocade_emulator::{
    BrokerMode, Connection, Engine, EngineConfig, EngineCounters, Gid, LinkMode, QpState, SendOp,
    VerbsError, WcStatus,
};
use rocade_wire::{Bth, Opcode, Psn, Qpn};

use crate::common::{ALL_ACCESS, Side, connect, engine};
use crate::node::{Site, assert_success, own_address};
use crate::processes::{broker_config, wait_until};

fn peers(text: &str) -> Peers {
    Peers::parse(text, &Origin::Program).unwrap()
}

fn embedded(address: &str, allowed: &str) -> Engine {
    let config =
        EngineConfig::from_specs(&[format!("dev={address}")], BrokerMode::Embedded).unwrap();
    Engine::new(EngineConfig {
        peers: peers(allowed),
        ..config
    })
    .unwrap()
}

fn next_to(address: IpAddr) -> IpAddr {
    let IpAddr::V4(address) = address else {
        panic!("IPv4")
    };
    let [a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d + 128).into()
}

#[test]
fn a_qp_is_not_connected_to_others() {
    for (own, allowed, peer, may) in [
        ("127.3.0.1", "127.3.0.2/32", "127.3.0.2", true),
        ("127.3.0.1", "127.3.0.2/32", "127.3.0.3", false),
        ("127.3.0.1", "::ffff:127.3.0.0/120", "127.3.0.3", true),
        ("127.3.0.1", "::/0", "127.3.0.3", false),
        ("::1", "127.0.0.0/8,::1", "::1", true),
        ("::1", "127.0.0.0/8,::2", "::1", false),
    ] {
        let side = Side::on(embedded(own, allowed), 64);
        side.qp.to_init(ALL_ACCESS).unwrap();
        let ip: IpAddr = peer.parse().unwrap();
        let connection = Connection::to(Gid::from_ip(ip), Qpn::new(0x1234));
        let result = side.qp.to_rtr(&connection);
        if may {
            result.unwrap();
            continue;
        }
        let error = result.unwrap_err();
        assert!(matches!(error, VerbsError::PeerRefused(refused) if refused == ip));
        assert_eq!(error.errno(), libc::EACCES);
        let text = error.to_string();
        assert!(
            text.contains(peer) && text.contains("ROCADE_PEERS"),
            "{text}"
        );
        assert_eq!(side.qp.state(), QpState::Init);
    }
}

/// Returns the counters of packets that an engine has dropped.
fn dropped(counters: EngineCounters) -> [u64; 4] {
    [
        counters.rx_refused,
        counters.rx_malformed,
        counters.rx_bad_icrc,
        counters.rx_unknown_qp,
    ]
}

#[test]
fn packets_of_others_are_counted_and_nothing_else() {
    let a = Side::on(embedded("127.3.1.1", "127.3.1.2"), 64);
    let b = Side::on(engine("127.3.1.2"), 64);
    let foreign_socket = Side::on(engine("127.3.1.3"), 64);
    // Seventeen seconds: even on a slow machine, nothing is retransmitted.
    b.to_rts_with_timeout(a.qp.qp_num().get(), a.gid(), 22);
    a.to_rts(b.qp.qp_num().get(), b.gid());
    // The stranger has all keys and numbers.
    foreign_socket.to_rts_with_timeout(a.qp.qp_num().get(), a.gid(), 8);
    let op = |wr_id: u64| SendOp::Write {
        va: a.addr(0) + 8 * wr_id,
        rkey: a.mr.rkey(),
        imm: None,
    };
    foreign_socket.fill(0, &[1; 8]);
    foreign_socket.send(1, op(1), &[foreign_socket.sge(0, 8)]);
    assert_eq!(foreign_socket.completion().status, WcStatus::RetryExcErr);
    // Malformed packets of strangers are dropped before they are parsed.
    let socket = UdpSocket::bind("127.3.1.4:0").unwrap();
    socket
        .send_to(b"no packet at all", "127.3.1.1:4791")
        .unwrap();
    let before = a.engine.counters().rx_packets;
    b.fill(0, &[2; 8]);
    b.send(2, op(2), &[b.sge(0, 8)]);
    assert_success(&b, 2);
    assert_eq!(a.bytes(0, 24), [[0; 8], [0; 8], [2; 8]].concat());
    // The first packet, seven retries and the malformed packet.
    wait_until(|| {
        a.cq.poll_one();
        a.engine.counters().rx_refused == 9
    });
    assert_eq!(dropped(a.engine.counters()), [9, 0, 0, 0]);
    // The packet is counted a moment after it was acknowledged.
    wait_until(|| a.engine.counters().rx_packets > before);
    assert_eq!(a.engine.counters().rx_packets, before + 1);
}

/// GRO may merge packets for two processes of an address. One of them then forwards the other's
/// packets.
#[test]
fn packets_that_another_process_passes_on_are_checked_too() {
    let site = Site::new();
    let address = site.address;
    let engine = || {
        let broker = BrokerMode::Auto(broker_config(site.dir.path()));
        let config = EngineConfig::from_specs(&[format!("dev={address}")], broker).unwrap();
        Engine::new(EngineConfig {
            peers: peers(&address.to_string()),
            link: LinkMode::Udp,
            ..config
        })
        .unwrap()
    };
    let (a, b) = (Side::on(engine(), 64), Side::on(engine(), 64));
    connect(&a, &b);
    let (socket, segment_len) = (UdpSocket::bind((next_to(address), 0)).unwrap(), 16);
    // SAFETY: an option of a live socket with a value of its size.
    let result = unsafe {
        let value: libc::c_int = segment_len;
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const value).cast(),
            4,
        )
    };
    assert_eq!(result, 0);
    let packet = |to: Qpn| {
        let mut packet = Bth::new(Opcode::new(4), to, Psn::new(0))
            .to_bytes()
            .to_vec();
        packet.extend([0; 4]);
        packet
    };
    let run = [packet(a.qp.qp_num()), packet(b.qp.qp_num())].concat();
    socket.send_to(&run, (address, 4791)).unwrap();
    // The packet is counted as forwarded a moment after it was forwarded.
    wait_until(|| {
        a.cq.poll_one();
        b.cq.poll_one();
        b.engine.counters().rx_refused > 0 && a.engine.counters().forwarded > 0
    });
    assert_eq!(dropped(a.engine.counters()), [1, 0, 0, 0]);
    assert_eq!(a.engine.counters().forwarded, 1);
    assert_eq!(dropped(b.engine.counters()), [1, 0, 0, 0]);
}

/// Shared memory does not bypass the check: packets of refused peers come over UDP.
#[test]
fn shared_memory_is_only_for_allowed_peers() {
    let site = Site::new();
    let (own, peer) = (site.address, own_address());
    let broker = BrokerMode::Auto(broker_config(site.dir.path()));
    let config = EngineConfig::from_specs(&[format!("dev={own}")], broker).unwrap();
    let engine = Engine::new(EngineConfig {
        peers: peers(&own.to_string()),
        ..config
    })
    .unwrap();
    let side = Side::on(engine, 4096);
    // The side has its address, and a slot at the broker.
    side.to_rts(side.qp.qp_num().get(), side.gid());
    let mut node = site.node_at(peer, "auto");
    let remote = node.new_qp(0);
    node.connect_back(&side, remote);
    node.ask("recv 0 1 0 8");
    node.ask("send 0 2 0 8");
    wait_until(|| {
        side.cq.poll_one();
        side.engine.counters().rx_refused > 0
    });
    let counters = side.engine.counters();
    assert_eq!((counters.rx_packets, counters.rx_shared), (0, 0));
}
