//! Shared receive queues: their users, free WQEs, limits, events and destruction.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::collections::BTreeMap;
use std::fmt::Debug;

use common::{ALL_ACCESS, Side, connect, pattern};
use rocade_emulator::{
    AsyncEventKind, Completion, Cq, EventElement, Mr, Pd, QpAttr, QpAttrMask, QpCap, QpInitAttr,
    QpState, QpType, SendOp, Sge, Srq, SrqAttr, SrqInitAttr, VerbsError, WcStatus, limits,
};

const SEND: SendOp = SendOp::Send { imm: None };
/// Length of the buffers of receives in these tests.
const ROOM: usize = 8192;

fn errno<T: Debug>(result: Result<T, VerbsError>) -> i32 {
    result.unwrap_err().errno()
}

fn attr(max_wr: u32, max_sge: u32) -> SrqInitAttr {
    SrqInitAttr {
        max_wr,
        max_sge,
        cookie: 77,
    }
}

/// A shared receive queue in its own protection domain, in which the memory of `side` is
/// registered.
struct Shared {
    pd: Pd,
    mr: Mr,
    srq: Srq,
}

impl Shared {
    fn new(side: &Side, max_wr: u32) -> Self {
        let pd = side.context.alloc_pd().unwrap();
        let (addr, len) = (side.mr.addr(), side.memory.len());
        // SAFETY: leaked memory, accessed through atomics only.
        let mr = unsafe { pd.reg_mr(addr, len, addr, ALL_ACCESS) }.unwrap();
        let srq = pd.create_srq(attr(max_wr, 1)).unwrap();
        Self { pd, mr, srq }
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge {
            addr: self.mr.addr() + offset as u64,
            len: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    /// Posts a receive into the `wr_id`th part of the memory.
    fn post(&self, wr_id: u64) -> Result<(), VerbsError> {
        let sge = self.sge(wr_id as usize * ROOM, ROOM);
        self.srq.recv_queue().push(wr_id, &[sge])
    }
}

/// Makes a QP in RESET that takes its receives from `srq` and reports them to `cq`.
fn taker(of: &Side, srq: &Srq, cq: &Cq, cookie: u64) -> Side {
    let init = QpInitAttr {
        send_cq: of.cq.clone(),
        recv_cq: cq.clone(),
        srq: Some(srq.clone()),
        cap: QpCap {
            max_send_wr: 128,
            max_recv_wr: 1 << 30,
            max_send_sge: 4,
            max_recv_sge: 1 << 30,
            max_inline_data: 64,
        },
        qp_type: QpType::Rc,
        sq_sig_all: false,
        cookie,
    };
    Side {
        engine: of.engine.clone(),
        context: of.context.clone(),
        pd: of.pd.clone(),
        channel: of.channel.clone(),
        cq: cq.clone(),
        qp: of.pd.create_qp(init).unwrap(),
        mr: of.mr.clone(),
        memory: of.memory,
    }
}

/// Makes another QP of the same device with its own receive queue, in RESET.
fn sibling(of: &Side, cq: &Cq) -> Side {
    let init = QpInitAttr {
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap: QpCap {
            max_send_wr: 128,
            max_send_sge: 4,
            ..QpCap::default()
        },
        qp_type: QpType::Rc,
        sq_sig_all: false,
        cookie: 1,
    };
    Side {
        engine: of.engine.clone(),
        context: of.context.clone(),
        pd: of.pd.clone(),
        channel: of.channel.clone(),
        cq: cq.clone(),
        qp: of.pd.create_qp(init).unwrap(),
        mr: of.mr.clone(),
        memory: of.memory,
    }
}

/// Makes a QP of A connected to a QP of B that takes its receives from `shared`.
fn connected(a: &Side, b: &Side, shared: &Shared) -> (Side, Side) {
    let (from, to) = (sibling(a, &a.cq), taker(b, &shared.srq, &b.cq, 9));
    connect(&from, &to);
    (from, to)
}

/// Returns and acknowledges the pending asynchronous events.
fn events(side: &Side) -> Vec<(AsyncEventKind, EventElement)> {
    let take = || side.context.take_async_event().unwrap();
    let taken = std::iter::from_fn(take).inspect(|event| side.context.ack_async_event(event));
    taken.map(|event| (event.kind, event.element)).collect()
}

fn next_event(side: &Side) -> (AsyncEventKind, EventElement) {
    let event = side.context.next_async_event().unwrap();
    side.context.ack_async_event(&event);
    (event.kind, event.element)
}

fn send(from: &Side, wr_id: u64, len: usize) {
    from.send(wr_id, SEND, &[from.sge(0, len)]);
    let sent = from.completion();
    assert_eq!((sent.wr_id, sent.status), (wr_id, WcStatus::Success));
}

fn to_err(side: &Side) {
    let attr = QpAttr {
        qp_state: QpState::Err.code(),
        ..QpAttr::default()
    };
    side.qp.modify(&attr, QpAttrMask::STATE).unwrap();
}

//= SRQ-01 type=test
//= SRQ-08 type=test
//= SRQ-10 type=test
#[test]
fn sizes_are_granted_as_asked_or_refused() {
    let side = Side::new("127.2.9.1", 64);
    for bad in [
        attr(limits::MAX_SRQ_WR + 1, 1),
        attr(1, limits::MAX_SGE + 1),
    ] {
        assert_eq!(errno(side.pd.create_srq(bad)), libc::EINVAL, "{bad:?}");
    }
    // A queue without entries accepts no receive, as on mlx5.
    let none = side.pd.create_srq(attr(0, 0)).unwrap();
    assert_eq!((none.query().max_wr, none.query().max_sge), (0, 0));
    assert_eq!(errno(none.recv_queue().push(1, &[])), libc::ENOMEM);
    // A change of size has the same limits.
    none.modify(Some(1), None).unwrap();
    none.recv_queue().push(1, &[]).unwrap();
    assert_eq!(errno(none.modify(Some(0), None)), libc::EINVAL, "in use");
    assert_eq!(
        errno(none.recv_queue().push(2, &[Sge::default()])),
        libc::EINVAL
    );
    let largest = attr(limits::MAX_SRQ_WR, limits::MAX_SGE);
    let srqs = [attr(3, 2), largest].map(|attr| side.pd.create_srq(attr).unwrap());
    let expected = SrqAttr {
        max_wr: 3,
        max_sge: 2,
        srq_limit: 0,
    };
    assert_eq!(srqs[0].query(), expected);
    assert_eq!(srqs[1].query().max_wr, limits::MAX_SRQ_WR);
    let numbers = srqs.each_ref().map(Srq::number);
    assert!(numbers[0] != numbers[1] && numbers.iter().all(|n| n >> 24 == 0));
    let device = side.context.device_attr();
    assert_eq!(device.max_srq_wr, limits::MAX_SRQ_WR);
    assert_eq!(device.max_srq_sge, limits::MAX_SGE);
    assert!(device.max_srq > 0 && device.device_cap_flags & 1 << 13 != 0);
}

//= SRQ-06 type=test
//= SRQ-09 type=test
//= PST-08 type=test
//= DST-01 type=test
//= DST-03 type=test
#[test]
fn who_uses_it_keeps_it() {
    let side = Side::new("127.2.9.2", 4 * ROOM);
    let shared = Shared::new(&side, 2);
    let qp = taker(&side, &shared.srq, &side.cq, 1);
    let cap = qp.qp.query().1;
    assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
    assert_eq!(errno(qp.qp.recv_queue().push(1, &[])), libc::EINVAL);
    qp.qp.to_init(ALL_ACCESS).unwrap();
    assert_eq!(errno(qp.qp.recv_queue().push(1, &[])), libc::EINVAL);

    let sges = [shared.sge(0, 1), shared.sge(1, 1)];
    let too_many = shared.srq.recv_queue().push(1, &sges);
    assert_eq!(errno(too_many), libc::EINVAL);
    shared.post(0).unwrap();
    shared.post(1).unwrap();
    assert_eq!(errno(shared.post(2)), libc::ENOMEM);

    assert_eq!(errno(shared.srq.destroy()), libc::EBUSY);
    qp.qp.destroy().unwrap();
    shared.mr.destroy().unwrap();
    assert_eq!(errno(shared.pd.destroy()), libc::EBUSY);
    shared.srq.destroy().unwrap();
    assert_eq!(errno(shared.srq.destroy()), libc::EINVAL);
    shared.pd.destroy().unwrap();
}

/// A QP of another device cannot use it.
#[test]
fn it_belongs_to_its_device() {
    let (side, other) = (Side::new("127.2.9.3", 64), Side::new("127.2.9.4", 64));
    let srq = other.pd.create_srq(attr(1, 1)).unwrap();
    let init = QpInitAttr {
        send_cq: side.cq.clone(),
        recv_cq: side.cq.clone(),
        srq: Some(srq.clone()),
        cap: QpCap::default(),
        qp_type: QpType::Rc,
        sq_sig_all: false,
        cookie: 0,
    };
    assert_eq!(errno(side.pd.create_qp(init)), libc::EINVAL);
    srq.destroy().unwrap();
}

//= SRQ-07 type=test
//= RC-WQE-12 type=test
#[test]
fn sixteen_queue_pairs_share_the_receives() {
    const QPS: usize = 16;
    const ROUNDS: u64 = 20;
    let (a, b) = (
        Side::new("127.2.9.5", 64 * ROOM),
        Side::new("127.2.9.6", 64 * ROOM),
    );
    let shared = Shared::new(&b, 8);
    for wr_id in 0..8 {
        shared.post(wr_id).unwrap();
    }
    let pairs: Vec<_> = (0..QPS).map(|_| connected(&a, &b, &shared)).collect();
    for n in 0..QPS {
        a.fill(n * ROOM, &pattern(ROOM, n));
    }
    // More messages at a time than there are receives: senders wait.
    for round in 0..ROUNDS {
        for (n, (from, _)) in pairs.iter().enumerate() {
            let len = 1 + (round as usize * 977 + n * 331) % ROOM;
            from.send(round, SEND, &[from.sge(n * ROOM, len)]);
        }
        let mut seen = BTreeMap::new();
        for _ in 0..QPS {
            let Completion {
                status,
                wr_id,
                qp_num,
                byte_len,
                ..
            } = b.completion();
            assert_eq!(status, WcStatus::Success);
            let to = |(_, to): &(Side, Side)| to.qp.qp_num() == qp_num;
            let n = pairs.iter().position(to).unwrap();
            let len = 1 + (round as usize * 977 + n * 331) % ROOM;
            assert_eq!(byte_len as usize, len);
            let received = b.bytes(wr_id as usize * ROOM, len);
            assert!(received == pattern(len, n), "{round} {n}");
            *seen.entry(n).or_insert(0) += 1;
            shared.post(wr_id).unwrap();
        }
        assert!(seen.len() == QPS && seen.values().all(|count| *count == 1));
        for _ in 0..QPS {
            assert_eq!(a.completion().status, WcStatus::Success);
        }
    }
}

//= RC-WQE-03 type=test
#[test]
fn a_slot_is_free_when_its_completion_was_polled() {
    let (a, b) = (
        Side::new("127.2.9.7", 16 * ROOM),
        Side::new("127.2.9.8", 16 * ROOM),
    );
    let shared = Shared::new(&b, 4);
    let cqs = [(); 2].map(|()| b.context.create_cq(16, None, 0, 0).unwrap());
    let pairs = cqs.each_ref().map(|cq| {
        let (from, to) = (sibling(&a, &a.cq), taker(&b, &shared.srq, cq, 3));
        connect(&from, &to);
        (from, to)
    });
    let is_full = |shared: &Shared| errno(shared.post(9)) == libc::ENOMEM;
    for round in 0..10 {
        for wr_id in 0..4 {
            shared.post(wr_id).unwrap();
        }
        for n in [0, 1, 1, 0] {
            send(&pairs[n].0, round, 100);
        }
        assert!(is_full(&shared), "taken, and not polled");
        assert_eq!(pairs[1].1.completion().wr_id, 1);
        shared.post(5).unwrap();
        assert!(is_full(&shared));
        assert_eq!(pairs[0].1.completion().wr_id, 0);
        assert_eq!(pairs[0].1.completion().wr_id, 3);
        shared.post(6).unwrap();
        shared.post(7).unwrap();
        assert!(is_full(&shared));
        // Empties the queue for the next round.
        assert_eq!(pairs[1].1.completion().wr_id, 2);
        for wr_id in [5, 6, 7] {
            send(&pairs[0].0, round, 1);
            assert_eq!(pairs[0].1.completion().wr_id, wr_id);
        }
    }
}

/// Completions that will never be polled: the CQ was destroyed, or had no room for them.
#[test]
fn lost_completions_cost_no_slots() {
    let (a, b) = (
        Side::new("127.2.9.9", 16 * ROOM),
        Side::new("127.2.9.10", 16 * ROOM),
    );
    let shared = Shared::new(&b, 4);
    let cq = b.context.create_cq(2, None, 0, 0).unwrap();
    let (from, to) = (sibling(&a, &a.cq), taker(&b, &shared.srq, &cq, 3));
    connect(&from, &to);
    for wr_id in 0..4 {
        shared.post(wr_id).unwrap();
    }
    send(&from, 0, 10);
    send(&from, 1, 10);
    // The third completion does not fit: the QP enters ERR, and its peer gets no success.
    from.send(2, SEND, &[from.sge(0, 10)]);
    let mut seen = Vec::new();
    while !seen.contains(&AsyncEventKind::QpLastWqeReached) {
        seen.push(next_event(&b).0);
    }
    assert!(seen.contains(&AsyncEventKind::CqErr) && seen.contains(&AsyncEventKind::QpFatal));
    assert_eq!(to.qp.state(), QpState::Err);
    shared.post(4).unwrap();
    assert_eq!(errno(shared.post(5)), libc::ENOMEM);
    to.qp.destroy().unwrap();
    cq.destroy().unwrap();
    drop((to, cq));
    shared.post(5).unwrap();
    shared.post(6).unwrap();
    assert_eq!(errno(shared.post(7)), libc::ENOMEM);
    from.qp.destroy().unwrap();
}

//= SRQ-02 type=test
//= SRQ-03 type=test
//= SRQ-04 type=test
//= SRQ-05 type=test
//= AEV-09 type=test
#[test]
fn the_limit_raises_one_event() {
    let (a, b) = (
        Side::new("127.2.9.11", 16 * ROOM),
        Side::new("127.2.9.12", 16 * ROOM),
    );
    let shared = Shared::new(&b, 4);
    let (from, to) = connected(&a, &b, &shared);
    for wr_id in 0..4 {
        shared.post(wr_id).unwrap();
    }
    for (max_wr, limit) in [
        (None, Some(5)),
        (Some(3), None),
        (Some(limits::MAX_SRQ_WR + 1), None),
        (Some(0), None),
        (Some(8), Some(9)),
    ] {
        let refused = shared.srq.modify(max_wr, limit);
        assert_eq!(errno(refused), libc::EINVAL, "{max_wr:?} {limit:?}");
        assert_eq!(
            (shared.srq.query().max_wr, shared.srq.query().srq_limit),
            (4, 0)
        );
    }
    shared.srq.modify(None, Some(3)).unwrap();
    let limit_reached = (AsyncEventKind::SrqLimitReached, EventElement::Srq(77));
    // The first message was also the first one of the connection.
    send(&from, 0, 8);
    to.completion();
    assert_eq!(events(&b), []);
    send(&from, 1, 8);
    assert_eq!(events(&b), [limit_reached]);
    assert_eq!(shared.srq.query().srq_limit, 0);
    send(&from, 2, 8);
    assert_eq!(events(&b), []);
    to.completion();
    to.completion();

    // A larger queue with the limit above the present receives: the next message raises the event.
    shared.srq.modify(Some(6), Some(6)).unwrap();
    for wr_id in 4..9 {
        shared.post(wr_id).unwrap();
    }
    assert_eq!(errno(shared.post(9)), libc::ENOMEM);
    assert_eq!(events(&b), []);
    send(&from, 3, 8);
    assert_eq!(events(&b), [limit_reached]);

    // An unread event is dropped with its object.
    shared.srq.modify(None, Some(6)).unwrap();
    send(&from, 4, 8);
    to.qp.destroy().unwrap();
    shared.srq.destroy().unwrap();
    assert_eq!(events(&b), []);
}

//= RC-STA-08 type=test
//= RC-STA-09 type=test
//= AEV-10 type=test
#[test]
fn in_error_the_receives_stay_and_the_last_is_told() {
    let (a, b) = (
        Side::new("127.2.9.13", 16 * ROOM),
        Side::new("127.2.9.14", 16 * ROOM),
    );
    let shared = Shared::new(&b, 4);
    let (first, second) = (connected(&a, &b, &shared), connected(&a, &b, &shared));
    for wr_id in 0..3 {
        shared.post(wr_id).unwrap();
    }
    send(&first.0, 0, 10);
    to_err(&first.1);
    let last = (AsyncEventKind::QpLastWqeReached, EventElement::Qp(9));
    assert_eq!(next_event(&b), last);
    assert_eq!(b.completion().wr_id, 0);
    assert!(b.cq.poll_one().is_none(), "no receive was flushed");
    send(&second.0, 1, 10);
    assert_eq!(b.completion().wr_id, 1);
    // A message too long for its receive affects only its QP and that receive.
    second.0.send(2, SEND, &[second.0.sge(0, ROOM + 1)]);
    let failed = b.completion();
    assert_eq!((failed.wr_id, failed.status), (2, WcStatus::LocLenErr));
    assert_eq!(next_event(&b), last);
    assert_eq!(a.completion().status, WcStatus::RemInvReqErr);
}

/// A QP that is destroyed in the middle of a message also drops the message's receive, but frees
/// its WQE.
#[test]
fn a_message_that_never_ends_costs_no_slot() {
    for destroyed in [false, true] {
        let octet = 15 + 2 * u8::from(destroyed);
        let addresses = [octet, octet + 1].map(|octet| format!("127.2.9.{octet}"));
        let (a, b) = (
            Side::new(&addresses[0], 16 * ROOM),
            Side::new(&addresses[1], 16 * ROOM),
        );
        let shared = Shared::new(&b, 2);
        let (from, to) = connected(&a, &b, &shared);
        shared.post(0).unwrap();
        shared.post(1).unwrap();
        // The end of the message is in memory that is not registered.
        let lost = Sge {
            addr: 0,
            ..from.sge(0, 2048)
        };
        from.send(0, SEND, &[from.sge(0, 2048), lost]);
        assert_eq!(from.completion().status, WcStatus::LocProtErr);
        while to.qp.counters().rx_packets == 0 {
            b.cq.poll_one();
        }
        assert_eq!(errno(shared.post(2)), libc::ENOMEM);
        if destroyed {
            to.qp.destroy().unwrap();
        } else {
            to_err(&to);
            let flushed = b.completion();
            assert_eq!((flushed.wr_id, flushed.status), (0, WcStatus::WrFlushErr));
        }
        shared.post(2).unwrap();
        assert_eq!(errno(shared.post(3)), libc::ENOMEM);
        assert!(b.cq.poll_one().is_none());
    }
}

/// The application drops the SRQ handle before its QPs, which the type system cannot forbid. The
/// QPs go on.
#[test]
fn queue_pairs_outlive_the_handle() {
    let (a, b) = (
        Side::new("127.2.9.21", 16 * ROOM),
        Side::new("127.2.9.22", 16 * ROOM),
    );
    let shared = Shared::new(&b, 2);
    let (from, to) = connected(&a, &b, &shared);
    shared.post(0).unwrap();
    shared.srq.modify(None, Some(1)).unwrap();
    let Shared { pd, mr, srq } = shared;
    drop(srq);
    send(&from, 0, 10);
    assert_eq!(to.completion().wr_id, 0);
    assert_eq!(events(&b).len(), 0, "an event of a dropped object");
    drop((pd, mr));
}

/// Senders, a thread that posts, and two that poll, all at once. No receive is lost or used twice.
#[test]
fn threads_share_it() {
    const QPS: usize = 4;
    const EACH: u64 = 300;
    let (a, b) = (
        Side::new("127.2.9.23", 64 * ROOM),
        Side::new("127.2.9.24", 64 * ROOM),
    );
    let shared = Shared::new(&b, 16);
    for wr_id in 0..16 {
        shared.post(wr_id).unwrap();
    }
    let pairs: Vec<_> = (0..QPS)
        .map(|_| {
            let cq = b.context.create_cq(64, None, 0, 0).unwrap();
            let own = a.context.create_cq(256, None, 0, 0).unwrap();
            let (from, to) = (sibling(&a, &own), taker(&b, &shared.srq, &cq, 3));
            connect(&from, &to);
            (from, to)
        })
        .collect();
    let received: usize = std::thread::scope(|scope| {
        for (n, (from, _)) in pairs.iter().enumerate() {
            scope.spawn(move || {
                for wr_id in 0..EACH {
                    from.send(wr_id, SEND, &[from.sge(n * ROOM, 64)]);
                    let sent = from.completion();
                    assert_eq!((sent.wr_id, sent.status), (wr_id, WcStatus::Success));
                }
            });
        }
        let pollers: Vec<_> = pairs
            .iter()
            .map(|(_, to)| {
                let shared = &shared;
                scope.spawn(move || {
                    let mut received = 0;
                    while received < EACH as usize {
                        let got = to.completion();
                        assert_eq!(got.status, WcStatus::Success);
                        received += 1;
                        shared.post(got.wr_id).unwrap();
                    }
                    received
                })
            })
            .collect();
        pollers.into_iter().map(|p| p.join().unwrap()).sum()
    });
    assert_eq!(received, QPS * EACH as usize);
    // All sixteen receives are there again.
    assert_eq!(errno(shared.post(0)), libc::ENOMEM);
}
