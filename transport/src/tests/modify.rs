//! Tests of the state table of `modify_qp`, and of its value checks.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::net::IpAddr;

use rocade_wire::{Gid, Mtu};

use super::states::{NO_MORE, STATES, modify, setup};
use crate::testing::{Setup, TestDomain, context};
use crate::{
    ModifyContext, ModifyError, QpAttr, QpAttrMask, QpState, QpType, Time, TransitionRule,
    experimental_rule, transition_rule,
};

/// Returns the table as text: `TYPE FROM->TO required | optional`.
fn table() -> String {
    let names = |mask: QpAttrMask| {
        let names: Vec<&str> = mask.iter_names().map(|(name, _)| name).collect();
        if names.is_empty() {
            String::from("-")
        } else {
            names.join(" ")
        }
    };
    let mut table = String::from("# TYPE FROM->TO: required (besides STATE) | optional\n");
    for qp_type in QpType::ALL {
        for from in QpState::ALL {
            for to in QpState::ALL {
                if let Some(rule) = transition_rule(qp_type, from, to) {
                    let (required, optional) = (names(rule.required), names(rule.optional));
                    writeln!(
                        table,
                        "{qp_type:?} {from:?}->{to:?}: {required} | {optional}"
                    )
                    .unwrap();
                }
            }
        }
    }
    table
}

/// Checks which queue pairs are paced because nothing is acknowledged.
#[test]
fn only_datagrams_and_unreliable_connections_send_without_acknowledgements() {
    let ip = IpAddr::from([10, 0, 0, 1]);
    let types = [
        (QpType::Rc, false),
        (QpType::Uc, true),
        (QpType::Ud, true),
        (QpType::XrcSend, false),
        (QpType::DcInitiator, false),
    ];
    for (qp_type, expected) in types {
        let mut setup = Setup::new(0x11, ip, 0x11, ip);
        setup.config.qp_type = qp_type;
        let qp = setup.build(QpState::Reset);
        assert_eq!(qp.sends_unreliably(), expected, "{qp_type:?}");
    }
}

/// Checks every transition of every type against the reviewed table. After a deliberate change:
/// `ROCADE_BLESS=1 cargo test -p rocade-transport`.
//= QPT-01 QPT-02 QPT-04 type=test
//= QPT-05 QPT-06 QPT-08 type=test
//= QPT-09 QPT-10 QPT-11 type=test
//= QPT-12 QPT-13 QPT-14 type=test
//= QPT-15 QPT-16 QPT-17 type=test
//= QPT-18 QPT-19 QPT-20 type=test
//= QPT-21 QPT-22 QPT-23 type=test
//= QPT-24 QPT-25 QPT-26 type=test
//= QPT-27 QPT-28 QPT-29 type=test
//= QPT-30 QPT-31 QPT-32 type=test
//= QPT-33 QPT-34 type=test
#[test]
fn the_transition_table_is_the_committed_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/transitions.txt");
    if std::env::var_os("ROCADE_BLESS").is_some() {
        std::fs::write(path, table()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), table());
}

