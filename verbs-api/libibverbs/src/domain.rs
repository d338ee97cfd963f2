//! Thread domains and parent domains.
//!
//! A thread domain promises that one thread uses its objects. The emulator's locks are cheap
//! without contention, so Rocade makes no use of the promise.

use std::{ffi::c_int, sync::Arc};

use rocade_abi::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, ibv_context,
    ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};

use crate::{
    buffer::Allocators,
    context::ContextObject,
    ffi::{self, Errno, int_verb, ptr_verb},
    handle::CHandle,
    pd_mr::{PdObject, PdRef, new_pd},
    qp_ex::not_offered,
};

type TdObject = CHandle<ibv_td, TdState>;

struct TdState {
    _context: Arc<ContextObject>,
    pd_ref: PdRef,
}

/// Context op `alloc_td`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    ptr_verb(|| {
        // SAFETY: by contract NULL or readable.
        if unsafe { ffi::read(attr) }?.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: by contract an open context.
        let context = unsafe { ContextObject::share(context) }?;
        TdObject::create(|_| {
            Ok((
                ibv_td {
                    context: context.as_c(),
                },
                TdState {
                    _context: context,
                    pd_ref: PdRef::default(),
                },
            ))
        })
    })
}

/// Context op `dealloc_td`: fails with `EBUSY` while a parent domain uses it.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: by contract a live domain that is not used afterwards.
    int_verb(|| unsafe {
        TdObject::destroy(td, |state| {
            state.pd_ref.check("thread domain, by a parent domain")
        })
    })
}

/// Context op `alloc_parent_domain`: creates a second handle on the protection domain. Custom
/// allocators are called for each queue that is created with it.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    ptr_verb(|| {
        // SAFETY: by contract NULL or readable.
        let attr = unsafe { ffi::read(attr) }?;
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if attr.comp_mask & !known != 0 {
            let what = format!(
                "comp_mask has the unsupported bits {:#x}",
                attr.comp_mask & !known
            );
            return Err(Errno::OPNOTSUPP.because(not_offered(&what)));
        }
        // SAFETY: by contract an open context.
        unsafe { ContextObject::borrow(context) }?;
        // SAFETY: by contract NULL or a live domain.
        let pd = unsafe { PdObject::borrow(attr.pd) }?.inner();
        let thread_domain = if attr.td.is_null() {
            None
        } else {
            // SAFETY: by contract a live thread domain.
            Some(unsafe { TdObject::borrow(attr.td) }?.inner().pd_ref.clone())
        };
        let allocators = if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS == 0 {
            None
        } else {
            let pd_context = if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT == 0 {
                std::ptr::null_mut()
            } else {
                attr.pd_context
            };
            let both = Allocators::new(attr.alloc, attr.free, pd_context);
            Some(both.ok_or(Errno::INVAL)?)
        };
        new_pd(pd.parent(thread_domain, allocators))
    })
}
