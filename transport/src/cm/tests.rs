use std::boxed::Box;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;
use std::{format, vec};

use rocade_wire::mad::{
    ApStatus, Apr, CmMessage, CmPath, CmTimeout, CommId, Dreq, Ece, Failover, Lap, Mad, Mra, Rej,
    RejReason, Rejected, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq, SidrStatus, TransactionId,
    TransportType,
};
use rocade_wire::{Gid, Guid, Pkey, Psn, Qkey, Qpn};

use super::commands::{private_data, refusal};
use super::{Cm, CmConfig, CmError, CmEvent, CmRoute, Unanswered};
use crate::Time;

mod admission;
mod backlog;
mod conn_records;
mod ends;
mod flood;
mod limits;
mod trouble;

const MS: u64 = 1_000_000;
const SERVICE: ServiceId = ServiceId::of_port(0x106, 7471);
const LIFE: CmTimeout = CmTimeout::new(16);
/// 2 × 256 ms + 4096 ms.
const REQ_INTERVAL: u64 = 4_608 * MS;
const REP_INTERVAL: u64 = 4_096 * MS;
/// Code 17.
const TIMEWAIT: u64 = 512 * MS;

fn req(qpn: u32) -> Req {
    let gid = |last| Gid::from_ip([10, 0, 0, last].into());
    Req {
        local_id: CommId::new(0),
        ece: Ece::NONE,
        service_id: SERVICE,
        ca_guid: Guid::new(0),
        qkey: Qkey::new(0),
        qpn: Qpn::new(qpn),
        responder_resources: 4,
        eecn: 0,
        initiator_depth: 4,
        remote_eecn: 0,
        remote_response_timeout: CmTimeout::new(20),
        transport: TransportType::Rc,
        flow_control: false,
        starting_psn: Psn::new(7),
        local_response_timeout: CmTimeout::new(20),
        retry_count: 7,
        pkey: Pkey::DEFAULT,
        mtu: 3,
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        primary: CmPath {
            local_gid: gid(1),
            remote_gid: gid(2),
            ack_timeout: CmTimeout::new(17),
            ..CmPath::NONE
        },
        alternate: CmPath::NONE,
        sap_supported: false,
        private_data: private_data(b"hello"),
    }
}

fn rep(qpn: u32) -> Rep {
    Rep {
        local_id: CommId::new(0),
        remote_id: CommId::new(0),
        qkey: Qkey::new(0),
        qpn: Qpn::new(qpn),
        eecn: Qpn::new(0),
        ece: Ece::NONE,
        starting_psn: Psn::new(9),
        responder_resources: 4,
        initiator_depth: 4,
        target_ack_delay: CmTimeout::new(15),
        failover: Failover::NotSupported,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        ca_guid: Guid::new(0),
        private_data: private_data(b"welcome"),
    }
}

fn sidr_req() -> SidrReq {
    SidrReq {
        request_id: CommId::new(0),
        pkey: Pkey::DEFAULT,
        service_id: SERVICE,
        private_data: private_data(b"where?"),
    }
}

fn to_b() -> CmRoute {
    CmRoute {
        local: [10, 0, 0, 1].into(),
        remote: [10, 0, 0, 2].into(),
    }
}

fn back(route: CmRoute) -> CmRoute {
    CmRoute {
        local: route.remote,
        remote: route.local,
    }
}

/// A datagram in flight. The flag is true if it goes to B.
type Flying = (bool, Box<[u8; Mad::LEN]>);

/// Two managers, and the network between them.
struct Pair {
    a: Cm,
    b: Cm,
    now: Time,
    wire: BTreeMap<(Time, u64), Flying>,
    sent: u64,
    /// Datagrams lost, out of a thousand.
    loss: u64,
    random: u64,
}

