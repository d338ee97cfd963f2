//! Floods of requests from peers that never confirm a connection: their cost is bounded, and
//! clients still get through.

use super::super::admission::BACKLOG;
use super::*;

/// Requests that are held, in addition to the backlog.
const HELD: usize = 1_024;

pub(super) fn from(last: u8) -> CmRoute {
    CmRoute {
        local: [10, 0, 0, 2].into(),
        remote: [10, 0, 0, last].into(),
    }
}

/// Returns a peer's request of this number, with the longest possible timeouts.
pub(super) fn numbered(number: u32) -> CmMessage {
    CmMessage::Req(Req {
        local_id: CommId::new(0x0900_0000 + number),
        ca_guid: Guid::new(0xbad),
        local_response_timeout: CmTimeout::new(31),
        primary: CmPath {
            ack_timeout: CmTimeout::new(31),
            ..req(0).primary
        },
        ..req(0x10_0000 + number)
    })
}

/// A server that accepts every request, and the flood of requests to it.
pub(super) struct Server {
    pub(super) cm: Cm,
    pub(super) now: Time,
    pub(super) accepted: Vec<CommId>,
    pub(super) ready: Vec<CommId>,
    pub(super) given_up: Vec<CommId>,
    pub(super) sent: Vec<(CmRoute, Box<[u8; Mad::LEN]>)>,
    floods: u32,
    most: usize,
}

impl Server {
    pub(super) fn new() -> Self {
        let mut cm = Cm::new(CmConfig {
            guid: Guid::new(0xbbbb),
            prefix: 4,
            seed: 0x1234_5678,
        });
        cm.listen(SERVICE);
        Self {
            cm,
            now: Time::from_ns(1),
            accepted: Vec::new(),
            ready: Vec::new(),
            given_up: Vec::new(),
            sent: Vec::new(),
            floods: 0,
            most: 0,
        }
    }

    pub(super) fn handle(&mut self, route: CmRoute, message: CmMessage) {
        let mad = Mad::new(TransactionId::new(5), message).to_bytes();
        self.cm.handle_mad(self.now, route, &mad);
        self.run();
    }

