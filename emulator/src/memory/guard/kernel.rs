//! Copies by the kernel, which says `EFAULT` where a copy of ours would end in a signal.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use super::Fault;
use super::section::guarded;

/// The kernel does not copy for us (a seccomp filter, for example).
static REFUSES: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy)]
enum Direction {
    /// From memory that may be gone.
    Read,
    /// To it.
    Write,
}

/// Copies `len` bytes from `addr`, where perhaps nothing is, to `dst`.
///
/// # Errors
/// [`Fault`]: `dst` then holds anything.
///
/// # Safety
/// `len` bytes must be writable at `dst`.
pub(crate) unsafe fn read(addr: usize, dst: NonNull<u8>, len: usize) -> Result<(), Fault> {
    if REFUSES.load(Ordering::Relaxed) {
        let src = ptr::with_exposed_provenance::<u8>(addr);
        // SAFETY: a copy may be left anywhere.
        return unsafe { guarded(addr, len, || ptr::copy(src, dst.as_ptr(), len)) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy(Direction::Read, addr, dst, len) }.unwrap_or_else(|Refused| {
        // SAFETY: as above; this time without the kernel.
        unsafe { read(addr, dst, len) }
    })
}

/// Copies `len` bytes from `src` to `addr`, where perhaps nothing is.
///
/// # Errors
/// [`Fault`]: a part may have been copied.
///
/// # Safety
/// `len` bytes must be readable at `src`. Whoever owns the memory at `addr` must want it to be changed.
pub(crate) unsafe fn write(addr: usize, src: NonNull<u8>, len: usize) -> Result<(), Fault> {
    if REFUSES.load(Ordering::Relaxed) {
        let dst = ptr::with_exposed_provenance_mut::<u8>(addr);
        // SAFETY: a copy may be left anywhere.
        return unsafe { guarded(addr, len, || ptr::copy(src.as_ptr(), dst, len)) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy(Direction::Write, addr, src, len) }.unwrap_or_else(|Refused| {
        // SAFETY: as above; this time without the kernel.
        unsafe { write(addr, src, len) }
    })
}

struct Refused;

unsafe fn copy(
    direction: Direction,
    addr: usize,
    ours: NonNull<u8>,
    len: usize,
) -> Result<Result<(), Fault>, Refused> {
    let local = libc::iovec {
        iov_base: ours.as_ptr().cast(),
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: ptr::without_provenance_mut(addr),
        iov_len: len,
    };
    let (local, remote) = (&raw const local, &raw const remote);
    // SAFETY: no pointers.
    let this = unsafe { libc::getpid() };
    // SAFETY: one entry each; the caller vouches for the local memory, the kernel checks the other.
    let copied = unsafe {
        match direction {
            Direction::Read => libc::process_vm_readv(this, local, 1, remote, 1, 0),
            Direction::Write => libc::process_vm_writev(this, local, 1, remote, 1, 0),
        }
    };
    if copied < 0 && errno() != libc::EFAULT {
        REFUSES.store(true, Ordering::Relaxed);
        return Err(Refused);
    }
    if copied.cast_unsigned() == len {
        Ok(Ok(()))
    } else {
        Ok(Err(Fault))
    }
}

/// Are 4 bytes at `addr`, a multiple of 4, there and writable? The kernel adds 0 to them.
///
/// # Errors
/// [`Fault`] where not.
pub(crate) fn probe(addr: usize) -> Result<(), Fault> {
    // At worst this wakes a waiter of a futex at `addr` for nothing, which futexes are used to.
    const ADD_NOTHING: libc::c_int = libc::FUTEX_OP_ADD << 28 | libc::FUTEX_OP_CMP_LT << 24;
    let nobody_waits = 0u32;
    // SAFETY: the first address is a live word, the second is checked by the kernel.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const nobody_waits,
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            0usize,
            addr,
            ADD_NOTHING,
        )
    };
    if result < 0 && errno() == libc::EFAULT {
        Err(Fault)
    } else {
        Ok(())
    }
}

fn errno() -> libc::c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
