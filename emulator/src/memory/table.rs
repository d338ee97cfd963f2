//! The key table: keys, and their regions, windows and indirect keys.
//!
//! Progress holds a read guard while it copies. Only a thread that adds, removes or changes a
//! region takes the write lock, so that `dereg_mr` returns only when no copy is in flight. Windows
//! and indirect keys change while other threads hold the read guard and access memory. They have
//! their own locks, which are held for the duration of one access. Regions need none. A thread that
//! writes under such a lock takes no other one, so that a reader may hold several.

use std::collections::VecDeque;
use std::time::Duration;

use rocade_transport::{
    AccessError, AccessFlags, Accessor, Bind, BindError, Bindable, Fill, Indirect, Listed, PdTag,
    Sge, Time, Window, WindowKind,
};
use rocade_wire::{Lkey, Qpn, Rkey};

use super::guard::{self, CopyMethod};
use super::placed::Placed;
use crate::limits::{MAX_MR, MAX_MW};
use crate::random;
use crate::sync::modelled::atomic::{AtomicU32, Ordering};
use crate::sync::modelled::{RwLock, RwLockReadGuard};
use crate::sync::rank;

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) pd: PdTag,
    /// The address in this process.
    pub(crate) addr: usize,
    /// Length in bytes. 0 is possible in device memory only.
    pub(crate) len: u64,
    /// The address of its first byte for peers and work requests.
    pub(crate) iova: u64,
    pub(crate) access: AccessFlags,
}

/// The object of a key.
#[derive(Debug)]
enum Object {
    /// A region, with the number of windows bound to it.
    Region { region: Region, windows: AtomicU32 },
    /// A memory window, which changes under traffic.
    Window(Box<RwLock<Window, rank::Window>>),
    /// A key for segments of other keys, which also changes under traffic.
    Indirect(Box<RwLock<Indirect, rank::Window>>),
    /// A null region: it accepts all writes and reads as zeros.
    Null(PdTag),
}

#[derive(Debug)]
struct KeyEntry {
    /// The whole key, except for a window, whose tag changes.
    key: u32,
    object: Object,
}

/// The reason why a region cannot be removed or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoveError {
    /// There is no such region.
    Unknown,
    /// Windows are bound to it.
    Bound,
}

/// The keys and their objects.
///
/// A key is random in all its bits, index and tag, so that it cannot be guessed. The low bits of
/// the index determine the slot of its entry: a new key is drawn until its slot is free. More
/// than half of the slots are free, so that this takes at most two attempts on average, and a
/// lookup needs only one.
#[derive(Debug)]
pub(crate) struct Regions {
    /// Their number is a power of two.
    entries: Vec<Option<KeyEntry>>,
    count: usize,
    /// Number of windows among them.
    windows: usize,
    /// The indexes released last, which are not reused soon.
    retired: VecDeque<u32>,
}

/// Initial number of slots.
const FEWEST_SLOTS: usize = 64;
/// Regions and windows.
const MAX_KEYS: usize = MAX_MR as usize + MAX_MW as usize;
/// Number of keys that are released before an index is reused.
const RETIRED: usize = 4096;

/// Returns the index of a key. The low byte, the tag, only distinguishes it from earlier keys with
/// this index.
const fn index(key: u32) -> u32 {
    key >> 8
}

/// All regions of an engine.
#[derive(Debug)]
pub(crate) struct MrTable {
    regions: RwLock<Regions, rank::Regions>,
}

/// The table, locked against changes, for one thread. It implements the registered memory of the
/// transport.
#[derive(Debug)]
pub(crate) struct MemGuard<'a> {
    pub(super) regions: RwLockReadGuard<'a, Regions>,
    pub(super) method: CopyMethod,
    pub(super) placed: Placed,
}

impl MrTable {
    pub(crate) fn new() -> Self {
        let regions = Regions {
            entries: slots(FEWEST_SLOTS),
            count: 0,
            windows: 0,
            retired: VecDeque::new(),
        };
        Self {
            regions: RwLock::new(regions),
        }
    }

    /// Adds a region and returns its key, or `None` if the table is full.
    pub(crate) fn insert(&self, region: Region) -> Option<u32> {
        let windows = AtomicU32::new(0);
        self.add(|_| Object::Region { region, windows })
    }

    /// Adds a null region and returns its key, or `None` if the table is full.
    pub(crate) fn insert_null(&self, pd: PdTag) -> Option<u32> {
        self.add(|_| Object::Null(pd))
    }

    /// Adds a free window and returns its key, or `None` if the table is full.
    pub(crate) fn insert_window(&self, kind: WindowKind, pd: PdTag) -> Option<u32> {
        self.add(|key| {
            let window = Window::new(kind, pd, Rkey::new(key));
            Object::Window(Box::new(RwLock::new(window)))
        })
    }

