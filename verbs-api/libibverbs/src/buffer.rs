//! Memory of the program's own for queues: the allocators of a parent domain.
//!
//! A device reads its queues from there. Ours keeps them elsewhere, so what the program gives is held as long as the
//! queue lives, and not touched.

use std::{ffi::c_void, ptr::NonNull};

use rocade_abi::{ParentDomainAllocFn, ParentDomainFreeFn, ibv_pd};

use crate::ffi::Errno;

/// What is allocated for; the number is told to the allocators.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub(crate) enum Purpose {
    /// The queues of a queue pair.
    Qp = 0,
    /// A shared receive queue.
    Srq = 3,
    /// A completion queue.
    Cq = 4,
}

/// What an allocator returns that leaves the matter to the library.
const USE_DEFAULT: usize = usize::MAX;
/// Bytes of a queue's entry, and what buffers are aligned to.
const ENTRY: usize = 64;
const PAGE: usize = 4096;

/// The allocators of a parent domain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocators {
    alloc: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void,
    free: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64),
    /// `pd_context`.
    context: *mut c_void,
}

// SAFETY: the program's functions may be called by whichever thread makes and destroys objects: that is the verb's
// contract; the context is handed on and not looked at.
unsafe impl Send for Allocators {}
// SAFETY: as above.
unsafe impl Sync for Allocators {}

impl Allocators {
    /// `None` unless both are there.
    pub(crate) fn new(
        alloc: ParentDomainAllocFn,
        free: ParentDomainFreeFn,
        context: *mut c_void,
    ) -> Option<Self> {
        let (alloc, free) = (alloc?, free?);
        Some(Self {
            alloc,
            free,
            context,
        })
    }

    /// Memory for a queue with so many entries; nothing where the program leaves that to us.
    ///
    /// # Errors
    /// `ENOMEM` where it has none.
    ///
    /// # Safety
    /// `pd` must be the live parent domain of the allocators, and outlive the buffer.
    pub(crate) unsafe fn allocate(
        self,
        pd: *mut ibv_pd,
        entries: u32,
        purpose: Purpose,
    ) -> Result<Option<Buffer>, Errno> {
        let entries = usize::try_from(entries.max(1)).map_err(|_| Errno(libc::ENOMEM))?;
        let len = entries.saturating_mul(ENTRY).next_multiple_of(PAGE);
        // SAFETY: the program's own function, with the arguments it expects.
        let place = unsafe { (self.alloc)(pd, self.context, len, PAGE, purpose as u64) };
        let place = NonNull::new(place).ok_or(Errno(libc::ENOMEM))?;
        if place.addr().get() == USE_DEFAULT {
            return Ok(None);
        }
        Ok(Some(Buffer {
            allocators: self,
            pd,
            place,
            purpose,
        }))
    }
}

/// Memory that the program gave, until the queue ends.
#[derive(Debug)]
pub(crate) struct Buffer {
    allocators: Allocators,
    pd: *mut ibv_pd,
    place: NonNull<c_void>,
    purpose: Purpose,
}

// SAFETY: it is not looked at, only given back.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Self {
            allocators,
            pd,
            place,
            purpose,
        } = *self;
        // SAFETY: the program's own function; by the contract of `allocate` its domain is still alive.
        unsafe { (allocators.free)(pd, allocators.context, place.as_ptr(), purpose as u64) };
    }
}
