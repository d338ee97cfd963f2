//! The QP's states: permitted calls, flush, drain, reset.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use super::{
    PMTU, Request, answers, operations, read, register, register_filled, send, statuses, write,
};
use crate::testing::{Delivery, Pair, Setup, Side, context};
use crate::{
    ModifyError, PostError, Qp, QpAttr, QpAttrMask, QpEvent, QpState, SendFlags, SendWr, Time,
    WcStatus,
};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;
pub(super) const NO_MORE: QpAttrMask = QpAttrMask::empty();

/// The states of an RC QP.
pub(super) const STATES: [QpState; 6] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Err,
];

pub(super) fn setup() -> Setup {
    Setup::new(
        0x11,
        IpAddr::from([10, 0, 0, 1]),
        0x22,
        IpAddr::from([10, 0, 0, 2]),
    )
}

pub(super) fn modify(qp: &mut Qp, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyError> {
    qp.modify(Time::ZERO, attr, mask, &context(setup().local))
}

//= PST-01 PST-02 PST-03 type=test
//= PST-04 PST-05 PST-07 type=test
//= RC-STA-02 type=test
#[test]
fn states_decide_what_may_be_posted() {
    let wr = SendWr {
        wr_id: 1,
        op: send(),
        flags: SendFlags::empty(),
        sges: &[],
    };
    let invalid = Err(PostError::InvalidState);
    for state in STATES {
        let mut qp = setup().build(state);
        let may_send = matches!(state, QpState::Rts | QpState::Sqd | QpState::Err);
        let sent = qp.post_send(Time::ZERO, &wr, None);
        assert_eq!(sent, if may_send { Ok(()) } else { invalid }, "{state:?}");
        let received = qp.post_recv(Time::ZERO, 2, &[]);
        assert_eq!(
            received,
            if state == QpState::Reset {
                invalid
            } else {
                Ok(())
            }
        );
        let completions: Vec<_> = core::iter::from_fn(|| qp.poll_completion()).collect();
        let expected = if state == QpState::Err {
            vec![(1, FLUSHED), (2, FLUSHED)]
        } else {
            vec![]
        };
        assert_eq!(statuses(&completions), expected);
    }
}

//= RC-RSP-01 PST-01 PST-02 type=test
//= PST-03 PST-04 PST-05 type=test
//= PST-07 type=test
#[test]
fn states_decide_who_is_answered() {
    for state in STATES {
        let mut pair = Pair::in_states(QpState::Rts, state, |_, _| {});
        let region = register(&pair, Side::B, 8);
        if matches!(state, QpState::Reset | QpState::Init) {
            pair.node_mut(Side::B).qp.abandon();
        }
        let request = Request::new(rocade_wire::Operation::WriteOnly, 0);
        request
            .reth(region.addr, region.rkey, 1)
            .payload(&[1])
            .inject(&mut pair);
        let alive = matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        assert_eq!(answers(&mut pair).len(), usize::from(alive), "{state:?}");
        assert_eq!(pair.node(Side::B).mem.writes(), u64::from(alive));
    }
}

//= RC-STA-07, AEV-04 type=test
#[test]
fn the_first_request_in_rtr_is_announced_once() {
    let mut pair = Pair::in_states(QpState::Rts, QpState::Rtr, |_, _| {});
    let region = register(&pair, Side::B, 8);
    for id in 0..3 {
        pair.send(Side::A, id, write(&region), &[]);
        pair.run();
    }
    assert_eq!(pair.take_events(Side::B), [QpEvent::CommEst]);
    assert_eq!(pair.node(Side::B).qp.state(), QpState::Rtr);
    assert_eq!(pair.take_completions(Side::A).len(), 3);
}

//= RC-STA-01, RC-STA-03, RC-WQE-02 type=test
//= WCS-05 type=test
//= CQ-11 type=test
#[test]
fn entering_the_error_state_flushes_everything_in_order() {
    let mut pair = Pair::new(|_, setup| setup.config.sq_sig_all = false);
    let region = register(&pair, Side::B, 2 * PMTU);
    let here = register(&pair, Side::A, 2 * PMTU);
    for id in 10..13 {
        pair.recv(Side::A, id, &[here.sge()]);
    }
    // A receive that is being filled is flushed first.
    pair.send(Side::B, 1, send(), &[region.sge()]);
    pair.set_network(|t| {
        if t.packet.bth().psn.get() & 1 == 0 {
            Delivery::Deliver
        } else {
            Delivery::Drop
        }
    });
    pair.run_for(10_000);
    assert_eq!(pair.node(Side::A).mem.writes(), 1);
    pair.set_network(|_| Delivery::Drop);
    for wr_id in 0..3 {
        let wr = SendWr {
            wr_id,
            op: write(&region),
            flags: SendFlags::empty(),
            sges: &[],
        };
        pair.try_send(Side::A, &wr).unwrap();
    }
    pair.drain_both();
    pair.modify(Side::A, QpState::Err, NO_MORE, &QpAttr::default());
    pair.run_for(1000);
    let completions = pair.take_completions(Side::A);
    assert_eq!(
        statuses(&completions),
        [0, 1, 2, 10, 11, 12].map(|id| (id, FLUSHED))
    );
    assert!(completions.iter().all(|c| c.is_send() == (c.wr_id < 10)));
    assert_eq!(pair.node(Side::A).qp.next_timeout(), None);
    assert_eq!(pair.take_events(Side::A), []);
}

//= RC-STA-04 type=test
#[test]
fn reset_forgets_everything() {
    let mut pair = Pair::default();
    let region = register_filled(&pair, Side::B, 100, 1);
    pair.set_network(|_| Delivery::Drop);
    pair.send(Side::A, 1, write(&region), &[]);
    pair.recv(Side::A, 2, &[]);
    pair.drain_both();
    pair.modify(Side::A, QpState::Reset, NO_MORE, &QpAttr::default());
    assert_eq!(pair.take_completions(Side::A), []);
    let qp = &pair.node(Side::A).qp;
    assert_eq!(
        (qp.send_queue_len(), qp.recv_queue_len(), qp.next_timeout()),
        (0, 0, None)
    );
    let cap = qp.config().cap;
    assert_eq!(
        qp.query(),
        QpAttr {
            cap,
            ..QpAttr::default()
        }
    );
    // The QP can be connected again, from PSN 5 on.
    pair.modify(Side::B, QpState::Reset, NO_MORE, &QpAttr::default());
    for (side, setup) in [
        (
            Side::A,
            Setup::new(
                0x11,
                IpAddr::from([10, 0, 0, 1]),
                0x22,
                IpAddr::from([10, 0, 0, 2]),
            ),
        ),
        (
            Side::B,
            Setup::new(
                0x22,
                IpAddr::from([10, 0, 0, 2]),
                0x11,
                IpAddr::from([10, 0, 0, 1]),
            ),
        ),
    ] {
        for (next, mask) in Setup::PATH_TO_RTS {
            pair.modify(
                side,
                next,
                mask,
                &QpAttr {
                    sq_psn: 5,
                    rq_psn: 5,
                    ..setup.attr
                },
            );
        }
    }
    pair.heal();
    pair.clear_trace();
    pair.send(Side::A, 3, write(&region), &[]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(3, OK)]);
    assert_eq!(pair.trace()[0].packet().bth().psn.get(), 5);
    assert_eq!(
        pair.trace()[1].packet().headers().aeth.unwrap().msn.get(),
        1
    );
}

