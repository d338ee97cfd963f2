//! Copies by the kernel, which returns `EFAULT` where a copy by this process would raise a signal.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering, fence};

use super::Fault;
use super::section::guarded;
use crate::notice::notice;

/// The kernel does not copy (because of a seccomp filter, for example).
static REFUSES: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy)]
enum CopyDirection {
    /// From memory that may be unmapped.
    Read,
    /// To memory that may be unmapped.
    Write,
}

/// Bytes that may be unmapped, and as many bytes of Rocade's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The address of the bytes that may be unmapped.
    pub(crate) addr: usize,
    pub(crate) own: NonNull<u8>,
    pub(crate) len: usize,
}

impl Part {
    /// Splits off the last byte. Returns `None` if there is no other.
    ///
    /// # Safety
    /// `len` bytes must be valid at `own`.
    pub(crate) unsafe fn split_last(self) -> Option<[Self; 2]> {
        let head = Self {
            len: self.len.checked_sub(1).filter(|len| *len > 0)?,
            ..self
        };
        let last = Self {
            addr: self.addr + head.len,
            // SAFETY: inside the range that the caller promises to be valid.
            own: unsafe { self.own.add(head.len) },
            len: 1,
        };
        Some([head, last])
    }
}

/// Copies parts to memory that may be unmapped, in their order, with one system call for each
/// [`MOST_PARTS`] of them. Stops at the first part that is unmapped, and if the kernel does not
/// copy. Returns the number of whole parts copied.
///
/// # Safety
/// As for [`write()`], for each part.
pub(crate) unsafe fn write_some(parts: &[Part]) -> usize {
    let mut done = 0;
    for some in parts.chunks(MOST_PARTS) {
        if REFUSES.load(Ordering::Relaxed) {
            break;
        }
        // SAFETY: the caller's promise.
        let Ok(mut copied) = (unsafe { copy(CopyDirection::Write, some) }) else {
            break;
        };
        for part in some {
            if copied < part.len {
                return done;
            }
            copied -= part.len;
            done += 1;
        }
    }
    done
}

/// Copies `len` bytes from `addr`, which may be unmapped, to `dst`.
///
/// # Errors
/// [`Fault`]. The content of `dst` is undefined then.
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

/// Copies all parts from memory that may be unmapped, with one system call for each [`MOST_PARTS`]
/// of them.
///
/// # Errors
/// [`Fault`] if one of them is unmapped. The content of Rocade's side of each part is undefined
/// then.
///
/// # Safety
/// Rocade's side of each part must be writable.
pub(crate) unsafe fn read_all(parts: &[Part]) -> Result<(), Fault> {
    for some in parts.chunks(MOST_PARTS) {
        let refused = REFUSES.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        if !refused && let Ok(copied) = unsafe { copy(CopyDirection::Read, some) } {
            all_of(some, copied)?;
            continue;
        }
        for &Part { addr, own, len } in some {
            let src = ptr::with_exposed_provenance::<u8>(addr);
            // SAFETY: the caller's promise. A copy may be left anywhere.
            unsafe { guarded(addr, len, || ptr::copy(src, own.as_ptr(), len)) }?;
        }
    }
    Ok(())
}

/// Copies `len` bytes, not 0, from `src` to `addr`, which may be unmapped. The last byte is stored
/// last.
///
/// # Errors
/// [`Fault`]. A part may have been copied.
///
/// # Safety
/// `len` bytes must be readable at `src`. The owner of the memory at `addr` must allow the change.
pub(crate) unsafe fn write(addr: usize, src: NonNull<u8>, len: usize) -> Result<(), Fault> {
    let whole = Part {
        addr,
        own: src,
        len,
    };
    // SAFETY: the caller's promise.
    let Some([head, last]) = (unsafe { whole.split_last() }) else {
        fence(Ordering::Release);
        // SAFETY: the caller's promise.
        return unsafe { write_all(&[whole]) };
    };
    // The kernel copies the parts one after the other, and x86-64 keeps the order of stores.
    if cfg!(target_arch = "x86_64") {
        // SAFETY: the caller's promise.
        return unsafe { write_all(&[head, last]) };
    }
    // SAFETY: the caller's promise.
    unsafe { write_all(&[head]) }?;
    fence(Ordering::Release);
    // SAFETY: the caller's promise.
    unsafe { write_all(&[last]) }
}

/// # Safety
/// As for [`write()`], for each part. At most [`MOST_PARTS`] parts are allowed.
unsafe fn write_all(parts: &[Part]) -> Result<(), Fault> {
    let refused = REFUSES.load(Ordering::Relaxed);
    // SAFETY: the caller's promise.
    if !refused && let Ok(copied) = unsafe { copy(CopyDirection::Write, parts) } {
        return all_of(parts, copied);
    }
    for &Part { addr, own, len } in parts {
        let dst = ptr::with_exposed_provenance_mut::<u8>(addr);
        fence(Ordering::Release);
        // SAFETY: the caller's promise. A copy may be left anywhere.
        unsafe { guarded(addr, len, || ptr::copy(own.as_ptr(), dst, len)) }?;
    }
    Ok(())
}

