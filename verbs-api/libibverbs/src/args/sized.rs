//! Memory of the program whose length is another argument.

use std::{
    ffi::{c_int, c_void},
    fmt,
    marker::PhantomData,
    ptr, slice,
};

use libc::{iovec, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use rocade_abi::{ibv_gid, ibv_path_data, sockaddr_ib};

use crate::{
    args::{FromC, InOut, List},
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

/// A type of which any bytes are a value, and whose bytes are all initialized.
///
/// # Safety
/// Each member must be an integer or an array of integers, without padding between them.
pub(crate) unsafe trait AnyBytes: Copy {}

/// Implements [`AnyBytes`] for integers, and for structures and unions of them.
macro_rules! any_bytes {
    ($($kind:ty),+ $(,)?) => { $(
        // SAFETY: integers and arrays of them, which fill the type.
        unsafe impl $crate::args::AnyBytes for $kind {}
    )+ };
}
pub(crate) use any_bytes;

any_bytes!(
    u8,
    u16,
    u32,
    u64,
    c_int,
    ibv_gid,
    ibv_path_data,
    sockaddr_ib,
    sockaddr_in,
    sockaddr_in6,
    sockaddr_storage,
);

/// Returns the bytes of a value.
pub(crate) const fn bytes_of<T: AnyBytes>(value: &T) -> &[u8] {
    // SAFETY: as long as the value, whose bytes are initialized.
    unsafe { slice::from_raw_parts(ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Returns the bytes of a value, for changes.
pub(crate) const fn bytes_of_mut<T: AnyBytes>(value: &mut T) -> &mut [u8] {
    // SAFETY: as long as the value, for which any bytes are allowed.
    unsafe { slice::from_raw_parts_mut(ptr::from_mut(value).cast(), size_of::<T>()) }
}

/// Returns the bytes of a GID.
pub(crate) fn gid_bytes(gid: &ibv_gid) -> [u8; 16] {
    bytes_of(gid).first_chunk().copied().unwrap_or_default()
}

/// Marks bytes that the call reads.
#[derive(Debug)]
pub(crate) enum Reads {}

/// Marks bytes that the call writes.
#[derive(Debug)]
pub(crate) enum Writes {}

/// Bytes that the call reads or writes, at a pointer that may be NULL.
#[derive(Debug)]
pub(crate) struct Bytes<'a, K> {
    first: *mut c_void,
    len: usize,
    call: PhantomData<(&'a [u8], K)>,
}

impl<K> Clone for Bytes<'_, K> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Bytes<'_, K> {}

/// Bytes that the call reads. The pointer may be NULL.
pub(crate) type Buffer<'a> = Bytes<'a, Reads>;

/// Bytes that the call writes, and that may be uninitialized. The pointer may be NULL.
pub(crate) type Room<'a> = Bytes<'a, Writes>;

impl<K> Bytes<'_, K> {
    /// No bytes, at NULL.
    pub(crate) const NONE: Self = Self {
        first: ptr::null_mut(),
        len: 0,
        call: PhantomData,
    };

    /// Makes an argument of a pointer and a length in bytes.
    ///
    /// # Safety
    /// `first` must be NULL, or have `len` bytes that are readable or writable, as the type says,
    /// during the lifetime.
    #[inline]
    pub(crate) const unsafe fn new(first: *const c_void, len: usize) -> Self {
        Self {
            first: first.cast_mut(),
            len,
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

    /// Returns at most `len` bytes from an offset on.
    pub(crate) fn part(self, at: usize, len: usize) -> Self {
        let at = at.min(self.len);
        Self {
            first: self.first.wrapping_byte_add(at),
            len: len.min(self.len - at),
            call: PhantomData,
        }
    }
}

impl<K, P: Pointer, N: Length> FromC<(P, N)> for Bytes<'_, K> {
    #[inline]
    unsafe fn from_c((first, len): (P, N)) -> Self {
        // SAFETY: same contract.
        unsafe { Self::new(first.place().cast(), len.len()) }
    }
}

impl<'a> Buffer<'a> {
    /// Makes a buffer of bytes of this library.
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self {
            first: bytes.as_ptr().cast_mut().cast(),
            len: bytes.len(),
            call: PhantomData,
        }
    }

    /// Copies the first bytes to `target`, as many as both have, none from NULL.
    #[inline]
    pub(crate) fn copy_to(self, target: &mut [u8]) {
        Room::of(target).copy_from(self);
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

impl<'a> Room<'a> {
    /// Makes an argument of bytes of this library.
    pub(crate) const fn of(bytes: &'a mut [u8]) -> Self {
        Self {
            first: bytes.as_mut_ptr().cast(),
            len: bytes.len(),
            call: PhantomData,
        }
    }

    /// Copies the first bytes of `source`, as many as both have, none from or to NULL.
    #[inline]
    pub(crate) fn copy_from(self, source: Buffer<'_>) {
        let len = self.len.min(source.len);
        if len == 0 || self.is_null() || source.is_null() {
            return;
        }
        // SAFETY: both have that many bytes, which may overlap.
        unsafe { ptr::copy(source.first.cast::<u8>(), self.first.cast(), len) };
    }
}

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

    #[test]
    fn a_part_ends_with_the_whole() {
        let bytes = [1, 2, 3, 4];
        let all = Buffer::of(&bytes);
        assert_eq!(all.part(1, 2).to_vec(), [2, 3]);
        assert_eq!(all.part(3, 9).to_vec(), [4]);
        assert_eq!(all.part(9, 1).to_vec(), []);
    }
}
