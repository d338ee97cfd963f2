//! The QP's states: who may do what, flush, drain, reset, and the table of `modify_qp`.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::net::IpAddr;

use rocade_wire::{Gid, Mtu};

use super::{PMTU, Request, answers, operations, read, register, register_filled, send, statuses, write};
use crate::testing::{Fate, Pair, Setup, Side, context};
use crate::{
    ModifyContext, ModifyError, PostError, Qp, QpAttr, QpAttrMask, QpEvent, QpState, QpType,
    SendFlags, SendWr, Time, WcStatus, transition_rule,
};

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;
const NO_MORE: QpAttrMask = QpAttrMask::empty();

/// The states of an RC QP.
const STATES: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

fn setup() -> Setup {
    Setup::new(0x11, IpAddr::from([10, 0, 0, 1]), 0x22, IpAddr::from([10, 0, 0, 2]))
}

fn modify(qp: &mut Qp, attr: &QpAttr, mask: QpAttrMask) -> Result<(), ModifyError> {
    qp.modify(Time::ZERO, attr, mask, &context(setup().local))
}

//= PST-01, PST-02, PST-03, PST-04, PST-05, PST-07, RC-STA-02 type=test
#[test]
fn states_decide_what_may_be_posted() {
    let wr = SendWr { wr_id: 1, op: send(), flags: SendFlags::empty(), sges: &[] };
    let invalid = Err(PostError::InvalidState);
    for state in STATES {
        let mut qp = setup().build(state);
        let may_send = matches!(state, QpState::Rts | QpState::Sqd | QpState::Err);
        let sent = qp.post_send(Time::ZERO, &wr, None);
        assert_eq!(sent, if may_send { Ok(()) } else { invalid }, "{state:?}");
        let received = qp.post_recv(Time::ZERO, 2, &[]);
        assert_eq!(received, if state == QpState::Reset { invalid } else { Ok(()) });
        let completions: Vec<_> = core::iter::from_fn(|| qp.poll_completion()).collect();
        let expected = if state == QpState::Err { vec![(1, FLUSHED), (2, FLUSHED)] } else { vec![] };
        assert_eq!(statuses(&completions), expected);
    }
}

