//! The CRC with AVX-512 and carry-less multiplication of 512-bit registers.
//!
//! A register holds 64 bytes of the data, in four lanes of 128 bits, as polynomials with the first bit of
//! the data as the highest coefficient. To fold one by n bits is to multiply it by x^n, modulo the CRC's
//! polynomial, and to add it to the 64 bytes that follow n bits later: in each lane the lower half, whose
//! coefficients are 64 higher, times x^(n + 32) and the upper half times x^(n - 32) (32 less than
//! one would think and one more, because products of reflected numbers come out shifted).
//! What is left at the end is folded into one lane, and that reduced to 32 bits as Barrett does it.
//!
//! Words of 4 bytes are the unit: a first block that is not full is loaded as the end of one whose
//! beginning is 0, which changes nothing. Up to three bytes at the end are left to `portable`.

use core::arch::x86_64::{
    __m128i, __m512i, _mm_and_si128, _mm_clmulepi64_si128, _mm_extract_epi32, _mm_set_epi32,
    _mm_set_epi64x, _mm_srli_si128, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_xor_si256, _mm512_castsi512_si256, _mm512_clmulepi64_epi128,
    _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_mask_mov_epi64, _mm512_mask_storeu_epi8,
    _mm512_maskz_loadu_epi8, _mm512_maskz_set1_epi32, _mm512_set_epi64, _mm512_storeu_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512,
};

use core::ptr::null_mut;

use super::{ONE, POLYNOMIAL, portable, times_x};

/// Bytes of a register.
const BLOCK: usize = 64;
/// Bytes that the main loop takes at a time.
const STRIDE: usize = 4 * BLOCK;

/// x^n modulo the CRC's polynomial, as a factor.
const fn factor(n: u32) -> i64 {
    let mut power = ONE;
    let mut i = 0;
    while i < n {
        power = times_x(power);
        i += 1;
    }
    (power as i64) << 1
}

/// The factors that fold a lane by `bits`, the one of its lower half first.
const fn factors(bits: u32) -> [i64; 2] {
    [factor(bits + 32), factor(bits - 32)]
}

/// Proof that the processor has what this file needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wide(());

impl Wide {
    /// `None` on a processor that cannot.
    #[inline]
    pub(super) fn get() -> Option<Self> {
        #[cfg(feature = "std")]
        let can = std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("vpclmulqdq")
            && std::is_x86_feature_detected!("pclmulqdq");
        #[cfg(not(feature = "std"))]
        let can = cfg!(all(
            target_feature = "avx512f",
            target_feature = "avx512bw",
            target_feature = "vpclmulqdq",
            target_feature = "pclmulqdq"
        ));
        can.then_some(Self(()))
    }

    #[inline]
    pub(super) fn update(self, crc: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.split_at(bytes.len() & !3);
        let mut crc = crc;
        if !words.is_empty() {
            // SAFETY: `self` proves the features; `words` is readable, nothing is written.
            crc = unsafe { sum::<false>(crc, &[], words.as_ptr(), null_mut(), words.len()) };
        }
        if rest.is_empty() {
            crc
        } else {
            portable(crc, rest)
        }
    }

    /// # Safety
    /// As [`super::copy`].
    #[inline]
    pub(super) unsafe fn copy(self, crc: u32, head: &[u8], src: *const u8, dst: &mut [u8]) -> u32 {
        let (words, rest) = dst.split_at_mut(dst.len() & !3);
        let mut crc = crc;
        // Where the head can be the block that is not full, it costs next to nothing.
        let fits = head.len() < BLOCK && head.len().is_multiple_of(4);
        let full = !words.is_empty() && words.len().is_multiple_of(BLOCK);
        let head = if fits && full {
            head
        } else {
            crc = self.update(crc, head);
            &[]
        };
        if !words.is_empty() {
            // SAFETY: `self` proves the features; the caller promises the source, `words` is ours.
            // The head is as `sum` wants it.
            crc = unsafe { sum::<true>(crc, head, src, words.as_mut_ptr(), words.len()) };
        }
        if rest.is_empty() {
            return crc;
        }
        // SAFETY: the bytes behind the words, by the same promise.
        unsafe {
            let src = src.add(words.len());
            core::ptr::copy_nonoverlapping(src, rest.as_mut_ptr(), rest.len());
        }
        portable(crc, rest)
    }
}

/// Where data comes from, and where it goes if it is copied.
struct Data<const COPY: bool> {
    src: *const u8,
    dst: *mut u8,
    left: usize,
}

impl<const COPY: bool> Data<COPY> {
    /// The next block.
    ///
    /// # Safety
    /// [`BLOCK`] bytes must be left, readable, and writable if they are copied.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn block(&mut self) -> __m512i {
        // SAFETY: the caller's promise.
        let block = unsafe { _mm512_loadu_si512(self.src.cast()) };
        if COPY {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_si512(self.dst.cast(), block) };
        }
        self.advance(BLOCK);
        block
    }

    /// The next `len` bytes, fewer than [`BLOCK`], at the end of a block of zeros.
    ///
    /// # Safety
    /// As [`block`](Self::block), for `len` bytes.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn part(&mut self, len: usize) -> __m512i {
        let before = BLOCK - len;
        let mask = !0 << before;
        // SAFETY: the masked instructions touch the `len` last bytes of the block only, which begin
        // at `src` and at `dst`.
        let block = unsafe { _mm512_maskz_loadu_epi8(mask, self.src.wrapping_sub(before).cast()) };
        if COPY {
            // SAFETY: as above.
            unsafe { _mm512_mask_storeu_epi8(self.dst.wrapping_sub(before).cast(), mask, block) };
        }
        self.advance(len);
        block
    }

    #[inline]
    fn advance(&mut self, len: usize) {
        self.src = self.src.wrapping_add(len);
        if COPY {
            self.dst = self.dst.wrapping_add(len);
        }
        self.left -= len;
    }
}

