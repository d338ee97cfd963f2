//! The caller's buffers, contiguous or scattered (`iovec`).

use super::memory::Buffer;
use crate::{
    args::{self, Bytes, Reads, Room, Scattered, Writes},
    ffi::Errno,
};

/// A position in a list of buffers, which are read or written.
pub(super) struct Cursor<'a, K> {
    one: [Bytes<'a, K>; 1],
    /// Empty if there is only one buffer.
    several: Vec<Bytes<'a, K>>,
    entry: usize,
    at: usize,
    left: usize,
    total: usize,
}

/// A position in buffers that are sent.
pub(super) type Source<'a> = Cursor<'a, Reads>;

/// A position in buffers that are received into.
pub(super) type Target<'a> = Cursor<'a, Writes>;

impl<'a, K> Cursor<'a, K> {
    /// Creates a cursor of one buffer.
    pub(super) fn one(buffer: Bytes<'a, K>) -> Result<Self, Errno> {
        Self::new(buffer, Vec::new())
    }

    /// Creates a cursor of several buffers.
    pub(super) fn several(entries: Scattered<'a, K>) -> Result<Self, Errno> {
        /// The limit of the kernel, `UIO_MAXIOV`.
        const MOST: usize = 1024;
        let count = usize::try_from(entries.count()).map_err(|_| Errno::INVAL)?;
        if count > MOST {
            return Err(Errno(libc::EMSGSIZE));
        }
        if count == 0 {
            return Self::new(Bytes::NONE, Vec::new());
        }
        if entries.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        Self::new(Bytes::NONE, entries.buffers().collect())
    }

    fn new(one: Bytes<'a, K>, several: Vec<Bytes<'a, K>>) -> Result<Self, Errno> {
        let mut total = 0_usize;
        for entry in [one].iter().chain(&several) {
            if entry.is_null() && entry.len() > 0 {
                return Err(Errno(libc::EFAULT));
            }
            total = total.checked_add(entry.len()).ok_or(Errno::INVAL)?;
        }
        // The return value of the call is signed.
        if isize::try_from(total).is_err() {
            return Err(Errno::INVAL);
        }
        Ok(Self {
            one: [one],
            several,
            entry: 0,
            at: 0,
            left: total,
            total,
        })
    }

    pub(super) const fn left(&self) -> usize {
        self.left
    }

    pub(super) const fn done(&self) -> usize {
        self.total - self.left
    }

    /// Advances by `len` bytes, and calls `each` with every part of a buffer.
    fn walk(
        &mut self,
        len: usize,
        mut each: impl FnMut(Bytes<'a, K>, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < len {
            let entries = if self.several.is_empty() {
                &self.one[..]
            } else {
                &self.several
            };
            let entry = *entries.get(self.entry).ok_or(Errno::INVAL)?;
            let part = entry.part(self.at, len - done);
            let now = part.len();
            if now > 0 {
                each(part, done)?;
            }
            done += now;
            self.at += now;
            self.left -= now;
            if self.at == entry.len() {
                self.entry += 1;
                self.at = 0;
            }
        }
        Ok(())
    }
}

impl Source<'_> {
    /// Copies the next bytes from the caller, as many as fit.
    pub(super) fn copy(&mut self, to: &mut [u8]) {
        let len = to.len().min(self.left);
        let _ = self.walk(len, |from, at| {
            from.copy_to(&mut to[at..]);
            Ok(())
        });
    }

    /// Copies the next bytes into a registered buffer.
    pub(super) fn stage(&mut self, to: &Buffer, place: usize, len: usize) -> Result<(), Errno> {
        self.walk(len, |from, at| to.put(place + at, from))
    }
}

impl Target<'_> {
    /// Copies bytes to the caller.
    pub(super) fn fill(&mut self, from: &[u8]) {
        let len = from.len().min(self.left);
        let from = args::Buffer::of(from);
        let _ = self.walk(len, |to: Room<'_>, at| {
            to.copy_from(from.part(at, to.len()));
            Ok(())
        });
    }

    /// Copies bytes of a registered buffer to the caller.
    pub(super) fn unstage(&mut self, from: &Buffer, place: usize, len: usize) -> Result<(), Errno> {
        self.walk(len, |to, at| from.get(place + at, to))
    }
}
