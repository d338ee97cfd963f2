//! Arrays, buffers and strings of the program.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fmt,
    marker::PhantomData,
    ptr,
};

use rocade_abi::{ibv_data_buf, ibv_path_data};

/// An array with a count that the program passes too. The pointer may be NULL.
pub(crate) struct List<'a, T> {
    first: *const T,
    count: c_int,
    call: PhantomData<&'a T>,
}

impl<T> Clone for List<'_, T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<'_, T> {}

impl<T> fmt::Debug for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}", self.count, self.first)
    }
}

impl<T: Copy> List<'_, T> {
    /// Makes a list of a pointer and a count, which may be negative.
    ///
    /// # Safety
    /// `first` must be NULL, or have `count` entries. These and what they name must be readable
    /// during the list's lifetime.
    #[inline(always)]
    pub(crate) const unsafe fn new(first: *const T, count: c_int) -> Self {
        Self {
            first,
            count,
            call: PhantomData,
        }
    }

    /// Makes a list of a pointer and a count that is too large for an `int`.
    ///
    /// # Safety
    /// As for [`Self::new`].
    pub(crate) unsafe fn of(first: *const T, count: usize) -> Self {
        // SAFETY: same contract, for the first entries of a longer list.
        unsafe { Self::new(first, c_int::try_from(count).unwrap_or(c_int::MAX)) }
    }

    /// Returns the count as the program passed it.
    #[inline(always)]
    pub(crate) const fn count(self) -> c_int {
        self.count
    }

    /// Returns true for NULL.
    #[inline(always)]
    pub(crate) const fn is_null(self) -> bool {
        self.first.is_null()
    }

    /// Copies an entry. `None` for NULL, and beyond the count.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> Option<T> {
        let is_there = usize::try_from(self.count).is_ok_and(|count| index < count);
        if self.first.is_null() || !is_there {
            return None;
        }
        // SAFETY: the list has that entry by contract of `new`.
        Some(unsafe { self.first.add(index).read() })
    }

    /// Copies the entries, none for NULL.
    pub(crate) fn iter(self) -> impl Iterator<Item = T> + Clone {
        (0..).map_while(move |index| self.get(index))
    }
}

impl<'a> List<'a, ibv_data_buf> {
    /// Returns the buffers that the entries name.
    pub(crate) fn buffers(self) -> impl Iterator<Item = Buffer<'a>> {
        self.iter().map(|entry| {
            // SAFETY: by contract of `new`, each entry names readable memory.
            unsafe { Buffer::new(entry.addr, entry.length) }
        })
    }
}

/// A type of which any bytes are a value.
///
/// # Safety
/// Each member must be an integer or an array of integers, without padding between them.
pub(crate) unsafe trait AnyBytes: Copy {}

// SAFETY: integers.
unsafe impl AnyBytes for u8 {}
// SAFETY: an integer.
unsafe impl AnyBytes for c_int {}
// SAFETY: integers and arrays of them.
unsafe impl AnyBytes for ibv_path_data {}

/// Bytes that the call reads. The pointer may be NULL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer<'a> {
    first: *const c_void,
    len: usize,
    call: PhantomData<&'a [u8]>,
}

impl<'a> Buffer<'a> {
    /// Makes a buffer of a pointer and a length in bytes.
    ///
    /// # Safety
    /// `first` must be NULL, or have `len` bytes that are readable during the buffer's lifetime.
    #[inline]
    pub(crate) const unsafe fn new(first: *const c_void, len: usize) -> Self {
        Self {
            first,
            len,
            call: PhantomData,
        }
    }

    /// Makes a buffer of bytes of this library.
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self {
            first: bytes.as_ptr().cast(),
            len: bytes.len(),
            call: PhantomData,
        }
    }

    /// Returns the pointer.
    pub(crate) const fn as_ptr(self) -> *const c_void {
        self.first
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) const fn len(self) -> usize {
        self.len
    }

    /// Returns true for NULL.
    #[inline]
    pub(crate) const fn is_null(self) -> bool {
        self.first.is_null()
    }

    /// Copies the first bytes to `target`, as many as both have, none from NULL.
    #[inline]
    pub(crate) fn copy_to(self, target: &mut [u8]) {
        let len = self.len.min(target.len());
        if len == 0 || self.is_null() {
            return;
        }
        // SAFETY: both have that many bytes. `target` is exclusive, so they do not overlap.
        unsafe { ptr::copy_nonoverlapping(self.first.cast(), target.as_mut_ptr(), len) };
    }

    /// Reads an entry of an array, at any alignment. `None` for NULL, and beyond the end.
    pub(crate) fn get<T: AnyBytes>(self, index: usize) -> Option<T> {
        let end = index.checked_add(1)?.checked_mul(size_of::<T>())?;
        if self.is_null() || end > self.len {
            return None;
        }
        // SAFETY: the buffer has that entry, and its bytes are a value of the type.
        Some(unsafe { self.first.cast::<T>().add(index).read_unaligned() })
    }

    /// Returns a copy of the bytes, none for NULL.
    pub(crate) fn to_vec(self) -> Vec<u8> {
        if self.is_null() {
            return Vec::new();
        }
        let mut copy = vec![0; self.len];
        self.copy_to(&mut copy);
        copy
    }
}

/// A terminated string, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    first: *const c_char,
    call: PhantomData<&'a CStr>,
}

impl<'a> Text<'a> {
    /// Makes an argument of a pointer.
    ///
    /// # Safety
    /// `first` must be NULL, or a terminated string that no thread writes during `'a`.
    pub(crate) const unsafe fn new(first: *const c_char) -> Self {
        Self {
            first,
            call: PhantomData,
        }
    }

    /// Returns the pointer.
    pub(crate) const fn as_ptr(self) -> *const c_char {
        self.first
    }

    /// Returns the string. `None` for NULL.
    pub(crate) fn get(self) -> Option<&'a CStr> {
        if self.first.is_null() {
            return None;
        }
        // SAFETY: a terminated string, by the promise of the type.
        Some(unsafe { CStr::from_ptr(self.first) })
    }
}