/// Returns [`Fault`] unless all bytes were copied.
fn all_of(parts: &[Part], copied: usize) -> Result<(), Fault> {
    let total: usize = parts.iter().map(|part| part.len).sum();
    if copied == total { Ok(()) } else { Err(Fault) }
}

/// The error of a kernel that does not copy.
struct Refused;

/// Maximum number of parts of one system call.
pub(crate) const MOST_PARTS: usize = 64;

/// Copies parts with one system call, up to the first one that is unmapped. Returns the number of
/// bytes copied.
///
/// # Safety
/// Rocade's side of each part must be readable, or writable for [`CopyDirection::Read`]. At most
/// [`MOST_PARTS`] parts are allowed.
unsafe fn copy(direction: CopyDirection, parts: &[Part]) -> Result<usize, Refused> {
    let nothing = libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: 0,
    };
    let (mut local, mut remote) = ([nothing; MOST_PARTS], [nothing; MOST_PARTS]);
    for (part, (local, remote)) in parts.iter().zip(local.iter_mut().zip(&mut remote)) {
        local.iov_base = part.own.as_ptr().cast();
        local.iov_len = part.len;
        remote.iov_base = ptr::without_provenance_mut(part.addr);
        remote.iov_len = part.len;
    }
    let count = parts.len().min(MOST_PARTS) as libc::c_ulong;
    let (local, remote) = (local.as_ptr(), remote.as_ptr());
    let this = this_process();
    counted();
    #[cfg(test)]
    if let Some(error) = FAILS_WITH.get() {
        note_refusal(error);
        return Err(Refused);
    }
    // SAFETY: both arrays have `count` entries. The caller promises the validity of the local
    // memory, and the kernel checks the remote memory.
    let copied = unsafe {
        match direction {
            CopyDirection::Read => libc::process_vm_readv(this, local, count, remote, count, 0),
            CopyDirection::Write => libc::process_vm_writev(this, local, count, remote, count, 0),
        }
    };
    usize::try_from(copied).or_else(|_| match errno() {
        libc::EFAULT => Ok(0),
        error => {
            note_refusal(error);
            Err(Refused)
        }
    })
}

/// Stops asking a kernel that does not support the copies. After any other error the next copy may
/// succeed.
fn note_refusal(error: libc::c_int) {
    let unsupported = [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::EOPNOTSUPP];
    if !unsupported.contains(&error) || REFUSES.swap(true, Ordering::Relaxed) {
        return;
    }
    notice(&format!(
        "the kernel does not copy registered memory (process_vm_writev: {}), and the program handles \
         or blocks SIGSEGV or SIGBUS itself: unmapping registered memory may end the program",
        std::io::Error::from_raw_os_error(error)
    ));
}

/// Returns the ID of this process. It is cached in a page that `fork` clears: with the parent's ID
/// a child would access the parent's memory.
fn this_process() -> libc::pid_t {
    static KEPT: AtomicPtr<AtomicI32> = AtomicPtr::new(ptr::null_mut());
    let mut kept = KEPT.load(Ordering::Acquire);
    if kept.is_null() {
        kept = word_wiped_on_fork();
        let old = ptr::null_mut();
        // The second of two concurrent threads leaves its page unused.
        if let Err(first) = KEPT.compare_exchange(old, kept, Ordering::AcqRel, Ordering::Acquire) {
            kept = first;
        }
    }
    // SAFETY: null, or a word that is never unmapped.
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

/// Makes a word that is 0, and 0 again in a child. Returns null if the kernel does not support
/// that.
fn word_wiped_on_fork() -> *mut AtomicI32 {
    // SAFETY: no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(1 << 12);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which no other code uses.
    let word = unsafe { libc::mmap(ptr::null_mut(), page, rights, flags, -1, 0) };
    if word == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: the new mapping.
    if unsafe { libc::madvise(word, page, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: the new mapping.
        unsafe { libc::munmap(word, page) };
        return ptr::null_mut();
    }
    word.cast()
}

/// Counts a system call in tests.
#[inline]
fn counted() {
    #[cfg(test)]
    CALLS.set(CALLS.get() + 1);
}

#[cfg(test)]
thread_local! {
    /// Number of system calls that this thread has made to copy.
    pub(crate) static CALLS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    /// The error of all copies of this thread, if it is set.
    pub(super) static FAILS_WITH: std::cell::Cell<Option<libc::c_int>> =
        const { std::cell::Cell::new(None) };
}

/// Checks that the 4 bytes at `addr`, a multiple of 4, are mapped and writable. The kernel adds 0
/// to them.
///
/// # Errors
/// [`Fault`] if they are not.
pub(crate) fn probe(addr: usize) -> Result<(), Fault> {
    // At worst this causes a spurious wake-up of a waiter of a futex at `addr`, which futex users
    // have to expect.
    const ADD_NOTHING: libc::c_int = libc::FUTEX_OP_ADD << 28 | libc::FUTEX_OP_CMP_LT << 24;
    let no_waiters = 0u32;
    counted();
    // SAFETY: the first address is a live word, the second is checked by the kernel.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const no_waiters,
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
