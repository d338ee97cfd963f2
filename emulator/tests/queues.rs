//! Free entries of work queues, and completions that find no room.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests: a failure may panic, sizes are small"
)]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Side, connect, pair};
use rocade_emulator::{
    AsyncEvent, AsyncEventKind, Cq, EventElement, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState,
    QpType, SendFlags, SendOp, SendWr, VerbsError, WcStatus,
};

/// Number of entries of both queues of the tests' QPs.
const DEPTH: u64 = 128;
const ENOMEM: i32 = 12;

/// Posts a WRITE without data. Returns false if the queue is full.
fn post(side: &Side, wr_id: u64, flags: SendFlags) -> bool {
    let op = SendOp::Write {
        va: 0,
        rkey: rocade_emulator::Rkey::new(0),
        imm: None,
    };
    posted(side.qp.post_sends(|queue| {
        queue.push(&SendWr {
            wr_id,
            op,
            flags,
            sges: &[],
        })
    }))
}

fn post_recv(side: &Side, wr_id: u64) -> bool {
    posted(side.qp.recv_queue().push(wr_id, &[]))
}

fn posted(result: Result<(), VerbsError>) -> bool {
    match result {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.errno(), ENOMEM, "{error}");
            false
        }
    }
}

fn next_event(side: &Side) -> AsyncEvent {
    let event = side.context.next_async_event().unwrap();
    side.context.ack_async_event(&event);
    event
}

