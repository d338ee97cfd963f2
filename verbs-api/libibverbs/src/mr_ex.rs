//! Registration by attributes, and of the memory of a descriptor.

use std::{ffi::c_int, ptr, sync::Arc};

use rocade_abi::{
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET,
    IBV_REG_MR_MASK_IOVA, ibv_mr, ibv_mr_init_attr, ibv_pd,
};
use rocade_emulator::{AccessFlags, VerbsError};

use crate::{
    ffi::{Errno, ptr_verb},
    mapping::{self, Mapping},
    mr::{self, Extent},
    pd_mr::PdObject,
    program_buffer,
};

/// `ibv_reg_mr_ex`: registers memory at an address, of a descriptor or of a buffer.
///
/// EOPNOTSUPP for a field that Rocade does not know, such as a DMA handle. EINVAL if neither or
/// both of address and descriptor are set, and for an offset without a descriptor. EINVAL also for
/// a buffer without an address.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    // SAFETY: same contract.
    ptr_verb(|| unsafe { register(pd, attr) })
}

unsafe fn register(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> Result<*mut ibv_mr, Errno> {
    if attr.is_null() {
        return Err(VerbsError::InvalidArgument("attributes").into());
    }
    // The structure of an earlier release is shorter, so that there is no reference to the whole.
    // SAFETY: by contract readable as far as `comp_mask` says. That field is in every release.
    let mask = unsafe { (&raw const (*attr).comp_mask).read() };
    let has = |field| mask & field != 0;
    let known = IBV_REG_MR_MASK_IOVA
        | IBV_REG_MR_MASK_ADDR
        | IBV_REG_MR_MASK_FD
        | IBV_REG_MR_MASK_FD_OFFSET
        | IBV_REG_MR_MASK_BUF;
    if mask & !known != 0 {
        return Err(VerbsError::NotSupported("field of the attributes").into());
    }
    let is_consistent = has(IBV_REG_MR_MASK_ADDR) != has(IBV_REG_MR_MASK_FD)
        && (has(IBV_REG_MR_MASK_FD) || !has(IBV_REG_MR_MASK_FD_OFFSET))
        && (!has(IBV_REG_MR_MASK_BUF) || has(IBV_REG_MR_MASK_ADDR));
    if !is_consistent {
        return Err(VerbsError::InvalidArgument("fields of the attributes").into());
    }
    // SAFETY: as above.
    let length = unsafe { (&raw const (*attr).length).read() };
    // SAFETY: as above.
    let access = unsafe { (&raw const (*attr).access).read() };
    let access = AccessFlags::from_bits_retain(access.cast_unsigned());
    // SAFETY: as above.
    let iova = has(IBV_REG_MR_MASK_IOVA).then(|| unsafe { (&raw const (*attr).iova).read() });
    if has(IBV_REG_MR_MASK_FD) {
        // SAFETY: as above.
        let fd = unsafe { (&raw const (*attr).fd).read() };
        // SAFETY: as above, if the field is set.
        let offset = has(IBV_REG_MR_MASK_FD_OFFSET)
            .then(|| unsafe { (&raw const (*attr).fd_offset).read() });
        let offset = offset.unwrap_or(0);
        let range = (offset, length, iova.unwrap_or(offset));
        // SAFETY: same contract.
        return unsafe { register_fd(pd, fd, range, access) };
    }
    // SAFETY: as above.
    let addr = unsafe { (&raw const (*attr).addr).read() };
    if has(IBV_REG_MR_MASK_BUF) {
        // SAFETY: as above, if the field is set.
        let buf = unsafe { (&raw const (*attr).buf).read() };
        // SAFETY: same contract.
        return unsafe { program_buffer::register(pd, buf, (addr, length, iova), access) };
    }
    let iova = iova.unwrap_or_else(|| addr.expose_provenance() as u64);
    // SAFETY: same contract.
    unsafe { mr::register(pd, addr, length, iova, access) }
}

/// `ibv_reg_dmabuf_mr`: registers memory of a descriptor that can be mapped, such as a DMA buffer
/// of udmabuf or a heap, or a memfd.
///
/// EINVAL if the range is empty or exceeds the descriptor's memory, and if `iova` and `offset`
/// differ in their place in a page. EINVAL also for access flags other than those of plain regions.
/// EOPNOTSUPP if the memory cannot be mapped.
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    ptr_verb(|| {
        let access = AccessFlags::from_bits_retain(access.cast_unsigned());
        // SAFETY: same contract.
        unsafe { register_fd(pd, fd, (offset, length, iova), access) }
    })
}

/// Registers a range of a descriptor's memory: offset, length, and the address that work requests
/// use.
///
/// # Errors
/// Those of [`ibv_reg_dmabuf_mr`].
///
/// # Safety
/// `pd` must be NULL or a live domain.
pub(crate) unsafe fn register_fd(
    pd: *mut ibv_pd,
    fd: c_int,
    (offset, length, iova): (u64, usize, u64),
    access: AccessFlags,
) -> Result<*mut ibv_mr, Errno> {
    let refused = AccessFlags::ON_DEMAND
        | AccessFlags::ZERO_BASED
        | AccessFlags::MW_BIND
        | AccessFlags::HUGETLB;
    if access.intersects(refused) {
        return Err(VerbsError::InvalidArgument("access").into());
    }
    if (offset ^ iova) % mapping::page_len() != 0 {
        return Err(VerbsError::InvalidArgument("iova").into());
    }
    // SAFETY: same contract.
    unsafe { PdObject::borrow(pd) }?;
    let is_writable = access.contains(AccessFlags::LOCAL_WRITE);
    let memory = Arc::new(Mapping::new(fd, offset, length, is_writable)?);
    let start = memory.addr().expose_provenance() as u64;
    let extent = Extent {
        // The region's address is its offset, because the program has not mapped it.
        addr: ptr::without_provenance_mut(usize::try_from(offset).unwrap_or(usize::MAX)),
        length,
        memory: Some(memory),
    };
    // SAFETY: the region holds the mapping, which has this length.
    unsafe { mr::register_extent(pd, start, iova, access, extent) }
}
