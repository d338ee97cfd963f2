//! Memory of the program whose length is another argument.

use std::{
    ffi::{c_int, c_void},
    fmt,
    marker::PhantomData,
    ptr,
};

use libc::{iovec, socklen_t};

use crate::{
    args::{Buffer, Bytes, FromC, InOut, List, Room},
    ffi::Errno,
};

/// A pointer as C declares it, to constant or to changeable memory.
pub(crate) trait Pointer: Copy {
    /// The type behind the pointer.
    type Target;

    /// Returns the pointer.
    fn place(self) -> *mut Self::Target;
}

impl<T> Pointer for *const T {
    type Target = T;

    #[inline(always)]
    fn place(self) -> *mut T {
        self.cast_mut()
    }
}

impl<T> Pointer for *mut T {
    type Target = T;

    #[inline(always)]
    fn place(self) -> *mut T {
        self
    }
}

/// A number of bytes or of entries, in one of the types that C declares.
pub(crate) trait Length: Copy {
    /// Returns the number, 0 if it is negative.
    fn len(self) -> usize;

    /// Returns the number, or the largest `int`.
    fn count(self) -> c_int;
}

macro_rules! lengths {
    ($($kind:ty),+) => { $(
        impl Length for $kind {
            #[inline(always)]
            fn len(self) -> usize {
                usize::try_from(self).unwrap_or(0)
            }

            #[inline(always)]
            fn count(self) -> c_int {
                c_int::try_from(self).unwrap_or(c_int::MAX)
            }
        }
    )+ };
}
lengths!(u8, u16, u32, u64, usize, c_int);

/// The buffers of readv(2) or writev(2), each of which is as the marker says.
pub(crate) struct Scattered<'a, K> {
    list: List<'a, iovec>,
    kind: PhantomData<K>,
}

impl<K, P: Pointer<Target = iovec>, N: Length> FromC<(P, N)> for Scattered<'_, K> {
    unsafe fn from_c(raw: (P, N)) -> Self {
        Self {
            // SAFETY: same contract.
            list: unsafe { List::from_c(raw) },
            kind: PhantomData,
        }
    }
}

impl<'a, K> Scattered<'a, K> {
    /// Returns the number of buffers as the program passed it.
    pub(crate) const fn count(&self) -> c_int {
        self.list.count()
    }

    /// Returns true for NULL.
    pub(crate) const fn is_null(&self) -> bool {
        self.list.is_null()
    }

    /// Returns the buffers, none for NULL.
    pub(crate) fn buffers(self) -> impl Iterator<Item = Bytes<'a, K>> {
        self.list.iter().map(|entry| {
            // SAFETY: by contract of `from_c`, each entry names such memory.
            unsafe { Bytes::new(entry.iov_base, entry.iov_len) }
        })
    }
}

/// Room for an answer, and a place for its length, which says before the call how much fits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    first: *mut c_void,
    len: InOut<'a, socklen_t>,
}

impl<P: Pointer> FromC<(P, *mut socklen_t)> for Answer<'_> {
    unsafe fn from_c((first, len): (P, *mut socklen_t)) -> Self {
        Self {
            first: first.place().cast(),
            // SAFETY: same contract.
            len: unsafe { InOut::new(len) },
        }
    }
}

impl Answer<'_> {
    /// No room, and no place for the length.
    pub(crate) fn none() -> Self {
        Self {
            first: ptr::null_mut(),
            len: InOut::NULL,
        }
    }

    /// Returns the pointers to the room and to its length.
    pub(crate) const fn as_ptrs(self) -> (*mut c_void, *mut socklen_t) {
        (self.first, self.len.as_ptr())
    }

    /// Returns true if there is no room at all.
    pub(crate) const fn is_null(self) -> bool {
        self.first.is_null()
    }

    /// Returns true if there is no place for the length.
    pub(crate) const fn has_no_length(self) -> bool {
        self.len.is_null()
    }

    /// Writes as much of an answer as fits. Returns how much that is.
    ///
    /// # Errors
    /// `EFAULT` for NULL.
    pub(crate) fn write(self, answer: &[u8]) -> Result<usize, Errno> {
        const FAULT: Errno = Errno(libc::EFAULT);
        let capacity = *self.len.read().map_err(|_| FAULT)?;
        let fits = answer.len().min(capacity.len());
        if fits > 0 && self.first.is_null() {
            return Err(FAULT);
        }
        // SAFETY: the program promises as much room as it has said.
        let room: Room<'_> = unsafe { Bytes::new(self.first, fits) };
        room.copy_from(Buffer::of(answer));
        Ok(fits)
    }

    /// Sets the length.
    pub(crate) fn set_len(self, len: usize) {
        // Without a place there was an error before.
        let _ = self.len.write(socklen_t::try_from(len).unwrap_or(0));
    }
}

