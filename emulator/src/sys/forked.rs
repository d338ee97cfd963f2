//! Descriptors that a forked child does not keep.
//!
//! A child has copies of all descriptors of its parent, and Rocade uses none of them there. But
//! what others see of the parent would last as long as the child: its connection to the broker, the
//! lock of its slot, its sockets and addresses, the ends of its links. So each copy is replaced in
//! the child, by a descriptor that has no other end. Its number stays in use, because objects that
//! the child has inherited close it.
//!
//! A child that is made without the C library, by a system call of its own, keeps the copies.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sys;

/// Number of descriptors that are noted. Higher ones are kept by children.
const MOST: usize = 1 << 16;
/// No file.
const NONE: u64 = 0;

/// The file of each noted descriptor, see [`file_of`]. Some are closed, and their numbers may be
/// those of other files.
static FILES: [AtomicU64; MOST] = [const { AtomicU64::new(NONE) }; MOST];
/// One more than the highest noted descriptor.
static END: AtomicUsize = AtomicUsize::new(0);
/// The descriptor that replaces those of children, and its file. `None` if the system had none.
static REPLACEMENT: OnceLock<Option<(OwnedFd, u64)>> = OnceLock::new();

/// Notes a descriptor that forked children do not keep.
pub(crate) fn note(fd: BorrowedFd<'_>) {
    let number = fd.as_raw_fd();
    let index = usize::try_from(number).unwrap_or(MOST);
    let is_ready = REPLACEMENT.get_or_init(prepare).is_some();
    let Some(file) = FILES.get(index).filter(|_| is_ready) else {
        return;
    };
    // Relaxed: a child has the memory of its parent as it was, and one thread.
    file.store(file_of(number), Ordering::Relaxed);
    END.fetch_max(index + 1, Ordering::Relaxed);
}

/// Makes the replacement, and registers the handler of fork(3).
fn prepare() -> Option<(OwnedFd, u64)> {
    let replacement = sys::eventfd_nonblocking().ok()?;
    let file = file_of(replacement.as_raw_fd());
    // SAFETY: the handler only makes system calls and accesses statics, which a forked child may
    // do.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(replace_all)) };
    if failed != 0 {
        tracing::warn!("failed to register a fork handler: children are going to keep descriptors");
        return None;
    }
    Some((replacement, file))
}

/// Returns a number that tells an open file from others. Async-signal-safe.
fn file_of(fd: RawFd) -> u64 {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for the answer.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return NONE;
    }
    // SAFETY: the call has succeeded, so it has written the answer.
    let stat = unsafe { stat.assume_init() };
    stat.st_ino ^ stat.st_dev.rotate_left(40) | 1
}

/// Replaces all noted descriptors in a forked child.
extern "C" fn replace_all() {
    let Some(Some((replacement, own_file))) = REPLACEMENT.get() else {
        return;
    };
    let replacement = replacement.as_raw_fd();
    // The program may have closed it, and have another file with this number.
    if file_of(replacement) != *own_file {
        return;
    }
    let end = END.swap(0, Ordering::Relaxed);
    for (fd, noted) in (0..).zip(FILES.iter().take(end)) {
        let file = noted.swap(NONE, Ordering::Relaxed);
        if file != NONE && file == file_of(fd) {
            // SAFETY: no pointers. The descriptor belongs to an object of the parent, whose copy in
            // the child makes no system call but close(2).
            unsafe { libc::syscall(libc::SYS_dup3, replacement, fd, libc::O_CLOEXEC) };
        }
    }
}
