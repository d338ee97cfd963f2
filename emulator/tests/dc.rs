//! Dynamic connections over real links: initiators, targets, keys, events and ends.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{ALL_ACCESS, Side, TIMEOUT, engine, pattern};
use rocade_emulator::{
    AddressVector, Ah, AsyncEventKind, BrokerMode, Completion, Cq, DciInit, DciStreams,
    DctInitAttr, Engine, EngineConfig, EventElement, LinkMode, Mtu, Qp, QpAttr, QpAttrMask, QpCap,
    QpInitAttr, QpState, QpType, Qpn, Rkey, SendFlags, SendOp, SendWr, Srq, SrqInitAttr, ToDct,
    VerbsError, WcOpcode, WcStatus, transition_rule,
};

const KEY: u64 = 0xfeed_0000_1111_beef;
const ROOM: usize = 1 << 20;

/// 67 ms, for requests without a response.
const SHORT: u8 = 14;

/// The capabilities of the ends in these tests.
fn cap() -> QpCap {
    QpCap {
        max_send_wr: 128,
        max_recv_wr: 7,
        max_send_sge: 4,
        max_recv_sge: 7,
        max_inline_data: 64,
    }
}

fn attr_of(side: &Side, next: QpState) -> QpAttr {
    QpAttr {
        qp_state: next.code(),
        qp_access_flags: ALL_ACCESS,
        port_num: 1,
        path_mtu: Mtu::Mtu1024.code().into(),
        timeout: TIMEOUT,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 4,
        min_rnr_timer: 1,
        ah_attr: AddressVector {
            dgid: side.gid(),
            is_global: true,
            port_num: 1,
            hop_limit: 64,
            ..AddressVector::default()
        },
        ..QpAttr::default()
    }
}

fn bring_to(side: &Side, qp: &Qp, last: QpState) {
    bring_with(TIMEOUT, side, qp, last);
}

/// Like `bring_to`, with this local ACK timeout.
fn bring_with(timeout: u8, side: &Side, qp: &Qp, last: QpState) {
    for next in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let rule = transition_rule(qp.qp_type(), qp.state(), next).unwrap();
        let mask = QpAttrMask::STATE | rule.required;
        let attr = QpAttr {
            timeout,
            ..attr_of(side, next)
        };
        qp.modify(&attr, mask).unwrap();
        if next == last {
            return;
        }
    }
}

fn initiator(side: &Side, streams: Option<DciStreams>) -> Qp {
    initiator_with(TIMEOUT, side, streams)
}

fn initiator_with(timeout: u8, side: &Side, streams: Option<DciStreams>) -> Qp {
    let init = QpInitAttr {
        send_cq: side.cq.clone(),
        recv_cq: side.cq.clone(),
        srq: None,
        cap: cap(),
        qp_type: QpType::DcInitiator,
        sq_sig_all: true,
        cookie: 5,
    };
    let qp = match streams {
        None => side.pd.create_qp(init).unwrap(),
        Some(_) => side.pd.create_dci(init, DciInit { streams }).unwrap(),
    };
    bring_with(timeout, side, &qp, QpState::Rts);
    qp
}

struct Target {
    qp: Qp,
    srq: Srq,
    cq: Cq,
}

fn dct_init(side: &Side, cq: &Cq, srq: &Srq, key: u64) -> DctInitAttr {
    let _ = side;
    DctInitAttr {
        cq: cq.clone(),
        srq: srq.clone(),
        key,
        cookie: 6,
        has_dct_events: true,
    }
}

fn target(side: &Side, key: u64) -> Target {
    let cq = side.context.create_cq(1024, None, 0, 8).unwrap();
    let srq = side
        .pd
        .create_srq(SrqInitAttr {
            max_wr: 256,
            max_sge: 1,
            cookie: 3,
        })
        .unwrap();
    let qp = side.pd.create_dct(dct_init(side, &cq, &srq, key)).unwrap();
    bring_to(side, &qp, QpState::Rtr);
    Target { qp, srq, cq }
}

fn ah(from: &Side, to: &Side) -> Ah {
    from.pd
        .create_ah(&attr_of(to, QpState::Rtr).ah_attr)
        .unwrap()
}

