//! The functions for `libmlx5` and `libefa`, with a record of each call.
//!
//! Rows are as in [`super::calls`]. The function tables of `crate::dv` and `crate::efa` have these
//! functions.

use std::ffi::c_int;
use std::fmt::Write as _;

use rocade_abi::{
    efadv_comp_cntr_init_attr, ibv_ah, ibv_comp_cntr, ibv_comp_cntr_init_attr, ibv_context,
    ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr_ex,
    mlx5::{
        MLX5DV_DCTYPE_DCI, MLX5DV_DCTYPE_DCT, MLX5DV_QP_INIT_ATTR_MASK_DC,
        MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS, MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
        MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS, mlx5dv_context, mlx5dv_context_attr, mlx5dv_mkey,
        mlx5dv_mkey_init_attr, mlx5dv_qp_ex, mlx5dv_qp_init_attr,
    },
};

use super::show::{Done, Shown, Target, opaque};
use super::sink::{begin, end, is_on};
use super::table::traced;

traced! {
    "C" Negative crate::dv::mlx5dv_is_supported => mlx5dv_is_supported(
        device: *mut ibv_device) -> bool;
    "C" Errno crate::dv::mlx5dv_open_device => mlx5dv_open_device(
        device: *mut ibv_device, attr: *mut mlx5dv_context_attr) -> *mut ibv_context;
    "C" Errno crate::dv::mlx5dv_query_device => mlx5dv_query_device(
        context: *mut ibv_context, attr: *mut mlx5dv_context) -> c_int;
    "C" Errno crate::dv::mlx5dv_create_qp => mlx5dv_create_qp(
        context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex,
        mlx5_attr: *mut mlx5dv_qp_init_attr) -> *mut ibv_qp;
    "C" Errno crate::dv::mlx5dv_qp_ex_from_ibv_qp_ex => mlx5dv_qp_ex_from_ibv_qp_ex(
        qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex;
    "C" Errno crate::dv::mlx5dv_dci_stream_id_reset => mlx5dv_dci_stream_id_reset(
        qp: *mut ibv_qp, stream_id: u16) -> c_int;
    "C" Errno crate::dv::mlx5dv_map_ah_to_qp => mlx5dv_map_ah_to_qp(
        ah: *mut ibv_ah, qp_num: u32) -> c_int;
    "C" Errno crate::dv::mkey::mlx5dv_create_mkey => mlx5dv_create_mkey(
        attr: *mut mlx5dv_mkey_init_attr) -> *mut mlx5dv_mkey;
    "C" Frees crate::dv::mkey::mlx5dv_destroy_mkey => mlx5dv_destroy_mkey(
        mkey: *mut mlx5dv_mkey) -> c_int;
    "C" Errno crate::dv::mlx5dv_reserved_qpn_alloc => mlx5dv_reserved_qpn_alloc(
        context: *mut ibv_context, qp_num: *mut u32) -> c_int;
    "C" Errno crate::dv::mlx5dv_reserved_qpn_dealloc => mlx5dv_reserved_qpn_dealloc(
        context: *mut ibv_context, qp_num: u32) -> c_int;
    "C" Errno crate::dv::dmabuf::mlx5dv_reg_dmabuf_mr => mlx5dv_reg_dmabuf_mr(
        pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int,
        mlx5_access: c_int) -> *mut ibv_mr;
    "C" Errno crate::efa::efadv_create_comp_cntr => efadv_create_comp_cntr(
        context: *mut ibv_context, attr: *mut ibv_comp_cntr_init_attr,
        efa_attr: *mut efadv_comp_cntr_init_attr, inlen: u32) -> *mut ibv_comp_cntr;
}

opaque!(mlx5dv_qp_ex);

impl Target for mlx5dv_context_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let _ = write!(text, "{{flags={:#x}}}", shown.flags);
    }
}

impl Target for mlx5dv_context {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let _ = write!(text, "{{comp_mask={:#x}}}", shown.comp_mask);
    }

    fn stored(done: Done<'_, Self>, _name: &str, text: &mut String) {
        let _ = write!(text, " {{comp_mask={:#x}}}", done.comp_mask);
    }
}

impl Target for mlx5dv_qp_init_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let has = |bit: u64| shown.comp_mask & bit != 0;
        let mut separator = "{";
        let mut item = |name: &str, value: String| {
            let _ = write!(text, "{separator}{name}={value}");
            separator = ", ";
        };
        if has(MLX5DV_QP_INIT_ATTR_MASK_DC) {
            let dc = &shown.dc_init_attr;
            match dc.dc_type {
                MLX5DV_DCTYPE_DCI => item("dc_type", "DCI".to_owned()),
                MLX5DV_DCTYPE_DCT => {
                    item("dc_type", "DCT".to_owned());
                    item("dct_access_key", format!("{:#x}", dc.dct_access_key));
                }
                other => item("dc_type", other.to_string()),
            }
            if has(MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS) {
                let [concurrent, errored, ..] = dc.dct_access_key.to_ne_bytes();
                item("log_num_concurent", concurrent.to_string());
                item("log_num_errored", errored.to_string());
            }
        }
        if has(MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS) {
            item("create_flags", format!("{:#x}", shown.create_flags));
        }
        if has(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS) {
            item("send_ops_flags", format!("{:#x}", shown.send_ops_flags));
        }
        text.push_str(if separator == "{" { "{}" } else { "}" });
    }
}

impl Target for mlx5dv_mkey_init_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let _ = write!(
            text,
            "{{pd={:#x}, create_flags={:#x}, max_entries={}}}",
            shown.pd.addr(),
            shown.create_flags,
            shown.max_entries
        );
    }
}

impl Target for mlx5dv_mkey {
    fn identity(&self, text: &mut String) {
        let Self { lkey, rkey } = self;
        let _ = write!(text, " {{lkey={lkey:#x}, rkey={rkey:#x}}}");
    }
}

impl Target for efadv_comp_cntr_init_attr {
    fn content(shown: Shown<'_, Self>, text: &mut String) {
        let _ = write!(text, "{{flags={:#x}}}", shown.flags);
    }
}
