//! The leased slots. The lock files are authoritative: a slot is free if and only if no process
//! holds the lock of its file, whatever connections exist.

#![deny(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::SlotStatus;
use super::paths::{Paths, open_lock};
use super::sys;
use crate::steering::ProcessSlot;

/// Delay of the first check of a slot whose client has just gone. Its lock is free when the last
/// process with the descriptor has ended, for which there is no event.
const FIRST_CHECK: Duration = Duration::from_millis(2);
/// Interval of checks of slots that stay locked.
const LAST_CHECK: Duration = Duration::from_secs(1);

/// A locked slot whose client is not connected.
#[derive(Debug)]
struct Orphan {
    file: File,
    /// True if the client belongs to an earlier broker and will reconnect.
    awaited: bool,
}

/// Results of a client's attempt to resume a slot.
#[derive(Debug)]
pub(super) enum Resumed {
    /// The client does not have the slot.
    Refused,
    /// The client has the lock.
    Locked,
    /// The client has the lock of a file that was deleted, or that belongs to a broker with another
    /// directory. The slot is otherwise free. This is the new lock file, locked.
    Relocked(File),
}

/// The slots of the broker.
#[derive(Debug)]
pub(super) struct SlotTable {
    paths: Paths,
    orphans: BTreeMap<ProcessSlot, Orphan>,
    interval: Duration,
}

impl SlotTable {
    /// Finds the living clients of earlier brokers.
    pub(super) fn new(paths: Paths) -> Self {
        let mut table = Self {
            paths,
            orphans: BTreeMap::new(),
            interval: FIRST_CHECK,
        };
        for slot in ProcessSlot::leasable() {
            let Ok(file) = File::options()
                .read(true)
                .write(true)
                .open(table.paths.slot_lock(slot))
            else {
                continue;
            };
            if !sys::try_lock(file.as_fd()).unwrap_or(false) {
                table.orphans.insert(
                    slot,
                    Orphan {
                        file,
                        awaited: true,
                    },
                );
            }
        }
        table
    }

    /// Leases the lowest free slot for which `taken` is false. Returns its lock file, locked, which
    /// contains the client's process ID and name. Returns `None` if all slots are in use.
    ///
    /// # Errors
    /// Errors of opening and locking files.
    pub(super) fn lease(
        &mut self,
        taken: impl Fn(ProcessSlot) -> bool,
        pid: u32,
        name: &str,
    ) -> io::Result<Option<(ProcessSlot, File)>> {
        // A deleted lock file says nothing about its slot.
        let free = |slot: &ProcessSlot| !taken(*slot) && !self.orphans.contains_key(slot);
        for slot in ProcessSlot::leasable().filter(free) {
            if let Some(file) = self.lock(slot, pid, name)? {
                return Ok(Some((slot, file)));
            }
        }
        Ok(None)
    }

    /// Locks a slot for a client. Returns `None` if another process holds the lock.
    ///
    /// # Errors
    /// Errors of opening and locking files.
    pub(super) fn lock(&self, slot: ProcessSlot, pid: u32, name: &str) -> io::Result<Option<File>> {
        let mut file = open_lock(&self.paths.slot_lock(slot))?;
        if !sys::try_lock(file.as_fd())? {
            return Ok(None);
        }
        // Informational, so errors are ignored.
        let _ = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{pid} {name}"));
        Ok(Some(file))
    }

    /// Resumes a slot for a client. `proof` is the file that the client locked.
    pub(super) fn resume(
        &mut self,
        slot: ProcessSlot,
        proof: OwnedFd,
        pid: u32,
        name: &str,
    ) -> io::Result<Resumed> {
        let proof = File::from(proof);
        let identity = |file: &File| file.metadata().map(|data| (data.dev(), data.ino()));
        // flock succeeds if the same open file is locked already.
        if !proof.metadata()?.is_file() || !sys::try_lock(proof.as_fd())? {
            return Ok(Resumed::Refused);
        }
        let file = open_lock(&self.paths.slot_lock(slot))?;
        if identity(&proof)? == identity(&file)? {
            self.orphans.remove(&slot);
            return Ok(Resumed::Locked);
        }
        // Refuses the lock file of another slot. For an orphan of this broker, it must be the
        // orphan's file.
        let of_another = ProcessSlot::leasable()
            .filter_map(|slot| std::fs::metadata(self.paths.slot_lock(slot)).ok())
            .any(|data| identity(&proof).is_ok_and(|proof| proof == (data.dev(), data.ino())));
        if of_another {
            return Ok(Resumed::Refused);
        }
        if let Some(orphan) = self.orphans.get(&slot)
            && identity(&orphan.file)? != identity(&proof)?
        {
            return Ok(Resumed::Refused);
        }
        Ok(match self.lock(slot, pid, name)? {
            Some(file) => {
                self.orphans.remove(&slot);
                Resumed::Relocked(file)
            }
            None => Resumed::Refused,
        })
    }