//= RC-RSP-01, PST-01, PST-02, PST-03, PST-04, PST-05, PST-07 type=test
#[test]
fn states_decide_who_is_answered() {
    for state in STATES {
        let mut pair = Pair::in_states(QpState::Rts, state, |_, _| {});
        let region = register(&pair, Side::B, 8);
        if matches!(state, QpState::Reset | QpState::Init) {
            pair.node_mut(Side::B).qp.abandon();
        }
        let request = Request::new(rocade_wire::Operation::WriteOnly, 0);
        request.reth(region.addr, region.rkey, 1).payload(&[1]).inject(&mut pair);
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
#[test]
fn entering_the_error_state_flushes_everything_in_order() {
    let mut pair = Pair::new(|_, setup| setup.config.sq_sig_all = false);
    let region = register(&pair, Side::B, 2 * PMTU);
    let here = register(&pair, Side::A, 2 * PMTU);
    for id in 10..13 {
        pair.recv(Side::A, id, &[here.sge()]);
    }
    // A receive that is being filled: the flush takes it first.
    pair.send(Side::B, 1, send(), &[region.sge()]);
    pair.set_network(|t| if t.packet.bth().psn.get() & 1 == 0 { Fate::Deliver } else { Fate::Drop });
    pair.run_for(10_000);
    assert_eq!(pair.node(Side::A).mem.writes(), 1);
    pair.set_network(|_| Fate::Drop);
    for wr_id in 0..3 {
        let wr = SendWr { wr_id, op: write(&region), flags: SendFlags::empty(), sges: &[] };
        pair.try_send(Side::A, &wr).unwrap();
    }
    pair.drain_both();
    pair.modify(Side::A, QpState::Err, NO_MORE, &QpAttr::default());
    pair.run_for(1000);
    let completions = pair.take_completions(Side::A);
    assert_eq!(statuses(&completions), [0, 1, 2, 10, 11, 12].map(|id| (id, FLUSHED)));
    assert!(completions.iter().all(|c| c.is_send == (c.wr_id < 10)));
    assert_eq!(pair.node(Side::A).qp.next_timeout(), None);
    assert_eq!(pair.take_events(Side::A), []);
}

//= RC-STA-04 type=test
#[test]
fn reset_forgets_everything() {
    let mut pair = Pair::default();
    let region = register_filled(&pair, Side::B, 100, 1);
    pair.set_network(|_| Fate::Drop);
    pair.send(Side::A, 1, write(&region), &[]);
    pair.recv(Side::A, 2, &[]);
    pair.drain_both();
    pair.modify(Side::A, QpState::Reset, NO_MORE, &QpAttr::default());
    assert_eq!(pair.take_completions(Side::A), []);
    let qp = &pair.node(Side::A).qp;
    assert_eq!((qp.send_queue_len(), qp.recv_queue_len(), qp.next_timeout()), (0, 0, None));
    let cap = qp.config().cap;
    assert_eq!(qp.query(), QpAttr { cap, ..QpAttr::default() });
    // And it can be connected again, from PSN 5 on.
    pair.modify(Side::B, QpState::Reset, NO_MORE, &QpAttr::default());
    for (side, setup) in [(Side::A, Setup::new(0x11, IpAddr::from([10, 0, 0, 1]), 0x22, IpAddr::from([10, 0, 0, 2]))),
        (Side::B, Setup::new(0x22, IpAddr::from([10, 0, 0, 2]), 0x11, IpAddr::from([10, 0, 0, 1])))] {
        for (next, mask) in Setup::PATH_TO_RTS {
            pair.modify(side, next, mask, &QpAttr { sq_psn: 5, rq_psn: 5, ..setup.attr });
        }
    }
    pair.heal();
    pair.clear_trace();
    pair.send(Side::A, 3, write(&region), &[]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(3, OK)]);
    assert_eq!(pair.trace()[0].packet().bth().psn.get(), 5);
    assert_eq!(pair.trace()[1].packet().headers().aeth.unwrap().msn.get(), 1);
}

//= RC-STA-06, PST-05, AEV-05 type=test
#[test]
fn sqd_finishes_what_was_started() {
    let mut pair = Pair::default();
    let len = 200_000;
    let here = register(&pair, Side::A, len);
    let there = register(&pair, Side::B, len);
    pair.set_network(|_| Fate::Drop);
    // More than the window holds: it is on its way when the QP is drained.
    pair.send(Side::A, 1, write(&there), &[here.sge()]);
    pair.drain_both();
    pair.send(Side::A, 2, write(&there), &[]);
    pair.heal();
    let notify = QpAttr { en_sqd_async_notify: true, ..QpAttr::default() };
    pair.modify(Side::A, QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, &notify);
    pair.send(Side::A, 3, read(&there), &[here.sge()]);
    assert!(pair.node(Side::A).qp.query().sq_draining);
    // Attributes may change only when all is drained.
    let attr = QpAttr { timeout: 16, ..QpAttr::default() };
    let qp = &mut pair.node_mut(Side::A).qp;
    let sqd = QpAttr { qp_state: QpState::Sqd.code(), ..attr };
    let mask = QpAttrMask::STATE | QpAttrMask::TIMEOUT;
    assert_eq!(modify(qp, &sqd, mask), Err(ModifyError::NotDrained));
    assert_eq!(modify(qp, &sqd, QpAttrMask::TIMEOUT), Err(ModifyError::NotDrained));
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, OK)]);
    assert_eq!(pair.take_events(Side::A), [QpEvent::SqDrained]);
    assert!(!pair.node(Side::A).qp.query().sq_draining);
    assert_eq!(modify(&mut pair.node_mut(Side::A).qp, &sqd, mask), Ok(()));
    assert_eq!(pair.node(Side::A).qp.query().timeout, 16);
    // The responder side works on.
    pair.send(Side::B, 7, write(&here), &[there.part(0, 8)]);
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::B)), [(7, OK)]);
    assert_eq!(pair.take_completions(Side::A), []);
    pair.modify(Side::A, QpState::Rts, NO_MORE, &QpAttr::default());
    pair.run();
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(2, OK), (3, OK)]);
    assert_eq!(pair.take_events(Side::A), []);
}

