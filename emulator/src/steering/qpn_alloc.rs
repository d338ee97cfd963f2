//! Allocates the QP numbers of one process: 16 bits inside its slot.

use core::fmt;
use std::collections::VecDeque;

use rocade_wire::Qpn;

use super::ProcessSlot;
use crate::random;

/// Lowest low part to allocate. Lower ones are reserved in all slots, not only for QP0 and QP1 in
/// slot 0, so that small low parts are recognisably special.
const FIRST: u16 = 16;
/// Highest low part to allocate. In slot 255 the next one would be the multicast QP, 0xFFFFFF.
const LAST: u16 = u16::MAX - 1;

const WORD_BITS: usize = 64;
const WORDS: usize = (1 << 16) / WORD_BITS;

/// Allocates and frees the QP numbers of one slot.
///
/// The numbers are random, so that they cannot be guessed. A freed number is reserved until half of
/// the free numbers were freed after it. A late packet of the old connection therefore does not
/// reach a new QP.
pub struct QpnAllocator {
    slot: ProcessSlot,
    used: Box<[u64; WORDS]>,
    /// Free numbers to choose from.
    ready: Vec<u16>,
    /// Reserved free numbers, oldest first, at most as many as in `ready`.
    reserved: VecDeque<u16>,
}

impl QpnAllocator {
    /// Number of QP numbers of a slot.
    pub const CAPACITY: usize = (LAST - FIRST) as usize + 1;

    /// Creates an allocator for a slot.
    #[must_use]
    pub fn new(slot: ProcessSlot) -> Self {
        Self {
            slot,
            used: Box::new([0; WORDS]),
            ready: (FIRST..=LAST).collect(),
            reserved: VecDeque::new(),
        }
    }

    /// Returns the slot of all numbers.
    #[must_use]
    pub const fn slot(&self) -> ProcessSlot {
        self.slot
    }

    /// Returns the number of allocated QP numbers.
    #[must_use]
    pub fn in_use(&self) -> usize {
        Self::CAPACITY - self.ready.len() - self.reserved.len()
    }

    /// Allocates a number. Returns `None` if all [`Self::CAPACITY`] are in use.
    //= QPC-02
    pub fn allocate(&mut self) -> Option<Qpn> {
        self.allocate_with(random::below)
    }

    /// Like [`allocate`](Self::allocate), with `pick` choosing one of the given number of
    /// candidates, at least 1.
    pub(crate) fn allocate_with(&mut self, pick: impl FnOnce(usize) -> usize) -> Option<Qpn> {
        let low = if self.ready.is_empty() {
            self.reserved.pop_front()?
        } else {
            let count = self.ready.len();
            self.ready.swap_remove(pick(count).min(count - 1))
        };
        self.set(low, true);
        Some(self.slot.qpn(low))
    }

    /// Frees a number. Returns false if this allocator did not allocate it.
    pub fn release(&mut self, qpn: Qpn) -> bool {
        let Some(low) = self.low_part(qpn) else {
            return false;
        };
        if !self.is_used(low) {
            return false;
        }
        self.set(low, false);
        self.reserved.push_back(low);
        if self.reserved.len() > self.ready.len() {
            self.ready.extend(self.reserved.pop_front());
        }
        true
    }

    /// Returns true if this number is allocated.
    #[must_use]
    pub fn is_allocated(&self, qpn: Qpn) -> bool {
        self.low_part(qpn).is_some_and(|low| self.is_used(low))
    }

    fn low_part(&self, qpn: Qpn) -> Option<u16> {
        let [_, slot, high, low] = qpn.get().to_be_bytes();
        (slot == self.slot.get()).then_some(u16::from_be_bytes([high, low]))
    }

    fn is_used(&self, low: u16) -> bool {
        let at = usize::from(low);
        self.used[at / WORD_BITS] & (1 << (at % WORD_BITS)) != 0
    }

    fn set(&mut self, low: u16, used: bool) {
        let at = usize::from(low);
        let bit = 1 << (at % WORD_BITS);
        if used {
            self.used[at / WORD_BITS] |= bit;
        } else {
            self.used[at / WORD_BITS] &= !bit;
        }
    }
}