struct DciRoute<'a> {
    qp: &'a Qp,
    ah: &'a Ah,
    dct: Qpn,
    key: u64,
}

impl DciRoute<'_> {
    fn try_post(
        &self,
        wr_id: u64,
        op: SendOp,
        sges: &[rocade_emulator::Sge],
    ) -> Result<(), VerbsError> {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            sges,
        };
        let (ah, dct, key) = (self.ah, self.dct, self.key);
        let to = ToDct {
            ah,
            dct,
            key,
            stream: 0,
        };
        self.qp
            .post_sends(|queue| queue.push_dynamic(&wr, to, None))
    }

    fn post(&self, wr_id: u64, op: SendOp, sges: &[rocade_emulator::Sge]) {
        self.try_post(wr_id, op, sges).unwrap();
    }
}

fn completion(cq: &Cq) -> Completion {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(completion) = cq.poll_one() {
            return completion;
        }
        assert!(Instant::now() < deadline, "no completion in 60 s");
    }
}

fn expect(cq: &Cq, wr_id: u64, status: WcStatus) -> Completion {
    let completion = completion(cq);
    assert_eq!((completion.wr_id, completion.status), (wr_id, status));
    completion
}

/// Makes `count` sides that reach each other over `link`.
fn sides(link: LinkMode, first: u8, count: u8) -> Vec<Side> {
    if link == LinkMode::Udp {
        let address = |n| format!("127.23.{first}.{n}");
        return (1..=count)
            .map(|n| Side::on(engine(&address(n)), ROOM))
            .collect();
    }
    let specs = [format!("dev=127.23.{first}.1")];
    let config = EngineConfig::from_specs(&specs, BrokerMode::Embedded).unwrap();
    let engine = Engine::new(EngineConfig { link, ..config }).unwrap();
    (0..count).map(|_| Side::on(engine.clone(), ROOM)).collect()
}

//= DC-01 DC-03 DC-04 type=test
//= DC-08 DC-10 DC-11 type=test
//= DC-12 DC-13 DCU-04 type=test
fn all_operations(link: LinkMode, first: u8) {
    let sides = sides(link, first, 3);
    let [a, b, c] = &sides[..] else { panic!() };
    let dci = initiator(a, None);
    let targets = [(b, target(b, KEY)), (c, target(c, KEY + 1))];
    let handles = [ah(a, b), ah(a, c)];
    a.fill(0, &pattern(100_000, 3));
    for round in 0..4u64 {
        for (index, (side, target)) in targets.iter().enumerate() {
            let dci_route = DciRoute {
                qp: &dci,
                ah: &handles[index],
                dct: target.qp.qp_num(),
                key: KEY + index as u64,
            };
            let receive = [side.sge(0, 50_000)];
            target.srq.recv_queue().push(round, &receive).unwrap();
            let (va, rkey) = (side.addr(200_000), side.mr.rkey());
            dci_route.post(
                1,
                SendOp::Send {
                    imm: Some([1, 2, 3, 4]),
                },
                &[a.sge(7, 40_000)],
            );
            dci_route.post(
                2,
                SendOp::Write {
                    va,
                    rkey,
                    imm: None,
                },
                &[a.sge(0, 100_000)],
            );
            dci_route.post(3, SendOp::Read { va, rkey }, &[a.sge(400_000, 100_000)]);
            let counter = side.addr(800_000);
            dci_route.post(
                4,
                SendOp::FetchAdd {
                    va: counter,
                    rkey,
                    add: 1,
                },
                &[a.sge(600_000, 8)],
            );
        }
        for (side, target) in &targets {
            use WcOpcode::{FetchAdd, RdmaRead, RdmaWrite, Send};
            for (wr_id, opcode) in (1..).zip([Send, RdmaWrite, RdmaRead, FetchAdd]) {
                let done = expect(&a.cq, wr_id, WcStatus::Success);
                assert_eq!((done.opcode, done.qp_num), (opcode, dci.qp_num()));
            }
            let received = expect(&target.cq, round, WcStatus::Success);
            assert_eq!(received.byte_len, 40_000);
            assert_eq!(
                (received.qp_num, received.src_qp),
                (target.qp.qp_num(), dci.qp_num())
            );
            assert_eq!(side.bytes(0, 40_000), pattern(100_000, 3)[7..40_007]);
            assert_eq!(side.bytes(200_000, 100_000), pattern(100_000, 3));
            assert_eq!(side.bytes(800_000, 8), (round + 1).to_ne_bytes());
        }
        assert_eq!(a.bytes(400_000, 100_000), pattern(100_000, 3));
        assert_eq!(a.bytes(600_000, 8), round.to_ne_bytes());
    }
    // Packets that were sent before the shared memory link was found do not count as shared.
    let counters = a.engine.counters();
    let by_udp = counters.tx_packets - counters.tx_shared;
    if link == LinkMode::Udp {
        assert_eq!(counters.tx_shared, 0);
    } else {
        assert!(by_udp < counters.tx_packets / 10, "{counters:?}");
    }
    dci.destroy().unwrap();
    for (_, target) in &targets {
        target.qp.destroy().unwrap();
        target.srq.destroy().unwrap();
        target.cq.destroy().unwrap();
    }
}

