//! Setup of a QP in any state.

use alloc::sync::Arc;
use core::net::IpAddr;

use rocade_wire::{Gid, Mtu, Pkey, Qpn};

use super::{TestDomain, TestMemory, TestSrq};
use crate::attr::{AddressVector, QpAttr, QpAttrMask, QpCap, QpState, QpType};
use crate::qp::{AlternateContext, ModifyContext, Qp, QpConfig, QpLimits, transition_rule};
use crate::queue::{Receives, Srqn};
use crate::time::Time;
use crate::wr::AccessFlags;

/// Active MTU of the simulated port.
pub const CONTEXT_MTU: Mtu = Mtu::Mtu4096;

/// Returns the device state for a QP with this local address.
#[must_use]
pub fn context(local: IpAddr) -> ModifyContext {
    ModifyContext {
        sgid: Some(Gid::from_ip(local)),
        pkey: Pkey::DEFAULT,
        active_mtu: CONTEXT_MTU,
        alternate: AlternateContext {
            sgid: Some(Gid::from_ip(local)),
            pkey: Pkey::DEFAULT,
            active_mtu: CONTEXT_MTU,
        },
        experimental: false,
    }
}

/// Configuration and attributes of one QP. Every field may be changed before [`Setup::build`].
#[derive(Clone, Debug)]
pub struct Setup {
    /// Creation parameters.
    pub config: QpConfig,
    /// Attributes of all transitions up to RTS.
    pub attr: QpAttr,
    /// Local address.
    pub local: IpAddr,
    /// P_Key at index 0.
    pub pkey: Pkey,
    /// A shared receive queue, in place of a queue of its own.
    pub srq: Option<Arc<TestSrq>>,
    /// The XRC domain of an XRC target.
    pub domain: Option<Arc<TestDomain>>,
}

impl Setup {
    /// Creates a setup with the usual attributes.
    ///
    /// They are PMTU 1024, timeout 14 (67 ms), 7 retries of both kinds, and RNR timer 12 (0.64 ms).
    /// The setup has 16 READs and atomics, all remote rights, and one CQE per send.
    #[must_use]
    pub fn new(qp_num: u32, local: IpAddr, dest_qp_num: u32, remote: IpAddr) -> Self {
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 8,
            max_recv_sge: 8,
            max_inline_data: 256,
        };
        let limits = QpLimits {
            max_qp_init_rd_atom: 128,
            max_qp_rd_atom: 128,
            port_count: 1,
            pkey_table_len: 1,
        };
        Self {
            config: QpConfig {
                qp_num: Qpn::new(qp_num),
                qp_type: QpType::Rc,
                pd: TestMemory::PD,
                cap,
                sq_sig_all: true,
                limits,
            },
            attr: QpAttr {
                path_mtu: 3,
                sq_psn: 0x10_0000,
                rq_psn: 0x10_0000,
                dest_qp_num,
                qp_access_flags: AccessFlags::REMOTE_READ
                    | AccessFlags::REMOTE_WRITE
                    | AccessFlags::REMOTE_ATOMIC,
                ah_attr: AddressVector {
                    dgid: Gid::from_ip(remote),
                    hop_limit: 64,
                    is_global: true,
                    port_num: 1,
                    ..AddressVector::default()
                },
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                min_rnr_timer: 12,
                port_num: 1,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                ..QpAttr::default()
            },
            local,
            pkey: Pkey::DEFAULT,
            srq: None,
            domain: None,
        }
    }

    /// Returns the shared receive queue, for an XRC target the first one of its domain.
    #[must_use]
    pub fn shared(&self) -> Option<Arc<TestSrq>> {
        match &self.domain {
            Some(domain) => domain.get(TestDomain::FIRST),
            None => self.srq.clone(),
        }
    }

    /// Returns the shared receive queue that a completion names, or the only one.
    pub(super) fn shared_of(&self, srqn: Srqn) -> Option<Arc<TestSrq>> {
        match &self.domain {
            Some(domain) => domain.get(srqn),
            None => self.srq.clone(),
        }
    }

    /// The masks of the transitions from RESET to RTS.
    pub const PATH_TO_RTS: [(QpState, QpAttrMask); 3] = [
        (
            QpState::Init,
            QpAttrMask::STATE
                .union(QpAttrMask::PKEY_INDEX)
                .union(QpAttrMask::PORT)
                .union(QpAttrMask::ACCESS_FLAGS),
        ),
        (
            QpState::Rtr,
            QpAttrMask::STATE
                .union(QpAttrMask::AV)
                .union(QpAttrMask::PATH_MTU)
                .union(QpAttrMask::DEST_QPN)
                .union(QpAttrMask::RQ_PSN)
                .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
                .union(QpAttrMask::MIN_RNR_TIMER),
        ),
        (
            QpState::Rts,
            QpAttrMask::STATE
                .union(QpAttrMask::TIMEOUT)
                .union(QpAttrMask::RETRY_CNT)
                .union(QpAttrMask::RNR_RETRY)
                .union(QpAttrMask::SQ_PSN)
                .union(QpAttrMask::MAX_QP_RD_ATOMIC),
        ),
    ];

    /// Creates the QP in `state`.
    ///
    /// # Panics
    /// If the attributes are refused, or for SQE, which only an error can cause.
    #[must_use]
    pub fn build(&self, state: QpState) -> Qp {
        let receives = match (&self.srq, &self.domain) {
            (_, Some(domain)) => Receives::Domain(Arc::clone(domain) as _),
            (Some(srq), None) => Receives::Shared(Arc::clone(srq) as _),
            (None, None) => Receives::Own,
        };
        let mut qp = Qp::new(self.config, receives).expect("a type with a state machine");
        let steps = match state {
            QpState::Reset => 0,
            QpState::Init | QpState::Err => 1,
            QpState::Rtr => 2,
            QpState::Rts | QpState::Sqd => 3,
            QpState::Sqe => panic!("only an error moves a QP to SQE"),
        };
        for (next, _) in &Self::PATH_TO_RTS[..steps] {
            let rule = transition_rule(self.config.qp_type, qp.state(), *next);
            let required = rule.expect("a transition of this type").required;
            self.modify(&mut qp, *next, QpAttrMask::STATE | required);
        }
        if qp.state() != state {
            self.modify(&mut qp, state, QpAttrMask::STATE);
        }
        qp
    }

    fn modify(&self, qp: &mut Qp, next: QpState, mask: QpAttrMask) {
        let attr = QpAttr {
            qp_state: next.code(),
            ..self.attr
        };
        let context = ModifyContext {
            pkey: self.pkey,
            ..context(self.local)
        };
        qp.modify(Time::ZERO, &attr, mask, &context)
            .expect("valid attributes");
    }
}
