//! Protection domains.

use std::{
    ffi::c_int,
    sync::{Arc, Weak},
};

use rocade_abi::{ibv_context, ibv_pd};
use rocade_emulator::{Pd, VerbsError};

use crate::{
    buffer::{Allocators, Buffer, Purpose},
    context::ContextObject,
    ffi::{Errno, int_verb, ptr_verb},
    handle::CHandle,
    import,
};

/// A protection domain, or a parent domain of one.
pub(crate) type PdObject = CHandle<ibv_pd, PdState>;

/// A reference to a domain, held by the domain itself and by each object that was created with it.
/// The domain is busy while an object holds one.
#[derive(Debug, Clone, Default)]
pub(crate) struct InUse(Arc<()>);

impl InUse {
    /// Returns a weak reference.
    pub(crate) fn known(&self) -> Known {
        Known(Arc::downgrade(&self.0))
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
pub(crate) struct Known(Weak<()>);

impl Known {
    /// Returns a reference, unless the domain was deallocated.
    pub(crate) fn hold(&self) -> Option<InUse> {
        self.0.upgrade().map(InUse)
    }
}

/// The Rust state of an `ibv_pd`.
pub(crate) struct PdState {
    pd: Pd,
    context: Arc<ContextObject>,
    in_use: InUse,
    /// The domains that a parent domain was created from. Empty for an ordinary PD.
    parts: Vec<InUse>,
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
    pub(crate) fn in_use(&self) -> InUse {
        self.in_use.clone()
    }

    /// Creates a parent domain of this domain and an optional thread domain.
    pub(crate) fn parent(
        &self,
        thread_domain: Option<InUse>,
        allocators: Option<Allocators>,
    ) -> Self {
        let parts = [Some(self.in_use()), thread_domain];
        Self {
            pd: self.pd.clone(),
            context: Arc::clone(&self.context),
            in_use: InUse::default(),
            parts: parts.into_iter().flatten().collect(),
            allocators,
        }
    }

    /// Allocates a buffer for a queue of `entries` entries, if the domain has allocators.
    ///
    /// # Errors
    /// `ENOMEM` if the allocator returns NULL.
    ///
    /// # Safety
    /// `pd` must be the C object of this domain, and outlive the buffer.
    pub(crate) unsafe fn buffer(
        &self,
        pd: *mut ibv_pd,
        entries: u32,
        purpose: Purpose,
    ) -> Result<Option<Buffer>, Errno> {
        let Some(allocators) = self.allocators else {
            return Ok(None);
        };
        // SAFETY: same contract.
        unsafe { allocators.allocate(pd, entries, purpose) }
    }

    fn close(&self) -> Result<(), Errno> {
        if !self.parts.is_empty() {
            let users = "protection domain, by objects that were created with this handle";
            return self.in_use.check(users);
        }
        // The emulator counts the objects in the domain. Other handles on the domain are counted
        // here.
        self.pd.destroy()?;
        self.in_use
            .check("protection domain, by a parent domain or an imported handle")?;
        import::withdraw_domain(&self.pd);
        Ok(())
    }
}

/// Creates the C object of an imported domain, which keeps the original one in use.
pub(crate) fn imported(
    pd: Pd,
    original: InUse,
    context: Arc<ContextObject>,
) -> Result<*mut ibv_pd, Errno> {
    new_pd(PdState {
        pd,
        context,
        in_use: InUse::default(),
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
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    ptr_verb(|| {
        // SAFETY: by contract an open context.
        let context = unsafe { ContextObject::share(context) }?;
        let pd = context.context().alloc_pd()?;
        let in_use = InUse::default();
        import::offer_domain(&pd, &in_use);
        new_pd(PdState {
            pd,
            context,
            in_use,
            parts: Vec::new(),
            allocators: None,
        })
    })
}

/// `ibv_dealloc_pd`: fails with `EBUSY` while the domain has objects.
//= DST-01
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: by contract a live domain that is not used afterwards.
    int_verb(|| unsafe { PdObject::end(pd, PdState::close) })
}
