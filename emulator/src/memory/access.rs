//! The only accesses to registered memory.
//!
//! Registered memory belongs to the application, which may read and write it at any moment. It is
//! therefore never turned into a slice: bytes are copied through raw pointers, into or out of
//! memory of Rocade. Such a race yields what DMA would: old or new bytes.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::sync::RwLock;
use rocade_transport::{AtomicOp, MaskedOp, WideOperand};
use rocade_wire::crc;

use super::guard::kernel::Part;
use super::guard::section::guarded;
use super::guard::{CopyMethod, Fault, kernel};

/// A range of registered memory whose bounds and rights were checked. It may be unmapped all the
/// same, so every access can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    addr: usize,
    len: usize,
    method: CopyMethod,
}

impl Span {
    /// # Safety
    /// The mapped part of `addr..addr+len` must be memory that the engine may read and write. The
    /// application has promised that when it registered the memory (see `Pd::reg_mr`), and the
    /// region table is locked against deregistration.
    pub(super) const unsafe fn new(addr: usize, len: usize, method: CopyMethod) -> Self {
        Self { addr, len, method }
    }

    /// Length in bytes.
    #[inline]
    pub(super) const fn len(self) -> usize {
        self.len
    }

    fn source(self) -> *const u8 {
        ptr::with_exposed_provenance(self.addr)
    }
}

/// Registered memory to copy from, while the region table is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readable<'a> {
    span: Span,
    table: PhantomData<&'a ()>,
}

impl<'a> Readable<'a> {
    /// Makes the memory readable while `_table`, the locked region table, is borrowed.
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

    /// Returns the span of the bytes.
    pub(super) const fn span(self) -> Span {
        self.span
    }

    /// Copies all bytes. Both lengths must be equal.
    ///
    /// # Errors
    /// [`Fault`]. The content of `dst` is undefined then.
    pub(crate) fn copy(self, dst: &mut [u8]) -> Result<(), Fault> {
        read(self.span, dst)
    }

    /// Copies all bytes like [`copy`](Self::copy), and continues `crc` over `head` and the copied
    /// bytes.
    ///
    /// # Errors
    /// [`Fault`]. The content of `dst` is undefined then.
    #[inline]
    pub(crate) fn copy_and_sum(self, crc: u32, head: &[u8], dst: &mut [u8]) -> Result<u32, Fault> {
        let Span { addr, len, method } = self.span;
        assert_eq!(len, dst.len(), "span and buffer have the same length");
        if method == CopyMethod::Kernel {
            read(self.span, dst)?;
            return Ok(crc::update(crc::update(crc, head), dst));
        }
        let src = self.span.source();
        let mut sum = 0;
        // SAFETY: `Span::new`'s contract allows reading `src`, and `dst` is an exclusive slice of
        // Rocade. The routines are arithmetic, loads and stores into `dst`.
        unsafe { guarded(addr, len, || sum = crc::copy(crc, head, src, dst)) }?;
        Ok(sum)
    }

    /// Copies all bytes to memory that is no Rust object.
    ///
    /// # Errors
    /// [`Fault`]. The content at `dst` is undefined then.
    ///
    /// # Safety
    /// [`len`](Self::len) bytes must be writable at `dst`.
    #[inline]
    pub(crate) unsafe fn copy_to(self, dst: NonNull<u8>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { read_to(self.span, dst) }
    }
}

/// Copies from registered memory. Both lengths must be equal.
pub(super) fn read(span: Span, dst: &mut [u8]) -> Result<(), Fault> {
    assert_eq!(span.len, dst.len(), "span and buffer have the same length");
    let Some(dst) = NonNull::new(dst.as_mut_ptr()) else {
        return Ok(());
    };
    // SAFETY: `dst` is an exclusive slice of Rocade. If it were inside registered memory, the
    // application would have broken the contract.
    unsafe { read_to(span, dst) }
}

/// Copies from all places. The kernel copies many of them with one system call. The lengths of each
/// pair must be equal.
///
/// # Errors
/// [`Fault`]. The content of all destinations is undefined then.
pub(super) fn read_all(places: &mut [(Span, &mut [u8])]) -> Result<(), Fault> {
    let mut parts = Vec::with_capacity(places.len());
    for (span, dst) in places {
        assert_eq!(span.len, dst.len(), "span and buffer have the same length");
        match NonNull::new(dst.as_mut_ptr()) {
            Some(own) if span.method == CopyMethod::Kernel => parts.push(Part {
                addr: span.addr,
                own,
                len: span.len,
            }),
            _ => read(*span, dst)?,
        }
    }
    // SAFETY: the destinations are exclusive slices of Rocade.
    unsafe { kernel::read_all(&parts) }
}