    /// Notes that a client is gone. Returns true if its slot is free. Otherwise the slot is checked
    /// until it is. `awaited` is true for a client that has not handed over everything yet.
    pub(super) fn disconnected(&mut self, slot: ProcessSlot, awaited: bool) -> bool {
        match open_lock(&self.paths.slot_lock(slot)) {
            Ok(file) if sys::try_lock(file.as_fd()).unwrap_or(false) => true,
            Ok(file) => {
                self.orphans.insert(slot, Orphan { file, awaited });
                self.interval = FIRST_CHECK;
                false
            }
            Err(error) => {
                tracing::warn!(%slot, %error, "failed to open a slot's lock file: freeing the slot");
                true
            }
        }
    }

    /// Returns the slots without a connection that have become free.
    pub(super) fn check_orphans(&mut self) -> Vec<ProcessSlot> {
        let mut free = Vec::new();
        self.orphans.retain(|slot, orphan| {
            let locked = !sys::try_lock(orphan.file.as_fd()).unwrap_or(true);
            if !locked {
                free.push(*slot);
            }
            locked
        });
        self.interval = (self.interval * 2).min(LAST_CHECK);
        free
    }

    /// Returns the time to the next call of [`Self::check_orphans`], if one is needed.
    pub(super) fn check_interval(&self) -> Option<Duration> {
        self.has_orphans().then_some(self.interval)
    }