/// Folds `block` by `BITS` and adds `next`.
#[target_feature(enable = "avx512f,vpclmulqdq")]
#[inline]
fn fold<const BITS: u32>(block: __m512i, next: __m512i) -> __m512i {
    let [low, high] = const { factors(BITS) };
    let by = _mm512_set_epi64(high, low, high, low, high, low, high, low);
    // 0x96 is the exclusive or of three.
    _mm512_ternarylogic_epi64::<0x96>(
        _mm512_clmulepi64_epi128::<0x00>(block, by),
        _mm512_clmulepi64_epi128::<0x11>(block, by),
        next,
    )
}

/// Continues the CRC over `head` and `len` bytes at `src`, and copies the latter to `dst` if asked to. `len`
/// is a multiple of 4 and not 0. Where there is a head, `len` is a multiple of [`BLOCK`], and the head's
/// length one of 4 and less than a block.
///
/// # Safety
/// `len` bytes must be readable at `src`, and writable at `dst` if they are copied; they must not overlap.
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq")]
unsafe fn sum<const COPY: bool>(
    crc: u32,
    head: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u32 {
    debug_assert!(len > 0 && len.is_multiple_of(4));
    debug_assert!(head.is_empty() || len.is_multiple_of(BLOCK));
    let mut data = Data::<COPY> {
        src,
        dst,
        left: len,
    };
    let part = (head.len() + len) % BLOCK;
    let mut first = if part == 0 {
        // SAFETY: not 0 and a multiple of a block.
        unsafe { data.block() }
    } else if head.is_empty() {
        // SAFETY: `part` is at most `len`.
        unsafe { data.part(part) }
    } else {
        let mut head = Data::<false> {
            src: head.as_ptr(),
            dst: null_mut(),
            left: head.len(),
        };
        // SAFETY: `part` is the head's length.
        unsafe { head.part(part) }
    };
    // The register before the data is added to its first word.
    let first_word = (BLOCK - part) / 4 % 16;
    first = _mm512_xor_si512(
        first,
        _mm512_maskz_set1_epi32(1 << first_word, (!crc).cast_signed()),
    );
    if data.left >= STRIDE {
        // SAFETY: four blocks are left.
        let mut a = unsafe { [data.block(), data.block(), data.block(), data.block()] };
        a[0] = fold::<512>(first, a[0]);
        while data.left >= STRIDE {
            for a in &mut a {
                // SAFETY: as above.
                *a = fold::<2048>(*a, unsafe { data.block() });
            }
        }
        let [a, b, c, d] = a;
        first = fold::<1024>(fold::<512>(a, b), fold::<512>(c, d));
    }
    while data.left >= BLOCK {
        // SAFETY: a block is left.
        first = fold::<512>(first, unsafe { data.block() });
    }
    debug_assert_eq!(data.left, 0);
    reduce(one_lane(first))
}

/// Folds the four lanes into one.
#[target_feature(enable = "avx512f,vpclmulqdq")]
#[inline]
fn one_lane(block: __m512i) -> __m128i {
    let [a, b, c] = const { [factors(384), factors(256), factors(128)] };
    let by = _mm512_set_epi64(0, 0, c[1], c[0], b[1], b[0], a[1], a[0]);
    let folded = _mm512_xor_si512(
        _mm512_clmulepi64_epi128::<0x00>(block, by),
        _mm512_clmulepi64_epi128::<0x11>(block, by),
    );
    // The last lane is where it has to be.
    let lanes = _mm512_mask_mov_epi64(folded, 0b1100_0000, block);
    let halves = _mm256_xor_si256(
        _mm512_castsi512_si256(lanes),
        _mm512_extracti64x4_epi64::<1>(lanes),
    );
    _mm_xor_si128(
        _mm256_castsi256_si128(halves),
        _mm256_extracti128_si256::<1>(halves),
    )
}

/// The CRC of the data that one lane stands for.
#[target_feature(enable = "sse4.1,pclmulqdq")]
#[inline]
fn reduce(lane: __m128i) -> u32 {
    let by = _mm_set_epi64x(const { factor(64) }, const { factor(96) });
    let low_word = _mm_set_epi32(0, 0, 0, -1);
    // 128 bits to 96, to 64.
    let lane = _mm_xor_si128(
        _mm_srli_si128::<8>(lane),
        _mm_clmulepi64_si128::<0x00>(lane, by),
    );
    let lane = _mm_xor_si128(
        _mm_srli_si128::<4>(lane),
        _mm_clmulepi64_si128::<0x10>(_mm_and_si128(lane, low_word), by),
    );
    // Barrett: the quotient by x^64 / P, then minus the quotient times P.
    let barrett = _mm_set_epi64x(QUOTIENT, (POLYNOMIAL as i64) << 1 | 1);
    let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(lane, low_word), barrett);
    let multiple = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low_word), barrett);
    !_mm_extract_epi32::<1>(_mm_xor_si128(lane, multiple)).cast_unsigned()
}

/// x^64 divided by the CRC's polynomial, reflected, 33 bits.
const QUOTIENT: i64 = {
    // Long division: the remainder's highest coefficient is bit 0 of `rest` at every step.
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
