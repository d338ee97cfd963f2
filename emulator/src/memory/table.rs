//! The key table: keys, and the regions, windows and indirect keys that they stand for.
//!
//! Progress holds a read guard while it copies; only who makes, ends or changes a region takes the write lock. So
//! `dereg_mr` returns only when no copy is in flight (MR-09). Windows and indirect keys change while others hold the
//! read guard and access memory: they have locks of their own, which are held for the length of one access.
//! Regions need none. Who writes under such a lock takes no other; so who reads may hold several.

use std::collections::VecDeque;
use std::time::Duration;

use rocade_transport::{
    AccessError, AccessFlags, Accessor, Bind, BindError, Bindable, Fill, Indirect, Listed, PdTag,
    Sge, Time, Window, WindowKind,
};
use rocade_wire::{Lkey, Qpn, Rkey};

use super::guard::{self, Way};
use crate::hca::limits::{MAX_MR, MAX_MW};
use crate::random;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{RwLock, RwLockReadGuard};

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) pd: PdTag,
    /// Where it is in this process.
    pub(crate) addr: usize,
    /// Length in bytes; 0 in device memory only.
    pub(crate) len: u64,
    /// What peers and work requests call its first byte (MR-05).
    pub(crate) iova: u64,
    pub(crate) access: AccessFlags,
}

/// What a key stands for.
#[derive(Debug)]
enum Object {
    /// A region; and how many windows are bound to it.
    Region { region: Region, windows: AtomicU32 },
    /// A memory window, which changes under traffic.
    Window(Box<RwLock<Window>>),
    /// A key for pieces of others, which changes likewise.
    Indirect(Box<RwLock<Indirect>>),
    /// Memory that takes everything and has nothing (NUL-01).
    Null(PdTag),
}

#[derive(Debug)]
struct Entry {
    /// All of it but for a window, whose tag changes.
    key: u32,
    object: Object,
}

/// Why a region stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// There is no such region.
    Unknown,
    /// Windows are bound to it (MR-09).
    Bound,
}

/// The keys and what they stand for.
///
/// A key is random in all its bits, index and tag (KEY-01), so that nobody who was not told can guess one.
/// Where its entry is, the low bits of the index say: a new key is drawn until that place is free. More than half
/// of the places are, so that this takes two attempts at most on average, and a key is found at once.
#[derive(Debug)]
pub(crate) struct Regions {
    /// Their number is a power of two.
    entries: Vec<Option<Entry>>,
    count: usize,
    /// How many of them are windows.
    windows: usize,
    /// The indexes that were given back last, which are not used again soon (KEY-03).
    retired: VecDeque<u32>,
}

/// Places at first.
const FEWEST_PLACES: usize = 64;
/// Regions and windows.
const MAX_KEYS: usize = MAX_MR as usize + MAX_MW as usize;
/// So many keys end before the index of one is used again.
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
    pub(super) regions: RwLockReadGuard<'a, Regions>,
    pub(super) way: Way,
}

impl MrTable {
    pub(crate) fn new() -> Self {
        let regions = Regions {
            entries: places(FEWEST_PLACES),
            count: 0,
            windows: 0,
            retired: VecDeque::new(),
        };
        Self {
            regions: RwLock::new(regions),
        }
    }

    /// Adds a region and returns its key; `None` where the table is full.
    pub(crate) fn insert(&self, region: Region) -> Option<u32> {
        let windows = AtomicU32::new(0);
        self.add(|_| Object::Region { region, windows })
    }

    /// Adds a region of memory that is not there, likewise.
    pub(crate) fn insert_null(&self, pd: PdTag) -> Option<u32> {
        self.add(|_| Object::Null(pd))
    }

    /// Adds a free window, likewise.
    pub(crate) fn insert_window(&self, kind: WindowKind, pd: PdTag) -> Option<u32> {
        self.add(|key| {
            let window = Window::new(kind, pd, Rkey::new(key));
            Object::Window(Box::new(RwLock::new(window)))
        })
    }

