//! The device context, with the function tables that inline verbs of the header call through.

use core::ffi::{c_int, c_uint, c_void};

use libc::pthread_mutex_t;

use crate::{
    AllocDmFn, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_device, ibv_device_attr_ex, ibv_dm, ibv_flow, ibv_flow_action,
    ibv_flow_action_esp_attr, ibv_flow_attr, ibv_modify_cq_attr, ibv_mr, ibv_mw, ibv_mw_bind,
    ibv_ops_wr, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_query_device_ex_input, ibv_recv_wr,
    ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_send_wr, ibv_sge, ibv_srq,
    ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_values_ex, ibv_wc, ibv_wq, ibv_wq_attr,
    ibv_wq_init_attr, ibv_xrcd, ibv_xrcd_init_attr, layout::mirror,
};

/// Value of [`ibv_context::abi_compat`] in a context that is part of a [`verbs_context`].
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// Obsolete op, which no header calls.
pub type CompatFn = Option<unsafe extern "C" fn() -> *mut c_void>;
/// `alloc_mw`.
pub type AllocMwFn = Option<unsafe extern "C" fn(*mut ibv_pd, c_uint) -> *mut ibv_mw>;
/// `bind_mw`.
pub type BindMwFn =
    Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>;
/// `dealloc_mw`.
pub type DeallocMwFn = Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>;
/// `poll_cq`.
pub type PollCqFn = Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>;
/// `req_notify_cq`.
pub type ReqNotifyCqFn = Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>;
/// `post_srq_recv`.
pub type PostSrqRecvFn =
    Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>;
/// `post_send`.
pub type PostSendFn =
    Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>;
/// `post_recv`.
pub type PostRecvFn =
    Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>;
/// `query_port`: the last argument is the size of the caller's structure.
pub type QueryPortFn =
    Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>;
/// `advise_mr`.
pub type AdviseMrFn =
    Option<unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int>;
/// `alloc_null_mr`.
pub type AllocNullMrFn = Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>;
/// `read_counters`.
pub type ReadCountersFn =
    Option<unsafe extern "C" fn(*mut ibv_counters, *mut u64, u32, u32) -> c_int>;
/// `attach_counters_point_flow`.
pub type AttachCountersFn = Option<
    unsafe extern "C" fn(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow) -> c_int,
>;
/// `create_counters`.
pub type CreateCountersFn = Option<
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_counters_init_attr) -> *mut ibv_counters,
>;
/// `destroy_counters`.
pub type DestroyCountersFn = Option<unsafe extern "C" fn(*mut ibv_counters) -> c_int>;
/// `reg_dm_mr`.
pub type RegDmMrFn =
    Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>;
/// `free_dm`.
pub type FreeDmFn = Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>;
/// `modify_flow_action_esp`.
pub type ModifyFlowActionFn =
    Option<unsafe extern "C" fn(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int>;
/// `destroy_flow_action`.
pub type DestroyFlowActionFn = Option<unsafe extern "C" fn(*mut ibv_flow_action) -> c_int>;
/// `create_flow_action_esp`.
pub type CreateFlowActionFn = Option<
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action,
>;
/// `modify_qp_rate_limit`.
pub type ModifyQpRateLimitFn =
    Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_rate_limit_attr) -> c_int>;
/// `alloc_parent_domain`.
pub type AllocParentDomainFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>;
/// `dealloc_td`.
pub type DeallocTdFn = Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>;
/// `alloc_td`.
pub type AllocTdFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>;
/// `modify_cq`.
pub type ModifyCqFn = Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>;
/// `post_srq_ops`.
pub type PostSrqOpsFn =
    Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int>;
/// `destroy_rwq_ind_table`.
pub type DestroyRwqIndTableFn = Option<unsafe extern "C" fn(*mut ibv_rwq_ind_table) -> c_int>;
/// `create_rwq_ind_table`.
pub type CreateRwqIndTableFn = Option<
    unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table,
>;
/// `destroy_wq`.
pub type DestroyWqFn = Option<unsafe extern "C" fn(*mut ibv_wq) -> c_int>;
/// `modify_wq`.
pub type ModifyWqFn = Option<unsafe extern "C" fn(*mut ibv_wq, *mut ibv_wq_attr) -> c_int>;
/// `create_wq`.
pub type CreateWqFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq>;
/// `query_rt_values`.
pub type QueryRtValuesFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>;
/// `create_cq_ex`.
pub type CreateCqExFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>;
/// `query_device_ex`: the last argument is the size of the caller's structure.
pub type QueryDeviceExFn = Option<
    unsafe extern "C" fn(
        *mut ibv_context,
        *const ibv_query_device_ex_input,
        *mut ibv_device_attr_ex,
        usize,
    ) -> c_int,
