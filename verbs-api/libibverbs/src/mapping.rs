//! Memory of files: a mapped range of a descriptor.

use std::{
    ffi::{c_int, c_void},
    io, mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
};

use rocade_emulator::VerbsError;

use crate::ffi::Errno;

/// A mapped range of a descriptor. A write to it is seen by every process that has mapped the same
/// memory. The range stays mapped until this is dropped, also if the descriptor is closed.
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
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
        let pages = unsafe {
            libc::mmap(
                ptr::null_mut(),
                pages_len,
                libc::PROT_READ | write,
                libc::MAP_SHARED,
                fd,
                start,
            )
        };
        let pages = NonNull::new(pages).filter(|pages| pages.as_ptr() != libc::MAP_FAILED);
        let pages = pages.ok_or_else(|| match io::Error::last_os_error() {
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

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this object owns the range. Regions of it hold a reference to this object.
        unsafe { libc::munmap(self.pages.as_ptr(), self.pages_len) };
    }
}

/// Returns the length of a page, in bytes.
pub(crate) fn page_len() -> u64 {
    // SAFETY: no pointers.
    let len = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(len).unwrap_or(4096)
}

/// Returns the number of bytes that a descriptor's memory has.
fn size(fd: c_int) -> Result<u64, Errno> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut status: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: the structure is writable.
    if unsafe { libc::fstat(fd, &raw mut status) } < 0 {
        return Err(VerbsError::Io(io::Error::last_os_error()).into());
    }
    if status.st_size > 0 {
        return Ok(status.st_size.cast_unsigned());
    }
    // A DMA buffer has its size there. It keeps no position, so that this changes nothing.
    // SAFETY: no pointers.
    let end = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    Ok(u64::try_from(end).unwrap_or(0))
}

/// Creates a file in memory of at least `length` bytes, whose size never changes.
///
/// # Errors
/// `EINVAL` for length 0, `EFBIG` above the process's limit for files, and the errors of
/// memfd_create(2) and ftruncate(2).
pub(crate) fn memory_file(length: usize) -> Result<OwnedFd, Errno> {
    let length = (length as u64).checked_next_multiple_of(page_len());
    let length = length.and_then(|length| libc::off_t::try_from(length).ok());
    let length = length.filter(|&length| length > 0).ok_or(Errno::INVAL)?;
    // The kernel ends a process with SIGXFSZ that exceeds its limit.
    if length.cast_unsigned() > file_limit() {
        return Err(Errno(libc::EFBIG));
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let fd = io_result(unsafe { libc::memfd_create(c"rocade-buffer".as_ptr(), flags) })?;
    // SAFETY: a fresh descriptor without another owner.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: no pointers.
    io_result(unsafe { libc::ftruncate(fd, length) })?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: no pointers.
    io_result(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

fn file_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is writable. A failed call leaves it unchanged.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

fn io_result(result: c_int) -> Result<c_int, Errno> {
    if result < 0 {
        return Err(VerbsError::Io(io::Error::last_os_error()).into());
    }
    Ok(result)
}
