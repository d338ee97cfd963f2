//! Registered memory in a vector.

use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;

use rocade_wire::{Lkey, Qpn, Rkey};

use crate::indirect::{Fill, Indirect, Listed};
use crate::masked::{self, MaskedOp, WideOperand};
use crate::memory::{
    AccessError, Accessor, AtomicOp, Extent, LocalAccess, Memory, PdTag, RemoteAccess,
};
use crate::transmit::Source;
use crate::window::{Bind, BindError, Bindable, Window, WindowKind};
use crate::wr::{AccessFlags, Sge};

/// Address of the first region. Regions lie apart, so that an overrun hits no other region.
const BASE: u64 = 0x10_0000;
const GAP: u64 = 0x1_0000;
/// Index of the first window key. All higher ones are those of windows, too.
const WINDOWS: u32 = 0x1_0000;
/// Index of the first indirect key.
const INDIRECT: u32 = 0x2_0000;

/// A registered region: keys and location, not the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Local key.
    pub lkey: Lkey,
    /// Remote key, different from the local one to catch a mix-up.
    pub rkey: Rkey,
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

impl Region {
    /// The whole region as a scatter/gather entry.
    #[must_use]
    pub const fn sge(&self) -> Sge {
        Sge {
            addr: self.addr,
            len: self.len,
            lkey: self.lkey,
        }
    }

    /// Returns `len` bytes from offset `offset`. They may lie outside, to provoke errors.
    #[must_use]
    pub const fn part(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: self.addr + offset,
            len,
            lkey: self.lkey,
        }
    }
}

#[derive(Debug)]
struct Mr {
    region: Region,
    flags: AccessFlags,
    pd: PdTag,
    live: bool,
    /// Number of bytes that are mapped.
    mapped: usize,
    bytes: Vec<u8>,
}

/// Memory of one process as one QP sees it, see [`Memory`].
#[derive(Debug)]
pub struct TestMemory {
    regions: RefCell<Vec<Mr>>,
    atomics: Cell<u64>,
    writes: Cell<u64>,
    extent: Cell<Extent>,
    windows: RefCell<Vec<Window>>,
    indirect: RefCell<Vec<Indirect>>,
}

impl Default for TestMemory {
    fn default() -> Self {
        Self {
            regions: RefCell::default(),
            atomics: Cell::default(),
            writes: Cell::default(),
            extent: Cell::new(Extent::One),
            windows: RefCell::default(),
            indirect: RefCell::default(),
        }
    }
}

impl TestMemory {
    /// The protection domain of [`register`](Self::register), and of a QP of
    /// [`Setup`](super::Setup).
    pub const PD: PdTag = PdTag(1);

    /// Creates a memory without regions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers `len` bytes of zeros.
    pub fn register(&self, len: u32, flags: AccessFlags) -> Region {
        self.add(len, flags, Self::PD)
    }

    /// Registers a region in a protection domain other than that of the QP.
    pub fn register_foreign(&self, len: u32, flags: AccessFlags) -> Region {
        self.add(len, flags, PdTag(Self::PD.0 + 1))
    }

    fn add(&self, len: u32, flags: AccessFlags, pd: PdTag) -> Region {
        let mut regions = self.regions.borrow_mut();
        let addr = regions.last().map_or(BASE, |mr| {
            (mr.region.addr + u64::from(mr.region.len)).next_multiple_of(GAP) + GAP
        });
        let index = u32::try_from(regions.len()).expect("few regions");
        let region = Region {
            lkey: Lkey::new(index << 8 | 0x51),
            rkey: Rkey::new(index << 8 | 0xa7),
            addr,
            len,
        };
        regions.push(Mr {
            region,
            flags,
            pd,
            live: true,
            mapped: len as usize,
            bytes: vec![0; len as usize],
        });
        region
    }

    /// Allocates a free memory window and returns its key.
    pub fn alloc_window(&self, kind: WindowKind) -> Rkey {
        let mut windows = self.windows.borrow_mut();
        let index = WINDOWS + u32::try_from(windows.len()).expect("few windows");
        let rkey = Rkey::new(index << 8 | 0x33);
        windows.push(Window::new(kind, Self::PD, rkey));
        rkey
    }

