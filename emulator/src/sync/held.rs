//! The locks that a thread holds, in debug builds.
//!
//! Release builds and the loom models, whose threads share one real thread, keep nothing.

use super::Rank;

/// Manner in which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Alone: a mutex, or a lock for writing.
    Alone,
    /// Together with other readers.
    Shared,
    /// Together with other readers, of which this thread may be one.
    SharedAgain,
}

/// The entry of one held lock in its thread's list. Dropping it removes the entry.
#[derive(Debug)]
pub(super) struct Held {
    #[cfg(all(debug_assertions, not(loom)))]
    id: u64,
}

#[cfg(not(all(debug_assertions, not(loom))))]
impl Held {
    #[inline(always)]
    pub(super) const fn wait(_: Rank, _: Use) -> Self {
        Self {}
    }

    #[inline(always)]
    pub(super) const fn take(_: Rank, _: Use) -> Self {
        Self {}
    }

    #[inline(always)]
    pub(super) const fn assert_last(&self) {}
}

#[cfg(all(debug_assertions, not(loom)))]
mod checked {
    use std::cell::RefCell;
    use std::panic::Location;

    use super::{Held, Rank, Use};

    /// Most locks that a thread holds at a time.
    const MOST: usize = 32;

    #[derive(Clone, Copy)]
    struct Entry {
        id: u64,
        rank: Rank,
        how: Use,
        place: &'static Location<'static>,
    }

    /// The entries of a thread. It needs no destructor, so that the destructors of other
    /// thread-local values may lock.
    struct List {
        entries: [Option<Entry>; MOST],
        len: usize,
        next_id: u64,
    }

    thread_local! {
        static LIST: RefCell<List> = const {
            RefCell::new(List { entries: [None; MOST], len: 0, next_id: 0 })
        };
    }

    impl List {
        fn push(&mut self, rank: Rank, how: Use, place: &'static Location<'static>) -> u64 {
            assert!(self.len < MOST, "a thread holds more than {MOST} locks");
            let id = self.next_id;
            self.next_id += 1;
            self.entries[self.len] = Some(Entry {
                id,
                rank,
                how,
                place,
            });
            self.len += 1;
            id
        }

        fn remove(&mut self, id: u64) {
            let at = self.entries[..self.len]
                .iter()
                .rposition(|entry| entry.is_some_and(|entry| entry.id == id));
            if let Some(at) = at {
                self.entries.copy_within(at + 1..self.len, at);
                self.len -= 1;
                self.entries[self.len] = None;
            }
        }

        /// The held lock that forbids waiting for another of this rank. A thread that reads
        /// already does not wait to read again.
        fn forbids(&self, rank: Rank, how: Use) -> Option<Entry> {
            let mut held = self.entries[..self.len].iter().flatten();
            let is_read = |entry: &Entry| entry.rank == rank && entry.how != Use::Alone;
            if how == Use::SharedAgain && held.clone().any(is_read) {
                return None;
            }
            held.find(|entry| entry.rank >= rank).copied()
        }
    }

    impl Held {
        /// Before waiting for a lock of this rank.
        #[track_caller]
        pub(in crate::sync) fn wait(rank: Rank, how: Use) -> Self {
            let place = Location::caller();
            let forbidden = LIST.with_borrow(|list| list.forbids(rank, how));
            if let Some(held) = forbidden
                && !std::thread::panicking()
            {
                panic!(
                    "lock order: {rank:?} is waited for at {place}, while {:?} is held from {} \
                     (docs/locks.md)",
                    held.rank, held.place
                );
            }
            Self::take(rank, how)
        }

        /// After a lock was taken without waiting for it, or within a limit of time.
        #[track_caller]
        pub(in crate::sync) fn take(rank: Rank, how: Use) -> Self {
            let place = Location::caller();
            let id = LIST.with_borrow_mut(|list| list.push(rank, how, place));
            Self { id }
        }

        /// A thread that waits under a lock waits for this one again, so nothing may have been
        /// locked since.
        pub(in crate::sync) fn assert_last(&self) {
            let last = LIST.with_borrow(|list| {
                let entry = list.len.checked_sub(1).and_then(|last| list.entries[last]);
                entry.is_some_and(|entry| entry.id == self.id)
            });
            assert!(last, "a thread waits for a condition under two locks");
        }
    }

    /// Returns the number of locks that the calling thread holds.
    #[cfg(any(test, feature = "simulated-host"))]
    pub(crate) fn held_locks() -> usize {
        LIST.with_borrow(|list| list.len)
    }

    impl Drop for Held {
        fn drop(&mut self) {
            LIST.with_borrow_mut(|list| list.remove(self.id));
        }
    }
}

/// Returns the number of locks that the calling thread holds, which release builds do not know.
#[cfg(all(any(test, feature = "simulated-host"), not(debug_assertions)))]
pub(crate) fn held_locks() -> usize {
    0
}

#[cfg(all(any(test, feature = "simulated-host"), debug_assertions, not(loom)))]
pub(crate) use checked::held_locks;

#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use crate::sync::{Mutex, RwLock, rank};

    #[test]
    #[should_panic(expected = "lock order: Qp is waited for")]
    fn a_queue_pair_is_not_locked_under_a_completion_queue() {
        let qp = Mutex::<(), rank::Qp>::new(());
        let cq = Mutex::<(), rank::Cq>::new(());
        let _cq = cq.lock();
        let _qp = qp.lock();
    }

    #[test]
    #[should_panic(expected = "lock order: Qp is waited for")]
    fn two_queue_pairs_are_not_locked_together() {
        let one = Mutex::<(), rank::Qp>::new(());
        let two = Mutex::<(), rank::Qp>::new(());
        let _one = one.lock();
        let _two = two.lock();
    }

    #[test]
    #[should_panic(expected = "lock order: Qps is waited for")]
    fn a_table_is_not_written_while_it_is_read() {
        let table = RwLock::<(), rank::Qps>::new(());
        let _read = table.read();
        let _write = table.write();
    }

    #[test]
    fn locks_are_taken_in_order_and_given_back_in_any() {
        let qp = Mutex::<(), rank::Qp>::new(());
        let cq = Mutex::<(), rank::Cq>::new(());
        let table = RwLock::<(), rank::Qps>::new(());
        let outer = table.read_recursive();
        let inner = table.read_recursive();
        let first = qp.lock();
        let second = cq.lock();
        drop(first);
        drop(outer);
        drop(second);
        // A lock that is only tried may have any rank, but waiting under it may not.
        let last = cq.lock();
        let tried = qp.try_lock().expect("it is free");
        drop(last);
        let again = cq.lock();
        drop((tried, inner, again));
        drop(table.write());
    }
}
