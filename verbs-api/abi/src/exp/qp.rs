//! `verbs_exp/qp.h`.

use core::ffi::{c_int, c_uint, c_void};

use super::constants;
use crate::{ibv_ah_attr, ibv_cq, ibv_pd, ibv_qp, ibv_qp_cap, ibv_srq, ibv_xrcd, layout::mirror};

constants! {
    u32, "QP type of a DC initiator.": {
        IBV_EXP_QPT_DC_INI = 32,
    }
    u32, "Bit of a valid member of `ibv_exp_qp_init_attr`. (`enum ibv_exp_qp_init_attr_comp_mask`)": {
        IBV_EXP_QP_INIT_ATTR_PD = 1 << 0,
        IBV_EXP_QP_INIT_ATTR_XRCD = 1 << 1,
        IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
        IBV_EXP_QP_INIT_ATTR_INL_RECV = 1 << 3,
        IBV_EXP_QP_INIT_ATTR_QPG = 1 << 4,
        IBV_EXP_QP_INIT_ATTR_ATOMICS_ARG = 1 << 5,
        IBV_EXP_QP_INIT_ATTR_MAX_INL_KLMS = 1 << 6,
    }
    u32, "QP creation flag bit. (`enum ibv_exp_qp_create_flags`)": {
        IBV_EXP_QP_CREATE_CROSS_CHANNEL = 1 << 2,
        IBV_EXP_QP_CREATE_MANAGED_SEND = 1 << 3,
        IBV_EXP_QP_CREATE_MANAGED_RECV = 1 << 4,
        IBV_EXP_QP_CREATE_IGNORE_SQ_OVERFLOW = 1 << 6,
        IBV_EXP_QP_CREATE_IGNORE_RQ_OVERFLOW = 1 << 7,
        IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY = 1 << 8,
        IBV_EXP_QP_CREATE_UMR = 1 << 9,
    }
    u32, "Role of a QP in a group. (`enum ibv_exp_qpg_type`)": {
        IBV_EXP_QPG_NONE = 0,
        IBV_EXP_QPG_PARENT = 1,
        IBV_EXP_QPG_CHILD_RX = 2,
        IBV_EXP_QPG_CHILD_TX = 4,
    }
    u64, "Bit of the mask of `ibv_exp_modify_qp`.": {
        IBV_EXP_QP_DC_KEY = 1 << 54,
    }
}

mirror! {
    /// A group of queue pairs.
    pub struct ibv_exp_qpg {
        qpg_type: u32,
        qpg_parent: *mut ibv_qp,
    }
    also {
        "parent_attrib": u64 = qpg_parent,
    }

    /// For `ibv_exp_create_qp`.
    pub struct ibv_exp_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        exp_create_flags: u32,
        max_inl_recv: u32,
        qpg: ibv_exp_qpg,
        max_atomic_arg: u32,
        max_inl_send_klms: u32,
    }

    /// For `ibv_exp_modify_qp`.
    pub struct ibv_exp_qp_attr {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        dct_key: u64,
        comp_mask: u32,
    }
}