    /// Creates a free indirect key, local and remote, with `capacity` entries and all rights.
    pub fn create_indirect(&self, capacity: u32) -> Rkey {
        let mut keys = self.indirect.borrow_mut();
        let index = INDIRECT + u32::try_from(keys.len()).expect("few keys");
        let key = Rkey::new(index << 8 | 0x77);
        keys.push(Indirect::new(Self::PD, key, capacity, Indirect::RIGHTS));
        key
    }

    /// Calls `f` with the indirect key of this number.
    fn with_indirect<R>(&self, key: u32, f: impl FnOnce(&mut Indirect) -> R) -> Option<R> {
        let mut keys = self.indirect.borrow_mut();
        let found = keys.iter_mut().find(|found| found.key().get() == key);
        found.map(f)
    }

    /// Returns the segments of regions for an access through an indirect key. All of them are
    /// mapped.
    fn segments(
        &self,
        who: Accessor,
        key: u32,
        (addr, len): (u64, u64),
        needed: AccessFlags,
        level: u8,
    ) -> Result<Vec<(Lkey, u64, u64)>, AccessError> {
        let mut listed = Vec::new();
        let found = self.with_indirect(key, |indirect| {
            indirect.segments(who, (addr, len), needed, |lkey, addr, len| {
                listed.push((lkey, addr, len));
                Ok::<(), AccessError>(())
            })
        });
        found.unwrap_or(Err(AccessError::BadKey))?;
        let mut segments = Vec::new();
        for (lkey, addr, len) in listed {
            let is_indirect = self.with_indirect(lkey.get(), |_| ()).is_some();
            if is_indirect && level < Indirect::MAX_DEPTH {
                let below = self.segments(who, lkey.get(), (addr, len), needed, level + 1)?;
                segments.extend(below);
            } else {
                let is_it = |region: &Region| region.lkey == lkey;
                self.access(who, is_it, needed, addr, len, |bytes| bytes.map(|_| ()))?;
                segments.push((lkey, addr, len));
            }
        }
        Ok(segments)
    }

    /// Calls a function for each segment of an access through an indirect key.
    fn each(
        &self,
        who: Accessor,
        key: u32,
        (addr, len): (u64, u64),
        needed: AccessFlags,
        mut f: impl FnMut(&mut [u8], Range<usize>),
    ) -> Result<(), AccessError> {
        let mut done = 0;
        for (lkey, addr, len) in self.segments(who, key, (addr, len), needed, 0)? {
            let range = done..done + usize::try_from(len).expect("a part of a slice");
            done = range.end;
            let is_it = |region: &Region| region.lkey == lkey;
            self.access(who, is_it, needed, addr, len, |bytes| {
                bytes.map(|bytes| f(bytes, range))
            })?;
        }
        Ok(())
    }

    /// Returns true if the window with this index is bound.
    #[must_use]
    pub fn is_bound(&self, rkey: Rkey) -> bool {
        self.with_window(rkey, |window| window.region().is_some())
            .expect("a window of this memory")
    }

    fn with_window<R>(&self, rkey: Rkey, f: impl FnOnce(&mut Window) -> R) -> Option<R> {
        let index = (rkey.get() >> 8).checked_sub(WINDOWS)?;
        let mut windows = self.windows.borrow_mut();
        windows.get_mut(index as usize).map(f)
    }

    /// Sets the extent that checks report from now on.
    pub fn set_extent(&self, extent: Extent) {
        self.extent.set(extent);
    }

    /// Invalidates the keys of a region.
    pub fn deregister(&self, region: &Region) {
        self.with(region, |mr| mr.live = false);
    }

    /// Unmaps the region except for its first `left` bytes. Checks do not notice, accesses do.
    pub fn unmap(&self, region: &Region, left: usize) {
        self.with(region, |mr| mr.mapped = left);
    }

    /// Returns a copy of the bytes in `range`.
    #[must_use]
    pub fn bytes(&self, region: &Region, range: Range<usize>) -> Vec<u8> {
        self.with(region, |mr| mr.bytes[range].to_vec())
    }

