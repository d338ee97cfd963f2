//! `verbs_exp/send.h`.

use core::ffi::{c_int, c_uint, c_void};

use super::constants;
use crate::{
    ibv_ah, ibv_context, ibv_cq, ibv_mr, ibv_mw, ibv_qp, ibv_send_wr_atomic, ibv_send_wr_rdma,
    ibv_send_wr_remote, ibv_send_wr_tso, ibv_send_wr_ud, ibv_sge, layout::mirror,
};

constants! {
    u32, "Work request opcode. Below 0x40 as in the plain header. (`enum ibv_exp_wr_opcode`)": {
        IBV_EXP_WR_TSO = 0x4f,
        IBV_EXP_WR_SEND_ENABLE = 0x60,
        IBV_EXP_WR_RECV_ENABLE = 0x61,
        IBV_EXP_WR_CQE_WAIT = 0x62,
        IBV_EXP_WR_EXT_MASKED_ATOMIC_CMP_AND_SWP = 0x63,
        IBV_EXP_WR_EXT_MASKED_ATOMIC_FETCH_AND_ADD = 0x64,
        IBV_EXP_WR_NOP = 0x65,
        IBV_EXP_WR_UMR_FILL = 0x66,
        IBV_EXP_WR_UMR_INVALIDATE = 0x67,
    }
    u64, "Send flag bit. The lower half as in the plain header. (`enum ibv_exp_send_flags`)": {
        IBV_EXP_SEND_FENCE = 1,
        IBV_EXP_SEND_SIGNALED = 2,
        IBV_EXP_SEND_SOLICITED = 4,
        IBV_EXP_SEND_INLINE = 8,
        IBV_EXP_SEND_IP_CSUM = 1 << 32,
        IBV_EXP_SEND_WITH_CALC = 1 << 33,
        IBV_EXP_SEND_WAIT_EN_LAST = 1 << 34,
        IBV_EXP_SEND_EXT_ATOMIC_INLINE = 1 << 35,
    }
    u32, "Operation of a computing send. (`enum ibv_exp_calc_op`)": {
        //= XCON-16
        IBV_EXP_CALC_OP_ADD = 0,
        IBV_EXP_CALC_OP_MAXLOC = 1,
        IBV_EXP_CALC_OP_BAND = 2,
        IBV_EXP_CALC_OP_BXOR = 3,
        IBV_EXP_CALC_OP_BOR = 4,
    }
    u32, "Operand type of a computing send. (`enum ibv_exp_calc_data_type`)": {
        IBV_EXP_CALC_DATA_TYPE_INT = 0,
        IBV_EXP_CALC_DATA_TYPE_UINT = 1,
        IBV_EXP_CALC_DATA_TYPE_FLOAT = 2,
    }
    u32, "Operand size of a computing send. (`enum ibv_exp_calc_data_size`)": {
        IBV_EXP_CALC_DATA_SIZE_64_BIT = 0,
        IBV_EXP_CALC_DATA_SIZE_64_BIT_LOC = 0x100,
    }
    u32, "Layout of a memory key. (`enum ibv_exp_umr_wr_type`)": {
        //= XCON-17
        IBV_EXP_UMR_MR_LIST = 0,
        IBV_EXP_UMR_REPEAT = 1,
        IBV_EXP_UMR_MR_LIST_FIXED_SIZE = 2,
    }
}

