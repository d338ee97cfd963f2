//! The memory of a shared-memory link, created by the broker and mapped by both processes. All
//! `unsafe` code of the link is in this file.
//!
//! ```text
//! 0                 CONTROL_LEN             CONTROL_LEN + RING_LEN     FILE_LEN
//! control words     ring of direction 0     ring of direction 1
//! ```
//!
//! Each ring is mapped twice in a row, so that a record that wraps around is contiguous.
//!
//! The other process may write anything at any time, as the application may in registered memory
//! (docs/memory-model.md). Bytes that affect a decision are therefore copied out first
//! ([`SharedMemory::copy`]). Bytes that are read in place are only copied on.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use super::ring::RingControl;
use crate::memory::{Fault, Readable};

/// Length of the control words: 64 KiB, a multiple of every page size.
const CONTROL_LEN: usize = 64 << 10;
/// Length of a ring, a power of two and a multiple of every page size.
pub(super) const RING_LEN: usize = 1 << 20;
/// Length of the whole file.
const FILE_LEN: usize = CONTROL_LEN + 2 * RING_LEN;

/// The file can be neither shortened (which would make accesses fatal) nor extended.
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

const _: () = assert!(2 * size_of::<RingControl>() <= CONTROL_LEN);

/// One of the two rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingDirection {
    /// From the process that requested the link.
    First,
    /// To the process that requested the link.
    Second,
}

impl RingDirection {
    pub(super) const fn reverse(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::First => 0,
            Self::Second => 1,
        }
    }
}

/// Creates the memory of a link, zeroed and sealed in its size.
///
/// # Errors
/// Errors of memfd_create(2) and ftruncate(2).
pub(crate) fn create() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let fd = check(unsafe { libc::memfd_create(c"rocade-channel".as_ptr(), flags) })?;
    // SAFETY: a fresh fd without another owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let len = libc::off_t::try_from(FILE_LEN).map_err(|_| io::ErrorKind::InvalidInput)?;
    crate::sys::check_file_size(FILE_LEN as u64)?;
    // SAFETY: takes no pointers.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), len) })?;
    // SAFETY: takes no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(fd)
}

/// Creates the memory of a link and maps it.
///
/// # Errors
/// Those of [`create`] and of mmap(2).
pub(crate) fn probe() -> io::Result<()> {
    let file = create()?;
    SharedMemory::map(file.as_fd()).map(drop)
}

/// An address range, reserved until it is dropped.
#[derive(Debug)]
struct Area {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range belongs to the process, not to a thread.
unsafe impl Send for Area {}
// SAFETY: as above. All accesses through it are atomics or copies, whose races the module
// documentation describes.
unsafe impl Sync for Area {}

impl Area {
    /// Reserves addresses without memory behind them.
    fn reserve(len: usize) -> io::Result<Self> {
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
        if let Some(schedule) = crate::sync::turn::own() {
            schedule.note_mapping(start.as_ptr().expose_provenance(), len);
        }
        Ok(Self { start, len })
    }

