//! Buffers that the library allocates for the program: `ibv_alloc_buf`.
//!
//! A buffer is ordinary memory, as that of other devices is. Only confidential guests have buffers
//! of another kind, from a parent domain that Rocade does not offer.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::Arc,
};

use rocade_abi::{ibv_buf, ibv_mr, ibv_pd};
use rocade_emulator::{AccessFlags, VerbsError};

use crate::{
    args::{Handle, Last, Out},
    diagnostics::Reason,
    ffi::{Errno, neg_verb, ptr_verb},
    handle::{CHandle, objects},
    mapping::Mapping,
    mr::{self, Extent},
    pd_mr::WeakPdRef,
};

/// A buffer.
type BufferObject = CHandle<ibv_buf, BufferState>;

objects! {
    ibv_buf: ibv_buf, BufferState;
}

/// The Rust state of an `ibv_buf`.
pub(crate) struct BufferState {
    memory: Arc<Mapping>,
    /// The domain of its regions.
    domain: WeakPdRef,
}

/// `ibv_alloc_buf`: returns the address of a new zeroed buffer, at the start of a page.
///
/// EINVAL for length 0, ENOMEM without memory.
pub(crate) extern "C" fn ibv_alloc_buf(
    pd: Handle<'_, ibv_pd>,
    size: usize,
    buf: Out<'_, *mut ibv_buf>,
) -> *mut c_void {
    ptr_verb(|| {
        let domain = pd.get()?.inner().pd_ref();
        if buf.is_null() {
            return Err(VerbsError::InvalidArgument("buf").into());
        }
        let memory = Arc::new(Mapping::anonymous(size)?);
        let addr = memory.addr();
        let domain = domain.downgrade();
        let state = BufferState { memory, domain };
        let object = BufferObject::create(|_| Ok((ibv_buf::new(), state)))?;
        buf.write(object)?;
        Ok(addr)
    })
}

/// `ibv_free_buf`. Regions of the buffer keep its memory until they are deregistered.
pub(crate) extern "C" fn ibv_free_buf(buf: Last<'_, ibv_buf>) {
    // The call cannot report an error. `ptr_verb` prints it where the program asks for that.
    let _ = ptr_verb(|| {
        buf.destroy(|_| Ok(()))?;
        Ok(ptr::null_mut::<c_void>())
    });
}

/// `ibv_reg_buf_mr`.
pub(crate) extern "C" fn ibv_reg_buf_mr(
    pd: Handle<'_, ibv_pd>,
    buf: Handle<'_, ibv_buf>,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    ptr_verb(|| {
        let access = AccessFlags::from_bits_retain(access.cast_unsigned());
        register(pd, buf, (addr, length, None), access)
    })
}

/// Registers a range of a buffer: address, length, and the address that work requests use if it is
/// another one.
///
/// # Errors
/// `EINVAL` for a range outside the buffer, or if the buffer was allocated with another domain, and
/// any error of the emulator.
pub(crate) fn register(
    pd: Handle<'_, ibv_pd>,
    buf: Handle<'_, ibv_buf>,
    (addr, length, iova): (*mut c_void, usize, Option<u64>),
    access: AccessFlags,
) -> Result<*mut ibv_mr, Errno> {
    let domain = pd.get()?.inner().pd_ref();
    let buffer = buf.get()?.inner();
    if !buffer.domain.is(&domain) {
        return Err(VerbsError::InvalidArgument("domain of the buffer").into());
    }
    let outside = || VerbsError::InvalidArgument("range of the buffer");
    let offset = addr.addr().checked_sub(buffer.memory.addr().addr());
    let range = (offset.ok_or_else(outside)?, length);
    let extent = Extent::mapped(addr, range, Arc::clone(&buffer.memory));
    let iova = iova.unwrap_or_else(|| addr.addr() as u64);
    mr::register(pd, extent.map_err(|_| outside())?, iova, access)
}

/// `ibv_export_buf_dmabuf_fd`: fails with ENODATA, because no buffer is a DMA-buf.
pub(crate) extern "C" fn ibv_export_buf_dmabuf_fd(buf: Handle<'_, ibv_buf>) -> c_int {
    neg_verb(|| {
        buf.get()?;
        let what = "the buffer is ordinary memory, not a DMA-buf";
        let advice = "register a memfd or a DMA-buf of udmabuf with ibv_reg_dmabuf_mr";
        Err(Errno::NODATA.because(Reason::new(what, advice)))
    })
}
