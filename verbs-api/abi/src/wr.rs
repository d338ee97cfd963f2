//! Work requests and work completions.

use core::ffi::{c_int, c_uint, c_void};

use crate::{ibv_ah, ibv_mr, ibv_mw, layout::mirror};

mirror! {
    /// Scatter/gather element.
    pub struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// A buffer of inline data.
    pub struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    /// The address range and the access rights of a memory window.
    pub struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// For `ibv_bind_mw`.
    pub struct ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }

    /// Send work request.
    pub struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        /// Immediate data in network byte order, or the rkey to invalidate in host byte order.
        imm_data: u32,
        wr: ibv_send_wr_remote,
        qp_type: ibv_send_wr_qp_type,
        /// An anonymous union in C.
        bind_mw: ibv_send_wr_tail,
    }
    also {
        "invalidate_rkey": u32 = imm_data,
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
        "qp_type.xrc": u32 = qp_type.remote_srqn,
        "qp_type.xrc.remote_srqn": u32 = qp_type.remote_srqn,
        "bind_mw.mw": *mut ibv_mw = bind_mw.bind_mw.mw,
        "bind_mw.rkey": u32 = bind_mw.bind_mw.rkey,
        "bind_mw.bind_info": ibv_mw_bind_info = bind_mw.bind_mw.bind_info,
        "tso": ibv_send_wr_tso = bind_mw.tso,
        "tso.hdr": *mut c_void = bind_mw.tso.hdr,
        "tso.hdr_sz": u16 = bind_mw.tso.hdr_sz,
        "tso.mss": u16 = bind_mw.tso.mss,
    }

    /// Receive work request.
    pub struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    /// Tag matching work request.
    pub struct ibv_ops_wr {
        wr_id: u64,
        next: *mut ibv_ops_wr,
        opcode: c_uint,
        flags: c_int,
        tm: ibv_ops_wr_tm,
    }
    also {
        "tm.unexpected_cnt": u32 = tm.unexpected_cnt,
        "tm.handle": u32 = tm.handle,
        "tm.add": ibv_ops_wr_tm_add = tm.add,
        "tm.add.recv_wr_id": u64 = tm.add.recv_wr_id,
        "tm.add.sg_list": *mut ibv_sge = tm.add.sg_list,
        "tm.add.num_sge": c_int = tm.add.num_sge,
        "tm.add.tag": u64 = tm.add.tag,
        "tm.add.mask": u64 = tm.add.mask,
    }

    /// Work completion.
    pub struct ibv_wc {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        /// Immediate data in network byte order, or the invalidated rkey in host byte order.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    also {
        "invalidated_rkey": u32 = imm_data,
    }
}

/// Remote side of a send work request. The opcode and the QP type select the member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_remote {
    /// RDMA WRITE and READ.
    pub rdma: ibv_send_wr_rdma,
    /// Atomic operations.
    pub atomic: ibv_send_wr_atomic,
    /// Sends on a UD QP.
    pub ud: ibv_send_wr_ud,
}

impl core::fmt::Debug for ibv_send_wr_remote {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ibv_send_wr_remote")
    }
}

/// Remote buffer of an RDMA WRITE or READ.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_send_wr_rdma {
    /// Remote virtual address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Operands of an atomic operation, host byte order.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_send_wr_atomic {
    /// Remote virtual address, a multiple of 8.
    pub remote_addr: u64,
    /// Value to compare with, or to add.
    pub compare_add: u64,
    /// Value to store if the comparison succeeds.
    pub swap: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Destination of a send on a UD QP.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_send_wr_ud {
    /// Address handle.
    pub ah: *mut ibv_ah,
    /// Destination QP number, 24 bits.
    pub remote_qpn: u32,
    /// Q_Key.
    pub remote_qkey: u32,
}

/// XRC part of a send work request.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_send_wr_qp_type {
    /// Number of the remote SRQ, 24 bits.
    pub remote_srqn: u32,
}

/// Last part of a send work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_send_wr_tail {
    /// `IBV_WR_BIND_MW`.
    pub bind_mw: ibv_send_wr_bind_mw,
    /// `IBV_WR_TSO`.
    pub tso: ibv_send_wr_tso,
}

impl core::fmt::Debug for ibv_send_wr_tail {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ibv_send_wr_tail")
    }
}

/// Bind of a type 2 memory window.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_send_wr_bind_mw {
    /// Memory window to bind.
    pub mw: *mut ibv_mw,
    /// New rkey.
    pub rkey: u32,
    /// Address range and access rights.
    pub bind_info: ibv_mw_bind_info,
}

/// TCP segmentation offload.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_send_wr_tso {
    /// Header to repeat in each segment.
    pub hdr: *mut c_void,
    /// Length of the header in bytes.
    pub hdr_sz: u16,
    /// Segment size in bytes.
    pub mss: u16,
}

/// Tag matching part of [`ibv_ops_wr`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_ops_wr_tm {
    /// Number of unexpected messages that the program received.
    pub unexpected_cnt: u32,
    /// Handle of the entry.
    pub handle: u32,
    /// New entry.
    pub add: ibv_ops_wr_tm_add,
}

/// A tag matching entry.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_ops_wr_tm_add {
    /// `wr_id` of the completion.
    pub recv_wr_id: u64,
    /// Buffers.
    pub sg_list: *mut ibv_sge,
    /// Number of buffers.
    pub num_sge: c_int,
    /// Tag.
    pub tag: u64,
    /// Mask of the tag bits to compare.
    pub mask: u64,
}