/// Waits until `sends` sends are acknowledged, without polling the CQ. The QP is in SQD afterwards.
fn drain(side: &Side, sends: u64) {
    to_state(side, QpState::Rts);
    // SQD starts no request, so that posts that are batched, or wait for ACKs, have to be sent
    // before.
    let deadline = Instant::now() + Duration::from_secs(60);
    let started = || {
        let counters = side.qp.counters();
        counters.tx_packets - counters.retransmitted_packets
    };
    while started() < sends {
        assert!(Instant::now() < deadline, "{:?}", side.qp.counters());
        thread::yield_now();
    }
    let attr = QpAttr {
        qp_state: QpState::Sqd.code(),
        en_sqd_async_notify: true,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    side.qp.modify(&attr, mask).unwrap();
    assert_eq!(next_event(side).kind, AsyncEventKind::SqDrained);
}

fn to_state(side: &Side, state: QpState) {
    let attr = QpAttr {
        qp_state: state.code(),
        ..QpAttr::default()
    };
    side.qp.modify(&attr, QpAttrMask::STATE).unwrap();
}

/// Posts until the queue is full. Returns how many requests fitted in.
fn fill(mut post: impl FnMut(u64) -> bool) -> u64 {
    (0..=DEPTH).take_while(|id| post(*id)).count() as u64
}

//= RC-WQE-03 type=test
#[test]
fn a_send_slot_is_free_when_its_completion_was_polled() {
    let (a, b) = pair("127.2.5.1", "127.2.5.2", 4096);
    a.cq.resize(DEPTH as u32).unwrap();
    let signaled = SendFlags::SIGNALED;
    let mut sent = fill(|id| post(&a, id, signaled));
    assert_eq!(sent, DEPTH);
    drain(&a, sent);
    assert!(!post(&a, sent, signaled), "acknowledged, but not polled");
    // Exactly as many requests fit in as were polled, so that the CQ cannot be overrun.
    let mut polled = 0;
    for round in 1..60 {
        for _ in 0..round {
            assert_eq!((a.completion().wr_id, polled), (polled, polled));
            polled += 1;
        }
        for _ in 0..round {
            assert!(post(&a, sent, signaled), "{sent} posted, {polled} polled");
            sent += 1;
        }
        assert!(!post(&a, sent, signaled));
        to_state(&a, QpState::Rts);
        drain(&a, sent);
    }
    drop(b);
    assert_eq!(a.qp.state(), QpState::Sqd);
}

//= RC-WQE-03 type=test
#[test]
fn an_unsignaled_send_is_free_with_the_next_signaled_one() {
    let (a, _b) = pair("127.2.5.3", "127.2.5.4", 4096);
    let silent = SendFlags::empty();
    for round in 0..3 {
        for id in 1..DEPTH {
            assert!(post(&a, id, silent), "round {round}");
        }
        drain(&a, round * DEPTH + DEPTH - 1);
        assert!(post(&a, DEPTH, SendFlags::SIGNALED));
        assert!(!post(&a, 0, silent));
        to_state(&a, QpState::Rts);
        drain(&a, (round + 1) * DEPTH);
        assert!(!post(&a, 0, silent), "acknowledged, but not polled");
        assert_eq!(a.completion().wr_id, DEPTH);
        to_state(&a, QpState::Rts);
    }
    // Without any signaled request no WQE becomes free, until the QP is reset.
    assert_eq!(fill(|id| post(&a, id, silent)), DEPTH);
    drain(&a, 4 * DEPTH);
    assert!(!post(&a, 0, silent));
    to_state(&a, QpState::Err);
    assert!(!post(&a, 0, silent), "nothing was left to flush");
    to_state(&a, QpState::Reset);
    let (a, b) = (a, Side::new("127.2.5.5", 4096));
    connect(&a, &b);
    assert_eq!(fill(|id| post(&a, id, silent)), DEPTH);
}

//= RC-WQE-03 type=test
//= RC-STA-02 type=test
#[test]
fn queues_in_err_are_full_until_what_was_flushed_is_polled() {
    let (a, b) = pair("127.2.5.6", "127.2.5.7", 4096);
    for id in 0..10 {
        assert!(post(&a, id, SendFlags::empty()));
    }
    drain(&a, 10);
    to_state(&a, QpState::Err);
    let sent = fill(|id| post(&a, id, SendFlags::empty()));
    assert_eq!(sent, DEPTH - 10, "ten have no completion yet");
    assert_eq!(fill(|id| post_recv(&a, id)), DEPTH);
    let mut sends = 0;
    for _ in 0..20 {
        let completion = a.completion();
        assert_eq!(completion.status, WcStatus::WrFlushErr);
        sends += u64::from(completion.is_send());
    }
    // The first completion also covers the ten requests before it.
    assert_eq!(sends, 20);
    assert_eq!(fill(|id| post(&a, id, SendFlags::empty())), 20 + 10);
    for _ in 0..sent - 20 + 5 {
        a.completion();
    }
    assert_eq!(fill(|id| post_recv(&a, id)), 5);
    // A batch that is rolled back leaves neither completions nor WQEs.
    while a.cq.poll_one().is_some() {}
    assert!(post(&a, 77, SendFlags::empty()));
    a.qp.post_sends(|batch| {
        let op = SendOp::Send { imm: None };
        let (flags, sges) = (SendFlags::SIGNALED, &[][..]);
        for wr_id in 0..5 {
            let wr = SendWr {
                wr_id,
                op,
                flags,
                sges,
            };
            batch.push(&wr).unwrap();
        }
        batch.rollback();
    });
    assert_eq!(a.completion().wr_id, 77);
    assert_eq!(a.cq.poll_one().map(|c| c.wr_id), None);
    assert_eq!(fill(|id| post(&a, id, SendFlags::empty())), DEPTH);
    drop(b);
}

//= RC-WQE-03 type=test
#[test]
fn a_batch_that_is_taken_back_uses_no_slots() {
    let (a, _b) = pair("127.2.5.8", "127.2.5.9", 4096);
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send { imm: None },
        flags: SendFlags::SIGNALED,
        sges: &[],
    };
    for _ in 0..3 {
        a.qp.post_sends(|batch| {
            for _ in 0..DEPTH {
                batch.push(&wr).unwrap();
            }
            assert_eq!(batch.push(&wr).unwrap_err().errno(), ENOMEM);
            batch.rollback();
        });
    }
    assert_eq!(fill(|id| post(&a, id, SendFlags::SIGNALED)), DEPTH);
}

//= RC-WQE-03 type=test
#[test]
fn a_receive_slot_is_free_when_its_completion_was_polled() {
    let (a, b) = pair("127.2.5.10", "127.2.5.11", 4096);
    assert_eq!(fill(|id| post_recv(&b, id)), DEPTH);
    for id in 0..DEPTH {
        a.send(id, SendOp::Send { imm: None }, &[]);
    }
    for _ in 0..DEPTH {
        assert_eq!(a.completion().status, WcStatus::Success);
    }
    // All were consumed, because the sender has got their ACKs.
    assert!(!post_recv(&b, 0));
    for _ in 0..7 {
        b.completion();
    }
    assert_eq!(fill(|id| post_recv(&b, id)), 7);
    // Purged completions free their WQEs, too.
    to_state(&b, QpState::Reset);
    b.to_rts(a.qp.qp_num().get(), a.gid());
    assert_eq!(fill(|id| post_recv(&b, id)), DEPTH);
}

