//! Registration by attributes, and of the memory of a descriptor.

use std::{ffi::c_int, ptr, sync::Arc};

use rocade_abi::{
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET,
    IBV_REG_MR_MASK_IOVA, ibv_mr, ibv_mr_init_attr, ibv_pd,
};
use rocade_emulator::{AccessFlags, VerbsError};

use crate::{
    args::{FromC, Handle, In},
    ffi::{Errno, ptr_verb},
    mapping::{self, Mapping},
    mr::{self, Extent},
    program_buffer,
};

/// `ibv_reg_mr_ex`: registers memory at an address, of a descriptor or of a buffer.
///
/// EOPNOTSUPP for a field that Rocade does not know, such as a DMA handle. EINVAL if neither or
/// both of address and descriptor are set, and for an offset without a descriptor. EINVAL also for
/// a buffer without an address.
pub(crate) extern "C" fn ibv_reg_mr_ex(
    pd: Handle<'_, ibv_pd>,
    attr: In<'_, ibv_mr_init_attr>,
) -> *mut ibv_mr {
    ptr_verb(|| register(pd, attr))
}

fn register(pd: Handle<'_, ibv_pd>, attr: In<'_, ibv_mr_init_attr>) -> Result<*mut ibv_mr, Errno> {
    let attr = attr
        .read_known()
        .map_err(|_| VerbsError::InvalidArgument("attributes"))?;
    let mask = attr.comp_mask;
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
    let length = attr.length;
    let access = AccessFlags::from_bits_retain(attr.access.cast_unsigned());
    let iova = has(IBV_REG_MR_MASK_IOVA).then_some(attr.iova);
    if has(IBV_REG_MR_MASK_FD) {
        let offset = attr.fd_offset;
        let range = (offset, length, iova.unwrap_or(offset));
        return register_fd(pd, attr.fd, range, access);
    }
    let addr = attr.addr;
    if has(IBV_REG_MR_MASK_BUF) {
        return program_buffer::register(pd, attr.buf(), (addr, length, iova), access);
    }
    // SAFETY: by contract of the verb.
    let extent: Extent = unsafe { FromC::from_c((addr, length)) };
    mr::register(
        pd,
        extent,
        iova.unwrap_or_else(|| addr.addr() as u64),
        access,
    )
}

/// `ibv_reg_dmabuf_mr`: registers memory of a descriptor that can be mapped, such as a DMA buffer
/// of udmabuf or a heap, or a memfd.
///
/// EINVAL if the range is empty or exceeds the descriptor's memory, and if `iova` and `offset`
/// differ in their place in a page. EINVAL also for access flags other than those of plain regions.
/// EOPNOTSUPP if the memory cannot be mapped.
pub(crate) extern "C" fn ibv_reg_dmabuf_mr(
    pd: Handle<'_, ibv_pd>,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    ptr_verb(|| {
        let access = AccessFlags::from_bits_retain(access.cast_unsigned());
        register_fd(pd, fd, (offset, length, iova), access)
    })
}

/// Registers a range of a descriptor's memory: offset, length, and the address that work requests
/// use.
///
/// # Errors
/// Those of [`ibv_reg_dmabuf_mr`].
pub(crate) fn register_fd(
    pd: Handle<'_, ibv_pd>,
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
    pd.get()?;
    let is_writable = access.contains(AccessFlags::LOCAL_WRITE);
    let memory = Arc::new(Mapping::new(fd, offset, length, is_writable)?);
    // The region's address is its offset, because the program has not mapped it.
    let addr = ptr::without_provenance_mut(usize::try_from(offset).unwrap_or(usize::MAX));
    mr::register(pd, Extent::mapped(addr, (0, length), memory)?, iova, access)
}
