//! The connection manager over real sockets, several engines in one process.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

#[path = "../common/mod.rs"]
mod common;
mod like;
mod many;
mod nic;
mod refusals;

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use common::{Side, engine, pattern};
use rocade_emulator::cm::{
    CmAddr, CmChannel, CmEvent, CmEventKind as Kind, CmId, CmParam, ConnParam, IbAddr, PortSpace,
    RejReason, ServiceId,
};
use rocade_emulator::{Engine, Gid, Qp, QpState, QpType, Qpn, SendOp, VerbsError, WcStatus};

const PATIENCE: Duration = Duration::from_secs(20);
/// The time limit of resolving an address.
const LIMIT: Duration = Duration::from_secs(2);

fn addr(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// A device, and an event channel for its IDs.
struct Node {
    engine: Engine,
    channel: CmChannel,
    ip: &'static str,
}

impl Node {
    fn new(ip: &'static str) -> Self {
        Self::on(ip, engine(ip))
    }

    fn on(ip: &'static str, engine: Engine) -> Self {
        let channel = CmChannel::new(&engine).unwrap();
        Self {
            engine,
            channel,
            ip,
        }
    }

    fn id(&self, cookie: u64) -> CmId {
        CmId::new(&self.channel, PortSpace::Tcp, QpType::Rc, cookie).unwrap()
    }

    fn datagram_id(&self, cookie: u64) -> CmId {
        CmId::new(&self.channel, PortSpace::Udp, QpType::Ud, cookie).unwrap()
    }

    fn listener(&self, port: u16, backlog: i32) -> CmId {
        let id = self.id(1);
        id.bind(addr(self.ip, port)).unwrap();
        id.listen(backlog).unwrap();
        id
    }

    /// Returns an event if there is one.
    fn poll(&self) -> Option<CmEvent> {
        nonblocking(self.channel.fd());
        match self.channel.take_event() {
            Ok(event) => event,
            Err(VerbsError::WouldBlock) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn next(&self) -> CmEvent {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.poll() {
                return event;
            }
            assert!(Instant::now() < deadline, "no event");
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn expect(&self, kind: Kind, cookie: u64) -> CmEvent {
        let event = self.next();
        assert_eq!((event.kind, event.cookie), (kind, cookie), "{event:?}");
        event
    }

    fn none(&self) {
        nonblocking(self.channel.fd());
        assert!(matches!(
            self.channel.take_event(),
            Err(VerbsError::WouldBlock)
        ));
    }

    /// Resolves the route of an ID to a peer.
    fn routed(&self, id: &CmId, cookie: u64, peer: SocketAddr) {
        id.resolve_addr(None, peer, LIMIT).unwrap();
        self.expect(Kind::AddrResolved, cookie);
        id.resolve_route().unwrap();
        self.expect(Kind::RouteResolved, cookie);
    }
}

fn nonblocking(fd: i32) {
    // SAFETY: flags of a descriptor that is open.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

fn param(qp: Qpn, private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private_data.to_vec(),
        responder_resources: 4,
        initiator_depth: 3,
        retry_count: 7,
        rnr_retry_count: 6,
        qp_num: qp,
        ..ConnParam::default()
    }
}

fn conn(event: &CmEvent) -> &ConnParam {
    match &event.param {
        CmParam::Conn(param) => param,
        other => panic!("{other:?}"),
    }
}

fn to(qp: &Qp, id: &CmId, state: QpState) {
    let (attr, mask) = id.qp_attr(state).unwrap();
    qp.modify(&attr, mask).unwrap();
}

//= EVT-01 type=test
//= EVT-02 type=test
//= EVT-03 type=test
//= CMA-05 type=test
//= CMA-10 type=test
//= CM-FLD-02 type=test
#[test]
fn a_connection_carries_data_and_ends() {
    let (a, b) = (Node::new("127.1.9.1"), Node::new("127.1.9.2"));
    let (side_a, side_b) = (
        Side::on(a.engine.clone(), 1 << 16),
        Side::on(b.engine.clone(), 1 << 16),
    );
    let _listener = b.listener(7471, 0);
    let active = a.id(11);
    a.routed(&active, 11, addr(b.ip, 7471));
    to(&side_a.qp, &active, QpState::Init);
    active
        .connect(&param(side_a.qp.qp_num(), b"hello"))
        .unwrap();

    let event = b.expect(Kind::ConnectRequest, 1);
    let request = conn(&event);
    assert_eq!(request.private_data.len(), 56);
    assert_eq!(&request.private_data[..6], b"hello\0");
    assert_eq!(request.qp_num, side_a.qp.qp_num());
    assert_eq!(
        (request.responder_resources, request.initiator_depth),
        (3, 4)
    );
    assert_eq!((request.retry_count, request.rnr_retry_count), (7, 6));
    let passive = event.new_id.unwrap();
    let addresses = passive.addresses();
    assert_eq!(addresses.local, Some(addr(b.ip, 7471)));
    assert_eq!(addresses.peer, active.addresses().local);
    assert_eq!(addresses.device.as_deref(), Some("dev"));
    side_b
        .qp
        .recv_queue()
        .push(5, &[side_b.sge(0, 64)])
        .unwrap_err();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        to(&side_b.qp, &passive, state);
    }
    side_b
        .qp
        .recv_queue()
        .push(5, &[side_b.sge(0, 64)])
        .unwrap();
    passive
        .accept(22, &param(side_b.qp.qp_num(), b"welcome"))
        .unwrap();

    let event = a.expect(Kind::ConnectResponse, 11);
    let reply = conn(&event);
    assert_eq!(reply.private_data.len(), 196);
    assert_eq!(&reply.private_data[..8], b"welcome\0");
    assert_eq!((reply.responder_resources, reply.initiator_depth), (3, 4));
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        to(&side_a.qp, &active, state);
    }
    active.establish().unwrap();
    b.expect(Kind::Established, 22);

    let data = pattern(64, 3);
    side_a.fill(0, &data);
    side_a.send(1, SendOp::Send { imm: None }, &[side_a.sge(0, 64)]);
    assert_eq!(side_b.completion().status, WcStatus::Success);
    assert_eq!(side_b.bytes(0, 64), data);
    assert_eq!(side_a.completion().status, WcStatus::Success);
    let (attr, _) = side_b.qp.query();
    assert_eq!(
        (attr.timeout, attr.rnr_retry, attr.min_rnr_timer),
        (17, 6, 0)
    );

    active.disconnect().unwrap();
    b.expect(Kind::Disconnected, 22);
    a.none();
    // The application has to answer the DREQ.
    passive.disconnect().unwrap();
    assert_eq!(a.expect(Kind::Disconnected, 11).status, 0);
    active.disconnect().unwrap();
    a.expect(Kind::TimewaitExit, 11);
    b.expect(Kind::TimewaitExit, 22);
    a.none();
    b.none();
    assert_eq!(a.engine.cm_counters().rx_unsolicited, 0);
}

//= CM-REJ-A type=test
//= LRC-19 type=test
#[test]
fn rejections_reach_the_program() {
    let (a, b) = (Node::new("127.1.9.3"), Node::new("127.1.9.4"));
    // Only a peer that has the address can reject.
    let listener = b.listener(7472, 0);
    let unanswered = a.id(1);
    a.routed(&unanswered, 1, addr(b.ip, 9999));
    unanswered.connect(&param(Qpn::new(77), &[])).unwrap();
    let event = a.expect(Kind::Rejected, 1);
    assert_eq!(event.status, 8);
    assert_eq!(conn(&event).private_data.len(), 148);

    for len in 0..=148 {
        let id = a.id(2);
        a.routed(&id, 2, addr(b.ip, 7472));
        id.connect(&param(Qpn::new(100 + len as u32), &[])).unwrap();
        let request = b.expect(Kind::ConnectRequest, 1).new_id.unwrap();
        let data = pattern(len, len);
        let too_long = request.reject(RejReason::Consumer, &pattern(149, 1));
        assert_eq!(too_long.unwrap_err().errno(), libc::EINVAL);
        request.reject(RejReason::Consumer, &data).unwrap();
        let event = a.expect(Kind::Rejected, 2);
        assert_eq!(event.status, 28);
        assert_eq!(conn(&event).private_data[..len], data);
        assert!(
            conn(&event).private_data[len..]
                .iter()
                .all(|byte| *byte == 0)
        );
    }
    // Every reason code arrives as it was sent.
    for code in (1..=33).chain([35]) {
        let id = a.id(4);
        a.routed(&id, 4, addr(b.ip, 7472));
        id.connect(&param(Qpn::new(1000 + u32::from(code)), &[]))
            .unwrap();
        let request = b.expect(Kind::ConnectRequest, 1).new_id.unwrap();
        request.reject(RejReason::from_code(code), &[]).unwrap();
        assert_eq!(a.expect(Kind::Rejected, 4).status, i32::from(code));
    }
    // The same for rejections of a REP.
    for code in (1..=33_u16).chain([35]) {
        let id = a.id(5);
        a.routed(&id, 5, addr(b.ip, 7472));
        let qpn = Qpn::new(2000 + u32::from(code));
        id.connect(&param(qpn, &[])).unwrap();
        let passive = b.expect(Kind::ConnectRequest, 1).new_id.unwrap();
        passive.accept(6, &param(qpn, &[])).unwrap();
        a.expect(Kind::ConnectResponse, 5);
        let said = code.to_be_bytes();
        id.reject(RejReason::from_code(code), &said).unwrap();
        let event = b.expect(Kind::Rejected, 6);
        assert_eq!(event.status, i32::from(code));
        assert_eq!(conn(&event).private_data[..3], [said[0], said[1], 0]);
    }
    // A pending request ends with its listener.
    let id = a.id(3);
    a.routed(&id, 3, addr(b.ip, 7472));
    let deadline = Instant::now() + PATIENCE;
    let before = b.engine.cm_counters().rx_messages;
    id.connect(&param(Qpn::new(500), &[])).unwrap();
    while b.engine.cm_counters().rx_messages <= before {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    drop(listener);
    assert_eq!(a.expect(Kind::Rejected, 3).status, 28);
    b.none();
}

//= CMA-03 type=test
//= CMA-05 type=test
#[test]
fn private_data_of_every_length_arrives() {
    let (a, b) = (Node::new("127.1.9.5"), Node::new("127.1.9.6"));
    let _listener = b.listener(7473, 0);
    for len in 0..=196 {
        let id = a.id(1);
        a.routed(&id, 1, addr(b.ip, 7473));
        let qpn = Qpn::new(1000 + len as u32);
        if len > 56 {
            assert!(id.connect(&param(qpn, &pattern(57, 1))).is_err());
        }
        let ask = pattern(len.min(56), len);
        id.connect(&param(qpn, &ask)).unwrap();
        let event = b.expect(Kind::ConnectRequest, 1);
        assert_eq!(conn(&event).private_data[..ask.len()], ask);
        let passive = event.new_id.unwrap();
        let answer = pattern(len, len + 1);
        passive.accept(2, &param(qpn, &answer)).unwrap();
        let event = a.expect(Kind::ConnectResponse, 1);
        assert_eq!(conn(&event).private_data[..len], answer);
        id.establish().unwrap();
        b.expect(Kind::Established, 2);
        drop(id);
        b.expect(Kind::Disconnected, 2);
    }
}

//= CMA-12 type=test
//= EVT-04 type=test
#[test]
fn a_datagram_service_is_found() {
    let (a, b) = (Node::new("127.1.9.7"), Node::new("127.1.9.8"));
    let service = b.datagram_id(1);
    service.bind(addr(b.ip, 5555)).unwrap();
    service.listen(5).unwrap();
    let id = a.datagram_id(2);
    a.routed(&id, 2, addr(b.ip, 5555));
    id.connect(&param(Qpn::new(9), &pattern(180, 4))).unwrap();
    let event = b.expect(Kind::ConnectRequest, 1);
    let CmParam::Ud(ud) = &event.param else {
        panic!()
    };
    assert_eq!(ud.private_data, pattern(180, 4));
    let new = event.new_id.unwrap();
    new.accept(3, &param(Qpn::new(0x1234), &pattern(136, 5)))
        .unwrap();
    let event = a.expect(Kind::Established, 2);
    let CmParam::Ud(ud) = &event.param else {
        panic!()
    };
    assert_eq!(ud.private_data, pattern(136, 5));
    assert_eq!((ud.qp_num.get(), ud.qkey.get()), (0x1234, 0x0123_4567));
    assert_eq!(
        ud.address.dgid.to_ip(),
        b.ip.parse::<std::net::IpAddr>().unwrap()
    );
    b.none();

    let id = a.datagram_id(4);
    a.routed(&id, 4, addr(b.ip, 5556));
    id.connect(&param(Qpn::new(9), &[])).unwrap();
    assert_eq!(a.expect(Kind::Unreachable, 4).status, 1);
    let id = a.datagram_id(5);
    a.routed(&id, 5, addr(b.ip, 5555));
    id.connect(&param(Qpn::new(9), &[])).unwrap();
    let new = b.expect(Kind::ConnectRequest, 1).new_id.unwrap();
    new.reject(RejReason::Consumer, b"no").unwrap();
    let event = a.expect(Kind::Unreachable, 5);
    assert_eq!(event.status, 2);
}

/// Private data of datagram services, and with native InfiniBand addresses, which leave more room
/// for it.
//= CMA-05 type=test
#[test]
fn private_data_of_every_length_arrives_at_a_service() {
    let (a, b) = (Node::new("127.1.9.25"), Node::new("127.1.9.26"));
    let service = b.datagram_id(1);
    service.bind(addr(b.ip, 5557)).unwrap();
    service.listen(0).unwrap();
    let data = |event: &CmEvent| match &event.param {
        CmParam::Ud(ud) => ud.private_data.clone(),
        CmParam::Conn(conn) => conn.private_data.clone(),
        other => panic!("{other:?}"),
    };
    let too_long = |result: Result<(), VerbsError>| {
        assert_eq!(result.unwrap_err().errno(), libc::EINVAL);
    };
    let qpn = Qpn::new(9);
    for len in 0..=180 {
        let id = a.datagram_id(2);
        a.routed(&id, 2, addr(b.ip, 5557));
        too_long(id.connect(&param(qpn, &pattern(181, 1))));
        id.connect(&param(qpn, &pattern(len, len))).unwrap();
        let mut event = b.expect(Kind::ConnectRequest, 1);
        let got = data(&event);
        assert_eq!((got.len(), &got[..len]), (180, &pattern(len, len)[..]));
        assert!(got[len..].iter().all(|byte| *byte == 0));
        let new = event.new_id.take().unwrap();
        let answer = pattern(len.min(136), len + 1);
        let kind = if len.is_multiple_of(2) {
            new.accept(3, &param(qpn, &answer)).unwrap();
            Kind::Established
        } else {
            too_long(new.reject(RejReason::Consumer, &pattern(137, 1)));
            new.reject(RejReason::Consumer, &answer).unwrap();
            Kind::Unreachable
        };
        let got = data(&a.expect(kind, 2));
        assert_eq!((got.len(), &got[..answer.len()]), (136, &answer[..]));
    }
    let of_ib = |ip: &str, port| {
        CmAddr::Ib(IbAddr {
            gid: Gid::from_ip(ip.parse().unwrap()),
            service_id: ServiceId::of_port(0x013f, port),
            service_mask: u64::MAX,
        })
    };
    let new_id =
        |node: &Node, cookie| CmId::new(&node.channel, PortSpace::Ib, QpType::Rc, cookie).unwrap();
    let listener = new_id(&b, 4);
    listener.bind(of_ib(b.ip, 5558)).unwrap();
    listener.listen(0).unwrap();
    for len in 0..=92 {
        let id = new_id(&a, 5);
        id.resolve_addr(None, of_ib(b.ip, 5558), LIMIT).unwrap();
        a.expect(Kind::AddrResolved, 5);
        id.resolve_route().unwrap();
        a.expect(Kind::RouteResolved, 5);
        let qpn = Qpn::new(1000 + len as u32);
        too_long(id.connect(&param(qpn, &pattern(93, 1))));
        id.connect(&param(qpn, &pattern(len, len))).unwrap();
        let event = b.expect(Kind::ConnectRequest, 4);
        let got = data(&event);
        assert_eq!((got.len(), &got[..len]), (92, &pattern(len, len)[..]));
        drop(event);
        a.expect(Kind::Rejected, 5);
    }
}

/// A listener accepts only requests for its own type of queue pairs. An XRC target is named by the
/// EE context number.
//= CMA-04 type=test
//= CM-FLD-09 type=test
//= CMA-10 type=test
#[test]
fn a_listener_has_a_type() {
    let (a, b) = (Node::new("127.1.9.23"), Node::new("127.1.9.24"));
    let id = |node: &Node, qp_type, cookie| {
        CmId::new(&node.channel, PortSpace::Ib, qp_type, cookie).unwrap()
    };
    let asking = [QpType::Rc, QpType::Uc, QpType::XrcSend];
    let listening = [QpType::Rc, QpType::Uc, QpType::XrcRecv];
    for (port, waits) in (7480..).zip(listening) {
        let listener = id(&b, waits, 1);
        listener.bind(addr(b.ip, port)).unwrap();
        listener.listen(0).unwrap();
        for (asks, fitting) in asking.into_iter().zip(listening) {
            let active = id(&a, asks, 2);
            a.routed(&active, 2, addr(b.ip, port));
            let number = u32::from(port) << 4 | asks.code();
            active.connect(&param(Qpn::new(number), &[])).unwrap();
            if fitting != waits {
                assert_eq!(a.expect(Kind::Rejected, 2).status, 28);
                continue;
            }
            let event = b.expect(Kind::ConnectRequest, 1);
            let is_xrc = asks == QpType::XrcSend;
            let asked = conn(&event);
            let resources = (asked.responder_resources, asked.initiator_depth);
            assert_eq!(resources, if is_xrc { (3, 0) } else { (3, 4) });
            let retries = (asked.retry_count, asked.rnr_retry_count);
            assert_eq!(retries, if is_xrc { (0, 0) } else { (7, 6) });
            let passive = event.new_id.unwrap();
            passive.accept(3, &param(Qpn::new(0x77), &[])).unwrap();
            let event = a.expect(Kind::ConnectResponse, 2);
            let answer = conn(&event);
            assert_eq!((answer.qp_num, answer.srq), (Qpn::new(0x77), is_xrc));
            assert_eq!(active.qp_attr(QpState::Rtr).unwrap().0.dest_qp_num, 0x77);
            for (id, kind) in [(&active, asks), (&passive, waits)] {
                for (from, to) in [
                    (QpState::Reset, QpState::Init),
                    (QpState::Init, QpState::Rtr),
                    (QpState::Rtr, QpState::Rts),
                ] {
                    let rule = rocade_transport::transition_rule(kind, from, to).unwrap();
                    let (_, mask) = id.qp_attr(to).unwrap();
                    let mask = mask - rocade_transport::QpAttrMask::STATE;
                    assert_eq!(mask, rule.required, "{kind:?} to {to:?}");
                }
            }
            active.establish().unwrap();
            b.expect(Kind::Established, 3);
            drop(active);
            b.expect(Kind::Disconnected, 3);
        }
    }
}

//= CMA-13 type=test
//= LRC-16 type=test
#[test]
fn ports_and_addresses_are_checked() {
    let a = Node::new("127.1.9.9");
    let first = a.id(1);
    first.bind(addr(a.ip, 7000)).unwrap();
    assert_eq!(
        first.bind(addr(a.ip, 7001)).unwrap_err().errno(),
        libc::EINVAL
    );
    let second = a.id(2);
    assert_eq!(
        second.bind(addr(a.ip, 7000)).unwrap_err().errno(),
        libc::EADDRINUSE
    );
    assert_eq!(
        second.bind(addr("0.0.0.0", 7000)).unwrap_err().errno(),
        libc::EADDRNOTAVAIL
    );
    assert_eq!(
        second.bind(addr("127.200.1.1", 7000)).unwrap_err().errno(),
        libc::ENODEV
    );
    second.bind(addr(a.ip, 0)).unwrap();
    let port = second.addresses().local.unwrap().port();
    assert!(port >= 1024 && port != 7000);
    let datagram = a.datagram_id(3);
    datagram.bind(addr(a.ip, 7000)).unwrap();
    drop(first);
    let third = a.id(4);
    third.bind(addr("0.0.0.0", 7000)).unwrap();
    third.listen(3).unwrap();
    assert!(third.listen(3).is_err());
    // Linux returns this error if one of the two is bound to all addresses.
    for ip in [a.ip, "0.0.0.0"] {
        let fourth = a.id(5);
        assert_eq!(
            fourth.bind(addr(ip, 7000)).unwrap_err().errno(),
            libc::EADDRNOTAVAIL
        );
    }

    let lost = a.id(9);
    assert!(lost.resolve_route().is_err());
    assert!(lost.connect(&ConnParam::default()).is_err());
    assert!(lost.establish().is_err() && lost.disconnect().is_err());
    assert!(lost.accept(0, &ConnParam::default()).is_err());
    assert!(lost.qp_attr(QpState::Rtr).is_err());
    lost.resolve_addr(None, addr("fd99::1", 7), LIMIT).unwrap();
    let event = a.expect(Kind::AddrError, 9);
    assert!(event.status < 0);
    // Afterwards it can be resolved again.
    lost.resolve_addr(None, addr(a.ip, 7), LIMIT).unwrap();
    a.expect(Kind::AddrResolved, 9);
}

/// Resolving without events has the same result.
//= CMA-16 type=test
#[test]
fn an_id_is_resolved_without_events() {
    let a = Node::new("127.1.9.60");
    let id = a.id(1);
    assert!(!id.resolve(None, addr("fd99::1", 7)).unwrap());
    assert_eq!(id.addresses().peer, None);
    assert!(id.resolve_route().is_err());
    assert!(id.resolve(None, addr(a.ip, 7)).unwrap());
    // A local address is reached from itself.
    let (addresses, peer) = (id.addresses(), addr(a.ip, 7));
    assert_eq!(addresses.peer, Some(peer));
    let local = addresses.local.unwrap();
    assert!(local.ip() == peer.ip() && local.port() != 0);
    assert!(
        id.resolve(None, addr(a.ip, 7)).is_err(),
        "the route is resolved already"
    );
    a.none();
    assert_eq!(a.channel.try_event().map(|event| event.kind), None);
    id.connect(&param(Qpn::new(7), &[])).unwrap();
    assert_eq!(a.expect(Kind::Rejected, 1).new_id.map(|_| ()), None);
    let waits = a.channel.another().unwrap();
    assert!(matches!(waits.take_event(), Err(VerbsError::WouldBlock)));
}

//= LRC-15 type=test
#[test]
fn a_backlog_counts_requests_that_were_not_taken() {
    let (a, b) = (Node::new("127.1.9.10"), Node::new("127.1.9.11"));
    let _listener = b.listener(7474, 2);
    let ids: Vec<CmId> = (0..4)
        .map(|cookie| {
            let id = a.id(cookie);
            a.routed(&id, cookie, addr(b.ip, 7474));
            let qpn = Qpn::new(100 + cookie as u32);
            id.connect(&param(qpn, &[cookie as u8])).unwrap();
            id
        })
        .collect();
    // All requests arrive before there is room again.
    let deadline = Instant::now() + PATIENCE;
    while b.engine.cm_counters().rx_messages < 4 {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    let mut taken = Vec::new();
    // Requests without room are retransmitted.
    for _ in 0..4 {
        let event = b.expect(Kind::ConnectRequest, 1);
        taken.push(event.new_id.unwrap());
    }
    a.none();
    assert!(b.engine.cm_counters().rx_messages >= 6);
    drop(ids);
}

/// A second channel gets the unread events of the first one, and all later ones.
//= LRC-12 type=test
#[test]
fn an_id_moves_to_another_channel() {
    let (a, b) = (Node::new("127.1.9.12"), Node::new("127.1.9.13"));
    let _listener = b.listener(7475, 0);
    let id = a.id(1);
    id.resolve_addr(None, addr(b.ip, 7475), LIMIT).unwrap();
    let second = Node {
        engine: a.engine.clone(),
        channel: CmChannel::new(&a.engine).unwrap(),
        ip: a.ip,
    };
    assert_eq!(id.migrate(&second.channel).unwrap(), 0);
    a.none();
    second.expect(Kind::AddrResolved, 1);
    id.resolve_route().unwrap();
    second.expect(Kind::RouteResolved, 1);
    assert_eq!(id.migrate(&a.channel).unwrap(), 2);
    assert_eq!(id.destroy(), 2);
    assert_eq!(id.destroy(), 0);
}

/// A REQ on the wire contains all that a peer needs for its queue pair.
//= MAD-01 UD-16 type=test
//= MAD-06 type=test
//= CMA-01 type=test
//= CMA-02 type=test
//= CMA-07 type=test
//= CMA-08 type=test
//= CM-FLD-02 type=test
#[test]
fn a_request_says_how_it_is_reached() {
    use rocade_wire::mad::{CmMessage, CmTimeout, IpCmHeader, Mad, ServiceId, TransportType};
    use rocade_wire::{Gid, Packet, Pkey};
    let a = Node::new("127.1.9.21");
    let peer = UdpSocket::bind("127.1.9.22:4791").unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let id = a.id(1);
    id.set_tos(0x28).unwrap();
    a.routed(&id, 1, addr("127.1.9.22", 7471));
    id.connect(&param(Qpn::new(0x123), b"hi")).unwrap();
    let mut buffer = [0; 2048];
    let (len, from) = peer.recv_from(&mut buffer).unwrap();
    assert_eq!((len, from.ip()), (12 + 8 + 256 + 4, a.ip.parse().unwrap()));
    let packet = Packet::parse(&buffer[..len]).unwrap();
    let (bth, deth) = (packet.bth(), packet.headers().deth.unwrap());
    assert_eq!((bth.dest_qp, bth.pkey), (Qpn::GSI, Pkey::DEFAULT));
    assert_eq!((deth.src_qp, deth.qkey.get()), (Qpn::GSI, 0x8001_0000));
    let CmMessage::Req(req) = Mad::parse(packet.payload()).unwrap().message else {
        panic!("another message");
    };
    assert_eq!(req.service_id, ServiceId::new(0x0106_1d2f));
    assert_eq!((req.transport, req.qpn.get()), (TransportType::Rc, 0x123));
    assert_eq!((req.responder_resources, req.initiator_depth), (4, 3));
    let timeouts = [req.remote_response_timeout, req.local_response_timeout];
    assert_eq!(timeouts, [CmTimeout::new(20); 2]);
    assert_eq!((req.max_cm_retries, req.pkey), (15, Pkey::DEFAULT));
    let path = req.primary;
    let gid = |ip: &str| Gid::from_ip(ip.parse().unwrap());
    assert_eq!(
        (path.local_gid, path.remote_gid),
        (gid(a.ip), gid("127.1.9.22"))
    );
    assert_eq!((path.local_lid, path.remote_lid), (0xffff, 0xffff));
    assert_eq!((path.hop_limit, path.subnet_local), (64, false));
    assert_eq!(
        (path.traffic_class, path.ack_timeout),
        (0x28, CmTimeout::new(17))
    );
    let header = IpCmHeader::parse(&req.private_data).unwrap();
    let port = id.addresses().local.unwrap().port();
    assert_eq!((header.src_port, header.src), (port, from.ip()));
    assert_eq!(header.dst, peer.local_addr().unwrap().ip());
    let label = (u32::from(port) * 31 + 7471) & 0xf_ffff;
    assert_eq!(path.flow_label, label);
    assert_eq!(req.private_data[36..39], *b"hi\0");
}

/// Malformed packets to QP 1 are counted, and have no other effect.
#[test]
fn nonsense_is_counted() {
    let (a, b) = (Node::new("127.1.9.14"), Node::new("127.1.9.15"));
    let _listener = b.listener(7476, 0);
    let socket = UdpSocket::bind("127.1.9.16:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let send = |payload: &[u8]| {
        use rocade_wire::icrc::IcrcFlow;
        use rocade_wire::{Bth, Deth, Headers, Opcode, Operation, Psn, Service};
        let opcode = Opcode::of(Service::Ud, Operation::SendOnly).unwrap();
        let mut headers = Headers::new(Bth::new(opcode, Qpn::GSI, Psn::new(0)));
        headers.deth = Some(Deth {
            qkey: rocade_wire::mad::GSI_QKEY,
            src_qp: Qpn::GSI,
            resv: 0,
        });
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet).unwrap();
        packet.extend(payload);
        let (from, to) = ([127, 1, 9, 16].into(), [127, 1, 9, 15].into());
        let flow = IcrcFlow::new(from, to, port).unwrap();
        packet.extend(flow.compute(0, &packet).to_le_bytes());
        socket.send_to(&packet, addr(b.ip, 4791)).unwrap();
    };
    for len in [0, 4, 252, 256, 260] {
        send(&vec![7; len]);
    }
    let mut unknown = [0; 256];
    unknown[..4].copy_from_slice(&[1, 7, 2, 3]);
    unknown[17] = 0x14;
    send(&unknown);
    let deadline = Instant::now() + PATIENCE;
    while b.engine.cm_counters().rx_unsolicited == 0 {
        assert!(Instant::now() < deadline, "{:?}", b.engine.counters());
        thread::sleep(Duration::from_millis(1));
    }
    let counters = b.engine.cm_counters();
    assert_eq!((counters.rx_malformed, counters.rx_unsolicited), (1, 1));
    assert_eq!(b.engine.counters().rx_malformed, 4);
    // Connections still work.
    let id = a.id(1);
    a.routed(&id, 1, addr(b.ip, 7476));
    id.connect(&param(Qpn::new(5), &[])).unwrap();
    b.expect(Kind::ConnectRequest, 1);
}