    /// Returns a copy of all bytes.
    #[must_use]
    pub fn all(&self, region: &Region) -> Vec<u8> {
        self.bytes(region, 0..region.len as usize)
    }

    /// Overwrites bytes from `offset` on, as the application would.
    pub fn fill(&self, region: &Region, offset: usize, bytes: &[u8]) {
        self.with(region, |mr| {
            mr.bytes[offset..offset + bytes.len()].copy_from_slice(bytes)
        });
    }

    /// Returns the number of atomics executed so far.
    #[must_use]
    pub fn atomics(&self) -> u64 {
        self.atomics.get()
    }

    /// Returns the number of accesses by the QP that changed memory so far, including atomics.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.get()
    }

    fn with<R>(&self, region: &Region, f: impl FnOnce(&mut Mr) -> R) -> R {
        let mut regions = self.regions.borrow_mut();
        let mr = regions
            .iter_mut()
            .find(|mr| mr.region == *region)
            .expect("a region of this memory");
        f(mr)
    }

    /// Copies a payload that the transport has deferred. The protection domain has been checked.
    ///
    /// # Errors
    /// [`AccessError::Fault`] if the memory is no longer accessible.
    pub fn copy(&self, source: Source, dst: &mut [u8]) -> Result<(), AccessError> {
        let pd_of = |is_it: &dyn Fn(&Region) -> bool| {
            let regions = self.regions.borrow();
            let found = regions.iter().find(|mr| is_it(&mr.region));
            found.map_or(Self::PD, |mr| mr.pd)
        };
        let who = |pd| Accessor {
            pd,
            qpn: Qpn::new(0),
        };
        match source {
            Source::Local(sge) => {
                let pd = pd_of(&|region| region.lkey == sge.lkey);
                self.read_local(who(pd), sge.lkey, sge.addr, dst)
            }
            Source::Remote { rkey, va, .. } => {
                let pd = pd_of(&|region| region.rkey == rkey);
                self.read_remote(who(pd), rkey, va, dst)
            }
        }
    }

    fn access<R>(
        &self,
        who: Accessor,
        found: impl Fn(&Region) -> bool,
        needed: AccessFlags,
        addr: u64,
        len: u64,
        f: impl FnOnce(Result<&mut [u8], AccessError>) -> Result<R, AccessError>,
    ) -> Result<R, AccessError> {
        assert!(len > 0, "the transport requests no access of length 0");
        let mut regions = self.regions.borrow_mut();
        let mr = regions
            .iter_mut()
            .find(|mr| mr.live && found(&mr.region))
            .ok_or(AccessError::BadKey)?;
        if mr.pd != who.pd {
            return Err(AccessError::WrongPd);
        }
        if !mr.flags.contains(needed) {
            return Err(AccessError::Permission);
        }
        let end = addr.checked_add(len).ok_or(AccessError::OutOfRange)?;
        if addr < mr.region.addr || end > mr.region.addr + u64::from(mr.region.len) {
            return Err(AccessError::OutOfRange);
        }
        let index = |address: u64| usize::try_from(address - mr.region.addr).expect("inside");
        if index(end) > mr.mapped {
            return f(Err(AccessError::Fault));
        }
        f(Ok(&mut mr.bytes[index(addr)..index(end)]))
    }

    fn local<R>(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
        f: impl FnOnce(Result<&mut [u8], AccessError>) -> Result<R, AccessError>,
    ) -> Result<R, AccessError> {
        let needed = local_right(access);
        self.access(who, |region| region.lkey == lkey, needed, addr, len, f)
    }

    fn remote<R>(
        &self,
        who: Accessor,
        rkey: Rkey,
        addr: u64,
        len: u64,
        access: RemoteAccess,
        f: impl FnOnce(Result<&mut [u8], AccessError>) -> Result<R, AccessError>,
    ) -> Result<R, AccessError> {
        let through = self.with_window(rkey, |window| window.resolve(who, rkey, addr, len, access));
        if let Some(through) = through {
            let (lkey, addr) = through?;
            let none = AccessFlags::empty();
            return self.access(who, |region| region.lkey == lkey, none, addr, len, f);
        }
        let found = |region: &Region| region.rkey == rkey;
        self.access(who, found, access.right(), addr, len, f)
    }

    fn note_write(&self) {
        self.writes.set(self.writes.get() + 1);
    }
}