/// An array that the call reads and to which it writes results. The pointer may be NULL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a, T> {
    first: *mut T,
    len: usize,
    call: PhantomData<&'a T>,
}

impl<T, N: Length> FromC<(*mut T, N)> for Places<'_, T> {
    unsafe fn from_c((first, len): (*mut T, N)) -> Self {
        Self {
            first,
            len: len.len(),
            call: PhantomData,
        }
    }
}

impl<'a, T> Places<'a, T> {
    /// Returns the number of entries.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns true for NULL.
    pub(crate) const fn is_null(&self) -> bool {
        self.first.is_null()
    }

    /// Returns an entry. NULL for NULL, and beyond the end.
    pub(crate) fn at(&self, index: usize) -> InOut<'a, T> {
        if self.first.is_null() || index >= self.len {
            return InOut::NULL;
        }
        // SAFETY: by contract of `from_c`, the array has that entry.
        unsafe { InOut::new(self.first.wrapping_add(index)) }
    }
}

/// A place for a structure of another release, and its length in bytes. The pointer may be NULL.
pub(crate) struct Resized<'a, T> {
    place: *mut T,
    len: usize,
    call: PhantomData<&'a T>,
}

impl<T> Clone for Resized<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Resized<'_, T> {}

impl<T> fmt::Debug for Resized<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:?}", self.len, self.place)
    }
}

impl<T> FromC<(*mut T, usize)> for Resized<'_, T> {
    unsafe fn from_c((place, len): (*mut T, usize)) -> Self {
        Self {
            place,
            len,
            call: PhantomData,
        }
    }
}

impl<T> Resized<'_, T> {
    /// Returns true for NULL.
    pub(crate) const fn is_null(self) -> bool {
        self.place.is_null()
    }

    /// Returns the length in bytes.
    pub(crate) const fn len(self) -> usize {
        self.len
    }

    /// Copies as much of `value` as there is room for. Clears the rest of a longer structure.
    ///
    /// # Errors
    /// `EINVAL` for NULL.
    pub(crate) fn write(self, value: &T) -> Result<(), Errno> {
        if self.place.is_null() {
            return Err(Errno::INVAL);
        }
        let bytes = self.place.cast::<u8>();
        let known = self.len.min(size_of::<T>());
        // SAFETY: `value` has `known` bytes, and so has the place, by contract of `from_c`. They do
        // not overlap, because no thread writes to a shared reference.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), bytes, known) };
        // SAFETY: bytes `known..len` are writable by contract.
        unsafe { bytes.add(known).write_bytes(0, self.len - known) };
        Ok(())
    }
}

/// An array of structures of another release: a pointer, the number of entries, and the length of
/// one in bytes. The pointer may be NULL.
pub(crate) struct ResizedList<'a, T> {
    first: *mut T,
    count: usize,
    len: usize,
    call: PhantomData<&'a T>,
}

impl<T, N: Length, L: Length> FromC<(*mut T, N, L)> for ResizedList<'_, T> {
    unsafe fn from_c((first, count, len): (*mut T, N, L)) -> Self {
        Self {
            first,
            count: count.len(),
            len: len.len(),
            call: PhantomData,
        }
    }
}

impl<'a, T> ResizedList<'a, T> {
    /// Returns the number of entries.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Returns the length of an entry in bytes.
    pub(crate) const fn entry_len(&self) -> usize {
        self.len
    }

    /// Returns true for NULL.
    pub(crate) const fn is_null(&self) -> bool {
        self.first.is_null()
    }

    /// Returns the place of an entry. NULL for NULL, and beyond the end.
    pub(crate) fn at(&self, index: usize) -> Resized<'a, T> {
        let is_there = !self.first.is_null() && index < self.count;
        let place = if is_there {
            self.first.wrapping_byte_add(index.wrapping_mul(self.len))
        } else {
            ptr::null_mut()
        };
        Resized {
            place,
            len: self.len,
            call: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_structure_is_cleared_behind_the_known_part() {
        let mut target = [0xffu8; 8];
        let mut write = |value: u32, len| {
            let place = target.as_mut_ptr().cast::<u32>();
            // SAFETY: the array has 6 bytes and more.
            let place: Resized<'_, u32> = unsafe { FromC::from_c((place, len)) };
            assert_eq!(place.write(&value), Ok(()));
            target
        };
        assert_eq!(write(0x0101_0101, 6), [1, 1, 1, 1, 0, 0, 0xff, 0xff]);
        assert_eq!(write(0, 2), [0, 0, 1, 1, 0, 0, 0xff, 0xff]);
    }
}