impl fmt::Debug for QpnAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpnAllocator")
            .field("slot", &self.slot)
            .field("in_use", &self.in_use())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn hands_out_every_number_of_the_slot_once() {
        let mut allocator = QpnAllocator::new(ProcessSlot::new(255));
        let numbers: HashSet<_> = std::iter::from_fn(|| allocator.allocate()).collect();
        assert_eq!(numbers.len(), QpnAllocator::CAPACITY);
        assert!(
            numbers
                .iter()
                .all(|&qpn| ProcessSlot::of(qpn) == ProcessSlot::new(255))
        );
        assert!(!numbers.contains(&Qpn::new(0xFF_FFFF)));
        assert!(!numbers.contains(&Qpn::new(0xFF_000F)));
        assert_eq!(allocator.in_use(), QpnAllocator::CAPACITY);
        assert_eq!(allocator.allocate(), None);
    }

    //= QPC-02 type=test
    #[test]
    fn a_released_number_does_not_come_back_soon() {
        let mut allocator = QpnAllocator::new(ProcessSlot::new(3));
        let first = allocator.allocate().unwrap();
        let [_, _, high, low] = first.get().to_be_bytes();
        let low = u16::from_be_bytes([high, low]);
        assert!(allocator.release(first));
        for other in 0..QpnAllocator::CAPACITY / 2 - 1 {
            // The number is not among the candidates, so this is not by chance.
            assert!(!allocator.ready.contains(&low), "after {other} others");
            let qpn = allocator.allocate().unwrap();
            assert!(allocator.release(qpn));
        }
        assert_eq!(allocator.reserved.front(), Some(&low));
        let qpn = allocator.allocate().unwrap();
        assert!(allocator.release(qpn));
        assert!(allocator.ready.contains(&low), "it is free again");
    }

    #[test]
    fn with_few_free_numbers_all_of_them_are_found() {
        let mut allocator = QpnAllocator::new(ProcessSlot::new(3));
        let mut numbers: Vec<_> = std::iter::from_fn(|| allocator.allocate()).collect();
        for _ in 0..100 {
            let released: HashSet<_> = numbers.drain(..3).collect();
            assert!(released.iter().all(|qpn| allocator.release(*qpn)));
            let again: HashSet<_> = std::iter::from_fn(|| allocator.allocate()).collect();
            assert_eq!(again, released);
            numbers.extend(again);
        }
    }

    #[test]
    fn numbers_are_random_in_all_bits() {
        let first = || QpnAllocator::new(ProcessSlot::new(7)).allocate().unwrap();
        let of_many: Vec<_> = (0..500).map(|_| first().get()).collect();
        let mut allocator = QpnAllocator::new(ProcessSlot::new(7));
        let of_one: Vec<_> = (0..500)
            .map(|_| allocator.allocate().unwrap().get())
            .collect();
        for numbers in [of_many, of_one] {
            for bit in 0..16 {
                let ones = numbers.iter().filter(|qpn| *qpn >> bit & 1 == 1).count();
                assert!((150..350).contains(&ones), "bit {bit}: {ones} of 500");
            }
            let steps = numbers.windows(2).filter(|pair| pair[1] == pair[0] + 1);
            assert!(steps.count() < 10, "they do not count up");
        }
    }

    #[test]
    fn release_takes_only_what_was_handed_out() {
        let mut allocator = QpnAllocator::new(ProcessSlot::new(2));
        let qpn = allocator.allocate().unwrap();
        assert!(allocator.is_allocated(qpn));
        assert!(!allocator.release(Qpn::new(qpn.get() ^ 0x01_0000)));
        assert!(!allocator.release(Qpn::new(qpn.get() ^ 1)));
        assert!(!allocator.release(Qpn::new(0x02_0001)));
        assert!(allocator.release(qpn));
        assert!(!allocator.release(qpn));
        assert_eq!(allocator.in_use(), 0);
    }
}
