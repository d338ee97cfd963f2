//! Device memory. It is memory of the process that only Rocade's copies and memory regions access.

use std::sync::atomic::AtomicU64;

use super::access::{self, Span};
use super::guard::CopyMethod;

const WORD: usize = size_of::<u64>();

/// Zeroed memory, aligned for atomics.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    words: Box<[AtomicU64]>,
    len: usize,
}

impl DeviceMemory {
    /// Allocates `len` zeroed bytes.
    pub(crate) fn new(len: usize) -> Self {
        let words = std::iter::repeat_with(AtomicU64::default);
        let words = words.take(len.div_ceil(WORD)).collect();
        Self { words, len }
    }

    /// Length in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Number of bytes that it takes of the device's memory.
    pub(crate) const fn footprint(&self) -> usize {
        self.words.len() * WORD
    }

    /// Address of a part, or `None` if the part is not inside.
    pub(crate) fn place(&self, offset: usize, len: usize) -> Option<usize> {
        let end = offset.checked_add(len)?;
        let start = self.words.as_ptr().expose_provenance();
        (end <= self.len).then(|| start + offset)
    }

    fn span(&self, offset: u64, len: usize) -> Option<Span> {
        let addr = self.place(usize::try_from(offset).ok()?, len)?;
        // SAFETY: inside the allocation, which `&self` keeps alive. The only references to it are
        // to atomics, which allow concurrent changes of their memory.
        Some(unsafe { Span::new(addr, len, CopyMethod::Section) })
    }

    /// Copies into it. Returns `None` beyond the end, without having written anything.
    pub(crate) fn write(&self, offset: u64, src: &[u8]) -> Option<()> {
        access::write(self.span(offset, src.len())?, src).ok()
    }

    /// Copies from it. Returns `None` beyond the end.
    pub(crate) fn read(&self, offset: u64, dst: &mut [u8]) -> Option<()> {
        access::read(self.span(offset, dst.len())?, dst).ok()
    }
}