/// Checks both tables of a DC initiator, that of the experimental verbs and that of upstream verbs.
///
/// The experimental verbs tolerate the current state in each transition.
//= DCS-01..03 type=test
//= DCS-04..06 type=test
//= DCS-07 DCS-08 DCS-09 type=test
#[test]
fn a_dc_initiator_has_the_two_tables_of_the_rules() {
    use QpState::{Err, Init, Reset, Rtr, Rts};
    type Mask = QpAttrMask;
    const NONE: Mask = Mask::empty();
    let of = |masks: &[Mask]| masks.iter().copied().fold(NONE, Mask::union);
    let place = of(&[Mask::PKEY_INDEX, Mask::PORT]);
    let retries = of(&[Mask::TIMEOUT, Mask::RETRY_CNT, Mask::RNR_RETRY]);
    let retries = retries | Mask::MAX_QP_RD_ATOMIC;
    let (timer, paths) = (Mask::MIN_RNR_TIMER, Mask::ALT_PATH | Mask::PATH_MIG_STATE);
    let path = Mask::AV | Mask::PATH_MTU;
    let key = Mask::PKEY_INDEX | Mask::DC_KEY;
    let rows = [
        ((Reset, Init), (place | Mask::DC_KEY, NONE), (place, NONE)),
        (
            (Init, Init),
            (NONE, place | Mask::ACCESS_FLAGS),
            (NONE, place),
        ),
        (
            (Init, Rtr),
            (path, key),
            (Mask::PATH_MTU, Mask::PKEY_INDEX | Mask::AV),
        ),
        (
            (Rtr, Rts),
            (retries, timer | paths),
            (retries | Mask::SQ_PSN, timer),
        ),
        ((Rts, Rts), (NONE, timer | paths), (NONE, timer)),
    ];
    let ends = |from: QpState, to: QpState| match to {
        Reset => true,
        // Only a datagram or UC queue pair can be in SQE. A DC initiator has no SQD by the rules.
        Err => from != Reset,
        _ => false,
    };
    for from in QpState::ALL {
        for to in QpState::ALL {
            let row = rows.iter().find(|row| row.0 == (from, to));
            let none = (NONE, NONE);
            let found = match row {
                Some((_, experimental, upstream)) => Some((*experimental, *upstream)),
                None => ends(from, to).then_some((none, none)),
            };
            let split = |rule: TransitionRule| (rule.required, rule.optional);
            let upstream = transition_rule(QpType::DcInitiator, from, to).map(split);
            let in_use = |state| !matches!(state, QpState::Sqd | QpState::Sqe);
            if in_use(from) {
                assert_eq!(upstream, found.map(|both| both.1), "{from:?} {to:?}");
                let experimental = experimental_rule(from, to).map(split);
                type Both = ((Mask, Mask), (Mask, Mask));
                let with_current =
                    |((required, optional), _): Both| (required, optional | Mask::CUR_STATE);
                assert_eq!(experimental, found.map(with_current), "{from:?} {to:?}");
            }
        }
    }
}

/// Checks that attributes which one end of an XRC connection does not have may be set, and are
/// ignored.
//= QPV-07 type=test
#[test]
fn what_the_other_end_of_xrc_has_is_passed_over() {
    let of_target = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
    let of_initiator = QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY;
    for (qp_type, passed_over) in [
        (QpType::XrcSend, of_target),
        (QpType::XrcRecv, of_initiator),
    ] {
        let mut setup = setup();
        setup.config.qp_type = qp_type;
        setup.domain = (qp_type == QpType::XrcRecv).then(|| Arc::new(TestDomain::default()));
        for (from, to) in [
            (QpState::Init, QpState::Rtr),
            (QpState::Rtr, QpState::Rts),
            (QpState::Rts, QpState::Rts),
        ] {
            let mut qp = setup.build(from);
            // The values are invalid where they count.
            let attr = QpAttr {
                min_rnr_timer: 200,
                retry_cnt: 200,
                rnr_retry: 200,
                ..full_attr(to)
            };
            let attr = if qp_type == QpType::XrcSend {
                QpAttr {
                    retry_cnt: 7,
                    rnr_retry: 7,
                    ..attr
                }
            } else {
                QpAttr {
                    min_rnr_timer: 12,
                    ..attr
                }
            };
            let required = transition_rule(qp_type, from, to).unwrap().required;
            let mask = QpAttrMask::STATE | required;
            assert_eq!(
                modify(&mut qp, &attr, mask | passed_over),
                Ok(()),
                "{qp_type:?} {to:?}"
            );
            assert_eq!(qp.state(), to);
            let found = qp.query();
            let other = match qp_type {
                QpType::XrcSend => found.min_rnr_timer,
                _ => found.retry_cnt.max(found.rnr_retry),
            };
            assert_ne!(other, 200);
            // For RC they count.
            let mut rc = super::states::setup().build(from);
            assert!(modify(&mut rc, &attr, mask | passed_over).is_err());
        }
    }
}

/// Returns attributes that are valid for any transition.
fn full_attr(next: QpState) -> QpAttr {
    QpAttr {
        qp_state: next.code(),
        alt_ah_attr: setup().attr.ah_attr,
        alt_port_num: 1,
        ..setup().attr
    }
}

