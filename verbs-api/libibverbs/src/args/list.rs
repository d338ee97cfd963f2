//! Arrays and strings of the program.

use std::{
    ffi::{CStr, c_char, c_int},
    fmt,
    marker::PhantomData,
    ptr,
};

use rocade_abi::ibv_data_buf;

use crate::args::{Buffer, FromC, Handle, Length, Pointer};

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

impl<T: Copy, P: Pointer<Target = T>, N: Length> FromC<(P, N)> for List<'_, T> {
    #[inline(always)]
    unsafe fn from_c((first, count): (P, N)) -> Self {
        // SAFETY: same contract. A count that is too large for an `int` makes a shorter list.
        unsafe { Self::new(first.place(), count.count()) }
    }
}

impl<'a, T> List<'a, *mut T> {
    /// Returns the objects that the entries name, none for NULL.
    pub(crate) fn handles(self) -> impl Iterator<Item = Handle<'a, T>> {
        // SAFETY: by contract of `new`, each entry is NULL or a live object.
        self.iter().map(|entry| unsafe { Handle::new(entry) })
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

/// Returns an array that ends with NULL and that free(3) frees. NULL if there is no memory.
pub(crate) fn array_for_c<T>(entries: impl Iterator<Item = *mut T>) -> *mut *mut T {
    for_c(&entries.chain([ptr::null_mut()]).collect::<Vec<_>>())
}

/// Returns a copy that free(3) frees. NULL if there is no memory.
pub(crate) fn for_c<T: Copy>(entries: &[T]) -> *mut T {
    // SAFETY: calloc takes any size.
    let array: *mut T = unsafe { libc::calloc(entries.len(), size_of::<T>()) }.cast();
    if !array.is_null() {
        // SAFETY: the new array has that many entries.
        unsafe { ptr::copy_nonoverlapping(entries.as_ptr(), array, entries.len()) };
    }
    array
}

/// A terminated string, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    first: *const c_char,
    call: PhantomData<&'a CStr>,
}

impl<'a> Text<'a> {
    /// Makes an argument of a string of this library.
    pub(crate) const fn of(string: &'a CStr) -> Self {
        Self {
            first: string.as_ptr(),
            call: PhantomData,
        }
    }

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
