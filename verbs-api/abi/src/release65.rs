//! Structures of `verbs.h` that releases after rdma-core 44 have added, up to 65.

use core::ffi::{c_int, c_uint, c_void};

use crate::{ibv_context, layout::mirror};

/// `struct ibv_buf`, whose content no program knows.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_buf {
    _opaque: [u8; 0],
}

impl ibv_buf {
    /// Returns the part of a buffer that programs see: nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { _opaque: [] }
    }
}

impl Default for ibv_buf {
    fn default() -> Self {
        Self::new()
    }
}

/// A place in the memory of a descriptor. In C it has no name.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the members of the C header")]
pub struct efadv_dmabuf {
    pub offset: u64,
    pub fd: i32,
    pub reserved: u32,
}

mirror! {
    /// Completion counter.
    pub struct ibv_comp_cntr {
        context: *mut ibv_context,
        handle: u32,
    }

    /// Capabilities of completion counters.
    pub struct ibv_comp_cntr_caps {
        max_value: u64,
        max_counters: u32,
        supported_qp_attach_ops: u32,
    }

    /// Attributes of a new completion counter.
    pub struct ibv_comp_cntr_init_attr {
        comp_mask: u32,
        r#type: c_uint,
        flags: u32,
    }

    /// Memory for a value of a counter of EFA: an address, or a range of a descriptor.
    pub struct efadv_memory_location {
        ptr: *mut u8,
        dmabuf: efadv_dmabuf,
        r#type: u8,
        reserved: [u8; 7],
    }

    /// Attributes of a new completion counter of EFA.
    pub struct efadv_comp_cntr_init_attr {
        comp_mask: u64,
        flags: u32,
        reserved: u32,
        comp_cntr_ext_mem: efadv_memory_location,
        err_cntr_ext_mem: efadv_memory_location,
    }

    /// Attributes of attaching a completion counter to a QP.
    pub struct ibv_qp_attach_comp_cntr_attr {
        comp_mask: u32,
        op_mask: u32,
    }

    /// Attributes of a new memory region. Programs of earlier releases have a shorter structure.
    pub struct ibv_mr_init_attr {
        length: usize,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut c_void,
        buf: *mut ibv_buf,
    }
}