>;
/// `ibv_destroy_flow`.
pub type DestroyFlowFn = Option<unsafe extern "C" fn(*mut ibv_flow) -> c_int>;
/// `ibv_create_flow`.
pub type CreateFlowFn =
    Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_flow_attr) -> *mut ibv_flow>;
/// Placeholder of an unused op.
pub type PlaceholderFn = Option<unsafe extern "C" fn()>;
/// `open_qp`.
pub type OpenQpFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>;
/// `create_qp_ex`.
pub type CreateQpExFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>;
/// `get_srq_num`.
pub type GetSrqNumFn = Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>;
/// `create_srq_ex`.
pub type CreateSrqExFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>;
/// `open_xrcd`.
pub type OpenXrcdFn =
    Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>;
/// `close_xrcd`.
pub type CloseXrcdFn = Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>;

mirror! {
    /// Function table inside [`ibv_context`]. No header calls the ops `_compat_*`.
    pub struct ibv_context_ops {
        _compat_query_device: CompatFn,
        _compat_query_port: CompatFn,
        _compat_alloc_pd: CompatFn,
        _compat_dealloc_pd: CompatFn,
        _compat_reg_mr: CompatFn,
        _compat_rereg_mr: CompatFn,
        _compat_dereg_mr: CompatFn,
        alloc_mw: AllocMwFn,
        bind_mw: BindMwFn,
        dealloc_mw: DeallocMwFn,
        _compat_create_cq: CompatFn,
        poll_cq: PollCqFn,
        req_notify_cq: ReqNotifyCqFn,
        _compat_cq_event: CompatFn,
        _compat_resize_cq: CompatFn,
        _compat_destroy_cq: CompatFn,
        _compat_create_srq: CompatFn,
        _compat_modify_srq: CompatFn,
        _compat_query_srq: CompatFn,
        _compat_destroy_srq: CompatFn,
        post_srq_recv: PostSrqRecvFn,
        _compat_create_qp: CompatFn,
        _compat_query_qp: CompatFn,
        _compat_modify_qp: CompatFn,
        _compat_destroy_qp: CompatFn,
        post_send: PostSendFn,
        post_recv: PostRecvFn,
        _compat_create_ah: CompatFn,
        _compat_destroy_ah: CompatFn,
        _compat_attach_mcast: CompatFn,
        _compat_detach_mcast: CompatFn,
        _compat_async_event: CompatFn,
    }

    /// An open device.
    pub struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }

    /// The extended context around an [`ibv_context`]. Newer versions add members at the top. A
    /// caller has a member if [`verbs_context::sz`] includes it.
    pub struct verbs_context {
        query_port: QueryPortFn,
        advise_mr: AdviseMrFn,
        alloc_null_mr: AllocNullMrFn,
        read_counters: ReadCountersFn,
        attach_counters_point_flow: AttachCountersFn,
        create_counters: CreateCountersFn,
        destroy_counters: DestroyCountersFn,
        reg_dm_mr: RegDmMrFn,
        alloc_dm: AllocDmFn,
        free_dm: FreeDmFn,
        modify_flow_action_esp: ModifyFlowActionFn,
        destroy_flow_action: DestroyFlowActionFn,
        create_flow_action_esp: CreateFlowActionFn,
        modify_qp_rate_limit: ModifyQpRateLimitFn,
        alloc_parent_domain: AllocParentDomainFn,
        dealloc_td: DeallocTdFn,
        alloc_td: AllocTdFn,
        modify_cq: ModifyCqFn,
        post_srq_ops: PostSrqOpsFn,
        destroy_rwq_ind_table: DestroyRwqIndTableFn,
        create_rwq_ind_table: CreateRwqIndTableFn,
        destroy_wq: DestroyWqFn,
        modify_wq: ModifyWqFn,
        create_wq: CreateWqFn,
        query_rt_values: QueryRtValuesFn,
        create_cq_ex: CreateCqExFn,
        r#priv: *mut c_void,
        query_device_ex: QueryDeviceExFn,
        ibv_destroy_flow: DestroyFlowFn,
        ABI_placeholder2: PlaceholderFn,
        ibv_create_flow: CreateFlowFn,
        ABI_placeholder1: PlaceholderFn,
        open_qp: OpenQpFn,
        create_qp_ex: CreateQpExFn,
        get_srq_num: GetSrqNumFn,
        create_srq_ex: CreateSrqExFn,
        open_xrcd: OpenXrcdFn,
        close_xrcd: CloseXrcdFn,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }
}