/// # Safety
/// At least `span.len` bytes must be writable at `dst`.
#[inline]
unsafe fn read_to(span: Span, dst: NonNull<u8>) -> Result<(), Fault> {
    let Span { addr, len, method } = span;
    if method == CopyMethod::Kernel {
        // SAFETY: the caller's promise.
        return unsafe { kernel::read(addr, dst, len) };
    }
    let src = span.source();
    // SAFETY: `Span::new`'s contract allows reading `src`, and the caller's promise allows writing
    // to `dst`. A copy may be left anywhere.
    unsafe { guarded(addr, len, || ptr::copy(src, dst.as_ptr(), len)) }
}

//= ORD-02
//= ORD-03
/// Copies into registered memory, the last byte last: applications poll on it. The InfiniBand
/// specification does not promise that order, but hardware keeps it. Both lengths must be equal.
/// After a fault a part may have been copied.
pub(super) fn write(span: Span, src: &[u8]) -> Result<(), Fault> {
    let Span { addr, len, method } = span;
    assert_eq!(len, src.len(), "span and buffer have the same length");
    let dst = ptr::with_exposed_provenance_mut::<u8>(addr);
    if is_one_store(span) {
        let value = u64::from_ne_bytes(src.try_into().expect("eight bytes"));
        // SAFETY: aligned, and writable by `Span::new`'s contract.
        let target = unsafe { AtomicU64::from_ptr(dst.cast()) };
        return at_once(span, || target.store(value, Ordering::Release));
    }
    let Some((last, head)) = src.split_last() else {
        return Ok(());
    };
    if method == CopyMethod::Kernel {
        // SAFETY: `src` is readable, and `Span::new`'s contract allows writing.
        return unsafe { kernel::write(addr, NonNull::from(src).cast(), len) };
    }
    // SAFETY: as in `read_to`, with the roles exchanged. `head.len()` is inside the span, and a
    // byte is always aligned.
    unsafe {
        guarded(addr, len, || {
            ptr::copy(head.as_ptr(), dst, head.len());
            fence(Ordering::Release);
            dst.add(head.len()).write_volatile(*last);
        })
    }
}

/// Returns true if [`write()`] stores all bytes with one instruction.
const fn is_one_store(span: Span) -> bool {
    span.len == 8 && span.addr.is_multiple_of(8)
}

/// Copies payloads like [`write()`], in this order, many with one system call. Stops at the first
/// that is unmapped or has to be stored with one instruction. Returns the number of those copied.
///
/// Each has the length of its span, not 0. A flag tells whether its last byte must be stored last.
pub(super) fn write_ahead(payloads: &[(Span, &[u8], bool)]) -> usize {
    let mut parts = Vec::with_capacity(2 * payloads.len());
    let mut ends = Vec::with_capacity(payloads.len());
    for (span, payload, ordered) in payloads {
        assert_eq!(
            span.len,
            payload.len(),
            "span and payload have the same length"
        );
        // Other processors may reorder the stores of one call.
        if is_one_store(*span) || (*ordered && !cfg!(target_arch = "x86_64")) {
            break;
        }
        let own = NonNull::from(*payload).cast::<u8>();
        let whole = Part {
            addr: span.addr,
            own,
            len: span.len,
        };
        // SAFETY: `own` is the start of the payload, which has the length of the part.
        match unsafe { whole.split_last() }.filter(|_| *ordered) {
            Some(both) => parts.extend(both),
            None => parts.push(whole),
        }
        ends.push(parts.len());
    }
    // SAFETY: the payloads are readable, and `Span::new`'s contract allows writing.
    let copied = unsafe { kernel::write_some(&parts) };
    ends.iter().filter(|end| **end <= copied).count()
}

//= ATM-02
//= ATM-03
//= ATM-04
/// Executes an atomic on 8 bytes, atomic with respect to the CPU too. Returns `None` unless the
/// address is a multiple of 8.
pub(super) fn atomic(span: Span, op: AtomicOp) -> Option<Result<u64, Fault>> {
    if span.len != 8 || !span.addr.is_multiple_of(8) {
        return None;
    }
    let target = ptr::with_exposed_provenance_mut::<u64>(span.addr);
    // SAFETY: aligned, and writable by `Span::new`'s contract.
    let target = unsafe { AtomicU64::from_ptr(target) };
    let _narrow = WIDE.read();
    let mut original = 0;
    let executed = at_once(span, || {
        // It writes in any case, as the processor's compare-and-swap does.
        let changed = target.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| {
            Some(op.apply(old))
        });
        original = changed.unwrap_or_else(|old| old);
    });
    Some(executed.map(|()| original))
}