    /// Adds a free indirect key with room for `capacity` entries, and returns it. Returns `None` if
    /// the table is full.
    pub(crate) fn insert_indirect(
        &self,
        pd: PdTag,
        capacity: u32,
        rights: AccessFlags,
    ) -> Option<u32> {
        self.add(|key| {
            let indirect = Indirect::new(pd, Rkey::new(key), capacity, rights);
            Object::Indirect(Box::new(RwLock::new(indirect)))
        })
    }

    //= KEY-01
    //= MR-07
    fn add(&self, object: impl FnOnce(u32) -> Object) -> Option<u32> {
        guard::install();
        let mut regions = self.regions.write();
        if regions.count >= MAX_KEYS {
            return None;
        }
        regions.make_space();
        let key = regions.new_key(random::word);
        let object = object(key);
        regions.windows += usize::from(matches!(object, Object::Window(_)));
        regions.count += 1;
        let slot = regions.slot(key);
        regions.entries[slot] = Some(KeyEntry { key, object });
        Some(key)
    }

    /// Removes a region. Waits for copies in flight, and later accesses fail.
    ///
    /// # Errors
    /// [`RemoveError::Bound`] if windows are bound to the region, [`RemoveError::Unknown`] if the
    /// key names none. The region stays.
    pub(crate) fn remove(&self, key: u32) -> Result<(), RemoveError> {
        let mut regions = self.regions.write();
        //= MR-09
        match regions.lookup(key).map(|entry| &entry.object) {
            Some(Object::Region { windows, .. }) if windows.load(Ordering::Relaxed) > 0 => {
                return Err(RemoveError::Bound);
            }
            //= UMR-08
            Some(Object::Region { .. } | Object::Indirect(_) | Object::Null(_)) => {}
            Some(Object::Window(_)) | None => return Err(RemoveError::Unknown),
        }
        regions.take(key);
        Ok(())
    }

    /// Removes a region, and frees the windows that are bound to it.
    pub(crate) fn remove_with_windows(&self, key: u32) {
        let mut regions = self.regions.write();
        let bound = match regions.lookup(key).map(|entry| &entry.object) {
            Some(Object::Region { windows, .. }) => windows.load(Ordering::Relaxed),
            _ => 0,
        };
        let entries = if bound == 0 {
            &[][..]
        } else {
            &regions.entries
        };
        for entry in entries.iter().flatten() {
            if let Object::Window(window) = &entry.object {
                let mut window = window.write();
                if window.region() == Some(Lkey::new(key)) {
                    regions.free(&mut window);
                }
            }
        }
        regions.take(key);
    }

    /// The keys of the windows that are bound to a region.
    pub(crate) fn windows_of(&self, key: u32) -> Vec<u32> {
        let regions = self.regions.read();
        let is_bound = |entry: &&KeyEntry| match &entry.object {
            Object::Window(window) => window.read().region() == Some(Lkey::new(key)),
            _ => false,
        };
        let windows = regions.entries.iter().flatten().filter(is_bound);
        windows.map(|entry| entry.key).collect()
    }

    /// Returns the address of a part of a region of `pd` that the device may read, or write if
    /// `write`.
    pub(crate) fn place_of(&self, pd: PdTag, sge: &Sge, write: bool) -> Result<usize, AccessError> {
        let regions = self.regions.read();
        let region = regions.region(sge.lkey.get()).ok_or(AccessError::BadKey)?;
        if region.pd != pd {
            return Err(AccessError::WrongPd);
        }
        let offset = sge.addr.checked_sub(region.iova);
        let offset = offset.filter(|offset| offset.saturating_add(sge.len.into()) <= region.len);
        let offset = offset.ok_or(AccessError::OutOfRange)?;
        if write && !region.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(AccessError::Permission);
        }
        let offset = usize::try_from(offset).map_err(|_| AccessError::OutOfRange)?;
        Ok(region.addr + offset)
    }

    /// Changes a region, between two accesses.
    ///
    /// # Errors
    /// [`RemoveError::Bound`] if windows are bound to the region, [`RemoveError::Unknown`] if the
    /// key names none. The region stays as it was.
    pub(crate) fn replace(&self, key: u32, with: Region) -> Result<(), RemoveError> {
        let mut regions = self.regions.write();
        let slot = regions.slot(key);
        match &mut regions.entries[slot] {
            Some(KeyEntry {
                key: found,
                object: Object::Region { region, windows },
            }) if *found == key => {
                if windows.load(Ordering::Relaxed) > 0 {
                    return Err(RemoveError::Bound);
                }
                *region = with;
                Ok(())
            }
            _ => Err(RemoveError::Unknown),
        }
    }

    /// Removes a window, bound or not, by any of its keys.
    pub(crate) fn remove_window(&self, key: u32) {
        let mut regions = self.regions.write();
        if let Some(window) = regions.window(key) {
            regions.free(&mut window.write());
            regions.take(key);
            regions.windows -= 1;
        }
    }

    /// Frees the windows that were bound on a QP that has ended, and that only this QP may use.
    //= MW-10
    pub(crate) fn free_windows_of(&self, qpn: Qpn) {
        let regions = self.regions.read();
        if regions.windows == 0 {
            return;
        }
        for entry in regions.entries.iter().flatten() {
            if let Object::Window(window) = &entry.object {
                let mut window = window.write();
                if window.belongs_to(qpn) {
                    regions.free(&mut window);
                }
            }
        }
    }

    /// Locks the table for a series of accesses by this thread. To be taken before any QP's lock.
    pub(crate) fn read(&self, now: Time) -> MemGuard<'_> {
        MemGuard {
            method: guard::copy_method(now),
            regions: self.regions.read(),
            placed: Placed::default(),
        }
    }

    /// Like [`read`](Self::read), but gives up after `patience`.
    pub(crate) fn try_read_for(&self, now: Time, patience: Duration) -> Option<MemGuard<'_>> {
        Some(MemGuard {
            method: guard::copy_method(now),
            regions: self.regions.try_read_for(patience)?,
            placed: Placed::default(),
        })
    }
}

