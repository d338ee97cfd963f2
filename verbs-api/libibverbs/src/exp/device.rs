//! Device capabilities.

use std::ffi::c_int;

use rocade_abi::{
    exp::device::{
        IBV_EXP_DEVICE_ATTR_CALC_CAP, IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS,
        IBV_EXP_DEVICE_ATTR_EXT_ATOMIC_ARGS, IBV_EXP_DEVICE_ATTR_INLINE_RECV_SZ,
        IBV_EXP_DEVICE_ATTR_MASKED_ATOMICS, IBV_EXP_DEVICE_ATTR_MAX_DCT, IBV_EXP_DEVICE_ATTR_ODP,
        IBV_EXP_DEVICE_ATTR_UMR, IBV_EXP_DEVICE_ATTR_WITH_HCA_CORE_CLOCK,
        IBV_EXP_DEVICE_ATTR_WITH_TIMESTAMP_MASK, IBV_EXP_DEVICE_CROSS_CHANNEL,
        IBV_EXP_DEVICE_DC_RD_REQ, IBV_EXP_DEVICE_DC_RD_RES, IBV_EXP_DEVICE_DC_TRANSPORT,
        IBV_EXP_DEVICE_EXT_ATOMICS, IBV_EXP_DEVICE_EXT_MASKED_ATOMICS, IBV_EXP_DEVICE_MW_TYPE_2B,
        IBV_EXP_DEVICE_NOP, IBV_EXP_DEVICE_ODP, IBV_EXP_DEVICE_UMR, ibv_exp_device_attr,
    },
    exp::send::{
        IBV_EXP_CALC_DATA_SIZE_64_BIT, IBV_EXP_CALC_DATA_TYPE_FLOAT, IBV_EXP_CALC_OP_BOR,
        IBV_EXP_CALC_OP_MAXLOC,
    },
    ibv_context,
};
use rocade_emulator::{DeviceAttr, Indirect, MASKED_SIZES, limits};

use crate::{
    args::{Handle, InOut, member, zeroed},
    ffi::{fill, int_verb, to_int},
    query,
};

/// The capability bits that this device has beyond `device_cap_flags`.
//= XCON-04
const CAP_FLAGS: u64 = IBV_EXP_DEVICE_ODP
    | IBV_EXP_DEVICE_MW_TYPE_2B
    | IBV_EXP_DEVICE_UMR
    | IBV_EXP_DEVICE_NOP
    | IBV_EXP_DEVICE_CROSS_CHANNEL
    | IBV_EXP_DEVICE_EXT_ATOMICS
    | IBV_EXP_DEVICE_EXT_MASKED_ATOMICS
    | IBV_EXP_DEVICE_DC_TRANSPORT;

/// The largest field of a fetch-and-add is 8 bytes (2^3).
const LOG_MAX_FIELD: u32 = 3;
/// Four operands of 32 bytes (2^7).
const LOG_MAX_OPERANDS: u32 = 7;

/// Returns the bits 0 to `last`, where bit n stands for the enumerator n.
const fn up_to(last: u32) -> u64 {
    (2 << last) - 1
}

/// `ibv_exp_query_device`: fills in the requested members that Rocade has. Clears the other bits of
/// `comp_mask`.
//= XST-01
//= XDEC-01
pub(crate) extern "C" fn ibv_exp_query_device(
    context: Handle<'_, ibv_context>,
    attr: InOut<'_, ibv_exp_device_attr>,
) -> c_int {
    int_verb(|| {
        // The capabilities are the same in a forked child.
        let object = context.share_inherited()?;
        let source = object.context().device_attr();
        let wanted = attr.head(member!(ibv_exp_device_attr, comp_mask))?;
        attr.write(answer(&source, wanted))
    })
}

