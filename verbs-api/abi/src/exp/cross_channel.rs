//! `verbs_exp/cross.h`.

use core::ffi::c_uint;

use super::{constants, send::ibv_exp_send_wr};
use crate::{ibv_qp, ibv_recv_wr, layout::mirror};

constants! {
    u32, "Bit of a valid member of `ibv_exp_cq_init_attr`. (`enum ibv_exp_cq_init_attr_mask`)": {
        IBV_EXP_CQ_INIT_ATTR_FLAGS = 1 << 0,
    }
    u32, "CQ creation flag bit. (`enum ibv_exp_cq_create_flags`)": {
        IBV_EXP_CQ_CREATE_CROSS_CHANNEL = 1 << 0,
    }
    u32, "Bit of an attribute that `ibv_exp_modify_cq` changes. (`enum ibv_exp_cq_attr_mask`)": {
        IBV_EXP_CQ_MODERATION = 1 << 0,
        IBV_EXP_CQ_CAP_FLAGS = 1 << 1,
    }
    u32, "Bit of a valid member of `ibv_exp_cq_attr`. (`enum ibv_exp_cq_attr_comp_mask`)": {
        IBV_EXP_CQ_ATTR_CQ_CAP_FLAGS = 1 << 1,
    }
    u32, "CQ capability bit. (`enum ibv_exp_cq_cap_flags`)": {
        IBV_EXP_CQ_IGNORE_OVERRUN = 1 << 0,
    }
    u32, "The queue of a task. (`enum ibv_exp_task_type`)": {
        //= XCON-18
        IBV_EXP_TASK_SEND = 0,
        IBV_EXP_TASK_RECV = 1,
    }
}

mirror! {
    /// Attributes of a new CQ.
    pub struct ibv_exp_cq_init_attr {
        comp_mask: u32,
        flags: u32,
    }

    /// Attributes to change in a CQ.
    pub struct ibv_exp_cq_attr {
        comp_mask: u32,
        moderation: ibv_exp_cq_attr_moderation,
        cq_cap_flags: u32,
    }
    also {
        "moderation.cq_count": u16 = moderation.cq_count,
        "moderation.cq_period": u16 = moderation.cq_period,
    }

    /// Work requests for one queue.
    pub struct ibv_exp_task {
        task_type: c_uint,
        item: ibv_exp_task_item,
        next: *mut ibv_exp_task,
        comp_mask: u32,
    }
    also {
        "item.qp": *mut ibv_qp = item.qp,
        "item.send_wr": *mut ibv_exp_send_wr = item.requests,
        "item.recv_wr": *mut ibv_recv_wr = item.requests,
    }
}

/// Event moderation of a CQ.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_exp_cq_attr_moderation {
    /// Completions.
    pub cq_count: u16,
    /// Period in microseconds.
    pub cq_period: u16,
}

/// A list of work requests, and the QP to post them to.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_exp_task_item {
    /// The queue pair.
    pub qp: *mut ibv_qp,
    /// List of [`ibv_exp_send_wr`], or of [`ibv_recv_wr`] with `IBV_EXP_TASK_RECV`.
    pub requests: *mut core::ffi::c_void,
}