impl Memory for TestMemory {
    fn check_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<Extent, AccessError> {
        if self.with_indirect(lkey.get(), |_| ()).is_some() {
            let segments = self.segments(who, lkey.get(), (addr, len), local_right(access), 0);
            return segments.map(|_| Extent::Segments);
        }
        self.local(who, lkey, addr, len, access, |_| Ok(self.extent.get()))
    }

    fn check_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Extent, AccessError> {
        if self.with_indirect(rkey.get(), |_| ()).is_some() {
            let segments = self.segments(who, rkey.get(), (va, len), access.right(), 0);
            return segments.map(|_| Extent::Segments);
        }
        let extent = match self.with_window(rkey, |_| ()) {
            Some(()) => Extent::Segments,
            None => self.extent.get(),
        };
        self.remote(who, rkey, va, len, access, |_| Ok(extent))
    }

    fn check_region(
        &self,
        who: Accessor,
        rkey: Rkey,
        access: RemoteAccess,
    ) -> Result<(), AccessError> {
        let found = {
            let regions = self.regions.borrow();
            let mut found = regions.iter().map(|mr| mr.region);
            found.find(|region| region.rkey == rkey)
        };
        let region = found.ok_or(AccessError::BadKey)?;
        let len = u64::from(region.len);
        self.check_remote(who, rkey, region.addr, len, access)
            .map(|_| ())
    }