impl Pair {
    fn new() -> Self {
        let cm = |guid, prefix| {
            Cm::new(CmConfig {
                guid: Guid::new(guid),
                prefix,
                seed: guid << 20,
            })
        };
        let mut pair = Self {
            a: cm(0xaaaa, 3),
            b: cm(0xbbbb, 4),
            now: Time::from_ns(1),
            wire: BTreeMap::new(),
            sent: 0,
            loss: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        };
        pair.b.listen(SERVICE);
        pair
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 11
    }

    /// Puts the datagrams that both managers have to send on the wire.
    fn collect(&mut self) {
        for from_a in [true, false] {
            loop {
                let cm = if from_a { &mut self.a } else { &mut self.b };
                let Some(transmit) = cm.poll_transmit() else {
                    break;
                };
                let expected = if from_a { to_b() } else { back(to_b()) };
                assert_eq!(transmit.route, expected);
                self.sent += 1;
                if self.random() % 1000 >= self.loss {
                    let at = self.now.plus_ns(MS + self.random() % MS);
                    self.wire.insert((at, self.sent), (from_a, transmit.mad));
                }
            }
        }
    }

    /// Executes the next event. Returns false if there is none.
    fn step(&mut self) -> bool {
        self.collect();
        let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
        let timeouts = [self.a.next_timeout(), self.b.next_timeout()];
        let timeout = timeouts.into_iter().flatten().min();
        match (arrival, timeout) {
            (Some(at), timeout) if timeout.is_none_or(|other| at <= other) => {
                self.now = at;
                let (_, (to_b_side, mad)) = self.wire.pop_first().unwrap();
                if to_b_side {
                    self.b.handle_mad(self.now, back(to_b()), &mad[..]);
                } else {
                    self.a.handle_mad(self.now, to_b(), &mad[..]);
                }
                true
            }
            (_, Some(at)) => {
                self.now = at.max(self.now);
                self.a.handle_timeout(self.now);
                self.b.handle_timeout(self.now);
                true
            }
            (_, None) => false,
        }
    }

    /// Runs until no datagram is in flight. Time passes only while there is one.
    fn settle(&mut self) {
        self.collect();
        while !self.wire.is_empty() {
            self.step();
            self.collect();
        }
    }

    fn event_of_a(&mut self) -> CmEvent {
        self.settle();
        self.a.poll_event().expect("an event of A")
    }

    fn event_of_b(&mut self) -> CmEvent {
        self.settle();
        self.b.poll_event().expect("an event of B")
    }

    fn run_until_idle(&mut self) {
        self.settle();
        assert_eq!((self.a.poll_event(), self.b.poll_event()), (None, None));
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now.plus_ns(ns);
        self.a.handle_timeout(self.now);
        self.b.handle_timeout(self.now);
    }

    fn request(&mut self) -> (CommId, CommId) {
        let a = self.a.connect(self.now, to_b(), LIFE, req(0x11));
        let CmEvent::Request { id: b, req, .. } = self.event_of_b() else {
            panic!()
        };
        assert_eq!((req.local_id, req.ca_guid), (a, Guid::new(0xaaaa)));
        assert_eq!(&req.private_data[..6], b"hello\0");
        assert_eq!((a.get() >> 24, b.get() >> 24), (3, 4));
        (a, b)
    }

    fn replied(&mut self) -> (CommId, CommId) {
        let (a, b) = self.request();
        self.b.reply(self.now, b, rep(0x22)).unwrap();
        let CmEvent::Reply { id, rep } = self.event_of_a() else {
            panic!()
        };
        assert_eq!((id, rep.local_id, rep.qpn), (a, b, Qpn::new(0x22)));
        (a, b)
    }

    fn connection(&mut self) -> (CommId, CommId) {
        let (a, b) = self.replied();
        self.a.ready(self.now, a, &[]).unwrap();
        assert_eq!(self.event_of_b(), CmEvent::Ready { id: b });
        (a, b)
    }

