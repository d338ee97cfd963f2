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
    args::{FromC, Handle, Last, List, member, slot::combined},
    context::ContextObject,
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    import,
    mapping::Mapping,
    pd_mr::{PdRef, PdState},
    post::to_sge,
};

/// A memory region.
pub(crate) type MrObject = CHandle<ibv_mr, MrState>;

objects! {
    ibv_mr: ibv_mr, MrState;
}

/// The Rust state of an `ibv_mr`.
pub(crate) struct MrState {
    mr: Mr,
    _context: Arc<ContextObject>,
    pd: Mutex<PdRef>,
    /// Memory that the library has mapped for this region.
    _memory: Option<Arc<Mapping>>,
}

/// The range that the C object of a region names, and the memory behind it.
pub(crate) struct Extent {
    /// Address of the range, as the program knows it.
    addr: *mut c_void,
    /// Length in bytes.
    length: usize,
    /// The address of the memory, if it can be registered.
    start: Option<u64>,
    /// The library's mapping of the range. `None` for memory of the program.
    memory: Option<Arc<Mapping>>,
}

impl Extent {
    /// A range that names no memory, or memory that is registered already.
    pub(crate) const fn named(addr: *mut c_void, length: usize) -> Self {
        Self {
            addr,
            length,
            start: None,
            memory: None,
        }
    }

    /// A range of a mapping, from `offset` on.
    ///
    /// # Errors
    /// `EINVAL` if it exceeds the mapping.
    pub(crate) fn mapped(
        addr: *mut c_void,
        (offset, length): (usize, usize),
        memory: Arc<Mapping>,
    ) -> Result<Self, Errno> {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > memory.len()) {
            return Err(Errno::INVAL);
        }
        let start = memory.addr().expose_provenance() + offset;
        Ok(Self {
            addr,
            length,
            start: Some(start as u64),
            memory: Some(memory),
        })
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
    pd: Handle<'_, ibv_pd>,
    state: &PdState,
    mr: Mr,
    extent: Extent,
) -> Result<*mut ibv_mr, Errno> {
    import::register_region(&mr);
    shell_of(pd, state, mr, extent, state.pd_ref())
}

