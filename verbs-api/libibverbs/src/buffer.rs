//! Queue buffers from the program: the allocators of a parent domain.
//!
//! A hardware driver places its queues in these buffers. Rocade keeps its queues elsewhere. It
//! holds each buffer until its queue is destroyed, and never accesses it.

use std::{ffi::c_void, ptr::NonNull};

use rocade_abi::{ParentDomainAllocFn, ParentDomainFreeFn, ibv_pd};

use crate::args::Handle;
use crate::ffi::Errno;

/// The kind of queue that a buffer is for. Allocators receive it as `resource_type`.
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

/// The return value with which an allocator leaves the allocation to the library.
const USE_DEFAULT: usize = usize::MAX;
/// Bytes per queue entry. Buffers are aligned to [`PAGE`].
const ENTRY: usize = 64;
const PAGE: usize = 4096;

/// The allocators of a parent domain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocators {
    alloc: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void,
    free: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64),
    /// The program's `pd_context`.
    context: *mut c_void,
}

// SAFETY: by the contract of the verb, any thread that creates or destroys objects may call the
// program's functions. The context is only passed on to them.
unsafe impl Send for Allocators {}
// SAFETY: as above.
unsafe impl Sync for Allocators {}

impl Allocators {
    /// Returns `None` unless both functions are given.
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

    /// Allocates memory for a queue of `entries` entries. Returns `None` if the program leaves that
    /// to the library.
    ///
    /// # Errors
    /// `ENOMEM` if the allocator returns NULL.
    pub(crate) fn allocate(
        self,
        pd: Handle<'_, ibv_pd>,
        entries: u32,
        purpose: Purpose,
    ) -> Result<Option<Buffer>, Errno> {
        let entries = usize::try_from(entries.max(1)).map_err(|_| Errno(libc::ENOMEM))?;
        let len = entries.saturating_mul(ENTRY).next_multiple_of(PAGE);
        // SAFETY: the program's own function, with the arguments that it expects.
        let place = unsafe { (self.alloc)(pd.as_ptr(), self.context, len, PAGE, purpose as u64) };
        let place = NonNull::new(place).ok_or(Errno(libc::ENOMEM))?;
        if place.addr().get() == USE_DEFAULT {
            return Ok(None);
        }
        Ok(Some(Buffer {
            allocators: self,
            pd: pd.as_ptr(),
            place,
            purpose,
        }))
    }
}

/// Memory from the program's allocator, freed with its queue.
#[derive(Debug)]
pub(crate) struct Buffer {
    allocators: Allocators,
    pd: *mut ibv_pd,
    place: NonNull<c_void>,
    purpose: Purpose,
}

// SAFETY: the memory is never accessed, only freed.
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
        // SAFETY: the program's own function. By the contract of `allocate` its domain is still
        // alive.
        unsafe { (allocators.free)(pd, allocators.context, place.as_ptr(), purpose as u64) };
    }
}
