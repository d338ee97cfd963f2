//! Peers that cannot be reached, without a route or without an answer of the network.

use std::thread;
use std::time::{Duration, Instant};

use rocade_emulator::cm::{CmChannel, CmEvent, CmEventKind, CmId, PortSpace};
use rocade_emulator::{AddressVector, Gid, QpAttr, QpAttrMask, QpState, QpType, VerbsError};

use super::common::{ALL_ACCESS, Side, engine};
use super::hosts::wait_for;
use super::sandbox::own_network;
use super::{ip, wire};

fn address(peer: &str) -> AddressVector {
    AddressVector {
        dgid: Gid::from_ip(peer.parse().unwrap()),
        hop_limit: 64,
        is_global: true,
        port_num: 1,
        ..AddressVector::default()
    }
}

/// Returns the errno with which the queue pair refuses to go to RTR, 0 for none.
fn rtr(side: &Side, peer: &str) -> i32 {
    side.qp.to_init(ALL_ACCESS).unwrap();
    let connection = side.connection(7, Gid::from_ip(peer.parse().unwrap()));
    errno(side.qp.to_rtr(&connection))
}

fn ah(side: &Side, peer: &str) -> i32 {
    errno(side.pd.create_ah(&address(peer)))
}

fn errno<T>(result: Result<T, VerbsError>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(VerbsError::Unreachable { error, .. }) => error.raw_os_error().unwrap(),
        Err(error) => panic!("{error}"),
    }
}

//= QPC-05 type=test
#[test]
fn a_peer_without_a_route_is_refused_at_once() {
    if !wire() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    ip("route add unreachable 198.51.100.0/24\n\
        neigh add 192.0.2.77 lladdr 02:00:00:00:00:77 dev v0\n");
    let side = Side::on(engine("v0"), 4096);
    for (peer, expected) in [
        ("203.0.113.9", libc::ENETUNREACH),
        ("198.51.100.9", libc::EHOSTUNREACH),
        // No host has to be asked for these.
        ("192.0.2.77", 0),
        ("192.0.2.1", 0),
        ("127.0.0.1", 0),
    ] {
        assert_eq!(ah(&side, peer), expected, "{peer}");
        assert_eq!(rtr(&side, peer), expected, "{peer}");
        let reset = QpAttr {
            qp_state: QpState::Reset.code(),
            ..QpAttr::default()
        };
        side.qp.modify(&reset, QpAttrMask::STATE).unwrap();
    }
    assert_eq!(ah(&side, "239.1.1.1"), 0);
    // A loopback address reaches only this host.
    let loopback = Side::on(engine("127.0.0.1"), 4096);
    assert_eq!(ah(&loopback, "192.0.2.77"), libc::ENETUNREACH);
    assert_eq!(ah(&loopback, "192.0.2.1"), 0);
}

/// The number of packets that an interface of this thread's host has sent.
fn sent(interface: &str) -> String {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find(|line| line.contains(interface)).unwrap();
    line.split_whitespace().nth(10).unwrap().to_owned()
}

/// The stations behind a tunnel have no hardware addresses, so that none is asked for.
#[test]
fn a_peer_behind_a_tunnel_gets_no_packet() {
    if !wire() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    ip("link set v0 arp off\n");
    let side = Side::on(engine("v0"), 4096);
    let before = sent("v0:");
    assert_eq!(ah(&side, "192.0.2.9"), 0);
    assert_eq!(sent("v0:"), before);
}

/// All at the same time, because each takes a second.
//= QPC-05 type=test
#[test]
fn a_silent_peer_is_refused_after_a_second() {
    if !own_network() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    ip("link set lo up\n\
        link add v0 type veth peer name v1\n\
        addr add 192.0.2.1/24 dev v0\n\
        addr add fd00:77::1/64 dev v0 nodad\n\
        link set v1 up\nlink set v0 up\n\
        route add 203.0.113.0/24 via 192.0.2.254\n");
    wait_for("v0");
    let side = Side::on(engine("v0"), 4096);
    let gids = side.context.gid_entries();
    let v6 = gids
        .iter()
        .position(|entry| entry.gid.to_ip() == "fd00:77::1".parse::<std::net::IpAddr>().unwrap());
    let v6 = AddressVector {
        sgid_index: u8::try_from(v6.unwrap()).unwrap(),
        ..address("fd00:77::9")
    };
    let begin = Instant::now();
    thread::scope(|scope| {
        let all = [
            scope.spawn(|| rtr(&side, "192.0.2.9")),
            scope.spawn(|| ah(&side, "192.0.2.10")),
            scope.spawn(|| ah(&side, "203.0.113.9")),
            scope.spawn(|| errno(side.pd.create_ah(&v6))),
        ];
        for refused in all {
            assert_eq!(refused.join().unwrap(), libc::ETIMEDOUT);
        }
    });
    assert!(begin.elapsed() >= Duration::from_millis(900));
}

/// The other host appears while the system asks for it.
//= EVT-01 type=test
#[test]
fn a_peer_that_answers_late_is_resolved() {
    if !wire() {
        rocade_skip::skip!("cannot make a network namespace");
    }
    let side = Side::on(engine("v0"), 4096);
    let channel = CmChannel::new(&side.engine).unwrap();
    let id = CmId::new(&channel, PortSpace::Tcp, QpType::Rc, 5).unwrap();
    let peer: std::net::SocketAddr = "192.0.2.9:7471".parse().unwrap();
    id.resolve_addr(None, peer, Duration::from_secs(600))
        .unwrap();
    ip("neigh replace 192.0.2.9 lladdr 02:00:00:00:00:09 dev v0\n");
    let event = next(&channel);
    assert_eq!((event.kind, event.status), (CmEventKind::AddrResolved, 0));
    id.resolve_route().unwrap();
    assert_eq!(next(&channel).kind, CmEventKind::RouteResolved);
    // The same without events.
    let other = CmId::new(&channel, PortSpace::Tcp, QpType::Rc, 6).unwrap();
    assert!(other.resolve(None, peer).unwrap());
    let silent: std::net::SocketAddr = "192.0.2.10:7471".parse().unwrap();
    let other = CmId::new(&channel, PortSpace::Tcp, QpType::Rc, 7).unwrap();
    assert!(!other.resolve(None, silent).unwrap());
}

fn next(channel: &CmChannel) -> CmEvent {
    let deadline = Instant::now() + Duration::from_secs(20);
    // SAFETY: flags of a descriptor that is open.
    unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    loop {
        match channel.take_event() {
            Ok(Some(event)) => return event,
            Ok(None) | Err(VerbsError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline, "no event");
        thread::sleep(Duration::from_millis(1));
    }
}