    /// Returns the next message that A sends, which is lost.
    fn said_by_a(&mut self) -> CmMessage {
        let mad = self.a.poll_transmit().expect("a message of A").mad;
        Mad::parse(&mad[..]).unwrap().message
    }

    fn said_by_b(&mut self) -> CmMessage {
        let mad = self.b.poll_transmit().expect("a message of B").mad;
        Mad::parse(&mad[..]).unwrap().message
    }

    /// Delivers a message of A to B.
    fn send_to_b(&mut self, message: CmMessage) {
        let mad = Mad::new(TransactionId::new(5), message).to_bytes();
        self.b.handle_mad(self.now, back(to_b()), &mad);
    }

    fn send_to_a(&mut self, message: CmMessage) {
        let mad = Mad::new(TransactionId::new(5), message).to_bytes();
        self.a.handle_mad(self.now, to_b(), &mad);
    }
}

fn rtu(local_id: CommId, remote_id: CommId) -> CmMessage {
    CmMessage::Rtu(Rtu {
        local_id,
        remote_id,
        private_data: [0; 224],
    })
}

fn dreq(local_id: CommId, remote_id: CommId, qpn: u32) -> CmMessage {
    CmMessage::Dreq(Dreq {
        local_id,
        remote_id,
        remote_qpn: Qpn::new(qpn),
        private_data: [0; 220],
    })
}

fn rej(local_id: CommId, remote_id: CommId, rejected: Rejected, reason: RejReason) -> CmMessage {
    CmMessage::Rej(Rej {
        local_id,
        remote_id,
        rejected,
        reason,
        info_len: 0,
        info: [0; 72],
        private_data: private_data(b"no"),
    })
}

//= CM-ST-01 type=test
//= CM-ST-02 type=test
//= CM-ST-03 type=test
#[test]
fn a_connection_is_made_and_ends() {
    let mut pair = Pair::new();
    let (a, b) = pair.connection();
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    assert_eq!(pair.event_of_b(), CmEvent::Disconnect { id: b });
    pair.b.reply_to_disconnect(pair.now, b, &[]).unwrap();
    assert_eq!(pair.event_of_a(), CmEvent::Disconnected { id: a });
    pair.run_until_idle();
    assert_eq!(pair.sent, 5);
    pair.pass(TIMEWAIT - 5 * MS);
    pair.run_until_idle();
    pair.pass(5 * MS);
    assert_eq!(pair.event_of_a(), CmEvent::TimewaitExit { id: a });
    assert_eq!(pair.event_of_b(), CmEvent::TimewaitExit { id: b });
    assert!(!pair.step());
    pair.a.destroy(pair.now, a);
    pair.b.destroy(pair.now, b);
    assert!(pair.a.is_empty() && pair.b.is_empty());
    let counters = pair.b.counters();
    assert_eq!((counters.rx_messages, counters.tx_messages), (3, 2));
    assert_eq!((counters.rx_unsolicited, counters.rx_duplicates), (0, 0));
}

//= MAD-05 type=test
#[test]
fn answers_repeat_the_transaction() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, to_b(), LIFE, req(1));
    let sent = pair.a.poll_transmit().unwrap();
    assert_eq!(sent.to, CommId::new(0));
    let tid = Mad::parse(&sent.mad[..]).unwrap().tid;
    assert_eq!(tid.get() & 0xffff_ffff, u64::from(a.get()));
    pair.b.handle_mad(pair.now, back(to_b()), &sent.mad[..]);
    let Some(CmEvent::Request { id, .. }) = pair.b.poll_event() else {
        panic!()
    };
    pair.b.reply(pair.now, id, rep(2)).unwrap();
    let answer = pair.b.poll_transmit().unwrap();
    assert_eq!(
        (Mad::parse(&answer.mad[..]).unwrap().tid, answer.to),
        (tid, a)
    );
    pair.a.handle_mad(pair.now, to_b(), &answer.mad[..]);
    pair.a.ready(pair.now, a, &[]).unwrap();
    let last = pair.a.poll_transmit().unwrap();
    assert_eq!(Mad::parse(&last.mad[..]).unwrap().tid, tid);
    pair.b.handle_mad(pair.now, back(to_b()), &last.mad[..]);
    // A DREQ starts a transaction of its own.
    pair.b.disconnect(pair.now, id, &[]).unwrap();
    let question = Mad::parse(&pair.b.poll_transmit().unwrap().mad[..]).unwrap();
    assert_eq!(question.tid.get() & 0xffff_ffff, u64::from(id.get()));
    assert_ne!(question.tid, tid);
}