impl MemGuard<'_> {
    /// The regions with their keys.
    pub(crate) fn regions_by_key(&self) -> impl Iterator<Item = (u32, Region)> {
        let entries = self.regions.entries.iter().flatten();
        entries.filter_map(|entry| match &entry.object {
            Object::Region { region, .. } => Some((entry.key, *region)),
            _ => None,
        })
    }
}

impl Regions {
    /// Keeps more than half of the slots free. Keys in different slots stay in different slots,
    /// because each slot number grows by the next bit of the index.
    fn make_space(&mut self) {
        if self.count * 2 < self.entries.len() {
            return;
        }
        let twice = slots(self.entries.len() * 2);
        for entry in std::mem::replace(&mut self.entries, twice)
            .into_iter()
            .flatten()
        {
            let slot = self.slot(entry.key);
            self.entries[slot] = Some(entry);
        }
    }

    /// Removes a key.
    fn take(&mut self, key: u32) {
        let slot = self.slot(key);
        self.entries[slot] = None;
        self.count -= 1;
        if self.retired.len() == RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back(index(key));
    }

    /// Returns the first word of `random` that can be a key: unused, with an index that was not
    /// released lately, and with a free slot.
    fn new_key(&self, mut random: impl FnMut() -> u32) -> u32 {
        loop {
            let key = random();
            //= KEY-05
            let valid = index(key) != 0 && key != u32::MAX;
            //= KEY-03
            if valid
                && self.entries[self.slot(key)].is_none()
                && !self.retired.contains(&index(key))
            {
                return key;
            }
        }
    }

    #[inline]
    const fn slot(&self, key: u32) -> usize {
        index(key) as usize & (self.entries.len() - 1)
    }

    #[inline]
    fn at_place(&self, key: u32) -> Option<&KeyEntry> {
        self.entries.get(self.slot(key))?.as_ref()
    }

    //= KEY-02
    #[inline]
    fn lookup(&self, key: u32) -> Option<&KeyEntry> {
        self.at_place(key).filter(|entry| entry.key == key)
    }

    #[inline]
    pub(super) fn region(&self, key: u32) -> Option<&Region> {
        match &self.lookup(key)?.object {
            Object::Region { region, .. } => Some(region),
            _ => None,
        }
    }

    /// Returns the domain of a null region.
    pub(super) fn null(&self, key: u32) -> Option<PdTag> {
        match self.lookup(key)?.object {
            Object::Null(pd) => Some(pd),
            _ => None,
        }
    }

    /// Returns the window with this index. The caller lets the window compare the tag.
    pub(super) fn window(&self, key: u32) -> Option<&RwLock<Window, rank::Window>> {
        match self.at_place(key)? {
            KeyEntry {
                key: found,
                object: Object::Window(window),
            } if index(*found) == index(key) => Some(window),
            _ => None,
        }
    }

    /// Returns the indirect key of this number.
    pub(super) fn indirect(&self, key: u32) -> Option<&RwLock<Indirect, rank::Window>> {
        match &self.lookup(key)?.object {
            Object::Indirect(indirect) => Some(indirect),
            _ => None,
        }
    }

