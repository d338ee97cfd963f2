//! Memory regions.
//!
//! The peer and the device may write a registered buffer at any moment, so no Rust reference to it
//! may exist. This module keeps the buffer behind a raw pointer and copies in and out with relaxed
//! atomic accesses. A copy that races with a write returns old or new bytes, as with a real NIC.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rocade_emulator::{
    AccessFlags, Lkey, Mr, Pd, Rereg, ReregFlags, Rkey, Sge, VerbsError as RawError,
};

use crate::device::ProtectionDomain;
use crate::endpoint::RemoteMemory;
use crate::error::{RangeError, RegisterError, Result, VerbsError, WordError};
use crate::range::resolve;

/// The alignment of buffers in bytes: one page, as programs expect of registered memory.
const ALIGN: usize = 4096;

/// The size of a word access in bytes.
const WORD: usize = 8;

/// The owner of the memory of a region.
enum Owner {
    /// This crate, which has allocated it.
    Allocated(Layout),
    /// The program too, which accesses it by atomics only.
    Shared(#[expect(dead_code, reason = "keeps the memory")] Arc<[AtomicU8]>),
    /// This region alone, which got it as a vector with this capacity.
    Vector(usize),
    /// The program, which promised to keep it.
    Caller,
}

/// Memory with a fixed address, accessed only through its pointer.
struct Buffer {
    start: NonNull<u8>,
    owner: Owner,
    len: usize,
}

// SAFETY: every access to the memory is atomic. It belongs to this value, or is shared as atomics,
// or its owner has promised that it may be accessed from all threads.
unsafe impl Send for Buffer {}
// SAFETY: as above. The atomic accesses allow shared use.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(len: usize) -> Result<Self, VerbsError> {
        let Ok(layout) = Layout::from_size_align(len.max(1), ALIGN) else {
            return Err(RawError::InvalidArgument("len: longer than memory can be").into());
        };
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        let owner = Owner::Allocated(layout);
        Ok(Self { start, owner, len })
    }

    fn shared(bytes: Arc<[AtomicU8]>) -> Self {
        let start = NonNull::from(&*bytes).cast();
        let len = bytes.len();
        let owner = Owner::Shared(bytes);
        Self { start, owner, len }
    }

    fn of_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let owner = Owner::Vector(bytes.capacity());
        let len = bytes.len();
        // A vector is never at address 0.
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { start, owner, len }
    }

    /// Returns the bytes, without a copy if they came as a vector.
    fn into_vec(self) -> Vec<u8> {
        if let Owner::Vector(capacity) = self.owner {
            let own = ManuallyDrop::new(self);
            // SAFETY: the parts of the vector of `of_vec`, whose first `len` bytes are initialized.
            // Nothing else frees it, because the drop of this value does not run.
            return unsafe { Vec::from_raw_parts(own.start.as_ptr(), own.len, capacity) };
        }
        let bytes = (0..self.len).filter_map(|at| self.byte(at).ok());
        bytes.map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    fn addr(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    /// Returns the number of bytes, of `len` at `offset`, before the first aligned word.
    fn head_len(&self, offset: usize, len: usize) -> usize {
        let at = self.start.addr().get() + offset;
        (at.next_multiple_of(WORD) - at).min(len)
    }

    /// Checks that `len` bytes at `offset` are inside the buffer.
    fn check(&self, offset: usize, len: usize) -> Result<(), RangeError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(outside(offset, len, self.len)),
        }
    }

    /// Returns the byte at `offset`.
    fn byte(&self, offset: usize) -> Result<&AtomicU8, RangeError> {
        self.check(offset, 1)?;
        // SAFETY: `check` found the byte inside the allocation, which `&self` keeps alive. A byte
        // is always aligned, and all references to the memory are atomic.
        Ok(unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(offset)) })
    }

    /// Returns the 8 bytes at `offset`.
    fn word(&self, offset: usize) -> Result<&AtomicU64, WordError> {
        self.check(offset, WORD)?;
        if !(self.start.addr().get() + offset).is_multiple_of(WORD) {
            return Err(WordError::Misaligned { offset });
        }
        // SAFETY: inside the allocation, and aligned. Otherwise as in `byte`.
        Ok(unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) })
    }

    /// Returns the 8 bytes at an aligned offset.
    fn word_of_copy(&self, offset: usize) -> Result<&AtomicU64, RangeError> {
        self.word(offset).map_err(|error| match error {
            WordError::OutOfRange(error) => error,
            WordError::Misaligned { offset } => outside(offset, WORD, self.len),
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: allocated in `new` with this layout, and freed only here.
            Owner::Allocated(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            Owner::Vector(capacity) => {
                // SAFETY: the parts of the vector of `of_vec`, which is freed only here.
                let bytes = unsafe { Vec::from_raw_parts(self.start.as_ptr(), self.len, capacity) };
                drop(bytes);
            }
            Owner::Shared(_) | Owner::Caller => {}
        }
    }
}

/// Registered memory that the device may access, and the peer as far as the access flags allow.
///
/// A region of [`register`](ProtectionDomain::register) owns its buffer until it is dropped, and
/// one of [`register_vec`](ProtectionDomain::register_vec) gives it back. Work requests that still
/// name a dropped region complete with a protection error. The methods below copy from and to the
/// buffer. There is no `&[u8]` to it, because the peer may change it at any time.
///
/// ```
/// use rocade_verbs::{AccessFlags, Config, DeviceList};
///
/// let domain = DeviceList::new(Config::simulated(1))?.open("a")?.protection_domain()?;
/// let memory = domain.register(4096, AccessFlags::LOCAL_WRITE)?;
/// memory.write(8, b"hello")?;
/// assert_eq!(memory.to_vec(8..13)?, b"hello");
/// // A scatter/gather entry of a work request, and what a peer needs to reach the region.
/// assert_eq!(memory.sge(8..13)?.len, 5);
/// assert_eq!(memory.remote().at(8).len, 4088);
/// # Ok::<(), rocade_verbs::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
#[doc(alias = "ibv_reg_mr")]
pub struct MemoryRegion {
    mr: Mr,
    /// Freed by `drop`, after the region has been deregistered.
    buffer: ManuallyDrop<Buffer>,
    /// The address of the first byte in work requests.
    addr: u64,
    len: usize,
}

impl MemoryRegion {
    /// Registers `len` zero bytes. The first byte has the address `iova`, or by default its address
    /// in this process.
    fn register(
        pd: &Pd,
        len: usize,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<Self, VerbsError> {
        Self::of_buffer(pd, Buffer::new(len)?, iova, access)
    }

    fn of_buffer(
        pd: &Pd,
        buffer: Buffer,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<Self, VerbsError> {
        Self::try_buffer(pd, buffer, iova, access).map_err(|(_, error)| error)
    }

    /// Registers a buffer, or gives it back with the error.
    fn try_buffer(
        pd: &Pd,
        buffer: Buffer,
        iova: Option<u64>,
        access: AccessFlags,
    ) -> Result<Self, (Buffer, VerbsError)> {
        let len = buffer.len;
        // The device converts this number back to a pointer.
        let addr = buffer.addr() as u64;
        // SAFETY: the buffer is mapped, readable and writable. `drop` releases it after the region
        // has been deregistered. All accesses of this crate are atomic.
        match unsafe { pd.reg_mr(addr, len, iova.unwrap_or(addr), access) } {
            Ok(mr) => Ok(Self {
                addr: mr.iova(),
                mr,
                buffer: ManuallyDrop::new(buffer),
                len,
            }),
            Err(error) => Err((buffer, error.into())),
        }
    }

    pub(crate) const fn raw(&self) -> &Mr {
        &self.mr
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the local key.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.mr.lkey()
    }

    /// Returns the remote key.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }

    /// Returns the address, length and remote key that the peer needs for RDMA on this region.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            addr: self.addr,
            rkey: self.rkey(),
            len: self.len as u64,
        }
    }

    /// Sets the access rights. They take effect at once, also for requests in progress.
    ///
    /// # Errors
    /// [`VerbsError`] if the rights contradict each other, or if windows are bound to the region.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn set_access(&self, access: AccessFlags) -> Result<(), VerbsError> {
        if access.contains(AccessFlags::ZERO_BASED) {
            return Err(RawError::InvalidArgument("access: ZERO_BASED cannot change").into());
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

    /// Moves the region to another protection domain of the same device. Queue pairs of the old
    /// domain lose access at once, also for requests in progress.
    ///
    /// # Errors
    /// [`VerbsError`] if the domain belongs to another device, or if windows are bound to the
    /// region.
    #[doc(alias = "ibv_rereg_mr")]
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    //= MR-10
    pub fn set_domain(&self, pd: &ProtectionDomain) -> Result<(), VerbsError> {
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

    /// Moves the region to a new buffer of `len` bytes.
    ///
    /// The new buffer starts with the old contents, cut to `len` bytes. The rest is zeros. The keys
    /// stay the same, but the addresses change: requests that name old addresses complete with an
    /// error. What the peer writes during the call may be lost.
    ///
    /// # Errors
    /// [`VerbsError`] if `len` is 0 or too large, or if windows are bound to the region, which is
    /// unchanged then.
    pub fn resize(&mut self, len: usize) -> Result<(), VerbsError> {
        let buffer = Buffer::new(len)?;
        let addr = buffer.addr() as u64;
        // Both ranges are inside their buffers.
        let outside = |_: RangeError| RawError::Fault;
        let kept = self.to_vec(..self.len.min(len)).map_err(outside)?;
        for (byte, at) in kept.into_iter().zip(0..) {
            buffer
                .byte(at)
                .map_err(outside)?
                .store(byte, Ordering::Relaxed);
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
        // The device no longer accesses the old buffer: no access is in flight when `rereg`
        // returns.
        drop(ManuallyDrop::into_inner(old));
        Ok(())
    }

    /// Deregisters the region and returns its bytes. Those of
    /// [`register_vec`](ProtectionDomain::register_vec) come back without a copy. Requests that
    /// name the region complete with an error, and windows that are bound to it end.
    ///
    /// A region that futures use is in an [`Arc`], from which [`Arc::into_inner`] takes it when the
    /// last operation has completed.
    #[must_use]
    #[doc(alias = "ibv_dereg_mr")]
    pub fn deregister(mut self) -> Vec<u8> {
        // No access of the device is in flight when this returns.
        self.mr.revoke();
        let nothing = Buffer {
            start: NonNull::dangling(),
            owner: Owner::Caller,
            len: 0,
        };
        let buffer = std::mem::replace(&mut self.buffer, ManuallyDrop::new(nothing));
        ManuallyDrop::into_inner(buffer).into_vec()
    }

    /// Returns a part of the region as a scatter/gather entry of a work request. `..` is the whole
    /// region.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the region, or is longer than an entry can
    /// be (4 GiB - 1).
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, RangeError> {
        let (start, len) = resolve(&range, self.len)?;
        let too_long = |_| outside(start, len, self.len);
        Ok(Sge {
            addr: self.addr + start as u64,
            len: u32::try_from(len).map_err(too_long)?,
            lkey: self.lkey(),
        })
    }

    /// Copies `data` to the bytes at `offset`.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the region. Nothing is written then.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), RangeError> {
        let buffer = &*self.buffer;
        buffer.check(offset, data.len())?;
        let (head, words) = data.split_at(buffer.head_len(offset, data.len()));
        for (at, &byte) in (offset..).zip(head) {
            buffer.byte(at)?.store(byte, Ordering::Relaxed);
        }
        let (words, tail) = words.as_chunks::<WORD>();
        let mut at = offset + head.len();
        for word in words {
            buffer
                .word_of_copy(at)?
                .store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            at += WORD;
        }
        for (at, &byte) in (at..).zip(tail) {
            buffer.byte(at)?.store(byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies the bytes at `offset` to `data`.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the region. `data` is unchanged then.
    pub fn read(&self, offset: usize, data: &mut [u8]) -> Result<(), RangeError> {
        let buffer = &*self.buffer;
        buffer.check(offset, data.len())?;
        let (head, words) = data.split_at_mut(buffer.head_len(offset, data.len()));
        let mut at = offset;
        for byte in head {
            *byte = buffer.byte(at)?.load(Ordering::Relaxed);
            at += 1;
        }
        let (words, tail) = words.as_chunks_mut::<WORD>();
        for word in words {
            *word = buffer
                .word_of_copy(at)?
                .load(Ordering::Relaxed)
                .to_ne_bytes();
            at += WORD;
        }
        for byte in tail {
            *byte = buffer.byte(at)?.load(Ordering::Relaxed);
            at += 1;
        }
        Ok(())
    }

    /// Returns a copy of the bytes in `range`. `..` is the whole region.
    ///
    /// # Errors
    /// [`RangeError`] if the range is not inside the region.
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Result<Vec<u8>, RangeError> {
        let (offset, len) = resolve(&range, self.len)?;
        let mut data = vec![0; len];
        self.read(offset, &mut data)?;
        Ok(data)
    }

    /// Loads the 8 bytes at `offset` as a number in the byte order of this machine, which the
    /// peer's atomic operations use too.
    ///
    /// The load has acquire ordering: the caller also sees everything that the device wrote before
    /// the loaded value.
    ///
    /// # Errors
    /// - [`WordError::OutOfRange`] if the 8 bytes are not inside the region.
    /// - [`WordError::Misaligned`] if the address at `offset` is not a multiple of 8, which in
    ///   memory of [`ProtectionDomain::register`] is the case for other offsets.
    pub fn load_u64(&self, offset: usize) -> Result<u64, WordError> {
        Ok(self.buffer.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores the 8 bytes at `offset`, with release ordering. The byte order is that of
    /// [`load_u64`](Self::load_u64).
    ///
    /// # Errors
    /// As [`load_u64`](Self::load_u64).
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), WordError> {
        self.buffer.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }
}

const fn outside(offset: usize, len: usize, region_len: usize) -> RangeError {
    RangeError {
        offset: offset as u64,
        len: len as u64,
        region_len: region_len as u64,
    }
}

/// The whole region, of which an entry holds at most 4 GiB - 1.
impl From<&MemoryRegion> for Sge {
    fn from(region: &MemoryRegion) -> Self {
        Self {
            addr: region.addr,
            len: u32::try_from(region.len).unwrap_or(u32::MAX),
            lkey: region.lkey(),
        }
    }
}

impl ProtectionDomain {
    /// Registers a new buffer of `len` zero bytes.
    ///
    /// Without rights the buffer can only be sent from. Receiving into it needs `LOCAL_WRITE`, and
    /// `REMOTE_WRITE` and `REMOTE_ATOMIC` need `LOCAL_WRITE` too. With `ZERO_BASED`, the address of
    /// the first byte is 0.
    ///
    /// # Errors
    /// [`VerbsError`] if `len` is 0, if the rights contradict each other, or if no key is free.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register(&self, len: usize, access: AccessFlags) -> Result<MemoryRegion, VerbsError> {
        MemoryRegion::register(self.raw(), len, None, access)
    }

    /// Registers a new buffer whose first byte has the address `address` in work requests and for
    /// peers. The address in this process does not matter.
    ///
    /// # Errors
    /// - As [`register`](Self::register).
    /// - [`VerbsError`] also if the region would exceed the 64-bit address space.
    #[doc(alias = "ibv_reg_mr_iova")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    //= MR-05
    pub fn register_at(
        &self,
        len: usize,
        address: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        MemoryRegion::register(self.raw(), len, Some(address), access)
    }

    /// Registers memory that the program shares with the region, as atomic bytes. Their values
    /// stay. The region keeps the memory until it is dropped.
    ///
    /// 8-byte values of the region, as in [`MemoryRegion::load_u64`], need an aligned address then.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU8, Ordering};
    ///
    /// use rocade_verbs::{AccessFlags, Config, DeviceList};
    ///
    /// let domain = DeviceList::new(Config::simulated(1))?.open("a")?.protection_domain()?;
    /// let bytes: Arc<[AtomicU8]> = (0..4).map(AtomicU8::new).collect();
    /// let memory = domain.register_shared(Arc::clone(&bytes), AccessFlags::LOCAL_WRITE)?;
    /// memory.write(1, &[9])?;
    /// assert_eq!(bytes[1].load(Ordering::Relaxed), 9);
    /// assert_eq!(memory.to_vec(..)?, [0, 9, 2, 3]);
    /// # Ok::<(), rocade_verbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_shared(
        &self,
        bytes: Arc<[AtomicU8]>,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        MemoryRegion::of_buffer(self.raw(), Buffer::shared(bytes), None, access)
    }

    /// Registers the bytes of a vector or of a boxed slice, which moves into the region. Their
    /// values stay, and [`MemoryRegion::deregister`] returns them.
    ///
    /// 8-byte values of the region, as in [`MemoryRegion::load_u64`], need an aligned address then.
    ///
    /// ```
    /// use rocade_verbs::{AccessFlags, SendRequest, simulated_pair};
    /// use std::time::Duration;
    ///
    /// let (a, b) = simulated_pair(1)?;
    /// let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    /// let memory = b.domain.register_vec(vec![b'.'; 9], access)?;
    /// a.qp.post_send(&SendRequest::write_inline(b"here", memory.remote().at(2)))?;
    /// a.cq.wait(Duration::from_secs(1))?;
    /// assert_eq!(memory.deregister(), b"..here...");
    /// # Ok::<(), rocade_verbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RegisterError`], which gives the bytes back, in the cases of [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_vec(
        &self,
        bytes: impl Into<Vec<u8>>,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegisterError> {
        let bytes = bytes.into();
        if bytes.capacity() == 0 {
            // It has no address.
            let region = self.register(0, access);
            return region.map_err(|error| RegisterError { bytes, error });
        }
        let buffer = Buffer::of_vec(bytes);
        MemoryRegion::try_buffer(self.raw(), buffer, None, access).map_err(|(buffer, error)| {
            RegisterError {
                bytes: buffer.into_vec(),
                error,
            }
        })
    }

    /// Registers `len` bytes from `start` on that belong to the program: huge pages, a mapped file,
    /// or the mapping of a dma-buf. Their values stay.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # Safety
    /// Until the region is dropped, the memory stays mapped, readable, and writable as far as
    /// `access` or the methods of the region write. The device and peers access it from other
    /// threads meanwhile, so no Rust reference to it exists but those to atomics.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_raw(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let owner = Owner::Caller;
        let buffer = Buffer { start, owner, len };
        MemoryRegion::of_buffer(self.raw(), buffer, None, access)
    }

    /// Prefetches parts of regions, so that the first access does not wait for page faults. It
    /// helps regions with `ON_DEMAND`. Contents do not change.
    ///
    /// # Errors
    /// [`VerbsError`]:
    /// - EINVAL if `parts` is empty.
    /// - ENOENT for a part in another protection domain.
    /// - EFAULT for a part of no region, or beyond the end of its region.
    /// - EPERM for a part to be written whose region does not allow local writes.
    #[doc(alias = "ibv_advise_mr")]
    //= ODP-05
    pub fn advise(&self, advice: Advice, parts: &[Sge]) -> Result<(), VerbsError> {
        if parts.is_empty() {
            return Err(RawError::InvalidArgument("the list of parts is empty").into());
        }
        Ok(self.raw().advise_mr(advice.raw(), parts)?)
    }
}

/// The intended use of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "ibv_advise_mr_advice")]
pub enum Advice {
    /// The memory will be read soon.
    Prefetch,
    /// The memory will be written soon.
    PrefetchWrite,
    /// The memory will be used soon. Pages that are not resident stay so.
    PrefetchNoFault,
}

impl Advice {
    const fn raw(self) -> rocade_emulator::Advice {
        match self {
            Self::Prefetch => rocade_emulator::Advice::Prefetch,
            Self::PrefetchWrite => rocade_emulator::Advice::PrefetchWrite,
            Self::PrefetchNoFault => rocade_emulator::Advice::PrefetchNoFault,
        }
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
        // This also invalidates windows that are bound to the region.
        self.mr.revoke();
        // SAFETY: the device can no longer access the buffer, and the field is not used after this.
        unsafe { ManuallyDrop::drop(&mut self.buffer) }
    }
}
