//! Structures of `mlx5dv.h`, as far as devices that pass for such have something to say.

use core::ffi::c_void;

use crate::layout::mirror;
use crate::{ibv_ah, ibv_pd, ibv_sge};

mirror! {
    /// How a device is opened.
    pub struct mlx5dv_context_attr {
        flags: u32,
        comp_mask: u64,
    }

    /// Streams of a DC initiator that a device has, as powers of two.
    pub struct mlx5dv_dci_streams_caps {
        max_log_num_concurent: u8,
        max_log_num_errored: u8,
    }

    /// What a device can do. Members that stand for whole structures are words here: nothing is said there.
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

    /// Streams of a DC initiator, as powers of two.
    pub struct mlx5dv_dci_streams {
        log_num_concurent: u8,
        log_num_errored: u8,
    }

    /// What an end of dynamic connections is made with: a target has a key, an initiator may have streams.
    pub struct mlx5dv_dc_init_attr {
        dc_type: u32,
        dct_access_key: u64,
    }
    also { "dci_streams": mlx5dv_dci_streams = dct_access_key }

    /// What a queue pair is made with besides.
    pub struct mlx5dv_qp_init_attr {
        comp_mask: u64,
        create_flags: u32,
        dc_init_attr: mlx5dv_dc_init_attr,
        send_ops_flags: u64,
    }

    /// What an indirect memory key is made with.
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

    /// A piece that comes back at a distance.
    pub struct mlx5dv_mr_interleaved {
        addr: u64,
        bytes_count: u32,
        bytes_skip: u32,
        lkey: u32,
    }

    /// How a key is changed.
    pub struct mlx5dv_mkey_conf_attr {
        conf_flags: u32,
        comp_mask: u64,
    }

    /// The builders that a queue pair has besides.
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

/// Members of [`mlx5dv_qp_init_attr`] that count.
pub const MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS: u64 = 1;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_QP_INIT_ATTR_MASK_DC: u64 = 2;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS: u64 = 4;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS: u64 = 8;

/// Builders of a queue pair: interleaved layouts, lists, changes step by step.
pub const MLX5DV_QP_EX_WITH_MKEYS: u64 = 1 | 2 | 4;
/// `enum mlx5dv_mkey_init_attr_flags`.
pub const MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT: u32 = 1;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_MKEY_INIT_ATTR_FLAGS_REMOTE_INVALIDATE: u32 = 16;

/// Creation flags that only say where small messages go, or how often a peer acknowledges.
pub const MLX5DV_QP_CREATE_HINTS: u32 = 1 << 3 | 1 << 4 | 1 << 5;

/// `enum mlx5dv_dc_type`.
pub const MLX5DV_DCTYPE_DCT: u32 = 1;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_DCTYPE_DCI: u32 = 2;

/// What follows [`mlx5dv_context`] in newer headers: there where [`MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM`] is asked for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_context_dc_rd_atom {
    /// READs and atomics at once that a DC target answers.
    pub max_dc_rd_atom: u64,
    /// READs and atomics at once of a DC initiator.
    pub max_dc_init_rd_atom: u64,
}
/// Known to newer headers only.
pub const MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM: u64 = 1 << 14;

/// What may be asked for in [`mlx5dv_context`].
pub const MLX5DV_CONTEXT_MASK_DC_ODP_CAPS: u64 = 1 << 7;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS: u64 = 1 << 9;
#[allow(missing_docs, reason = "as above")]
pub const MLX5DV_CONTEXT_MASK_DCI_STREAMS: u64 = 1 << 11;