/// Checks that IDs have the prefix of the process and are not those of existing connections, even
/// after a wrap-around.
//= CM-FLD-01 type=test
#[test]
fn ids_are_not_given_twice() {
    let config = CmConfig {
        guid: Guid::new(1),
        prefix: 7,
        seed: 0x00ff_fffd,
    };
    let mut cm = Cm::new(config);
    let connect = |cm: &mut Cm, qpn| cm.connect(Time::ZERO, to_b(), LIFE, req(qpn)).get();
    let first: Vec<u32> = (0..4).map(|qpn| connect(&mut cm, qpn)).collect();
    assert_eq!(first, [0x07ff_fffe, 0x07ff_ffff, 0x0700_0000, 0x0700_0001]);
    cm.next_id = 0x00ff_fffd;
    assert_eq!(connect(&mut cm, 9), 0x0700_0002);
}

//= CMA-06 type=test
//= CM-ST-07 type=test
//= CM-FLD-04 type=test
#[test]
fn a_request_is_sent_sixteen_times() {
    let mut pair = Pair::new();
    pair.loss = 1000;
    let a = pair.a.connect(pair.now, to_b(), LIFE, req(1));
    let begin = pair.now;
    while pair.step() {}
    assert_eq!(pair.sent, 16);
    assert_eq!(pair.now.ns_since(begin), 16 * REQ_INTERVAL);
    assert_eq!(pair.a.poll_event(), Some(CmEvent::RequestTimeout { id: a }));
    assert_eq!(pair.a.counters().tx_retries, 15);
    // The user is told at the first repetition, and once.
    let left_ns = 15 * REQ_INTERVAL;
    assert_eq!(
        pair.a.poll_unanswered(),
        Some(Unanswered { id: a, left_ns })
    );
    assert_eq!(pair.a.poll_unanswered(), None);
    pair.a.destroy(pair.now, a);
    assert!(pair.a.poll_transmit().is_none() && pair.a.is_empty());
}

//= CM-ST-07 type=test
#[test]
fn a_reply_and_a_dreq_are_sent_sixteen_times() {
    let mut pair = Pair::new();
    let (a, b) = pair.request();
    pair.loss = 1000;
    pair.a.ignore(pair.now, a);
    pair.b.reply(pair.now, b, rep(2)).unwrap();
    let (begin, sent) = (pair.now, pair.sent);
    while pair.b.poll_event().is_none() {
        assert!(pair.b.next_timeout().is_some());
        let at = pair.b.next_timeout().unwrap();
        pair.b.handle_timeout(at);
        pair.now = at;
        if pair.b.events.front() == Some(&CmEvent::ReplyTimeout { id: b }) {
            break;
        }
    }
    assert_eq!(pair.b.poll_event(), Some(CmEvent::ReplyTimeout { id: b }));
    assert_eq!(pair.now.ns_since(begin), 16 * REP_INTERVAL);
    pair.collect();
    assert_eq!(pair.sent - sent, 16);

    let mut pair = Pair::new();
    let (a, _) = pair.connection();
    pair.loss = 1000;
    let sent = pair.sent;
    pair.a.disconnect(pair.now, a, &[]).unwrap();
    while pair.step() {}
    assert_eq!(pair.sent - sent, 16);
    let events = [pair.a.poll_event(), pair.a.poll_event()];
    assert_eq!(
        events,
        [
            Some(CmEvent::DisconnectTimeout { id: a }),
            Some(CmEvent::TimewaitExit { id: a })
        ]
    );
}

