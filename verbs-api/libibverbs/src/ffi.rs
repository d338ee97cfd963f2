//! The C boundary: errno conventions, panic guard, strings.

use std::{
    any::type_name,
    ffi::{c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use rocade_emulator::VerbsError;

use crate::{cancel::uncancelled, diagnostics};

/// A positive errno value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    pub(crate) const NODEV: Self = Self(libc::ENODEV);
    pub(crate) const NODATA: Self = Self(libc::ENODATA);
    pub(crate) const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
}

impl From<VerbsError> for Errno {
    fn from(error: VerbsError) -> Self {
        tracing::debug!(%error, "verb refused");
        let errno = Self(error.errno());
        diagnostics::record(errno, error);
        errno
    }
}

/// Sets `errno` of the calling thread.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = code };
}

/// Runs `f`. Turns a panic into `EIO`, because unwinding must not reach C frames.
pub(crate) fn guarded<T, F: FnOnce() -> Result<T, Errno>>(f: F) -> Result<T, Errno> {
    let outcome = catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Errno(libc::EIO)));
    if let Err(errno) = outcome {
        // The type name of the closure contains the name of its verb.
        diagnostics::emit(type_name::<F>(), errno);
        set_errno(errno.0);
    }
    outcome
}

/// Runs a verb that returns 0 or a positive errno.
//= ERN-01
pub(crate) fn int_verb(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    uncancelled(|| int_data_verb(f))
}

/// Like [`int_verb`], for the data path: `f` calls no function of the C library that is a
/// cancellation point (see `cancel`).
pub(crate) fn int_data_verb(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(f) {
        Ok(()) => 0,
        Err(Errno(code)) => code,
    }
}

/// Runs a verb that returns a pointer, or NULL and errno.
//= ERN-01
pub(crate) fn ptr_verb<T>(f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    uncancelled(|| guarded(f)).unwrap_or(ptr::null_mut())
}

/// Runs a verb that returns a value, or -1 and errno.
//= ERN-01
pub(crate) fn neg_verb(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    uncancelled(|| neg_data_verb(f))
}

/// Like [`neg_verb`], for the data path. `f` is as for [`int_data_verb`].
pub(crate) fn neg_data_verb(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    guarded(f).unwrap_or(-1)
}

/// Runs a data-path function whose result is 0 or an errno value that is no failure, such as
/// `ENOENT` for an empty queue. `f` chooses which.
pub(crate) fn status_verb(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    match guarded(f) {
        Ok(status) => status,
        Err(Errno(code)) => code,
    }
}

/// Runs a data-path function that cannot report a failure.
pub(crate) fn void_verb(f: impl FnOnce() -> Result<(), Errno>) {
    let _ = guarded(f);
}

/// Copies `text` into a C array, truncated to fit and NUL-terminated.
pub(crate) fn fill(array: &mut [c_char], text: &str) {
    let Some(space) = array.len().checked_sub(1) else {
        return;
    };
    let bytes = text.as_bytes();
    let used = bytes.len().min(space);
    for (slot, byte) in array.iter_mut().zip(bytes.iter().take(used)) {
        *slot = c_char::from_ne_bytes([*byte]);
    }
    for slot in array.iter_mut().skip(used) {
        *slot = 0;
    }
}

/// Converts a count to the `int` of a C structure, and clamps it to the largest `int`.
pub(crate) fn to_int(value: impl TryInto<c_int>) -> c_int {
    value.try_into().unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno() -> c_int {
        // SAFETY: the C library returns a valid pointer to the errno of this thread.
        unsafe { *libc::__errno_location() }
    }

    #[test]
    fn failures_follow_the_convention_of_the_function() {
        assert_eq!(int_verb(|| Err(Errno::INVAL)), libc::EINVAL);
        assert_eq!(errno(), libc::EINVAL);
        assert!(ptr_verb::<u8>(|| Err(Errno::NODEV)).is_null());
        assert_eq!(errno(), libc::ENODEV);
        assert_eq!(neg_verb(|| Err(Errno::NODATA)), -1);
        assert_eq!(errno(), libc::ENODATA);
        assert_eq!(neg_verb(|| Ok(7)), 7);
    }

    #[test]
    fn a_panic_becomes_eio() {
        assert_eq!(int_verb(|| panic!("on purpose")), libc::EIO);
        assert_eq!(errno(), libc::EIO);
    }

    #[test]
    fn text_is_cut_and_terminated() {
        let mut array: [c_char; 4] = [1; 4];
        fill(&mut array, "abcdef");
        assert_eq!(array.map(i32::from), [97, 98, 99, 0]);
        fill(&mut array, "x");
        assert_eq!(array.map(i32::from), [120, 0, 0, 0]);
    }
}
