//! The region table: key to region.
//!
//! Progress holds a read guard while it copies; registering and deregistering take the write
//! lock. So `dereg_mr` returns only when no copy is in flight (MR-09).

use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard};
use rocade_transport::{
    AccessError, AccessFlags, AtomicOp, LocalAccess, Memory, RemoteAccess, Sge, Source, Time,
};
use rocade_wire::{Lkey, Rkey};

use super::access::{self, Readable, Span};
use super::guard::{self, Fault, Way};
use crate::hca::limits::MAX_MR;

/// Identifies a protection domain within the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PdId(pub(crate) u32);

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) pd: PdId,
    /// Where it is in this process.
    pub(crate) addr: usize,
    /// Length in bytes, not 0.
    pub(crate) len: u64,
    /// What peers and work requests call its first byte (MR-05).
    pub(crate) iova: u64,
    pub(crate) access: AccessFlags,
}

#[derive(Debug, Default)]
struct Entry {
    /// Low byte of the key, different each time the index is used (KEY-03).
    tag: u8,
    region: Option<Region>,
}

#[derive(Debug, Default)]
pub(crate) struct Regions {
    /// Index 0 stays empty: key 0 is invalid (KEY-05).
    entries: Vec<Entry>,
    free: Vec<u32>,
}

/// All regions of an engine.
#[derive(Debug)]
pub(crate) struct MrTable {
    regions: RwLock<Regions>,
}

/// The table, locked against changes, for one thread.
#[derive(Debug)]
pub(crate) struct MemGuard<'a> {
    regions: RwLockReadGuard<'a, Regions>,
    way: Way,
}

impl MemGuard<'_> {
    /// The memory as a QP of protection domain `pd` may use it.
    pub(crate) fn view(&self, pd: PdId) -> PdMemory<'_> {
        PdMemory {
            regions: &self.regions,
            pd,
            way: self.way,
        }
    }
}

impl MrTable {
    pub(crate) fn new() -> Self {
        let regions = Regions {
            entries: vec![Entry::default()],
            free: Vec::new(),
        };
        Self {
            regions: RwLock::new(regions),
        }
    }

    /// Adds a region and returns its key; `None` where the table is full.
    //= KEY-01
    pub(crate) fn insert(&self, region: Region) -> Option<u32> {
        guard::install();
        let mut regions = self.regions.write();
        let index = if let Some(index) = regions.free.pop() {
            index
        } else {
            let index = u32::try_from(regions.entries.len())
                .ok()
                .filter(|i| *i <= MAX_MR)?;
            regions.entries.push(Entry {
                tag: index.to_le_bytes()[0],
                region: None,
            });
            index
        };
        let entry = &mut regions.entries[index as usize];
        entry.tag = entry.tag.wrapping_add(1);
        entry.region = Some(region);
        Some(index << 8 | u32::from(entry.tag))
    }

    /// Removes a region. Waits for copies in flight; later accesses fail.
    pub(crate) fn remove(&self, key: u32) -> bool {
        let mut regions = self.regions.write();
        let index = key >> 8;
        let Some(entry) = regions.entries.get_mut(index as usize) else {
            return false;
        };
        if u32::from(entry.tag) != key & 0xff || entry.region.take().is_none() {
            return false;
        }
        regions.free.push(index);
        true
    }

    /// Locks the table for a series of accesses by this thread. To be taken before any QP's lock.
    pub(crate) fn read(&self, now: Time) -> MemGuard<'_> {
        MemGuard {
            way: guard::way(now),
            regions: self.regions.read(),
        }
    }

    /// Likewise, if that is possible before long.
    pub(crate) fn try_read_for(&self, now: Time, patience: Duration) -> Option<MemGuard<'_>> {
        Some(MemGuard {
            way: guard::way(now),
            regions: self.regions.try_read_for(patience)?,
        })
    }
}

impl Regions {
    //= KEY-02
    fn lookup(&self, key: u32) -> Option<&Region> {
        let entry = self.entries.get((key >> 8) as usize)?;
        if u32::from(entry.tag) == key & 0xff {
            entry.region.as_ref()
        } else {
            None
        }
    }