    /// Adds a free indirect key with room for `capacity` entries, likewise.
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
        regions.make_room();
        let key = regions.new_key(random::word);
        let object = object(key);
        regions.windows += usize::from(matches!(object, Object::Window(_)));
        regions.count += 1;
        let place = regions.place(key);
        regions.entries[place] = Some(Entry { key, object });
        Some(key)
    }

    /// Removes a region. Waits for copies in flight; later accesses fail.
    ///
    /// # Errors
    /// The region stays.
    pub(crate) fn remove(&self, key: u32) -> Result<(), Kept> {
        let mut regions = self.regions.write();
        //= MR-09
        match regions.lookup(key).map(|entry| &entry.object) {
            Some(Object::Region { windows, .. }) if windows.load(Ordering::Relaxed) > 0 => {
                return Err(Kept::Bound);
            }
            //= UMR-08
            Some(Object::Region { .. } | Object::Indirect(_) | Object::Null(_)) => {}
            Some(Object::Window(_)) | None => return Err(Kept::Unknown),
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
        let is_bound = |entry: &&Entry| match &entry.object {
            Object::Window(window) => window.read().region() == Some(Lkey::new(key)),
            _ => false,
        };
        let windows = regions.entries.iter().flatten().filter(is_bound);
        windows.map(|entry| entry.key).collect()
    }

    /// Where in this process a part of a region of `pd` is that the device may read, or write.
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

    /// Changes a region, between two accesses (MR-10).
    ///
    /// # Errors
    /// The region stays as it was.
    pub(crate) fn replace(&self, key: u32, with: Region) -> Result<(), Kept> {
        let mut regions = self.regions.write();
        let place = regions.place(key);
        match &mut regions.entries[place] {
            Some(Entry {
                key: found,
                object: Object::Region { region, windows },
            }) if *found == key => {
                if windows.load(Ordering::Relaxed) > 0 {
                    return Err(Kept::Bound);
                }
                *region = with;
                Ok(())
            }
            _ => Err(Kept::Unknown),
        }
    }

    /// Removes a window, bound or not (MW-10), by any of its keys.
    pub(crate) fn remove_window(&self, key: u32) {
        let mut regions = self.regions.write();
        if let Some(window) = regions.window(key) {
            regions.free(&mut window.write());
            regions.take(key);
            regions.windows -= 1;
        }
    }

    /// Frees the windows that were bound on a QP for it alone: it has ended.
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
    /// Keeps more than half of the places free. Keys in different places stay in different places: each
    /// moves by the next bit of its index.
    fn make_room(&mut self) {
        if self.count * 2 < self.entries.len() {
            return;
        }
        let twice = places(self.entries.len() * 2);
        for entry in std::mem::replace(&mut self.entries, twice)
            .into_iter()
            .flatten()
        {
            let place = self.place(entry.key);
            self.entries[place] = Some(entry);
        }
    }

    /// Forgets a key.
    fn take(&mut self, key: u32) {
        let place = self.place(key);
        self.entries[place] = None;
        self.count -= 1;
        if self.retired.len() == RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back(index(key));
    }

    /// The first word of `random` that may be a key: it is not in use, its index was not lately, and
    /// its place is free.
    fn new_key(&self, mut random: impl FnMut() -> u32) -> u32 {
        loop {
            let key = random();
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

    #[inline]
    fn at_place(&self, key: u32) -> Option<&Entry> {
        self.entries.get(self.place(key))?.as_ref()
    }

    //= KEY-02
    #[inline]
    fn lookup(&self, key: u32) -> Option<&Entry> {
        self.at_place(key).filter(|entry| entry.key == key)
    }

    #[inline]
    pub(super) fn region(&self, key: u32) -> Option<&Region> {
        match &self.lookup(key)?.object {
            Object::Region { region, .. } => Some(region),
            _ => None,
        }
    }

    /// Is it a region of nothing, and whose?
    pub(super) fn null(&self, key: u32) -> Option<PdTag> {
        match self.lookup(key)?.object {
            Object::Null(pd) => Some(pd),
            _ => None,
        }
    }

    /// The window with this index; the tag is the window's to compare.
    pub(super) fn window(&self, key: u32) -> Option<&RwLock<Window>> {
        match self.at_place(key)? {
            Entry {
                key: found,
                object: Object::Window(window),
            } if index(*found) == index(key) => Some(window),
            _ => None,
        }
    }

    /// The indirect key with this number.
    pub(super) fn indirect(&self, key: u32) -> Option<&RwLock<Indirect>> {
        match &self.lookup(key)?.object {
            Object::Indirect(indirect) => Some(indirect),
            _ => None,
        }
    }

    /// What an indirect key that lists this one has to know of it.
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

    /// Changes an indirect key: those that it lists are looked at before it is locked.
    pub(super) fn fill(&self, who: Accessor, fill: Fill) -> Result<(), BindError> {
        let indirect = self.indirect(fill.key.get()).ok_or(BindError::NoWindow)?;
        let pd = indirect.read_recursive().pd();
        let depth = Indirect::check(pd, &fill, |lkey| self.listed(lkey))?;
        indirect.write().fill(who, fill, depth)
    }

    /// Binds a window.
    pub(super) fn bind(&self, who: Accessor, bind: &Bind) -> Result<(), BindError> {
        let window = self.window(bind.rkey.get()).ok_or(BindError::NoWindow)?;
        let region = self.region(bind.lkey.get()).map(|region| Bindable {
            pd: region.pd,
            iova: region.iova,
            len: region.len,
            access: region.access,
        });
        let mut window = window.write();
        let before = window.region();
        window.bind(who, bind, region.as_ref())?;
        self.count_windows(before, u32::wrapping_sub);
        self.count_windows(window.region(), u32::wrapping_add);
        Ok(())
    }

    /// Makes a key invalid.
    pub(super) fn invalidate(
        &self,
        who: Accessor,
        rkey: Rkey,
        remotely: bool,
    ) -> Result<(), AccessError> {
        //= INV-01
        if let Some(indirect) = self.indirect(rkey.get()) {
            return indirect.write().invalidate(who);
        }
        let window = self.window(rkey.get()).ok_or(AccessError::BadKey)?;
        let mut window = window.write();
        let before = window.region();
        window.invalidate(who, rkey, remotely)?;
        self.count_windows(before, u32::wrapping_sub);
        Ok(())
    }

    fn free(&self, window: &mut Window) {
        self.count_windows(window.region(), u32::wrapping_sub);
        window.free();
    }

    /// One window more or less is bound to a region. Who removes or changes regions excludes us.
    fn count_windows(&self, region: Option<Lkey>, change: impl Fn(u32, u32) -> u32) {
        if let Some(lkey) = region
            && let Some(Entry {
                object: Object::Region { windows, .. },
                ..
            }) = self.lookup(lkey.get())
        {
            windows.fetch_add(change(0, 1), Ordering::Relaxed);
        }
    }
}

fn places(count: usize) -> Vec<Option<Entry>> {
    std::iter::repeat_with(|| None).take(count).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PD: PdTag = PdTag(1);

    /// Inserts a key with this value, or else with `instead`.
    fn insert(table: &MrTable, wanted: u32, instead: u32) -> u32 {
        let mut words = [wanted, instead].into_iter();
        let mut regions = table.regions.write();
        let key = regions.new_key(|| words.next().expect("one of the two is good"));
        let place = regions.place(key);
        let object = Object::Null(PD);
        regions.entries[place] = Some(Entry { key, object });
        regions.count += 1;
        key
    }

    /// Whatever the tag: the index of a key that has ended is not handed out before many others have
    /// ended too. Then it is.
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

    /// An index of 0 and the key that stands for all ones are nobody's.
    //= KEY-05 type=test
    #[test]
    fn some_words_are_no_keys() {
        let table = MrTable::new();
        for (word, instead) in [(0x7f, 0x0100_0100), (u32::MAX, 0x0200_0200)] {
            assert_eq!(insert(&table, word, instead), instead);
        }
    }
}
