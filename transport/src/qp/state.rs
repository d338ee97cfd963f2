//! The state table of `ibv_modify_qp`: the transitions of each QP type, with their required and
//! optional attributes.

use crate::attr::{QpAttrMask, QpState, QpType};

/// Attributes of one permitted transition, STATE excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionRule {
    /// Attributes that must be in the mask.
    pub required: QpAttrMask,
    /// Attributes that may be in the mask.
    pub optional: QpAttrMask,
}

const NONE: QpAttrMask = QpAttrMask::empty();
const PK: QpAttrMask = QpAttrMask::PKEY_INDEX;
const PO: QpAttrMask = QpAttrMask::PORT;
const QK: QpAttrMask = QpAttrMask::QKEY;
const AC: QpAttrMask = QpAttrMask::ACCESS_FLAGS;
const AV: QpAttrMask = QpAttrMask::AV;
const MTU: QpAttrMask = QpAttrMask::PATH_MTU;
const DQ: QpAttrMask = QpAttrMask::DEST_QPN;
const RP: QpAttrMask = QpAttrMask::RQ_PSN;
const MDR: QpAttrMask = QpAttrMask::MAX_DEST_RD_ATOMIC;
const RNRT: QpAttrMask = QpAttrMask::MIN_RNR_TIMER;
const TO: QpAttrMask = QpAttrMask::TIMEOUT;
const RC: QpAttrMask = QpAttrMask::RETRY_CNT;
const RR: QpAttrMask = QpAttrMask::RNR_RETRY;
const SP: QpAttrMask = QpAttrMask::SQ_PSN;
const MR: QpAttrMask = QpAttrMask::MAX_QP_RD_ATOMIC;
const ALT: QpAttrMask = QpAttrMask::ALT_PATH;
const MIG: QpAttrMask = QpAttrMask::PATH_MIG_STATE;
const CUR: QpAttrMask = QpAttrMask::CUR_STATE;
const EN: QpAttrMask = QpAttrMask::EN_SQD_ASYNC_NOTIFY;
const RATE: QpAttrMask = QpAttrMask::RATE_LIMIT;
const KEY: QpAttrMask = QpAttrMask::DC_KEY;

macro_rules! masks {
    ($($m:expr),* $(,)?) => { NONE$(.union($m))* };
}

const fn rule(required: QpAttrMask, optional: QpAttrMask) -> Option<TransitionRule> {
    Some(TransitionRule { required, optional })
}

/// Returns the rule of a transition. `None` if `ibv_modify_qp` returns EINVAL.
///
/// ```text
///           +-------------------------------- any state --------------------------------+
///           v                                                                            |
///  RESET -> INIT -> RTR -> RTS <-> SQD          (INIT, RTR, RTS, SQD, SQE, ERR) -> ERR   |
///                           ^                                                            |
///                           +-- SQE (datagram and UC only, entered by an error) ---------+
/// ```
#[must_use]
pub const fn transition_rule(
    qp_type: QpType,
    from: QpState,
    to: QpState,
) -> Option<TransitionRule> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    match (from, to) {
        //= DCU-03
        _ if matches!(qp_type, QpType::DcTarget) => target_rule(from, to),
        //= QPT-30
        (_, Reset) | (Init | Rtr | Rts | Sqd | Sqe | Err, Err) => rule(NONE, NONE),
        (Reset, Init) => reset_to_init(qp_type),
        (Init, Init) => init_to_init(qp_type),
        (Init, Rtr) => init_to_rtr(qp_type),
        (Rtr, Rts) => rtr_to_rts(qp_type),
        (Rts, Rts) => rts_to_rts(qp_type),
        //= QPT-19
        (Rts, Sqd) => match qp_type {
            //= DCS-08
            QpType::DcInitiator => None,
            QpType::RawPacket => rule(NONE, NONE),
            QpType::DcTarget => None,
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcSend | QpType::XrcRecv => {
                rule(NONE, EN)
            }
        },
        (Sqd, Rts) => sqd_to_rts(qp_type),
        (Sqd, Sqd) => sqd_to_sqd(qp_type),
        (Sqe, Rts) => sqe_to_rts(qp_type),
        //= QPT-31
        _ => None,
    }
}

