//! Packet sequence numbers: 24 bits, modular.

use core::fmt;

/// A packet sequence number, `0..2^24`, modulo 2^24.
///
/// There is no `Ord`: the modular order is not transitive. Compare with [`Psn::diff`].
//= BTH-13
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Psn(u32);

impl Psn {
    /// Largest value. Its successor is 0.
    pub const MAX: Self = Self(Self::MASK);

    /// Number of significant bits.
    pub const BITS: u32 = 24;

    const MASK: u32 = (1 << Self::BITS) - 1;

    /// Creates the number `value` modulo 2^24.
    #[inline]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The value, `0..2^24`.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the number `count` packets later.
    #[inline]
    #[must_use]
    pub const fn add(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// Returns the number `count` packets earlier.
    #[inline]
    #[must_use]
    pub const fn sub(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// Returns the number of the following packet.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// Returns the signed distance `self - other`, in `-2^23 .. 2^23`: negative if `self` is before
    /// `other`. A distance of 2^23 counts as before.
    #[inline]
    #[must_use]
    //= RC-PSN-01
    pub const fn diff(self, other: Self) -> i32 {
        // The difference is moved to the top of the word. The arithmetic shift back extends its
        // sign.
        let top = self.0.wrapping_sub(other.0) << (u32::BITS - Self::BITS);
        top.cast_signed() >> (u32::BITS - Self::BITS)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests;
