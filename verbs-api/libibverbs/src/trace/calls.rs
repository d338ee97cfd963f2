//! The exported verbs, with a record of each call.
//!
//! A row of the table is the ABI, the rule by which a call has failed, the verb, and its signature.
//! Without a trace each function calls the verb at once.

use std::ffi::{c_char, c_int, c_uint, c_void};

use rocade_abi::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_buf, ibv_comp_channel, ibv_comp_cntr,
    ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context, ibv_cq, ibv_device, ibv_device_attr,
    ibv_dm, ibv_ece, ibv_gid, ibv_gid_entry, ibv_grh, ibv_mr, ibv_mr_init_attr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attach_comp_cntr_attr, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr,
    ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_wc,
};

use super::sink::{begin, end, is_on};
use super::table::traced;
use crate::query::OLD_PORT_ATTR_LEN;

traced! {
    "C" Errno crate::comp_cntr::ibv_query_comp_cntr_caps[context, (caps, caps_size)]
        => ibv_query_comp_cntr_caps(
        context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, caps_size: usize) -> c_int;
    "C" Errno crate::query::ibv_query_gid_ex[
        context, port_num, gid_index, (entry, entry_size), flags]
        => ibv_query_gid_ex(
        context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry,
        flags: u32, entry_size: usize) -> c_int;
    "C" Negative crate::query::ibv_query_gid_table[
        context, (entries, max_entries, entry_size), flags]
        => ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32,
        entry_size: usize) -> isize;
    "C" Frees crate::events::ibv_ack_async_event => ibv_ack_async_event(
        event: *mut ibv_async_event);
    "C" Errno crate::channel::ibv_ack_cq_events => ibv_ack_cq_events(
        cq: *mut ibv_cq, nevents: c_uint);
    "C" Errno crate::program_buffer::ibv_alloc_buf => ibv_alloc_buf(
        pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void;
    "C" Errno crate::pd_mr::ibv_alloc_pd => ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    "C" Errno crate::ah::ibv_attach_mcast => ibv_attach_mcast(
        qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    "C" Frees crate::device::ibv_close_device => ibv_close_device(
        context: *mut ibv_context) -> c_int;
    "C" Errno crate::ah::ibv_create_ah => ibv_create_ah(
        pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    "C" Errno crate::ah::ibv_create_ah_from_wc => ibv_create_ah_from_wc(
        pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah;
    "C" Errno crate::channel::ibv_create_comp_channel => ibv_create_comp_channel(
        context: *mut ibv_context) -> *mut ibv_comp_channel;
    "C" Errno crate::comp_cntr::ibv_create_comp_cntr => ibv_create_comp_cntr(
        context: *mut ibv_context, attr: *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr;
    "C" Errno crate::cq::ibv_create_cq => ibv_create_cq(
        context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void,
        channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
    "C" Errno crate::qp::ibv_create_qp => ibv_create_qp(
        pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    "C" Errno crate::srq::ibv_create_srq => ibv_create_srq(
        pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    "C" Frees crate::pd_mr::ibv_dealloc_pd => ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    "C" Frees crate::mr::ibv_dereg_mr => ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    "C" Frees crate::ah::ibv_destroy_ah => ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    "C" Frees crate::channel::ibv_destroy_comp_channel => ibv_destroy_comp_channel(
        channel: *mut ibv_comp_channel) -> c_int;
    "C" Frees crate::comp_cntr::ibv_destroy_comp_cntr => ibv_destroy_comp_cntr(
        counter: *mut ibv_comp_cntr) -> c_int;
    "C" Frees crate::cq::ibv_destroy_cq => ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    "C" Frees crate::qp::ibv_destroy_qp => ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    "C" Frees crate::srq::ibv_destroy_srq => ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    "C" Errno crate::ah::ibv_detach_mcast => ibv_detach_mcast(
        qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    "C" Errno crate::misc::ibv_fork_range => ibv_fork_range(
        base: *mut c_void, size: usize) -> c_int;
    "C" Negative crate::program_buffer::ibv_export_buf_dmabuf_fd => ibv_export_buf_dmabuf_fd(
        buf: *mut ibv_buf) -> c_int;
    "C" Errno crate::misc::ibv_fork_init => ibv_fork_init() -> c_int;
    "C" Frees crate::program_buffer::ibv_free_buf => ibv_free_buf(buf: *mut ibv_buf);
    "C" Frees crate::device::ibv_free_device_list => ibv_free_device_list(
        list: *mut *mut ibv_device);
    "C-unwind" Negative crate::events::ibv_get_async_event => ibv_get_async_event(
        context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    "C-unwind" Negative crate::channel::ibv_get_cq_event => ibv_get_cq_event(
        channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void
    ) -> c_int;
    "C" Negative crate::device::ibv_get_device_guid => ibv_get_device_guid(
        device: *mut ibv_device) -> u64;
    "C" Negative crate::device::ibv_get_device_index => ibv_get_device_index(
        device: *mut ibv_device) -> c_int;
    "C" Errno crate::device::ibv_get_device_list => ibv_get_device_list(
        num_devices: *mut c_int) -> *mut *mut ibv_device;
    "C" Errno crate::device::ibv_get_device_name => ibv_get_device_name(
        device: *mut ibv_device) -> *const c_char;
    "C" Negative crate::query::ibv_get_pkey_index => ibv_get_pkey_index(
        context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int;
    "C" Errno crate::misc::ibv_get_sysfs_path => ibv_get_sysfs_path() -> *const c_char;
    "C" Errno crate::import::ibv_import_device => ibv_import_device(
        cmd_fd: c_int) -> *mut ibv_context;
    "C" Errno crate::import::ibv_import_dm => ibv_import_dm(
        context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm;
    "C" Errno crate::import::ibv_import_mr => ibv_import_mr(
        pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr;
    "C" Errno crate::import::ibv_import_pd => ibv_import_pd(
        context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd;
    "C" Errno crate::comp_cntr::ibv_inc_comp_cntr => ibv_inc_comp_cntr(
        counter: *mut ibv_comp_cntr, amount: u64) -> c_int;
    "C" Errno crate::comp_cntr::ibv_inc_err_comp_cntr => ibv_inc_err_comp_cntr(
        counter: *mut ibv_comp_cntr, amount: u64) -> c_int;
    "C" Negative crate::ah::ibv_init_ah_from_wc => ibv_init_ah_from_wc(
        context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh,
        ah_attr: *mut ibv_ah_attr) -> c_int;
    "C" Negative crate::misc::ibv_is_fork_initialized => ibv_is_fork_initialized() -> c_uint;
    "C" Errno crate::srq::ibv_modify_srq => ibv_modify_srq(
        srq: *mut ibv_srq, attr: *mut ibv_srq_attr, attr_mask: c_int) -> c_int;
    "C" Errno crate::device::ibv_open_device => ibv_open_device(
        device: *mut ibv_device) -> *mut ibv_context;
    "C" Errno crate::comp_cntr::ibv_qp_attach_comp_cntr => ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp, counter: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr
    ) -> c_int;
    "C" Errno crate::qp::ibv_qp_to_qp_ex => ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    "C" Errno crate::query::ibv_query_device => ibv_query_device(
        context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    "C" Errno crate::qp::ibv_query_ece => ibv_query_ece(
        qp: *mut ibv_qp, options: *mut ibv_ece) -> c_int;
    "C" Negative crate::query::ibv_query_gid => ibv_query_gid(
        context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    "C" Errno crate::query::ibv_query_gid_type => ibv_query_gid_type(
        context: *mut ibv_context, port_num: u8, index: c_uint, gid_type: *mut c_uint) -> c_int;
    "C" Negative crate::query::ibv_query_pkey => ibv_query_pkey(
        context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16) -> c_int;
    "C" Errno crate::query::ibv_query_port[context, port_num, (attr, OLD_PORT_ATTR_LEN)]
        => ibv_query_port(
        context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> c_int;
    "C" Errno crate::query::ibv_query_port_speed => ibv_query_port_speed(
        context: *mut ibv_context, port_num: c_uint, speed: *mut u64) -> c_int;
    "C" Errno crate::qp::ibv_query_qp => ibv_query_qp(
        qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr
    ) -> c_int;
    "C" Negative crate::qp::ibv_query_qp_data_in_order => ibv_query_qp_data_in_order(
        qp: *mut ibv_qp, op: c_uint, flags: u32) -> c_int;
    "C" Errno crate::srq::ibv_query_srq => ibv_query_srq(
        srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    "C" Negative crate::rates::ibv_rate_to_mbps => ibv_rate_to_mbps(rate: c_uint) -> c_int;
    "C" Negative crate::rates::ibv_rate_to_mult => ibv_rate_to_mult(rate: c_uint) -> c_int;
    "C" Errno crate::comp_cntr::ibv_read_comp_cntr => ibv_read_comp_cntr(
        counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    "C" Errno crate::comp_cntr::ibv_read_err_comp_cntr => ibv_read_err_comp_cntr(
        counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    "C" Negative crate::misc::ibv_read_sysfs_file[dir, file, (buf, size)]
        => ibv_read_sysfs_file(
        dir: *const c_char, file: *const c_char, buf: *mut c_char, size: usize) -> c_int;
    "C" Errno crate::program_buffer::ibv_reg_buf_mr => ibv_reg_buf_mr(
        pd: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize, access: c_int
    ) -> *mut ibv_mr;
    "C" Errno crate::mr_ex::ibv_reg_dmabuf_mr => ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int
    ) -> *mut ibv_mr;
    "C" Errno crate::mr::ibv_reg_mr[pd, (addr, length), access]
        => ibv_reg_mr(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    "C" Errno crate::mr_ex::ibv_reg_mr_ex => ibv_reg_mr_ex(
        pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr;
    "C" Errno crate::mr::ibv_reg_mr_iova[pd, (addr, length), iova, access]
        => ibv_reg_mr_iova(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr;
    "C" Errno crate::mr::ibv_reg_mr_iova2[pd, (addr, length), iova, access]
        => ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint
    ) -> *mut ibv_mr;
    "C" Errno crate::mr::ibv_rereg_mr[mr, flags, pd, (addr, length), access]
        => ibv_rereg_mr(
        mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize,
        access: c_int) -> c_int;
    "C" Errno crate::cq::ibv_resize_cq => ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    "C" Errno crate::comp_cntr::ibv_set_comp_cntr => ibv_set_comp_cntr(
        counter: *mut ibv_comp_cntr, value: u64) -> c_int;
    "C" Errno crate::qp::ibv_set_ece => ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    "C" Errno crate::comp_cntr::ibv_set_err_comp_cntr => ibv_set_err_comp_cntr(
        counter: *mut ibv_comp_cntr, value: u64) -> c_int;
    "C" Frees crate::import::ibv_unimport_dm => ibv_unimport_dm(dm: *mut ibv_dm);
    "C" Frees crate::import::ibv_unimport_mr => ibv_unimport_mr(mr: *mut ibv_mr);
    "C" Frees crate::import::ibv_unimport_pd => ibv_unimport_pd(pd: *mut ibv_pd);
    "C" Negative crate::rates::mbps_to_ibv_rate => mbps_to_ibv_rate(mbps: c_int) -> c_uint;
    "C" Negative crate::rates::mult_to_ibv_rate => mult_to_ibv_rate(mult: c_int) -> c_uint;
}
