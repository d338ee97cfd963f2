//! Protection domains and memory regions.

use std::{
    ffi::{c_int, c_uint, c_void},
    sync::Arc,
};

use rocade_abi::{IBV_REREG_MR_ERR_INPUT, ibv_context, ibv_mr, ibv_pd};
use rocade_emulator::{AccessFlags, Mr, Pd};

use crate::{
    context::ContextObject,
    ffi::{Errno, int_verb, ptr_verb, set_errno},
    shell::Shell,
};

/// A protection domain, or a parent domain that stands for one.
pub(crate) type PdObject = Shell<ibv_pd, PdState>;

/// Held once by a domain and once by each object that was made with it: until those have ended, the
/// domain is busy.
#[derive(Debug, Clone, Default)]
pub(crate) struct InUse(Arc<()>);

impl InUse {
    /// `EBUSY` where somebody else holds it too.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        if Arc::strong_count(&self.0) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        Ok(())
    }
}

/// What stands behind an `ibv_pd`.
pub(crate) struct PdState {
    pd: Pd,
    context: Arc<ContextObject>,
    in_use: InUse,
    /// What a parent domain is made of; empty for a domain of its own.
    parts: Vec<InUse>,
}

impl PdState {
    /// The emulator's protection domain.
    pub(crate) const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The context it belongs to.
    pub(crate) const fn context(&self) -> &Arc<ContextObject> {
        &self.context
    }

    /// For an object that is made with this domain to keep.
    pub(crate) fn in_use(&self) -> InUse {
        self.in_use.clone()
    }

    /// A parent domain of this one and, maybe, a thread domain.
    pub(crate) fn parent(&self, thread_domain: Option<InUse>) -> Self {
        let parts = [Some(self.in_use()), thread_domain];
        Self {
            pd: self.pd.clone(),
            context: Arc::clone(&self.context),
            in_use: InUse::default(),
            parts: parts.into_iter().flatten().collect(),
        }
    }

    fn close(&self) -> Result<(), Errno> {
        self.in_use.check()?;
        if self.parts.is_empty() {
            self.pd.destroy()?;
        }
        Ok(())
    }
}

/// A memory region.
type MrObject = Shell<ibv_mr, MrState>;

struct MrState {
    mr: Mr,
    _context: Arc<ContextObject>,
    _pd: InUse,
}

/// Makes the C object of a domain.
///
/// # Errors
/// None so far.
pub(crate) fn new_pd(state: PdState) -> Result<*mut ibv_pd, Errno> {
    PdObject::create(|_| {
        Ok((
            ibv_pd {
                context: state.context.as_c(),
                handle: 0,
            },
            state,
        ))
    })
}

/// `ibv_alloc_pd`.
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    ptr_verb(|| {
        // SAFETY: by contract an open context.
        let context = unsafe { ContextObject::share(context) }?;
        let pd = context.context().alloc_pd()?;
        new_pd(PdState {
            pd,
            context,
            in_use: InUse::default(),
            parts: Vec::new(),
        })
    })
}

/// `ibv_dealloc_pd`: `EBUSY` while something was made in it (DST-01).
//= DST-01
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: by contract a live domain that is not used afterwards.
    int_verb(|| unsafe { PdObject::end(pd, PdState::close) })
}

/// `ibv_reg_mr` as a function: binaries whose access flags are constants call it directly.
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

/// `ibv_reg_mr_iova2`: optional access bits that this library does not know are ignored.
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    ptr_verb(|| {
        // SAFETY: by contract a live domain.
        let state = unsafe { PdObject::borrow(pd) }?.inner();
        // The emulator knows which of the unknown bits may be ignored.
        let access = AccessFlags::from_bits_retain(access);
        let start = addr.expose_provenance() as u64;
        // SAFETY: the program promises to keep the range mapped while the region exists; that is
        // the contract of the verb.
        let mr = unsafe { state.pd.reg_mr(start, length, iova, access) }?;
        let context = Arc::clone(&state.context);
        MrObject::create(|_| {
            let c = ibv_mr {
                context: context.as_c(),
                pd,
                addr,
                length,
                handle: 0,
                lkey: mr.lkey().get(),
                rkey: mr.rkey().get(),
            };
            Ok((
                c,
                MrState {
                    mr,
                    _context: context,
                    _pd: state.in_use(),
                },
            ))
        })
    })
}

/// `ibv_dereg_mr`.
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: by contract a live region that is not used afterwards.
    int_verb(|| unsafe { MrObject::end(mr, |state| Ok(state.mr.destroy()?)) })
}

/// `ibv_rereg_mr`: not offered; the region stays as it is.
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    _mr: *mut ibv_mr,
    _flags: c_int,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    IBV_REREG_MR_ERR_INPUT
}
