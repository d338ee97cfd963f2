//! `modify_qp`: validation, then application.

use alloc::boxed::Box;

use rocade_wire::{AckTimeout, Gid, Mtu, Psn, Qkey, Qpn, RnrTimer};

use super::attributes::Attributes;
use super::state::{experimental_rule, transition_rule};
use super::{ModifyContext, PendingNotices, Qp};
use crate::attr::{AddressVector, QpAttr, QpAttrMask, QpState, QpType};
use crate::error::ModifyError;
use crate::peer::{Alternate, Migration};
use crate::rate::CongestionControl;
use crate::requester::RequesterAttr;
use crate::responder::ResponderAttr;
use crate::time::Time;

const COUNTER_MAX: u8 = 7;
const CODE_MAX: u8 = 31;
const MIGRATED: u32 = Migration::Migrated as u32;
const REARM: u32 = Migration::Rearm as u32;
const ARMED: u32 = Migration::Armed as u32;

pub(super) fn modify(
    qp: &mut Qp,
    now: Time,
    attr: &QpAttr,
    mask: QpAttrMask,
    context: &ModifyContext,
) -> Result<(), ModifyError> {
    //= QPV-07
    let mask = mask.difference(qp.config.qp_type.traits().ignored);
    let next = next_state(qp, attr, mask, context)?;
    if qp.state == QpState::Sqd
        && next == QpState::Sqd
        && !qp.send.is_drained()
        && mask
            .difference(QpAttrMask::STATE | QpAttrMask::CUR_STATE)
            .bits()
            != 0
    {
        //= RC-STA-06
        return Err(ModifyError::NotDrained);
    }
    check_values(qp, attr, mask, context)?;
    qp.attr.store(attr, mask);
    apply(qp, now, mask, next, context);
    Ok(())
}

//= QPS-02..04
fn next_state(
    qp: &Qp,
    attr: &QpAttr,
    mask: QpAttrMask,
    context: &ModifyContext,
) -> Result<QpState, ModifyError> {
    let qp_type = qp.config.qp_type;
    //= DCS-08
    if qp_type.is_dynamic() && !context.experimental && !mask.contains(QpAttrMask::STATE) {
        return Err(ModifyError::MissingAttr);
    }
    let of_experimental = qp_type == QpType::DcInitiator && context.experimental;
    if of_experimental && mask.contains(QpAttrMask::CUR_STATE) {
        if QpState::from_code(attr.cur_qp_state) != Some(qp.state) {
            return Err(ModifyError::WrongCurrentState);
        }
    } else if mask.contains(QpAttrMask::CUR_STATE) {
        let named = QpState::from_code(attr.cur_qp_state);
        let may_be_named = matches!(
            named,
            Some(QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
        );
        if !may_be_named || named != Some(qp.state) {
            return Err(ModifyError::WrongCurrentState);
        }
    }
    let next = if mask.contains(QpAttrMask::STATE) {
        QpState::from_code(attr.qp_state).ok_or(ModifyError::BadValue("qp_state"))?
    } else {
        qp.state
    };
    let rule = if of_experimental {
        experimental_rule(qp.state, next)
    } else {
        transition_rule(qp_type, qp.state, next)
    };
    let rule = rule.ok_or(ModifyError::NoTransition)?;
    if !mask.contains(rule.required) {
        return Err(ModifyError::MissingAttr);
    }
    let allowed = rule.required | rule.optional | QpAttrMask::STATE;
    if !allowed.contains(mask) {
        return Err(ModifyError::UnexpectedAttr);
    }
    Ok(next)
}

fn check_values(
    qp: &Qp,
    attr: &QpAttr,
    mask: QpAttrMask,
    context: &ModifyContext,
) -> Result<(), ModifyError> {
    let limits = &qp.config.limits;
    let check = |bit: QpAttrMask, ok: bool, field: &'static str| {
        if mask.contains(bit) && !ok {
            Err(ModifyError::BadValue(field))
        } else {
            Ok(())
        }
    };
    let port_ok = |port: u8| port >= 1 && port <= limits.port_count;
    //= QPV-01, QPV-03, QPV-09
    check(QpAttrMask::PORT, port_ok(attr.port_num), "port_num")?;
    check(
        QpAttrMask::PKEY_INDEX,
        attr.pkey_index < limits.pkey_table_len,
        "pkey_index",
    )?;
    let mtu = u8::try_from(attr.path_mtu).ok().and_then(Mtu::from_code);
    let mtu_ok = mtu.is_some_and(|mtu| mtu.bytes() <= context.active_mtu.bytes());
    check(QpAttrMask::PATH_MTU, mtu_ok, "path_mtu")?;
    check(QpAttrMask::TIMEOUT, attr.timeout <= CODE_MAX, "timeout")?;
    check(
        QpAttrMask::RETRY_CNT,
        attr.retry_cnt <= COUNTER_MAX,
        "retry_cnt",
    )?;
    check(
        QpAttrMask::RNR_RETRY,
        attr.rnr_retry <= COUNTER_MAX,
        "rnr_retry",
    )?;
    check(
        QpAttrMask::MIN_RNR_TIMER,
        attr.min_rnr_timer <= CODE_MAX,
        "min_rnr_timer",
    )?;
    check(
        QpAttrMask::MAX_QP_RD_ATOMIC,
        attr.max_rd_atomic <= limits.max_qp_init_rd_atom,
        "max_rd_atomic",
    )?;
    check(
        QpAttrMask::MAX_DEST_RD_ATOMIC,
        attr.max_dest_rd_atomic <= limits.max_qp_rd_atom,
        "max_dest_rd_atomic",
    )?;
    let port = if mask.contains(QpAttrMask::PORT) {
        attr.port_num
    } else {
        qp.attr.port_num
    };
    if mask.contains(QpAttrMask::AV) {
        let is_dynamic = qp.config.qp_type.is_dynamic();
        check_av(&attr.ah_attr, port, is_dynamic, context)?;
    }
    //= QPV-01
    let alt_port_ok = port_ok(attr.alt_port_num) && attr.alt_port_num == attr.alt_ah_attr.port_num;
    check(QpAttrMask::ALT_PATH, alt_port_ok, "alt_port_num")?;
    check(
        QpAttrMask::ALT_PATH,
        attr.alt_timeout <= CODE_MAX,
        "alt_timeout",
    )?;
    check(
        QpAttrMask::ALT_PATH,
        attr.alt_pkey_index < limits.pkey_table_len,
        "alt_pkey_index",
    )?;
    //= QPV-08
    let alternate = &attr.alt_ah_attr;
    check(
        QpAttrMask::ALT_PATH,
        has_destination(alternate) && alternate_ok(qp, attr, mask, context),
        "alt_ah_attr",
    )?;
    check(
        QpAttrMask::PATH_MIG_STATE,
        may_migrate(qp, attr, mask),
        "path_mig_state",
    )
}