    /// Returns the properties of a key for an indirect key that lists it.
    fn listed(&self, lkey: Lkey) -> Option<Listed> {
        match &self.lookup(lkey.get())?.object {
            Object::Region { region, .. } => Some(Listed {
                pd: region.pd,
                start: region.iova,
                len: region.len,
                depth: 0,
            }),
            Object::Indirect(indirect) => indirect.read_recursive().listed(),
            Object::Null(pd) => Some(Listed {
                pd: *pd,
                start: 0,
                len: u64::MAX,
                depth: 0,
            }),
            Object::Window(_) => None,
        }
    }

    /// Fills an indirect key. The keys that it lists are checked before it is locked.
    pub(super) fn fill(&self, accessor: Accessor, fill: Fill) -> Result<(), BindError> {
        let indirect = self.indirect(fill.key.get()).ok_or(BindError::NoWindow)?;
        let pd = indirect.read_recursive().pd();
        let depth = Indirect::check(pd, &fill, |lkey| self.listed(lkey))?;
        indirect.write().fill(accessor, fill, depth)
    }

    /// Binds a window.
    pub(super) fn bind(&self, accessor: Accessor, bind: &Bind) -> Result<(), BindError> {
        let window = self.window(bind.rkey.get()).ok_or(BindError::NoWindow)?;
        let region = self.region(bind.lkey.get()).map(|region| Bindable {
            pd: region.pd,
            iova: region.iova,
            len: region.len,
            access: region.access,
        });
        let mut window = window.write();
        let before = window.region();
        window.bind(accessor, bind, region.as_ref())?;
        self.count_windows(before, u32::wrapping_sub);
        self.count_windows(window.region(), u32::wrapping_add);
        Ok(())
    }

    /// Invalidates a key.
    pub(super) fn invalidate(&self, accessor: Accessor, rkey: Rkey) -> Result<(), AccessError> {
        //= INV-01
        if let Some(indirect) = self.indirect(rkey.get()) {
            return indirect.write().invalidate(accessor);
        }
        let window = self.window(rkey.get()).ok_or(AccessError::BadKey)?;
        let mut window = window.write();
        let before = window.region();
        window.invalidate(accessor, rkey)?;
        self.count_windows(before, u32::wrapping_sub);
        Ok(())
    }

    fn free(&self, window: &mut Window) {
        self.count_windows(window.region(), u32::wrapping_sub);
        window.free();
    }

    /// Changes the number of windows that are bound to a region. The read guard excludes threads
    /// that remove or change regions.
    fn count_windows(&self, region: Option<Lkey>, change: impl Fn(u32, u32) -> u32) {
        if let Some(lkey) = region
            && let Some(KeyEntry {
                object: Object::Region { windows, .. },
                ..
            }) = self.lookup(lkey.get())
        {
            windows.fetch_add(change(0, 1), Ordering::Relaxed);
        }
    }
}

fn slots(count: usize) -> Vec<Option<KeyEntry>> {
    std::iter::repeat_with(|| None).take(count).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PD: PdTag = PdTag(1);

    /// Inserts a key with the value `wanted` if that is allowed, otherwise `instead`.
    fn insert(table: &MrTable, wanted: u32, instead: u32) -> u32 {
        let mut words = [wanted, instead].into_iter();
        let mut regions = table.regions.write();
        let key = regions.new_key(|| words.next().expect("one of both is valid"));
        let slot = regions.slot(key);
        let object = Object::Null(PD);
        regions.entries[slot] = Some(KeyEntry { key, object });
        regions.count += 1;
        key
    }

    /// The index of a released key is not reused before many others were released, whatever the
    /// tag. Then it is reused.
    //= KEY-03 type=test
    #[test]
    fn the_index_of_a_key_rests_when_it_has_ended() {
        let table = MrTable::new();
        let (old, same_index) = (0x0012_3401, 0x0012_3402);
        assert_eq!(insert(&table, old, 0), old);
        assert_eq!(table.remove(old), Ok(()));
        for other in 1..u32::try_from(RETIRED).unwrap() {
            let instead = 0x0100_0000 + (other << 8);
            assert_eq!(insert(&table, same_index, instead), instead, "{other}");
            assert_eq!(table.remove(instead), Ok(()));
        }
        let last = 0x0200_0000;
        assert_eq!(insert(&table, same_index, last), last);
        assert_eq!(table.remove(last), Ok(()));
        assert_eq!(insert(&table, same_index, 0), same_index);
    }

    /// An index of 0 and the key of all ones are never used.
    //= KEY-05 type=test
    #[test]
    fn some_words_are_no_keys() {
        let table = MrTable::new();
        for (word, instead) in [(0x7f, 0x0100_0100), (u32::MAX, 0x0200_0200)] {
            assert_eq!(insert(&table, word, instead), instead);
        }
    }
}
