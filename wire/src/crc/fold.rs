//! The CRC by carry-less multiplication, for registers of any width. `x86` and `arm` implement the
//! registers.
//!
//! Sixteen bytes of the data, a lane, are a polynomial with the first bit of the data as the
//! highest coefficient. Folding a lane by n bits multiplies it by x^n, modulo the CRC's polynomial,
//! and adds it to the lane that follows n bits later. The lower half of a lane, whose coefficients
//! are 64 higher, is multiplied by x^(n + 32), and the upper half by x^(n - 32). Both exponents
//! include a correction by 32 and by one, because products of reflected numbers come out shifted.
//!
//! A register of several lanes folds them all at once. Several registers are in progress at a time,
//! because a product takes longer than starting the next one. In the end one lane is left, which
//! [`SimdLane::remainder`] divides by the polynomial.
//!
//! The unit is a word of 4 bytes. A first lane that is not full begins with zeros, which do not
//! change the result.

use core::ptr::null_mut;

use super::{ONE, times_x};

/// Bytes of a lane.
pub(super) const LANE: usize = 16;

/// x^n modulo the CRC's polynomial, as a factor.
pub(super) const fn factor(n: usize) -> u64 {
    let mut power = ONE;
    let mut i = 0;
    while i < n {
        power = times_x(power);
        i += 1;
    }
    (power as u64) << 1
}

/// `FACTORS[n]` fold a lane by n lanes. The factor of its lower half comes first.
pub(super) const FACTORS: [[u64; 2]; 17] = {
    let mut factors = [[0; 2]; 17];
    let mut n = 1;
    while n < factors.len() {
        let bits = 8 * LANE * n;
        factors[n] = [factor(bits + 32), factor(bits - 32)];
        n += 1;
    }
    factors
};

/// A register that holds lanes.
///
/// All its functions are unsafe, because the processor needs to have the register's instructions.
pub(super) trait Register: Copy {
    /// A register of one lane.
    type SimdLane: SimdLane;
    /// Bytes that it holds.
    const LEN: usize;

    /// Loads a register.
    ///
    /// # Safety
    /// The processor must have the instructions, and `LEN` bytes must be readable at `src`.
    unsafe fn load(src: *const u8) -> Self;

    /// Stores a register.
    ///
    /// # Safety
    /// The processor must have the instructions, and `LEN` bytes must be writable at `dst`.
    unsafe fn store(self, dst: *mut u8);

    /// Returns a register with a lane followed by zeros.
    ///
    /// # Safety
    /// The processor must have the instructions.
    unsafe fn starting_with(lane: Self::SimdLane) -> Self;

    /// Folds each lane and adds `next`.
    ///
    /// # Safety
    /// The processor must have the instructions.
    unsafe fn fold(self, factors: [u64; 2], next: Self) -> Self;

    /// Folds all lanes into the last one.
    ///
    /// # Safety
    /// The processor must have the instructions.
    unsafe fn last_lane(self) -> Self::SimdLane;
}

/// A register of one lane.
pub(super) trait SimdLane: Register<SimdLane = Self> {
    /// Creates a lane of these bytes, the first one lowest.
    ///
    /// # Safety
    /// The processor must have the instructions.
    unsafe fn new(bytes: u128) -> Self;

    /// Returns the CRC's register after the data that this lane represents.
    ///
    /// # Safety
    /// The processor must have the instructions.
    unsafe fn remainder(self) -> u32;
}

/// Source of the data, and destination if it is copied.
struct Data<const COPY: bool> {
    src: *const u8,
    dst: *mut u8,
    left: usize,
}

impl<const COPY: bool> Data<COPY> {
    /// Reads the next full register.
    ///
    /// # Safety
    /// The processor must have the register's instructions. `R::LEN` bytes must be left and
    /// readable, and writable if they are copied.
    #[inline(always)]
    unsafe fn next<R: Register>(&mut self) -> R {
        // SAFETY: the caller guarantees that the bytes are readable.
        let register = unsafe { R::load(self.src) };
        if COPY {
            // SAFETY: the caller guarantees that the bytes are writable.
            unsafe { register.store(self.dst) };
        }
        self.advance(R::LEN);
        register
    }

    /// Reads the next `len` bytes, 4, 8, 12 or 16, into a lane that begins with zeros.
    ///
    /// # Safety
    /// `len` bytes must be left and readable, and writable if they are copied.
    #[inline(always)]
    unsafe fn part(&mut self, len: usize) -> u128 {
        debug_assert!(matches!(len, 4 | 8 | 12 | 16));
        let mut lane = 0;
        let mut len = len;
        // The order is that of memory: later bytes are higher.
        if len & 4 != 0 {
            // SAFETY: these are 4 of the `len` bytes that the caller guarantees.
            lane = u128::from(unsafe { self.word::<u32>() }.to_le()) << 96;
            len -= 4;
        }
        while len != 0 {
            // SAFETY: these are 8 of the `len` bytes that the caller guarantees.
            let word = unsafe { self.word::<u64>() }.to_le();
            lane = lane >> 64 | u128::from(word) << 64;
            len -= 8;
        }
        lane
    }