/// Returns the plain attributes, and those extended ones that `wanted` requests.
fn answer(source: &DeviceAttr, wanted: u32) -> ibv_exp_device_attr {
    let mut c = plain(source);
    let mut there = 0;
    let mut has = |bit: u32| {
        there |= wanted & bit;
        wanted & bit != 0
    };
    let with_timestamp_mask = has(IBV_EXP_DEVICE_ATTR_WITH_TIMESTAMP_MASK);
    let with_clock = has(IBV_EXP_DEVICE_ATTR_WITH_HCA_CORE_CLOCK);
    let with_flags = has(IBV_EXP_DEVICE_ATTR_EXP_CAP_FLAGS);
    let with_odp = has(IBV_EXP_DEVICE_ATTR_ODP);
    let with_calc = has(IBV_EXP_DEVICE_ATTR_CALC_CAP);
    let with_sizes = has(IBV_EXP_DEVICE_ATTR_EXT_ATOMIC_ARGS);
    let with_masked = has(IBV_EXP_DEVICE_ATTR_MASKED_ATOMICS);
    let with_umr = has(IBV_EXP_DEVICE_ATTR_UMR);
    // Received data is never placed in a completion, so the value is 0.
    has(IBV_EXP_DEVICE_ATTR_INLINE_RECV_SZ);
    //= DC-02
    if has(IBV_EXP_DEVICE_DC_RD_REQ) {
        c.max_dc_req_rd_atom = to_int(source.max_qp_init_rd_atom);
    }
    if has(IBV_EXP_DEVICE_DC_RD_RES) {
        c.max_dc_res_rd_atom = to_int(source.max_qp_rd_atom);
    }
    if has(IBV_EXP_DEVICE_ATTR_MAX_DCT) {
        c.max_dct = to_int(source.max_qp);
    }
    if with_timestamp_mask {
        c.timestamp_mask = source.completion_timestamp_mask;
    }
    if with_clock {
        c.hca_core_clock = source.hca_core_clock_khz;
    }
    if with_flags {
        c.exp_device_cap_flags = u64::from(source.device_cap_flags) | CAP_FLAGS;
    }
    //= XCH-01
    //= XCC-02
    //= XST-02
    if with_calc {
        let any = up_to(IBV_EXP_CALC_OP_BOR) & !(1 << IBV_EXP_CALC_OP_MAXLOC);
        c.calc_cap.data_types = up_to(IBV_EXP_CALC_DATA_TYPE_FLOAT);
        c.calc_cap.data_sizes = up_to(IBV_EXP_CALC_DATA_SIZE_64_BIT);
        c.calc_cap.int_ops = any;
        c.calc_cap.uint_ops = any | 1 << IBV_EXP_CALC_OP_MAXLOC;
        c.calc_cap.fp_ops = any;
    }
    //= XAT-01..03
    //= XST-03
    if with_sizes {
        c.ext_atom.log_atomic_arg_sizes = u64::from(MASKED_SIZES);
        c.ext_atom.max_fa_bit_boundary = LOG_MAX_FIELD;
        c.ext_atom.log_max_atomic_inline = LOG_MAX_OPERANDS;
    }
    //= XAT-04
    //= XAT-05
    if with_masked {
        c.masked_atomic.masked_log_atomic_arg_sizes = u64::from(MASKED_SIZES);
        // For QPs created with IBV_EXP_QP_CREATE_ATOMIC_BE_REPLY.
        c.masked_atomic
            .masked_log_atomic_arg_sizes_network_endianness = u64::from(MASKED_SIZES);
        c.masked_atomic.max_fa_bit_boundary = LOG_MAX_FIELD;
        c.masked_atomic.log_max_atomic_inline = LOG_MAX_OPERANDS;
    }
    //= UMR-02
    //= XST-04
    if with_umr {
        c.umr_caps.max_klm_list_size = limits::MAX_INDIRECT_ENTRIES;
        c.umr_caps.max_send_wqe_inline_klms = limits::MAX_INLINE_ENTRIES;
        c.umr_caps.max_umr_recursion_depth = u32::from(Indirect::MAX_DEPTH);
        //= UMR-03
        c.umr_caps.max_umr_stride_dimension = 1;
    }
    if with_odp {
        let odp = query::odp_caps();
        c.odp_caps.general_odp_caps = odp.general_caps;
        let services = &mut c.odp_caps.per_transport_caps;
        services.rc_odp_caps = odp.per_transport_caps.rc_odp_caps;
        services.uc_odp_caps = odp.per_transport_caps.uc_odp_caps;
        services.ud_odp_caps = odp.per_transport_caps.ud_odp_caps;
        services.dc_odp_caps = query::dc_odp_caps();
        services.xrc_odp_caps = odp.per_transport_caps.rc_odp_caps;
    }
    c.comp_mask = there;
    c
}

/// Returns the attributes that `ibv_query_device` reports too.
fn plain(source: &DeviceAttr) -> ibv_exp_device_attr {
    let mut c: ibv_exp_device_attr = zeroed();
    fill(&mut c.fw_ver, source.fw_ver);
    c.node_guid = source.node_guid.get().to_be();
    c.sys_image_guid = source.sys_image_guid.get().to_be();
    c.max_mr_size = source.max_mr_size;
    c.page_size_cap = source.page_size_cap;
    c.vendor_id = source.vendor_id;
    c.vendor_part_id = source.vendor_part_id;
    c.hw_ver = source.hw_ver;
    c.max_qp = to_int(source.max_qp);
    c.max_qp_wr = to_int(source.max_qp_wr);
    c.max_sge = to_int(source.max_sge);
    c.max_sge_rd = to_int(source.max_sge_rd);
    c.max_cq = to_int(source.max_cq);
    c.max_cqe = to_int(source.max_cqe);
    c.max_mr = to_int(source.max_mr);
    c.max_pd = to_int(source.max_pd);
    c.max_qp_rd_atom = to_int(source.max_qp_rd_atom);
    c.max_res_rd_atom = to_int(source.max_res_rd_atom);
    c.max_qp_init_rd_atom = to_int(source.max_qp_init_rd_atom);
    // Capabilities above bit 31 are in `exp_device_cap_flags` alone.
    //= XDEC-11
    c.reserved = source.device_cap_flags.cast_signed();
    //= XCON-15
    c.exp_atomic_cap = source.atomic_cap;
    c.max_mw = to_int(source.max_mw);
    c.max_mcast_grp = to_int(limits::MAX_MCAST_GROUPS);
    c.max_mcast_qp_attach = to_int(limits::MAX_MCAST_QP_ATTACH);
    c.max_total_mcast_qp_attach = to_int(limits::MAX_MCAST_GROUPS * limits::MAX_MCAST_QP_ATTACH);
    c.max_ah = to_int(limits::MAX_AH);
    c.max_srq = to_int(source.max_srq);
    c.max_srq_wr = to_int(source.max_srq_wr);
    c.max_srq_sge = to_int(source.max_srq_sge);
    c.max_pkeys = source.max_pkeys;
    c.local_ca_ack_delay = source.local_ca_ack_delay;
    c.phys_port_cnt = source.phys_port_cnt;
    c
}
