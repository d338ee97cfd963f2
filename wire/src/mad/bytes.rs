//! Big-endian fields of a MAD.

use super::Mad;

/// Reads fields. Offsets count from the start of the MAD, and are all constants inside it.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8; Mad::LEN]);

impl Bytes<'_> {
    pub(super) fn array<const N: usize>(self, at: usize) -> [u8; N] {
        core::array::from_fn(|index| self.0[at + index])
    }

    pub(super) const fn u8(self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub(super) fn u24(self, at: usize) -> u32 {
        let [a, b, c] = self.array(at);
        u32::from_be_bytes([0, a, b, c])
    }

    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }
}

/// Writes bytes.
pub(super) fn put(mad: &mut [u8; Mad::LEN], at: usize, bytes: &[u8]) {
    mad[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes the low 24 bits.
pub(super) fn put24(mad: &mut [u8; Mad::LEN], at: usize, value: u32) {
    put(mad, at, &value.to_be_bytes()[1..]);
}
