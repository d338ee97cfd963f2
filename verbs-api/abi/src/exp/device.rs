//! `verbs_exp/device.h`.

use core::ffi::{c_char, c_int, c_uint};

use super::constants;
use crate::layout::mirror;

constants! {
    u32, "Atomicity of a device's atomics. (`enum ibv_exp_atomic_cap`)": {
        IBV_EXP_ATOMIC_NONE = 0,
        IBV_EXP_ATOMIC_HCA = 1,
        IBV_EXP_ATOMIC_GLOB = 2,
        IBV_EXP_ATOMIC_HCA_REPLY_BE = 0x40,
    }
    u64, "Device capability bit. (`enum ibv_exp_device_cap_flags`)": {
        IBV_EXP_DEVICE_DC_TRANSPORT = 1 << 32,
        IBV_EXP_DEVICE_EXT_ATOMICS = 1 << 36,
        IBV_EXP_DEVICE_NOP = 1 << 37,
        IBV_EXP_DEVICE_UMR = 1 << 38,
        IBV_EXP_DEVICE_ODP = 1 << 39,
        IBV_EXP_DEVICE_EXT_MASKED_ATOMICS = 1 << 46,
        IBV_EXP_DEVICE_DC_INFO = 1 << 54,
        IBV_EXP_DEVICE_MW_TYPE_2A = 1 << 55,
        IBV_EXP_DEVICE_MW_TYPE_2B = 1 << 56,
        IBV_EXP_DEVICE_CROSS_CHANNEL = 1 << 60,
    }
    u32, "Bit of a valid member of `ibv_exp_device_attr`. (`enum ibv_exp_device_attr_comp_mask`)": {
        //= XCON-05
        IBV_EXP_DEVICE_ATTR_CALC_CAP = 1 << 0,
        IBV_EXP_DEVICE_ATTR_WITH_TIMESTAMP_MASK = 1 << 1,
        IBV_EXP_DEVICE_ATTR_WITH_HCA_CORE_CLOCK = 1 << 2,
        IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS = 1 << 3,
        IBV_EXP_DEVICE_DC_RD_REQ = 1 << 4,
        IBV_EXP_DEVICE_DC_RD_RES = 1 << 5,
        IBV_EXP_DEVICE_ATTR_INLINE_RECV_SZ = 1 << 6,
        IBV_EXP_DEVICE_ATTR_RSS_TBL_SZ = 1 << 7,
        IBV_EXP_DEVICE_ATTR_EXT_ATOMIC_ARGS = 1 << 8,
        IBV_EXP_DEVICE_ATTR_UMR = 1 << 9,
        IBV_EXP_DEVICE_ATTR_ODP = 1 << 10,
        IBV_EXP_DEVICE_ATTR_MAX_DCT = 1 << 11,
        IBV_EXP_DEVICE_ATTR_MASKED_ATOMICS = 1 << 19,
    }
}

mirror! {
    /// Computations that sends can do.
    pub struct ibv_exp_device_calc_cap {
        data_types: u64,
        data_sizes: u64,
        int_ops: u64,
        uint_ops: u64,
        fp_ops: u64,
    }

    /// Operand sizes of atomics.
    pub struct ibv_exp_ext_atomics_params {
        log_atomic_arg_sizes: u64,
        max_fa_bit_boundary: u32,
        log_max_atomic_inline: u32,
    }
    also {
        "atomic_arg_sizes": u64 = log_atomic_arg_sizes,
    }

    /// Operand sizes of masked atomics.
    pub struct ibv_exp_masked_atomic_params {
        max_fa_bit_boundary: u32,
        log_max_atomic_inline: u32,
        masked_log_atomic_arg_sizes: u64,
        masked_log_atomic_arg_sizes_network_endianness: u64,
    }

    /// Limits of indirect memory keys.
    pub struct ibv_exp_umr_caps {
        max_klm_list_size: u32,
        max_send_wqe_inline_klms: u32,
        max_umr_recursion_depth: u32,
        max_umr_stride_dimension: u32,
    }
    also {
        "max_mkey_klm_list_size": u32 = max_klm_list_size,
    }

    /// On-demand paging capabilities.
    pub struct ibv_exp_odp_caps {
        general_odp_caps: u64,
        per_transport_caps: ibv_exp_odp_transport_caps,
    }
    also {
        "per_transport_caps.rc_odp_caps": u32 = per_transport_caps.rc_odp_caps,
        "per_transport_caps.uc_odp_caps": u32 = per_transport_caps.uc_odp_caps,
        "per_transport_caps.ud_odp_caps": u32 = per_transport_caps.ud_odp_caps,
        "per_transport_caps.dc_odp_caps": u32 = per_transport_caps.dc_odp_caps,
        "per_transport_caps.xrc_odp_caps": u32 = per_transport_caps.xrc_odp_caps,
        "per_transport_caps.raw_eth_odp_caps": u32 = per_transport_caps.raw_eth_odp_caps,
    }

    /// Attributes of a device.
    pub struct ibv_exp_device_attr {
        fw_ver: [c_char; 64],
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        reserved: c_int,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        exp_atomic_cap: c_uint,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        comp_mask: u32,
        calc_cap: ibv_exp_device_calc_cap,
        timestamp_mask: u64,
        hca_core_clock: u64,
        exp_device_cap_flags: u64,
        max_dc_req_rd_atom: c_int,
        max_dc_res_rd_atom: c_int,
        inline_recv_sz: c_int,
        max_rss_tbl_sz: u32,
        ext_atom: ibv_exp_ext_atomics_params,
        umr_caps: ibv_exp_umr_caps,
        odp_caps: ibv_exp_odp_caps,
        max_dct: c_int,
        masked_atomic: ibv_exp_masked_atomic_params,
    }
}

/// On-demand paging capabilities per transport service.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "a member per service")]
pub struct ibv_exp_odp_transport_caps {
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
    pub dc_odp_caps: u32,
    pub xrc_odp_caps: u32,
    pub raw_eth_odp_caps: u32,
}
