//! QP attributes and their masks, as in `ibv_modify_qp` and `ibv_query_qp`.

use bitflags::bitflags;
use rocade_wire::{Gid, Qpn};

use crate::wr::AccessFlags;

/// QP states. The discriminants are the `ibv_qp_state` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[doc(alias = "ibv_qp_state")]
//= QPS-01
pub enum QpState {
    /// Reset.
    Reset = 0,
    /// Initialised: receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drain.
    Sqd = 4,
    /// Send queue error.
    Sqe = 5,
    /// Error.
    Err = 6,
}

impl QpState {
    /// All states, in order.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// Returns the state with this `ibv_qp_state` value.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }

    /// Returns the `ibv_qp_state` value.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Returns true if a QP in this state accepts packets.
    #[inline]
    pub(crate) const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

/// Transport service of a QP. The discriminants are the `ibv_qp_type` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[doc(alias = "ibv_qp_type")]
pub enum QpType {
    /// Reliable connected.
    Rc = 2,
    /// Unreliable connected.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Raw Ethernet.
    RawPacket = 8,
    /// XRC initiator.
    XrcSend = 9,
    /// XRC target.
    XrcRecv = 10,
    /// DC initiator (`IBV_EXP_QPT_DC_INI`).
    //= XCON-08
    DcInitiator = 32,
    /// DC target. `ibv_create_qp` cannot create one: see [`QpType::from_code`].
    DcTarget = 33,
}

impl QpType {
    /// All types.
    pub const ALL: [Self; 8] = [
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::RawPacket,
        Self::XrcSend,
        Self::XrcRecv,
        Self::DcInitiator,
        Self::DcTarget,
    ];

    /// Returns the type with this `ibv_qp_type` value. A DC target has none.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        let creatable = |t: &Self| *t as u32 == code && *t != Self::DcTarget;
        Self::ALL.into_iter().find(creatable)
    }

    /// Returns true for a DC initiator or a DC target.
    #[must_use]
    pub const fn is_dynamic(self) -> bool {
        matches!(self, Self::DcInitiator | Self::DcTarget)
    }

    /// Returns the `ibv_qp_type` value.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }
}

bitflags! {
    /// The attributes that a call names (`ibv_qp_attr_mask`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[doc(alias = "ibv_qp_attr_mask")]
    pub struct QpAttrMask: u32 {
        #[allow(missing_docs, reason = "named as in ibv_qp_attr_mask, without the IBV_QP_ prefix")]
        const STATE = 1;
        #[allow(missing_docs, reason = "as above")]
        const CUR_STATE = 1 << 1;
        #[allow(missing_docs, reason = "as above")]
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        #[allow(missing_docs, reason = "as above")]
        const ACCESS_FLAGS = 1 << 3;
        #[allow(missing_docs, reason = "as above")]
        const PKEY_INDEX = 1 << 4;
        #[allow(missing_docs, reason = "as above")]
        const PORT = 1 << 5;
        #[allow(missing_docs, reason = "as above")]
        const QKEY = 1 << 6;
        #[allow(missing_docs, reason = "as above")]
        const AV = 1 << 7;
        #[allow(missing_docs, reason = "as above")]
        const PATH_MTU = 1 << 8;
        #[allow(missing_docs, reason = "as above")]
        const TIMEOUT = 1 << 9;
        #[allow(missing_docs, reason = "as above")]
        const RETRY_CNT = 1 << 10;
        #[allow(missing_docs, reason = "as above")]
        const RNR_RETRY = 1 << 11;
        #[allow(missing_docs, reason = "as above")]
        const RQ_PSN = 1 << 12;
        #[allow(missing_docs, reason = "as above")]
        const MAX_QP_RD_ATOMIC = 1 << 13;
        #[allow(missing_docs, reason = "as above")]
        const ALT_PATH = 1 << 14;
        #[allow(missing_docs, reason = "as above")]
        const MIN_RNR_TIMER = 1 << 15;
        #[allow(missing_docs, reason = "as above")]
        const SQ_PSN = 1 << 16;
        #[allow(missing_docs, reason = "as above")]
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        #[allow(missing_docs, reason = "as above")]
        const PATH_MIG_STATE = 1 << 18;
        #[allow(missing_docs, reason = "as above")]
        const CAP = 1 << 19;
        #[allow(missing_docs, reason = "as above")]
        const DEST_QPN = 1 << 20;
        #[allow(missing_docs, reason = "as above")]
        const RATE_LIMIT = 1 << 25;
        /// The access key of a DC initiator. Only experimental calls name it (`IBV_EXP_QP_DC_KEY`,
        /// bit 54 there).
        const DC_KEY = 1 << 30;
    }
}

