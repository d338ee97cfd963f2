//! Device memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::context::{Context, ContextInner};
use crate::error::VerbsError;
use crate::faults::Verb;
use crate::limits;
use crate::memory::DeviceMemory;
use crate::state::Users;

/// Device memory (`ibv_dm`). The application accesses it by copies. Work requests and peers access
/// it through regions ([`Pd::reg_dm_mr`](super::Pd::reg_dm_mr)).
#[derive(Clone, Debug)]
#[doc(alias = "ibv_dm")]
pub struct Dm {
    inner: Arc<DmInner>,
}

#[derive(Debug)]
pub(super) struct DmInner {
    context: Arc<ContextInner>,
    memory: DeviceMemory,
    /// Regions in this memory.
    mrs: Users,
    alive: AtomicBool,
}

impl DmInner {
    pub(super) const fn users(&self) -> &Users {
        &self.mrs
    }
}

impl Drop for DmInner {
    fn drop(&mut self) {
        self.context.hca.give_dm_back(self.memory.footprint());
    }
}

impl Context {
    /// Allocates `len` zeroed bytes of device memory.
    ///
    /// # Errors
    /// [`VerbsError::InvalidArgument`] for a length of 0. [`VerbsError::NoMemory`] if the device
    /// has less left.
    //= DM-01
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, len: usize) -> Result<Dm, VerbsError> {
        self.inner.enter(Verb::AllocDm)?;
        if len == 0 {
            return Err(VerbsError::InvalidArgument("length"));
        }
        let no_space = VerbsError::NoMemory("device memory");
        if len > limits::MAX_DM_SIZE {
            return Err(no_space);
        }
        let context = Arc::clone(&self.inner);
        let memory = DeviceMemory::new(len);
        if !context.hca.take_dm(memory.footprint()) {
            return Err(no_space);
        }
        Ok(Dm {
            inner: Arc::new(DmInner {
                context,
                memory,
                mrs: Users::default(),
                alive: AtomicBool::new(true),
            }),
        })
    }
}

impl Dm {
    /// Returns true if it was allocated with this context.
    #[must_use]
    pub fn is_from(&self, context: &Context) -> bool {
        Arc::ptr_eq(&self.inner.context, &context.inner)
    }

    /// Alignment of copies in bytes, as devices demand it whose memory is on another chip.
    pub const ALIGN: usize = 4;

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.memory.len()
    }

    /// Returns false: device memory is never empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Copies `data` to `offset`. The offset and the length have to be multiples of [`Dm::ALIGN`].
    ///
    /// # Errors
    /// Nothing is written. [`VerbsError::InvalidArgument`] if misaligned. [`VerbsError::Fault`]
    /// beyond the end.
    //= DM-03
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), VerbsError> {
        check_alignment(offset, data.len())?;
        let done = self.inner.memory.write(offset, data);
        done.ok_or(VerbsError::Fault)
    }

    /// Copies from `offset`.
    ///
    /// # Errors
    /// As [`Dm::write`].
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), VerbsError> {
        check_alignment(offset, data.len())?;
        let done = self.inner.memory.read(offset, data);
        done.ok_or(VerbsError::Fault)
    }

    /// Frees it. The memory is released when the last handle is dropped.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while regions are in it. [`VerbsError::InvalidArgument`] if it was
    /// already freed.
    //= DM-04
    #[doc(alias = "ibv_free_dm")]
    pub fn destroy(&self) -> Result<(), VerbsError> {
        self.inner.context.enter(Verb::FreeDm)?;
        self.inner.mrs.check("device memory")?;
        if self.inner.alive.swap(false, Ordering::AcqRel) {
            Ok(())
        } else {
            Err(VerbsError::InvalidArgument("already freed"))
        }
    }

    pub(super) fn share(&self) -> Arc<DmInner> {
        Arc::clone(&self.inner)
    }

    pub(super) fn is_of(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(&self.inner.context, context)
    }

    /// Returns the address of a part.
    pub(super) fn place(&self, offset: u64, len: usize) -> Result<usize, VerbsError> {
        let start = usize::try_from(offset).ok();
        start
            .and_then(|start| self.inner.memory.place(start, len))
            .ok_or(VerbsError::InvalidArgument("beyond the device memory"))
    }
}

//= DM-02
fn check_alignment(offset: u64, len: usize) -> Result<(), VerbsError> {
    if offset.is_multiple_of(Dm::ALIGN as u64) && len.is_multiple_of(Dm::ALIGN) {
        return Ok(());
    }
    Err(VerbsError::InvalidArgument("alignment"))
}