fn shell_of(
    pd: Handle<'_, ibv_pd>,
    state: &PdState,
    mr: Mr,
    extent: Extent,
    pd_ref: PdRef,
) -> Result<*mut ibv_mr, Errno> {
    let context = Arc::clone(state.context());
    MrObject::create(|_| {
        let c = ibv_mr {
            context: context.as_c(),
            pd: pd.as_ptr(),
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
pub(crate) fn imported(
    pd: Handle<'_, ibv_pd>,
    state: &PdState,
    mr: Mr,
) -> Result<*mut ibv_mr, Errno> {
    let length = usize::try_from(mr.len()).unwrap_or(usize::MAX);
    let extent = Extent::named(import::NO_ADDRESS, length);
    shell_of(pd, state, mr, extent, state.pd_ref())
}

/// `ibv_reg_mr` as a function, which binaries with constant access flags call directly.
pub(crate) fn ibv_reg_mr(pd: Handle<'_, ibv_pd>, extent: Extent, access: c_int) -> *mut ibv_mr {
    let iova = extent.addr.addr() as u64;
    ibv_reg_mr_iova2(pd, extent, iova, access.cast_unsigned())
}

/// `ibv_reg_mr_iova`.
pub(crate) fn ibv_reg_mr_iova(
    pd: Handle<'_, ibv_pd>,
    extent: Extent,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    ibv_reg_mr_iova2(pd, extent, iova, access.cast_unsigned())
}

/// `ibv_reg_mr_iova2`: ignores unknown optional access flags.
pub(crate) fn ibv_reg_mr_iova2(
    pd: Handle<'_, ibv_pd>,
    extent: Extent,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    ptr_verb(|| {
        // The emulator decides which of the unknown bits it may ignore.
        let access = AccessFlags::from_bits_retain(access);
        register(pd, extent, iova, access)
    })
}

/// Memory that the program lends to a region. It keeps the range until it deregisters the region,
/// and expects that peers change it.
impl FromC<(*mut c_void, usize)> for Extent {
    unsafe fn from_c((addr, length): (*mut c_void, usize)) -> Self {
        Self {
            addr,
            length,
            start: Some(addr.expose_provenance() as u64),
            memory: None,
        }
    }
}

/// Registers memory. `iova` is the address that work requests use.
///
/// # Errors
/// `EINVAL` for an extent without memory, and any error of the emulator.
pub(crate) fn register(
    pd: Handle<'_, ibv_pd>,
    extent: Extent,
    iova: u64,
    access: AccessFlags,
) -> Result<*mut ibv_mr, Errno> {
    let state = pd.get()?.inner();
    let start = extent.start.ok_or(Errno::INVAL)?;
    // SAFETY: the program lends the memory, or the region keeps its mapping.
    let mr = unsafe { state.pd().reg_mr(start, extent.length, iova, access) }?;
    new_mr(pd, state, mr, extent)
}

/// Context op `alloc_null_mr`.
//= NUL-01
pub(crate) extern "C" fn alloc_null_mr(pd: Handle<'_, ibv_pd>) -> *mut ibv_mr {
    ptr_verb(|| {
        let state = pd.get()?.inner();
        let mr = state.pd().alloc_null_mr()?;
        import::register_region(&mr);
        // A null MR does not keep its PD in use.
        let extent = Extent::named(ptr::null_mut(), usize::MAX);
        shell_of(pd, state, mr, extent, PdRef::default())
    })
}

/// Context op `reg_dm_mr`.
//= DM-02
pub(crate) extern "C" fn reg_dm_mr(
    pd: Handle<'_, ibv_pd>,
    dm: Handle<'_, ibv_dm>,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    ptr_verb(|| {
        let state = pd.get()?.inner();
        let dm = dm.get()?.inner().dm();
        let access = AccessFlags::from_bits_retain(access);
        let mr = state.pd().reg_dm_mr(dm, offset, length, access)?;
        new_mr(pd, state, mr, Extent::named(ptr::null_mut(), length))
    })
}

/// `ibv_dereg_mr`.
pub(crate) extern "C" fn ibv_dereg_mr(mr: Last<'_, ibv_mr>) -> c_int {
    int_verb(|| {
        mr.destroy(|state| {
            state.mr.destroy()?;
            import::unregister_region(&state.mr);
            Ok(())
        })
    })
}

/// `ibv_rereg_mr`: returns 0, or a negative `enum ibv_rereg_mr_err_code` and errno.
//= MR-10
pub(crate) fn ibv_rereg_mr(
    mr: Handle<'_, ibv_mr>,
    flags: c_int,
    pd: Handle<'_, ibv_pd>,
    extent: Extent,
    access: c_int,
) -> c_int {
    let Extent { addr, length, .. } = extent;
    let (flags, access) = (flags.cast_unsigned(), access.cast_unsigned());
    let mut failure = IBV_REREG_MR_ERR_INPUT;
    let errno = int_verb(|| {
        let object = mr.get()?;
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
            Some(pd.get()?.inner())
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
        if let Some(new_pd) = new_pd {
            *pd_ref = new_pd.pd_ref();
            object.set_member(member!(ibv_mr, pd), pd.as_ptr());
        }
        if moves {
            object.set_member(member!(ibv_mr, addr), addr);
            object.set_member(member!(ibv_mr, length), length);
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
pub(crate) fn advise_mr(
    pd: Handle<'_, ibv_pd>,
    advice: c_uint,
    flags: u32,
    list: List<'_, ibv_sge>,
) -> c_int {
    int_verb(|| {
        let state = pd.get()?.inner();
        let advice = Advice::from_code(advice).ok_or(Errno::OPNOTSUPP)?;
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || list.count() == 0 || list.is_null() {
            return Err(Errno::INVAL);
        }
        let entries: Vec<_> = list.iter().map(to_sge).collect();
        Ok(state.pd().advise_mr(advice, &entries)?)
    })
}

combined! {
    pub(crate) fn c_advise_mr(
        pd: *mut ibv_pd, advice: c_uint, flags: u32, list: *mut ibv_sge, count: u32
    ) -> c_int = advise_mr [pd, advice, flags, (list, count)];
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
