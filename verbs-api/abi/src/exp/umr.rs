//! `verbs_exp/umr.h`.

use core::ffi::c_void;

use super::constants;
use crate::{ibv_pd, layout::mirror};

constants! {
    u32, "Key creation flag bit. (`enum ibv_exp_mr_create_flags`)": {
        IBV_EXP_MR_SIGNATURE_EN = 1 << 0,
        IBV_EXP_MR_INDIRECT_KLMS = 1 << 1,
        IBV_EXP_MR_FIXED_BUFFER_SIZE = 1 << 2,
    }
    u32, "Member bit of [`ibv_exp_reg_mr_in`]. (`enum ibv_exp_reg_mr_in_comp_mask`)": {
        IBV_EXP_REG_MR_CREATE_FLAGS = 1 << 0,
    }
    u32, "Type of a key list. (`enum ibv_exp_mkey_list_type`)": {
        IBV_EXP_MKEY_LIST_TYPE_INDIRECT_MR = 0,
    }
}

mirror! {
    /// For `ibv_exp_reg_mr`.
    pub struct ibv_exp_reg_mr_in {
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        exp_access: u64,
        comp_mask: u32,
        create_flags: u32,
    }

    /// Attributes of a new key.
    pub struct ibv_exp_mr_init_attr {
        max_klm_list_size: u32,
        create_flags: u32,
        exp_access_flags: u64,
    }

    /// For `ibv_exp_create_mr`.
    pub struct ibv_exp_create_mr_in {
        pd: *mut ibv_pd,
        attr: ibv_exp_mr_init_attr,
        comp_mask: u32,
    }

    /// Attributes of an existing key.
    pub struct ibv_exp_mkey_attr {
        max_klm_list_size: u32,
        comp_mask: u32,
    }
    also {
        "n_mkey_entries": u32 = max_klm_list_size,
    }

    /// For `ibv_exp_alloc_mkey_list_memory`.
    pub struct ibv_exp_mkey_list_container_attr {
        pd: *mut ibv_pd,
        mkey_list_type: u32,
        max_klm_list_size: u32,
        comp_mask: u32,
    }
}