    pub(super) fn run(&mut self) {
        while let Some(event) = self.cm.poll_event() {
            match event {
                CmEvent::Request { id, .. } => {
                    self.cm.taken(id);
                    self.cm.reply(self.now, id, rep(0x22)).unwrap();
                    self.accepted.push(id);
                }
                CmEvent::Ready { id } => self.ready.push(id),
                CmEvent::ReplyTimeout { id } => {
                    self.cm.destroy(self.now, id);
                    self.given_up.push(id);
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(transmit) = self.cm.poll_transmit() {
            self.sent.push((transmit.route, transmit.mad));
        }
        self.most = self.most.max(self.half_open());
    }

    /// Returns the number of connections that cost the program a queue pair.
    pub(super) fn half_open(&self) -> usize {
        self.accepted.len() - self.ready.len() - self.given_up.len()
    }

    pub(super) fn pass(&mut self, ns: u64) {
        self.now = self.now.plus_ns(ns);
        self.cm.handle_timeout(self.now);
        self.run();
    }

    /// Sends one more request that is never confirmed, with the longest possible timeouts.
    fn flood(&mut self, source: u8) {
        self.floods += 1;
        self.handle(from(source), numbered(self.floods));
    }

    /// Delivers a client the messages that were sent to it.
    fn answer_all(&mut self, client: &mut Cm, route: CmRoute) {
        for (of, mad) in core::mem::take(&mut self.sent) {
            if of == route {
                client.handle_mad(self.now, back(route), &mad[..]);
            }
        }
        while let Some(event) = client.poll_event() {
            match event {
                CmEvent::Reply { id, .. } => client.ready(self.now, id, &[]).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        client.handle_timeout(self.now);
        while let Some(transmit) = client.poll_transmit() {
            self.cm.handle_mad(self.now, route, &transmit.mad[..]);
            self.run();
        }
    }
}

fn client() -> Cm {
    Cm::new(CmConfig {
        guid: Guid::new(0xaaaa),
        prefix: 3,
        seed: 0xaaaa << 20,
    })
}

/// Sends a flood of 5000 requests a second from these addresses for 20 s. A client sends its
/// request after 5 s. Returns its waiting time in ms.
fn flooded(sources: core::ops::Range<u8>, client_at: u8) -> u64 {
    let mut server = Server::new();
    let mut client = client();
    let mut waited = None;
    let route = from(client_at);
    let mut next = sources.clone().cycle();
    for ms in 0..20_000_u64 {
        for _ in 0..5 {
            server.flood(next.next().unwrap());
        }
        server.pass(MS);
        if ms == 5_000 {
            client.connect(server.now, back(route), LIFE, req(0x11));
        }
        server.answer_all(&mut client, route);
        if !server.ready.is_empty() && waited.is_none() {
            waited = Some(ms - 5_000);
        }
        assert!(server.half_open() <= BACKLOG);
        assert!(server.cm.len() <= BACKLOG + HELD + 2, "{}", server.cm.len());
    }
    assert_eq!(server.ready.len(), 1);
    // All other connections end: no state of the flood stays for longer than a minute.
    while server.now.as_ns() < 100_000 * MS {
        server.pass(100 * MS);
    }
    assert!(server.cm.len() <= 1 + BACKLOG, "{}", server.cm.len());
    server.pass(70_000 * MS);
    assert_eq!((server.cm.len(), server.half_open()), (1, 0));
    waited.expect("the client gets through")
}

//= CM-ST-04 type=test
#[test]
fn a_client_of_another_address_does_not_notice_a_flood() {
    let waited = flooded(1..2, 9);
    assert!(waited <= 5, "{waited} ms");
}

/// Checks that several addresses together do not fill the backlog either.
//= CM-ST-04 type=test
#[test]
fn a_client_does_not_notice_a_flood_from_several_addresses() {
    for sources in [2, 6, 30] {
        let waited = flooded(100..100 + sources, 9);
        assert!(waited <= 5, "{sources} addresses: {waited} ms");
    }
}

/// Checks that forty requests each of several addresses, far below the share of a single one, leave
/// entries for others.
#[test]
fn some_requests_of_many_addresses_leave_space() {
    let mut server = Server::new();
    for source in 100..115 {
        for _ in 0..40 {
            server.flood(source);
        }
    }
    let mut client = client();
    client.connect(server.now, back(from(9)), LIFE, req(0x11));
    server.answer_all(&mut client, from(9));
    server.answer_all(&mut client, from(9));
    assert_eq!(server.ready.len(), 1, "{} half open", server.half_open());
}

/// Checks that the client's request is accepted when the client repeats it after 4.6 s, which a
/// flood does not do.
//= CM-ST-04 type=test
#[test]
fn a_client_of_the_same_address_gets_through_during_a_flood() {
    let waited = flooded(1..2, 1);
    assert!(waited <= 4_700, "{waited} ms");
}

/// Checks that a flood that repeats its requests is recognised, because its earlier connections
/// were never confirmed.
#[test]
fn a_flood_that_repeats_itself_does_not_go_first() {
    let mut server = Server::new();
    let mut client = client();
    let route = from(1);
    for ms in 0..90_000_u64 {
        for _ in 0..2 {
            server.floods %= 1_600;
            server.flood(1);
        }
        server.pass(MS);
        if ms == 40_000 {
            client.connect(server.now, back(route), LIFE, req(0x11));
        }
        server.answer_all(&mut client, route);
        assert!(server.half_open() <= BACKLOG);
    }
    assert_eq!(server.ready.len(), 1);
}

/// Checks that a peer has the agreed time if no other requests wait, and its own response time
/// otherwise.
//= CM-ST-07 type=test
#[test]
fn who_is_late_loses_its_entry_to_others_only() {
    let mut server = Server::new();
    for _ in 0..40 {
        server.flood(1);
    }
    server.pass(60_000 * MS);
    assert_eq!((server.half_open(), server.given_up.len()), (40, 0));
    for _ in 0..BACKLOG {
        server.flood(1);
    }
    assert!(server.half_open() < BACKLOG);
    assert_eq!(server.given_up.len(), 0, "one by one, at the next timeout");
    let due = server.cm.next_timeout().unwrap();
    assert!(due <= server.now);
    server.pass(0);
    assert_eq!(server.given_up.len(), 40);
    assert_eq!(server.cm.counters().evicted, 40);
    server.pass(4_095 * MS);
    assert_eq!(server.given_up.len(), 40, "the others keep their grace");
}

/// Checks that five thousand clients at once from one address, each of which confirms a second
/// later, all connect.
#[test]
fn a_crowd_of_clients_gets_through() {
    let mut server = Server::new();
    let mut clients = client();
    let route = from(1);
    for qpn in 0..5_000 {
        clients.connect(server.now, back(route), LIFE, req(0x1000 + qpn));
    }
    let mut asked = VecDeque::new();
    while server.ready.len() < 5_000 {
        assert!(server.now.as_ns() < 70_000 * MS, "{}", server.ready.len());
        server.pass(10 * MS);
        clients.handle_timeout(server.now);
        for (_, mad) in core::mem::take(&mut server.sent) {
            clients.handle_mad(server.now, back(route), &mad[..]);
        }
        while let Some(event) = clients.poll_event() {
            let CmEvent::Reply { id, .. } = event else {
                panic!("{event:?}");
            };
            asked.push_back((server.now.plus_ns(1_000 * MS), id));
        }
        while asked.front().is_some_and(|(at, _)| *at <= server.now) {
            let (_, id) = asked.pop_front().unwrap();
            clients.ready(server.now, id, &[]).unwrap();
        }
        while let Some(transmit) = clients.poll_transmit() {
            server.cm.handle_mad(server.now, route, &transmit.mad[..]);
            server.run();
        }
    }
    assert_eq!(server.given_up.len(), 0);
}

/// Checks that a program may take a minute to answer each request.
#[test]
fn a_slow_acceptor_has_its_time() {
    let mut pair = Pair::new();
    let asks: Vec<CommId> = (0..400)
        .map(|qpn| pair.a.connect(pair.now, to_b(), LIFE, req(0x100 + qpn)))
        .collect();
    pair.settle();
    let mut taken = Vec::new();
    while let Some(event) = pair.b.poll_event() {
        let CmEvent::Request { id, .. } = event else {
            panic!("{event:?}");
        };
        pair.b.taken(id);
        taken.push(id);
    }
    assert_eq!(taken.len(), asks.len());
    // The peers repeat their requests, and are sent MRAs.
    for _ in 0..60 {
        pair.pass(1_000 * MS);
        pair.settle();
    }
    for id in taken {
        pair.b.reply(pair.now, id, rep(0x22)).unwrap();
        let CmEvent::Reply { id, .. } = pair.event_of_a() else {
            panic!()
        };
        pair.a.ready(pair.now, id, &[]).unwrap();
        assert!(matches!(pair.event_of_b(), CmEvent::Ready { .. }));
    }
}

/// Checks that the number of kept answers is bounded. Requests for datagram services cannot be told
/// from a flood.
//= CM-ST-12 type=test
#[test]
fn answers_about_services_are_kept_in_bounds() {
    let mut server = Server::new();
    for request in 0..5_000 {
        let ask = CmMessage::SidrReq(SidrReq {
            request_id: CommId::new(0x0900_0001 + request),
            ..sidr_req()
        });
        let mad = Mad::new(TransactionId::new(5), ask).to_bytes();
        server.cm.handle_mad(server.now, from(1), &mad);
        let Some(CmEvent::ServiceRequest { id, .. }) = server.cm.poll_event() else {
            panic!()
        };
        let answer = refusal(SidrStatus::Success);
        server.cm.reply_service(server.now, id, answer).unwrap();
        server.cm.destroy(server.now, id);
        while server.cm.poll_transmit().is_some() {}
    }
    assert_eq!(server.cm.len(), 1_024);
}

/// Checks that a request for a path with an invalid MTU is rejected with that reason.
//= CM-REJ-B type=test
#[test]
fn a_path_has_an_mtu() {
    for mtu in [0, 6, 15] {
        let mut pair = Pair::new();
        let a = pair
            .a
            .connect(pair.now, to_b(), LIFE, Req { mtu, ..req(1) });
        let CmEvent::Rejected { id, rej } = pair.event_of_a() else {
            panic!()
        };
        assert_eq!((id, rej.reason), (a, RejReason::InvalidMtu));
        assert!(pair.b.is_empty());
    }
}
