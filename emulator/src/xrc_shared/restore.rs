//! Restores the queue pair of an XRC target from the attributes that another process has written.

use rocade_transport::{
    AlternateContext, ModifyContext, Qp, QpAttr, QpAttrMask, QpState, QpType, Time, transition_rule,
};
use rocade_wire::{Gid, Mtu, Pkey};

use crate::error::VerbsError;
use crate::hca::{Hca, Port};

/// Returns the device's part of a modify. The other process has already checked the attributes.
pub(super) fn context_of(hca: &Hca, attr: &QpAttr) -> ModifyContext {
    let port = hca.port(attr.port_num);
    let active_mtu = port.map_or(Mtu::Mtu4096, Port::active_mtu);
    let pkey = hca.pkey(attr.pkey_index).unwrap_or(Pkey::DEFAULT);
    ModifyContext {
        sgid: sgid_of(hca, attr),
        pkey,
        active_mtu,
        alternate: AlternateContext {
            sgid: None,
            pkey,
            active_mtu,
        },
        experimental: false,
    }
}

pub(super) fn sgid_of(hca: &Hca, attr: &QpAttr) -> Option<Gid> {
    hca.port(attr.ah_attr.port_num)?
        .gid(attr.ah_attr.sgid_index)
}

/// Brings a QP to the state and attributes of the target's shared record.
pub(super) fn restore(qp: &mut Qp, hca: &Hca, attr: &QpAttr, now: Time) -> Result<(), VerbsError> {
    let Some(state) = QpState::from_code(attr.qp_state) else {
        return Err(VerbsError::InvalidArgument("qp_state"));
    };
    let context = context_of(hca, attr);
    let all = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
    ];
    let steps = match state {
        QpState::Reset => &all[..1],
        QpState::Init => &all[..2],
        QpState::Rtr => &all[..3],
        QpState::Rts => &all[..4],
        QpState::Sqd => &all,
        // There is no transition from RESET to ERR.
        QpState::Sqe | QpState::Err if attr.port_num == 0 => &all[..1],
        QpState::Sqe | QpState::Err => &[QpState::Reset, QpState::Init, QpState::Err],
    };
    for step in steps {
        if qp.state() == *step {
            continue;
        }
        let rule = transition_rule(QpType::XrcRecv, qp.state(), *step);
        let required = rule.map_or(QpAttrMask::empty(), |rule| rule.required);
        let next = QpAttr {
            qp_state: step.code(),
            ..*attr
        };
        let mask = QpAttrMask::STATE | required;
        qp.modify(now, &next, mask, &context)?;
    }
    if state == QpState::Err {
        qp.set_fatal(now, 0);
    }
    Ok(())
}
