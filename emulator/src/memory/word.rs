//! Eight bytes of the program that a counter adds to.

use rocade_transport::AtomicOp;

use super::access::{self, Span};
use super::guard::CopyMethod;
use super::mapping::{ADDRESSES, is_mapped};

const LEN: usize = size_of::<u64>();

/// A number in memory of the program. It may be unmapped at any time, and then accesses have no
/// effect.
///
/// It is not registered memory: an access takes no lock of the region table, so it is allowed where
/// that table is locked.
#[derive(Debug)]
pub(crate) struct Word {
    span: Span,
}

impl Word {
    /// Returns `None` unless the address is a multiple of 8 and mapped for writing.
    ///
    /// # Safety
    /// Until the word is dropped, the caller must be entitled to let Rocade write to what is mapped
    /// there, and no Rust reference to these bytes may be alive.
    pub(crate) unsafe fn new(addr: u64) -> Option<Self> {
        let len = LEN as u64;
        let end = addr.checked_add(len)?;
        let is_inside = addr >= ADDRESSES.start && end <= ADDRESSES.end;
        if !addr.is_multiple_of(len) || !is_inside || !is_mapped(addr, len, true) {
            return None;
        }
        let addr = usize::try_from(addr).ok()?;
        // The slower method, which works whatever handles faults in this process.
        // SAFETY: the caller's promise. No region table is needed, because this is no region.
        let span = unsafe { Span::new(addr, LEN, CopyMethod::Kernel) };
        Some(Self { span })
    }

    /// Adds to the number. Returns what it was before, or 0 if the memory is unmapped.
    pub(crate) fn add(&self, amount: u64) -> u64 {
        let added = access::atomic(self.span, AtomicOp::FetchAdd { add: amount });
        added.and_then(Result::ok).unwrap_or(0)
    }

    /// Sets the number.
    pub(crate) fn set(&self, value: u64) {
        // Nothing is left to be set where nothing is mapped.
        let _ = access::write(self.span, &value.to_ne_bytes());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn word(addr: usize) -> Option<Word> {
        // SAFETY: the tests below pass memory of atomics, or none.
        unsafe { Word::new(addr as u64) }
    }

    #[test]
    fn a_number_of_the_program_is_changed() {
        let memory = [AtomicU64::new(7), AtomicU64::new(8)];
        let addr = memory.as_ptr().expose_provenance();
        let number = word(addr).expect("it is mapped");
        assert_eq!(number.add(5), 7);
        assert_eq!(memory[0].load(Ordering::Acquire), 12);
        number.set(u64::MAX);
        assert_eq!(number.add(2), u64::MAX);
        assert_eq!(memory[0].load(Ordering::Acquire), 1);
        assert_eq!(memory[1].load(Ordering::Acquire), 8);
        assert!(word(addr + 4).is_none());
        assert!(word(0).is_none());
        assert!(word(usize::MAX - 7).is_none());
    }
}
