//! The verbs objects that programs hold pointers to.

use core::ffi::{c_int, c_uint, c_void};

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::{ibv_alloc_dm_attr, ibv_context, ibv_recv_wr, layout::mirror};

/// `ibv_dm::memcpy_to_dm`.
pub type MemcpyToDmFn =
    Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>;
/// `ibv_dm::memcpy_from_dm`.
pub type MemcpyFromDmFn =
    Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>;
/// `ibv_wq::post_recv`.
pub type WqPostRecvFn =
    Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>;
/// `alloc_dm`.
pub type AllocDmFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>;

mirror! {
    /// Protection domain.
    pub struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    /// Thread domain.
    pub struct ibv_td {
        context: *mut ibv_context,
    }

    /// XRC domain.
    pub struct ibv_xrcd {
        context: *mut ibv_context,
    }

    /// Memory region.
    pub struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    /// Memory window.
    pub struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        mw_type: c_uint,
    }

    /// Device memory.
    pub struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: MemcpyToDmFn,
        memcpy_from_dm: MemcpyFromDmFn,
        comp_mask: u32,
        handle: u32,
    }

    /// Shared receive queue.
    pub struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    /// Work queue.
    pub struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: c_uint,
        wq_type: c_uint,
        post_recv: WqPostRecvFn,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }

    /// Indirection table of receive work queues.
    pub struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }

    /// Queue pair.
    pub struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    /// Completion event channel.
    pub struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    /// Completion queue.
    pub struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// Address handle.
    pub struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    /// Flow steering rule.
    pub struct ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }

    /// Flow action.
    pub struct ibv_flow_action {
        context: *mut ibv_context,
    }

    /// Set of counters.
    pub struct ibv_counters {
        context: *mut ibv_context,
    }
}
