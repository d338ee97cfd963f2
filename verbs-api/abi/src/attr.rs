//! Attributes for creating, modifying and querying objects.

use core::ffi::{c_int, c_uint, c_void};

use crate::{
    ibv_comp_channel, ibv_cq, ibv_gid, ibv_pd, ibv_rwq_ind_table, ibv_srq, ibv_td, ibv_wq,
    ibv_xrcd, layout::mirror,
};

/// Allocator of a parent domain: (pd, `pd_context`, size, alignment, resource type).
pub type ParentDomainAllocFn =
    Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void>;
/// Deallocator of a parent domain: (pd, `pd_context`, memory, resource type).
pub type ParentDomainFreeFn =
    Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64)>;

mirror! {
    /// For `ibv_alloc_dm`.
    pub struct ibv_alloc_dm_attr {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }

    /// For `ibv_alloc_td`.
    pub struct ibv_td_init_attr {
        comp_mask: u32,
    }

    /// For `ibv_open_xrcd`.
    pub struct ibv_xrcd_init_attr {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }

    /// Global route of an address vector.
    pub struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// Global route header, network byte order.
    pub struct ibv_grh {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }

    /// Address vector.
    pub struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// Size and limit of a shared receive queue.
    pub struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// For `ibv_create_srq`.
    pub struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    /// Tag matching part of [`ibv_srq_init_attr_ex`].
    pub struct ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    /// For `ibv_create_srq_ex`.
    pub struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: c_uint,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }

    /// For `ibv_create_wq`.
    pub struct ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: c_uint,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }

    /// For `ibv_modify_wq`.
    pub struct ibv_wq_attr {
        attr_mask: u32,
        wq_state: c_uint,
        curr_wq_state: c_uint,
        flags: u32,
        flags_mask: u32,
    }

    /// For `ibv_create_rwq_ind_table`.
    pub struct ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }

    /// Capacities of a queue pair.
    pub struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    /// For `ibv_create_qp`.
    pub struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }

    /// Receive hash of [`ibv_qp_init_attr_ex`].
    pub struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    /// For `ibv_create_qp_ex`. Begins like [`ibv_qp_init_attr`].
    pub struct ibv_qp_init_attr_ex {
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
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }

    /// For `ibv_open_qp`.
    pub struct ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }

    /// For `ibv_modify_qp` and `ibv_query_qp`.
    pub struct ibv_qp_attr {
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
        /// In kbit/s.
        rate_limit: u32,
    }

    /// For `ibv_modify_qp_rate_limit`.
    pub struct ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }

    /// For `ibv_query_ece` and `ibv_set_ece`.
    pub struct ibv_ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }

    /// For `ibv_create_cq_ex`.
    pub struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }

    /// Moderation of a completion queue.
    pub struct ibv_moderate_cq {
        cq_count: u16,
        /// In microseconds.
        cq_period: u16,
    }

    /// For `ibv_modify_cq`.
    pub struct ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }

    /// For `ibv_alloc_parent_domain`.
    pub struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: ParentDomainAllocFn,
        free: ParentDomainFreeFn,
        pd_context: *mut c_void,
    }

    /// For `ibv_create_counters`.
    pub struct ibv_counters_init_attr {
        comp_mask: u32,
    }

    /// For `ibv_attach_counters_point_flow`.
    pub struct ibv_counter_attach_attr {
        counter_desc: c_uint,
        index: u32,
        comp_mask: u32,
    }

    /// For `ibv_query_rt_values_ex`.
    pub struct ibv_values_ex {
        comp_mask: u32,
        raw_clock: libc::timespec,
    }

    /// Head of the flow specifications of `ibv_create_flow`.
    pub struct ibv_flow_attr {
        comp_mask: u32,
        r#type: c_uint,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }

    /// For `ibv_create_flow_action_esp`.
    pub struct ibv_flow_action_esp_attr {
        esp_attr: *mut c_void,
        keymat_proto: c_uint,
        keymat_len: u16,
        keymat_ptr: *mut c_void,
        replay_proto: c_uint,
        replay_len: u16,
        replay_ptr: *mut c_void,
        esp_encap: *mut c_void,
        comp_mask: u32,
        esn: u32,
    }
}
