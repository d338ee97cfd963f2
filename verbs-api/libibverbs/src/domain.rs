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
    args::{Handle, In, Last},
    buffer::Allocators,
    context::ContextObject,
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    pd_mr::{PdRef, new_pd},
    qp_ex::not_offered,
};

type TdObject = CHandle<ibv_td, TdState>;

objects! {
    ibv_td: ibv_td, TdState;
}

pub(crate) struct TdState {
    _context: Arc<ContextObject>,
    pd_ref: PdRef,
}

/// Context op `alloc_td`.
pub(crate) extern "C" fn alloc_td(
    context: Handle<'_, ibv_context>,
    attr: In<'_, ibv_td_init_attr>,
) -> *mut ibv_td {
    ptr_verb(|| {
        if attr.read()?.comp_mask != 0 {
            return Err(Errno::INVAL);
        }
        let context = context.share()?;
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
pub(crate) extern "C" fn dealloc_td(td: Last<'_, ibv_td>) -> c_int {
    int_verb(|| td.destroy(|state| state.pd_ref.check("thread domain, by a parent domain")))
}

/// Context op `alloc_parent_domain`: creates a second handle on the protection domain. Custom
/// allocators are called for each queue that is created with it.
pub(crate) extern "C" fn alloc_parent_domain(
    context: Handle<'_, ibv_context>,
    attr: In<'_, ibv_parent_domain_init_attr>,
) -> *mut ibv_pd {
    ptr_verb(|| {
        let attr = attr.read()?;
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if attr.comp_mask & !known != 0 {
            let what = format!(
                "comp_mask has the unsupported bits {:#x}",
                attr.comp_mask & !known
            );
            return Err(Errno::OPNOTSUPP.because(not_offered(&what)));
        }
        context.get()?;
        let pd = attr.pd().get()?.inner();
        let thread_domain = match attr.td().some() {
            Some(domain) => Some(domain.get()?.inner().pd_ref.clone()),
            None => None,
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