/// Checks that each message that arrives twice has the same effect as one.
//= MAD-07 type=test
//= CM-ST-04 type=test
//= CM-ST-05 type=test
#[test]
fn duplicates_change_nothing() {
    let mut pair = Pair::new();
    let a = pair.a.connect(pair.now, to_b(), LIFE, req(0x11));
    let question = pair.said_by_a();
    pair.send_to_b(question.clone());
    let Some(CmEvent::Request { id: b, .. }) = pair.b.poll_event() else {
        panic!()
    };
    // The program has not answered yet: an MRA says that it takes longer.
    for _ in 0..2 {
        pair.send_to_b(question.clone());
        let CmMessage::Mra(mra) = pair.said_by_b() else {
            panic!()
        };
        assert_eq!((mra.received, mra.remote_id), (Rejected::Req, a));
        assert_eq!(mra.service_timeout.code(), 24);
        assert_eq!(pair.b.poll_event(), None);
    }
    pair.b.reply(pair.now, b, rep(0x22)).unwrap();
    let answer = pair.said_by_b();
    pair.send_to_b(question.clone());
    assert_eq!((pair.b.poll_event(), pair.b.poll_transmit()), (None, None));

    pair.send_to_a(answer.clone());
    assert!(matches!(pair.a.poll_event(), Some(CmEvent::Reply { .. })));
    pair.send_to_a(answer.clone());
    let CmMessage::Mra(mra) = pair.said_by_a() else {
        panic!()
    };
    assert_eq!((mra.received, mra.remote_id), (Rejected::Rep, b));
    pair.send_to_b(CmMessage::Mra(mra));
    pair.a.ready(pair.now, a, &[]).unwrap();
    let done = pair.said_by_a();
    // The RTU was lost, and the REP is repeated.
    pair.send_to_a(answer);
    assert_eq!(pair.said_by_a(), done);
    assert_eq!(pair.a.poll_event(), None);
    pair.send_to_b(done.clone());
    assert_eq!(pair.b.poll_event(), Some(CmEvent::Ready { id: b }));
    pair.send_to_b(done);
    pair.send_to_b(question.clone());
    pair.run_until_idle();

    pair.a.disconnect(pair.now, a, &[]).unwrap();
    let end = pair.said_by_a();
    pair.send_to_b(end.clone());
    assert_eq!(pair.b.poll_event(), Some(CmEvent::Disconnect { id: b }));
    pair.send_to_b(end.clone());
    assert_eq!((pair.b.poll_event(), pair.b.poll_transmit()), (None, None));
    pair.b.reply_to_disconnect(pair.now, b, &[]).unwrap();
    let ended = pair.said_by_b();
    //= CM-ST-06 type=test
    pair.send_to_b(end.clone());
    assert_eq!(pair.said_by_b(), ended);
    // The same request arrives again during TimeWait: it is stale.
    pair.send_to_b(question);
    let CmMessage::Rej(stale) = pair.said_by_b() else {
        panic!()
    };
    assert_eq!(stale.reason, RejReason::StaleConnection);
    assert_eq!(pair.b.poll_event(), None);
    pair.send_to_a(ended.clone());
    assert_eq!(pair.a.poll_event(), Some(CmEvent::Disconnected { id: a }));
    pair.send_to_a(ended);
    pair.run_until_idle();
    pair.b.destroy(pair.now, b);
    pair.pass(TIMEWAIT);
    // The connection is removed, but the answer is the same.
    pair.send_to_b(end);
    let CmMessage::Drep(_) = pair.said_by_b() else {
        panic!()
    };
    assert!(pair.b.is_empty());
}