//= QPS-02 QPS-03 QPS-04 type=test
//= QPS-06 type=test
//= QPS-01 type=test
#[test]
fn masks_must_match_the_table_exactly() {
    for from in STATES {
        for to in QpState::ALL {
            let rule = transition_rule(QpType::Rc, from, to);
            let attempt = |mask: QpAttrMask| {
                let mut qp = setup().build(from);
                let before = qp.query();
                let attr = QpAttr {
                    cur_qp_state: from.code(),
                    ..full_attr(to)
                };
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
                assert_eq!(
                    attempt((required | rule.optional) - bit),
                    Err(ModifyError::MissingAttr)
                );
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
            assert_eq!(
                attempt(required | unknown),
                Err(ModifyError::UnexpectedAttr)
            );
            // Without STATE, the state stays the same.
            if from == to {
                assert_eq!(attempt(rule.required), Ok(()));
            }
        }
    }
    let mut qp = setup().build(QpState::Rtr);
    let attr = QpAttr {
        qp_state: 7,
        ..full_attr(QpState::Rts)
    };
    assert_eq!(
        modify(&mut qp, &attr, QpAttrMask::STATE),
        Err(ModifyError::BadValue("qp_state"))
    );
    for cur in [1, 3, 6, 7, u32::MAX] {
        let attr = QpAttr {
            cur_qp_state: cur,
            ..full_attr(QpState::Rts)
        };
        let mask = Setup::PATH_TO_RTS[2].1 | QpAttrMask::CUR_STATE;
        assert_eq!(
            modify(&mut qp, &attr, mask),
            Err(ModifyError::WrongCurrentState)
        );
    }
}

/// Checks every attribute at and beyond its limit, on the transition that requires it.
//= QPV-01 QPV-03 QPV-04 type=test
//= QPV-09 type=test
//= ENC-12 ENC-14 type=test
#[test]
fn values_are_checked() {
    type Case = (&'static str, QpState, QpAttrMask, fn(&mut QpAttr));
    let alt = QpAttrMask::ALT_PATH;
    let none = NO_MORE;
    let (init, rtr, rts) = (QpState::Init, QpState::Rtr, QpState::Rts);
    let bad: [Case; 29] = [
        ("port_num", init, none, |a| a.port_num = 0),
        ("port_num", init, none, |a| a.port_num = 2),
        ("pkey_index", init, none, |a| a.pkey_index = 1),
        ("path_mtu", rtr, none, |a| a.path_mtu = 0),
        ("path_mtu", rtr, none, |a| a.path_mtu = 6),
        ("path_mtu", rtr, none, |a| a.path_mtu = 256 + 3),
        ("max_dest_rd_atomic", rtr, none, |a| {
            a.max_dest_rd_atomic = 129
        }),
        ("min_rnr_timer", rtr, none, |a| a.min_rnr_timer = 32),
        ("ah_attr.port_num", rtr, none, |a| a.ah_attr.port_num = 2),
        ("ah_attr.is_global", rtr, none, |a| {
            a.ah_attr.is_global = false
        }),
        ("ah_attr.sl", rtr, none, |a| a.ah_attr.sl = 8),
        ("ah_attr.grh.dgid", rtr, none, |a| {
            a.ah_attr.dgid = Gid::default()
        }),
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
        ("alt_pkey_index", rtr, alt, |a| a.alt_pkey_index = 1),
        ("alt_ah_attr", rtr, alt, |a| a.alt_ah_attr.is_global = false),
        ("alt_ah_attr", rtr, alt, |a| a.alt_ah_attr.sl = 8),
        ("alt_ah_attr", rtr, alt, |a| {
            a.alt_ah_attr.dgid = Gid::default()
        }),
        ("alt_ah_attr", rtr, alt, |a| {
            a.alt_ah_attr.dgid = Gid::from_ip(IpAddr::from([224, 0, 0, 1]));
        }),
        ("timeout", rts, none, |a| a.timeout = 32),
        ("retry_cnt", rts, none, |a| a.retry_cnt = 8),
        ("rnr_retry", rts, none, |a| a.rnr_retry = 8),
        ("max_rd_atomic", rts, none, |a| a.max_rd_atomic = 129),
        ("alt_port_num", rts, alt, |a| a.alt_port_num = 0),
        ("min_rnr_timer", rts, QpAttrMask::MIN_RNR_TIMER, |a| {
            a.min_rnr_timer = 255
        }),
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
        assert_eq!(
            modify(&mut qp, &attr, mask),
            Err(ModifyError::BadValue(field))
        );
        assert_eq!((qp.state(), qp.query()), (from, before));
    }
    let mut qp = setup().build(init);
    let mask = Setup::PATH_TO_RTS[1].1;
    let empty_entry = ModifyContext {
        sgid: None,
        ..context(setup().local)
    };
    let result = qp.modify(Time::ZERO, &full_attr(rtr), mask, &empty_entry);
    assert_eq!(result, Err(ModifyError::BadValue("ah_attr.grh.sgid_index")));
    let small = ModifyContext {
        active_mtu: Mtu::Mtu512,
        ..context(setup().local)
    };
    let result = qp.modify(Time::ZERO, &full_attr(rtr), mask, &small);
    assert_eq!(result, Err(ModifyError::BadValue("path_mtu")));
    // The greatest values are valid. Numbers ignore the bits above the 24th.
    let attr = QpAttr {
        path_mtu: 5,
        max_dest_rd_atomic: 128,
        min_rnr_timer: 31,
        dest_qp_num: 0xff00_0022,
        rq_psn: 0xffff_ffff,
        ..full_attr(rtr)
    };
    assert_eq!(modify(&mut qp, &attr, mask), Ok(()));
    assert_eq!(
        (qp.query().dest_qp_num, qp.query().rq_psn),
        (0x22, 0xff_ffff)
    );
    let attr = QpAttr {
        timeout: 31,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 128,
        ..full_attr(rts)
    };
    assert_eq!(modify(&mut qp, &attr, Setup::PATH_TO_RTS[2].1), Ok(()));
}

//= QPS-06 type=test
#[test]
fn query_shows_what_was_set() {
    let mut qp = setup().build(QpState::Rts);
    let cap = qp.config().cap;
    let state = QpState::Rts.code();
    let expected = QpAttr {
        qp_state: state,
        cur_qp_state: state,
        cap,
        ..setup().attr
    };
    assert_eq!(qp.query(), expected);
    let attr = QpAttr {
        min_rnr_timer: 3,
        qp_access_flags: crate::AccessFlags::REMOTE_READ,
        timeout: 1,
        ..expected
    };
    modify(
        &mut qp,
        &attr,
        QpAttrMask::MIN_RNR_TIMER | QpAttrMask::ACCESS_FLAGS,
    )
    .unwrap();
    assert_eq!(
        qp.query(),
        QpAttr {
            timeout: 14,
            ..attr
        }
    );
}

/// Checks that software may rearm with an alternate path, loaded before or in the same call. It
/// cannot arm.
//= RC-APM-03 type=test
//= RC-APM-01 QPV-08 type=test
#[test]
fn migration_states_are_checked() {
    let (mig, alt) = (QpAttrMask::PATH_MIG_STATE, QpAttrMask::ALT_PATH);
    let set = |qp: &mut crate::Qp, path_mig_state: u32, mask: QpAttrMask| {
        let attr = QpAttr {
            path_mig_state,
            ..full_attr(QpState::Rts)
        };
        modify(qp, &attr, mask)
    };
    let refused = Err(ModifyError::BadValue("path_mig_state"));
    for loaded_before in [false, true] {
        let mut qp = setup().build(QpState::Rts);
        if loaded_before {
            assert_eq!(set(&mut qp, 0, alt), Ok(()));
        } else {
            assert_eq!(set(&mut qp, 1, mig), refused);
        }
        for arm in [2, 3, u32::MAX] {
            assert_eq!(set(&mut qp, arm, mig | alt), refused);
        }
        assert_eq!(qp.query().path_mig_state, 0);
        assert_eq!(set(&mut qp, 0, mig), Ok(()));
        let rearm = if loaded_before { mig } else { mig | alt };
        assert_eq!(set(&mut qp, 1, rearm), Ok(()));
        assert_eq!(qp.query().path_mig_state, 1);
        assert_eq!(set(&mut qp, 1, mig), Ok(()));
        for not_now in [0, 2] {
            assert_eq!(set(&mut qp, not_now, mig), refused);
        }
        assert_eq!(qp.query().path_mig_state, 1);
    }
}
