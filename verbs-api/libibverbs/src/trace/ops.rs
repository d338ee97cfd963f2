//! The verbs in the function tables of contexts, with a record of each call.

use std::ffi::{c_int, c_uint};

use rocade_abi::{
    ibv_alloc_dm_attr, ibv_context, ibv_context_ops, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_device_attr_ex, ibv_dm, ibv_flow, ibv_flow_attr, ibv_modify_cq_attr, ibv_mr, ibv_mw,
    ibv_mw_bind, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_query_device_ex_input, ibv_rwq_ind_table,
    ibv_rwq_ind_table_init_attr, ibv_sge, ibv_srq, ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr,
    ibv_values_ex, ibv_wq, ibv_wq_attr, ibv_wq_init_attr, ibv_xrcd, ibv_xrcd_init_attr,
    verbs_context,
};

use super::data;
use super::sink::{begin, end, is_on};
use super::table::traced;
use crate::args::slot;

traced! {
    "C" Errno crate::query::query_port_slot[context, port_num, (attr, attr_len)]
        => ibv_query_port(
        context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr, attr_len: usize
    ) -> c_int;
    "C" Errno crate::query::query_device_ex[context, input, (attr, attr_size)]
        => ibv_query_device_ex(
        context: *mut ibv_context, input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex, attr_size: usize) -> c_int;
    "C" Errno crate::query::query_rt_values => ibv_query_rt_values(
        context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int;
    "C" Errno crate::cq_ex::create_cq_ex => ibv_create_cq_ex(
        context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
    "C" Errno crate::cq::modify_cq => ibv_modify_cq(
        cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int;
    "C" Errno crate::qp_ex::create_qp_ex => ibv_create_qp_ex(
        context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    "C" Errno crate::dm::alloc_dm => ibv_alloc_dm(
        context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm;
    "C" Frees crate::dm::free_dm => ibv_free_dm(dm: *mut ibv_dm) -> c_int;
    "C" Errno crate::mr::reg_dm_mr => ibv_reg_dm_mr(
        pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: c_uint
    ) -> *mut ibv_mr;
    "C" Errno crate::mr::alloc_null_mr => ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr;
    "C" Errno crate::mr::advise_mr[pd, advice, flags, (sg_list, num_sge)]
        => ibv_advise_mr(
        pd: *mut ibv_pd, advice: c_uint, flags: u32, sg_list: *mut ibv_sge, num_sge: u32) -> c_int;
    "C" Errno crate::rss::create_wq => ibv_create_wq(
        context: *mut ibv_context, init: *mut ibv_wq_init_attr) -> *mut ibv_wq;
    "C" Errno crate::rss::modify_wq => ibv_modify_wq(
        wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int;
    "C" Frees crate::rss::destroy_wq => ibv_destroy_wq(wq: *mut ibv_wq) -> c_int;
    "C" Errno crate::rss::create_rwq_ind_table => ibv_create_rwq_ind_table(
        context: *mut ibv_context, init: *mut ibv_rwq_ind_table_init_attr
    ) -> *mut ibv_rwq_ind_table;
    "C" Frees crate::rss::destroy_rwq_ind_table => ibv_destroy_rwq_ind_table(
        table: *mut ibv_rwq_ind_table) -> c_int;
    "C" Errno crate::flow::create_flow => ibv_create_flow(
        qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow;
    "C" Frees crate::flow::destroy_flow => ibv_destroy_flow(flow: *mut ibv_flow) -> c_int;
    "C" Errno crate::qp::modify_qp_rate_limit => ibv_modify_qp_rate_limit(
        qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int;
    "C" Errno crate::domain::alloc_td => ibv_alloc_td(
        context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td;
    "C" Frees crate::domain::dealloc_td => ibv_dealloc_td(td: *mut ibv_td) -> c_int;
    "C" Errno crate::domain::alloc_parent_domain => ibv_alloc_parent_domain(
        context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd;
    "C" Errno crate::srq::create_srq_ex => ibv_create_srq_ex(
        context: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
    "C" Errno crate::xrcd::open_xrcd => ibv_open_xrcd(
        context: *mut ibv_context, init: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd;
    "C" Frees crate::xrcd::close_xrcd => ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int;
    "C" Errno crate::qp_ex::open_qp => ibv_open_qp(
        context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp;
    "C" Errno crate::srq::get_srq_num => ibv_get_srq_num(
        srq: *mut ibv_srq, number: *mut u32) -> c_int;
    "C" Errno crate::mw::alloc_mw => ibv_alloc_mw(pd: *mut ibv_pd, mw_type: c_uint) -> *mut ibv_mw;
    "C" Errno crate::mw::bind_mw => ibv_bind_mw(
        qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int;
    "C" Frees crate::mw::dealloc_mw => ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int;
}

/// Replaces the functions of a context by traced ones.
pub(crate) fn install(c: &mut verbs_context) {
    c.query_port = Some(ibv_query_port);
    c.query_device_ex = Some(ibv_query_device_ex);
    c.query_rt_values = Some(ibv_query_rt_values);
    c.create_cq_ex = Some(ibv_create_cq_ex);
    c.modify_cq = Some(ibv_modify_cq);
    c.create_qp_ex = Some(ibv_create_qp_ex);
    c.alloc_dm = Some(ibv_alloc_dm);
    c.free_dm = Some(ibv_free_dm);
    c.reg_dm_mr = Some(ibv_reg_dm_mr);
    c.alloc_null_mr = Some(ibv_alloc_null_mr);
    c.advise_mr = Some(ibv_advise_mr);
    c.create_wq = Some(ibv_create_wq);
    c.modify_wq = Some(ibv_modify_wq);
    c.destroy_wq = Some(ibv_destroy_wq);
    c.create_rwq_ind_table = Some(ibv_create_rwq_ind_table);
    c.destroy_rwq_ind_table = Some(ibv_destroy_rwq_ind_table);
    c.ibv_create_flow = Some(ibv_create_flow);
    c.ibv_destroy_flow = Some(ibv_destroy_flow);
    c.modify_qp_rate_limit = Some(ibv_modify_qp_rate_limit);
    c.alloc_td = Some(ibv_alloc_td);
    c.dealloc_td = Some(ibv_dealloc_td);
    c.alloc_parent_domain = Some(ibv_alloc_parent_domain);
    c.create_srq_ex = Some(ibv_create_srq_ex);
    c.open_xrcd = Some(ibv_open_xrcd);
    c.close_xrcd = Some(ibv_close_xrcd);
    c.open_qp = Some(ibv_open_qp);
    c.get_srq_num = Some(ibv_get_srq_num);
    let ops: &mut ibv_context_ops = &mut c.context.ops;
    ops.alloc_mw = Some(ibv_alloc_mw);
    ops.bind_mw = Some(ibv_bind_mw);
    ops.dealloc_mw = Some(ibv_dealloc_mw);
    ops.poll_cq = Some(slot::of_3(data::poll_cq));
    ops.req_notify_cq = Some(slot::of_2(data::req_notify_cq));
    ops.post_send = Some(slot::of_3(data::post_send));
    ops.post_recv = Some(slot::of_3(data::post_recv));
    ops.post_srq_recv = Some(slot::of_3(data::post_srq_recv));
}
