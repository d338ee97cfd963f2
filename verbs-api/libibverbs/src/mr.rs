//! Memory regions.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
    sync::Arc,
};

use parking_lot::Mutex;
use rocade_abi::{
    IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_REREG_MR_ERR_CMD, IBV_REREG_MR_ERR_INPUT, IBV_REREG_MR_FLAGS_SUPPORTED, ibv_dm, ibv_mr,
    ibv_pd, ibv_sge,
};
use rocade_emulator::{AccessFlags, Advice, Mr, Rereg, ReregFlags};

use crate::{
    context::ContextObject,
    dm::DmObject,
    ffi::{Errno, int_verb, ptr_verb},
    handle::CHandle,
    import,
    mapping::Mapping,
    pd_mr::{PdObject, PdRef, PdState},
    post::to_sge,
};

/// A memory region.
pub(crate) type MrObject = CHandle<ibv_mr, MrState>;

/// The Rust state of an `ibv_mr`.
pub(crate) struct MrState {
    mr: Mr,
    _context: Arc<ContextObject>,
    pd: Mutex<PdRef>,
    /// Memory that the library has mapped for this region.
    _memory: Option<Arc<Mapping>>,
}

/// The range that the C object of a region names.
pub(crate) struct Extent {
    /// Address of the range, as the program knows it.
    pub(crate) addr: *mut c_void,
    /// Length in bytes.
    pub(crate) length: usize,
    /// The library's mapping of the range. `None` for memory of the program.
    pub(crate) memory: Option<Arc<Mapping>>,
}

impl Extent {
    /// A range of the program's memory.
    pub(crate) const fn of_program(addr: *mut c_void, length: usize) -> Self {
        Self {
            addr,
            length,
            memory: None,
        }
    }
}

impl MrState {
    /// Returns the emulator's region.
    pub(crate) const fn mr(&self) -> &Mr {
        &self.mr
    }
}

/// Creates the C object of a region.
pub(crate) fn new_mr(
    pd: *mut ibv_pd,
    state: &PdState,
    mr: Mr,
    extent: Extent,
) -> Result<*mut ibv_mr, Errno> {
    import::register_region(&mr);
    shell_of(pd, state, mr, extent, state.pd_ref())
}

fn shell_of(
    pd: *mut ibv_pd,
    state: &PdState,
    mr: Mr,
    extent: Extent,
    pd_ref: PdRef,
) -> Result<*mut ibv_mr, Errno> {
    let context = Arc::clone(state.context());
    MrObject::create(|_| {
        let c = ibv_mr {
            context: context.as_c(),
            pd,
            addr: extent.addr,
            length: extent.length,
            handle: mr.lkey().get(),
            lkey: mr.lkey().get(),
            rkey: mr.rkey().get(),
        };
        Ok((
            c,
            MrState {
                mr,
                _context: context,
                pd: Mutex::new(pd_ref),
                _memory: extent.memory,
            },
        ))
    })
}

/// Creates a C object for an existing MR.
pub(crate) fn imported(pd: *mut ibv_pd, state: &PdState, mr: Mr) -> Result<*mut ibv_mr, Errno> {
    let length = usize::try_from(mr.len()).unwrap_or(usize::MAX);
    let extent = Extent::of_program(import::NO_ADDRESS, length);
    shell_of(pd, state, mr, extent, state.pd_ref())
}

