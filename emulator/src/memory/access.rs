//! The only accesses to registered memory.
//!
//! Registered memory belongs to the application, which may read and write it at any moment. So
//! it is never turned into a slice: bytes are copied through raw pointers into or out of
//! memory that only we use. What such a race yields is what DMA would: old or new bytes.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rocade_transport::AtomicOp;

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

/// Registered memory in place, for sending.
///
/// The one exception to the rule of this file: what is sent for the first time need not be copied. The
/// application must leave a send buffer alone until its completion; where it, or a peer's WRITE, does
/// not, the bytes are any. `_table` is the locked region table.
pub(super) fn in_place<T>(span: Span, _table: &T) -> &[u8] {
    let src = ptr::with_exposed_provenance::<u8>(span.addr);
    // SAFETY: not null (it was registered) and, by `Span::new`'s contract, readable as long as the
    // table is locked. That nobody writes meanwhile is the application's duty. Where it fails in it,
    // the bytes are only summed up and handed to the kernel: neither cares whether it sees the same
    // bytes twice.
    unsafe { std::slice::from_raw_parts(src, span.len) }
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