/// Held for writing by an atomic that is wider than those of the processor, and for reading by all
/// others.
static WIDE: RwLock<()> = RwLock::new(());

//= XAT-16
//= XAT-23
/// Executes a masked atomic on 2^`log_size` bytes. Up to 8 bytes it is atomic with respect to the
/// CPU too. Wider ones are atomic with respect to all atomics of this process. Returns `None`
/// unless the address is a multiple of the size.
pub(super) fn masked(
    span: Span,
    log_size: u8,
    op: &MaskedOp,
) -> Option<Result<WideOperand, Fault>> {
    let len = 1usize << log_size;
    if span.len != len || !span.addr.is_multiple_of(len) {
        return None;
    }
    let mut old = [0; 4];
    let executed = match log_size {
        2 => {
            let _narrow = WIDE.read();
            let target = ptr::with_exposed_provenance_mut::<u32>(span.addr);
            // SAFETY: aligned, and writable by `Span::new`'s contract.
            let target = unsafe { AtomicU32::from_ptr(target) };
            at_once(span, || {
                let mut found = target.load(Ordering::SeqCst);
                loop {
                    old[0] = u64::from(found);
                    #[expect(clippy::cast_possible_truncation, reason = "the value has 32 bits")]
                    let new = op.apply(log_size, &old)[0] as u32;
                    let order = Ordering::SeqCst;
                    match target.compare_exchange_weak(found, new, order, order) {
                        Ok(_) => break,
                        Err(other) => found = other,
                    }
                }
            })
        }
        3 => {
            let _narrow = WIDE.read();
            let target = ptr::with_exposed_provenance_mut::<u64>(span.addr);
            // SAFETY: aligned, and writable by `Span::new`'s contract.
            let target = unsafe { AtomicU64::from_ptr(target) };
            at_once(span, || {
                let mut found = target.load(Ordering::SeqCst);
                loop {
                    old[0] = found;
                    let new = op.apply(log_size, &old)[0];
                    let order = Ordering::SeqCst;
                    match target.compare_exchange_weak(found, new, order, order) {
                        Ok(_) => break,
                        Err(other) => found = other,
                    }
                }
            })
        }
        _ => {
            let _alone = WIDE.write();
            let target = ptr::with_exposed_provenance_mut::<u64>(span.addr);
            at_once(span, || {
                for (index, word) in old.iter_mut().enumerate().take(len / 8) {
                    // SAFETY: inside the span, aligned, and readable by `Span::new`'s contract.
                    *word =
                        unsafe { AtomicU64::from_ptr(target.add(index)) }.load(Ordering::SeqCst);
                }
                let new = op.apply(log_size, &old);
                for (index, word) in new.iter().enumerate().take(len / 8) {
                    // SAFETY: inside the span, aligned, and writable by `Span::new`'s contract.
                    unsafe { AtomicU64::from_ptr(target.add(index)) }
                        .store(*word, Ordering::SeqCst);
                }
            })
        }
    };
    Some(executed.map(|()| old))
}

/// Writes 8 bytes with one instruction. Returns `None` unless the address is a multiple of 8.
//= ETH-12
pub(super) fn store(span: Span, bytes: [u8; 8]) -> Option<Result<(), Fault>> {
    if span.len != 8 || !span.addr.is_multiple_of(8) {
        return None;
    }
    let target = ptr::with_exposed_provenance_mut::<u64>(span.addr);
    // SAFETY: aligned, and writable by `Span::new`'s contract.
    let target = unsafe { AtomicU64::from_ptr(target) };
    let value = u64::from_ne_bytes(bytes);
    let _narrow = WIDE.read();
    Some(at_once(span, || target.store(value, Ordering::SeqCst)))
}

/// Runs an access that consists of loads, stores and arithmetic on the aligned bytes of a span on
/// one page. The kernel cannot run such an access, so with [`CopyMethod::Kernel`] it is only asked
/// whether the bytes are mapped.
#[inline]
fn at_once(span: Span, access: impl FnMut()) -> Result<(), Fault> {
    if span.method == CopyMethod::Kernel {
        kernel::probe(span.addr)?;
    }
    // SAFETY: loads, stores and arithmetic, which may be left anywhere.
    unsafe { guarded(span.addr, span.len, access) }
}
