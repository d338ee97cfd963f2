//! `verbs_exp/completion.h`.

use core::ffi::{c_int, c_uint};

use super::{constants, dct::ibv_exp_dct};
use crate::{ibv_qp, ibv_srq, ibv_wc_tm_info, layout::mirror};

constants! {
    u32, "Completion opcode. (`enum ibv_exp_wc_opcode`)": {
        IBV_EXP_WC_SEND = 0,
        IBV_EXP_WC_RDMA_WRITE = 1,
        IBV_EXP_WC_RDMA_READ = 2,
        IBV_EXP_WC_COMP_SWAP = 3,
        IBV_EXP_WC_FETCH_ADD = 4,
        IBV_EXP_WC_BIND_MW = 5,
        IBV_EXP_WC_LOCAL_INV = 6,
        IBV_EXP_WC_MASKED_COMP_SWAP = 9,
        IBV_EXP_WC_MASKED_FETCH_ADD = 10,
        IBV_EXP_WC_TSO = 11,
        IBV_EXP_WC_UMR = 0x100,
        IBV_EXP_WC_RECV = 0x80,
        IBV_EXP_WC_RECV_RDMA_WITH_IMM = 0x81,
    }
    u64, "Completion flag bit: a valid member. (`enum ibv_exp_wc_flags`)": {
        IBV_EXP_WC_GRH = 1,
        IBV_EXP_WC_WITH_IMM = 2,
        IBV_EXP_WC_WITH_INV = 8,
        IBV_EXP_WC_WITH_TIMESTAMP = 1 << 38,
        IBV_EXP_WC_QP = 1 << 39,
        IBV_EXP_WC_SRQ = 1 << 40,
        IBV_EXP_WC_DCT = 1 << 41,
    }
}

mirror! {
    /// Work completion.
    pub struct ibv_exp_wc {
        wr_id: u64,
        status: c_uint,
        exp_opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        reserved: c_int,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
        timestamp: u64,
        qp: *mut ibv_qp,
        srq: *mut ibv_srq,
        dct: *mut ibv_exp_dct,
        exp_wc_flags: u64,
        tm_info: ibv_wc_tm_info,
    }
}
