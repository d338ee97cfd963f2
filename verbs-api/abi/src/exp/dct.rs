//! `verbs_exp/dct.h`.

use core::ffi::{c_int, c_uint};

use libc::{pthread_cond_t, pthread_mutex_t};

use super::constants;
use crate::{ibv_context, ibv_cq, ibv_pd, ibv_srq, layout::mirror};

constants! {
    u32, "DC target creation flag bit. (`enum ibv_exp_dct_create_flags`)": {
        IBV_EXP_DCT_OOO_RW_DATA_PLACEMENT = 1,
    }
    u8, "DC target state. (`enum ibv_exp_dct_state`)": {
        IBV_EXP_DCT_STATE_ACTIVE = 0,
        IBV_EXP_DCT_STATE_DRAINING = 1,
        IBV_EXP_DCT_STATE_DRAINED = 2,
    }
    u32, "Asynchronous event of a DC target. (`enum ibv_exp_event_type`)": {
        IBV_EXP_EVENT_DCT_KEY_VIOLATION = 32,
        IBV_EXP_EVENT_DCT_ACCESS_ERR = 33,
        IBV_EXP_EVENT_DCT_REQ_ERR = 34,
    }
}

mirror! {
    /// A DC target.
    pub struct ibv_exp_dct {
        context: *mut ibv_context,
        handle: u32,
        dct_num: u32,
        pd: *mut ibv_pd,
        srq: *mut ibv_srq,
        cq: *mut ibv_cq,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    /// Attributes of a new DC target.
    pub struct ibv_exp_dct_init_attr {
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        dc_key: u64,
        port: u8,
        access_flags: u32,
        min_rnr_timer: u8,
        tclass: u8,
        flow_label: u32,
        mtu: c_uint,
        pkey_index: u8,
        gid_index: u8,
        hop_limit: u8,
        inline_size: u32,
        create_flags: u32,
        comp_mask: u32,
    }

    /// Attributes of an existing DC target.
    pub struct ibv_exp_dct_attr {
        dc_key: u64,
        port: u8,
        access_flags: u32,
        min_rnr_timer: u8,
        tclass: u8,
        flow_label: u32,
        mtu: c_uint,
        pkey_index: u8,
        gid_index: u8,
        hop_limit: u8,
        key_violations: u32,
        state: u8,
        srq: *mut ibv_srq,
        cq: *mut ibv_cq,
        pd: *mut ibv_pd,
        comp_mask: u32,
    }
    also { "min_rnr_flags": u8 = min_rnr_timer }

    /// Parameters of `ibv_exp_arm_dct`.
    pub struct ibv_exp_arm_attr {
        comp_mask: u32,
    }

    /// An asynchronous event. Its element is a pointer or a number.
    pub struct ibv_exp_async_event {
        element: *mut ibv_exp_dct,
        event_type: c_int,
    }
    also {
        "element.cq": *mut ibv_cq = element,
        "element.dct": *mut ibv_exp_dct = element,
    }
}
