//! The C boundary: errno conventions, panic guard, strings.

use std::{
    any::type_name,
    ffi::{c_char, c_int},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
};

use rocade_emulator::VerbsError;

use crate::{cancel::uncancelled, complaint};

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
        complaint::note(errno, error);
        errno
    }
}

/// Sets `errno` of the calling thread.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the C library returns a valid pointer to the errno of this thread.
    unsafe { *libc::__errno_location() = code };
}

/// Runs `f`; a panic becomes `EIO`, because unwinding must not reach C frames.
pub(crate) fn guarded<T, F: FnOnce() -> Result<T, Errno>>(f: F) -> Result<T, Errno> {
    let outcome = catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Errno(libc::EIO)));
    if let Err(errno) = outcome {
        // The closure is named after the verb that it is in.
        complaint::raise(type_name::<F>(), errno);
        set_errno(errno.0);
    }
    outcome
}

/// Convention "0 or positive errno" (ERN-01).
//= ERN-01
pub(crate) fn int_verb(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    uncancelled(|| int_data_verb(f))
}

/// The same for the data path: `f` calls no function of the C library that is a cancellation point
/// (`cancel`).
pub(crate) fn int_data_verb(f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(f) {
        Ok(()) => 0,
        Err(Errno(code)) => code,
    }
}

/// Convention "pointer, or NULL and errno" (ERN-01).
//= ERN-01
pub(crate) fn ptr_verb<T>(f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    uncancelled(|| guarded(f)).unwrap_or(ptr::null_mut())
}

/// Convention "a value, or -1 and errno" (ERN-01).
//= ERN-01
pub(crate) fn neg_verb(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    uncancelled(|| neg_data_verb(f))
}

/// The same for the data path, as [`int_data_verb`].
pub(crate) fn neg_data_verb(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    guarded(f).unwrap_or(-1)
}

/// For functions whose answer is itself an errno value that is no failure, such as `ENOENT` of an
/// empty queue: 0 or a positive errno, where `f` may choose either. On the data path.
pub(crate) fn status_verb(f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    match guarded(f) {
        Ok(status) => status,
        Err(Errno(code)) => code,
    }
}

/// For functions that cannot report a failure. On the data path.
pub(crate) fn void_verb(f: impl FnOnce() -> Result<(), Errno>) {
    let _ = guarded(f);
}

/// Reads a structure the caller points at.
///
/// # Safety
/// `source` must be NULL or valid for reads of `T`.
pub(crate) unsafe fn read<T: Copy>(source: *const T) -> Result<T, Errno> {
    if source.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not NULL; the caller of this function vouches for the rest.
    Ok(unsafe { source.read() })
}

/// Writes a structure where the caller points.
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

/// Copies the first `len` bytes of `value` to `target`, for callers built against a shorter
/// structure than ours; clears what a longer one has behind it.
///
/// # Safety
/// `target` must be NULL or valid for writes of `len` bytes. `T` must have no padding that
/// matters to the caller.
pub(crate) unsafe fn write_prefix<T>(target: *mut T, value: &T, len: usize) -> Result<(), Errno> {
    if target.is_null() {
        return Err(Errno::INVAL);
    }
    let bytes = target.cast::<u8>();
    let known = len.min(size_of::<T>());
    // SAFETY: `value` is readable for `size_of::<T>()` bytes, `target` is writable for `len`
    // bytes by contract, and they do not overlap since we hold `value` by reference.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), bytes, known) };
    // SAFETY: bytes `known..len` of `target` are writable by contract.
    unsafe { bytes.add(known).write_bytes(0, len - known) };
    Ok(())
}

/// Copies `text` into a C array, cut to fit and terminated.
pub(crate) fn fill(array: &mut [c_char], text: &str) {
    let Some(room) = array.len().checked_sub(1) else {
        return;
    };
    let bytes = text.as_bytes();
    let used = bytes.len().min(room);
    for (slot, byte) in array.iter_mut().zip(bytes.iter().take(used)) {
        *slot = c_char::from_ne_bytes([*byte]);
    }
    for slot in array.iter_mut().skip(used) {
        *slot = 0;
    }
}

/// A count as the `int` of a C structure; what does not fit is as good as unlimited.
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

    #[test]
    fn a_longer_structure_is_cleared_behind_ours() {
        let mut target = [0xffu8; 8];
        let value = 0x0101_0101u32;
        // SAFETY: the array has the 6 bytes we name.
        let done = unsafe { write_prefix(target.as_mut_ptr().cast::<u32>(), &value, 6) };
        assert_eq!(done, Ok(()));
        assert_eq!(target, [1, 1, 1, 1, 0, 0, 0xff, 0xff]);
        // SAFETY: the array has the 2 bytes we name.
        let done = unsafe { write_prefix(target.as_mut_ptr().cast::<u32>(), &0u32, 2) };
        assert_eq!(done, Ok(()));
        assert_eq!(target, [0, 0, 1, 1, 0, 0, 0xff, 0xff]);
    }
}
