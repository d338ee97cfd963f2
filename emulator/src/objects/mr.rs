//! Memory regions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rocade_wire::{Lkey, Rkey};

use super::pd::PdInner;
use crate::error::VerbsError;
use crate::memory::Region;

/// A memory region (`ibv_mr`).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mr")]
pub struct Mr {
    inner: Arc<MrInner>,
}

#[derive(Debug)]
struct MrInner {
    pd: Arc<PdInner>,
    key: u32,
    region: Region,
    registered: AtomicBool,
}

impl Mr {
    pub(super) fn new(pd: Arc<PdInner>, key: u32, region: Region) -> Self {
        let registered = AtomicBool::new(true);
        Self {
            inner: Arc::new(MrInner {
                pd,
                key,
                region,
                registered,
            }),
        }
    }

    /// Key for local use.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        Lkey::new(self.inner.key)
    }

    /// Key for peers.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        Rkey::new(self.inner.key)
    }

    /// Where it is in this process.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.inner.region.addr as u64
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.region.len
    }

    /// Never: regions of length 0 cannot be registered.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// What work requests and peers call its first byte.
    #[must_use]
    pub fn iova(&self) -> u64 {
        self.inner.region.iova
    }

    /// Deregisters: returns when no access is in flight, later ones fail (MR-09).
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] if it was deregistered before.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        if self.inner.deregister() {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("deregistered already"))
        }
    }
}

impl MrInner {
    fn deregister(&self) -> bool {
        let first = self.registered.swap(false, Ordering::AcqRel);
        if first {
            self.pd.context.engine.regions().remove(self.key);
            self.pd.children.fetch_sub(1, Ordering::AcqRel);
        }
        first
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        self.deregister();
    }
}
