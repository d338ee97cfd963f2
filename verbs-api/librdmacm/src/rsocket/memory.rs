//! Registered memory of a socket.

use std::{
    ffi::{c_int, c_void},
    ptr::{self, NonNull},
};

use rocade_abi::{ibv_mr, ibv_pd};

use crate::{
    args::{Handle, Last},
    engine::{Lent, verbs},
    ffi::Errno,
};

/// Registered pages. Peers can write to them at any time, so they are only copied and never
/// borrowed.
pub(super) struct Buffer {
    start: NonNull<u8>,
    len: usize,
    mr: *mut ibv_mr,
}

// SAFETY: the pages and the region may be used from any thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// # Errors
    /// `ENOMEM`, or the error of the memory registration.
    pub(super) fn new(pd: Handle<'_, ibv_pd>, len: usize, access: u32) -> Result<Self, Errno> {
        let len = len.max(1);
        let access = c_int::try_from(access).map_err(|_| Errno::INVAL)?;
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: new pages.
        let pages = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
        if pages == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let mut buffer = Self {
            start: NonNull::new(pages.cast()).ok_or(Errno(libc::ENOMEM))?,
            len,
            mr: ptr::null_mut(),
        };
        let verbs = verbs()?;
        // SAFETY: memory that lives until the region is deregistered, and is only copied.
        let start = unsafe { Lent::new(pages) };
        buffer.mr = Errno::made(verbs.ibv_reg_mr(pd, start, len, access))?;
        Ok(buffer)
    }

    /// Returns the address of an offset.
    pub(super) fn addr(&self, at: usize) -> u64 {
        self.start.as_ptr().wrapping_add(at).expose_provenance() as u64
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: alive as long as `self`.
        unsafe { (*self.mr).lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: alive as long as `self`.
        unsafe { (*self.mr).rkey }
    }

    fn place(&self, at: usize, len: usize) -> Result<*mut u8, Errno> {
        let end = at.checked_add(len).ok_or(Errno::INVAL)?;
        if end > self.len {
            return Err(Errno::INVAL);
        }
        Ok(self.start.as_ptr().wrapping_add(at))
    }

    /// Copies into the buffer.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes.
    pub(super) unsafe fn put(&self, at: usize, from: *const u8, len: usize) -> Result<(), Errno> {
        let place = self.place(at, len)?;
        // SAFETY: by contract, and inside the pages.
        unsafe { ptr::copy_nonoverlapping(from, place, len) };
        Ok(())
    }

    /// Copies out of the buffer.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    pub(super) unsafe fn get(&self, at: usize, to: *mut u8, len: usize) -> Result<(), Errno> {
        let place = self.place(at, len)?;
        // SAFETY: by contract, and inside the pages.
        unsafe { ptr::copy_nonoverlapping(place, to, len) };
        Ok(())
    }

    /// Returns a copy of `N` bytes, or zeroes if the range is out of bounds.
    pub(super) fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        // SAFETY: writable for its length.
        let _ = unsafe { self.get(at, bytes.as_mut_ptr(), N) };
        bytes
    }

    /// Writes bytes, unless the range is out of bounds.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: readable for its length.
        let _ = unsafe { self.put(at, bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.mr.is_null()
            && let Ok(verbs) = verbs()
        {
            // SAFETY: made in `new`.
            verbs.ibv_dereg_mr(unsafe { Last::new(self.mr) });
        }
        // SAFETY: mapped in `new`, and not used any more.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
    }
}
