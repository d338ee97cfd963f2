//! Extended QPs and CQs, which have their own function tables.

use core::ffi::{c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_sge,
    layout::mirror,
};

/// Op that takes only the QP.
pub type WrFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex)>;
/// `wr_complete`.
pub type WrCompleteFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>;
/// Op with one 32-bit argument (rkey, immediate data in network byte order, SRQ number).
pub type WrU32Fn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>;
/// Op with rkey and remote address.
pub type WrRemoteFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>;
/// Op with rkey, remote address and immediate data (network byte order).
pub type WrRemoteImmFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>;
/// `wr_atomic_cmp_swp`: rkey, remote address, compare, swap.
pub type WrCmpSwapFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>;
/// `wr_atomic_fetch_add`: rkey, remote address, addend.
pub type WrFetchAddFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>;
/// `wr_bind_mw`.
pub type WrBindMwFn =
    Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>;
/// `wr_send_tso`: header, its size, MSS.
pub type WrTsoFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>;
/// `wr_set_ud_addr`: address handle, QP number, Q_Key.
pub type WrSetUdAddrFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>;
/// `wr_set_inline_data`.
pub type WrSetInlineFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>;
/// `wr_set_inline_data_list`.
pub type WrSetInlineListFn =
    Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>;
/// `wr_set_sge`: lkey, address, length.
pub type WrSetSgeFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>;
/// `wr_set_sge_list`.
pub type WrSetSgeListFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>;
/// `wr_atomic_write`: rkey, remote address, 8 bytes.
pub type WrAtomicWriteFn = Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>;

/// `start_poll`.
pub type StartPollFn = Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>;
/// `next_poll`.
pub type NextPollFn = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>;
/// `end_poll`.
pub type EndPollFn = Option<unsafe extern "C" fn(*mut ibv_cq_ex)>;
/// Reader of an 8-bit value.
pub type ReadU8Fn = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>;
/// Reader of a 16-bit value.
pub type ReadU16Fn = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u16>;
/// Reader of a 32-bit value.
pub type ReadU32Fn = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>;
/// Reader of a 64-bit value.
pub type ReadU64Fn = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>;
/// Reader of tag matching information.
pub type ReadTmInfoFn = Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>;

mirror! {
    /// Queue pair with the `ibv_wr_*` function table.
    pub struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: WrCmpSwapFn,
        wr_atomic_fetch_add: WrFetchAddFn,
        wr_bind_mw: WrBindMwFn,
        wr_local_inv: WrU32Fn,
        wr_rdma_read: WrRemoteFn,
        wr_rdma_write: WrRemoteFn,
        wr_rdma_write_imm: WrRemoteImmFn,
        wr_send: WrFn,
        wr_send_imm: WrU32Fn,
        wr_send_inv: WrU32Fn,
        wr_send_tso: WrTsoFn,
        wr_set_ud_addr: WrSetUdAddrFn,
        wr_set_xrc_srqn: WrU32Fn,
        wr_set_inline_data: WrSetInlineFn,
        wr_set_inline_data_list: WrSetInlineListFn,
        wr_set_sge: WrSetSgeFn,
        wr_set_sge_list: WrSetSgeListFn,
        wr_start: WrFn,
        wr_complete: WrCompleteFn,
        wr_abort: WrFn,
        wr_atomic_write: WrAtomicWriteFn,
    }

    /// Argument of `ibv_start_poll`.
    pub struct ibv_poll_cq_attr {
        comp_mask: u32,
    }

    /// Tag matching information of a completion.
    pub struct ibv_wc_tm_info {
        tag: u64,
        r#priv: u32,
    }

    /// Completion queue with its own polling functions. Begins like `ibv_cq`.
    pub struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: c_uint,
        wr_id: u64,
        start_poll: StartPollFn,
        next_poll: NextPollFn,
        end_poll: EndPollFn,
        read_opcode: ReadU32Fn,
        read_vendor_err: ReadU32Fn,
        read_byte_len: ReadU32Fn,
        read_imm_data: ReadU32Fn,
        read_qp_num: ReadU32Fn,
        read_src_qp: ReadU32Fn,
        read_wc_flags: ReadU32Fn,
        read_slid: ReadU32Fn,
        read_sl: ReadU8Fn,
        read_dlid_path_bits: ReadU8Fn,
        read_completion_ts: ReadU64Fn,
        read_cvlan: ReadU16Fn,
        read_flow_tag: ReadU32Fn,
        read_tm_info: ReadTmInfoFn,
        read_completion_wallclock_ns: ReadU64Fn,
    }
}
