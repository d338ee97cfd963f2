//! Work completions.

use bitflags::bitflags;
use rocade_wire::{Qpn, Rkey};

use crate::queue::Srqn;

/// Completion status. The discriminants are the `ibv_wc_status` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcStatus {
    /// Success.
    #[doc(alias = "IBV_WC_SUCCESS")]
    Success = 0,
    /// Local length error.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LocLenErr = 1,
    /// Local QP operation error.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    //= WCS-02
    LocQpOpErr = 2,
    /// Local protection error.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LocProtErr = 4,
    /// Flushed.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    WrFlushErr = 5,
    /// Memory window bind failed.
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    MwBindErr = 6,
    /// Unexpected response.
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BadRespErr = 7,
    /// Local access error.
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LocAccessErr = 8,
    /// Remote invalid request.
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    RemInvReqErr = 9,
    /// Remote access error.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    RemAccessErr = 10,
    /// Remote operation error.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    RemOpErr = 11,
    /// Transport retry counter exceeded.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RetryExcErr = 12,
    /// RNR retry counter exceeded.
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    RnrRetryExcErr = 13,
}

impl WcStatus {
    /// Returns the `ibv_wc_status` value.
    //= WCS-00
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }
}

/// Completion opcode. The discriminants are the `ibv_wc_opcode` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcOpcode {
    /// SEND.
    Send = 0,
    /// RDMA WRITE.
    RdmaWrite = 1,
    /// RDMA READ.
    RdmaRead = 2,
    /// Compare and swap.
    CompSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// Memory window bound.
    BindMw = 5,
    /// Key invalidated.
    LocalInv = 6,
    /// Segments of a raw packet QP ([`Tso`](crate::Tso)).
    Tso = 7,
    /// FLUSH.
    Flush = 8,
    /// ATOMIC WRITE.
    AtomicWrite = 9,
    /// A receive.
    Recv = 128,
    /// A receive consumed by RDMA WRITE with immediate.
    RecvRdmaWithImm = 129,
    /// Masked compare and swap. Plain verbs see only the lower 16 bits.
    MaskedCompSwap = 0x1_0003,
    /// Fetch and add on several fields.
    MaskedFetchAdd = 0x1_0004,
    /// Indirect memory key changed (UMR): `IBV_WC_DRIVER1`, as with mlx5.
    //= WCO-04
    Umr = 135,
}

impl WcOpcode {
    /// The names, without `IBV_WC_`, of those that fault rules can name.
    pub const NAMES: &[(&str, Self)] = &[
        ("SEND", Self::Send),
        ("RDMA_WRITE", Self::RdmaWrite),
        ("RDMA_READ", Self::RdmaRead),
        ("COMP_SWAP", Self::CompSwap),
        ("FETCH_ADD", Self::FetchAdd),
        ("BIND_MW", Self::BindMw),
        ("LOCAL_INV", Self::LocalInv),
        ("FLUSH", Self::Flush),
        ("ATOMIC_WRITE", Self::AtomicWrite),
        ("RECV", Self::Recv),
        ("RECV_RDMA_WITH_IMM", Self::RecvRdmaWithImm),
    ];

    /// Returns the `ibv_wc_opcode` value. A masked atomic has the value of the plain one.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32 & 0xffff
    }
}

bitflags! {
    /// Completion flags (`ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    //= WCO-03
    pub struct WcFlags: u32 {
        /// A 40-byte network header precedes the data (UD).
        const GRH = 1;
        /// Immediate data is valid.
        const WITH_IMM = 2;
        /// An IP packet with correct checksums (raw packets).
        const IP_CSUM_OK = 4;
        /// A key was invalidated.
        const WITH_INV = 8;
    }
}

/// Immediate data or the invalidated key, which share a field in `ibv_wc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImmOrInv {
    /// Neither.
    None,
    /// Immediate data, network byte order, verbatim.
    Imm([u8; 4]),
    /// The key that was invalidated.
    Inv(Rkey),
    /// The tag of the flow that steered a raw packet here.
    FlowTag(u32),
}

impl ImmOrInv {
    /// Wraps immediate data, if any.
    #[inline]
    pub(crate) const fn of(imm: Option<[u8; 4]>) -> Self {
        match imm {
            Some(imm) => Self::Imm(imm),
            None => Self::None,
        }
    }

    /// Returns the bits of [`Completion::wc_flags`] for this value.
    #[inline]
    pub(crate) const fn flags(self) -> WcFlags {
        match self {
            Self::None | Self::FlowTag(_) => WcFlags::empty(),
            Self::Imm(_) => WcFlags::WITH_IMM,
            Self::Inv(_) => WcFlags::WITH_INV,
        }
    }
}

/// The completion queue that a completion goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteTo {
    /// The CQ of the QP's send queue.
    SendCq,
    /// The CQ of the QP's receive queue.
    RecvCq,
    /// The CQ of the XRC SRQ that the receive came from, which [`Completion::srqn`] names.
    SrqCq,
}

/// A work completion (CQE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// ID of the work request.
    pub wr_id: u64,
    /// Status.
    pub status: WcStatus,
    /// Opcode, valid on success only.
    pub opcode: WcOpcode,
    /// Bytes received, read or compared.
    pub byte_len: u32,
    /// The local QP.
    pub qp_num: Qpn,
    /// The sender's QP (UD), 0 otherwise.
    pub src_qp: Qpn,
    /// Immediate data or invalidated key.
    pub imm_or_inv: ImmOrInv,
    /// Flags.
    pub wc_flags: WcFlags,
    /// Vendor error, always 0.
    pub vendor_err: u32,
    /// The CQ that the completion goes to.
    pub to: CompleteTo,
    /// The packet had the solicited-event bit.
    pub solicited: bool,
    /// For a datagram, 0x8 plus the type of its network header: 1 for IPv6 and 2 for IPv4. 0
    /// otherwise.
    ///
    /// mlx5 sets `sl` in the same way, and UCX relies on it.
    pub sl: u8,
    /// The XRC SRQ that the receive came from. [`Srqn::NONE`] for any other queue.
    pub srqn: Srqn,
    /// WQEs of its queue that become free once the application has polled it: its own, and those of
    /// the unsignaled work requests before it. Give them back with [`crate::Qp::free_wqes`].
    pub freed_wqes: u32,
    /// Time of its generation, in ns of the transport's time.
    pub timestamp_ns: u64,
}

impl Completion {
    /// Returns true for a completion of a send work request, false for a receive.
    #[inline]
    #[must_use]
    pub const fn is_send(&self) -> bool {
        matches!(self.to, CompleteTo::SendCq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= WCS-00 WCS-02 WCS-05 type=test
    #[test]
    fn statuses_have_the_values_of_verbs() {
        use WcStatus as S;
        let codes = [
            (S::Success, 0),
            (S::LocLenErr, 1),
            (S::LocQpOpErr, 2),
            (S::LocProtErr, 4),
            (S::WrFlushErr, 5),
            (S::MwBindErr, 6),
            (S::BadRespErr, 7),
            (S::LocAccessErr, 8),
            (S::RemInvReqErr, 9),
            (S::RemAccessErr, 10),
            (S::RemOpErr, 11),
            (S::RetryExcErr, 12),
            (S::RnrRetryExcErr, 13),
        ];
        for (status, code) in codes {
            assert_eq!(status.code(), code, "{status:?}");
        }
    }
}
