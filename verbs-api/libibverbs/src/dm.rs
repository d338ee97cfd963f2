//! Device memory.

use std::{
    ffi::{c_int, c_void},
    sync::Arc,
};

use rocade_abi::{ibv_alloc_dm_attr, ibv_context, ibv_dm};
use rocade_emulator::Dm;

use crate::{
    args::{Buffer, Handle, In, Last, Room, slot::combined},
    context::ContextObject,
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    import,
};

/// Device memory.
pub(crate) type DmObject = CHandle<ibv_dm, DmState>;

objects! {
    ibv_dm: ibv_dm, DmState;
}

/// The Rust state of an `ibv_dm`.
pub(crate) struct DmState {
    dm: Dm,
    handle: u32,
    _context: Arc<ContextObject>,
}

impl DmState {
    /// Returns the emulator's device memory.
    pub(crate) const fn dm(&self) -> &Dm {
        &self.dm
    }
}

/// Context op `alloc_dm`. Every alignment is met, because it applies to offsets in the memory only.
//= DM-01
pub(crate) extern "C" fn alloc_dm(
    context: Handle<'_, ibv_context>,
    attr: In<'_, ibv_alloc_dm_attr>,
) -> *mut ibv_dm {
    ptr_verb(|| {
        // Device memory is plain process memory, so this also works in a forked child.
        let context = context.share_inherited()?;
        let attr = attr.read()?;
        if attr.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        let dm = context.context().alloc_dm(attr.length)?;
        let handle = import::register_memory(&dm);
        new_dm(dm, context, handle)
    })
}

/// Creates the C object of device memory.
pub(crate) fn new_dm(
    dm: Dm,
    context: Arc<ContextObject>,
    handle: u32,
) -> Result<*mut ibv_dm, Errno> {
    DmObject::create(|_| {
        let c = ibv_dm {
            context: context.as_c(),
            memcpy_to_dm: Some(c_memcpy_to_dm),
            memcpy_from_dm: Some(c_memcpy_from_dm),
            comp_mask: 0,
            handle,
        };
        let state = DmState {
            dm,
            handle,
            _context: context,
        };
        Ok((c, state))
    })
}

/// Context op `free_dm`.
//= DM-04
//= DST-10
pub(crate) extern "C" fn free_dm(dm: Last<'_, ibv_dm>) -> c_int {
    int_verb(|| {
        dm.destroy(|state| {
            state.dm.destroy()?;
            import::unregister_memory(state.handle);
            Ok(())
        })
    })
}

/// Checks the range and returns a buffer of `length` bytes for the copy. Accesses none of the
/// program's memory.
///
/// # Errors
/// `EFAULT` if the range exceeds the device memory.
//= DM-03
fn space(dm: &Dm, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let end = usize::try_from(offset).ok();
    let end = end.and_then(|offset| offset.checked_add(length));
    if end.is_none_or(|end| end > dm.len()) {
        return Err(Errno(libc::EFAULT));
    }
    Ok(vec![0; length])
}

combined! {
    fn c_memcpy_to_dm(
        dm: *mut ibv_dm, offset: u64, source: *const c_void, length: usize
    ) -> c_int = memcpy_to_dm [dm, offset, (source, length)];
    fn c_memcpy_from_dm(
        target: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize
    ) -> c_int = memcpy_from_dm [(target, length), dm, offset];
}

fn memcpy_to_dm(dm: Handle<'_, ibv_dm>, offset: u64, source: Buffer<'_>) -> c_int {
    int_verb(|| {
        let dm = dm.get()?.inner().dm();
        let mut copy = space(dm, offset, source.len())?;
        source.copy_to(&mut copy);
        Ok(dm.write(offset, &copy)?)
    })
}

fn memcpy_from_dm(target: Room<'_>, dm: Handle<'_, ibv_dm>, offset: u64) -> c_int {
    int_verb(|| {
        let dm = dm.get()?.inner().dm();
        let mut copy = space(dm, offset, target.len())?;
        dm.read(offset, &mut copy)?;
        target.copy_from(Buffer::of(&copy));
        Ok(())
    })
}