mirror! {
    /// An entry of a key list.
    //= XST-13
    pub struct ibv_exp_mem_region {
        base_addr: u64,
        mr: *mut ibv_mr,
        length: usize,
    }

    /// An entry of a repeated pattern.
    pub struct ibv_exp_mem_repeat_block {
        base_addr: u64,
        mr: *mut ibv_mr,
        byte_count: *mut usize,
        stride: *mut usize,
    }

    /// Memory for a key list.
    pub struct ibv_exp_mkey_list_container {
        max_klm_list_size: u32,
        context: *mut ibv_context,
    }

    /// Operands of a masked compare-and-swap.
    //= XST-09
    pub struct ibv_exp_cmp_swap {
        compare_mask: u64,
        compare_val: u64,
        swap_val: u64,
        swap_mask: u64,
    }

    /// Operands of a fetch-and-add on fields.
    pub struct ibv_exp_fetch_add {
        add_val: u64,
        field_boundary: u64,
    }

    /// Range and rights of a memory window.
    pub struct ibv_exp_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        exp_mw_access_flags: u64,
    }

    /// Send work request.
    pub struct ibv_exp_send_wr {
        wr_id: u64,
        next: *mut ibv_exp_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        exp_opcode: c_uint,
        reserved: c_int,
        /// Immediate data in network byte order, or the rkey to invalidate in host byte order.
        ex: u32,
        wr: ibv_send_wr_remote,
        xrc_remote_srq_num: u32,
        task: ibv_exp_send_wr_task,
        op: ibv_exp_send_wr_calc,
        dc: ibv_exp_send_wr_dc,
        /// An anonymous union in C.
        bind_mw: ibv_exp_send_wr_tail,
        exp_send_flags: u64,
        comp_mask: u32,
        ext_op: ibv_exp_send_wr_ext_op,
    }
    also {
        "ex.imm_data": u32 = ex,
        "ex.invalidate_rkey": u32 = ex,
        "wr.rdma": ibv_send_wr_rdma = wr.rdma,
        "wr.rdma.remote_addr": u64 = wr.rdma.remote_addr,
        "wr.rdma.rkey": u32 = wr.rdma.rkey,
        "wr.atomic": ibv_send_wr_atomic = wr.atomic,
        "wr.atomic.remote_addr": u64 = wr.atomic.remote_addr,
        "wr.atomic.compare_add": u64 = wr.atomic.compare_add,
        "wr.atomic.swap": u64 = wr.atomic.swap,
        "wr.atomic.rkey": u32 = wr.atomic.rkey,
        "wr.ud": ibv_send_wr_ud = wr.ud,
        "wr.ud.ah": *mut ibv_ah = wr.ud.ah,
        "wr.ud.remote_qpn": u32 = wr.ud.remote_qpn,
        "wr.ud.remote_qkey": u32 = wr.ud.remote_qkey,
        "qp_type.xrc.remote_srqn": u32 = xrc_remote_srq_num,
        "task.cqe_wait.cq": *mut ibv_cq = task.cqe_wait.cq,
        "task.cqe_wait.cq_count": i32 = task.cqe_wait.cq_count,
        "task.wqe_enable.qp": *mut ibv_qp = task.wqe_enable.qp,
        "task.wqe_enable.wqe_count": i32 = task.wqe_enable.wqe_count,
        "op.calc.calc_op": c_uint = op.calc_op,
        "op.calc.data_type": c_uint = op.data_type,
        "op.calc.data_size": c_uint = op.data_size,
        "dc.ah": *mut ibv_ah = dc.ah,
        "dc.dct_access_key": u64 = dc.dct_access_key,
        "dc.dct_number": u32 = dc.dct_number,
        "bind_mw.mw": *mut ibv_mw = bind_mw.bind_mw.mw,
        "bind_mw.rkey": u32 = bind_mw.bind_mw.rkey,
        "bind_mw.bind_info": ibv_exp_mw_bind_info = bind_mw.bind_mw.bind_info,
        "tso.hdr": *mut c_void = bind_mw.tso.hdr,
        "tso.mss": u16 = bind_mw.tso.mss,
        "ext_op.umr.umr_type": u32 = ext_op.umr.umr_type,
        "ext_op.umr.memory_objects": *mut ibv_exp_mkey_list_container = ext_op.umr.memory_objects,
        "ext_op.umr.exp_access": u64 = ext_op.umr.exp_access,
        "ext_op.umr.modified_mr": *mut ibv_mr = ext_op.umr.modified_mr,
        "ext_op.umr.base_addr": u64 = ext_op.umr.base_addr,
        "ext_op.umr.num_mrs": u32 = ext_op.umr.num_mrs,
        "ext_op.umr.mem_list.mem_reg_list": *mut ibv_exp_mem_region = ext_op.umr.mem_list,
        "ext_op.umr.mem_list.rb.mem_repeat_block_list": *mut ibv_exp_mem_repeat_block = ext_op.umr.mem_list,
        "ext_op.umr.mem_list.rb.repeat_count": *mut usize = ext_op.umr.repeat_count,
        "ext_op.umr.mem_list.rb.stride_dim": u32 = ext_op.umr.stride_dim,
        "ext_op.masked_atomics.log_arg_sz": u32 = ext_op.masked_atomics.log_arg_sz,
        "ext_op.masked_atomics.remote_addr": u64 = ext_op.masked_atomics.remote_addr,
        "ext_op.masked_atomics.rkey": u32 = ext_op.masked_atomics.rkey,
        "ext_op.masked_atomics.wr_data.inline_data.op.cmp_swap": ibv_exp_cmp_swap = ext_op.masked_atomics.op.cmp_swap,
        "ext_op.masked_atomics.wr_data.inline_data.op.fetch_add": ibv_exp_fetch_add = ext_op.masked_atomics.op.fetch_add,
    }
}