const fn reset_to_init(qp_type: QpType) -> Option<TransitionRule> {
    match qp_type {
        //= DCS-01
        QpType::DcInitiator => rule(masks!(PK, PO), NONE),
        QpType::DcTarget => None,
        //= QPT-01
        QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv => {
            rule(masks!(PK, PO, AC), NONE)
        }
        //= UD-13
        //= QPT-02
        //= UD-13
        QpType::Ud => rule(masks!(PK, PO, QK), NONE),
        //= QPT-04
        QpType::RawPacket => rule(PO, NONE),
    }
}

const fn init_to_init(qp_type: QpType) -> Option<TransitionRule> {
    match qp_type {
        //= DCS-02
        QpType::DcInitiator => rule(NONE, masks!(PK, PO)),
        QpType::DcTarget => None,
        //= QPT-05
        QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv => {
            rule(NONE, masks!(PK, PO, AC))
        }
        //= QPT-06
        QpType::Ud => rule(NONE, masks!(PK, PO, QK)),
        //= QPT-33
        QpType::RawPacket => rule(NONE, NONE),
    }
}

const fn init_to_rtr(qp_type: QpType) -> Option<TransitionRule> {
    match qp_type {
        //= DCS-03
        QpType::DcInitiator => rule(MTU, masks!(PK, AV)),
        QpType::DcTarget => None,
        //= QPT-08
        QpType::Rc | QpType::XrcRecv => {
            rule(masks!(AV, MTU, DQ, RP, MDR, RNRT), masks!(ALT, AC, PK))
        }
        //= QPT-09
        QpType::Uc | QpType::XrcSend => rule(masks!(AV, MTU, DQ, RP), masks!(ALT, AC, PK)),
        //= QPT-10
        QpType::Ud => rule(NONE, masks!(PK, QK)),
        //= QPT-33
        QpType::RawPacket => rule(NONE, NONE),
    }
}

const fn rtr_to_rts(qp_type: QpType) -> Option<TransitionRule> {
    match qp_type {
        //= DCS-04
        QpType::DcInitiator => rule(masks!(TO, RC, RR, SP, MR), RNRT),
        QpType::DcTarget => None,
        //= QPT-11
        QpType::Rc => rule(masks!(TO, RC, RR, SP, MR), masks!(CUR, ALT, AC, RNRT, MIG)),
        //= QPT-12
        QpType::XrcSend => rule(masks!(TO, RC, RR, SP, MR), masks!(CUR, ALT, AC, MIG)),
        //= XRC-10
        //= QPT-13
        QpType::XrcRecv => rule(masks!(TO, SP), masks!(CUR, ALT, AC, RNRT, MIG)),
        //= QPT-14
        QpType::Uc => rule(SP, masks!(CUR, ALT, AC, MIG)),
        //= QPT-15
        QpType::Ud => rule(SP, masks!(CUR, QK)),
        //= QPT-32
        QpType::RawPacket => rule(NONE, RATE),
    }
}

const fn rts_to_rts(qp_type: QpType) -> Option<TransitionRule> {
    match qp_type {
        //= DCS-05
        QpType::DcInitiator => rule(NONE, RNRT),
        QpType::DcTarget => None,
        //= QPT-16
        QpType::Rc | QpType::XrcRecv => rule(NONE, masks!(CUR, AC, ALT, MIG, RNRT)),
        //= QPT-17
        QpType::Uc | QpType::XrcSend => rule(NONE, masks!(CUR, AC, ALT, MIG)),
        //= QPT-18
        QpType::Ud => rule(NONE, masks!(CUR, QK)),
        //= QPT-32
        QpType::RawPacket => rule(NONE, RATE),
    }
}