    fn store_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        bytes: [u8; 8],
    ) -> Result<(), AccessError> {
        assert!(va.is_multiple_of(8), "the transport checks the alignment");
        self.write_remote(who, rkey, va, &bytes)
    }

    fn read_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len() as u64;
        if self.with_indirect(lkey.get(), |_| ()).is_some() {
            let none = AccessFlags::empty();
            return self.each(who, lkey.get(), (addr, len), none, |bytes, range| {
                dst[range].copy_from_slice(bytes);
            });
        }
        self.local(who, lkey, addr, len, LocalAccess::Read, |bytes| {
            dst.copy_from_slice(bytes?);
            Ok(())
        })
    }

    fn write_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let len = src.len() as u64;
        if self.with_indirect(lkey.get(), |_| ()).is_some() {
            let right = AccessFlags::LOCAL_WRITE;
            self.each(who, lkey.get(), (addr, len), right, |bytes, range| {
                bytes.copy_from_slice(&src[range]);
            })?;
            self.note_write();
            return Ok(());
        }
        self.local(who, lkey, addr, len, LocalAccess::Write, |bytes| {
            bytes?.copy_from_slice(src);
            Ok(())
        })?;
        self.note_write();
        Ok(())
    }

    fn read_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = dst.len() as u64;
        if self.with_indirect(rkey.get(), |_| ()).is_some() {
            let right = AccessFlags::REMOTE_READ;
            return self.each(who, rkey.get(), (va, len), right, |bytes, range| {
                dst[range].copy_from_slice(bytes);
            });
        }
        self.remote(who, rkey, va, len, RemoteAccess::Read, |bytes| {
            dst.copy_from_slice(bytes?);
            Ok(())
        })
    }

    fn write_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let len = src.len() as u64;
        if self.with_indirect(rkey.get(), |_| ()).is_some() {
            let right = AccessFlags::REMOTE_WRITE;
            self.each(who, rkey.get(), (va, len), right, |bytes, range| {
                bytes.copy_from_slice(&src[range]);
            })?;
            self.note_write();
            return Ok(());
        }
        self.remote(who, rkey, va, len, RemoteAccess::Write, |bytes| {
            bytes?.copy_from_slice(src);
            Ok(())
        })?;
        self.note_write();
        Ok(())
    }

    fn atomic_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        assert!(va.is_multiple_of(8), "the transport checks the alignment");
        let right = AccessFlags::REMOTE_ATOMIC;
        if self.with_indirect(rkey.get(), |_| ()).is_some() {
            return match self
                .segments(who, rkey.get(), (va, 8), right, 0)?
                .as_slice()
            {
                &[(lkey, va, 8)] if va.is_multiple_of(8) => {
                    let regions = self.regions.borrow();
                    let found = regions.iter().find(|mr| mr.region.lkey == lkey);
                    let rkey = found.ok_or(AccessError::BadKey)?.region.rkey;
                    drop(regions);
                    self.atomic_remote(who, rkey, va, op)
                }
                _ => Err(AccessError::OutOfRange),
            };
        }
        let original = self.remote(who, rkey, va, 8, RemoteAccess::Atomic, |bytes| {
            let bytes = bytes?;
            let original = u64::from_ne_bytes((&*bytes).try_into().expect("8 bytes"));
            bytes.copy_from_slice(&op.apply(original).to_ne_bytes());
            Ok(original)
        })?;
        self.atomics.set(self.atomics.get() + 1);
        self.note_write();
        Ok(original)
    }

    fn masked_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        log_size: u8,
        op: &MaskedOp,
    ) -> Result<WideOperand, AccessError> {
        let len = 1u64 << log_size;
        assert!(va.is_multiple_of(len), "the transport checks the alignment");
        let execute = |bytes: Result<&mut [u8], AccessError>| {
            let bytes = bytes?;
            let mut old = [0; 4];
            if log_size == 2 {
                old[0] = u32::from_ne_bytes((&*bytes).try_into().expect("4 bytes")).into();
            }
            for (word, place) in old.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_ne_bytes(*place);
            }
            let mut new = [0; 32];
            let len = masked::to_memory(&op.apply(log_size, &old), log_size, false, &mut new);
            bytes.copy_from_slice(&new[..len]);
            Ok(old)
        };
        let original = self.remote(who, rkey, va, len, RemoteAccess::Atomic, execute)?;
        self.atomics.set(self.atomics.get() + 1);
        self.note_write();
        Ok(original)
    }

    fn bind(&self, who: Accessor, bind: &Bind) -> Result<(), BindError> {
        let regions = self.regions.borrow();
        let mut regions = regions.iter().filter(|mr| mr.live);
        let region = regions
            .find(|mr| mr.region.lkey == bind.lkey)
            .map(|mr| Bindable {
                pd: mr.pd,
                iova: mr.region.addr,
                len: u64::from(mr.region.len),
                access: mr.flags,
            });
        self.with_window(bind.rkey, |window| window.bind(who, bind, region.as_ref()))
            .unwrap_or(Err(BindError::NoWindow))
    }

    fn fill(&self, who: Accessor, fill: Fill) -> Result<(), BindError> {
        let key = fill.key.get();
        let pd = self.with_indirect(key, |indirect| indirect.pd());
        let depth = Indirect::check(pd.ok_or(BindError::NoWindow)?, &fill, |lkey| {
            if let Some(listed) = self.with_indirect(lkey.get(), |indirect| indirect.listed()) {
                return listed;
            }
            let regions = self.regions.borrow();
            let mut live = regions.iter().filter(|mr| mr.live);
            live.find(|mr| mr.region.lkey == lkey).map(|mr| Listed {
                pd: mr.pd,
                start: mr.region.addr,
                len: u64::from(mr.region.len),
                depth: 0,
            })
        })?;
        self.with_indirect(key, |indirect| indirect.fill(who, fill, depth))
            .unwrap_or(Err(BindError::NoWindow))
    }

    fn invalidate(&self, who: Accessor, rkey: Rkey) -> Result<(), AccessError> {
        if let Some(done) = self.with_indirect(rkey.get(), |indirect| indirect.invalidate(who)) {
            return done;
        }
        self.with_window(rkey, |window| window.invalidate(who, rkey))
            .unwrap_or(Err(AccessError::BadKey))
    }
}

const fn local_right(access: LocalAccess) -> AccessFlags {
    match access {
        LocalAccess::Read => AccessFlags::empty(),
        LocalAccess::Write => AccessFlags::LOCAL_WRITE,
    }
}
