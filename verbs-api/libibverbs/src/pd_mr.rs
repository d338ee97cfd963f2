//! Protection domains.

use std::{
    ffi::c_int,
    ptr,
    sync::{Arc, Weak},
};

use rocade_abi::{ibv_context, ibv_pd};
use rocade_emulator::{Pd, VerbsError};

use crate::{
    args::{Handle, Last},
    buffer::{Allocators, Buffer, Purpose},
    context::ContextObject,
    ffi::{Errno, int_verb, ptr_verb},
    handle::{CHandle, objects},
    import,
};

/// A protection domain, or a parent domain of one.
pub(crate) type PdObject = CHandle<ibv_pd, PdState>;

objects! {
    ibv_pd: ibv_pd, PdState;
}

/// A reference to a domain, held by the domain itself and by each object that was created with it.
/// The domain is busy while an object holds one.
#[derive(Debug, Clone, Default)]
pub(crate) struct PdRef(Arc<()>);

impl PdRef {
    /// Returns a weak reference.
    pub(crate) fn downgrade(&self) -> WeakPdRef {
        WeakPdRef(Arc::downgrade(&self.0))
    }

    /// Checks that no other reference exists.
    ///
    /// # Errors
    /// `EBUSY` with `what`, which names the object and its users.
    pub(crate) fn check(&self, what: &'static str) -> Result<(), Errno> {
        if Arc::strong_count(&self.0) > 1 {
            return Err(VerbsError::Busy(what.to_owned()).into());
        }
        Ok(())
    }
}

/// A weak reference to a domain, which may have been deallocated.
#[derive(Debug)]
pub(crate) struct WeakPdRef(Weak<()>);

impl WeakPdRef {
    /// Returns a reference, unless the domain was deallocated.
    pub(crate) fn upgrade(&self) -> Option<PdRef> {
        self.0.upgrade().map(PdRef)
    }

    /// Returns true if both are references to one domain.
    pub(crate) fn is(&self, domain: &PdRef) -> bool {
        ptr::eq(self.0.as_ptr(), Arc::as_ptr(&domain.0))
    }
}

/// The Rust state of an `ibv_pd`.
pub(crate) struct PdState {
    pd: Pd,
    context: Arc<ContextObject>,
    pd_ref: PdRef,
    /// The domains that a parent domain was created from. Empty for an ordinary PD.
    parts: Vec<PdRef>,
    /// The allocators of a parent domain.
    allocators: Option<Allocators>,
}

impl PdState {
    /// Returns the emulator's protection domain.
    pub(crate) const fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the domain's context.
    pub(crate) const fn context(&self) -> &Arc<ContextObject> {
        &self.context
    }

    /// Returns a reference for an object that is created with this domain.
    pub(crate) fn pd_ref(&self) -> PdRef {
        self.pd_ref.clone()
    }

    /// Creates a parent domain of this domain and an optional thread domain.
    pub(crate) fn parent(
        &self,
        thread_domain: Option<PdRef>,
        allocators: Option<Allocators>,
    ) -> Self {
        let parts = [Some(self.pd_ref()), thread_domain];
        Self {
            pd: self.pd.clone(),
            context: Arc::clone(&self.context),
            pd_ref: PdRef::default(),
            parts: parts.into_iter().flatten().collect(),
            allocators,
        }
    }

    /// Allocates a buffer for a queue of `entries` entries, if the domain has allocators.
    ///
    /// # Errors
    /// `ENOMEM` if the allocator returns NULL.
    pub(crate) fn buffer(
        &self,
        pd: Handle<'_, ibv_pd>,
        entries: u32,
        purpose: Purpose,
    ) -> Result<Option<Buffer>, Errno> {
        let Some(allocators) = self.allocators else {
            return Ok(None);
        };
        allocators.allocate(pd, entries, purpose)
    }

    fn close(&self) -> Result<(), Errno> {
        if !self.parts.is_empty() {
            let users = "protection domain, by objects that were created with this handle";
            return self.pd_ref.check(users);
        }
        // The emulator counts the objects in the domain. Other handles on the domain are counted
        // here.
        self.pd.destroy()?;
        self.pd_ref
            .check("protection domain, by a parent domain or an imported handle")?;
        import::unregister_domain(&self.pd);
        Ok(())
    }
}

/// Creates the C object of an imported domain, which keeps the original one in use.
pub(crate) fn imported(
    pd: Pd,
    original: PdRef,
    context: Arc<ContextObject>,
) -> Result<*mut ibv_pd, Errno> {
    new_pd(PdState {
        pd,
        context,
        pd_ref: PdRef::default(),
        parts: vec![original],
        allocators: None,
    })
}

/// Creates the C object of a domain.
///
/// # Errors
/// None at present.
pub(crate) fn new_pd(state: PdState) -> Result<*mut ibv_pd, Errno> {
    PdObject::create(|_| {
        Ok((
            ibv_pd {
                context: state.context.as_c(),
                handle: state.pd.handle(),
            },
            state,
        ))
    })
}

/// `ibv_alloc_pd`.
pub(crate) extern "C" fn ibv_alloc_pd(context: Handle<'_, ibv_context>) -> *mut ibv_pd {
    ptr_verb(|| {
        let context = context.share()?;
        let pd = context.context().alloc_pd()?;
        let pd_ref = PdRef::default();
        import::register_domain(&pd, &pd_ref);
        new_pd(PdState {
            pd,
            context,
            pd_ref,
            parts: Vec::new(),
            allocators: None,
        })
    })
}

/// `ibv_dealloc_pd`: fails with `EBUSY` while the domain has objects.
//= DST-01
pub(crate) extern "C" fn ibv_dealloc_pd(pd: Last<'_, ibv_pd>) -> c_int {
    int_verb(|| pd.destroy(PdState::close))
}