/// Destination of the packets of a connected QP (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[doc(alias = "ibv_ah_attr")]
pub struct AddressVector {
    /// Destination GID (host: the peer's IP address).
    pub dgid: Gid,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// IPv6 flow label, 20 bits. 0 lets the device choose.
    pub flow_label: u32,
    /// TTL or hop limit. 0 means 64.
    pub hop_limit: u8,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// A GRH is present. Must be true on RoCE.
    pub is_global: bool,
    /// Service level, 0..=7.
    pub sl: u8,
    /// Destination LID. Ignored.
    pub dlid: u16,
    /// Ignored on RoCE.
    pub src_path_bits: u8,
    /// Static rate. Ignored.
    pub static_rate: u8,
    /// Port, 1-based.
    pub port_num: u8,
}

/// Queue sizes (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[doc(alias = "ibv_qp_cap")]
pub struct QpCap {
    /// Send queue depth.
    pub max_send_wr: u32,
    /// Receive queue depth.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Longest inline send in bytes.
    pub max_inline_data: u32,
}

/// QP attributes, field for field as `ibv_qp_attr`.
///
/// Fields in which a caller may pass an invalid value are plain integers. [`crate::Qp::modify`]
/// validates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[doc(alias = "ibv_qp_attr")]
pub struct QpAttr {
    /// Next (modify) or current (query) state, an `ibv_qp_state` value.
    pub qp_state: u32,
    /// The state that the caller expects the QP to be in.
    pub cur_qp_state: u32,
    /// Path MTU code 1..=5.
    pub path_mtu: u32,
    /// Path migration state.
    pub path_mig_state: u32,
    /// Q_Key of a datagram QP.
    pub qkey: u32,
    /// First PSN expected. Only the low 24 bits count.
    pub rq_psn: u32,
    /// First PSN to send. Only the low 24 bits count.
    pub sq_psn: u32,
    /// The peer's QP number.
    pub dest_qp_num: u32,
    /// Operations that the peer may execute.
    pub qp_access_flags: AccessFlags,
    /// Queue sizes.
    pub cap: QpCap,
    /// Primary path.
    pub ah_attr: AddressVector,
    /// Alternate path.
    pub alt_ah_attr: AddressVector,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// Index into the P_Key table for the alternate path.
    pub alt_pkey_index: u16,
    /// Requests an event when the send queue has drained.
    pub en_sqd_async_notify: bool,
    /// Query only: the QP is in SQD, and its send queue has not drained yet.
    pub sq_draining: bool,
    /// READs and atomics that this side may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics that the peer may have outstanding at this side.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code 0..=31 put into RNR NAKs.
    pub min_rnr_timer: u8,
    /// Port, 1-based.
    pub port_num: u8,
    /// Local ACK timeout code 0..=31.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0..=7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0..=7. 7 means unlimited.
    pub rnr_retry: u8,
    /// Port of the alternate path.
    pub alt_port_num: u8,
    /// ACK timeout of the alternate path.
    pub alt_timeout: u8,
    /// Rate limit in kbit/s. Ignored.
    pub rate_limit: u32,
    /// The access key of a DC initiator.
    pub dc_key: u64,
}

impl QpAttr {
    /// The peer's QP number.
    #[must_use]
    pub const fn dest_qp(&self) -> Qpn {
        Qpn::new(self.dest_qp_num)
    }
}