/// Returns true if software may request this migration state.
///
/// It may rearm if there is an alternate path, force the migration of an armed path, and request
/// the current state.
//= RC-APM-03
fn may_migrate(qp: &Qp, attr: &QpAttr, mask: QpAttrMask) -> bool {
    let has_alternate = mask.contains(QpAttrMask::ALT_PATH) || qp.attr.alternate().port_num != 0;
    match (qp.attr.path_mig_state, attr.path_mig_state) {
        (MIGRATED | ARMED, MIGRATED) => true,
        (MIGRATED | REARM, REARM) => has_alternate,
        _ => false,
    }
}

/// Returns true if an address is valid for a connected QP.
fn has_destination(av: &AddressVector) -> bool {
    av.is_global && av.sl <= 7 && !av.dgid.is_zero() && !av.dgid.is_multicast()
}

/// Returns true if the alternate path is valid.
///
/// Its source has an address of the peer's IP version, and its port supports the path MTU of the
/// primary path.
//= RC-APM-08 QPV-04 ENC-12
fn alternate_ok(qp: &Qp, attr: &QpAttr, mask: QpAttrMask, context: &ModifyContext) -> bool {
    let path_mtu = if mask.contains(QpAttrMask::PATH_MTU) {
        attr.path_mtu
    } else {
        qp.attr.path_mtu
    };
    let alternate = &context.alternate;
    let to = attr.alt_ah_attr.dgid.to_ip();
    let same_family = |from: Gid| from.to_ip().is_ipv4() == to.is_ipv4();
    alternate.sgid.is_some_and(same_family) && path_mtu <= u32::from(alternate.active_mtu.code())
}

fn check_av(
    av: &AddressVector,
    port: u8,
    is_dynamic: bool,
    context: &ModifyContext,
) -> Result<(), ModifyError> {
    //= QPV-01 QPV-02
    if av.port_num != port {
        return Err(ModifyError::BadValue("ah_attr.port_num"));
    }
    //= QPV-04 ENC-14
    if !av.is_global {
        return Err(ModifyError::BadValue("ah_attr.is_global"));
    }
    if av.sl > 7 {
        return Err(ModifyError::BadValue("ah_attr.sl"));
    }
    //= QPV-04
    let sgid = context
        .sgid
        .ok_or(ModifyError::BadValue("ah_attr.grh.sgid_index"))?;
    //= DC-08
    if is_dynamic {
        return Ok(());
    }
    //= ENC-12
    let same_family = sgid.to_ip().is_ipv4() == av.dgid.to_ip().is_ipv4();
    if av.dgid.is_zero() || av.dgid.is_multicast() || !same_family {
        return Err(ModifyError::BadValue("ah_attr.grh.dgid"));
    }
    Ok(())
}