//= RC-STA-06 type=test
#[test]
fn an_idle_send_queue_is_drained_at_once() {
    for notify in [true, false] {
        let mut pair = Pair::default();
        let attr = QpAttr { en_sqd_async_notify: notify, ..QpAttr::default() };
        pair.modify(Side::A, QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, &attr);
        pair.run();
        let expected: &[QpEvent] = if notify { &[QpEvent::SqDrained] } else { &[] };
        assert_eq!(pair.take_events(Side::A), expected);
    }
}

//= RC-STA-10 type=test
#[test]
fn a_lost_completion_is_fatal() {
    let mut pair = Pair::default();
    pair.recv(Side::A, 1, &[]);
    let now = pair.now();
    for _ in 0..2 {
        pair.node_mut(Side::A).qp.set_fatal(now);
    }
    pair.run();
    assert_eq!(pair.take_events(Side::A), [QpEvent::Fatal]);
    assert_eq!(statuses(&pair.take_completions(Side::A)), [(1, FLUSHED)]);
    assert_eq!(operations(&pair, Side::A), []);
}

/// The table as text: `TYPE FROM->TO required | optional`.
fn table() -> String {
    let names = |mask: QpAttrMask| {
        let names: Vec<&str> = mask.iter_names().map(|(name, _)| name).collect();
        if names.is_empty() { String::from("-") } else { names.join(" ") }
    };
    let mut table = String::from("# TYPE FROM->TO: required (besides STATE) | optional\n");
    for qp_type in QpType::ALL {
        for from in QpState::ALL {
            for to in QpState::ALL {
                if let Some(rule) = transition_rule(qp_type, from, to) {
                    let (required, optional) = (names(rule.required), names(rule.optional));
                    writeln!(table, "{qp_type:?} {from:?}->{to:?}: {required} | {optional}").unwrap();
                }
            }
        }
    }
    table
}

/// Every transition of every type, as reviewed against QPT-01 to QPT-34. After a deliberate
/// change: `ROCADE_BLESS=1 cargo test -p rocade-transport`.
//= QPT-01, QPT-34 type=test
#[test]
fn the_transition_table_is_the_committed_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/transitions.txt");
    if std::env::var_os("ROCADE_BLESS").is_some() {
        std::fs::write(path, table()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), table());
}

/// All attributes valid for any transition.
fn full_attr(next: QpState) -> QpAttr {
    QpAttr {
        qp_state: next.code(),
        alt_ah_attr: setup().attr.ah_attr,
        alt_port_num: 1,
        ..setup().attr
    }
}

