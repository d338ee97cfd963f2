//! A hash table from QP number to QP.

use std::sync::Arc;

use rocade_wire::Qpn;

use super::qp::QpInner;

/// The QPs of a process, including adopted XRC targets of other processes.
pub(crate) type QpTable = NumberTable<Arc<QpInner>>;

/// An object with a QP number.
pub(crate) trait Numbered {
    fn number(&self) -> Qpn;
}

impl Numbered for Arc<QpInner> {
    #[inline]
    fn number(&self) -> Qpn {
        self.qp_num()
    }
}

/// A hash table with linear probing. The low bits of a number are its hash: numbers are random. At
/// most half of the slots are taken, so that probe sequences are short.
#[derive(Debug)]
pub(crate) struct NumberTable<T> {
    /// Empty, or a power of two slots.
    slots: Vec<Option<T>>,
    count: usize,
}

/// Number of slots after the first insertion.
const INITIAL_CAPACITY: usize = 16;

impl<T> Default for NumberTable<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            count: 0,
        }
    }
}

impl<T: Numbered> NumberTable<T> {
    /// Adds an object. Replaces the one with the same number.
    pub(crate) fn insert(&mut self, new: T) {
        if self.slots.len() < 2 * (self.count + 1) {
            let more = (2 * self.slots.len()).max(INITIAL_CAPACITY);
            let mut before = Vec::new();
            before.resize_with(more, || None);
            std::mem::swap(&mut self.slots, &mut before);
            for old in before.into_iter().flatten() {
                self.put(old);
            }
        }
        if self.put(new).is_none() {
            self.count += 1;
        }
    }

    /// Stores an object and returns the one it replaces. There has to be a free slot.
    fn put(&mut self, new: T) -> Option<T> {
        let mut at = self.hash(new.number());
        while let Some(other) = &self.slots[at]
            && other.number() != new.number()
        {
            at = self.next(at);
        }
        self.slots[at].replace(new)
    }

    pub(crate) fn remove(&mut self, number: Qpn) -> Option<T> {
        let mut hole = self.find(number)?;
        let removed = self.slots[hole].take();
        self.count -= 1;
        // An entry that was pushed past the hole cannot be found any more, unless it moves into the
        // hole.
        let mut at = self.next(hole);
        while let Some(other) = &self.slots[at] {
            let mask = self.mask();
            let displacement = at.wrapping_sub(self.hash(other.number())) & mask;
            if displacement >= at.wrapping_sub(hole) & mask {
                self.slots.swap(hole, at);
                hole = at;
            }
            at = self.next(at);
        }
        removed
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    #[inline]
    pub(crate) fn get(&self, number: Qpn) -> Option<&T> {
        let mut at = self.hash(number);
        loop {
            let found = self.slots.get(at)?.as_ref()?;
            if found.number() == number {
                return Some(found);
            }
            at = self.next(at);
        }
    }

    fn find(&self, number: Qpn) -> Option<usize> {
        let mut at = self.hash(number);
        while self.slots.get(at)?.as_ref()?.number() != number {
            at = self.next(at);
        }
        Some(at)
    }

    /// Meaningless while there are no slots.
    #[inline]
    const fn mask(&self) -> usize {
        self.slots.len().wrapping_sub(1)
    }

    #[inline]
    const fn hash(&self, number: Qpn) -> usize {
        number.get() as usize & self.mask()
    }

    #[inline]
    const fn next(&self, slot: usize) -> usize {
        (slot + 1) & self.mask()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    impl Numbered for (Qpn, usize) {
        fn number(&self) -> Qpn {
            self.0
        }
    }

    proptest! {
        /// After any insertions and removals the table finds exactly what it contains. Numbers have
        /// few distinct low bits, to provoke collisions.
        #[test]
        fn what_is_there_is_found(
            steps in prop::collection::vec((0u32..5, 0u32..8, any::<bool>()), 0..200),
        ) {
            let mut table = NumberTable::default();
            let mut model = BTreeMap::new();
            for (step, (high, low, comes)) in steps.into_iter().enumerate() {
                let number = Qpn::new(high << 16 | (low + 13));
                if comes {
                    table.insert((number, step));
                    model.insert(number.get(), step);
                } else {
                    let removed = table.remove(number).map(|(_, step)| step);
                    prop_assert_eq!(removed, model.remove(&number.get()));
                }
                for high in 0..5 {
                    for low in 0..32 {
                        let number = Qpn::new(high << 16 | low);
                        let found = table.get(number).map(|(_, step)| step);
                        prop_assert_eq!(found, model.get(&number.get()));
                    }
                }
                let mut all: Vec<_> = table.iter().map(|(number, step)| (number.get(), *step)).collect();
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(model.clone()));
            }
        }
    }

    #[test]
    fn an_empty_table_has_nothing() {
        let mut table = NumberTable::<(Qpn, usize)>::default();
        assert!(table.get(Qpn::new(7)).is_none() && table.remove(Qpn::new(7)).is_none());
    }
}
