//! The experimental verbs and the older ones for XRC, with a record of each call.
//!
//! Rows are as in [`super::calls`]. Posts are in [`super::exp_data`].

use std::ffi::{c_int, c_void};

use rocade_abi::{
    exp::{
        cross_channel::{ibv_exp_cq_attr, ibv_exp_cq_init_attr, ibv_exp_task},
        dct::{ibv_exp_arm_attr, ibv_exp_dct, ibv_exp_dct_attr, ibv_exp_dct_init_attr},
        device::ibv_exp_device_attr,
        qp::{ibv_exp_qp_attr, ibv_exp_qp_init_attr},
        send::ibv_exp_mkey_list_container,
        umr::{
            ibv_exp_create_mr_in, ibv_exp_mkey_attr, ibv_exp_mkey_list_container_attr,
            ibv_exp_reg_mr_in,
        },
    },
    ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_srq, ibv_srq_init_attr,
};

use super::sink::{begin, end, is_on};
use super::table::traced;
use crate::xrc_compat::{ibv_xrc_domain, ibv_xrc_qp_init_attr};

traced! {
    "C" Errno crate::exp::umr::ibv_exp_alloc_mkey_list_memory => ibv_exp_alloc_mkey_list_memory(
        attr: *mut ibv_exp_mkey_list_container_attr) -> *mut ibv_exp_mkey_list_container;
    "C" Errno crate::exp::dct::ibv_exp_arm_dct => ibv_exp_arm_dct(
        dct: *mut ibv_exp_dct, attr: *mut ibv_exp_arm_attr) -> c_int;
    "C" Errno crate::exp::cross_channel::ibv_exp_create_cq => ibv_exp_create_cq(
        context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void,
        channel: *mut ibv_comp_channel, comp_vector: c_int, attr: *mut ibv_exp_cq_init_attr
    ) -> *mut ibv_cq;
    "C" Errno crate::exp::dct::ibv_exp_create_dct => ibv_exp_create_dct(
        context: *mut ibv_context, attr: *mut ibv_exp_dct_init_attr) -> *mut ibv_exp_dct;
    "C" Errno crate::exp::umr::ibv_exp_create_mr => ibv_exp_create_mr(
        input: *mut ibv_exp_create_mr_in) -> *mut ibv_mr;
    "C" Errno crate::exp::qp::ibv_exp_create_qp => ibv_exp_create_qp(
        context: *mut ibv_context, attr: *mut ibv_exp_qp_init_attr) -> *mut ibv_qp;
    "C" Frees crate::exp::umr::ibv_exp_dealloc_mkey_list_memory
        => ibv_exp_dealloc_mkey_list_memory(
        memory: *mut ibv_exp_mkey_list_container) -> c_int;
    "C" Frees crate::exp::dct::ibv_exp_destroy_dct => ibv_exp_destroy_dct(
        dct: *mut ibv_exp_dct) -> c_int;
    "C" Errno crate::exp::cross_channel::ibv_exp_modify_cq => ibv_exp_modify_cq(
        cq: *mut ibv_cq, attr: *mut ibv_exp_cq_attr, attr_mask: c_int) -> c_int;
    "C" Errno crate::exp::cross_channel::ibv_exp_post_task => ibv_exp_post_task(
        context: *mut ibv_context, task: *mut ibv_exp_task, bad_task: *mut *mut ibv_exp_task
    ) -> c_int;
    "C" Errno crate::exp::dct::ibv_exp_query_dct => ibv_exp_query_dct(
        dct: *mut ibv_exp_dct, attr: *mut ibv_exp_dct_attr) -> c_int;
    "C" Errno crate::exp::device::ibv_exp_query_device => ibv_exp_query_device(
        context: *mut ibv_context, attr: *mut ibv_exp_device_attr) -> c_int;
    "C" Errno crate::exp::umr::ibv_exp_query_mkey => ibv_exp_query_mkey(
        mr: *mut ibv_mr, attr: *mut ibv_exp_mkey_attr) -> c_int;
    "C" Errno crate::exp::qp::ibv_exp_query_qp => ibv_exp_query_qp(
        qp: *mut ibv_qp, attr: *mut ibv_exp_qp_attr, attr_mask: u64,
        init_attr: *mut ibv_exp_qp_init_attr) -> c_int;
    "C" Errno crate::exp::umr::ibv_exp_reg_mr => ibv_exp_reg_mr(
        input: *mut ibv_exp_reg_mr_in) -> *mut ibv_mr;

    "C" Frees crate::xrc_compat::ibv_close_xrc_domain => ibv_close_xrc_domain(
        domain: *mut ibv_xrc_domain) -> c_int;
    "C" Errno crate::xrc_compat::ibv_create_xrc_rcv_qp => ibv_create_xrc_rcv_qp(
        attr: *mut ibv_xrc_qp_init_attr, qp_num: *mut u32) -> c_int;
    "C" Errno crate::xrc_compat::ibv_create_xrc_srq => ibv_create_xrc_srq(
        pd: *mut ibv_pd, domain: *mut ibv_xrc_domain, cq: *mut ibv_cq,
        attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    "C" Errno crate::xrc_compat::ibv_modify_xrc_rcv_qp => ibv_modify_xrc_rcv_qp(
        domain: *mut ibv_xrc_domain, qp_num: u32, attr: *mut ibv_qp_attr, attr_mask: c_int
    ) -> c_int;
    "C" Errno crate::xrc_compat::ibv_open_xrc_domain => ibv_open_xrc_domain(
        context: *mut ibv_context, fd: c_int, oflag: c_int) -> *mut ibv_xrc_domain;
    "C" Errno crate::xrc_compat::ibv_query_xrc_rcv_qp => ibv_query_xrc_rcv_qp(
        domain: *mut ibv_xrc_domain, qp_num: u32, attr: *mut ibv_qp_attr, attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr) -> c_int;
    "C" Errno crate::xrc_compat::ibv_reg_xrc_rcv_qp => ibv_reg_xrc_rcv_qp(
        domain: *mut ibv_xrc_domain, qp_num: u32) -> c_int;
    "C" Errno crate::xrc_compat::ibv_unreg_xrc_rcv_qp => ibv_unreg_xrc_rcv_qp(
        domain: *mut ibv_xrc_domain, qp_num: u32) -> c_int;
}