/// Completions of other QPs in the same CQ, and their end, do not count.
//= RC-WQE-03 type=test
#[test]
fn slots_of_queue_pairs_that_share_a_cq_are_their_own() {
    let one = Side::new("127.2.5.12", 4096);
    let two = sibling(&one, (&one.cq, &one.cq), 2);
    let three = sibling(&one, (&one.cq, &one.cq), 3);
    let sides = [&one, &two, &three];
    for side in sides {
        to_err(side);
    }
    for id in 0..DEPTH {
        for side in sides {
            assert!(post(side, id, SendFlags::empty()));
        }
    }
    // 30 completions of each.
    for _ in 0..90 {
        one.completion();
    }
    two.qp.destroy().unwrap();
    assert_eq!(fill(|id| post(&one, id, SendFlags::empty())), 30);
    assert_eq!(fill(|id| post(&three, id, SendFlags::empty())), 30);
    let left = std::iter::from_fn(|| one.cq.poll_one()).inspect(|completion| {
        assert_ne!(completion.qp_num, two.qp.qp_num());
    });
    assert_eq!(left.count() as u64, 2 * DEPTH);
}

/// Moves the QP from RESET to ERR.
fn to_err(side: &Side) {
    side.to_rtr(2, side.gid());
    to_state(side, QpState::Err);
}

