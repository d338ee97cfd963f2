//! AArch64: PMULL, and the instructions that compute this CRC eight bytes at a time.

use core::arch::aarch64::{
    __crc32d, __crc32w, uint64x2_t, vcombine_u64, vcreate_u64, veorq_u64, vgetq_lane_u64, vld1q_u8,
    vmull_high_p64, vmull_p64, vreinterpretq_p64_u64, vreinterpretq_u8_u64, vreinterpretq_u64_p128,
    vreinterpretq_u64_u8, vst1q_u8,
};

use super::fold::{self, Register, SimdLane};

/// Up to this length, one word after another is faster than folding and dividing.
const SHORT: usize = 64;

/// Continues the CRC like [`fold::sum`], with PMULL.
///
/// # Safety
/// As [`fold::sum`]. The processor must have these features.
#[target_feature(enable = "neon,aes,crc")]
pub(super) unsafe fn pmull<const COPY: bool>(
    crc: u32,
    head: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u32 {
    if head.len() + len <= SHORT {
        // SAFETY: the caller guarantees the memory and the features.
        return unsafe { words::<COPY>(crc, head, src, dst, len) };
    }
    // SAFETY: the caller guarantees the memory. The registers need the features of this function.
    unsafe { fold::sum::<uint64x2_t, 8, COPY>(crc, head, src, dst, len) }
}

/// Continues the CRC like [`fold::sum`], for processors without PMULL.
///
/// # Safety
/// As [`fold::sum`]. The processor must have this feature.
#[target_feature(enable = "crc")]
pub(super) unsafe fn words<const COPY: bool>(
    crc: u32,
    head: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u32 {
    let mut register = !crc;
    let (words, _) = head.as_chunks::<4>();
    for word in words {
        register = __crc32w(register, u32::from_le_bytes(*word));
    }
    let mut at = 0;
    while at + 8 <= len {
        // SAFETY: these 8 bytes are among the `len` bytes that the caller guarantees.
        let word = unsafe { src.add(at).cast::<u64>().read_unaligned() };
        if COPY {
            // SAFETY: these 8 bytes are among the `len` bytes that the caller guarantees.
            unsafe { dst.add(at).cast::<u64>().write_unaligned(word) };
        }
        register = __crc32d(register, word);
        at += 8;
    }
    if at < len {
        // SAFETY: `len` is a multiple of 4, so 4 bytes are left.
        let word = unsafe { src.add(at).cast::<u32>().read_unaligned() };
        if COPY {
            // SAFETY: `len` is a multiple of 4, so 4 bytes are left.
            unsafe { dst.add(at).cast::<u32>().write_unaligned(word) };
        }
        register = __crc32w(register, word);
    }
    !register
}

impl Register for uint64x2_t {
    type SimdLane = Self;
    const LEN: usize = 16;

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller guarantees that the bytes are readable.
        vreinterpretq_u64_u8(unsafe { vld1q_u8(src) })
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn store(self, dst: *mut u8) {
        // SAFETY: the caller guarantees that the bytes are writable.
        unsafe { vst1q_u8(dst, vreinterpretq_u8_u64(self)) };
    }

    #[inline]
    unsafe fn starting_with(lane: Self) -> Self {
        lane
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn fold(self, [low, high]: [u64; 2], next: Self) -> Self {
        let by = vcombine_u64(vcreate_u64(low), vcreate_u64(high));
        let low = vmull_p64(vgetq_lane_u64::<0>(self), low);
        let high = vmull_high_p64(vreinterpretq_p64_u64(self), vreinterpretq_p64_u64(by));
        let sum = veorq_u64(next, vreinterpretq_u64_p128(low));
        veorq_u64(sum, vreinterpretq_u64_p128(high))
    }

    #[inline]
    unsafe fn last_lane(self) -> Self {
        self
    }
}

impl SimdLane for uint64x2_t {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn new(bytes: u128) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let (low, high) = (bytes as u64, (bytes >> 64) as u64);
        vcombine_u64(vcreate_u64(low), vcreate_u64(high))
    }

    #[target_feature(enable = "neon,crc")]
    #[inline]
    unsafe fn remainder(self) -> u32 {
        let first = __crc32d(0, vgetq_lane_u64::<0>(self));
        __crc32d(first, vgetq_lane_u64::<1>(self))
    }
}
