//! Structures of `mlx5dv.h`, as far as Rocade supports them for devices with an mlx5 identity.

use core::ffi::c_void;

use crate::layout::mirror;
use crate::{ibv_ah, ibv_pd, ibv_sge};

mirror! {
    /// Parameters of `mlx5dv_open_device`.
    pub struct mlx5dv_context_attr {
        flags: u32,
        comp_mask: u64,
    }

    /// Limits on the streams of a DC initiator, as binary logarithms.
    pub struct mlx5dv_dci_streams_caps {
        max_log_num_concurent: u8,
        max_log_num_errored: u8,
    }

    /// Capabilities of a device. Nested structures that Rocade leaves 0 are words here.
    pub struct mlx5dv_context {
        version: u8,
        flags: u64,
        comp_mask: u64,
        cqe_comp_caps: [u32; 2],
        sw_parsing_caps: [u32; 2],
        striding_rq_caps: [u32; 5],
        tunnel_offloads_caps: u32,
        max_dynamic_bfregs: u32,
        max_clock_info_update_nsec: u64,
        flow_action_flags: u32,
        dc_odp_caps: u32,
        hca_core_clock: *mut c_void,
        num_lag_ports: u8,
        sig_caps: [u64; 2],
        dci_streams_caps: mlx5dv_dci_streams_caps,
        max_wr_memcpy_length: usize,
        crypto_caps: [u32; 3],
    }

    /// Numbers of streams of a DC initiator, as binary logarithms.
    pub struct mlx5dv_dci_streams {
        log_num_concurent: u8,
        log_num_errored: u8,
    }

    /// Parameters of a DC QP: the access key of a target, or the streams of an initiator.
    pub struct mlx5dv_dc_init_attr {
        dc_type: u32,
        dct_access_key: u64,
    }
    also { "dci_streams": mlx5dv_dci_streams = dct_access_key }

    /// The mlx5 parameters of a new QP.
    pub struct mlx5dv_qp_init_attr {
        comp_mask: u64,
        create_flags: u32,
        dc_init_attr: mlx5dv_dc_init_attr,
        send_ops_flags: u64,
    }

    /// Parameters of a new indirect memory key.
    pub struct mlx5dv_mkey_init_attr {
        pd: *mut ibv_pd,
        create_flags: u32,
        max_entries: u16,
    }

    /// An indirect memory key.
    pub struct mlx5dv_mkey {
        lkey: u32,
        rkey: u32,
    }

    /// A block of an interleaved layout.
    pub struct mlx5dv_mr_interleaved {
        addr: u64,
        bytes_count: u32,
        bytes_skip: u32,
        lkey: u32,
    }

    /// Parameters of `mlx5dv_wr_mkey_configure`.
    pub struct mlx5dv_mkey_conf_attr {
        conf_flags: u32,
        comp_mask: u64,
    }

    /// The mlx5 builders of a QP.
    pub struct mlx5dv_qp_ex {
        comp_mask: u64,
        wr_set_dc_addr: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut ibv_ah, u32, u64)>,
        wr_mr_interleaved: Option<
            unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut c_void, u32, u32, u16, *mut c_void),
        >,
        wr_mr_list:
            Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut c_void, u32, u16, *mut ibv_sge)>,
        wr_mkey_configure:
            Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut c_void, u8, *mut c_void)>,
        wr_set_mkey_access_flags: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, u32)>,
        wr_set_mkey_layout_list:
            Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, u16, *const ibv_sge)>,
        wr_set_mkey_layout_interleaved:
            Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, u32, u16, *const c_void)>,
        wr_set_mkey_sig_block: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *const c_void)>,
        wr_raw_wqe: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *const c_void)>,
        wr_set_dc_addr_stream:
            Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *mut ibv_ah, u32, u64, u16)>,
        wr_memcpy: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, u32, u64, u32, u64, usize)>,
        wr_set_mkey_crypto: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *const c_void)>,
    }
}

/// Valid members of [`mlx5dv_qp_init_attr`].
pub const MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS: u64 = 1;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_QP_INIT_ATTR_MASK_DC: u64 = 2;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS: u64 = 4;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS: u64 = 8;

/// Builders of a QP: interleaved layouts, lists, and configuration by setters.
pub const MLX5DV_QP_EX_WITH_MKEYS: u64 = 1 | 2 | 4;
/// `enum mlx5dv_mkey_init_attr_flags`.
pub const MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT: u32 = 1;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_MKEY_INIT_ATTR_FLAGS_REMOTE_INVALIDATE: u32 = 16;

/// Creation flags without effect here: they select where inline data is scattered, and how often
/// the peer acknowledges.
pub const MLX5DV_QP_CREATE_HINTS: u32 = 1 << 3 | 1 << 4 | 1 << 5;

/// `enum mlx5dv_dc_type`.
pub const MLX5DV_DCTYPE_DCT: u32 = 1;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_DCTYPE_DCI: u32 = 2;

/// The members after [`mlx5dv_context`] in newer headers. Valid if
/// [`MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM`] is requested.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_context_dc_rd_atom {
    /// Largest number of outstanding READs and atomics at a DC target.
    pub max_dc_rd_atom: u64,
    /// Largest number of outstanding READs and atomics of a DC initiator.
    pub max_dc_init_rd_atom: u64,
}
/// Flag that only newer headers define.
pub const MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM: u64 = 1 << 14;

/// Members of [`mlx5dv_context`] that a program may request.
pub const MLX5DV_CONTEXT_MASK_DC_ODP_CAPS: u64 = 1 << 7;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS: u64 = 1 << 9;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_CONTEXT_MASK_DCI_STREAMS: u64 = 1 << 11;
