//! Copies by the kernel, which says `EFAULT` where a copy of ours would end in a signal.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering, fence};

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

/// Bytes that may be gone, and as many bytes of Rocade's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The address of the bytes that may be gone.
    pub(crate) addr: usize,
    pub(crate) own: NonNull<u8>,
    pub(crate) len: usize,
}

/// Copies `len` bytes from `addr`, where perhaps nothing is, to `dst`.
///
/// # Errors
/// [`Fault`]: `dst` then holds anything.
///
/// # Safety
/// `len` bytes must be writable at `dst`.
pub(crate) unsafe fn read(addr: usize, dst: NonNull<u8>, len: usize) -> Result<(), Fault> {
    let part = Part {
        addr,
        own: dst,
        len,
    };
    // SAFETY: the caller's promise.
    unsafe { read_all(&[part]) }
}

/// Copies all parts from where perhaps nothing is, with one system call for each [`MOST_PARTS`] of them.
///
/// # Errors
/// [`Fault`] where one of them is gone: Rocade's side of each part then holds anything.
///
/// # Safety
/// Rocade's side of each part must be writable.
pub(crate) unsafe fn read_all(parts: &[Part]) -> Result<(), Fault> {
    for some in parts.chunks(MOST_PARTS) {
        let refused = REFUSES.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        if !refused && let Ok(copied) = unsafe { copy(Direction::Read, some) } {
            copied?;
            continue;
        }
        for &Part { addr, own, len } in some {
            let src = ptr::with_exposed_provenance::<u8>(addr);
            // SAFETY: the caller's promise; a copy may be left anywhere.
            unsafe { guarded(addr, len, || ptr::copy(src, own.as_ptr(), len)) }?;
        }
    }
    Ok(())
}

/// Copies `len` bytes, not 0, from `src` to `addr`, where perhaps nothing is. The last byte is stored last.
///
/// # Errors
/// [`Fault`]: a part may have been copied.
///
/// # Safety
/// `len` bytes must be readable at `src`. Whoever owns the memory at `addr` must want it to be changed.
pub(crate) unsafe fn write(addr: usize, src: NonNull<u8>, len: usize) -> Result<(), Fault> {
    let head = Part {
        addr,
        own: src,
        len: len - 1,
    };
    let last = Part {
        addr: addr + head.len,
        // SAFETY: inside what the caller vouches for.
        own: unsafe { src.add(head.len) },
        len: 1,
    };
    // The kernel copies part after part, and this processor's stores stay in order.
    if cfg!(target_arch = "x86_64") && head.len > 0 {
        // SAFETY: the caller's promise.
        return unsafe { write_all(&[head, last]) };
    }
    if head.len > 0 {
        // SAFETY: likewise.
        unsafe { write_all(&[head]) }?;
    }
    fence(Ordering::Release);
    // SAFETY: likewise.
    unsafe { write_all(&[last]) }
}

/// # Safety
/// As for [`write()`], for each part; there are [`MOST_PARTS`] at most.
unsafe fn write_all(parts: &[Part]) -> Result<(), Fault> {
    let refused = REFUSES.load(Ordering::Relaxed);
    // SAFETY: the caller's promise.
    if !refused && let Ok(copied) = unsafe { copy(Direction::Write, parts) } {
        return copied;
    }
    for &Part { addr, own, len } in parts {
        let dst = ptr::with_exposed_provenance_mut::<u8>(addr);
        fence(Ordering::Release);
        // SAFETY: the caller's promise; a copy may be left anywhere.
        unsafe { guarded(addr, len, || ptr::copy(own.as_ptr(), dst, len)) }?;
    }
    Ok(())
}

/// The kernel does not copy.
struct Refused;

/// Most parts of one system call.
pub(crate) const MOST_PARTS: usize = 64;

/// Copies so many parts with one system call.
///
/// # Safety
/// Rocade's side of each part must be readable, or writable for [`Direction::Read`]. There are [`MOST_PARTS`] at most.
unsafe fn copy(direction: Direction, parts: &[Part]) -> Result<Result<(), Fault>, Refused> {
    let nothing = libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    };
    let (mut local, mut remote) = ([nothing; MOST_PARTS], [nothing; MOST_PARTS]);
    let mut total = 0;
    for (part, (local, remote)) in parts.iter().zip(local.iter_mut().zip(&mut remote)) {
        local.iov_base = part.own.as_ptr().cast();
        local.iov_len = part.len;
        remote.iov_base = ptr::without_provenance_mut(part.addr);
        remote.iov_len = part.len;
        total += part.len;
    }
    let count = parts.len().min(MOST_PARTS) as libc::c_ulong;
    let (local, remote) = (local.as_ptr(), remote.as_ptr());
    let this = this_process();
    counted();
    // SAFETY: so many entries each; the caller vouches for the local memory, the kernel checks the other.
    let copied = unsafe {
        match direction {
            Direction::Read => libc::process_vm_readv(this, local, count, remote, count, 0),
            Direction::Write => libc::process_vm_writev(this, local, count, remote, count, 0),
        }
    };
    if copied < 0 && errno() != libc::EFAULT {
        REFUSES.store(true, Ordering::Relaxed);
        return Err(Refused);
    }
    if copied.cast_unsigned() == total {
        Ok(Ok(()))
    } else {
        Ok(Err(Fault))
    }
}

/// The number of this process, kept where `fork` clears it: with that of the parent a child would access the
/// parent's memory.
fn this_process() -> libc::pid_t {
    static KEPT: AtomicPtr<AtomicI32> = AtomicPtr::new(ptr::null_mut());
    let mut kept = KEPT.load(Ordering::Acquire);
    if kept.is_null() {
        kept = word_wiped_on_fork();
        let old = ptr::null_mut();
        // Who comes second leaves a page unused.
        if let Err(first) = KEPT.compare_exchange(old, kept, Ordering::AcqRel, Ordering::Acquire) {
            kept = first;
        }
    }
    // SAFETY: null, or a word that stays.
    let known = unsafe { kept.as_ref() };
    match known.map(|word| word.load(Ordering::Relaxed)) {
        Some(process) if process != 0 => process,
        _ => {
            counted();
            // SAFETY: no pointers.
            let process = unsafe { libc::getpid() };
            if let Some(word) = known {
                word.store(process, Ordering::Relaxed);
            }
            process
        }
    }
}

/// A word that is 0, and 0 again in a child; null where the kernel cannot do that.
fn word_wiped_on_fork() -> *mut AtomicI32 {
    // SAFETY: no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1 << 12);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which nobody else knows.
    let word = unsafe { libc::mmap(ptr::null_mut(), page, rights, flags, -1, 0) };
    if word == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: that mapping.
    if unsafe { libc::madvise(word, page, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: likewise.
        unsafe { libc::munmap(word, page) };
        return ptr::null_mut();
    }
    word.cast()
}

/// A system call is made.
#[inline]
fn counted() {
    #[cfg(test)]
    CALLS.set(CALLS.get() + 1);
}

#[cfg(test)]
thread_local! {
    /// The system calls that this thread has made to copy.
    pub(crate) static CALLS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Are 4 bytes at `addr`, a multiple of 4, there and writable? The kernel adds 0 to them.
///
/// # Errors
/// [`Fault`] where not.
pub(crate) fn probe(addr: usize) -> Result<(), Fault> {
    // At worst this wakes a waiter of a futex at `addr` for nothing, which futexes are used to.
    const ADD_NOTHING: libc::c_int = libc::FUTEX_OP_ADD << 28 | libc::FUTEX_OP_CMP_LT << 24;
    let nobody_waits = 0u32;
    counted();
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
