//! Registers of 128, 256 and 512 bits of x86-64, with PCLMULQDQ and VPCLMULQDQ. Short inputs have a
//! function of their own ([`short`]).

use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi32_si128,
    _mm_extract_epi32, _mm_loadu_si128, _mm_set_epi32, _mm_set_epi64x, _mm_shuffle_epi8,
    _mm_srli_si128, _mm_storeu_si128, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_clmulepi64_epi128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set_epi64x,
    _mm256_storeu_si256, _mm256_xor_si256, _mm256_zextsi128_si256, _mm512_castsi512_si256,
    _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_mask_mov_epi64,
    _mm512_set_epi64, _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    _mm512_zextsi128_si512,
};
use core::ops::RangeInclusive;

use super::POLYNOMIAL;
use super::fold::{self, FACTORS, LANE, Register, SimdLane, factor};

/// Continues the CRC like [`fold::sum`], with 512 bits.
///
/// # Safety
/// As [`fold::sum`]. The processor must have these features.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.1")]
pub(super) unsafe fn avx512<const COPY: bool>(
    crc: u32,
    head: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u32 {
    if !COPY && head.is_empty() && SHORT.contains(&len) {
        // SAFETY: the caller guarantees the memory and the features.
        return unsafe { short(crc, src, len) };
    }
    // SAFETY: the caller guarantees the memory. The registers need the features of this function.
    unsafe { fold::sum::<__m512i, 4, COPY>(crc, head, src, dst, len) }
}

/// Continues the CRC like [`fold::sum`], with 256 bits.
///
/// # Safety
/// As [`fold::sum`]. The processor must have these features.
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.1")]
pub(super) unsafe fn vpclmul256<const COPY: bool>(
    crc: u32,
    head: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u32 {
    if !COPY && head.is_empty() && SHORT.contains(&len) {
        // SAFETY: the caller guarantees the memory and the features.
        return unsafe { short(crc, src, len) };
    }
    // SAFETY: the caller guarantees the memory. The registers need the features of this function.
    unsafe { fold::sum::<__m256i, 4, COPY>(crc, head, src, dst, len) }
}

/// Continues the CRC like [`fold::sum`], with 128 bits.
///
/// # Safety
/// As [`fold::sum`]. The processor must have these features.
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub(super) unsafe fn pclmul128<const COPY: bool>(
    crc: u32,
    head: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u32 {
    if !COPY && head.is_empty() && SHORT.contains(&len) {
        // SAFETY: the caller guarantees the memory and the features.
        return unsafe { short(crc, src, len) };
    }
    // SAFETY: the caller guarantees the memory. The registers need the features of this function.
    unsafe { fold::sum::<__m128i, 4, COPY>(crc, head, src, dst, len) }
}

/// The lengths that [`short`] handles.
///
/// They begin with a full lane that can be read. Multiplying their lanes one by one is faster than
/// moving them into wider registers and out again.
const SHORT: RangeInclusive<usize> = LANE..=LANE * TO_96.len();

/// `TO_96[n]` fold a lane that is followed by n lanes to the end of the data and by 64 bits more:
/// 96 bits are left.
static TO_96: [[u64; 2]; 8] = {
    let mut factors = [[0; 2]; 8];
    let mut n = 0;
    while n < factors.len() {
        let bits = 8 * LANE * n + 64;
        factors[n] = [factor(bits + 32), factor(bits - 32)];
        n += 1;
    }
    factors
};

/// A shuffle mask. Loaded from its n-th byte on, it moves the first n bytes of a lane behind zeros.
static BEHIND_ZEROS: [u8; 2 * LANE] = {
    let mut from = [0x80; 2 * LANE];
    let (mut at, mut byte) = (LANE, 0);
    while at < from.len() {
        from[at] = byte;
        (at, byte) = (at + 1, byte + 1);
    }
    from
};

/// Continues the CRC over a short input.
///
/// A product takes several times as long as starting the next one, so no lane is folded into the
/// next. Instead each lane is multiplied by the factor for its distance to the end, and all
/// products are added.
///
/// # Safety
/// `len` bytes must be readable at `src`. `len` is a multiple of 4, and in [`SHORT`]. The processor
/// must have these features.
#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
unsafe fn short(crc: u32, src: *const u8, len: usize) -> u32 {
    debug_assert!(len.is_multiple_of(4) && SHORT.contains(&len));
    let (first, mut behind) = ((len - 1) % LANE + 1, (len - 1) / LANE);
    // SAFETY: a whole lane can be read from each of the first 16 bytes of the table on.
    let behind_zeros = unsafe { __m128i::load(BEHIND_ZEROS.as_ptr().add(first)) };
    // SAFETY: `len` is at least a lane. The register before the data is added to its first word.
    let begin = _mm_xor_si128(
        unsafe { __m128i::load(src) },
        _mm_cvtsi32_si128(!crc.cast_signed()),
    );
    // SAFETY: the caller guarantees the features, and `behind` is less than 8 for all lengths in
    // `SHORT`.
    let mut sum = unsafe { to_96(_mm_shuffle_epi8(begin, behind_zeros), behind) };
    let mut at = src.wrapping_add(first);
    while behind > 0 {
        behind -= 1;
        // SAFETY: as above. The lanes after the first part are full.
        sum = _mm_xor_si128(sum, unsafe { to_96(__m128i::load(at), behind) });
        at = at.wrapping_add(LANE);
    }
    !remainder_of_96(sum)
}

/// Returns the 96 bits for a lane that is followed by `behind` lanes.
///
/// # Safety
/// `behind` must be less than 8, and the processor must have these features.
#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
unsafe fn to_96(lane: __m128i, behind: usize) -> __m128i {
    // SAFETY: the caller guarantees that `behind` is an index into the table.
    let by = unsafe { __m128i::load(TO_96.as_ptr().wrapping_add(behind).cast()) };
    _mm_xor_si128(
        _mm_clmulepi64_si128::<0x00>(lane, by),
        _mm_clmulepi64_si128::<0x11>(lane, by),
    )
}

/// Returns the CRC's register after the data that these 96 bits represent.
#[target_feature(enable = "pclmulqdq,sse4.1")]
#[inline]
fn remainder_of_96(bits: __m128i) -> u32 {
    let by = _mm_set_epi64x(const { factor(64).cast_signed() }, 0);
    let low_word = _mm_set_epi32(0, 0, 0, -1);
    // Reduces 96 bits to 64.
    let lane = _mm_xor_si128(
        _mm_srli_si128::<4>(bits),
        _mm_clmulepi64_si128::<0x10>(_mm_and_si128(bits, low_word), by),
    );
    // Barrett reduction: the quotient by x^64 / P, then minus the quotient times P.
    let barrett = _mm_set_epi64x(QUOTIENT, (POLYNOMIAL as i64) << 1 | 1);
    let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(lane, low_word), barrett);
    let multiple = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low_word), barrett);
    _mm_extract_epi32::<1>(_mm_xor_si128(lane, multiple)).cast_unsigned()
}

