//! The only accesses to registered memory.
//!
//! Registered memory belongs to the application, which may read and write it at any moment. So
//! it is never turned into a slice: bytes are copied through raw pointers into or out of
//! memory that only we use. What such a race yields is what DMA would: old or new bytes.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rocade_transport::AtomicOp;
use rocade_wire::crc;

/// A range of registered memory whose bounds and rights have been checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    addr: usize,
    len: usize,
}

impl Span {
    /// # Safety
    /// `addr..addr+len` must stay mapped for as long as the span is used: it was registered by
    /// someone who promised that (see `Pd::reg_mr`), and the region table is locked against
    /// deregistration.
    pub(super) const unsafe fn new(addr: usize, len: usize) -> Self {
        Self { addr, len }
    }
}

/// Registered memory to be copied from, while the region table is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readable<'a> {
    span: Span,
    table: PhantomData<&'a ()>,
}

impl<'a> Readable<'a> {
    /// `_table` is the locked region table.
    pub(super) const fn new<T>(span: Span, _table: &'a T) -> Self {
        Self {
            span,
            table: PhantomData,
        }
    }

    /// Length in bytes.
    #[inline]
    pub(crate) const fn len(self) -> usize {
        self.span.len
    }

    /// Copies all of it. Lengths must agree.
    pub(crate) fn copy(self, dst: &mut [u8]) {
        read(self.span, dst);
    }

    /// Likewise, and continues `crc` over `head` and what has been copied.
    #[inline]
    pub(crate) fn copy_and_sum(self, crc: u32, head: &[u8], dst: &mut [u8]) -> u32 {
        assert_eq!(self.span.len, dst.len(), "the caller cuts spans to size");
        let src = ptr::with_exposed_provenance::<u8>(self.span.addr);
        // SAFETY: as in `read`.
        unsafe { crc::copy(crc, head, src, dst) }
    }

    /// Copies all of it to memory that is no Rust object.
    ///
    /// # Safety
    /// [`len`](Self::len) bytes must be writable at `dst`.
    #[inline]
    pub(crate) unsafe fn copy_to(self, dst: NonNull<u8>) {
        let src = ptr::with_exposed_provenance::<u8>(self.span.addr);
        // SAFETY: `Span::new`'s contract makes `src` readable, the caller's promise `dst` writable.
        unsafe { ptr::copy(src, dst.as_ptr(), self.span.len) }
    }
}

/// Copies from registered memory. Lengths must agree.
pub(super) fn read(span: Span, dst: &mut [u8]) {
    assert_eq!(span.len, dst.len(), "the caller cuts spans to size");
    let src = ptr::with_exposed_provenance::<u8>(span.addr);
    // SAFETY: `Span::new`'s contract makes `src` readable for `len` bytes. `dst` is an exclusive
    // slice of ours; were it inside registered memory, the application broke the contract.
    unsafe { ptr::copy(src, dst.as_mut_ptr(), dst.len()) }
}

/// Copies into registered memory, the last byte last: programs poll on it (ORD-01 does not
/// promise that, hardware does it). Lengths must agree.
pub(super) fn write(span: Span, src: &[u8]) {
    assert_eq!(span.len, src.len(), "the caller cuts spans to size");
    let dst = ptr::with_exposed_provenance_mut::<u8>(span.addr);
    if src.len() == 8 && span.addr.is_multiple_of(8) {
        let value = u64::from_ne_bytes(src.try_into().expect("eight bytes"));
        // SAFETY: writable for 8 bytes by `Span::new`'s contract, and aligned.
        unsafe { AtomicU64::from_ptr(dst.cast()) }.store(value, Ordering::Release);
        return;
    }
    let Some((&last, head)) = src.split_last() else {
        return;
    };
    // SAFETY: as in `read`, with the roles exchanged.
    unsafe { ptr::copy(head.as_ptr(), dst, head.len()) };
    fence(Ordering::Release);
    // SAFETY: `head.len()` is inside the span; a byte is always aligned.
    unsafe { dst.add(head.len()).write_volatile(last) };
}

/// Executes an atomic on 8 bytes, atomic with respect to the CPU too (ATM-03, ATM-04).
/// The address must be a multiple of 8; otherwise `None`.
pub(super) fn atomic(span: Span, op: AtomicOp) -> Option<u64> {
    if span.len != 8 || !span.addr.is_multiple_of(8) {
        return None;
    }
    let target = ptr::with_exposed_provenance_mut::<u64>(span.addr);
    // SAFETY: valid for 8 bytes by `Span::new`'s contract, and aligned.
    let target = unsafe { AtomicU64::from_ptr(target) };
    Some(match op {
        AtomicOp::CmpSwap { compare, swap } => target
            .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|found| found),
        //= ATM-06
        AtomicOp::FetchAdd { add } => target.fetch_add(add, Ordering::SeqCst),
    })
}