    /// Reads the next word.
    ///
    /// # Safety
    /// The bytes of the word must be left and readable, and writable if they are copied.
    #[inline(always)]
    unsafe fn word<T: Copy>(&mut self) -> T {
        // SAFETY: the caller guarantees the memory. `T` is an integer, for which any bytes are
        // valid.
        let word = unsafe { self.src.cast::<T>().read_unaligned() };
        if COPY {
            // SAFETY: the caller guarantees that the bytes are writable.
            unsafe { self.dst.cast::<T>().write_unaligned(word) };
        }
        self.advance(size_of::<T>());
        word
    }

    #[inline(always)]
    const fn advance(&mut self, len: usize) {
        self.src = self.src.wrapping_add(len);
        if COPY {
            self.dst = self.dst.wrapping_add(len);
        }
        self.left -= len;
    }
}

/// Continues the CRC over `head` and `len` bytes at `src`, and copies the latter to `dst` if `COPY`
/// is set. `AHEAD` registers are in progress at a time.
///
/// `len` is a multiple of 4 and not 0. If `head` is not empty, its length is a multiple of 4, and
/// `len` is a multiple of [`LANE`].
///
/// The function uses no target features of its own, and is inlined into a function that does.
///
/// # Safety
/// The processor must have the register's instructions. `len` bytes must be readable at `src`. If
/// they are copied, `len` bytes must be writable at `dst`, and not overlap the source.
#[inline(always)]
pub(super) unsafe fn sum<R: Register, const AHEAD: usize, const COPY: bool>(
    crc: u32,
    head: &[u8],
    src: *const u8,
    dst: *mut u8,
    len: usize,
) -> u32 {
    debug_assert!(len > 0 && len.is_multiple_of(4) && head.len().is_multiple_of(4));
    debug_assert!(head.is_empty() || len.is_multiple_of(LANE));
    let mut head = Data::<false> {
        src: head.as_ptr(),
        dst: null_mut(),
        left: head.len(),
    };
    let mut data = Data::<COPY> {
        src,
        dst,
        left: len,
    };
    let part = match (head.left + len) % LANE {
        0 => LANE,
        part => part,
    };
    let first = if head.left == 0 {
        // SAFETY: `len` is not 0, and so at least `part`.
        unsafe { data.part(part) }
    } else {
        // SAFETY: the head is not empty, and so at least `part` long. `len` is a multiple of full
        // lanes.
        unsafe { head.part(part) }
    };
    // The register before the data is added to the first word of the data.
    let first = first ^ u128::from(!crc) << (8 * (LANE - part));
    // SAFETY: the caller guarantees the instructions.
    let mut lane = unsafe { R::SimdLane::new(first) };
    while head.left > 0 {
        // SAFETY: the caller guarantees the instructions. Only full lanes are left.
        lane = unsafe { lane.fold(FACTORS[1], head.next()) };
    }
    if data.left >= R::LEN {
        // SAFETY: the caller guarantees the instructions and the memory. A full register is left.
        lane = unsafe { registers::<R, AHEAD, COPY>(lane, &mut data) };
    }
    while data.left > 0 {
        // SAFETY: the caller guarantees the instructions and the memory. Only full lanes are left.
        lane = unsafe { lane.fold(FACTORS[1], data.next()) };
    }
    // SAFETY: the caller guarantees the instructions.
    !unsafe { lane.remainder() }
}

/// Folds `lane` and all full registers of the data after it into one lane.
///
/// # Safety
/// The processor must have the register's instructions. At least one register must be left. The
/// data left must be readable, and writable if it is copied.
#[inline(always)]
unsafe fn registers<R: Register, const AHEAD: usize, const COPY: bool>(
    lane: R::SimdLane,
    data: &mut Data<COPY>,
) -> R::SimdLane {
    let lanes = const { R::LEN / LANE };
    // SAFETY: the caller guarantees the instructions and the memory. At least one register is left.
    let mut last = unsafe { R::starting_with(lane).fold(FACTORS[1], data.next()) };
    if data.left >= (AHEAD - 1) * R::LEN {
        let mut ahead = [last; AHEAD];
        for register in &mut ahead[1..] {
            // SAFETY: the condition above has checked that enough registers are left.
            *register = unsafe { data.next() };
        }
        while data.left >= AHEAD * R::LEN {
            for register in &mut ahead {
                // SAFETY: the loop condition has checked that enough registers are left.
                *register = unsafe { register.fold(FACTORS[AHEAD * lanes], data.next()) };
            }
        }
        last = ahead[AHEAD - 1];
        for (n, register) in ahead[..AHEAD - 1].iter().enumerate() {
            // SAFETY: the caller guarantees the instructions.
            last = unsafe { register.fold(FACTORS[(AHEAD - 1 - n) * lanes], last) };
        }
    }
    while data.left >= R::LEN {
        // SAFETY: the loop condition has checked that a register is left.
        last = unsafe { last.fold(FACTORS[lanes], data.next()) };
    }
    // SAFETY: the caller guarantees the instructions.
    unsafe { last.last_lane() }
}