/// Applies valid attributes to requester, responder and state.
fn apply(qp: &mut Qp, now: Time, mask: QpAttrMask, next: QpState, context: &ModifyContext) {
    let from = qp.state;
    if mask.contains(QpAttrMask::PKEY_INDEX) {
        qp.peer.pkey = context.pkey;
    }
    if mask.contains(QpAttrMask::DEST_QPN) {
        qp.peer.qpn = Qpn::new(qp.attr.dest_qp_num);
        qp.attr.dest_qp_num = qp.peer.qpn.get();
    }
    if mask.contains(QpAttrMask::PATH_MTU)
        && let Some(mtu) = u8::try_from(qp.attr.path_mtu).ok().and_then(Mtu::from_code)
    {
        qp.peer.pmtu = mtu;
    }
    if mask.contains(QpAttrMask::AV)
        && let Some(sgid) = context.sgid
    {
        qp.peer.local = sgid.to_ip();
        qp.peer.remote = qp.attr.ah_attr.dgid.to_ip();
    }
    if mask.contains(QpAttrMask::RQ_PSN) {
        let psn = Psn::new(qp.attr.rq_psn);
        qp.attr.rq_psn = psn.get();
        qp.recv.start(psn);
    }
    if mask.contains(QpAttrMask::SQ_PSN) {
        let psn = Psn::new(qp.attr.sq_psn);
        qp.attr.sq_psn = psn.get();
        qp.send.start(psn);
    }
    if qp.config.qp_type.traits().is_datagram {
        //= UD-01
        qp.peer.pmtu = context.active_mtu;
    }
    apply_attrs(qp, mask);
    apply_paths(qp, mask, context);
    qp.state = next;
    match next {
        QpState::Reset => reset(qp),
        QpState::Err if from != QpState::Err => {
            qp.recv.discard_responses();
            qp.enter_error(now);
        }
        QpState::Sqd => {
            qp.send.set_draining(true);
            qp.note_drained();
        }
        QpState::Rts => {
            qp.send.set_draining(false);
            qp.attr.en_sqd_async_notify = false;
        }
        QpState::Init | QpState::Rtr | QpState::Sqe | QpState::Err => {}
    }
}

fn apply_paths(qp: &mut Qp, mask: QpAttrMask, context: &ModifyContext) {
    if mask.contains(QpAttrMask::ALT_PATH)
        && let Some(sgid) = context.alternate.sgid
    {
        qp.peer.alternate = Some(Box::new(Alternate {
            pkey: context.alternate.pkey,
            local: sgid.to_ip(),
            remote: qp.attr.alternate().ah_attr.dgid.to_ip(),
            complained: false,
        }));
    }
    if !mask.contains(QpAttrMask::PATH_MIG_STATE) {
        return;
    }
    //= RC-APM-03
    match (qp.peer.migration, qp.attr.path_mig_state) {
        (_, REARM) => qp.peer.set_migration(Migration::Rearm),
        (Migration::Armed, MIGRATED) => qp.migrate(false),
        _ => {}
    }
}

pub(super) fn apply_attrs(qp: &mut Qp, mask: QpAttrMask) {
    let requester = QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MAX_QP_RD_ATOMIC;
    if mask.intersects(requester) {
        // mlx5, the only other device with DC, has room for one at least. Programs rely on that.
        let least = u8::from(qp.config.qp_type == QpType::DcInitiator);
        qp.send.set_attr(RequesterAttr {
            max_rd_atomic: qp.attr.max_rd_atomic.max(least),
            retry_cnt: qp.attr.retry_cnt,
            rnr_retry: qp.attr.rnr_retry,
            timeout: AckTimeout::new(qp.attr.timeout).unwrap_or(AckTimeout::DISABLED),
        });
    }
    if mask.contains(QpAttrMask::QKEY) {
        let qkey = Qkey::new(qp.attr.qkey);
        qp.send.set_qkey(qkey);
        qp.recv.set_qkey(qkey);
    }
    let responder =
        QpAttrMask::ACCESS_FLAGS | QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
    if mask.intersects(responder) {
        qp.recv.set_attr(ResponderAttr {
            access: qp.attr.qp_access_flags,
            max_dest_rd_atomic: qp.attr.max_dest_rd_atomic,
            min_rnr_timer: RnrTimer::new(qp.attr.min_rnr_timer).unwrap_or(RnrTimer::LONGEST),
        });
    }
}

//= RC-STA-04
pub(super) fn reset(qp: &mut Qp) {
    qp.send.reset();
    qp.pending_notices = PendingNotices::NONE;
    if let Some(control) = &mut qp.control {
        **control = CongestionControl::default();
    }
    if let Some(receives) = qp.recv.receives() {
        let unreported = qp.out.completions.iter().filter(|c| !c.is_send());
        unreported.for_each(|completion| receives.forget(completion.srqn));
    }
    qp.recv.reset();
    qp.out.completions.clear();
    qp.out.events.clear();
    qp.coalescer.reset();
    qp.comm_est_raised = false;
    qp.has_migrated = false;
    qp.peer.alternate = None;
    qp.peer.set_migration(Migration::Migrated);
    qp.attr = Attributes::default();
}
