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
    range: (*mut c_void, usize),
) -> Result<*mut ibv_mr, Errno> {
    import::register_region(&mr);
    shell_of(pd, state, mr, range, state.pd_ref())
}

fn shell_of(
    pd: *mut ibv_pd,
    state: &PdState,
    mr: Mr,
    (addr, length): (*mut c_void, usize),
    pd_ref: PdRef,
) -> Result<*mut ibv_mr, Errno> {
    let context = Arc::clone(state.context());
    MrObject::create(|_| {
        let c = ibv_mr {
            context: context.as_c(),
            pd,
            addr,
            length,
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
            },
        ))
    })
}

/// Creates a C object for an existing MR.
pub(crate) fn imported(pd: *mut ibv_pd, state: &PdState, mr: Mr) -> Result<*mut ibv_mr, Errno> {
    let length = usize::try_from(mr.len()).unwrap_or(usize::MAX);
    shell_of(pd, state, mr, (import::NO_ADDRESS, length), state.pd_ref())
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
    // SAFETY: same contract.
    let state = unsafe { PdObject::borrow(pd) }?.inner();
    let start = addr.expose_provenance() as u64;
    // SAFETY: same contract.
    let mr = unsafe { state.pd().reg_mr(start, length, iova, access) }?;
    new_mr(pd, state, mr, (addr, length))
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
        let range = (ptr::null_mut(), usize::MAX);
        shell_of(pd, state, mr, range, PdRef::default())
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
        new_mr(pd, state, mr, (ptr::null_mut(), length))
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

/// The fields of [`ibv_mr_init_attr`] that are set.
const REG_MR_IOVA: u64 = 1 << 0;
const REG_MR_ADDR: u64 = 1 << 1;
const REG_MR_FD: u64 = 1 << 2;
const REG_MR_FD_OFFSET: u64 = 1 << 3;

/// `struct ibv_mr_init_attr`, as far as rdma-core 59 has it. Later fields have bits in `comp_mask`.
#[repr(C)]
pub(crate) struct ibv_mr_init_attr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
}

/// `ibv_reg_mr_ex`: registers memory at an address, or of a descriptor.
///
/// EOPNOTSUPP for a field that Rocade does not know, such as a DMA handle. EINVAL if neither the
/// address nor the descriptor is set, or both are, and for an offset without a descriptor.
pub(crate) unsafe extern "C" fn ibv_reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    if attr.is_null() {
        return ptr_verb(|| Err(Errno::INVAL));
    }
    // SAFETY: by contract a readable structure.
    let attr = unsafe { &*attr };
    let has = |field| attr.comp_mask & field != 0;
    let known = REG_MR_IOVA | REG_MR_ADDR | REG_MR_FD | REG_MR_FD_OFFSET;
    if attr.comp_mask & !known != 0 {
        return ptr_verb(|| Err(Errno::OPNOTSUPP));
    }
    if has(REG_MR_ADDR) == has(REG_MR_FD) || has(REG_MR_FD_OFFSET) && !has(REG_MR_FD) {
        return ptr_verb(|| Err(Errno::INVAL));
    }
    let access = attr.access;
    if has(REG_MR_FD) {
        let offset = if has(REG_MR_FD_OFFSET) {
            attr.fd_offset
        } else {
            0
        };
        let iova = if has(REG_MR_IOVA) { attr.iova } else { offset };
        // SAFETY: same contract.
        return unsafe { ibv_reg_dmabuf_mr(pd, offset, attr.length, iova, attr.fd, access) };
    }
    let own = attr.addr.expose_provenance() as u64;
    let iova = if has(REG_MR_IOVA) { attr.iova } else { own };
    // SAFETY: same contract.
    unsafe { ibv_reg_mr_iova2(pd, attr.addr, attr.length, iova, access.cast_unsigned()) }
}

/// `ibv_reg_dmabuf_mr`: not supported, because Rocade can reach the memory of no other device.
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    ptr_verb(|| {
        // SAFETY: by contract a live domain.
        unsafe { PdObject::borrow(pd) }?;
        Err(Errno::OPNOTSUPP)
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