    /// Returns true if there are locked slots whose clients are not connected.
    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// Returns true if the slot is locked and its client is not connected.
    pub(super) fn is_orphan(&self, slot: ProcessSlot) -> bool {
        self.orphans.contains_key(&slot)
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn orphaned_slots(&self) -> std::collections::BTreeSet<ProcessSlot> {
        self.orphans.keys().copied().collect()
    }

    /// Returns true if clients of an earlier broker have not resumed yet.
    pub(super) fn has_awaited(&self) -> bool {
        self.orphans.values().any(|orphan| orphan.awaited)
    }

    /// Returns the slots whose clients are not connected, with the owner in their lock files.
    pub(super) fn orphans(&mut self) -> impl Iterator<Item = SlotStatus> {
        self.orphans.iter_mut().map(|(slot, orphan)| {
            let (pid, name) = read_owner(&mut orphan.file).unwrap_or_default();
            SlotStatus {
                slot: *slot,
                pid,
                name,
                connected: false,
            }
        })
    }
}

fn read_owner(file: &mut File) -> Option<(u32, String)> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(256).read_to_string(&mut text).ok()?;
    let (pid, name) = text.trim_end().split_once(' ')?;
    Some((pid.parse().ok()?, name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::BrokerConfig;
    use super::*;

    fn paths(dir: &tempfile::TempDir) -> Paths {
        let runtime_dir = Some(dir.path().to_owned());
        Paths::new(&BrokerConfig {
            runtime_dir,
            ..BrokerConfig::default()
        })
    }

    #[test]
    fn slots_are_leased_from_the_lowest_while_their_locks_are_free() {
        let _no_starts = crate::sys::STARTS.read();
        let dir = tempfile::tempdir().unwrap();
        let mut table = SlotTable::new(paths(&dir));
        let lease = |table: &mut SlotTable| table.lease(|_| false, 7, "x y").unwrap().unwrap();
        let (one, lock_one) = lease(&mut table);
        let (two, lock_two) = lease(&mut table);
        assert_eq!((one, two), (ProcessSlot::new(1), ProcessSlot::new(2)));
        drop(lock_one);
        assert!(table.disconnected(one, false));
        assert_eq!(lease(&mut table).0, one);

        // The client of slot 2 is gone, but another process still holds its lock.
        assert!(!table.disconnected(two, false));
        assert!(!table.has_awaited());
        assert_eq!(table.check_orphans(), []);
        let orphan = SlotStatus {
            slot: two,
            pid: 7,
            name: "x y".into(),
            connected: false,
        };
        assert_eq!(table.orphans().collect::<Vec<_>>(), [orphan]);
        drop(lock_two);
        assert_eq!(table.check_orphans(), [two]);
        assert_eq!(table.check_interval(), None);
    }

    #[test]
    fn a_new_table_finds_the_live_processes() {
        let _no_starts = crate::sys::STARTS.read();
        let dir = tempfile::tempdir().unwrap();
        let mut old = SlotTable::new(paths(&dir));
        let (one, lock_one) = old.lease(|_| false, 1, "a").unwrap().unwrap();
        let (two, lock_two) = old.lease(|_| false, 2, "b").unwrap().unwrap();
        drop(lock_one);
        let mut new = SlotTable::new(paths(&dir));
        assert!(new.has_awaited());
        // A file that another process has locked, or any other file, is refused.
        let unlocked = open_lock(&paths(&dir).slot_lock(two)).unwrap();
        let mut resume = |slot, proof| new.resume(slot, proof, 2, "b").unwrap();
        assert!(matches!(resume(two, unlocked.into()), Resumed::Refused));
        let other = std::os::unix::net::UnixStream::pair().unwrap().0;
        assert!(matches!(resume(two, other.into()), Resumed::Refused));
        let proof = || lock_two.try_clone().unwrap().into();
        assert!(matches!(resume(one, proof()), Resumed::Refused));
        assert!(matches!(resume(two, proof()), Resumed::Locked));
        assert!(!new.has_orphans());
        drop(new);
        assert!(SlotTable::new(paths(&dir)).has_awaited());
        drop(lock_two);
        assert!(!SlotTable::new(paths(&dir)).has_awaited());
    }

    #[test]
    fn a_client_whose_lock_was_deleted_gets_another_unless_the_slot_is_leased() {
        let _no_starts = crate::sys::STARTS.read();
        let dir = tempfile::tempdir().unwrap();
        let mut old = SlotTable::new(paths(&dir));
        let lease = |table: &mut SlotTable| table.lease(|_| false, 1, "a").unwrap().unwrap();
        let (one, lock_one) = lease(&mut old);
        let (two, lock_two) = lease(&mut old);
        for slot in [one, two] {
            std::fs::remove_file(paths(&dir).slot_lock(slot)).unwrap();
        }
        let mut new = SlotTable::new(paths(&dir));
        let proof = |lock: &File| lock.try_clone().unwrap().into();
        let resumed = new.resume(two, proof(&lock_two), 1, "a").unwrap();
        let Resumed::Relocked(_relocked) = resumed else {
            panic!("{resumed:?}")
        };
        assert!(!sys::try_lock(open_lock(&paths(&dir).slot_lock(two)).unwrap().as_fd()).unwrap());
        let (again, _lock) = lease(&mut new);
        assert_eq!(again, one);
        let resumed = new.resume(one, proof(&lock_one), 1, "a").unwrap();
        assert!(matches!(resumed, Resumed::Refused), "{resumed:?}");
    }

    /// The slot of a client that gets another lock file is not listed as one without a client.
    #[test]
    fn a_slot_is_resumed_once_with_either_file() {
        let _no_starts = crate::sys::STARTS.read();
        let dir = tempfile::tempdir().unwrap();
        let mut old = SlotTable::new(paths(&dir));
        let (one, lock) = old.lease(|_| false, 1, "a").unwrap().unwrap();
        let mut new = SlotTable::new(paths(&dir));
        assert_eq!(new.orphans().count(), 1);
        std::fs::remove_file(paths(&dir).slot_lock(one)).unwrap();
        let proof = lock.try_clone().unwrap().into();
        let resumed = new.resume(one, proof, 1, "a").unwrap();
        let Resumed::Relocked(lock) = resumed else {
            panic!("{resumed:?}")
        };
        assert_eq!(new.orphans().collect::<Vec<_>>(), []);
        assert!(!new.has_awaited() && new.check_interval().is_none());
        // The connection breaks, and the client resumes with the new file.
        assert!(!new.disconnected(one, false));
        assert_eq!(new.orphans().count(), 1);
        let resumed = new.resume(one, lock.into(), 1, "a").unwrap();
        assert!(matches!(resumed, Resumed::Locked), "{resumed:?}");
        assert_eq!(new.orphans().collect::<Vec<_>>(), []);
    }

    #[test]
    fn an_orphan_keeps_its_slot_when_its_file_is_deleted() {
        let _no_starts = crate::sys::STARTS.read();
        let dir = tempfile::tempdir().unwrap();
        let mut table = SlotTable::new(paths(&dir));
        let lease = |table: &mut SlotTable| table.lease(|_| false, 1, "a").unwrap().unwrap();
        let (one, _lock) = lease(&mut table);
        assert!(!table.disconnected(one, false));
        std::fs::remove_file(paths(&dir).slot_lock(one)).unwrap();
        assert_ne!(lease(&mut table).0, one);
    }

    #[test]
    fn there_are_255_slots() {
        let _no_starts = crate::sys::STARTS.read();
        let dir = tempfile::tempdir().unwrap();
        let mut table = SlotTable::new(paths(&dir));
        let leases: Vec<_> =
            std::iter::from_fn(|| table.lease(|_| false, 1, "a").unwrap()).collect();
        assert_eq!(leases.len(), 255);
        assert_eq!(
            table.lease(|_| true, 1, "a").unwrap().map(|lease| lease.0),
            None
        );
    }
}
