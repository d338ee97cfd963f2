//! The region table: key to region.
//!
//! Progress holds a read guard while it copies; registering and deregistering take the write
//! lock. So `dereg_mr` returns only when no copy is in flight (MR-09).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard};
use rocade_transport::{
    AccessError, AccessFlags, Accessor, AtomicOp, Extent, LocalAccess, Memory, PdTag, RemoteAccess,
    Sge, Source, Time,
};
use rocade_wire::{Lkey, Rkey};

use super::access::{self, Readable, Span};
use super::guard::{self, Fault, Way};
use crate::hca::limits::MAX_MR;
use crate::random;

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) pd: PdTag,
    /// Where it is in this process.
    pub(crate) addr: usize,
    /// Length in bytes, not 0.
    pub(crate) len: u64,
    /// What peers and work requests call its first byte (MR-05).
    pub(crate) iova: u64,
    pub(crate) access: AccessFlags,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u32,
    region: Region,
}

/// The regions and their keys.
///
/// A key is random in all its bits, index and tag (KEY-01), so that nobody who was not told can guess one.
/// Where its entry is, the low bits of the index say: a new key is drawn until that place is free. More than half
/// of the places are, so that this takes two attempts at most on average, and a key is found at once.
#[derive(Debug)]
pub(crate) struct Regions {
    /// Their number is a power of two.
    entries: Vec<Option<Entry>>,
    count: usize,
    /// The indexes that were given back last, which are not used again soon (KEY-03).
    retired: VecDeque<u32>,
}

/// Places at first.
const FEWEST_PLACES: usize = 64;
/// So many regions end before the index of one is used again.
const RETIRED: usize = 4096;

/// What names the region; the low byte of the key only tells it from others that had this name before.
const fn index(key: u32) -> u32 {
    key >> 8
}

/// All regions of an engine.
#[derive(Debug)]
pub(crate) struct MrTable {
    regions: RwLock<Regions>,
}

/// The table, locked against changes, for one thread: registered memory, as the transport knows it.
#[derive(Debug)]
pub(crate) struct MemGuard<'a> {
    regions: RwLockReadGuard<'a, Regions>,
    way: Way,
}