//= QPS-02, QPS-03, QPS-04, QPS-06 type=test
#[test]
fn masks_must_match_the_table_exactly() {
    for from in STATES {
        for to in QpState::ALL {
            let rule = transition_rule(QpType::Rc, from, to);
            let attempt = |mask: QpAttrMask| {
                let mut qp = setup().build(from);
                let before = qp.query();
                let attr = QpAttr { cur_qp_state: from.code(), ..full_attr(to) };
                let result = modify(&mut qp, &attr, mask);
                if result.is_ok() {
                    assert_eq!(qp.state(), to);
                } else {
                    assert_eq!((qp.state(), qp.query()), (from, before), "nothing changes");
                }
                result
            };
            let Some(rule) = rule else {
                for bit in QpAttrMask::all().iter() {
                    assert!(attempt(QpAttrMask::STATE | bit).is_err());
                }
                assert_eq!(attempt(QpAttrMask::STATE), Err(ModifyError::NoTransition));
                continue;
            };
            let required = rule.required | QpAttrMask::STATE;
            assert_eq!(attempt(required), Ok(()), "{from:?} {to:?}");
            assert_eq!(attempt(required | rule.optional), Ok(()), "{from:?} {to:?}");
            for bit in rule.required.iter() {
                assert_eq!(attempt(required - bit), Err(ModifyError::MissingAttr));
                assert_eq!(attempt((required | rule.optional) - bit), Err(ModifyError::MissingAttr));
            }
            for bit in rule.optional.iter() {
                assert_eq!(attempt(required | bit), Ok(()), "{from:?} {to:?} {bit:?}");
            }
            let unexpected = QpAttrMask::all() - required - rule.optional;
            for bit in unexpected.iter() {
                let error = attempt(required | bit).unwrap_err();
                let cur_of_unnamable = bit == QpAttrMask::CUR_STATE
                    && matches!(from, QpState::Reset | QpState::Init | QpState::Err);
                let expected = if cur_of_unnamable {
                    ModifyError::WrongCurrentState
                } else {
                    ModifyError::UnexpectedAttr
                };
                assert_eq!(error, expected, "{from:?} {to:?} {bit:?}");
            }
            let unknown = QpAttrMask::from_bits_retain(1 << 30);
            assert_eq!(attempt(required | unknown), Err(ModifyError::UnexpectedAttr));
            // Without STATE, the state stays.
            if from == to {
                assert_eq!(attempt(rule.required), Ok(()));
            }
        }
    }
    let mut qp = setup().build(QpState::Rtr);
    let attr = QpAttr { qp_state: 7, ..full_attr(QpState::Rts) };
    assert_eq!(modify(&mut qp, &attr, QpAttrMask::STATE), Err(ModifyError::BadValue("qp_state")));
    for cur in [1, 3, 6, 7, u32::MAX] {
        let attr = QpAttr { cur_qp_state: cur, ..full_attr(QpState::Rts) };
        let mask = Setup::PATH_TO_RTS[2].1 | QpAttrMask::CUR_STATE;
        assert_eq!(modify(&mut qp, &attr, mask), Err(ModifyError::WrongCurrentState));
    }
}

