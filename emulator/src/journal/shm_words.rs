//! Words in shared memory, for ACK journals and XRC domains. All `unsafe` code of both is in this
//! file.

use crate::sync::atomic::AtomicU64;
use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::slice;

use crate::sys::check_file_size;

/// The file can be neither shortened, which would make accesses fatal, nor extended.
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// The words of a mapped memory file.
#[derive(Debug)]
pub(super) struct SharedWords {
    start: NonNull<AtomicU64>,
    len: usize,
    file: OwnedFd,
}

// SAFETY: a mapping belongs to the process, not to a thread. Its words are atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Creates and maps a file of `len` zero bytes with this name.
    pub(super) fn new(name: &CStr, len: usize) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string.
        let fd = check(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
        // SAFETY: a fresh fd without another owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        check_file_size(len as u64)?;
        // SAFETY: takes no pointers.
        check(unsafe { libc::ftruncate(file.as_raw_fd(), size) })?;
        // SAFETY: takes no pointers.
        check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        Self::map(file, len)
    }

    /// Maps the first `len` bytes of a file that another process has created.
    ///
    /// # Errors
    /// `InvalidInput` if the file is shorter, or could become so.
    pub(super) fn of(file: OwnedFd, len: usize) -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let seals = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
        let file = File::from(file);
        let size = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        if seals & libc::F_SEAL_SHRINK == 0 || size < len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::map(file.into(), len)
    }

    /// Maps a sealed file of sufficient length.
    fn map(file: OwnedFd, len: usize) -> io::Result<Self> {
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
        if let Some(schedule) = crate::sync::turn::own() {
            schedule.note_mapping(start.as_ptr().expose_provenance(), len);
        }
        Ok(Self { start, len, file })
    }

    /// Returns all words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned to pages, `len` bytes long, and lives as long as `self`.
        // The file cannot shrink. Every value is a valid word. All processes access it through
        // atomics and pread(2) only.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len / size_of::<AtomicU64>()) }
    }

    /// Returns the file.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
        if let Some(schedule) = crate::sync::turn::own() {
            schedule.forget_mapping(self.start.as_ptr().addr());
        }
        // SAFETY: the mapping was created in `map`, and no borrow of it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Reads a file from its beginning, and returns the length read. The file may be any file of any
/// user.
pub(super) fn read(file: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    read_at(file, bytes, 0)
}

/// Reads a file from offset `at`, and returns the length read.
pub(super) fn read_at(file: BorrowedFd<'_>, bytes: &mut [u8], at: usize) -> io::Result<usize> {
    // Other kinds of files could block, or never end.
    let file = File::from(file.try_clone_to_owned()?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let at = u64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    file.read_at(bytes, at)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