/// `ibv_reg_mr` as a function, which binaries with constant access flags call directly.
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: same contract.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova`.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: same contract.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// `ibv_reg_mr_iova2`: ignores unknown optional access flags.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    ptr_verb(|| {
        // The emulator decides which of the unknown bits it may ignore.
        let access = AccessFlags::from_bits_retain(access);
        // SAFETY: same contract.
        unsafe { register(pd, addr, length, iova, access) }
    })
}

/// Registers memory of the program.
///
/// # Errors
/// Any error of the emulator.
///
/// # Safety
/// `pd` must be NULL or a live domain. By the contract of the verb, the program keeps the range
/// mapped while the MR exists.
pub(crate) unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: AccessFlags,
) -> Result<*mut ibv_mr, Errno> {
    let start = addr.expose_provenance() as u64;
    let extent = Extent::of_program(addr, length);
    // SAFETY: same contract.
    unsafe { register_extent(pd, start, iova, access, extent) }
}

/// Registers the memory at `start`, under the address and length of `extent`.
///
/// # Errors
/// Any error of the emulator.
///
/// # Safety
/// As for [`register`]. The memory of `extent`, if it has any, contains the range at `start`.
pub(crate) unsafe fn register_extent(
    pd: *mut ibv_pd,
    start: u64,
    iova: u64,
    access: AccessFlags,
    extent: Extent,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: same contract.
    let state = unsafe { PdObject::borrow(pd) }?.inner();
    // SAFETY: same contract.
    let mr = unsafe { state.pd().reg_mr(start, extent.length, iova, access) }?;
    new_mr(pd, state, mr, extent)
}

/// Context op `alloc_null_mr`.
//= NUL-01
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    ptr_verb(|| {
        // SAFETY: by contract a live domain.
        let state = unsafe { PdObject::borrow(pd) }?.inner();
        let mr = state.pd().alloc_null_mr()?;
        import::register_region(&mr);
        // A null MR does not keep its PD in use.
        let extent = Extent::of_program(ptr::null_mut(), usize::MAX);
        shell_of(pd, state, mr, extent, PdRef::default())
    })
}

/// Context op `reg_dm_mr`.
//= DM-02
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    ptr_verb(|| {
        // SAFETY: by contract a live domain.
        let state = unsafe { PdObject::borrow(pd) }?.inner();
        // SAFETY: by contract live device memory.
        let dm = unsafe { DmObject::borrow(dm) }?.inner().dm();
        let access = AccessFlags::from_bits_retain(access);
        let mr = state.pd().reg_dm_mr(dm, offset, length, access)?;
        new_mr(pd, state, mr, Extent::of_program(ptr::null_mut(), length))
    })
}

/// `ibv_dereg_mr`.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: by contract a live region that is not used afterwards.
    int_verb(|| unsafe {
        MrObject::destroy(mr, |state| {
            state.mr.destroy()?;
            import::unregister_region(&state.mr);
            Ok(())
        })
    })
}

/// `ibv_rereg_mr`: returns 0, or a negative `enum ibv_rereg_mr_err_code` and errno.
//= MR-10
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let (flags, access) = (flags.cast_unsigned(), access.cast_unsigned());
    let mut failure = IBV_REREG_MR_ERR_INPUT;
    let errno = int_verb(|| {
        // SAFETY: by contract a live region.
        let object = unsafe { MrObject::borrow(mr) }?;
        let state = object.inner();
        let moves = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
        let is_wrong = !state.mr.is_plain()
            || flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
            || moves && (addr.is_null() || length == 0)
            || access != 0 && flags & IBV_REREG_MR_CHANGE_ACCESS == 0;
        if is_wrong {
            return Err(Errno::INVAL);
        }
        let new_pd = if flags & IBV_REREG_MR_CHANGE_PD != 0 {
            // SAFETY: by contract a live domain.
            Some(unsafe { PdObject::borrow(pd) }?.inner())
        } else {
            None
        };
        let change = Rereg {
            flags: ReregFlags::from_bits_retain(flags),
            pd: new_pd.map(PdState::pd),
            addr: addr.expose_provenance() as u64,
            len: length,
            access: AccessFlags::from_bits_retain(access),
        };
        failure = IBV_REREG_MR_ERR_CMD;
        let mut pd_ref = state.pd.lock();
        // SAFETY: as for registration.
        unsafe { state.mr.rereg(&change) }?;
        let c = object.c();
        if let Some(new_pd) = new_pd {
            *pd_ref = new_pd.pd_ref();
            // SAFETY: live, and the program must not change it concurrently.
            unsafe { (*c).pd = pd };
        }
        if moves {
            // SAFETY: as above.
            unsafe { (*c).addr = addr };
            // SAFETY: as above.
            unsafe { (*c).length = length };
        }
        Ok(())
    });
    if errno == 0 { 0 } else { failure }
}

/// The flag of `ibv_advise_mr` that requests completion before the return. Rocade always completes
/// it.
const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1;

/// Context op `advise_mr`.
//= ODP-05
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    int_verb(|| {
        // SAFETY: by contract a live domain.
        let state = unsafe { PdObject::borrow(pd) }?.inner();
        let advice = Advice::from_code(advice).ok_or(Errno::OPNOTSUPP)?;
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || num_sge == 0 || sg_list.is_null() {
            return Err(Errno::INVAL);
        }
        let entries = (0..num_sge as usize).map(|index| {
            // SAFETY: by contract there are `num_sge` entries.
            to_sge(unsafe { sg_list.add(index).read() })
        });
        Ok(state.pd().advise_mr(advice, &entries.collect::<Vec<_>>())?)
    })
}

#[cfg(test)]
mod tests {
    use rocade_abi::{
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_REMOTE_ATOMIC,
        IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED,
    };

    use super::*;

    //= MR-01 type=test
    #[test]
    fn rights_are_those_of_the_header() {
        for (ours, theirs) in [
            (AccessFlags::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE),
            (AccessFlags::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE),
            (AccessFlags::REMOTE_READ, IBV_ACCESS_REMOTE_READ),
            (AccessFlags::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
            (AccessFlags::MW_BIND, IBV_ACCESS_MW_BIND),
            (AccessFlags::ZERO_BASED, IBV_ACCESS_ZERO_BASED),
            (AccessFlags::ON_DEMAND, IBV_ACCESS_ON_DEMAND),
        ] {
            assert_eq!(ours.bits(), theirs, "{ours:?}");
        }
    }
}