/// Makes another QP of the same device, in RESET.
fn sibling(of: &Side, (send_cq, recv_cq): (&Cq, &Cq), cookie: u64) -> Side {
    let cap = QpCap {
        max_send_wr: DEPTH as u32,
        max_recv_wr: DEPTH as u32,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init = QpInitAttr {
        send_cq: send_cq.clone(),
        recv_cq: recv_cq.clone(),
        srq: None,
        cap,
        qp_type: QpType::Rc,
        sq_sig_all: false,
        cookie,
    };
    Side {
        engine: of.engine.clone(),
        context: of.context.clone(),
        pd: of.pd.clone(),
        channel: of.channel.clone(),
        cq: send_cq.clone(),
        qp: of.pd.create_qp(init).unwrap(),
        mr: of.mr.clone(),
        memory: of.memory,
    }
}

/// Returns and acknowledges the pending asynchronous events.
fn events(side: &Side) -> Vec<(AsyncEventKind, EventElement)> {
    let take = || side.context.take_async_event().unwrap();
    let taken = std::iter::from_fn(take).inspect(|event| side.context.ack_async_event(event));
    taken.map(|event| (event.kind, event.element)).collect()
}

/// An application may give all its objects the same cookie.
//= AEV-12 type=test
//= CQ-08 type=test
//= AEV-13 type=test
#[test]
fn an_object_that_ends_takes_no_events_of_others_along() {
    let (a, b) = pair("127.2.5.17", "127.2.5.18", 4096);
    let (second, peer) = (
        sibling(&a, (&a.cq, &a.cq), 9),
        sibling(&b, (&b.cq, &b.cq), 9),
    );
    connect(&second, &peer);
    for side in [&a, &second] {
        let attr = QpAttr {
            qp_state: QpState::Sqd.code(),
            en_sqd_async_notify: true,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
        side.qp.modify(&attr, mask).unwrap();
    }
    second.qp.destroy().unwrap();
    let drained = (AsyncEventKind::SqDrained, EventElement::Qp(9));
    assert_eq!(events(&a), [drained]);

    // Two CQs overflow, and their QPs enter ERR.
    let cqs = [1, 1].map(|cqe| a.context.create_cq(cqe, None, 0, 5).unwrap());
    for cq in &cqs {
        let (qp, peer) = (sibling(&a, (cq, cq), 6), sibling(&b, (&b.cq, &b.cq), 6));
        connect(&qp, &peer);
        assert!((0..3).all(|wr_id| post(&qp, wr_id, SendFlags::SIGNALED)));
        while qp.qp.state() != QpState::Err {
            thread::yield_now();
        }
        qp.qp.destroy().unwrap();
    }
    cqs[1].destroy().unwrap();
    let overrun = (AsyncEventKind::CqErr, EventElement::Cq(5));
    assert_eq!(events(&a), [overrun]);
}

//= CQ-02 type=test
//= CQ-15 type=test
//= AEV-00 AEV-01 type=test
#[test]
fn an_overrun_cq_has_one_event_and_takes_all_its_queue_pairs_along() {
    let (a, b) = (Side::new("127.2.5.13", 4096), Side::new("127.2.5.14", 4096));
    let other = a.context.create_cq(100, None, 0, 8).unwrap();
    let sends_there = sibling(&a, (&a.cq, &other), 1);
    let receives_there = sibling(&a, (&other, &a.cq), 2);
    let idle = sibling(&a, (&a.cq, &a.cq), 3);
    let elsewhere = sibling(&a, (&other, &other), 4);
    let peers: Vec<Side> = (0..3).map(|n| sibling(&b, (&b.cq, &b.cq), n)).collect();
    a.cq.resize(2).unwrap();
    connect(&a, &b);
    connect(&sends_there, &peers[0]);
    connect(&receives_there, &peers[1]);
    connect(&elsewhere, &peers[2]);
    idle.to_rtr(2, b.gid());
    assert!(post_recv(&receives_there, 5));
    assert!(post_recv(&sends_there, 6));

    // Posts more requests than fit in, and more at once.
    for wr_id in 0..10 {
        assert!(post(&a, wr_id, SendFlags::SIGNALED));
    }
    let first = next_event(&a);
    assert_eq!(
        (first.kind, first.element),
        (AsyncEventKind::CqErr, EventElement::Cq(7))
    );
    let mut fatal = Vec::new();
    while fatal.len() < 4 {
        let event = next_event(&a);
        assert_eq!(event.kind, AsyncEventKind::QpFatal, "{event:?}");
        let EventElement::Qp(cookie) = event.element else {
            panic!("{event:?}");
        };
        fatal.push(cookie);
        for side in [&a, &sends_there, &receives_there, &idle] {
            assert_eq!(side.qp.state(), QpState::Err, "after {fatal:?}");
        }
    }
    fatal.sort_unstable();
    assert_eq!(fatal, [1, 2, 3, 9]);
    assert_eq!(elsewhere.qp.state(), QpState::Rts);

    // Later completions are lost without a further event, and earlier ones can be polled.
    for wr_id in 10..20 {
        post(&a, wr_id, SendFlags::SIGNALED);
    }
    let found: Vec<u64> = std::iter::from_fn(|| a.cq.poll_one().map(|c| c.wr_id)).collect();
    assert_eq!(found, [0, 1]);
    post(&a, 20, SendFlags::SIGNALED);
    assert!(a.cq.poll_one().is_none());
    // Other CQs of the QPs work.
    let flushed = other.poll_one().unwrap();
    assert_eq!((flushed.wr_id, flushed.status), (6, WcStatus::WrFlushErr));
    drain(&elsewhere, 0);
}

/// A QP that loses a completion to a CQ that was overrun before also enters ERR.
//= CQ-02 type=test
#[test]
fn an_overrun_cq_stays_one() {
    let (a, b) = (Side::new("127.2.5.15", 4096), Side::new("127.2.5.16", 4096));
    a.cq.resize(1).unwrap();
    let idle = sibling(&a, (&a.cq, &a.cq), 2);
    idle.to_rtr(2, b.gid());
    to_err(&a);
    assert!(post(&a, 1, SendFlags::SIGNALED));
    assert!(post(&a, 2, SendFlags::SIGNALED));
    assert_eq!(next_event(&a).kind, AsyncEventKind::CqErr);
    // An application that gets this event finds all present QPs in ERR. Another QP is not one of
    // them.
    let event = next_event(&a);
    assert_eq!(
        (event.kind, event.element),
        (AsyncEventKind::QpFatal, EventElement::Qp(2))
    );
    let late = sibling(&a, (&a.cq, &a.cq), 1);
    connect(&late, &b);
    assert!(post(&late, 3, SendFlags::SIGNALED));
    let event = next_event(&a);
    assert_eq!(
        (event.kind, event.element),
        (AsyncEventKind::QpFatal, EventElement::Qp(1))
    );
    assert_eq!(late.qp.state(), QpState::Err);
    // Unread events are dropped with their QP.
    late.qp.destroy().unwrap();
    idle.qp.destroy().unwrap();
    a.qp.destroy().unwrap();
    a.cq.destroy().unwrap();
}