//= RC-STA-06, PST-05, AEV-05 type=test
#[test]
fn sqd_finishes_what_was_started() {
    let mut pair = Pair::default();
    let len = 200_000;
    let here = register(&pair, Side::A, len);
    let there = register(&pair, Side::B, len);
    pair.set_network(|_| Delivery::Drop);
    // More than the window holds: it is in flight when the QP is drained.
    pair.send(Side::A, 1, write(&there), &[here.sge()]);
    pair.drain_both();
    pair.send(Side::A, 2, write(&there), &[]);
    pair.heal();
    let notify = QpAttr {
        en_sqd_async_notify: true,
        ..QpAttr::default()
    };
    pair.modify(
        Side::A,
        QpState::Sqd,
        QpAttrMask::EN_SQD_ASYNC_NOTIFY,
        &notify,
    );
    pair.send(Side::A, 3, read(&there), &[here.sge()]);
    assert!(pair.node(Side::A).qp.query().sq_draining);
    // Attributes may change only once the queue is drained.
    let attr = QpAttr {
        timeout: 16,
        ..QpAttr::default()
    };
    let qp = &mut pair.node_mut(Side::A).qp;
    let sqd = QpAttr {
        qp_state: QpState::Sqd.code(),
        ..attr
    };
    let mask = QpAttrMask::STATE | QpAttrMask::TIMEOUT;
    assert_eq!(modify(qp, &sqd, mask), Err(ModifyError::NotDrained));
    assert_eq!(
        modify(qp, &sqd, QpAttrMask::TIMEOUT),
        Err(ModifyError::NotDrained)
    );
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert_eq!(pair.take_events(Side::A), [QpEvent::SqDrained]);
    assert!(!pair.node(Side::A).qp.query().sq_draining);
    assert_eq!(modify(&mut pair.node_mut(Side::A).qp, &sqd, mask), Ok(()));
    assert_eq!(pair.node(Side::A).qp.query().timeout, 16);
    // The responder continues to work.
    pair.send(Side::B, 7, write(&here), &[there.part(0, 8)]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(7, OK)]);
    assert_eq!(pair.take_completions(Side::A), []);
    pair.modify(Side::A, QpState::Rts, NO_MORE, &QpAttr::default());
    pair.run();
    assert_eq!(
        statuses(&pair.take_completions(Side::A)),
        [(2, OK), (3, OK)]
    );
    assert_eq!(pair.take_events(Side::A), []);
}

//= RC-STA-06 type=test
#[test]
fn an_idle_send_queue_is_drained_at_once() {
    for notify in [true, false] {
        let mut pair = Pair::default();
        let attr = QpAttr {
            en_sqd_async_notify: notify,
            ..QpAttr::default()
        };
        pair.modify(
            Side::A,
            QpState::Sqd,
            QpAttrMask::EN_SQD_ASYNC_NOTIFY,
            &attr,
        );
        pair.run();
        let expected: &[QpEvent] = if notify { &[QpEvent::SqDrained] } else { &[] };
        assert_eq!(pair.take_events(Side::A), expected);
    }
}

//= RC-STA-10 type=test
//= AEV-01 type=test
#[test]
fn a_lost_completion_is_fatal() {
    let mut pair = Pair::default();
    pair.recv(Side::A, 1, &[]);
    let now = pair.now();
    for _ in 0..2 {
        pair.node_mut(Side::A).qp.set_fatal(now, 0);
    }
    pair.run();
    assert_eq!(pair.take_events(Side::A), [QpEvent::Fatal]);
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, FLUSHED)]);
    assert_eq!(operations(&pair, Side::A), []);
}
