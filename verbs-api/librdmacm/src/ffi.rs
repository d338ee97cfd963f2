//! The C boundary: errno conventions, panic guard.

use std::{
    ffi::c_int,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use crate::args::{FromC, New};

/// A positive errno value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    pub(crate) const NODEV: Self = Self(libc::ENODEV);

    /// Returns the errno that the C library or a verb has just set, or `EIO` if there is none.
    pub(crate) fn last() -> Self {
        let code = io::Error::last_os_error().raw_os_error();
        Self(code.filter(|code| *code != 0).unwrap_or(libc::EIO))
    }

    /// Converts the return value of a verb, which is 0 or an errno value.
    pub(crate) const fn check(code: c_int) -> Result<(), Self> {
        match code {
            0 => Ok(()),
            code => Err(Self(code)),
        }
    }

    /// Converts the pointer that a verb returned. NULL stands for an error in errno.
    pub(crate) fn made<T>(made: *mut T) -> Result<*mut T, Self> {
        if made.is_null() {
            return Err(Self::last());
        }
        Ok(made)
    }
}

impl<C> FromC<*mut C> for Result<New<C>, Errno> {
    unsafe fn from_c(made: *mut C) -> Self {
        let made = Errno::made(made)?;
        // SAFETY: by contract the result of a verb that has created the object.
        Ok(unsafe { New::of(made) })
    }
}

/// Sets `errno` of the calling thread.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = code };
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    safe fn pthread_setcancelstate(state: c_int, old: Option<&mut c_int>) -> c_int;
}

fn set_cancel_state(state: c_int) -> c_int {
    let mut old = state;
    // Fails only for other values than these two.
    pthread_setcancelstate(state, Some(&mut old));
    old
}

/// Runs `f` with cancellation disabled, and converts a panic to `EIO`. Cancellation would unwind
/// the thread, which frames with destructors do not allow. Only `rdma_get_cm_event` and `raccept`
/// are cancellation points, and they do not wait inside this function.
fn guarded<T>(f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let before = set_cancel_state(PTHREAD_CANCEL_DISABLE);
    let outcome = catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Errno(libc::EIO)));
    set_cancel_state(before);
    if let Err(errno) = outcome {
        set_errno(errno.0);
    }
    outcome
}

/// Calls `f`, and returns 0, or -1 with errno set.
//= LRC-01
pub(crate) fn int_call(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(f) {
        Ok(()) => 0,
        Err(_) => -1,
    }
}

/// Calls `f`, and returns a pointer, or NULL with errno set.
pub(crate) fn ptr_call<T>(f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(f).unwrap_or(ptr::null_mut())
}

/// Calls `f`, and returns a number, or -1 with errno set.
pub(crate) fn number_call(f: impl FnOnce() -> Result<isize, Errno>) -> isize {
    // Like a system call, this keeps errno unless the call fails. Some programs read errno after a
    // return value of 0.
    let before = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    guarded(f).map_or(-1, |number| {
        set_errno(before);
        number
    })
}

/// Calls `f` for a function that cannot report an error.
pub(crate) fn void_call(f: impl FnOnce() -> Result<(), Errno>) {
    let _ = guarded(f);
}