#[test]
fn all_operations_over_udp() {
    all_operations(LinkMode::Udp, 1);
}

#[test]
fn all_operations_through_shared_memory() {
    all_operations(LinkMode::Shm, 2);
}

/// Several initiators send into one target at once, from different threads.
//= DC-01 type=test
fn all_into_one(link: LinkMode, first: u8) {
    const INITIATORS: u8 = 5;
    const MESSAGES: u64 = 200;
    let sides = sides(link, first, INITIATORS + 1);
    let (hub, others) = sides.split_first().unwrap();
    let hub_target = target(hub, KEY);
    let post = |wr_id| {
        let receive = [hub.sge(wr_id as usize % 64 * 1024, 1024)];
        hub_target.srq.recv_queue().push(wr_id, &receive).unwrap();
    };
    (0..64).for_each(post);
    std::thread::scope(|scope| {
        for side in others {
            let (target, hub) = (&hub_target, &hub);
            scope.spawn(move || {
                let dci = initiator(side, None);
                let handle = ah(side, hub);
                let dct = target.qp.qp_num();
                let dci_route = DciRoute {
                    qp: &dci,
                    ah: &handle,
                    dct,
                    key: KEY,
                };
                let (va, rkey) = (hub.addr(ROOM - 8), hub.mr.rkey());
                for message in 0..MESSAGES {
                    dci_route.post(message, SendOp::Send { imm: None }, &[side.sge(0, 1000)]);
                    dci_route.post(
                        message,
                        SendOp::FetchAdd { va, rkey, add: 1 },
                        &[side.sge(2048, 8)],
                    );
                    expect(&side.cq, message, WcStatus::Success);
                    expect(&side.cq, message, WcStatus::Success);
                }
            });
        }
        let mut from = std::collections::BTreeMap::<_, u64>::new();
        for wr_id in 64..64 + u64::from(INITIATORS) * MESSAGES {
            let received = completion(&hub_target.cq);
            assert_eq!(received.status, WcStatus::Success);
            *from.entry(received.src_qp.get()).or_default() += 1;
            post(wr_id);
        }
        assert!(from.values().all(|count| *count == MESSAGES), "{from:?}");
    });
    let total = u64::from(INITIATORS) * MESSAGES;
    assert_eq!(hub.bytes(ROOM - 8, 8), total.to_ne_bytes());
    hub_target.qp.destroy().unwrap();
}

#[test]
fn all_into_one_over_udp() {
    all_into_one(LinkMode::Udp, 3);
}

#[test]
fn all_into_one_through_shared_memory() {
    all_into_one(LinkMode::Shm, 4);
}

