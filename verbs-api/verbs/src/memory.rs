//! Memory regions that own their buffer.
//!
//! The peer and the device may write a registered buffer at any moment, so no Rust reference to
//! it may exist. This module keeps the buffer behind a raw pointer and copies in and out with
//! relaxed atomic accesses: what races yields is old or new bytes, as with a real NIC.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub use rocade_emulator::Advice;
use rocade_emulator::{AccessFlags, Lkey, Mr, Pd, Rereg, ReregFlags, Rkey, Sge, VerbsError};

use crate::device::ProtectionDomain;
use crate::endpoint::RemoteMemory;
use crate::error::{Error, Result};

/// Alignment of buffers in bytes: a page, as programs expect of registered memory.
const ALIGN: usize = 4096;

/// Bytes of one access.
const WORD: usize = 8;

/// Zeroed memory with a fixed address, accessed through its pointer only.
struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: the memory is owned by this value alone, and every access to it is atomic.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared access is what the atomics are for.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(len: usize) -> Result<Self> {
        let too_long = Error::OutOfRange {
            offset: 0,
            len,
            region_len: 0,
        };
        let Ok(layout) = Layout::from_size_align(len.max(1), ALIGN) else {
            return Err(too_long);
        };
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        Ok(Self { start, layout, len })
    }

    /// Checks that `len` bytes at `offset` are inside.
    fn check(&self, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::OutOfRange {
                offset,
                len,
                region_len: self.len,
            }),
        }
    }

    /// The byte at `offset`.
    fn byte(&self, offset: usize) -> Result<&AtomicU8> {
        self.check(offset, 1)?;
        // SAFETY: just checked to be inside the allocation, which `&self` keeps alive; a byte is
        // always aligned, and nobody makes a reference to the memory that is not atomic.
        Ok(unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(offset)) })
    }

    /// The 8 bytes at `offset`.
    fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.check(offset, WORD)?;
        if !offset.is_multiple_of(WORD) {
            return Err(Error::Misaligned { offset });
        }
        // SAFETY: inside the allocation and aligned, because its start is; otherwise as in `byte`.
        Ok(unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Memory that the device may access, and the peer as far as the access flags allow.
///
/// It owns its buffer, which lives until the region is dropped; work requests that still name it
/// then complete with a protection error. Read and write it with the methods here: the other side
/// may change it at any time, so there is no `&[u8]` to have.
///
/// ```
/// use rocade_verbs::{AccessFlags, Config, DeviceList};
///
/// let domain = DeviceList::new(Config::simulated(1))?.open("a")?.protection_domain()?;
/// let memory = domain.register(4096, AccessFlags::LOCAL_WRITE)?;
/// memory.write(8, b"hello")?;
/// assert_eq!(memory.to_vec(8, 5)?, b"hello");
/// // A scatter/gather entry of a work request, and what a peer needs to reach the region.
/// assert_eq!(memory.sge(8..13)?.len, 5);
/// assert_eq!(memory.remote().at(8).len, 4088);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
#[doc(alias = "ibv_reg_mr")]
pub struct MemoryRegion {
    mr: Mr,
    /// Freed by `drop`, and only once the device has let go of it.
    buffer: ManuallyDrop<Buffer>,
    /// Of its first byte, in requests.
    addr: u64,
    len: usize,
}

impl MemoryRegion {
    /// Registers `len` zeroed bytes, the first of which has the address `iova`, or that of the buffer.
    fn register(pd: &Pd, len: usize, iova: Option<u64>, access: AccessFlags) -> Result<Self> {
        let buffer = Buffer::new(len)?;
        // The device makes a pointer of this number.
        let addr = buffer.start.as_ptr().expose_provenance() as u64;
        // SAFETY: the buffer is mapped, readable and writable, and is freed in `drop` only, after
        // the region has been deregistered. All accesses of this crate are atomic.
        let mr = unsafe { pd.reg_mr(addr, len, iova.unwrap_or(addr), access) }?;
        Ok(Self {
            addr: mr.iova(),
            mr,
            buffer: ManuallyDrop::new(buffer),
            len,
        })
    }

    pub(crate) const fn raw(&self) -> &Mr {
        &self.mr
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Local key.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.mr.lkey()
    }

    /// Remote key.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }

    /// What the peer needs for RDMA on this region.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            addr: self.addr,
            rkey: self.rkey(),
            len: self.len as u64,
        }
    }

    /// What the peer may do from now on, also in the middle of its requests.
    ///
    /// # Errors
    /// [`Error::Verbs`]: contradictory rights, or windows are bound to the region.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn set_access(&self, access: AccessFlags) -> Result<()> {
        if access.contains(AccessFlags::ZERO_BASED) {
            return Err(VerbsError::InvalidArgument("access").into());
        }
        let change = Rereg {
            flags: ReregFlags::ACCESS,
            pd: None,
            addr: 0,
            len: 0,
            access: access | self.mr.access() & AccessFlags::ZERO_BASED,
        };
        // SAFETY: the memory stays the same.
        Ok(unsafe { self.mr.rereg(&change) }?)
    }

    /// Gives the region to another domain of the device: queue pairs of the old one can use it no longer, also in the middle of
    /// their requests.
    ///
    /// # Errors
    /// [`Error::Verbs`]: a domain of another device, or windows are bound to the region.
    #[doc(alias = "ibv_rereg_mr")]
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    //= MR-10
    pub fn set_domain(&self, pd: &ProtectionDomain) -> Result<()> {
        let change = Rereg {
            flags: ReregFlags::PD,
            pd: Some(pd.raw()),
            addr: 0,
            len: 0,
            access: AccessFlags::empty(),
        };
        // SAFETY: the memory stays the same.
        Ok(unsafe { self.mr.rereg(&change) }?)
    }

    /// Moves the region to a buffer of `len` bytes, with what is in it as far as that fits; the rest is zeros. The keys
    /// stay, addresses change: requests that name the old ones complete with an error. What the peer writes
    /// meanwhile may be lost.
    ///
    /// # Errors
    /// The region stays as it was. [`Error::OutOfRange`] for too many bytes; [`Error::Verbs`]: none, or windows are
    /// bound to the region.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        let buffer = Buffer::new(len)?;
        let addr = buffer.start.as_ptr().expose_provenance() as u64;
        let kept = self.to_vec(0, self.len.min(len))?;
        for (byte, at) in kept.into_iter().zip(0..) {
            buffer.byte(at)?.store(byte, Ordering::Relaxed);
        }
        let change = Rereg {
            flags: ReregFlags::TRANSLATION,
            pd: None,
            addr,
            len,
            access: AccessFlags::empty(),
        };
        // SAFETY: as in `register`, for the new buffer.
        unsafe { self.mr.rereg(&change) }?;
        let old = std::mem::replace(&mut self.buffer, ManuallyDrop::new(buffer));
        (self.addr, self.len) = (self.mr.iova(), len);
        // The device has let go of it: no access is in flight when `rereg` returns.
        drop(ManuallyDrop::into_inner(old));
        Ok(())
    }

    /// A part of the region as an entry of a work request's scatter/gather list; `..` is all.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if it is not inside, or longer than an entry can be (4 GiB - 1).
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        let reversed = Error::OutOfRange {
            offset: start,
            len: 0,
            region_len: self.len,
        };
        let len = end.checked_sub(start).ok_or(reversed)?;
        self.buffer.check(start, len)?;
        let too_long = |_| Error::OutOfRange {
            offset: start,
            len,
            region_len: self.len,
        };
        Ok(Sge {
            addr: self.addr + start as u64,
            len: u32::try_from(len).map_err(too_long)?,
            lkey: self.lkey(),
        })
    }

    /// Copies `data` into the region.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; nothing is written then.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        let buffer = &*self.buffer;
        buffer.check(offset, data.len())?;
        let (head, words) = data.split_at(head_len(offset, data.len()));
        for (at, &byte) in (offset..).zip(head) {
            buffer.byte(at)?.store(byte, Ordering::Relaxed);
        }
        let (words, tail) = words.as_chunks::<WORD>();
        let mut at = offset + head.len();
        for word in words {
            buffer
                .word(at)?
                .store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            at += WORD;
        }
        for (at, &byte) in (at..).zip(tail) {
            buffer.byte(at)?.store(byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies from the region into `data`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; `data` is unchanged then.
    pub fn read(&self, offset: usize, data: &mut [u8]) -> Result<()> {
        let buffer = &*self.buffer;
        buffer.check(offset, data.len())?;
        let (head, words) = data.split_at_mut(head_len(offset, data.len()));
        let mut at = offset;
        for byte in head {
            *byte = buffer.byte(at)?.load(Ordering::Relaxed);
            at += 1;
        }
        let (words, tail) = words.as_chunks_mut::<WORD>();
        for word in words {
            *word = buffer.word(at)?.load(Ordering::Relaxed).to_ne_bytes();
            at += WORD;
        }
        for byte in tail {
            *byte = buffer.byte(at)?.load(Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    /// A copy of `len` bytes of the region.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn to_vec(&self, offset: usize, len: usize) -> Result<Vec<u8>> {
        self.buffer.check(offset, len)?;
        let mut data = vec![0; len];
        self.read(offset, &mut data)?;
        Ok(data)
    }

    /// The 8 bytes at `offset` as a number in the byte order of this machine, which is what
    /// atomic operations of the peer work on. Sees all that the device wrote before a value that
    /// it sees.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn load_u64(&self, offset: usize) -> Result<u64> {
        Ok(self.buffer.word(offset)?.load(Ordering::Acquire))
    }

    /// Sets the 8 bytes at `offset`, as for [`load_u64`](Self::load_u64).
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<()> {
        self.buffer.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }
}

/// How many of `len` bytes at `offset` come before the first multiple of [`WORD`].
fn head_len(offset: usize, len: usize) -> usize {
    (offset.next_multiple_of(WORD) - offset).min(len)
}

impl ProtectionDomain {
    /// Registers a new buffer of `len` zero bytes, at least 1. Without rights it can be sent from;
    /// to receive into it takes `LOCAL_WRITE`, and so do `REMOTE_WRITE` and `REMOTE_ATOMIC`. With `ZERO_BASED` peers call its
    /// first byte 0.
    ///
    /// # Errors
    /// [`Error::Verbs`] if `len` is 0, the rights contradict each other, or keys run out.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&self, len: usize, access: AccessFlags) -> Result<MemoryRegion> {
        MemoryRegion::register(self.raw(), len, None, access)
    }

    /// Likewise; peers and requests call its first byte `address`, whatever that is in this process.
    ///
    /// # Errors
    /// As [`register`](Self::register); [`Error::Verbs`] also if the addresses end before the region.
    #[doc(alias = "ibv_reg_mr_iova")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    //= MR-05
    pub fn register_at(
        &self,
        len: usize,
        address: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion> {
        MemoryRegion::register(self.raw(), len, Some(address), access)
    }

    /// Has parts of regions ready before they are used, so that the first access waits for no page: of value to regions with
    /// `ON_DEMAND`. What is there already stays as it is.
    ///
    /// # Errors
    /// [`Error::Verbs`]: no part at all (EINVAL), one of another domain (ENOENT), of no region, or beyond its end
    /// (EFAULT), or one to be written that this side must not write (EPERM).
    #[doc(alias = "ibv_advise_mr")]
    //= ODP-05
    pub fn advise(&self, advice: Advice, parts: &[Sge]) -> Result<()> {
        if parts.is_empty() {
            return Err(VerbsError::InvalidArgument("no part of a region").into());
        }
        Ok(self.raw().advise_mr(advice, parts)?)
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("len", &self.len)
            .field("lkey", &self.lkey())
            .field("rkey", &self.rkey())
            .finish_non_exhaustive()
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // Windows that are bound to it are closed.
        self.mr.revoke();
        // SAFETY: the device has no access any more, and the field is not used after this.
        unsafe { ManuallyDrop::drop(&mut self.buffer) }
    }
}