    /// Maps `len` bytes of the file to `at` in the range.
    fn map(&self, at: usize, file: BorrowedFd<'_>, offset: usize, len: usize) -> io::Result<()> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `at` is inside the range (checked above).
        let place = unsafe { self.start.add(at) };
        // SAFETY: MAP_FIXED only replaces addresses inside the range, which this object owns and to
        // which no reference exists yet.
        let mapped = unsafe {
            libc::mmap(
                place.as_ptr().cast(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                offset,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        #[cfg(all(any(test, feature = "simulated-host"), not(loom)))]
        if let Some(schedule) = crate::sync::turn::own() {
            schedule.forget_mapping(self.start.as_ptr().addr());
        }
        // SAFETY: this object owns the range, and no borrow of it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The mapped memory of a link.
#[derive(Debug)]
pub(super) struct SharedMemory {
    control: Area,
    rings: [Area; 2],
}

impl SharedMemory {
    /// Maps a file created by [`create`].
    ///
    /// # Errors
    /// `InvalidData` if the file is invalid, or the errors of mmap(2).
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let seals = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) })?;
        let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if seals & needed != needed || file_len(file)? != FILE_LEN {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let control = Area::reserve(CONTROL_LEN)?;
        control.map(0, file, 0, CONTROL_LEN)?;
        let ring = |index: usize| {
            let area = Area::reserve(2 * RING_LEN)?;
            let offset = CONTROL_LEN + index * RING_LEN;
            area.map(0, file, offset, RING_LEN)?;
            area.map(RING_LEN, file, offset, RING_LEN)?;
            Ok::<_, io::Error>(area)
        };
        Ok(Self {
            rings: [ring(0)?, ring(1)?],
            control,
        })
    }

    /// Returns the control words of a direction.
    #[inline]
    pub(super) fn control(&self, direction: RingDirection) -> &RingControl {
        let words = self.control.start.cast::<RingControl>();
        // SAFETY: the area holds two of them (asserted above). It is page-aligned, and mapped as
        // long as `self` lives.
        let words = unsafe { words.add(direction.index()) };
        // SAFETY: as above. It consists of atomics, which may be shared and for which any contents
        // are valid.
        unsafe { words.as_ref() }
    }

    /// Returns the address of `len` bytes at a ring position.
    #[inline]
    fn place(&self, direction: RingDirection, position: u64, len: usize) -> NonNull<u8> {
        assert!(len <= RING_LEN, "no record is longer than the ring");
        // The mask keeps the bits below the ring length, which is a usize.
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let at = position as usize & (RING_LEN - 1);
        // SAFETY: `at` is below RING_LEN, and 2 * RING_LEN bytes are mapped.
        unsafe { self.rings[direction.index()].start.add(at) }
    }

    /// Copies bytes into a ring.
    #[inline]
    pub(super) fn write(&self, direction: RingDirection, position: u64, bytes: &[u8]) {
        let place = self.place(direction, position, bytes.len());
        // SAFETY: `place` has `bytes.len()` mapped bytes. `bytes` is memory of this process or the
        // application, so it does not overlap with shared memory, of which no `&mut` exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len()) };
    }

    /// Prefetches a cache line for reading. The producer has written it.
    #[inline]
    pub(super) fn prefetch_read(&self, direction: RingDirection, position: u64) {
        let place = self.place(direction, position, 1);
        // SAFETY: a hint, which only affects caches and never faults.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("prefetcht0 [{}]", in(reg) place.as_ptr(), options(nostack, preserves_flags, readonly));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) place.as_ptr(), options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = place;
    }

    /// Prefetches a cache line for writing. The consumer has read it.
    #[inline]
    pub(super) fn prefetch_write(&self, direction: RingDirection, position: u64) {
        let place = self.place(direction, position, 1);
        // SAFETY: a hint, which only affects caches and never faults.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) place.as_ptr(), options(nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) place.as_ptr(), options(nostack, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = place;
    }

    /// Copies registered memory into a ring.
    ///
    /// # Errors
    /// [`Fault`]. The bytes in the ring are undefined then.
    #[inline]
    pub(super) fn write_from(
        &self,
        direction: RingDirection,
        position: u64,
        payload: Readable<'_>,
    ) -> Result<(), Fault> {
        let place = self.place(direction, position, payload.len());
        // SAFETY: `place` has that many mapped bytes, of which no `&mut` exists.
        unsafe { payload.copy_to(place) }
    }

    /// Copies the current bytes out of a ring.
    #[inline]
    pub(super) fn copy(&self, direction: RingDirection, position: u64, out: &mut [u8]) {
        let place = self.place(direction, position, out.len());
        // SAFETY: as for `write`.
        unsafe { ptr::copy_nonoverlapping(place.as_ptr(), out.as_mut_ptr(), out.len()) };
    }

    /// Returns bytes in place. The other process should not change them, but can. No decision may
    /// depend on their values. They may only be copied on.
    #[inline]
    pub(super) fn in_place(&self, direction: RingDirection, position: u64, len: usize) -> &[u8] {
        let place = self.place(direction, position, len);
        // SAFETY: `len` mapped bytes that live as long as `self`. This process does not write to
        // them before the caller has released them, and never has a `&mut` to them.
        unsafe { std::slice::from_raw_parts(place.as_ptr(), len) }
    }
}

fn file_len(file: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: stat is plain data for which zero is a valid value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live stat.
    check(unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) })?;
    usize::try_from(stat.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Creates a non-blocking eventfd with the value 0.
///
/// # Errors
/// Errors of eventfd(2).
pub(crate) fn wake_fd() -> io::Result<OwnedFd> {
    crate::sys::eventfd_nonblocking()
}

/// Makes an eventfd readable.
pub(crate) fn wake(fd: BorrowedFd<'_>) {
    let one = 1u64.to_ne_bytes();
    // A raw system call, because write(2) of the C library is a cancellation point for the posting
    // or polling thread. SAFETY: `one` is readable for 8 bytes. Fails if the counter is at its
    // maximum.
    unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), one.as_ptr(), one.len()) };
}

/// Returns true if the other end of a socket is closed. No cancellation point, see `wake`.
pub(super) fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    crate::sys::is_ready_now(&mut entry)
        && entry.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_ring_wraps_to_its_beginning() {
        let file = create().unwrap();
        let (ours, theirs) = (
            SharedMemory::map(file.as_fd()).unwrap(),
            SharedMemory::map(file.as_fd()).unwrap(),
        );
        let position = 7 * RING_LEN as u64 - 3;
        ours.write(RingDirection::Second, position, b"abcdef");
        assert_eq!(
            theirs.in_place(RingDirection::Second, position, 6),
            b"abcdef"
        );
        let mut start = [0; 3];
        theirs.copy(RingDirection::Second, 0, &mut start);
        assert_eq!(&start, b"def");
        theirs.copy(RingDirection::First, 0, &mut start);
        assert_eq!(start, [0; 3]);
    }

    #[test]
    fn files_that_could_shrink_are_refused() {
        let file = create().unwrap();
        assert!(File::from(file).set_len(0).is_err());
        let dir = tempfile::tempdir().unwrap();
        let file = File::create_new(dir.path().join("file")).unwrap();
        file.set_len(FILE_LEN as u64).unwrap();
        assert!(SharedMemory::map(file.as_fd()).is_err());
    }

    #[test]
    fn a_closed_end_is_noticed() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!has_hung_up(ours.as_fd()));
        drop(theirs);
        assert!(has_hung_up(ours.as_fd()));
    }
}
