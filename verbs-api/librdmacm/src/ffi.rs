//! The C boundary: errno conventions, panic guard.

use std::{
    ffi::c_int,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

/// A positive errno value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    pub(crate) const NODEV: Self = Self(libc::ENODEV);

    /// What the C library, or a verb, has just set.
    pub(crate) fn last() -> Self {
        let code = std::io::Error::last_os_error().raw_os_error();
        Self(code.filter(|code| *code != 0).unwrap_or(libc::EIO))
    }

    /// A verb's answer: 0 or an errno value.
    pub(crate) const fn check(code: c_int) -> Result<(), Self> {
        match code {
            0 => Ok(()),
            code => Err(Self(code)),
        }
    }

    /// What a verb has made; NULL is an error that it has set.
    pub(crate) fn made<T>(made: *mut T) -> Result<*mut T, Self> {
        if made.is_null() {
            return Err(Self::last());
        }
        Ok(made)
    }
}

/// Sets `errno` of the calling thread.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = code };
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

fn set_cancel_state(state: c_int) -> c_int {
    let mut old = state;
    // SAFETY: `old` is writable. Fails for other values than the two only.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    old
}

/// A thread that is cancelled would be unwound, which must not happen here: only `rdma_get_cm_event` and `raccept`,
/// which do not come this way while they wait, are cancellation points.
fn guarded<T>(f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let before = set_cancel_state(PTHREAD_CANCEL_DISABLE);
    let outcome = catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Errno(libc::EIO)));
    set_cancel_state(before);
    if let Err(errno) = outcome {
        set_errno(errno.0);
    }
    outcome
}

/// Convention "0, or -1 and errno".
//= LRC-01
pub(crate) fn int_call(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(f) {
        Ok(()) => 0,
        Err(_) => -1,
    }
}

/// Convention "pointer, or NULL and errno".
pub(crate) fn ptr_call<T>(f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(f).unwrap_or(ptr::null_mut())
}

/// Convention "a number, or -1 and errno".
pub(crate) fn number_call(f: impl FnOnce() -> Result<isize, Errno>) -> isize {
    // As a system call, it leaves errno alone unless it fails: there are programs that look at it after a 0.
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    let before = unsafe { *libc::__errno_location() };
    guarded(f).map_or(-1, |number| {
        set_errno(before);
        number
    })
}

/// For functions that cannot report a failure.
pub(crate) fn void_call(f: impl FnOnce() -> Result<(), Errno>) {
    let _ = guarded(f);
}

/// Writes where the caller points.
///
/// # Safety
/// `target` must be NULL or valid for writes of `T`.
pub(crate) unsafe fn write<T>(target: *mut T, value: T) -> Result<(), Errno> {
    if target.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not NULL; the caller of this function vouches for the rest.
    unsafe { target.write(value) };
    Ok(())
}
