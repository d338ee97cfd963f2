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
    import,
    shell::Shell,
};

/// A protection domain, or a parent domain that stands for one.
pub(crate) type PdObject = Shell<ibv_pd, PdState>;

/// Held once by a domain and once by each object that was made with it: until those have ended, the
/// domain is busy.
#[derive(Debug, Clone, Default)]
pub(crate) struct InUse(Arc<()>);

impl InUse {
    /// For who has to find it, and does not use it.
    pub(crate) fn known(&self) -> Known {
        Known(Arc::downgrade(&self.0))
    }

    /// Succeeds if nothing else holds it.
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

/// An [`InUse`] of a domain that may have ended.
#[derive(Debug)]
pub(crate) struct Known(Weak<()>);

impl Known {
    /// To be held, unless it has ended.
    pub(crate) fn hold(&self) -> Option<InUse> {
        self.0.upgrade().map(InUse)
    }
}

/// What stands behind an `ibv_pd`.
pub(crate) struct PdState {
    pd: Pd,
    context: Arc<ContextObject>,
    in_use: InUse,
    /// What a parent domain is made of; empty for a domain of its own.
    parts: Vec<InUse>,
    /// Of a parent domain whose program has memory of its own for queues.
    allocators: Option<Allocators>,
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

    /// Memory of the program for a queue of so many entries, where it has its own.
    ///
    /// # Errors
    /// `ENOMEM` where it has no more.
    ///
    /// # Safety
    /// `pd` must be the C object of this, and outlive the buffer.
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
            let users = "protection domain, by objects that were made with this handle on it";
            return self.in_use.check(users);
        }
        // What uses the domain has numbers. Another handle on it has none.
        self.pd.destroy()?;
        self.in_use
            .check("protection domain, by a parent domain or an imported handle")?;
        import::withdraw_domain(&self.pd);
        Ok(())
    }
}

/// The C object of a domain that there is already; that one is in use as long as there is this.
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

/// Makes the C object of a domain.
///
/// # Errors
/// None so far.
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

/// `ibv_dealloc_pd`: `EBUSY` while something was made in it (DST-01).
//= DST-01
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: by contract a live domain that is not used afterwards.
    int_verb(|| unsafe { PdObject::end(pd, PdState::close) })
}
