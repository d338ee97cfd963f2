//! The caller's buffers, contiguous or scattered (`iovec`).

use std::ptr;

use libc::iovec;

use super::memory::Buffer;
use crate::ffi::Errno;

/// A position in a list of buffers.
pub(super) struct Cursor {
    one: [iovec; 1],
    /// Empty if there is only one buffer.
    several: Vec<iovec>,
    entry: usize,
    at: usize,
    left: usize,
    total: usize,
}

impl Cursor {
    /// Creates a cursor of one buffer.
    ///
    /// # Safety
    /// The buffer must be readable for `len` bytes during the lifetime of the cursor, and writable
    /// if it is written to.
    pub(super) unsafe fn one(start: *const u8, len: usize) -> Result<Self, Errno> {
        let entry = iovec {
            iov_base: start.cast_mut().cast(),
            iov_len: len,
        };
        Self::new(entry, Vec::new())
    }

    /// Creates a cursor of several buffers.
    ///
    /// # Safety
    /// As for [`Self::one`], for each buffer. The list must be readable.
    pub(super) unsafe fn several(entries: *const iovec, count: usize) -> Result<Self, Errno> {
        /// The limit of the kernel, `UIO_MAXIOV`.
        const MOST: usize = 1024;
        const NOTHING: iovec = iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        };
        if count > MOST {
            return Err(Errno(libc::EMSGSIZE));
        }
        if count == 0 {
            return Self::new(NOTHING, Vec::new());
        }
        if entries.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: by contract.
        let entries = unsafe { std::slice::from_raw_parts(entries, count) };
        Self::new(NOTHING, entries.to_vec())
    }

    fn new(one: iovec, several: Vec<iovec>) -> Result<Self, Errno> {
        let mut total = 0_usize;
        for entry in [one].iter().chain(&several) {
            if entry.iov_base.is_null() && entry.iov_len > 0 {
                return Err(Errno(libc::EFAULT));
            }
            total = total.checked_add(entry.iov_len).ok_or(Errno::INVAL)?;
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
        mut each: impl FnMut(*mut u8, usize, usize) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < len {
            let entries = if self.several.is_empty() {
                &self.one[..]
            } else {
                &self.several
            };
            let entry = entries.get(self.entry).ok_or(Errno::INVAL)?;
            let now = (entry.iov_len - self.at).min(len - done);
            if now > 0 {
                let place = entry.iov_base.cast::<u8>().wrapping_add(self.at);
                each(place, done, now)?;
            }
            done += now;
            self.at += now;
            self.left -= now;
            if self.at == entry.iov_len {
                self.entry += 1;
                self.at = 0;
            }
        }
        Ok(())
    }

    /// Copies the next bytes from the caller, as many as fit.
    pub(super) fn copy(&mut self, to: &mut [u8]) {
        let len = to.len().min(self.left);
        let to = to.as_mut_ptr();
        let _ = self.walk(len, |from, at, now| {
            // SAFETY: readable by the contract of the constructor, and `to` has room for `len`
            // bytes.
            unsafe { ptr::copy_nonoverlapping(from, to.wrapping_add(at), now) };
            Ok(())
        });
    }

    /// Copies bytes to the caller.
    pub(super) fn fill(&mut self, from: &[u8]) {
        let len = from.len().min(self.left);
        let _ = self.walk(len, |to, at, now| {
            // SAFETY: writable by the contract of the constructor.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr().wrapping_add(at), to, now) };
            Ok(())
        });
    }

    /// Copies the next bytes into a registered buffer.
    pub(super) fn stage(&mut self, to: &Buffer, place: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: readable by the contract of the constructor.
        self.walk(len, |from, at, now| unsafe {
            to.put(place + at, from, now)
        })
    }

    /// Copies bytes of a registered buffer to the caller.
    pub(super) fn unstage(&mut self, from: &Buffer, place: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: writable by the contract of the constructor.
        self.walk(len, |to, at, now| unsafe { from.get(place + at, to, now) })
    }
}