impl MrTable {
    pub(crate) fn new() -> Self {
        let regions = Regions {
            entries: vec![None; FEWEST_PLACES],
            count: 0,
            retired: VecDeque::new(),
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
        if regions.count >= MAX_MR as usize {
            return None;
        }
        regions.make_room();
        let key = regions.new_key();
        let place = regions.place(key);
        regions.entries[place] = Some(Entry { key, region });
        regions.count += 1;
        Some(key)
    }

    /// Removes a region. Waits for copies in flight; later accesses fail.
    pub(crate) fn remove(&self, key: u32) -> bool {
        let mut regions = self.regions.write();
        let place = regions.place(key);
        if regions.entries[place]
            .take_if(|entry| entry.key == key)
            .is_none()
        {
            return false;
        }
        regions.count -= 1;
        if regions.retired.len() == RETIRED {
            regions.retired.pop_front();
        }
        regions.retired.push_back(index(key));
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
    /// Keeps more than half of the places free. Keys in different places stay in different places: each
    /// moves by the next bit of its index.
    fn make_room(&mut self) {
        if self.count * 2 < self.entries.len() {
            return;
        }
        let places = vec![None; self.entries.len() * 2];
        for entry in std::mem::replace(&mut self.entries, places)
            .into_iter()
            .flatten()
        {
            let place = self.place(entry.key);
            self.entries[place] = Some(entry);
        }
    }

    /// A key that is not in use, was not lately, and whose place is free.
    fn new_key(&self) -> u32 {
        loop {
            let key = random::word();
            //= KEY-05
            let valid = index(key) != 0 && key != u32::MAX;
            //= KEY-03
            if valid
                && self.entries[self.place(key)].is_none()
                && !self.retired.contains(&index(key))
            {
                return key;
            }
        }
    }

    #[inline]
    const fn place(&self, key: u32) -> usize {
        index(key) as usize & (self.entries.len() - 1)
    }

    //= KEY-02
    #[inline]
    fn lookup(&self, key: u32) -> Option<&Region> {
        match self.entries.get(self.place(key)) {
            Some(Some(entry)) if entry.key == key => Some(&entry.region),
            _ => None,
        }
    }

    /// The span of an access, if key, domain, rights and range allow it (MR-11…13).
    #[inline]
    fn span(
        &self,
        (who, way): (Accessor, Way),
        key: u32,
        va: u64,
        len: u64,
        right: AccessFlags,
    ) -> Result<Span, AccessError> {
        let region = self.lookup(key).ok_or(AccessError::BadKey)?;
        //= PD-01
        //= PD-03
        if region.pd != who.pd {
            return Err(AccessError::WrongPd);
        }
        if !region.access.contains(right) {
            return Err(AccessError::Permission);
        }
        self.part(region, way, va, len)
    }

    /// A part of a region, which is one of these.
    //= MR-11
    #[inline]
    fn part(&self, region: &Region, way: Way, va: u64, len: u64) -> Result<Span, AccessError> {
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

impl From<Fault> for AccessError {
    fn from(Fault: Fault) -> Self {
        Self::Fault
    }
}

impl MemGuard<'_> {
    /// The payload of a packet, whose key, rights and range the transport has checked under this guard; to
    /// find that it is gone is left to the copy. `None` where it has not.
    #[inline]
    pub(crate) fn source(&self, source: Source) -> Option<Readable<'_>> {
        let (key, va, len) = match source {
            Source::Local(Sge { addr, len, lkey }) => (lkey.get(), addr, len),
            Source::Remote { rkey, va, len, .. } => (rkey.get(), va, len),
        };
        let regions = &*self.regions;
        let region = regions.lookup(key)?;
        let span = regions.part(region, self.way, va, u64::from(len)).ok()?;
        Some(Readable::new(span, regions))
    }

    #[inline]
    fn local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<Span, AccessError> {
        let right = match access {
            //= MR-03
            LocalAccess::Read => AccessFlags::empty(),
            //= MR-12
            LocalAccess::Write => AccessFlags::LOCAL_WRITE,
        };
        self.regions
            .span((who, self.way), lkey.get(), addr, len, right)
    }

    #[inline]
    fn remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Span, AccessError> {
        //= MR-13
        let right = match access {
            RemoteAccess::Read => AccessFlags::REMOTE_READ,
            RemoteAccess::Write => AccessFlags::REMOTE_WRITE,
            RemoteAccess::Atomic => AccessFlags::REMOTE_ATOMIC,
        };
        self.regions
            .span((who, self.way), rkey.get(), va, len, right)
    }
}

impl Memory for MemGuard<'_> {
    fn check_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        len: u64,
        access: LocalAccess,
    ) -> Result<Extent, AccessError> {
        self.local(who, lkey, addr, len, access)
            .map(|_| Extent::One)
    }

    fn check_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: RemoteAccess,
    ) -> Result<Extent, AccessError> {
        self.remote(who, rkey, va, len, access).map(|_| Extent::One)
    }

    fn read_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let span = self.local(who, lkey, addr, dst.len() as u64, LocalAccess::Read)?;
        Ok(access::read(span, dst)?)
    }

    fn write_local(
        &self,
        who: Accessor,
        lkey: Lkey,
        addr: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let span = self.local(who, lkey, addr, src.len() as u64, LocalAccess::Write)?;
        Ok(access::write(span, src)?)
    }

    fn read_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        dst: &mut [u8],
    ) -> Result<(), AccessError> {
        let span = self.remote(who, rkey, va, dst.len() as u64, RemoteAccess::Read)?;
        Ok(access::read(span, dst)?)
    }

    fn write_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let span = self.remote(who, rkey, va, src.len() as u64, RemoteAccess::Write)?;
        Ok(access::write(span, src)?)
    }

    fn atomic_remote(
        &self,
        who: Accessor,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        let span = self.remote(who, rkey, va, 8, RemoteAccess::Atomic)?;
        Ok(access::atomic(span, op).ok_or(AccessError::OutOfRange)??)
    }
}