/// Checks that an MRA extends the wait, and consumes no retry.
//= CM-ST-09 type=test
#[test]
fn an_mra_makes_the_wait_longer() {
    let mut pair = Pair::new();
    pair.loss = 1000;
    let a = pair.a.connect(pair.now, to_b(), LIFE, req(1));
    pair.collect();
    let mra = |received| {
        CmMessage::Mra(Mra {
            local_id: CommId::new(0x0400_0001),
            remote_id: a,
            received,
            service_timeout: CmTimeout::new(24),
            private_data: [0; 222],
        })
    };
    pair.send_to_a(mra(Rejected::Rep));
    assert_eq!(pair.a.counters().rx_unsolicited, 1);
    assert_eq!(pair.a.next_timeout(), Some(pair.now.plus_ns(REQ_INTERVAL)));
    pair.send_to_a(mra(Rejected::Req));
    let longer = REQ_INTERVAL + 65_536 * MS;
    assert_eq!(pair.a.next_timeout(), Some(pair.now.plus_ns(longer)));
    let begin = pair.now;
    while pair.step() {}
    assert_eq!(pair.sent, 16);
    assert_eq!(pair.now.ns_since(begin), 15 * REQ_INTERVAL + longer);
}

//= CM-ST-04 type=test
#[test]
fn who_is_not_there_is_said_at_once() {
    let mut pair = Pair::new();
    pair.b.unlisten(SERVICE);
    let a = pair.a.connect(pair.now, to_b(), LIFE, req(1));
    let CmEvent::Rejected { id, rej } = pair.event_of_a() else {
        panic!()
    };
    assert_eq!((id, rej.reason), (a, RejReason::InvalidServiceId));
    assert_eq!(
        (rej.local_id, rej.rejected),
        (CommId::new(0), Rejected::Req)
    );
    assert!(pair.b.is_empty() && pair.b.counters().rx_refused == 1);
    pair.run_until_idle();
    assert_eq!(pair.a.next_timeout(), None);

    let mut pair = Pair::new();
    let rd = Req {
        transport: TransportType::Rd,
        ..req(1)
    };
    pair.a.connect(pair.now, to_b(), LIFE, rd);
    let CmEvent::Rejected { rej, .. } = pair.event_of_a() else {
        panic!()
    };
    assert_eq!(rej.reason, RejReason::InvalidTransportType);
}

//= CM-REJ type=test
#[test]
fn a_rejection_reaches_the_other_side() {
    let mut pair = Pair::new();
    let (a, b) = pair.request();
    let reject = pair
        .b
        .reject(pair.now, b, RejReason::Consumer, &[1, 2], b"sorry");
    assert_eq!(reject, Ok(()));
    let CmEvent::Rejected { id, rej } = pair.event_of_a() else {
        panic!()
    };
    assert_eq!((id, rej.reason), (a, RejReason::Consumer));
    assert_eq!((rej.rejected, rej.local_id), (Rejected::Req, b));
    assert_eq!((rej.info_len, &rej.info[..3]), (2, &[1, 2, 0][..]));
    assert_eq!(&rej.private_data[..6], b"sorry\0");
    // No state is left of the connection.
    let again = pair.b.reject(pair.now, b, RejReason::Consumer, &[], &[]);
    assert_eq!(again, Err(CmError::WrongState));
    pair.run_until_idle();

    let mut pair = Pair::new();
    let (a, b) = pair.replied();
    pair.a
        .reject(pair.now, a, RejReason::InvalidMtu, &[], &[])
        .unwrap();
    let CmEvent::Rejected { id, rej } = pair.event_of_b() else {
        panic!()
    };
    assert_eq!((id, rej.reason), (b, RejReason::InvalidMtu));
    assert_eq!(rej.rejected, Rejected::Rep);
    pair.run_until_idle();
    assert_eq!(pair.b.next_timeout(), None);
}