//= DCK-03 DCK-04 DCK-05 type=test
//= DCK-06 DCT-07 DCT-08 type=test
//= XCON-13 type=test
#[test]
fn a_forged_key_raises_one_event_when_armed() {
    let sides = sides(LinkMode::Udp, 5, 2);
    let [a, b] = &sides[..] else { panic!() };
    let dci = initiator_with(SHORT, a, None);
    let target = target(b, KEY);
    let handle = ah(a, b);
    let violations = || target.qp.dct_status().unwrap().key_violations;
    let violated_beyond = |before| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while violations() <= before {
            assert!(Instant::now() < deadline, "the packets were not counted");
            std::thread::yield_now();
        }
    };
    let forge = || {
        let dct = target.qp.qp_num();
        let dci_route = DciRoute {
            qp: &dci,
            ah: &handle,
            dct,
            key: KEY - 1,
        };
        let op = SendOp::Write {
            va: b.addr(0),
            rkey: b.mr.rkey(),
            imm: None,
        };
        dci_route.post(1, op, &[a.sge(0, 8)]);
        expect(&a.cq, 1, WcStatus::RetryExcErr);
        assert_eq!(dci.state(), QpState::Err);
        let reset = attr_of(a, QpState::Reset);
        dci.modify(&reset, QpAttrMask::STATE).unwrap();
        bring_with(SHORT, a, &dci, QpState::Rts);
    };
    a.fill(0, &[9; 8]);
    forge();
    violated_beyond(0);
    let before = violations();
    target.qp.arm_dct().unwrap();
    forge();
    violated_beyond(before);
    let event = b.context.next_async_event().unwrap();
    assert_eq!(event.kind, AsyncEventKind::DctKeyViolation);
    assert_eq!(event.element, EventElement::Dct(6));
    forge();
    assert_eq!(b.bytes(0, 8), [0; 8]);
    // There is no other event, and destroying the target waits until this one is acknowledged.
    let fd = b.context.async_fd();
    // SAFETY: the descriptor is open as long as the context.
    let flags = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(flags, 0);
    assert!(b.context.next_async_event().is_err());
    b.context.ack_async_event(&event);
    target.qp.destroy().unwrap();
    assert!(a.qp.arm_dct().is_err() && a.qp.dct_status().is_err());
}