/// Operands of cross-channel requests.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_exp_send_wr_task {
    /// `IBV_EXP_WR_CQE_WAIT`.
    pub cqe_wait: ibv_exp_send_wr_wait,
    /// `IBV_EXP_WR_SEND_ENABLE`, `IBV_EXP_WR_RECV_ENABLE`.
    pub wqe_enable: ibv_exp_send_wr_enable,
    /// The longest member, which is unused.
    pub atomic: ibv_send_wr_atomic,
}

impl core::fmt::Debug for ibv_exp_send_wr_task {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ibv_exp_send_wr_task")
    }
}

/// Waits for a completion queue.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_exp_send_wr_wait {
    /// The queue.
    pub cq: *mut ibv_cq,
    /// Number of completions.
    pub cq_count: i32,
}

/// Enables work requests of a queue.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_exp_send_wr_enable {
    /// The QP of that queue.
    pub qp: *mut ibv_qp,
    /// Number of work requests.
    pub wqe_count: i32,
}

/// A computation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_exp_send_wr_calc {
    /// Operation.
    pub calc_op: c_uint,
    /// Type of the operands.
    pub data_type: c_uint,
    /// Size of the operands.
    pub data_size: c_uint,
}

/// The DC target of a request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_exp_send_wr_dc {
    /// Address handle of the target.
    pub ah: *mut ibv_ah,
    /// Access key of the target.
    pub dct_access_key: u64,
    /// Number of the target, 24 bits.
    pub dct_number: u32,
}

/// Operands of the operations that only experimental requests have.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_exp_send_wr_ext_op {
    /// `IBV_EXP_WR_UMR_FILL`, `IBV_EXP_WR_UMR_INVALIDATE`.
    pub umr: ibv_exp_send_wr_umr,
    /// Masked atomics.
    pub masked_atomics: ibv_exp_send_wr_masked_atomics,
}

impl core::fmt::Debug for ibv_exp_send_wr_ext_op {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ibv_exp_send_wr_ext_op")
    }
}

/// The new layout of a memory key.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_exp_send_wr_umr {
    /// Type of the list.
    pub umr_type: u32,
    /// Memory for a list that is not inline in the request.
    pub memory_objects: *mut ibv_exp_mkey_list_container,
    /// Access rights.
    pub exp_access: u64,
    /// The key.
    pub modified_mr: *mut ibv_mr,
    /// The address of the key's first byte.
    pub base_addr: u64,
    /// Number of list entries.
    pub num_mrs: u32,
    /// The list: [`ibv_exp_mem_region`], or with `IBV_EXP_UMR_REPEAT` [`ibv_exp_mem_repeat_block`].
    pub mem_list: *mut c_void,
    /// Number of repetitions per dimension, with `IBV_EXP_UMR_REPEAT`.
    pub repeat_count: *mut usize,
    /// Number of dimensions.
    pub stride_dim: u32,
}

/// A masked atomic.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_exp_send_wr_masked_atomics {
    /// Binary logarithm of the operands' length in bytes.
    pub log_arg_sz: u32,
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// The operands or their addresses.
    pub op: ibv_exp_masked_operands,
}

/// Operands of a masked atomic.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_exp_masked_operands {
    /// Operands of a compare-and-swap.
    pub cmp_swap: ibv_exp_cmp_swap,
    /// Operands of a fetch-and-add.
    pub fetch_add: ibv_exp_fetch_add,
}

impl core::fmt::Debug for ibv_exp_masked_operands {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ibv_exp_masked_operands")
    }
}

/// The last part of a request. The opcode selects the member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_exp_send_wr_tail {
    /// `IBV_WR_BIND_MW`.
    pub bind_mw: ibv_exp_send_wr_bind_mw,
    /// `IBV_EXP_WR_TSO`.
    pub tso: ibv_send_wr_tso,
}

impl core::fmt::Debug for ibv_exp_send_wr_tail {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ibv_exp_send_wr_tail")
    }
}

/// Bind of a type 2 memory window.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_exp_send_wr_bind_mw {
    /// Memory window to bind.
    pub mw: *mut ibv_mw,
    /// New rkey.
    pub rkey: u32,
    /// Address range and access rights.
    pub bind_info: ibv_exp_mw_bind_info,
}