/// Every attribute at and beyond its limit, on the transition that requires it.
//= QPV-01, QPV-03, QPV-04, QPV-09 type=test
#[test]
fn values_are_checked() {
    type Case = (&'static str, QpState, QpAttrMask, fn(&mut QpAttr));
    let alt = QpAttrMask::ALT_PATH;
    let none = NO_MORE;
    let (init, rtr, rts) = (QpState::Init, QpState::Rtr, QpState::Rts);
    let bad: [Case; 24] = [
        ("port_num", init, none, |a| a.port_num = 0),
        ("port_num", init, none, |a| a.port_num = 2),
        ("pkey_index", init, none, |a| a.pkey_index = 1),
        ("path_mtu", rtr, none, |a| a.path_mtu = 0),
        ("path_mtu", rtr, none, |a| a.path_mtu = 6),
        ("path_mtu", rtr, none, |a| a.path_mtu = 256 + 3),
        ("max_dest_rd_atomic", rtr, none, |a| a.max_dest_rd_atomic = 129),
        ("min_rnr_timer", rtr, none, |a| a.min_rnr_timer = 32),
        ("ah_attr.port_num", rtr, none, |a| a.ah_attr.port_num = 2),
        ("ah_attr.is_global", rtr, none, |a| a.ah_attr.is_global = false),
        ("ah_attr.sl", rtr, none, |a| a.ah_attr.sl = 8),
        ("ah_attr.grh.dgid", rtr, none, |a| a.ah_attr.dgid = Gid::default()),
        ("ah_attr.grh.dgid", rtr, none, |a| {
            a.ah_attr.dgid = Gid::from_ip(IpAddr::from([0xff12, 0, 0, 0, 0, 0, 0, 1]));
        }),
        ("ah_attr.grh.dgid", rtr, none, |a| {
            a.ah_attr.dgid = Gid::from_ip(IpAddr::from([224, 0, 0, 1]));
        }),
        ("ah_attr.grh.dgid", rtr, none, |a| {
            a.ah_attr.dgid = Gid::from_ip(IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, 1]));
        }),
        ("alt_port_num", rtr, alt, |a| a.alt_port_num = 2),
        ("alt_port_num", rtr, alt, |a| a.alt_ah_attr.port_num = 2),
        ("alt_timeout", rtr, alt, |a| a.alt_timeout = 32),
        ("timeout", rts, none, |a| a.timeout = 32),
        ("retry_cnt", rts, none, |a| a.retry_cnt = 8),
        ("rnr_retry", rts, none, |a| a.rnr_retry = 8),
        ("max_rd_atomic", rts, none, |a| a.max_rd_atomic = 129),
        ("alt_port_num", rts, alt, |a| a.alt_port_num = 0),
        ("min_rnr_timer", rts, QpAttrMask::MIN_RNR_TIMER, |a| a.min_rnr_timer = 255),
    ];
    for (field, next, more, spoil) in bad {
        let (index, mask) = Setup::PATH_TO_RTS
            .iter()
            .enumerate()
            .find_map(|(i, (state, mask))| (*state == next).then_some((i, *mask | more)))
            .unwrap();
        let from = [QpState::Reset, init, rtr][index];
        let mut qp = setup().build(from);
        let before = qp.query();
        let mut attr = full_attr(next);
        spoil(&mut attr);
        assert_eq!(modify(&mut qp, &attr, mask), Err(ModifyError::BadValue(field)));
        assert_eq!((qp.state(), qp.query()), (from, before));
    }
    let mut qp = setup().build(init);
    let mask = Setup::PATH_TO_RTS[1].1;
    let empty_entry = ModifyContext { sgid: None, ..context(setup().local) };
    let result = qp.modify(Time::ZERO, &full_attr(rtr), mask, &empty_entry);
    assert_eq!(result, Err(ModifyError::BadValue("ah_attr.grh.sgid_index")));
    let small = ModifyContext { active_mtu: Mtu::Mtu512, ..context(setup().local) };
    let result = qp.modify(Time::ZERO, &full_attr(rtr), mask, &small);
    assert_eq!(result, Err(ModifyError::BadValue("path_mtu")));
    // The greatest values are fine; bits above the 24th of numbers do not count.
    let attr = QpAttr {
        path_mtu: 5,
        max_dest_rd_atomic: 128,
        min_rnr_timer: 31,
        dest_qp_num: 0xff00_0022,
        rq_psn: 0xffff_ffff,
        ..full_attr(rtr)
    };
    assert_eq!(modify(&mut qp, &attr, mask), Ok(()));
    assert_eq!((qp.query().dest_qp_num, qp.query().rq_psn), (0x22, 0xff_ffff));
    let attr = QpAttr { timeout: 31, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 128, ..full_attr(rts) };
    assert_eq!(modify(&mut qp, &attr, Setup::PATH_TO_RTS[2].1), Ok(()));
}

//= QPS-06 type=test
#[test]
fn query_shows_what_was_set() {
    let mut qp = setup().build(QpState::Rts);
    let cap = qp.config().cap;
    let state = QpState::Rts.code();
    let expected = QpAttr { qp_state: state, cur_qp_state: state, cap, ..setup().attr };
    assert_eq!(qp.query(), expected);
    let attr = QpAttr { min_rnr_timer: 3, qp_access_flags: crate::AccessFlags::REMOTE_READ, timeout: 1, ..expected };
    modify(&mut qp, &attr, QpAttrMask::MIN_RNR_TIMER | QpAttrMask::ACCESS_FLAGS).unwrap();
    assert_eq!(qp.query(), QpAttr { timeout: 14, ..attr });
}