/// A peer with the key can cause any number of errors. The number of unread events is bounded,
/// whatever they are about.
//= AEV-13 type=test
#[test]
fn unread_events_are_bounded() {
    const MOST: usize = 1024;
    let sides = sides(LinkMode::Udp, 9, 2);
    let [a, b] = &sides[..] else { panic!() };
    let (dci, other) = (initiator(a, None), target(b, KEY));
    let init = DctInitAttr {
        has_dct_events: false,
        ..dct_init(b, &other.cq, &other.srq, KEY)
    };
    let qp = b.pd.create_dct(init).unwrap();
    bring_to(b, &qp, QpState::Rtr);
    let handle = ah(a, b);
    let dci_route = DciRoute {
        qp: &dci,
        ah: &handle,
        dct: qp.qp_num(),
        key: KEY,
    };
    let op = SendOp::Write {
        va: b.addr(0),
        rkey: Rkey::new(b.mr.rkey().get() ^ 0x100),
        imm: None,
    };
    for _ in 0..MOST + 20 {
        dci_route.post(1, op, &[a.sge(0, 8)]);
        expect(&a.cq, 1, WcStatus::RemAccessErr);
        let reset = attr_of(a, QpState::Reset);
        dci.modify(&reset, QpAttrMask::STATE).unwrap();
        bring_to(a, &dci, QpState::Rts);
    }
    // SAFETY: the descriptor is open as long as the context.
    let flags = unsafe { libc::fcntl(b.context.async_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(flags, 0);
    let mut events = 0;
    while let Ok(event) = b.context.next_async_event() {
        assert_eq!(event.kind, AsyncEventKind::QpAccessErr);
        assert_eq!(event.element, EventElement::Qp(6));
        b.context.ack_async_event(&event);
        events += 1;
    }
    assert_eq!(events, MOST);
}

/// The sessions of a destroyed target end, and its initiators get errors.
//= DCT-09 DCT-10 DCW-16 type=test
#[test]
fn a_target_is_destroyed_under_traffic() {
    for link in [LinkMode::Udp, LinkMode::Shm] {
        let sides = sides(link, 6, 3);
        let [a, b, c] = &sides[..] else { panic!() };
        let target = target(c, KEY);
        let busy = || VerbsError::Busy(String::new()).errno();
        assert_eq!(target.srq.destroy().unwrap_err().errno(), busy());
        assert_eq!(target.cq.destroy().unwrap_err().errno(), busy());
        assert_eq!(c.pd.destroy().unwrap_err().errno(), busy());
        let at_it = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for side in [a, b] {
                let (target, c, at_it) = (&target, &c, &at_it);
                scope.spawn(move || {
                    let dci = initiator(side, None);
                    let handle = ah(side, c);
                    let dct = target.qp.qp_num();
                    let dci_route = DciRoute {
                        qp: &dci,
                        ah: &handle,
                        dct,
                        key: KEY,
                    };
                    let op = SendOp::Write {
                        va: c.addr(0),
                        rkey: c.mr.rkey(),
                        imm: None,
                    };
                    for wr_id in 0.. {
                        dci_route.post(wr_id, op, &[side.sge(0, 50_000)]);
                        match completion(&side.cq).status {
                            WcStatus::Success if wr_id == 0 => {
                                at_it.fetch_add(1, Ordering::Relaxed);
                            }
                            WcStatus::Success => {}
                            status => {
                                assert_eq!(status, WcStatus::RetryExcErr);
                                assert!(wr_id > 0);
                                return;
                            }
                        }
                    }
                });
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            while at_it.load(Ordering::Relaxed) < 2 {
                assert!(Instant::now() < deadline, "the requests make no progress");
                std::thread::yield_now();
            }
            let begin = Instant::now();
            target.qp.destroy().unwrap();
            assert!(begin.elapsed() < Duration::from_secs(60));
            assert!(target.qp.destroy().is_err());
        });
        target.srq.destroy().unwrap();
        target.cq.destroy().unwrap();
    }
}

/// An idle initiator disconnects soon, so that its target need not wait long.
//= DCW-12 type=test
#[test]
fn initiators_that_are_done_leave() {
    let sides = sides(LinkMode::Udp, 7, 2);
    let [a, b] = &sides[..] else { panic!() };
    // A target waits for its initiators for up to a second. On a busy machine some attempts take
    // long, but not all.
    let deadline = Instant::now() + Duration::from_secs(60);
    while destroyed_when_all_have_left(a, b) >= Duration::from_millis(900) {
        assert!(Instant::now() < deadline, "every target has waited");
    }
}

/// Returns how long the destruction of a target takes whose initiators have disconnected, in each
/// possible way.
fn destroyed_when_all_have_left(a: &Side, b: &Side) -> Duration {
    let target = target(b, KEY);
    let handle = ah(a, b);
    let sessions = || target.qp.dct_status().unwrap().sessions;
    for ending in ["idle", "reset", "destroy"] {
        let dci = initiator(a, None);
        let dct = target.qp.qp_num();
        let dci_route = DciRoute {
            qp: &dci,
            ah: &handle,
            dct,
            key: KEY,
        };
        let op = SendOp::Write {
            va: b.addr(0),
            rkey: b.mr.rkey(),
            imm: None,
        };
        dci_route.post(1, op, &[a.sge(0, 8)]);
        expect(&a.cq, 1, WcStatus::Success);
        match ending {
            "reset" => {
                let reset = attr_of(a, QpState::Reset);
                dci.modify(&reset, QpAttrMask::STATE).unwrap();
            }
            "destroy" => dci.destroy().unwrap(),
            _ => {}
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while sessions() > 0 {
            assert!(Instant::now() < deadline, "{ending}");
            std::thread::yield_now();
        }
    }
    let begin = Instant::now();
    target.qp.destroy().unwrap();
    begin.elapsed()
}

//= DCT-02 DC-05 DCU-05 type=test
//= DCU-03 DCS-08 DCS-09 type=test
//= DC-40 XDEC-16 type=test
#[test]
fn wrong_arguments() {
    let sides = sides(LinkMode::Udp, 8, 2);
    let [a, b] = &sides[..] else { panic!() };
    let good = target(a, KEY);
    let foreign = target(b, KEY);
    for (cq, srq) in [(&foreign.cq, &good.srq), (&good.cq, &foreign.srq)] {
        let refused = a.pd.create_dct(dct_init(a, cq, srq, KEY));
        assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
    }
    let init = |qp_type, srq| QpInitAttr {
        send_cq: a.cq.clone(),
        recv_cq: a.cq.clone(),
        srq,
        cap: cap(),
        qp_type,
        sq_sig_all: true,
        cookie: 5,
    };
    let refused =
        a.pd.create_qp(init(QpType::DcTarget, Some(good.srq.clone())));
    assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
    let refused =
        a.pd.create_qp(init(QpType::DcInitiator, Some(good.srq.clone())));
    assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
    let streams = Some(DciStreams {
        log_concurrent: 5,
        log_errored: 0,
    });
    let refused =
        a.pd.create_dci(init(QpType::DcInitiator, None), DciInit { streams });
    assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);

    let dci = initiator(a, None);
    // An initiator has no receive queue.
    let (_, granted) = dci.query();
    assert_eq!((granted.max_recv_wr, granted.max_recv_sge), (0, 0));
    assert!(dci.recv_queue().push(1, &[]).is_err());
    assert!(good.qp.recv_queue().push(1, &[]).is_err());
    assert!(dci.reset_stream(1).is_err());
    // A request needs a target, and a unicast address handle of its own domain.
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        sges: &[],
    };
    assert_eq!(
        dci.post_sends(|queue| queue.push(&wr)).unwrap_err().errno(),
        libc::EINVAL
    );
    let handles = [ah(b, a), ah(a, b)];
    let dct = good.qp.qp_num();
    let post = |qp: &Qp, ah: &Ah| {
        DciRoute {
            qp,
            ah,
            dct,
            key: KEY,
        }
        .try_post(1, wr.op, &[])
    };
    assert_eq!(post(&dci, &handles[0]).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(post(&a.qp, &handles[1]).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(
        post(&good.qp, &handles[1]).unwrap_err().errno(),
        libc::EINVAL
    );
    // A query with the standard verbs does not return the key of a target.
    assert_eq!(
        (good.qp.query().0.dc_key, good.qp.state()),
        (0, QpState::Rtr)
    );
    // A target goes from RESET to INIT to RTR, and nowhere else.
    for next in [QpState::Reset, QpState::Init, QpState::Rts, QpState::Err] {
        let refused = good.qp.modify(&attr_of(a, next), QpAttrMask::STATE);
        assert_eq!(refused.unwrap_err().errno(), libc::EINVAL, "{next:?}");
    }
    // The standard state table needs the state in every mask, the experimental one the key.
    let attr = attr_of(a, QpState::Rts);
    let rnr = QpAttrMask::MIN_RNR_TIMER;
    assert!(dci.modify(&attr, rnr).is_err());
    assert!(dci.modify(&attr, rnr | QpAttrMask::STATE).is_ok());
    assert!(dci.modify_by(&attr, rnr, true).is_ok());
    dci.modify(&attr_of(a, QpState::Reset), QpAttrMask::STATE)
        .unwrap();
    let init_attr = QpAttr {
        dc_key: 77,
        ..attr_of(a, QpState::Init)
    };
    let plain = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
    assert!(dci.modify_by(&init_attr, plain, true).is_err());
    assert!(dci.modify(&init_attr, plain | QpAttrMask::DC_KEY).is_err());
    dci.modify_by(&init_attr, plain | QpAttrMask::DC_KEY, true)
        .unwrap();
    assert_eq!(dci.query().0.dc_key, 77);
}

/// A reserved number is never that of a queue pair, and is released once.
#[test]
fn numbers_are_reserved() {
    let sides = sides(LinkMode::Udp, 12, 1);
    let [a] = &sides[..] else { panic!() };
    let context = &a.context;
    let mut reserved: Vec<_> = (0..100)
        .map(|_| context.reserve_qp_num().expect("a number"))
        .collect();
    reserved.push(initiator(a, None).qp_num());
    let own = reserved.len();
    reserved.sort_unstable();
    reserved.dedup();
    assert_eq!(reserved.len(), own, "the numbers are not unique");
    let refused = |qpn| context.release_qp_num(qpn).map_err(|error| error.errno());
    for qpn in reserved {
        let first = refused(qpn);
        // One of the numbers was that of a queue pair.
        assert!(first.is_ok() || first == Err(libc::EINVAL));
        assert_eq!(refused(qpn), Err(libc::EINVAL));
    }
}