const fn sqd_to_rts(qp_type: QpType) -> Option<TransitionRule> {
    match qp_type {
        QpType::DcInitiator | QpType::DcTarget => None,
        //= QPT-20
        QpType::Rc | QpType::XrcRecv => rule(NONE, masks!(CUR, ALT, AC, RNRT, MIG)),
        //= QPT-21
        QpType::Uc | QpType::XrcSend => rule(NONE, masks!(CUR, ALT, AC, MIG)),
        //= QPT-22
        QpType::Ud => rule(NONE, masks!(CUR, QK)),
        //= QPT-33
        QpType::RawPacket => rule(NONE, NONE),
    }
}

const fn sqd_to_sqd(qp_type: QpType) -> Option<TransitionRule> {
    match qp_type {
        QpType::DcInitiator | QpType::DcTarget => None,
        //= QPT-23
        QpType::Rc => rule(
            NONE,
            masks!(PO, AV, TO, RC, RR, MR, MDR, ALT, AC, PK, RNRT, MIG),
        ),
        //= QPT-24
        QpType::XrcSend => rule(NONE, masks!(PO, AV, TO, RC, RR, MR, ALT, AC, PK, MIG)),
        //= QPT-25
        QpType::XrcRecv => rule(NONE, masks!(PO, AV, TO, MDR, ALT, AC, PK, RNRT, MIG)),
        //= QPT-26
        QpType::Uc => rule(NONE, masks!(AV, ALT, AC, PK, MIG)),
        //= QPT-27
        QpType::Ud => rule(NONE, masks!(PK, QK)),
        //= QPT-33
        QpType::RawPacket => rule(NONE, NONE),
    }
}

const fn sqe_to_rts(qp_type: QpType) -> Option<TransitionRule> {
    match qp_type {
        QpType::DcInitiator | QpType::DcTarget => None,
        //= QPT-28
        QpType::Ud => rule(NONE, masks!(CUR, QK)),
        //= QPT-29
        QpType::Uc => rule(NONE, masks!(CUR, AC)),
        //= QPT-34
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv | QpType::RawPacket => rule(NONE, NONE),
    }
}

/// Returns the rule of a DC target as in upstream verbs: two transitions, and none back.
//= DCU-03
const fn target_rule(from: QpState, to: QpState) -> Option<TransitionRule> {
    match (from, to) {
        (QpState::Reset, QpState::Init) => rule(masks!(PK, PO, AC), NONE),
        (QpState::Init, QpState::Rtr) => rule(masks!(AV, MTU, RNRT), NONE),
        _ => None,
    }
}

/// Returns the rule of a DC initiator for the experimental verbs. [`transition_rule`] has that of
/// upstream verbs.
//= DCS-09
#[must_use]
pub const fn experimental_rule(from: QpState, to: QpState) -> Option<TransitionRule> {
    use QpState::{Err, Init, Reset, Rtr, Rts};
    match (from, to) {
        //= DCS-06 DCS-07
        (_, Reset) => rule(NONE, CUR),
        (Init | Rtr | Rts | Err, Err) => rule(NONE, CUR),
        //= DCS-01
        (Reset, Init) => rule(masks!(PK, PO, KEY), CUR),
        //= DCS-02
        (Init, Init) => rule(NONE, masks!(CUR, PK, PO, AC)),
        //= DCS-03
        (Init, Rtr) => rule(masks!(AV, MTU), masks!(CUR, PK, KEY)),
        //= DCS-04
        (Rtr, Rts) => rule(masks!(TO, RC, RR, MR), masks!(CUR, ALT, RNRT, MIG)),
        //= DCS-05
        (Rts, Rts) => rule(NONE, masks!(CUR, ALT, RNRT, MIG)),
        _ => None,
    }
}
