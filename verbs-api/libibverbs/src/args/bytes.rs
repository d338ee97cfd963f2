//! Bytes of the program and of this library.

use std::{
    ffi::{c_int, c_void},
    marker::PhantomData,
    ptr, slice,
};

use libc::{sockaddr_in, sockaddr_in6, sockaddr_storage};
use rocade_abi::{ibv_gid, ibv_path_data, sockaddr_ib};

use crate::args::{FromC, Length, Pointer};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_ends_with_the_whole() {
        let bytes = [1, 2, 3, 4];
        let all = Buffer::of(&bytes);
        assert_eq!(all.part(1, 2).to_vec(), [2, 3]);
        assert_eq!(all.part(3, 9).to_vec(), [4]);
        assert_eq!(all.part(9, 1).to_vec(), []);
    }
}
