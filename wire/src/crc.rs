//! CRC-32 of Ethernet, the arithmetic under the ICRC.
//!
//! It runs over every byte that is sent and received, so it decides how fast packets of a
//! kilobyte are. On x86-64 with AVX-512 and VPCLMULQDQ it folds 64 bytes at a time (`avx512`), half as
//! long for 1 KiB as `crc32fast`, and on the way copies the data it sums up; elsewhere it is
//! `crc32fast`. Which it is, is found out at run time with the feature `std`, without it at compile time.

use crc32fast::Hasher;

#[cfg(target_arch = "x86_64")]
mod avx512;

/// The CRC's polynomial, reflected, x^32 left out.
//= ICRC-01
pub(crate) const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1.
pub(crate) const ONE: u32 = 1 << 31;

/// Multiplies by x.
pub(crate) const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 != 0 { POLYNOMIAL } else { 0 }
}

/// Continues `crc` over `bytes`. The CRC of nothing is 0.
#[inline]
#[must_use]
pub fn update(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(wide) = avx512::Wide::get() {
        return wide.update(crc, bytes);
    }
    portable(crc, bytes)
}

/// Copies `dst.len()` bytes from `src` and continues `crc` over `head` and them. The source is read once:
/// what has been summed up is what `dst` holds, even if somebody writes to the source meanwhile.
///
/// # Safety
/// `dst.len()` bytes must be readable at `src`, and not overlap `dst`.
#[inline]
#[must_use]
pub unsafe fn copy(crc: u32, head: &[u8], src: *const u8, dst: &mut [u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(wide) = avx512::Wide::get() {
        // SAFETY: the caller's promise.
        return unsafe { wide.copy(crc, head, src, dst) };
    }
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
    portable(portable(crc, head), dst)
}

fn portable(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Bit by bit, from the definition.
    fn naive(crc: u32, bytes: &[u8]) -> u32 {
        let mut register = !crc;
        for &byte in bytes {
            register ^= u32::from(byte);
            for _ in 0..8 {
                register = times_x(register);
            }
        }
        !register
    }

    #[test]
    fn the_check_value() {
        assert_eq!(update(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(update(0, b""), 0);
    }

    #[test]
    fn every_length_up_to_many_blocks() {
        let bytes: Vec<u8> = (0..1500u32)
            .map(|n| ((n * n) >> 3).to_le_bytes()[0])
            .collect();
        for len in 0..bytes.len() {
            let bytes = &bytes[..len];
            let expected = naive(0x0123_4567, bytes);
            assert_eq!(update(0x0123_4567, bytes), expected, "{len} bytes");
            let mut copied = vec![0xee; len + 2];
            for head in (0..=len.min(80)).step_by(4) {
                copied.fill(0xee);
                let (head, payload) = bytes.split_at(head);
                let room = &mut copied[1..=payload.len()];
                // SAFETY: the bytes of a slice.
                let crc = unsafe { copy(0x0123_4567, head, payload.as_ptr(), room) };
                assert_eq!(
                    crc,
                    expected,
                    "{} bytes behind {}",
                    payload.len(),
                    head.len()
                );
                assert_eq!(room, payload);
                assert_eq!((copied[0], copied[payload.len() + 1]), (0xee, 0xee));
            }
        }
    }

    proptest! {
        #[test]
        fn as_defined(crc: u32, bytes in prop::collection::vec(any::<u8>(), 0..5000), skip in 0..64usize) {
            let bytes = &bytes[skip.min(bytes.len())..];
            let expected = naive(crc, bytes);
            prop_assert_eq!(update(crc, bytes), expected);
            prop_assert_eq!(portable(crc, bytes), expected);
            let mut copied = vec![0; bytes.len()];
            // SAFETY: the bytes of a slice.
            prop_assert_eq!(unsafe { copy(crc, &[], bytes.as_ptr(), &mut copied) }, expected);
            prop_assert_eq!(copied, bytes);
        }
    }
}
