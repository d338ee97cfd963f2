//! Registered memory of a socket.

use std::{
    ffi::{c_int, c_void},
    ptr::{self, NonNull},
};

use rocade_abi::{ibv_mr, ibv_pd};

use crate::{
    args::{self, Bytes, FromC, Handle, New, Room, member},
    engine::{Lent, verbs},
    ffi::Errno,
};

/// Registered pages. Peers can write to them at any time, so they are only copied and never
/// borrowed.
pub(super) struct Buffer {
    // The region ends before its pages.
    mr: Region,
    pages: Pages,
}

impl Buffer {
    /// # Errors
    /// `ENOMEM`, or the error of the memory registration.
    pub(super) fn new(pd: Handle<'_, ibv_pd>, len: usize, access: u32) -> Result<Self, Errno> {
        let access = c_int::try_from(access).map_err(|_| Errno::INVAL)?;
        let pages = Pages::new(len.max(1))?;
        // SAFETY: memory that lives until the region is deregistered, and is only copied.
        let start: Lent = unsafe { FromC::from_c(pages.start.as_ptr().cast::<c_void>()) };
        let mr = Region::new(pd, start, pages.len, access)?;
        Ok(Self { mr, pages })
    }

    /// Returns the address of an offset.
    pub(super) fn addr(&self, at: usize) -> u64 {
        self.pages.place(at).expose_provenance() as u64
    }

    pub(super) fn lkey(&self) -> u32 {
        self.mr
            .0
            .handle()
            .member(member!(ibv_mr, lkey))
            .unwrap_or(0)
    }

    pub(super) fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    fn check(&self, at: usize, len: usize) -> Result<(), Errno> {
        let end = at.checked_add(len).ok_or(Errno::INVAL)?;
        if end > self.pages.len {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// Copies into the buffer.
    pub(super) fn put(&self, at: usize, from: args::Buffer<'_>) -> Result<(), Errno> {
        self.check(at, from.len())?;
        // SAFETY: inside the pages.
        let to: Room<'_> = unsafe { Bytes::new(self.pages.place(at), from.len()) };
        to.copy_from(from);
        Ok(())
    }

    /// Copies out of the buffer.
    pub(super) fn get(&self, at: usize, to: Room<'_>) -> Result<(), Errno> {
        self.check(at, to.len())?;
        // SAFETY: inside the pages.
        to.copy_from(unsafe { Bytes::new(self.pages.place(at), to.len()) });
        Ok(())
    }

    /// Returns a copy of `N` bytes, or zeroes if the range is out of bounds.
    pub(super) fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let _ = self.get(at, Room::of(&mut bytes));
        bytes
    }

    /// Writes bytes, unless the range is out of bounds.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        let _ = self.put(at, args::Buffer::of(bytes));
    }
}

/// Anonymous pages.
struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: any thread may use the pages.
unsafe impl Send for Pages {}

impl Pages {
    fn new(len: usize) -> Result<Self, Errno> {
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: new pages.
        let pages = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
        if pages == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let start = NonNull::new(pages.cast()).ok_or(Errno(libc::ENOMEM))?;
        Ok(Self { start, len })
    }

    fn place(&self, at: usize) -> *const c_void {
        self.start.as_ptr().wrapping_add(at).cast()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and not used any more.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// A memory region of a socket, which is deregistered with this value.
pub(super) struct Region(New<ibv_mr>);

impl Region {
    /// Registers memory.
    ///
    /// # Errors
    /// The error of the memory registration.
    pub(super) fn new(
        pd: Handle<'_, ibv_pd>,
        start: Lent,
        len: usize,
        access: c_int,
    ) -> Result<Self, Errno> {
        Ok(Self(verbs()?.ibv_reg_mr(pd, start, len, access)?))
    }

    /// Returns the key for the peer.
    pub(super) fn rkey(&self) -> u32 {
        self.0.handle().member(member!(ibv_mr, rkey)).unwrap_or(0)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            verbs.ibv_dereg_mr(self.0.take());
        }
    }
}
