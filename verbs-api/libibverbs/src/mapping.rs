//! Memory that the library maps: a range of a descriptor, or pages of its own.

use std::{
    ffi::{c_int, c_void},
    io,
    ptr::{self, NonNull},
};

use rocade_emulator::VerbsError;

use crate::{args::zeroed, ffi::Errno};

/// A mapped range. If it is of a descriptor, every process that has mapped the same memory sees a
/// write to it. It stays mapped until this is dropped, also if the descriptor is closed.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Start of the first page.
    pages: NonNull<c_void>,
    /// Length of all pages, in bytes.
    pages_len: usize,
    /// Distance from the start of the first page to the range, in bytes.
    skip: usize,
}

// SAFETY: an address range belongs to the process, not to a thread. This type does not access it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes from `offset`. The offset needs no alignment.
    ///
    /// # Errors
    /// `EINVAL` if the range is empty or exceeds the memory of the descriptor. `EOPNOTSUPP` if that
    /// memory cannot be mapped. The other errors of fstat(2) and mmap(2).
    pub(crate) fn new(
        fd: c_int,
        offset: u64,
        length: usize,
        is_writable: bool,
    ) -> Result<Self, Errno> {
        let size = size(fd)?;
        let end = offset.checked_add(length as u64);
        if length == 0 || end.is_none_or(|end| end > size) {
            return Err(VerbsError::InvalidArgument("range of the descriptor").into());
        }
        let skip = offset % page_len();
        let start = libc::off_t::try_from(offset - skip).map_err(|_| Errno::INVAL)?;
        let skip = usize::try_from(skip).map_err(|_| Errno::INVAL)?;
        let pages_len = length.checked_add(skip).ok_or(Errno::INVAL)?;
        let write = if is_writable { libc::PROT_WRITE } else { 0 };
        let prot = libc::PROT_READ | write;
        let pages = map(pages_len, (prot, libc::MAP_SHARED), (fd, start));
        let pages = pages.map_err(|error| match error {
            error if error.raw_os_error() == Some(libc::ENODEV) => {
                VerbsError::NotSupported("a descriptor whose memory cannot be mapped")
            }
            error => VerbsError::Io(error),
        })?;
        Ok(Self {
            pages,
            pages_len,
            skip,
        })
    }

    /// Maps `length` zeroed bytes that belong to no file, from the start of a page.
    ///
    /// # Errors
    /// `EINVAL` for length 0. The errors of mmap(2).
    pub(crate) fn anonymous(length: usize) -> Result<Self, Errno> {
        if length == 0 {
            return Err(VerbsError::InvalidArgument("length").into());
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = map(length, (prot, flags), (-1, 0)).map_err(VerbsError::Io)?;
        Ok(Self {
            pages,
            pages_len: length,
            skip: 0,
        })
    }

    /// Returns the address of the range.
    pub(crate) const fn addr(&self) -> *mut c_void {
        // `skip` is less than a page, and the pages contain the range.
        self.pages.as_ptr().wrapping_byte_add(self.skip)
    }

    /// Returns the length of the range, in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.pages_len - self.skip
    }
}

/// Maps pages at addresses that the kernel chooses.
fn map(
    len: usize,
    (prot, flags): (c_int, c_int),
    (fd, start): (c_int, libc::off_t),
) -> Result<NonNull<c_void>, io::Error> {
    // SAFETY: without MAP_FIXED, which the callers do not pass, no mapping is replaced.
    let pages = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, start) };
    let pages = NonNull::new(pages).filter(|pages| pages.as_ptr() != libc::MAP_FAILED);
    pages.ok_or_else(io::Error::last_os_error)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this object owns the range. Regions of it hold a reference to this object.
        unsafe { libc::munmap(self.pages.as_ptr(), self.pages_len) };
    }
}

/// Returns true if this process gets a huge page, which it gives back at once.
///
/// It asks for a segment of shared memory, as mlx5 does. So the limits are those of mlx5: pages
/// must be reserved, and the process needs `CAP_IPC_LOCK` or the group `vm.hugetlb_shm_group`.
pub(crate) fn has_huge_page() -> bool {
    let flags = libc::SHM_HUGETLB | libc::IPC_CREAT | 0o600;
    // SAFETY: no pointers. The kernel rounds the size up to a huge page.
    let segment = unsafe { libc::shmget(libc::IPC_PRIVATE, 1, flags) };
    if segment < 0 {
        return false;
    }
    // SAFETY: this operation reads no structure. The segment is the one that was made above.
    unsafe { libc::shmctl(segment, libc::IPC_RMID, ptr::null_mut()) };
    true
}

/// Returns the length of a page, in bytes.
pub(crate) fn page_len() -> u64 {
    // SAFETY: no pointers.
    let len = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(len).unwrap_or(4096)
}

/// Returns the status of a descriptor.
///
/// # Errors
/// That of fstat(2).
pub(crate) fn status(fd: c_int) -> Result<libc::stat, io::Error> {
    let mut status: libc::stat = zeroed();
    // SAFETY: the structure is writable. An invalid descriptor makes the call fail.
    if unsafe { libc::fstat(fd, &raw mut status) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status)
}

/// Returns the number of bytes that a descriptor's memory has.
fn size(fd: c_int) -> Result<u64, Errno> {
    let status = status(fd).map_err(VerbsError::Io)?;
    if status.st_size > 0 {
        return Ok(status.st_size.cast_unsigned());
    }
    // A DMA buffer has its size there. It keeps no position, so that this changes nothing.
    // SAFETY: no pointers.
    let end = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    Ok(u64::try_from(end).unwrap_or(0))
}