impl Register for __m512i {
    type SimdLane = __m128i;
    const LEN: usize = 64;

    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller guarantees that the bytes are readable.
        unsafe { _mm512_loadu_si512(src.cast()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn store(self, dst: *mut u8) {
        // SAFETY: the caller guarantees that the bytes are writable.
        unsafe { _mm512_storeu_si512(dst.cast(), self) };
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn starting_with(lane: __m128i) -> Self {
        _mm512_zextsi128_si512(lane)
    }

    #[target_feature(enable = "avx512f,vpclmulqdq")]
    #[inline]
    unsafe fn fold(self, factors: [u64; 2], next: Self) -> Self {
        let [low, high] = factors.map(u64::cast_signed);
        let by = _mm512_set_epi64(high, low, high, low, high, low, high, low);
        // 0x96 is the exclusive or of three operands.
        _mm512_ternarylogic_epi64::<0x96>(
            _mm512_clmulepi64_epi128::<0x00>(self, by),
            _mm512_clmulepi64_epi128::<0x11>(self, by),
            next,
        )
    }

    #[target_feature(enable = "avx512f,vpclmulqdq")]
    #[inline]
    unsafe fn last_lane(self) -> __m128i {
        let [a, b, c] = const { [FACTORS[3], FACTORS[2], FACTORS[1]] }
            .map(|factors| factors.map(u64::cast_signed));
        let by = _mm512_set_epi64(0, 0, c[1], c[0], b[1], b[0], a[1], a[0]);
        let folded = _mm512_xor_si512(
            _mm512_clmulepi64_epi128::<0x00>(self, by),
            _mm512_clmulepi64_epi128::<0x11>(self, by),
        );
        // The last lane already has its final position.
        let lanes = _mm512_mask_mov_epi64(folded, 0b1100_0000, self);
        let halves = _mm256_xor_si256(
            _mm512_castsi512_si256(lanes),
            _mm512_extracti64x4_epi64::<1>(lanes),
        );
        _mm_xor_si128(
            _mm256_castsi256_si128(halves),
            _mm256_extracti128_si256::<1>(halves),
        )
    }
}

impl Register for __m256i {
    type SimdLane = __m128i;
    const LEN: usize = 32;

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller guarantees that the bytes are readable.
        unsafe { _mm256_loadu_si256(src.cast()) }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn store(self, dst: *mut u8) {
        // SAFETY: the caller guarantees that the bytes are writable.
        unsafe { _mm256_storeu_si256(dst.cast(), self) };
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn starting_with(lane: __m128i) -> Self {
        _mm256_zextsi128_si256(lane)
    }

    #[target_feature(enable = "avx2,vpclmulqdq")]
    #[inline]
    unsafe fn fold(self, factors: [u64; 2], next: Self) -> Self {
        let [low, high] = factors.map(u64::cast_signed);
        let by = _mm256_set_epi64x(high, low, high, low);
        _mm256_xor_si256(
            _mm256_xor_si256(next, _mm256_clmulepi64_epi128::<0x00>(self, by)),
            _mm256_clmulepi64_epi128::<0x11>(self, by),
        )
    }

    #[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.1")]
    #[inline]
    unsafe fn last_lane(self) -> __m128i {
        let (first, second) = (
            _mm256_castsi256_si128(self),
            _mm256_extracti128_si256::<1>(self),
        );
        // SAFETY: this function has the features of the narrower register.
        unsafe { first.fold(FACTORS[1], second) }
    }
}

impl Register for __m128i {
    type SimdLane = Self;
    const LEN: usize = 16;

    #[target_feature(enable = "sse4.1")]
    #[inline]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller guarantees that the bytes are readable.
        unsafe { _mm_loadu_si128(src.cast()) }
    }

    #[target_feature(enable = "sse4.1")]
    #[inline]
    unsafe fn store(self, dst: *mut u8) {
        // SAFETY: the caller guarantees that the bytes are writable.
        unsafe { _mm_storeu_si128(dst.cast(), self) };
    }

    #[inline]
    unsafe fn starting_with(lane: Self) -> Self {
        lane
    }

    #[target_feature(enable = "sse4.1,pclmulqdq")]
    #[inline]
    unsafe fn fold(self, factors: [u64; 2], next: Self) -> Self {
        let [low, high] = factors.map(u64::cast_signed);
        let by = _mm_set_epi64x(high, low);
        _mm_xor_si128(
            _mm_xor_si128(next, _mm_clmulepi64_si128::<0x00>(self, by)),
            _mm_clmulepi64_si128::<0x11>(self, by),
        )
    }

    #[inline]
    unsafe fn last_lane(self) -> Self {
        self
    }
}

impl SimdLane for __m128i {
    #[target_feature(enable = "sse4.1")]
    #[inline]
    unsafe fn new(bytes: u128) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let (low, high) = (bytes as u64, (bytes >> 64) as u64);
        _mm_set_epi64x(high.cast_signed(), low.cast_signed())
    }

    #[target_feature(enable = "sse4.1,pclmulqdq")]
    #[inline]
    unsafe fn remainder(self) -> u32 {
        let by = _mm_set_epi64x(0, const { factor(96).cast_signed() });
        let bits = _mm_xor_si128(
            _mm_srli_si128::<8>(self),
            _mm_clmulepi64_si128::<0x00>(self, by),
        );
        remainder_of_96(bits)
    }
}

/// x^64 divided by the CRC's polynomial, reflected, 33 bits.
const QUOTIENT: i64 = {
    // Long division: at every step, the remainder's highest coefficient is bit 0 of `rest`.
    let divisor = (POLYNOMIAL as u64) << 1 | 1;
    let mut rest = 1u64;
    let (mut quotient, mut i) = (0, 0);
    while i <= 32 {
        if rest & 1 != 0 {
            quotient |= 1 << i;
            rest ^= divisor;
        }
        rest >>= 1;
        i += 1;
    }
    quotient
};

const _: () = assert!(QUOTIENT == 0x1_f701_1641);
