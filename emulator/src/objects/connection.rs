//! Connects an RC or UC queue pair without spelling out each transition.

use rocade_transport::{AccessFlags, AddressVector, QpAttr, QpAttrMask, QpState, transition_rule};
use rocade_wire::{Gid, Mtu, Psn, Qpn};

use super::qp::Qp;
use crate::error::VerbsError;

/// The port that connections use.
const PORT: u8 = 1;

/// The attributes that bring an RC queue pair to RTR and RTS. UC needs only a part of them.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// GID of the peer's port.
    pub dgid: Gid,
    /// The peer's queue pair.
    pub dest_qp: Qpn,
    /// Index of the local GID to use.
    pub sgid_index: u8,
    /// The path MTU: the smaller one of both ends.
    pub path_mtu: Mtu,
    /// PSN of the first packet that the peer sends.
    pub rq_psn: Psn,
    /// PSN of the first packet sent.
    pub sq_psn: Psn,
    /// Limit of outstanding READs and atomics to the peer.
    pub max_rd_atomic: u8,
    /// Limit of outstanding READs and atomics from the peer.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code: the time that the peer waits while no receive is posted, 0 to 31.
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 µs times 2 to the power of this. 0 waits for ever.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 0 to 6. 7 retries for ever.
    pub rnr_retry: u8,
    /// IPv4 TTL or IPv6 hop limit. 0 means 64.
    pub hop_limit: u8,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
}

impl Connection {
    /// Makes the attributes of a connection to this queue pair from the first address of the
    /// device. Both initial PSNs are 0. The other attributes suit peers on one machine or network.
    #[must_use]
    pub const fn to(dgid: Gid, dest_qp: Qpn) -> Self {
        Self {
            dgid,
            dest_qp,
            sgid_index: 0,
            path_mtu: Mtu::Mtu1024,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            hop_limit: 0,
            traffic_class: 0,
        }
    }

    /// The address vector of the peer.
    #[must_use]
    pub fn address(&self) -> AddressVector {
        AddressVector {
            dgid: self.dgid,
            sgid_index: self.sgid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            is_global: true,
            port_num: PORT,
            ..AddressVector::default()
        }
    }
}

impl Qp {
    /// Changes the state from RESET to INIT.
    ///
    /// # Errors
    /// Those of [`Qp::modify`].
    pub fn to_init(&self, access: AccessFlags) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_state: QpState::Init.code(),
            port_num: PORT,
            qp_access_flags: access,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PORT
            | QpAttrMask::ACCESS_FLAGS;
        self.modify(&attr, mask)
    }

    /// Changes the state from INIT to RTR.
    ///
    /// # Errors
    /// Those of [`Qp::modify`].
    pub fn to_rtr(&self, connection: &Connection) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_state: QpState::Rtr.code(),
            path_mtu: connection.path_mtu.code().into(),
            dest_qp_num: connection.dest_qp.get(),
            rq_psn: connection.rq_psn.get(),
            max_dest_rd_atomic: connection.max_dest_rd_atomic,
            min_rnr_timer: connection.min_rnr_timer,
            ah_attr: connection.address(),
            ..QpAttr::default()
        };
        self.modify(&attr, self.needed_for(QpState::Rtr))
    }

    /// Changes the state from RTR to RTS.
    ///
    /// # Errors
    /// Those of [`Qp::modify`].
    pub fn to_rts(&self, connection: &Connection) -> Result<(), VerbsError> {
        let attr = QpAttr {
            qp_state: QpState::Rts.code(),
            sq_psn: connection.sq_psn.get(),
            timeout: connection.timeout,
            retry_cnt: connection.retry_cnt,
            rnr_retry: connection.rnr_retry,
            max_rd_atomic: connection.max_rd_atomic,
            ..QpAttr::default()
        };
        self.modify(&attr, self.needed_for(QpState::Rts))
    }

    /// Returns the mask that a QP of this type needs for the transition to `next`. For an invalid
    /// transition the result does not matter, because `modify` rejects it.
    fn needed_for(&self, next: QpState) -> QpAttrMask {
        let rule = transition_rule(self.qp_type(), self.state(), next);
        QpAttrMask::STATE | rule.map_or(QpAttrMask::AV, |rule| rule.required)
    }

    /// Changes the state from RESET to RTS. `access` is what the peer may do.
    ///
    /// # Errors
    /// Those of [`Qp::modify`].
    pub fn connect(&self, access: AccessFlags, connection: &Connection) -> Result<(), VerbsError> {
        self.to_init(access)?;
        self.to_rtr(connection)?;
        self.to_rts(connection)
    }
}