    /// The span of an access, if key, domain, rights and range allow it (MR-11…13).
    fn span(
        &self,
        key: u32,
        (pd, way): (PdId, Way),
        va: u64,
        len: u64,
        right: AccessFlags,
    ) -> Result<Span, AccessError> {
        let region = self.lookup(key).ok_or(AccessError::BadKey)?;
        if region.pd != pd {
            return Err(AccessError::WrongPd);
        }
        if !region.access.contains(right) {
            return Err(AccessError::Permission);
        }
        let offset = va.checked_sub(region.iova).ok_or(AccessError::OutOfRange)?;
        let end = offset.checked_add(len).ok_or(AccessError::OutOfRange)?;
        if end > region.len {
            return Err(AccessError::OutOfRange);
        }
        let offset = usize::try_from(offset).map_err(|_| AccessError::OutOfRange)?;
        let len = usize::try_from(len).map_err(|_| AccessError::OutOfRange)?;
        // SAFETY: inside the region, which `Pd::reg_mr`'s caller has given us until it is
        // deregistered; `&self` is borrowed from the guard that holds deregistration off.
        Ok(unsafe { Span::new(region.addr + offset, len, way) })
    }
}

/// Registered memory as one protection domain may use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PdMemory<'a> {
    regions: &'a Regions,
    pd: PdId,
    way: Way,
}

impl From<Fault> for AccessError {
    fn from(Fault: Fault) -> Self {
        Self::Fault
    }
}

impl<'a> PdMemory<'a> {
    /// The payload of a packet; to find that it is gone is left to the copy.
    ///
    /// # Errors
    /// As [`Memory::check_local`] and [`Memory::check_remote`].
    #[inline]
    pub(crate) fn source(&self, source: Source) -> Result<Readable<'a>, AccessError> {
        let span = match source {
            Source::Local(Sge { addr, len, lkey }) => {
                self.local(lkey, addr, u64::from(len), LocalAccess::Read)?
            }
            Source::Remote { rkey, va, len, .. } => {
                self.remote(rkey, va, u64::from(len), RemoteAccess::Read)?
            }
        };
        Ok(Readable::new(span, self.regions))
    }

    fn local(
        &self,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<Span, AccessError> {
        let right = match access {
            LocalAccess::Read => AccessFlags::empty(),
            LocalAccess::Write => AccessFlags::LOCAL_WRITE,
        };
        self.regions
            .span(lkey.get(), (self.pd, self.way), addr, len, right)
    }

    fn remote(
        &self,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Span, AccessError> {
        let right = match access {
            RemoteAccess::Read => AccessFlags::REMOTE_READ,
            RemoteAccess::Write => AccessFlags::REMOTE_WRITE,
            RemoteAccess::Atomic => AccessFlags::REMOTE_ATOMIC,
        };
        self.regions
            .span(rkey.get(), (self.pd, self.way), va, len, right)
    }
}

impl Memory for PdMemory<'_> {
    fn check_local(
        &self,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<(), AccessError> {
        self.local(lkey, addr, len, access).map(drop)
    }

    fn check_remote(
        &self,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<(), AccessError> {
        self.remote(rkey, va, len, access).map(drop)
    }

    fn read_local(&self, lkey: Lkey, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let span = self.local(lkey, addr, dst.len() as u64, LocalAccess::Read)?;
        Ok(access::read(span, dst)?)
    }

    fn write_local(&self, lkey: Lkey, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        let span = self.local(lkey, addr, src.len() as u64, LocalAccess::Write)?;
        Ok(access::write(span, src)?)
    }

    fn read_remote(&self, rkey: Rkey, va: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let span = self.remote(rkey, va, dst.len() as u64, RemoteAccess::Read)?;
        Ok(access::read(span, dst)?)
    }

    fn write_remote(&self, rkey: Rkey, va: u64, src: &[u8]) -> Result<(), AccessError> {
        let span = self.remote(rkey, va, src.len() as u64, RemoteAccess::Write)?;
        Ok(access::write(span, src)?)
    }

    fn atomic_remote(&self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let span = self.remote(rkey, va, 8, RemoteAccess::Atomic)?;
        Ok(access::atomic(span, op).ok_or(AccessError::OutOfRange)??)
    }
}
