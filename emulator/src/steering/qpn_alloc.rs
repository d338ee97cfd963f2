//! QP numbers of one process: 16 bits inside its slot.

use core::fmt;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use rocade_wire::Qpn;

use super::Slot;

/// Lowest low part handed out. What lies below is reserved: QP0 and QP1 in slot 0, and the same
/// numbers in the other slots so that a QP number with a small low part is recognisably special.
const FIRST: u16 = 16;
/// Highest low part handed out. In slot 255 the next one would be the multicast QP, 0xFFFFFF.
const LAST: u16 = u16::MAX - 1;

const WORD_BITS: usize = 64;
const WORDS: usize = (1 << 16) / WORD_BITS;

/// Hands out QP numbers in one slot, and takes them back.
///
/// Numbers go round: a released number comes up again only after all other free numbers of the
/// slot were handed out once, so that a packet of the old connection that is still on its way
/// does not meet a new QP. The starting point is random, so that the next process in the same slot
/// does not begin where the last one did.
pub struct QpnAllocator {
    slot: Slot,
    used: Box<[u64; WORDS]>,
    next: u16,
    in_use: usize,
}

impl QpnAllocator {
    /// How many QP numbers a slot has.
    pub const CAPACITY: usize = (LAST - FIRST) as usize + 1;

    /// An allocator for a slot with a random starting point.
    #[must_use]
    pub fn new(slot: Slot) -> Self {
        let [low, high, ..] = RandomState::new().build_hasher().finish().to_ne_bytes();
        Self::starting_at(slot, u16::from_ne_bytes([low, high]))
    }

    /// An allocator whose first number is `slot`/`low`, for tests that want the same numbers in
    /// each run. A reserved `low` is replaced by the lowest one in use.
    #[must_use]
    pub fn starting_at(slot: Slot, low: u16) -> Self {
        let next = if (FIRST..=LAST).contains(&low) {
            low
        } else {
            FIRST
        };
        Self {
            slot,
            used: Box::new([0; WORDS]),
            next,
            in_use: 0,
        }
    }

    /// The slot all numbers are in.
    #[must_use]
    pub const fn slot(&self) -> Slot {
        self.slot
    }

    /// How many numbers are handed out.
    #[must_use]
    pub const fn in_use(&self) -> usize {
        self.in_use
    }

    /// A number that is not in use, or `None` when all [`Self::CAPACITY`] are.
    //= QPC-02
    pub fn allocate(&mut self) -> Option<Qpn> {
        if self.in_use == Self::CAPACITY {
            return None;
        }
        let mut low = self.next;
        while self.is_used(low) {
            low = following(low);
        }
        self.set(low, true);
        self.in_use += 1;
        self.next = following(low);
        Some(self.slot.qpn(low))
    }

    /// Takes a number back. False if it was not handed out by this allocator.
    pub fn release(&mut self, qpn: Qpn) -> bool {
        let Some(low) = self.low_part(qpn) else {
            return false;
        };
        if !self.is_used(low) {
            return false;
        }
        self.set(low, false);
        self.in_use -= 1;
        true
    }

    /// Whether this number is handed out.
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
            .field("in_use", &self.in_use)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

const fn following(low: u16) -> u16 {
    if low >= LAST { FIRST } else { low + 1 }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn hands_out_every_number_of_the_slot_once() {
        let mut allocator = QpnAllocator::new(Slot::new(255));
        let numbers: HashSet<_> = std::iter::from_fn(|| allocator.allocate()).collect();
        assert_eq!(numbers.len(), QpnAllocator::CAPACITY);
        assert!(numbers.iter().all(|&qpn| Slot::of(qpn) == Slot::new(255)));
        assert!(!numbers.contains(&Qpn::new(0xFF_FFFF)));
        assert!(!numbers.contains(&Qpn::new(0xFF_000F)));
        assert_eq!(allocator.in_use(), QpnAllocator::CAPACITY);
        assert_eq!(allocator.allocate(), None);
    }

    //= QPC-02 type=test
    #[test]
    fn a_released_number_comes_back_last() {
        let mut allocator = QpnAllocator::new(Slot::new(3));
        let first = allocator.allocate().unwrap();
        assert!(allocator.release(first));
        for _ in 1..QpnAllocator::CAPACITY {
            let qpn = allocator.allocate().unwrap();
            assert_ne!(qpn, first);
            assert!(allocator.release(qpn));
        }
        assert_eq!(allocator.allocate(), Some(first));
    }

    #[test]
    fn release_takes_only_what_was_handed_out() {
        let mut allocator = QpnAllocator::starting_at(Slot::new(2), 100);
        let qpn = allocator.allocate().unwrap();
        assert_eq!(qpn, Qpn::new(0x02_0064));
        assert!(allocator.is_allocated(qpn));
        assert!(!allocator.release(Qpn::new(0x03_0064)));
        assert!(!allocator.release(Qpn::new(0x02_0065)));
        assert!(!allocator.release(Qpn::new(0x02_0001)));
        assert!(allocator.release(qpn));
        assert!(!allocator.release(qpn));
        assert_eq!(allocator.in_use(), 0);
    }

    #[test]
    fn wraps_past_the_reserved_numbers() {
        let mut allocator = QpnAllocator::starting_at(Slot::new(255), LAST);
        assert_eq!(allocator.allocate(), Some(Qpn::new(0xFF_FFFE)));
        assert_eq!(allocator.allocate(), Some(Qpn::new(0xFF_0010)));
        let mut allocator = QpnAllocator::starting_at(Slot::new(1), 3);
        assert_eq!(allocator.allocate(), Some(Qpn::new(0x01_0010)));
    }
}
